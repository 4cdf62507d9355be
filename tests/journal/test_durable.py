"""Writing, history, the past, undo, compaction, export: against values worked out by hand."""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from stores import BY, IVAN, MARTA, SCHEMA, contents, core, delete, insert, opened, update

from memalpha.errors import ForgottenError, InputError, JournalConflictError, JournalDamagedError, JournalError, MemAlphaError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.store import chain
from memalpha.store.journal import Journal, Namespace, Origin, hash_prompt
from memalpha.store.records import Head, Kind, moment_of, stamp
from memalpha.types import Change, Entry, ResultCode

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(folder):
    journal, durable = opened(folder / "store.db")
    yield journal, durable
    journal.close()


def tell_a_story(durable):
    """1 insert, 2 insert, 3 update of 1, 4 core, 5 delete of 2."""
    durable.apply(insert("Marta lives in Oslo"), BY, chunk=3, time="2024-01-01")
    durable.apply(insert("tea", "notes"), BY)
    durable.apply(update("1", "Marta lives in Rome"), Origin("other"), time="2024-05-05")
    durable.apply(core("likes rain"), BY)
    durable.apply(delete("2", "notes"), BY)


OSLO = Entry("1", "facts", "Marta lives in Oslo", "2024-01-01", 1.0, 3, 1, 1)
ROME = Entry("1", "facts", "Marta lives in Rome", "2024-05-05", 1.0, None, 1, 3)
TEA = Entry("2", "notes", "tea", None, 1.0, None, 2, 2)
CORE = Entry("core", "core", "likes rain", None, 1.0, None, 4, 4)


def test_a_story_by_hand_and_after_reopening(folder, store):
    journal, durable = store
    tell_a_story(durable)
    for memory in (durable.memory, durable.rebuilt(), opened(folder / "store.db")[1].memory):
        assert tuple(memory) == (ROME, CORE)
        assert memory.snapshot().next_id == 3 and memory.seq == 5
    assert [(e.seq, e.before, e.after, e.origin.agent) for e in durable.history("1")] == [
        (1, None, OSLO, "tester"),
        (3, OSLO, ROME, "other"),
    ]
    event = durable.history("2")[1]
    assert (event.operation, event.before, event.after, event.origin) == (delete("2", "notes"), TEA, None, BY)
    assert durable.history("99") == []
    assert [tuple(durable.as_of(seq)) for seq in range(6)] == [
        (), (OSLO,), (OSLO, TEA), (ROME, TEA), (ROME, TEA, CORE), (ROME, CORE),
    ]  # fmt: skip
    assert durable.diff(2, 5) == [Change(TEA, None), Change(OSLO, ROME), Change(None, CORE)]
    assert durable.diff(5, 2) == [Change(CORE, None), Change(ROME, OSLO), Change(None, TEA)]
    report = journal.verify()
    assert (report.faults, report.namespaces, report.operations, report.forgotten) == ((), 1, 5, 0)


def test_a_durable_memory_goes_on_as_a_plain_one_would(store):
    _, durable = store
    plain = Memory(SCHEMA)
    operations = [
        insert("a"),
        insert("a"),
        insert("b"),
        update("2", "a"),
        insert("c"),
        delete("9"),
        core("x"),
        core("x"),
        insert(" "),
    ]
    results = [(plain.apply(op, chunk=i), durable.apply(op, BY, chunk=i)) for i, op in enumerate(operations)]
    assert all(mine == theirs for mine, theirs in results)
    assert contents(plain) == contents(durable.memory) == {"1": "a", "3": "c", "core": "x"}
    assert durable.position == 5  # what was refused or changed nothing is not in the log
    assert [e.seq for e in durable.operations()] == [1, 2, 3, 4, 5]


def test_several_operations_are_one_write_all_or_nothing(folder, store):
    _, durable = store
    durable.apply(insert("kept"), BY)
    with pytest.raises(ZeroDivisionError), durable.writing(BY) as memory:
        memory.apply(insert("one"))
        memory.apply(insert("two"))
        raise ZeroDivisionError
    assert contents(durable.memory) == contents(opened(folder / "store.db")[1].memory) == {"1": "kept"}
    with durable.writing(BY) as memory:
        first, second = memory.apply(insert("one")), memory.apply(insert("two"))
    assert (first.entry_id, second.entry_id) == ("2", "3")
    assert [e.time for e in durable.operations()][1:] == [durable.operations()[1].time] * 2


