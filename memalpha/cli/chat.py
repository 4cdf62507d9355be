"""``memalpha chat`` and ``ask`` talk to an agent, and show what it remembers and uses.

With ``endpoint`` its model answers. Otherwise the first of these that is given does: the server at
``reader_url``, ``reader``, the reader that the agent names, and the adapter's base without the
adapter. A whole model without a reader shows the entries found.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text
from typer import Context

from memalpha.cli.console import (
    console,
    out,
    printable,
    quiet_libraries,
    show_table,
    with_notes,
)
from memalpha.cli.journal import open_store
from memalpha.cli.options import AgentOptions, AsJson, ListOptions, WhoseOptions, read_options
from memalpha.conversation.messages import USER, Utterance
from memalpha.errors import InputError, MemAlphaError
from memalpha.memory.memory import render_entry
from memalpha.retrieval.archive import is_pasted, is_question
from memalpha.types import Entry

if TYPE_CHECKING:
    from memalpha.store.journal import Namespace
    from memalpha.types import Change
    from memalpha.use.agent import MemoryAgent, Reply
    from memalpha.use.passages import Passage

# a line of JSON: brackets alone, a list or object that begins, a quoted name or text in one
_JSON = re.compile(r'[\[\]{}]+,?$|[\[{]+\s*"|"[^"]*"\s*(?::|,$)')
_DIGEST = re.compile(r"[0-9a-f]{64}$")  # of a text to which its reader gave no name
_SHORT = 240  # characters of a passage that is shown whole
_AROUND = 160  # characters that are shown of what stands before or after a passage
COMMANDS = "/memory, /why, /undo [NUMBER], /forget ENTRY... yes, /quit"


def ask(context: Context, options: ListOptions = False, as_json: AsJson = False) -> None:
    """Answer one question from a memory.

    Call memalpha ask QUESTION [TRAINED] --store STORE --user NAME. A reader answers where it is
    sure. Otherwise, and without an agent (TRAINED, or --endpoint URL --model NAME), the answer is
    at most three passages as they were said, with day, source, context and newer statements. If no
    passage is near enough to the question, the memory does not know, and the nearest passages are
    shown.

    --json prints answer (null if not known), source, read, searches, known, by_reader, probability
    and passages (docs/guides/chat.md). --options lists all options.
    """
    question, *context.args = context.args or [""]
    if not options and (not question or question.startswith("--")):
        raise InputError(
            "memalpha ask got no question",
            expected='memalpha ask "QUESTION" [TRAINED] --store STORE --user NAME',
        )
    with _open(context, options, new=False) as conversation:
        if as_json:
            conversation.answer_as_json(question)
        else:
            conversation.answer(question)


def chat(context: Context, options: ListOptions = False) -> None:
    """Talk to a model that remembers what you say.

    Give a store (made if it does not exist), a user, and an agent (TRAINED, or --endpoint URL
    --model NAME). Without an agent your messages are kept as you wrote them, and found again. The
    commands are /memory, /why, /undo [NUMBER], /forget ENTRY... yes and /quit. --options lists all
    options.
    """
    with _open(context, options) as conversation:
        conversation.talk()


@contextmanager
def _open(context: Context, options: bool, new: bool = True) -> Iterator[Conversation]:
    """Give the conversation of one user with the agent that the options name; the store may be
    ``new``.
    """
    from memalpha.store.journal import Namespace

    quiet_libraries()
    trained, about, who = read_options(context, options, AgentOptions, WhoseOptions)
    if not who.user:
        raise InputError("no user is given whose memory is meant", expected="--user NAME")
    namespace = Namespace(who.user, who.agent or "default", who.session or "default")
    if not new:
        with open_store(about.store, about.key_file) as memories:
            memories.journal.schema(namespace)  # there is such a memory
    with about.load(trained, base_reads=True) as agent:
        yield Conversation(agent, namespace)


@dataclass
class Conversation:
    """One user's conversation with an agent that keeps the memory."""

    agent: MemoryAgent
    namespace: Namespace
    clock: Callable[[], datetime] = lambda: datetime.now().astimezone()
    last: Reply | None = None
    operations: list[list[int]] = field(default_factory=list)  # of each message; not taken back

    def talk(self) -> None:
        """Answer lines of the terminal or pipe until /quit or the end of input; errors are
        printed.
        """
        if console.is_terminal:
            out(f"Talking as {self.namespace.user}. {COMMANDS}")
        for number, line in enumerate(_lines()):
            if line == "/quit":
                return
            if number == 0 and not sys.stdin.isatty():
                self._refuse_json(line)  # of a file that is piped in nothing else is read
            try:
                self._refuse_json(line)
                if line.startswith("/"):
                    self._command(*line.split())
                else:
                    self._answer(line)
            except MemAlphaError as error:
                out(f"error: {with_notes(error)}")
            except KeyboardInterrupt:
                out("interrupted")

    def _refuse_json(self, line: str) -> None:
        """Raise InputError for a line of JSON, which is no message but a part of an export."""
        if _JSON.match(line):
            raise InputError(
                "this line is JSON, as in an export of chats, and was not stored",
                expected="a message",
                fix=f"memalpha import FILE --store STORE --user {self.namespace.user}",
            )

    def answer(self, question: str) -> None:
        """Answer a question, and learn nothing from it."""
        self.last = self.agent.ask(question, namespace=self.namespace)
        self._tell(self.last, "this was read:")
        if self.last.by_reader and self.last.known and self.last.source is None:
            self._show(self.last.read)

    def answer_as_json(self, question: str) -> None:
        """Answer a question with a JSON object: the answer (null: not known), the entry or line
        that says it (null: none does), what was read, what was searched for, and of ``Reply``
        whether a reader gives the answer, its probability, and the passages.
        """
        reply = self.agent.ask(question, namespace=self.namespace)
        told = {
            "answer": reply.text if reply.known else None,
            "source": reply.source and asdict(reply.source),
            "read": [asdict(entry) for entry in reply.read],
            "searches": list(reply.searches),
            "known": reply.known,
            "by_reader": reply.by_reader,
            "probability": reply.probability,
            "passages": [asdict(passage) for passage in reply.passages],
        }
        out(json.dumps(told))

    def _answer(self, message: str) -> None:
        self.last = reply = self.agent.ask(message, namespace=self.namespace)
        if "?" in message:
            self._tell(reply)
        if not self.agent.writes and is_question(message):
            return  # it states nothing that could be found
        changes = self._add(message)
        if not self.agent.writes:
            out("  kept as it was said")
            return
        # of a statement, a small reader may repeat a word as its answer, or say what the statement
        # has just corrected
        corrects = any(change.before is not None for change in changes)
        answers = reply.by_reader and (reply.source is not None or not changes)
        if "?" not in message and not corrects and answers:
            self._tell(reply)

    def _add(self, message: str) -> list[Change]:
        """Read a message into the memory, and show what it changed."""
        today = self.clock().date().isoformat()
        self.operations.append([])
        changes: list[Change] = []
        _, secrets = self.agent.guards.masked(message)
        if secrets:
            out(f"  not read: {secrets} secrets of this message")
        for piece in self.agent.pieces(Utterance(USER, message).labelled[0], today):
            added = self.agent.add(piece.text, today, namespace=self.namespace, source="chat")
            self.operations[-1] += added.operations
            lines = [
                f"  remembered ({number}): {_show_change(change)}"
                for number, change in added.changes
            ]
            lines += [f"  not done: {result.message}" for result in added.results if not result.ok]
            for line in lines:
                out(line)
            changes += [change for _, change in added.changes]
        return changes

    def _tell(self, reply: Reply, hint: str = "/why shows what was read") -> None:
        answered = reply.known and reply.by_reader
        if answered:
            out(reply.text)
        elif not reply.known:
            nearest = " What comes nearest:" if reply.passages else ""
            out(f"I do not know.{nearest}")
        elif reply.probability is not None:
            out("The reader is not sure enough to answer. This was said:")
        for words in reply.searches:
            out(printable(f"  searched for: {words}"))
        if not answered:
            show_passages(reply.passages)
        elif reply.source is None:
            out(f"  no passage contains these words; {hint}")
        else:
            ((entry, section, time, content, _),) = self._rows([reply.source])
            out(printable(f"  from {section} {entry} [{time}]: {content}"))

    def _rows(self, entries: Iterable[Entry]) -> list[tuple[str, str, str, str, int]]:
        """Return a row for each entry; its time is the day of its last write where its section
        keeps no times.
        """
        entries = list(entries)
        numbers = [entry.updated for entry in entries]
        events = self.agent.events_at(numbers, namespace=self.namespace)
        written = {number: str(event.time.date()) for number, event in events.items()}
        return [
            (e.id, e.section, e.timestamp or written.get(e.updated, ""), e.content, e.updated)
            for e in entries
        ]

    def _show(self, entries: Iterable[Entry]) -> None:
        show_table(("entry", "section", "time", "content", "operation"), self._rows(entries))

    def _command(self, name: str, *words: str) -> None:
        match name:
            case "/memory":
                entries, lines = self.agent.counted(self.namespace)
                if entries:
                    self._show(entries)
                out(f"  {len(entries)} entries; {lines} lines are kept as they were said")
            case "/why":
                if self.last is None:
                    raise InputError("there is no answer yet", expected="a message first")
                self._show(self.last.read)
            case "/undo":
                self._undo(*words)
            case "/forget":
                self._forget(*words)
            case _:
                raise InputError(f"there is no command {name!r}", expected=COMMANDS)

    def _forget(self, *words: str) -> None:
        if len(words) < 2 or words[-1] != "yes":
            raise InputError(
                "forgetting cannot be undone, so it must be confirmed",
                expected=f"/forget {' '.join(words) or 'ENTRY'} yes",
            )
        receipt = self.agent.forget(words[0], words[1:-1], namespace=self.namespace)
        self.last = None
        out(f"  forgotten for good: entry {receipt.entry}, {receipt.operations} records erased")
        for entry in receipt.said_by:
            out(printable(f"  still has words of it: {entry.id} {entry.content}"))

    def _undo(self, *words: str) -> None:
        if not all(word.isdecimal() and len(word) <= 18 for word in words[:1]) or words[1:]:
            raise InputError(
                f"/undo cannot read {' '.join(words)[:40]!r}",
                expected="/undo, or /undo NUMBER with the number of an operation as /memory "
                "shows it",
            )
        numbers = list(map(int, words))
        while not numbers and self.operations:  # a message that changed nothing is passed over
            numbers = self.operations.pop()
        if not numbers:
            raise InputError(
                "this conversation has no change that is left to undo",
                expected="/undo NUMBER",
            )
        user = self.namespace.user
        for number in reversed(numbers):
            try:
                change = self.agent.undo(number, namespace=self.namespace, by=user)
                out(f"  taken back: {_show_change(change)}")
            except MemAlphaError as error:
                out(f"  not taken back: {error}")


