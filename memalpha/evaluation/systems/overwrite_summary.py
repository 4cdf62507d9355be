"""Overwrite summary: a text memory of fixed size that the model writes anew at each chunk. Source: MemAgent (arXiv 2507.02259).

Departures: the questions are unknown while writing, as for every system here (MemAgent writes for one question it is told); the
model is not trained for it, unless an adapter is given; the memory has the common reader's budget rather than 1,024 tokens; the
common reader answers, from the memory alone; the wording of the prompt is our own.
"""

from __future__ import annotations

from memalpha.evaluation.systems.base import Setting
from memalpha.evaluation.systems.rewriting import Rewriting, RewritingOptions

INSTRUCTIONS = (
    "You read a long text chunk by chunk and keep a memory of it, of at most {tokens} tokens. Questions will be answered from the "
    "memory alone. Read the chunk, then write the whole memory anew: keep what still holds, add what is new, correct what has "
    "changed. One fact a line, with names. Write the memory and nothing else."
)
"""System text; ``{tokens}`` is the memory's size."""


def overwrite_summary(setting: Setting, options: RewritingOptions) -> Rewriting:
    """Make the system."""
    return Rewriting(setting, options, INSTRUCTIONS)


__all__ = ["INSTRUCTIONS", "overwrite_summary"]
