"""Questions that take several articles: HotpotQA (Yang et al., arXiv 1809.09600), MuSiQue (Trivedi et al., arXiv 2108.00573).

Reads HotpotQA's JSON (``{_id, question, answer, supporting_facts[[title, n]], context[[title, sentences[]]], type, level}``), its
rows on the Hub (``hotpotqa/hotpot_qa``), a list of ``{question, answer}`` with the articles in a file of their own (option
``corpus``: a list of texts), and MuSiQue's JSON Lines (``{id, question, answer, answer_aliases[], answerable, paragraphs[{title,
paragraph_text, is_supporting}]}``), also on the Hub (``dgslibisey/MuSiQue``).

Construction as published for Mem-alpha (arXiv 2509.25911, HotpotQA; the same is done for MuSiQue here): the evidence articles of
consecutive questions are gathered until they have about ``instance_tokens`` tokens, packed to chunks, and asked about. The kinds
are HotpotQA's ``type`` and the number of hops that begins a MuSiQue id; the metric is the published containment.

What always holds: questions stream, so memory is that of one instance; an article stands once in an instance, however many
questions need it; the evidence of a question is the chunks with its supporting articles. Reasons to skip: ``unanswerable``
(MuSiQue's own mark), ``empty answer``, ``malformed``.

Departures: chunks have the lengths of SQuAD's published ones (a random 100-2048 tokens; 1005 on average as published); they have no
"I learnt some news" frame and no made-up date; an article longer than a chunk is cut at ends of sentences; where the input names no
supporting article all of a question's articles are taken.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from memalpha.data.fields import EMPTY_ANSWER, answers, first_of, items, mapping, optional_text, text, texts
from memalpha.data.files import file_name
from memalpha.data.packing import TokenRange, check_range, pack_texts, split_text
from memalpha.data.reading import CommonOptions, check_at_least, finish, read_questions, read_rows
from memalpha.data.rows import Row, check_text, data_file, file_rows, iter_rows
from memalpha.data.source import LoadResult
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question


@dataclass(frozen=True, slots=True)
class MultihopOptions(CommonOptions):
    """How questions with articles become instances.

    Attributes:
        chunk_tokens: Fewest and most tokens of a chunk; each chunk's length is drawn from between.
        instance_tokens: Tokens of articles at which an instance is closed.
        articles: Whether to take only the articles that a question needs, or those meant to distract as well.
        corpus: File with a list of articles that all questions are about; for questions without articles of their own.
    """

    chunk_tokens: tuple[int, int] = (100, 2048)
    instance_tokens: int = 10_000
    articles: Literal["evidence", "all"] = "evidence"
    corpus: str = ""

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_range("option 'chunk_tokens'", self.chunk_tokens)
        check_at_least(self, 1, "instance_tokens")


class _Article(NamedTuple):
    text: str
    needed: bool


class _Asked(NamedTuple):
    question: Question
    articles: tuple[_Article, ...]


@dataclass(slots=True)
class _Gathered:
    """Articles and questions of the instance being made: text of each article to its number."""

    articles: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[Question, tuple[int, ...]]] = field(default_factory=list)
    tokens: int = 0


def load_hotpotqa(source: str, options: MultihopOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load HotpotQA question by question; raises InputError if the input cannot be read."""
    return _load("hotpotqa", _hotpot_articles, source, options, seed, count_tokens)


