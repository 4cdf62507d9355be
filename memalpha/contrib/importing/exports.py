"""Files that people bring: chats of other assistants and memories of other systems.

    export = Export(Path("conversations.json"))  # its kind is recognised
    for item in export:  # a Chat, or what another memory Remembered
        ...
    export.skipped  # what was not read, counted by its reason

A file is read piece by piece: of a list, one element is in memory at a time. What is not read is
counted, so nothing is lost silently.
"""

import json
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from memalpha.contrib.importing import chats, memories
from memalpha.contrib.importing.items import Item, Reasons
from memalpha.contrib.importing.kinds import EXPORT_LOOKS, EXPORTS_GROUP
from memalpha.errors import InputError
from memalpha.plugins import PLUGIN_GROUPS, load_plugins

_BLOCK = 1 << 20  # characters
_LONGEST = (
    1 << 29
)  # characters of one value; a file of one value needs some times its size in memory
_SQLITE = b"SQLite format 3\0"  # the beginning of a database
_FIRST = 200  # values that are looked at to recognise a kind
# a zip that unpacks to more bytes than _LARGE and than _RATIO times its size is no export: texts
# are packed to a third or a tenth
_LARGE = 1 << 26
_RATIO = 100
_MOST_FILES = 100_000
# lists that hold what is read, in files that are one object
_LISTS = (
    "conversations",
    "chats",
    "memories",
    "results",
    "items",
    "nodes",
    "memory_detail_list",
    "text_mem",
    "data",
)
_MEMBERS = re.compile(
    r"(?:^|/)conversations[^/]*\.jsonl?$|(?:Gemini|Bard)[^/]*/[^/]*\.(?:json|html)$"
)
_OTHER_MEMBERS = re.compile(r"\.(?:jsonl?|html)$")  # where no file has one of those names
_OF_A_MAC = re.compile(r"(?:^|/)(?:__MACOSX/|\._)")  # what macOS keeps beside a file
_IN_FOLDER = "conversations*.json, as ChatGPT and Claude name them, or other JSON or JSON Lines"
_OTHER_FILE = "file of another kind (*{})"


class Kind(NamedTuple):
    """One form of file: how its elements look, in words and as a test, and their reader."""

    looks: str
    fits: Callable[[Any], bool]
    read: Callable[[Iterable[Any], Reasons], Iterator[Item]]


_READERS: Mapping[str, tuple[Callable[[Any], bool], Callable[..., Iterator[Item]]]] = {
    "chatgpt": (chats.is_chatgpt, chats.chatgpt),
    "claude": (chats.is_claude, chats.claude),
    "claude-memories": (memories.is_claude_memories, memories.claude_memories),
    "claude-code": (chats.is_claude_code, chats.claude_code),
    "deepseek": (chats.is_deepseek, chats.deepseek),
    "gemini": (chats.is_gemini, chats.gemini),
    "gemini-cli": (chats.is_gemini_cli, chats.gemini_cli),
    "grok": (chats.is_grok, chats.grok),
    "openwebui": (chats.is_openwebui, chats.openwebui),
    "librechat": (chats.is_librechat, chats.librechat),
    "sharegpt": (chats.is_sharegpt, chats.sharegpt),
    "locomo": (chats.is_locomo, chats.locomo),
    "langmem": (memories.is_langmem, memories.langmem),
    "memos": (memories.is_memos, memories.memos),
    "mem0": (memories.is_mem0, memories.mem0),
    "messages": (chats.is_messages, chats.messages),
}


@cache
def export_kinds() -> Mapping[str, Kind]:
    """Return all kinds by name in the order in which they are tried: those of other packages before
    ``messages``, which fits most. InputError if one of an entry point is no ``Kind``.
    """
    own = {name: Kind(looks, *_READERS[name]) for name, looks in EXPORT_LOOKS.items()}
    others = load_plugins(EXPORTS_GROUP, own)
    for name, kind in others.items():
        if not isinstance(kind, Kind):
            raise InputError(
                f"the entry point {name!r} of {EXPORTS_GROUP!r} names {kind!r}",
                expected=PLUGIN_GROUPS[EXPORTS_GROUP],
            )
    *first, last = own.items()
    return dict([*first, *others.items(), last])


