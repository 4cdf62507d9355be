"""Mem-alpha's own data (arXiv 2509.25911): rows as on the Hub, whose lists may be JSON text."""

from collections.abc import Mapping
from dataclasses import dataclass

from memalpha.data.published.memoryagentbench import (
    metric_of,
    recommends,
    scored_answers,
    skip_unscored,
)
from memalpha.data.rows import Row
from memalpha.data.source import CommonOptions, Draft, Metric, Source, by_row
from memalpha.types import Chunk, Question, TokenCounter


@dataclass(frozen=True, slots=True)
class MemalphaOptions(CommonOptions):
    """How Mem-alpha's data are scored.

    Attributes:
        metric: Every question has this metric; an empty text takes the one of its ``data_source``.
    """

    metric: Metric = ""


def _memalpha(row: Row, options: MemalphaOptions, count: TokenCounter) -> Draft:
    source = row["data_source"].text()
    chunks = [chunk.text() for chunk in row["chunks"].decoded().items()]
    items = row["questions_and_answers"].decoded().items()
    if not chunks:
        raise row["chunks"].unfit("at least one chunk")
    metric = options.metric or metric_of(source)
    if not metric or recommends(source):
        return skip_unscored(source, len(items))

    def question(item: Row) -> Question:
        answer = item["answer"]
        golds = scored_answers(
            answer["text"] if isinstance(answer.data, Mapping) else answer, metric
        )
        if metric == "keywords" and golds and isinstance(answer.data, str):
            golds = tuple(dict.fromkeys(filter(None, map(str.strip, golds[0].split(", ")))))
        text = item["question"].text()
        return Question(text, golds, metric)

    name = row["instance_id"].scalar() or f"memalpha {row.where}"
    return Draft(name, source, tuple(map(Chunk, chunks))).ask(items, question)


SOURCES = [
    Source(
        "memalpha",
        "YuWangX/Memalpha's columns: Parquet, JSON, JSON Lines",
        by_row(_memalpha),
        MemalphaOptions,
    ),
]
