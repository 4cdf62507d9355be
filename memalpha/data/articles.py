"""Questions over paragraphs and articles: SQuAD, HotpotQA, MuSiQue.

SQuAD's distinct paragraphs are packed in file order into chunks of random length, as for Mem-alpha
(arXiv 2509.25911), and a question is asked in the instance that holds its whole answer. HotpotQA
and MuSiQue pack the evidence articles of consecutive questions. docs/data.md has departures.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from memalpha.data.packing import chunk_texts, pack_texts
from memalpha.data.rows import Row, clean, iter_rows
from memalpha.data.source import (
    EMPTY_ANSWER,
    Bounds,
    CommonOptions,
    Draft,
    Loader,
    Metric,
    Remark,
    Skipped,
    Source,
    read_each,
    sort_out,
)
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Question
from memalpha.units import split_text


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
) -> Iterator[Draft | Skipped | Remark]:
    """Load SQuAD; reads the whole input first. InputError if it is missing, unreadable or not
    SQuAD.
    """
    paragraphs: dict[str, list[Question]] = {}
    numbers = itertools.count(1)

    def read(row: Row) -> list[Skipped]:
        context = row["context"]
        items = [row] if row["qas"].data is None else row["qas"].items()
        own = paragraphs.setdefault(context.text(), [])
        asked = read_each(
            items, lambda item: _squad_question(item, context, f"q{next(numbers)}", options, count)
        )
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
    row: Row, context: Row, number: str, options: SquadOptions, count: TokenCounter
) -> Question | Skipped:
    """Return a question; its evidence is where its first answer begins until there are chunks."""
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
) -> Iterator[Draft | Remark]:
    contexts = list(paragraphs)
    if options.shuffle:
        rng.shuffle(contexts)
    pieces: list[str] = []
    # Questions and the pieces that they need, by the first of these.
    asked_at: dict[int, list[tuple[Question, list[int]]]] = defaultdict(list)
    for context in contexts:
        spans = dict(enumerate(split_text(context, options.chunk_tokens[1], count), len(pieces)))
        if len(spans) > 1:
            yield Remark("paragraphs cut to pieces")
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
    facts = row["supporting_facts"].items(needed=False)
    needed = {fact.pair()[0].string() for fact in facts}
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
        given = row["answer"].answers() + row["answer_aliases"].answers()
        answers = tuple(dict.fromkeys(given))
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
]