class _File(NamedTuple):
    """A file of an export: its name in the folder or zip (empty for a file alone), the first of its
    values, and all of them.
    """

    name: str
    first: list[Any]
    values: Iterator[Any]


class Export:
    """A file, a zip or its unpacked folder; iterate once over its items.

    ``kind`` None: recognised by its content. ``name`` is that of the file that is being read,
    without its suffix. InputError for a file of no kind, or of another one than asked for, or that
    cannot be read. In a folder or zip, files of another kind than the first are counted.
    """

    def __init__(self, path: Path, kind: str | None = None) -> None:
        self._kinds = export_kinds()
        if kind is not None and kind not in self._kinds:
            raise InputError(
                f"the kind of export {kind!r} is unknown",
                expected=f"one of {', '.join(self._kinds)}",
            )
        self.path = path
        self.name = path.stem
        self.skipped: Reasons = Counter()
        self._files = self._opened()
        self._begun: list[_File] = []
        self.kind = self._found(kind)

    def __iter__(self) -> Iterator[Item]:
        kind = self._kinds[self.kind]
        try:
            for file in chain(self._begun, self._files):
                if not any(map(kind.fits, file.first)):
                    self.skipped[_OTHER_FILE.format(Path(file.name).suffix)] += 1
                    continue
                self.name = Path(file.name).stem or self.path.stem
                yield from kind.read(file.values, self.skipped)
        except (RecursionError, MemoryError) as error:
            raise self._unreadable(error) from error

    def _found(self, kind: str | None) -> str:
        """Read the begin of the files up to the first one of a kind; return the kind."""
        wanted = self._kinds if kind is None else [kind]
        for file in self._files:
            self._begun.append(file)
            for name in wanted:
                if any(map(self._kinds[name].fits, file.first)):
                    return name
        looked = "; ".join(f"{name}: {self._kinds[name].looks}" for name in wanted)
        first = self._begun[0].first if self._begun else []
        of_journal = any(isinstance(value, dict) and "format" in value for value in first[:1])
        other = "what memalpha journal export wrote: memalpha journal import STORE FILE"
        raise InputError(
            f"{self.path} holds {_show_beginning(first)}",
            expected=looked,
            fix=other if of_journal else "",
        )

    def _opened(self) -> Iterator[_File]:
        """Yield the files that are to be read, each with its first values."""
        try:
            for name, stream in _streams(self.path, self.skipped):
                with TextIOWrapper(stream, "utf-8-sig") as text:
                    values = self._values(name, text)
                    first = list(islice(values, _FIRST))
                    yield _File(name, first, chain(first, values))
        except InputError:
            raise
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _values(self, name: str, stream: TextIO) -> Iterator[Any]:
        try:
            for value in json_values(stream):
                yield from self._unwrapped(value)
        except InputError:
            raise
        except _UNREADABLE as error:
            raise self._unreadable(error, name) from error

    def _unreadable(self, error: Exception, name: str = "") -> InputError:
        reasons = {RecursionError: "it is nested too deeply", MemoryError: "memory is too small"}
        reason = reasons.get(type(error)) or str(error) or type(error).__name__
        expected = "JSON or JSON Lines in UTF-8, a zip of such files, or its folder"
        if _is_database(self.path):
            reason = "the file is a database"
            expected += "; for a store of memalpha, the file that memalpha journal export writes"
        return InputError(
            f"{self.path}{name and f' ({name})'} cannot be read: {reason}", expected=expected
        )

    def _unwrapped(self, value: Any) -> Iterator[Any]:
        """Yield the elements of the lists in an object, or the value itself."""
        is_object = isinstance(value, dict) and not any(
            kind.fits(value) for kind in self._kinds.values()
        )
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


