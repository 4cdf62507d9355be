"""MemoryAgentBench (Hu et al., arXiv 2507.05257): long contexts with many questions, in four splits.

Reads the rows of ``ai-hyz/MemoryAgentBench`` (Parquet, JSON, JSON Lines, or the Hub with option ``split``: Accurate_Retrieval,
Test_Time_Learning, Long_Range_Understanding, Conflict_Resolution): ``{context, questions[], answers[], metadata{source,
question_types, question_ids, question_dates, keypoints, ...}}``, the last three as such or as JSON text.

A row is an instance. Its context is cut to chunks of at most 2048 tokens, as the published evaluation of Mem-alpha (arXiv
2509.25911) does. The metric follows from ``metadata.source`` by ``METRIC_OF_PREFIX``; the kind is the question's type where the row
says so, else the source without its size.

What always holds: questions + skipped = questions of the input. No question has evidence: the rows do not say. Reasons to skip:
``unknown source`` (option ``metric`` gives it one), ``other source``, ``empty answer``, ``no keywords``, ``malformed``.

Departures: of a summary (``infbench_sum``) the keywords are drawn by rule (``memalpha.data.keyphrases``); recommended films
(``recsys``) are scored by the share of gold films named, not by recall among the first five; contexts are cut at ends of sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memalpha.data.fields import EMPTY_ANSWER, answers, check_labels, items, listed, mapping, scalar_text, spelled, text
from memalpha.data.keyphrases import keyphrases
from memalpha.data.packing import split_text
from memalpha.data.reading import CommonOptions, check_at_least, load_rows, read_questions
from memalpha.data.rows import Row, check_text, iter_rows
from memalpha.data.source import LoadResult
from memalpha.data.wording import asked_on
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Instance, Question

METRIC_OF_PREFIX: Mapping[str, str] = {
    "ruler_qa": "substring",
    "longmemeval": "judge",
    "eventqa": "substring",
    "icl_": "boxed",
    "recsys": "keywords",
    "infbench_sum": "keywords",
    "detective": "exact_match",
    "factconsolidation": "substring",
}
"""Metric of a ``metadata.source`` by how it begins; its end says the size, such as ``eventqa_65536``."""

_SIZE = re.compile(r"_[0-9]+[A-Za-z]*.*$|\*$")


@dataclass(frozen=True, slots=True)
class MemoryAgentBenchOptions(CommonOptions):
    """What to read, and how it becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        source: Keep only rows whose ``metadata.source`` begins so ("" = all).
        metric: Metric of every question ("" = by the table).
        keywords: How many keywords are drawn from a summary.
        split: Split of the data set on the Hub.
    """

    chunk_tokens: int = 2048
    source: str = ""
    metric: str = ""
    keywords: int = 20
    split: str = "Accurate_Retrieval"

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens", "keywords")
        if self.metric:
            check_metric(self.metric, judged=True)


def load_memoryagentbench(source: str, options: MemoryAgentBenchOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load MemoryAgentBench row by row; raises InputError if the input cannot be read."""

    def instance(row: Row, result: LoadResult) -> Instance:
        return _instance(row, options, count_tokens, result)

    return load_rows(iter_rows(source, options.split), options, seed, _held, instance)


def _held(data: Any) -> int:
    try:
        return listed(spelled(data.get("questions"), "questions")) if isinstance(data, Mapping) else 0
    except SchemaError:
        return 0


def _instance(row: Row, options: MemoryAgentBenchOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = dict(mapping(row.data, row.where))
    data.update((key, spelled(data.get(key), f"{row.where} field {key!r}")) for key in ("questions", "answers", "metadata"))
    context, asked, given = text(data, "context", row.where), items(data, "questions", row.where), items(data, "answers", row.where)
    if len(asked) != len(given):
        raise SchemaError(f"{row.where} has {len(asked)} questions and {len(given)} answers", expected="as many of both")
    about = mapping(data.get("metadata"), f"{row.where} field 'metadata'")
    source = text(about, "source", f"{row.where} field 'metadata'")
    metric = options.metric or next((value for prefix, value in METRIC_OF_PREFIX.items() if source.startswith(prefix)), "")
    name = f"{source} {row.where}"
    if not metric or not source.startswith(options.source):
        result.skip("other source" if metric else "unknown source", len(asked))
        if not metric:
            result.problem(f"{row.where}: source {source!r} has no metric; give option 'metric'")
        return Instance(name, source, (Chunk(source),), ())
    kinds, ids, dates = (_column(about, key, len(asked)) for key in ("question_types", "question_ids", "question_dates"))
    default = _SIZE.sub("", source)

    def question(item: Any, where: str) -> Question | str:
        index, words, answer = item
        said = check_text(words, where)
        if not said:
            raise SchemaError(f"{where} is empty", expected="text")
        golds = _golds(answer, metric, source, about, options.keywords, where)
        if not golds:
            return EMPTY_ANSWER
        kind, own_id, date = (scalar_text(column[index] or "", where) for column in (kinds, ids, dates))
        dated = asked_on(date, said) if date else said
        return Question(dated, golds, metric, kind or default, id=own_id or str(index))

    questions = read_questions(list(zip(range(len(asked)), asked, given, strict=True)), row.where, result, question)
    spans = split_text(context, options.chunk_tokens, count)
    return Instance(name, source, tuple(Chunk(context[span.start : span.end]) for span in spans), tuple(questions))


def _column(about: Mapping[str, Any], key: str, length: int) -> list[Any]:
    """A column of ``metadata`` with an item a question, all None where the row has none."""
    value = about.get(key)
    return value if isinstance(value, list) and len(value) == length else [None] * length


def _golds(answer: Any, metric: str, source: str, about: Mapping[str, Any], keywords: int, where: str) -> tuple[str, ...]:
    golds = answers(answer, f"{where} answer")
    if metric == "boxed":
        check_labels(golds, where)
    if metric == "keywords" and golds and source.startswith("infbench_sum"):
        points = about.get("keypoints")
        told = [check_text(point, f"{where} keypoints") for point in points] if isinstance(points, list) and points else golds
        return keyphrases("\n".join(told), keywords)
    return golds
