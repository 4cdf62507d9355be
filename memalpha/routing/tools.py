"""Tool selectors in files, for the command line: made of a file of tools, written after every call.

tools: {search: looks facts up in the memory, ask: asks the person}
options: {embedder: minilm, update_every: 20}  # ``SelectorOptions`` of one that is not there yet
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memalpha.config import Options, read, read_yaml
from memalpha.errors import InputError
from memalpha.routing.selector import SelectorOptions, ToolSelector


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
