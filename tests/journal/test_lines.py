"""The lines of a text that was read: one record, and yet each of them an operation of its own."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from memalpha.errors import ForgottenError, InputError, JournalDamagedError
from memalpha.memory.schema import ARCHIVE
from memalpha.store import durable as durable_module
from memalpha.store import records
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal
from memalpha.store.records import Head, RecordKind, fault, seal
from memalpha.types import Operation, OperationKind
from tests.helpers.stores import BY, MARTA, SCHEMA, files_with, insert, opened

LINES = ("user: I live in Oslo.", "user: My cat is Nils \u00e9\u4e2d.", "assistant: Good to know!")


def line(text):
    return Operation(OperationKind.INSERT, ARCHIVE.name, text)


def read(durable, lines=LINES, chunk=4, time="2024-01-01", metadata=None):
    with durable.writing(BY, metadata) as memory:
        for text in lines:
            assert memory.apply(line(text), chunk=chunk, time=time).changed


def archived(memory):
    return [entry.content for entry in memory.entries(ARCHIVE.name)]


def rows(journal):
    with journal.reading():
        return journal.database.rows(journal.registered[MARTA].entry)


def spans(journal):
    """Kind, first and last operation of each record."""
    return [(record.kind, record.first, record.seq) for record in rows(journal)]


def a_story(durable):
    durable.apply(insert("Marta lives in Oslo"), BY, chunk=4, time="2024-01-01")
    read(durable)
    read(durable, ["one line"], chunk=5, time=None, metadata='{"a": 1}')
    durable.undo(3, BY)
    durable.undo(6, BY)
    read(durable, ["and another", "of two"], chunk=None)


def seen(path):
    journal, durable = opened(path)
    with journal:
        events = durable.history()
        now = datetime(2024, 1, 1, tzinfo=UTC)
        past = [tuple(durable.as_of(at).snapshot().entries) for at in range(len(events) + 1)]
        lines = [archived(durable.as_of(at)) for at in range(len(events) + 1)]
        assert journal.verify().ok and journal.verify().operations == len(events)
        return [replace(event, time=now) for event in events], past, lines


def test_the_lines_of_a_text_are_one_record_and_tell_what_a_record_each_tells(
    tmp_path, monkeypatch
):
    journal, durable = opened(tmp_path / "new.db")
    with journal:
        a_story(durable)
        kinds = spans(journal)
    assert kinds == [
        ("apply", 1, 1),
        ("lines", 2, 4),
        ("lines", 5, 5),
        ("undo", 6, 6),
        ("undo", 7, 7),
        ("lines", 8, 9),
    ]
    monkeypatch.setattr(durable_module, "_common_of", lambda applied: None)
    journal, durable = opened(tmp_path / "old.db")
    with journal:  # as stores were written until there were records of lines
        a_story(durable)
        assert [record.seq for record in rows(journal)] == list(range(1, 10))
    monkeypatch.undo()
    assert seen(tmp_path / "old.db") == seen(tmp_path / "new.db")


def test_what_differs_between_lines_ends_a_record(folder):
    journal, durable = opened(folder / "m.db")
    with durable.writing(BY) as memory:
        for chunk, time in [(1, None), (1, None), (2, None), (2, "2024-01-01"), (2, "2024-01-01")]:
            memory.apply(line(f"line {memory.clock}"), chunk=chunk, time=time)
        memory.apply(insert("an entry"), chunk=2)
        memory.apply(line("the last"), chunk=2)
        memory.apply(Operation(OperationKind.UPDATE, ARCHIVE.name, "other", "line-7"), chunk=2)
    assert spans(journal) == [
        ("lines", 1, 2),
        ("lines", 3, 3),
        ("lines", 4, 5),
        ("apply", 6, 6),
        ("lines", 7, 7),
        ("apply", 8, 8),
    ]


def test_a_text_of_many_lines_is_several_records(folder, monkeypatch):
    monkeypatch.setattr(durable_module, "MOST_LINES", 3)
    journal, durable = opened(folder / "m.db")
    read(durable, [f"line {number}" for number in range(7)])
    assert [record.seq for record in rows(journal)] == [3, 6, 7]


def test_a_commitment_covers_every_part_with_a_salt_of_its_own(folder):
    journal, durable = opened(folder / "m.db")
    read(durable)
    (record,) = rows(journal)
    shared, *texts = record.body.split("\n")
    assert json.loads(shared)["chunk"] == 4 and [*map(json.loads, texts)] == list(LINES)
    salts = [
        hashlib.sha256(bytes.fromhex(record.salt) + bytes([0] * 7 + [place])).digest()
        for place in range(4)
    ]
    hashes = [
        hashlib.sha256(salt + part.encode()).digest()
        for salt, part in zip(salts, (shared, *texts), strict=True)
    ]
    assert record.commitment == hashlib.sha256(b"".join(hashes)).hexdigest()
    durable.forget("line-2")
    record, _ = rows(journal)
    assert record.body == "\n".join([shared, texts[0], "", texts[2]])
    assert record.salt == (salts[0] + salts[1] + hashes[2] + salts[3]).hex()


def test_a_forgotten_line_leaves_no_byte_and_the_others_stay(folder):
    journal, durable = opened(folder / "m.db")
    read(durable)
    head = rows(journal)[0].hash
    receipt = durable.forget("line-2")
    assert receipt.operations == 1 and receipt.scrubbed
    assert archived(durable.memory) == [LINES[0], LINES[2]]
    events = durable.history()
    assert [event.forgotten for event in events] == [False, True, False, True]
    gone = events[1]
    assert (gone.entry, gone.origin, gone.operation, gone.after) == ("line-2", None, None, None)
    assert files_with(folder, "Nils") == []
    report = journal.verify()
    assert report.ok and report.forgotten == 1 and rows(journal)[0].hash == head
    with pytest.raises(ForgottenError):
        durable.undo(2, BY)
    durable.undo(1, BY)
    durable.forget("line-3")
    assert archived(durable.memory) == [] and journal.verify().ok
    durable.forget("line-1")
    assert rows(journal)[0].body is None and rows(journal)[0].salt is None
    report = journal.verify()
    assert report.ok and report.forgotten == 4  # three lines, and the undo of one
    assert files_with(folder, "Oslo", "Good to know") == []
    journal.close()
    journal, durable = opened(folder / "m.db")
    assert archived(durable.memory) == [] and len(durable.history()) == 7


def test_a_line_is_found_and_forgotten_whether_its_record_is_whole_or_not(folder):
    journal, durable = opened(folder / "m.db")
    read(durable, ["a b c", "d e f", "g h i"], chunk=1)
    read(durable, ["a b c", "j k l"], chunk=2, time="2024-02-01")
    durable.forget("line-1")  # and what says the very same, in another record
    assert archived(durable.memory) == ["d e f", "g h i", "j k l"]
    durable.forget("line-2", also=["line-5"])
    assert archived(durable.memory) == ["g h i"]
    with pytest.raises(InputError, match="line-4"):
        durable.forget("line-4")
    assert journal.verify().ok and journal.verify().forgotten == 4
    assert [record.salt is None for record in rows(journal)] == [False, True, True, True]


@pytest.mark.parametrize("forgotten", [(), ("line-2",), ("line-1", "line-2", "line-3")])
def test_an_export_holds_what_was_left_of_the_lines(folder, forgotten):
    journal, durable = opened(folder / "m.db")
    read(durable)
    read(durable, ["more"], chunk=6)
    for name in forgotten:
        durable.forget(name)
    count = 4 + len(forgotten)
    assert export_journal(journal, folder / "m.jsonl") == count
    with Journal.open(folder / "n.db") as other:
        assert import_journal(other, folder / "m.jsonl") == count
        again = other.memory(MARTA, SCHEMA)
        assert again.memory.snapshot() == durable.memory.snapshot()
        assert archived(again.memory) == archived(durable.memory)
        assert again.history() == durable.history()
        assert other.verify().ok
        read(again, ["after"], chunk=7)
        assert other.verify().ok and other.verify().operations == count + 1


def _edited(record, **columns):
    return record._replace(**columns)


def edits(record):
    shared, *texts = record.body.split("\n")
    yield "a word", _edited(record, body=record.body.replace("Oslo", "Rome"))
    yield "the chunk", _edited(record, body=record.body.replace('"chunk":4', '"chunk":5'))
    yield "the order", _edited(record, body="\n".join([shared, *reversed(texts)]))
    yield "a line less", _edited(record, body="\n".join([shared, *texts[:-1]]))
    yield "a line more", _edited(record, body=f'{record.body}\n"more"')
    yield "an empty line", _edited(record, body="\n".join([shared, "", *texts[1:]]))
    yield "another salt", _edited(record, salt="00" * 32)
    yield "salts of other parts", _edited(record, salt="00" * 32 * 3)
    yield "half a salt", _edited(record, salt=record.salt[:31])
    yield "no salt", _edited(record, salt=None)
    yield "another count", _edited(record, note='{"lines":2}')
    yield "no count", _edited(record, note="")
    yield "a count that is none", _edited(record, note='{"lines":-1}')
    yield "a huge count", _edited(record, note='{"lines":1000000000000}')
    yield "another kind", _edited(record, kind="apply")


def test_no_change_of_a_record_of_lines_is_unseen(folder):
    journal, durable = opened(folder / "m.db")
    read(durable)
    (record,) = rows(journal)
    before = Head(record.first - 1, record.previous)
    assert fault(record, before, None) == ""
    unseen = [name for name, edited in edits(record) if not fault(edited, before, None)]
    assert unseen == []
    durable.forget("line-2")
    (record, _) = rows(journal)
    assert fault(record, before, None) == ""
    unseen = [name for name, edited in edits(record) if not fault(edited, before, None)]
    assert unseen == []


def test_a_line_that_went_without_a_receipt_is_seen(folder):
    journal, durable = opened(folder / "m.db")
    read(durable)
    (record,) = rows(journal)
    body, salt = records.parts.erase_parts(record.body, record.salt, [2])
    with journal.writing():
        journal.database.erase(record.ns, [record._replace(body=body, salt=salt)])
    assert "operations [2] have lost their content" in "".join(journal.verify().faults)


@pytest.mark.parametrize("text", ["5", "null", '["a"]', '"\\ud800"', "{"])
def test_a_sealed_line_that_is_no_text_is_refused(folder, text):
    shared = {"origin": ["a", "", ""], "chunk": 1}
    time = "2024-05-01T12:00:00.000000+00:00"
    kind = RecordKind.LINES
    sealed = seal(Head(0, "0" * 64), None, ns="a" * 32, kind=kind, time=time, body=shared,
                  lines=["x"])  # fmt: skip
    body = sealed.body.replace('"x"', text)
    with pytest.raises(JournalDamagedError, match="no text"):
        _ = sealed._replace(body=body).lines


def test_a_record_of_a_later_version_is_told(folder):
    journal, durable = opened(folder / "m.db")
    read(durable)
    (record,) = rows(journal)
    later = record._replace(kind="verses")
    later = later._replace(hash=records.hash_header(later.header(), None))
    told = fault(later, Head(later.seq - 1, later.previous), None)
    assert told.startswith("is of the kind 'verses', which only a later version")
