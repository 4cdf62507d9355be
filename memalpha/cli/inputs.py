"""What several verbs are given alike: an agent with its store, a file with a key, the number of an operation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from memalpha.errors import InputError

if TYPE_CHECKING:
    from memalpha.use.agent import MemoryAgent

_DIGITS = 18


def load_agent(arguments: argparse.Namespace) -> MemoryAgent:
    """Load the agent that TRAINED, --model, --store, --key-file, --retrieve-k and --device name."""
    from memalpha.use.agent import MemoryAgent

    return MemoryAgent.load(
        arguments.trained,
        arguments.model,
        store=arguments.store,
        key=read_key(arguments.key_file),
        retrieve_k=arguments.retrieve_k,
        device=arguments.device,
    )


def read_key(path: str | None) -> bytes | None:
    """Return the key in a file, None for no file; InputError if it cannot be read or is empty."""
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"the key file {path!r} cannot be read: {error}", expected="a file with the store's key") from error
    if not key:
        raise InputError(f"the key file {path!r} is empty", expected="a file with the store's key")
    return key


def is_operation(text: str) -> bool:
    """Whether a text is a number that an operation may have: decimal digits, of any script, no more than a store counts to."""
    return text.isdecimal() and len(text) <= _DIGITS
