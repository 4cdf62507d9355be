"""Export and import: nothing is lost, nothing is taken in that was edited or that could not be read
later."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import BY, IVAN, MARTA, SCHEMA, core, insert, opened, state, tell_a_story

from memalpha.errors import ForgottenError, InputError, MemAlphaError
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, Namespace
from memalpha.store.records import Record, commit, hash_header, root


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
    assert export_journal(journal, folder / "all.jsonl") == 8
    assert export_journal(journal, folder / "marta.jsonl", MARTA) == 7
    with Journal.open(folder / "other.db") as other:
        assert import_journal(other, folder / "all.jsonl") == 8
        export_journal(other, folder / "again.jsonl")
        copy = other.memory(MARTA, SCHEMA)
        assert state(copy.memory) == state(durable.memory) and copy.history() == durable.history()
        assert other.verify().ok
        copy.apply(insert("goes on"), BY)
        with pytest.raises(InputError, match="there already"):
            import_journal(other, folder / "marta.jsonl")
    first, again = (
        (folder / name).read_text().splitlines() for name in ("all.jsonl", "again.jsonl")
    )
    assert again[:-2] == first[:-2] and again[-1] == first[-1]
    with Journal.open(folder / "third.db") as third:
        import_journal(third, folder / "marta.jsonl")
        export_journal(third, folder / "marta2.jsonl")
    assert (folder / "marta2.jsonl").read_bytes() == (folder / "marta.jsonl").read_bytes()
    with pytest.raises(InputError, match="a new file in a folder that exists"):
        export_journal(journal, folder / "marta.jsonl")


def test_an_import_is_checked_and_all_or_nothing(folder, store):
    journal, _ = store
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    export_journal(journal, folder / "all.jsonl")
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
                import_journal(other, folder / name)
        assert other.namespaces() == () and other.verify().ok
        assert import_journal(other, folder / "all.jsonl") == 6
    with (
        Journal.open(folder / "keyed.db", key=b"k") as keyed,
        pytest.raises(InputError, match="another key"),
    ):
        import_journal(keyed, folder / "all.jsonl")


def test_an_import_erases_nothing_and_brings_nothing_forgotten_back(folder, store):
    journal, _ = store
    export_journal(journal, folder / "first.jsonl")
    with Journal.open(folder / "other.db") as other:
        import_journal(other, folder / "first.jsonl")
        journal.forget(MARTA)
        journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
        export_journal(journal, folder / "second.jsonl")
        with pytest.raises(
            InputError,
            match=r"line 4: the namespace marta/default/default was forgotten .* is alive here",
        ):
            import_journal(other, folder / "second.jsonl")
        assert other.namespaces() == (MARTA,) and other.verify().ok
        other.forget(MARTA)
        assert import_journal(other, folder / "second.jsonl") == 1
        assert other.namespaces() == (IVAN,) and other.verify().ok
    with Journal.open(folder / "third.db") as third:
        import_journal(third, folder / "second.jsonl")
        for there in (journal, third):
            with pytest.raises(ForgottenError):
                import_journal(there, folder / "first.jsonl")
            assert there.namespaces() == (IVAN,)


BODY, NOTE = Record._fields.index("body"), Record._fields.index("note")


def crafted(path, change):
    """The text of an export of one namespace after a change of its lines, sealed anew, as anybody
    can without a key."""
    data = [json.loads(line) for line in path.read_text().splitlines()]
    head = root(data[1]["begin"])
    change(data)
    for line in data:
        values = line.get("record") if isinstance(line, dict) else None
        if values:
            record = Record(*values)
            if isinstance(record.body, str):
                record = record._replace(commitment=commit(record.body, record.salt))
            record = record._replace(previous=head.hash)
            record = record._replace(hash=hash_header(record.header(), None))
            line["record"] = record
            head = record.head
    return "\n".join(map(json.dumps, data))


def take_in(folder, text):
    """Import a text, and use everything that came of it; whether it was accepted. Only errors of
    this package may come."""
    (folder / "crafted.jsonl").write_text(text)
    journal = Journal.open(":memory:")
    try:
        import_journal(journal, folder / "crafted.jsonl")
    except InputError as error:
        assert (
            journal.namespaces() == ()
            and "crafted.jsonl, " in str(error)
            and "\x1b" not in str(error)
        )
        assert journal.database.chains() == set() and journal.verify().ok
        return False
    durable = journal.memory(MARTA, journal.schema(MARTA))
    durable.history()
    journal.verify()
    for seq in range(durable.memory.clock):
        for use in (durable.as_of, lambda seq: durable.undo(seq, BY)):
            with suppress(MemAlphaError):
                use(seq)
    durable.apply(insert("goes on"), BY)
    return True


def put(number, column, value):
    return lambda data: data[number]["record"].__setitem__(Record._fields.index(column), value)


def body(number, **values):
    def change(data):
        record = data[number]["record"]
        record[BODY] = json.dumps(json.loads(record[BODY]) | values)

    return change


def after(number, value):
    return body(number, after=value)


STATED = {"id": "1", "section": "facts", "content": "x", "created": 1, "updated": 1}

# Lines 0 and 1 begin export and namespace, 2 to 6 are records, 7 is the receipt of another
# namespace.
CRAFTED = {
    "a user with an escape": lambda data: data[1].update(user="a\x1b[2J"),
    "a time that is none": lambda data: data[1].update(time="9999"),
    "another schema": lambda data: data[1].update(
        schema={"name": "test", "sections": [["facts", "list", True]]}
    ),
    "a number that is true": put(2, "seq", True),
    "a line nobody knows": lambda data: data.insert(3, {"what": 1}),
    "a receipt of none": lambda data: data[7].update(forgotten="x"),
    "an entry that is a number": after(2, 5),
    "an entry with another id": after(2, {"id": "9", "section": "facts", "content": "x"}),
    "a body that is too deep": put(2, "body", "[" * 100_000),
    "times that go back": put(6, "time", "1999-01-01T00:00:00.000000+00:00"),
    "a kind of the registry": put(6, "kind", "begin"),
    "an id of 5000 digits": put(6, "entry", "9" * 5000),
    "a section changed": after(4, {"id": "1", "section": "notes", "content": "x"}),
    "created beyond 64 bits": after(2, STATED | {"created": 10**30}),
    "created later than its operation": after(2, STATED | {"created": 2, "updated": 2}),
    "created before it": after(4, STATED | {"created": 2, "updated": 3}),
    "updated before it was created": after(2, STATED | {"updated": 0}),
    "a number that is text": after(2, STATED | {"created": "1"}),
    "a chunk below 0": body(2, chunk=-1),
    "an undo of what comes later": body(2, of=1),
    "a lone surrogate in a content": after(2, STATED | {"content": "\ud800"}),
    "a lone surrogate in a name": lambda data: data[1].update(user="\udfff"),
    "a lone surrogate in an id": put(2, "entry", "\ud800"),
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
    export_journal(journal, folder / "all.jsonl")
    assert take_in(folder, crafted(folder / "all.jsonl", lambda data: None))

    def change(data):
        CRAFTED[name](data)
        data[-1]["end"] = len(data) - 1

    assert not take_in(folder, crafted(folder / "all.jsonl", change))


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
        store[1].undo(store[1].memory.clock - 1, BY)
        export_journal(store[0], path)

    def change(lines):
        row = data.draw(st.sampled_from([line["record"] for line in lines if "record" in line]))
        column = data.draw(st.sampled_from([1, 2, 3, 4, NOTE, BODY, BODY, BODY]))
        if column not in (NOTE, BODY) or not row[column]:
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
