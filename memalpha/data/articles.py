"""Questions over paragraphs and articles: SQuAD, HotpotQA, MuSiQue. docs/data.md has forms and
departures.

**SQuAD** (arXiv 1606.05250, 1806.03822): distinct paragraphs in file order, in chunks of random
length, as in arXiv 2509.25911.
**HotpotQA** (arXiv 1809.09600), **MuSiQue** (arXiv 2108.00573): evidence articles of consecutive
questions, packed likewise.

Scores. All three by ``substring``, as Mem-alpha's ``evaluate_agent_results.py`` scores the first
two; any accepted answer counts, there the first, and both sides are normalised as well. SQuAD with
metric ``f1`` or ``exact_match`` has the numbers of its
``evaluate-v1.1.py`` on the questions that are kept (unanswerable ones are not). HotpotQA's and
MuSiQue's own F1 are not offered.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from memalpha.data.packing import chunk_texts, pack_texts
from memalpha.data.rows import (
    EMPTY_ANSWER,
    Answers,
    Cleaned,
    Row,
    Scalar,
    Text,
    checked,
    clean,
    iter_rows,
)
from memalpha.data.source import (
    Bounds,
    CommonOptions,
    Loader,
    LoadResult,
    Metric,
    Source,
    read_questions,
    read_rows,
)
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question
from memalpha.units import split_text


@dataclass(frozen=True, slots=True)
class SquadOptions(CommonOptions):
    """How SQuAD becomes instances."""

    chunk_tokens: Bounds = (100, 2048)  # fewest and most tokens of a chunk, drawn for each
    chunks: Bounds = (
        10,
        10,
    )  # fewest and most chunks of an instance, drawn for each; the last may have fewer
    max_answer_tokens: NonNegativeInt = (
        0  # skip questions whose answers are all longer, in tokens (published: 4; 0 = off)
    )
    shuffle: bool = (
        False  # put paragraphs in random order; in file order neighbours are from one article
    )
    metric: Metric = (
        "substring"  # of every question; "f1" compares what readers say with what they would show
    )


def load_squad(
    source: str, options: SquadOptions, seed: int, count: TokenCounter, result: LoadResult
) -> Iterator[Instance]:
    """Load SQuAD; reads the whole input first. InputError if it is missing, unreadable or not
    SQuAD.
    """
    paragraphs = dict[str, list[Question]]()

    def read(row: Row) -> None:
        paragraph = checked(_Paragraph, row.data, row.where)

        def question(item: Any, where: str) -> Question | str:
            return _squad_question(
                item, where, row.data["context"], f"q{result.asked}", options, count
            )

        items = [row.data] if paragraph.qas is None else paragraph.qas
        paragraphs.setdefault(paragraph.context, []).extend(
            read_questions(items, row.where, result, question)
        )

    for _ in read_rows(_paragraphs(source, options.split), result, read):
        pass
    return _squad_instances(paragraphs, options, count, random.Random(f"squad:{seed}"), result)


class _Article(BaseModel):
    paragraphs: list[Any]


class _File(BaseModel):
    data: list[_Article]


class _Paragraph(BaseModel):
    context: Text
    qas: list[Any] | None = None


def _paragraphs(source: str, split: str) -> Iterator[Row]:
    for row in iter_rows(source, split):
        if not isinstance(row.data, Mapping) or "data" not in row.data:
            yield row
            continue
        for number, article in enumerate(checked(_File, row.data, row.where).data):
            for index, paragraph in enumerate(article.paragraphs):
                yield Row(f"{row.where} article {number} paragraph {index}", paragraph)


class _Given(BaseModel):
    text: Scalar
    answer_start: Any = None


class _SquadQuestion(BaseModel):
    question: Text
    id: Scalar = ""
    is_impossible: Any = None
    answers: list[_Given]


def _squad_question(
    item: Any, where: str, context: str, number: str, options: SquadOptions, count: TokenCounter
) -> Question | str:
    """A question, or why it is skipped; ``evidence`` is the place of its first answer until there
    are chunks.
    """
    flat = isinstance(item, Mapping) and "answer" in item and "answers" not in item
    data = checked(
        _SquadQuestion, {**item, "answers": [{"text": item["answer"]}]} if flat else item, where
    )
    given = [] if data.is_impossible is True else data.answers
    if not (answers := tuple(dict.fromkeys(answer.text for answer in given if answer.text))):
        return EMPTY_ANSWER if given else "unanswerable"
    if options.max_answer_tokens and all(
        count(answer) > options.max_answer_tokens for answer in answers
    ):
        return "answer too long"
    first, cleaned = next(answer for answer in given if answer.text), clean(context)
    start = first.answer_start if isinstance(first.answer_start, int) else -1
    place = len(clean(context[:start] + "|")) - 1
    if start < 0 or not cleaned.startswith(first.text, place):
        place = cleaned.find(first.text)
    return Question(data.question, answers, options.metric, evidence=(place,), id=data.id or number)


def _squad_instances(
    paragraphs: Mapping[str, list[Question]],
    options: SquadOptions,
    count: TokenCounter,
    rng: random.Random,
    result: LoadResult,
) -> Iterator[Instance]:
    order = list(paragraphs.items())
    if options.shuffle:
        rng.shuffle(order)
    pieces: list[str] = []
    asked_at = defaultdict[int, list[tuple[Question, list[int]]]](
        list
    )  # by the first piece of the answer, with all its pieces
    for context, asked in order:
        spans = split_text(context, options.chunk_tokens[1], count)
        result.notes["paragraphs cut to pieces"] += len(spans) > 1
        for question in asked:
            (start,) = question.evidence or (-1,)
            end = start + len(question.answers[0])
            held = [
                i
                for i, span in enumerate(spans)
                if start >= 0 and span.start < end and start < span.end
            ] or range(len(spans))
            asked_at[len(pieces) + held[0]].append((question, [len(pieces) + i for i in held]))
        pieces += [context[start:end] for start, end in spans]
    # Separate generators: draws for an instance do not change later chunks.
    sizes, drawn = random.Random(rng.random()), random.Random(rng.random())
    packed, made = pack_texts(pieces, options.chunk_tokens, count, sizes), 0
    while group := list(islice(packed, drawn.randint(*options.chunks))):
        chunk_of = {piece: index for index, chunk in enumerate(group) for piece in chunk.parts}
        questions = []
        for question, needs in (each for piece in chunk_of for each in asked_at[piece]):
            if all(piece in chunk_of for piece in needs):
                questions.append(
                    replace(question, evidence=tuple(sorted({chunk_of[piece] for piece in needs})))
                )
            else:
                result.skipped["evidence in two instances"] += 1
        if options.max_instances and made >= options.max_instances:
            result.skipped["over max_instances"] += len(questions)
        else:
            chosen = result.draw(questions, options.max_questions, drawn)
            yield Instance(
                f"squad-{made}", "squad", tuple(Chunk(chunk.text) for chunk in group), chosen
            )
            made += bool(chosen)


# ------------------------------------------------------------------------------------------------
# HotpotQA, MuSiQue
@dataclass(frozen=True, slots=True)
class MultihopOptions(CommonOptions):
    """How questions with articles become instances."""

    chunk_tokens: Bounds = (100, 2048)  # minimum and maximum tokens of a chunk; drawn per chunk
    instance_tokens: PositiveInt = 10_000  # tokens of articles at which an instance is closed


class _Hop(BaseModel):
    question: Text
    answer: Answers = ()
    answer_aliases: Answers = ()
    answerable: Any = None
    hotpot_id: Annotated[Scalar, Field(alias="_id")] = ""
    id: Scalar = ""
    type: Scalar = ""


class _Hotpot(_Hop):
    context: list[tuple[Cleaned, list[Cleaned]]]
    supporting_facts: list[tuple[Cleaned, Any]] = []

    def articles(self) -> dict[str, bool]:
        needed = {title for title, _ in self.supporting_facts}
        return {
            f"{title}\n{' '.join(said).strip()}".strip(): title in needed
            for title, said in self.context
        }


class _SupportingParagraph(BaseModel):
    title: Scalar = ""
    paragraph_text: Text
    is_supporting: Any = None


class _Musique(_Hop):
    paragraphs: list[_SupportingParagraph]

    def articles(self) -> dict[str, bool]:
        return {
            f"{each.title}\n{each.paragraph_text}".strip(): each.is_supporting is True
            for each in self.paragraphs
        }


def _multihop(name: str, model: type[_Hotpot] | type[_Musique]) -> Loader:
    def load(
        source: str, options: MultihopOptions, seed: int, count: TokenCounter, result: LoadResult
    ) -> Iterator[Instance]:
        def asked(row: Row) -> list[tuple[Question, dict[str, bool]]]:
            data = checked(model, row.data, row.where)
            if not (
                articles := {
                    article: needed for article, needed in data.articles().items() if article
                }
            ):
                raise SchemaError(f"{row.where} has no article", expected="at least one")
            answers = tuple(dict.fromkeys((*data.answer, *data.answer_aliases)))
            reason = "unanswerable" if data.answerable is False else "" if answers else EMPTY_ANSWER
            id = data.hotpot_id or data.id
            kind = data.type or (id.partition("__")[0] if "__" in id else "single")
            if any(articles.values()):
                articles = {article: needed for article, needed in articles.items() if needed}
            question = Question(data.question, answers, kind=kind, id=id or row.where)
            return [
                (kept, articles) for kept in read_questions([reason or question], row.where, result)
            ]

        questions = chain.from_iterable(read_rows(iter_rows(source, options.split), result, asked))
        return _multihop_instances(name, questions, options, seed, count)

    return load


def _multihop_instances(
    name: str,
    questions: Iterable[tuple[Question, dict[str, bool]]],
    options: MultihopOptions,
    seed: int,
    count: TokenCounter,
) -> Iterator[Instance]:
    rng = random.Random(f"{name}:{seed}")
    articles, asked = dict[str, None](), list[tuple[Question, list[str]]]()
    made = tokens = 0

    def instance() -> Instance:
        packed = chunk_texts(
            ((article, article) for article in articles), options.chunk_tokens, count, rng
        )
        placed = (replace(question, evidence=packed.evidence(needs)) for question, needs in asked)
        return Instance(f"{name}-{made}", name, packed.chunks, tuple(placed))

    for question, given in questions:
        added = sum(count(article) for article in given if article not in articles)
        if asked and tokens + added > options.instance_tokens and given.keys() - articles.keys():
            yield instance()
            articles, asked, made, tokens = {}, [], made + 1, 0
            added = sum(count(article) for article in given)
        articles |= dict.fromkeys(given)
        tokens += added
        asked.append((question, [article for article, needed in given.items() if needed]))
    if asked:
        yield instance()


SOURCES = (
    Source(
        "squad",
        "SQuAD 1.1 or 2.0, original or flattened JSON: paragraphs in chunks",
        load_squad,
        SquadOptions,
    ),
    Source(
        "hotpotqa",
        "HotpotQA, original JSON: evidence articles in chunks",
        _multihop("hotpotqa", _Hotpot),
        MultihopOptions,
    ),
    Source(
        "musique",
        "MuSiQue, original JSON Lines: supporting paragraphs in chunks",
        _multihop("musique", _Musique),
        MultihopOptions,
    ),
)
