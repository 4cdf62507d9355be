"""The smallest memory task, for policies of under a million parameters and a closed vocabulary.

A chunk is a few words: things and noise. Every thing is asked for (``was apple seen?``), noise never. Instance ``i`` depends on
(seed, split, i) alone. No word comes twice in an instance; every word is in ``toy_vocabulary``. Splits share the vocabulary. The
teacher stores random words of the chunk, so only the reward shows what to keep.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pydantic import PositiveInt

from memalpha.config import Options
from memalpha.data.pools import Split
from memalpha.data.source import LoadResult, Source
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Operation, OperationKind, Question

SOURCE = "toy"

THINGS: tuple[str, ...] = (
    "apple", "boat", "candle", "door", "engine", "feather", "guitar", "hammer", "island", "jacket", "kettle", "ladder",
    "mirror", "needle", "orange", "pencil", "quilt", "ribbon", "saddle", "table", "umbrella", "violin", "window",
    "yacht",
)  # fmt: skip
"""Words that are asked for."""

NOISE: tuple[str, ...] = (
    "above", "badly", "close", "dimly", "early", "fairly", "gladly", "hardly", "inside", "just", "kindly", "lately",
    "mostly", "never", "often", "partly", "quickly", "rather", "slowly", "today", "under", "vaguely", "while", "yonder",
)  # fmt: skip

_QUESTION = "was {word} seen?"
_THINGS_A_CHUNK = 4
_NOISE_A_CHUNK = 4
_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class ToyOptions(Options):
    """Which toy instances to make."""

    n: PositiveInt = 100  # number of instances
    split: Split = "train"  # train or test sequence


def toy_generate(n: int, seed: int, split: Split = "train") -> list[Instance]:
    """Return instances 0 to n - 1 of the sequence given by (seed, split)."""
    options = ToyOptions(n, split)
    return [_make(index, seed, split) for index in range(options.n)]


def load_toy(source: str, options: ToyOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Make toy instances; skips nothing; ``source`` and ``count_tokens`` are unused."""
    return LoadResult(iter(toy_generate(options.n, seed, options.split)), total=options.n)


def toy_schema(max_entries: int = _CHUNKS * _THINGS_A_CHUNK) -> MemorySchema:
    """Return a schema with one list, ``facts``."""
    return MemorySchema("toy", (Section("facts", SectionKind.LIST, "things", max_entries=max_entries),))


def toy_teacher_operations(instance: Instance, t: int, memory: Memory, rng: random.Random) -> list[Operation]:
    """Return one to four insertions of random words of chunk ``t``; fewer if the memory has no room."""
    trial, section = memory.copy(), memory.schema.lists[0].name
    words = instance.chunks[t].text.split()
    drawn = [Operation(OperationKind.INSERT, section, word) for word in rng.sample(words, rng.randint(1, 4))]
    return [operation for operation in drawn if trial.apply(operation, chunk=t).changed]


def toy_vocabulary() -> tuple[str, ...]:
    """Return every word and mark of chunks, entries and questions once; without those of the codec."""
    return (*THINGS, *NOISE, "was", "seen", "?")


def _make(index: int, seed: int, split: Split) -> Instance:
    rng = random.Random(f"{SOURCE}:{split}:{seed}:{index}")
    things = rng.sample(THINGS, _CHUNKS * _THINGS_A_CHUNK)
    noise = rng.sample(NOISE, _CHUNKS * _NOISE_A_CHUNK)
    chunks, questions = [], []
    for c in range(_CHUNKS):
        seen = things[c * _THINGS_A_CHUNK : (c + 1) * _THINGS_A_CHUNK]
        words = seen + noise[c * _NOISE_A_CHUNK : (c + 1) * _NOISE_A_CHUNK]
        rng.shuffle(words)
        chunks.append(Chunk(" ".join(words)))
        questions += [
            Question(_QUESTION.format(word=word), (word,), evidence=(c,), id=f"q{c * _THINGS_A_CHUNK + i}")
            for i, word in enumerate(seen)
        ]
    return Instance(f"{SOURCE}-{split}-{seed}-{index}", SOURCE, tuple(chunks), tuple(questions))


SOURCES = (Source("toy", "the smallest generated task, for nano policies", load_toy, ToyOptions, needs_input=False),)
