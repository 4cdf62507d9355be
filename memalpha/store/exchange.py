"""Export and import: JSON Lines, lossless down to hashes, salts and receipts, so that an export proves itself wherever it goes.

    {"format": "memalpha-journal", "version": 1}
    {"begin": <id>, "user": ..., "agent": ..., "session": ..., "schema": ..., "time": ...}
    {"record": [<id>, seq, kind, entry, gone, time, note, commitment, previous, hash, salt, body]}     one for each
    {"forgotten": <id>, "time": ..., "note": ...}                                    of the whole store only
    {"end": <number of lines before this one>}

An import is all or nothing. It refuses a namespace that is there already, and one that was forgotten: an old export does not
bring back what was forgotten since. It erases nothing: the receipt of a namespace that is alive here is refused. (The
content of a single entry forgotten since is still in an old export; exports are the user's to delete.) Hashes cover the records
alone; the lines ``begin`` and ``forgotten`` are checked for their form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import ForgottenError, InputError, JournalDamagedError, JournalError
from memalpha.store import chain
from memalpha.store.log import Log
from memalpha.store.memory import JournalMemory
from memalpha.store.records import REGISTRY, Head, Kind, Namespace, Record, moment_of, stamp
from memalpha.store.verify import schema_of

_FORMAT = {"format": "memalpha-journal", "version": 1}
_NUMBERS, _ERASABLE = {"seq", "gone"}, {"salt", "body"}


def no_namespace(namespace: Namespace) -> InputError:
    """Return the error for a namespace that a store does not have."""
    return InputError(
        f"no namespace {namespace}",
        expected="a namespace of this store",
        fix="memalpha journal namespaces STORE lists them; in Python, Journal.namespaces()",
    )


def export_to(log: Log, path: Path, namespace: Namespace | None = None) -> int:
    """Write one namespace, or the whole store, to a new file; return the number of records.

    Raises:
        InputError: If the file exists, its folder does not, there is no such namespace, or an export to this name was cut off or
            is under way.
        JournalDamagedError: If the store is damaged: nothing is written then.
    """
    path = new_file(path)
    with log.reading():
        if namespace is not None and namespace not in log.begun:
            raise no_namespace(namespace)
        lines = list(_lines(log, [namespace] if namespace is not None else list(log.begun), whole=namespace is None))
    lines.append({"end": len(lines)})
    draft = path.with_name(path.name + ".part")
    try:
        file = draft.open("x", encoding="ascii")
    except FileExistsError as error:
        raise InputError(
            f"{draft} exists: an export to {path} was cut off, or is under way",
            expected="no such file",
            fix="delete it, if no export runs",
        ) from error
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        with file:
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
    """Return the path of a file to be made.

    Raises:
        InputError: If it exists, its folder does not, or no file can have such a name.
        JournalError: If rights are missing to say.
    """
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
        raise JournalError(f"{path} cannot be written: {error}", fix="name another place") from error
    raise InputError(f"{target} exists", expected="the name of a new file")


def _unwritten(path: Path, error: OSError) -> JournalError:
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
    """Read what ``export_to`` wrote; return the number of records.

    Raises:
        InputError: If the file is none, was cut or edited, a namespace of it is there already, or one is alive here that was
            forgotten where it comes from; names the line.
        ForgottenError: If a namespace of it was forgotten here.
    """
    lines = read_export(path)
    chains: dict[str, list[Record]] = {}
    with log.writing():
        for number, line in lines:
            where = f"{path}, line {number}"
            if "begin" in line:
                chains[_begin(log, line, where)] = []
            elif "record" in line:
                record = _record(line["record"], where)
                if record.ns not in chains:
                    raise InputError(f"{where}: a record of a namespace that was not begun", expected="an export")
                chains[record.ns].append(record)
            elif "forgotten" in line:
                _forgotten(log, line, where)
            else:
                raise InputError(
                    f"{where} is neither begin, nor record, nor forgotten: {list(line)[:5]}", expected="lines this version knows"
                )
        for ns, records in chains.items():
            _add(log, ns, records, path)
    return sum(map(len, chains.values()))


def _begin(log: Log, line: dict[str, Any], where: str) -> str:
    """Register a namespace; return its id."""
    ns, time, shape = _text(line, "begin", where), _time(line, where), line.get("schema", 0)
    names = [_text(line, part, where) for part in ("user", "agent", "session")]
    try:
        name = Namespace(*names)
        if shape is not None:  # of a namespace whose name and schema were lost, and whose records were salvaged
            schema_of(shape)
    except (InputError, JournalDamagedError) as error:
        raise InputError(f"{where}: {error.what}", expected=error.expected or "an export that nobody edited") from error
    if ns in log.forgotten:
        raise ForgottenError(f"{where}: namespace {ns} was forgotten here at {log.forgotten[ns].time}")
    if name in log.begun or ns in {begun.ns for begun in log.begun.values()} or log.backend.head(ns).seq or ns == REGISTRY:
        raise InputError(f"{where}: the namespace {name} is there already", expected="a store without it", fix="forget it first")
    log.register(name, ns, shape, time)
    return ns


def _forgotten(log: Log, line: dict[str, Any], where: str) -> None:
    """Take over the receipt of a namespace that was forgotten where the export comes from."""
    ns, note = _text(line, "forgotten", where), _text(line, "note", where)
    _time(line, where)
    try:
        facts = json.loads(note)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or not isinstance(facts.get("operations"), int):
        raise InputError(f"{where}: the note of a receipt is {note[:80]!r}", expected='a JSON object with "operations"')
    if ns in log.forgotten:
        return
    if (alive := next((name for name, begun in log.begun.items() if begun.ns == ns), None)) is not None:
        raise InputError(
            f"{where}: the namespace {alive} was forgotten where this export comes from, and is alive here",
            expected="a store that has forgotten it too; an import erases nothing",
            fix="forget it here first, or import an export of the other namespaces alone",
        )
    log.unregister(ns, json.dumps({**facts, "erased": []}), log.now(log.registry_time)[0])


def _text(line: dict[str, Any], name: str, where: str) -> str:
    if not isinstance(line.get(name), str):
        raise InputError(f"{where}: {name!r} is {line.get(name)!r}", expected="a text")
    return str(line[name])


def _time(line: dict[str, Any], where: str) -> str:
    """Return the line's time, which must be as ``stamp`` writes it."""
    text = _text(line, "time", where)
    try:
        known = stamp(moment_of(text)) == text
    except ValueError:
        known = False
    if not known:
        raise InputError(f"{where}: the time is {text!r}", expected="a time such as 2024-05-01T12:00:00.000000Z")
    return text


