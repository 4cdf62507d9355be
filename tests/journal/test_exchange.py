"""Export and import: nothing is lost, nothing is taken in that was edited or that could not be read
later."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import BY, IVAN, MARTA, SCHEMA, core, insert, opened, state, tell_a_story

from memalpha.errors import ForgottenError, InputError, MemAlphaError
from memalpha.store.journal import Journal, Namespace
from memalpha.store.records import Record, commit, digest, root


@pytest.fixture
def store(folder):
    journal, durable = opened(folder / "store.db")
    tell_a_story(durable)
    yield journal, durable
    journal.close()


def test_export_and_import_lose_nothing(folder, store):
    journal, durable = store
    durable.apply(insert("ünï \U0001f600 \x00 \n 'quoted'"), BY)
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
        assert (
            state(copy.memory) == state(durable.memory)
            and copy.operations() == durable.operations()
        )
        assert other.verify().ok
        copy.apply(insert("goes on"), BY)
        with pytest.raises(InputError, match="there already"):
            other.import_(folder / "marta.jsonl")
    first, again = (
        (folder / name).read_text().splitlines() for name in ("all.jsonl", "again.jsonl")
    )
    assert again[:-2] == first[:-2] and again[-1] == first[-1]
    with Journal.open(folder / "third.db") as third:
        third.import_(folder / "marta.jsonl")
        third.export(folder / "marta2.jsonl")
    assert (folder / "marta2.jsonl").read_bytes() == (folder / "marta.jsonl").read_bytes()
    with pytest.raises(InputError, match="a new file in a folder that exists"):
        journal.export(folder / "marta.jsonl")


def test_an_import_is_checked_and_all_or_nothing(folder, store):
    journal, _ = store
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
        "begun twice": [
            *lines[:2],
            lines[1].replace("marta", "zoe"),
            *lines[2:-1],
            json.dumps({"end": len(lines)}),
        ],
    }
    with Journal.open(folder / "other.db") as other:
        for name, text in spoilt.items():
            (folder / name).write_text("\n".join(text))
            with pytest.raises(InputError):
                other.import_(folder / name)
        assert other.namespaces() == () and other.verify().ok
        assert other.import_(folder / "all.jsonl") == 6
    with (
        Journal.open(folder / "keyed.db", key=b"k") as keyed,
        pytest.raises(InputError, match="another key"),
    ):
        keyed.import_(folder / "all.jsonl")


def test_an_import_erases_nothing_and_brings_nothing_forgotten_back(folder, store):
    journal, _ = store
    journal.export(folder / "first.jsonl")
    with Journal.open(folder / "other.db") as other:
        other.import_(folder / "first.jsonl")
        journal.forget(MARTA)
        journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
        journal.export(folder / "second.jsonl")
        with pytest.raises(
            InputError,
            match=r"line 4: the namespace marta/default/default was forgotten .* is alive here",
        ):
            other.import_(folder / "second.jsonl")
        assert other.namespaces() == (MARTA,) and other.verify().ok
        other.forget(MARTA)
        assert other.import_(folder / "second.jsonl") == 1
        assert other.namespaces() == (IVAN,) and other.verify().ok
    with Journal.open(folder / "third.db") as third:
        third.import_(folder / "second.jsonl")
        for there in (journal, third):
            with pytest.raises(ForgottenError):
                there.import_(folder / "first.jsonl")
            assert there.namespaces() == (IVAN,)


def crafted(path, change):
    """The text of an export of one namespace after a change of its lines, sealed anew, as anybody
    can without a key."""
    data = [json.loads(line) for line in path.read_text().splitlines()]
    head = root(data[1]["begin"])
    change(data)
    for line in data:
        values = line.get("record") if isinstance(line, dict) else None
        if values:
            values[7] = commit(values[11], values[10]) if isinstance(values[11], str) else values[7]
            values[8] = head.hash
            values[9] = digest(Record(*values).header(), None)
            head = Record(*values).head
    return "\n".join(map(json.dumps, data))


def take_in(folder, text):
    """Import a text, and use everything that came of it; whether it was accepted. Only errors of
    this package may come."""
    (folder / "crafted.jsonl").write_text(text)
    journal = Journal.open(":memory:")
    try:
        journal.import_(folder / "crafted.jsonl")
    except InputError as error:
        assert (
            journal.namespaces() == ()
            and "crafted.jsonl, line " in str(error)
            and "\x1b" not in str(error)
        )
        assert journal.database.chains() == set() and journal.verify().ok
        return False
    durable = journal.memory(MARTA, journal.schema(MARTA))
    durable.operations()
    journal.verify()
    for seq in range(durable.memory.seq + 1):
        for use in (durable.as_of, lambda seq: durable.undo(seq, BY)):
            with suppress(MemAlphaError):
                use(seq)
    durable.apply(insert("goes on"), BY)
    return True


def put(number, column, value):
    return lambda data: data[number]["record"].__setitem__(column, value)


def after(number, value):
    return lambda data: put(
        number, 11, json.dumps(json.loads(data[number]["record"][11]) | {"after": value})
    )(data)


STATED = {"id": "1", "section": "facts", "content": "x", "created": 1, "updated": 1}

# Lines 0 and 1 begin export and namespace, 2 to 6 are records, 7 is the receipt of another
# namespace.
CRAFTED = {
    "a user with an escape": lambda data: data[1].update(user="a\x1b[2J"),
    "a time that is none": lambda data: data[1].update(time="9999"),
    "another schema": lambda data: data[1].update(
        schema={"name": "test", "sections": [["facts", "list", True]]}
    ),
    "a number that is true": put(2, 1, True),
    "a line nobody knows": lambda data: data.insert(3, {"what": 1}),
    "a receipt of none": lambda data: data[7].update(forgotten="x"),
    "an entry that is a number": after(2, 5),
    "an entry with another id": after(2, {"id": "9", "section": "facts", "content": "x"}),
    "a body that is too deep": put(2, 11, "[" * 100_000),
    "times that go back": put(6, 5, "1999-01-01T00:00:00.000000Z"),
    "a kind of the registry": put(6, 2, "begin"),
    "an id of 5000 digits": put(6, 3, "9" * 5000),
    "a section changed": after(4, {"id": "1", "section": "notes", "content": "x"}),
    "created beyond 64 bits": after(2, STATED | {"created": 10**30}),
    "created later than its operation": after(2, STATED | {"created": 2, "updated": 2}),
    "created before it": after(4, STATED | {"created": 2, "updated": 3}),
    "updated before it was created": after(2, STATED | {"updated": 0}),
    "a number that is text": after(2, STATED | {"created": "1"}),
    "a chunk of no number": after(2, STATED | {"source_chunk": 1 << 63}),
    "a chunk below 0": lambda data: put(
        2, 11, json.dumps(json.loads(data[2]["record"][11]) | {"chunk": -1})
    )(data),
    "an undo of what comes later": lambda data: put(
        2, 11, json.dumps(json.loads(data[2]["record"][11]) | {"of": 1})
    )(data),
    "a lone surrogate in a content": after(2, STATED | {"content": "\ud800"}),
    "a lone surrogate in a name": lambda data: data[1].update(user="\udfff"),
    "a lone surrogate in an id": put(2, 3, "\ud800"),
    "a time of another type": after(2, STATED | {"timestamp": 2024}),
    "a line nested deeply": lambda data: data.insert(
        3, {"what": json.loads("[" * 400 + "]" * 400)}
    ),
    "a schema nested deeply": lambda data: data[1]["schema"].update(
        name=json.loads("[" * 150 + "]" * 150)
    ),
    "a schema with more": lambda data: data[1]["schema"].update(more=[]),
    "a line that is a list": lambda data: data.insert(3, []),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_line_is_refused(folder, store, name):
    journal, _ = store
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    journal.forget(IVAN)
    journal.export(folder / "all.jsonl")
    assert take_in(folder, crafted(folder / "all.jsonl", lambda data: None))

    def change(data):
        CRAFTED[name](data)
        data[-1]["end"] = len(data) - 1

    assert not take_in(folder, crafted(folder / "all.jsonl", change))


@pytest.mark.parametrize(
    "value",
    ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "9" * 10_000, "NaN"],
)
@pytest.mark.parametrize("place", ['"schema": ', '"time": ', '"record": ', '"end": '])
def test_a_value_that_no_export_has_is_one_clear_error(folder, store, place, value):
    store[0].export(folder / "all.jsonl")
    before, after = (folder / "all.jsonl").read_text().split(place, 1)
    (folder / "bad.jsonl").write_text(f"{before}{place}{value}, {after}")
    with Journal.open(":memory:") as other:
        with pytest.raises(InputError, match=r"bad\.jsonl"):
            other.import_(folder / "bad.jsonl")
        assert other.database.chains() == set()


DEEP = json.loads("[" * 300 + "]" * 300)
VALUES = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        2**63,
        10**30,
        1.5,
        "",
        "x",
        "1",
        "core",
        "\ud800",
        "\x1b",
        [],
        ["a"],
        {},
        {"id": "1"},
        DEEP,
    ]
)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_whatever_an_import_takes_in_can_be_used(folder, store, data):
    if not (path := folder / "all.jsonl").exists():
        store[1].forget("2")
        store[1].apply(core("later"), BY)
        store[1].undo(store[1].memory.seq, BY)
        store[0].export(path)

    def change(lines):
        row = data.draw(st.sampled_from([line["record"] for line in lines if "record" in line]))
        column = data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 11, 11, 11]))
        if column not in (6, 11) or not row[column]:
            row[column] = data.draw(VALUES)
            return
        found = place = json.loads(row[column])
        while keys := list(place) if isinstance(place, dict) else list(range(len(place))):
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
                place[key] = data.draw(VALUES)
                break
            place = place[key]
        row[column] = json.dumps(found)

    try:
        text = crafted(path, change)
    except (TypeError, ValueError, AttributeError):
        return  # a value that cannot be sealed
    take_in(folder, text)
