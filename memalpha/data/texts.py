"""Texts with questions or summaries: SQuAD, HotpotQA, MuSiQue, BookSum, QMSum, MemoryAgentBench,
Mem-alpha's own data, bAbI.

SQuAD's distinct paragraphs are packed in file order into chunks of random length, as for Mem-alpha
(arXiv 2509.25911), and a question is asked in the instance that holds its whole answer. HotpotQA
and MuSiQue pack the evidence articles of consecutive questions. A chapter has one question, a
meeting its queries. Rows of MemoryAgentBench and Mem-alpha are as on the Hub, whose lists may be
JSON text, and the source that a row names says how it is scored. Each question of bAbI is an
instance with the sentences before it. docs/data.md has forms, departures, and whose scores these
are.
"""

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from memalpha.data.rows import Row, clean, data_files, iter_rows, text_lines
from memalpha.data.source import (
    EMPTY_ANSWER,
    SUMMARISE,
    Bounds,
    CommonOptions,
    Draft,
    Loader,
    Metric,
    Session,
    Skipped,
    Source,
    TextOptions,
    Turn,
    asked_on,
    by_row,
    chunk_texts,
    dialogue_chunks,
    pack_texts,
    read_each,
    sort_out,
)
from memalpha.errors import InputError, SchemaError
from memalpha.qa.matching import read_titles
from memalpha.types import Chunk, Question, TokenCounter
from memalpha.units import cut, split_text

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
    "ruler_niah": "keywords",
    "eventqa": "substring_all",
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
# SQuAD
@dataclass(frozen=True, slots=True)
class SquadOptions(CommonOptions):
    """How SQuAD becomes instances."""

    chunk_tokens: Bounds = (100, 2048)  # fewest and most tokens of a chunk, drawn for each
    # fewest and most chunks of an instance, drawn for each; the last may have fewer
    chunks: Bounds = (10, 10)
    # skip questions whose answers are all longer, in tokens (published: 4; 0 = off)
    max_answer_tokens: NonNegativeInt = 0
    # put paragraphs in random order; in file order neighbours are from one article
    shuffle: bool = False
    # of every question; "f1" compares what readers say with what they would show
    metric: Metric = "substring"


def _load_squad(
    source: str, options: SquadOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | Skipped]:
    """Load SQuAD; reads the whole input first. InputError if it is missing, unreadable or not
    SQuAD.
    """
    paragraphs: dict[str, list[Question]] = {}
    numbers = itertools.count(1)

    def read(row: Row) -> list[Skipped]:
        context = row["context"]
        items = [row] if row["qas"].data is None else row["qas"].items()
        own = paragraphs.setdefault(context.text(), [])
        asked = read_each(items, _squad_question, context, numbers, options, count)
        questions, skipped = sort_out(asked)
        own.extend(questions)
        return skipped

    for skipped in read_each(_paragraphs(source, options.split), read):
        yield from [skipped] if isinstance(skipped, Skipped) else skipped
    yield from _squad_drafts(paragraphs, options, count, random.Random(f"squad:{seed}"))


def _paragraphs(source: str, split: str) -> Iterator[Row]:
    for row in iter_rows(source, split):
        if not isinstance(row.data, Mapping) or "data" not in row.data:
            yield row
            continue
        for article in row["data"].items():
            yield from article["paragraphs"].items()


def _squad_question(
    row: Row, context: Row, numbers: Iterator[int], options: SquadOptions, count: TokenCounter
) -> Question | Skipped:
    """Return a question; its evidence is where its first answer begins until there are chunks."""
    number = f"q{next(numbers)}"
    if "answer" in row.fields() and "answers" not in row.fields():  # a flattened file
        given = [(row["answer"].scalar(), row["answer_start"].data)]
    else:
        items = row["answers"].items()
        given = [(item["text"].scalar(), item["answer_start"].data) for item in items]
    if row["is_impossible"].data is True or not given:
        return Skipped("unanswerable")
    answers = tuple(dict.fromkeys(text for text, _ in given if text))
    if not answers:
        return Skipped(EMPTY_ANSWER)
    if options.max_answer_tokens and min(map(count, answers)) > options.max_answer_tokens:
        return Skipped("answer too long")
    text = context.string()
    start = dict(reversed(given))[answers[0]]
    place = len(clean(f"{str(context.data)[:start]}|")) - 1 if isinstance(start, int) else -1
    if place < 0 or not text.startswith(answers[0], place):
        place = text.find(answers[0])
    id = row["id"].scalar() or number
    return Question(row["question"].text(), answers, options.metric, evidence=(place,), id=id)


