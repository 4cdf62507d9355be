"""Loading a trained agent: folders, and Hub names with a stand-in for the Hub's client."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import errors

from memalpha.agent.config import AgentConfig
from memalpha.errors import InputError, ServiceError
from memalpha.models.agent import find_agent, load_agent
from memalpha.models.registry import build_nano, toy_texts
from memalpha.use.agent import MemoryAgent

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
        asked.extend(allow_patterns)
        shutil.copytree(whole, snapshot, dirs_exist_ok=True)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_a_hub_name_is_fetched_without_code_and_used(hub, whole, tmp_path):
    with MemoryAgent.load("somebody/agent", store=tmp_path / "s.db") as agent:
        assert agent.step.config == CONFIG and agent.name == f"somebody/agent@{COMMIT[:12]}"
        agent.add("Marta lives in Oslo", namespace="marta")
    names = {file.name for file in whole.iterdir()}
    offered = [*names, "train.py", "weights.bin", "x.pkl"]
    assert {name for name in offered for pattern in hub if fnmatch(name, pattern)} == names
    assert find_agent(f"somebody/agent@{COMMIT}") == find_agent("somebody/agent")


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
        find_agent(name)


def test_a_folder_names_itself_and_a_run_is_its_adapter(whole, tmp_path):
    step, generator, name, _ = load_agent(whole, dtype="bfloat16")
    assert (name, step.config, generator.model.dtype) == ("mine", CONFIG, torch.bfloat16)
    for options in ({"device": "nonsense"}, {"dtype": "int3"}):
        with pytest.raises(InputError, match="cannot be used"):
            load_agent(whole, **options)
    adapter = shutil.copytree(whole, tmp_path / "run" / "adapter")
    assert find_agent(tmp_path / "run") == (adapter, "run")
    assert find_agent(adapter) == (adapter, "adapter")


@pytest.mark.parametrize(
    "name", ["no/such/folder", "./missing", "plain", Path("a/b"), "", "a/", "~/x"]
)
def test_what_is_neither_folder_nor_hub_name_is_refused(name):
    with pytest.raises(InputError, match="no trained agent at"):
        find_agent(name)
