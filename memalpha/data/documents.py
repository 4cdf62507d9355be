r"""Texts with questions or summaries; docs/data.md has forms and departures.

**BookSum** (arXiv 2105.08209): a chapter with one summary question. **QMSum** (arXiv 2104.05938): a
meeting with its queries.
**MemoryAgentBench** (arXiv 2507.05257), **Mem-alpha's data** (arXiv 2509.25911): rows as on the
Hub, whose lists may be JSON text; the metric is that of the row's source. **bAbI** (arXiv
1502.05698): each question is an instance with the sentences before it.

Scores. MemoryAgentBench: the metric of its README and ``utils/eval_other_utils.py``, applied to the
whole answer (there also to its first line); summaries by keywords (there by a chat model); labels
also in ``\\boxed{}``. Mem-alpha's data, BookSum: its
``evaluate_agent_results.py``; of several accepted answers each counts, there the first; no rubric
for all that is judged. QMSum: F1 (there ROUGE). bAbI: exact match; of several parts the share,
where its authors count all or none.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from memalpha.data.packing import Session, Turn, chunk_texts, dialogue_chunks
from memalpha.data.rows import (
    EMPTY_ANSWER,
    Answers,
    Cleaned,
    OrEmpty,
    Row,
    Rows,
    Scalar,
    Spelled,
    Text,
    checked,
    data_files,
    text_lines,
)
from memalpha.data.source import (
    Bounds,
    CommonOptions,
    LoadResult,
    Metric,
    Source,
    TextOptions,
    by_row,
    read_questions,
    read_rows,
)
from memalpha.data.wording import SUMMARISE, asked_on, keyphrases
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.titles import read_titles
from memalpha.types import Chunk, Instance, Question
from memalpha.units import cut


@dataclass(frozen=True, slots=True)
class SummaryOptions(TextOptions):
    """How texts with summaries become instances."""

    metric: Literal["keywords", "f1", "judge"] = (
        "f1"  # keywords (share of the summary's keywords), f1 (common words) or judge
    )


@dataclass(frozen=True, slots=True)
class BooksumOptions(SummaryOptions):
    """How BookSum becomes instances."""

    metric: Literal["keywords", "f1", "judge"] = "keywords"
    chunks: Bounds = (
        1,
        20,
    )  # minimum and maximum chunks of a chapter that is kept (published: 5 and 20)


def _summary_question(
    asked: str,
    summary: tuple[str, ...],
    kind: str,
    options: SummaryOptions,
    evidence: tuple[int, ...] | None = None,
) -> Question | str:
    if not summary:
        return EMPTY_ANSWER
    golds = keyphrases("\n".join(summary)) if options.metric == "keywords" else summary
    return (
        Question(asked, golds, options.metric, kind, evidence=evidence) if golds else "no keywords"
    )


# ------------------------------------------------------------------------------------------------
# BookSum
class _Chapter(BaseModel):
    chapter: Text
    summary_text: Answers
    bid: Scalar = ""
    book_id: Scalar = ""
    summary_id: Scalar = ""


def _booksum(
    data: _Chapter, place: str, options: BooksumOptions, count: TokenCounter, result: LoadResult
) -> Instance:
    pieces = cut(data.chapter, options.chunk_tokens, count)
    if options.chunks[0] <= len(pieces) <= options.chunks[1]:
        asked = _summary_question(SUMMARISE, data.summary_text, "summary", options)
    else:
        asked = "too few chunks" if len(pieces) < options.chunks[0] else "too many chunks"
    questions = read_questions([asked], place, result)
    named = [name for name in (data.bid, data.book_id, data.summary_id) if name]
    name = "-".join(["booksum", *named]) if named else f"booksum {place}"
    return Instance(name, "booksum", tuple(map(Chunk, pieces)), questions)


# ------------------------------------------------------------------------------------------------
# QMSum
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


def _qmsum(
    data: _Meeting, place: str, options: SummaryOptions, count: TokenCounter, result: LoadResult
) -> Instance:
    turns = [
        Turn(said.speaker, said.content, str(i))
        for i, said in enumerate(data.meeting_transcripts)
        if said.content
    ]
    dialogue = dialogue_chunks([Session(turns, "Meeting")], options.chunk_tokens, count)
    asked = [("general", item) for item in data.general_query_list] + [
        ("specific", item) for item in data.specific_query_list
    ]

    def question(item: Any, where: str) -> Question | str:
        kind, query = item[0], checked(_Query, item[1], where)
        spans = (
            range(max(first, 0), min(last + 1, len(data.meeting_transcripts)))
            for first, last in query.relevant_text_span
        )
        evidence = dialogue.evidence(str(turn) for span in spans for turn in span)
        return _summary_question(query.query, query.answer, kind, options, evidence)

    questions = read_questions(asked, place, result, question)
    return Instance(data.meeting_id or f"qmsum {place}", "qmsum", dialogue.chunks, questions)


# ------------------------------------------------------------------------------------------------
# MemoryAgentBench
METRIC_OF_PREFIX: Mapping[str, str] = {
    "ruler_qa": "substring",
    "longmemeval": "judge",
    "eventqa": "substring",
    "icl_": "boxed",
    "recsys": "recall_at_5",
    "infbench_sum": "keywords",
    "detective": "exact_match",
    "factconsolidation": "substring",
    "squad": "substring",
    "hotpotqa": "substring",
    "perltqa": "parts",
    "lme_train": "judge",
    "pubmed-rct": "boxed",
    "booksum": "keywords",
    "ttl_train": "boxed",
}
"""Metric by the beginning of a row's source: MemoryAgentBench's, which end with a size (``eventqa_65536``), and Mem-alpha's."""