def _squad_drafts(
    paragraphs: Mapping[str, list[Question]],
    options: SquadOptions,
    count: TokenCounter,
    rng: random.Random,
) -> Iterator[Draft]:
    contexts = list(paragraphs)
    if options.shuffle:
        rng.shuffle(contexts)
    pieces: list[str] = []
    # Questions and the pieces that they need, by the first of these.
    asked_at: dict[int, list[tuple[Question, list[int]]]] = defaultdict(list)
    for context in contexts:
        spans = dict(enumerate(split_text(context, options.chunk_tokens[1], count), len(pieces)))
        for question in paragraphs[context]:
            (start,) = question.evidence or (-1,)
            end = start + len(question.answers[0])
            own = [i for i, span in spans.items() if span.start < end and 0 <= start < span.end]
            needs = own or list(spans)
            asked_at[needs[0]].append((question, needs))
        pieces += [context[slice(*span)] for span in spans.values()]
    # Separate generators: draws for an instance do not change later chunks.
    sizes = random.Random(rng.random())
    drawn = random.Random(rng.random())
    packed = pack_texts(pieces, options.chunk_tokens, count, sizes)
    number = 0
    while group := list(itertools.islice(packed, drawn.randint(*options.chunks))):
        chunk_of = {piece: index for index, chunk in enumerate(group) for piece in chunk.parts}
        asked = [_in_chunks(*each, chunk_of) for piece in chunk_of for each in asked_at[piece]]
        chunks = tuple(Chunk(chunk.text) for chunk in group)
        yield Draft(f"squad-{number}", "squad", chunks, asked, rng=drawn)
        number += any(isinstance(each, Question) for each in asked)


def _in_chunks(
    question: Question, needs: list[int], chunk_of: Mapping[int, int]
) -> Question | Skipped:
    if not chunk_of.keys() >= set(needs):
        return Skipped("evidence in two instances")
    return replace(question, evidence=tuple(sorted({chunk_of[piece] for piece in needs})))


# ------------------------------------------------------------------------------------------------
# HotpotQA, MuSiQue
@dataclass(frozen=True, slots=True)
class MultihopOptions(CommonOptions):
    """How questions with articles become instances."""

    chunk_tokens: Bounds = (100, 2048)  # minimum and maximum tokens of a chunk; drawn per chunk
    instance_tokens: PositiveInt = 10_000  # tokens of articles at which an instance is closed


class _Hop(NamedTuple):
    """A question, the articles shown for it, and those that hold its answer, if that is known."""

    question: Question
    articles: list[str]
    needed: list[str]


def _hotpot_articles(row: Row) -> dict[str, bool]:
    needed = {fact.pair()[0].string() for fact in row["supporting_facts"].items(needed=False)}
    articles = {}
    for title, sentences in (article.pair() for article in row["context"].items()):
        text = " ".join(sentence.string() for sentence in sentences.items())
        articles[f"{title.string()}\n{text.strip()}".strip()] = title.string() in needed
    return articles


def _musique_articles(row: Row) -> dict[str, bool]:
    return {
        f"{each['title'].scalar()}\n{each['paragraph_text'].text()}".strip(): (
            each["is_supporting"].data is True
        )
        for each in row["paragraphs"].items()
    }


