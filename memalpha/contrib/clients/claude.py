"""Claude's memory tool over a journal: its files under ``/memories`` are entries of a namespace.

    memory = ClaudeMemory("memories.db", "marta")
    client.beta.messages.run_tools(tools=[memory], ...)

Supported are all commands of ``memory_20250818``: view, create, str_replace, insert, delete and
rename, with the texts and errors of ``anthropic``'s own backend for local folders. One file is one
entry, whose first line is the path: so each command is one operation in the history (of a folder,
one call), ``undo`` takes it back, and a file keeps its id when it is renamed. ``delete`` keeps the
text in the history; ``DurableMemory.forget`` or ``memalpha journal forget`` erases it for good.
Unlike in a folder, a directory is there only while it has files, and its size is that of its files.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncBuiltinFunctionTool, ToolError
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818Param,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)
from pydantic import ValidationError

from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.text.quoting import is_text
from memalpha.types import Entry, Operation, OperationKind
from memalpha.use.store import MemoryStore

FILES = MemorySchema("files", (Section("files", description="files of the memory tool"),))
ROOT = "/memories"
_END = "(end of file)"  # last line of an entry: its outer white space is cut, a file's must not be
_MOST_LINES = 999_999
_CONTEXT = 2  # lines shown before and after a replacement
_DEPTH = 2  # levels that a directory's view shows
_HIDDEN = "node_modules"
_Files = dict[str, Entry]
_COMMANDS: Mapping[str, Any] = {
    "view": BetaMemoryTool20250818ViewCommand,
    "create": BetaMemoryTool20250818CreateCommand,
    "str_replace": BetaMemoryTool20250818StrReplaceCommand,
    "insert": BetaMemoryTool20250818InsertCommand,
    "delete": BetaMemoryTool20250818DeleteCommand,
    "rename": BetaMemoryTool20250818RenameCommand,
}


class ClaudeMemory(BetaAbstractMemoryTool):
    """Claude's memory tool for the tool runner of ``anthropic``; files are on disk when a command
    returns.

    A wrong command raises ToolError, which Claude reads; a failure of the store raises
    JournalError.

    Args:
        store: Path or URL of the store (``Journal.open``), or a journal that the caller closes.
        namespace: A namespace that holds only these files; a str is the user of ``Namespace(user,
            "claude")``.
        options: Further options of the tool in ``anthropic``, such as ``cache_control``.
    """

    def __init__(
        self, store: str | Path | Journal, namespace: Namespace | str, **options: Any
    ) -> None:
        super().__init__(**options)
        if isinstance(namespace, str):
            namespace = Namespace(namespace, "claude")
        self.namespace = namespace
        self.store = MemoryStore(store, FILES)

    def call(self, input: object) -> Any:
        """Carry out one command.

        Args:
            input: The fields of the command, as Claude sends them.

        Raises:
            ToolError: A field is missing or of a wrong type, or the command is wrong.
        """
        fields = input if isinstance(input, Mapping) else {}
        name = str(fields.get("command"))
        if name not in _COMMANDS:
            raise ToolError(f"Unknown command: {name[:80]!r}; one of {', '.join(_COMMANDS)}")
        if not all(is_text(value) for value in fields.values() if isinstance(value, str)):
            raise ToolError(f"The command {name} holds what is no Unicode text")
        try:
            return self.execute(_COMMANDS[name].model_validate(fields))
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            raise ToolError(f"The command {name} cannot be read: {'; '.join(wrong)}") from error

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """List a directory, or show the lines of a file.

        Args:
            command: The command of ``anthropic``.
        """
        path = _resolve(command.path)
        with self.store.durable(self.namespace) as durable:
            files = _files_of(durable.memory)
        if path in files:
            return _show(command.path, _text_of(files[path]), command.view_range)
        inside = _inside(files, path)
        if not inside and path != ROOT:
            raise _no_path(command.path)
        return _list(command.path, path, {name: _text_of(files[name]) for name in inside})

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Make a new file.

        Args:
            command: The command of ``anthropic``.
        """
        path = _resolve(command.path)

        def change(files: _Files) -> list[Operation]:
            if _exists(files, path):
                raise ToolError(f"File {command.path} already exists")
            _check_folders(files, path)
            return [Operation(OperationKind.INSERT, "files", _content(path, command.file_text))]

        self._change(change)
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file.

        Args:
            command: The command of ``anthropic``.
        """

        def edited(text: str) -> str:
            return text.replace(command.old_str, command.new_str)

        def change(files: _Files) -> list[Operation]:
            entry = _file(files, command.path)
            _check_once(command.old_str, _text_of(entry), command.path)
            return [_update(entry, _path_of(entry), edited(_text_of(entry)))]

        before = self._change(change)
        text = _text_of(before[_resolve(command.path)])
        line = text[: text.find(command.old_str)].count("\n")
        shown = edited(text).split("\n")[max(0, line - _CONTEXT) : line + _CONTEXT + 1]
        told = "The memory file has been edited. Here is the snippet showing the change (with line"
        return f"{told} numbers):\n{_number_lines(shown, max(1, line - _CONTEXT + 1))}"

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert lines after a line of a file; line 0 is its beginning.

        Args:
            command: The command of ``anthropic``.
        """

        def change(files: _Files) -> list[Operation]:
            entry = _file(files, command.path)
            lines = _text_of(entry).split("\n")
            if not lines[-1]:
                lines.pop()
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            edited = "\n".join(lines)
            text = edited if edited.endswith("\n") else f"{edited}\n"
            return [_update(entry, _path_of(entry), text)]

        self._change(change)
        return f"The file {command.path} has been edited."

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file, or a directory with everything in it; an undo restores it.

        Args:
            command: The command of ``anthropic``.
        """
        path = _resolve(command.path)
        if path == ROOT:
            raise ToolError(f"Cannot delete the {ROOT} directory itself")

        def change(files: _Files) -> list[Operation]:
            return [_delete(files[name]) for name in _there(files, path, command.path)]

        self._change(change)
        return f"Successfully deleted {command.path}"

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename or move a file or a directory.

        Args:
            command: The command of ``anthropic``.
        """
        old = _resolve(command.old_path)
        new = _resolve(command.new_path)
        if old == ROOT:
            raise ToolError(f"Cannot rename the {ROOT} directory itself")

        def change(files: _Files) -> list[Operation]:
            if _exists(files, new):
                raise ToolError(f"The destination {command.new_path} already exists")
            names = _there(files, old, command.old_path)
            if new.startswith(f"{old}/"):
                raise ToolError(f"Cannot move {command.old_path} into itself")
            _check_folders(files, new)
            return [
                _update(files[name], new + name.removeprefix(old), _text_of(files[name]))
                for name in names
            ]

        self._change(change)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear_all_memory(self) -> str:
        """Delete all files; an undo restores them."""

        def change(files: _Files) -> list[Operation]:
            return [_delete(entry) for entry in files.values()]

        self._change(change)
        return "All memory cleared"

    def _change(self, change: Callable[[_Files], list[Operation]]) -> _Files:
        """Apply what a function of the files asks for, all or none; return the files before."""
        origin = Origin("claude", "memory tool")
        with self.store.writing(origin, namespace=self.namespace) as memory:
            before = _files_of(memory)
            for result in memory.apply_all(change(before)):
                if not result.ok:
                    raise ToolError(f"The store refused it: {result.message}")
        return before


