"""The terminal: one rich console, plain lines where the output is no terminal."""

from __future__ import annotations

import os
import time
import warnings
from itertools import islice
from typing import Any

from rich.console import Console

from memalpha.cli.live import LiveView, Pace, step_line
from memalpha.report.terminal import show_rollout
from memalpha.runs import RunFolder, trajectory_name

console = Console(soft_wrap=True, highlight=False, emoji=False)


def out(text: str) -> None:
    """Write one line."""
    console.print(text, markup=False)


def with_notes(error: BaseException) -> str:
    """Return an error's message and what was noted about it on its way, a note a line."""
    return "\n  ".join([str(error), *getattr(error, "__notes__", ())])


class Reporter:
    """Shows the events of a run: a live view in a terminal, plain lines elsewhere. A rank other than the first is silent.

    Use it as a context: what a live view did to the terminal is undone at the end.

    Args:
        enabled: Whether to show anything.
        folder: The run folder, for showing rollouts.
        log_rollouts: Steps between rollouts shown (0 = none); the first one of the step is taken.
        target: Where to.
    """

    def __init__(self, enabled: bool = True, folder: str = "", log_rollouts: int = 0, target: Console = console) -> None:
        self.enabled, self.folder, self.log_rollouts, self.target = enabled, folder, log_rollouts, target
        self.started = time.time()
        self._pace = Pace()
        self._view = LiveView(target) if enabled and target.is_interactive else None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view:
            self._view.stop()

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        """Show one event."""
        if not self.enabled:
            return
        if event == "step":
            self._step(data)
            return
        self._pace.other()
        name = f"evaluating {data['name']}" if event in ("evaluate", "evaluated") else ""
        if self._view and event == "evaluate":
            self._view.advance(name, data["done"], data["total"])
            return
        if self._view and event == "evaluated":
            self._view.finish(name)
        self._line(_LINES.get(event, lambda _: "")(data))

    def _step(self, data: dict[str, Any]) -> None:
        speed = self._pace.step(data)
        if self._view:
            self._view.step(data, speed)
        else:
            self._line(step_line(data, speed))
        if self.log_rollouts and data["step"] % self.log_rollouts == 0:
            self._rollout(data["step"])

    def _rollout(self, step: int) -> None:
        rows = RunFolder(self.folder).read_lines(trajectory_name(step, 0))
        for rollout in islice(rows, 1):
            self._line(f"the first rollout of step {step}:")
            show_rollout(rollout, self.target)

    def _line(self, text: str) -> None:
        if text:
            self.target.print(f"[{time.time() - self.started:6.0f} s] {text}", markup=False)


def _evaluated(data: dict[str, Any]) -> str:
    return (
        f"{data['name']}: accuracy {data['accuracy']:.3f} +- {data['stderr']:.3f} on {data['n']} held-out instances, "
        f"tool success {data['tool_success']:.2f}, memory {data['memory_tokens']:.0f} tokens ({data['seconds']} s)"
    )


_LINES: dict[str, Any] = {
    "resume": lambda data: _resume(data),
    "load": lambda data: f"loading {data['what']}",
    "evaluate": lambda data: f"evaluating {data['name']}: chunk {data['done']} of {data['total']} of {data['instances']} instances",
    "evaluated": _evaluated,
    "joined": lambda data: f"{data['taken']} results of {data['folder']} taken over" + _left(data["left"]),
    "writing": lambda data: f"{_who(data)}: chunk {data['done']} of {data['chunks']}",
    "read": lambda data: f"{_who(data)}, {data['reader']}: {_accuracy(data)}",
    "compared": lambda data: f"{data['results']} results in {data['folder']}{_failures(data)}",
    "warmup": lambda data: (
        f"warm start step {data['step']}/{data['max_steps']}  loss {float(data['loss']):.3f}" if "loss" in data else ""
    ),
}


def _who(data: dict[str, Any]) -> str:
    which = f"instances {data['first']} to {data['last']} of {data['instances']}, seed {data['seed']}"
    return f"{data['system']} on {data['set']}, {which}"


def _accuracy(data: dict[str, Any]) -> str:
    known = data["accuracy"] is not None
    return f"accuracy {data['accuracy']:.3f}, the mean of {data['scored']} instances" if known else "no instance has a score"


def _left(number: int) -> str:
    return f"; {number} left there: failed, here already, or not asked for" if number else ""


def _failures(data: dict[str, Any]) -> str:
    return f"; {data['failed']} failed: the same command again tries them once more" if data["failed"] else ""


def is_main_process() -> bool:
    """Whether this process is the first of its launch."""
    return os.environ.get("RANK", "0") == "0"


def whose() -> str:
    """Name this process where there are several: ``[rank 1] ``."""
    return f"[rank {os.environ['RANK']}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def tell_launcher(error: BaseException) -> None:
    """Leave an error where torchrun looks for it, so that its report on the first rank that failed has the message."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def _resume(data: dict[str, Any]) -> str:
    left_out = "".join(f"{name} is left out ({reason}); " for name, reason in data["damaged"].items())
    return f"{left_out}going on from {data['checkpoint'] or 'the beginning: there is no whole checkpoint'}"


def quiet_libraries() -> None:
    """Switch off progress bars, and warnings of libraries about one another: what the command line shows is its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    for text in ("Unable to fetch remote file", "Could not find a config file in"):  # peft asks a hub for the base by its name
        warnings.filterwarnings("ignore", message=text, category=UserWarning)
