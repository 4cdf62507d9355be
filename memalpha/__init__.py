"""Train a language model to build and keep a memory, and use it.

Importing this package is quick: models and their libraries are loaded by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memalpha.version import __version__

if TYPE_CHECKING:
    from memalpha.api import MemoryAgent


__all__ = ["MemoryAgent", "__version__"]


def __getattr__(name: str) -> Any:
    """Load ``MemoryAgent`` when it is first asked for."""
    if name == "MemoryAgent":
        from memalpha.api import MemoryAgent

        return MemoryAgent
    raise AttributeError(f"module 'memalpha' has no attribute {name!r}")
