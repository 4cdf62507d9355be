"""Bytes flipped, files cut, rows edited: found and reported, never a wrong answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from stores import BY, IVAN, MARTA, SCHEMA, contents, core, delete, insert, opened, update

from memalpha.errors import JournalDamagedError, JournalError
from memalpha.store.journal import Journal, Namespace
from memalpha.store.records import Head, Kind, Record, check, commit, digest, fault, mix, root, seal
from memalpha.store.verify import replay_faults


def made(folder: Path, closed: bool) -> Path:
    """A store of two namespaces; left open it keeps its last writes in the write-ahead file."""
    path = folder / "store.db"
    journal, durable = opened(path)
    for i in range(30):
        durable.apply(insert(f"fact {i} " + "z" * (i * 11)), BY)
    durable.apply(update("3", "changed"), BY)
    durable.apply(delete("4"), BY)
    durable.forget("5")
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    for i in range(6):
        durable.apply(core(f"core {i}"), BY)
    copy = folder / "copy"
    copy.mkdir()
    if closed:
        journal.close()
    for file in folder.glob("store.db*"):
        shutil.copy(file, copy / file.name)
    journal.close()
    return copy / "store.db"


def truth(path: Path) -> dict[Namespace, dict[str, str]]:
    with Journal.open(path) as journal:
        return {name: contents(journal.memory(name, SCHEMA).memory) for name in (MARTA, IVAN)}


def answers_right_or_raises(path: Path, expected: dict[Namespace, dict[str, str]]) -> bool:
    """Whether a store that was damaged answers at all; fails if it answers wrongly."""
    try:
        with Journal.open(path, wait=1.0) as journal:
            answered = {}
            for name in (MARTA, IVAN):
                try:
                    answered[name] = contents(journal.memory(name, SCHEMA).memory)
                except JournalError:
                    journal.verify()
            assert all(expected[name] == said for name, said in answered.items())
            if len(answered) == 2 and journal.verify().ok:
                assert journal.memory(MARTA, SCHEMA).history("3")[1].after.content == "changed"
                return True
            return False
    except JournalError:
        return False


@pytest.mark.parametrize("how", ["flip", "cut", "zero"])
def test_damage_of_the_database_is_never_a_wrong_answer(folder, how):
    """Of the write-ahead file see the next test."""
    source = made(folder, closed=True)
    work = folder / "work"
    shutil.copytree(source.parent, work)
    expected = truth(work / "store.db")
    rng = random.Random(how)
    harmless = 0
    for _ in range(30):
        shutil.rmtree(work)
        shutil.copytree(source.parent, work)
        file = work / "store.db"
        data = bytearray(file.read_bytes())
        at = rng.randrange(1, len(data))
        if how == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del data[at:]
        else:
            data[at : at + 300] = bytes(len(data[at : at + 300]))
        file.write_bytes(data)
        harmless += answers_right_or_raises(file, expected)
    assert harmless < 30


@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damage_of_the_write_ahead_file_gives_an_earlier_state_and_never_another(folder, how):
    path = folder / "store.db"
    journal, durable = opened(path)
    states, heads = [{}], [journal.verify().head]
    for i in range(12):
        durable.apply(insert(f"fact {i} " + "z" * (i * 40)), BY)
        states.append(contents(durable.memory))
        heads.append(journal.verify().head)
    rng = random.Random(how)
    seen = set()
    for trial in range(20):
        work = folder / f"work{trial}"
        work.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", work / f"store.db{suffix}")
        wal = work / "store.db-wal"
        data = bytearray(wal.read_bytes())
        at = rng.randrange(len(data))
        if how == "flip":
            data[at] ^= 1 << rng.randrange(8)
        else:
            del data[at:]
        wal.write_bytes(data)
        try:
            with Journal.open(work / "store.db") as copy:
                state = states.index(contents(copy.memory(MARTA, SCHEMA).memory))
                assert copy.verify().ok and copy.verify().head == heads[state]  # a head kept elsewhere shows what is lost
        except JournalDamagedError:
            continue
        seen.add(state)
    assert len(seen) > 3
    journal.close()


EDITS = {
    "edited body": ("UPDATE log SET body = replace(body, 'changed', 'CHANGED')", "its body is not the one"),
    "edited header": ("UPDATE log SET entry = '9' WHERE entry = '3'", "its hash is not that of its header"),
    "missing in the middle": ("DELETE FROM log WHERE seq = 7", "those between are missing"),
    "missing at the start": ("DELETE FROM log WHERE seq < 3 AND ns != ''", "no base stands in for them"),
    "missing at the end": ("DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)", "it should be number"),
    "reordered": ("UPDATE log SET seq = CASE seq WHEN 8 THEN -9 ELSE -8 END WHERE seq IN (8, 9)", "its hash is not that"),
    "the registry gone": ("DELETE FROM log WHERE ns = ''", "it should be number"),
    "a head moved": ("UPDATE heads SET seq = seq + 1 WHERE ns != ''", "it should be number"),
    "a body invented": ("UPDATE log SET body = '{}', salt = '00' WHERE body IS NULL AND commitment != ''", "was edited|unreadable"),
}


@pytest.mark.parametrize("name", EDITS)
def test_verify_finds_every_edit(folder, name):
    path = made(folder, closed=True)
    sql, said = EDITS[name]
    journal = Journal.open(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)
        if name == "reordered":
            connection.execute("UPDATE log SET seq = -seq WHERE seq < 0")
    report = journal.verify()
    assert not report.ok and any(re.search(said, line) for line in report.faults), report.faults
    journal.close()
    expected = {MARTA: {}, IVAN: {}}  # nothing of what is damaged may be answered; the rest is checked in the tests above
    try:
        with Journal.open(path) as again:
            for namespace in expected:
                try:
                    seen = contents(again.memory(namespace, SCHEMA).memory)
                    assert seen in ({"1": "of ivan"},) or "CHANGED" not in seen.values()
                    assert len(seen) in (1, 29)
                except JournalDamagedError:
                    continue
    except JournalDamagedError:
        pass


def test_an_operation_that_does_not_lead_to_its_entry_is_found_even_when_the_chain_was_resealed(folder):
    _, durable = opened(folder / "s.db")
    for op in (insert("a"), insert("b"), update("1", "c")):
        durable.apply(op, BY)
    records = durable._records()
    assert replay_faults(records, SCHEMA) == []
    body = json.loads(records[2].body)
    body["after"]["content"] = "d"
    forged = resealed(records[2], records[1].head, json.dumps(body))
    assert check(forged.ns, [*records[:2], forged], None, forged.head, None) == []
    assert replay_faults([*records[:2], forged], SCHEMA) == ["operation 3 leads to 'update 1', not to the entry that was recorded"]


def test_a_record_that_was_edited_and_sealed_again_does_not_fit_the_next(folder):
    journal, durable = opened(folder / "s.db")
    for i in range(4):
        durable.apply(insert(f"fact {i}"), BY)
    records = durable._records()
    forged = resealed(records[1], records[0].head, records[1].body.replace("fact 1", "fact X"))
    assert fault(forged, records[0].head, None) == ""  # by itself it is flawless
    found = check(forged.ns, [records[0], forged, *records[2:]], None, records[3].head, None)
    assert [line.split(":")[0] for line in found] == ["operation 3 was moved, or the one before it was edited"]
    with closing(sqlite3.connect(folder / "s.db", isolation_level=None)) as connection:
        connection.execute(
            "UPDATE log SET body = ?, commitment = ?, hash = ? WHERE seq = 2 AND ns = ?",
            (forged.body, forged.commitment, forged.hash, forged.ns),
        )
    assert any("operation 3 was moved" in line for line in journal.verify().faults)


def resealed(record, before, body):
    """A record with another body, on another one before it, and the hashes that fit."""
    draft = replace(record, previous=before.hash, body=body, commitment=commit(body, record.salt))
    return replace(draft, hash=digest(draft.header(), None))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_under_a_running_process_takes_no_write(folder, replaced):
    journal, durable = opened(folder / "s.db")
    durable.apply(insert("first"), BY)
    journal.backup(folder / "b.db")
    for path in folder.glob("s.db*"):
        path.unlink()
    if replaced:
        (folder / "b.db").rename(folder / "s.db")
    with pytest.raises(JournalDamagedError, match="was replaced by another file" if replaced else "was removed"):
        durable.apply(insert("lost"), BY)
    journal.close()
    if replaced:
        journal, durable = opened(folder / "s.db")
        durable.apply(insert("second"), BY)
        assert contents(durable.memory) == {"1": "first", "2": "second"} and journal.verify().ok
        journal.close()


def test_a_log_that_loses_its_end_under_a_running_process_is_noticed(folder):
    """Row and head are taken back together, so that the store by itself looks right."""
    journal, durable = opened(folder / "s.db")
    for i in range(3):
        durable.apply(insert(f"fact {i}"), BY)
    records = durable._records()
    with closing(sqlite3.connect(folder / "s.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM log WHERE ns = ? AND seq = 3", (records[0].ns,))
        connection.execute("UPDATE heads SET seq = 2, hash = ? WHERE ns = ?", (records[1].hash, records[0].ns))
    with pytest.raises(JournalDamagedError, match="had 3 operations and has 2"):
        _ = durable.memory
    journal.close()


def test_a_recorded_schema_that_is_none_is_reported(folder):
    journal, _ = opened(folder / "s.db")
    with journal._log.writing():
        journal._log.register(IVAN, "ab" * 16, 5, "2024-05-01T12:00:00.000000Z")
        journal._log.database.append(
            [seal(root("ab" * 16), None, ns="ab" * 16, kind=Kind.BASE, time="2024-05-01T12:00:00.000000Z")]
        )
    (found,) = journal.verify().faults
    assert "'5' is recorded as a schema" in found
    with pytest.raises(JournalDamagedError, match="'5' is recorded as a schema"):
        journal.schema(IVAN)


def test_the_chain_by_hand():
    """A record sealed with a salt that is known, hashed here with hashlib alone."""
    before = hashlib.sha256(b"memalpha journal ab").hexdigest()
    commitment = hashlib.sha256(bytes(32) + b"{}").hexdigest()
    time = "2024-05-01T12:00:00.000000Z"
    header = json.dumps(["ab", 1, "apply", "1", 0, time, "", commitment, before]).encode()
    hashed = hashlib.sha256(header).hexdigest()
    first = Record("ab", 1, "apply", "1", 0, time, "", commitment, before, hashed, "00" * 32, "{}")
    assert root("ab") == Head(0, before) and commit("{}", "00" * 32) == commitment
    assert fault(first, root("ab"), None) == "" and fault(first, root("ab"), b"k") != ""
    assert digest(first.header(), b"k") == hmac.new(b"k", header, "sha256").hexdigest()
    following = seal(first.head, None, ns="ab", kind=Kind.APPLY, time=time)
    assert (following.seq, following.previous) == (2, hashed) and fault(following, first.head, None) == ""
    heads = {"": Head(1, "x"), "ab": Head(4, "y")}
    total = sum(int(hashlib.sha256(f"{ns} {h.seq} {h.hash}".encode()).hexdigest(), 16) for ns, h in heads.items()) % 2**256
    assert mix(heads.items()) == f"{total:064x}"


OLD = Path(__file__).with_name("old_store.sql")


def test_a_store_of_an_earlier_version_opens_and_goes_on(folder):
    """The dump of a store written with a witness beside it: six operations, a forgetting, a namespace gone."""
    with closing(sqlite3.connect(folder / "old.db")) as connection:
        connection.executescript(OLD.read_text())
    (folder / "old.db.witness").write_text("of no use any more")
    journal, durable = opened(folder / "old.db")
    assert journal.verify().faults == () and journal.namespaces() == (MARTA,)
    assert contents(durable.memory) == {"1": "Marta lives in Rome", "core": "likes rain", "4": "kept"}
    assert durable.as_of(1).get("1").content == "Marta lives in Oslo"
    assert [receipt.entry for receipt in durable.receipts()] == ["3"] and len(journal.receipts()) == 1
    assert durable.apply(insert("new"), BY).entry_id == "5"
    durable.forget("4")
    assert durable.undo(3, BY).after.content == "Marta lives in Oslo" and journal.verify().ok
