"""Train a language model to build and keep a memory, and use it.

The public names are those of ``__init__.pyi``, which says where each is defined; ``__all__`` lists
them. One is imported when it is first asked for, so importing this package is quick. All other
modules may change without notice; ``memalpha.cli.run`` is the command line.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_IMPORTS = [node for node in _STUB.body if isinstance(node, ast.ImportFrom)]
_HOMES = {alias.name: node.module for node in _IMPORTS for alias in node.names}

__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    """Import a public name; AttributeError for any other."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memalpha' has no attribute {name!r}")
    return getattr(import_module(str(_HOMES[name])), name)
