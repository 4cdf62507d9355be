"""The shipped adapters by name: pinned, fetched whole with what they need, and found by everything that
takes an adapter."""

import hashlib
import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from memalpha.errors import InputError
from memalpha.models import shipped
from memalpha.models.agent import adapter_option, find_agent, own_reader
from memalpha.models.readers import resolve_reader
from memalpha.models.shipped import ADAPTERS, ShippedAdapter, fetch, resolve_adapter

ROOT = Path(__file__).resolve().parents[2]
MEMORY, READER = "smollm2-135m-memory", "smollm2-135m-reader"


def test_the_table_is_that_of_the_files():
    folders = sorted((ROOT / "data" / "adapters").iterdir())
    assert [folder.name for folder in folders] == list(ADAPTERS)
    for folder in folders:
        digests = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.iterdir()
            if path.name != "README.md"
        }
        record = json.loads((folder / "memalpha_adapter.json").read_text())
        assert ADAPTERS[folder.name] == ShippedAdapter(
            record["base"], record.get("reader", ""), digests
        )


@pytest.fixture
def bases(monkeypatch):
    """The base models that were fetched, by a stand-in."""
    fetched = []
    monkeypatch.setattr(shipped, "fetch_base", lambda name, report: fetched.append(name))
    return fetched


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of adapters of an installation from a wheel, which has no checkout beside it."""
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped, "_CHECKOUT", tmp_path / "site-packages" / "data" / "adapters")
    return tmp_path / "cache" / "adapters"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout's agent and reader."""
    for name in (MEMORY, READER):
        shutil.copytree(ROOT / "data" / "adapters" / name, tmp_path / "copy/data/adapters" / name)
    return tmp_path / "copy"


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("form", ["", "data/adapters", f"data/adapters/{MEMORY}"])
def test_an_adapter_comes_with_its_reader_and_its_base(cache, bases, checkout, form):
    said = []
    folder = fetch(MEMORY, str(checkout / form), lambda event, data: said.append(data["what"]))
    assert folder == cache / MEMORY == resolve_adapter(MEMORY)
    assert names_in(cache) == [MEMORY, READER] and bases == ["smollm2-135m-instruct@pypi"]
    for name in (MEMORY, READER):
        source = checkout / "data" / "adapters" / name
        for file in ADAPTERS[name].files:
            assert (cache / name / file).read_bytes() == (source / file).read_bytes()
        assert names_in(cache / name) == sorted(ADAPTERS[name].files)
    assert [text.split(" from ")[0] for text in said] == [MEMORY, READER]
    shutil.rmtree(checkout)  # a second time nothing is copied
    assert fetch(MEMORY, str(checkout)) == folder and len(said) == 2
    assert own_reader(folder) == cache / READER


def test_a_hub_repository_is_asked_for_these_files_alone(cache, bases, checkout, monkeypatch):
    asked = {}

    def snapshot_download(name, revision=None, allow_patterns=()):
        asked.update({"name": name, "revision": revision, "patterns": allow_patterns})
        return str(checkout / "data" / "adapters")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert fetch(MEMORY, "somebody/adapters@v1") == cache / MEMORY
    assert (asked["name"], asked["revision"]) == ("somebody/adapters", "v1")

    def is_fetched(path):
        return any(fnmatch(path, pattern) for pattern in asked["patterns"])

    assert is_fetched("adapter_model.safetensors")  # of a repository of the agent alone
    assert is_fetched(f"{READER}/adapter_model.safetensors")
    assert is_fetched(f"data/adapters/{MEMORY}/memalpha_schema.yaml")
    assert not any(map(is_fetched, (f"{MEMORY}/run.py", "other/adapter_config.json", "x.pkl")))
    assert bases == ["smollm2-135m-instruct@pypi"]


@pytest.mark.parametrize("name", [MEMORY, READER])
def test_a_wrong_digest_names_the_file_and_leaves_nothing(cache, bases, checkout, name):
    path = checkout / "data" / "adapters" / name / "memalpha_agent.json"
    path.write_text("{}\n")
    with pytest.raises(InputError) as error:
        fetch(MEMORY, str(checkout))
    found = hashlib.sha256(b"{}\n").hexdigest()
    assert error.value.what == f"{path} has sha256 {found}; nothing was fetched"
    assert error.value.expected == f"sha256 {ADAPTERS[name].files['memalpha_agent.json']}"
    assert names_in(cache) == [] and bases == []


