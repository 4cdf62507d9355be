"""Writing, history, the past, undo: against values worked out by hand."""

import os
import sqlite3
import stat
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memalpha.errors import InputError, JournalConflictError, JournalDamagedError, JournalError
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, Namespace
from memalpha.types import Change, Entry, ResultCode
from tests.helpers.stores import (
    BY,
    IVAN,
    MARTA,
    SCHEMA,
    contents,
    delete,
    insert,
    opened,
    rebuilt,
    state,
    tell_a_story,
    update,
)


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
        pytest.raises(JournalError, match="inside another write"),
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
        JournalConflictError,
        match=r"(?s)written by operation 3 after operation 1.*undo 3 first",
    ):
        durable.undo(1, BY)
    for number in (0, 6, -1):
        with pytest.raises(InputError, match="cannot be undone"):
            durable.undo(number, BY)
    durable.apply(insert("tea", "notes"), BY)
    with pytest.raises(
        JournalConflictError, match="entry 3 has the text that entry 2 would have again"
    ):
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
    with pytest.raises(JournalDamagedError, match="give another file"):
        Journal.open(path)
    assert path.read_bytes() == before


# ------------------------------------------------------------------------------------------------
# time, secrets, and stores that are only read
def test_a_clock_that_was_ahead_stamps_its_own_operations_alone(folder, store):
    journal, durable = store
    days = ["2026-01-01", "2099-01-01", "2026-02-01", "2026-01-15"]  # set back by hand, too
    for number, day in enumerate(days):
        journal.clock = lambda day=day: datetime.fromisoformat(f"{day}T00:00Z")
        durable.apply(insert(f"fact {number}"), BY)
    assert [str(event.time.date()) for event in durable.history()] == days

    def known(day):
        return len(durable.as_of(datetime.fromisoformat(f"{day}T00:00Z")))

    # what came before in the chain was there, whatever its clock said
    assert [known(day) for day in ("2025-12-31", "2026-01-01", "2026-01-20", "2026-03-01")] == [
        0,
        1,
        4,
        4,
    ]
    assert journal.verify().ok
    export_journal(journal, folder / "back.jsonl")
    with Journal.open(folder / "other.db") as other:
        assert import_journal(other, folder / "back.jsonl") == len(days) and other.verify().ok


def test_an_entry_of_a_time_that_is_to_come_is_refused_and_holds_no_other_up(store):
    journal, durable = store
    journal.clock = lambda: datetime(9999, 12, 30, tzinfo=UTC)  # as before times were checked
    durable.apply(insert("Marta lives in Oslo", timestamp="9999-12-31"), BY)
    journal.clock = lambda: datetime(2026, 11, 29, tzinfo=UTC)
    refused = durable.apply(insert("Ivan lives in Rome", timestamp="2027-01-01"), BY)
    assert (refused.code, refused.ok) == (ResultCode.BAD_ARGUMENTS, False)
    with pytest.raises(InputError, match="the clock shows 2026-11-29"):
        durable.apply(insert("x"), BY, time="9999-12-31")
    change = durable.apply(update("1", "Marta lives in Lima"), BY, time="2026-11-29")
    assert change.changed and durable.memory.get("1").timestamp == "2026-11-29"
    assert len(durable.history()) == 2


@pytest.mark.parametrize("change", ["update", "delete", "forgotten", "moved", "undone"])
def test_a_changed_secret_is_seen(folder, store, change):
    journal, durable = store
    durable.apply(insert("a"), BY)
    durable.apply(insert("b"), BY)
    other = journal.memory(IVAN, SCHEMA)
    other.apply(insert("c"), BY)
    if change == "forgotten":
        durable.forget("1")
    if change == "undone":
        durable.undo(1, BY)
    assert journal.verify().ok
    with closing(sqlite3.connect(folder / "store.db")) as raw, raw:
        (ns,) = {record.entry for record in [journal.registration(MARTA)]}
        if change == "delete":
            raw.execute("DELETE FROM secrets WHERE ns = ?", [ns])
        elif change == "moved":
            raw.execute("UPDATE secrets SET secret = (SELECT min(secret) FROM secrets)")
        else:
            raw.execute("UPDATE secrets SET secret = ? WHERE ns = ?", ["ab" * 32, ns])
    (fault,) = journal.verify().faults
    assert "the secret of its digests is not that of operation" in fault


def test_an_import_brings_no_secret_along_and_seals_its_own(folder, store):
    journal, durable = store
    durable.apply(insert("a"), BY)
    export_journal(journal, folder / "e.jsonl")
    with Journal.open(folder / "other.db") as other:
        import_journal(other, folder / "e.jsonl")
        assert other.verify().ok
        memory = other.memory(MARTA, SCHEMA)
        memory.apply(insert("b"), BY)
        assert other.verify().ok
        with other.database.writing():
            other.database.new_secret(other.registration(MARTA).entry)
        assert "operation 2" in other.verify().faults[0]


@pytest.mark.parametrize("old", [None, 0o644, 0o666])
def test_the_lock_is_the_owners_alone(folder, old):
    lock = folder / "new.db.lock"
    umask = os.umask(0)
    try:
        if old is not None:
            lock.touch()
            lock.chmod(old)
        Journal.open(folder / "new.db").close()
        assert not lock.exists() or stat.S_IMODE(lock.stat().st_mode) == 0o600
        lock.touch()
        lock.chmod(0o664)
        Journal.open(folder / "new.db").close()
    finally:
        os.umask(umask)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


@pytest.mark.parametrize("what", ["file", "folder", "both"])
def test_a_store_without_the_right_to_write_is_read(folder, monkeypatch, what):
    path = folder / "store.db"
    journal, durable = opened(path)
    durable.apply(insert("Marta lives in Oslo"), BY)
    journal.close()
    (folder / "store.db.lock").unlink(missing_ok=True)
    denied = {"file": {path}, "folder": {folder}, "both": {path, folder}}[what]
    monkeypatch.setattr(os, "access", lambda place, _: Path(place) not in denied)
    journal, durable = opened(path)
    assert contents(durable.memory) == {"1": "Marta lives in Oslo"} and journal.verify().ok
    with tempfile.TemporaryDirectory() as other:
        assert export_journal(journal, Path(other) / "e.jsonl") == 1
    with pytest.raises(JournalError, match="no right to write"):
        durable.apply(insert("x"), BY)
    assert [each.name for each in folder.iterdir()] == ["store.db"]
    monkeypatch.undo()
    assert durable.apply(insert("there are rights again"), BY).changed and journal.verify().ok
    journal.close()
