"""Tools of one's own: shown, called in every notation, all or nothing, journaled as ordinary
operations, undone as one call."""

from pathlib import Path

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, JournalConflictError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, tool_schemas
from memalpha.models.registry import make_tokenizer
from memalpha.record.rows import operation_mix
from memalpha.rewards import RewardConfig, tool_success
from memalpha.types import Chunk, Entry, Operation, OperationKind
from memalpha.use.agent import MemoryAgent
from tests.helpers.scripted import ScriptedGenerator

UPDATE = OperationKind.UPDATE
CALL = '<tool_call>{"name": "link", "arguments": %s}</tool_call>'
LINK = {
    "compact": "link Ann | Bob",
    "compact_text": " link  Ann|Bob ",
    "hermes": CALL % '{"b": "Bob", "a": "Ann"}',
}
UNLINKED, LINKED = ["Ann baker", "Bob nurse"], ["Ann baker, knows Bob", "Bob nurse, knows Ann"]


@pytest.fixture(autouse=True)
def _in_examples(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples")


def step(codec="compact", **more):
    return AgentStep(
        AgentConfig(schema="own_schema.yaml", codec=codec, **more),
        make_tokenizer(["Ann Bob"], 4096),
    )


def done(agent, completion):
    memory = agent.new_memory(
        [Entry(str(n), "people", text, created=n) for n, text in enumerate(UNLINKED, 1)]
    )
    return agent.apply(memory, 0, Chunk("x"), completion).results, texts(memory)


def texts(memory):
    return [entry.content for entry in memory]


def move(memory: Memory, old: str, new: str, times: int = 1) -> list[Operation]:
    """Move all,
    some twice.

    Args:
        old: from
        new: to
        times: how often
    """
    moved = [
        Operation(UPDATE, "people", entry.content.replace(old, new), entry.id)
        for entry in memory.entries("people")
    ]
    memory.apply(Operation(UPDATE, "people", "written to a copy", "1"))
    return {0: [], 1: moved, 2: [*moved, Operation(UPDATE, "people", new.upper(), "1")], 3: [new]}[
        times
    ]


def with_tools(monkeypatch, *tools, **settings):
    schema = MemorySchema.from_mapping({"sections": [{"name": "people"}], "tools": list(tools)})
    monkeypatch.setattr(MemorySchema, "load", lambda _: schema)
    return step(**settings)


def test_the_prompt_has_the_tool_with_its_docstring():
    assert step().system.endswith("\nlink a | b (Note for two people that they know each other.)")
    assert "\n- link(a, b): Note for two people that they know each other." in step("hermes").system
    *built_in, shown = tool_schemas(step().schema)
    a, b = (
        {"type": "string", "description": f"the first word of {whose}"}
        for whose in ("one's entry", "the other's")
    )
    parameters = {"type": "object", "properties": {"a": a, "b": b}, "required": ["a", "b"]}
    named = {"name": "link", "description": "Note for two people that they know each other."}
    assert (
        shown == {"type": "function", "function": {**named, "parameters": parameters}}
        and len(built_in) == 4
    )


@pytest.mark.parametrize("codec", LINK)
def test_a_call_counts_once_for_the_reward_and_each_of_its_operations_in_the_mix(codec):
    results, after = done(step(codec), LINK[codec])
    assert after == LINKED and [(result.ok, result.part) for result in results] == [
        (True, False),
        (True, True),
    ]
    assert operation_mix(results) == {"people/update": 2}
    failed, _ = done(step(codec), LINK[codec].replace("Bob", "Eve"))
    assert tool_success([*results, *failed], RewardConfig(), silence=0) == 1 / 2


WRONG = [
    ("hermes", CALL % '{"a": "Ann", "b": 5}', "link: b: Input should be a valid string"),
    ("hermes", CALL % '{"a": "Ann", "b": "Bob", "c": 1}', "link: c: Unexpected keyword argument"),
    (
        "hermes",
        CALL % '{"a": "Ann", "b": "Bob", "memory": 1}',
        "link: memory: Got multiple values for argument",
    ),
    ("compact", "link Ann | Eve", "link: no entry begins with 'Eve'"),
    ("compact", "link Ann |", "link: b: Missing required argument"),
    ("compact", "link Ann | Bob | Eve", "expected 'link a | b'"),
    ("compact", f"= 2 Bob {'Ann ' * 20}\nlink Ann | Bob", "29 tokens, at most 24 fit in people"),
]


@pytest.mark.parametrize(("codec", "completion", "message"), WRONG)
def test_a_wrong_call_is_one_failed_result_and_changes_nothing(codec, completion, message):
    (*others, result), after = done(step(codec), completion)
    assert result.message.startswith(message) and (result.ok, result.operation, result.part) == (
        False,
        None,
        False,
    )
    assert (after[0], len(after)) == ("Ann baker", 2) and len(others) == completion.count("\n")


def test_arguments_fit_their_hints_and_a_function_that_fails_stops(monkeypatch):
    agent = with_tools(monkeypatch, move)
    assert agent.system.endswith("\nmove old | new | times (Move all, some twice.)")
    assert [done(agent, f"move Ann | Eve{more}")[1][0] for more in ("", " | 2")] == [
        "Eve baker",
        "EVE",
    ]
    assert done(agent, "move Ann | Eve | two")[0][0].message.startswith(
        "move: times: Input should be a valid integer"
    )
    (nothing,), after = done(agent, "move Ann | Eve | 0")
    assert nothing.message == "move: it asks for no change" and after == UNLINKED
    assert tool_schemas(agent.schema)[-1]["function"]["parameters"]["required"] == ["old", "new"]
    for times, said in ((5, "KeyError: 5"), (3, r"returned \['Eve'\]")):
        with pytest.raises(InputError, match=f"the tool move .*{said}"):
            done(agent, f"move Ann | Eve | {times}")


def test_the_journal_leads_to_the_same_memory_and_undo_takes_the_whole_call_back(tmp_path):
    said = ["+ Ann baker\n+ Bob nurse", "link Ann | Bob", "= 2 Bob pilot"]
    with MemoryAgent(step(), ScriptedGenerator(said), store=tmp_path / "m.db") as agent:
        assert [agent.add(text, namespace="n").operations for text in "ab"] == [(1, 2), (3, 4)]
    with MemoryAgent(step(), ScriptedGenerator(said[2:]), store=tmp_path / "m.db") as agent:
        assert texts(agent.memory("n")) == LINKED and agent.journal.verify().ok
        assert [agent.undo(number, namespace="n").after.content for number in (4, 3)] == [
            "Bob nurse",
            "Ann baker",
        ]
        assert [event.undoes for event in agent.history(namespace="n")] == [None] * 4 + [4, 3]
        for number, expected in (
            (5, LINKED),
            (3, UNLINKED),
            (9, LINKED),
        ):  # 5 and 9 are undos, taken back
            agent.undo(number, namespace="n")
            assert texts(agent.memory("n")) == expected
        agent.add("c", namespace="n")
        with pytest.raises(JournalConflictError):
            agent.undo(3, namespace="n")  # Bob's entry was written since, so Ann's stays, too
        assert texts(agent.memory("n")) == [LINKED[0], "Bob pilot"] and agent.journal.verify().ok


def test_what_is_no_tool_is_refused():
    for tools, message in (
        ("own_tool:link", "has tools 'own_tool:link'"),
        (
            ["own_tool:lick"],
            "tools names 'own_tool:lick', which cannot be imported: AttributeError",
        ),
        (
            ["own_tool:knows"],
            "cannot be a tool: TypeError: its signature is .*-> memalpha.types.Operation",
        ),
        (["own_tool:link", "own_tool:link"], r"names tools twice: \['link'\]"),
    ):
        with pytest.raises(InputError, match=message):
            MemorySchema.from_mapping({"sections": [{"name": "a"}], "tools": tools})
