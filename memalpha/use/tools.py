"""Tool selectors in files: made of a file of tools, kept after every call; for the command line,
and one a namespace for a server.

tools: {search: looks facts up in the memory, ask: asks the person}
options: {embedder: minilm, update_every: 20}     # of a selector that does not exist yet
    (``SelectorOptions``)
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from memalpha.config import Options, read, read_yaml
from memalpha.errors import InputError, JournalError
from memalpha.files import flush
from memalpha.routing.selector import SelectorOptions, ToolSelector
from memalpha.store.journal import Namespace

_IN_MEMORY = 64  # most selectors in this process


@dataclass
class _ToolFile(Options):
    tools: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)


def read_tools(path: str | Path) -> tuple[dict[str, str], SelectorOptions]:
    """Return the tools of a YAML or JSON file, description by name, and the options beside them;
    InputError if they do not fit.
    """
    file = read(_ToolFile, read_yaml(Path(path)), str(path))
    return file.tools, read(SelectorOptions, file.options, f"the options of {path}")


def open_selector(path: Path, tools: Mapping[str, str], options: SelectorOptions) -> ToolSelector:
    """Return the selector of a file, or a new one, with the tools; InputError if the file has a
    tool that is not among them.
    """
    selector = ToolSelector.load(path) if path.is_file() else ToolSelector(options)
    if selector.options.embedder != options.embedder:
        raise InputError(
            f"{path} was made with embedder {selector.options.embedder!r}",
            expected=f"{options.embedder!r}, as in the file of tools",
        )
    gone = selector.tools.keys() - tools.keys()
    if gone:
        raise InputError(
            f"{path} also chooses {', '.join(sorted(gone))}",
            expected="a file of tools that has all of them",
        )
    for name, description in tools.items():
        if name not in selector.tools:
            selector.register(name, description)
    return selector


class ToolDesk:
    """The selectors of a server's namespaces, a file each in a folder of its own. Thread-safe.

    What was answered survives the end of the process, an outcome also a power cut.
    """

    def __init__(self, tools: str | Path, folder: str | Path) -> None:
        self._tools, self._options = read_tools(tools)
        self._folder, self._lock = Path(folder), threading.Lock()
        self._selectors: OrderedDict[Path, ToolSelector] = OrderedDict()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._owner = FileLock(self._folder / "lock")
        try:
            self._owner.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"the selectors in {folder} are in use", expected="a folder for each server"
            ) from error

    @contextmanager
    def selector(self, whose: Namespace, *, writes: bool = True) -> Iterator[ToolSelector]:
        """Give a namespace's selector, to one caller at a time; it is written afterwards."""
        path = self._path(whose)
        with self._lock:
            if path not in self._selectors:
                try:
                    self._selectors[path] = open_selector(path, self._tools, self._options)
                except InputError as error:  # of the server's files, whatever the client sent
                    raise JournalError(str(error)) from error
            self._selectors.move_to_end(path)
            while len(self._selectors) > _IN_MEMORY:
                self._selectors.popitem(last=False)
            selector = self._selectors[path]
            observations = selector.observations
            try:
                yield selector
                if writes:
                    selector.save(path)
                if selector.observations > observations:
                    flush(path)
                    flush(self._folder)
            except BaseException:
                del self._selectors[path]  # as it is on disk
                raise

    def forget(self, whose: Namespace) -> None:
        """Erase a namespace's selector."""
        with self._lock:
            self._selectors.pop(self._path(whose), None)
            self._path(whose).unlink(missing_ok=True)

    def _path(self, whose: Namespace) -> Path:
        name = json.dumps(astuple(whose)).encode()
        return self._folder / f"{hashlib.sha256(name).hexdigest()}.pt"
