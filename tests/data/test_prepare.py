"""Preparing: the manifest against the file it speaks of, nothing half-written, nothing overwritten,
changes found out."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from memalpha import __version__
from memalpha.data.load import iter_prepared, prepare, read_manifest
from memalpha.data.rows import iter_parquet
from memalpha.errors import InputError, SchemaError

ROOT = Path(__file__).parents[2]

ROWS = [
    {"context": "Lima is the capital of Peru.", "question": "What is Lima?", "answer": "capital"},
    {"context": "Oslo lies in Norway.", "question": "Where is \u00d6slo?", "answer": "Norway"},
    {"context": "Oslo lies in Norway.", "question": "Empty?", "answer": ""},
]


UNSET = ("max_answer_tokens", "max_questions", "max_instances")


@pytest.fixture
def squad(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_manifest_agrees_with_the_file(squad, tmp_path):
    output = tmp_path / "made" / "here"
    told = []
    manifest = prepare(
        "squad",
        squad,
        output,
        seed=3,
        options={"chunk_tokens": "1-6", "chunks": "1,1"},
        progress=told.append,
    )
    assert names(output) == ["instances.parquet", "manifest.json"] and names(output.parent) == [
        "here"
    ]
    raw = (output / "instances.parquet").read_bytes()
    instances = list(iter_parquet(output / "instances.parquet"))
    assert [question.text for instance in instances for question in instance.questions] == [
        "What is Lima?",
        "Where is \u00d6slo?",
    ]
    written = json.loads((output / "manifest.json").read_text())
    assert written == {
        "source": "squad",
        "input": "rows.json",
        "instances": 2,
        "chunks": 2,
        "questions": 2,
        "skipped": {"empty answer": 1},
        "tokens": {"chunks": 6 + 4, "questions": 3 + 3, "longest_chunk": 6},
        "token_counter": "words",
        "sha256": hashlib.sha256(raw).hexdigest(),
        "seed": 3,
        "options": {
            "chunk_tokens": [1, 6],
            "chunks": [1, 1],
            **dict.fromkeys(UNSET, 0),
            "shuffle": False,
            "split": "train",
            "metric": "substring",
        },
        "notes": {},
        "problems": [],
        "asked": 3,
        "checked_against": [],
        "version": __version__,
    }
    assert [len(instance.chunks) for instance in instances] == [1, 1]
    assert read_manifest(output) == manifest
    assert list(iter_prepared(output)) == instances
    assert told == [1, 2]


def test_a_fault_while_overwriting_keeps_the_old_folder(squad, tmp_path):
    before = prepare("squad", squad, tmp_path / "out")
    squad.write_text("[{")
    with pytest.raises(SchemaError, match="is not JSON"):
        prepare("squad", squad, tmp_path / "out", overwrite=True)
    assert read_manifest(tmp_path / "out") == before and list(iter_prepared(tmp_path / "out"))
    assert names(tmp_path) == ["out", "rows.json"]


def test_a_killed_run_leaves_no_folder_of_that_name(tmp_path):
    """Killed in the middle of writing: only a hidden partial folder stays, and the same call then
    works."""
    code = (
        "import os; from memalpha.data.load import prepare\n"
        f"prepare('toy', None, {str(tmp_path / 'out')!r}, "
        "options={'n': 50}, progress=lambda i: i == 20 and os._exit(9))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.") and left.name.endswith(".partial")
    assert prepare("toy", None, tmp_path / "out", options={"n": 50}).instances == 50


def test_an_existing_folder_is_refused_unless_overwritten(squad, tmp_path):
    prepare("squad", squad, tmp_path / "out", seed=1)
    with pytest.raises(InputError, match="out exists"):
        prepare("squad", squad, tmp_path / "out", seed=2)
    assert read_manifest(tmp_path / "out").seed == 1
    assert prepare("squad", squad, tmp_path / "out", seed=2, overwrite=True).seed == 2
    assert list(iter_prepared(tmp_path / "out"))
    assert names(tmp_path) == ["out", "rows.json"]


def test_a_folder_with_other_things_is_never_replaced(squad, tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"out (exists|holds thesis\.tex)"):
            prepare("squad", squad, output, overwrite=overwrite)
    assert names(output) == ["thesis.tex"]


def test_changes_are_found_out(squad, tmp_path):
    output = tmp_path / "out"
    manifest = prepare("squad", squad, output)
    file = output / "instances.parquet"
    whole = file.read_bytes()
    for changed in (whole[:-1], whole[:400] + bytes([whole[400] ^ 1]) + whole[401:], b""):
        file.write_bytes(changed)
        with pytest.raises(InputError, match=f"expected: sha256 {manifest.sha256}"):
            iter_prepared(output)
    file.unlink()
    with pytest.raises(InputError, match=r"instances\.parquet has no sha256: it is not there"):
        iter_prepared(output)
    (output / "manifest.json").write_text('{"source": "squad"}')
    with pytest.raises(SchemaError, match="is not a manifest"):
        iter_prepared(output)
    (output / "manifest.json").write_text("{")
    with pytest.raises(SchemaError, match="is not a manifest"):
        iter_prepared(output)
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        iter_prepared(tmp_path)
