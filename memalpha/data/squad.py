"""SQuAD 1.1 and 2.0 (Rajpurkar et al., arXiv 1606.05250 and 1806.03822) as instances.

Reads the original files (``data[].paragraphs[].{context, qas[]}``), the flat list ``[{context, question, answer}]``, and Hub rows
(``{context, question, answers{text[], answer_start[]}}``). As in Mem-alpha (arXiv 2509.25911, appendix on training data): distinct
paragraphs in file order are packed to chunks of a random 100-2048 tokens; 10 consecutive chunks are an instance. Reasons to skip:
``unanswerable`` (SQuAD 2.0), ``empty answer``, ``answer too long``, ``over max_questions``, ``over max_instances``, ``evidence in
two instances`` (a cut paragraph) and ``malformed``.

Departures: all accepted answers are kept; a long paragraph is cut at sentence ends; no "I learnt some news" frame and no invented
date; no filter for questions that a model answers without the text.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, NonNegativeInt

from memalpha.data.fields import EMPTY_ANSWER, Text, checked, clean, convert, count_items, is_missing
from memalpha.data.packing import Packed, Span, overlapping, pack_texts, split_text
from memalpha.data.rows import Row, data_file, data_path, file_name, iter_rows, json_items, kind_of
from memalpha.data.source import NO_QUESTIONS, Bounds, CommonOptions, LoadResult, Source, number_repeats
from memalpha.data.spool import Spool
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

_FORM = "data[].paragraphs[].{context, qas[]}, or a list of {context, question, answer}"


@dataclass(frozen=True, slots=True)
class SquadOptions(CommonOptions):
    """How SQuAD becomes instances.

    Attributes:
        chunk_tokens: Fewest and most tokens of a chunk, drawn for each.
        chunks: Fewest and most chunks of an instance, drawn for each; the last may have fewer.
        max_answer_tokens: Skip questions whose answers are all longer, in tokens (published: 4; 0 = off).
        shuffle: Put paragraphs in random order; in file order neighbours are from one article.
    """

    chunk_tokens: Bounds = (100, 2048)
    chunks: Bounds = (10, 10)
    max_answer_tokens: NonNegativeInt = 0
    shuffle: bool = False


class _Asked(NamedTuple):
    """A question about a paragraph; ``start`` is the place of its first answer, -1 if unknown."""

    id: str
    text: str
    answers: list[str]
    start: int


def load_squad(source: str, options: SquadOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load SQuAD; InputError if the file is missing, unreadable or not SQuAD. Reads the whole input first."""
    result = LoadResult()
    paragraphs = _Reader(result, options, count_tokens).read(source)
    result.instances = _Builder(result, options, count_tokens, random.Random(f"squad:{seed}")).build(paragraphs)
    return result


class _Paragraph(BaseModel):
    context: Text
    qas: list[Any] | None = None


class _Question(BaseModel):
    question: Text
    id: Any = None
    is_impossible: Any = None


class _Reader:
    def __init__(self, result: LoadResult, options: SquadOptions, count: TokenCounter) -> None:
        self.result, self.options, self.count = result, options, count
        self.paragraphs = Spool()
        self.asked = 0

    def read(self, source: str) -> Spool:
        """Return the distinct paragraphs in order, with their questions as the fields of ``_Asked``."""
        for row in self._rows(source):
            try:
                paragraph = checked(_Paragraph, row.data, row.where)
            except SchemaError as error:
                self.result.unreadable(error, _questions_in(row.data))
                continue
            kept, flat = self.paragraphs.key(paragraph.context), "qas" not in row.data
            for index, item in enumerate([row.data] if flat else paragraph.qas or []):
                where = row.where if flat else f"{row.where} question {index}"
                self._question(item, where, row.data["context"], kept)
        if not len(self.paragraphs):
            first = f": {self.result.problems[0]}" if self.result.problems else ""
            raise SchemaError(f"{source} has no paragraph of SQuAD{first}", expected=_FORM)
        return self.paragraphs

    def _rows(self, source: str) -> Iterator[Row]:
        if not data_path(source).is_file() or kind_of(Path(source)) != ".json":
            yield from iter_rows(source, self.options.split)
            return
        path = data_file(source)
        for index, item in enumerate(json_items(path)):
            where = f"{file_name(path)} item {index}"
            if not isinstance(item, Mapping) or "data" not in item:
                yield Row(where, item)
            elif not isinstance(item["data"], list):
                raise SchemaError(f"{file_name(path)} data holds no list", expected=_FORM)
            else:
                for number, article in enumerate(item["data"]):
                    yield from self._article(article, f"{file_name(path)} data item {number}")

    def _article(self, article: Any, where: str) -> Iterator[Row]:
        paragraphs = article.get("paragraphs") if isinstance(article, Mapping) else None
        if isinstance(paragraphs, list):
            yield from (Row(f"{where} paragraph {index}", paragraph) for index, paragraph in enumerate(paragraphs))
        else:
            self.result.unreadable(f"{where} has no list 'paragraphs'", _questions_in(article))

    def _question(self, item: Any, where: str, context: str, kept: int) -> None:
        self.asked += 1
        self.result.asked += 1
        try:
            data = checked(_Question, item, where)
            name = convert(clean, str(data.id or ""), f"{where} field 'id'")
            given = [] if data.is_impossible is True else _given_answers(item, where)
            pairs = [(convert(clean, text, f"{where} answer"), start) for text, start in given]
        except SchemaError as error:
            self.result.malformed(error)
            return
        answers = list(dict.fromkeys(text for text, _ in pairs if text))
        limit = self.options.max_answer_tokens
        if not answers:
            self.result.skip(EMPTY_ANSWER if given else "unanswerable")
        elif limit and all(self.count(answer) > limit for answer in answers):
            self.result.skip("answer too long")
        else:
            start = next(_place(context, text, start) for text, start in pairs if text)
            self.paragraphs.add(kept, _Asked(name or f"q{self.asked}", data.question, answers, start))


