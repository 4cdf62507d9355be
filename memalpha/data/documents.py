"""Long texts with questions or summaries; docs/data.md has forms and departures.

**BookSum** (Kryscinski et al., arXiv 2105.08209): a chapter with one summary question, scored by the share of keywords.
**QMSum** (Zhong et al., arXiv 2104.05938): a meeting with its queries, scored by word F1 (ROUGE-1 without stemming).
**MemoryAgentBench** (Hu et al., arXiv 2507.05257) and **Mem-alpha's data** (arXiv 2509.25911): rows as on the Hub, whose lists may
be JSON text; the metric is that of the row's source, as published, but films (``recsys``) are scored by the share of gold films.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from memalpha.data.packing import Session, Turn, cut, dialogue_chunks
from memalpha.data.rows import EMPTY_ANSWER, Answers, Cleaned, OrEmpty, Rows, Scalar, Spelled, Text, checked
from memalpha.data.source import Bounds, CommonOptions, LoadResult, Metric, Source, TextOptions, by_row, read_questions
from memalpha.data.wording import SUMMARISE, asked_on, keyphrases
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question


@dataclass(frozen=True, slots=True)
class SummaryOptions(TextOptions):
    """How texts with summaries become instances."""

    metric: Literal["keywords", "f1", "judge"] = "f1"  # keywords (share of the summary's keywords), f1 (common words) or judge


@dataclass(frozen=True, slots=True)
class BooksumOptions(SummaryOptions):
    """How BookSum becomes instances."""

    metric: Literal["keywords", "f1", "judge"] = "keywords"
    chunks: Bounds = (1, 20)  # minimum and maximum chunks of a chapter that is kept (published: 5 and 20)


def _summary_question(
    asked: str, summary: tuple[str, ...], kind: str, options: SummaryOptions, evidence: tuple[int, ...] | None = None
) -> Question | str:
    if not summary:
        return EMPTY_ANSWER
    golds = keyphrases("\n".join(summary)) if options.metric == "keywords" else summary
    return Question(asked, golds, options.metric, kind, evidence=evidence) if golds else "no keywords"


# ------------------------------------------------------------------------------------------------ BookSum
class _Chapter(BaseModel):
    chapter: Text
    summary_text: Answers
    bid: Scalar = ""
    book_id: Scalar = ""
    summary_id: Scalar = ""


def _booksum(data: _Chapter, place: str, options: BooksumOptions, count: TokenCounter, result: LoadResult) -> Instance:
    pieces = cut(data.chapter, options.chunk_tokens, count)
    if options.chunks[0] <= len(pieces) <= options.chunks[1]:
        asked = _summary_question(SUMMARISE, data.summary_text, "summary", options)
    else:
        asked = "too few chunks" if len(pieces) < options.chunks[0] else "too many chunks"
    questions = read_questions([asked], place, result)
    named = [name for name in (data.bid, data.book_id, data.summary_id) if name]
    name = "-".join(["booksum", *named]) if named else f"booksum {place}"
    return Instance(name, "booksum", tuple(map(Chunk, pieces)), questions)


# ------------------------------------------------------------------------------------------------ QMSum
class _Speech(BaseModel):
    speaker: Scalar = ""
    content: Cleaned


class _Meeting(BaseModel):
    meeting_id: Scalar = ""
    meeting_transcripts: list[_Speech]
    general_query_list: Rows = []
    specific_query_list: Rows = []


class _Query(BaseModel):
    query: Text
    answer: Answers = ()
    relevant_text_span: Annotated[list[tuple[int, int]], OrEmpty] = []


def _qmsum(data: _Meeting, place: str, options: SummaryOptions, count: TokenCounter, result: LoadResult) -> Instance:
    turns = [Turn(said.speaker, said.content, str(i)) for i, said in enumerate(data.meeting_transcripts) if said.content]
    dialogue = dialogue_chunks([Session(turns, "Meeting")], options.chunk_tokens, count)
    asked = [("general", item) for item in data.general_query_list] + [("specific", item) for item in data.specific_query_list]

    def question(item: Any, where: str) -> Question | str:
        kind, query = item[0], checked(_Query, item[1], where)
        spans = (range(max(first, 0), min(last + 1, len(data.meeting_transcripts))) for first, last in query.relevant_text_span)
        evidence = dialogue.evidence(str(turn) for span in spans for turn in span)
        return _summary_question(query.query, query.answer, kind, options, evidence)

    questions = read_questions(asked, place, result, question)
    return Instance(data.meeting_id or f"qmsum {place}", "qmsum", dialogue.chunks, questions)


# ------------------------------------------------------------------------------------------------ MemoryAgentBench
METRIC_OF_PREFIX: Mapping[str, str] = {
    "ruler_qa": "substring", "longmemeval": "judge", "eventqa": "substring", "icl_": "boxed", "recsys": "keywords",
    "infbench_sum": "keywords", "detective": "exact_match", "factconsolidation": "substring",
    "squad": "substring", "hotpotqa": "substring", "perltqa": "parts", "lme_train": "judge", "pubmed-rct": "boxed",
    "booksum": "keywords",
}  # fmt: skip
"""Metric by the beginning of a row's source: MemoryAgentBench's, which end with a size (``eventqa_65536``), and Mem-alpha's."""

_SIZE = re.compile(r"_[0-9]+[A-Za-z]*.*$|\*$")