def test_nothing_writes_around_the_log(store):
    _, durable = store
    memory = durable.memory
    with pytest.raises(JournalError, match="outside of its journal"):
        memory.apply(insert("lost"))
    with pytest.raises(JournalError, match="cannot be restored"):
        memory.restore(Memory(SCHEMA).snapshot())
    with durable.writing(BY), pytest.raises(JournalError, match="inside a write"), durable.writing(BY):
        pass
    free = durable.as_of(0)
    assert free.apply(insert("mine")).code is ResultCode.APPLIED and len(durable.memory) == 0


def test_limits_are_judged_when_written_and_never_again(folder):
    tight = MemorySchema.from_mapping({"name": "t", "sections": [{"name": "facts", "max_entry_tokens": 2, "max_entries": 1}]})
    wide = MemorySchema.from_mapping({"name": "t", "sections": [{"name": "facts"}]})
    with Journal.open(folder / "a.db") as journal:
        durable = journal.memory(MARTA, wide)
        for text in ("one two three", "four"):
            durable.apply(insert(text), BY)
        narrow = journal.memory(MARTA, tight)
        assert contents(narrow.memory) == {"1": "one two three", "2": "four"}
        assert narrow.apply(insert("five"), BY).code is ResultCode.SECTION_FULL
        assert narrow.apply(update("2", "a b c"), BY).code is ResultCode.TOO_LONG
        other = MemorySchema.from_mapping({"name": "t", "sections": [{"name": "facts", "timestamps": True}]})
        with pytest.raises(InputError, match="was begun with the schema"):
            _ = journal.memory(MARTA, other).memory


# ------------------------------------------------------------------------------------------------ undo
def test_undo_of_each_kind_and_undo_of_undo(store):
    _, durable = store
    tell_a_story(durable)
    assert durable.undo(5, BY) == Change(None, TEA)
    assert tuple(durable.memory) == (ROME, TEA, CORE)  # at its old place
    assert durable.undo(3, BY) == Change(ROME, OSLO)
    assert durable.undo(4, BY) == Change(CORE, None)
    assert tuple(durable.memory) == (OSLO, TEA)
    assert durable.undo(7, BY) == Change(OSLO, ROME)
    assert tuple(durable.memory) == tuple(durable.rebuilt()) == (ROME, TEA)
    assert list(durable.memory.newest()) == list(durable.rebuilt().newest()) == [ROME, TEA]
    assert durable.apply(insert("next"), BY).entry_id == "3"  # ids are not used again


def test_what_undo_brings_back_is_as_old_as_it_was(folder, store):
    _, durable = store
    for op in (insert("a"), insert("b"), update("1", "c")):
        durable.apply(op, BY)
    assert [e.content for e in durable.memory.newest()] == ["c", "b"]
    durable.undo(3, BY)
    for memory in (durable.memory, durable.rebuilt(), opened(folder / "store.db")[1].memory):
        assert [e.content for e in memory.newest()] == ["b", "a"]
    durable.compact()
    for memory in (durable.memory, durable.rebuilt(), opened(folder / "store.db")[1].memory):
        assert [e.content for e in memory.newest()] == ["b", "a"] and [e.content for e in memory] == ["a", "b"]


def test_what_undo_refuses(store):
    _, durable = store
    tell_a_story(durable)
    with pytest.raises(JournalError, match=r"(?s)written by operation 3 after operation 1.*undo 3 first"):
        durable.undo(1, BY)
    for seq in (0, 6, -1):
        with pytest.raises(InputError, match="cannot be undone"):
            durable.undo(seq, BY)
    durable.apply(insert("tea", "notes"), BY)
    with pytest.raises(JournalError, match="entry 3 says by now what entry 2 said"):
        durable.undo(5, BY)
    assert durable.position == 6


