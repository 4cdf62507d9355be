"""Writing, history, the past, undo: against values worked out by hand."""

import os
import sqlite3
import stat
from datetime import UTC, datetime, timedelta

import pytest
from stores import (
    BY,
    SCHEMA,
    contents,
    core,
    delete,
    insert,
    opened,
    rebuilt,
    seq,
    state,
    tell_a_story,
    update,
)

from memalpha.errors import InputError, JournalConflictError, JournalDamagedError, JournalError
from memalpha.memory.memory import Memory
from memalpha.store.exchange import export_journal
from memalpha.store.journal import Journal, Namespace
from memalpha.types import Change, Entry, ResultCode

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(folder):
    journal, durable = opened(folder / "store.db")
    yield journal, durable
    journal.close()


OSLO = Entry("1", "facts", "Marta lives in Oslo", "2024-01-01", 3, 1, 1)
ROME = Entry("1", "facts", "Marta lives in Rome", "2024-05-05", None, 1, 3)
TEA = Entry("2", "notes", "tea", None, None, 2, 2)
CORE = Entry("core", "core", "likes rain", None, None, 4, 4)


def test_a_story_by_hand_and_after_reopening(folder, store):
    journal, durable = store
    tell_a_story(durable)
    for memory in (durable.memory, rebuilt(durable), opened(folder / "store.db")[1].memory):
        assert tuple(memory) == (ROME, CORE) and memory.snapshot().next_id == 3
    assert seq(durable) == 5
    events = [(e.seq, e.before, e.after, e.origin.agent) for e in durable.history("1")]
    assert events == [(1, None, OSLO, "tester"), (3, OSLO, ROME, "other")]
    event = durable.history("2")[1]
    assert (event.operation, event.before, event.after, event.origin) == (
        delete("2", "notes"),
        TEA,
        None,
        BY,
    )
    assert durable.history("99") == []
    past = [(), (OSLO,), (OSLO, TEA), (ROME, TEA), (ROME, TEA, CORE), (ROME, CORE)]
    assert [tuple(durable.as_of(seq)) for seq in range(6)] == past
    report = journal.verify()
    assert (report.faults, report.namespaces, report.operations, report.forgotten) == ((), 1, 5, 0)


@pytest.mark.parametrize("where", ["store.db", ":memory:"])
def test_a_durable_memory_goes_on_as_a_plain_one_would(folder, where):
    journal, durable = opened(where if where == ":memory:" else folder / where)
    plain = Memory(SCHEMA)
    operations = [
        *map(insert, "aab"),
        update("2", "a"),
        insert("c"),
        delete("9"),
        core("x"),
        core("x"),
        insert(" "),
    ]
    results = [
        (plain.apply(op, chunk=i), durable.apply(op, BY, chunk=i))
        for i, op in enumerate(operations)
    ]
    assert all(mine == theirs for mine, theirs in results)
    assert contents(plain) == contents(durable.memory) == {"1": "a", "3": "c", "core": "x"}
    kinds = [
        e.operation.kind for e in durable.history()
    ]  # what was refused or changed nothing is not in the log
    assert kinds == [
        "insert",
        "insert",
        "insert",
        "update",
        "insert",
        "replace",
    ]  # the second "a" is of a later chunk
    durable.forget("1")
    assert contents(durable.memory) == {"3": "c", "core": "x"} and journal.verify().ok


def test_several_operations_are_one_write_all_or_nothing(folder, store):
    durable = store[1]
    durable.apply(insert("kept"), BY)
    with pytest.raises(ZeroDivisionError), durable.writing(BY) as memory:
        memory.apply(insert("one"))
        memory.apply(insert("two"))
        raise ZeroDivisionError
    assert (
        contents(durable.memory) == contents(opened(folder / "store.db")[1].memory) == {"1": "kept"}
    )
    with durable.writing(BY) as memory:
        first, second = memory.apply(insert("one")), memory.apply(insert("two"))
    assert (first.entry_id, second.entry_id) == ("2", "3")
    assert [e.time for e in durable.history()][1:] == [durable.history()[1].time] * 2


def test_nothing_writes_around_the_log(store):
    _, durable = store
    memory = durable.memory
    with pytest.raises(JournalError, match="outside of its journal"):
        memory.apply(insert("lost"))
    with (
        durable.writing(BY),
        pytest.raises(JournalError, match="inside a write"),
        durable.writing(BY),
    ):
        pass
    assert (
        durable.as_of(0).apply(insert("mine")).code is ResultCode.APPLIED
        and len(durable.memory) == 0
    )


def test_undo_of_each_kind_and_undo_of_undo(folder, store):
    _, durable = store
    tell_a_story(durable)
    assert durable.undo(5, BY) == Change(None, TEA)
    assert tuple(durable.memory) == (ROME, TEA, CORE)  # at its old place
    assert durable.undo(3, BY) == Change(ROME, OSLO)
    assert durable.undo(4, BY) == Change(CORE, None)
    assert tuple(durable.memory) == (OSLO, TEA)
    assert [entry.id for entry in durable.memory.newest()] == [
        "2",
        "1",
    ]  # what comes back is as old as it was
    assert durable.undo(7, BY) == Change(OSLO, ROME)
    assert tuple(durable.memory) == (ROME, TEA)
    assert (
        state(durable.memory)
        == state(rebuilt(durable))
        == state(opened(folder / "store.db")[1].memory)
    )
    assert durable.apply(insert("next"), BY).entry_id == "3"  # ids are not used again


