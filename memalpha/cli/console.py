"""Terminal output, in which text from others has its control characters escaped, and the events of
a run become lines.
"""

import logging
import os
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memalpha.measure.view import duration, number, numeric
from memalpha.measure.view import printable as printable
from memalpha.measure.view import printable_lines as printable_lines
from memalpha.types import JsonMapping

STEP_COLUMNS: Mapping[str, tuple[str, int]] = {
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
    "drawn apart": ("sampling/sampling_logp_difference/mean", 4),
    "p99": ("sampling/sampling_logp_difference/p99", 4),
    "KL": ("sampling/kl", 6),
    "loss scale": ("loss_scale", 0),
    "tokens/s": ("tokens_per_second", 0),
    "s/step": ("seconds", 1),
}
"""What is shown of a training step: its key, and the number of decimals."""
RECENT_STEPS = 5
"""The time left follows the pace of so many last steps: a machine may be busy for a while."""
EVENTS: Mapping[str, str] = {
    "threads": "threads: {what}",
    "fetch": "fetching {what}",
    "load": "loading {what}",
    "resume": "continuing from {checkpoint}",
    "evaluate": "evaluating {name}: chunk {done} of {total}, {instances} instances",
    "evaluated": "{name}: accuracy {accuracy} +- {stderr:.3f} on {n} held-out instances, "
    "tool success {tool_success:.2f}, memory {memory_tokens:.0f} tokens ({seconds} s)",
    "warmup": "warm start step {step}/{max_steps}  loss {loss:.3f}",
    "writing": "{system} on {set}, seed {seed}: chunk {done} of {chunks}",
    "read": "{system} on {set}, seed {seed}, {reader}: accuracy {accuracy}, "
    "the mean of {scored} instances",
    "compared": "{results} results in {folder}; none failed",
    "compared in part": "{results} results in {folder}; {failed} failed "
    "(the same command tries those again)",
}
"""The line of each other event."""
_LONG = ("fetch", "load", "evaluate", "writing")  # events after which the same work goes on


class SafeConsole(Console):
    """A rich console that escapes control characters in texts; rich's own codes stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render with every text escaped."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment._replace(text=text)


class SafeFormatter(logging.Formatter):
    """Log messages without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the escaped message."""
        return printable_lines(super().format(record))


LAUNCHED = "MEMALPHA_LAUNCHED"
"""The variable of the environment that ``memalpha launch`` sets for its processes; also read by
``memalpha.__main__``.
"""
console = SafeConsole(soft_wrap=True, highlight=False, emoji=False)


def out(text: str) -> None:
    """Write lines."""
    console.print(printable_lines(text), markup=False)


def complain(text: str) -> None:
    """Write lines to standard error."""
    sys.stderr.write(f"{printable_lines(text)}\n")


def with_notes(error: BaseException) -> str:
    """Return an error's message and its notes, one per line."""
    return "\n  ".join([str(error), *getattr(error, "__notes__", ())])


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show a table on a terminal, tab-separated lines elsewhere."""
    lines = [[printable(str(cell)) for cell in row] for row in rows]
    if console.is_terminal:
        table = Table(*columns)
        for line in lines:
            table.add_row(*(Text(cell, overflow="fold") for cell in line))
        console.print(table)
        return
    # rich would replace tabs by spaces
    console.file.writelines("\t".join(line) + "\n" for line in (columns, *lines))
    console.file.flush()


def is_main_process() -> bool:
    """Whether this is the first process of its launch."""
    return os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """Whether accelerate or torchrun started this process."""
    return bool({"ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"} & os.environ.keys())


def tell_launcher(error: BaseException) -> bool:
    """Write an error to the file that torchrun reports from; return whether ``memalpha launch``
    shows it.
    """
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return False
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().record_exception(error)
    return LAUNCHED in os.environ


def leave_group() -> None:
    """Leave the group of processes that torch has made: gloo may else abort when Python ends."""
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def quiet_libraries() -> None:
    """Switch off progress bars and warnings of libraries."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    for text in (
        ".*gradient_checkpointing",
        "Unable to fetch remote file",
        "Could not find a config file in",
        "'pin_memory' argument is set as true",
        "`broadcast_buffers` is deprecated",
    ):
        warnings.filterwarnings("ignore", message=text)


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
        self.enabled = enabled
        self._target = target
        self._clock = clock
        self._started = self._last = clock()
        self._recent = deque[tuple[int, float]](maxlen=RECENT_STEPS + 1)
        self._tokens: float | None = None
        self._spoke = self._started  # the time of the last line
        self._doing = "at work"

    @contextmanager
    def alive(self, seconds: float = 20.0) -> Iterator["Reporter"]:
        """Write a line after each ``seconds`` without an event, until the block ends."""
        ended = Event()

        def watch() -> None:
            while not ended.wait(max(0.0, self._spoke + seconds - self._clock())):
                now = self._clock()
                if now >= self._spoke + seconds:
                    with suppress(OSError):  # where nothing can be written, the main thread ends
                        self._say(f"still {self._doing}", now)

        watcher = Thread(target=watch, daemon=True)
        if self.enabled:
            watcher.start()
        try:
            yield self
        finally:
            ended.set()
            if self.enabled:
                watcher.join()

    def _say(self, text: str, now: float) -> None:
        self._spoke = now
        self._target.print(f"[{now - self._started:6.0f} s] {text}", markup=False)

    def __call__(self, event: str, data: JsonMapping) -> None:
        """Show one event."""
        if not self.enabled:
            return
        now = self._clock()
        texts = []
        if event == "step":
            texts = [self._step(data, now)]
        elif event in EVENTS and not (event == "warmup" and "loss" not in data):
            damaged = data.get("damaged", {}).items()
            texts = [f"{name} is left out ({reason})" for name, reason in damaged]
            accuracy = number(data.get("accuracy"), 3)
            in_part = event == "compared" and data["failed"]
            line = EVENTS["compared in part" if in_part else event]
            texts.append(line.format(**{**data, "accuracy": accuracy}))
        self._last = now
        for text in texts:
            self._say(text, now)
        self._doing = texts[-1] if texts and event in _LONG else "at work"
        if event == "step" and data["step"] < data["max_steps"]:
            self._doing = f"at step {data['step'] + 1}/{data['max_steps']}"

    def _step(self, data: JsonMapping, now: float) -> str:
        step = data["step"]
        seconds = now - self._last
        tokens = numeric(data.get("num_tokens"))
        before = 0.0 if step == 1 else self._tokens
        self._tokens = tokens
        values = {**data, "seconds": seconds}
        if tokens is not None and before is not None and seconds > 0:
            values["tokens_per_second"] = (tokens - before) / seconds
        columns = dict(STEP_COLUMNS)
        shown = {key for key, _ in columns.values()}
        for key in data:
            if re.fullmatch("rewards/.*/mean", key) and key not in shown:
                columns[key.split("/")[1]] = (key, 3)
        parts = [
            f"{name} {number(values.get(key), digits)}"
            for name, (key, digits) in columns.items()
            if numeric(values.get(key)) is not None
        ]
        self._recent.append((step, now))
        first, began = self._recent[0]
        if step > first:
            a_step = (now - began) / (step - first)
            parts.append(f"{duration(a_step * (data['max_steps'] - step))} left")
        return f"step {step}/{data['max_steps']}  {'  '.join(parts)}"
