"""Train a language model to build and keep a memory, and use it.

Importing this package is quick: models and their libraries are loaded by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memalpha.use.agent import AsyncMemoryAgent, MemoryAgent

__all__ = ["AsyncMemoryAgent", "MemoryAgent", "__version__"]


def __getattr__(name: str) -> Any:
    """Load an agent's class when it is first asked for."""
    if name in ("AsyncMemoryAgent", "MemoryAgent"):
        from memalpha.use import agent

        return getattr(agent, name)
    raise AttributeError(f"module 'memalpha' has no attribute {name!r}")
