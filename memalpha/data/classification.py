"""Classification sets as instances: learn the label numbers from examples, then label new sentences.

As published for Mem-alpha (arXiv 2509.25911: TREC, NLU, PubMed-RCT), an instance has 10 chunks of about ``chunk_tokens`` tokens
with examples and 100 questions, metric ``boxed``. Label numbers are drawn per instance. With option ``examples`` all input
sentences are questions and the examples come from that file, as in MemoryAgentBench (arXiv 2507.05257). An input sentence is used
at most once; a question's sentence is never among the examples of its instance (letter case ignored). Evidence: the chunks with an
example of the label. Skip reasons: ``shown as an example``, ``label not shown`` (no example in the instance), ``repeated
sentence``, ``held out``, ``left over`` (too few for another instance), ``other split``, ``empty sentence``, ``empty answer``, ``too
long`` (for a chunk), ``over max_questions``, ``over max_instances``, ``malformed``. Memory: about 15 bytes a sentence.
Departures: sentences are not repeated over instances (the 180 published TREC instances repeat them); MemoryAgentBench's test
questions are not training questions, as they are in the published TREC and NLU, unless its files are the input.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from memalpha.data.fields import EMPTY_ANSWER
from memalpha.data.labelled import (
    Labelled,
    Reader,
    read_abstracts,
    read_clinc,
    read_columns,
    read_parallel,
    read_trec_coarse,
    read_trec_fine,
)  # fmt: skip
from memalpha.data.source import MALFORMED, CommonOptions, LoadResult, Metric, Source, finish
from memalpha.data.spool import Spool
from memalpha.data.wording import ASK_LABEL
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

_EMPTY_SENTENCE, _TOO_LONG, _NOT_SHOWN = "empty sentence", "too long", "label not shown"
_OUT_OF_SCOPE = "oos_"  # prefix of the CLINC150 splits of sentences without an intent
_WIDE = 999  # widest label number, to check lengths before the labels are known

Fits = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ClassificationOptions(CommonOptions):
    r"""How labelled sentences become instances.

    Attributes:
        chunk_tokens: Approximate tokens of a chunk (0 = the published length of the set).
        chunks: Chunks of an instance; fewer if the examples run out.
        questions: Maximum questions of an instance (published: 100).
        examples: File or Hub name with the examples ("" = part of the input).
        examples_split: Split of ``examples``, if it has several.
        held_out: File or Hub name of sentences to leave out of the input, such as the test set ("" = none).
        held_out_split: Split of ``held_out``, if it has several.
        metric: Metric of every question; ``boxed`` takes the number in ``\boxed{}``, ``label`` the first label given.
    """

    chunk_tokens: NonNegativeInt = 0
    chunks: PositiveInt = 10
    questions: PositiveInt = 100
    examples: str = ""
    examples_split: str = "train"
    held_out: str = ""
    held_out_split: str = "test"
    metric: Metric = "boxed"


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set and its loader: published ``chunk_tokens`` (or of the most similar set), ``word`` for a sentence, ``kind`` by label."""

    name: str
    read: Reader
    chunk_tokens: int
    word: str = "Sentence"
    kind: Callable[[str], str] = str

    def __call__(self, source: str, options: ClassificationOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
        """Load the set; it is copied to disk before the first instance is made. InputError if it cannot be read."""
        result, limit = LoadResult(), options.chunk_tokens or self.chunk_tokens

        def fits(text: str) -> bool:
            return count_tokens(self.example(text, _WIDE)) <= limit

        held_out = self._other("held_out", options.held_out, options.held_out_split, result)
        rows = self.read(source, options.split)
        asked = SentencePool(rows, source, options.split, result, None if options.examples else fits, held_out)
        shown = self._other("examples", options.examples, options.examples_split, result, fits)
        result.instances = finish(_Builder(self, asked, shown, options, seed, count_tokens, result).build(), options, seed, result)
        return result

    def example(self, text: str, number: int) -> str:
        """Return a sentence with its label number, as written in a chunk."""
        return f"{self.word}: {text}\nLabel: {number}"

    def _other(self, option: str, source: str, split: str, result: LoadResult, fits: Fits | None = None) -> SentencePool | None:
        """The sentences of the file of an option, None if not set; its skipped rows go to the notes."""
        if not source:
            return None
        other = LoadResult(problems=result.problems)
        pool = SentencePool(self.read(source, split), source, split, other, fits)
        for reason in (MALFORMED, _EMPTY_SENTENCE, EMPTY_ANSWER, _TOO_LONG):
            result.notes[f"{reason} in the file of option {option!r}"] += other.skipped[reason]
        return pool


class SentencePool:
    """Distinct sentences of a split (letter case ignored), texts on disk; InputError if there is no such split or sentence."""

    def __init__(
        self,
        rows: Iterable[Labelled],
        source: str,
        split: str,
        result: LoadResult,
        fits: Fits | None = None,
        held_out: SentencePool | None = None,
    ) -> None:
        self.spool, self.labels, self.names = Spool(), array("I"), dict[str, int]()
        splits, before = set[str](), len(result.problems)
        for row in rows:
            result.asked += 1
            splits |= {row.split} - {""}
            if row.split not in ("", split, f"{_OUT_OF_SCOPE}{split}"):
                result.skip("other split")
            elif isinstance(row.label, SchemaError):
                result.malformed(row.label)
            elif reason := self._reason(row, fits, held_out):
                result.skip(reason)
            else:
                self.spool.add(self.spool.key(row.text.casefold()), [row.text, row.where])
                self.labels.append(self.names.setdefault(row.label, len(self.names)))
        if self.labels:
            return
        if splits and split not in splits:
            raise InputError(f"{source} has no split {split!r}", expected=f"one of {', '.join(sorted(splits))}")
        found = result.problems[before : before + 1] or [f"{number} {reason}" for reason, number in result.skipped.items()]
        raise SchemaError(f"{source} has no labelled sentence: {', '.join(found)}", expected="sentences with labels")

    def _reason(self, row: Labelled, fits: Fits | None, held_out: SentencePool | None) -> str:
        key = row.text.casefold()
        if not row.text or not row.label:
            return _EMPTY_SENTENCE if not row.text else EMPTY_ANSWER
        if self.spool.find(key) is not None:
            return "repeated sentence"
        if held_out is not None and held_out.spool.find(key) is not None:
            return "held out"
        return "" if fits is None or fits(row.text) else _TOO_LONG

    def text(self, number: int) -> tuple[str, str]:
        """Return a sentence and its place in the input."""
        text, where = self.spool.get(number)[1][0]
        return text, where

    def queues(self, order: array[int]) -> dict[int, array[int]]:
        """Return the sentence numbers by label, in the given order."""
        queues: dict[int, array[int]] = {}
        for index in order:
            queues.setdefault(self.labels[index], array("I")).append(index)
        return queues

    def shuffled(self, rng: random.Random) -> array[int]:
        """Return all sentence numbers in random order."""
        order = array("I", range(len(self.labels)))
        rng.shuffle(order)
        return order


class _Example(NamedTuple):
    text: str
    label: str
    number: int


def _next(queues: dict[int, array[int]], label: int, barred: Callable[[int], bool]) -> int | None:
    """Remove and return the next sentence of a label that is not barred, or None; an empty queue is deleted."""
    queue, found = queues[label], None
    while queue and found is None:
        index = queue.pop()
        found = None if barred(index) else index
    if not queue:
        del queues[label]
    return found


class _Builder:
    def __init__(
        self,
        labelled: LabelledSet,
        asked: SentencePool,
        shown: SentencePool | None,
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
        self.untaken = Counter(asked.labels)
        self.widest = max(range(len(self.labels)), key=lambda number: count(str(number)))

    def build(self) -> Iterator[Instance]:
        left, taken = self.asked.shuffled(self.rng), bytearray(len(self.asked.labels))
        own = self.asked.queues(left) if self.shown is None else {}
        free, number = len(left), 0
        while free:
            if number and self.shown is None and free < 2 * self.options.questions:
                self.result.skip("left over", free)
                return
            most = free if self.shown is not None else max(1, free // 2)
            asked = self._take(left, taken, min(self.options.questions, most))
            if not asked:
                self.result.skip("left over" if number else _NOT_SHOWN, free)
                return
            rng = random.Random(f"{self.set.name}:{self.seed}:{number}")
            examples = self._own_examples(own, taken, rng) if self.shown is None else self._given_examples(self.shown, asked, rng)
            yield self._instance(number, asked, examples, rng)
            free -= len(asked) + (sum(map(len, examples)) if self.shown is None else 0)
            number += 1

    def _take(self, left: array[int], taken: bytearray, number: int) -> list[int]:
        chosen: list[int] = []
        while left and len(chosen) < number:
            index = left.pop()
            label = self.asked.labels[index]
            if not taken[index] and (self.shown is not None or self.untaken[label] > 1):
                taken[index] = True
                self.untaken[label] -= 1
                chosen.append(index)
        return chosen

    def _own_examples(self, queues: dict[int, array[int]], taken: bytearray, rng: random.Random) -> list[list[_Example]]:
        chunks = self._examples(self.asked, queues, rng, lambda index: bool(taken[index]))
        for example in (example for chunk in chunks for example in chunk):
            taken[example.number] = True
            self.untaken[self.asked.labels[example.number]] -= 1
        self.result.skip("shown as an example", sum(map(len, chunks)))
        return chunks

    def _given_examples(self, pool: SentencePool, asked: list[int], rng: random.Random) -> list[list[_Example]]:
        forbidden = frozenset(self.asked.spool.get(index)[0] for index in asked)
        queues = pool.queues(pool.shuffled(rng))
        return self._examples(pool, queues, rng, lambda index: pool.spool.get(index)[0] in forbidden)

    def _examples(
        self, pool: SentencePool, queues: dict[int, array[int]], rng: random.Random, barred: Callable[[int], bool]
    ) -> list[list[_Example]]:
        chunks, tokens = list[list[_Example]]([[]]), 0
        while queues:
            for label in rng.sample(sorted(queues), len(queues)):
                index = _next(queues, label, barred)
                if index is None:
                    continue
                text, _ = pool.text(index)
                added = self.count(self.set.example(text, self.widest) + "\n")
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
        numbers = dict(zip(self.labels, rng.sample(range(len(self.labels)), len(self.labels)), strict=True))
        places: dict[str, list[int]] = {}
        for place, chunk in enumerate(examples):
            for label in {example.label for example in chunk}:
                places.setdefault(label, []).append(place)
        chunks = tuple(
            Chunk("\n".join(self.set.example(example.text, numbers[example.label]) for example in chunk)) for chunk in examples
        )
        questions = []
        for index in asked:
            label = self.asked_names[self.asked.labels[index]]
            if label not in places:
                self.result.skip(_NOT_SHOWN)
                continue
            text, where = self.asked.text(index)
            ask, kind, evidence = f"{self.set.word}: {text}\n{ASK_LABEL}", self.set.kind(label), tuple(places[label])
            questions.append(Question(ask, (str(numbers[label]),), self.options.metric, kind, evidence=evidence, id=where))
        return Instance(f"{self.set.name}-{number}", self.set.name, chunks or (Chunk("(no examples)"),), tuple(questions))


def _before(mark: str) -> Callable[[str], str]:
    return lambda label: label.partition(mark)[0]


_LABELLED = (
    (LabelledSet("trec_coarse", read_trec_coarse, 390), "TREC question types, 6 coarse labels: lines of COARSE:fine sentence"),
    (LabelledSet("trec_fine", read_trec_fine, 390, kind=_before(":")), "TREC question types, 50 fine labels: the same lines"),
    (LabelledSet("banking77", read_columns, 611, kind=lambda _: "intent"), "BANKING77 intents: CSV text,category"),
    (
        LabelledSet("clinc150", read_clinc, 611, kind=lambda label: "oos" if label == "oos" else "intent"),
        "CLINC150 intents: JSON {split: [[text, intent]]}",
    ),
    (LabelledSet("hwu64", read_parallel, 611, kind=_before("_")), "HWU64 (NLU) intents: a folder of seq.in and label"),
    (LabelledSet("pubmed_rct", read_abstracts, 1676, word="Sample"), "PubMed-RCT roles of sentences: lines of LABEL<tab>sentence"),
    (LabelledSet("csabstruct", read_abstracts, 1676, word="Sample"), "CSAbstruct roles of sentences: JSON Lines"),
)

SOURCES = tuple(Source(labelled.name, reads, labelled, ClassificationOptions) for labelled, reads in _LABELLED)
