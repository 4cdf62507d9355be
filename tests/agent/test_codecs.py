"""Codecs: exact readings by hand, a round trip for every operation, total on anything, and linear
in its length."""

import gc
import json
import time
from collections import namedtuple
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memalpha.agent.codecs import CompactCodec, CompactTextCodec, HermesCodec, make_codec
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, to_call, to_operation
from memalpha.types import CallError, Operation, OperationKind, ToolCall

INSERT, UPDATE, DELETE, REPLACE = OperationKind
SCHEMA = MemorySchema.load("mem_alpha")
HERMES, COMPACT, BY_TEXT = HermesCodec(SCHEMA), CompactCodec(SCHEMA), CompactTextCodec(SCHEMA)


Parsed = namedtuple("Parsed", ["calls", "errors"])


def parse(codec, text, cut_off=False):
    """The calls and the errors of a text."""
    items = codec.parse(text, cut_off)
    calls = tuple(item for item in items if isinstance(item, ToolCall))
    return Parsed(calls, tuple(item for item in items if isinstance(item, CallError)))


def plain(parsed):
    """Calls without their places."""
    return [(call.name, dict(call.arguments)) for call in parsed.calls]


def block(body):
    return f"<tool_call>{body}</tool_call>"


# --------------------------------------------------------------------------------------------
# hermes, by hand
@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ('x<tool_call>{"name": "f", "argu', ["1-31 <tool_call> is never closed"]),
        ("<tool_call>", ["0-11 <tool_call> is never closed"]),
        ("a</tool_call>", ["1-13 </tool_call> closes nothing"]),
        (
            "</tool_call></tool_call>",
            ["0-12 </tool_call> closes nothing", "12-24 </tool_call> closes nothing"],
        ),
        (block(""), ["0-23 not JSON: Expecting value: line 1 column 1 (char 0)"]),
        (
            block("{'name': 1}"),
            [
                "0-34 not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
            ],
        ),
        (
            block('{"name":"f","arguments":{"a":"\\ud800"}}'),
            ["0-62 the call holds a lone surrogate, which is no Unicode text"],
        ),
        (
            block('{"name":"f","arguments":{"\udc00":1}}'),
            ["0-55 the call holds a lone surrogate, which is no Unicode text"],
        ),
        (block("[" * 100_000), ["0-100023 not JSON: maximum recursion depth exceeded"]),
        (block("9" * 5000), ["0-5023 not JSON: Exceeds the limit (4300 digits)"]),
        (
            block('{"name":1,"arguments":{}}'),
            ["0-48 expected an object with a string 'name' and an object 'arguments'"],
        ),
        (block("null"), ["0-27 expected an object with a string 'name' and an object 'arguments'"]),
    ],
)
def test_hermes_errors_are_located(text, messages):
    parsed = parse(HERMES, text)
    assert parsed.calls == ()
    found = [f"{error.start}-{error.end} {error.message}" for error in parsed.errors]
    assert [message[: len(want)] for message, want in zip(found, messages, strict=True)] == messages


# ------------------------------------------------------------------------------------- hermes, as
# chat models write it
def insert(content="Marta lives in Oslo", section="semantic"):
    return "memory_insert", {"section": section, "content": content}


def json_call(name="memory_insert", arguments="arguments", **given):
    return json.dumps({"name": name, arguments: given or insert()[1]}, ensure_ascii=False)


def xml_call(name="memory_insert", end="</function>", **given):
    arguments = (given or insert()[1]).items()
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<function={name}>\n{written}{end}"


