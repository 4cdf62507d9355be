"""Our memory behind clients that programs already have: entry points of ``memalpha.clients``.

``wrap`` for OpenAI's client, ``ClaudeMemory`` and ``AsyncClaudeMemory`` for Claude's memory tool,
``JournalStore`` for LangGraph; each needs the library of its side (the extra ``clients``), which is
imported when its name is first asked for. A proxy for OpenAI's API, and Mem0's routes, are in
``memalpha serve``.
"""

from typing import Any

from memalpha.plugins import find_plugins, load_plugin

__all__ = sorted(find_plugins("memalpha.clients"))


def __getattr__(name: str) -> Any:
    """Import a client; AttributeError for any other name, MissingExtraError without its library."""
    entry = find_plugins("memalpha.clients").get(name)
    if entry is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_plugin(entry, extra="clients")
