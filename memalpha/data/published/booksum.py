"""BookSum: a chapter is an instance, with one question for its summary."""

from dataclasses import dataclass
from typing import Literal

from memalpha.data.published.shared import SUMMARISE, SummaryOptions, summary_question
from memalpha.data.rows import Row
from memalpha.data.source import Bounds, Draft, SkippedItem, Source, by_row
from memalpha.types import Chunk, TokenCounter
from memalpha.units import cut_text


@dataclass(frozen=True, slots=True)
class BooksumOptions(SummaryOptions):
    """How BookSum becomes instances.

    Attributes:
        metric: Every question has this metric: ``keywords`` (share of the summary's keywords),
            ``f1`` (common words) or ``judge``.
        chunks: A chapter is kept if its number of chunks is between these two (published: 5 and
            20).
    """

    metric: Literal["keywords", "f1", "judge"] = "keywords"
    chunks: Bounds = (1, 20)


def _booksum(row: Row, options: BooksumOptions, count: TokenCounter) -> Draft:
    pieces = cut_text(row["chapter"].text(), options.chunk_tokens, count)
    summary = row["summary_text"].answers()
    asked = summary_question(SUMMARISE, summary, "summary", options.metric)
    if len(pieces) < options.chunks[0]:
        asked = SkippedItem("too few chunks")
    elif len(pieces) > options.chunks[1]:
        asked = SkippedItem("too many chunks")
    named = filter(None, (row[key].scalar() for key in ("bid", "book_id", "summary_id")))
    name = "-".join(["booksum", *named])
    name = f"booksum {row.where}" if name == "booksum" else name
    return Draft(name, "booksum", tuple(map(Chunk, pieces)), [asked])


SOURCES = [
    Source(
        "booksum",
        "BookSum chapters with summaries: JSON Lines, CSV, Parquet",
        by_row(_booksum),
        BooksumOptions,
    ),
]
