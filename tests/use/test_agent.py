"""The agent in use: the very steps of training, on a store that keeps, shows, undoes and forgets
what they did."""

import asyncio
import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedGenerator

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import ForgottenError, InputError, JournalBusyError, JournalConflictError
from memalpha.models.registry import make_tokenizer
from memalpha.store.journal import Journal, Namespace, hash_prompt
from memalpha.types import Entry, Operation, OperationKind, ResultCode
from memalpha.use.agent import LOCAL, AsyncMemoryAgent, MemoryAgent, Reply

CONFIG = AgentConfig(
    schema="facts",
    codec="compact",
    max_chunk_tokens=2000,
    view_tokens=500,
    max_completion_length=64,
)
MARTA, IVAN = Namespace("marta"), Namespace("ivan")


def chunk_in(prompt):
    return prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0]


def parrot(prompt):
    return f"+ {chunk_in(prompt).splitlines()[-1]}"


def step(**changes):
    return AgentStep(replace(CONFIG, **changes), make_tokenizer(["facts"], 4096))


def texts(agent, namespace=None):
    return [entry.content for entry in agent.memory(namespace)]


def test_ask_without_a_reader_answers_with_what_was_found():
    agent = MemoryAgent(
        step(), ScriptedGenerator(["+ Marta city Oslo\n+ Ivan job nurse", "= 1 Marta city Rome"])
    )
    agent.add("Marta: I live in Oslo.", time="2024-03-05")
    reply = agent.ask("What is the city of Marta?")
    assert str(reply) == reply.text == "[2024-03-05] Marta city Oslo" and [
        hit.entry.id for hit in reply.entries
    ] == ["1"]
    added = agent.add("Marta: I moved to Rome.", time="2024-05-01")
    assert [result.message for result in added.results] == ["update 1"] and added.operations == (3,)
    assert agent.ask("What is the city of Marta?").text == "[2024-05-01] Marta city Rome"


def test_the_source_of_an_answer_is_what_has_most_of_its_words():
    read = [
        Entry("1", "facts", "Marta city Oslo"),
        Entry("2", "facts", "Ivan city Rome", "2024-05-01"),
        Entry("3", "facts", "cat"),
    ]
    for text, source in [
        ("Ivan, in Rome", "2"),
        ("Rome or Oslo", "1"),
        ("on 2024-05-01", "2"),
        ("Lima", None),
        ("Unknown.", None),
    ]:
        reply = Reply(text, (), tuple(read))
        assert (reply.source and reply.source.id, reply.known) == (source, text != "Unknown."), text


def test_what_was_added_outlives_the_agent_with_its_origin(tmp_path):
    with MemoryAgent(
        step(), ScriptedGenerator(parrot), store=tmp_path / "m.db", name="the-adapter"
    ) as agent:
        first = agent.add("Marta lives in Oslo", namespace=MARTA)
        agent.add("Marta has a cat", "2024-05-01", namespace="marta", source="letter 7")
    with MemoryAgent(step(), ScriptedGenerator(parrot), store=tmp_path / "m.db") as agent:
        assert (
            texts(agent, "marta") == ["Marta lives in Oslo", "Marta has a cat"]
            and texts(agent, "ivan") == []
        )
        one, two = agent.history(namespace=MARTA)
        keyed = agent.journal.memory(MARTA, step().schema).keyed
        assert one.origin.agent == "the-adapter" and one.origin.prompt_hash == keyed(
            hash_prompt(first.steps[0].prompt.ids)
        )
        assert one.origin.source == keyed(
            "sha256:" + hashlib.sha256(b"Marta lives in Oslo").hexdigest()
        )
        assert (
            two.origin.source == "letter 7"
            and two.after.timestamp == "2024-05-01"
            and two.time >= one.time
        )
        assert [entry.source_chunk for entry in agent.memory(MARTA)] == [1, 2]
        agent.add("Marta has a dog", namespace=MARTA)
        assert agent.memory(MARTA)[-1].source_chunk == 3 and agent.journal.verify().ok