LINES = "a <b>\n\nc </parameter> d"
PAIRS = "".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
    for key, value in insert()[1].items()
)
OSLO, ROME = json_call(), json_call(section="episodic", content="Ivan moved to Rome")
BOTH = [insert(), insert("Ivan moved to Rome", "episodic")]
TAGGED_TEXT = 'write <tool_call>, then "</tool_call>"\nat the end'
CORE = "memory_replace", {"section": "core", "content": "x"}
FORMS = {
    "between commentary": (f"I keep it.\n{block(OSLO)}\nand {block(ROME)}!", BOTH),
    "closing tag missing at the end": (f"Yes.\n<tool_call>\n{OSLO}\n", [insert()]),
    "closing tag missing before the next block": (f"<tool_call>{OSLO}\n{block(ROME)}", BOTH),
    "two in one block": (block(f"\n{OSLO}\n{ROME}\n"), BOTH),
    "two with a semicolon": (block(f"{OSLO}; {ROME}"), BOTH),
    "a list": (block(f"[{OSLO}, {ROME}]"), BOTH),
    "a fenced list": (block(f"\n```json\n[\n{OSLO},\n{ROME}\n]\n```\n"), BOTH),
    "a fence without a language": (block(f"```\n{OSLO}\n```"), [insert()]),
    "tags in a string": (
        block(json_call(section="semantic", content=TAGGED_TEXT)),
        [insert(TAGGED_TEXT)],
    ),
    "a tag in a string, then a block": (
        block(json_call(section="semantic", content="</tool_call>")) + block(ROME),
        [insert("</tool_call>"), BOTH[1]],
    ),
    "parameters": (block(json_call(arguments="parameters")), [insert()]),
    "arguments as a string": (
        block(json.dumps({"name": "memory_insert", "arguments": json.dumps(insert()[1])})),
        [insert()],
    ),
    "as a server writes it": (
        block(json.dumps({"type": "function", "function": json.loads(OSLO)})),
        [insert()],
    ),
    "a raw line break and a tab": (
        block(OSLO.replace("lives in", "lives\nin\t")),
        [insert("Marta lives\nin\t Oslo")],
    ),
    "commas too many": (block("[" + OSLO.replace("}}", ", } , }") + ",]"), [insert()]),
    "a comma too many, and others": (
        block(json_call(section="semantic", content="a, ], b,}").replace("}}", ",}}")),
        [insert("a, ], b,}")],
    ),
    "null for no time and no id": (
        block(json_call(section="semantic", content="x", timestamp=None, entry_id=None)),
        [insert("x")],
    ),
    "null for a section": (
        block(json_call("memory_update", entry_id="3", content="x", section=None)),
        [("memory_update", {"entry_id": "3", "content": "x"})],
    ),
    "null for what is needed": (block(json_call(section="semantic", content=None)), [insert(None)]),
    "a Python dict": (
        block(
            repr(
                {
                    "name": "memory_insert",
                    "arguments": {**insert("Marta's dog")[1], "timestamp": None},
                }
            )
        ),
        [insert("Marta's dog")],
    ),
    "XML": (block(f"\n{xml_call()}\n"), [insert()]),
    "XML of two, several lines, no last end": (
        block(xml_call(section="semantic", content=LINES) + xml_call(end="")),
        [insert(LINES), insert()],
    ),
    "XML without a tag before it": (f"Now:\n{xml_call()}\n</tool_call>\nDone.", [insert()]),
    "XML with null": (
        block(xml_call(section="semantic", content="x", timestamp="null")),
        [insert("x")],
    ),
    "XML of keys and values": (block(f"memory_insert\n{PAIRS}\n"), [insert()]),
    "a namespace": (
        block(json_call("functions.memory_insert:0"))
        + block(json_call("default_api.memory_insert")),
        [insert()] * 2,
    ),
    "published insert": (
        block(json_call("new_memory_insert", memory_type="semantic_memory", content="x")),
        [insert("x")],
    ),
    "published update": (
        block(
            json_call("memory_update", memory_type="episodic", new_content="x", memory_id="a1f0")
        ),
        [("memory_update", {"section": "episodic", "content": "x", "entry_id": "a1f0"})],
    ),
    "published delete": (
        block(json_call("memory_delete", memory_type="semantic_memory", memory_id="a1f0")),
        [("memory_delete", {"section": "semantic", "entry_id": "a1f0"})],
    ),
    "published core": (
        block(
            json_call("memory_update", memory_type="core_memory", new_content="x", memory_id="a1")
        ),
        [CORE],
    ),
    "core of the nine categories": (block(json_call("core_memory_update", content="x")), [CORE]),
    "a category": (
        block(json_call("memory_insert", category="semantic", content="x")),
        [insert("x")],
    ),
}


