"""A data source, a kind of exports and a verb of the command line that another package adds to
memalpha.

The entry points are in pyproject.toml beside this file.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from typer import Typer, echo

from memalpha import MemorySchema
from memalpha.contrib.importing.exports import Kind
from memalpha.contrib.importing.items import Chat, Reasons
from memalpha.conversation.messages import USER, Utterance
from memalpha.data.rows import Row
from memalpha.data.source import CommonOptions, Draft, Source, by_row
from memalpha.types import Chunk, Question, TokenCounter


def read_line(row: Row, options: CommonOptions, count: TokenCounter) -> Draft:
    """A line {"text": ..., "question": ..., "answer": ...} is a chunk and its question."""
    question = Question(row["question"].text(), row["answer"].answers())
    return Draft(row.where, "lines", (Chunk(row["text"].text()),), [question])


LINES = Source("lines", "a line a chunk: JSON Lines", by_row(read_line), CommonOptions)


def is_day(value: Any) -> bool:
    """Whether a value is a day of a diary."""
    return isinstance(value, dict) and {"day", "wrote"} <= value.keys()


def read_diary(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read {"day": "2024-03-05", "wrote": ...} a line: what the user said on that day."""
    said = []
    for value in values:
        if is_day(value):
            said.append(Utterance(USER, value["wrote"], time=value["day"], id=value["day"]))
        else:
            skipped["no day"] += 1
    yield Chat("diary", tuple(said))


DIARY = Kind("days with 'day' and 'wrote'", is_day, read_diary)


def add_verbs(app: Typer) -> None:
    """Add ``memalpha sections`` to the command line."""

    @app.command()
    def sections(schema: str) -> None:
        """List the sections of a memory schema: a preset or a YAML file."""
        for section in MemorySchema.load(schema).sections:
            echo(f"{section.name}: {section.description}")
