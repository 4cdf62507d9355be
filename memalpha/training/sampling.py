"""The order of training instances: TRL's sampler, reshuffled each epoch, with data sources spread evenly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):  # type: ignore[misc]
    """TRL's sampler with the order of :func:`spread`, by (seed, epoch) only, so a resumed run repeats it."""

    trainer: Any
    sources: Sequence[str]

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            yield from super().__iter__()
            return
        order = spread(self.sources, self.seed + int(self.trainer.state.epoch or 0))
        positions = RepeatSampler(order, self.mini_repeat_count, self.batch_size, self.repeat_count, shuffle=False)
        for position in positions:
            yield order[position]


def spread(sources: Sequence[str], seed: int) -> list[int]:
    """Return a random order of the instances in which each source comes at even intervals.

    Without it, several steps in a row may use one source by chance, and the policy unlearns the others.
    """
    generator = torch.Generator().manual_seed(seed)
    members: dict[str, list[int]] = defaultdict(list)
    for index in torch.randperm(len(sources), generator=generator).tolist():
        members[sources[index]].append(index)
    places = []
    for name in sorted(members):
        first = float(torch.rand((), generator=generator))
        places += [((rank + first) / len(members[name]), index) for rank, index in enumerate(members[name])]
    return [index for _, index in sorted(places)]


__all__ = ["EpochSampler", "spread"]