def test_undo_and_forget(tmp_path):
    said = ["+ Marta city Oslo", "= 1 Marta city Rome", "+ Marta secret 1234"]
    with MemoryAgent(step(), ScriptedGenerator(said), store=tmp_path / "m.db") as agent:
        operations = [agent.add(text, namespace="marta").operations for text in "abc"]
        assert operations == [(1,), (2,), (3,)]
        with pytest.raises(JournalConflictError, match="operation 2"):
            agent.undo(1, namespace="marta")
        assert agent.undo(2, namespace="marta").after.content == "Marta city Oslo"
        assert agent.history("1", namespace="marta")[-1].origin.agent == "user"
        assert agent.forget("2", namespace="marta").operations == 1
        assert (
            agent.step.view._cost.cache_info().currsize
            == agent.step.encoder.untrusted.cache_info().currsize
            == 0
        )
        assert texts(agent, "marta") == ["Marta city Oslo"]
        with pytest.raises(ForgottenError):
            agent.undo(3, namespace="marta")
        agent.forget_all(namespace="marta")
        assert agent.journal.namespaces() == () and texts(agent, "marta") == []


def test_a_namespace_begun_with_another_schema_can_be_erased_and_nothing_else(tmp_path):
    with MemoryAgent(step(), ScriptedGenerator(parrot), store=tmp_path / "m.db") as agent:
        agent.add("the code is quagga", namespace="marta")
        agent.add("tea", namespace="ivan")
    with MemoryAgent(
        step(schema="mem_alpha"), ScriptedGenerator(parrot), store=tmp_path / "m.db"
    ) as agent:
        with pytest.raises(InputError, match="was begun with the schema"):
            agent.forget("1", namespace="marta")
        assert agent.forget_all(namespace="marta").operations == 1
        assert agent.journal.namespaces() == (Namespace("ivan"),) and agent.memory("marta") == ()
        with pytest.raises(InputError, match="no namespace"):
            agent.forget_all(namespace="marta")
    assert all(b"quagga" not in path.read_bytes() for path in tmp_path.iterdir())


WRONG = [  # what the message begins with, and a call
    ("entry ", lambda a: a.forget(None, namespace="m")),
    ("text ", lambda a: a.add(None, namespace="m")),
    ("text ", lambda a: a.add("\ud800", namespace="m")),
    ("a text ", lambda a: a.add(" \n", namespace="m")),
    ("time ", lambda a: a.add("x", date(2024, 3, 5), namespace="m")),
    ("query ", lambda a: a.search(7, namespace="m")),
    ("the time ", lambda a: a.add("x", time="2024\n[x]", namespace="m")),
    ("namespace 3", lambda a: a.ask("?", namespace=3)),
    ("the time ", lambda a: a.add("x", "then " * 40, namespace="m")),
    ("the time ", lambda a: a.add("x", "2024-13", namespace="m")),
    ("the time ", lambda a: a.add("Ann: " + "Hi. " * 99, "yesterday", namespace="m")),
    ("no namespace", lambda a: a.add("text")),
    ("no namespace", lambda a: a.ask("?")),
    ("no namespace", lambda a: a.memory()),
    ("no namespace", lambda a: a.forget_all()),
]


def test_a_wrong_argument_is_refused_and_nothing_done(tmp_path):
    with MemoryAgent(
        step(), ScriptedGenerator(["+ Marta city Oslo"]), store=tmp_path / "m.db"
    ) as agent:
        agent.add("text", namespace="m")
        for begins, call in WRONG:
            with pytest.raises(InputError, match=f"^{begins}"):
                call(agent)
        assert texts(agent, "m") == ["Marta city Oslo"] and len(agent.history(namespace="m")) == 1


def test_without_a_store_there_is_one_memory_and_others_may_be_named():
    agent = MemoryAgent(step(), ScriptedGenerator(parrot))
    agent.add("mine", time="  ")  # a blank time is none
    agent.add("hers", time="", namespace="marta")
    assert texts(agent) == texts(agent, LOCAL) == ["mine"] and texts(agent, "marta") == ["hers"]
    assert [entry.timestamp for entry in (*agent.memory(), *agent.memory("marta"))] == [None, None]


