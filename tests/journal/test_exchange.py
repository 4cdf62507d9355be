"""Export and import: nothing is lost, nothing is taken in that was edited or that could not be read
later."""

import json

import pytest

from memalpha.errors import ForgottenError, InputError
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, Namespace
from memalpha.store.records import Record, commit, hash_header, root
from tests.helpers.stores import BY, IVAN, MARTA, SCHEMA, insert, opened, state, tell_a_story


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
        with pytest.raises(InputError, match="exists already"):
            import_journal(other, folder / "marta.jsonl")
    first, again = (
        (folder / name).read_text().splitlines() for name in ("all.jsonl", "again.jsonl")
    )
    assert again[:-2] == first[:-2] and again[-1] == first[-1]


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
            match=r"line 4: the namespace marta/default/default was forgotten .* exists in this store",
        ):
            import_journal(other, folder / "second.jsonl")
        assert other.namespaces() == (MARTA,) and other.verify().ok
        other.forget(MARTA)
        assert import_journal(other, folder / "second.jsonl") == 1
        assert other.namespaces() == (IVAN,) and other.verify().ok
    with pytest.raises(ForgottenError):
        import_journal(journal, folder / "first.jsonl")
    assert journal.namespaces() == (IVAN,)


def crafted(path, change=lambda data: None):
    """The text of an export of one namespace after a change of its lines, sealed anew, as anybody
    can without a key."""
    data = [json.loads(line) for line in path.read_text().splitlines()]
    head = root(data[1]["begin"])
    change(data)
    data[-1]["end"] = len(data) - 1
    for line in data:
        if "record" in line:
            record = Record(*line["record"])
            if record.body is not None:
                record = record._replace(commitment=commit(record.body, record.salt))
            record = record._replace(previous=head.hash)
            line["record"] = record._replace(hash=hash_header(record.header(), None))
            head = line["record"].head
    return "\n".join(map(json.dumps, data))


def put(number, column, value):
    return lambda data: data[number]["record"].__setitem__(Record._fields.index(column), value)


def body(number, **values):
    def change(data):
        record = Record(*data[number]["record"])
        changed = json.dumps(json.loads(record.body) | values)
        data[number]["record"] = record._replace(body=changed)

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
    path = folder / "crafted.jsonl"
    path.write_text(crafted(folder / "all.jsonl", CRAFTED[name]))
    with Journal.open(":memory:") as other:
        with pytest.raises(InputError, match=r"crafted\.jsonl, ") as caught:
            import_journal(other, path)
        assert "\x1b" not in str(caught.value)
        assert other.database.chains() == set() and other.verify().ok
        path.write_text(crafted(folder / "all.jsonl"))
        assert import_journal(other, path) == 5
