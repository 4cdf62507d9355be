"""Rollouts that are drawn and scored while something else goes on: other rollouts, or the update of
an earlier batch.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import NamedTuple, TypeVar

from memalpha.agent.rollout import Rollout
from memalpha.rewards.total import StepReward

Result = TypeVar("Result")


class Part(NamedTuple):
    """Some rollouts of a batch, and their rewards; None: to be scored when they are needed."""

    rollouts: Future[list[Rollout]]
    rewards: Future[list[list[StepReward]]] | None


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


def parts_of(count: int, group: int, parts: int) -> list[slice]:
    """Divide ``count`` rollouts into at most ``parts`` slices of whole groups, as equal as can be,
    larger ones first.
    """
    groups = count // group
    parts = max(1, min(parts, groups))
    bounds = [group * -(-groups * i // parts) for i in range(parts)] + [count]
    return [slice(start, end) for start, end in pairwise(bounds)]


def joined(futures: Sequence[Future[list[Result]]]) -> list[Result]:
    """Wait for all, in order; an error is raised here."""
    return [item for future in futures for item in future.result()]
