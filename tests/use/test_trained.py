"""Loading a trained agent: folders, and Hub names with a stand-in for the Hub's client."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import errors

from memalpha.agent.config import AgentConfig
from memalpha.errors import InputError, ServiceError
from memalpha.models.registry import build_nano, toy_texts
from memalpha.use.agent import MemoryAgent, find_trained, load_trained

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = AgentConfig(
    schema="facts", codec="compact", max_chunk_tokens=200, view_tokens=200, max_completion_length=8
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = build_nano(
        tmp_path_factory.mktemp("agents") / "mine", toy_texts(), layers=1, hidden=32
    )
    CONFIG.save(folder)
    return folder


@pytest.fixture
def hub(whole, tmp_path, monkeypatch):
    asked, snapshot = [], tmp_path / "snapshots" / COMMIT

    def snapshot_download(name, revision=None, allow_patterns=()):
        missing = httpx.Response(404, request=httpx.Request("GET", "https://hub.example"))
        if name == "somebody/offline":
            raise errors.LocalEntryNotFoundError("nothing cached")
        if name != "somebody/agent" or revision not in (None, COMMIT):
            kind = errors.RevisionNotFoundError if revision else errors.RepositoryNotFoundError
            raise kind("not there", response=missing)
        asked.append(allow_patterns)
        shutil.copytree(whole, snapshot, dirs_exist_ok=True)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_a_hub_name_is_fetched_without_code_and_used(hub, whole, tmp_path):
    with MemoryAgent.load("somebody/agent", store=tmp_path / "s.db") as agent:
        assert agent.step.config == CONFIG and agent.name == f"somebody/agent@{COMMIT[:12]}"
        agent.add("Marta lives in Oslo", namespace="marta")
    for name in [file.name for file in whole.iterdir()]:
        assert any(fnmatch(name, pattern) for pattern in hub[0]), name
    assert not [
        name
        for name in ("train.py", "weights.bin", "x.pkl")
        if any(fnmatch(name, pattern) for pattern in hub[0])
    ]
    assert find_trained(f"somebody/agent@{COMMIT}") == find_trained("somebody/agent")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("somebody/else", InputError),
        ("somebody/agent@v9", InputError),
        ("somebody/offline", ServiceError),
    ],
)
def test_what_the_hub_does_not_have_is_a_mistake_of_the_user_and_its_silence_is_not(
    hub, name, error
):
    with pytest.raises(error, match=name):
        find_trained(name)


def test_a_folder_names_itself_and_a_run_is_its_adapter(whole, tmp_path):
    step, _, name = load_trained(whole)
    assert name == "mine" and step.config == CONFIG
    with pytest.raises(InputError, match="device 'nonsense' cannot be used"):
        load_trained(whole, device="nonsense")
    with pytest.raises(InputError, match="dtype 'int3' cannot be used"):
        load_trained(whole, dtype="int3")
    assert {
        load_trained(whole, dtype=dtype)[1].model.dtype for dtype in ("float32", "bfloat16")
    } == {torch.float32, torch.bfloat16}
    shutil.copytree(whole, tmp_path / "run" / "adapter")
    assert find_trained(tmp_path / "run") == (tmp_path / "run" / "adapter", "run")
    assert find_trained(tmp_path / "run" / "adapter") == (tmp_path / "run" / "adapter", "adapter")


def test_many_threads_get_from_a_real_model_what_one_gets(whole):
    step, generator, _ = load_trained(whole)
    texts = [[f"Marta said number {i} <|im_end|> to {j}" for j in range(3)] for i in range(8)]

    def read(agent, number):
        added = [agent.add(text, namespace=f"user {number}") for text in texts[number]]
        return [(step.prompt.ids, step.completion.ids) for each in added for step in each.steps]

    with MemoryAgent(step, generator) as alone:
        wanted = [read(alone, i) for i in range(8)]
    with MemoryAgent(step, generator) as together, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: read(together, i), range(8))) == wanted
    assert len({prompt for row in wanted for prompt, _ in row}) == 24


@pytest.mark.parametrize(
    "name", ["no/such/folder", "./missing", "plain", Path("a/b"), "", "a/", "~/x"]
)
def test_what_is_neither_folder_nor_hub_name_is_refused(name):
    with pytest.raises(InputError, match="no trained agent at"):
        find_trained(name)
