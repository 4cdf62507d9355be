"""Sets of labelled sentences as instances: learn the labels' numbers from examples, then give those of sentences not seen.

An instance is some chunks of labelled examples, one after another as ``Sentence: ...`` and ``Label: number``, and questions for the
label numbers of other sentences. The numbers are the labels in an order drawn for each instance, so they can be learned from its
chunks alone. The metric is the published ``boxed``.

Construction as published for Mem-alpha (arXiv 2509.25911, TREC, NLU, PubMed-RCT): 10 chunks, each of about the set's published
length (``chunk_tokens``), and 100 questions. A sentence of the input is an example or a question once at most. With option
``examples`` the input's sentences are all questions, and the examples of each instance are drawn from the file given, which is how
a test set is evaluated with the training set's examples (MemoryAgentBench, arXiv 2507.05257).

What always holds: no sentence stands among the examples of its own instance, not even in other letter case; the evidence of a
question is the chunks with an example of its label; examples are drawn evenly over the labels while there are any. A question of
the input is a sentence of it; reasons to skip are ``shown as an example``, ``label not shown`` (its label has no example in the
instance), ``repeated sentence``, ``held out``, ``left over`` (too few for another instance), ``other split``, ``empty
sentence``, ``empty answer``, ``over max_questions``, ``over max_instances`` and ``malformed``. Sentences are kept on disk; memory
grows by about 15 bytes a sentence.

Departures: sentences are not repeated over instances (the published 180 instances of TREC hold its sentences several times over);
MemoryAgentBench's test questions are never training questions unless its files are given as input, where the published training
questions of TREC and NLU are those test questions (``memalpha.data.leaks`` finds such a thing).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memalpha.data.labelled import Labelled, Reader
from memalpha.data.reading import CommonOptions, check_at_least, finish
from memalpha.data.source import LoadResult
from memalpha.data.spool import Spool
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Instance, Question

_ASK = "Which label number does this have, going by the examples? Answer with the number in \\boxed{}."


@dataclass(frozen=True, slots=True)
class ClassificationOptions(CommonOptions):
    r"""How labelled sentences become instances.

    Attributes:
        chunk_tokens: About how many tokens a chunk has (0 = the set's published length).
        chunks: Chunks of an instance; fewer where the examples run out.
        questions: Most questions of an instance (published: 100).
        examples: File or Hub name with the examples ("" = part of the input).
        examples_split: Split of ``examples``, where it has several.
        held_out: File or Hub name whose sentences are left out of the input, such as the test set ("" = none).
        held_out_split: Split of ``held_out``, where it has several.
        metric: Metric of every question; ``boxed`` takes the number in ``\boxed{}``, ``label`` the first label given.
    """

    chunk_tokens: int = 0
    chunks: int = 10
    questions: int = 100
    examples: str = ""
    examples_split: str = "train"
    held_out: str = ""
    held_out_split: str = "test"
    metric: str = "boxed"

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 0, "chunk_tokens")
        check_at_least(self, 1, "chunks", "questions")
        check_metric(self.metric, judged=True)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """One set: its loader when called.

    Attributes:
        name: ``Instance.source`` of everything made of it.
        read: Reads its files.
        chunk_tokens: Published tokens of a chunk, or of the set most like it.
        word: What the examples call a sentence.
        kind: Kind of a question by its label.
    """

    name: str
    read: Reader
    chunk_tokens: int
    word: str = "Sentence"
    kind: Callable[[str], str] = str

    def __call__(self, source: str, options: ClassificationOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
        """Load the set; the input is read once, to disk, before the first instance is made. InputError if it cannot be read."""
        result = LoadResult()
        held_out = self._other(options.held_out, options.held_out_split)
        asked = _Pool(_of_split(self.read(source, options.split), options.split, result), result, held_out)
        if not len(asked.labels):
            first = f": {result.problems[0]}" if result.problems else ""
            raise SchemaError(f"{source} has no labelled sentence{first}", expected="sentences with labels")
        shown = self._other(options.examples, options.examples_split)
        result.instances = finish(_Builder(self, asked, shown, options, seed, count_tokens, result).build(), options, seed, result)
        return result

    def _other(self, source: str, split: str) -> _Pool | None:
        """The sentences of another file, whose questions are not asked; None if none is named."""
        if not source:
            return None
        pool = _Pool(_of_split(self.read(source, split), split, LoadResult()), LoadResult())
        if not len(pool.labels):
            raise InputError(f"{source} has no labelled sentence", expected="sentences with labels")
        return pool


def _of_split(rows: Iterable[Labelled], split: str, result: LoadResult) -> Iterator[Labelled]:
    """Leave out sentences of other splits, and count all."""
    for row in rows:
        result.saw()
        if row.split in ("", split):
            yield row
        else:
            result.skip("other split")


class _Pool:
    """Distinct sentences on disk, their labels in memory."""

    def __init__(self, rows: Iterable[Labelled], result: LoadResult, held_out: _Pool | None = None) -> None:
        self.spool, self.labels, self.names = Spool(), array("I"), dict[str, int]()
        for row in rows:
            if isinstance(row.label, SchemaError):
                result.malformed(str(row.label))
            elif not row.text or not row.label:
                result.skip("empty sentence" if not row.text else "empty answer")
            elif self.spool.find(key := row.text.casefold()) is not None:
                result.skip("repeated sentence")
            elif held_out is not None and held_out.spool.find(key) is not None:
                result.skip("held out")
            else:
                self.spool.add(self.spool.key(key), [row.text, row.where])
                self.labels.append(self.names.setdefault(row.label, len(self.names)))

    def text(self, number: int) -> tuple[str, str]:
        """The sentence of that number, and its place in the input."""
        text, where = self.spool.get(number)[1][0]
        return str(text), str(where)

    def key(self, number: int) -> str:
        return self.spool.get(number)[0]


class _Example(NamedTuple):
    text: str
    label: str
    number: int


def _shuffled(length: int, rng: random.Random) -> array[int]:
    order = array("I", range(length))
    rng.shuffle(order)
    return order


def _take(left: array[int], taken: bytearray, number: int) -> list[int]:
    """Take the next so many sentences that nobody took, and mark them."""
    chosen: list[int] = []
    while left and len(chosen) < number:
        if not taken[index := left.pop()]:
            taken[index] = True
            chosen.append(index)
    return chosen


def _next(queues: dict[int, array[int]], label: int, barred: Callable[[int], bool]) -> int | None:
    """Take the next sentence of a label that is not barred, None if there is none; a queue that is used up is removed."""
    queue, found = queues[label], None
    while queue and found is None:
        index = queue.pop()
        found = None if barred(index) else index
    if not queue:
        del queues[label]
    return found


class _Builder:
    """Draws the questions and examples of one instance after another."""

    def __init__(
        self,
        labelled: LabelledSet,
        asked: _Pool,
        shown: _Pool | None,
        options: ClassificationOptions,
        seed: int,
        count: TokenCounter,
        result: LoadResult,
    ) -> None:
        self.set, self.asked, self.shown, self.options, self.result, self.count = labelled, asked, shown, options, result, count
        self.seed, self.rng = seed, random.Random(f"{labelled.name}:{seed}")
        self.tokens = options.chunk_tokens or labelled.chunk_tokens
        names = {*asked.names, *(shown.names if shown else ())}
        self.labels = sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))
        self.asked_names, self.shown_names = list(asked.names), list((shown or asked).names)

    def build(self) -> Iterator[Instance]:
        """Yield instances until the sentences run out."""
        left, taken = _shuffled(len(self.asked.labels), self.rng), bytearray(len(self.asked.labels))
        own = self._queues(self.asked, left) if self.shown is None else {}
        free, number = len(left), 0
        while free:
            if number and self.shown is None and free < 2 * self.options.questions:
                self.result.skip("left over", free)
                return
            most = free if self.shown is not None else max(1, free // 2)
            asked = _take(left, taken, min(self.options.questions, most))
            rng = random.Random(f"{self.set.name}:{self.seed}:{number}")
            examples = self._own_examples(own, taken, rng) if self.shown is None else self._given_examples(self.shown, asked, rng)
            yield self._instance(number, asked, examples, rng)
            free -= len(asked) + (sum(map(len, examples)) if self.shown is None else 0)
            number += 1

    def _own_examples(self, queues: dict[int, array[int]], taken: bytearray, rng: random.Random) -> list[list[_Example]]:
        chunks = self._examples(self.asked, queues, rng, lambda index: bool(taken[index]))
        for example in (example for chunk in chunks for example in chunk):
            taken[example.number] = True
        self.result.skip("shown as an example", sum(map(len, chunks)))
        return chunks

    def _given_examples(self, pool: _Pool, asked: list[int], rng: random.Random) -> list[list[_Example]]:
        forbidden = frozenset(self.asked.key(index) for index in asked)
        queues = self._queues(pool, _shuffled(len(pool.labels), rng))
        return self._examples(pool, queues, rng, lambda index: pool.key(index) in forbidden)

    @staticmethod
    def _queues(pool: _Pool, order: array[int]) -> dict[int, array[int]]:
        """The sentences by label, in the given order."""
        queues: dict[int, array[int]] = {}
        for index in order:
            queues.setdefault(pool.labels[index], array("I")).append(index)
        return queues

    def _examples(
        self, pool: _Pool, queues: dict[int, array[int]], rng: random.Random, barred: Callable[[int], bool]
    ) -> list[list[_Example]]:
        """Take chunks of examples off the queues, one of each label in turn, leaving out those barred."""
        chunks, tokens = list[list[_Example]]([[]]), 0
        while queues:
            for label in rng.sample(sorted(queues), len(queues)):
                index = _next(queues, label, barred)
                if index is None:
                    continue
                text, _ = pool.text(index)
                added = self.count(f"{self.set.word}: {text}\nLabel: 0\n")
                if chunks[-1] and tokens + added > self.tokens:
                    if len(chunks) == self.options.chunks:
                        queues.setdefault(label, array("I")).append(index)
                        return chunks
                    chunks.append([])
                    tokens = 0
                chunks[-1].append(_Example(text, self.shown_names[label], index))
                tokens += added
        return [chunk for chunk in chunks if chunk]

    def _instance(self, number: int, asked: list[int], examples: list[list[_Example]], rng: random.Random) -> Instance:
        order = rng.sample(range(len(self.labels)), len(self.labels))
        numbers = dict(zip(self.labels, order, strict=True))
        places: dict[str, list[int]] = {}
        for place, chunk in enumerate(examples):
            for label in sorted({example.label for example in chunk}):
                places.setdefault(label, []).append(place)
        chunks = tuple(
            Chunk("\n".join(f"{self.set.word}: {example.text}\nLabel: {numbers[example.label]}" for example in chunk))
            for chunk in examples
        )
        questions = []
        for index in asked:
            label = self.asked_names[self.asked.labels[index]]
            if label in places:
                questions.append(self._question(index, numbers[label], label, tuple(places[label])))
            else:
                self.result.skip("label not shown")
        return Instance(f"{self.set.name}-{number}", self.set.name, chunks or (Chunk("(no examples)"),), tuple(questions))

    def _question(self, index: int, number: int, label: str, evidence: tuple[int, ...]) -> Question:
        text, where = self.asked.text(index)
        asked = f"{self.set.word}: {text}\n{_ASK}"
        return Question(asked, (str(number),), self.options.metric, self.set.kind(label), evidence=evidence, id=where)
