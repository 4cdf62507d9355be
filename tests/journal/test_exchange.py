"""Export and import: nothing is lost, nothing is taken in that was edited or that could not be read later."""

from __future__ import annotations

import json

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
    durable.apply(insert("ünï \ud800 \x00 \n 'quoted'"), BY)
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
        assert state(copy.memory) == state(durable.memory) and copy.operations() == durable.operations()
        assert other.verify().ok
        copy.apply(insert("goes on"), BY)
        with pytest.raises(InputError, match="there already"):
            other.import_(folder / "marta.jsonl")
    first, again = ((folder / name).read_text().splitlines() for name in ("all.jsonl", "again.jsonl"))
    assert again[:-2] == first[:-2] and again[-1] == first[-1]
    with Journal.open(folder / "third.db") as third:
        third.import_(folder / "marta.jsonl")
        assert third.namespaces() == (MARTA,)
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
        "begun twice": [*lines[:2], lines[1].replace("marta", "zoe"), *lines[2:-1], json.dumps({"end": len(lines)})],
    }
    with Journal.open(folder / "other.db") as other:
        for name, text in spoilt.items():
            (folder / name).write_text("\n".join(text))
            with pytest.raises(InputError):
                other.import_(folder / name)
        assert other.namespaces() == () and other.verify().ok
        assert other.import_(folder / "all.jsonl") == 6
    with Journal.open(folder / "keyed.db", key=b"k") as keyed, pytest.raises(InputError, match="another key"):
        keyed.import_(folder / "all.jsonl")


def test_an_import_erases_nothing_and_brings_nothing_forgotten_back(folder, store):
    """Marta was forgotten where the second export comes from, and is alive where it goes."""
    journal, _ = store
    journal.export(folder / "first.jsonl")
    with Journal.open(folder / "other.db") as other:
        other.import_(folder / "first.jsonl")
        journal.forget(MARTA)
        journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
        journal.export(folder / "second.jsonl")
        with pytest.raises(InputError, match=r"line 4: the namespace marta/default/default was forgotten .* is alive here"):
            other.import_(folder / "second.jsonl")
        assert other.namespaces() == (MARTA,) and other.verify().ok
        other.forget(MARTA)
        assert other.import_(folder / "second.jsonl") == 1
        assert other.namespaces() == (IVAN,) and other.verify().ok
    with Journal.open(folder / "third.db") as third:
        third.import_(folder / "second.jsonl")
        for there in (journal, third):
            with pytest.raises(ForgottenError, match="was forgotten here"):
                there.import_(folder / "first.jsonl")
            assert there.namespaces() == (IVAN,)


