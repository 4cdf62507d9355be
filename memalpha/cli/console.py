"""Terminal output: text from others has its control characters escaped; the events of a run become
lines.
"""

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memalpha.measure.view import duration, number, numeric
from memalpha.measure.view import printable as printable
from memalpha.measure.view import printable_lines as printable_lines


class SafeConsole(Console):
    """A rich console that escapes control characters in texts; rich's own codes stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render with every text escaped."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=printable_lines(segment.text))
            )


class SafeFormatter(logging.Formatter):
    """Log messages without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the escaped message."""
        return printable_lines(super().format(record))


console = SafeConsole(soft_wrap=True, highlight=False, emoji=False)


def out(text: str) -> None:
    """Write one line."""
    console.print(printable_lines(text), markup=False)


def complain(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{printable_lines(text)}\n")


def with_notes(error: BaseException) -> str:
    """Return an error's message and its notes, one per line."""
    return "\n  ".join([str(error), *getattr(error, "__notes__", ())])


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show a table on a terminal, tab-separated lines elsewhere; stops quietly on a closed pipe."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if console.is_terminal:
        table = Table(*columns)
        for line in cells:
            table.add_row(*(Text(cell, overflow="fold") for cell in line))
        console.print(table)
        return
    try:
        console.file.writelines(
            "\t".join(line) + "\n" for line in (columns, *cells)
        )  # rich would replace tabs by spaces
        console.file.flush()
    except BrokenPipeError:
        console.on_broken_pipe()


def is_main_process() -> bool:
    """Whether this is the first process of its launch."""
    return os.environ.get("RANK", "0") == "0"


def tell_launcher(error: BaseException) -> None:
    """Write an error to the file that torchrun reports from."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def quiet_libraries() -> None:
    """Switch off progress bars and warnings of libraries."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    for text in (
        ".*gradient_checkpointing",
        "Unable to fetch remote file",
        "Could not find a config file in",
    ):
        warnings.filterwarnings("ignore", message=text)


# ------------------------------------------------------------------------------------------------
# the events of a run
PARTS: Mapping[
    str, tuple[str, int]
] = {  # what is shown of a step: its key, and the number of decimals
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
    """Writes a line for each event of a run; silent unless ``enabled``. Tokens count prompts and
    completions of all processes.
    """

    def __init__(
        self,
        enabled: bool = True,
        target: Console = console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.enabled, self._target, self._clock = enabled, target, clock
        self._started = self._last = clock()
        self._first: tuple[int, float] | None = None
        self._tokens: float | None = None

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        """Show one event."""
        if self.enabled:
            now = self._clock()
            text = self._step(data, now) if event == "step" else _told(event, data)
            self._last = now
            if text:
                self._target.print(f"[{now - self._started:6.0f} s] {text}", markup=False)

    def _step(self, data: dict[str, Any], now: float) -> str:
        step, seconds = data["step"], now - self._last
        tokens, before = numeric(data.get("num_tokens")), 0.0 if step == 1 else self._tokens
        self._tokens = tokens
        rate = (
            (tokens - before) / seconds
            if tokens is not None and before is not None and seconds > 0
            else None
        )
        values = {**data, "seconds": seconds, "tokens_per_second": rate}
        mine = [
            key
            for key in data
            if key.startswith("rewards/")
            and key.endswith("/mean")
            and (key, 3) not in PARTS.values()
        ]
        shown = [*PARTS.items(), *((key.split("/")[1], (key, 3)) for key in mine)]
        parts = [
            f"{name} {number(values.get(key), n)}"
            for name, (key, n) in shown
            if numeric(values.get(key)) is not None
        ]
        first, began = self._first = self._first or (step, now)
        if step > first:
            parts.append(
                f"{duration((now - began) / (step - first) * (data['max_steps'] - step))} left"
            )
        return f"step {step}/{data['max_steps']}  {'  '.join(parts)}"


def _told(event: str, data: dict[str, Any]) -> str:
    match event:
        case "resume":
            left_out = "".join(
                f"{name} is left out ({reason}); " for name, reason in data["damaged"].items()
            )
            return f"{left_out}going on from {data['checkpoint'] or 'the beginning: there is no whole checkpoint'}"
        case "load":
            return f"loading {data['what']}"
        case "evaluate":
            return f"evaluating {data['name']}: chunk {data['done']} of {data['total']} of {data['instances']} instances"
        case "evaluated":
            return (
                f"{data['name']}: accuracy {data['accuracy']:.3f} +- {data['stderr']:.3f} on {data['n']} held-out instances, "
                f"tool success {data['tool_success']:.2f}, memory {data['memory_tokens']:.0f} tokens ({data['seconds']} s)"
            )
        case "warmup" if "loss" in data:
            return f"warm start step {data['step']}/{data['max_steps']}  loss {float(data['loss']):.3f}"
        case "writing":
            return f"{data['system']} on {data['set']}, seed {data['seed']}: chunk {data['done']} of {data['chunks']}"
        case "read":
            score = (
                f"accuracy {number(data['accuracy'], 3)}, the mean of {data['scored']} instances"
            )
            return (
                f"{data['system']} on {data['set']}, seed {data['seed']}, {data['reader']}: {score}"
            )
        case "joined":
            left = (
                f"; {data['left']} left there: failed, here already, or not asked for"
                if data["left"]
                else ""
            )
            return f"{data['taken']} results of {data['folder']} taken over{left}"
        case "compared":
            failed = (
                f"; {data['failed']} failed: the same command again tries them once more"
                if data["failed"]
                else ""
            )
            return f"{data['results']} results in {data['folder']}{failed}"
    return ""