def test_a_damaged_copy_in_the_cache_is_replaced(cache, bases, checkout):
    fetch(READER, str(checkout))
    (cache / READER / "adapter_config.json").write_text("{}")
    fetch(READER, str(checkout))
    source = checkout / "data" / "adapters" / READER / "adapter_config.json"
    assert (cache / READER / "adapter_config.json").read_bytes() == source.read_bytes()
    assert names_in(cache) == [READER]


def test_what_lacks_is_named(cache, bases, checkout, tmp_path):
    alone = checkout / "data" / "adapters" / MEMORY
    (alone / "memalpha_schema.yaml").unlink()
    with pytest.raises(InputError, match=f"{MEMORY} has no memalpha_schema.yaml"):
        fetch(MEMORY, str(checkout))
    shutil.rmtree(checkout / "data" / "adapters" / READER)
    with pytest.raises(InputError, match=f"(?s)needs its reader {READER}.*memalpha fetch {READER}"):
        fetch(MEMORY, str(alone))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"there is no adapter '{MEMORY}' in"):
        fetch(MEMORY, str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"--from is './nowhere', which is no folder"):
        fetch(MEMORY, "./nowhere")
    with pytest.raises(InputError, match="--from FOLDER or --from OWNER/NAME") as error:
        fetch(MEMORY)
    assert "no address on the Hub yet" in error.value.what
    with pytest.raises(InputError, match=f"'smollm'(.|\n)*smollm2-135m-instruct, .*{READER}"):
        fetch("smollm", str(checkout))
    assert names_in(cache) == [] and bases == []


def test_names_are_found_in_the_checkout_without_fetching(bases, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path))
    here = ROOT / "data" / "adapters"
    assert resolve_adapter(MEMORY) == fetch(MEMORY) == here / MEMORY
    assert find_agent(MEMORY) == (here / MEMORY, MEMORY)
    assert bases == ["smollm2-135m-instruct@pypi"] and names_in(tmp_path) == []


def test_every_form_of_an_adapter_is_resolved(cache, bases, checkout, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=f"(?s)'{MEMORY}' is not on this machine.*memalpha fetch"):
        resolve_adapter(MEMORY)
    with pytest.raises(InputError, match=f"no trained agent at 'smollm'(.|\n)*{MEMORY}, {READER}"):
        resolve_adapter("smollm")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="no trained agent at 'runs/warmup'"):  # never of the Hub
        resolve_adapter("runs/warmup")
    folder = checkout / "data" / "adapters" / READER
    assert resolve_adapter(str(folder)) == resolve_reader(str(folder)) == folder
    fetch(MEMORY, str(checkout))
    assert adapter_option(MEMORY) == MEMORY and adapter_option(str(folder)) == str(folder)
    assert find_agent(MEMORY) == (cache / MEMORY, MEMORY)
    assert resolve_reader(READER) == cache / READER
    assert [resolve_reader(kind) for kind in ("recall", "base")] == ["recall", "base"]
    alone = shutil.copytree(cache / MEMORY, tmp_path / "elsewhere")  # its reader is not beside it
    assert own_reader(alone) == cache / READER


def test_a_damaged_copy_in_the_checkout_is_refused_even_beside_a_good_one(
    cache, bases, checkout, monkeypatch
):
    assert fetch(READER, str(checkout)) == cache / READER
    monkeypatch.setattr(shipped, "_CHECKOUT", checkout / "data" / "adapters")
    assert fetch(READER) == checkout / "data" / "adapters" / READER
    damaged = checkout / "data" / "adapters" / READER / "adapter_config.json"
    damaged.write_text("{}\n")
    with pytest.raises(InputError) as error:
        fetch(READER, str(ROOT))
    assert f"{damaged} is not the file that was shipped" in str(error.value)
    assert f"git checkout {damaged.parent}" in str(error.value)
