"""Runs what came with somebody else's model - chat templates, regular expressions - in a process of
its own, with limits of time and memory.

There it has no clock and no chance: a template gives the same text every day.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.sandbox.worker import MEMORY, SECONDS

_WORKER = Path(__file__).with_name("worker.py")
_WAIT = 120  # seconds for the process on a busy machine; its own limit is processor time
_TOO_MUCH = f"it takes more than {SECONDS} s of processor time or {MEMORY >> 20} MiB"


class Rendering(NamedTuple):
    """The text of a template, or the error that it ends in."""

    text: str
    error: str


@lru_cache(maxsize=256)
def render_in_sandbox(template: str, *variables: str) -> tuple[Rendering, ...]:
    """Render a chat template with each of several sets of variables, written as JSON objects.

    One error for all if they take too much together.
    """
    chats = [json.loads(each) for each in variables]
    outcomes = _run({"task": "render", "template": template, "chats": chats})
    if outcomes is None:
        return (Rendering("", _TOO_MUCH),) * len(variables)
    return tuple(Rendering(*outcome) for outcome in outcomes)


def check_patterns(patterns: Sequence[str], names: Sequence[str], where: str) -> None:
    """Raise InputError, naming ``where``, if a regular expression is invalid or takes too long to
    match the names.
    """
    wrong = _run({"task": "match", "patterns": patterns, "names": names})
    if wrong != "":
        raise InputError(
            f"a regular expression of {where} cannot be used: "
            f"{_TOO_MUCH if wrong is None else wrong}",
            expected="names of layers, or an expression that can be matched fast",
        )


def _run(task: dict[str, Any]) -> Any:
    """Return what the worker makes of a task; None if it went beyond its limits."""
    command = [sys.executable, "-I", "-S", str(_WORKER)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps({**task, "path": sys.path}),
            capture_output=True,
            text=True,
            timeout=_WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None