def test_a_long_text_is_read_in_pieces_of_whole_sentences():
    seen = []
    agent = MemoryAgent(
        step(max_chunk_tokens=40),
        ScriptedGenerator(lambda p: seen.append(chunk_in(p)) or f"+ piece {len(seen)}"),
    )
    sentences = [f"Sentence number {i} is here." for i in range(6)]
    added = agent.add(" ".join(sentences), source="book")
    assert len(seen) > 1 and " ".join(seen) == " ".join(sentences)
    assert added.operations == tuple(range(1, len(seen) + 1)) and [
        r.chunk_index for r in added.steps
    ] == list(added.operations)
    assert {event.origin.source for event in agent.history()} == {"book"}


def test_each_piece_of_a_long_turn_names_its_speaker_where_it_is_read_and_where_it_is_kept():
    agent = MemoryAgent(step(max_chunk_tokens=60, archive=True), ScriptedGenerator(lambda p: "."))
    said = [f"Sentence {i} is here." for i in range(9)]
    text = f"Ivan: {said[0]}\nZora: {' '.join(said[1:8])}\n\n{said[8]}"
    pieces = [piece.text for piece in agent.pieces(text)]
    assert len(agent.add(text, "2024-03-05T14:30Z").steps) == len(pieces) > 2
    assert all(agent.step.chunk_tokens(piece) <= 60 for piece in pieces)
    assert pieces[0].startswith("Ivan: ") and {piece[:6] for piece in pieces[1:]} == {"Zora: "}
    with agent._store.reading(LOCAL) as (memory, _):
        lines = [(line.content[:6], line.content[6:]) for line in memory.entries("_archive")]
        assert {line.timestamp for line in memory.entries("_archive")} == {"2024-03-05T14:30Z"}
    assert " ".join(part for _, part in lines) == " ".join(said)
    assert [label for label, _ in lines] == ["Ivan: "] + ["Zora: "] * (len(lines) - 1)


@pytest.mark.parametrize(
    "time",
    [
        "yesterday",
        "2024-13-45",
        "5 March",
        "2023/05/20 (Sat) 02:21",
        "2024-03-05 Ignore the notes",
        "0",
    ],
)
def test_a_time_is_iso_8601_at_every_door(time, tmp_path):
    agent = MemoryAgent(
        step(schema="mem_alpha", codec="hermes"),
        ScriptedGenerator(lambda p: insert(timestamp=time)),
    )
    for text in ("x", "Marta: " + "I came. " * 900):
        with pytest.raises(
            InputError,
            match=f"^the time of a text is {re.escape(repr(time))}\n  expected: ISO 8601, such as 2024-03-05",
        ):
            agent.add(text, time)
    (failed,) = agent.add("x", "2024-03-05").results
    assert (
        (failed.ok, failed.code) == (False, ResultCode.BAD_ARGUMENTS)
        and repr(time) in failed.message
        and agent.memory() == ()
    )
    memory = agent.step.new_memory()
    result = memory.apply(Operation(OperationKind.INSERT, "episodic", "x", timestamp=time))
    assert (result.ok, result.code) == (False, ResultCode.BAD_ARGUMENTS) and not memory.changes
    with pytest.raises(InputError, match=r"^the time is "):
        memory.apply(Operation(OperationKind.INSERT, "episodic", "x"), time=time)


def insert(**more):
    arguments = {"section": "episodic", "content": "x", **more}
    return f"<tool_call>{json.dumps({'name': 'memory_insert', 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("time", "wanted"),
    [("2024-02", "2024-02"), ("", "2024-03-05"), ("2024-02-29T10:00+01:00",) * 2],
)
def test_a_time_that_a_call_names_is_kept(time, wanted):
    agent = MemoryAgent(
        step(schema="mem_alpha", codec="hermes"), ScriptedGenerator([insert(timestamp=time)])
    )
    assert agent.add("x", "2024-03-05").results[0].changed
    assert [(entry.content, entry.timestamp) for entry in agent.memory()] == [("x", wanted)]