# ------------------------------------------------------------------------------------------------ time
def test_a_clock_that_goes_back_does_not_disorder_the_past(folder, store):
    journal, durable = store
    for minutes, text in ((0, "a"), (-90, "b"), (10, "c"), (-1000, "d")):
        journal._log.clock = lambda minutes=minutes: NOON + timedelta(minutes=minutes)
        durable.apply(insert(text), BY)
    events = durable.operations()
    assert [(e.time - NOON).total_seconds() / 60 for e in events] == [0, 0, 10, 10]
    at = [len(durable.as_of(NOON + timedelta(minutes=m))) for m in (-1, 0, 5, 10, 99)]
    assert at == [0, 2, 2, 4, 4]
    clocks = [record.data().get("clock") for record in durable._records()]
    assert clocks == [None, "2026-03-01T10:30:00.000000Z", None, "2026-02-28T19:20:00.000000Z"]
    assert journal.verify().ok and contents(durable.memory) == {"1": "a", "2": "b", "3": "c", "4": "d"}


@pytest.mark.parametrize("at", [datetime(2026, 1, 1), True, "yesterday", 99, -1])
def test_moments_that_are_none(store, at):
    tell_a_story(store[1])
    with pytest.raises(InputError):
        store[1].as_of(at)


# ------------------------------------------------------------------------------------------------ compaction, export, import
def test_a_moment_of_long_ago_is_before_everything(store):
    _, durable = store
    tell_a_story(durable)
    for year in (1, 999, 1000):
        assert contents(durable.as_of(datetime(year, 1, 1, tzinfo=UTC))) == {}
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(InputError, match="cannot be told in UTC"):
            durable.as_of(datetime.fromisoformat(moment))


@pytest.mark.parametrize("year", [1, 999, 2024, 9999])
def test_a_stamp_is_of_fixed_width_and_can_be_read(year):
    moment = datetime(year, 2, 3, 4, 5, 6, 7, UTC)
    assert stamp(moment) == f"{year:04}-02-03T04:05:06.000007Z" and moment_of(stamp(moment)) == moment


def test_compaction_keeps_the_memory_and_gives_up_the_past(folder, store):
    journal, durable = store
    tell_a_story(durable)
    before = durable.memory.snapshot()
    assert durable.compact() == 5
    assert durable.memory.snapshot() == durable.rebuilt().snapshot() == before
    assert durable.position == 8  # a base and two entries
    for at in (0, 4):
        with pytest.raises(JournalError, match="dropped by the compaction"):
            durable.as_of(at)
    assert tuple(durable.as_of(5)) == tuple(durable.as_of(6)) == (ROME, CORE)
    durable.apply(insert("later"), BY)
    assert durable.memory.get("3").created == 9
    assert tuple(durable.memory) == tuple(durable.rebuilt()) == tuple(opened(folder / "store.db")[1].memory)
    durable.apply(update("1", "Marta lives in Bonn"), BY, time="2025")
    assert durable.undo(10, BY).after == ROME
    with pytest.raises(InputError, match="cannot be undone"):
        durable.undo(3, BY)
    assert durable.compact() == 6 and journal.verify().ok


def test_export_and_import_lose_nothing(folder, store):
    journal, durable = store
    tell_a_story(durable)
    durable.apply(insert("ünï \ud800 \x00 \n 'quoted'"), BY)
    durable.forget("1")
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    journal.memory(Namespace("gone"), SCHEMA).apply(insert("of nobody"), BY)
    journal.forget(Namespace("gone"))
    assert journal.export(folder / "all.jsonl") == 8
    assert journal.export(folder / "marta.jsonl", MARTA) == 7
    with Journal.open(folder / "other.db") as other:
        assert other.import_(folder / "all.jsonl") == 8
        other.export(folder / "again.jsonl")
        copy = other.memory(MARTA, SCHEMA)
        assert copy.memory.snapshot() == durable.memory.snapshot() and copy.operations() == durable.operations()
        assert other.verify().ok and len(other.receipts()) == 1
        copy.apply(insert("goes on"), BY)
    first, again = ((folder / name).read_text().splitlines() for name in ("all.jsonl", "again.jsonl"))
    assert again[:-2] == first[:-2] and again[-1] == first[-1]
    with Journal.open(folder / "third.db") as third:
        third.import_(folder / "marta.jsonl")
        assert third.namespaces() == (MARTA,)
        third.export(folder / "marta2.jsonl")
        with pytest.raises(InputError, match="there already"):
            third.import_(folder / "marta.jsonl")
    assert (folder / "marta2.jsonl").read_bytes() == (folder / "marta.jsonl").read_bytes()


