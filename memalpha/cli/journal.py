"""``memalpha journal``: show, undo, erase, check and move the contents of a durable store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.cli.console import out, printable, show_table
from memalpha.cli.inputs import is_operation, read_key
from memalpha.errors import InputError
from memalpha.files import path_of

if TYPE_CHECKING:
    from memalpha.store.journal import DurableMemory, Journal, Namespace
    from memalpha.types import Change, Entry

Action = Callable[["Journal", argparse.Namespace], int | None]
_SHOWN = 200  # characters of a wrong value


def add_verbs(verbs: Any) -> None:
    """Add the verb and its actions."""
    journal = verbs.add_parser(
        "journal",
        help="look into a store of memories, undo, forget, verify, export",
        description="Needs: a store (a SQLite file or postgresql://user@host/database). See memalpha journal ACTION --help.",
    )
    actions = journal.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add(actions, "namespaces", _namespaces, "list whose memories the store holds", whose=None)
    _add(actions, "history", _history, "what happened, or all about one entry").add_argument(
        "--entry", help="id (default: all)"
    )
    _add(actions, "as-of", _as_of, "the memory as it was").add_argument(
        "moment", help="number of an operation, or a time such as 2024-05-01T12:00:00Z"
    )
    added = _add(actions, "diff", _diff, "what is different between two moments")
    added.add_argument("before", help="number of an operation (0: the beginning), or a time")
    added.add_argument("after", help="the later one")
    added = _add(actions, "undo", _undo, "take one operation back (undo the undo to bring it back)")
    added.add_argument("operation", help="its number, as history shows it")
    added.add_argument(
        "--by", default="memalpha journal", help="who asks, for the journal (default: %(default)s)"
    )
    added = _add(
        actions,
        "verify",
        _verify,
        "find everything edited, missing or moved; exit code 1 if anything is",
        whose=None,
    )
    added.add_argument(
        "--head", help="the head an earlier verify showed: fails if the store has other content now"
    )
    text = "write a namespace, or the whole store, to a JSON Lines file"
    _add(actions, "export", _export, text, whose=False).add_argument("file", help="new file")
    text = "take in what export wrote, all or nothing; makes the store if need be"
    _add(actions, "import", _import_file, text, whose=None).add_argument(
        "file", help="what export wrote"
    )
    added = _add(actions, "forget", _forget, "erase an entry or a whole namespace for good")
    what = added.add_mutually_exclusive_group(required=True)
    what.add_argument("--entry", help="id of the entry")
    what.add_argument("--all", action="store_true", help="the whole namespace, its name included")
    added.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="ID",
        help="other entries and lines, such as it lists, in one go",
    )
    added.add_argument("--yes", action="store_true", help="really: it cannot be undone")


def _add(
    actions: Any, name: str, action: Action, text: str, whose: bool | None = True
) -> argparse.ArgumentParser:
    """Add an action; its namespace is required (``whose`` True), optional (False) or absent
    (None).
    """
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    parser.add_argument(
        "store", metavar="STORE", help="path of a SQLite file, or postgresql://user@host/database"
    )
    if whose is not None:
        about = (
            'whose memory; a name that holds a slash is given as JSON: ["a/b", "agent", "session"]'
        )
        parser.add_argument(
            "--namespace", "-n", required=whose, metavar="USER[/AGENT[/SESSION]]", help=about
        )
    parser.add_argument("--key-file", help="file with the key of a keyed store")
    parser.add_argument(
        "--wait",
        type=float,
        default=30.0,
        help="seconds to wait for another writer (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
    )
    parser.set_defaults(run=run, act=action, takes_more=False, parser=parser)
    return parser


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Open the store and run the action."""
    from memalpha.store.exchange import read_export
    from memalpha.store.journal import Journal

    readers = {
        "namespace": _namespace,
        "moment": _moment,
        "before": _moment,
        "after": _moment,
        "operation": _number,
    }
    for name, read in readers.items():
        if getattr(arguments, name, None) is not None:
            setattr(arguments, name, read(getattr(arguments, name)))
    if arguments.action == "import":
        read_export(Path(arguments.file))  # before a new store is made
    elif "://" not in arguments.store:
        file = path_of(arguments.store, "the name of a file, and rights to it")
        if not file.is_file() or not file.stat().st_size:
            what = (
                f"the file {arguments.store!r} is empty"
                if file.is_file()
                else f"no store at {arguments.store!r}"
            )
            raise InputError(what, expected="the file of a store")
    with Journal.open(
        arguments.store, key=read_key(arguments.key_file), wait=arguments.wait
    ) as journal:
        return int(arguments.act(journal, arguments) or 0)


def _namespace(text: str) -> Namespace:
    from memalpha.store.journal import Namespace

    try:
        parts: Any = json.loads(text) if text.startswith("[") else text.split("/")
        return Namespace(*parts)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"namespace {text[:_SHOWN]!r}",
            expected='user/agent/session, or ["user", "agent", "session"]',
        ) from error


def _moment(text: str) -> int | datetime:
    if text.isascii() and text.isdecimal():
        return _number(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"moment {text[:_SHOWN]!r}",
            expected="an operation, or a time such as 2024-05-01T12:00:00Z",
        ) from error


def _number(text: str) -> int:
    if not (text.isascii() and is_operation(text)):
        raise InputError(
            f"operation {text[:_SHOWN]!r}",
            expected="a number, as memalpha journal history shows it",
        )
    return int(text)


