"""Train a language model to build and keep a memory, and use it.

Importing this package is quick: models and their libraries are loaded by what needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memalpha.version import __version__

if TYPE_CHECKING:
    from memalpha.use.agent import AsyncMemoryAgent, MemoryAgent

_LAZY = {"AsyncMemoryAgent": "memalpha.use.agent", "MemoryAgent": "memalpha.use.agent"}

__all__ = ["AsyncMemoryAgent", "MemoryAgent", "__version__"]


def __getattr__(name: str) -> Any:
    """Load an agent's class when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'memalpha' has no attribute {name!r}")
