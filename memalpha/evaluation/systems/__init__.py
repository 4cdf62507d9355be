"""The systems that can be compared, by configuration name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from memalpha.config import read
from memalpha.errors import InputError
from memalpha.evaluation.systems import agent, mem0, raw, rewriting
from memalpha.evaluation.systems.base import System, SystemOptions
from memalpha.retrieval import RetrievalMode


class Kind(NamedTuple):
    """Makes a system from its ``Setting`` and options; ``options`` is their dataclass."""

    make: Callable[..., System]
    options: type[SystemOptions]


KINDS: Mapping[str, Kind] = {
    "agent": Kind(agent.Agent, agent.AgentOptions),
    "constant_state": Kind(
        partial(rewriting.Rewriting, instructions=rewriting.CONSTANT_STATE, parse=rewriting.parse_state), rewriting.RewritingOptions
    ),
    "full_context": Kind(raw.FullContext, raw.FullContextOptions),
    "gold": Kind(raw.Gold, SystemOptions),
    "mem0": Kind(mem0.Mem0, mem0.Mem0Options),
    "overwrite_summary": Kind(partial(rewriting.Rewriting, instructions=rewriting.OVERWRITE_SUMMARY), rewriting.RewritingOptions),
    "rag_bm25": Kind(partial(raw.Rag, mode=RetrievalMode.LEXICAL), raw.RagOptions),
    "rag_dense": Kind(partial(raw.Rag, mode=RetrievalMode.DENSE), raw.RagOptions),
    "rag_two_layer": Kind(partial(raw.Rag, mode=RetrievalMode.HYBRID), raw.RagOptions),
    "teacher": Kind(agent.Teacher, agent.TeacherOptions),
    "verbatim": Kind(raw.Verbatim, raw.VerbatimOptions),
}
"""All kinds; see their modules for departures from the sources."""


def system_options(kind: str, values: Mapping[str, Any]) -> SystemOptions:
    """Return the options of a kind; InputError if the kind or an option is unknown or invalid."""
    if kind not in KINDS:
        raise InputError(f"unknown kind of system {kind!r}", expected=f"one of {', '.join(KINDS)}")
    return read(KINDS[kind].options, values, f"system {kind!r}")
