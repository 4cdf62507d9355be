"""``memalpha evaluate`` with one more kind of system: ``mem0_library``, Mem0's in the process.

    pip install mem0ai qdrant-client
    python scripts/evaluate_mem0.py --config FILE --systems '[mem0_library]'

Each line of a chunk is a message that Mem0 keeps as it is (``infer=False``, without a language
model), and a question is answered from its nearest messages, with the embedder of every other
system. Its search by words and its links by names need models from elsewhere and are off.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.other_memories import open_mem0

from memalpha.cli import run
from memalpha.measure import systems
from memalpha.measure.systems import Setting, System, piece_memory, pieces
from memalpha.memory.memory import Memory
from memalpha.record.measure import IngestedMemory, SearchedMemory
from memalpha.types import Hit, Instance

MOST_MESSAGES = 20  # that a question finds; the reader's budget leaves out what does not fit


class Mem0Retriever:
    """Mem0's search over the entries of a memory, each kept as a message."""

    def __init__(self, memory: Memory) -> None:
        self.entries = {entry.id: entry for entry in memory.entries()}
        self.folder = tempfile.TemporaryDirectory(prefix="mem0-")  # is removed with this object
        self.library = open_mem0(Path(self.folder.name))
        for entry in self.entries.values():
            message = {"role": "user", "content": entry.content}
            self.library.add([message], user_id="me", infer=False, metadata={"entry": entry.id})

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        answer = self.library.search(query, top_k=k, filters={"user_id": "me"})
        return [
            Hit(self.entries[row["metadata"]["entry"]], row["score"]) for row in answer["results"]
        ]


@dataclass(frozen=True, slots=True)
class Mem0Library(System):
    """Mem0's library without a language model; each line of the input is a message."""

    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        lines = pieces(instance.chunks, 1, systems.UNIT_TOKENS, setting.count)
        memory = piece_memory(lines, setting.count)
        retriever = Mem0Retriever(memory)
        return SearchedMemory(
            memory_tokens=memory.tokens, memory=memory, retriever=retriever, k=MOST_MESSAGES
        )


if __name__ == "__main__":
    systems._OWN["mem0_library"] = Mem0Library
    sys.exit(run(["evaluate", *sys.argv[1:]]))
