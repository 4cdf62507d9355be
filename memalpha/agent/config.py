"""What fixes an agent besides its weights: saved beside every adapter, so that use equals training."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from memalpha.errors import InputError
from memalpha.memory.schema import presets
from memalpha.retrieval.config import RetrievalConfig

AGENT_FILE = "memalpha_agent.json"
SCHEMA_FILE = "memalpha_schema.yaml"
"""Copy of a schema that is no preset."""
ROUTER_FILE = "memalpha_router.pt"
"""Copy of the section router of the retriever."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """How an agent reads and writes.

    Attributes:
        schema: Preset name or path of a memory schema.
        codec: Notation of tool calls: ``compact``, ``compact_text`` or ``hermes``.
        max_chunk_tokens: Longest chunk accepted, in tokens; a longer one is an error, never cut.
        view_tokens: Budget of the entries shown while writing, in tokens (blocks and the sections' names come on top).
        view_recent: How many of the newest entries the view prefers when not all fit.
        view_related: Whether the view also shows the entries most related to the chunk; without them it shows the ``view_recent``
            newest alone, as published.
        max_new_tokens: Longest completion, in tokens.
        show_times: Whether the view shows the entries' and the chunk's times.
        retrieval: How entries are found, while writing and while answering.
    """

    schema: str = "mem_alpha"
    codec: str = "hermes"
    max_chunk_tokens: int = 2048
    view_tokens: int = 1024
    view_recent: int = 5
    view_related: bool = True
    max_new_tokens: int = 1024
    show_times: bool = True
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("max_chunk_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", expected="at least 1 token")
        for name in ("view_tokens", "view_recent"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}", expected="0 or more")

    def save(self, folder: str | Path) -> None:
        """Write the configuration into a folder (an adapter's or a run's), with the schema file and the router it names."""
        saved = self
        if self.schema not in presets():
            text = Path(self.schema).read_text(encoding="utf-8")
            (Path(folder) / SCHEMA_FILE).write_text(text, encoding="utf-8")
            saved = replace(self, schema=SCHEMA_FILE)
        if self.retrieval.router:
            source, target = Path(self.retrieval.router), Path(folder) / ROUTER_FILE
            source = source / "checkpoint.pt" if source.is_dir() else source
            if source.resolve() != target.resolve():
                shutil.copyfile(source, target)
            saved = replace(saved, retrieval=replace(self.retrieval, router=ROUTER_FILE))
        (Path(folder) / AGENT_FILE).write_text(json.dumps(asdict(saved), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> AgentConfig:
        """Read what ``save`` wrote; InputError if the folder holds none or it does not fit."""
        path = Path(folder) / AGENT_FILE
        if not path.is_file():
            raise InputError(f"no {AGENT_FILE} in {str(folder)!r}", expected="the folder of an adapter that memalpha trained")
        expected = "what this version of memalpha writes"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if unknown := sorted(set(data) - {f.name for f in fields(cls)}):
                raise InputError(f"{path} has unknown keys {unknown}", expected=expected)
            if data.get("schema") == SCHEMA_FILE:
                data["schema"] = str(Path(folder) / SCHEMA_FILE)
            retrieval = RetrievalConfig(**data.get("retrieval", {}))
            if retrieval.router == ROUTER_FILE:
                retrieval = replace(retrieval, router=str(Path(folder) / ROUTER_FILE))
            return cls(**{**data, "retrieval": retrieval})
        except InputError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}", expected=expected) from error