_RECOMMENDS = "recsys"  # how the sources begin whose answers are numbers of a table of titles
_SIZE = re.compile(r"_[0-9]+[A-Za-z]*.*$|\*$")


@dataclass(frozen=True, slots=True)
class MemoryAgentBenchOptions(TextOptions):
    """How MemoryAgentBench becomes instances."""

    split: str = "Accurate_Retrieval"  # split of the data set on the Hub
    entities: str = (
        ""  # the set's entity2id.json, without which its recommendations (recsys) cannot be scored
    )


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
    data: _Context,
    place: str,
    options: MemoryAgentBenchOptions,
    count: TokenCounter,
    result: LoadResult,
) -> Instance:
    about, source, number = data.metadata, data.metadata.source, len(data.questions)
    if number != len(data.answers):
        raise SchemaError(
            f"{place} has {number} questions and {len(data.answers)} answers",
            expected="as many of both",
        )
    metric = options.metric or metric_of(source)
    if not metric or (source.startswith(_RECOMMENDS) and not options.entities):
        return _unscored(source, number, result)
    titles = read_titles(options.entities) if source.startswith(_RECOMMENDS) else None
    columns = [
        about.column(key, number) for key in ("question_types", "question_ids", "question_dates")
    ]

    def question(item: Any, where: str) -> Question | str:
        asked = checked(_Asked, dict(zip(_Asked.model_fields, item, strict=True)), where)
        golds = asked.answers
        _check_labels(golds, metric, where)
        if metric == "keywords" and golds and source.startswith("infbench_sum"):
            golds = keyphrases("\n".join(about.keypoints or golds))
        if not golds:
            return EMPTY_ANSWER
        text, kind = asked_on(asked.date, asked.question), asked.kind or _SIZE.sub("", source)
        if titles is None:
            return Question(text, golds, metric, kind, id=asked.id)
        if not titles.keys() >= set(golds):
            return "answer that is not in entities"
        golds = tuple(titles[number] for number in golds)
        return Question(text, golds, metric, kind, subject=options.entities, id=asked.id)

    questions = read_questions(
        zip(data.questions, data.answers, *columns, strict=True), place, result, question
    )
    return Instance(
        f"{source} {place}",
        source,
        tuple(map(Chunk, cut(data.context, options.chunk_tokens, count))),
        questions,
    )


