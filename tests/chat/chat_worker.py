"""``memalpha chat``'s loop with a scripted memory agent and a scripted model, for a subprocess: STORE [pipe arguments]."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.cli.chat import talk
from memalpha.cli.conversation import ChatReader, Conversation
from memalpha.models.nano import make_tokenizer
from memalpha.store.journal import Namespace
from memalpha.use.agent import MemoryAgent

CONFIG = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=2000, view_tokens=500, max_completion_length=64)


def keep(prompt):
    """Keep each line of the chunk; a line that says ``now`` corrects the first entry."""
    lines = prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0].split("\n")
    return "\n".join(f"= 1 {line}" if " now " in line else f"+ {line}" for line in lines if line[:1] != "[")


def recite(chats):
    """Answer with the notes and with how many messages came before."""
    found = []
    for chat in chats:
        notes = chat[0]["content"].split("\nNotes:\n")[1]
        found.append(f"{len(chat) - 2} before; I know: {notes}")
    return found


def conversation(store, read_every=1, **changes):
    sys.path.append(str(Path(__file__).parents[1]))  # for a process of its own
    from scripted import ScriptedGenerator

    step = AgentStep(replace(CONFIG, **changes), make_tokenizer(["facts"], 4096))
    agent = MemoryAgent(step, ScriptedGenerator(keep), store=store)
    reader = ChatReader(recite, step.encoder.count, "Marta")
    return Conversation(agent, Namespace("marta"), reader, read_every, lambda: datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


if __name__ == "__main__":
    talk(conversation(sys.argv[1]))
