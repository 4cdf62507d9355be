"""Files that people bring: chats of other assistants and memories of other systems.

    export = Export(Path("conversations.json"))  # its kind is recognised
    for item in export:  # a Chat, or what another memory Remembered
        ...
    export.skipped  # what was not read, counted by its reason

A file is read piece by piece: of a list, one element is in memory at a time. What is not read is
counted, so nothing is lost silently. Not covered: files in HTML, such as the other form of Google
Takeout.
"""

import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from memalpha.conversation import chats, memories
from memalpha.conversation.items import Item, Reasons
from memalpha.errors import InputError

_BLOCK = 1 << 20  # characters
_FIRST = 200  # values that are looked at to recognise a kind
# lists that hold what is read, in files that are one object
_LISTS = (
    "conversations",
    "memories",
    "results",
    "items",
    "nodes",
    "memory_detail_list",
    "text_mem",
    "data",
)
_MEMBERS = re.compile(r"(?:^|/)conversations[^/]*\.jsonl?$|(?:Gemini|Bard)[^/]*/[^/]*\.json$")
_IN_FOLDER = "conversations*.json, as ChatGPT and Claude name them, or Gemini's activity"


class Kind(NamedTuple):
    """One form of file: how its elements look, in words and as a test, and their reader."""

    looks: str
    fits: Callable[[Any], bool]
    read: Callable[[Iterable[Any], Reasons], Iterator[Item]]


# In the order in which they are tried.
KINDS: Mapping[str, Kind] = {
    "chatgpt": Kind("objects with 'mapping' (conversations.json)", chats.is_chatgpt, chats.chatgpt),
    "claude": Kind("objects with 'chat_messages'", chats.is_claude, chats.claude),
    "gemini": Kind("activities of 'Gemini Apps' (Takeout, JSON)", chats.is_gemini, chats.gemini),
    "locomo": Kind("objects with 'session_1'", chats.is_locomo, chats.locomo),
    "langmem": Kind(
        "items with 'namespace', 'key' and 'value'", memories.is_langmem, memories.langmem
    ),
    "memos": Kind("items with 'memory' and 'metadata'", memories.is_memos, memories.memos),
    "mem0": Kind("memories with 'id' and 'memory' or 'text'", memories.is_mem0, memories.mem0),
    "messages": Kind("messages with 'role' and 'content'", chats.is_messages, chats.messages),
}


class Export:
    """A file, a zip or its unpacked folder; iterate once over its items.

    ``kind`` None: recognised by its content. InputError for a file of no kind, or of another one
    than asked for, or that cannot be read.
    """

    def __init__(self, path: Path, kind: str | None = None) -> None:
        InputError.raise_if(
            kind is not None and kind not in KINDS,
            f"kind {kind!r}",
            expected=f"one of {', '.join(KINDS)}",
        )
        self.path = path
        self.skipped: Reasons = Counter()
        values = self._values()
        first = list(islice(values, _FIRST))
        self.kind = self._found(first, kind)
        self._rest = chain(first, values)

    def __iter__(self) -> Iterator[Item]:
        return KINDS[self.kind].read(self._rest, self.skipped)

    def _found(self, first: list[Any], kind: str | None) -> str:
        wanted = KINDS if kind is None else [kind]
        for name in wanted:
            if any(map(KINDS[name].fits, first)):
                return name
        looked = "; ".join(f"{name}: {KINDS[name].looks}" for name in wanted)
        of_journal = any(isinstance(value, dict) and "format" in value for value in first[:1])
        other = "what memalpha journal export wrote: memalpha journal import STORE FILE"
        raise InputError(
            f"{self.path} holds {_shown(first)}", expected=looked, fix=other if of_journal else ""
        )

    def _values(self) -> Iterator[Any]:
        try:
            for name in _names(self.path, self.skipped):
                with _opened(self.path, name) as stream:
                    for value in json_values(stream):
                        yield from self._unwrapped(value)
        except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InputError(
                f"{self.path} cannot be read: {reason}",
                expected="JSON or JSON Lines in UTF-8, a zip of such files, or its folder",
            ) from error

    def _unwrapped(self, value: Any) -> Iterator[Any]:
        """Yield the elements of the lists in an object, or the value itself."""
        is_object = isinstance(value, dict) and not any(kind.fits(value) for kind in KINDS.values())
        lists = [value[name] for name in _LISTS if name in value] if is_object else []
        lists = [each for each in lists if isinstance(each, list | dict)]
        if not lists:
            yield value
            return
        others = {
            f"{name}: no text of a memory": len(other)
            for name, other in value.items()
            if name not in _LISTS and isinstance(other, list) and other
        }
        self.skipped.update(others)
        for each in lists:
            for element in each if isinstance(each, list) else [each]:
                yield from self._unwrapped(element)


def _shown(first: list[Any]) -> str:
    if not first:
        return "nothing"
    value = first[0]
    if isinstance(value, dict):
        return f"objects with {', '.join(map(repr, list(value)[:8])) or 'no keys'}"[:300]
    return f"{type(value).__name__}: {ascii(value)[:80]}"


@contextmanager
def _opened(path: Path, name: str) -> Iterator[TextIO]:
    """Open a file, or a file in a folder or zip, as text."""
    if name and not path.is_dir():
        with zipfile.ZipFile(path) as archive, archive.open(name) as stream:
            yield TextIOWrapper(stream, "utf-8-sig")
    else:
        with (path / name).open(encoding="utf-8-sig") as text:
            yield text


def _names(path: Path, skipped: Reasons) -> list[str]:
    """Return the files to read in a folder or zip; an empty name for a file alone."""
    if path.is_dir():
        names = [str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()]
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [each.filename for each in archive.infolist() if not each.is_dir()]
    else:
        return [""]
    wanted = sorted(filter(_MEMBERS.search, names))
    InputError.raise_if(
        not wanted, f"{path} holds {', '.join(names[:8]) or 'nothing'}", expected=_IN_FOLDER
    )
    others = set(names).difference(wanted)
    skipped.update(f"file of another kind (*{Path(name).suffix})" for name in others)
    return wanted


def json_values(stream: TextIO) -> Iterator[Any]:
    """Yield the elements of a JSON list, or the values of JSON Lines, or the one value.

    ValueError for anything else. The text of one element is in memory at a time.
    """
    decoder = json.JSONDecoder()
    blocks = iter(partial(stream.read, _BLOCK), "")
    text = next((block for block in blocks if not block.isspace()), "").lstrip()
    in_list = text.startswith("[")
    place = int(in_list)
    block = _BLOCK
    ended = False
    while True:
        place = _after_separators(text, place)
        try:
            if in_list and text.startswith("]", place):
                if (text[place + 1 :] + stream.read(_BLOCK)).strip():
                    raise ValueError("more follows the end of its list")
                return
            value, end = decoder.raw_decode(text, place)
            if end == len(text) and not ended:
                raise json.JSONDecodeError("cut off", text, end)
        except json.JSONDecodeError as error:
            if ended:
                if place == len(text) and not in_list:
                    return
                found = ascii(text[error.pos : error.pos + 40])
                raise ValueError(f"{error.msg} at {found}") from error
            more = stream.read(block)
            ended = not more
            text = text[place:] + more
            place = 0
            block *= 2
            continue
        yield value
        place = end
        block = _BLOCK


def _after_separators(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,":
        place += 1
    return place
