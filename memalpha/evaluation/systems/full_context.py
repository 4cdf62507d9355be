"""Full context: no memory at all, the reader gets the input itself. The reference every memory is there to save.

With ``budget: window`` (the default) a reader with a model reads as much as its model takes, whatever the common budget is: the
true full context. With ``budget: reader``, and for the ``recall`` reader always (its answer is what it is given, so without a
budget it would be right about everything), the common budget holds as for every other system: that is what "the last N tokens of
the context" is worth.

Chunks stand in reading order, each under its time. Where the input is longer than the window (or than ``context_tokens``, or the
budget), the oldest is left out, line by line, and counted in ``cut``: tokens of the input, on average over the questions.

Departure from the published comparison (Mem-alpha, arXiv 2509.25911), which gives its long-context model the last 30k tokens:
nothing is left out that the reader's model can take, and what is left out is stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memalpha.agent.rollout import StepCallback
from memalpha.errors import InputError
from memalpha.evaluation.pieces import UNIT_TOKENS, Piece, pieces
from memalpha.evaluation.systems.base import Kept, PlainSystem, Room, Setting
from memalpha.protocols import TokenCounter
from memalpha.text import one_line
from memalpha.types import Instance, Question


@dataclass(frozen=True, slots=True)
class FullContextOptions:
    """How much is read.

    Attributes:
        budget: ``window`` (all that the reader's model takes) or ``reader`` (the common budget).
        context_tokens: Most tokens of the input with ``budget: window`` (0 = all that the model takes).
    """

    budget: Literal["window", "reader"] = "window"
    context_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the number."""
        if self.context_tokens < 0:
            raise InputError(f"context_tokens is {self.context_tokens}", expected="0 (all that the model takes) or more")


class FullContext(PlainSystem):
    """The input itself; a ``System``."""

    def __init__(self, setting: Setting, options: FullContextOptions) -> None:
        self.count, self.options = setting.count, options
        self.reads_window = options.budget == "window"

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Keep the inputs as they are."""
        return [self._keep(instance) for instance in instances]

    def _keep(self, instance: Instance) -> Kept:
        chunks = [Piece(chunk.text, chunk.time, index) for index, chunk in enumerate(instance.chunks)]
        lines = pieces(instance.chunks, 1, UNIT_TOKENS, self.count)

        def read(room: Room) -> tuple[str, ...]:
            most = self.options.context_tokens if room.window else 0
            return newest_in_order(chunks, lines, min(room.tokens, most or room.tokens), self.count)

        def left_out(room: Room) -> int:
            return sum(self.count(chunk.render()) for chunk in chunks) - sum(map(self.count, read(room)))

        def find(questions: Sequence[Question], room: Room) -> list[tuple[str, ...]]:
            return [read(room)] * len(questions)

        return Kept(find, memory_tokens=sum(self.count(chunk.text) for chunk in instance.chunks), left_out=left_out)


def newest_in_order(chunks: Sequence[Piece], lines: Sequence[Piece], tokens: int, count: TokenCounter) -> tuple[str, ...]:
    """Return the newest part of an input that fits, in reading order: whole chunks, then lines of the first that does not fit.

    Args:
        chunks: The input's chunks, whole.
        lines: The input's lines.
        tokens: Most tokens, as a reader with a model sees the passages: each on one line, a line break after it.
        count: Counts tokens.
    """

    def cost(piece: Piece) -> int:
        return count(one_line(piece.render())) + 1

    kept: list[str] = []
    for chunk in reversed(chunks):
        needed = cost(chunk)
        if needed > tokens:
            tail: list[Piece] = []
            for line in reversed([line for line in lines if line.chunk == chunk.chunk]):
                grown = Piece("\n".join([line.text, *(other.text for other in tail)]), line.time, line.chunk)
                if cost(grown) > tokens:
                    break
                tail.insert(0, line)
            kept += [Piece("\n".join(line.text for line in tail), chunk.time, chunk.chunk).render()] if tail else []
            break
        kept.append(chunk.render())
        tokens -= needed
    return tuple(reversed(kept))


__all__ = ["FullContext", "FullContextOptions", "newest_in_order"]