@pytest.mark.parametrize(("text", "calls"), FORMS.values(), ids=FORMS)
def test_hermes_reads_what_chat_models_write(text, calls):
    parsed = parse(HERMES, text)
    assert plain(parsed) == calls and parsed.errors == ()
    places = [text[call.start : call.end] for call in parsed.calls]
    for place, call in zip(
        places, parsed.calls, strict=True
    ):  # each is a place of its own, and says the same by itself
        (again,) = parse(
            HERMES, place if place.startswith("<tool_call>") else f"<tool_call>{place}"
        ).calls
        assert (again.name, again.arguments) == (call.name, call.arguments)
    assert all(before.end <= after.start for before, after in pairwise(parsed.calls))


AMBIGUOUS = {
    "code": block("{'name': 'memory_delete', 'arguments': dict(entry_id='1')}"),
    "a string with two readings in Python": block(
        "{'name': 'memory_delete', 'arguments': {'entry_id': 'a''b'}}"
    ),
    "an argument given twice": block(
        xml_call(a="1").replace("</function>", xml_call(a="2").partition(">")[2])
    ),
    "XML that breaks off": f"<tool_call>{xml_call(end='')}",
    "XML that breaks off in a value": "<tool_call><function=memory_delete><parameter=entry_id>12",
    "a call that breaks off": f"<tool_call>{OSLO[:-1]}",
    "a call that breaks off in a string": f"<tool_call>{OSLO[:-6]}</tool_call>",
    "words behind the call": block(f"{OSLO} or rather not"),
    "words behind the call, and no tag": f"<tool_call>{OSLO}\nor rather not",
    "no arguments": block('{"name": "memory_delete"}'),
    "arguments that are no object": block('{"name": "memory_delete", "arguments": "1"}'),
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_hermes_does_not_guess(text):
    parsed = parse(HERMES, text)
    assert parsed.calls == () and [(error.start, error.end) for error in parsed.errors] == [
        (0, len(text))
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"memory_type": "semantic", "section": "episodic", "content": "x"}, "unknown memory_type"),
        ({"memory_type": "semantic", "category": "episodic", "content": "x"}, "missing section"),
        ({"memory_type": "semantic", "content": None}, "content must be a string"),
        ({"memory_type": "semantic", "content": "x", "importance": 2}, "unknown importance"),
    ],
)
def test_what_is_said_twice_or_unknown_is_a_failed_result(arguments, problem):
    (call,) = parse(HERMES, block(json_call("new_memory_insert", **arguments))).calls
    result = to_operation(call, Memory(SCHEMA))
    assert not result.ok and result.message == f"memory_insert: {problem}"


