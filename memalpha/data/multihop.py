"""Questions over several articles: HotpotQA (Yang et al., arXiv 1809.09600), MuSiQue (Trivedi et al., arXiv 2108.00573).

Reads the original HotpotQA JSON or Hub rows (``hotpotqa/hotpot_qa``), a list of ``{question, answer}`` with the articles in option
``corpus``, and MuSiQue JSON Lines (``dgslibisey/MuSiQue``). As published for Mem-alpha (arXiv 2509.25911, HotpotQA), evidence
articles of consecutive questions are gathered up to about ``instance_tokens`` tokens and packed to chunks. Kind: HotpotQA's
``type``, or the hops in the MuSiQue id; metric: the published containment. Evidence: the chunks with supporting articles. Skip
reasons: ``unanswerable`` (marked by MuSiQue), ``empty answer``, ``malformed``.
Departures: chunk lengths as published for SQuAD (random 100-2048 tokens; HotpotQA's published average: 1005); no "I learnt some
news" frame, no invented date; long articles are cut at sentence ends; without supporting ones, all articles are used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from memalpha.data.fields import EMPTY_ANSWER, Cleaned, Scalar, Text, answers, checked, clean, convert
from memalpha.data.packing import cut, pack_texts, places_of
from memalpha.data.rows import Row, data_file, file_rows, iter_rows
from memalpha.data.source import Bounds, CommonOptions, Loader, LoadResult, Source, finish, read_rows
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question


@dataclass(frozen=True, slots=True)
class MultihopOptions(CommonOptions):
    """How questions with articles become instances.

    Attributes:
        chunk_tokens: Minimum and maximum tokens of a chunk; drawn per chunk.
        instance_tokens: Tokens of articles at which an instance is closed.
        articles: Use only the articles a question needs (``evidence``), or also the distractors (``all``).
        corpus: File with a list of articles for all questions, if questions have no articles of their own.
    """

    chunk_tokens: Bounds = (100, 2048)
    instance_tokens: PositiveInt = 10_000
    articles: Literal["evidence", "all"] = "evidence"
    corpus: str = ""


class _Article(NamedTuple):
    text: str
    needed: bool


class _Asked(NamedTuple):
    question: Question
    articles: tuple[_Article, ...]


def _loader(name: str, articles_of: Callable[[Any, str], tuple[_Article, ...]]) -> Loader:
    def load(source: str, options: MultihopOptions, seed: int, count: TokenCounter) -> LoadResult:
        result, corpus = LoadResult(), _corpus(options.corpus)

        def asked(row: Row) -> _Asked | None:
            question = _question(checked(_Question, row.data, row.where), row.where)
            if isinstance(question, str):
                result.skip(question)
                return None
            articles = corpus or articles_of(row.data, row.where)
            if not articles:
                fix = "give a file of articles as option 'corpus'"
                raise SchemaError(f"{row.where} has no article", expected="at least one", fix=fix)
            needed = tuple(article for article in articles if article.needed)
            return _Asked(question, needed if needed and options.articles == "evidence" else articles)

        questions = filter(None, read_rows(iter_rows(source, options.split), result, lambda data: 1, asked))
        result.instances = finish(_instances(name, questions, options, seed, count), options, seed, result)
        return result

    return load


class _Question(BaseModel):
    question: Text
    answer: Any = None
    answer_aliases: Any = None
    answerable: Any = None
    hotpot_id: Annotated[Scalar, Field(alias="_id")] = ""
    id: Scalar = ""
    type: Scalar = ""


def _question(data: _Question, where: str) -> Question | str:
    if data.answerable is False:
        return "unanswerable"
    given = data.answer if isinstance(data.answer, list) else [data.answer]
    aliases = data.answer_aliases if isinstance(data.answer_aliases, list) else []
    if not (golds := convert(answers, [*given, *aliases], f"{where} field 'answer'")):
        return EMPTY_ANSWER
    name = data.hotpot_id or data.id
    kind = data.type or (name.partition("__")[0] if "__" in name else "single")
    return Question(data.question, golds, kind=kind, id=name or where)


def _as_pairs(first: str, second: str) -> BeforeValidator:

    def pairs(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value or []
        left, right = value.get(first), value.get(second)
        if not isinstance(left, list) or not isinstance(right, list) or len(left) != len(right):
            raise ValueError(f"expected lists {first!r} and {second!r} of one length")
        return list(zip(left, right, strict=True))

    return BeforeValidator(pairs)


def _body(value: Any) -> str:
    return clean("".join(clean(sentence) + " " for sentence in value) if isinstance(value, list) else value)


class _Hotpot(BaseModel):
    context: Annotated[list[tuple[Cleaned, Annotated[str, BeforeValidator(_body)]]], _as_pairs("title", "sentences")]
    supporting_facts: Annotated[list[tuple[Cleaned, Any]], _as_pairs("title", "sent_id")] = []


def _hotpot_articles(row: Any, where: str) -> tuple[_Article, ...]:
    data = checked(_Hotpot, row, where)
    needed = {title for title, _ in data.supporting_facts}
    articles = (_Article(f"{title}\n{body}".strip(), title in needed) for title, body in data.context)
    return tuple(article for article in articles if article.text)


class _Paragraph(BaseModel):
    title: Scalar = ""
    paragraph_text: Text
    is_supporting: Any = None


class _Musique(BaseModel):
    paragraphs: list[_Paragraph]


def _musique_articles(row: Any, where: str) -> tuple[_Article, ...]:
    found = checked(_Musique, row, where).paragraphs
    return tuple(_Article(f"{item.title}\n{item.paragraph_text}".strip(), item.is_supporting is True) for item in found)


class _Corpus(BaseModel):
    articles: list[Cleaned]


def _corpus(path: str) -> tuple[_Article, ...]:
    if not path:
        return ()
    rows = [row.data for row in file_rows(data_file(path))]
    return tuple(_Article(text, needed=False) for text in checked(_Corpus, {"articles": rows}, path).articles if text)


load_musique = _loader("musique", _musique_articles)


@dataclass(slots=True)
class _Gathered:
    articles: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[Question, tuple[int, ...]]] = field(default_factory=list)
    tokens: int = 0


def _instances(
    name: str, questions: Iterable[_Asked], options: MultihopOptions, seed: int, count: TokenCounter
) -> Iterator[Instance]:
    gathered, made = _Gathered(), 0
    rng = random.Random(f"{name}:{seed}")
    for question, articles in questions:
        new = [article.text for article in articles if article.text not in gathered.articles]
        added = sum(count(article) for article in new)
        if gathered.asked and gathered.tokens + added > options.instance_tokens and new:
            yield _instance(name, made, gathered, options, rng, count)
            gathered, made = _Gathered(), made + 1
            new, added = [article.text for article in articles], sum(count(article.text) for article in articles)
        for article in new:
            gathered.articles.setdefault(article, len(gathered.articles))
        gathered.tokens += added
        gathered.asked.append((question, tuple(gathered.articles[article.text] for article in articles if article.needed)))
    if gathered.asked:
        yield _instance(name, made, gathered, options, rng, count)


def _instance(
    name: str, number: int, gathered: _Gathered, options: MultihopOptions, rng: random.Random, count: TokenCounter
) -> Instance:
    pieces = [(which, part) for text, which in gathered.articles.items() for part in cut(text, options.chunk_tokens[1], count)]
    packed = list(pack_texts((piece for _, piece in pieces), options.chunk_tokens, count, rng))
    places = places_of(packed, [which for which, _ in pieces])
    questions = []
    for question, needs in gathered.asked:
        evidence = tuple(sorted({place for which in needs for place in places[which]})) or None
        questions.append(replace(question, evidence=evidence))
    return Instance(f"{name}-{number}", name, tuple(Chunk(chunk.text) for chunk in packed), tuple(questions))


SOURCES = (
    Source(
        "hotpotqa", "HotpotQA, original JSON: evidence articles in chunks", _loader("hotpotqa", _hotpot_articles), MultihopOptions
    ),
    Source(
        "musique",
        "MuSiQue, original JSON Lines: supporting paragraphs in chunks",
        _loader("musique", _musique_articles),
        MultihopOptions,
    ),
)
