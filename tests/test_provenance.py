"""Where numbers come from: the versions, the machine, and the exact code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from memalpha import provenance
from memalpha.provenance import environment, portable
from memalpha.version import __version__


def test_the_environment_names_versions_and_machine() -> None:
    import numpy

    found = environment(world_size=2)
    assert found["world_size"] == 2
    assert found["packages"]["numpy"] == numpy.__version__
    assert json.loads(json.dumps(found)) == found


def test_the_code_version_is_that_of_the_checkout_and_says_when_it_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@x")
        return subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True).stdout

    (tmp_path / "memalpha").mkdir()
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "memalpha" / "provenance.py"))
    assert provenance.code_version() == f"release {__version__}"
    (tmp_path / "memalpha" / "provenance.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD").strip()
    assert provenance.code_version() == commit[:12]
    (tmp_path / "notes.txt").write_text("not code")
    assert provenance.code_version() == commit[:12]
    (tmp_path / "memalpha" / "provenance.py").write_text("2")
    assert provenance.code_version() == commit[:12] + "+changes"
    assert environment()["code"] == commit[:12] + "+changes"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/" + "home/ann/a b", "a b"),
        ("/" + "home/ann/a.jsonl,/" + "home/ann/b", "a.jsonl,b"),
        ("runs/a,/" + "home/ann/b", "runs/a,b"),
        ("--config=/" + "home/ann/c.yaml", "--config=c.yaml"),
        ("--train_data=/" + "home/ann/a,runs/b", "--train_data=a,runs/b"),
        ("{n: 4, split: train}", "{n: 4, split: train}"),
        ("--seed", "--seed"),
    ],
)
def test_a_portable_command_names_no_folder_of_a_machine(word: str, shown: str) -> None:
    assert portable(["/" + "home/ann/memalpha/__main__.py", "train", word]) == ["memalpha", "train", shown]