def load_musique(source: str, options: MultihopOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load MuSiQue question by question; raises InputError if the input cannot be read."""
    return _load("musique", _musique_articles, source, options, seed, count_tokens)


def _load(name: str, articles_of: Any, source: str, options: MultihopOptions, seed: int, count: TokenCounter) -> LoadResult:
    result = LoadResult()
    corpus = _corpus(options.corpus) if options.corpus else None

    def asked(row: Row) -> list[_Asked]:
        found: list[_Asked] = []

        def question(item: Any, where: str) -> Question | str:
            data = mapping(item, row.where)
            made = _question(data, row.where)
            if isinstance(made, Question):
                found.append(_Asked(made, _chosen(articles_of(data, row.where) if corpus is None else corpus, options, row.where)))
            return made

        list(read_questions([row.data], row.where, result, question))
        return found

    questions = (one for row in read_rows(iter_rows(source, options.split), result, lambda data: 1, asked) for one in row)
    result.instances = finish(_instances(name, questions, options, seed, count), options, seed, result)
    return result


# ------------------------------------------------------------------------------------------------ reading
def _question(data: Mapping[str, Any], where: str) -> Question | str:
    words = text(data, "question", where)
    if data.get("answerable") is False:
        return "unanswerable"
    given, aliases = data.get("answer"), data.get("answer_aliases")
    accepted = [*(given if isinstance(given, list) else [given]), *(aliases if isinstance(aliases, list) else [])]
    if not (golds := answers(accepted, f"{where} field 'answer'")):
        return EMPTY_ANSWER
    name = optional_text(data, "_id", where) or optional_text(data, "id", where)
    kind = optional_text(data, "type", where) or (name.partition("__")[0] if "__" in name else "single")
    return Question(words, golds, kind=kind, id=name or where)


def _hotpot_articles(data: Mapping[str, Any], where: str) -> tuple[_Article, ...]:
    given = first_of(data, ["context"], where)
    pairs = _pairs(given, "title", "sentences", f"{where} field 'context'")
    facts = data.get("supporting_facts")
    needed = {title for title, _ in _pairs(facts, "title", "sent_id", f"{where} field 'supporting_facts'")} if facts else set()
    articles = []
    for index, (title, sentences) in enumerate(pairs):
        place = f"{where} article {index}"
        name = check_text(title, f"{place} title")
        body = check_text(
            "".join(check_text(s, place) + " " for s in sentences) if isinstance(sentences, list) else sentences, place
        )
        articles.append(_Article(f"{name}\n{body}".strip(), title in needed))
    return tuple(article for article in articles if article.text)


def _pairs(value: Any, first: str, second: str, where: str) -> list[tuple[Any, Any]]:
    """Pairs from a list of pairs, or from two lists in an object as on the Hub."""
    if isinstance(value, Mapping):
        left, right = items(value, first, where), items(value, second, where)
        if len(left) != len(right):
            raise SchemaError(f"{where} has {len(left)} {first!r} and {len(right)} {second!r}", expected="as many of both")
        value = [list(pair) for pair in zip(left, right, strict=True)]
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise SchemaError(f"{where} is no list of pairs", expected=f"[{first}, {second}] pairs")
    if not all(isinstance(pair[0], str) for pair in value):
        raise SchemaError(f"{where} has a title that is no text", expected=f"[{first}, {second}] pairs")
    return [(left, right) for left, right in value]


def _musique_articles(data: Mapping[str, Any], where: str) -> tuple[_Article, ...]:
    articles = []
    for index, item in enumerate(items(data, "paragraphs", where)):
        place = f"{where} paragraph {index}"
        paragraph = mapping(item, place)
        title, body = optional_text(paragraph, "title", place), text(paragraph, "paragraph_text", place)
        articles.append(_Article(f"{title}\n{body}".strip(), paragraph.get("is_supporting") is True))
    return tuple(articles)


def _corpus(path: str) -> tuple[_Article, ...]:
    file = data_file(path)
    return tuple(_Article(article, needed=False) for article in texts([row.data for row in file_rows(file)], file_name(file)))


def _chosen(articles: tuple[_Article, ...], options: MultihopOptions, where: str) -> tuple[_Article, ...]:
    needed = tuple(article for article in articles if article.needed)
    if not articles:
        raise SchemaError(f"{where} has no article", expected="at least one", fix="give a file of articles as option 'corpus'")
    return needed if needed and options.articles == "evidence" else articles


# ------------------------------------------------------------------------------------------------ building
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
    pieces: list[tuple[int, str]] = []
    for article, which in gathered.articles.items():
        spans = split_text(article, options.chunk_tokens[1], count)
        pieces += [(which, article[span.start : span.end]) for span in spans]
    packed = list(pack_texts((piece for _, piece in pieces), TokenRange(*options.chunk_tokens), count, rng))
    places: dict[int, set[int]] = {}
    for index, chunk in enumerate(packed):
        for part in chunk.parts:
            places.setdefault(pieces[part][0], set()).add(index)
    questions = []
    for question, needs in gathered.asked:
        evidence = tuple(sorted({place for which in needs for place in places[which]})) or None
        questions.append(
            Question(question.text, question.answers, question.metric, question.kind, evidence=evidence, id=question.id)
        )
    return Instance(f"{name}-{number}", name, tuple(Chunk(chunk.text) for chunk in packed), tuple(questions))
