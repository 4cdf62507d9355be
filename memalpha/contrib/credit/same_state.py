"""Rollouts from one state of the memory: LoGo-GRPO of Memory-R2 (arXiv 2605.21768).

Once the rollouts of a group have written, their memories differ: a rollout may do better because of
what it read first, not because of what it writes now. So one half of a group reads the whole
instance, and all its rows are compared: the global term. A chunk and one of these rollouts are
drawn, and the other half begins at that chunk with the memory that this rollout had there, and
reads on. Its rows are compared chunk by chunk with one another alone: the local term. At its first
chunk they differ in nothing but what they write. Both terms are rows of one loss.

Departures. The paper re-rolls from several states beside a whole group; here the G rollouts of a
group are divided, so a step draws no more than with other credits. Rows weigh alike, without a
weight between the terms. The local rewards are ours (rewards.py), at the end of the instance. One
model writes: no fact extractor, no curriculum of lengths.

A memory that is begun again has the entries of then, archived lines included, but has forgotten the
ids of deleted entries and what updated ones said before; that is alike for all that begin with it.
An instance of one chunk begins again as it was given. What is drawn depends on the seed of the
sampling alone.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from memalpha.agent.rollout import BeginEpisodes, Rollout, run_episodes
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.training.config import RunOptions
from memalpha.training.credit import StepCredit
from memalpha.training.rows import TrainingRow
from memalpha.types import Generator, Instance, Sampling


class SameStateCredit(StepCredit):
    """One half of a group is compared as a whole, the other by chunk."""

    needs_trainer = True

    @override
    def check(self, options: RunOptions, group_size: int) -> None:
        if group_size % 2 or group_size < 4:
            raise InputError(
                f"credit same_state is combined with num_generations {group_size}",
                expected="an even number of at least 4, since each half of a group is compared "
                "within "
                "itself",
            )
        if options.rollout_chunks == 1:
            raise InputError(
                "credit same_state is combined with rollout_chunks 1",
                expected="rollouts of at least 2 chunks, since those of one chunk begin from the "
                "same "
                "state anyway",
            )

    @override
    def draw(
        self,
        begin: BeginEpisodes,
        instances: Sequence[Instance],
        agent: AgentStep,
        generator: Generator,
        sampling: Sampling,
        group_size: int,
    ) -> list[Rollout]:
        """Run ``group_size`` rollouts (an even number) of each instance, given as often in a row;
        the second half of each group begins with a memory of the first. Errors as ``run_episodes``.
        """
        half = group_size // 2
        whole = [each for place, each in enumerate(instances) if not is_local(place, group_size)]
        first = run_episodes(begin(whole, agent), generator, sampling)
        rng = random.Random(f"same_state/{sampling.seed}")
        starts = range(0, len(first), half)
        again = []
        for start in starts:
            rollout = rng.choice(first[start : start + half])
            again += [begun_again(rollout, rng)] * half
        other = replace(sampling, seed=rng.getrandbits(40))
        second = run_episodes(begin(again, agent), generator, other)
        rollouts = []
        for start in starts:
            rollouts += first[start : start + half] + second[start : start + half]
        return rollouts

    @override
    def group_key(self, row: TrainingRow, group_size: int) -> tuple[int, int]:
        local = is_local(row.rollout_index, group_size)
        return (row.group_index, row.chunk_index if local else -1)


def is_local(rollout_index: int, group_size: int) -> bool:
    """Whether a rollout is in the second half of its group, which begins from one memory."""
    return rollout_index % group_size >= group_size // 2


def begun_again(rollout: Rollout, rng: random.Random) -> Instance:
    """Return the instance of a rollout, to be begun at a drawn chunk, not its first if there are
    more, with the memory that the rollout had before that chunk.
    """
    instance = rollout.instance
    chunks = range(instance.begin, len(instance.chunks))
    begin = rng.choice(chunks[1:] or chunks)
    entries = {entry.id: entry for entry in instance.initial_entries}
    for (before, after), _, chunk, _ in rollout.memory.applied:
        if chunk is not None and chunk >= begin:
            continue
        if before is not None and after is None:
            del entries[before.id]
        if after is not None:
            entries[after.id] = after
    return replace(instance, begin=begin, initial_entries=tuple(entries.values()))
