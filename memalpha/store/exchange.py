"""Lossless export and import as JSON Lines, with hashes, salts and receipts, so that an export can be verified.

    {"format": "memalpha-journal", "version": 1}
    {"begin": <id>, "user": ..., "agent": ..., "session": ..., "schema": ..., "time": ...}
    {"record": [<id>, seq, kind, entry, gone, time, note, commitment, previous, hash, salt, body]}     one for each
    {"forgotten": <id>, "time": ..., "note": ...}                                    of the whole store only
    {"end": <number of lines before this one>}

An import is all or nothing. It refuses namespaces that exist here or were forgotten here, and receipts of namespaces that are alive
here. It checks the form of each line and replays each namespace, since without a key anybody can compute valid hashes. Not covered:
an old export still holds an entry that was forgotten later; delete such exports yourself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from memalpha.errors import ForgottenError, InputError, JournalError, MemAlphaError
from memalpha.store.durable import no_namespace
from memalpha.store.log import Log
from memalpha.store.memory import JournalMemory, events, receipts, schema_of
from memalpha.store.records import Namespace, Note, Record, Stamp, check

_FORMAT = {"format": "memalpha-journal", "version": 1}
_SHOWN = 80  # longest shown part of a wrong value, in characters


def _text(pattern: str) -> Any:
    return Field(strict=True, pattern=f"^{pattern}$")


_Chain = Annotated[str, _text("[0-9a-f]{32}")]
_Hash = Annotated[str, _text("[0-9a-f]{64}")]
_Ascii = Annotated[str, _text(r"[\x20-\x7e]*")]


class _Begin(BaseModel):
    model_config = ConfigDict(strict=True)
    begin: _Chain
    user: str
    agent: str
    session: str
    shape: Any = Field(alias="schema")
    time: Stamp


class _Forgotten(BaseModel):
    model_config = ConfigDict(strict=True)
    forgotten: _Chain
    time: Stamp
    note: _Ascii


class _Row(BaseModel):
    record: tuple[
        _Chain,
        Annotated[int, Field(strict=True, ge=1, lt=1 << 63)],
        Annotated[str, _text("(apply|undo|base|keep|forget)")],
        Annotated[str, _text("[0-9a-z_]{0,1000}")],
        Annotated[int, Field(strict=True, ge=0, le=1)],
        Stamp,
        _Ascii,
        _Hash | Annotated[str, _text("")],
        _Hash,
        _Hash,
        _Hash | None,
        _Ascii | None,
    ]


_LINES: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(kind) for name, kind in (("begin", _Begin), ("record", _Row), ("forgotten", _Forgotten))
}


def export_to(log: Log, path: Path, namespace: Namespace | None = None) -> int:
    """Write one namespace, or the whole store, to a new file; return the number of records.

    InputError if the file exists (or a partial export of it), its folder or the namespace does not; JournalDamagedError if the
    store is damaged (nothing is written).
    """
    path = new_file(path)
    with log.reading():
        if namespace is not None and namespace not in log.begun:
            raise no_namespace(namespace)
        lines = list(_lines(log, [namespace] if namespace is not None else list(log.begun), whole=namespace is None))
    lines.append({"end": len(lines)})
    draft = path.with_name(path.name + ".part")
    try:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError as error:
        raise InputError(
            f"{draft} exists: an export to {path} was cut off, or is running", fix="delete it, if no export runs"
        ) from error
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritten(path, error) from error
        raise
    return sum("record" in line for line in lines)


def new_file(path: str | Path) -> Path:
    """Return the path for a new file; InputError if it exists or cannot be created, JournalError if rights are missing."""
    try:
        target = Path(path)
        target.stat()
    except FileNotFoundError:
        if target.parent.is_dir():
            return target
        raise InputError(
            f"no folder {str(target.parent)!r}", expected="a new file in a folder that exists", fix="make it"
        ) from None
    except ValueError as error:
        raise InputError(f"a file {str(path)!r}: {error}", expected="a name that a file can have") from error
    except OSError as error:
        raise _unwritten(path, error) from error
    raise InputError(f"{target} exists", expected="the name of a new file")


def _unwritten(path: str | Path, error: OSError) -> JournalError:
    return JournalError(f"{path} could not be written: {error}", fix="make room, or name another place")


def _lines(log: Log, names: Iterable[Namespace], whole: bool) -> Iterator[dict[str, Any]]:
    yield _FORMAT
    for name in names:
        begun = log.begun[name]
        about = {"user": name.user, "agent": name.agent, "session": name.session, "schema": begun.shape, "time": begun.time}
        yield {"begin": begun.ns, **about}
        for record in log.stretch(begun.ns):
            yield {"record": [getattr(record, field) for field in Record.__slots__]}
    if whole:
        for ns, receipt in log.forgotten.items():
            yield {"forgotten": ns, "time": receipt.time, "note": receipt.note}


def import_from(log: Log, path: Path) -> int:
    """Read an export; return the number of records.

    InputError (with the line) if the file is no complete export or its namespaces conflict with this store; ForgottenError if one
    of them was forgotten here.
    """
    lines = read_export(path)
    chains: dict[str, list[Record]] = {}
    with log.writing():
        for number, line in lines:
            where = f"{path}, line {number}"
            match _parsed(line, where):
                case _Begin() as begin:
                    _begin(log, begin, where)
                    chains[begin.begin] = []
                case _Row(record=values):
                    if values[0] not in chains:
                        raise InputError(f"{where}: a record of a namespace that was not begun", expected="an export")
                    chains[values[0]].append(Record(*values))
                case _Forgotten() as forgotten:
                    _forgotten(log, forgotten, where)
        for ns, records in chains.items():
            _add(log, ns, records, path)
    return sum(map(len, chains.values()))


def _parsed(line: dict[str, Any], where: str) -> Any:
    kind = next((adapter for name, adapter in _LINES.items() if name in line), None)
    if kind is None:
        raise InputError(f"{where} holds {list(line)[:5]}", expected=f"one of {', '.join(_LINES)}: lines this version knows")
    try:
        return kind.validate_python(line)
    except ValidationError as error:
        found = error.errors()[0]
        field = ".".join(map(str, found["loc"]))
        raise InputError(
            f"{where}: {field} is {repr(found['input'])[:_SHOWN]}", expected=f"an export that nobody edited ({found['msg']})"
        ) from error


def _begin(log: Log, line: _Begin, where: str) -> None:
    try:
        name = Namespace(line.user, line.agent, line.session)
        schema_of(line.shape)
    except MemAlphaError as error:
        raise InputError(f"{where}: {error.what}", expected=error.expected) from error
    if line.begin in log.forgotten:
        raise ForgottenError(f"{where}: namespace {line.begin} was forgotten here at {log.forgotten[line.begin].time}")
    if name in log.begun or log.database.head(line.begin).seq or line.begin in {begun.ns for begun in log.begun.values()}:
        raise InputError(f"{where}: the namespace {name} is there already", expected="a store without it", fix="forget it first")
    log.register(name, line.begin, line.shape, line.time)


def _forgotten(log: Log, line: _Forgotten, where: str) -> None:
    """Take over the receipt of a namespace that was forgotten in the exporting store."""
    try:
        facts = Note.model_validate(json.loads(line.note))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: the note of a receipt is {line.note[:_SHOWN]!r}", expected='JSON with "operations"') from error
    if line.forgotten in log.forgotten:
        return
    if (alive := next((name for name, begun in log.begun.items() if begun.ns == line.forgotten), None)) is not None:
        raise InputError(
            f"{where}: the namespace {alive} was forgotten where this export comes from, and is alive here",
            expected="a store that has forgotten it too; an import erases nothing",
            fix="forget it here first, or import an export of the other namespaces alone",
        )
    log.unregister(line.forgotten, json.dumps({"operations": facts.operations or 0}))


def _add(log: Log, ns: str, records: Sequence[Record], path: Path) -> None:
    if not records:
        raise InputError(f"{path}: namespace {ns} has no records", expected="an export that was not cut")
    faults = check(ns, records, None, records[-1].head, log.key)
    if faults or any(later.time < earlier.time for earlier, later in pairwise(records)):
        said = "; ".join(faults[:3]) or "its times go back"
        raise InputError(f"{path}, namespace {ns}: {said}", expected="an export that nobody edited, and its key")
    shape = next(begun.shape for begun in log.begun.values() if begun.ns == ns)
    try:
        JournalMemory(schema_of(shape)).replay(records)
        for _ in events(records):
            pass
        receipts(records)
    except MemAlphaError as error:
        raise InputError(
            f"{path}, namespace {ns}: {error.what}", expected="the schema it was begun with, and whole records"
        ) from error
    log.database.append(records)


def read_export(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbered lines between first and last of an export; InputError if it is incomplete or no export."""
    try:
        lines = [(i, json.loads(line)) for i, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1)]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="what export wrote") from error
    if not lines or lines[0][1] != _FORMAT or any(not isinstance(line, dict) for _, line in lines):
        raise InputError(f"{path} is no export of a journal", expected=f"a first line {json.dumps(_FORMAT)}")
    if lines[-1][1] != {"end": len(lines) - 1}:
        raise InputError(f"{path} was cut: it ends at line {len(lines)} without saying so", expected="a whole export")
    return lines[1:-1]