def _memory(journal: Journal, arguments: argparse.Namespace) -> DurableMemory:
    return journal.memory(arguments.namespace, journal.schema(arguments.namespace))


def _namespaces(journal: Journal, arguments: argparse.Namespace) -> None:
    rows = [asdict(name) for name in sorted(journal.namespaces())]
    _show(arguments, rows, ("user", "agent", "session"), [tuple(row.values()) for row in rows])


def _history(journal: Journal, arguments: argparse.Namespace) -> None:
    durable = _memory(journal, arguments)
    events = durable.history(arguments.entry)
    if arguments.entry is not None and not events:
        raise InputError(
            f"nothing is known of an entry {arguments.entry!r} in {arguments.namespace}"
        )
    rows = []
    for event in events:
        entry = event.after or event.before
        about = entry.id if entry else ("(forgotten)" if event.forgotten else "")
        by, source = (event.origin.agent, event.origin.source) if event.origin else ("", "")
        kind, texts = (
            event.operation.kind if event.operation else event.kind,
            (_content(event.before), _content(event.after)),
        )
        rows.append((event.seq, event.time.isoformat(), kind, about, *texts, by, source))
    _show(
        arguments,
        list(map(asdict, events)),
        ("operation", "time", "what", "entry", "before", "after", "by", "source"),
        rows,
    )


def _as_of(journal: Journal, arguments: argparse.Namespace) -> None:
    entries = tuple(_memory(journal, arguments).as_of(arguments.moment))
    rows = [(e.id, e.section, e.timestamp or "", e.content, e.updated) for e in entries]
    _show(
        arguments,
        list(map(asdict, entries)),
        ("entry", "section", "time", "content", "written by operation"),
        rows,
    )


def _diff(journal: Journal, arguments: argparse.Namespace) -> None:
    from memalpha.memory.memory import diff

    before, after = (
        tuple(_memory(journal, arguments).as_of(at)) for at in (arguments.before, arguments.after)
    )
    _show_changes(arguments, diff(before, after))


def _undo(journal: Journal, arguments: argparse.Namespace) -> None:
    from memalpha.store.journal import Origin

    _show_changes(
        arguments,
        [_memory(journal, arguments).undo(arguments.operation, Origin(arguments.by))],
        one=True,
    )


def _verify(journal: Journal, arguments: argparse.Namespace) -> int:
    report = journal.verify()
    changed = arguments.head is not None and arguments.head != report.head
    counts = f"{report.namespaces} namespaces, {report.operations} operations, {report.forgotten} of them forgotten"
    lines = [
        *(f"fault: {fault}" for fault in report.faults),
        f"{'damaged' if report.faults else 'whole'}: {counts}",
    ]
    if changed:
        lines.append(
            f"other content than at head {arguments.head}: it was written (any write changes the head) or replaced since"
        )
    ok = report.ok and not changed
    _say(arguments, {**asdict(report), "changed": changed, "ok": ok}, *lines, f"head {report.head}")
    return int(not ok)


def _export(journal: Journal, arguments: argparse.Namespace) -> None:
    from memalpha.store.exchange import export_journal

    count = export_journal(journal, arguments.file, arguments.namespace)
    _say(
        arguments, {"file": arguments.file, "records": count}, f"{arguments.file}: {count} records"
    )


def _import_file(journal: Journal, arguments: argparse.Namespace) -> None:
    from memalpha.store.exchange import import_journal

    count = import_journal(journal, arguments.file)
    _say(
        arguments,
        {"store": arguments.store, "records": count},
        f"{arguments.store}: {count} records taken in",
    )


def _forget(journal: Journal, arguments: argparse.Namespace) -> None:
    what = (
        f"the namespace {arguments.namespace}"
        if arguments.all
        else f"entry {arguments.entry} of {arguments.namespace}"
    )
    if not arguments.yes:
        raise InputError(f"forgetting {what} cannot be undone", expected="--yes")
    if arguments.all:
        receipt = journal.forget(arguments.namespace)
    else:
        receipt = _memory(journal, arguments).forget(arguments.entry, arguments.also)
    lines = [f"forgot {what}: {receipt.operations} records erased"]
    lines += [f"still has words of it: {entry.id} {entry.content}" for entry in receipt.said_by]
    if not receipt.scrubbed:
        lines.append(
            "its bytes are still in the files: close other readers, then any use of the store erases them"
        )
    _say(arguments, asdict(receipt), *lines)


def _content(entry: Entry | None) -> str:
    return entry.content if entry else ""


def _show_changes(
    arguments: argparse.Namespace, changes: Sequence[Change], one: bool = False
) -> None:
    rows, data = [], []
    for before, after in changes:
        entry = after or before
        assert entry is not None
        rows.append((entry.id, entry.section, _content(before), _content(after)))
        data.append(
            {
                "before": asdict(before) if before else None,
                "after": asdict(after) if after else None,
            }
        )
    _show(arguments, data[0] if one else data, ("entry", "section", "before", "after"), rows)


def _show(
    arguments: argparse.Namespace,
    data: Any,
    columns: Sequence[str],
    rows: Sequence[tuple[object, ...]],
) -> None:
    if arguments.json:
        _say(arguments, data)
    else:
        show_table(columns, rows)


def _say(arguments: argparse.Namespace, data: Any, *lines: str) -> None:
    for line in (
        [json.dumps(data, default=lambda moment: moment.isoformat())]
        if arguments.json
        else map(printable, lines)
    ):
        out(line)
