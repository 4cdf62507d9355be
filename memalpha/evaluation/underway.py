"""What a policy has written in a batch that is not done: kept in a file, so that a killed evaluation goes on at that chunk.

A batch of long inputs takes hours, and its results are there when the last chunk is read. Until then each call of the policy is one
line: a digest of what was asked, what came, and how long it took. The same calls are then answered from the file, up to the first
that is not in it.

What always holds: a call is answered from the file only if adapter, prompts and sampling are the same, so what is written is what
would have been drawn; a line cut short by a kill is dropped; calls whose random numbers are not their own (a temperature without a
seed) are always drawn.

It covers policies on this machine, not Mem0's calls of a server.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memalpha.files import append_lines, drop_cut_line, parse_line
from memalpha.types import Completion, Prompt, Sampling, StopReason

UNDERWAY_FILE = "underway.jsonl"


class UnderWay:
    """The calls of the batch under way.

    Args:
        folder: The evaluation's; the file in it is made by the first call.

    Raises:
        InputError: If the file of before is damaged elsewhere than at its end.

    Attributes:
        recalled: Seconds that the calls answered from the file had taken when they were drawn.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / UNDERWAY_FILE
        self.recalled = 0.0
        drop_cut_line(self.path)
        lines = self.path.read_bytes().splitlines() if self.path.is_file() else []
        rows = [parse_line(line, self.path, number) for number, line in enumerate(lines, 1)]
        self._calls: dict[str, dict[str, Any]] = {row["call"]: row for row in rows}

    def completions(
        self, adapter: str, prompts: Sequence[Prompt], sampling: Sampling, draw: Callable[[], list[Completion]]
    ) -> list[Completion]:
        """Return the completions of a call: those of before, or what ``draw`` gives, written down."""
        if sampling.temperature and sampling.seed is None:
            return draw()
        call = _digest(adapter, prompts, sampling)
        if (row := self._calls.get(call)) is not None:
            self.recalled += row["seconds"]
            return [_read(item) for item in row["completions"]]
        clock = time.perf_counter()
        drawn = draw()
        seconds = round(time.perf_counter() - clock, 3)
        append_lines(self.path, [{"call": call, "seconds": seconds, "completions": [asdict(item) for item in drawn]}])
        return drawn

    def clear(self) -> None:
        """Forget the calls: the batch is done, or another begins."""
        self.path.unlink(missing_ok=True)
        self._calls.clear()
        self.recalled = 0.0


def _digest(adapter: str, prompts: Sequence[Prompt], sampling: Sampling) -> str:
    asked = [adapter, asdict(sampling), [prompt.ids for prompt in prompts]]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _read(row: dict[str, Any]) -> Completion:
    logprobs = row["logprobs"]
    return Completion(tuple(row["ids"]), row["text"], StopReason(row["stop"]), None if logprobs is None else tuple(logprobs))


__all__ = ["UNDERWAY_FILE", "UnderWay"]
