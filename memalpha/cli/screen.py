"""Showing what others wrote in a terminal: text that cannot steer it, tables that lose nothing in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from memalpha.cli.console import console

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # needed to write Persian, Hindi and many emoji; they steer nothing


def printable(text: str) -> str:
    r"""Return a text with every character that a terminal would obey or hide written as its escape (``\x1b``, ``\u202e``)."""
    return "".join(
        char.encode("unicode_escape").decode("ascii") if unicodedata.category(char) in _UNSEEN and char not in _JOINERS else char
        for char in text
    )


def printable_lines(text: str) -> str:
    """Return a text as ``printable`` does, its line ends kept."""
    return "\n".join(printable(line) for line in text.split("\n"))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show rows as a table on a terminal, as lines of cells between tabs elsewhere; ends quietly where nobody reads on."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if not console.is_terminal:
        try:
            for line in (columns, *cells):
                console.file.write("\t".join(line) + "\n")  # rich would turn tabs into spaces
            console.file.flush()
        except BrokenPipeError:
            console.on_broken_pipe()
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for line in cells:
        table.add_row(*(Text(cell, overflow="fold") for cell in line))
    console.print(table)
