"""The archive in use: found, undone, forgotten to the last byte, and apart for each user."""

from dataclasses import replace

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.contrib.asker.reader import Asker
from memalpha.errors import InputError
from memalpha.generation.serving import SilentGenerator
from memalpha.memory.schema import ARCHIVE
from memalpha.models.registry import make_tokenizer
from memalpha.retrieval.archive import archive_chunk
from memalpha.types import Chunk, Operation, OperationKind
from memalpha.use.agent import MemoryAgent
from tests.helpers.scripted import ScriptedGenerator

CONFIG = AgentConfig(
    schema="facts", codec="compact", max_completion_length=64, retrieve_k=5, archive=True
)
STEP = AgentStep(CONFIG, make_tokenizer(["facts"], 4096))
SCRIPT = ["+ Marta city Oslo\n+ Marta drink tea", "= 1 Marta city Rome", "+ Ivan city Lima"]


def opened(store, script=()):
    return MemoryAgent(STEP, ScriptedGenerator(list(script)), store=store, retrieve_k=50)


@pytest.fixture
def agent(tmp_path):
    with MemoryAgent(STEP, ScriptedGenerator(SCRIPT), store=tmp_path / "m.db") as agent:
        agent.added = [
            agent.add(
                "Marta: I live in Oslo, zebrastreet.\nMarta: I like tea.",
                "2024-01-01",
                namespace="marta",
            ),
            agent.add("Marta: I moved to Rome.", "2024-02-01", namespace="marta"),
            agent.add("Ivan: Lima it is.", namespace="ivan"),
        ]
        yield agent


def found(agent, question, who="marta"):
    return set(agent.ask(question, namespace=who).text.splitlines())


def lines(agent, who="marta"):
    with agent.reading(who) as (memory, _):
        return [line.content for line in memory.entries(ARCHIVE.name)]


def held(agent, who="marta"):
    return [entry.content for entry in agent.memory(who)], lines(agent, who)


def test_an_asker_searches_the_memory_and_tells_what_it_read(tmp_path):
    replies = iter(["search: home", "Rome"])
    asker = Asker(lambda chats: [next(replies) for _ in chats], 60, STEP.encoder.count, 2)
    with MemoryAgent(STEP, SilentGenerator(), asker, store=tmp_path / "m.db") as agent:
        agent.add("Ann: Ivan and I share one home.", "2024-01-01", namespace="ann")
        agent.add("Ivan: My home is Rome.", "2024-02-01", namespace="ann")
        reply = agent.ask("Where does Ann live?", namespace="ann")
    assert (reply.text, reply.searches) == ("Rome", ("home",))
    assert [entry.content for entry in reply.read] == ["Ivan: My home is Rome."]
    assert reply.source == reply.read[0]
    assert [hit.entry.content for hit in reply.entries] == ["Ann: Ivan and I share one home."]


def test_lines_and_entries_answer_together_and_each_user_has_his_own(agent):
    assert found(agent, "Oslo") == {"unknown"}
    assert found(agent, "Rome") == {
        "[2024-02-01] Marta city Rome",
        "[2024-02-01] Marta: I moved to Rome.",
    }
    assert found(agent, "tea") == {
        "[2024-01-01] Marta drink tea",
        "[2024-01-01] Marta: I like tea.",
    }
    assert found(agent, "Lima", "ivan") == {"Ivan city Lima", "Ivan: Lima it is."} and found(
        agent, "Lima"
    ) == {"unknown"}
    assert [entry.content for entry in agent.memory("marta")] == [
        "Marta city Rome",
        "Marta drink tea",
    ]
    assert [len(added.operations) for added in agent.added] == [2, 1, 1]  # those that undo takes


def test_with_an_undo_lines_leave_and_return_and_with_its_undo_they_are_as_before(agent):
    before, (update,) = held(agent), agent.added[1].operations
    agent.undo(update, namespace="marta")
    assert held(agent)[0] == ["Marta city Oslo", "Marta drink tea"]
    assert lines(agent) == ["Marta: I live in Oslo, zebrastreet.", "Marta: I like tea."]
    city, drink = agent.added[0].operations
    agent.undo(city, namespace="marta")
    assert held(agent) == (["Marta drink tea"], ["Marta: I like tea."])
    agent.undo(drink, namespace="marta")
    assert held(agent) == ([], []) and found(agent, "Oslo, Rome, tea") == {"unknown"}
    for operation in (drink, city, update):
        taken_back = [
            event for event in agent.history(namespace="marta") if event.undoes == operation
        ]
        agent.undo(taken_back[-1].seq, namespace="marta")
    assert held(agent) == before and agent.journal.verify().ok


@pytest.mark.parametrize(
    ("texts", "script", "word"),
    [
        (
            ["Ann: The PIN is 47115508231.", "Ben: So 47115508231 is her PIN?"],
            ["+ Ann pin 47115508231", "nothing"],
            "47115508231",
        ),
        (
            ["Ann: I am pregnant.", "Ben: Ann being pregnant is news!", "Ann: Pregnant, yes."],
            ["+ Ann is pregnant", "-", "-"],
            "pregnant",
        ),
        (
            ["Ann: I take warfarin.", "Ann: Warfarin at eight."],
            ["+ Ann takes warfarin", "+ Ann takes her warfarin at eight"],
            "warfarin",
        ),
        (
            ["Ann: I live in Oslo.", *[f"Ben: Oslo is so rainy, day {n}." for n in range(20)]],
            ["+ Ann city Oslo", *"-" * 20],
            "Oslo",
        ),
    ],
)
def test_forget_lists_every_other_line_and_entry_with_its_words_and_takes_them_along(
    tmp_path, texts, script, word
):
    with opened(tmp_path / "m.db", script) as agent:
        for number, text in enumerate(texts):
            agent.add(text, f"2024-01-{number + 1:02}", namespace="ann")
        receipt = agent.forget("1", namespace="ann")
        assert texts[0] not in lines(agent, "ann")
        left = {entry.id for entry in agent.memory("ann") if word.lower() in entry.content.lower()}
        left |= {
            hit.entry.id
            for hit in agent.search(word, 50, namespace="ann")
            if word.lower() in hit.entry.content.lower()
        }
        assert left and left <= {entry.id for entry in receipt.said_by}
        with pytest.raises(InputError, match="has no entry or line 'line-99'"):
            agent.forget(min(left), ["line-99"], namespace="ann")
        first, *others = sorted(left)
        agent.forget(first, others, namespace="ann")
        assert word not in agent.ask(word, namespace="ann").text
    assert (
        word.lower().encode()
        not in b"".join(path.read_bytes() for path in tmp_path.iterdir()).lower()
    )


def test_a_fact_that_is_said_again_takes_no_line_away():
    memory = STEP.new_memory()
    said = Chunk("Marta: My office is in Oslo.", "2024-01-01")
    wrote = Operation(OperationKind.INSERT, "facts", "Marta office Oslo")
    memory.apply(wrote, chunk=0, time=said.time)
    archive_chunk(memory, 0, said, memory.changes[:])
    other = replace(wrote, kind=OperationKind.UPDATE, content="Marta city Oslo", entry_id="1")
    memory.apply(other, chunk=1, time="2024-02-01")  # a line said something else, and stays
    memory.apply(replace(wrote, content="Marta city Oslo"), chunk=2, time="2024-03-01")
    archive_chunk(memory, 2, Chunk("Marta: It rains.", "2024-03-01"), memory.changes[-1:])
    texts = [line.content for line in memory.entries(ARCHIVE.name)]
    assert texts == ["Marta: My office is in Oslo.", "Marta: It rains."]
