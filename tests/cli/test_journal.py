"""``memalpha journal`` on real stores: what it shows is what the store holds, what it does is on disk, mistakes are one message."""

import json
import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from memalpha.cli import run
from memalpha.cli.console import printable, printable_lines, show_table
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
        begun = datetime(2024, 5, 1, 12, tzinfo=UTC)
        ticks = iter(begun + timedelta(hours=i) for i in range(1000))
        journal._log.clock = lambda: next(ticks)
        durable = journal.memory(MARTA, SCHEMA)
        by = Origin("policy", "chunk-7", "ab12")
        durable.apply(Operation(INSERT, "semantic", "Marta city Oslo"), by)
        durable.apply(Operation(INSERT, "episodic", "went \x1b[2J home", timestamp="2024-01-02"), by)
        durable.apply(Operation(UPDATE, "semantic", "Marta city Rome", "1"), by)
        durable.apply(Operation(REPLACE, "core", "a friend"), by)
        journal.memory(ODD, SCHEMA).apply(Operation(INSERT, "semantic", "secret"), by)
    return path


@pytest.fixture
def ask(store, capsys):
    """Run an action on the store and return its JSON."""

    def asked(action, *more, namespace="marta"):
        whose = [] if namespace is None else ["-n", namespace]
        assert run(["journal", action, str(store), *more, *whose, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return asked


def live(store, namespace=MARTA):
    with Journal.open(store) as journal:
        return {entry.id: entry.content for entry in journal.memory(namespace, SCHEMA).memory}


# -------------------------------------------------------------------------------------------- looking
def test_whose_memories_there_are(ask):
    assert ask("namespaces", namespace=None) == [
        {"user": "a/b", "agent": "agent", "session": "tuesday"},
        {"user": "marta", "agent": "default", "session": "default"},
    ]


def test_history_is_the_stores_own(ask, store):
    rows = ask("history")
    assert [(row["seq"], row["kind"], row["operation"]["kind"]) for row in rows] == [
        (1, "apply", "insert"), (2, "apply", "insert"), (3, "apply", "update"), (4, "apply", "replace"),
    ]  # fmt: skip
    assert rows[0]["origin"] == {"agent": "policy", "source": "chunk-7", "prompt_hash": "ab12"}
    about_one = ask("history", "--entry", "1")
    assert about_one == [rows[0], rows[2]]
    assert (about_one[1]["before"]["content"], about_one[1]["after"]["content"]) == ("Marta city Oslo", "Marta city Rome")


def test_the_past_by_number_and_by_time(ask):
    def contents(moment):
        return [entry["content"] for entry in ask("as-of", moment)]

    assert contents("0") == []
    assert contents("1") == ["Marta city Oslo"]
    third = ask("history")[2]["time"]
    assert contents(third) == ["Marta city Rome", "went \x1b[2J home"]
    just_before = datetime.fromisoformat(third) - timedelta(microseconds=1)
    assert contents(just_before.isoformat()) == ["Marta city Oslo", "went \x1b[2J home"]
    assert contents(third.replace("+00:00", "Z")) == contents(third)


def test_diff_between_two_moments(ask):
    found = ask("diff", "1", "4")
    assert [(row["before"] and row["before"]["content"], row["after"]["content"]) for row in found] == [
        ("Marta city Oslo", "Marta city Rome"), (None, "went \x1b[2J home"), (None, "a friend"),
    ]  # fmt: skip
    assert ask("diff", "4", "4") == []


def test_the_names_of_emoji_stay_as_they_were_written(ask, store, capsys):
    with Journal.open(store) as journal:
        journal.memory(MARTA, SCHEMA).apply(Operation(INSERT, "semantic", "score :100:"), Origin(":key:", "file:key:.txt"))
    last = ask("history")[-1]
    assert (last["after"]["content"], last["origin"]["source"]) == ("score :100:", "file:key:.txt")
    assert run(["token", "x", "--user", "a:smile:b"]) == 0
    assert '"user": "a:smile:b"' in capsys.readouterr().out


def test_a_name_with_a_slash(ask):
    assert [row["after"]["content"] for row in ask("history", namespace='["a/b", "agent", "tuesday"]')] == ["secret"]


# -------------------------------------------------------------------------------------------- doing
def test_undo_and_its_undo(ask, store):
    assert ask("undo", "3", "--by", "Ivan")["after"]["content"] == "Marta city Oslo"
    assert live(store)["1"] == "Marta city Oslo"
    assert ask("history")[-1]["origin"]["agent"] == "Ivan"
    assert ask("undo", "5")["after"]["content"] == "Marta city Rome"
    assert live(store)["1"] == "Marta city Rome"


def test_export_into_another_store(ask, store, tmp_path, capsys):
    assert ask("export", str(tmp_path / "all.jsonl"), namespace=None)["records"] == 5
    assert ask("export", str(tmp_path / "marta.jsonl"))["records"] == 4
    other = tmp_path / "other.db"
    assert run(["journal", "import", str(other), str(tmp_path / "marta.jsonl")]) == 0
    assert "4 records" in capsys.readouterr().out
    assert live(other) == live(store)
    assert run(["journal", "import", str(other), str(tmp_path / "marta.jsonl")]) == 1
    assert "is there already" in capsys.readouterr().err


def test_compact_keeps_the_memory_and_drops_the_past(ask, store, capsys):
    before = live(store)
    assert ask("compact") == {"dropped": 4}
    assert live(store) == before
    assert run(["journal", "as-of", str(store), "1", "-n", "marta"]) == 1
    assert "dropped by the compaction" in capsys.readouterr().err


def test_forget_an_entry_then_everything(ask, store, capsys):
    assert run(["journal", "forget", str(store), "-n", "marta", "--entry", "1"]) == 1
    assert "--yes" in capsys.readouterr().err and live(store)["1"] == "Marta city Rome"
    assert ask("forget", "--entry", "1", "--yes")["operations"] == 2
    assert "1" not in live(store) and b"Oslo" not in store.read_bytes()
    assert run(["journal", "undo", str(store), "3", "-n", "marta"]) == 1
    assert "forgetting wins" in capsys.readouterr().err
    assert ask("forget", "--all", "--yes")["operations"] == 5
    assert [name["user"] for name in ask("namespaces", namespace=None)] == ["a/b"]


def test_verify_says_whole_then_damaged(ask, store, capsys):
    report = ask("verify", namespace=None)
    assert report["ok"] and (report["namespaces"], report["operations"], report["faults"]) == (2, 5, [])
    assert run(["journal", "verify", str(store), "--head", report["head"]]) == 0
    assert "whole: 2 namespaces, 5 operations" in capsys.readouterr().out
    ask("undo", "3")
    assert run(["journal", "verify", str(store), "--head", report["head"]]) == 1
    said = capsys.readouterr().out
    assert f"other content than at head {report['head']}" in said and "whole: 2" in said and "damaged" not in said
    assert run(["journal", "verify", str(store), "--head", report["head"], "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["changed"], found["faults"]) == (False, True, [])
    with sqlite3.connect(store) as database:
        [(table,)] = database.execute("select name from sqlite_master where sql like '%commitment%' and type = 'table'")
        database.execute(f"update {table} set body = replace(body, 'Rome', 'Bonn')")
    assert run(["journal", "verify", str(store), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and "was edited" in " ".join(found["faults"])
    assert run(["journal", "history", str(store), "-n", "marta"]) == 1
    assert "was edited" in capsys.readouterr().err


def test_what_others_wrote_cannot_steer_the_terminal(store, tmp_path, capsys):
    """Escapes and U+202E in an export's lines, in its name, and in what verify finds."""
    evil = "\x1b[2J\u202egnp"
    with Journal.open(store) as journal:
        journal.export(tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    for edit in ({"user": evil}, {"schema": {"name": evil, "sections": evil}}, {"begin": evil}, {"time": evil}, {evil: 1}):
        other = [lines[0], {**lines[1], **edit}, *lines[2:]] if evil not in edit else [lines[0], edit, *lines[2:]]
        (tmp_path / f"{evil}.jsonl").write_text("\n".join(map(json.dumps, other)))
        assert run(["journal", "import", str(tmp_path / "new.db"), str(tmp_path / f"{evil}.jsonl")]) == 1
        said = capsys.readouterr()
        assert "\x1b" not in said.err + said.out and "\u202e" not in said.err + said.out and "\\u202e" in said.err
    with sqlite3.connect(store) as database:
        database.execute("update log set body = ?, kind = ? where seq = 2", (evil, evil))
        database.execute("insert into heads values (?, 1, 'x')", (evil,))
    assert run(["journal", "verify", str(store)]) == 1
    said = capsys.readouterr()
    assert "\x1b" not in said.err + said.out and "\u202e" not in said.err + said.out and "\\u202e" in said.out


def test_a_keyed_store_needs_its_key(tmp_path, capsys):
    path, key, wrong = tmp_path / "keyed.db", tmp_path / "key", tmp_path / "wrong"
    key.write_text("0123456789abcdef\n")
    wrong.write_text("another")
    with Journal.open(path, key=b"0123456789abcdef") as journal:
        journal.memory(MARTA, SCHEMA).apply(Operation(INSERT, "semantic", "x"), Origin("me"))
    assert run(["journal", "history", str(path), "-n", "marta", "--key-file", str(key)]) == 0
    for more in (["--key-file", str(wrong)], [], ["--key-file", str(tmp_path / "none")]):
        assert run(["journal", "history", str(path), "-n", "marta", *more]) == 1
        assert "key" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["history", "none.db", "-n", "marta"], ["no store at 'none.db'"]),
        (["history", "STORE", "-n", "nobody"], ["no namespace nobody/default/default", "namespaces STORE lists"]),
        (["history", "STORE", "-n", "a/b/c/d"], ["'a/b/c/d'", "user/agent/session"]),
        (["history", "STORE", "-n", "[1"], ["namespace '[1'"]),
        (["history", "STORE", "-n", '[1, "b"]'], ["user of a namespace is 1"]),
        (["history", "STORE", "-n", "marta//x"], ["agent of a namespace is ''"]),
        (["history", "STORE", "-n", "marta", "--entry", "99"], ["entry '99'"]),
        (["as-of", "STORE", "99", "-n", "marta"], ["operation 99", "from 0 to 4"]),
        (["as-of", "STORE", "yesterday", "-n", "marta"], ["'yesterday'", "2024-05-01T12:00:00Z"]),
        (["as-of", "STORE", "2024-05-01", "-n", "marta"], ["no time zone", "2024-05-01T00:00:00Z"]),
        (["diff", "STORE", "1", "x", "-n", "marta"], ["moment 'x'"]),
        (["undo", "STORE", "x", "-n", "marta"], ["operation 'x'"]),
        (["undo", "STORE", "1", "-n", "marta"], ["was written by operation 3", "undo 3 first"]),
        (["undo", "STORE", "9", "-n", "marta"], ["operation 9 cannot be undone"]),
        (["export", "STORE", "STORE"], ["exists"]),
        (["export", "STORE", "nowhere/all.jsonl"], ["no folder 'nowhere'"]),
        (["import", "STORE", "none.jsonl"], ["no file 'none.jsonl'"]),
        (["import", "new.db", "notes.txt"], ["notes.txt", "what export wrote"]),
        (["namespaces", "notes.txt"], ["notes.txt is no store"]),
        (["namespaces", "empty.db"], ["'empty.db' is empty"]),
        (["forget", "STORE", "-n", "marta", "--entry", "77", "--yes"], ["nothing of an entry '77'"]),
        (["compact", "STORE", "-n", "nobody"], ["no namespace"]),
        (["as-of", "STORE", "9" * 5000, "-n", "marta"], ["operation '9999", "a number, as memalpha journal history shows it"]),
        (["undo", "STORE", "9" * 5000, "-n", "marta"], ["operation '9999"]),
        (["as-of", "STORE", "0001-01-01T00:00:00+14:00", "-n", "marta"], ["cannot be told in UTC"]),
        (["history", "STORE", "-n", "[" * 100_000], ["namespace '[[["]),
        (["verify", "STORE", "--wait", "nan"], ["a wait of nan s", "0 to 1,000,000"]),
        (["verify", "STORE", "--wait", "-1"], ["a wait of -1.0 s"]),
        (["verify", "STORE", "--wait", "inf"], ["a wait of inf s"]),
        (["verify", "postgresql://[x"], ["a store at postgresql://..., which is no address"]),
        (["verify", "postgresql://h:abc/x"], ["no address", "the port a number"]),
        (["verify", "x" * 300], ["File name too long"]),
        (["import", "STORE", "deep.jsonl"], ["deep.jsonl cannot be read"]),
        (["import", ":memory:", "notes.txt"], [":memory:, which is gone when this command ends"]),
        (["export", "STORE", "x" * 300], ["File name too long"]),
        (["verify", "STORE", "--key-file", "x\0"], ["the key file 'x\\x00' cannot be read"]),
    ],
)
def test_one_clear_message_and_nothing_made(arguments, said, store, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Buy milk, bread and butter.\n")
    (tmp_path / "empty.db").touch()
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    there = {path.name for path in tmp_path.iterdir()}
    assert run(["journal", *[str(store) if part == "STORE" else part for part in arguments]]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error
    for words in said:
        assert words in error, error
    assert {path.name for path in tmp_path.iterdir()} - {"memories.db-wal", "memories.db-shm", "memories.db.lock"} <= there
    assert (tmp_path / "empty.db").stat().st_size == 0


@pytest.mark.parametrize("action", ["history", "as-of", "diff", "undo", "compact", "forget"])
def test_no_action_on_a_memory_without_a_namespace(action, store, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(["journal", action, str(store), "1", "2"])
    assert stopped.value.code == 2
    assert "--namespace" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------- showing
def test_in_a_pipe_a_row_is_a_line_and_text_cannot_steer_the_terminal(store, capsys):
    assert run(["journal", "as-of", str(store), "4", "-n", "marta"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["entry", "section", "time", "content", "written by operation"]
    assert lines[2].split("\t") == ["2", "episodic", "2024-01-02", "went \\x1b[2J home", "2"]
    assert len(lines) == 4


def test_on_a_terminal_it_is_a_table(monkeypatch, capsys):
    from rich.console import Console

    terminal = Console(force_terminal=True, width=40, record=True, color_system=None)
    monkeypatch.setattr("memalpha.cli.console.console", terminal)
    show_table(("a", "b"), [("x", "[bold]y[/bold] \x1b[2J " + "long " * 20)])
    shown = terminal.export_text()
    assert "[bold]y[/bold]" in shown and "\\x1b[2J" in shown and "\x1b" not in shown
    assert shown.count("long") == 20


def test_what_is_printable():
    assert printable("é 世 👩\u200d💻 [b]") == "é 世 👩\u200d💻 [b]"
    assert printable("a\nb\tc\x1b\x07\u202e\u200b\u2028\x9b") == "a\\nb\\tc\\x1b\\x07\\u202e\\u200b\\u2028\\x9b"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


@pytest.mark.parametrize("verb", [["history"], ["export", "FILE"], ["forget", "--all", "--yes"]])
def test_a_namespace_that_is_not_there_is_answered_with_a_command(verb, store, tmp_path, capsys):
    words = [str(tmp_path / "copy") if word == "FILE" else word for word in verb[1:]]
    assert run(["journal", verb[0], str(store), *words, "-n", "nobody"]) == 1
    assert "to fix: memalpha journal namespaces STORE lists them" in capsys.readouterr().err


MEMALPHA = [sys.executable, "-c", "from memalpha.cli import main; main()"]


def test_a_reader_that_leaves_ends_it_without_a_traceback(store):
    with Journal.open(store) as journal, journal.memory(MARTA, SCHEMA).writing(Origin("me")) as memory:
        for number in range(200):
            memory.apply(Operation(INSERT, "semantic", f"{number} " + "x " * 20))
    process = subprocess.Popen(
        [*MEMALPHA, "journal", "history", str(store), "-n", "marta"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1
    process.stderr.close()


def test_what_the_encoding_of_the_terminal_lacks_is_escaped(store):
    with Journal.open(store) as journal:
        journal.memory(MARTA, SCHEMA).apply(Operation(INSERT, "semantic", "zo\u00eb \u4f60"), Origin("me"))
    done = subprocess.run(
        [*MEMALPHA, "journal", "history", str(store), "-n", "marta"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0 and done.stderr == b"" and rb"zo\xeb \u4f60" in done.stdout
