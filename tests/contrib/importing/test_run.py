"""Imports into a store: by date, once, and as often as one likes; killed, nothing is lost or twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from memalpha.agent.step import AgentStep
from memalpha.cli import run
from memalpha.contrib.importing import run as importing
from memalpha.contrib.importing.exports import Export
from memalpha.contrib.importing.run import (
    ImportReport,
    collect_items,
    import_messages,
    import_with_agent,
)
from memalpha.errors import InputError, JournalConflictError, ServiceError
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.models.registry import make_tokenizer
from memalpha.store.durable import DurableMemory
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, RecordKind
from memalpha.types import ResultCode
from memalpha.use.agent import MemoryAgent
from tests.helpers.export_samples import LOCOMO, MEM0, chatgpt, node
from tests.helpers.scripted import FACTS, ScriptedGenerator
from tests.helpers.stores import MARTA, opened

AT = ["2024-05-01T10:00:00+00:00", "2024-05-01T10:01:40+00:00"]
SAID = [
    (AT[0], "User: I live in Oslo.", "chatgpt/c1/u1"),
    (AT[1], "User: How far is Lima?\nand by train?", "chatgpt/c1/u2"),
    (AT[1], "Assistant: Far. 11,000 km.", "chatgpt/c1/a2"),
]


@pytest.fixture
def found(tmp_path):
    def found(*data, name="conversations.json"):
        path = tmp_path / name
        path.write_text(json.dumps(data))
        return collect_items(Export(path))

    return found


@pytest.fixture
def store(folder):
    journal, durable = opened(folder / "m.db")
    yield journal, durable
    journal.close()


def lines(durable):
    """Time, text and source of each line that is there, in order."""
    history = reversed(durable.history())
    sources = {each.after.id: each.origin.source for each in history if each.after}
    there = [each for each in durable.memory.snapshot().entries if each.section == ARCHIVE.name]
    return [(each.timestamp, each.content, sources[each.id]) for each in there]


def test_lines_in_the_order_of_dates_with_speakers_and_sources(found, store, monkeypatch):
    _, durable = store
    both = found(chatgpt(), chatgpt("c2", last="u1"))
    monkeypatch.setattr(importing, "BATCH", 2)
    assert import_messages(durable, both) == ImportReport(4, 0, both.skipped)
    assert lines(durable) == [SAID[0], (AT[0], SAID[0][1], "chatgpt/c2/u1"), *SAID[1:]]
    for event in durable.history():  # an entry names the operation that wrote it
        assert event.after is None or event.after.updated == event.seq
    assert both.times() == (AT[0], AT[1]) and both.speakers() == {"user": 3, "assistant": 1}
    of_people = found({**LOCOMO, "sample_id": ""}, name="talks.json")
    assert import_messages(durable, of_people).read == 2
    assert lines(durable)[-2:] == [  # a later import of earlier messages comes after
        ("2023-05-08T13:56", "Ana: Look! [shows a red kite]", "locomo/talks 1/D1:1"),
        ("2023-05-09T13:05", "Ben: Late.", "locomo/talks 1/D2:1"),
    ]


def test_a_conversation_keeps_its_order_where_its_times_go_back(found, store):
    _, durable = store
    early = node("u3", "a2", "user", "I am early.", 1714550000)
    import_messages(durable, found(chatgpt(more=[early], last="u3"), chatgpt("c2", last="u1")))
    texts = [text for _, text, _ in lines(durable)]
    assert texts == [SAID[0][1], SAID[0][1], *(each[1] for each in SAID[1:]), "User: I am early."]


def test_a_grown_export_adds_what_is_new_and_what_was_forgotten_stays_away(found, store, folder):
    journal, durable = store
    import_messages(durable, found(chatgpt()))
    assert import_messages(durable, found(chatgpt())) == ImportReport(
        0, 3, found(chatgpt()).skipped
    )
    grown = [node("u3", "u2", "user", "I meant Rome.", 1714560000)]  # in place of the answer
    assert import_messages(durable, found(chatgpt(more=grown, last="u3"))).read == 1
    new = ("2024-05-01T10:40:00+00:00", "User: I meant Rome.", "chatgpt/c1/u3")
    assert lines(durable) == [*SAID[:2], new]
    durable.forget("line-1")
    export_journal(journal, folder / "all.jsonl")
    with Journal.open(folder / "other.db") as other:
        import_journal(other, folder / "all.jsonl")
        for memory in (durable, other.memory(MARTA, durable.schema)):
            again = import_messages(memory, found(chatgpt(more=grown, last="u3")))
            assert (again.read, again.there) == (0, 3)
            assert lines(memory) == [SAID[1], new]
        assert other.verify().ok
    journal.forget(MARTA)
    assert import_messages(journal.memory(MARTA, durable.schema), found(chatgpt())).read == 3


def edited(last):
    """A first message that was edited: two roots, with one answer each."""
    message = [
        node("u1", "root", "user", "I like walnuts.", 1714557600),
        node("a1", "u1", "assistant", "Fine.", 1714557605),
        node("u2", "root", "user", "I like shrimps.", 1714557660),
        node("a2", "u2", "assistant", "Noted.", 1714557665),
    ]
    there = message[:2] if last == "a1" else message
    about = {"conversation_id": "c1", "current_node": last}
    return {**about, "mapping": {each["id"]: each for each in there}}


def texts(durable):
    return [text for _, text, _ in lines(durable)]


def test_an_edit_between_two_exports_leaves_what_the_second_shows(found, store):
    journal, durable = store
    walnuts, shrimps = ["User: I like walnuts.", "Assistant: Fine."], ["User: I like shrimps."]
    import_messages(durable, found(edited("a1")))
    assert texts(durable) == walnuts
    report = import_messages(durable, found(edited("a2")))
    assert (report.read, report.left, texts(durable)) == (2, 2, [*shrimps, "Assistant: Noted."])
    again = import_messages(durable, found(edited("a2")))
    assert (again.read, again.there, again.left) == (0, 2, 0)
    both = {**edited("a2"), "current_node": "a1"}  # the user went back to the first branch
    back = import_messages(durable, found(both))
    assert (back.read, back.left, texts(durable)) == (0, 2, walnuts)
    assert lines(durable)[0][2] == "chatgpt/c1/u1"
    import_messages(durable, found(edited("a2")))
    removed = [event for event in durable.history() if event.after is None and event.before]
    durable.undo(removed[-1].seq, importing.Origin("me"))  # stays: a user wants it
    kept = texts(durable)
    assert import_messages(durable, found(edited("a2"))).left == 0 and texts(durable) == kept
    assert journal.verify().ok


def test_a_conversation_that_is_no_more_to_be_remembered_leaves_the_memory(found, store):
    _, durable = store
    import_messages(durable, found(edited("a1"), chatgpt("c2")))
    gone = {**edited("a1"), "is_do_not_remember": True}
    report = import_messages(durable, found(gone, chatgpt("c2")))
    assert (report.read, report.there, report.left) == (0, 3, 2)
    assert texts(durable) == [text for _, text, _ in SAID]


def test_an_agent_follows_the_branch_too_and_forgotten_lines_stay_away(found, folder):
    journal = Journal.open(folder / "m.db")
    facts = journal.memory(MARTA, MemorySchema.load("facts"))
    agent = reads(journal, lambda _: "")
    import_with_agent(agent, MARTA, found(edited("a1")))
    report = import_with_agent(agent, MARTA, found(edited("a2")))
    assert (report.read, report.left) == (2, 2)
    assert texts(facts) == ["User: I like shrimps.", "Assistant: Noted."]
    back = {**edited("a2"), "current_node": "a1"}
    import_with_agent(agent, MARTA, found(back))
    assert texts(facts) == ["User: I like walnuts.", "Assistant: Fine."]
    ids = [line.id for line in lines_of(facts.memory)]
    facts.forget(ids[0])
    import_messages(facts, found(edited("a2")))
    import_messages(facts, found(back))
    assert "User: I like walnuts." not in texts(facts)


def openwebui(text, answer):
    """A chat whose messages keep their ids when they are edited."""
    asked = {"id": "m1", "parentId": None, "childrenIds": ["m2"], "role": "user", "content": text}
    said = {"id": "m2", "parentId": "m1", "childrenIds": [], "role": "assistant", "content": answer}
    history = {"messages": {"m1": asked, "m2": said}, "currentId": "m2"}
    return {"id": "chat", "created_at": 1714557600, "chat": {"history": history}}


def test_a_message_that_was_edited_in_place_takes_the_place_of_what_was_read(found, store):
    _, durable = store
    import_messages(durable, found(openwebui("I live in Oslo. I am Ann.", "Noted.")))
    new = found(openwebui("I live in Rome. I am Ann.", "Noted."))
    assert import_messages(durable, new) == ImportReport(0, 2, new.skipped, changed=1)
    assert sorted(texts(durable)) == ["Assistant: Noted.", "User: I live in Rome. I am Ann."]
    assert import_messages(durable, new) == ImportReport(0, 2, new.skipped)
    durable.undo(len(durable.history()), importing.Origin("ann"))  # what a user took back stays so
    assert import_messages(durable, new).changed == 0


def test_a_text_that_says_a_line_twice_or_is_quoted_is_not_taken_for_edited(found, store):
    _, durable = store
    said = [
        "The same again and again. " * 40,
        "So:\nUser: I said so.\n> Ann: yes\n\nEnd.",
        "汉字。" * 200,
    ]
    for number, text in enumerate(said):
        chat = {**openwebui(text, f"{text} Yes."), "id": f"c{number}"}
        assert import_messages(durable, found(chat)).read == 2
        again = import_messages(durable, found(chat))
        assert (again.there, again.changed, again.skipped) == (2, 0, {})


def test_an_edit_of_what_was_forgotten_in_part_brings_nothing_back(found, store):
    _, durable = store
    long = "My door code is 4711. " + "I walk along the river every morning and think of it. " * 6
    import_messages(durable, found(openwebui(long, "Noted.")))
    (first, *_) = [line for line in durable.memory.snapshot().entries if "4711" in line.content]
    durable.forget(first.id)
    new = found(openwebui(long + "Yes.", "Noted."))
    report = import_messages(durable, new)
    assert (report.changed, report.skipped) == (0, {importing._ELSE: 1})
    assert not any("4711" in text for text in texts(durable))


def test_an_entry_that_another_memory_has_updated_is_updated(found, store):
    _, durable = store

    def memory(text, day, name="mem0.json"):
        row = {"id": "a1", "memory": text, "user_id": "marta", "created_at": "2024-01-01"}
        return found({**row, "updated_at": f"2024-05-{day}"}, name=name)

    import_messages(durable, memory("Lives in Oslo", "01"))
    assert import_messages(durable, memory("Lives in Rome", "02")).changed == 1
    assert import_messages(durable, memory("Lives in Oslo", "01")).changed == 0  # an older one
    (entry,) = durable.memory.snapshot().entries
    assert (entry.content, entry.timestamp) == ("Lives in Rome", "2024-05-02")
    insert = durable.undo(entry.updated, importing.Origin("ann")).after
    assert insert is not None and insert.content == "Lives in Oslo"
    assert import_messages(durable, memory("Lives in Rome", "02")).changed == 0
    both = found(
        {"id": "a1", "memory": "old", "user_id": "m", "updated_at": "2024-05-02"},
        {"id": "a1", "memory": "older", "user_id": "m", "updated_at": "2024-05-01"},
        {"id": "a1", "memory": "new", "user_id": "m", "updated_at": "2024-05-03"},
    )
    assert [entry.what.text for entry in both.entries] == ["new"]


def test_another_file_of_the_same_name_without_ids_changes_nothing_and_is_counted(found, store):
    _, durable = store
    import_messages(durable, found({"role": "user", "content": "I live in Oslo."}, name="c.json"))
    report = import_messages(
        durable, found({"role": "user", "content": "I like tea."}, name="c.json")
    )
    assert (report.there, report.skipped) == (1, {importing._ELSE: 1})
    assert texts(durable) == ["User: I live in Oslo."]


def test_lists_of_one_conversation_without_ids_are_all_read(found):
    def part(*said):
        rows = [{"role": "user", "content": text} for text in said]
        return {"conversation_id": "c1", "messages": rows}

    whole = found(part("One.", "Two."), part("Three.", "Two."), part("Four."), name="c.json")
    said = [(message.what.text, message.source) for message in whole.messages]
    assert said == [
        ("One.", "messages/c1/0"),
        ("Two.", "messages/c1/1"),
        ("Three.", "messages/c1/0 2"),
        ("Four.", "messages/c1/0 3"),
    ]
    assert whole.skipped == {importing._AGAIN: 1}


def test_a_list_that_is_newest_first_grows_at_its_begin(found, store):
    _, durable = store

    def said(*days):
        rows = [
            {"role": "user", "content": f"Day {day}.", "time": f"2024-05-0{day}"} for day in days
        ]
        return import_messages(durable, found(*rows, name="log.json"))

    assert said(3, 2, 1).read == 3
    grown = said(5, 4, 3, 2, 1)
    assert (grown.read, grown.there, grown.skipped) == (2, 3, {})
    assert texts(durable) == [f"User: Day {day}." for day in range(1, 6)]


def test_ids_that_are_no_unicode_text_are_read(found, store):
    _, durable = store
    row = {"role": "user", "content": "Hi.", "id": "a\ud83d", "conversation_id": "\udc00"}
    assert import_messages(durable, found(row, name="c.json")).read == 1
    about = {"metadata": {"k\ud800": "\udfff"}, "created_at": "2024-01-01"}
    entry = {"id": "m\ud800", "memory": "Likes tea", **about}
    assert import_messages(durable, found(entry, name="mem0.json")).read == 1
    (metadata,) = [each.metadata for each in durable.memory.snapshot().entries if each.metadata]
    assert json.loads(metadata) == {"metadata": {"k\ufffd": "\ufffd"}}


def test_what_was_said_on_several_days_is_an_entry_of_each(found, store):
    _, durable = store
    said = {"memory": "Took a warfarin tablet", "user_id": "u"}
    days = ["2025-05-01T08:00:00Z", "2025-05-02T08:00:00Z", "2025-05-02T20:00:00Z"]
    memories = [{"id": f"{n}", **said, "created_at": day} for n, day in enumerate(days)]
    again = {"id": "9", **said, "created_at": days[0]}
    report = import_messages(durable, found({"results": [*memories, again]}))
    assert (report.read, report.skipped) == (3, {"entry that the memory says already": 1})
    assert [each.timestamp for each in durable.memory.entries()] == [
        "2025-05-01T08:00:00+00:00",
        "2025-05-02T08:00:00+00:00",
        "2025-05-02T20:00:00+00:00",
    ]


def test_the_record_of_what_was_read_holds_no_content_and_cannot_be_undone_or_forgotten(
    found, store
):
    journal, durable = store
    import_messages(durable, found(chatgpt()))
    reading = durable.history()[-1]
    assert (reading.seq, reading.kind, len(reading.sources)) == (4, RecordKind.READ, 3)
    record = journal.database.rows(journal.registered[MARTA].entry)[-1]
    assert record.body is None and json.loads(record.note) == {
        "read": "".join(
            map(importing.digest_of, ["chatgpt/c1/u1", "chatgpt/c1/u2", "chatgpt/c1/a2"])
        ),
        "by": "",
    }
    with pytest.raises(InputError, match="only records the texts that an import has read"):
        durable.undo(4, importing.Origin("me"))
    for entry in ("", "read"):
        with pytest.raises(InputError, match="has no entry or line"):
            durable.forget(entry)
    durable.undo(2, importing.Origin("me"))  # a line that was taken back stays away, too
    assert import_messages(durable, found(chatgpt())).there == 3
    assert lines(durable) == [SAID[0], *SAID[2:]] and len(lines_of(durable.as_of(4))) == 3
    durable.forget("line-1")
    assert journal.verify().ok


def lines_of(memory):
    return [each for each in memory.snapshot().entries if each.section == ARCHIVE.name]


def test_lines_and_the_record_that_they_were_read_are_written_together_or_not_at_all(
    found, store, monkeypatch
):
    _, durable = store
    with monkeypatch.context() as broken:
        broken.setattr(DurableMemory, "note_read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            import_messages(durable, found(chatgpt()))
    assert durable.history() == []
    assert import_messages(durable, found(chatgpt())).read == 3


def test_entries_of_another_memory_keep_dates_and_origin_and_what_does_not_fit_is_counted(
    found, folder
):
    journal = Journal.open(folder / "m.db")
    schema = MemorySchema.load("small_core")
    short = replace(schema.sections[2], max_entry_tokens=2)
    durable = journal.memory(MARTA, replace(schema, sections=(*schema.sections[:2], short)))
    report = import_messages(durable, found(MEM0, {**MEM0, "results": MEM0["results"][:1]}))
    assert (report.read, report.skipped[f"entry refused: {ResultCode.TOO_LONG}"]) == (1, 1)
    assert report.skipped["message that the file holds twice"] == 1
    (entry,) = durable.memory.entries()
    assert (entry.content, entry.section) == ("Likes tea", "episodic")
    assert entry.timestamp == "2024-01-02T03:04:05-08:00"
    assert durable.history()[0].origin.source == "mem0/a"
    again = import_messages(journal.memory(MARTA, schema), found(MEM0))  # where it fits
    assert (again.read, again.there) == (1, 1)


def test_metadata_and_app_of_mem0_come_along_and_go_when_forgotten(found, folder):
    journal = Journal.open(folder / "m.db")
    durable = journal.memory(MARTA, MemorySchema.load("small_core"))
    about = {"app_id": "kitchen", "metadata": {"topic": "drinks", "hash": "x"}}
    payload = {"data": "Has a dog", "user_id": "u", "app_id": "radio", "topic": "pets"}
    rows = [
        {"id": "a", "memory": "Likes tea", "user_id": "u", **about},
        {"id": "b", "payload": payload},
        {"id": "c", "memory": "Is a cook", "user_id": "u"},
    ]
    assert import_messages(durable, found({"results": rows})).read == 3
    kept = [entry.metadata and json.loads(entry.metadata) for entry in durable.memory]
    assert kept == [
        {"metadata": {"topic": "drinks", "hash": "x"}, "app_id": "kitchen"},
        {"metadata": {"topic": "pets"}, "app_id": "radio"},
        None,
    ]
    durable.forget("1")
    journal.close()
    files = b"".join(path.read_bytes() for path in folder.iterdir() if "m.db" in path.name)
    assert b"drinks" not in files and b"pets" in files


def test_an_entry_that_was_there_already_does_not_come_back_when_that_one_is_forgotten(
    found, store
):
    _, durable = store
    tea = {"memory": "Likes tea", "user_id": "u", "created_at": "2024-01-02T03:04:05Z"}
    twice = {"results": [{"id": "a", **tea}, {"id": "b", **tea}]}
    report = import_messages(durable, found(twice))
    assert (report.read, report.skipped) == (1, {"entry that the memory says already": 1})
    durable.forget("1")
    assert import_messages(durable, found(twice)).there == 2
    assert len(durable.memory) == 0


def test_two_imports_at_once_read_nothing_twice(found, store, monkeypatch):
    journal, durable = store
    monkeypatch.setattr(importing, "BATCH", 1)
    other = journal.memory(MARTA, durable.schema)

    def meanwhile(done):
        if done == 1:
            import_messages(other, found(chatgpt()))
        return True

    assert import_messages(durable, found(chatgpt()), progress=meanwhile).there == 2
    assert lines(durable) == SAID


# ------------------------------------------------------------------------------------------------
# with an agent
CONFIG = replace(FACTS, archive=True)


def chunk_in(prompt):
    chunk = prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0]
    return chunk.split("]\n")[-1]  # after the time


def reads(store, script, **changes):
    step = AgentStep(replace(CONFIG, **changes), make_tokenizer(["facts"], 4096))
    return MemoryAgent(step, ScriptedGenerator(script), store=store, name="scripted")


def test_an_agent_reads_what_was_archived_and_its_lines_are_there_once(found, folder):
    journal = Journal.open(folder / "m.db")
    facts = journal.memory(MARTA, MemorySchema.load("facts"))
    import_messages(facts, found(chatgpt()))
    seen = []

    def script(prompt):
        seen.append(chunk_in(prompt))
        return "+ user city Oslo"

    agent = reads(journal, script)
    report = import_with_agent(agent, MARTA, found(chatgpt()))
    assert (report.read, report.there) == (3, 0)
    assert seen == ["\n".join(text for _, text, _ in SAID)]
    assert lines(facts) == SAID
    (entry,) = agent.memory(MARTA)
    assert {line.source_chunk for line in lines_of(facts.memory)} == {entry.source_chunk}
    agent.undo(5, namespace=MARTA)  # as if the agent had not read: the lines as they were
    assert sorted(lines(facts)) == sorted(SAID)
    assert {line.id for line in lines_of(facts.memory)} == {f"line-{n}" for n in range(1, 4)}
    again = import_with_agent(agent, MARTA, found(chatgpt()))
    assert (again.read, again.there, len(seen)) == (0, 3, 1)
    assert import_messages(facts, found(chatgpt())).there == 3
    assert journal.verify().ok


def test_an_agent_does_not_read_what_was_forgotten_since(found, folder):
    journal = Journal.open(folder / "m.db")
    facts = journal.memory(MARTA, MemorySchema.load("facts"))
    import_messages(facts, found(chatgpt()))
    facts.forget("line-1")
    seen = []
    agent = reads(journal, lambda prompt: seen.append(chunk_in(prompt)) or "")
    report = import_with_agent(agent, MARTA, found(chatgpt()))
    assert report.read == 2 and "Oslo" not in seen[0]
    assert report.skipped["message of which a line was forgotten or taken back"] == 1


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("archived_before", [True, False])
def test_an_agent_that_fails_in_a_long_message_goes_on_at_the_next_piece(
    found, folder, archive, archived_before
):
    said = [f"word{n}" for n in range(120)]
    more = [
        node("u3", "a2", "user", " ".join(said), 1714643999),
        node("u4", "u3", "user", "Bye.", 1714644000),
    ]
    long = found(chatgpt(more=more, last="u4"))
    if archived_before:
        with Journal.open(folder / "m.db") as journal:
            import_messages(journal.memory(MARTA, MemorySchema.load("facts")), long)
    seen = []

    def script(prompt):
        if len(seen) == 2:
            seen.append("failed")
            raise ServiceError("down")
        seen.append(chunk_in(prompt))
        return ""

    agent = reads(folder / "m.db", script, max_chunk_tokens=300, archive=archive)
    with pytest.raises(ServiceError):
        import_with_agent(agent, MARTA, long)
    report = import_with_agent(agent, MARTA, long)
    assert (report.read, report.there) == (2, 3)
    assert len(seen) > 4 and [word for word in " ".join(seen).split() if "word" in word] == said
    with agent.durable(MARTA) as durable:
        kept = " ".join(text for _, text, _ in lines(durable)).split()
    assert [word for word in kept if "word" in word] == (said if archive or archived_before else [])


def test_two_agents_of_one_name_do_not_read_the_same(found, folder):
    journal = Journal.open(folder / "m.db")
    other = reads(journal, lambda _: "")

    def script(prompt):
        if journal.namespaces() == ():
            import_with_agent(other, MARTA, found(chatgpt()))
        return "+ user city Oslo"

    with pytest.raises(JournalConflictError):
        import_with_agent(reads(journal, script), MARTA, found(chatgpt()))


def test_a_message_with_its_own_label_in_it_is_not_taken_for_forgotten(found, folder):
    journal = Journal.open(folder / "m.db")
    told = node("u3", "a2", "user", "I asked.\nUser: Yes?\nUser: No.\nSo it was.", 1714643999)
    chats = found(chatgpt(more=[told], last="u3"))
    import_messages(journal.memory(MARTA, MemorySchema.load("facts")), chats)
    assert import_with_agent(reads(journal, lambda _: ""), MARTA, chats).read == 4


def test_what_was_forgotten_or_archived_while_an_agent_reads_is_not_read_and_not_doubled(
    found, folder
):
    journal = Journal.open(folder / "m.db")
    facts = journal.memory(MARTA, MemorySchema.load("facts"))
    import_messages(facts, found(chatgpt()))

    def forget(_):
        if facts.memory.get("line-1"):
            facts.forget("line-1")
        return ""

    forgets = reads(journal, forget)
    with pytest.raises(JournalConflictError, match="forgotten in the meantime"):
        import_with_agent(forgets, MARTA, found(chatgpt()))
    assert lines(facts) == SAID[1:] and facts.sources("scripted") == set()
    assert import_with_agent(reads(journal, lambda _: ""), MARTA, found(chatgpt())).read == 2
    assert lines(facts) == SAID[1:]
    journal.forget(MARTA)
    archives = reads(journal, lambda _: import_messages(facts, found(chatgpt())) and "")
    with pytest.raises(JournalConflictError, match="imported or"):
        import_with_agent(archives, MARTA, found(chatgpt()))
    assert import_with_agent(reads(journal, lambda _: ""), MARTA, found(chatgpt())).read == 3
    assert lines(facts) == SAID


# ------------------------------------------------------------------------------------------------
# killed
IMPORT = """
import sys
from pathlib import Path
from memalpha.cli import run
sys.exit(run(["import", sys.argv[1], "--store", sys.argv[2], "--user", "marta"]))
"""
ROOT = Path(__file__).resolve().parents[3]


def size_of(store):
    sizes = []
    for file in store.parent.glob(f"{store.name}*"):
        with suppress(FileNotFoundError):  # SQLite removes its journal after each transaction
            sizes.append(file.stat().st_size)
    return sum(sizes)


def killed_import(file, store, size):
    """Import in another process, which is killed when the store has that many bytes."""
    command = [sys.executable, "-c", IMPORT, str(file), str(store)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while child.poll() is None and size_of(store) < size:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    return child.wait()


def many(count, rng):
    told, parent = [], "a2"
    for n in range(count):
        text = " ".join(f"{rng.random():.5f}" for _ in range(rng.choice([3, 12])))
        told.append(node(f"n{n}", parent, "user", text, 1714560000 + n))
        parent = f"n{n}"
    return chatgpt(more=told, last=parent)


SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(("count", "times"), [(1200, 2), pytest.param(100_000, 8, marks=SLOW)])
def test_an_import_that_is_killed_again_and_again_reads_everything_once(folder, count, times):
    rng = random.Random(count)
    file = folder / "conversations.json"
    file.write_text(json.dumps([many(count, rng)]))
    states, needed = [], 0
    for name in ("whole.db", "killed.db"):
        kills = [(n + rng.random()) / (times + 1) for n in range(times)] if needed else []
        for share in kills:
            assert killed_import(file, folder / name, share * needed) == -signal.SIGKILL
        assert run(["import", str(file), "--store", str(folder / name), "--user", "marta"]) == 0
        needed = size_of(folder / name)
        with Journal.open(folder / name) as journal:
            states.append(lines(journal.memory(MARTA, MemorySchema.load("small_core"))))
            assert journal.verify().ok
    assert states[0] == states[1] and len(states[0]) > count
