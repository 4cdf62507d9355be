"""The smallest memory task, for policies of under a million parameters and a closed vocabulary.

A chunk is a few words: things and noise. Every thing is asked for, noise never. Instance ``i``
depends on (seed, split, i) alone; no word comes twice in it. The teacher stores random words of the
chunk, so only the reward shows what to keep. The schema ``toy`` has room for what is asked for.
"""

import random
from dataclasses import dataclass

from pydantic import PositiveInt

from memalpha.config import Options
from memalpha.data.pools import Split
from memalpha.data.source import Source, from_generator
from memalpha.memory.memory import Memory
from memalpha.types import Chunk, Instance, Operation, OperationKind, Question

TOY_SOURCE = "toy"
THINGS = tuple(  # what is asked for
    "apple boat candle door engine feather guitar hammer island jacket kettle ladder "
    "mirror needle orange pencil quilt ribbon saddle table umbrella violin window yacht".split()
)
NOISE = tuple(
    "above badly close dimly early fairly gladly hardly inside just kindly lately "
    "mostly never often partly quickly rather slowly today under vaguely while yonder".split()
)
_CHUNKS = 2
_A_CHUNK = 4  # things of a chunk, and as much noise


@dataclass(frozen=True, slots=True)
class ToyOptions(Options):
    """Options of the toy instances.

    Attributes:
        n: The source makes this many instances.
        split: The instances come from the ``train`` or the ``test`` sequence.
    """

    n: PositiveInt = 100
    split: Split = "train"


def make_toy_instance(index: int, seed: int, options: ToyOptions) -> Instance:
    """Return instance ``index`` of the sequence given by (seed, split)."""
    rng = random.Random(f"{TOY_SOURCE}:{options.split}:{seed}:{index}")
    things = rng.sample(THINGS, _CHUNKS * _A_CHUNK)
    noise = rng.sample(NOISE, _CHUNKS * _A_CHUNK)
    chunks = []
    questions: list[Question] = []
    for place in range(_CHUNKS):
        own = slice(place * _A_CHUNK, (place + 1) * _A_CHUNK)
        words = things[own] + noise[own]
        rng.shuffle(words)
        chunks.append(Chunk(" ".join(words)))
        for word in things[own]:
            id = f"q{len(questions)}"
            questions.append(Question(f"was {word} seen?", (word,), evidence=(place,), id=id))
    name = f"{TOY_SOURCE}-{options.split}-{seed}-{index}"
    return Instance(name, TOY_SOURCE, tuple(chunks), tuple(questions))


def toy_teacher_operations(
    instance: Instance, t: int, memory: Memory, rng: random.Random
) -> list[Operation]:
    """Return one to four insertions of random words of chunk ``t``; fewer if the memory has no
    room.
    """
    trial = memory.copy()
    section = memory.schema.lists[0].name
    words = instance.chunks[t].text.split()
    drawn = [
        Operation(OperationKind.INSERT, section, word)
        for word in rng.sample(words, rng.randint(1, 4))
    ]
    return [operation for operation in drawn if trial.apply(operation, chunk=t).changed]


def toy_vocabulary() -> tuple[str, ...]:
    """Return every word and mark of chunks, entries and questions once; without those of the
    codec.
    """
    return (*THINGS, *NOISE, "was", "seen", "?")


SOURCES = (
    Source(
        "toy",
        "the smallest generated task, for nano policies",
        from_generator(make_toy_instance),
        ToyOptions,
        needs_input=False,
    ),
)
