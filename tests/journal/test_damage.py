"""Bytes flipped, files cut, rows edited: found and reported, never a wrong answer; and what salvage gets back."""

from __future__ import annotations

import errno
import random
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from stores import BY, IVAN, MARTA, SCHEMA, contents, core, delete, insert, opened, update

from memalpha.errors import InputError, JournalDamagedError, JournalError
from memalpha.store import chain
from memalpha.store.journal import Journal, Namespace
from memalpha.store.records import REGISTRY, Head, Kind, Record
from memalpha.store.salvage import salvage
from memalpha.store.verify import replay_faults
from memalpha.store.witness import State, Witness


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


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("how", ["flip", "cut", "zero"])
def test_damage_of_any_file_is_never_a_wrong_answer(folder, closed, how):
    source = made(folder, closed)
    work = folder / "work"
    shutil.copytree(source.parent, work)
    expected = truth(work / "store.db")
    rng = random.Random(f"{closed}{how}")
    harmless = 0
    files = [file.name for file in source.parent.iterdir() if file.stat().st_size]
    assert {"store.db", "store.db.witness"} <= set(files) and ("store.db-wal" in files) != closed
    for trial in range(24):
        shutil.rmtree(work)
        shutil.copytree(source.parent, work)
        file = work / files[trial % len(files)]
        data = bytearray(file.read_bytes())
        at = rng.randrange(len(data))
        if how == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del data[at:]
        else:
            data[at : at + 300] = bytes(len(data[at : at + 300]))
        file.write_bytes(data)
        harmless += answers_right_or_raises(work / "store.db", expected)
    assert harmless < 24


@pytest.mark.parametrize("lost", ["store.db", "store.db.witness", "store.db-wal"])
def test_a_file_that_is_gone_is_noticed(folder, lost):
    path = made(folder, closed=False)
    path.with_name(lost).unlink()
    with pytest.raises(JournalDamagedError, match=r"gone or empty|is missing or unreadable|acknowledged commits are missing"):
        Journal.open(path)


def test_an_older_copy_in_place_of_the_store_is_noticed(folder):
    journal, durable = opened(folder / "store.db")
    durable.apply(insert("first"), BY)
    journal.close()
    shutil.copy(folder / "store.db", folder / "old")
    journal, durable = opened(folder / "store.db")
    durable.apply(insert("second"), BY)
    journal.close()
    shutil.copy(folder / "old", folder / "store.db")
    with pytest.raises(JournalDamagedError, match="the last 1 of 2 acknowledged commits are missing"):
        Journal.open(folder / "store.db")
    with Journal.open(folder / "store.db", renew_witness=True) as journal:
        assert contents(journal.memory(MARTA, SCHEMA).memory) == {"1": "first"} and journal.verify().ok
    Journal.open(folder / "store.db").close()


