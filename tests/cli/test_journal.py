"""``memalpha journal`` on real stores: what it shows is what the store holds, what it does is on
disk, mistakes are one message."""

import json
import sqlite3
from datetime import datetime, timedelta

import pytest

from memalpha.cli import run
from memalpha.memory.schema import MemorySchema
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Operation, OperationKind

SCHEMA = MemorySchema.load("mem_alpha")
MARTA, ODD = Namespace("marta"), Namespace("a/b", "agent", "tuesday")
INSERT, UPDATE, REPLACE = OperationKind.INSERT, OperationKind.UPDATE, OperationKind.REPLACE


@pytest.fixture
def store(tmp_path):
    """Marta: 1 insert, 2 insert, 3 update of the first, 4 core; somebody else: one insert."""
    path = tmp_path / "memories.db"
    with Journal.open(path) as journal:
        durable = journal.memory(MARTA, SCHEMA)
        by = Origin("policy", "file:key:.txt", "ab12")
        durable.apply(Operation(INSERT, "semantic", "Marta city Oslo"), by)
        durable.apply(
            Operation(INSERT, "episodic", "went \x1b[2J home", timestamp="2024-01-02"), by
        )
        durable.apply(Operation(UPDATE, "semantic", "Marta city Rome", "1"), by)
        durable.apply(Operation(REPLACE, "core", "a :100: friend"), by)
        journal.memory(ODD, SCHEMA).apply(Operation(INSERT, "semantic", "secret"), by)
    return path


@pytest.fixture
def ask(store, capsys):
    def asked(action, *more, namespace="marta", code=0):
        whose = [] if namespace is None else ["-n", namespace]
        assert run(["journal", action, str(store), *more, *whose, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return asked


def live(store):
    with Journal.open(store) as journal:
        return {entry.id: entry.content for entry in journal.memory(MARTA, SCHEMA).memory}


def test_namespaces_and_history(ask):
    names = [tuple(name.values()) for name in ask("namespaces", namespace=None)]
    assert names == [("a/b", "agent", "tuesday"), ("marta", "default", "default")]
    rows = ask("history")
    assert [(row["seq"], row["operation"]["kind"]) for row in rows] == [
        (1, "insert"),
        (2, "insert"),
        (3, "update"),
        (4, "replace"),
    ]
    origin = {"agent": "policy", "source": "file:key:.txt", "prompt_hash": "ab12"}
    assert rows[0]["origin"] == origin and ask("history", "--entry", "1") == [rows[0], rows[2]]
    assert rows[2]["before"]["content"] == "Marta city Oslo"
    assert rows[3]["after"]["content"] == "a :100: friend"  # names of emoji stay as written
    others = ask("history", namespace='["a/b", "agent", "tuesday"]')
    assert [row["after"]["content"] for row in others] == ["secret"]


def test_the_past_by_number_and_by_time_and_what_differs(ask):
    third = ask("history")[2]["time"]
    just_before = datetime.fromisoformat(third) - timedelta(microseconds=1)
    for moment, contents in (
        ("0", []),
        ("1", ["Marta city Oslo"]),
        (just_before.isoformat(), ["Marta city Oslo", "went \x1b[2J home"]),
        (third.replace("+00:00", "Z"), ["Marta city Rome", "went \x1b[2J home"]),
    ):
        assert [entry["content"] for entry in ask("as-of", moment)] == contents
    changes = [(row["before"], row["after"]) for row in ask("diff", "1", "4")]
    assert [(old and old["content"], new["content"]) for old, new in changes] == [
        ("Marta city Oslo", "Marta city Rome"),
        (None, "went \x1b[2J home"),
        (None, "a :100: friend"),
    ]


def test_export_into_another_store(ask, store, tmp_path, capsys):
    assert ask("export", str(tmp_path / "all.jsonl"), namespace=None)["records"] == 5
    assert ask("export", str(tmp_path / "marta.jsonl"))["records"] == 4
    other = tmp_path / "other.db"
    assert run(["journal", "import", str(other), str(tmp_path / "marta.jsonl")]) == 0
    assert "4 records" in capsys.readouterr().out and live(other) == live(store)


def test_forget_an_entry_then_everything(ask, store, capsys):
    assert run(["journal", "forget", str(store), "-n", "marta", "--entry", "1"]) == 1
    assert "--yes" in capsys.readouterr().err and live(store)["1"] == "Marta city Rome"
    assert ask("forget", "--entry", "1", "--yes")["operations"] == 2
    assert "1" not in live(store) and b"Oslo" not in store.read_bytes()
    assert ask("forget", "--all", "--yes")["operations"] == 5
    assert [name["user"] for name in ask("namespaces", namespace=None)] == ["a/b"]


def test_verify_says_whole_then_damaged(ask, store):
    report = ask("verify", namespace=None)
    assert report == {**report, "ok": True, "namespaces": 2, "operations": 5, "faults": []}
    assert ask("verify", "--head", report["head"], namespace=None) == report
    undone = ask("undo", "3", "--by", "Ivan")
    assert undone["after"]["content"] == "Marta city Oslo" == live(store)["1"]
    assert ask("history")[-1]["origin"]["agent"] == "Ivan"
    changed = ask("verify", "--head", report["head"], namespace=None, code=1)
    assert (changed["ok"], changed["changed"], changed["faults"]) == (False, True, [])
    with sqlite3.connect(store) as database:
        database.execute("update log set body = replace(body, 'Rome', 'Bonn')")
    assert "was edited" in " ".join(ask("verify", namespace=None, code=1)["faults"])


WRONG = [
    ("history none.db -n marta", "no store at 'none.db'"),
    ("history STORE -n nobody", "there is no namespace nobody"),
    ("history STORE -n " + "[" * 100_000, "namespace '[[["),
    ("history STORE -n marta --entry 99", "entry '99'"),
    ("as-of STORE 99 -n marta", "from 0 to 4"),
    ("as-of STORE 2024-05-01 -n marta", "such as 2024-05-01T00:00:00Z"),
    ("export STORE STORE", "exists"),
    ("import new.db notes.txt", "the file as export wrote it"),
    ("namespaces notes.txt", "notes.txt is no store"),
    ("namespaces empty.db", "no store at 'empty.db'"),
    ("verify STORE --wait nan", "the time to wait is nan"),
    ("verify postgresql://h:abc/x", "cannot be read"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=range(len(WRONG)))
def test_one_clear_message_and_nothing_made(arguments, said, store, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Buy milk, bread and butter.\n")
    (tmp_path / "empty.db").touch()
    there = {path.name for path in tmp_path.iterdir()}
    words = [str(store) if word == "STORE" else word for word in arguments.split()]
    assert run(["journal", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error and said in error
    assert {path.name for path in tmp_path.iterdir()} - {
        "memories.db-wal",
        "memories.db-shm",
    } <= there
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_in_a_pipe_a_row_is_a_line_and_text_cannot_steer_the_terminal(store, capsys):
    assert run(["journal", "as-of", str(store), "4", "-n", "marta"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["entry", "section", "time", "content", "written by operation"]
    assert (
        lines[2].split("\t") == ["2", "episodic", "2024-01-02", "went \\x1b[2J home", "2"]
        and len(lines) == 4
    )