@dataclass(frozen=True, slots=True)
class MemoryAgentBenchOptions(TextOptions):
    """How MemoryAgentBench becomes instances."""

    split: str = "Accurate_Retrieval"  # split of the data set on the Hub


class _About(BaseModel):
    source: Text
    question_types: Any = None
    question_ids: Any = None
    question_dates: Any = None
    keypoints: Annotated[list[Cleaned], OrEmpty] = []

    def column(self, key: str, length: int) -> list[Any]:
        value = getattr(self, key)
        return value if isinstance(value, list) and len(value) == length else [None] * length


class _Context(BaseModel):
    context: Text
    questions: Annotated[list[Any], Spelled]
    answers: Annotated[list[Any], Spelled]
    metadata: Annotated[_About, Spelled]


class _Asked(BaseModel):
    question: Text
    answers: Answers
    kind: Scalar
    id: Scalar
    date: Scalar


def _memoryagentbench(
    data: _Context, place: str, options: MemoryAgentBenchOptions, count: TokenCounter, result: LoadResult
) -> Instance:
    about, source, number = data.metadata, data.metadata.source, len(data.questions)
    if number != len(data.answers):
        raise SchemaError(f"{place} has {number} questions and {len(data.answers)} answers", expected="as many of both")
    if not (metric := options.metric or metric_of(source)):
        return _unknown(source, number, result)
    columns = [about.column(key, number) for key in ("question_types", "question_ids", "question_dates")]

    def question(item: Any, where: str) -> Question | str:
        asked = checked(_Asked, dict(zip(_Asked.model_fields, item, strict=True)), where)
        golds = asked.answers
        _check_labels(golds, metric, where)
        if metric == "keywords" and golds and source.startswith("infbench_sum"):
            golds = keyphrases("\n".join(about.keypoints or golds))
        if not golds:
            return EMPTY_ANSWER
        return Question(asked_on(asked.date, asked.question), golds, metric, asked.kind or _SIZE.sub("", source), id=asked.id)

    questions = read_questions(zip(data.questions, data.answers, *columns, strict=True), place, result, question)
    return Instance(f"{source} {place}", source, tuple(map(Chunk, cut(data.context, options.chunk_tokens, count))), questions)


def metric_of(source: str) -> str:
    """Return the metric of a row's source, "" if it is unknown."""
    return next((metric for prefix, metric in METRIC_OF_PREFIX.items() if source.startswith(prefix)), "")


def _check_labels(golds: tuple[str, ...], metric: str, where: str) -> None:
    if metric == "boxed" and (wrong := [gold for gold in golds if not re.fullmatch(r"[+-]?[0-9]{1,18}", gold)]):
        raise SchemaError(f"{where} has label {wrong[0]!r:.40}", expected="an integer, for metric 'boxed'")


def _unknown(source: str, questions: int, result: LoadResult) -> Instance:
    result.asked += questions
    result.skipped["unknown source"] += questions
    result.notes[f"source {source!r} has no metric; give option 'metric'"] += 1
    return Instance(source, source, (Chunk(source),), ())


# ------------------------------------------------------------------------------------------------ Mem-alpha's data
@dataclass(frozen=True, slots=True)
class MemalphaOptions(CommonOptions):
    """How Mem-alpha's data are scored."""

    metric: Metric = ""  # metric of every question ("" = by data_source)


class _MemalphaRow(BaseModel):
    instance_id: Scalar = ""
    data_source: Text
    chunks: Annotated[list[Text], Spelled, Field(min_length=1)]
    questions_and_answers: Annotated[list[Any], Spelled]


def _answer(value: Any) -> Any:
    return value.get("text") if isinstance(value, Mapping) else value


class _MemalphaQuestion(BaseModel):
    question: Text
    answer: Annotated[Answers, BeforeValidator(_answer)] = ()


def _memalpha(data: _MemalphaRow, place: str, options: MemalphaOptions, count: TokenCounter, result: LoadResult) -> Instance:
    given, chunks, source = data.questions_and_answers, tuple(map(Chunk, data.chunks)), data.data_source
    if not (metric := options.metric or metric_of(source)):
        return _unknown(source, len(given), result)

    def question(item: Any, where: str) -> Question | str:
        asked = checked(_MemalphaQuestion, item, where)
        golds = asked.answer
        if metric == "keywords" and golds and isinstance(item["answer"], str):
            golds = tuple(dict.fromkeys(filter(None, map(str.strip, golds[0].split(", ")))))
        _check_labels(golds, metric, where)
        return Question(asked.question, golds, metric) if golds else EMPTY_ANSWER

    return Instance(data.instance_id or f"memalpha {place}", source, chunks, read_questions(given, place, result, question))


_MEMORYAGENTBENCH = by_row(_Context, _memoryagentbench)

SOURCES = (
    Source("booksum", "BookSum chapters with summaries: JSON Lines, CSV, Parquet", by_row(_Chapter, _booksum), BooksumOptions),
    Source("qmsum", "QMSum meetings with queries, original JSON Lines", by_row(_Meeting, _qmsum), SummaryOptions),
    Source("memoryagentbench", "MemoryAgentBench: Parquet, JSON, JSON Lines", _MEMORYAGENTBENCH, MemoryAgentBenchOptions),
    Source("memalpha", "YuWangX/Memalpha's columns: Parquet, JSON, JSON Lines", by_row(_MemalphaRow, _memalpha), MemalphaOptions),
)
