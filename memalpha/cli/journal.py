"""``memalpha journal``: show, undo, erase, check and move the contents of a durable store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from memalpha.cli.console import complain, out, printable, show_table
from memalpha.cli.options import AsJson, read_key
from memalpha.credentials import shown_address
from memalpha.errors import InputError
from memalpha.files import path_of

if TYPE_CHECKING:
    from memalpha.store.journal import Event, Namespace
    from memalpha.types import Change
    from memalpha.use.store import MemoryStore

_TELL_SECONDS = 5.0
_SHOWN = 20  # entries and lines that have words of what was forgotten
_PLACE = "The store: the path of a SQLite file, or postgresql://user@host/database."
_WHOSE = (
    "The namespace of the memory. Give a name that holds a slash as JSON:"
    ' ["a/b", "agent", "session"].'
)
_MOMENT = "number of an operation, or a time such as 2024-05-01T12:00:00Z"
Store = Annotated[str, Argument(metavar="STORE", help=_PLACE)]
Whose = Annotated[str, Option("--namespace", "-n", metavar="USER[/AGENT[/SESSION]]", help=_WHOSE)]
Moment = Annotated[str, Argument(help=f"The moment: the {_MOMENT}.")]
KeyFile = Annotated[str | None, Option(help="The file with the key of a keyed store.")]
EmbedderName = Annotated[
    str | None, Option(help="The embedder of the index; by default it is minilm.")
]
Wait = Annotated[float, Option(help="The seconds to wait while another process writes.")]

journal_app = Typer(help="Show, undo, check, move and erase the memories of a store.")


def need_store(store: str) -> None:
    """Raise InputError unless there is a store; that of a server is not looked for."""
    if "://" in store:
        return
    file = path_of(store, "the name of a file, and rights to it")
    if not file.is_file() or not file.stat().st_size:
        raise InputError(
            f"there is no store at {shown_address(store)!r}",
            expected="a file that holds a store, as memalpha import, chat and serve make it",
        )


@contextmanager
def open_store(
    store: str,
    key_file: str | None,
    wait: float = 30.0,
    *,
    new: bool = False,
    **settings: Any,
) -> Iterator[MemoryStore]:
    """Open a store, with further ``settings`` of ``MemoryStore``; InputError if there is none,
    unless it may be ``new``.
    """
    from memalpha.use.store import MemoryStore

    if not new:
        need_store(store)
    with MemoryStore(store, key=read_key(key_file), wait=wait, **settings) as opened:
        yield opened


def read_namespace(text: str) -> Namespace:
    """Read user/agent/session, or a JSON list of them."""
    from memalpha.store.journal import Namespace

    try:
        return Namespace(*(json.loads(text) if text.startswith("[") else text.split("/")))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"the namespace {text[:200]!r} cannot be read",
            expected='user/agent/session, or ["user", "agent", "session"]',
        ) from error


def name_of(namespace: Namespace) -> str:
    """Return a namespace as ``read_namespace`` reads it."""
    plain = str(namespace)
    odd = plain.count("/") > 2 or plain.startswith("[")
    return json.dumps(astuple(namespace), ensure_ascii=False) if odd else plain


def read_moment(text: str) -> int | datetime:
    """Read the number of an operation, or a time."""
    try:
        return int(text) if text.isdecimal() else datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"the moment {text[:200]!r} cannot be read", expected=_MOMENT) from error


@journal_app.command()
def namespaces(
    store: Store, key_file: KeyFile = None, wait: Wait = 30.0, as_json: AsJson = False
) -> None:
    """List the namespaces in the store."""
    with open_store(store, key_file, wait) as memories:
        known = sorted(memories.namespaces())
    show(as_json, known, ("user", "agent", "session"), map(astuple, known))


@journal_app.command()
def history(
    store: Store,
    namespace: Whose,
    entry: Annotated[str | None, Option(help="Show only the operations on this entry.")] = None,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show every operation on a memory, or on one entry."""
    with open_store(store, key_file, wait) as memories:
        events = memories.history(entry, namespace=read_namespace(namespace))
    if entry is not None and not events:
        raise InputError(f"the namespace {namespace} has no record of an entry {entry!r}")
    rows = []
    for event in events:
        about = event.after or event.before
        name = about.id if about else "(forgotten)" if event.forgotten else ""
        kind = event.operation.kind if event.operation else event.kind
        origin = (event.origin.agent, event.origin.source) if event.origin else ("", "")
        rows.append((event.seq, event.time.isoformat(), kind, name, *_contents(event), *origin))
    show(
        as_json,
        events,
        ("operation", "time", "what", "entry", "before", "after", "by", "source"),
        rows,
    )


