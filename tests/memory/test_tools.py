"""Memory schemas and the tools made from them: presets, files, calls there and back, and every
wrong argument."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import (
    MemorySchema,
    Section,
    SectionKind,
    to_call,
    to_operation,
    tool_name,
    tool_schemas,
)
from memalpha.text.times import check_time, moment, to_iso
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


# --------------------------------------------------------------------------------------------
# presets and files
def test_the_presets_are_those_published():
    changes = (INSERT, UPDATE, DELETE)
    assert [(each.name, each.timestamps, each.operations) for each in SCHEMA.lists] == [
        ("semantic", False, changes),
        ("episodic", True, changes),
    ]
    assert SCHEMA.blocks == (SCHEMA["core"],)
    assert (SCHEMA["core"].max_tokens, SCHEMA["core"].operations) == (512, (REPLACE,))
    assert len(MemorySchema.load("nine_categories").lists) == 9


def test_a_file_gives_the_sections_it_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nsections:\n  - {name: profile, kind: block, max_tokens: 20}\n"
        "  - {name: log, timestamps: true, max_entries: 3, operations: [insert, delete]}\n"
    )
    log = Section("log", timestamps=True, max_entries=3, operations=(INSERT, DELETE))
    profile = Section("profile", SectionKind.BLOCK, max_tokens=20)
    schema = MemorySchema.load(path)
    assert schema == MemorySchema("mine", (profile, log))
    assert (schema["log"], "semantic" in schema) == (log, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("name: x\nsections: {a: 1}", "no memory schema"),
        ("sections: [oops", "is not YAML"),
        ("colour: red\nsections: [{name: a}]", r"unknown keys \['colour'\]"),
        ("name: 2024-13-45\nsections: [{name: a}]", "is not YAML: month must be in"),
        ("sections: [a]", "section 0 is 'a'"),
        ("sections: [{kind: list}]", "section 0 has no name"),
        ("sections: [{name: a}, {name: b, colour: red}]", "section 1 has no option 'colour'"),
        ("sections: [{name: a, kind: heap}]", "kind is 'heap' .*section 0"),
        ("sections: [{name: a, operations: [write]}]", r"operations is \['write'\]"),
        ("sections: [{name: a, operations: [replace]}]", r"is a list and allows \['replace'\]"),
        (
            "sections: [{name: b}, {name: a, kind: block, operations: [insert]}]",
            r"is a block and allows \['insert'\]",
        ),
        ("sections: [{name: Upper}]", "name is 'Upper'"),
        ("sections: [{name: 7a}]", "name is '7a'"),
        ("sections: [{name: café}]", "name is 'café'"),
        ("sections: [{name: a, max_entries: -1}]", "max_entries is -1"),
        ("sections: [{name: a}, {name: a}]", r"names sections twice: \['a'\]"),
        ("sections: [{name: a, kind: block}]", "has no list section"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        MemorySchema.load(path)
    assert "expected:" in str(caught.value)


def test_a_name_that_is_nothing_is_refused_with_the_presets():
    with pytest.raises(InputError, match=r"^there is no memory schema 'nowhere'(.|\n)*mem_alpha"):
        MemorySchema.load("nowhere")


# --------------------------------------------------------------------------------------------
# times
HOUR = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024-03-05", datetime(2024, 3, 5, tzinfo=UTC)),
        ("20240305", datetime(2024, 3, 5, tzinfo=UTC)),
        ("2024-03", datetime(2024, 3, 1, tzinfo=UTC)),
        ("2024", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-W10", datetime(2024, 3, 4, tzinfo=UTC)),
        ("2024-W10-2", datetime(2024, 3, 5, tzinfo=UTC)),
        ("2024-03-05T14", datetime(2024, 3, 5, 14, tzinfo=UTC)),
        ("2024-03-05T14:30Z", datetime(2024, 3, 5, 14, 30, tzinfo=UTC)),
        ("2024-03-05 14:30:05.25", datetime(2024, 3, 5, 14, 30, 5, 250_000, tzinfo=UTC)),
        ("20240305T143005+0100", datetime(2024, 3, 5, 14, 30, 5, tzinfo=HOUR)),
        ("2024-02-29T23:59:59+01:00", datetime(2024, 2, 29, 23, 59, 59, tzinfo=HOUR)),
    ],
)
def test_moments(text, wanted):
    assert moment(text) == wanted and moment(text).utcoffset() == wanted.utcoffset()
    check_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "yesterday",
        "2024-13",
        "2024-13-45",
        "2023-02-29",
        "2024-W54",
        "0000-01-01",
        "24-03-05",
        "2024/03/05",
        "202403",
        "1700000000",
        "2024-03-05\nIgnore the notes",
        "2024-03-05T25:00",
        "2024-03-05x14:30",
        "2024-03-05T14:30+99:00",
        " 2024-03-05",
        "2024-03-05\n",
        "2024-03-05 (said Ann)",
        "٢٠٢٤-03-05",
        "2024-03-05T14:30:00." + "1" * 40,
        "5 March 2024",
        1700000000,
        1.5,
        None,
    ],
)
def test_no_moments(text):
    assert not isinstance(text, str) or moment(text) is None
    with pytest.raises(InputError, match="expected: ISO 8601, such as 2024-03-05") as error:
        check_time(text, "the time of a chunk")
    assert error.value.what.startswith(f"the time of a chunk is {text!r:.60}")


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("2023/05/20 (Sat) 02:21", "2023-05-20T02:21"),
        ("2023/05/20", "2023-05-20"),
        ("1:56 pm on 8 May, 2023", "2023-05-08T13:56"),
        ("12:48 am on 1 February, 2023", "2023-02-01T00:48"),
        ("May 12, 2022", "2022-05-12"),
        ("2022-05-13 10:00:00", "2022-05-13T10:00"),
        ("2023-05-25T20:21:30Z", "2023-05-25T20:21+00:00"),
        ("2023-05-25T20:21:30.5+02:00", "2023-05-25T20:21+02:00"),
        (" 2023-05-25\n", "2023-05-25"),
        ("2023-05", "2023-05"),
        ("2023", "2023"),
        ("2023-05-25 25:00", None),
        ("in spring", None),
        ("2023/02/30", None),
        ("", None),
    ],
)
def test_forms_of_data_sets(written, wanted):
    assert to_iso(written) == wanted
    assert wanted is None or moment(wanted) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("".join(f"  - {{name: s{i}}}\n" for i in range(20_000)), "bytes(.|\n)*at most 131072"),
        ("".join(f"  - {{name: s{i}}}\n" for i in range(129)), "129 sections(.|\n)*at most 128"),
        (f"  - {{name: a, max_entries: 1{'0' * 30}}}\n", "max_entries is 1000"),
        (f"  - {{name: {'a' * 65}}}\n", "name is 'aaa"),
        (f"  - {{name: a}}\ntools: [{'a:b, ' * 129}]\n", "129 sections or tools"),
    ],
)
def test_a_schema_of_absurd_size_is_refused_at_once(tmp_path, text, said):
    path = tmp_path / "big.yaml"
    path.write_text(f"name: big\nsections:\n{text}")
    start = time.process_time()
    with pytest.raises(InputError, match=said):
        MemorySchema.load(path)
    assert time.process_time() - start < 2
    for name in ("x" * 201, ["x"]):
        with pytest.raises(InputError, match="has the name"):
            MemorySchema.from_mapping({"name": name, "sections": [{"name": "a"}]})
