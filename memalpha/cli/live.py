"""A run while it runs: how fast it is and how long it will take, and the live view that a terminal shows.

The live view has a progress bar for what is under way and a table of the last step: each part of the reward, its mean over the last
steps and its course. What always holds: time left is said only after a step was timed; tokens a second count prompts and
completions of all processes, over the whole step; what a step does not know is a dash.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from memalpha.report.overview import duration
from memalpha.report.view import UNKNOWN, known, mean, number

WINDOW = 10
"""Steps that a mean of the table is over."""

_COURSE = 40
_BLOCKS = "▁▂▃▄▅▆▇█"

PARTS: Mapping[str, tuple[str, int]] = {
    "reward": ("reward", 3),
    "accuracy": ("rewards/accuracy/mean", 3),
    "tool": ("rewards/tool/mean", 3),
    "compression": ("rewards/compression/mean", 3),
    "content": ("rewards/content/mean", 3),
    "immediate": ("rewards/immediate/mean", 3),
    "calls/chunk": ("memory/calls_per_chunk", 2),
    "updates": ("memory/update_share", 3),
    "deletes": ("memory/delete_share", 3),
    "cut off": ("memory/cut_off", 3),
    "masked": ("memory/masked", 3),
    "loss": ("loss", 4),
}
"""What is shown of a step: its key in the metrics and its decimals. Those a run does not have are left out."""


class Speed(NamedTuple):
    """How fast the last step was; None where it is not known."""

    seconds: float | None
    tokens_per_second: float | None
    left: float | None


class Pace:
    """Measures steps as they are reported.

    Args:
        clock: Seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._tokens: float | None = None
        self._times: deque[float] = deque(maxlen=WINDOW)

    def other(self) -> None:
        """Something else than a step was reported: a step is timed from here."""
        self._last = self._clock()

    def step(self, data: Mapping[str, Any]) -> Speed:
        """A step was reported."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        self._times.append(seconds)
        tokens, before = known(data.get("num_tokens")), 0.0 if int(data["step"]) == 1 else self._tokens
        self._tokens = tokens
        rate = (tokens - before) / seconds if tokens is not None and before is not None and seconds > 0 else None
        left = (int(data["max_steps"]) - int(data["step"])) * sum(self._times) / len(self._times)
        return Speed(seconds, rate, left)


class LiveView:
    """Progress and the last step, redrawn in place.

    Args:
        console: An interactive terminal.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._values: dict[str, deque[float | None]] = {}
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._draw)

    def advance(self, name: str, done: int, total: int, left: str = "") -> None:
        """Show that so much of something is done; starts the view."""
        self._live.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, left="")
        self._progress.update(self._tasks[name], completed=done, total=total, left=left)

    def finish(self, name: str) -> None:
        """Take something off the view."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))

    def step(self, data: Mapping[str, Any], speed: Speed) -> None:
        """Show a step."""
        shown = {name: data.get(key) for name, (key, _) in PARTS.items()}
        for name, value in {**shown, "tokens/s": speed.tokens_per_second, "s/step": speed.seconds}.items():
            self._values.setdefault(name, deque(maxlen=_COURSE)).append(known(value))
        left = f"{duration(speed.left)} left" if speed.left is not None else ""
        self.advance("training", int(data["step"]), int(data["max_steps"]), left)

    def stop(self) -> None:
        """Leave the last picture where it is and give the terminal back."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        return Group(self._table(), self._progress) if self._values else self._progress

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("last step")
        table.add_column("", justify="right")
        table.add_column(f"mean of {WINDOW}", justify="right")
        table.add_column("course")
        for name, values in self._values.items():
            if any(value is not None for value in values):
                digits = PARTS[name][1] if name in PARTS else 1
                recent = mean(list(values)[-WINDOW:])
                table.add_row(name, number(values[-1], digits), number(recent, digits), course(list(values)))
        return table


def course(values: list[float | None]) -> str:
    """Draw values as blocks between their smallest and largest; a dash where one is not known."""
    found = [value for value in values if value is not None]
    if not found:
        return ""
    low, span = min(found), max(found) - min(found)
    top = len(_BLOCKS) - 1
    return "".join(UNKNOWN if v is None else _BLOCKS[round((v - low) / span * top) if span else 0] for v in values)


def step_line(data: Mapping[str, Any], speed: Speed) -> str:
    """Return a step as one plain line."""
    found = {name: (data.get(key), digits) for name, (key, digits) in PARTS.items()}
    found |= {"tokens/s": (speed.tokens_per_second, 0), "s/step": (speed.seconds, 1)}
    parts = [f"{name} {number(value, digits)}" for name, (value, digits) in found.items() if known(value) is not None]
    left = f"  {duration(speed.left)} left" if speed.left is not None else ""
    return f"step {data['step']}/{data['max_steps']}  {'  '.join(parts)}{left}"
