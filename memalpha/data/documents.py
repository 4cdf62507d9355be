r"""Texts with questions or summaries: BookSum, QMSum, MemoryAgentBench, Mem-alpha's own data, bAbI.

A chapter has one question, a meeting its queries; rows of MemoryAgentBench and Mem-alpha are as on
the Hub, whose lists may be JSON text, and the source that a row names says how it is scored. Each
question of bAbI is an instance with the sentences before it. docs/data.md has the forms, the
departures, and whose scores these are.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import PositiveInt

from memalpha.data.packing import Session, Turn, chunk_texts, dialogue_chunks
from memalpha.data.rows import Row, data_files, text_lines
from memalpha.data.source import (
    EMPTY_ANSWER,
    SUMMARISE,
    Bounds,
    CommonOptions,
    Draft,
    Metric,
    Remark,
    Skipped,
    Source,
    TextOptions,
    asked_on,
    by_row,
    read_each,
)
from memalpha.errors import InputError
from memalpha.protocols import TokenCounter
from memalpha.qa.titles import read_titles
from memalpha.types import Chunk, Question
from memalpha.units import cut

_NAME = re.compile(
    r"(?<![.!?\"“]\s)(?<!^)\b[A-Z][\w'’-]+(?:\s+(?:(?:of|the|de|von|van)\s+)?[A-Z][\w'’-]+)*",
    re.MULTILINE,
)
_LONG_WORD = re.compile(r"\b[a-z]{7,}\b")
_GENITIVE = re.compile(r"['’]s?$")
_SIZE = re.compile(r"_[0-9]+[A-Za-z]*.*$|\*$")
_LINE = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_SPLIT = re.compile(r"_(train|test|valid)(?=[_.]|$)")
_RECOMMENDS = "recsys"  # how the sources begin whose answers are numbers of a table of titles
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
"""Metric by the beginning of a row's source: MemoryAgentBench's, which end with a size
(``eventqa_65536``), and Mem-alpha's."""


# ------------------------------------------------------------------------------------------------
# summaries
@dataclass(frozen=True, slots=True)
class SummaryOptions(TextOptions):
    """How texts with summaries become instances."""

    # keywords (share of the summary's keywords), f1 (common words) or judge
    metric: Literal["keywords", "f1", "judge"] = "f1"


@dataclass(frozen=True, slots=True)
class BooksumOptions(SummaryOptions):
    """How BookSum becomes instances."""

    metric: Literal["keywords", "f1", "judge"] = "keywords"
    # minimum and maximum chunks of a chapter that is kept (published: 5 and 20)
    chunks: Bounds = (1, 20)


def keyphrases(summary: str, limit: int = 20) -> tuple[str, ...]:
    """Return at most ``limit`` keywords, by frequency: runs of capitalised words, then words of at
    least 7 lower-case letters.
    """
    flat = " ".join(summary.split())
    names = Counter(_GENITIVE.sub("", name) for name in _NAME.findall(flat))
    words = Counter(_LONG_WORD.findall(flat))
    return tuple(phrase for phrase, _ in (names.most_common() + words.most_common())[:limit])


def _summary_question(
    text: str,
    summary: tuple[str, ...],
    kind: str,
    metric: str,
    evidence: tuple[int, ...] | None = None,
) -> Question | Skipped:
    golds = keyphrases("\n".join(summary)) if metric == "keywords" else summary
    if not golds:
        return Skipped("no keywords" if summary else EMPTY_ANSWER)
    return Question(text, golds, metric, kind, evidence=evidence)


def _booksum(row: Row, options: BooksumOptions, count: TokenCounter) -> Draft:
    pieces = cut(row["chapter"].text(), options.chunk_tokens, count)
    summary = row["summary_text"].answers()
    asked = _summary_question(SUMMARISE, summary, "summary", options.metric)
    if not options.chunks[0] <= len(pieces) <= options.chunks[1]:
        many = len(pieces) > options.chunks[1]
        asked = Skipped("too many chunks" if many else "too few chunks")
    named = filter(None, (row[key].scalar() for key in ("bid", "book_id", "summary_id")))
    name = "-".join(["booksum", *named])
    name = f"booksum {row.where}" if name == "booksum" else name
    return Draft(name, "booksum", tuple(map(Chunk, pieces)), [asked])