# --------------------------------------------------------------------------------------------
# compact, by hand
@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("+ Ann city Oslo", "memory_insert", {"section": "semantic", "content": "Ann city Oslo"}),
        ("+episodic went home", "memory_insert", {"section": "episodic", "content": "went home"}),
        ("+ep went home", "memory_insert", {"section": "episodic", "content": "went home"}),
        ("+episodics went home", "memory_insert", {"section": "episodics", "content": "went home"}),
        ("+nowhere x y", "memory_insert", {"section": "nowhere", "content": "x y"}),
        ("  +\t x  y ", "memory_insert", {"section": "semantic", "content": "x  y"}),
        ("+ + x", "memory_insert", {"section": "semantic", "content": "+ x"}),
        ("= 12 Ann city Rome", "memory_update", {"entry_id": "12", "content": "Ann city Rome"}),
        ("- 7", "memory_delete", {"entry_id": "7"}),
        ("* I am Ann", "memory_replace", {"section": "core", "content": "I am Ann"}),
        ("*core I am Ann", "memory_replace", {"section": "core", "content": "I am Ann"}),
    ],
)
def test_a_compact_line_is_one_operation(line, name, arguments):
    assert parse(COMPACT, line) == Parsed((ToolCall(name, arguments, 0, len(line)),), ())


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "+ ",
        "+apple",
        "= 3 ",
        "- 3 4",
        "-3",
        "-x 3",
        "=x 3 y",
        "..",
        "+UP x",
        "+é x",
        "> x",
        "+ \ud800",
    ],
)
def test_any_other_compact_line_is_one_located_error(line):
    parsed = parse(COMPACT, f". \n{line}\n- 1")
    assert plain(parsed) == [("memory_delete", {"entry_id": "1"})]
    (error,) = parsed.errors
    assert (error.start, error.end) == (3, 3 + len(line)) and error.message


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("memory_insert", {"section": "episodic", "content": "x", "timestamp": "2024"}),
        ToolCall("memory_update", {"entry_id": "1", "content": "x", "timestamp": "2024"}),
        ToolCall("memory_insert", {"section": "semantic", "content": " "}),
        ToolCall("memory_update", {"entry_id": "1"}),
        ToolCall("search", {"query": "x"}),
    ],
)
def test_compact_refuses_to_write_what_it_cannot_say(call):
    with pytest.raises(ValueError):
        COMPACT.render([call])


def test_what_is_written():
    operations = [
        Operation(INSERT, "semantic", "a\n b"),
        Operation(INSERT, "episodic", "c"),
        Operation(UPDATE, "semantic", "d", "1"),
        Operation(DELETE, "episodic", entry_id="2"),
        Operation(REPLACE, "core", "e"),
    ]
    calls = [to_call(operation) for operation in operations]
    assert COMPACT.render(calls) == "+ a b\n+e c\n= 1 d\n- 2\n* e"
    assert (COMPACT.render([]), HERMES.render([])) == (".", "")
    expected = '<tool_call>\n{"name": "memory_delete", "arguments": {"entry_id": "2", "section": "episodic"}}\n</tool_call>'
    assert HERMES.render(calls[3:4]) == expected


@pytest.mark.parametrize("name", ["mem_alpha", "nine_categories"])
def test_a_section_is_named_by_at_most_two_letters_and_read_back(name):
    schema = MemorySchema.load(name)
    codec = make_codec("compact_text", schema)
    operations = [Operation(INSERT, section.name, f"of {section.name}") for section in schema.lists]
    text = codec.render([to_call(operation) for operation in operations])
    assert max(len(line.split()[0]) for line in text.splitlines()) <= 3  # the sign included
    assert [call.arguments["section"] for call in parse(codec, text).calls] == [
        section.name for section in schema.lists
    ]


# --------------------------------------------------------------------------------------------
# compact by text, by hand
def test_entries_are_named_by_their_texts_and_an_update_has_two_lines():
    text = "+ a b\n= Ann city Oslo\n> Ann city Rome\n- Ann  pet dog \n+e c\n* d"
    parsed = parse(BY_TEXT, text)
    assert parsed.errors == ()
    assert plain(parsed) == [
        ("memory_insert", {"section": "semantic", "content": "a b"}),
        ("memory_update", {"entry_id": "Ann city Oslo", "content": "Ann city Rome"}),
        ("memory_delete", {"entry_id": "Ann  pet dog"}),
        ("memory_insert", {"section": "episodic", "content": "c"}),
        ("memory_replace", {"section": "core", "content": "d"}),
    ]
    assert [text[call.start : call.end] for call in parsed.calls][1:3] == [
        "= Ann city Oslo\n> Ann city Rome",
        "- Ann  pet dog ",
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("= a", [(0, 3)]),
        ("= a\n- 1\n> b", [(0, 3), (8, 11)]),
        ("= a\n= b\n> c", [(0, 3)]),
        ("> c", [(0, 3)]),
        ("= a\n>", [(0, 3), (4, 5)]),
        ("= a\n> \ud800", [(0, 3), (4, 7)]),
        ("= \ud800\n> a", [(0, 3), (4, 7)]),
        ("=x a\n> b", [(0, 4), (5, 8)]),
        ("-x a", [(0, 4)]),
        ("hello", [(0, 5)]),
    ],
)
def test_half_an_update_is_a_located_error_and_what_follows_is_read(text, places):
    parsed = parse(BY_TEXT, f"{text}\n+ last")
    assert [(error.start, error.end) for error in parsed.errors] == places
    assert plain(parsed)[-1] == ("memory_insert", {"section": "semantic", "content": "last"})
    assert len(parsed.calls) + len(parsed.errors) == {"= a\n- 1\n> b": 4, "= a\n= b\n> c": 3}.get(
        text, len(places) + 1
    )