def test_an_import_is_checked_and_all_or_nothing(folder, store):
    journal, durable = store
    tell_a_story(durable)
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    journal.export(folder / "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()
    spoilt = {
        "edited": [line.replace("Rome", "Bonn") for line in lines],
        "missing": [*lines[:3], *lines[4:-1], json.dumps({"end": len(lines) - 2})],
        "reordered": [*lines[:3], lines[4], lines[3], *lines[5:]],
        "cut": lines[:-1],
        "foreign": ['{"a": 1}', *lines[1:]],
        "no json": [*lines[:2], "{", *lines[3:]],
    }
    with Journal.open(folder / "other.db") as other:
        for name, text in spoilt.items():
            (folder / name).write_text("\n".join(text))
            with pytest.raises(InputError):
                other.import_(folder / name)
        assert other.namespaces() == () and other.verify().ok
        assert other.import_(folder / "all.jsonl") == 6
    with Journal.open(folder / "keyed.db", key=b"k") as keyed, pytest.raises(InputError, match="another key"):
        keyed.import_(folder / "all.jsonl")


def test_an_old_export_does_not_bring_a_forgotten_namespace_back(folder, store):
    journal, durable = store
    tell_a_story(durable)
    journal.export(folder / "old.jsonl")
    journal.forget(MARTA)
    with pytest.raises(ForgottenError, match="was forgotten here"):
        journal.import_(folder / "old.jsonl")
    assert journal.namespaces() == ()


def test_an_export_touches_no_draft_it_did_not_make(folder, store):
    journal, durable = store
    tell_a_story(durable)
    draft = folder / "all.jsonl.part"
    draft.write_text("of another export")
    with pytest.raises(InputError, match=r"(?s)all\.jsonl\.part exists: .* was cut off, or is under way.*delete it"):
        journal.export(folder / "all.jsonl")
    assert draft.read_text() == "of another export"
    draft.unlink()
    assert journal.export(folder / "all.jsonl") == 5 and not draft.exists()


@pytest.mark.parametrize("name", ["x" * 300, "x" * 252, "a\0"])
def test_an_export_to_a_name_that_no_file_can_have(folder, store, name):
    with pytest.raises(MemAlphaError, match=r"File name too long|a name that a file can have"):
        store[0].export(folder / name)
    assert not list(folder.glob("x*"))


def test_an_import_erases_nothing(folder, store):
    """Marta was forgotten where the second export comes from, and is alive where it goes."""
    journal, durable = store
    tell_a_story(durable)
    journal.export(folder / "first.jsonl")
    with Journal.open(folder / "other.db") as other:
        other.import_(folder / "first.jsonl")
        journal.forget(MARTA)
        journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
        journal.export(folder / "second.jsonl")
        with pytest.raises(InputError, match=r"line 4: the namespace marta/default/default was forgotten .* is alive here"):
            other.import_(folder / "second.jsonl")
        assert other.namespaces() == (MARTA,) and other.verify().ok and other.receipts() == ()
        other.forget(MARTA)
        assert other.import_(folder / "second.jsonl") == 1
        assert other.namespaces() == (IVAN,) and other.verify().ok and len(other.receipts()) == 1


EDITS = {
    "no user": (2, lambda line: line.pop("user"), "'user' is None"),
    "a user that is no text": (2, lambda line: line.update(user=5), "'user' is 5"),
    "a user that is none": (2, lambda line: line.update(user=""), "user of a namespace is ''"),
    "an id that is no text": (2, lambda line: line.update(begin=[1]), r"'begin' is \[1\]"),
    "the registry's id": (2, lambda line: line.update(begin=""), "the namespace marta/default/default is there already"),
    "no time": (2, lambda line: line.pop("time"), "'time' is None"),
    "a time that is none": (2, lambda line: line.update(time="9999"), "the time is '9999'"),
    "no schema": (2, lambda line: line.pop("schema"), "'0' is recorded as a schema"),
    "a schema that is none": (2, lambda line: line.update(schema=5), "'5' is recorded as a schema"),
    "sections that are none": (
        2,
        lambda line: line.update(schema={"name": "a", "sections": [["facts"]]}),
        ".* is recorded as a schema",
    ),
    "a chain that is no text": (3, lambda line: line["record"].__setitem__(0, [1]), r"ns of a record is \[1\]"),
    "a number that is none": (3, lambda line: line["record"].__setitem__(1, True), "seq of a record is True"),
    "a salt that is no text": (3, lambda line: line["record"].__setitem__(10, 5), "salt of a record is 5"),
    "a line nobody knows": (3, lambda line: (line.clear(), line.update(what=1)), "neither begin, nor record"),
    "a receipt of nothing": (8, lambda line: line.update(forgotten=[]), r"'forgotten' is \[\]"),
    "a receipt without a time": (8, lambda line: line.pop("time"), "'time' is None"),
    "a receipt without a note": (8, lambda line: line.pop("note"), "'note' is None"),
    "a receipt with another note": (8, lambda line: line.update(note="[]"), r"the note of a receipt is '\[\]'"),
    "a receipt that counts nothing": (8, lambda line: line.update(note="{}"), "the note of a receipt is '{}'"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_line_of_an_export_is_named(folder, store, name):
    journal, durable = store
    tell_a_story(durable)
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    journal.forget(IVAN)
    journal.export(folder / "all.jsonl")
    lines = [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()]
    assert len(lines) == 9 and "forgotten" in lines[7]
    number, edit, said = EDITS[name]
    edit(lines[number - 1])
    (folder / "edited.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with Journal.open(folder / "other.db") as other:
        with pytest.raises(InputError, match=f"edited.jsonl, line {number}(:| is a| is) ?{said}"):
            other.import_(folder / "edited.jsonl")
        assert other.namespaces() == () and other.verify().ok
        assert other.import_(folder / "all.jsonl") == 5


def test_a_schema_that_is_not_that_of_the_records_is_refused(folder, store):
    journal, durable = store
    tell_a_story(durable)
    journal.export(folder / "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace('["notes",', '["places",')
    (folder / "other.jsonl").write_text("\n".join(lines))
    with Journal.open(folder / "other.db") as other:
        with pytest.raises(InputError, match="operation 2 wrote an entry that fits no section of 'test'"):
            other.import_(folder / "other.jsonl")
        assert other.namespaces() == ()


def test_a_chain_cannot_be_begun_twice(folder, store):
    journal, durable = store
    tell_a_story(durable)
    journal.export(folder / "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()
    lines[2:2] = [lines[1].replace("marta", "ivan")]
    (folder / "twice.jsonl").write_text("\n".join([*lines[:-1], json.dumps({"end": len(lines) - 1})]))
    with Journal.open(folder / "other.db") as other, pytest.raises(InputError, match=r"line 3: .* is there already"):
        other.import_(folder / "twice.jsonl")


def test_a_recorded_schema_that_is_none_is_reported(folder, store):
    """As an import of an earlier version let it in."""
    journal, durable = store
    tell_a_story(durable)
    with journal._log.writing():
        journal._log.register(IVAN, "ab" * 16, 5, journal._log.registry_time)
        journal._log.backend.append([chain.seal(Head(0, chain.root("ab" * 16)), None, ns="ab" * 16, kind=Kind.BASE, time="")])
    (fault,) = journal.verify().faults
    assert "'5' is recorded as a schema" in fault
    with pytest.raises(JournalDamagedError, match="'5' is recorded as a schema"):
        journal.schema(IVAN)


def test_a_key_is_needed_to_rewrite_the_log_unseen(folder):
    journal, durable = opened(folder / "k.db", key=b"secret")
    durable.apply(insert("a"), BY)
    assert journal.verify().ok
    journal.close()
    for key in (None, b"guess"):
        report = Journal.open(folder / "k.db", key=key).verify()
        assert any("another key" in line for line in report.faults)
        with pytest.raises(JournalDamagedError, match="another key"):
            _ = opened(folder / "k.db", key=key)[1].memory


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize("names", [("",), ("a", ""), ("a", "b", "c\n"), (" a",), ("x" * 201,), (None,)])
def test_no_namespace_without_names(names):
    with pytest.raises(InputError, match="of a namespace is"):
        Namespace(*names)


def test_no_call_without_a_namespace(store):
    for wrong in (None, "marta", ("marta", "default", "default")):
        with pytest.raises(InputError, match="expected: a Namespace"):
            store[0].memory(wrong, SCHEMA)


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), True, "5"])
def test_waits_that_are_none(folder, wait):
    with pytest.raises(InputError, match=r"a wait of .* s\n"):
        Journal.open(folder / "s.db", wait=wait)


def test_an_empty_key_is_no_key(folder):
    with pytest.raises(InputError, match="an empty key"):
        Journal.open(folder / "s.db", key=b"")
    assert list(folder.iterdir()) == []


def test_addresses_that_are_none(folder):
    with pytest.raises(InputError, match="a store at"):
        Journal.open("mysql://x/y")
    for address in ("postgresql://[x", "postgresql://user:secret/x", "postgresql://h:70000/x"):
        with pytest.raises(InputError, match=r"a store at postgresql://\.\.\., which is no address") as caught:
            Journal.open(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="no folder"):
        Journal.open(folder / "no" / "store.db")
    (folder / "text").write_text("hello " * 1000)
    with pytest.raises(JournalDamagedError):
        Journal.open(folder / "text")
    other = sqlite3.connect(folder / "other.db")
    other.execute("CREATE TABLE t (a)")
    other.close()
    with pytest.raises(JournalDamagedError, match="no journal of memalpha"):
        Journal.open(folder / "other.db")
    with Journal.open(f"sqlite:///{folder}/by-url.db") as journal:
        assert journal.namespaces() == () and (folder / "by-url.db").is_file()


def test_numbers_that_json_does_not_know_are_refused(store):
    with pytest.raises(InputError, match="finite"):
        store[1].apply(insert("a", importance=float("nan")), BY)
    assert len(store[1].memory) == 0 and store[1].position == 0


def test_hash_of_a_prompt():
    assert hash_prompt([1, 22]) == hash_prompt((1, 22)) != hash_prompt([12, 2])


def test_a_closed_store_says_so(folder):
    journal, durable = opened(folder / "c.db")
    journal.close()
    with pytest.raises(JournalError, match="was closed"):
        durable.apply(insert("a"), BY)


def test_writes_go_to_disk_before_they_are_acknowledged(folder, monkeypatch):
    journal, durable = opened(folder / "s.db")
    backend = journal._log.backend
    assert backend.execute("PRAGMA synchronous") == [(2,)] and backend.execute("PRAGMA journal_mode") == [("wal",)]
    assert backend.execute("PRAGMA secure_delete") == [(1,)]
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink())), real(descriptor))
    )
    durable.apply(insert("a"), BY)
    assert str(folder / "s.db.witness") in synced