def _add(log: Log, ns: str, records: Sequence[Record], path: Path) -> None:
    if not records:
        raise InputError(f"{path}: namespace {ns} has no records", expected="an export that was not cut")
    head = Head(records[-1].seq, records[-1].hash)
    if faults := chain.check(ns, records, None, head, log.key):
        raise InputError(f"{path}, namespace {ns}: {'; '.join(faults[:3])}", expected="an export that nobody edited, and its key")
    shape = next(begun.shape for begun in log.begun.values() if begun.ns == ns)
    if shape is not None:
        try:
            JournalMemory(schema_of(shape)).replay(records)
        except JournalDamagedError as error:
            raise InputError(f"{path}, namespace {ns}: {error.what}", expected="the schema it was begun with") from error
    log.backend.append(records)


def read_export(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbered lines between first and last of an export; InputError if it is none, or was cut."""
    try:
        lines = [(i, json.loads(line)) for i, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1)]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="what export wrote") from error
    if not lines or lines[0][1] != _FORMAT or any(not isinstance(line, dict) for _, line in lines):
        raise InputError(f"{path} is no export of a journal", expected=f"a first line {json.dumps(_FORMAT)}")
    if lines[-1][1] != {"end": len(lines) - 1}:
        raise InputError(f"{path} was cut: it ends at line {len(lines)} without saying so", expected="a whole export")
    return lines[1:-1]


def _record(values: Any, where: str) -> Record:
    if not isinstance(values, list) or len(values) != len(Record.__slots__):
        raise InputError(f"{where} is no record", expected=f"{len(Record.__slots__)} values")
    record = Record(*values)
    for name in Record.__slots__:
        value = getattr(record, name)
        right = type(value) is int if name in _NUMBERS else isinstance(value, str) or (value is None and name in _ERASABLE)
        if not right:
            raise InputError(f"{where}: {name} of a record is {value!r}", expected="an export that nobody edited")
    if record.kind not in {kind.value for kind in Kind}:
        raise InputError(f"{where} is a record of kind {record.kind!r}", expected="one this version knows")
    return record