def show_passages(passages: Sequence[Passage]) -> None:
    """Show what was said, best first: day, source and id; the turn, or of a long one the sentence
    that fits, behind ``>``; what stands around it; and what is newer.
    """
    places = {passage.entry.id: place for place, passage in enumerate(passages, 1)}
    for place, passage in enumerate(passages, 1):
        source = "" if _DIGEST.search(passage.source) else passage.source
        day = passage.time[: len("2024-03-05")] or "without a date"
        if passage.time and passage.entry.timestamp is None:
            day = f"kept {day}"  # when it was said is not known
        about = [day, source, passage.entry.id, "pasted" * is_pasted(passage.entry)]
        out(printable(f"{place}. {'  '.join(filter(None, about))}"))
        start, end = passage.fits if len(passage.text) > _SHORT else (0, len(passage.text))
        _show_around(f"{passage.before} {passage.text[:start]}", back=True)
        mark = "> "
        for line in passage.text[start:end].splitlines():
            console.print(Text(f"   {mark}{printable(line)}", style="bold"))
            mark = "  "
        _show_around(f"{passage.text[end:]} {passage.after}", back=False)
        if passage.newer is not None:
            newer = passage.newer
            number = places.get(newer.id)
            told = f"{number}." if number else render_entry(newer)
            out(printable(f"   newer: {told}"))


def _show_around(text: str, *, back: bool) -> None:
    """Show the near end of what stands before or after a passage, on one line."""
    text = " ".join(text.split())
    if len(text) > _AROUND:
        text = f"… {text[-_AROUND:]}" if back else f"{text[:_AROUND]} …"
    if text:
        out(printable(f"     {text}"))


def _lines() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        # a line in another encoding stays one line
        sys.stdin.reconfigure(errors="backslashreplace")
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


def _show_change(change: Change) -> str:
    before, after = change
    if after is None:
        return printable(f"- {before.id} {before.content}") if before else "nothing"
    text = f"{'=' if before else '+'} {after.id} {after.content}"
    return printable(f"{text} (was: {before.content})" if before else text)
