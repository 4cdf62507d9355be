"""Terminal output: control characters in text from others are escaped (``printable`` of ``memalpha.report.view``)."""

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
    """A rich console that escapes control characters in texts; rich's own codes stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with every text escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


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
        console.file.writelines("\t".join(line) + "\n" for line in (columns, *cells))  # rich would replace tabs by spaces
        console.file.flush()
    except BrokenPipeError:
        console.on_broken_pipe()


def is_main_process() -> bool:
    """Whether this is the first process of its launch."""
    return os.environ.get("RANK", "0") == "0"


def whose() -> str:
    """Return the prefix of this process if there are several: ``[rank 1] ``."""
    return f"[rank {os.environ['RANK']}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def tell_launcher(error: BaseException) -> None:
    """Write an error to the file that torchrun reports from."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def quiet_libraries() -> None:
    """Switch off progress bars and warnings of libraries."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    for text in ("Unable to fetch remote file", "Could not find a config file in"):  # peft asks a hub for the base by its name
        warnings.filterwarnings("ignore", message=text, category=UserWarning)