def _is_database(path: Path) -> bool:
    """Whether a file is a SQLite database, as a store is."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:  # a folder, or what cannot be read
        return False


# what damaged files raise: zipfile has a RuntimeError for a password
_UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    MemoryError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
)


def _show_beginning(first: list[Any]) -> str:
    if not first:
        return "nothing"
    value = first[0]
    if isinstance(value, dict):
        return f"objects with {', '.join(map(repr, list(value)[:8])) or 'no keys'}"[:300]
    return f"{type(value).__name__}: {ascii(value)[:80]}"


def _streams(path: Path, skipped: Reasons) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the files to read, open: those of a folder or zip with their names, a file alone with
    an empty one.
    """
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        links = {str(each.relative_to(path)) for each in files if each.is_symlink()}
        names = [str(each.relative_to(path)) for each in files]
        for name in _files_to_read(path, names, links, skipped):
            with (path / name).open("rb") as stream:
                yield name, stream
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {each.filename: each for each in archive.infolist() if not each.is_dir()}
            links = {
                name for name, each in members.items() if stat.S_ISLNK(each.external_attr >> 16)
            }
            wanted = _files_to_read(path, list(members), links, skipped)
            _check_size(path, [members[name] for name in wanted])
            for name in wanted:
                with archive.open(name) as stream:
                    yield name, stream
    else:
        with path.open("rb") as stream:
            yield "", stream


def _files_to_read(path: Path, names: list[str], links: set[str], skipped: Reasons) -> list[str]:
    """Return the names of the files to read, in order; count the others."""
    if links:
        skipped["link to another file"] += len(links)
    names = [name for name in names if name not in links]
    wanted = [name for name in names if _MEMBERS.search(name)]
    wanted = sorted(wanted or filter(_OTHER_MEMBERS.search, names))
    wanted = [name for name in wanted if not _OF_A_MAC.search(name)]
    nested = any(name.endswith(".zip") for name in names)
    if not wanted:
        raise InputError(
            f"{path} holds {', '.join(names[:8]) or 'nothing'}"
            + (f", and {len(links)} links, which are not followed" if links else ""),
            expected=_IN_FOLDER,
            fix="unpack the zip archive in it, and import the unpacked folder" if nested else "",
        )
    if len(wanted) > _MOST_FILES:
        raise InputError(
            f"{path} holds {len(wanted)} files that would be read",
            expected=f"at most {_MOST_FILES}",
        )
    others = set(names).difference(wanted)
    skipped.update(_OTHER_FILE.format(Path(name).suffix) for name in others)
    return wanted


def _check_size(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Raise InputError for a zip that is made to fill memory or disk."""
    unpacked = sum(member.file_size for member in members)
    packed = min(path.stat().st_size, sum(member.compress_size for member in members))
    if unpacked > max(_LARGE, _RATIO * packed):
        raise InputError(
            f"{path} unpacks from {packed} to {unpacked} bytes",
            expected=f"at most {_RATIO} times as many bytes, since no text is packed better",
            fix="if it is an export, unpack it and import the folder",
        )


def json_values(stream: TextIO) -> Iterator[Any]:
    """Yield the elements of a JSON list, or the values of JSON Lines, or the one value.

    Of a page of HTML, its activities (``chats.activities_of``). ValueError for anything else. The
    text of one element is in memory at a time, of a page all.
    """
    decoder = json.JSONDecoder()
    blocks = iter(partial(stream.read, _BLOCK), "")
    text = next((block for block in blocks if not block.isspace()), "").lstrip()
    if text.startswith("<"):
        text += stream.read(_LONGEST)
        _check_length(text)
        yield from chats.activities_of(text)
        return
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
                if not text[error.pos :].strip():
                    raise ValueError("it ends in the middle of a value") from error
                raise ValueError(f"{error.msg.removesuffix(' at')} at {found}") from error
            text = text[place:]
            _check_length(text)
            more = stream.read(block if text else _BLOCK)
            ended = not more
            text += more
            place = 0
            block *= 2
            continue
        yield value
        place = end
        block = _BLOCK


_SEPARATORS = re.compile(r"[ \t\r\n,]*")


def _after_separators(text: str, place: int) -> int:
    match = _SEPARATORS.match(text, place)
    return match.end() if match else place


def _check_length(text: str) -> None:
    if len(text) >= _LONGEST:
        raise ValueError(f"one value of it has more than {_LONGEST} characters")
