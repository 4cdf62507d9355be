"""Our memory behind clients that programs already have; each needs the library of its side (the
extra ``clients``), which is imported when its name is first asked for.

``wrap`` for OpenAI's client, ``ClaudeMemory`` and ``AsyncClaudeMemory`` for Claude's memory tool,
``JournalStore`` for LangGraph. A proxy for OpenAI's API, and Mem0's routes, are in ``memalpha
serve``.
"""

from importlib import import_module
from typing import Any

from memalpha.errors import MissingExtraError

_HOMES = {
    "AsyncClaudeMemory": "memalpha.clients.claude",
    "ClaudeMemory": "memalpha.clients.claude",
    "JournalStore": "memalpha.clients.langgraph",
    "wrap": "memalpha.clients.openai",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a client; AttributeError for any other name, MissingExtraError without its library."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "clients") from error
