"""Classification sets as instances: learn the label numbers from examples, then label new sentences.

| set | original form (or rows of ``text`` and a label, also from the Hub) |
| --- | --- |
| TREC (Li and Roth, 2002) | ``COARSE:fine sentence`` a line, Latin-1 |
| HWU64 (Liu et al., arXiv 1903.05566) | a folder of ``seq.in`` and ``label`` |
| BANKING77 (Casanueva et al., arXiv 2003.04807) | CSV ``text,category`` |
| CLINC150 (Larson et al., arXiv 1909.02027) | JSON ``{split: [[text, intent]]}``, ``oos_`` before some splits |
| PubMed-RCT (Dernoncourt and Lee, arXiv 1710.06071) | ``###id``, then ``LABEL<tab>sentence`` a line |
| CSAbstruct (Cohan et al., arXiv 1909.04054) | JSON Lines ``{sentences[], labels[]}`` |

As published for Mem-alpha (arXiv 2509.25911: TREC, NLU, PubMed-RCT), an instance has 10 chunks of about ``chunk_tokens`` tokens
with examples and 100 questions, metric ``boxed``. Label numbers are drawn per instance. With option ``examples`` all input
sentences are questions and the examples come from that file, as in MemoryAgentBench (arXiv 2507.05257). An input sentence is used
at most once; a question's sentence is never among the examples of its instance (letter case ignored). Evidence: the chunks with an
example of the label. Skip reasons: ``shown as an example``, ``label not shown`` (no example in the instance), ``repeated
sentence``, ``held out``, ``left over`` (too few for another instance), ``other split``, ``empty sentence``, ``empty answer``, ``too
long`` (for a chunk), ``over max_questions``, ``over max_instances``, ``malformed``.
Departures: sentences are not repeated over instances (the 180 published TREC instances repeat them); MemoryAgentBench's test
questions are not training questions, as they are in the published TREC and NLU, unless its files are the input.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, NonNegativeInt, PositiveInt

from memalpha.data.packing import chunked
from memalpha.data.rows import (
    EMPTY_ANSWER,
    Cleaned,
    Row,
    Scalar,
    checked,
    data_path,
    existing_file,
    iter_rows,
    json_document,
    kind_of,
    on_hub,
    text_lines,
)  # fmt: skip
from memalpha.data.source import MALFORMED, CommonOptions, LoadResult, Metric, Source, finish
from memalpha.data.wording import ASK_LABEL
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

_EMPTY_SENTENCE, _TOO_LONG, _NOT_SHOWN = "empty sentence", "too long", "label not shown"
_OUT_OF_SCOPE = "oos_"  # prefix of the CLINC150 splits of sentences without an intent
_WIDE = 999  # widest label number, to check lengths before the labels are known
_TEXTS = ("text", "sentence", "utterance", "question", "query")
_LABELS = ("label", "category", "intent", "label_text", "target")
_TREC = re.compile(r"([A-Z]+):(\S+)\s+(.*)", re.DOTALL)

Fits = Callable[[str], bool]


# ------------------------------------------------------------------------------------------------ reading
class Labelled(NamedTuple):
    """A sentence (one line, "" if blank), its place, label (SchemaError if the row is wrong) and split ("" = not given)."""

    where: str
    text: str
    label: str | SchemaError
    split: str = ""


class _Pair(BaseModel):
    text: Cleaned
    label: Scalar


def _labelled(where: str, text: Any, label: Any, split: str = "") -> Labelled:
    try:
        pair = checked(_Pair, {"text": text, "label": label}, where)
        return Labelled(where, " ".join(pair.text.split()), pair.label, split)
    except SchemaError as error:
        return Labelled(where, "", error, split)


def _wrong(where: str, expected: str, split: str = "") -> Labelled:
    return Labelled(where, "", SchemaError(f"{where} is not {expected}", expected="a sentence with its label"), split)


def read_columns(rows: Iterable[Row], labels: Sequence[str] = _LABELS) -> Iterator[Labelled]:
    """Read rows of a sentence and a label, by the names of their columns."""
    for row in rows:
        data = row.data if isinstance(row.data, Mapping) else {}
        text, label = (next((name for name in names if name in data), "") for names in (_TEXTS, labels))
        if isinstance(row.data, SchemaError) or not (text and label):
            wrong = SchemaError(f"{row.where} has no text and label", expected=f"one of {_TEXTS} and one of {tuple(labels)}")
            yield Labelled(row.where, "", row.data if isinstance(row.data, SchemaError) else wrong)
        else:
            yield _labelled(row.where, data[text], data[label])


def read_trec_coarse(source: str, split: str) -> Iterator[Labelled]:
    """Read TREC with its 6 coarse labels."""
    return _trec(source, split, "coarse_label", lambda match: match[1])


def read_trec_fine(source: str, split: str) -> Iterator[Labelled]:
    """Read TREC with its 50 fine labels."""
    return _trec(source, split, "fine_label", lambda match: f"{match[1]}:{match[2]}")


def _trec(source: str, split: str, name: str, label: Callable[[re.Match[str]], str]) -> Iterator[Labelled]:
    if not _is_text(source):
        yield from read_columns(iter_rows(source, split), (name, *_LABELS))
        return
    for row in text_lines(existing_file(source)):
        if said := row.data.strip():
            match = _TREC.fullmatch(said)
            yield _labelled(row.where, match[3], label(match)) if match else _wrong(row.where, "of the form COARSE:fine sentence")


def read_table(source: str, split: str) -> Iterator[Labelled]:
    """Read BANKING77: rows of a sentence and a label."""
    return read_columns(iter_rows(source, split))


def read_parallel(source: str, split: str) -> Iterator[Labelled]:
    """Read HWU64: a folder of ``seq.in`` and ``label``, or a folder of such folders, one a split."""
    folder = data_path(source)
    if not folder.is_dir():
        yield from read_columns(iter_rows(source, split))
        return
    folder = folder / split if (folder / split).is_dir() else folder
    for said, label in zip_longest(*(text_lines(existing_file(str(folder / name))) for name in ("seq.in", "label"))):
        if said is None or label is None:
            where = f"{(said or label).where} of {folder}"
            raise SchemaError(f"{where} has no line beside it in the other file", expected="seq.in and label with as many lines")
        if said.data.strip() or label.data.strip():
            yield _labelled(said.where, said.data, label.data)


def read_clinc(source: str, split: str) -> Iterator[Labelled]:
    """Read CLINC150: an object of lists by split, or rows."""
    if on_hub(source) or kind_of(Path(source)) != ".json":
        yield from read_columns(iter_rows(source, split))
        return
    path = existing_file(source)
    if not isinstance(data := json_document(path), Mapping):
        raise SchemaError(f"{path} holds no object", expected="{split: [[text, intent]]}")
    for name, pairs in data.items():
        if not isinstance(pairs, list):
            yield _wrong(f"{path.name} {name!r}", "a list of [text, intent]", name)
            continue
        for number, pair in enumerate(pairs):
            place, fits = f"{path.name} {name}[{number}]", isinstance(pair, list) and len(pair) == 2
            yield _labelled(place, pair[0], pair[1], name) if fits else _wrong(place, "a pair [text, intent]", name)


def read_pubmed(source: str, split: str) -> Iterator[Labelled]:
    """Read PubMed-RCT: lines of a role and a sentence, or rows."""
    if not _is_text(source):
        yield from read_columns(iter_rows(source, split))
        return
    for row in text_lines(existing_file(source)):
        if row.data.strip() and not row.data.startswith("###"):
            label, found, said = row.data.partition("\t")
            yield _labelled(row.where, said, label) if found else _wrong(row.where, "of the form LABEL<tab>sentence")


class _Abstract(BaseModel):
    sentences: list[Any]
    labels: list[Any]


def read_abstracts(source: str, split: str) -> Iterator[Labelled]:
    """Read CSAbstruct: rows of sentences and their roles."""
    for row in iter_rows(source, split):
        try:
            abstract = checked(_Abstract, row.data, row.where)
            if len(abstract.sentences) != len(abstract.labels):
                raise SchemaError(f"{row.where} has sentences without a label", expected="as many labels as sentences")
        except SchemaError as error:
            yield Labelled(row.where, "", error)
            continue
        for index, (text, label) in enumerate(zip(abstract.sentences, abstract.labels, strict=True)):
            yield _labelled(f"{row.where} sentence {index}", text, label)


def _is_text(source: str) -> bool:
    return not on_hub(source) and kind_of(Path(source)) in (".txt", ".label", "")


# ------------------------------------------------------------------------------------------------ making instances
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


class SentencePool:
    """Distinct sentences of a split (letter case ignored); InputError if there is no such split or sentence."""

    def __init__(
        self,
        rows: Iterable[Labelled],
        source: str,
        split: str,
        result: LoadResult,
        fits: Fits | None = None,
        held_out: SentencePool | None = None,
    ) -> None:
        self.rows: list[Labelled] = []
        self.keys = dict[str, None]()
        splits, before = set[str](), len(result.problems)
        for row in rows:
            result.asked += 1
            splits |= {row.split} - {""}
            key = row.text.casefold()
            if row.split not in ("", split, f"{_OUT_OF_SCOPE}{split}"):
                result.skipped["other split"] += 1
            elif isinstance(row.label, SchemaError):
                result.malformed(row.label)
            elif not row.text or not row.label:
                result.skipped[_EMPTY_SENTENCE if not row.text else EMPTY_ANSWER] += 1
            elif key in self.keys:
                result.skipped["repeated sentence"] += 1
            elif held_out is not None and key in held_out.keys:
                result.skipped["held out"] += 1
            elif fits is not None and not fits(row.text):
                result.skipped[_TOO_LONG] += 1
            else:
                self.keys[key] = None
                self.rows.append(row)
        self.labels = [str(row.label) for row in self.rows]
        if self.rows:
            return
        if splits and split not in splits:
            raise InputError(f"{source} has no split {split!r}", expected=f"one of {', '.join(sorted(splits))}")
        found = result.problems[before : before + 1] or [f"{number} {reason}" for reason, number in result.skipped.items()]
        raise SchemaError(f"{source} has no labelled sentence: {', '.join(found)}", expected="sentences with labels")

    def queues(self, order: Iterable[int]) -> dict[str, list[int]]:
        """Return the sentence numbers by label (in the order of the labels' first sentences), in the given order."""
        queues: dict[str, list[int]] = {label: [] for label in dict.fromkeys(self.labels)}
        for index in order:
            queues[self.labels[index]].append(index)
        return queues

    def shuffled(self, rng: random.Random) -> list[int]:
        """Return all sentence numbers in random order."""
        order = list(range(len(self.rows)))
        rng.shuffle(order)
        return order


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set and its loader: published ``chunk_tokens`` (or of the most similar set), ``word`` for a sentence, ``kind`` by label."""

    name: str
    read: Callable[[str, str], Iterator[Labelled]]
    chunk_tokens: int
    word: str = "Sentence"
    kind: Callable[[str], str] = str

    def __call__(self, source: str, options: ClassificationOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
        """Load the set; it is read before the first instance is made. InputError if it cannot be read."""
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
        names = {*asked.labels, *(shown.labels if shown else ())}
        self.labels = sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))
        self.untaken = Counter(asked.labels)
        self.widest = max(range(len(self.labels)), key=lambda number: count(str(number)))

    def build(self) -> Iterator[Instance]:
        left, taken = self.asked.shuffled(self.rng), set[int]()
        own = self.asked.queues(left) if self.shown is None else {}
        free, number = len(left), 0
        while free:
            if number and self.shown is None and free < 2 * self.options.questions:
                self.result.skipped["left over"] += free
                return
            most = free if self.shown is not None else max(1, free // 2)
            asked = self._take(left, taken, min(self.options.questions, most))
            if not asked:
                self.result.skipped["left over" if number else _NOT_SHOWN] += free
                return
            rng = random.Random(f"{self.set.name}:{self.seed}:{number}")
            if self.shown is None:
                examples = self._examples(self.asked, own, rng, taken)
                used = [index for chunk in examples for index in chunk]
                taken |= set(used)
                self.untaken -= Counter(self.asked.labels[index] for index in used)
                self.result.skipped["shown as an example"] += len(used)
                free -= len(used)
            else:
                forbidden = {self.asked.rows[index].text.casefold() for index in asked}
                barred = {index for index, row in enumerate(self.shown.rows) if row.text.casefold() in forbidden}
                examples = self._examples(self.shown, self.shown.queues(self.shown.shuffled(rng)), rng, barred)
            yield self._instance(number, asked, examples, rng)
            free -= len(asked)
            number += 1

    def _take(self, left: list[int], taken: set[int], number: int) -> list[int]:
        """Take sentences to ask; if examples are from the input, each label keeps one."""
        chosen: list[int] = []
        while left and len(chosen) < number:
            index = left.pop()
            label = self.asked.labels[index]
            if index not in taken and (self.shown is not None or self.untaken[label] > 1):
                taken.add(index)
                self.untaken[label] -= 1
                chosen.append(index)
        return chosen

    def _examples(self, pool: SentencePool, queues: dict[str, list[int]], rng: random.Random, barred: set[int]) -> list[list[int]]:
        """Fill chunks with sentence numbers, a sentence of each label in turn; what is used leaves the queues."""
        chunks, tokens = list[list[int]]([[]]), 0
        while any(queues.values()):
            waiting = [label for label, queue in queues.items() if queue]
            for label in rng.sample(waiting, len(waiting)):
                queue = queues[label]
                while queue and queue[-1] in barred:
                    queue.pop()
                if not queue:
                    continue
                added = self.count(self.set.example(pool.rows[queue[-1]].text, self.widest) + "\n")
                if chunks[-1] and tokens + added > self.tokens:
                    if len(chunks) == self.options.chunks:
                        return chunks
                    chunks.append([])
                    tokens = 0
                chunks[-1].append(queue.pop())
                tokens += added
        return [chunk for chunk in chunks if chunk]

    def _instance(self, number: int, asked: list[int], examples: list[list[int]], rng: random.Random) -> Instance:
        numbers = dict(zip(self.labels, rng.sample(range(len(self.labels)), len(self.labels)), strict=True))
        shown = self.shown or self.asked
        texts = ("\n".join(self.set.example(shown.rows[i].text, numbers[shown.labels[i]]) for i in chunk) for chunk in examples)
        made = chunked((Chunk(text), (shown.labels[i] for i in chunk)) for text, chunk in zip(texts, examples, strict=True))
        questions = []
        for row, label in ((self.asked.rows[index], self.asked.labels[index]) for index in asked):
            if (evidence := made.evidence([label])) is None:
                self.result.skipped[_NOT_SHOWN] += 1
                continue
            ask, kind = f"{self.set.word}: {row.text}\n{ASK_LABEL}", self.set.kind(label)
            questions.append(Question(ask, (str(numbers[label]),), self.options.metric, kind, evidence=evidence, id=row.where))
        return Instance(f"{self.set.name}-{number}", self.set.name, made.chunks or (Chunk("(no examples)"),), tuple(questions))


def _before(mark: str) -> Callable[[str], str]:
    return lambda label: label.partition(mark)[0]


_LABELLED = (
    (LabelledSet("trec_coarse", read_trec_coarse, 390), "TREC question types, 6 coarse labels: lines of COARSE:fine sentence"),
    (LabelledSet("trec_fine", read_trec_fine, 390, kind=_before(":")), "TREC question types, 50 fine labels: the same lines"),
    (LabelledSet("banking77", read_table, 611, kind=lambda _: "intent"), "BANKING77 intents: CSV text,category"),
    (
        LabelledSet("clinc150", read_clinc, 611, kind=lambda label: "oos" if label == "oos" else "intent"),
        "CLINC150 intents: JSON {split: [[text, intent]]}",
    ),
    (LabelledSet("hwu64", read_parallel, 611, kind=_before("_")), "HWU64 (NLU) intents: a folder of seq.in and label"),
    (LabelledSet("pubmed_rct", read_pubmed, 1676, word="Sample"), "PubMed-RCT roles of sentences: lines of LABEL<tab>sentence"),
    (LabelledSet("csabstruct", read_abstracts, 1676, word="Sample"), "CSAbstruct roles of sentences: JSON Lines"),
)

SOURCES = tuple(Source(labelled.name, reads, labelled, ClassificationOptions) for labelled, reads in _LABELLED)
"""Every set of labelled sentences."""
