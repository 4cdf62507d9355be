"""Constant state: the model thinks and keeps an internal state, all else is dropped at each turn. Source: MEM1 (arXiv 2506.15841).

A turn's context is the last state and the new chunk; the model may think, then writes its new state between ``<IS>`` and ``</IS>``;
the thinking is gone with the turn, and comes out of the same token limit as the state.

Departures: a turn brings a chunk of the input and not the result of an action, so there is nothing to search for or to answer
before the end; the questions are unknown while writing; the model is not trained for it, unless an adapter is given; a reply
without the opening mark is taken for the state as a whole (the published system drops it), since an untrained model rarely writes
it; the common reader answers; the wording of the prompt is our own.
"""

from __future__ import annotations

import re

from memalpha.evaluation.systems.base import Setting
from memalpha.evaluation.systems.rewriting import Rewriting, RewritingOptions

INSTRUCTIONS = (
    "You read a long text chunk by chunk. Between chunks you remember only your internal state; questions will be answered from it "
    "at the end. First think, in a few words, about what the chunk changes. Then write your whole new state between <IS> and "
    "</IS>, in at most {tokens} tokens: what still holds of the memory and what is new, one fact a line, with names."
)
"""System text; ``{tokens}`` is the limit of a turn."""

_STATE = re.compile(r"<IS>(.*?)(?:</IS>|\Z)", re.DOTALL)


def parse_state(reply: str) -> str:
    """Return the last state of a reply, closed or not; a reply without one is the state itself."""
    found = _STATE.findall(reply)
    return (found[-1] if found else reply.replace("</IS>", "")).strip()


def constant_state(setting: Setting, options: RewritingOptions) -> Rewriting:
    """Make the system."""
    return Rewriting(setting, options, INSTRUCTIONS, parse_state)


__all__ = ["INSTRUCTIONS", "constant_state", "parse_state"]