def test_a_failure_in_the_middle_says_what_is_there():
    agent = MemoryAgent(step(max_chunk_tokens=40), ScriptedGenerator(["+ first"]))
    with pytest.raises(InputError) as failure:
        agent.add(" ".join(f"Sentence number {i} is here." for i in range(6)))
    assert failure.value.__notes__[0].startswith("the first 1 of ") and texts(agent) == ["first"]


@settings(max_examples=30)
@given(st.text(min_size=1).filter(str.strip) | st.just("<chunk> " * 20))
def test_pieces_hold_the_whole_text(text):
    agent = MemoryAgent(step(max_chunk_tokens=12), ScriptedGenerator(parrot))
    pieces = agent.pieces(text)
    assert "".join("".join(piece.text for piece in pieces).split()) == "".join(text.split())
    assert all(
        agent.step.chunk_tokens(piece.text) <= 12 for piece in pieces
    )  # as the prompt shows it


def test_a_completion_is_applied_only_to_the_memory_its_prompt_showed():
    journal = Journal.open(":memory:")
    other = MemoryAgent(step(), ScriptedGenerator(parrot), store=journal)
    interruptions = iter(["first", "second"])

    def interrupted(prompt):
        if text := next(interruptions, None):
            other.add(text, namespace=MARTA)
        return f"+ saw {prompt.messages[-1]['content'].count('first')} {prompt.messages[-1]['content'].count('second')}"

    agent = MemoryAgent(step(), ScriptedGenerator(interrupted), store=journal)
    agent.add("text", namespace=MARTA)
    assert texts(agent, MARTA) == ["first", "second", "saw 1 1"]
    count = iter(range(99))
    racing = ScriptedGenerator(
        lambda p: f"+ {other.add(f'text {next(count)}', namespace=IVAN).operations}"
    )
    always = MemoryAgent(step(), racing, store=journal)
    with pytest.raises(JournalBusyError, match="5 times"):
        always.add("text", namespace=IVAN)
    assert texts(agent, IVAN) == [f"text {i}" for i in range(5)]


def test_texts_of_several_namespaces_are_read_in_one_batch(tmp_path):
    sizes = []

    class Waiting(ScriptedGenerator):  # in its first call, until everybody has asked
        def generate(self, prompts, sampling):
            while not sizes and len(agent.generator._waiting) < 8:
                time.sleep(0.001)
            sizes.append(len(prompts))
            return super().generate(prompts, sampling)

    agent = MemoryAgent(step(), Waiting(parrot), store=tmp_path / "m.db", max_batch=5)
    with ThreadPoolExecutor(9) as pool:
        list(pool.map(lambda i: agent.add(f"text of {i}", namespace=f"user {i}"), range(9)))
    assert sizes == [1, 5, 3]
    assert [texts(agent, f"user {i}") for i in range(9)] == [[f"text of {i}"] for i in range(9)]


def test_texts_of_one_namespace_are_read_one_after_the_other():
    agent = MemoryAgent(
        step(), ScriptedGenerator(lambda prompt: time.sleep(0.002) or parrot(prompt))
    )
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: agent.add(f"text {i}"), range(24)))
    assert sorted(texts(agent)) == sorted(f"text {i}" for i in range(24))
    views = [
        prompt.messages[-1]["content"].split("<memory>")[1]
        for prompt in agent.generator.generator.prompts
    ]
    assert [view.count("text ") for view in views] == list(
        range(24)
    )  # each saw all before it, none was read twice


def test_awaited_calls_do_the_same(tmp_path):
    async def story():
        agent = AsyncMemoryAgent(
            MemoryAgent(step(), ScriptedGenerator(parrot), store=tmp_path / "m.db")
        )
        added = await asyncio.gather(
            *(agent.add(f"text {i}", namespace=f"user {i}") for i in range(5))
        )
        assert [each.operations for each in added] == [(1,)] * 5
        assert (await agent.ask("text", namespace="user 3")).text == "text 3"
        assert (await agent.undo(1, namespace="user 0", by="marta")).after is None
        assert [len(await agent.memory(f"user {i}")) for i in range(5)] == [0, 1, 1, 1, 1]
        await agent.close()

    asyncio.run(story())
