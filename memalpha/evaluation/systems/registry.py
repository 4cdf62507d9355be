"""Every kind of system by the name a configuration gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memalpha.config import read
from memalpha.errors import InputError
from memalpha.evaluation.systems.agent import Agent, AgentOptions
from memalpha.evaluation.systems.base import Setting, System
from memalpha.evaluation.systems.constant_state import constant_state
from memalpha.evaluation.systems.full_context import FullContext, FullContextOptions
from memalpha.evaluation.systems.gold import Gold, GoldOptions
from memalpha.evaluation.systems.mem0 import Mem0, Mem0Options
from memalpha.evaluation.systems.overwrite_summary import overwrite_summary
from memalpha.evaluation.systems.rag import RagOptions, rag_bm25, rag_dense, rag_two_layer
from memalpha.evaluation.systems.rewriting import RewritingOptions
from memalpha.evaluation.systems.teacher import Teacher, TeacherOptions
from memalpha.evaluation.systems.verbatim import Verbatim, VerbatimOptions


class Kind(NamedTuple):
    """How a system is made: its maker and the dataclass of its options."""

    make: Callable[[Setting, Any], System]
    options: type


KINDS: Mapping[str, Kind] = {
    "agent": Kind(Agent, AgentOptions),
    "constant_state": Kind(constant_state, RewritingOptions),
    "full_context": Kind(FullContext, FullContextOptions),
    "gold": Kind(Gold, GoldOptions),
    "mem0": Kind(Mem0, Mem0Options),
    "overwrite_summary": Kind(overwrite_summary, RewritingOptions),
    "rag_bm25": Kind(rag_bm25, RagOptions),
    "rag_dense": Kind(rag_dense, RagOptions),
    "rag_two_layer": Kind(rag_two_layer, RagOptions),
    "teacher": Kind(Teacher, TeacherOptions),
    "verbatim": Kind(Verbatim, VerbatimOptions),
}
"""Every kind; the modules say what each one is and where it departs from its source."""


def system_options(kind: str, values: Mapping[str, Any]) -> Any:
    """Return the options of a kind of system.

    Raises:
        InputError: If there is no such kind, or an option is unknown or does not fit.
    """
    if kind not in KINDS:
        raise InputError(f"unknown kind of system {kind!r}", expected=f"one of {', '.join(KINDS)}")
    return read(KINDS[kind].options, values, f"system {kind!r}")


def draws(kind: str, options: Any, temperature: float) -> bool:
    """Return whether a system runs once with each sampling seed, by its options, as ``system_options`` gave them."""
    return hasattr(KINDS[kind].options, "draws") and bool(options.draws(temperature))


def make_system(kind: str, setting: Setting, options: Any) -> System:
    """Make a system from its options, as ``system_options`` gave them."""
    return KINDS[kind].make(setting, options)


__all__ = ["KINDS", "Kind", "draws", "make_system", "system_options"]
