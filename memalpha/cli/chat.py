"""``memalpha chat``: talk to an agent, and see what it remembers and uses.

Who answers: the endpoint's model; or the server at ``reader_url``, else ``reader``, else the reader
that the agent names, else the adapter's base with the adapter off; a whole model shows the entries
found.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memalpha.cli.console import console, out, printable, quiet_libraries, show_table, with_notes
from memalpha.cli.inputs import (
    AGENT,
    AgentOptions,
    WhoseOptions,
    add_verb,
    is_operation,
    read_options,
)
from memalpha.errors import InputError, MemAlphaError
from memalpha.memory.memory import render_entry

if TYPE_CHECKING:
    from memalpha.store.journal import Namespace
    from memalpha.types import Change, Entry
    from memalpha.use.agent import MemoryAgent, Reply

COLUMNS = ("entry", "section", "time", "content", "operation")
COMMANDS = "/memory, /why, /undo [NUMBER], /forget ENTRY... yes, /quit"


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "chat",
        run,
        f"Talk to a model with this memory. Needs: an agent, a store (made if not there), a user. Commands: {COMMANDS}.",
        options=AGENT,
    )


def run(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Talk until /quit or the end of input."""
    from memalpha.generation.answering import frozen_base
    from memalpha.qa.readers import ModelReader, RecallReader
    from memalpha.store.journal import Namespace

    quiet_libraries()
    trained, options, who = read_options(arguments, rest, AgentOptions, WhoseOptions)
    if not who.user:
        raise InputError("nobody whose memory it is", expected="--user NAME")
    namespace = Namespace(who.user, who.agent or "default", who.session or "default")
    with options.load(trained) as agent:
        model = getattr(agent.generator.generator, "model", None)
        if (
            options.reader is None
            and isinstance(agent.reader, RecallReader)
            and hasattr(model, "disable_adapter")
        ):
            base = frozen_base(model, agent.step.encoder.tokenizer, 128)
            agent.reader = ModelReader(
                base, min(512, options.reader_tokens), agent.step.encoder.count
            )
        Conversation(agent, namespace).talk()


class Conversation:
    """One user's conversation with an agent that keeps the memory."""

    def __init__(
        self,
        agent: MemoryAgent,
        namespace: Namespace,
        clock: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self.agent, self.namespace, self._clock = agent, namespace, clock
        self._last: Reply | None = None
        self._read: list[list[int]] = []  # the operations of each message that are not taken back

    def talk(self) -> None:
        """Answer lines of the terminal or pipe until /quit or the end of input; errors are
        printed.
        """
        if console.is_terminal:
            out(f"Talking as {self.namespace.user}. {COMMANDS}")
        for line in _lines():
            try:
                if line == "/quit":
                    return
                if line.startswith("/"):
                    self._command(*line.split())
                else:
                    self._answer(line)
            except MemAlphaError as error:
                out(f"error: {with_notes(error)}")
            except KeyboardInterrupt:
                out("interrupted")

    def _answer(self, message: str) -> None:
        self._last = reply = self.agent.ask(message, namespace=self.namespace)
        asked, corrects = "?" in message, False
        if asked:
            self._tell(reply)
        today = self._clock().date().isoformat()
        self._read.append([])
        for piece in self.agent.pieces(f"User: {message}", today):
            added = self.agent.add(piece.text, today, namespace=self.namespace, source="chat")
            self._read[-1] += added.operations
            for number, change in zip(
                added.operations,
                (c for step in added.steps for c in step.outcome.changes),
                strict=True,
            ):
                out(f"  remembered ({number}): {_shown(change)}")
                corrects = corrects or change.before is not None
            for message in (result.message for result in added.results if not result.ok):
                out(f"  not done: {message}")
        # of a statement, a small reader may repeat a word as its answer, or say what the statement
        # has just corrected
        if not (asked or corrects) and (reply.source is not None or not self._read[-1]):
            self._tell(reply)

    def _tell(self, reply: Reply) -> None:
        out(reply.text if reply.known else "I do not know.")
        if reply.source is not None and render_entry(reply.source) not in reply.text:
            entry, section, time, content, _ = self._rows([reply.source])[0]
            out(printable(f"  from {section} {entry} [{time}]: {content}"))
        elif reply.known and reply.source is None:
            out("  from no passage in these words: /why shows what was read")

    def _rows(self, entries: Iterable[Entry]) -> list[tuple[str, str, str, str, int]]:
        """Return a row for each entry; its time is the day of its last write where its section
        keeps no times.
        """
        written = {
            e.after.id: str(e.time.date())
            for e in self.agent.history(namespace=self.namespace)
            if e.after is not None
        }
        return [
            (e.id, e.section, e.timestamp or written.get(e.id, ""), e.content, e.updated)
            for e in entries
        ]

    def _command(self, name: str, *more: str) -> None:
        match name:
            case "/memory":
                show_table(COLUMNS, self._rows(self.agent.memory(self.namespace)))
            case "/why":
                if self._last is None:
                    raise InputError("nothing was answered yet", expected="a message first")
                show_table(COLUMNS, self._rows(self._last.read))
            case "/undo":
                self._undo(*more)
            case "/forget":
                *entries, last = more or ("ENTRY",)
                if last != "yes" or not entries:
                    raise InputError(
                        "forgetting cannot be undone",
                        expected=f"/forget {' '.join(more) or last} yes",
                    )
                receipt = self.agent.forget(entries[0], entries[1:], namespace=self.namespace)
                self._last = None
                out(
                    f"  forgotten for good: entry {receipt.entry}, {receipt.operations} records erased"
                )
                for entry in receipt.said_by:
                    out(printable(f"  still has words of it: {entry.id} {entry.content}"))
            case _:
                raise InputError(f"no command {name!r}", expected=COMMANDS)

    def _undo(self, *words: str) -> None:
        if words and not (len(words) == 1 and is_operation(words[0])):
            raise InputError(
                f"/undo {' '.join(words)[:40]}",
                expected="/undo or /undo NUMBER, an operation as /memory shows it",
            )
        numbers = list(map(int, words))
        while not numbers and self._read:  # a message that changed nothing is passed over
            numbers = self._read.pop()
        if not numbers:
            raise InputError(
                "nothing was remembered in this conversation that is not taken back",
                expected="/undo NUMBER",
            )
        for number in reversed(numbers):
            try:
                out(
                    f"  taken back: {_shown(self.agent.undo(number, namespace=self.namespace, by=self.namespace.user))}"
                )
            except MemAlphaError as error:
                out(f"  not taken back: {error}")


def _lines() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(
            errors="backslashreplace"
        )  # a line in another encoding stays one line
    interactive = sys.stdin.isatty() and console.is_terminal
    if interactive:
        import readline  # noqa: F401
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line:
            yield line


def _shown(change: Change) -> str:
    before, after = change
    if after is None:
        return printable(f"- {before.id} {before.content}") if before else "nothing"
    return printable(
        f"{'=' if before else '+'} {after.id} {after.content}"
        + (f" (was: {before.content})" if before else "")
    )
