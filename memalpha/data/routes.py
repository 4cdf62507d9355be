"""Logs of routing: rows (prompt, route, reward, cost, probability) of a file, and the part that is
held out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat

from memalpha.config import Options, Share
from memalpha.data.rows import existing_file, iter_rows
from memalpha.errors import InputError


@dataclass(frozen=True, slots=True)
class LogOptions(Options):
    """A log.

    Attributes:
        rows: CSV, Parquet or JSON Lines file with ``prompt``, ``reward``, and optionally ``cost``
            and ``probability`` in every row.
        actors: The columns of the routes: one, or one for each of several actors, whose
            ``probability`` is that of all together.
        cost: Reward lost for one unit of the column ``cost``.
        held_out: Share of the prompts that are measured on and not trained on, if there is no
            second file.
        embedder: Embeds the prompts.
    """

    rows: str
    actors: Annotated[tuple[str, ...], Field(min_length=1)] = ("route",)
    cost: NonNegativeFloat = 1.0
    held_out: Share = 0.2
    embedder: str = "minilm"


class Log(NamedTuple):
    """Rows: prompts, routes by name (n tuples), rewards less costs (n,), probabilities of the joint
    route (n,) or None.
    """

    prompts: list[str]
    routes: list[tuple[str, ...]]
    rewards: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None

    def part(self, wanted: Callable[[str], bool]) -> Log:
        """Return the rows whose prompt is wanted."""
        kept = [i for i, prompt in enumerate(self.prompts) if wanted(prompt)]
        known = None if self.probabilities is None else self.probabilities[kept]
        return Log(
            [self.prompts[i] for i in kept],
            [self.routes[i] for i in kept],
            self.rewards[kept],
            known,
        )


def read_log(options: LogOptions) -> Log:
    """Read a log; InputError names the row that does not fit, or says that some rows have a column
    and others not.
    """
    found = []
    for row in iter_rows(str(existing_file(options.rows))):
        data: Any = row.data
        try:
            given = [
                float(data[name]) if name in data else None for name in ("cost", "probability")
            ]
            found.append(
                (
                    str(data["prompt"]),
                    tuple(str(data[a]) for a in options.actors),
                    float(data["reward"]),
                    *given,
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            names = ", ".join(options.actors)
            expected = f"prompt, {names}, reward, and cost and probability in all rows or none"
            raise InputError(f"{row.where} of the log: {error!r}", expected=expected) from error
    if not found:
        raise InputError(f"{options.rows} has no rows", expected="at least one")
    prompts, routes, rewards, *columns = map(list, zip(*found, strict=True))
    if any(None in column and set(column) != {None} for column in columns):
        raise InputError(
            f"{options.rows} has a cost or a probability in some rows only",
            expected="in all rows or none",
        )
    costs, known = (
        None if column[0] is None else np.array(column, dtype=np.float64) for column in columns
    )
    net = np.array(rewards) - options.cost * (0 if costs is None else costs)
    if not np.isfinite(net).all() or (known is not None and not ((known > 0) & (known <= 1)).all()):
        raise InputError(
            f"numbers in {options.rows}",
            expected="finite rewards and costs, probabilities above 0 and at most 1",
        )
    return Log(prompts, routes, net, known)


def split_log(log: Log, share: float) -> tuple[Log, Log]:
    """Return the rows to train on and the ``share`` held out; rows of one prompt stay together, and
    a prompt always on its side.
    """

    def held(prompt: str) -> bool:
        return int(sha256(prompt.encode()).hexdigest()[:8], 16) < share * 2**32

    return log.part(lambda prompt: not held(prompt)), log.part(held)
