"""The agent in use: the very steps of training, on a store that keeps, shows, undoes and forgets
what they did."""

import asyncio
import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from memalpha.agent.step import AgentStep
from memalpha.contrib.clients.chatting import ChatMemory
from memalpha.errors import InputError, JournalBusyError
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.models.registry import make_tokenizer
from memalpha.store.journal import Journal, Namespace, Origin, hash_prompt
from memalpha.types import Entry, Operation, OperationKind, ResultCode
from memalpha.use.access import Caller
from memalpha.use.agent import AsyncMemoryAgent, MemoryAgent, Reply
from memalpha.use.operations import ENDPOINTS, Endpoints
from memalpha.use.store import LOCAL
from tests.helpers.scripted import FACTS, ScriptedGenerator

CONFIG = FACTS
MARTA, IVAN = Namespace("marta"), Namespace("ivan")


def chunk_in(prompt):
    return prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0]


def parrot(prompt):
    return f"+ {chunk_in(prompt).splitlines()[-1]}"


def step(**changes):
    return AgentStep(replace(CONFIG, **changes), make_tokenizer(["facts"], 4096))


def texts(agent, namespace=None):
    return [entry.content for entry in agent.memory(namespace)]


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
        agent.add("Marta has a dog", namespace=MARTA)
        assert [entry.source_chunk for entry in agent.memory(MARTA)] == [1, 2, 3]


def test_nothing_of_what_is_forgotten_stays_in_a_cache():
    agent = MemoryAgent(step(), ScriptedGenerator(parrot))
    agent.add("Marta secret 1234")
    agent.forget("1")
    caches = (agent.step.view._cost, agent.step.encoder.untrusted)
    assert [cache.cache_info().currsize for cache in caches] == [0, 0]


