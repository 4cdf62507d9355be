"""Progress output of a run: bars and a table of the last step in a terminal, plain lines elsewhere.

Time left uses the mean pace since the first step. Tokens per second count prompts and completions of all processes. Unknown = dash.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from memalpha.cli.screen import console, is_main_process, out, quiet_libraries, tell_launcher, whose, with_notes
from memalpha.report.terminal import show_rollout
from memalpha.report.view import UNKNOWN, duration, known, mean, number
from memalpha.runs import RunFolder, trajectory_name

WINDOW = 10

_HISTORY = 40
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
    "tokens/s": ("tokens_per_second", 0),
    "s/step": ("seconds", 1),
}


class Reporter:
    """Shows the events of a run; silent unless ``enabled``. Use it as a context manager.

    Every ``log_rollouts`` steps (0 = never) it shows the step's first rollout from the run ``folder``; ``clock`` is in seconds.
    """

    def __init__(
        self,
        enabled: bool = True,
        folder: str = "",
        log_rollouts: int = 0,
        target: Console = console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.enabled, self.folder, self.log_rollouts, self.target, self._clock = enabled, folder, log_rollouts, target, clock
        self._started = self._last = clock()
        self._tokens: float | None = None
        self._values: dict[str, deque[float | None]] = {name: deque(maxlen=_HISTORY) for name in PARTS}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=target, get_time=clock, speed_estimate_period=float("inf"))
        self._tasks: dict[str, TaskID] = {}
        shown = enabled and target.is_interactive
        self._live = Live(console=target, refresh_per_second=4, get_renderable=self._draw) if shown else None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        """Show one event."""
        if not self.enabled:
            return
        if event == "step":
            self._step(data)
            return
        self._last = self._clock()
        name = f"evaluating {data.get('name')}"
        if self._live and event == "evaluate":
            self._advance(name, data["done"], data["total"])
            return
        if event == "evaluated" and name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
        self._line(_LINES[event](data) if event in _LINES else "")

    def _step(self, data: dict[str, Any]) -> None:
        now = self._clock()
        seconds, self._last = now - self._last, now
        tokens, before = known(data.get("num_tokens")), 0.0 if data["step"] == 1 else self._tokens
        self._tokens = tokens
        rate = (tokens - before) / seconds if tokens is not None and before is not None and seconds > 0 else None
        values = {**data, "seconds": seconds, "tokens_per_second": rate}
        for name, (key, _) in PARTS.items():
            self._values[name].append(known(values.get(key)))
        left = self._advance("training", data["step"], data["max_steps"])
        if not self._live:
            parts = [
                f"{name} {number(values.get(key), n)}" for name, (key, n) in PARTS.items() if known(values.get(key)) is not None
            ]
            parts += [f"{duration(left)} left"] if left is not None else []
            self._line(f"step {data['step']}/{data['max_steps']}  {'  '.join(parts)}")
        if self.log_rollouts and data["step"] % self.log_rollouts == 0:
            for rollout in islice(RunFolder(self.folder).read_lines(trajectory_name(data["step"], 0)), 1):
                self._line(f"the first rollout of step {data['step']}:")
                show_rollout(rollout, self.target)

    def _advance(self, name: str, done: int, total: int) -> float | None:
        if self._live:
            self._live.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._tasks[name], completed=done, total=total)
        return next(task.time_remaining for task in self._progress.tasks if task.id == self._tasks[name])

    def _draw(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("last step")
        table.add_column("", justify="right")
        table.add_column(f"mean of {WINDOW}", justify="right")
        table.add_column("course")
        for name, values in self._values.items():
            if any(value is not None for value in values):
                digits, recent = PARTS[name][1], mean(list(values)[-WINDOW:])
                table.add_row(name, number(values[-1], digits), number(recent, digits), sparkline(list(values)))
        return Group(table, self._progress) if table.rows else self._progress

    def _line(self, text: str) -> None:
        if text:
            self.target.print(f"[{self._clock() - self._started:6.0f} s] {text}", markup=False)


def sparkline(values: list[float | None]) -> str:
    """Draw values as blocks scaled from minimum to maximum; None is a dash."""
    found = [value for value in values if value is not None]
    if not found:
        return ""
    low, span, top = min(found), max(found) - min(found), len(_BLOCKS) - 1
    return "".join(UNKNOWN if v is None else _BLOCKS[round((v - low) / span * top) if span else 0] for v in values)


def _evaluated(data: dict[str, Any]) -> str:
    return (
        f"{data['name']}: accuracy {data['accuracy']:.3f} +- {data['stderr']:.3f} on {data['n']} held-out instances, "
        f"tool success {data['tool_success']:.2f}, memory {data['memory_tokens']:.0f} tokens ({data['seconds']} s)"
    )


def _resume(data: dict[str, Any]) -> str:
    left_out = "".join(f"{name} is left out ({reason}); " for name, reason in data["damaged"].items())
    return f"{left_out}going on from {data['checkpoint'] or 'the beginning: there is no whole checkpoint'}"


def _who(data: dict[str, Any]) -> str:
    which = f"instances {data['first']} to {data['last']} of {data['instances']}, seed {data['seed']}"
    return f"{data['system']} on {data['set']}, {which}"


def _read(data: dict[str, Any]) -> str:
    score = "no instance has a score"
    if data["accuracy"] is not None:
        score = f"accuracy {data['accuracy']:.3f}, the mean of {data['scored']} instances"
    return f"{_who(data)}, {data['reader']}: {score}"


def _compared(data: dict[str, Any]) -> str:
    failed = f"; {data['failed']} failed: the same command again tries them once more" if data["failed"] else ""
    return f"{data['results']} results in {data['folder']}{failed}"


def _warmup(data: dict[str, Any]) -> str:
    return f"warm start step {data['step']}/{data['max_steps']}  loss {float(data['loss']):.3f}" if "loss" in data else ""


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "resume": _resume,
    "load": lambda data: f"loading {data['what']}",
    "evaluate": lambda data: f"evaluating {data['name']}: chunk {data['done']} of {data['total']} of {data['instances']} instances",
    "evaluated": _evaluated,
    "writing": lambda data: f"{_who(data)}: chunk {data['done']} of {data['chunks']}",
    "read": _read,
    "compared": _compared,
    "warmup": _warmup,
}


__all__ = ["Reporter", "console", "is_main_process", "out", "quiet_libraries", "sparkline", "tell_launcher", "whose", "with_notes"]