def test_the_agents_step_writes_through_the_log_as_it_writes_to_a_plain_memory(folder):
    """The one applier of training, on a durable memory: same results, same changes, all calls of a chunk in one write."""
    from memalpha.agent.codecs import make_codec
    from memalpha.agent.step import AgentStep
    from memalpha.types import Chunk

    step = AgentStep.__new__(AgentStep)  # without a tokenizer: only ``apply`` is used
    step.schema = MemorySchema.load("facts")
    step.codec = make_codec("compact", step.schema)
    completion = "+ Marta lives in Oslo\n+ Marta likes tea\n= 1 Marta lives in Rome\n- 9\nnonsense"
    plain, chunk = Memory(step.schema), Chunk("text", "2024-03-05")
    expected = step.apply(plain, 4, chunk, completion)
    with Journal.open(folder / "a.db") as journal:
        durable = journal.memory(MARTA, step.schema)
        with durable.writing(BY) as memory:
            outcome = step.apply(memory, 4, chunk, completion)
        assert outcome.results == expected.results and [r.changed for r in outcome.results].count(True) >= 2
        assert contents(durable.rebuilt()) == contents(plain) and len({e.time for e in durable.operations()}) == 1
        assert durable.memory.get("1").timestamp == plain.get("1").timestamp
        assert durable.memory.get("1").source_chunk == 4


def test_what_was_written_since_and_taken_back_stands_in_no_undos_way(folder):
    journal, durable = opened(folder / "x.db")
    durable.apply(insert("Oslo"), BY)
    durable.apply(update("1", "Rome"), BY)
    durable.undo(2, BY)
    assert durable.undo(1, BY).after is None  # one step after the other, back to the beginning
    assert contents(durable.memory) == {}
    assert durable.undo(4, BY).after.content == "Oslo"
    durable.apply(update("1", "Bonn"), BY)
    with pytest.raises(JournalConflictError, match="undo 6 first"):
        durable.undo(1, BY)
    assert journal.verify().ok and contents(durable.rebuilt()) == {"1": "Bonn"}
