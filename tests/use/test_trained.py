"""Loading a trained agent: folders, and Hub names by the real client against a stand-in of the Hub on this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from memalpha.agent.config import AgentConfig
from memalpha.errors import InputError, ServiceError
from memalpha.models.nano import build_nano, toy_texts
from memalpha.use.agent import MemoryAgent
from memalpha.use.trained import find_trained, load_trained

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=200, view_tokens=200, max_completion_length=8)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = build_nano(tmp_path_factory.mktemp("agents") / "mine", toy_texts(), layers=1, hidden=32)
    CONFIG.save(folder)
    return folder


class Hub:
    """Holds one repository, ``somebody/agent``; keeps which files were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        files = {file.name: file.read_bytes() for file in self.folder.iterdir()}
        oid = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
        if path.startswith("/api/models/somebody/agent/tree/"):
            rows = [{"type": "file", "path": name, "size": len(data), "oid": oid[name]} for name, data in files.items()]
            return 200, json.dumps(rows).encode(), {}
        if path in {f"/api/models/somebody/agent{rest}" for rest in ("", "/revision/main", f"/revision/{COMMIT}")}:
            return 200, json.dumps({"id": "somebody/agent", "sha": COMMIT, "siblings": []}).encode(), {}
        if path.startswith("/api/models/somebody/agent/revision/"):
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        name = path.rpartition("/")[2]
        if path == f"/somebody/agent/resolve/{COMMIT}/{name}" and name in files:
            self.asked.append(name)
            return 200, files[name], {"ETag": f'"{oid[name]}"', "X-Repo-Commit": COMMIT}
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}

    def _handler(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self, body=True):
                status, data, headers = hub.answer(self.path.partition("?")[0])
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def do_HEAD(self):
                self.do_GET(body=False)

            def log_message(self, *arguments):
                pass

        return Handler


@pytest.fixture
def hub(whole, tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    shutil.copytree(whole, folder)
    (folder / "train.py").write_text("raise SystemExit('code of a stranger')")
    (folder / "weights.bin").write_bytes(b"pickle")
    hub = Hub(folder)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield hub
    hub.close()


def test_a_hub_name_is_fetched_once_without_code_and_used(hub, tmp_path):
    with MemoryAgent.load("somebody/agent", store=tmp_path / "s.db") as agent:
        assert agent.step.config == CONFIG and agent.name == f"somebody/agent@{COMMIT[:12]}"
        agent.add("Marta lives in Oslo", namespace="marta")
    wanted = {"config.json", "generation_config.json", "memalpha_agent.json", "model.safetensors", "tokenizer.json"}
    assert wanted <= set(hub.asked) and not {"train.py", "weights.bin"} & set(hub.asked)
    assert find_trained(f"somebody/agent@{COMMIT}").folder == find_trained("somebody/agent").folder
    hub.close()  # from the cache, without a network
    assert find_trained("somebody/agent").folder.name == COMMIT


def test_what_the_hub_does_not_have_is_a_mistake_of_the_user(hub):
    for name in ("somebody/else", "somebody/agent@v9"):
        with pytest.raises(InputError, match=f"'{name}'"):
            find_trained(name)


def test_a_hub_that_does_not_answer_is_not(hub):
    hub.close()
    with pytest.raises(ServiceError, match="somebody/agent"):
        find_trained("somebody/agent")


def test_a_folder_names_itself_and_a_run_is_its_adapter(whole, tmp_path):
    step, _, name = load_trained(whole)
    assert name == "mine" and step.config == CONFIG
    shutil.copytree(whole, tmp_path / "run" / "adapter")
    assert find_trained(tmp_path / "run") == (tmp_path / "run" / "adapter", "run")
    assert find_trained(tmp_path / "run" / "adapter") == (tmp_path / "run" / "adapter", "adapter")


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(whole, device):
    with pytest.raises(InputError, match=f"device '{device}' cannot be used"):
        load_trained(whole, device=device)


def test_many_threads_get_from_a_real_model_what_one_gets(whole):
    """Tokenizer and model are shared: batched and at the same time, or alone and in turn."""
    trained = load_trained(whole)
    texts = [[f"Marta said number {i} <|im_end|> to {j}" for j in range(3)] for i in range(8)]

    def read(agent, number):
        added = [agent.add(text, namespace=f"user {number}") for text in texts[number]]
        return [(step.prompt.ids, step.completion.ids) for each in added for step in each.steps]

    with MemoryAgent(trained.step, trained.generator) as alone:
        wanted = [read(alone, i) for i in range(8)]
    with MemoryAgent(trained.step, trained.generator) as together, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: read(together, i), range(8))) == wanted
    assert len({prompt for row in wanted for prompt, _ in row}) == 24


@pytest.mark.parametrize("name", ["no/such/folder", "./missing", "plain", "/missing", Path("a/b"), "", "a/", "~/x"])
def test_what_is_neither_folder_nor_hub_name_is_refused(name):
    with pytest.raises(InputError, match="no trained agent at"):
        find_trained(name)


def test_budgets_that_do_not_fit_the_model_are_refused_when_it_is_loaded(whole, tmp_path):
    folder = tmp_path / "big"
    shutil.copytree(whole, folder)
    AgentConfig(schema="facts", codec="compact", max_chunk_tokens=5000).save(folder)
    with pytest.raises(InputError, match="the model takes 2048"):
        load_trained(folder)
