"""The published system's own columns (data set ``YuWangX/Memalpha`` on the Hub, of Mem-alpha, arXiv 2509.25911), read and written.

A row is ``instance_id, prompt, chunks, questions_and_answers, data_source, metadata, num_chunks, num_questions``; ``chunks`` is
a list of texts and ``questions_and_answers`` a list of ``{question, answer}``, both either as JSON text (as on the Hub) or as
lists. An answer is a text, a number, a list of those (all accepted; for ``keywords``: all wanted) or ``{"text": ...}``.

What always holds: rows stream; the metric follows from ``data_source`` by ``METRIC_OF`` and ``METRIC_OF_PREFIX``; questions +
skipped = questions of the input; rows without a question left are dropped (``notes``). Reasons to skip: ``unknown data_source``,
``other data_source`` (not the one asked for), ``empty answer``, ``malformed`` (what is not of this form, ``num_chunks`` or
``num_questions`` that do not agree with the lists, a label that is no integer).

It does not read ``prompt`` (one sentence of framing) nor ``metadata``. No question has evidence, since the columns do not say. The
dates of chunks stand in their texts, as published, not in ``Chunk.time``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memalpha.data.fields import answers, check_labels, mapping, spelled
from memalpha.data.reading import NO_QUESTIONS, free_id
from memalpha.data.rows import Row, check_text, iter_rows
from memalpha.data.source import LoadResult
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Instance, Question

COLUMNS = ("instance_id", "prompt", "chunks", "questions_and_answers", "data_source", "metadata", "num_chunks", "num_questions")
"""The published columns, in order."""

METRIC_OF: Mapping[str, str] = {
    "squad": "substring",
    "hotpotqa": "substring",
    "perltqa": "parts",
    "lme_train": "judge",
    "pubmed-rct": "boxed",
    "booksum": "keywords",
}
"""Metric of each ``data_source``, as the published evaluation scores it."""

METRIC_OF_PREFIX: Mapping[str, str] = {
    "icl_": "boxed",
    "longmemeval": "judge",
    "infbench_sum": "keywords",
    "ruler_qa": "substring",
}
"""Metric of the ``data_source`` names of MemoryAgentBench, whose ends say the size, such as ``icl_nlu_8296shot_balance``."""


@dataclass(frozen=True, slots=True)
class MemalphaOptions:
    """What to read.

    Attributes:
        split: Split of a data set on the Hub.
        data_source: Keep only rows of this ``data_source`` ("" = all).
        metric: Metric of every question, whatever its ``data_source`` ("" = by the table).
    """

    split: str = "train"
    data_source: str = ""
    metric: str = ""

    def __post_init__(self) -> None:
        """Check the metric's name; InputError if there is none of that name."""
        if self.metric:
            check_metric(self.metric, judged=True)


def metric_of(data_source: str) -> str | None:
    """Return the metric of a ``data_source``, or None if the tables do not know it."""
    prefixes = (metric for prefix, metric in METRIC_OF_PREFIX.items() if data_source.startswith(prefix))
    return METRIC_OF.get(data_source) or next(prefixes, None)


