"""Inputs that several verbs share: a verb's parser, an agent with its store, a key file, an
operation number.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from memalpha.cli.console import out
from memalpha.config import Options, listing, parse
from memalpha.errors import InputError

if TYPE_CHECKING:
    from memalpha.use.agent import MemoryAgent

TRAINED = "TRAINED [--name value ...]"
AGENT = "(TRAINED | --endpoint URL --model NAME) [--name value ...]"


@dataclass(frozen=True, slots=True)
class AgentOptions(Options):
    """An agent, its memories, and who answers questions.

    Attributes:
        endpoint: An OpenAI-compatible server, URL including the version, whose untrained ``model``
            writes and answers; no TRAINED.
        endpoint_extra: More fields of each request there, e.g. ``{chat_template_kwargs:
            {enable_thinking: false}}``.
        store: Path of a SQLite file, such as memories.db (made if not there), or
            postgresql://user@host/database.
        key_file: File with the key of a keyed store.
        model: Base of the adapter; null takes the one the adapter names. With ``endpoint``: the
            model's name there.
        device: Torch device of the model.
        dtype: Type of the base's weights: ``float32``, or ``bfloat16`` (half the memory; faster
            where the processor has it).
        retrieve_k: Entries retrieved for a question; null takes the agent's own.
        archive: Whether what was read is kept and searched, too; null: as the agent was trained.
        reader_url: An OpenAI-compatible server that answers questions, including the version.
        reader_model: The name of the model there.
        reader: Folder of a trained reader (``memalpha warmup --teaches reader``); null: the one the
            agent names; empty: none.
        reader_tokens: Most tokens of passages that are read.
        trust_tools: Whether the functions that the agent's schema names as tools may be imported
            and run.
    """

    store: str
    endpoint: str = ""
    endpoint_extra: dict[str, Any] = field(default_factory=dict)
    key_file: str | None = None
    model: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    retrieve_k: PositiveInt | None = None
    archive: bool | None = None
    reader_url: str = ""
    reader_model: str = ""
    reader: str | None = None
    reader_tokens: PositiveInt = 2048
    trust_tools: bool = False

    def check(self) -> None:
        """InputError for another reader beside an endpoint."""
        if self.endpoint and (self.reader_url or self.reader_model or self.reader):
            raise InputError(
                "a reader beside an endpoint",
                expected="one of the two: the endpoint's model answers",
            )

    def load(self, trained: str | None) -> MemoryAgent:
        """Load the agent of a folder or Hub name, or of the endpoint (None), with its store."""
        from memalpha.agent.config import AgentConfig
        from memalpha.endpoints import ChatClient
        from memalpha.qa.readers import EndpointReader
        from memalpha.use.agent import MemoryAgent

        key = read_key(self.key_file)
        if trained is None:
            chat = ChatClient(self.endpoint, self.model or "", extra=self.endpoint_extra)
            return MemoryAgent.at_endpoint(
                chat,
                AgentConfig(reader_tokens=self.reader_tokens, archive=bool(self.archive)),
                store=self.store,
                key=key,
                retrieve_k=self.retrieve_k,
            )
        client = (
            ChatClient(self.reader_url, self.reader_model)
            if self.reader_url or self.reader_model
            else None
        )
        reader = self.reader if client is None else ""
        agent = MemoryAgent.load(
            trained,
            self.model,
            store=self.store,
            key=key,
            reader=reader,
            reader_tokens=min(512, self.reader_tokens),
            retrieve_k=self.retrieve_k,
            archive=self.archive,
            device=self.device,
            dtype=self.dtype,
            trust_tools=self.trust_tools,
        )
        if client is not None:
            agent.reader = EndpointReader(client, self.reader_tokens, agent.step.encoder.count)
        return agent


@dataclass(frozen=True, slots=True)
class WhoseOptions(Options):
    """Whose memory it is.

    Attributes:
        user: The one user.
        agent: The one agent; null: ``default``, or named by each request to a server.
        session: The one session; null: as agent.
    """

    user: str | None = None
    agent: str | None = None
    session: str | None = None


def add_verb(
    verbs: Any, name: str, run: Callable[..., int | None], about: str, *, options: str = ""
) -> argparse.ArgumentParser:
    """Add a verb (first sentence of ``about``: its help); ``options`` is the usage of one that
    takes more than argparse knows.

    ``run`` returns the exit code, None for 0.
    """
    usage = f"memalpha {name} {options}" if options else None
    about = f"{about} All options: --options." if options else about
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        usage=usage,
        help=about[0].lower() + about[1:].split(". ")[0].rstrip("."),
        description=about,
        allow_abbrev=not options,
    )
    if options:
        parser.add_argument(
            "--options", action="store_true", help="list every option with its default"
        )
    parser.set_defaults(run=run, takes_more=bool(options), parser=parser)
    return parser


def list_options(arguments: argparse.Namespace, groups: Sequence[type], before: str = "") -> None:
    """End here with a list of the options, if it was asked for."""
    if arguments.options:
        out(f"{before}{listing(groups)}")
        raise SystemExit(0)


def read_options(arguments: argparse.Namespace, rest: list[str], *groups: type) -> tuple[Any, ...]:
    """Return TRAINED (None with an ``endpoint``) and the parsed options, one object per group;
    InputError if one is wrong.
    """
    program = f"memalpha {arguments.verb}"
    list_options(
        arguments,
        groups,
        "TRAINED: folder (a run's, an adapter's or a whole model's) or Hub name of a trained agent\n",
    )
    trained = rest[0] if rest and not rest[0].startswith("--") else None
    options = parse(rest[trained is not None :], groups, program) if rest else ()
    if (trained is None) is not any(getattr(group, "endpoint", "") for group in options):
        what = "without TRAINED" if trained is None else f"{trained} beside an endpoint"
        usage = AGENT if AgentOptions in groups else TRAINED
        raise InputError(
            f"{program} {what}", expected=f"{program} {usage}", fix=f"{program} --options"
        )
    return trained, *options


def read_key(path: str | None) -> bytes | None:
    """Return the key in a file, None without a file; InputError if it is unreadable or empty."""
    try:
        key = Path(path).read_bytes().strip() if path is not None else None
    except (OSError, ValueError) as error:
        raise InputError(
            f"the key file {path!r} cannot be read: {error}", expected="a file with the store's key"
        ) from error
    if key == b"":
        raise InputError(f"the key file {path!r} is empty", expected="a file with the store's key")
    return key


def is_operation(text: str) -> bool:
    """Whether a text can be an operation number."""
    return text.isdecimal() and len(text) <= 18
