"""``memalpha import``: bring chats of other assistants, and memories of other systems."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from memalpha.cli.console import complain, console, quiet_libraries
from memalpha.cli.journal import EmbedderName, KeyFile, Wait, open_store, say, show_indexing
from memalpha.cli.options import SCHEMA, AsJson, read_key
from memalpha.contrib.importing.kinds import kind_names
from memalpha.errors import ImportStopped, InputError
from memalpha.files import path_of

_TELL_SECONDS = 10.0  # between two lines of progress

if TYPE_CHECKING:
    from memalpha.contrib.importing.run import AfterBatch, ImportPlan, ImportReport
    from memalpha.store.journal import Namespace


def add_import_verb(app: Typer) -> None:
    """Add ``import`` to the command line."""
    app.command("import")(import_export)


def import_export(
    file: Annotated[
        str,
        Argument(
            metavar="FILE",
            help="The export: a JSON or JSON Lines file, a zip archive, or the unpacked folder.",
        ),
    ],
    store: Annotated[
        str,
        Option(
            help="The store: the path of a SQLite file, which is made if it does not exist, or "
            "a PostgreSQL URL."
        ),
    ],
    user: Annotated[str, Option(help="The user whose memory receives the import.")],
    agent: Annotated[str, Option(help="The agent in the namespace of the memory.")] = "default",
    session: Annotated[str, Option(help="The session in the namespace of the memory.")] = "default",
    kind: Annotated[
        str | None,
        Option(help=f"The kind of export: {', '.join(kind_names())}. By default it is recognised."),
    ] = None,
    from_user: Annotated[
        list[str] | None,
        Option(
            help="In a file of several users, import only this one's messages and entries, "
            "named as in the file or as part of a namespace. May be repeated."
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        Option(
            help="Let this trained agent read the messages and write entries: the folder of a "
            "run, an adapter or a whole model, the name of a shipped adapter, or a Hub name."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        Option(help=f"The schema of a new memory; by default it is the adapter's, or {SCHEMA}."),
    ] = None,
    section: Annotated[
        str,
        Option(
            help="The section for the entries of another memory; by default it is the first "
            "list with times."
        ),
    ] = "",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show what would be imported, and write nothing.")
    ] = False,
    embedder: EmbedderName = None,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> None:
    """Import chats and memories from other assistants and memory systems into a store.

    Chats come from ChatGPT, Claude, Gemini, OpenAI's message format and others; memories come from
    Mem0, MemOS, LangMem and Claude. Messages become lines of the archive, by date, with speakers
    and sources, and entries of other memories become entries. A stopped import continues, and a
    repeated one adds only new messages and entries.
    """
    from memalpha.contrib.importing.exports import Export
    from memalpha.contrib.importing.run import (
        check_found,
        collect_items,
        estimate_tokens,
        import_messages,
    )
    from memalpha.memory.schema import MemorySchema
    from memalpha.store.journal import Namespace

    whose = Namespace(user, agent, session)
    path = path_of(file, "a file, or rights to it")
    if not path.exists():
        raise InputError(f"there is no file {file!r}", expected="the path of an export")
    start = monotonic()
    gc.disable()  # what is made stays, and to look through it again and again takes a third more
    found = collect_items(Export(path, kind), user, from_user or ())
    check_found(path, found)
    if dry_run:
        _show_plan(found, _count_read(store, whose, found, key_file, wait), as_json)
        return
    total = len(found.messages) + len(found.entries)
    with _until_interrupted() as interrupted, _progress(total) as shown:

        def progress(done: int) -> bool:
            shown(done)
            return not interrupted()

        if adapter:
            if schema:
                raise InputError(
                    "both a schema and an adapter are given",
                    expected="only one of the two, since an adapter has its own schema",
                )
            report = _import_with_agent(
                adapter, store, whose, found, section, read_key(key_file), progress
            )
        else:
            with (
                open_store(
                    store,
                    key_file,
                    wait,
                    new=True,
                    schema=MemorySchema.load(schema or SCHEMA),
                    count_tokens=estimate_tokens,
                    adopts=lambda _: schema is None,
                ) as memories,
                memories.durable(whose) as durable,
            ):
                report = import_messages(durable, found, section=section, progress=progress)
    if not report.stopped:
        check_found(path, found, report)
    if not adapter:
        _index(store, whose, embedder, key_file, wait)
    _show(found, report, monotonic() - start, as_json)
    if report.stopped and report.read + report.there < total:
        raise ImportStopped(
            f"the import was stopped after {report.read + report.there} of {total} messages "
            "and entries",
            fix="run the same command again; it continues there",
        )


def _index(
    store: str, whose: Namespace, embedder: str | None, key_file: str | None, wait: float
) -> None:
    """Write the index of a memory that has become large, so that no question waits for it."""
    from memalpha.retrieval.embedders import usual_retrieval
    from memalpha.retrieval.two_layer import retriever_factory

    maker = retriever_factory(usual_retrieval(embedder=embedder))
    with open_store(store, key_file, wait, make_retriever=maker) as memories:
        if whose in memories.namespaces():
            with show_indexing() as progress:
                memories.index(whose, progress=progress)


def _import_with_agent(
    adapter: str,
    store: str,
    whose: Namespace,
    found: ImportPlan,
    section: str,
    key: bytes | None,
    progress: AfterBatch,
) -> ImportReport:
    from memalpha.contrib.importing.run import import_with_agent
    from memalpha.use.agent import MemoryAgent

    quiet_libraries()
    gc.freeze()  # what was collected; a model that reads for hours leaves garbage
    gc.enable()
    with MemoryAgent.load(adapter, store=store, key=key, reader="") as agent:
        return import_with_agent(agent, whose, found, section=section, progress=progress)


# ------------------------------------------------------------------------------------------------
# what is shown
@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Give what says whether Ctrl-C was pressed; pressed again it interrupts at once."""
    pressed = []

    def note(number: int, _: object) -> None:
        pressed.append(number)
        signal.signal(number, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Give what moves a bar on a terminal, and elsewhere writes a line from time to time."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    if not console.is_terminal:
        last = monotonic()

        def tell(done: int) -> None:
            nonlocal last
            if monotonic() - last >= _TELL_SECONDS:
                last = monotonic()
                complain(f"reading: {done} of {total}")

        yield tell
        return
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda done: bar.update(task, completed=done)


def _count_read(
    store: str, whose: Namespace, found: ImportPlan, key_file: str | None, wait: float
) -> int:
    """Return how much of a file earlier imports have read into the archive."""
    if "://" not in store and not Path(store).is_file():
        return 0
    with open_store(store, key_file, wait) as memories:
        if whose not in memories.namespaces():
            return 0
        with memories.durable(whose) as durable:
            known = durable.sources()
    return sum(each.digest in known for each in (*found.messages, *found.entries))


def _show_plan(found: ImportPlan, there: int, as_json: bool) -> None:
    first, last = found.times()
    roles = dict(found.speakers())
    about = {
        "kind": found.kind,
        "conversations": found.conversations,
        "messages": roles,
        "entries": len(found.entries),
        "from": first,
        "to": last,
        "undated": found.undated,
        "already there": there,
        "skipped": dict(found.skipped),
    }
    lines = [f"{found.kind}: {found.conversations} conversations, {len(found.entries)} entries"]
    lines += [f"  {count} messages of {role}" for role, count in roles.items()]
    lines += [f"  from {first} to {last}"] if first else []
    lines += _lines_on_undated(found)
    lines += [f"  {there} of them were read before"] if there else []
    say(as_json, about, *lines, *_reasons(found.skipped), "nothing was written (--dry-run)")


def _show(found: ImportPlan, report: ImportReport, seconds: float, as_json: bool) -> None:
    about = {
        "kind": found.kind,
        "read": report.read,
        "already there": report.there,
        "skipped": dict(report.skipped),
        "undated": found.undated,
        "left": report.left,
        "changed": report.changed,
        "stopped": report.stopped,
        "seconds": round(seconds, 3),
    }
    counts = f"{report.read} read, {report.there} read before"
    lines = [f"{found.kind}: {counts} ({seconds:.1f} s)", *_reasons(report.skipped)]
    lines += _lines_on_undated(found)
    if report.left:
        lines.append(
            f"  deleted: {report.left} lines of messages that the file shows no more (edited, or"
            " not to be remembered); entries that an agent made of them stay"
        )
    if report.changed:
        lines.append(
            f"  changed: {report.changed} messages or entries have another text than before, which"
            " took the place of the old one"
        )
    if report.there and found.by_place:
        lines.append(
            f"  {found.kind} without ids: known by the name of the file and by places in it; rename"
            " the file if it is another one"
        )
    say(as_json, about, *lines)


def _lines_on_undated(found: ImportPlan) -> list[str]:
    return [f"  without a date: {found.undated}"] if found.undated else []


def _reasons(skipped: Mapping[str, int]) -> list[str]:
    return [f"  skipped: {count} {reason}" for reason, count in Counter(skipped).most_common()]