def load_memalpha(source: str, options: MemalphaOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load rows of the published columns from a Parquet, JSON or JSON Lines file, or from the Hub.

    Nothing is drawn or measured: ``seed`` and ``count_tokens`` have no effect.

    Raises:
        InputError: If there is no such input, at once; if it is damaged, when that is reached.
        SchemaError: If no row of the input has the columns, when it is used up.
    """
    result = LoadResult()
    result.instances = _instances(iter_rows(source, options.split), source, options, result)
    return result


def _instances(rows: Iterator[Row], source: str, options: MemalphaOptions, result: LoadResult) -> Iterator[Instance]:
    ids, read = dict[str, int](), 0
    for number, row in enumerate(rows):
        try:
            fields = _Fields(row, number)
        except SchemaError as error:
            held = _stated_questions(row.data)
            result.saw(max(held, 1))
            result.malformed(str(error), held)
            continue
        read += 1
        result.saw(len(fields.asked))
        metric = options.metric or metric_of(fields.data_source)
        if options.data_source not in ("", fields.data_source):
            result.skip("other data_source", len(fields.asked))
        elif metric is None:
            result.skip("unknown data_source", len(fields.asked))
            result.problem(f"{row.where}: data_source {fields.data_source!r} has no metric; give option 'metric'")
        else:
            questions = tuple(_questions(fields, metric, result))
            if not questions:
                result.notes[NO_QUESTIONS] += 1
                continue
            name = free_id(fields.id, ids)
            result.notes["repeated instance_id numbered"] += name != fields.id
            yield Instance(name, fields.data_source, fields.chunks, questions)
    if not read:
        problem = result.problems[0] if result.problems else f"{source} has no rows"
        raise SchemaError(f"no row of {source} has the published columns: {problem}", expected=f"columns {', '.join(COLUMNS)}")


# ------------------------------------------------------------------------------------------------ one row
class _Fields:
    """The columns of one row, checked; SchemaError names the place and the column."""

    def __init__(self, row: Row, number: int) -> None:
        data = mapping(row.data, row.where)
        self.where = row.where
        self.data_source = check_text(data.get("data_source"), f"{row.where} column 'data_source'")
        given = data.get("instance_id")
        self.id = ("" if given is None else check_text(str(given), f"{row.where} column 'instance_id'")) or f"row-{number}"
        texts = _list(row, "chunks", "num_chunks")
        cleaned = [check_text(text, f"{row.where} chunk {i}") for i, text in enumerate(texts)]
        self.chunks = tuple(Chunk(text) for text in cleaned)
        if not self.chunks or not all(cleaned) or not self.data_source:
            raise SchemaError(f"{row.where} has no data_source, no chunk or a blank one", expected="texts that are not empty")
        self.asked = _list(row, "questions_and_answers", "num_questions")


def _list(row: Row, column: str, counted: str) -> list[Any]:
    """Return a column that is a list or JSON text of one, as long as column ``counted`` says where that is given."""
    value, stated = spelled(row.data.get(column), f"{row.where} column {column!r}"), row.data.get(counted)
    if not isinstance(value, list):
        raise SchemaError(f"{row.where} column {column!r} is {type(value).__name__}", expected="a list, or JSON text of one")
    if stated is not None and stated != len(value):
        raise SchemaError(f"{row.where} column {column!r} has {len(value)} items", expected=f"{stated}, as {counted!r} says")
    return value


def _stated_questions(data: Any) -> int:
    """How many questions a row that cannot be read says or shows to hold; 0 if it does not say."""
    if not isinstance(data, Mapping):
        return 0
    value, stated = data.get("questions_and_answers"), data.get("num_questions")
    try:
        value = spelled(value, "questions_and_answers")
    except SchemaError:
        value = None
    if isinstance(value, list):
        return len(value)
    return stated if isinstance(stated, int) else 0


def _questions(fields: _Fields, metric: str, result: LoadResult) -> Iterator[Question]:
    for index, item in enumerate(fields.asked):
        where = f"{fields.where} question {index}"
        try:
            if not isinstance(item, Mapping):
                raise SchemaError(f"{where} is {type(item).__name__}", expected="{question, answer}")
            text = check_text(item.get("question"), f"{where} field 'question'")
            if not text:
                raise SchemaError(f"{where} field 'question' is empty", expected="text")
            golds = _answers(item.get("answer"), metric, where)
        except SchemaError as error:
            result.malformed(str(error))
            continue
        if golds:
            yield Question(text, golds, metric=metric, id=str(index))
        else:
            result.skip("empty answer")


def _answers(given: Any, metric: str, where: str) -> tuple[str, ...]:
    """Return the distinct answers that are not blank."""
    if isinstance(given, Mapping):
        given = given.get("text")
    if metric == "keywords" and isinstance(given, str):
        given = given.split(", ")
    found = answers(given, f"{where} field 'answer'")
    if metric == "boxed":
        check_labels(found, where)
    return found


# ------------------------------------------------------------------------------------------------ the other way
def to_memalpha_rows(instances: Iterable[Instance]) -> Iterator[dict[str, Any]]:
    """Yield instances as rows of the published columns, lists as JSON text, for the published system to read.

    A chunk's time goes before its text in brackets. What the columns cannot hold is kept in ``metadata`` for people only: metric,
    kind and evidence of each question. Subjects, stale values and facts are left out.
    """
    for instance in instances:
        questions = [{"question": q.text, "answer": _written(q)} for q in instance.questions]
        chunks = [f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text for chunk in instance.chunks]
        about = [
            {"metric": q.metric, "kind": q.kind, "evidence": None if q.evidence is None else list(q.evidence)}
            for q in instance.questions
        ]
        yield {
            "instance_id": instance.id,
            "prompt": "",
            "chunks": json.dumps(chunks, ensure_ascii=False),
            "questions_and_answers": json.dumps(questions, ensure_ascii=False),
            "data_source": instance.source,
            "metadata": json.dumps({"questions": about}, ensure_ascii=False),
            "num_chunks": len(instance.chunks),
            "num_questions": len(instance.questions),
        }


def _written(question: Question) -> str | list[str]:
    """One answer as text; several as a list, and keywords too, since a text of theirs is cut at ", " when it is read."""
    one = len(question.answers) == 1 and question.metric != "keywords"
    return question.answers[0] if one else list(question.answers)
