"""Options that several verbs share: lists of options, an agent with its store, a key file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PositiveInt
from typer import Context, Exit, Option

from memalpha.cli.console import out
from memalpha.config import Options, listing, parse
from memalpha.errors import InputError
from memalpha.retrieval import RetrievalMode
from memalpha.types import JsonObject

if TYPE_CHECKING:
    from memalpha.use.agent import MemoryAgent

TRAINED = (
    "The trained agent is the folder of a run, an adapter or a whole model, the name of a shipped "
    "adapter (memalpha fetch), or a Hub name."
)
SCHEMA = "small_core"  # of a new memory without an agent
_MOST_READ = 512  # tokens of passages that a model on this machine reads
TAKES_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a verb whose further words are options of ``config.parse``."""
ListOptions = Annotated[
    bool, Option("--options", help="Print every option with its default and its meaning, and stop.")
]
AsJson = Annotated[
    bool, Option("--json", help="Print the result as one JSON value on the last line.")
]


@dataclass(frozen=True, slots=True)
class AgentOptions(Options):
    """Options of an agent, of its memories, and of the reader that answers questions.

    Attributes:
        endpoint: The chat model of this OpenAI-compatible server writes the memory and answers,
            without training and without TRAINED. The URL ends with the version, and ``model`` names
            the model.
        endpoint_extra: Every request to ``endpoint`` has these further fields, e.g.
            ``{chat_template_kwargs: {enable_thinking: false}}``.
        schema: A memory without a model (neither TRAINED nor ``endpoint``) has the sections of this
            schema. With null it keeps the schema that it has, and a new one gets small_core.
        retrieval: A memory without a model is searched by words (``lexical``), by meaning
            (``dense``) or by both (``hybrid``). Null takes hybrid, or lexical if MiniLM is not
            installed.
        embedder: This embedder makes the vectors of a memory without a model; null takes minilm.
        store: The memories are in this SQLite file, which is made if it does not exist, or in the
            PostgreSQL database postgresql://user@host/database.
        key_file: This file holds the key of a keyed store.
        model: The adapter is put on this base model; null takes the one that the adapter names.
            With ``endpoint`` it is the name of the model on the server.
        device: The model runs on this Torch device, e.g. ``cpu`` or ``cuda``.
        dtype: The weights of the base have this type: ``float32``, or ``bfloat16``, which takes
            half the memory and is faster on processors that have it.
        retrieve_k: The retriever finds this many entries for a question; null takes the number that
            the agent was trained with.
        archive: The agent keeps and searches an archive of what it reads; null does as in its
            training.
        reader_url: The model of this OpenAI-compatible server answers the questions. The URL ends
            with the version.
        reader_model: The server at ``reader_url`` knows the model by this name.
        reader: This trained reader answers the questions: a folder (see ``memalpha warmup --teaches
            reader``), the name of a shipped one (``memalpha fetch``) or of an installed package's
            reader, or a Hub name. Null takes the one that the agent names, and an empty text none.
        reader_tokens: The reader sees at most this many tokens of passages. A model on this machine
            reads at most 512, and an agent without a reader shows as many as in its training.
        trust_tools: If true, the agent may import and run the functions that its schema names as
            tools, and send texts to a server that it names as its embedder.
        guards: Guards refuse to write these kinds of ``memalpha audit`` (``secrets``,
            ``instructions`` and so on), and ``assistant``, the assistant's statements. Secrets are
            also taken out of the texts that are read.
    """

    store: str
    endpoint: str = ""
    endpoint_extra: JsonObject = field(default_factory=dict)
    schema: str | None = None
    retrieval: RetrievalMode | None = None
    embedder: str | None = None
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
    guards: tuple[str, ...] = ()

    def check(self) -> None:
        """InputError for another reader beside an endpoint."""
        if self.endpoint and (self.reader_url or self.reader_model or self.reader):
            raise InputError(
                "both a reader and an endpoint are given",
                expected="only one of the two, since the endpoint's model answers",
            )

    def load(self, trained: str | None, *, base_reads: bool = False) -> MemoryAgent:
        """Load the agent of a folder or Hub name, or of the endpoint, with its store; without both
        (None) nothing writes entries: what is said goes into the archive.

        ``base_reads``: where neither the options nor the agent name a reader, the adapter's base
        answers; a whole model has none.
        """
        from memalpha.agent.config import AgentConfig
        from memalpha.endpoints import ChatClient
        from memalpha.use.agent import MemoryAgent

        key = read_key(self.key_file)
        if trained is None and not self.endpoint:
            return MemoryAgent.without_model(
                self.schema,
                store=self.store,
                key=key,
                retrieve_k=self.retrieve_k,
                reader_tokens=self.reader_tokens,
                retrieval=self.retrieval,
                embedder=self.embedder,
                guards=self.guards,
            )
        if trained is None:
            return MemoryAgent.at_endpoint(
                ChatClient(self.endpoint, self.model or "", extra=self.endpoint_extra),
                AgentConfig(reader_tokens=self.reader_tokens, archive=bool(self.archive)),
                store=self.store,
                key=key,
                retrieve_k=self.retrieve_k,
                guards=self.guards,
            )
        served = bool(self.reader_url or self.reader_model)
        reader: str | Path | ChatClient | None = self.reader
        if served:
            reader = ChatClient(self.reader_url, self.reader_model)
        if reader is None and base_reads:
            reader = _named_or_base(trained)
        return MemoryAgent.load(
            trained,
            self.model,
            store=self.store,
            key=key,
            reader=reader,
            reader_tokens=self.reader_tokens if served else min(_MOST_READ, self.reader_tokens),
            retrieve_k=self.retrieve_k,
            archive=self.archive,
            device=self.device,
            dtype=self.dtype,
            trust_tools=self.trust_tools,
            guards=self.guards,
        )


