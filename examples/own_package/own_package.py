"""A data source and a verb of the command line that another package adds to memalpha.

The entry points are in pyproject.toml beside this file.
"""

from typer import Typer, echo

from memalpha import MemorySchema
from memalpha.data.rows import Row
from memalpha.data.source import CommonOptions, Draft, Source, by_row
from memalpha.types import Chunk, Question, TokenCounter


def read_line(row: Row, options: CommonOptions, count: TokenCounter) -> Draft:
    """A line {"text": ..., "question": ..., "answer": ...} is a chunk and its question."""
    question = Question(row["question"].text(), row["answer"].answers())
    return Draft(row.where, "lines", (Chunk(row["text"].text()),), [question])


LINES = Source("lines", "a line a chunk: JSON Lines", by_row(read_line), CommonOptions)


def add_verbs(app: Typer) -> None:
    """Add ``memalpha sections`` to the command line."""

    @app.command()
    def sections(schema: str) -> None:
        """List the sections of a memory schema: a preset or a YAML file."""
        for section in MemorySchema.load(schema).sections:
            echo(f"{section.name}: {section.description}")