@journal_app.command("as-of")
def as_of(
    store: Store,
    moment: Moment,
    namespace: Whose,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show a memory as it was at a moment."""
    with open_store(store, key_file, wait) as memories:
        entries = memories.as_of(read_moment(moment), namespace=read_namespace(namespace))
    rows = [(e.id, e.section, e.timestamp or "", e.content, e.updated) for e in entries]
    show(
        as_json,
        entries,
        ("entry", "section", "time", "content", "written by operation"),
        rows,
    )


@journal_app.command("diff")
def diff_moments(
    store: Store,
    before: Moment,
    after: Moment,
    namespace: Whose,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show the entries that changed between two moments."""
    from memalpha.memory.memory import diff as changes_between

    whose = read_namespace(namespace)
    with open_store(store, key_file, wait) as memories:
        states = [
            memories.as_of(read_moment(moment), namespace=whose) for moment in (before, after)
        ]
    changes = changes_between(*states)
    show_changes(as_json, [change._asdict() for change in changes], changes)


@journal_app.command()
def undo(
    store: Store,
    operation: Annotated[
        int, Argument(min=1, max=10**18, help="The number of the operation, as history shows it.")
    ],
    namespace: Whose,
    by: Annotated[
        str, Option(help="The name under which the journal records the undo.")
    ] = "memalpha journal",
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Undo one operation; to redo it, undo the undo."""
    with open_store(store, key_file, wait) as memories:
        change = memories.undo(operation, namespace=read_namespace(namespace), by=by)
    show_changes(as_json, change._asdict(), [change])


@journal_app.command()
def verify(
    store: Store,
    head: Annotated[
        str | None,
        Option(
            help="The head that an earlier verify showed; the check fails if the store has "
            "other content."
        ),
    ] = None,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> int:
    """Check the store for records that were edited, removed or moved.

    The exit code is 1 if there are any.
    """
    with open_store(store, key_file, wait) as memories:
        report = memories.journal.verify()
    changed = head is not None and head != report.head
    ok = report.ok and not changed
    state = "damaged" if report.faults else "whole"
    if changed:
        state += f", and other content than at head {head} (written or replaced since)"
    lines = [f"fault: {' '.join(fault.split())}" for fault in report.faults]
    counts = f"{report.namespaces} namespaces, {report.operations} operations"
    lines.append(f"{state}: {counts}, {report.forgotten} of them forgotten")
    say(as_json, {**asdict(report), "changed": changed, "ok": ok}, *lines, f"head {report.head}")
    return int(not ok)


@journal_app.command("export")
def export_store(
    store: Store,
    file: Annotated[str, Argument(help="The file to write, which must not exist.")],
    namespace: Annotated[str | None, Option("--namespace", "-n", help=_WHOSE)] = None,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Write a namespace, or the whole store, into a JSON Lines file."""
    from memalpha.store.exchange import export_journal

    whose = read_namespace(namespace) if namespace else None
    with open_store(store, key_file, wait) as memories:
        count = export_journal(memories.journal, file, whose)
    say(as_json, {"file": file, "records": count}, f"{file}: {count} records")


@journal_app.command("import")
def import_store(
    store: Store,
    file: Annotated[str, Argument(help="The file that export wrote.")],
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Load a file that export wrote into a store, completely or not at all.

    The store is made if it does not exist.
    """
    from memalpha.store.exchange import import_journal, read_export

    read_export(Path(file))  # before a new store is made
    with open_store(store, key_file, wait, new=True) as memories:
        count = import_journal(memories.journal, file)
    where = shown_address(store)
    say(as_json, {"store": where, "records": count}, f"{where}: {count} records taken in")


@journal_app.command()
def reindex(
    store: Store,
    namespace: Annotated[
        str | None,
        Option(
            "--namespace",
            "-n",
            metavar="USER[/AGENT[/SESSION]]",
            help="The namespace to index; by default all are.",
        ),
    ] = None,
    embedder: EmbedderName = None,
    embed: Annotated[
        bool,
        Option(
            "--embed",
            help="Only embed the lines that have no vector yet (MiniLM: about 80 lines a "
            "second), so that no question waits for it.",
        ),
    ] = False,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Rebuild the index by which a large memory is searched.

    If the command is interrupted, the next one continues.
    """
    from memalpha.retrieval.embedders import usual_retrieval
    from memalpha.retrieval.two_layer import retriever_factory

    maker = retriever_factory(usual_retrieval(embedder=embedder))
    made = list[str]()
    with open_store(store, key_file, wait, make_retriever=maker) as memories:
        names = memories.namespaces() if namespace is None else (read_namespace(namespace),)
        for each in names:
            with show_indexing() as progress:
                if memories.index(each, anew=not embed, embed=embed, progress=progress):
                    made.append(name_of(each))
    done = "every line of its index was read" if embed else "its index was made anew"
    lines = [f"{name}: {done}" for name in made]
    say(as_json, made, *lines or ["no memory is so large that it has an index"])


@contextmanager
def show_indexing() -> Iterator[Callable[[int, int], None]]:
    """Give what tells from time to time how much of an index is written."""
    last = monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if monotonic() - last >= _TELL_SECONDS:
            last = monotonic()
            complain(f"indexing: {done} of {total} operations")

    yield tell


@journal_app.command()
def forget(
    store: Store,
    namespace: Whose,
    entry: Annotated[str | None, Option(help="The id of the entry to erase.")] = None,
    everything: Annotated[
        bool, Option("--all", help="Erase the whole namespace with its name.")
    ] = False,
    also: Annotated[
        list[str], Option(help="Another entry or line to erase with it, by id. May be repeated.")
    ] = [],  # noqa: B006
    yes: Annotated[
        bool,
        Option(
            "--yes",
            help="Confirm that the entry or namespace is erased for good; this cannot be undone.",
        ),
    ] = False,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Erase an entry or a whole namespace for good."""
    if (entry is None) is not everything:
        raise InputError(
            "the command does not say what to forget",
            expected="--entry ID or --all",
        )
    what = f"the namespace {namespace}" if everything else f"entry {entry} of {namespace}"
    if not yes:
        raise InputError(
            f"forgetting {what} cannot be undone, so it must be confirmed", expected="--yes"
        )
    whose = read_namespace(namespace)
    with open_store(store, key_file, wait) as memories:
        if entry is None:
            receipt = memories.forget_all(namespace=whose)
        else:
            receipt = memories.forget(entry, also, namespace=whose)
    lines = [f"forgot {what}: {receipt.operations} records erased"]
    shown = receipt.said_by[:_SHOWN]
    lines += [f"still has words of it: {entry.id} {entry.content}" for entry in shown]
    if len(shown) < len(receipt.said_by):
        lines.append(f"and {len(receipt.said_by) - len(shown)} more, which have fewer (--json)")
    if not receipt.scrubbed:
        lines.append(
            "its bytes are still in the files: close other readers, then any use of the store"
            " erases them"
        )
    say(as_json, asdict(receipt), *lines)


def _contents(change: Change | Event) -> list[str]:
    sources = getattr(change, "sources", ())
    if sources:
        return ["", f"{len(sources)} messages or entries"]
    return [entry.content if entry else "" for entry in (change.before, change.after)]


def show_changes(as_json: bool, data: object, changes: Sequence[Change]) -> None:
    """Show changes as a table of entries before and after."""
    entries = [change.after or change.before for change in changes]
    rows = [
        (entry.id, entry.section, *_contents(change))
        for entry, change in zip(entries, changes, strict=True)
        if entry
    ]
    show(as_json, data, ("entry", "section", "before", "after"), rows)


def show(
    as_json: bool, data: object, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Show data as JSON, or rows as a table."""
    if as_json:
        say(as_json, data)
    else:
        show_table(columns, list(rows))


def say(as_json: bool, data: object, *lines: str) -> None:
    """Write data as JSON, or lines."""
    if as_json:
        lines = (json.dumps(data, default=_plain),)
    out("\n".join(map(printable, lines)))


def _plain(value: Any) -> object:
    return value.isoformat() if isinstance(value, datetime) else asdict(value)
