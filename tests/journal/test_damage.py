"""Bytes flipped, files cut, rows edited: found and reported, never a wrong answer, and never
another error than one of a store."""

import hashlib
import hmac
import json
import random
import re
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from memalpha.errors import JournalDamagedError, JournalError
from memalpha.memory.schema import ARCHIVE
from memalpha.store.journal import Journal
from memalpha.store.records import (
    Head,
    Record,
    RecordKind,
    check,
    commit,
    fault,
    hash_header,
    mix,
    root,
    seal,
)
from tests.helpers.stores import (
    BY,
    IVAN,
    MARTA,
    SCHEMA,
    contents,
    core,
    delete,
    insert,
    opened,
    update,
)


def made(folder: Path) -> Path:
    (path := folder / "source" / "store.db").parent.mkdir()
    journal, durable = opened(path)
    for i in range(30):
        durable.apply(insert(f"fact {i} " + "z" * (i * 11)), BY)
    durable.apply(update("3", "changed"), BY)
    durable.apply(delete("4"), BY)
    durable.forget("5")
    journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
    for chunk in range(4):
        with durable.writing(BY) as memory:
            for i in range(9):
                text = f"line {i} of text {chunk} " + "y" * (i * 17)
                memory.apply(insert(text, ARCHIVE.name), chunk=chunk)
    durable.forget(memory.entries(ARCHIVE.name)[20].id)
    for i in range(6):
        durable.apply(core(f"core {i}"), BY)
    journal.close()
    return path


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def answers(path):
    found = {}
    with suppress(JournalError), Journal.open(path, wait=1.0) as journal:
        journal.verify()
        for name in (MARTA, IVAN):
            with suppress(JournalError):
                memory = journal.memory(name, SCHEMA).memory
                lines = memory.entries(ARCHIVE.name)
                found[name] = {**contents(memory), **{line.id: line.content for line in lines}}
    return found


def spoil(file: Path, how: str, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at = rng.randrange(1, len(data))
    flipped = bytes([data[at] ^ 1 << rng.randrange(8)])
    zeros = bytes(len(data[at : at + 300]))
    spoilt = {"flip": flipped + data[at + 1 :], "cut": b"", "zero": zeros + data[at + 300 :]}
    file.write_bytes(data[:at] + spoilt[how])


@pytest.mark.parametrize("how", ["flip", "cut", "zero"])
def test_damage_of_the_database_is_never_a_wrong_answer(folder, how):
    source, work = made(folder), folder / "work"
    expected, rng, refused = answers(source), random.Random(how), 0
    for _ in range(20):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source.parent, work)
        spoil(work / "store.db", how, rng)
        said = answers(work / "store.db")
        assert said.items() <= expected.items()
        refused += len(said) < 2
    assert len(expected) == 2 and refused > 0


EDITS = {
    "an erasure without a receipt": (
        "UPDATE log SET body = NULL, salt = NULL WHERE seq = 2 AND ns != ''",
        r"operations \[2\] have lost their content, but no receipt",
    ),
    "edited body": (
        "UPDATE log SET body = replace(body, 'changed', 'CHANGED')",
        "its body is not the one",
    ),
    "an edited line": (
        "UPDATE log SET body = replace(body, 'line 4 of text 3', 'line CHANGED')",
        "its body is not the one",
    ),
    "an edited line beside a forgotten one": (
        "UPDATE log SET body = replace(body, 'line 4 of text 2', 'line CHANGED')",
        "its body is not the one",
    ),
    "a line taken out": (
        f"UPDATE log SET body = replace(body, 'line 4 of text 3 {'y' * 68}', '')",
        "its body is not the one",
    ),
    "a kind of another version": (
        "UPDATE log SET kind = 'words' WHERE kind = 'lines'",
        "its hash is not that of its header",
    ),
    "edited header": (
        "UPDATE log SET entry = '9' WHERE entry = '3'",
        "its hash is not that of its header",
    ),
    "missing in the middle": ("DELETE FROM log WHERE seq = 7", "those between are missing"),
    "missing at the start": (
        "DELETE FROM log WHERE seq < 3 AND ns != ''",
        "those between are missing",
    ),
    "missing at the end": (
        "DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)",
        "but should be number",
    ),
    "reordered": (
        "UPDATE log SET seq = CASE seq WHEN 8 THEN -9 ELSE -8 END WHERE seq IN (8, 9)",
        "its hash is not that",
    ),
    "the registry gone": ("DELETE FROM log WHERE ns = ''", "but should be number"),
    "a head moved": ("UPDATE heads SET seq = seq + 1 WHERE ns != ''", "but should be number"),
    "a body invented": (
        "UPDATE log SET body = '{}', salt = '00' WHERE body IS NULL AND commitment != ''",
        "was edited|unreadable",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_verify_finds_every_edit(folder, name):
    path = made(folder)
    statement, said = EDITS[name]
    sql(path, statement, "UPDATE log SET seq = -seq WHERE seq < 0")
    with Journal.open(path) as journal:
        faults = journal.verify().faults
    assert any(re.search(said, line) for line in faults), faults
    seen = answers(path)  # nothing of what is damaged may be answered
    assert seen.get(IVAN, {"1": "of ivan"}) == {"1": "of ivan"} and "CHANGED" not in str(
        seen.get(MARTA, {})
    )
    assert MARTA not in seen or len(seen[MARTA]) == 29 + 35


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_under_a_running_process_takes_no_write(
    folder, replaced
):
    _, durable = opened(folder / "s.db")
    durable.apply(insert("first"), BY)
    sql(folder / "s.db", f"VACUUM INTO '{folder}/b.db'")
    for path in folder.glob("s.db*"):
        path.unlink()
    if replaced:
        (folder / "b.db").rename(folder / "s.db")
    with pytest.raises(
        JournalDamagedError, match="was replaced by another file" if replaced else "was removed"
    ):
        durable.apply(insert("lost"), BY)


def test_the_chain_by_hand():
    before = hashlib.sha256(b"memalpha journal ab").hexdigest()
    commitment = hashlib.sha256(bytes(32) + b"{}").hexdigest()
    time = "2024-05-01T12:00:00.000000+00:00"
    header = json.dumps(["ab", 1, "apply", "1", time, "", commitment, before]).encode()
    hashed = hashlib.sha256(header).hexdigest()
    first = Record("ab", 1, "apply", "1", time, "", commitment, before, hashed, "00" * 32, "{}")
    assert root("ab") == Head(0, before) and commit("{}", "00" * 32) == commitment
    assert fault(first, root("ab"), None) == "" and fault(first, root("ab"), b"k") != ""
    assert hash_header(first.header(), b"k") == hmac.new(b"k", header, "sha256").hexdigest()
    following = seal(first.head, None, ns="ab", kind=RecordKind.APPLY, time=time)
    assert (following.seq, following.previous) == (2, hashed)
    assert check([first, following], root("ab"), following.head, None) == []
    hashes = [hashlib.sha256(text).hexdigest() for text in (b" 1 x", b"ab 4 y")]
    total = sum(int(digest, 16) for digest in hashes) % 2**256
    assert mix({"": Head(1, "x"), "ab": Head(4, "y")}.items()) == f"{total:064x}"
