"""Sets of labelled sentences as instances: learn the labels' numbers from examples, then give those of sentences not seen.

An instance is some chunks of labelled examples, one after another as ``Sentence: ...`` and ``Label: number``, and questions for the
label numbers of other sentences. The numbers are the labels in an order drawn for each instance, so they can be learned from its
chunks alone. The metric is the published ``boxed``.

Construction as published for Mem-alpha (arXiv 2509.25911, TREC, NLU, PubMed-RCT): 10 chunks, each of about the set's published
length (``chunk_tokens``), and 100 questions. A sentence of the input is an example or a question once at most. With option
``examples`` the input's sentences are all questions, and the examples of each instance are drawn from the file given, which is how
a test set is evaluated with the training set's examples (MemoryAgentBench, arXiv 2507.05257).

What always holds: no sentence stands among the examples of its own instance, not even in other letter case; the evidence of a
question is the chunks with an example of its label; examples are drawn evenly over the labels while there are any; where they are
sentences of the input, the last of a label that nobody took is never asked. A question of
the input is a sentence of it; reasons to skip are ``shown as an example``, ``label not shown`` (its label has no example in the
instance), ``repeated sentence``, ``held out``, ``left over`` (too few for another instance), ``other split``, ``empty
sentence``, ``empty answer``, ``too long`` (for a chunk, so for an example), ``over max_questions``, ``over max_instances`` and
``malformed``; of the files of options ``examples`` and ``held_out`` the manifest's notes say what could not be read. Sentences are
kept on disk; memory grows by about 15 bytes a sentence.

Departures: sentences are not repeated over instances (the published 180 instances of TREC hold its sentences several times over);
MemoryAgentBench's test questions are never training questions unless its files are given as input, where the published training
questions of TREC and NLU are those test questions (``memalpha.data.leaks`` finds such a thing).
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
_OUT_OF_SCOPE = "oos_"  # before a split's name where its sentences without an intent are kept apart, as in CLINC150's file
_WIDE = 999  # a label number as wide as they get, for what must fit a chunk before the labels are known

Fits = Callable[[str], bool]


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
        """Return a sentence with its label's number, as it stands in a chunk."""
        return f"{self.word}: {text}\nLabel: {number}"

    def _other(self, option: str, source: str, split: str, result: LoadResult, fits: Fits | None = None) -> SentencePool | None:
        """The sentences of the file of an option, which asks nothing; None if none is named. What it lacks goes to the notes."""
        if not source:
            return None
        other = LoadResult(problems=result.problems)
        pool = SentencePool(self.read(source, split), source, split, other, fits)
        for reason in (MALFORMED, _EMPTY_SENTENCE, EMPTY_ANSWER, _TOO_LONG):
            result.notes[f"{reason} in the file of option {option!r}"] += other.skipped[reason]
        return pool


class SentencePool:
    """The distinct sentences of one split, on disk, compared without regard to letter case; their labels in memory.

    Each row read is in the pool or counted under its reason. Rows of no split are taken as well, and those of the split's
    out-of-scope part (``oos_`` before it). InputError if there is no such split, or no sentence with a label in it.
    """

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
        """Why a sentence is not kept, or ""."""
        key = row.text.casefold()
        if not row.text or not row.label:
            return _EMPTY_SENTENCE if not row.text else EMPTY_ANSWER
        if self.spool.find(key) is not None:
            return "repeated sentence"
        if held_out is not None and held_out.spool.find(key) is not None:
            return "held out"
        return "" if fits is None or fits(row.text) else _TOO_LONG

    def text(self, number: int) -> tuple[str, str]:
        """Return the sentence of that number, and its place in the input."""
        text, where = self.spool.get(number)[1][0]
        return text, where

    def queues(self, order: array[int]) -> dict[int, array[int]]:
        """Return the sentences by label, in the given order."""
        queues: dict[int, array[int]] = {}
        for index in order:
            queues.setdefault(self.labels[index], array("I")).append(index)
        return queues

    def shuffled(self, rng: random.Random) -> array[int]:
        """Return the numbers of all sentences in random order."""
        order = array("I", range(len(self.labels)))
        rng.shuffle(order)
        return order


class _Example(NamedTuple):
    text: str
    label: str
    number: int


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
        """Yield instances until the sentences run out."""
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
        """Take the next so many sentences that nobody took, and mark them; of its own examples a label keeps one."""
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
        """Take chunks of examples off the queues, one of each label in turn, leaving out those barred."""
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
    """What stands before a mark in a label: its coarse class, where labels are made so."""
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
"""Every set of labelled sentences; their chunks have the published lengths, or those of the set most alike."""