def metric_of(source: str) -> str:
    """Return the metric of a row's source, "" if it is unknown."""
    return next(
        (metric for prefix, metric in METRIC_OF_PREFIX.items() if source.startswith(prefix)), ""
    )


def _check_labels(golds: tuple[str, ...], metric: str, where: str) -> None:
    if metric == "boxed" and (
        wrong := [gold for gold in golds if not re.fullmatch(r"[+-]?[0-9]{1,18}", gold)]
    ):
        raise SchemaError(
            f"{where} has label {wrong[0]!r:.40}", expected="an integer, for metric 'boxed'"
        )


def _unscored(source: str, questions: int, result: LoadResult) -> Instance:
    recommends = source.startswith(_RECOMMENDS)
    read_questions(
        ["recommendations without entities" if recommends else "unknown source"] * questions,
        source,
        result,
    )
    option = "'entities' with the set's entity2id.json" if recommends else "'metric'"
    result.notes[f"source {source!r} cannot be scored; give option {option}"] += 1
    return Instance(source, source, (Chunk(source),), ())


# ------------------------------------------------------------------------------------------------
# Mem-alpha's data
@dataclass(frozen=True, slots=True)
class MemalphaOptions(CommonOptions):
    """How Mem-alpha's data are scored."""

    metric: Metric = ""  # metric of every question ("" = by data_source)


class _MemalphaRow(BaseModel):
    instance_id: Scalar = ""
    data_source: Text
    chunks: Annotated[list[Text], Spelled, Field(min_length=1)]
    questions_and_answers: Annotated[list[Any], Spelled]


class _MemalphaQuestion(BaseModel):
    question: Text
    answer: Annotated[
        Answers,
        BeforeValidator(lambda value: value.get("text") if isinstance(value, Mapping) else value),
    ] = ()


def _memalpha(
    data: _MemalphaRow,
    place: str,
    options: MemalphaOptions,
    count: TokenCounter,
    result: LoadResult,
) -> Instance:
    given, chunks, source = (
        data.questions_and_answers,
        tuple(map(Chunk, data.chunks)),
        data.data_source,
    )
    metric = options.metric or metric_of(source)
    if not metric or source.startswith(_RECOMMENDS):
        return _unscored(source, len(given), result)

    def question(item: Any, where: str) -> Question | str:
        asked = checked(_MemalphaQuestion, item, where)
        golds = asked.answer
        if metric == "keywords" and golds and isinstance(item["answer"], str):
            golds = tuple(dict.fromkeys(filter(None, map(str.strip, golds[0].split(", ")))))
        _check_labels(golds, metric, where)
        return Question(asked.question, golds, metric) if golds else EMPTY_ANSWER

    return Instance(
        data.instance_id or f"memalpha {place}",
        source,
        chunks,
        read_questions(given, place, result, question),
    )


# ------------------------------------------------------------------------------------------------
# bAbI
_LINE = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_SPLIT = re.compile(r"_(train|test|valid)(?=[_.]|$)")


@dataclass(frozen=True, slots=True)
class BabiOptions(TextOptions):
    """How bAbI becomes instances; metric "" is exact_match, or keywords for answers with several
    parts.
    """

    chunk_tokens: PositiveInt = 64  # maximum tokens of a chunk


_Number = Annotated[int, Field(ge=0, lt=10**9)]


class _Line(BaseModel):
    number: _Number
    text: Text
    answer: Scalar | None = None
    support: list[_Number] = []


