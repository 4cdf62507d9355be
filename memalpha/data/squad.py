"""SQuAD 1.1 and 2.0 (Rajpurkar et al., arXiv 1606.05250 and 1806.03822) as instances: paragraphs, then questions.

Reads the original files (``data[].paragraphs[].{context, qas[]}``), the flattened list ``[{context, question, answer}]``, and
rows as on the Hub (``rajpurkar/squad``, ``rajpurkar/squad_v2``: ``{context, question, answers{text[], answer_start[]}}``).

Construction as published for Mem-alpha (arXiv 2509.25911, appendix on training data): the distinct paragraphs, in file order,
are packed to chunks of a random 100-2048 tokens; every 10 consecutive chunks are an instance; its questions are those of its
paragraphs.

What always holds: paragraphs are gathered on disk, since one may come again anywhere in the input, so memory does not grow with
it; each paragraph is read once; the evidence of a question is the chunk that holds its answer's place; no chunk is
longer than the range's upper end; questions + skipped = questions of the input. Reasons to skip: ``unanswerable`` (no answer by
SQuAD 2.0's own mark), ``empty answer``, ``answer too long``, ``over max_questions``, ``over max_instances``, ``evidence in two
instances`` (an answer over the cut of a paragraph that fell on the border), ``malformed``.

Departures from the published set: all accepted answers are kept, not only the first; a paragraph longer than a chunk is cut at
ends of sentences, where the published one makes an over-long chunk; chunks have no "I learnt some news" frame and no made-up
date; questions that a model answers with its book closed are not filtered out, since that takes a model. Instances left without
a question are dropped (``notes``).
"""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.data.fields import listed, mapping, missing
from memalpha.data.files import data_path, file_name
from memalpha.data.packing import Packed, Span, TokenRange, check_range, overlapping, pack_texts, split_text
from memalpha.data.reading import draw_questions, number_repeats
from memalpha.data.rows import Row, check_text, data_file, file_rows, iter_rows, kind_of, open_json
from memalpha.data.source import LoadResult
from memalpha.data.spool import Spool
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

SOURCE = "squad"
"""``Instance.source`` of everything made here."""


@dataclass(frozen=True, slots=True)
class SquadOptions:
    """How SQuAD becomes instances.

    Attributes:
        chunk_tokens: Fewest and most tokens of a chunk; each chunk's length is drawn from between.
        chunks: Fewest and most chunks of an instance, drawn for each; the last may have fewer.
        max_answer_tokens: Leave out questions all of whose answers are longer, in tokens (published: 4; 0 = off).
        max_questions: Most questions of an instance, drawn evenly (0 = all).
        max_instances: Stop after so many instances that have questions (0 = off).
        shuffle: Whether paragraphs are put in random order first; in file order neighbours are of one article.
        split: Split of a data set on the Hub.
    """

    chunk_tokens: tuple[int, int] = (100, 2048)
    chunks: tuple[int, int] = (10, 10)
    max_answer_tokens: int = 0
    max_questions: int = 0
    max_instances: int = 0
    shuffle: bool = False
    split: str = "train"

    def __post_init__(self) -> None:
        """Check the ranges and bounds; InputError names the first that cannot be."""
        check_range("option 'chunk_tokens'", self.chunk_tokens)
        check_range("option 'chunks'", self.chunks)
        for name in ("max_answer_tokens", "max_questions", "max_instances"):
            if getattr(self, name) < 0:
                raise InputError(f"option {name!r} is {getattr(self, name)}", expected="at least 0 (0 = off)")


class _Asked(NamedTuple):
    """A question about one paragraph; ``start`` is the place of its first answer there, -1 if not known."""

    id: str
    text: str
    answers: tuple[str, ...]
    start: int


