"""The common part of HotpotQA and MuSiQue: the articles of consecutive questions in chunks."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import PositiveInt

from memalpha.data.chunks import chunk_texts
from memalpha.data.rows import Row, iter_rows
from memalpha.data.source import (
    EMPTY_ANSWER,
    Bounds,
    CommonOptions,
    Draft,
    Loader,
    SkippedItem,
    read_each,
)
from memalpha.errors import SchemaError
from memalpha.types import Question, TokenCounter


@dataclass(frozen=True, slots=True)
class MultihopOptions(CommonOptions):
    """How questions with articles become instances.

    Attributes:
        chunk_tokens: A chunk has a number of tokens between these two, drawn for each chunk.
        instance_tokens: An instance ends once its articles have this many tokens.
    """

    chunk_tokens: Bounds = (100, 2048)
    instance_tokens: PositiveInt = 10_000


class _Hop(NamedTuple):
    """A question, the articles shown for it, and those that hold its answer, if that is known."""

    question: Question
    articles: list[str]
    needed: list[str]


def multihop(name: str, articles_of: Callable[[Row], dict[str, bool]]) -> Loader:
    """Return a loader of a set whose rows hold a question and its articles.

    ``articles_of`` returns the articles of a row, and whether each holds what the answer needs.
    """

    def read(row: Row) -> _Hop | SkippedItem:
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
            return SkippedItem("unanswerable" if row["answerable"].data is False else EMPTY_ANSWER)
        needed = [article for article, needed in articles.items() if needed]
        return _Hop(question, needed or list(articles), needed)

    def load(
        source: str, options: MultihopOptions, seed: int, count: TokenCounter
    ) -> Iterator[Draft | SkippedItem]:
        rng = random.Random(f"{name}:{seed}")
        hops = []
        for item in read_each(iter_rows(source, options.split), read):
            if isinstance(item, SkippedItem):
                yield item
            else:
                hops.append(item)
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