def _multihop(name: str, articles_of: Callable[[Row], dict[str, bool]]) -> Loader:

    def read(row: Row) -> _Hop | Skipped:
        articles = articles_of(row)
        articles.pop("", None)
        if not articles:
            raise SchemaError(f"{row.where} has no article", expected="at least one")
        answers = tuple(dict.fromkeys(row["answer"].answers() + row["answer_aliases"].answers()))
        text = row["question"].text()
        id = row["_id"].scalar() or row["id"].scalar()
        prefix = id.partition("__")[0] if "__" in id else "single"
        question = Question(text, answers, kind=row["type"].scalar() or prefix, id=id or row.where)
        if row["answerable"].data is False or not answers:
            return Skipped("unanswerable" if row["answerable"].data is False else EMPTY_ANSWER)
        needed = [article for article, needed in articles.items() if needed]
        return _Hop(question, needed or list(articles), needed)

    def load(
        source: str, options: MultihopOptions, seed: int, count: TokenCounter
    ) -> Iterator[Draft | Skipped]:
        rng = random.Random(f"{name}:{seed}")
        hops, skipped = sort_out(read_each(iter_rows(source, options.split), read))
        yield from skipped
        for number, batch in enumerate(_batches(hops, options.instance_tokens, count)):
            articles = dict.fromkeys(article for hop in batch for article in hop.articles)
            texts = ((article, article) for article in articles)
            packed = chunk_texts(texts, options.chunk_tokens, count, rng)
            asked = [replace(hop.question, evidence=packed.evidence(hop.needed)) for hop in batch]
            yield Draft(f"{name}-{number}", name, packed.chunks, asked)

    return load


def _batches(hops: Iterable[_Hop], limit: int, count: TokenCounter) -> Iterator[list[_Hop]]:
    """Gather consecutive questions until their distinct articles count ``limit`` tokens."""
    batch: list[_Hop] = []
    held: set[str] = set()
    tokens = 0
    for hop in hops:
        new = set(hop.articles) - held
        if batch and new and tokens + sum(map(count, new)) > limit:
            yield batch
            batch = []
            held = set()
            tokens = 0
            new = set(hop.articles)
        batch.append(hop)
        held |= new
        tokens += sum(map(count, new))
    if batch:
        yield batch


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
    if len(pieces) < options.chunks[0]:
        asked = Skipped("too few chunks")
    elif len(pieces) > options.chunks[1]:
        asked = Skipped("too many chunks")
    named = filter(None, (row[key].scalar() for key in ("bid", "book_id", "summary_id")))
    name = "-".join(["booksum", *named])
    name = f"booksum {row.where}" if name == "booksum" else name
    return Draft(name, "booksum", tuple(map(Chunk, pieces)), [asked])


def _qmsum(row: Row, options: SummaryOptions, count: TokenCounter) -> Draft:
    turns = [
        Turn(turn["speaker"].scalar(), turn["content"].string(), str(number))
        for number, turn in enumerate(row["meeting_transcripts"].items())
    ]
    dialogue = dialogue_chunks([Session(turns, "Meeting")], options.chunk_tokens, count)

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
    option = "'entities' with the set's entity2id.json" if recommends else "'metric'"
    problem = f"source {source!r} cannot be scored; give option {option}"
    reason = "recommendations without entities" if recommends else "unknown source"
    return Draft(source, source, (), [Skipped(reason, questions, problem)])


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
) -> Iterator[Draft | Skipped]:
    """Load bAbI story by story; InputError if the input cannot be read."""
    files = data_files(source, "qa*.txt")
    splits = {path: "".join(_SPLIT.findall(path.name)[:1]) for path in files}
    named = sorted(set(splits.values()) - {""})
    if len(named) > 1:
        if options.split not in named:
            raise InputError(
                f"{source} has no file of split {options.split!r}",
                expected=f"one of {named}",
            )
        files = [path for path in files if splits[path] in ("", options.split)]
        yield Skipped("files of other splits not read", questions=0)
    stories = (story for path in files for story in _stories(path))
    for drafts in read_each(stories, _story, options, count):
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


def _story(story: tuple[str, list[Row]], options: BabiOptions, count: TokenCounter) -> list[Draft]:
    name, rows = story
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
        "squad",
        "SQuAD 1.1 or 2.0, original or flattened JSON: paragraphs in chunks",
        _load_squad,
        SquadOptions,
    ),
    Source(
        "hotpotqa",
        "HotpotQA, original JSON: evidence articles in chunks",
        _multihop("hotpotqa", _hotpot_articles),
        MultihopOptions,
    ),
    Source(
        "musique",
        "MuSiQue, original JSON Lines: supporting paragraphs in chunks",
        _multihop("musique", _musique_articles),
        MultihopOptions,
    ),
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