def load_babi(
    source: str, options: BabiOptions, seed: int, count: TokenCounter, result: LoadResult
) -> Iterator[Instance]:
    """Load bAbI story by story; InputError if the input cannot be read."""
    files = data_files(source, "qa*.txt")
    splits = {path: match[1] if (match := _SPLIT.search(path.name)) else "" for path in files}
    if len({*splits.values()} - {""}) > 1:
        if options.split not in splits.values():
            raise InputError(
                f"{source} has no file of split {options.split!r}",
                expected=f"one of {sorted({*splits.values()})}",
            )
        files = [path for path in files if splits[path] in ("", options.split)]
        result.notes["files of other splits not read"] += len(splits) - len(files)
    stories = (story for path in files for story in _stories(path))
    return chain.from_iterable(
        read_rows(stories, result, lambda row: _story(row, options, count, result))
    )


def _stories(path: Path) -> Iterator[Row]:
    name = Path(path.name.removesuffix(".gz")).stem
    stories, last = list[list[Row]](), 0
    for line in (line for line in text_lines(str(path)) if line.data.strip()):
        number = int(match[1]) if (match := _LINE.fullmatch(line.data)) else last + 1
        if number <= last or not stories:
            stories.append([])
        stories[-1].append(line)
        last = number
    for number, story in enumerate(stories):
        yield Row(story[0].where, (name.partition("_")[0], f"{name}-{number}", story))


def _story(
    row: Row, options: BabiOptions, count: TokenCounter, result: LoadResult
) -> list[Instance]:
    task, name, rows = row.data
    lines = [_line(each, number) for number, each in enumerate(rows, start=1)]
    if lines[0].answer is not None:
        raise SchemaError(f"{row.where} asks before anything is said", expected="a sentence first")
    instances = []
    for index, asked in (
        (index, line) for index, line in enumerate(lines) if line.answer is not None
    ):
        said = ((line.number, line.text) for line in lines[:index] if line.answer is None)
        bounds = (options.chunk_tokens, options.chunk_tokens)
        made = chunk_texts(
            said, bounds, count, random.Random(0), "\n"
        )  # the generator has no effect: both bounds are equal
        answer = asked.answer or ""
        parts = tuple(dict.fromkeys(part.strip() for part in answer.split(",") if part.strip()))
        metric = options.metric or ("keywords" if len(parts) > 1 else "exact_match")
        answers, evidence = (
            parts if metric == "keywords" else (answer,),
            made.evidence(asked.support),
        )
        question = Question(
            asked.text, answers, metric, task, evidence=evidence, id=str(asked.number)
        )
        questions = read_questions([question if parts else EMPTY_ANSWER], row.where, result)
        instances.append(Instance(f"{name}-{asked.number}", "babi", made.chunks, questions))
    return instances


def _line(row: Row, number: int) -> _Line:
    match = _LINE.fullmatch(row.data)
    if match is None or int(match[1]) != number:
        raise SchemaError(
            f"{row.where} is not line {number} of its story",
            expected="'1 Mary went.' or '2 Who?<tab>Mary<tab>1'",
        )
    text, answer, support = (*match[2].split("\t"), "", "")[:3]
    asks = (
        {"answer": answer, "support": support.split()}
        if "\t" in row.data or row.data.rstrip().endswith("?")
        else {}
    )
    return checked(_Line, {"number": match[1], "text": text, **asks}, row.where)


SOURCES = (
    Source(
        "babi",
        "bAbI tasks: numbered stories, one file or a folder of qa*.txt",
        load_babi,
        BabiOptions,
    ),
    Source(
        "booksum",
        "BookSum chapters with summaries: JSON Lines, CSV, Parquet",
        by_row(_Chapter, _booksum),
        BooksumOptions,
    ),
    Source(
        "qmsum",
        "QMSum meetings with queries, original JSON Lines",
        by_row(_Meeting, _qmsum),
        SummaryOptions,
    ),
    Source(
        "memoryagentbench",
        "MemoryAgentBench: Parquet, JSON, JSON Lines",
        by_row(_Context, _memoryagentbench),
        MemoryAgentBenchOptions,
    ),
    Source(
        "memalpha",
        "YuWangX/Memalpha's columns: Parquet, JSON, JSON Lines",
        by_row(_MemalphaRow, _memalpha),
        MemalphaOptions,
    ),
)
