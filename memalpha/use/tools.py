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
from pathlib import Path

from filelock import FileLock, Timeout

from memalpha.config import read, read_yaml
from memalpha.errors import InputError, JournalError
from memalpha.files import flush
from memalpha.routing.selector import SelectorOptions, ToolSelector
from memalpha.store.journal import Namespace

_HELD = 64  # most selectors in memory


def read_tools(path: str | Path) -> tuple[dict[str, str], SelectorOptions]:
    """Return the tools of a YAML or JSON file, description by name, and the options beside them;
    InputError if they do not fit.
    """
    found = read_yaml(Path(path))
    tools = found.get("tools")
    texts = isinstance(tools, Mapping) and all(
        isinstance(text, str) for pair in tools.items() for text in pair
    )
    if not isinstance(tools, Mapping) or not texts or found.keys() - {"tools", "options"}:
        raise InputError(
            f"{path} has {', '.join(map(str, found))}",
            expected="tools, a mapping of names to descriptions, and options",
        )
    return dict(tools), read(SelectorOptions, found.get("options"), f"the options of {path}")


def open_selector(path: Path, tools: Mapping[str, str], options: SelectorOptions) -> ToolSelector:
    """Return the selector of a file, or a new one, with the tools; InputError if the file has a
    tool that is not among them.
    """
    selector = ToolSelector.load(path) if path.is_file() else ToolSelector(options)
    if selector.options.embedder != options.embedder:
        raise InputError(
            f"{path} was made with embedder {selector.options.embedder!r}, the file of tools says {options.embedder!r}",
            expected="one embedder",
        )
    if gone := selector.tools.keys() - tools.keys():
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
        self._held: OrderedDict[Path, ToolSelector] = OrderedDict()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._owner = FileLock(self._folder / "lock")
        try:
            self._owner.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"the selectors in {folder} are in use", expected="a folder for each server"
            ) from error

    @contextmanager
    def selector(self, whose: Namespace, *, keep: bool = True) -> Iterator[ToolSelector]:
        """Give a namespace's selector, to one caller at a time; ``keep`` writes it afterwards."""
        path = self._path(whose)
        with self._lock:
            if path not in self._held:
                try:
                    self._held[path] = open_selector(path, self._tools, self._options)
                except (
                    InputError
                ) as error:  # the server's files do not fit together, whatever the client sent
                    raise JournalError(str(error)) from error
            self._held.move_to_end(path)
            while len(self._held) > _HELD:
                self._held.popitem(last=False)
            selector = self._held[path]
            observations = selector.observations
            try:
                yield selector
                if keep:
                    selector.save(path)
                if selector.observations > observations:
                    flush(path)
                    flush(self._folder)
            except BaseException:
                del self._held[path]  # as it is on disk
                raise

    def forget(self, whose: Namespace) -> None:
        """Erase a namespace's selector."""
        with self._lock:
            self._held.pop(self._path(whose), None)
            self._path(whose).unlink(missing_ok=True)

    def _path(self, whose: Namespace) -> Path:
        return (
            self._folder
            / f"{hashlib.sha256(json.dumps([whose.user, whose.agent, whose.session]).encode()).hexdigest()}.pt"
        )