# -------------------------------------------------------------------------------------------- cut
# off
@pytest.mark.parametrize(
    ("codec", "text", "kept", "place"),
    [
        (COMPACT, "+ a\n+ Ann lives in Os", 1, (4, 21)),
        (COMPACT, "- 1\n- 1", 1, (4, 7)),  # perhaps it was to be 12
        (COMPACT, "+ a ", 0, (0, 4)),
        (BY_TEXT, "+ a\n= b\n> c", 1, (4, 11)),
        (BY_TEXT, "+ a\n= b", 1, (4, 7)),
        (BY_TEXT, "- b", 0, (0, 3)),
    ],
)
def test_the_line_that_a_completion_broke_off_in_says_nothing(codec, text, kept, place):
    cut = parse(codec, text, cut_off=True)
    assert cut.calls == parse(codec, text).calls[:kept] and len(cut.calls) == kept
    (error,) = cut.errors
    assert (error.message, error.start, error.end) == ("cut off by the length limit", *place)
    for ended in ("\n", "\n.", "\n ."):
        assert parse(codec, text + ended, cut_off=True) == parse(codec, text + ended)


# --------------------------------------------------------------------------------------------
# properties
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)
TAGGED = st.lists(
    st.sampled_from(["<tool_call>", "</tool_call>", "\\", '"', "{", "}", "\n", "x"]), min_size=1
).map("".join)
CONTENTS = (TEXTS | TAGGED).filter(str.strip)
TIMES = st.none() | TEXTS
SECTIONS, IDS = st.sampled_from(["semantic", "episodic"]), st.integers(1, 999).map(str)
TIMED = st.one_of(
    st.builds(Operation, st.just(INSERT), SECTIONS, CONTENTS, st.none(), TIMES),
    st.builds(Operation, st.just(UPDATE), SECTIONS, CONTENTS, IDS, TIMES),
    st.builds(Operation, st.just(DELETE), SECTIONS, st.none(), IDS),
    st.builds(Operation, st.just(REPLACE), st.just("core"), CONTENTS),
)


@given(st.lists(TIMED, max_size=5))
def test_hermes_reads_back_what_it_writes(operations):
    calls = tuple(to_call(operation) for operation in operations)
    parsed = parse(HERMES, HERMES.render(calls))
    assert (plain(parsed), parsed.errors) == (plain(Parsed(calls, ())), ())


UNTIMED = TIMED.map(lambda o: Operation(o.kind, o.section, o.content, o.entry_id))
ONE_LINE = CONTENTS.map(lambda text: " ".join(text.split()))


