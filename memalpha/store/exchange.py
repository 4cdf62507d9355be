"""Export and import of a store as JSON Lines, without loss: with hashes, salts and receipts, so
that an export can be verified.

    {"format": "memalpha-journal", "version": 2}
    {"begin": <id>, "user": ..., "agent": ..., "session": ..., "schema": ..., "time": ...}
    {"record": [<id>, seq, kind, entry, time, note, commitment, previous, hash, salt, body]}
    {"forgotten": <id>, "time": ..., "note": ...}    one for each, of the whole store only
    {"end": <number of lines before this one>}

An import is all or nothing, and replays each namespace, since without a key anybody can compute
valid hashes. Not covered: an old export still holds an entry that was forgotten later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from memalpha.errors import ForgottenError, InputError, JournalError, MemAlphaError
from memalpha.files import flush, replacing
from memalpha.memory.memory import Memory
from memalpha.store.chain import Tail
from memalpha.store.history import events_of, replay, schema_of, shape
from memalpha.store.journal import Journal
from memalpha.store.records import (
    Chain,
    Namespace,
    Record,
    RecordKind,
    Registration,
    Stamp,
    check,
    root,
)
from memalpha.types import JsonObject

_OTHER = (
    "import chats and memories of other systems with memalpha import FILE --store STORE --user NAME"
)
_UNEDITED = "the file as export wrote it, without edits"
_FORMAT = {"format": "memalpha-journal", "version": 2}
_READ = (_FORMAT, {**_FORMAT, "version": 1})  # which had no records of lines


class _Begin(Registration):
    begin: Chain
    time: Stamp


class _ForgottenLine(BaseModel):
    forgotten: Chain


class _RecordLine(BaseModel):
    record: Record


_LINES: dict[str, type[BaseModel]] = {
    "begin": _Begin,
    "record": _RecordLine,
    "forgotten": _ForgottenLine,
}


def export_journal(journal: Journal, path: str | Path, namespace: Namespace | None = None) -> int:
    """Write one namespace, or the whole store, to a new file (none is left after an error); return
    the number of operations.
    """
    path = Path(path)
    if path.exists() or not path.parent.is_dir():
        raise InputError(
            f"{path} cannot be made",
            expected="a new file in a folder that exists",
        )
    lines: list[JsonObject] = [_FORMAT]
    operations = 0
    with journal.reading():
        for name in journal.registered if namespace is None else (namespace,):
            begun = journal.registration(name)
            ns = begun.entry
            shape_then = begun.read(Registration).shape
            lines.append({"begin": ns, **asdict(name), "schema": shape_then, "time": begun.time})
            tail = Tail(journal.database, journal.key, ns, str(name))
            lines += [{"record": record} for record in tail.read_on()]
            operations += tail.head.seq
        for ns, receipt in journal.forgotten.items() if namespace is None else ():
            lines.append({"forgotten": ns, "time": receipt.time, "note": receipt.note})
    lines.append({"end": len(lines)})
    try:
        with replacing(path) as temporary:
            temporary.touch(0o600)
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
            flush(temporary)
    except (OSError, ValueError) as error:
        raise JournalError(
            f"{path} could not be written: {error}", fix="free disk space, or give another path"
        ) from error
    return operations


def import_journal(journal: Journal, path: str | Path) -> int:
    """Read an export into a store; return the number of operations.

    InputError names the wrong line or record; ForgottenError if forgotten here.
    """
    begins: dict[str, _Begin] = {}
    chains: dict[str, list[Record]] = {}
    lines = [(*line, _parse(*line)) for line in read_export(Path(path))]
    records = [each.record for *_, each in lines if isinstance(each, _RecordLine)]
    last = {record.ns: record.seq for record in records}
    with journal.writing():
        for where, line, parsed in lines:
            match parsed:
                case _Begin() as begin:
                    _begin(journal, begin, where, last.get(begin.begin, 0))
                    begins[begin.begin] = begin
                    chains[begin.begin] = []
                case _RecordLine(record=record) if record.ns in chains:
                    chains[record.ns].append(record)
                case _ForgottenLine(forgotten=ns):
                    _take_receipt(journal, ns, where)
                case _:
                    raise InputError(
                        f"{where} holds {list(line)[:5]}",
                        expected="a line of an export, after that of its namespace",
                    )
        for ns, records in chains.items():
            problem = _problem(begins[ns], records, journal.key)
            if problem:
                raise InputError(
                    f"{path}, namespace {begins[ns].namespace}: {problem}",
                    expected=f"{_UNEDITED}, and its key",
                )
            journal.database.append(records)
    return sum(records[-1].seq for records in chains.values())


def _problem(begin: _Begin, records: Sequence[Record], key: bytes | None) -> str:
    """Return what is wrong with the records of a namespace; empty if they can be taken in."""
    if not records:
        return "the namespace has no records"
    faults = check(records, root(begin.begin), records[-1].head, key)
    try:
        replay(Memory(schema_of(begin.shape)), events_of(records))
    except MemAlphaError as error:
        faults.append(error.what)
    return "; ".join(faults)


def _parse(where: str, line: JsonObject) -> BaseModel | None:
    try:
        models = [model for name, model in _LINES.items() if name in line]
        return models[0].model_validate(line) if models else None
    except ValidationError as error:
        wrong = error.errors()[0]
        raise InputError(
            f"{where}: {'.'.join(map(str, wrong['loc']))} is {repr(wrong['input'])[:80]}",
            expected=f"{_UNEDITED} ({wrong['msg']})",
        ) from error


def _begin(journal: Journal, line: _Begin, where: str, last: int) -> None:
    try:
        name = line.namespace
        if shape(schema_of(line.shape)) != line.shape:
            raise InputError(f"{line.shape} does not describe a schema")
    except MemAlphaError as error:
        raise InputError(f"{where}: {error.what}", expected=_UNEDITED) from error
    receipt = journal.forgotten.get(line.begin)
    if receipt:
        raise ForgottenError(
            f"{where}: the namespace {line.begin} was forgotten in this store at {receipt.time}"
        )
    if name in journal.registered or line.begin in _alive(journal):
        raise InputError(
            f"{where}: the namespace {name} exists already in this store",
            expected="a store without this namespace",
            fix="forget the namespace first",
        )
    body = {**asdict(name), "schema": line.shape, "imported": last}
    journal.register(RecordKind.BEGIN, line.begin, line.time, body=body)


def _alive(journal: Journal) -> dict[str, Namespace]:
    return {record.entry: name for name, record in journal.registered.items()}


def _take_receipt(journal: Journal, ns: str, where: str) -> None:
    name = _alive(journal).get(ns)
    if name:
        raise InputError(
            f"{where}: the namespace {name} was forgotten in the store of this "
            "export, but exists in this store",
            fix="forget the namespace in this store first",
        )
    if ns not in journal.forgotten:
        journal.register(RecordKind.FORGET, ns, note="{}")


def read_export(path: Path) -> list[tuple[str, JsonObject]]:
    """Return the lines between first and last of an export, each with its place; InputError if it
    is incomplete or no export.
    """
    lines = list[tuple[str, JsonObject]]()
    where = str(path)
    try:
        for number, row in enumerate(path.read_text("ascii").splitlines(), 1):
            where = f"{path}, line {number}"
            line = from_json(row)  # refuses lone surrogates and what is nested deeply
            if not isinstance(line, dict):
                raise ValueError(f"it holds {row[:80]}")
            lines.append((where, line))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{where} cannot be read: {error}", expected=_UNEDITED, fix=_OTHER
        ) from error
    if not lines or lines[0][1] not in _READ:
        raise InputError(
            f"{path} is not an export of a store",
            expected=f"a first line {json.dumps(_FORMAT)}",
            fix=_OTHER,
        )
    if lines[-1][1] != {"end": len(lines) - 1}:
        raise InputError(
            f"{path} was cut off: it ends at line {len(lines)} without the line "
            "that closes an export",
            expected="a complete export",
        )
    return lines[1:-1]
