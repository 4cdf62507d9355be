"""SQuAD 1.1 and 2.0: paragraphs in chunks, and their questions.

Distinct paragraphs are packed in file order into chunks of random length, as for Mem-alpha (arXiv
2509.25911), and a question is asked in the instance that holds its whole answer.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import NonNegativeInt

from memalpha.data.chunks import pack_texts
from memalpha.data.rows import Row, clean, iter_rows
from memalpha.data.source import (
    EMPTY_ANSWER,
    Bounds,
    CommonOptions,
    Draft,
    Metric,
    SkippedItem,
    Source,
    read_each,
)
from memalpha.types import Chunk, Question, TokenCounter
from memalpha.units import split_text


@dataclass(frozen=True, slots=True)
class SquadOptions(CommonOptions):
    """How SQuAD becomes instances.

    Attributes:
        chunk_tokens: A chunk has a number of tokens between these two, drawn for each chunk.
        chunks: An instance has a number of chunks between these two, drawn for each instance; the
            last may have fewer.
        max_answer_tokens: Questions are skipped if all their answers have more tokens than this; 0
            = off (published: 4).
        shuffle: If true, paragraphs come in random order. In the order of the file, neighbours are
            from one article.
        metric: Every question has this metric; ``f1`` compares an answer with the accepted ones by
            their common words.
    """

    chunk_tokens: Bounds = (100, 2048)
    chunks: Bounds = (10, 10)
    max_answer_tokens: NonNegativeInt = 0
    shuffle: bool = False
    metric: Metric = "substring"


def _load_squad(
    source: str, options: SquadOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | SkippedItem]:
    """Load SQuAD; reads the whole input first. InputError if it is missing, unreadable or not
    SQuAD.
    """
    paragraphs: dict[str, list[Question]] = {}
    numbers = itertools.count(1)

    def read(row: Row) -> tuple[list[Question], list[Question | SkippedItem]]:
        """Return the questions that the row's paragraph has so far, and those of the row."""
        context = row["context"]
        items = [row] if row["qas"].data is None else row["qas"].items()
        own = paragraphs.setdefault(context.text(), [])
        return own, list(read_each(items, _squad_question, context, numbers, options, count))

    for item in read_each(_paragraphs(source, options.split), read):
        if isinstance(item, SkippedItem):
            yield item
            continue
        own, asked = item
        for each in asked:
            if isinstance(each, Question):
                own.append(each)
            else:
                yield each
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
) -> Question | SkippedItem:
    """Return a question; its evidence is where its first answer begins until there are chunks."""
    number = f"q{next(numbers)}"
    if "answer" in row.fields() and "answers" not in row.fields():  # a flattened file
        given = [(row["answer"].scalar(), row["answer_start"].data)]
    else:
        items = row["answers"].items()
        given = [(item["text"].scalar(), item["answer_start"].data) for item in items]
    if row["is_impossible"].data is True or not given:
        return SkippedItem("unanswerable")
    answers = tuple(dict.fromkeys(text for text, _ in given if text))
    if not answers:
        return SkippedItem(EMPTY_ANSWER)
    if options.max_answer_tokens and min(map(count, answers)) > options.max_answer_tokens:
        return SkippedItem("answer too long")
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
) -> Question | SkippedItem:
    if not chunk_of.keys() >= set(needs):
        return SkippedItem("evidence in two instances")
    return replace(question, evidence=tuple(sorted({chunk_of[piece] for piece in needs})))


SOURCES = [
    Source(
        "squad",
        "SQuAD 1.1 or 2.0, original or flattened JSON: paragraphs in chunks",
        _load_squad,
        SquadOptions,
    ),
]