@pytest.mark.parametrize("codec", [COMPACT, BY_TEXT], ids=lambda codec: codec.name)
@given(pairs=st.lists(st.tuples(UNTIMED, ONE_LINE), max_size=5))
@example(
    pairs=[
        (Operation(INSERT, "semantic", "+ x"), ""),
        (Operation(INSERT, "semantic", "episodic x"), ""),
    ]
)
@example(
    pairs=[
        (Operation(UPDATE, "semantic", "> x", "1"), "= y"),
        (Operation(DELETE, "semantic", entry_id="1"), "."),
    ]
)
def test_compact_reads_back_what_it_writes(codec, pairs):
    calls, expected = [], []
    for operation, old in pairs:
        arguments = dict(to_call(operation).arguments)
        if "entry_id" in arguments and codec.names_by_text:
            arguments["entry_id"] = old
        calls.append(ToolCall(f"memory_{operation.kind}", dict(arguments)))
        if "content" in arguments:
            arguments["content"] = " ".join(arguments["content"].split())
        if operation.kind in (UPDATE, DELETE):  # the id or the text says which section
            del arguments["section"]
        expected.append((f"memory_{operation.kind}", arguments))
    parsed = parse(codec, codec.render(calls))
    assert plain(parsed) == expected
    assert parsed.errors == ()


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool_call",
        '{"name": "f", "arguments": {}}',
        '{"name": ',
        "{",
        "}",
        '"',
        "\\",
        "\\ud800",
        "\ud800",
        "+ ",
        "= ",
        "> ",
        "- ",
        "* ",
        ".",
        "\n",
        "\r",
        "\u2028",
        "\x00",
        " ",
        "\u00a0",
        "é",
        "😀",
        "1",
        "NaN",
        "1e999",
        "core",
    ]
)
GARBAGE = st.text(st.characters()) | st.lists(PIECES, max_size=30).map("".join)


@pytest.mark.parametrize("codec", [HERMES, COMPACT, BY_TEXT], ids=lambda codec: codec.name)
@given(text=GARBAGE)
def test_any_text_gives_calls_and_located_errors(codec, text):
    parsed = parse(codec, text)
    items = sorted([*parsed.calls, *parsed.errors], key=lambda item: item.start)
    assert all(0 <= item.start < item.end <= len(text) for item in items)
    assert all(
        item.end <= following.start for item, following in pairwise(items)
    )  # no stretch is read twice
    for call in parsed.calls:
        place = text[call.start : call.end]
        several = codec is HERMES and not place.startswith(
            "<tool_call>"
        )  # a later call of its block
        (again,) = parse(codec, f"<tool_call>{place}" if several else place).calls
        assert (again.name, str(again.arguments)) == (call.name, str(call.arguments))
        f"{call.name} {call.arguments}".encode()  # Unicode text throughout
    assert all(
        isinstance(error, CallError) and error.message.isprintable() for error in parsed.errors
    )


# -------------------------------------------------------------------------------------------- time
ADVERSARIES = {
    "an entry": lambda n: "+ " + "word " * (n // 5),
    "short lines": lambda n: "+ some words\n" * (n // 13),
    "half updates": lambda n: "= some words\n" * (n // 13),
    "updates": lambda n: "= a\n> some words\n" * (n // 17),
    "open tags": lambda n: "<tool_call>" * (n // 11),
    "deep nesting": lambda n: block('{"a":' * (n // 5)),
    "many shallow nests": lambda n: block("[" + "[[[[]]]]," * (n // 9)),
    "open calls": lambda n: '<tool_call>{"name": "f", "arguments": {"a": "\\"' * (n // 48),
    "quotes and commas": lambda n: block("{" + "'" * (n // 3) + ", " * (n // 3)),
    "one long string": lambda n: block(
        '{"name": "f", "arguments": {"content": "' + "\\n" * (n // 2) + '"}}'
    ),
}


@pytest.mark.parametrize("codec", [HERMES, COMPACT, BY_TEXT], ids=lambda codec: codec.name)
@pytest.mark.parametrize("make", ADVERSARIES.values(), ids=ADVERSARIES)
def test_time_is_linear_in_the_length(codec, make):
    """Four times the text takes about four times as long; quadratic reading takes sixteen times,
    however often it is tried."""

    def seconds(text):
        start = time.process_time()
        parse(codec, text)
        return time.process_time() - start

    long, short = make(300_000), make(75_000)
    gc.disable()  # it counts containers, so that it would run more often in the long text
    try:
        assert any(seconds(long) < 9 * seconds(short) + 0.02 for _ in range(6))
    finally:
        gc.enable()