WRONG = [  # what the message begins with, and a call
    ("entry ", lambda a: a.forget(None, namespace="m")),
    ("text ", lambda a: a.add(None, namespace="m")),
    ("text ", lambda a: a.add("\ud800", namespace="m")),
    ("the text ", lambda a: a.add(" \n", namespace="m")),
    ("time ", lambda a: a.add("x", date(2024, 3, 5), namespace="m")),
    ("query ", lambda a: a.search(7, namespace="m")),
    ("the time ", lambda a: a.add("x", time="2024\n[x]", namespace="m")),
    ("the namespace is 3", lambda a: a.ask("?", namespace=3)),
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
    agent.add("hers", namespace="marta")
    assert texts(agent) == texts(agent, LOCAL) == ["mine"] and texts(agent, "marta") == ["hers"]
    assert agent.memory()[0].timestamp is None


def test_each_piece_of_a_long_turn_names_its_speaker_where_it_is_read_and_where_it_is_kept():
    agent = MemoryAgent(step(max_chunk_tokens=60, archive=True), ScriptedGenerator(lambda p: "."))
    said = [f"Sentence {i} is here." for i in range(9)]
    text = f"Ivan: {said[0]}\nZora: {' '.join(said[1:8])}\n\n{said[8]}"
    pieces = [piece.text for piece in agent.pieces(text)]
    assert len(agent.add(text, "2024-03-05T14:30Z", source="book").steps) == len(pieces) > 2
    assert {event.origin.source for event in agent.history()} == {"book"}
    assert all(agent.step.chunk_tokens(piece) <= 60 for piece in pieces)
    assert pieces[0].startswith("Ivan: ") and {piece[:6] for piece in pieces[1:]} == {"Zora: "}
    with agent.reading(LOCAL) as (memory, _):
        lines = [(line.content[:6], line.content[6:]) for line in memory.entries("_archive")]
        assert {line.timestamp for line in memory.entries("_archive")} == {"2024-03-05T14:30Z"}
    assert " ".join(part for _, part in lines) == " ".join(said)


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
def test_a_time_is_iso_8601_at_every_door(time):
    agent = MemoryAgent(
        step(schema="mem_alpha", codec="hermes"),
        ScriptedGenerator(lambda p: insert(timestamp=time)),
    )
    with pytest.raises(InputError, match=f"^the time of a text is {re.escape(repr(time))}"):
        agent.add("Marta: " + "I came. " * 900, time)
    (failed,) = agent.add("x", "2024-03-05").results
    assert failed.code is ResultCode.BAD_ARGUMENTS and agent.memory() == ()


def insert(**more):
    arguments = {"section": "episodic", "content": "x", **more}
    return f"<tool_call>{json.dumps({'name': 'memory_insert', 'arguments': arguments})}</tool_call>"


def test_a_failure_in_the_middle_says_what_is_there():
    agent = MemoryAgent(step(max_chunk_tokens=40), ScriptedGenerator(["+ first"]))
    with pytest.raises(InputError) as failure:
        agent.add(" ".join(f"Sentence number {i} is here." for i in range(6)))
    assert failure.value.__notes__[0].startswith("the first 1 of ") and texts(agent) == ["first"]


def test_a_completion_is_applied_only_to_the_memory_its_prompt_showed():
    journal = Journal.open(":memory:")
    other = MemoryAgent(step(), ScriptedGenerator(parrot), store=journal)
    interruptions = ["second", "first"]

    def interrupted(prompt):
        if interruptions:
            other.add(interruptions.pop(), namespace=MARTA)
        shown = prompt.messages[-1]["content"]
        return f"+ saw {shown.count('first')} {shown.count('second')}"

    agent = MemoryAgent(step(), ScriptedGenerator(interrupted), store=journal)
    agent.add("text", namespace=MARTA)
    assert texts(agent, MARTA) == ["first", "second", "saw 1 1"]
    interruptions += ["fourth", "third"] * 9
    with pytest.raises(JournalBusyError, match="5 times"):
        agent.add("text", namespace=MARTA)


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
    views = [
        prompt.messages[-1]["content"].split("<memory>")[1]
        for prompt in agent.generator.generator.prompts
    ]
    assert [view.count("text ") for view in views] == list(
        range(24)
    )  # each saw all before it, none was read twice


@pytest.mark.anyio
async def test_awaited_calls_do_the_same():
    agent = AsyncMemoryAgent(MemoryAgent(step(), ScriptedGenerator(parrot)))
    await asyncio.gather(*(agent.add(f"text {i}", namespace=f"user {i}") for i in range(5)))
    assert (await agent.ask("text", namespace="user 3")).text == "text 3"
    assert (await agent.undo(1, namespace="user 0", by="marta")).after is None
    assert [len(await agent.memory(f"user {i}")) for i in range(5)] == [0, 1, 1, 1, 1]
    await agent.close()


# ------------------------------------------------------------------------------------------------
# what was stored, and of when
def test_without_a_reader_the_source_is_the_best_that_was_found():
    with MemoryAgent.without_model() as agent:
        long = "User: Oslo is large, and I walked through all of it in the rain for three days."
        agent.add(f"User: I live in Oslo.\n{long}\nUser: I like tea.", "2024-03-05")
        reply = agent.ask("Where do I live?")
        assert len(reply.read) > 1 and long in reply.text
        assert reply.source == reply.entries[0].entry
        assert reply.source.content == "User: I live in Oslo."


@pytest.mark.parametrize(
    "script", ["", "? no call", "- 99", "+ Marta city Oslo\n+ Marta drink tea"]
)
def test_what_a_text_led_to_is_taken_back_by_its_operations(script):
    text = "Marta: I moved to Oslo.\nMarta: I like tea."
    with MemoryAgent(step(archive=True), ScriptedGenerator(lambda _: script)) as agent:
        added = agent.add(text)
        assert len(added.lines) == 2 and added.operations
        written = sum(result.changed for result in added.results)
        assert len(added.operations) == (written or 2)
        changes = [change for step in added.steps for change in step.outcome.changes]
        assert added.changes == tuple(zip(added.operations[: len(changes)], changes, strict=True))
        for number in reversed(added.operations):
            agent.undo(number)
        assert agent.counted() == ((), 0)
    with MemoryAgent(step(), ScriptedGenerator(lambda _: "")) as agent:
        added = agent.add(text)
        assert (added.operations, added.lines, agent.counted()) == ((), (), ((), 0))


@pytest.mark.parametrize("when", ["9999-12-31", "2099-01-01T10:00Z", "2100", "2027-W20"])
def test_nothing_is_said_at_a_time_that_is_to_come(when):
    clock = datetime(2026, 11, 29, 12, tzinfo=UTC)
    with MemoryAgent(step(archive=True), ScriptedGenerator(parrot)) as agent:
        agent.journal.clock = lambda: clock
        messages = [{"role": "user", "content": "Marta city Oslo", "time": when}]
        for text, time in (("Marta city Oslo", when), (messages, None)):
            with pytest.raises(InputError, match="the clock shows 2026-11-29T12:00"):
                agent.add(text, time)
        assert not agent.generator.generator.prompts and agent.history() == []
        assert agent.add("Marta city Oslo", "2026-11-30T11:00Z").operations  # of another zone


def test_a_repeat_of_the_model_alone_moves_no_date():
    texts_of = ["Marta: I live in Oslo.", "Ivan: My bicycle is red.", "Marta: Oslo, still my home."]
    days = ["2024-01-01", "2025-05-15", "2026-02-02"]
    with MemoryAgent(
        step(archive=True), ScriptedGenerator(lambda _: "+ Marta lives Oslo")
    ) as agent:
        held = []
        codes = []
        for text, day in zip(texts_of, days, strict=True):
            (result,) = agent.add(text, day).results
            (entry,) = agent.memory()
            held.append((entry.timestamp, entry.source_chunk))
            codes.append(result.code)
        assert codes == [ResultCode.APPLIED, ResultCode.DUPLICATE, ResultCode.RENEWED]
        assert [time for time, _ in held] == [days[0], days[0], days[2]]
        assert held[0] == held[1]


# ------------------------------------------------------------------------------------------------
# a memory that no model writes
@pytest.mark.parametrize("schema", ["facts", "mem_alpha", "small_core", "own"])
def test_without_a_model_each_memory_is_read_with_its_own_schema(tmp_path, schema):
    own = MemorySchema("own", (Section("people"), Section("me", SectionKind.BLOCK)))
    shape = own if schema == "own" else MemorySchema.load(schema)
    section = shape.lists[0].name
    with Journal.open(tmp_path / "m.db") as journal:
        insert = Operation(OperationKind.INSERT, section, "Marta lives in Oslo")
        journal.memory(MARTA, shape).apply(insert, Origin("other"))
        files = MemorySchema("files", (Section("files"),))
        journal.memory(Namespace("zoe"), files).apply(replace(insert, section="files"), Origin("x"))
        with MemoryAgent.without_model(store=journal) as agent:
            endpoints = Endpoints(agent, 100)
            for user in (MARTA, IVAN):
                caller = Caller("test", user)
                for name, fields in (
                    ("add", {"text": "User: My cat is Bailey."}),
                    ("ask", {"question": "Where does Marta live?"}),
                    ("memory", {}),
                ):
                    request = {each.name: each.request for each in ENDPOINTS}[name](**fields)
                    answer = endpoints.call(name, caller, request)
                    if name == "ask" and user == MARTA:
                        assert answer.source.content == "Marta lives in Oslo"
                assert (answer.total, answer.lines) == (int(user == MARTA), 1)
            turn = ChatMemory(agent).recall([{"role": "user", "content": "Oslo?"}], MARTA)
            assert "- Marta lives in Oslo\n- User: My cat is Bailey.\n" in turn.block
            assert journal.schema(IVAN).name == "small_core"
            with pytest.raises(InputError, match="files"):  # of a program: no memory of statements
                agent.add("x", namespace="zoe")
