"""The configuration of an agent besides its weights, which is saved beside every adapter."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import make_options
from memalpha.credentials import shown_address
from memalpha.errors import InputError
from memalpha.files import check_folder, read_object
from memalpha.memory.schema import presets
from memalpha.retrieval import RetrievalConfig

AGENT_FILE = "memalpha_agent.json"
SCHEMA_FILE = "memalpha_schema.yaml"  # copy of a schema that is no preset


@dataclass(frozen=True)
class AgentConfig(RetrievalConfig):
    """Settings of an agent: how it reads, writes and answers, and how its memory is searched.

    Attributes:
        schema: The memory has the sections of this schema, which is the name of a preset or the
            path of a YAML file.
        codec: The policy writes its tool calls in this format: ``compact``, ``compact_text`` or
            ``hermes`` (JSON).
        max_chunk_tokens: The agent accepts chunks of at most this many tokens; a longer one is an
            error.
        max_completion_length: The policy writes at most this many tokens for one chunk.
        view_tokens: The prompt shows entries of at most this many tokens together. Block sections
            and the names of sections come on top.
        view_recent: The view prefers this many of the newest entries when not all entries fit.
        view_related: If true, the view also shows entries that are related to the chunk. With false
            it shows the ``view_recent`` newest alone, as in the published system.
        show_times: If true, the view shows the times of the entries and of the chunk.
        retrieve_k: The retriever finds this many entries for a question, and as many lines of the
            archive.
        reader_tokens: The reader sees at most this many tokens of the entries and lines found.
        searches: A reader that was trained to search again does so at most this many times before
            it answers; 0 = never. The value is stored with its adapter.
        archive: If true, the agent keeps every line that it reads in an archive, and searches the
            archive beside the entries. Lines whose facts have changed leave the archive.
    """

    schema: str = "mem_alpha"
    codec: str = "hermes"
    max_chunk_tokens: PositiveInt = 2048
    max_completion_length: PositiveInt = 1024
    view_tokens: NonNegativeInt = 1024
    view_recent: NonNegativeInt = 5
    view_related: bool = True
    show_times: bool = True
    retrieve_k: PositiveInt = 10
    reader_tokens: PositiveInt = 256
    searches: NonNegativeInt = 0
    archive: bool = False

    def save(self, folder: str | Path) -> None:
        """Write the configuration into a folder, with a copy of its schema file if the schema is no
        preset.

        Args:
            folder: The existing folder of the adapter.
        """
        saved = self
        if self.schema not in presets():
            text = Path(self.schema).read_text(encoding="utf-8")
            (Path(folder) / SCHEMA_FILE).write_text(text, encoding="utf-8")
            saved = replace(saved, schema=SCHEMA_FILE)
        text = json.dumps(asdict(saved), indent=2)
        (Path(folder) / AGENT_FILE).write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, trust_tools: bool = False) -> AgentConfig:
        """Read the configuration that ``save`` wrote.

        Args:
            folder: The folder of the adapter.
            trust_tools: Whether tools named by the schema, which are code, may be imported, and
                texts sent to a server that is the embedder.

        Returns:
            The configuration.

        Raises:
            InputError: There is none, it is not valid, it names a file outside of the folder, or it
                names tools or a server that are not trusted.
        """
        path = Path(folder) / AGENT_FILE
        if not path.is_file():
            raise InputError(
                f"there is no {AGENT_FILE} in {str(folder)!r}",
                expected="the folder of an adapter that memalpha trained",
            )
        check_folder(Path(folder))
        config = make_options(cls, read_object(path), str(path))
        if "://" in config.embedder and not trust_tools:
            raise InputError(
                f"the embedder of {folder} is a server, {shown_address(config.embedder)}, to "
                "which texts of a memory would be sent",
                expected="your consent",
                fix="if you know the server, give trust_tools=True or --trust-tools",
            )
        names = [SCHEMA_FILE, *presets()]
        if config.schema not in names:
            raise InputError(
                f"{path} names the schema {config.schema!r}",
                expected=f"one of {', '.join(names)}",
            )
        if config.schema == SCHEMA_FILE:
            schema = Path(folder) / SCHEMA_FILE
            tools = read_object(schema).get("tools")
            if tools and not trust_tools:
                raise InputError(
                    f"the schema of {folder} names code that would be run: {tools}",
                    expected="your consent",
                    fix="if the code is yours, or you have read it, give trust_tools=True or "
                    "--trust-tools",
                )
            config = replace(config, schema=str(schema))
        return config
