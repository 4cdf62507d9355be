"""Writing, history, the past, undo: against values worked out by hand."""

import sqlite3
import stat

import pytest
from stores import (
    BY,
    contents,
    delete,
    insert,
    opened,
    rebuilt,
    state,
    tell_a_story,
)

from memalpha.errors import InputError, JournalConflictError, JournalDamagedError, JournalError
from memalpha.store.exchange import export_journal
from memalpha.store.journal import Journal, Namespace
from memalpha.types import Change, Entry


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


def test_several_operations_are_one_write_all_or_nothing(folder, store):
    durable = store[1]
    with pytest.raises(ZeroDivisionError), durable.writing(BY) as memory:
        memory.apply(insert("one"))
        raise ZeroDivisionError
    assert contents(durable.memory) == contents(opened(folder / "store.db")[1].memory) == {}
    with durable.writing(BY) as memory:
        entries = [memory.apply(insert(text)).entry_id for text in ("one", "two")]
    assert entries == ["1", "2"]


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
    assert durable.as_of(0).apply(insert("mine")).changed and len(durable.memory) == 0


def test_undo_of_each_kind_and_undo_of_undo(folder, store):
    _, durable = store
    tell_a_story(durable)
    for operation, change, entries in (
        (5, Change(None, TEA), (ROME, TEA, CORE)),  # at its old place
        (3, Change(ROME, OSLO), (OSLO, TEA, CORE)),
        (4, Change(CORE, None), (OSLO, TEA)),
        (7, Change(OSLO, ROME), (ROME, TEA)),
    ):
        assert durable.undo(operation, BY) == change
        assert tuple(durable.memory) == entries
    reopened = opened(folder / "store.db")[1]
    assert state(durable.memory) == state(rebuilt(durable)) == state(reopened.memory)
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
    assert durable.undo(1, BY).after is None and journal.verify().ok


@pytest.mark.parametrize("key", [None, b"guess"])
def test_a_key_is_needed_to_rewrite_the_log_unseen(folder, key):
    journal, durable = opened(folder / "k.db", key=b"secret")
    durable.apply(insert("a"), BY)
    assert journal.verify().ok
    other, memory = opened(folder / "k.db", key=key)
    assert any("another key" in line for line in other.verify().faults)
    with pytest.raises(JournalDamagedError, match="another key"):
        _ = memory.memory


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


@pytest.mark.parametrize("names", [("",), ("a", "b", "c\n"), (" a",), ("x" * 201,), (None,)])
def test_names_that_are_none(names):
    with pytest.raises(InputError):
        Namespace(*names)


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("mysql://x/y", {}),
        ("postgresql://user:secret/x", {}),
        ("{}/a\0.db", {}),
        ("no/x.db", {}),
        ("{}/s.db", {"wait": float("nan")}),
        ("{}/s.db", {"key": b""}),
    ],
)
def test_a_store_that_cannot_be_leaves_nothing(folder, address, options):
    with pytest.raises(InputError) as caught:
        Journal.open(address.format(folder), **options)
    assert "secret" not in str(caught.value) and list(folder.iterdir()) == []


def foreign(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (a)")


@pytest.mark.parametrize("made_by", [lambda path: path.write_text("hello " * 1000), foreign])
def test_files_that_are_no_store_are_refused_and_left_alone(folder, made_by):
    path = folder / "other.db"
    made_by(path)
    before = path.read_bytes()
    with pytest.raises(JournalDamagedError, match="name another file"):
        Journal.open(path)
    assert path.read_bytes() == before
