"""Inputs that several verbs share: an agent with its store, a key file, an operation number."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from memalpha.cli.console import out
from memalpha.config import Options, listing, parse
from memalpha.errors import InputError

if TYPE_CHECKING:
    from memalpha.endpoints import ChatClient
    from memalpha.use.agent import MemoryAgent

_DIGITS = 18


@dataclass(frozen=True, slots=True)
class AgentOptions(Options):
    """A trained agent, its memories, and who answers questions.

    Attributes:
        store: Path of a SQLite file, or postgresql://user@host/database.
        key_file: File with the key of a keyed store.
        model: Base of the adapter; null takes the one the adapter names.
        device: Torch device of the model.
        retrieve_k: Entries retrieved for a question; null takes the agent's own.
        reader_url: An OpenAI-compatible server that answers questions, including the version.
        reader_model: The name of the model there.
    """

    store: str
    key_file: str | None = None
    model: str | None = None
    device: str = "cpu"
    retrieve_k: PositiveInt | None = None
    reader_url: str = ""
    reader_model: str = ""

    def load(self, trained: str) -> MemoryAgent:
        """Load the agent of a folder or Hub name with its store."""
        from memalpha.use.agent import MemoryAgent

        key = read_key(self.key_file)
        return MemoryAgent.load(trained, self.model, store=self.store, key=key, retrieve_k=self.retrieve_k, device=self.device)

    def reader(self) -> ChatClient | None:
        """Return the server that answers, None if not set."""
        if not (self.reader_url or self.reader_model):
            return None
        from memalpha.endpoints import ChatClient

        return ChatClient(self.reader_url, self.reader_model)


def add_verb(verbs: Any, name: str, run: Callable[[argparse.Namespace, list[str]], int], **texts: str) -> None:
    """Add a verb with TRAINED and options; ``texts`` go to argparse (help, description, epilog)."""
    parser = verbs.add_parser(name, usage=f"memalpha {name} TRAINED [--name value ...]", allow_abbrev=False, **texts)
    parser.add_argument("--options", action="store_true", help="list every option with its default")
    parser.set_defaults(run=run, takes_more=True)


def read_options(arguments: argparse.Namespace, rest: list[str], *groups: type) -> tuple[Any, ...]:
    """Return TRAINED and the parsed options, one object per group; InputError if one is wrong."""
    program = f"memalpha {arguments.verb}"
    if arguments.options:
        out(f"TRAINED: folder (a run's, an adapter's or a whole model's) or Hub name of a trained agent\n{listing(groups)}")
        raise SystemExit(0)
    if not rest or rest[0].startswith("--"):
        raise InputError(f"{program} without TRAINED", expected=f"{program} TRAINED [--name value ...]", fix=f"{program} --options")
    return rest[0], *parse(rest[1:], groups, program)


def read_key(path: str | None) -> bytes | None:
    """Return the key in a file, None without a file; InputError if it is unreadable or empty."""
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
    """Whether a text can be an operation number: decimal digits of any script, within a store's limit."""
    return text.isdecimal() and len(text) <= _DIGITS