EDITS = {
    "no user": (2, lambda line: line.pop("user")),
    "a user with an escape": (2, lambda line: line.update(user="a\x1b[2J")),
    "the registry's id": (2, lambda line: line.update(begin="")),
    "a time that is none": (2, lambda line: line.update(time="9999")),
    "sections that are none": (2, lambda line: line.update(schema={"name": "a", "sections": [["facts"]]})),
    "another schema": (2, lambda line: line.update(schema={"name": "test", "sections": [["facts", "list", True]]})),
    "a number that is true": (3, lambda line: line["record"].__setitem__(1, True)),
    "a value too few": (3, lambda line: line["record"].pop()),
    "a line nobody knows": (3, lambda line: (line.clear(), line.update(what=1))),
    "a receipt that counts letters": (8, lambda line: line.update(note='{"operations": "x"}')),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_line_of_an_export_is_refused(folder, store, name):
    journal, _ = store
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    journal.forget(IVAN)
    journal.export(folder / "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()
    assert len(lines) == 9 and "forgotten" in lines[7]
    number, edit = EDITS[name]
    data = [json.loads(line) for line in lines]
    edit(data[number - 1])
    (folder / "edited.jsonl").write_text("\n".join(map(json.dumps, data)))
    with Journal.open(folder / "other.db") as other:
        with pytest.raises(InputError, match=r"edited\.jsonl, (line \d|namespace)"):
            other.import_(folder / "edited.jsonl")
        assert other.namespaces() == () and other.verify().ok
        assert other.import_(folder / "all.jsonl") == 5


# ------------------------------------------------------------------------------------------------ crafted records
def sealed_anew(rows):
    """Records (as lists of values) with every hash computed anew, as anybody can without a key."""
    head, done = root(rows[0][0]), []
    for values in rows:
        values = [*values]
        values[7] = commit(values[11], values[10]) if isinstance(values[11], str) else values[7]
        values[8] = head.hash
        values[9] = digest(Record(*values).header(), None)
        head = Record(*values).head
        done.append(values)
    return done


def crafted(lines, change):
    """An export whose records were changed and sealed anew."""
    data = [json.loads(line) for line in lines]
    rows = [line["record"] for line in data if "record" in line]
    change(rows)
    rows = sealed_anew(rows)
    return "\n".join(map(json.dumps, [*data[:2], *({"record": row} for row in rows), {"end": len(rows) + 2}]))


def take_in(folder, text):
    """Import a text, and use everything that came of it; whether it was accepted. Only errors of this package may come."""
    (folder / "crafted.jsonl").write_text(text)
    journal = Journal.open(":memory:")
    try:
        journal.import_(folder / "crafted.jsonl")
    except InputError:
        assert journal.namespaces() == ()
        return False
    durable = journal.memory(MARTA, journal.schema(MARTA))
    durable.operations()
    journal.verify()
    for seq in range(durable.memory.seq + 1):
        for use in (durable.as_of, lambda seq: durable.undo(seq, BY)):
            try:
                use(seq)
            except MemAlphaError:
                continue
    durable.apply(insert("goes on"), BY)
    return True


def in_body(row, **values):
    row[11] = json.dumps(json.loads(row[11]) | values)


CRAFTED = {
    "an entry that is a number": lambda rows: in_body(rows[0], after=5),
    "an entry with another id": lambda rows: in_body(rows[0], after={"id": "9", "section": "facts", "content": "x"}),
    "an operation of no kind": lambda rows: in_body(rows[0], operation={"kind": "explode", "section": "facts"}),
    "a body that is no JSON": lambda rows: rows[0].__setitem__(11, "{"),
    "a body that is too deep": lambda rows: rows[0].__setitem__(11, "[" * 100_000),
    "times that go back": lambda rows: rows[-1].__setitem__(5, "1999-01-01T00:00:00.000000Z"),
    "a kind of the registry": lambda rows: rows[-1].__setitem__(2, "begin"),
    "a note of letters": lambda rows: rows[-1].__setitem__(slice(2, 7), ["forget", "1", 1, rows[-1][5], '{"erased": ["x"]}']),
    "an id of 5000 digits": lambda rows: rows[-1].__setitem__(3, "9" * 5000),
    "a section changed": lambda rows: in_body(rows[2], after={"id": "1", "section": "notes", "content": "x"}),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_record_is_refused(folder, store, name):
    store[0].export(folder / "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()
    assert take_in(folder, crafted(lines, lambda rows: None))
    assert not take_in(folder, crafted(lines, CRAFTED[name]))


VALUES = st.sampled_from([None, True, -1, 0, 10**30, 1.5, "", "x", "1", "core", "\ud800", "\x1b", [], ["a"], {}, {"id": "1"}])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_an_import_takes_in_can_be_used(folder, data):
    """One value anywhere in the bodies, notes or columns of a sealed chain is replaced by another."""
    with Journal.open(":memory:") as journal:
        durable = journal.memory(MARTA, SCHEMA)
        tell_a_story(durable)
        durable.forget("2")
        durable.apply(core("later"), BY)
        durable.undo(durable.memory.seq, BY)
        (folder / "all.jsonl").unlink(missing_ok=True)
        journal.export(folder / "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines()

    def change(rows):
        row = data.draw(st.sampled_from(rows))
        column = data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 11, 11, 11]))
        if column not in (6, 11) or not row[column]:
            row[column] = data.draw(VALUES)
            return
        found = json.loads(row[column])
        place = found
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(VALUES)
            break
        row[column] = json.dumps(found)

    try:
        text = crafted(lines, change)
    except (TypeError, ValueError, AttributeError):
        return  # a value that cannot be sealed
    take_in(folder, text)