class AsyncClaudeMemory(BetaAsyncBuiltinFunctionTool):
    """Claude's memory tool for the asynchronous tool runner; each command runs in a thread.

    Args:
        memory: The tool that carries out the commands.
    """

    def __init__(self, memory: ClaudeMemory) -> None:
        super().__init__()
        self.memory = memory

    def to_dict(self) -> BetaMemoryTool20250818Param:
        """Return the tool as requests name it."""
        return self.memory.to_dict()

    async def call(self, input: object) -> Any:
        """Carry out one command.

        Args:
            input: The fields of the command, as Claude sends them.
        """
        return await asyncio.to_thread(self.memory.call, input)


# ------------------------------------------------------------------------------------------------
# paths and files
def _resolve(path: str) -> str:
    """Return the normal form of a path; ToolError if it is not one under ``/memories``."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    normal = posixpath.normpath(path)
    if normal != ROOT and not normal.startswith(f"{ROOT}/"):
        raise ToolError(f"Path {path} would escape {ROOT} directory")
    if not normal.isprintable():
        raise ToolError(f"Path {path!r} has characters that no name may have")
    return normal


def _files_of(memory: Memory) -> _Files:
    return {_path_of(entry): entry for entry in memory.entries()}


def _path_of(entry: Entry) -> str:
    return entry.content.partition("\n")[0]


def _text_of(entry: Entry) -> str:
    return entry.content.partition("\n")[2].removesuffix(f"\n{_END}")


def _content(path: str, text: str) -> str:
    return f"{path}\n{text}\n{_END}"


def _update(entry: Entry, path: str, text: str) -> Operation:
    return Operation(OperationKind.UPDATE, "files", _content(path, text), entry.id)


def _delete(entry: Entry) -> Operation:
    return Operation(OperationKind.DELETE, "files", entry_id=entry.id)


def _inside(files: _Files, path: str) -> list[str]:
    return [name for name in files if name.startswith(f"{path}/")]


def _exists(files: _Files, path: str) -> bool:
    return path == ROOT or path in files or bool(_inside(files, path))


def _there(files: _Files, path: str, shown: str) -> list[str]:
    """The file of that path, or all files of the directory; ToolError if there are none."""
    names = [path] if path in files else _inside(files, path)
    if not names:
        raise ToolError(f"The path {shown} does not exist")
    return names


def _check_folders(files: _Files, path: str) -> None:
    parent = posixpath.dirname(path)
    while parent != ROOT:
        if parent in files:
            raise ToolError(f"The path {parent} is a file, not a directory.")
        parent = posixpath.dirname(parent)


def _no_path(path: str) -> ToolError:
    return ToolError(f"The path {path} does not exist. Please provide a valid path.")


def _file(files: _Files, path: str) -> Entry:
    name = _resolve(path)
    if name not in files:
        is_folder = _exists(files, name)
        raise ToolError(f"The path {path} is not a file.") if is_folder else _no_path(path)
    return files[name]


def _check_once(old: str, text: str, path: str) -> None:
    """ToolError unless a text is there once."""
    starts = [start for start in range(len(text)) if text.startswith(old, start)]
    if not starts:
        raise ToolError(
            f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
        )
    if len(starts) > 1:
        breaks = (text.count("\n", last, start) for last, start in pairwise([0, *starts]))
        lines = ", ".join(str(line + 1) for line in accumulate(breaks))
        raise ToolError(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
            f"{lines}. Please ensure it is unique"
        )


# ------------------------------------------------------------------------------------------------
# what Claude sees
def _show(shown: str, text: str, view_range: Sequence[int] | None) -> str:
    lines = text.split("\n")
    if len(lines) > _MOST_LINES:
        raise ToolError(f"File {shown} exceeds maximum line limit of {_MOST_LINES:,} lines.")
    first = 1
    last = len(lines)
    if view_range and len(view_range) == 2:
        first = max(1, view_range[0])
        last = len(lines) if view_range[1] == -1 else view_range[1]
    body = _number_lines(lines[first - 1 : last], first)
    return f"Here's the content of {shown} with line numbers:\n{body}"


def _number_lines(lines: Sequence[str], first: int) -> str:
    width = len(str(_MOST_LINES))
    return "\n".join(f"{number:>{width}}\t{line}" for number, line in enumerate(lines, first))


def _list(shown: str, path: str, texts: dict[str, str]) -> str:
    # by the parts of each path below the directory, in bytes
    sizes = Counter[tuple[str, ...]]({(): 0})
    for name, text in texts.items():
        parts = tuple(name.removeprefix(f"{path}/").split("/"))
        hidden = any(part.startswith(".") or part == _HIDDEN for part in parts)
        for depth in range(1 if hidden else len(parts) + 1):
            sizes[parts[:depth]] += len(text.encode())
    lines = [
        f"Here're the files and directories up to {_DEPTH} levels deep in {shown}, excluding "
        f"hidden items and {_HIDDEN}:"
    ]
    for parts, size in sorted(sizes.items()):
        name = "/".join((shown, *parts))
        is_file = "/".join((path, *parts)) in texts
        slash = "" if is_file or not parts else "/"
        lines += [f"{_size(size)}\t{name}{slash}"] if len(parts) <= _DEPTH else []
    return "\n".join(lines)


def _size(size: float) -> str:
    """Return a size in bytes for people, such as 512B, 2K or 1.5M."""
    for unit in "BKM":
        if size < 1024:
            return f"{size:.1f}{unit}".replace(".0", "")
        size /= 1024
    return f"{size:.1f}G"
