"""Long texts with summaries: BookSum (Kryscinski et al., arXiv 2105.08209) and QMSum (Zhong et al., arXiv 2104.05938).

Reads BookSum's chapter rows (``{chapter, summary_text, bid, summary_id, ...}``: JSON Lines, CSV, Parquet, ``kmfoda/booksum``), and
QMSum's JSON Lines (``{meeting_transcripts[{speaker, content}], general_query_list[{query, answer}], specific_query_list[{query,
answer, relevant_text_span[[first, last]]}]}``).

Construction of BookSum as published for Mem-alpha (arXiv 2509.25911): a chapter is an instance in chunks of 2048 tokens, asked for
one summary, which is scored by the share of keywords that it contains. QMSum: a meeting is an instance, its turns packed to chunks,
its queries the questions (kinds ``general`` and ``specific``), scored by F1 of words, which is ROUGE-1 without stemming.

What always holds: chapters and meetings stream; the evidence of a specific query is the chunks with the turns of its text span;
other questions have none. Reasons to skip: ``empty answer``, ``too many chunks``, ``too few chunks``, ``no keywords`` and
``malformed``.

Departures: BookSum's keywords are drawn from the summary by rule (``memalpha.data.keyphrases``), not by a language model; chapters
of fewer than 5 chunks are kept unless option ``chunks`` says otherwise (published: 5-20).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memalpha.data.fields import EMPTY_ANSWER, answers, first_of, items, listed, mapping, missing, optional_text, text
from memalpha.data.keyphrases import keyphrases
from memalpha.data.packing import check_range, split_text
from memalpha.data.reading import CommonOptions, check_at_least, load_rows, read_questions
from memalpha.data.rows import Row, check_text, iter_rows
from memalpha.data.sessions import Session, Turn, dialogue_chunks
from memalpha.data.source import LoadResult
from memalpha.data.wording import SUMMARISE
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question


@dataclass(frozen=True, slots=True)
class SummaryOptions(CommonOptions):
    """How texts with summaries become instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        metric: ``keywords`` (share of the summary's keywords), ``f1`` (words in common) or ``judge``.
        keywords: How many keywords are drawn from a summary.
    """

    chunk_tokens: int = 2048
    metric: Literal["keywords", "f1", "judge"] = "f1"
    keywords: int = 20

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens", "keywords")


@dataclass(frozen=True, slots=True)
class BooksumOptions(SummaryOptions):
    """How BookSum becomes instances.

    Attributes:
        chunks: Fewest and most chunks of a chapter that is kept (published: 5 and 20).
    """

    metric: Literal["keywords", "f1", "judge"] = "keywords"
    chunks: tuple[int, int] = (1, 20)

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        SummaryOptions.__post_init__(self)
        check_range("option 'chunks'", self.chunks)


def load_booksum(source: str, options: BooksumOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load BookSum chapter by chapter; raises InputError if the input cannot be read."""

    def instance(row: Row, result: LoadResult) -> Instance:
        return _chapter(row, options, count_tokens, result)

    return load_rows(iter_rows(source, options.split), options, seed, lambda data: 1, instance)


def load_qmsum(source: str, options: SummaryOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load QMSum meeting by meeting; raises InputError if the input cannot be read."""

    def instance(row: Row, result: LoadResult) -> Instance:
        return _meeting(row, options, count_tokens, result)

    return load_rows(iter_rows(source, options.split), options, seed, _queries, instance)


def _summary_question(
    asked: str, summary: tuple[str, ...], kind: str, options: SummaryOptions, evidence: tuple[int, ...] | None = None
) -> Question | str:
    if not summary:
        return EMPTY_ANSWER
    golds = keyphrases("\n".join(summary), options.keywords) if options.metric == "keywords" else summary
    return Question(asked, golds, options.metric, kind, evidence=evidence) if golds else "no keywords"


# ------------------------------------------------------------------------------------------------ BookSum
def _chapter(row: Row, options: BooksumOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = mapping(row.data, row.where)
    chapter = check_text(first_of(data, ["chapter"], row.where), f"{row.where} field 'chapter'")
    if not chapter:
        raise SchemaError(f"{row.where} field 'chapter' is empty", expected="text")
    spans = split_text(chapter, options.chunk_tokens, count)
    named = [optional_text(data, key, row.where) for key in ("bid", "book_id", "summary_id")]

    def question(item: Any, where: str) -> Question | str:
        if not options.chunks[0] <= len(spans) <= options.chunks[1]:
            return "too few chunks" if len(spans) < options.chunks[0] else "too many chunks"
        given = data.get("summary_text")
        given = _written_summary(data.get("summary")) if missing(given) else given
        return _summary_question(SUMMARISE, answers(given, f"{row.where} field 'summary_text'"), "summary", options)

    questions = tuple(read_questions([data], row.where, result, question))
    name = "-".join(filter(None, ["booksum", *named])) if any(named) else f"booksum {row.where}"
    return Instance(name, "booksum", tuple(Chunk(chapter[span.start : span.end]) for span in spans), questions)


def _written_summary(value: Any) -> Any:
    """What column ``summary`` holds: on the Hub JSON text of ``{name, url, summary[], analysis}``; another text is as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    told = read.get("summary") if isinstance(read, Mapping) else value
    return "\n".join(told) if isinstance(told, list) and all(isinstance(item, str) for item in told) else told


# ------------------------------------------------------------------------------------------------ QMSum
def _queries(data: Any) -> int:
    return sum(listed(data.get(f"{kind}_query_list")) for kind in ("general", "specific")) if isinstance(data, Mapping) else 0


def _meeting(row: Row, options: SummaryOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = mapping(row.data, row.where)
    turns = list(_turns(data, row.where))
    if not turns:
        raise SchemaError(f"{row.where} field 'meeting_transcripts' holds no turn", expected="turns of {speaker, content}")
    dialogue, last = dialogue_chunks([Session(turns, "Meeting")], options.chunk_tokens, count), int(turns[-1].key)
    asked = [
        (kind, item)
        for kind in ("general", "specific")
        for item in (items(data, f"{kind}_query_list", row.where) if data.get(f"{kind}_query_list") is not None else [])
    ]

    def question(item: Any, where: str) -> Question | str:
        kind, query = item[0], mapping(item[1], where)
        words = text(query, "query", where)
        evidence = dialogue.evidence(_span_turns(query.get("relevant_text_span"), last, where))
        return _summary_question(words, answers(query.get("answer"), f"{where} field 'answer'"), kind, options, evidence)

    questions = tuple(read_questions(asked, row.where, result, question))
    name = optional_text(data, "meeting_id", row.where)
    return Instance(name or f"qmsum {row.where}", "qmsum", dialogue.chunks, questions)


def _turns(data: Mapping[str, Any], where: str) -> Iterator[Turn]:
    for index, item in enumerate(items(data, "meeting_transcripts", where)):
        turn = mapping(item, f"{where} turn {index}")
        if said := check_text(turn.get("content"), f"{where} turn {index} field 'content'"):
            yield Turn(optional_text(turn, "speaker", where), said, str(index))


def _span_turns(spans: Any, end: int, where: str) -> set[str]:
    """The keys of the turns in ``[[first, last], ...]``, up to turn ``end``; SchemaError if it is of another form."""
    if spans is None:
        return set()
    try:
        if not all(isinstance(pair, list) for pair in spans):  # a text of two digits would pass for a pair
            raise TypeError("an item is no list")
        pairs = {(max(int(first), 0), min(int(last), end)) for first, last in spans}
        return {str(turn) for first, last in pairs for turn in range(first, last + 1)}
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"{where} field 'relevant_text_span' is no list of pairs", expected="[[first turn, last turn], ...]"
        ) from error