def test_what_undo_refuses(store):
    journal, durable = store
    tell_a_story(durable)
    with pytest.raises(
        JournalConflictError, match=r"(?s)written by operation 3 after operation 1.*undo 3 first"
    ):
        durable.undo(1, BY)
    for number in (0, 6, -1):
        with pytest.raises(InputError, match="cannot be undone"):
            durable.undo(number, BY)
    durable.apply(insert("tea", "notes"), BY)
    with pytest.raises(JournalConflictError, match="entry 3 says by now what entry 2 said"):
        durable.undo(5, BY)
    durable.undo(3, BY)  # what was written since and taken back stands in no undo's way
    assert durable.undo(1, BY).after is None and durable.undo(8, BY).after == OSLO
    assert journal.verify().ok and state(durable.memory) == state(rebuilt(durable))


def test_a_clock_that_goes_back_does_not_disorder_the_past(store):
    journal, durable = store
    for minutes, text in ((0, "a"), (-90, "b"), (10, "c"), (-1000, "d")):
        journal.clock = lambda minutes=minutes: NOON + timedelta(minutes=minutes)
        durable.apply(insert(text), BY)
    assert [(e.time - NOON).total_seconds() / 60 for e in durable.history()] == [0, 0, 10, 10]
    at = [len(durable.as_of(NOON + timedelta(minutes=m))) for m in (-1, 0, 5, 10, 99)]
    assert at == [0, 2, 2, 4, 4] and contents(durable.as_of(datetime(999, 1, 1, tzinfo=UTC))) == {}
    assert len(durable.as_of(datetime.fromisoformat("0001-01-01T00:00:00+14:00"))) == 0
    for wrong in (datetime(2026, 1, 1), 99, -1):
        with pytest.raises(InputError):
            durable.as_of(wrong)
    assert journal.verify().ok


def test_a_key_is_needed_to_rewrite_the_log_unseen(folder):
    journal, durable = opened(folder / "k.db", key=b"secret")
    durable.apply(insert("a"), BY)
    assert journal.verify().ok
    for key in (None, b"guess"):
        report = Journal.open(folder / "k.db", key=key).verify()
        assert any("another key" in line for line in report.faults)
        with pytest.raises(JournalDamagedError, match="another key"):
            _ = opened(folder / "k.db", key=key)[1].memory


def test_a_forked_child_must_open_the_store_itself(store):
    _, durable = store
    if (child := os.fork()) == 0:
        try:
            durable.apply(insert("by the child"), BY)
        except JournalError as error:
            os._exit(7 if "before a fork" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert durable.apply(insert("by the parent"), BY).entry_id == "1"


def test_settings_keep_what_was_acknowledged_and_files_are_the_owners_alone(folder, store):
    pragmas = {
        name: store[0].database.execute(f"PRAGMA {name}")[0][0]
        for name in ("synchronous", "journal_mode", "secure_delete")
    }
    assert pragmas == {"synchronous": 2, "journal_mode": "wal", "secure_delete": 1}
    store[1].apply(insert("a"), BY)
    export_journal(store[0], folder / "e.jsonl")
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in folder.iterdir()
        if path.suffix != ".lock"
    }
    assert modes == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm", "e.jsonl"], 0o600)


def test_names_waits_and_keys_that_are_none(folder):
    for names in (("",), ("a", "b", "c\n"), (" a",), ("x" * 201,), (None,)):
        with pytest.raises(InputError):
            Namespace(*names)
    for bad in ({"wait": -1}, {"wait": float("nan")}, {"key": b""}, {"key": "text"}):
        with pytest.raises(InputError):
            Journal.open(folder / "s.db", **bad)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "address",
    ["mysql://x/y", "postgresql://user:secret/x", "/tmp/a\0.db", "/tmp/" + "x" * 300, "no/x.db"],
)
def test_addresses_that_are_none(address):
    with pytest.raises(InputError, match="a store at") as caught:
        Journal.open(address)
    assert "secret" not in str(caught.value)


def test_files_that_are_no_store_are_refused_and_left_alone(folder):
    (folder / "text").write_text("hello " * 1000)
    with sqlite3.connect(folder / "other.db") as other:
        other.execute("CREATE TABLE t (a)")
    for name in ("text", "other.db"):
        before = (folder / name).read_bytes()
        with pytest.raises(JournalDamagedError, match="name another file"):
            Journal.open(folder / name)
        assert (folder / name).read_bytes() == before
    with Journal.open(f"sqlite:///{folder}/by-url.db") as journal:
        assert journal.namespaces() == () and (folder / "by-url.db").is_file()