def _qmsum(row: Row, options: SummaryOptions, count: TokenCounter) -> Draft:
    turns = [
        Turn(turn["speaker"].scalar(), turn["content"].string(), str(number))
        for number, turn in enumerate(row["meeting_transcripts"].items())
    ]
    spoken = [turn for turn in turns if turn.text]
    dialogue = dialogue_chunks([Session(spoken, "Meeting")], options.chunk_tokens, count)

    def question(item: tuple[str, Row]) -> Question | Skipped:
        kind, query = item
        spans = [span.pair() for span in query["relevant_text_span"].items(needed=False)]
        keys = {
            str(turn)
            for first, last in spans
            for turn in range(max(first.integer(), 0), min(last.integer() + 1, len(turns)))
        }
        text = query["query"].text()
        answers = query["answer"].answers()
        return _summary_question(text, answers, kind, options.metric, dialogue.evidence(keys))

    queries = [
        (kind, query)
        for kind in ("general", "specific")
        for query in row[f"{kind}_query_list"].items(needed=False)
    ]
    name = row["meeting_id"].scalar() or f"qmsum {row.where}"
    return Draft(name, "qmsum", dialogue.chunks, list(read_each(queries, question)))


# ------------------------------------------------------------------------------------------------
# MemoryAgentBench, Mem-alpha's data
@dataclass(frozen=True, slots=True)
class MemoryAgentBenchOptions(TextOptions):
    """How MemoryAgentBench becomes instances."""

    split: str = "Accurate_Retrieval"  # split of the data set on the Hub
    # the set's entity2id.json, without which its recommendations (recsys) cannot be scored
    entities: str = ""


@dataclass(frozen=True, slots=True)
class MemalphaOptions(CommonOptions):
    """How Mem-alpha's data are scored."""

    metric: Metric = ""  # metric of every question ("" = by data_source)


def metric_of(source: str) -> str:
    """Return the metric of a row's source, "" if it is unknown."""
    metrics = (metric for prefix, metric in METRIC_OF_PREFIX.items() if source.startswith(prefix))
    return next(metrics, "")


def _memoryagentbench(row: Row, options: MemoryAgentBenchOptions, count: TokenCounter) -> Draft:
    about = row["metadata"].decoded()
    source = about["source"].text()
    questions = row["questions"].decoded().items()
    answers = row["answers"].decoded().items()
    context = row["context"].text()
    keypoints = tuple(map(Row.string, about["keypoints"].items(needed=False)))
    if len(questions) != len(answers):
        raise row["answers"].unfit(f"{len(questions)} items, as many as questions")
    metric = options.metric or metric_of(source)
    recommends = source.startswith(_RECOMMENDS)
    if not metric or (recommends and not options.entities):
        return _unscored(source, len(questions))
    titles = read_titles(options.entities) if recommends else None

    def column(name: str) -> list[Row]:
        values = about[f"question_{name}s"]
        fits = isinstance(values.data, list) and len(values.data) == len(questions)
        return values.items() if fits else [Row(row.where, None)] * len(questions)

    def question(item: tuple[Row, ...]) -> Question | Skipped:
        asked, golden, kind, id, date = item
        text = asked_on(date.scalar(), asked.text())
        golds = _golds(golden, metric)
        if metric == "keywords" and golds and source.startswith("infbench_sum"):
            golds = keyphrases("\n".join(keypoints or golds))
        if not golds:
            return Skipped(EMPTY_ANSWER)
        if titles is not None:
            if not titles.keys() >= set(golds):
                return Skipped("answer that is not in entities")
            golds = tuple(titles[number] for number in golds)
        kind_name = kind.scalar() or _SIZE.sub("", source)
        table = None if titles is None else options.entities
        return Question(text, golds, metric, kind_name, table, id=id.scalar())

    items = zip(questions, answers, *map(column, ("type", "id", "date")), strict=True)
    chunks = tuple(map(Chunk, cut(context, options.chunk_tokens, count)))
    return Draft(f"{source} {row.where}", source, chunks, list(read_each(items, question)))


def _memalpha(row: Row, options: MemalphaOptions, count: TokenCounter) -> Draft:
    source = row["data_source"].text()
    chunks = [chunk.text() for chunk in row["chunks"].decoded().items()]
    items = row["questions_and_answers"].decoded().items()
    if not chunks:
        raise row["chunks"].unfit("at least one chunk")
    metric = options.metric or metric_of(source)
    if not metric or source.startswith(_RECOMMENDS):
        return _unscored(source, len(items))

    def question(item: Row) -> Question | Skipped:
        answer = item["answer"]
        golds = _golds(answer["text"] if isinstance(answer.data, Mapping) else answer, metric)
        if metric == "keywords" and golds and isinstance(answer.data, str):
            golds = tuple(dict.fromkeys(filter(None, map(str.strip, golds[0].split(", ")))))
        text = item["question"].text()
        return Question(text, golds, metric) if golds else Skipped(EMPTY_ANSWER)

    name = row["instance_id"].scalar() or f"memalpha {row.where}"
    return Draft(name, source, tuple(map(Chunk, chunks)), list(read_each(items, question)))


def _golds(row: Row, metric: str) -> tuple[str, ...]:
    golds = row.answers()
    if metric == "boxed" and not all(re.fullmatch(r"[+-]?[0-9]{1,18}", gold) for gold in golds):
        raise row.unfit("a label that is an integer, for metric 'boxed'")
    return golds


