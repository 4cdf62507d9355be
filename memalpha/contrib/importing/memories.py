"""Readers of other memories: Mem0, MemOS, LangMem and other stores of LangGraph, Claude's own.

Their entries are taken as they are, without a model.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from memalpha.contrib.importing.items import (
    ForeignEntry,
    Reasons,
    clean_text,
    fields,
    owner_of,
    time_in,
    time_of,
    word,
)
from memalpha.units import units

EMPTY = "entry without text"
_MEM0 = frozenset({"user_id", "created_at", "categories", "category", "metadata", "payload"})
_MEM0_READ = frozenset({"created_at", "updated_at", "state"})
# of a payload, what is no metadata
_MEM0_OWN = frozenset(
    """data user_id agent_id run_id app_id hash created_at updated_at expiration_date
    text_lemmatized attributed_to actor_id role state categories""".split()
)
_MEMOS = frozenset({"memory_type", "memory_time", "status", "visibility", "session_id"})
_GONE = frozenset({"archived", "deleted", "expired", "resolving", "paused"})


# ------------------------------------------------------------------------------------------------
# Mem0: ``get_all``, its export, a collection of its vector store, OpenMemory
def is_mem0(value: Any) -> bool:
    """Whether it is a memory of Mem0."""
    entry = fields(value)
    is_one = "memory" in entry or not _MEM0.isdisjoint(entry)
    return "id" in entry and "role" not in entry and is_one and bool(_mem0_text(entry))


def _mem0_text(entry: dict[str, Any]) -> str:
    texts = (
        entry.get("memory"),
        entry.get("text"),
        entry.get("content"),
        fields(entry.get("payload")).get("data"),
    )
    return next(filter(None, map(clean_text, texts)), "")


def mem0(values: Iterable[Any], skipped: Reasons) -> Iterator[ForeignEntry]:
    """Read memories of Mem0, with the time when they were last written."""
    for value in map(fields, values):
        about = {**fields(value.get("metadata")), **fields(value.get("payload")), **value}
        state = word(about.get("state")) or "active"
        text = _mem0_text(value)
        if state in _GONE or not text:
            skipped[f"entry that is {state}" if text else EMPTY] += 1
        else:
            time = time_in(about, updated=True, skipped=skipped) or None
            kept = _mem0_about(value)
            yield ForeignEntry(str(value.get("id") or ""), text, time, owner_of(about), kept)


def _mem0_about(value: dict[str, Any]) -> str | None:
    """The metadata and the app of an entry, as ``memalpha serve`` keeps them; None without any."""
    payload = fields(value.get("payload"))
    about = fields(value.get("metadata"))
    kept = {
        "metadata": {
            **{name: each for name, each in payload.items() if name not in _MEM0_OWN},
            **{name: each for name, each in about.items() if name not in _MEM0_READ},
        },
        "app_id": word(value.get("app_id")) or word(payload.get("app_id")),
    }
    given = {name: each for name, each in kept.items() if each}
    # without what is no Unicode text
    return (
        json.dumps(json.loads(clean_text(json.dumps(given, ensure_ascii=False)))) if given else None
    )


# ------------------------------------------------------------------------------------------------
# MemOS: ``textual_memory.json`` of a cube, the nodes of a tree, and answers of its API
def is_memos(value: Any) -> bool:
    """Whether it is an entry of MemOS."""
    entry = _memos_entry(value)
    about = fields(entry.get("metadata"))
    return "memory_value" in entry or ("memory" in entry and not _MEMOS.isdisjoint(about))


def _memos_entry(value: Any) -> dict[str, Any]:
    return {**fields(value), **fields(fields(value).get("payload"))}


def memos(values: Iterable[Any], skipped: Reasons) -> Iterator[ForeignEntry]:
    """Read entries of MemOS, with the time that they are about, else when they were written."""
    for value in values:
        entry = _memos_entry(value)
        about = {**entry, **fields(entry.get("metadata"))}
        text = clean_text(entry.get("memory") or entry.get("memory_value"))
        status = word(about.get("status")) or "activated"
        if status in _GONE or not text:
            skipped[f"entry that is {status}" if text else EMPTY] += 1
        else:
            time = time_of(about.get("memory_time")) or time_in(about, updated=True)
            yield ForeignEntry(str(entry.get("id") or ""), text, time or None, owner_of(about))


# ------------------------------------------------------------------------------------------------
# LangMem, and any store of LangGraph: items as ``Item.dict()`` writes them
def is_langmem(value: Any) -> bool:
    """Whether it is an item of a store of LangGraph."""
    return {"namespace", "key", "value"} <= fields(value).keys()


def langmem(values: Iterable[Any], skipped: Reasons) -> Iterator[ForeignEntry]:
    """Read items of a store; of a value without ``content``, its fields as ``name: value``."""
    for value in map(fields, values):
        text = _as_text(value.get("value"))
        if not text:
            skipped[EMPTY] += 1
            continue
        namespace = value.get("namespace")
        parts = namespace if isinstance(namespace, list) else [namespace]
        owner = "/".join(map(str, parts))
        time = time_in(value, updated=True, skipped=skipped) or None
        yield ForeignEntry(f"{owner}/{value.get('key')}", text, time, owner)


def _as_text(value: Any) -> str:
    about = fields(value)
    for key in ("content", "text", "memory"):
        if key in about:
            return _as_text(about[key])
    if about:
        said = [(name, _as_text(each)) for name, each in about.items()]
        return "; ".join(f"{name}: {text}" for name, text in said if text)
    if isinstance(value, list):
        return ", ".join(filter(None, map(_as_text, value)))
    return clean_text(
        value if isinstance(value, str) else "" if value in (None, {}) else str(value)
    )


# ------------------------------------------------------------------------------------------------
# Claude: ``memories.json``, what it has noted about a person: texts without dates
_TITLE = re.compile(r"\**[^*\n]{1,80}\*\*:?|#+ [^\n]*")
_NOTE_TOKENS = 40  # of an entry: what the sections of all schemas hold


def is_claude_memories(value: Any) -> bool:
    """Whether it is what Claude has noted about a person."""
    return not fields(value).keys().isdisjoint(("conversations_memory", "project_memories"))


def claude_memories(values: Iterable[Any], skipped: Reasons) -> Iterator[ForeignEntry]:
    """Read ``memories.json`` of Claude: an entry for each paragraph, or its sentences."""
    for value in map(fields, values):
        texts = [value.get("conversations_memory")]
        texts += fields(value.get("project_memories")).values()
        if not any(map(clean_text, texts)):
            skipped[EMPTY] += 1
        for text in filter(None, map(clean_text, texts)):
            for note in units(text, _NOTE_TOKENS, _estimate_tokens, labels=()):
                if _TITLE.fullmatch(note):
                    skipped["title without text"] += 1
                else:
                    yield ForeignEntry(note, note, None, owner_of(value))


def _estimate_tokens(text: str) -> int:
    return len(text.encode()) // 4 + 1
