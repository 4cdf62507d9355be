"""Tools made from a schema, and the way from a call to an operation: exact schemas, a round trip,
and every wrong argument."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, to_call, to_operation, tool_name, tool_schemas
from memalpha.types import Operation, OperationKind, OperationResult, ResultCode, ToolCall

INSERT, UPDATE, DELETE, REPLACE = OperationKind
SCHEMA = MemorySchema.load("mem_alpha")


@pytest.fixture
def memory():
    memory = Memory(SCHEMA)
    for operation in (
        Operation(REPLACE, "core", "Ann"),
        Operation(INSERT, "semantic", "a"),
        Operation(INSERT, "episodic", "b"),
    ):
        memory.apply(operation)
    return memory


def call(name, **arguments):
    return ToolCall(name, arguments)


def parameters(schema):
    return {
        tool["function"]["name"]: tool["function"]["parameters"] for tool in tool_schemas(schema)
    }


def test_the_tools_of_mem_alpha():
    tools = parameters(SCHEMA)
    assert {name: (list(p["properties"]), p["required"]) for name, p in tools.items()} == {
        "memory_insert": (["section", "content", "timestamp"], ["section", "content"]),
        "memory_update": (["section", "entry_id", "content", "timestamp"], ["entry_id", "content"]),
        "memory_delete": (["section", "entry_id"], ["entry_id"]),
        "memory_replace": (["section", "content"], ["section", "content"]),
    }
    section = tools["memory_insert"]["properties"]["section"]
    assert section["enum"] == ["semantic", "episodic"] and tools["memory_replace"]["properties"][
        "section"
    ]["enum"] == ["core"]
    assert all(
        f"{each.name}: {each.description}" in section["description"] for each in SCHEMA.lists
    )
    assert all(
        tool["type"] == "function" and tool["function"]["description"]
        for tool in tool_schemas(SCHEMA)
    )


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
TIMES = st.none() | st.dates().map(str) | st.datetimes().map(datetime.isoformat)
SECTIONS = st.sampled_from(["semantic", "episodic"])


@given(
    st.builds(Operation, st.just(INSERT), SECTIONS, TEXTS, st.none(), TIMES)
    | st.builds(Operation, st.just(UPDATE), SECTIONS, TEXTS, TEXTS, TIMES)
    | st.builds(Operation, st.just(DELETE), SECTIONS, st.none(), TEXTS)
    | st.builds(Operation, st.just(REPLACE), st.just("core"), TEXTS)
)
def test_an_operation_comes_back_from_its_call(operation):
    made = to_call(operation)
    assert made.name == tool_name(operation.kind)
    allowed = parameters(SCHEMA)[made.name]
    assert set(allowed["required"]) <= set(made.arguments) <= set(allowed["properties"])
    assert to_operation(made, Memory(SCHEMA)) == operation


def test_an_id_finds_its_section(memory):
    assert to_operation(call("memory_delete", entry_id="2"), memory) == Operation(
        DELETE, "episodic", entry_id="2"
    )
    assert to_operation(call("memory_update", entry_id=1, content="c"), memory) == Operation(
        UPDATE, "semantic", "c", "1"
    )


def test_what_an_update_or_delete_gets_wrong_is_found_by_the_memory(memory):
    for made, code in (
        (call("memory_delete", entry_id="9"), ResultCode.UNKNOWN_ID),
        (call("memory_delete", entry_id="1", section="episodic"), ResultCode.UNKNOWN_ID),
        (call("memory_update", entry_id="core", content="x"), ResultCode.NOT_ALLOWED),
        (call("memory_insert", section="nowhere", content="x"), ResultCode.UNKNOWN_SECTION),
    ):
        assert memory.apply(to_operation(made, memory)).code is code


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (call("memory_insert"), "missing section, content"),
        (call("memory_update", content="x"), "missing entry_id"),
        (call("memory_insert", section="semantic", content="x", entry_id="1"), "unknown entry_id"),
        (call("memory_delete", entry_id="1", b=1, a=2), "unknown a, b"),
        (call("memory_insert", section=1, content="x"), "section must be a string"),
        (call("memory_insert", section="semantic", content=None), "content must be a string"),
        (
            call("memory_insert", section="semantic", content="\udfff"),
            "content holds a lone surrogate",
        ),
        (
            call("memory_insert", section="episodic", content="x", timestamp="yesterday"),
            "timestamp is 'yesterday', and must be ISO 8601",
        ),
        (
            call("memory_update", entry_id="1", content="x", timestamp="2024-13-45"),
            "timestamp is '2024-13-45', and must be ISO 8601",
        ),
        (call("memory_delete", entry_id=True), "entry_id must be a string"),
        (call("memory_delete", entry_id=None), "entry_id must be a string"),
    ],
)
def test_bad_arguments_are_a_failed_result(memory, made, message):
    result = to_operation(made, memory)
    assert isinstance(result, OperationResult)
    assert (result.ok, result.code, result.operation) == (False, ResultCode.BAD_ARGUMENTS, None)
    assert message in result.message and result.message.startswith(made.name)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(), SCALARS, max_size=3)
NAMES = st.sampled_from([tool_name(kind) for kind in OperationKind]) | st.text()
KEYS = st.sampled_from(["section", "entry_id", "content", "timestamp"]) | st.text(max_size=3)


@given(NAMES, st.dictionaries(KEYS, JSON | st.sampled_from(["semantic", "1"]), max_size=5))
def test_no_call_raises(name, arguments):
    memory = Memory(SCHEMA)
    memory.apply(Operation(INSERT, "semantic", "a"))
    outcome = to_operation(ToolCall(name, arguments), memory)
    if isinstance(outcome, Operation):
        memory.apply(outcome)
    else:
        assert not outcome.ok and outcome.message