def _unscored(source: str, questions: int) -> Draft:
    recommends = source.startswith(_RECOMMENDS)
    skipped = Skipped(
        "recommendations without entities" if recommends else "unknown source", questions
    )
    option = "'entities' with the set's entity2id.json" if recommends else "'metric'"
    note = Remark(f"source {source!r} cannot be scored; give option {option}")
    return Draft(source, source, (), [skipped, note])


# ------------------------------------------------------------------------------------------------
# bAbI
@dataclass(frozen=True, slots=True)
class BabiOptions(TextOptions):
    """How bAbI becomes instances; metric "" is exact_match, or keywords for answers with several
    parts.
    """

    chunk_tokens: PositiveInt = 64  # maximum tokens of a chunk


class _Sentence(NamedTuple):
    number: str
    text: str
    answer: str | None  # None for a statement
    support: list[str]


def _load_babi(
    source: str, options: BabiOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | Skipped | Remark]:
    """Load bAbI story by story; InputError if the input cannot be read."""
    files = data_files(source, "qa*.txt")
    splits = {path: "".join(_SPLIT.findall(path.name)[:1]) for path in files}
    named = sorted(set(splits.values()) - {""})
    if len(named) > 1:
        if options.split not in named:
            what = f"{source} has no file of split {options.split!r}"
            raise InputError(what, expected=f"one of {named}")
        files = [path for path in files if splits[path] in ("", options.split)]
        yield Remark("files of other splits not read", len(splits) - len(files))
    stories = (story for path in files for story in _stories(path))
    for drafts in read_each(stories, lambda story: _story(*story, options, count)):
        yield from [drafts] if isinstance(drafts, Skipped) else drafts


def _stories(path: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the stories of a file with their names; the numbers of a story's lines rise."""
    stories: list[list[Row]] = []
    last = 0
    for line in text_lines(str(path)):
        match = re.match("[0-9]{1,9} ", line.string())
        number = int(match[0]) if match else last + 1
        if number <= last or not stories:
            stories.append([])
        if line.string():
            stories[-1].append(line)
            last = number
    name = Path(path.name.removesuffix(".gz")).stem
    return ((f"{name}-{number}", story) for number, story in enumerate(stories))


def _story(name: str, rows: list[Row], options: BabiOptions, count: TokenCounter) -> list[Draft]:
    sentences = [_sentence(row, number) for number, row in enumerate(rows, start=1)]
    if sentences[0].answer is not None:
        raise rows[0].unfit("a sentence before the first question")
    drafts = []
    for index, asked in enumerate(sentences):
        if asked.answer is None:
            continue
        told = [(line.number, line.text) for line in sentences[:index] if line.answer is None]
        bounds = (options.chunk_tokens, options.chunk_tokens)  # equal: nothing is drawn
        packed = chunk_texts(told, bounds, count, random.Random(0), "\n")
        answers = tuple(dict.fromkeys(filter(None, map(str.strip, asked.answer.split(",")))))
        metric = options.metric or ("keywords" if len(answers) > 1 else "exact_match")
        golds = answers if metric == "keywords" else (asked.answer,)
        evidence = packed.evidence(asked.support)
        task = name.partition("_")[0].partition("-")[0]
        question = Question(asked.text, golds, metric, task, evidence=evidence, id=asked.number)
        item = question if answers else Skipped(EMPTY_ANSWER)
        drafts.append(Draft(f"{name}-{asked.number}", "babi", packed.chunks, [item]))
    return drafts


def _sentence(row: Row, number: int) -> _Sentence:
    match = _LINE.fullmatch(row.string())
    if match is None or int(match[1]) != number:
        raise row.unfit(f"line {number} of its story, '1 Mary went.' or '2 Who?<tab>Mary<tab>1'")
    text, answer, support = (*match[2].split("\t"), "", "")[:3]
    asks = "\t" in match[2] or match[2].endswith("?")
    return _Sentence(str(number), text.strip(), answer.strip() if asks else None, support.split())


SOURCES = [
    Source(
        "babi",
        "bAbI tasks: numbered stories, one file or a folder of qa*.txt",
        _load_babi,
        BabiOptions,
    ),
    Source(
        "booksum",
        "BookSum chapters with summaries: JSON Lines, CSV, Parquet",
        by_row(_booksum),
        BooksumOptions,
    ),
    Source(
        "qmsum",
        "QMSum meetings with queries, original JSON Lines",
        by_row(_qmsum),
        SummaryOptions,
    ),
    Source(
        "memoryagentbench",
        "MemoryAgentBench: Parquet, JSON, JSON Lines",
        by_row(_memoryagentbench),
        MemoryAgentBenchOptions,
    ),
    Source(
        "memalpha",
        "YuWangX/Memalpha's columns: Parquet, JSON, JSON Lines",
        by_row(_memalpha),
        MemalphaOptions,
    ),
]
