"""Chooses the instances that a step reads and the questions that it asks, and runs rollouts beside
other work.

The order of instances depends on seed and step alone, so that a resumed run repeats it.
"""

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import torch

from memalpha.agent.rollout import Rollout
from memalpha.rewards import StepReward

Result = TypeVar("Result")


def spread(sources: Sequence[str], seed: int) -> list[int]:
    """Return a random order in which each source comes at even intervals, since steps of one source
    alone unlearn the others.
    """
    generator = torch.Generator().manual_seed(seed)
    members: dict[str, list[int]] = defaultdict(list)
    for index in torch.randperm(len(sources), generator=generator).tolist():
        members[sources[index]].append(index)
    places = []
    for name in sorted(members):
        first = float(torch.rand((), generator=generator))
        for rank, index in enumerate(members[name]):
            places.append(((rank + first) / len(members[name]), index))
    return [index for _, index in sorted(places)]


def instances_of_draw(sources: Sequence[str], draw: int, groups: int, seed: int) -> list[int]:
    """Return the ``groups`` instances of a draw of rollouts, counted over all epochs; what is left
    at the end of an epoch is not read. An epoch has its own order.
    """
    epoch, place = divmod(draw, len(sources) // groups)
    return spread(sources, seed + epoch)[place * groups : (place + 1) * groups]


def of_each_kind(kinds: Sequence[str], count: int, rng: random.Random) -> list[int]:
    """Return ``count`` places, in order: of each kind its share, but at least one while there is
    room.

    Their mean is that of a stratified draw in which a kind of few places counts for at least one:
    with ``count`` of about the number of kinds, nearly the mean over kinds.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for place in rng.sample(range(len(kinds)), len(kinds)):
        members[kinds[place]].append(place)
    ranks = []
    for own in members.values():
        first = rng.random()
        for rank, place in enumerate(own):
            ranks.append((rank > 0, (rank + first) / len(own), place))
    return sorted(place for *_, place in sorted(ranks)[:count])


class RolloutDraw(NamedTuple):
    """The rollouts of a draw and their rewards, which may not be finished yet."""

    rollouts: Future[list[Rollout]]
    rewards: Future[list[list[StepReward]]]


def at_once(work: Callable[[], Result]) -> Future[Result]:
    """Do the work now; an error is raised here."""
    future: Future[Result] = Future()
    future.set_result(work())
    return future


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Do the work in a thread of its own, which does not keep the process alive."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
