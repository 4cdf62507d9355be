"""Export and import: JSON Lines, lossless down to hashes, salts and receipts, so that an export proves itself wherever it goes.

    {"format": "memalpha-journal", "version": 1}
    {"begin": <id>, "user": ..., "agent": ..., "session": ..., "schema": ..., "time": ...}
    {"record": [<id>, seq, kind, entry, gone, time, note, commitment, previous, hash, salt, body]}     one for each
    {"forgotten": <id>, "time": ..., "note": ...}                                    of the whole store only
    {"end": <number of lines before this one>}

An import is all or nothing. It refuses a namespace that is there already, and one that was forgotten: an old export does not
bring back what was forgotten since. (The content of a single entry forgotten since is still in an old export; exports are the
user's to delete.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import ForgottenError, InputError, JournalError
from memalpha.store import chain
from memalpha.store.log import Log
from memalpha.store.records import REGISTRY, Head, Kind, Namespace, Record

_FORMAT = {"format": "memalpha-journal", "version": 1}


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
        InputError: If the file exists, or there is no such namespace.
        JournalDamagedError: If the store is damaged: nothing is written then.
    """
    if path.exists():
        raise InputError(f"{path} exists", expected="the name of a new file")
    if not path.parent.is_dir():
        raise InputError(f"no folder {str(path.parent)!r}", expected="a new file in a folder that exists", fix="make it")
    with log.reading():
        if namespace is not None and namespace not in log.begun:
            raise no_namespace(namespace)
        lines = list(_lines(log, [namespace] if namespace is not None else list(log.begun), whole=namespace is None))
    lines.append({"end": len(lines)})
    draft = path.with_name(path.name + ".part")
    try:
        with draft.open("x", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise JournalError(f"{path} could not be written: {error}", fix="make room, or name another place") from error
    return sum("record" in line for line in lines)


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
        InputError: If the file is none, was cut or edited, or a namespace of it is there already; names the line.
        ForgottenError: If a namespace of it was forgotten here.
    """
    lines = read_export(path)
    chains: dict[str, list[Record]] = {}
    with log.writing():
        for number, line in lines:
            if "begin" in line:
                _begin(log, line, f"{path}, line {number}")
                chains[line["begin"]] = []
            elif "record" in line:
                record = _record(line["record"], f"{path}, line {number}")
                if record.ns not in chains:
                    raise InputError(f"{path}, line {number}: a record of a namespace that was not begun", expected="an export")
                chains[record.ns].append(record)
            elif "forgotten" in line and line["forgotten"] not in log.forgotten:
                facts = {**json.loads(line["note"]), "erased": []}
                log.unregister(line["forgotten"], json.dumps(facts), log.now(log.registry_time)[0])
        for ns, records in chains.items():
            _add(log, ns, records, path)
    return sum(map(len, chains.values()))


def _begin(log: Log, line: dict[str, Any], where: str) -> None:
    name = Namespace(line["user"], line["agent"], line["session"])
    if line["begin"] in log.forgotten:
        raise ForgottenError(f"{where}: namespace {line['begin']} was forgotten here at {log.forgotten[line['begin']].time}")
    if name in log.begun or log.backend.head(line["begin"]).seq or line["begin"] == REGISTRY:
        raise InputError(f"{where}: the namespace {name} is there already", expected="a store without it", fix="forget it first")
    log.register(name, line["begin"], line["schema"], line["time"])


def _add(log: Log, ns: str, records: Sequence[Record], path: Path) -> None:
    if not records:
        raise InputError(f"{path}: namespace {ns} has no records", expected="an export that was not cut")
    head = Head(records[-1].seq, records[-1].hash)
    if faults := chain.check(ns, records, None, head, log.key):
        raise InputError(f"{path}, namespace {ns}: {'; '.join(faults[:3])}", expected="an export that nobody edited, and its key")
    log.backend.append(records)


def read_export(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbered lines between first and last of an export; InputError if it is none, or was cut."""
    try:
        lines = [(i, json.loads(line)) for i, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1)]
    except (OSError, ValueError) as error:
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
    if record.kind not in {kind.value for kind in Kind} or not isinstance(record.seq, int):
        raise InputError(f"{where} is a record of kind {record.kind!r}", expected="one this version knows")
    return record