def _named_or_base(trained: str) -> str | Path:
    """Return the reader that an agent names, else its base; of a whole model none."""
    from memalpha.models.adapters import is_whole
    from memalpha.models.agent import find_agent, own_reader
    from memalpha.qa.readers import BASE, RECALL

    folder, _ = find_agent(trained)
    return own_reader(folder) or (RECALL if is_whole(folder) else BASE)


@dataclass(frozen=True, slots=True)
class WhoseOptions(Options):
    """Options that name the owner of a memory.

    Attributes:
        user: The memory belongs to this user.
        agent: The memory belongs to this agent of the user. Null takes ``default``, or the agent
            that a request to the server names.
        session: The memory belongs to this session. Null takes ``default``, or the session that a
            request to the server names.
    """

    user: str | None = None
    agent: str | None = None
    session: str | None = None


def list_options(wanted: bool, groups: Sequence[type], before: str = "") -> None:
    """End here with a list of the options, if it is wanted."""
    if wanted:
        out(f"{before}{listing(groups)}")
        raise Exit


def read_options(context: Context, options: bool, *groups: type) -> tuple[Any, ...]:
    """Return TRAINED (None without it) and the parsed options, one object per group; InputError if
    one is wrong.
    """
    list_options(options, groups, f"TRAINED: {TRAINED}\n")
    words = context.args
    program = context.command_path
    trained = words[0] if words and not words[0].startswith("--") else None
    made = parse(words[trained is not None :], groups, program) if words else ()
    if not made or (trained and any(getattr(group, "endpoint", "") for group in made)):
        what = f"got both {trained} and an endpoint" if made else "got no store"
        raise InputError(
            f"{program} {what}",
            expected=f"{program} [TRAINED | --endpoint URL --model NAME] --store STORE [options]",
            fix=f"{program} --options",
        )
    return trained, *made


def read_key(path: str | None) -> bytes | None:
    """Return the key in a file, None without a file; InputError if it is unreadable or empty."""
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except (OSError, ValueError) as error:
        raise InputError(
            f"the key file {path!r} cannot be read: {error}", expected="a file with the store's key"
        ) from error
    if not key:
        raise InputError(f"the key file {path!r} is empty", expected="a file with the store's key")
    return key