def _questions_in(data: Any) -> int:
    paragraphs = data.get("paragraphs") if isinstance(data, Mapping) else None
    within = paragraphs if isinstance(paragraphs, list) else [paragraphs]
    return sum(count_items(item, "qas") for item in (data, *within))


def _given_answers(data: Mapping[str, Any], where: str) -> list[tuple[Any, Any]]:
    """Return (text, start) pairs from any of the three forms; SchemaError if there are none."""
    if "answer" in data and "answers" not in data:
        answer = data["answer"]
        return [(item, None) for item in (answer if isinstance(answer, list) else ["" if is_missing(answer) else answer])]
    answers = data.get("answers")
    if isinstance(answers, Mapping) and isinstance(answers.get("text"), list):
        texts, starts = answers["text"], answers.get("answer_start")
        starts = starts if isinstance(starts, list) else [starts] if len(texts) == 1 else []
        return [(text, starts[i] if i < len(starts) else None) for i, text in enumerate(texts)]
    if isinstance(answers, list) and all(isinstance(item, Mapping) and "text" in item for item in answers):
        return [(item["text"], item.get("answer_start")) for item in answers]
    raise SchemaError(f"{where} has no answers", expected="'answers' with texts, or 'answer'")


def _place(context: str, answer: str, start: Any) -> int:
    """Return the answer's place in the cleaned context: its given start, else its first occurrence, else -1."""
    cleaned = clean(context)
    if isinstance(start, int) and start >= 0:
        at = len(clean(context[:start] + "|")) - 1
        if cleaned.startswith(answer, at):
            return at
    return cleaned.find(answer)


class _Piece(NamedTuple):
    """A paragraph or a part of it; ``asked`` has the questions whose answer begins here, with the pieces that hold it."""

    text: str
    asked: list[tuple[_Asked, list[int]]]


class _Builder:
    def __init__(self, result: LoadResult, options: SquadOptions, count: TokenCounter, rng: random.Random) -> None:
        self.result, self.options, self.count, self.rng = result, options, count, rng
        self.pieces: dict[int, _Piece] = {}

    def build(self, paragraphs: Spool) -> Iterator[Instance]:
        order = array("I", range(len(paragraphs)))
        if self.options.shuffle:
            self.rng.shuffle(order)
        # Separate generators: draws for an instance do not change later chunks.
        sizes, drawn = random.Random(self.rng.random()), random.Random(self.rng.random())
        packed = pack_texts(self._texts(paragraphs, order), self.options.chunk_tokens, self.count, sizes)
        made = 0
        while group := list(islice(packed, drawn.randint(*self.options.chunks))):
            questions = self._questions(group)
            if self.options.max_instances and made >= self.options.max_instances:
                self.result.skip("over max_instances", len(questions))
            elif not questions:
                self.result.notes[NO_QUESTIONS] += 1
            else:
                asked = number_repeats(self.result.draw(questions, self.options.max_questions, drawn), self.result)
                yield Instance(f"squad-{made}", "squad", tuple(Chunk(chunk.text) for chunk in group), asked)
                made += 1

    def _texts(self, paragraphs: Spool, order: array[int]) -> Iterator[str]:
        made = 0
        for number in order:
            context, rows = paragraphs.get(number)
            spans = split_text(context, self.options.chunk_tokens[1], self.count)
            self.result.notes["paragraphs cut to pieces"] += len(spans) > 1
            pieces = [_Piece(context[start:end], []) for start, end in spans]
            for asked in (_Asked(*row) for row in rows):
                held = _held(asked, spans)
                pieces[held[0]].asked.append((asked, [made + index for index in held]))
            for piece in pieces:
                self.pieces[made] = piece
                made += 1
                yield piece.text

    def _questions(self, group: list[Packed]) -> list[Question]:
        chunk_of = {part: index for index, chunk in enumerate(group) for part in chunk.parts}
        questions = []
        for asked, needs in [asked for part in chunk_of for asked in self.pieces.pop(part).asked]:
            if all(part in chunk_of for part in needs):
                evidence = tuple(sorted({chunk_of[part] for part in needs}))
                questions.append(Question(asked.text, tuple(asked.answers), evidence=evidence, id=asked.id))
            else:
                self.result.skip("evidence in two instances")
        return questions


def _held(asked: _Asked, spans: list[Span]) -> tuple[int, ...]:
    everywhere = tuple(range(len(spans)))
    if asked.start < 0 or len(spans) == 1:
        return everywhere
    return overlapping(spans, Span(asked.start, asked.start + len(asked.answers[0]))) or everywhere


SOURCES = (Source("squad", "SQuAD 1.1 or 2.0, original or flattened JSON: paragraphs in chunks", load_squad, SquadOptions),)
