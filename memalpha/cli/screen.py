"""The terminal: one console, and one rule for what others wrote: it cannot steer the terminal, whatever it holds.

``printable`` (``memalpha.report.view``) writes control, direction-changing and invisible characters as their escapes. The console
applies it to everything it prints, ``out`` and ``complain`` to every line, and ``SafeFormatter`` to log messages.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memalpha.report.view import printable as printable
from memalpha.report.view import printable_lines as printable_lines


class SafeConsole(Console):
    """A rich console whose texts hold no control characters; rich's own codes for colours and cursor are kept apart from texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with every text escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


class SafeFormatter(logging.Formatter):
    """Log messages without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, escaped."""
        return printable_lines(super().format(record))


console = SafeConsole(soft_wrap=True, highlight=False, emoji=False)


def out(text: str) -> None:
    """Write one line."""
    console.print(printable_lines(text), markup=False)


def complain(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{printable_lines(text)}\n")


def with_notes(error: BaseException) -> str:
    """Return an error's message and what was noted about it on its way, a note a line."""
    return "\n  ".join([str(error), *getattr(error, "__notes__", ())])


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show rows as a table on a terminal, as lines of cells between tabs elsewhere; ends quietly where nobody reads on."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if console.is_terminal:
        table = Table(*columns)
        for line in cells:
            table.add_row(*(Text(cell, overflow="fold") for cell in line))
        console.print(table)
        return
    try:
        console.file.writelines("\t".join(line) + "\n" for line in (columns, *cells))  # rich would turn tabs into spaces
        console.file.flush()
    except BrokenPipeError:
        console.on_broken_pipe()


# ---------------------------------------------------------------------------------------------------- this process
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


def quiet_libraries() -> None:
    """Switch off progress bars, and warnings of libraries about one another: what the command line shows is its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    for text in ("Unable to fetch remote file", "Could not find a config file in"):  # peft asks a hub for the base by its name
        warnings.filterwarnings("ignore", message=text, category=UserWarning)
