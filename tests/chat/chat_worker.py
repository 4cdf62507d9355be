"""``memalpha chat``'s loop with a scripted memory agent and a scripted model, for a subprocess: STORE."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.cli.chat import Conversation
from memalpha.generation.scripted import ScriptedGenerator
from memalpha.models.nano import make_tokenizer
from memalpha.store.journal import Namespace
from memalpha.use.agent import MemoryAgent

CONFIG = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=2000, view_tokens=500, max_completion_length=64)


def keep(prompt):
    """Keep each line of the chunk; a line that says ``now`` corrects the first entry, and ``then`` keeps another entry."""
    lines = prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0].split("\n")
    kept = [f"= 1 {line}" if " now " in line else f"+ {line}" for line in lines if line[:1] != "["]
    return "\n".join(call.replace(" then ", "\n+ ") for call in kept)


def conversation(store, **changes):
    step = AgentStep(replace(CONFIG, **changes), make_tokenizer(["facts"], 4096))
    agent = MemoryAgent(step, ScriptedGenerator(keep), store=store)
    return Conversation(agent, Namespace("Marta"), lambda: datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


if __name__ == "__main__":
    conversation(sys.argv[1]).talk()
