"""Configuration of an agent besides its weights; saved beside every adapter."""

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
    """How an agent reads, writes and answers, with the settings of its retriever.

    Attributes:
        schema: Preset name or YAML path of the memory schema.
        codec: Tool-call format: ``compact``, ``compact_text`` or ``hermes``.
        max_chunk_tokens: Longest chunk accepted, in tokens; a longer one is an error.
        max_completion_length: Longest completion of one chunk, in tokens.
        view_tokens: Budget of the entries shown while writing, in tokens (blocks and section names
            are extra).
        view_recent: How many of the newest entries the view prefers when not all fit.
        view_related: Whether the view also shows entries related to the chunk; if not, only the
            ``view_recent`` newest (published).
        show_times: Whether the view shows the entries' and the chunk's times.
        retrieve_k: How many entries are retrieved for a question, and how many lines of the
            archive.
        reader_tokens: Budget of what the reader sees of them, in tokens.
        searches: How often a reader that was trained to search may do so again before it answers;
            of its own adapter.
        archive: Whether what was read is kept, line by line, and searched beside the entries; lines
            of changed facts leave it.
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
        """Write the configuration into a folder, with the schema file that it names."""
        saved = self
        if self.schema not in presets():
            text = Path(self.schema).read_text(encoding="utf-8")
            (Path(folder) / SCHEMA_FILE).write_text(text, encoding="utf-8")
            saved = replace(saved, schema=SCHEMA_FILE)
        text = json.dumps(asdict(saved), indent=2)
        (Path(folder) / AGENT_FILE).write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, trust_tools: bool = False) -> AgentConfig:
        """Read what ``save`` wrote.

        InputError if there is none, it is not valid, or it names something outside of the folder.
        The tools that its schema names are code, and an endpoint that embeds is sent what is
        remembered: InputError unless ``trust_tools``.
        """
        path = Path(folder) / AGENT_FILE
        if not path.is_file():
            raise InputError(
                f"no {AGENT_FILE} in {str(folder)!r}",
                expected="the folder of an adapter that memalpha trained",
            )
        check_folder(Path(folder))
        config = make_options(cls, read_object(path), str(path))
        if "://" in config.embedder and not trust_tools:
            raise InputError(
                f"the embedder of {folder} is a server, {shown_address(config.embedder)}",
                expected="your word before it is sent texts of a memory",
                fix="if you know it: trust_tools=True, --trust-tools",
            )
        names = [SCHEMA_FILE, *presets()]
        if config.schema not in names:
            raise InputError(
                f"{path} names {config.schema!r}",
                expected=f"one of {', '.join(names)}",
            )
        if config.schema == SCHEMA_FILE:
            schema = Path(folder) / SCHEMA_FILE
            tools = read_object(schema).get("tools")
            if tools and not trust_tools:
                raise InputError(
                    f"the schema of {folder} names code, {tools}",
                    expected="your word before it is run",
                    fix="if it is yours, or you have read it: trust_tools=True, --trust-tools",
                )
            config = replace(config, schema=str(schema))
        return config
