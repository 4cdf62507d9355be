"""Clients for the memory of an agent, in programs that exist already (entry points of
``memalpha.clients``).

``wrap`` is for OpenAI's client, ``ClaudeMemory`` and ``AsyncClaudeMemory`` are for Claude's memory
tool, and ``JournalStore`` is for LangGraph. Each needs the library of its program (the extra
``clients``), which is imported when its name is first used. ``memalpha serve`` has a proxy for
OpenAI's API, and Mem0's routes.
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
