"""Guards at write: the detectors of the audit, asked before an operation is applied.

The guard ``secrets`` also takes secrets out of a text before model and archive see it. Beside the
kinds of the audit there is ``assistant``: what an assistant says changes and deletes nothing, since
its words rank below the user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memalpha.contrib.audit import texts
from memalpha.contrib.audit.pairs import Statement, contradicts_between, statement_of
from memalpha.contrib.audit.run import choose
from memalpha.contrib.audit.sources import SUPPORTED
from memalpha.contrib.audit.view import Fault, NamespaceView
from memalpha.contrib.audit.words import forget_words, overlap, stems, telling
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval.archive import lines_of_text
from memalpha.types import Chunk, Entry, Operation, OperationKind
from memalpha.use.guards import Text

ASSISTANT_GUARD = "assistant"
_TRIAL = "(new)"  # id of an entry that is not written yet
_NAME_IS = "'s name is "


class DetectorGuard:
    """A guard that asks the detectors of these kinds, and ``assistant``; MissingExtraError if one
    needs a package that is not installed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        kinds = [name for name in names if name != ASSISTANT_GUARD]
        self.detectors = choose(kinds) if kinds else {}
        self.assistant = ASSISTANT_GUARD in names
        self.masks = Fault.SECRETS in names
        if self.masks:
            texts.secret_spans("")
        if Fault.IDENTIFIERS in names:
            texts.identifier_spans("")

    def forget_texts(self) -> None:
        """Drop every text that the detectors have kept, as something of it was erased."""
        forget_words()
        statement_of.cache_clear()

    def masked(self, text: Text) -> tuple[Text, int]:
        """Return a text, or chat messages, without secrets, and how many were taken out."""
        if not self.masks or not isinstance(text, str | list | tuple):
            return text, 0
        if isinstance(text, str):
            return texts.mask_secrets(text)
        pairs = [self._masked_message(message) for message in text]
        return [message for message, _ in pairs], sum(count for _, count in pairs)

    def _masked_message(self, message: Any) -> tuple[Any, int]:
        """A message of OpenAI's form, its content a text or parts with a ``text``."""
        for name in ("content", "text"):
            held = message.get(name) if isinstance(message, Mapping) else None
            if isinstance(held, str | list | tuple):
                clean, count = self.masked(held)
                return {**message, name: clean}, count
        return message, 0

    def refusal(
        self, memory: Memory, index: int, chunk: Chunk, operations: Sequence[Operation]
    ) -> str:
        """Return which guard refuses the operations of a call on a chunk, and why; empty: none."""
        pieces = lines_of_text(chunk.text, memory.count_tokens)
        lines = [
            Entry(f"(line {number})", ARCHIVE.name, piece, chunk.time, index)
            for number, piece in enumerate(pieces)
        ]
        for operation in operations:
            why = self._why(memory, lines, index, chunk, operation)
            if why:
                return why
        return ""

    def _why(
        self, memory: Memory, lines: list[Entry], index: int, chunk: Chunk, operation: Operation
    ) -> str:
        before = memory.get(operation.entry_id or operation.section)
        if self.assistant and before is not None and _by_assistant(before, operation, lines):
            return f"the guard {ASSISTANT_GUARD}: only an assistant's words ask for it"
        if operation.kind is OperationKind.DELETE or not operation.content:
            return ""
        now = memory.clock
        trial = Entry(
            before.id if before else _TRIAL,
            operation.section,
            operation.content,
            operation.timestamp or chunk.time,
            index,
            before.created if before else now,
            now,
        )
        view = _around(memory, lines, trial)
        if before is not None:
            view.chunks = {trial.id: {before.source_chunk}}
        for kind, detector in self.detectors.items():
            for finding in detector(view):
                old = finding.entry
                if old.id == trial.id:
                    return f"the guard {kind}: {finding.why}"
                again = kind == Fault.REPEATS and contradicts_between(view, old, trial)
                if finding.other is not None and finding.other.id == trial.id and not again:
                    return f"the guard {kind}: beside entry {old.id}, {finding.why}"
        return ""


def _by_assistant(before: Entry, operation: Operation, lines: Iterable[Entry]) -> bool:
    """Whether only lines of an assistant have the words of a change or delete."""
    view = NamespaceView((), lines)
    after = replace(before, content=operation.content or before.content)
    words = view.words_of(after) - view.words_of(before) or view.words_of(before)
    user = [stems(line.content) for line in view.lines if view.by_user(line)]
    others = [stems(line.content) for line in view.lines if not view.by_user(line)]
    by_user = overlap(words, frozenset().union(*user))
    by_others = overlap(words, frozenset().union(*others))
    return by_user < SUPPORTED <= by_others


def _same_attribute(fact: Statement | None, other: Statement | None) -> bool:
    return fact is not None and other is not None and fact.what == other.what


def _around(memory: Memory, lines: list[Entry], trial: Entry) -> NamespaceView:
    """The view of an entry that is not written yet, with the entries and lines that share words
    with it, and the entries that give a value of the same attribute.
    """
    words = telling(trial.content)
    fact = statement_of(trial.content)
    near = [
        entry
        for entry in memory
        if entry.id != trial.id
        and (
            words & stems(entry.content)
            or _NAME_IS in entry.content
            or _same_attribute(fact, statement_of(entry.content))
        )
    ]
    read = [line for line in memory.entries(ARCHIVE.name) if words & stems(line.content)]
    now = [replace(line, created=trial.updated, updated=trial.updated) for line in lines]
    return NamespaceView([*near, trial], [*read, *now])