EDITS = {
    "edited body": ("UPDATE log SET body = replace(body, 'changed', 'CHANGED')", "its body is not the one"),
    "edited header": ("UPDATE log SET entry = '9' WHERE entry = '3'", "its hash is not that of its header"),
    "edited time": ("UPDATE log SET time = '2020-01-01T00:00:00.000000Z' WHERE seq = 5", "its hash is not that of its header"),
    "missing in the middle": ("DELETE FROM log WHERE seq = 7", "those between are missing"),
    "missing at the start": ("DELETE FROM log WHERE seq < 3 AND ns != ''", "no base stands in for them"),
    "missing at the end": ("DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)", "it should be number"),
    "reordered": ("UPDATE log SET seq = CASE seq WHEN 8 THEN -9 ELSE -8 END WHERE seq IN (8, 9)", "its hash is not that"),
    "a namespace gone": ("DELETE FROM log WHERE ns IN (SELECT ns FROM log GROUP BY ns HAVING count(*) = 1)", "it should be number"),
    "the registry gone": ("DELETE FROM log WHERE ns = ''", "it should be number"),
    "a name in the registry": ("UPDATE log SET body = replace(body, '\"user\"', 'user') WHERE ns = ''", "its body is not the one"),
    "a head moved": ("UPDATE heads SET seq = seq + 1 WHERE ns != ''", "missing or the list of them was edited"),
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
    journal, durable = opened(folder / "s.db")
    for op in (insert("a"), insert("b"), update("1", "c")):
        durable.apply(op, BY)
    records = durable._records()
    assert replay_faults(records, SCHEMA) == []
    forged, head = [], Head(0, chain.root(records[0].ns))
    for record in records:
        values = {name: getattr(record, name) for name in Record.__slots__}
        if record.seq == 3:
            values["body"] = record.body.replace(
                '"after":{"id":"1","section":"facts","content":"c"', '"after":{"id":"1","section":"facts","content":"d"'
            )
            assert values["body"] != record.body
        values |= {"commitment": chain.commit(values["body"], record.salt), "previous": head.hash}
        forged.append(chain.sealed_again(Record(**values), None))
        head = Head(forged[-1].seq, forged[-1].hash)
    assert chain.check(records[0].ns, forged, None, head, None) == []
    assert replay_faults(forged, SCHEMA) == ["operation 3 leads to 'update 1', not to the entry that was recorded"]
    journal.close()


def test_a_record_that_was_edited_and_sealed_again_does_not_fit_the_next(folder):
    journal, durable = opened(folder / "s.db")
    for i in range(4):
        durable.apply(insert(f"fact {i}"), BY)
    records = durable._records()
    values = {name: getattr(records[1], name) for name in Record.__slots__}
    body = records[1].body.replace("fact 1", "fact X")
    forged = chain.sealed_again(Record(**{**values, "body": body, "commitment": chain.commit(body, records[1].salt)}), None)
    ns, last = records[0].ns, Head(4, records[3].hash)
    assert chain.fault(forged, Head(1, records[0].hash), None) == ""  # by itself it is flawless
    found = chain.check(ns, [records[0], forged, *records[2:]], None, last, None)
    assert [line.split(":")[0] for line in found] == ["operation 3 was moved, or the one before it was edited"]
    assert chain.check(ns, [*records[:3], forged], None, last, None) != []
    journal._log.backend.execute(
        "UPDATE log SET body = ?, commitment = ?, hash = ? WHERE seq = 2", (body, forged.commitment, forged.hash)
    )
    assert any("operation 3 was moved" in line for line in journal.verify().faults)
    journal.close()
    (left,) = salvage(folder / "s.db", folder / "new.db")
    assert (left.kept, left.left_behind, left.lost_at) == (2, 2, 3)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_under_a_running_process_takes_no_write(folder, replaced):
    journal, durable = opened(folder / "s.db")
    durable.apply(insert("first"), BY)
    journal.backup(folder / "b.db")
    for path in folder.glob("s.db*"):
        path.unlink()
    if replaced:
        for suffix in ("", ".witness"):
            (folder / f"b.db{suffix}").rename(folder / f"s.db{suffix}")
    with pytest.raises(JournalDamagedError, match="was replaced by another file" if replaced else "was removed"):
        durable.apply(insert("lost"), BY)
    journal.close()
    if replaced:
        journal, durable = opened(folder / "s.db")
        durable.apply(insert("second"), BY)
        assert contents(durable.memory) == {"1": "first", "2": "second"} and journal.verify().ok
        journal.close()


def test_rights_that_are_missing_are_said_so(folder, monkeypatch):
    """By patches, since rights do not bind who runs as root."""
    path = folder / "s.db"
    journal, durable = opened(path)
    durable.apply(insert("first"), BY)

    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    for owner, name in ((Path, "lstat"), (Path, "resolve"), (Path, "open"), (Path, "read_bytes"), (Witness, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refused)
            if owner is Path and name == "open":
                (folder / "s.db.witness").rename(folder / "kept")
            with pytest.raises(JournalError, match=r"(?s)s\.db cannot be used: .*Permission denied.*check the rights"):
                Journal.open(path)
        if (folder / "kept").exists():
            (folder / "kept").rename(folder / "s.db.witness")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refused)
        assert "Permission denied" in " ".join(journal.verify().faults)
    assert journal.verify().ok


@pytest.mark.parametrize("name", ["a\0.db", "x" * 300, "x" * 250, "\ud800"])
def test_names_that_no_store_can_have(folder, name):
    with pytest.raises(InputError, match=r"(?s)a store at .*expected: a name that a file can have"):
        Journal.open(folder / name)
    assert list(folder.iterdir()) == []


def test_a_log_that_loses_its_end_under_a_running_process_is_noticed(folder):
    """Row, head and hash over all heads are taken back together, so that the store by itself looks right."""
    journal, durable = opened(folder / "s.db")
    for i in range(3):
        durable.apply(insert(f"fact {i}"), BY)
    backend, records = journal._log.backend, durable._records()
    ns = records[0].ns
    backend.execute("DELETE FROM log WHERE ns = ? AND seq = 3", (ns,))
    backend.execute("UPDATE heads SET seq = 2, hash = ? WHERE ns = ?", (records[1].hash, ns))
    backend.execute("UPDATE state SET mix = ?", (chain.mix(backend.heads().items()),))
    with pytest.raises(JournalDamagedError, match="had 3 operations and has 2"):
        _ = durable.memory
    assert any("has seen another commit 3" in line for line in journal.verify().faults)
    journal.close()


def test_the_chain_by_hand():
    """Two records sealed with a salt that is known, hashed here with hashlib alone."""
    import hashlib
    import hmac
    import json

    first = Record(
        "ab", 1, "apply", "1", 0, "t", "", hashlib.sha256(bytes(32) + b"{}").hexdigest(), chain.root("ab"), "", "00" * 32, "{}"
    )
    assert chain.root("ab") == hashlib.sha256(b"memalpha journal ab").hexdigest()
    header = json.dumps(["ab", 1, "apply", "1", 0, "t", "", first.commitment, chain.root("ab")]).encode()
    assert chain.sealed_again(first, None).hash == hashlib.sha256(header).hexdigest()
    assert chain.sealed_again(first, b"k").hash == hmac.new(b"k", header, "sha256").hexdigest()
    sealed = chain.sealed_again(first, None)
    assert chain.fault(sealed, Head(0, chain.root("ab")), None) == ""
    assert chain.seal(Head(1, sealed.hash), None, ns="ab", kind=Kind.APPLY, time="t").previous == sealed.hash
    heads = {"": Head(1, "x"), "ab": Head(4, "y")}
    total = sum(int(hashlib.sha256(f"{ns} {h.seq} {h.hash}".encode()).hexdigest(), 16) for ns, h in heads.items()) % 2**256
    assert chain.mix(heads.items()) == f"{total:064x}" == chain.remix(chain.mix([("", heads[""])]), None, ("ab", heads["ab"]))
    assert REGISTRY == ""


def test_the_witness_survives_a_write_cut_short(folder):
    witness = Witness(folder / "w")
    assert witness.read() == (None, 2)
    for commits in range(5):
        witness.write(State(commits, f"{commits:064x}"))
    assert witness.read() == (State(4, f"{4:064x}"), 0)
    data = bytearray((folder / "w").read_bytes())
    data[3] ^= 1  # in the slot of commit 4
    (folder / "w").write_bytes(data)
    assert witness.read() == (State(3, f"{3:064x}"), 1)
    witness.write(State(5, "5" * 64))
    witness.write(State(6, "6" * 64))
    assert witness.read() == (State(6, "6" * 64), 0)


# ------------------------------------------------------------------------------------------------ salvage
def test_salvage_takes_each_namespace_up_to_what_is_lost(folder):
    path = made(folder, closed=True)
    expected = truth(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE log SET body = replace(body, 'fact 19', 'FACT 19')")
    original = path.read_bytes()
    report = {str(s.namespace): s for s in salvage(path, folder / "new.db")}
    marta = report[str(MARTA)]
    assert (marta.kept, marta.left_behind, marta.lost_at) == (19, 19, 20)
    assert (report[str(IVAN)].kept, report[str(IVAN)].lost_at) == (1, None)
    with Journal.open(folder / "new.db") as journal:
        assert journal.verify().ok
        kept = contents(journal.memory(MARTA, SCHEMA).memory)
        assert kept == {str(i + 1): f"fact {i} " + "z" * (i * 11) if i else "fact 0" for i in range(19) if i != 4}
        assert contents(journal.memory(IVAN, SCHEMA).memory) == expected[IVAN]
        assert journal.memory(MARTA, SCHEMA).apply(insert("goes on"), BY).entry_id == "20"
    assert path.read_bytes() == original
    with pytest.raises(InputError, match="exists"):
        salvage(path, folder / "new.db")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_salvage_of_a_file_that_was_cut_keeps_a_true_beginning(folder, share):
    path = made(folder, closed=True)
    with Journal.open(path) as journal:
        states = [contents(journal.memory(MARTA, SCHEMA).as_of(seq)) for seq in range(40)]
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share) // 4096 * 4096])
    try:
        salvaged = salvage(path, folder / "new.db")
    except JournalDamagedError as error:
        assert "nothing in" in str(error)
        return
    with Journal.open(folder / "new.db") as journal:
        assert journal.verify().ok
        for found in salvaged:
            if found.namespace == MARTA and found.kept:
                assert contents(journal.memory(MARTA, SCHEMA).memory) == states[found.kept]


def test_salvage_puts_nothing_beside_the_damaged_file(folder, make_disk):
    """It may be on a file system that cannot be written."""
    disk = make_disk("4m")
    journal, durable = opened(disk / "s.db")
    durable.apply(insert("first"), BY)
    journal.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    (found,) = salvage(disk / "s.db", folder / "new.db")
    assert found.kept == 1 and contents(opened(folder / "new.db")[1].memory) == {"1": "first"}
    with pytest.raises(JournalError, match=r"cannot be copied to .*disk"):
        salvage(folder / "new.db", disk / "again.db")
    with pytest.raises(InputError, match="no folder"):
        salvage(disk / "s.db", folder / "no" / "new.db")


def test_nothing_left_is_said_so(folder):
    (folder / "rubbish").write_bytes(b"\x00" * 5000)
    with pytest.raises(JournalDamagedError, match="can be read"):
        salvage(folder / "rubbish", folder / "new.db")