def load_squad(source: str, options: SquadOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load SQuAD; see the module for the formats read and the construction.

    The input is read to its end before the first instance is made; instances are made as they are asked for.

    Raises:
        InputError: If the file is missing, or cannot be read, or is not SQuAD.
    """
    result = LoadResult()
    paragraphs = _Reader(result, options, count_tokens).read(source)
    result.instances = _Builder(result, options, count_tokens, random.Random(f"{SOURCE}:{seed}")).build(paragraphs)
    return result


# ------------------------------------------------------------------------------------------------ reading
class _Reader:
    """Gathers the questions to keep by paragraph, and counts the others."""

    def __init__(self, result: LoadResult, options: SquadOptions, count: TokenCounter) -> None:
        self.result, self.options, self.count = result, options, count
        self.paragraphs = Spool()
        self.rows = self.asked = 0

    def read(self, source: str) -> Spool:
        """Return the distinct paragraphs in order, each with its questions as the fields of ``_Asked``."""
        for row in self._rows(source):
            self.rows += 1
            self._row(row)
        if not len(self.paragraphs):
            first = f": {self.result.problems[0]}" if self.result.problems else ""
            raise SchemaError(
                f"{source} has {self.rows} rows and no paragraph of SQuAD{first}",
                expected="data[].paragraphs[].{context, qas[]}, or a list of {context, question, answer}",
            )
        return self.paragraphs

    def _rows(self, source: str) -> Iterator[Row]:
        """Yield paragraphs with ``qas``, or flat rows, whichever the input holds."""
        if not data_path(source).is_file() or kind_of(Path(source)) != ".json":
            return iter_rows(source, self.options.split)
        return self._json_rows(data_file(source))

    def _json_rows(self, path: Path) -> Iterator[Row]:
        with open_json(path) as reader:
            if reader.peek() != "{":
                yield from file_rows(path)
                return
            keys = []
            for key in reader.members():
                keys.append(key)
                if key != "data":
                    reader.value()
                    continue
                if reader.peek() != "[":
                    raise SchemaError(f"{file_name(path)} data holds no list", expected="data[].paragraphs[].{context, qas[]}")
                for index, article in enumerate(reader.items()):
                    yield from self._article(Row(f"{file_name(path)} data item {index}", article))
            reader.end()
        if "data" not in keys:
            raise SchemaError(
                f"{file_name(path)} holds an object with {sorted(keys)[:8]}", expected="an object with 'data', or a list of rows"
            )

    def _article(self, article: Row) -> Iterator[Row]:
        paragraphs = article.data.get("paragraphs") if isinstance(article.data, Mapping) else None
        if not isinstance(paragraphs, list):
            held = _questions_in(article.data)
            self.result.saw(held)
            self.result.malformed(f"{article.where} has no list 'paragraphs'", held)
            return
        for index, paragraph in enumerate(paragraphs):
            yield Row(f"{article.where} paragraph {index}", paragraph)

    def _row(self, row: Row) -> None:
        data = row.data
        nested = isinstance(data, Mapping) and "qas" in data
        asked = data["qas"] if nested else [data]
        try:
            if not isinstance(mapping(data, row.where).get("qas", asked), list):
                raise SchemaError(f"{row.where} is no paragraph", expected="an object with a context and its questions")
            context = check_text(data.get("context"), f"{row.where} field 'context'")
            if not context:
                raise SchemaError(f"{row.where} field 'context' is empty", expected="text")
        except SchemaError as error:
            held = _questions_in(data)
            self.result.saw(held)
            self.result.malformed(str(error), held)
            return
        kept = self.paragraphs.key(context)
        for index, item in enumerate(asked):
            self._question(Row(f"{row.where} question {index}" if nested else row.where, item), data["context"], kept)

    def _question(self, row: Row, context: str, kept: int) -> None:
        """Add a question to the paragraph of number ``kept``, or count why not."""
        self.asked += 1
        self.result.saw()
        try:
            if not isinstance(row.data, Mapping):
                raise SchemaError(f"{row.where} is {type(row.data).__name__}", expected="an object")
            text = check_text(row.data.get("question"), f"{row.where} field 'question'")
            if not text:
                raise SchemaError(f"{row.where} field 'question' is empty", expected="text")
            name = check_text(str(row.data.get("id") or ""), f"{row.where} field 'id'")
            reason, answers, start = self._answers(row, context)
        except SchemaError as error:
            self.result.malformed(str(error))
            return
        if reason:
            self.result.skip(reason)
        else:
            self.paragraphs.add(kept, _Asked(name or f"q{self.asked}", text, answers, start))

    def _answers(self, row: Row, context: str) -> tuple[str, tuple[str, ...], int]:
        """Return the reason to skip or "", the distinct answers, and the place of the first in the cleaned context."""
        given = [] if row.data.get("is_impossible") is True else _given_answers(row)
        if not given:
            return "unanswerable", (), -1
        pairs = [(check_text(text, f"{row.where} answer"), start) for text, start in given]
        pairs = [(text, start) for text, start in pairs if text]
        if not pairs:
            return "empty answer", (), -1
        answers = tuple(dict.fromkeys(text for text, _ in pairs))
        limit = self.options.max_answer_tokens
        if limit and all(self.count(answer) > limit for answer in answers):
            return "answer too long", (), -1
        return "", answers, _place(context, *pairs[0])


def _questions_in(data: Any) -> int:
    """How many questions a row that cannot be read shows to hold, a paragraph or an article; 1 where that cannot be told."""
    if not isinstance(data, Mapping):
        return 1
    paragraphs = data.get("paragraphs")
    within = paragraphs if isinstance(paragraphs, list) else [paragraphs]
    return max(1, sum(listed(item.get("qas")) for item in (data, *within) if isinstance(item, Mapping)))


def _given_answers(row: Row) -> list[tuple[Any, Any]]:
    """Return (text, start) pairs from any of the three forms; SchemaError if there are no answers of any form."""
    data = row.data
    if "answer" in data and "answers" not in data:
        answer = data["answer"]
        return [(item, None) for item in (answer if isinstance(answer, list) else ["" if missing(answer) else answer])]
    answers = data.get("answers")
    if isinstance(answers, Mapping) and isinstance(answers.get("text"), list):
        texts, starts = answers["text"], answers.get("answer_start")
        starts = starts if isinstance(starts, list) else [starts] if len(texts) == 1 else []
        return [(text, starts[i] if i < len(starts) else None) for i, text in enumerate(texts)]
    if isinstance(answers, list) and all(isinstance(item, Mapping) and "text" in item for item in answers):
        return [(item["text"], item.get("answer_start")) for item in answers]
    raise SchemaError(f"{row.where} has no answers", expected="'answers' with texts, or 'answer'")


def _place(context: str, answer: str, start: Any) -> int:
    """Return where an answer stands in the cleaned context: at its given start, else where it comes first, else -1."""
    cleaned = check_text(context, "context")
    if isinstance(start, int) and start >= 0:
        at = len(check_text(context[:start] + "|", "context")) - 1
        if cleaned.startswith(answer, at):
            return at
    return cleaned.find(answer)


# ------------------------------------------------------------------------------------------------ building
class _Piece(NamedTuple):
    """A paragraph, or a part of one that is too long.

    ``asked`` is the questions whose answer begins in it, each with the numbers of the pieces that hold its answer.
    """

    text: str
    asked: tuple[tuple[_Asked, tuple[int, ...]], ...]


class _Builder:
    """Packs paragraphs to chunks, and chunks to instances."""

    def __init__(self, result: LoadResult, options: SquadOptions, count: TokenCounter, rng: random.Random) -> None:
        self.result, self.options, self.count, self.rng = result, options, count, rng

    def build(self, paragraphs: Spool) -> Iterator[Instance]:
        """Yield the instances that have a question."""
        order = array("I", range(len(paragraphs)))
        if self.options.shuffle:
            self.rng.shuffle(order)
        pieces: dict[int, _Piece] = {}
        # One generator for each kind of draw: what is drawn for an instance does not move the chunks after it.
        sizes, drawn = random.Random(self.rng.random()), random.Random(self.rng.random())
        texts = self._texts((paragraphs.get(number) for number in order), pieces)
        packed = pack_texts(texts, TokenRange(*self.options.chunk_tokens), self.count, sizes)
        made = 0
        while group := list(islice(packed, drawn.randint(*self.options.chunks))):
            questions = self._questions(group, pieces)
            for part in (part for chunk in group for part in chunk.parts):
                del pieces[part]
            if self.options.max_instances and made >= self.options.max_instances:
                self.result.skip("over max_instances", len(questions))
            elif not questions:
                self.result.notes["instances without questions dropped"] += 1
            else:
                chunks = tuple(Chunk(chunk.text) for chunk in group)
                asked = tuple(
                    number_repeats(draw_questions(questions, self.options.max_questions, drawn, self.result), self.result)
                )
                yield Instance(f"{SOURCE}-{made}", SOURCE, chunks, asked)
                made += 1

    def _texts(self, paragraphs: Iterable[tuple[str, list[Any]]], pieces: dict[int, _Piece]) -> Iterator[str]:
        """Yield the text of each piece of the paragraphs, when it was added to ``pieces`` under its number."""
        made = 0
        for context, rows in paragraphs:
            asked = [_Asked(name, text, tuple(answers), start) for name, text, answers, start in rows]
            spans = split_text(context, self.options.chunk_tokens[1], self.count)
            self.result.notes["paragraphs cut to pieces"] += len(spans) > 1
            first, begun = made, defaultdict[int, list[tuple[_Asked, tuple[int, ...]]]](list)
            for question in asked:
                held = _held(question, spans)
                begun[held[0]].append((question, tuple(first + i for i in held)))
            for i, span in enumerate(spans):
                pieces[made] = _Piece(context[span.start : span.end], tuple(begun[i]))
                made += 1
                yield pieces[made - 1].text

    def _questions(self, group: list[Packed], pieces: dict[int, _Piece]) -> list[Question]:
        """Return the questions of an instance's pieces, with the chunks that hold their answers."""
        chunk_of = {part: index for index, chunk in enumerate(group) for part in chunk.parts}
        questions = []
        for piece in (pieces[part] for part in chunk_of):
            for asked, needs in piece.asked:
                if any(part not in chunk_of for part in needs):
                    self.result.skip("evidence in two instances")
                    continue
                evidence = tuple(sorted({chunk_of[part] for part in needs}))
                questions.append(Question(asked.text, asked.answers, evidence=evidence, id=asked.id))
        return questions


def _held(asked: _Asked, spans: list[Span]) -> tuple[int, ...]:
    """Return the pieces of a paragraph that hold the answer; all of them if its place is not known."""
    if asked.start < 0 or len(spans) == 1:
        return tuple(range(len(spans)))
    return overlapping(spans, Span(asked.start, asked.start + len(asked.answers[0]))) or tuple(range(len(spans)))
