"""Registry of data sources. To add one, write a loader with options and add it to its module's ``SOURCES``."""

from __future__ import annotations

from memalpha.data import babi, classification, dialogues, documents, multihop, perltqa, squad, synthetic, toy
from memalpha.data.source import LoadResult, Source
from memalpha.data.synthetic import SyntheticOptions
from memalpha.errors import InputError

_MODULES = (babi, classification, dialogues, documents, multihop, perltqa, squad, synthetic, toy)

SOURCES: dict[str, Source] = {source.name: source for module in _MODULES for source in module.SOURCES}


def get_source(name: str) -> Source:
    """Return a source; ignores case, "-" equals "_". InputError lists all names if there is none."""
    known = name if name in SOURCES else name.lower().replace("-", "_")
    if known not in SOURCES:
        raise InputError(f"unknown data source {name!r}", expected=f"one of {', '.join(sorted(SOURCES))}")
    return SOURCES[known]


__all__ = ["SOURCES", "LoadResult", "Source", "SyntheticOptions", "get_source"]
