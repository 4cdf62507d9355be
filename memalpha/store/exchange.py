"""Lossless export and import as JSON Lines, with hashes, salts and receipts, so that an export can
be verified.

    {"format": "memalpha-journal", "version": 1}
    {"begin": <id>, "user": ..., "agent": ..., "session": ..., "schema": ..., "time": ...}
    {"record": [<id>, seq, kind, entry, gone, time, note, commitment, previous, hash, salt, body]}
    one for each {"forgotten": <id>, "time": ..., "note": ...}                                    of
    the whole store only {"end": <number of lines before this one>}

An import is all or nothing, and replays each namespace, since without a key anybody can compute
valid hashes. Not covered: an old export still holds an entry that was forgotten later.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from memalpha.errors import ForgottenError, InputError, JournalError, MemAlphaError
from memalpha.store.memory import JournalMemory, schema_of, shape
from memalpha.store.records import (
    Chain,
    Kind,
    Namespace,
    Note,
    Record,
    Registered,
    Stamp,
    check,
    fault,
    root,
)

if TYPE_CHECKING:
    from memalpha.store.journal import Journal

_UNEDITED = "what export wrote, edited by nobody"
_FORMAT = {"format": "memalpha-journal", "version": 1}


class _Begin(Registered):
    begin: Chain
    time: Stamp


class _Forgotten(BaseModel):
    forgotten: Chain


class _Row(BaseModel):
    record: Record


_LINES: dict[str, type[BaseModel]] = {"begin": _Begin, "record": _Row, "forgotten": _Forgotten}


def export_to(journal: Journal, path: str | Path, namespace: Namespace | None = None) -> int:
    """Write one namespace, or the whole store, to a new file (none is left after an error); return
    the number of records.
    """
    path, lines = Path(path), list[dict[str, Any]]([_FORMAT])
    with journal.reading():
        for name in journal.begun if namespace is None else (namespace,):
            begun = journal.registered(name)
            lines.append(
                {"begin": begun.ns, **asdict(name), "schema": begun.shape, "time": begun.time}
            )
            lines += [{"record": record} for record in journal.stretch(begun.ns)]
        if namespace is None:
            lines += [
                {"forgotten": ns, "time": found.time, "note": found.note}
                for ns, found in journal.forgotten.items()
            ]
    lines.append({"end": len(lines)})
    try:
        with open(
            path, "x", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as file:
            try:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink()
                raise
    except (FileExistsError, FileNotFoundError, ValueError) as error:
        raise InputError(
            f"{path} cannot be made: {error}", expected="a new file in a folder that exists"
        ) from error
    except OSError as error:
        raise JournalError(
            f"{path} could not be written: {error}", fix="make room, or name another place"
        ) from error
    return sum("record" in line for line in lines)


def import_from(journal: Journal, path: str | Path) -> int:
    """Read an export; return the number of records. InputError names the wrong line; ForgottenError
    if forgotten here.
    """
    path = Path(path)
    lines = read_export(path)
    chains: dict[str, tuple[_Begin, list[tuple[str, Record]]]] = {}
    with journal.writing():
        for number, line in lines:
            where = f"{path}, line {number}"
            try:
                found = next(
                    (kind.model_validate(line) for name, kind in _LINES.items() if name in line),
                    None,
                )
            except ValidationError as error:
                wrong = error.errors()[0]
                what = f"{where}: {'.'.join(map(str, wrong['loc']))} is {repr(wrong['input'])[:80]}"
                raise InputError(what, expected=f"{_UNEDITED} ({wrong['msg']})") from error
            match found:
                case _Begin() as begin:
                    _begin(journal, begin, where)
                    chains[begin.begin] = begin, []
                case _Row(record=record) if record.ns in chains:
                    chains[record.ns][1].append((where, record))
                case _Forgotten(forgotten=ns):
                    if alive := next(
                        (name for name, begun in journal.begun.items() if begun.ns == ns), None
                    ):
                        what = f"{where}: the namespace {alive} was forgotten where this export comes from, and is alive here"
                        raise InputError(what, fix="forget it here first")
                    if ns not in journal.forgotten:
                        journal.register(Kind.FORGET, ns, gone=True, note="{}")
                case _:
                    raise InputError(
                        f"{where} holds {list(line)[:5]}",
                        expected="a line of an export, after that of its namespace",
                    )
        for begin, rows in chains.values():
            _add(journal, begin, rows, path)
    return sum(len(rows) for _, rows in chains.values())


def _begin(journal: Journal, line: _Begin, where: str) -> None:
    try:
        name = line.namespace
        if shape(schema_of(line.shape)) != line.shape:
            raise InputError(f"{line.shape} is no shape of a schema")
    except MemAlphaError as error:
        raise InputError(f"{where}: {error.what}", expected=_UNEDITED) from error
    if line.begin in journal.forgotten:
        raise ForgottenError(
            f"{where}: namespace {line.begin} was forgotten here at {journal.forgotten[line.begin].time}"
        )
    if name in journal.begun or line.begin in {begun.ns for begun in journal.begun.values()}:
        raise InputError(
            f"{where}: the namespace {name} is there already",
            expected="a store without it",
            fix="forget it first",
        )
    journal.register(Kind.BEGIN, line.begin, line.time, body={**asdict(name), "schema": line.shape})


def _add(journal: Journal, begin: _Begin, rows: list[tuple[str, Record]], path: Path) -> None:
    memory, last, records = (
        JournalMemory(schema_of(begin.shape)),
        root(begin.begin),
        [record for _, record in rows],
    )
    time = ""
    for where, record in rows:
        problem = fault(record, last, journal.key) or "goes back in time" * (record.time < time)
        try:
            record.read(Note)
            memory.replay([record])
        except MemAlphaError as error:
            problem = problem or error.what
        if problem:
            raise InputError(
                f"{where}: operation {record.seq} {problem}", expected=f"{_UNEDITED}, and its key"
            )
        last, time = record.head, record.time
    faults = (
        check(records, root(begin.begin), last, journal.key) if records else ["it has no records"]
    )
    if faults:
        place = rows[-1][0] if rows else path
        raise InputError(
            f"{place}, the end of namespace {begin.namespace}: {faults[0]}", expected=_UNEDITED
        )
    journal.database.append(records)


def read_export(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbered lines between first and last of an export; InputError if it is incomplete
    or no export.
    """
    try:
        rows = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="what export wrote") from error
    lines = [_parsed(row, f"{path}, line {number}") for number, row in enumerate(rows, 1)]
    if not lines or lines[0] != _FORMAT:
        raise InputError(
            f"{path} is no export of a journal", expected=f"a first line {json.dumps(_FORMAT)}"
        )
    if lines[-1] != {"end": len(lines) - 1}:
        raise InputError(
            f"{path} was cut: it ends at line {len(lines)} without saying so",
            expected="a whole export",
        )
    return list(enumerate(lines[1:-1], 2))


def _parsed(row: str, where: str) -> dict[str, Any]:
    try:
        line = from_json(row)  # refuses lone surrogates and what is nested deeply
    except ValueError as error:
        raise InputError(f"{where} is no JSON: {error}", expected=_UNEDITED) from error
    if not isinstance(line, dict):
        raise InputError(f"{where} holds {row[:80]}", expected=_UNEDITED)
    return line
