"""Guards of an agent in use, which keep texts from being read and entries from being written.

    MemoryAgent.load(..., guards=("secrets", "instructions", "assistant"))

Each is found by its name: an entry point of the group ``memalpha.detectors``. A refused operation
is a failed result with the code ``guarded``. Not covered: what is written without an agent's step,
by import, by hand or by a client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.plugins import PLUGIN_GROUPS, find_plugins, load_plugin
from memalpha.types import Chunk, Operation

DETECTORS_GROUP = "memalpha.detectors"
Text = Any
"""A text, or a sequence of chat messages; it stays what it is."""


@runtime_checkable
class Guard(Protocol):
    """One or more detectors, which a ``MemoryAgent`` asks before it reads and before it writes.

    An entry point names a function that takes the names of detectors, all that lead to it, and
    returns a guard; MissingExtraError if one of them needs what is not installed. Threads share it.
    """

    def masked(self, text: Text) -> tuple[Text, int]:
        """Return a text, or chat messages, without the parts that may not be read, and the number
        of parts taken out.

        Called before an agent reads; anything else than a text or messages is returned as it is.
        """

    def refusal(
        self, memory: Memory, index: int, chunk: Chunk, operations: Sequence[Operation]
    ) -> str:
        """Return the detector that refuses the operations of a call, with the reason; empty if none
        does.

        Called in the transaction of a chunk (``index`` is its number) before a call is applied. An
        error ends the transaction: nothing of the chunk is written.
        """

    def forget_texts(self) -> None:
        """Drop every text that is kept; called when something of a memory was erased."""


class Guards:
    """The guards with these names, which are asked one after the other; it is false if there are
    none.

    InputError if a name is unknown or its entry point gives no guard, MissingExtraError if one
    needs what is not installed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        entries = find_plugins(DETECTORS_GROUP) if names else {}
        unknown = set(names) - set(entries)
        if unknown:
            raise InputError(
                f"the guards {sorted(unknown)} are unknown",
                expected=f"some of {', '.join(entries)}",
            )
        names_of: dict[str, list[str]] = defaultdict(list)  # detectors of one function: one guard
        for name in names:
            names_of[entries[name].value].append(name)
        self._guards: list[Guard] = []
        for together in names_of.values():
            entry = entries[together[0]]
            make = load_plugin(entry)
            guard = make(together) if callable(make) else make
            if not isinstance(guard, Guard):
                raise InputError(
                    f"the entry point {entry.name!r} gives {type(guard).__name__} {guard!r:.80}",
                    expected=f"{PLUGIN_GROUPS[DETECTORS_GROUP]} at {entry.value}",
                )
            self._guards.append(guard)

    def __bool__(self) -> bool:
        return bool(self._guards)

    def masked(self, text: Text) -> tuple[Text, int]:
        """Return a text without the parts that one of the guards takes out, and their number."""
        removed = 0
        for guard in self._guards:
            text, count = guard.masked(text)
            removed += count
        return text, removed

    def refusal(
        self, memory: Memory, index: int, chunk: Chunk, operations: Sequence[Operation]
    ) -> str:
        """Return the refusal of the first guard that refuses the operations; empty if none does."""
        for guard in self._guards:
            why = guard.refusal(memory, index, chunk, operations)
            if why:
                return why
        return ""

    def forget_texts(self) -> None:
        """Drop every text that they have kept."""
        for guard in self._guards:
            guard.forget_texts()
