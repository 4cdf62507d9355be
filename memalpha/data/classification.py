"""Classification sets as instances: learn the label numbers from examples, then label new
sentences.

As published for Mem-alpha (arXiv 2509.25911), with label numbers drawn per instance; option
``examples`` takes them from a file, as in MemoryAgentBench (arXiv 2507.05257). An input sentence is
used at most once, and never asked where it is an example (letter case ignored). Evidence: the
chunks with an example of the label. Score: the share of right numbers, as Mem-alpha's
``evaluate_agent_results.py`` counts them; of several boxes the last one counts, there the first,
and "07" is 7.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeInt, PositiveInt

from memalpha.data.packing import chunked
from memalpha.data.rows import (
    EMPTY_ANSWER,
    Cleaned,
    Row,
    Scalar,
    checked,
    data_path,
    iter_rows,
    json_document,
    text_lines,
)
from memalpha.data.source import CommonOptions, LoadResult, Metric, Source, read_each
from memalpha.data.wording import ASK_LABEL
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

_NOT_SHOWN = "label not shown"
_OUT_OF_SCOPE = "oos_"  # prefix of the CLINC150 splits of sentences without an intent
_WIDE = 999  # widest label number, to check lengths before the labels are known
Reader = Callable[[str, str], Iterator[Row]]  # (source, split) to rows with the fields of _Pair


class _Pair(BaseModel):
    text: Cleaned
    label: Scalar
    split: str = ""


def read_table(source: str, split: str) -> Iterator[Row]:
    """Read rows with the columns ``text`` and ``category``."""
    for where, data in iter_rows(source, split):
        yield Row(
            where,
            {"text": data.get("text"), "label": data.get("category")}
            if isinstance(data, Mapping)
            else data,
        )


def lines_of(pattern: str) -> Reader:
    """Return a reader of lines of the form of a pattern with the groups ``label`` and ``text``."""

    def read(source: str, split: str) -> Iterator[Row]:
        for where, line in text_lines(source):
            if line.strip() and not line.startswith("###"):
                match = re.fullmatch(pattern, line.strip())
                yield Row(
                    where,
                    match.groupdict()
                    if match
                    else SchemaError(f"{where} is {line!r:.60}", expected=f"/{pattern}/"),
                )

    return read


def read_parallel(source: str, split: str) -> Iterator[Row]:
    """Read HWU64: a folder of ``seq.in`` and ``label``, or a folder of such folders, one a
    split.
    """
    folder = data_path(source)
    folder = folder / split if (folder / split).is_dir() else folder
    for said, label in zip_longest(
        *(text_lines(str(folder / name)) for name in ("seq.in", "label"))
    ):
        if said is None or label is None:
            where = f"{(said or label).where} of {folder}"
            raise SchemaError(
                f"{where} has no line beside it in the other file",
                expected="seq.in and label with as many lines",
            )
        if said.data.strip() or label.data.strip():
            yield Row(said.where, {"text": said.data, "label": label.data})


def read_clinc(source: str, split: str) -> Iterator[Row]:
    """Read CLINC150: an object of lists by split."""
    data, name_of_file = json_document(source), Path(source).name
    if not isinstance(data, Mapping) or not all(isinstance(pairs, list) for pairs in data.values()):
        raise SchemaError(
            f"{source} holds no object of lists", expected="{split: [[text, intent]]}"
        )
    for name, pairs in data.items():
        for number, pair in enumerate(pairs):
            fits = isinstance(pair, list) and len(pair) == 2
            yield Row(
                f"{name_of_file} {name}[{number}]",
                {"text": pair[0], "label": pair[1], "split": name} if fits else pair,
            )


def read_abstracts(source: str, split: str) -> Iterator[Row]:
    """Read CSAbstruct: rows of sentences and their roles."""
    for where, data in iter_rows(source, split):
        texts, labels = (
            data.get(name) if isinstance(data, Mapping) else None
            for name in ("sentences", "labels")
        )
        if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
            yield Row(
                where,
                SchemaError(
                    f"{where} is no abstract",
                    expected="lists 'sentences' and 'labels' of one length",
                ),
            )
            continue
        for index, (text, label) in enumerate(zip(texts, labels, strict=True)):
            yield Row(f"{where} sentence {index}", {"text": text, "label": label})


@dataclass(frozen=True, slots=True)
class ClassificationOptions(CommonOptions):
    """How labelled sentences become instances."""

    chunk_tokens: NonNegativeInt = (
        0  # approximate tokens of a chunk (0 = the published length of the set)
    )
    chunks: PositiveInt = 10  # chunks of an instance; fewer if the examples run out
    questions: PositiveInt = 100  # maximum questions of an instance (published: 100)
    examples: str = ""  # file or Hub name with the examples ("" = part of the input)
    # file or Hub name of sentences to leave out of the input, such as the test set ("" = none)
    held_out: str = ""
    # metric of every question; boxed takes the number in \boxed{}, label the first label given
    metric: Metric = "boxed"


class _Sentence(NamedTuple):
    key: str
    text: str
    label: str
    where: str


Fits = Callable[[str], bool]
Pool = Mapping[
    str, _Sentence
]  # the distinct sentences of a split in order, by their text without letter case


def read_pool(
    rows: Iterable[Row],
    source: str,
    split: str,
    result: LoadResult,
    fits: Fits | None = None,
    held_out: Pool | None = None,
) -> Pool:
    """Return the sentences of a split that can be used; InputError if there is no such split or no
    sentence.
    """
    pool, splits, before = dict[str, _Sentence](), set[str](), len(result.problems)

    def sentence(row: Row) -> _Sentence | str:
        pair = checked(_Pair, row.data, row.where)
        text = " ".join(pair.text.split())
        key = text.casefold()
        splits.update({pair.split} - {""})
        reasons = {
            "other split": pair.split not in ("", split, f"{_OUT_OF_SCOPE}{split}"),
            "empty sentence": not text,
            EMPTY_ANSWER: not pair.label,
            "repeated sentence": key in pool,
            "held out": held_out is not None and key in held_out,
            "too long": fits is not None and not fits(text),
        }
        return next(
            (reason for reason, holds in reasons.items() if holds),
            _Sentence(key, text, pair.label, row.where),
        )

    for each in read_each(rows, result, sentence):
        pool[each.key] = each
    if not pool:
        if splits and split not in splits:
            raise InputError(
                f"{source} has no split {split!r}", expected=f"one of {', '.join(sorted(splits))}"
            )
        found = result.problems[before : before + 1] or [
            f"{number} {reason}" for reason, number in result.skipped.items()
        ]
        raise SchemaError(
            f"{source} has no labelled sentence: {', '.join(found)}",
            expected="sentences with labels",
        )
    return pool


def _queues(pool: Pool, rng: random.Random) -> tuple[list[_Sentence], dict[str, list[_Sentence]]]:
    order = list(pool.values())
    queues: dict[str, list[_Sentence]] = {row.label: [] for row in order}
    rng.shuffle(order)
    for row in order:
        queues[row.label].append(row)
    return order, queues


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set and its loader: published ``chunk_tokens`` (or of the most similar set), ``word`` for a
    sentence, ``kind`` by label.
    """

    name: str
    form: str
    read: Reader
    chunk_tokens: int
    word: str = "Sentence"
    kind: Callable[[str], str] = str

    def __call__(
        self,
        source: str,
        options: ClassificationOptions,
        seed: int,
        count_tokens: TokenCounter,
        result: LoadResult,
    ) -> Iterator[Instance]:
        """Load the set; it is read before the first instance is made. InputError if it cannot be
        read.
        """
        limit = options.chunk_tokens or self.chunk_tokens

        def fits(text: str) -> bool:
            return count_tokens(self.example(text, _WIDE)) <= limit

        def other(option: str, path: str, split: str, fits: Fits | None = None) -> Pool | None:
            if not path:
                return None
            theirs = LoadResult(problems=result.problems)
            pool = read_pool(self.read(path, split), path, split, theirs, fits)
            for reason in ("malformed", "empty sentence", EMPTY_ANSWER, "too long"):
                result.notes[f"{reason} in the file of option {option!r}"] += theirs.skipped[reason]
            return pool

        held_out = other("held_out", options.held_out, "test")
        rows = self.read(source, options.split)
        asked = read_pool(
            rows, source, options.split, result, None if options.examples else fits, held_out
        )
        shown = other("examples", options.examples, "train", fits)
        return _Builder(self, asked, shown, options, limit, seed, count_tokens, result).build()

    def example(self, text: str, number: int) -> str:
        """Return a sentence with its label number, as written in a chunk."""
        return f"{self.word}: {text}\nLabel: {number}"


@dataclass
class _Builder:
    labelled: LabelledSet
    asked: Pool
    shown: Pool | None
    options: ClassificationOptions
    limit: int
    seed: int
    count: TokenCounter
    result: LoadResult

    def build(self) -> Iterator[Instance]:
        names = {row.label for row in (*self.asked.values(), *(self.shown or {}).values())}
        self.labels = sorted(
            names, key=lambda name: (len(name), name) if name.isdigit() else (0, name)
        )
        self.widest = max(range(len(self.labels)), key=lambda number: self.count(str(number)))
        self.untaken = Counter(row.label for row in self.asked.values())
        left, own = _queues(self.asked, random.Random(f"{self.labelled.name}:{self.seed}"))
        free, number, taken = len(left), 0, set[str]()
        while free:
            if number and self.shown is None and free < 2 * self.options.questions:
                self.result.skipped["left over"] += free
                return
            most = free if self.shown is not None else max(1, free // 2)
            asked = self._take(left, taken, min(self.options.questions, most))
            if not asked:
                self.result.skipped["left over" if number else _NOT_SHOWN] += free
                return
            rng = random.Random(f"{self.labelled.name}:{self.seed}:{number}")
            if self.shown is None:
                examples = self._examples(own, rng, taken)
                used = [row for chunk in examples for row in chunk]
                taken |= {row.key for row in used}
                self.untaken -= Counter(row.label for row in used)
                self.result.skipped["shown as an example"] += len(used)
                free -= len(used)
            else:
                examples = self._examples(
                    _queues(self.shown, rng)[1], rng, {row.key for row in asked}
                )
            yield self._instance(number, asked, examples, rng)
            free -= len(asked)
            number += 1

    def _take(self, left: list[_Sentence], taken: set[str], number: int) -> list[_Sentence]:
        chosen: list[_Sentence] = []
        while left and len(chosen) < number:
            row = left.pop()
            if row.key not in taken and (self.shown is not None or self.untaken[row.label] > 1):
                taken.add(row.key)
                self.untaken[row.label] -= 1
                chosen.append(row)
        return chosen

    def _examples(
        self, queues: dict[str, list[_Sentence]], rng: random.Random, barred: set[str]
    ) -> list[list[_Sentence]]:
        chunks, tokens = list[list[_Sentence]]([[]]), 0
        while waiting := [queue for queue in queues.values() if queue]:
            for queue in rng.sample(waiting, len(waiting)):
                while queue and queue[-1].key in barred:
                    queue.pop()
                if not queue:
                    continue
                added = self.count(self.labelled.example(queue[-1].text, self.widest) + "\n")
                if chunks[-1] and tokens + added > self.limit:
                    if len(chunks) == self.options.chunks:
                        return chunks
                    chunks.append([])
                    tokens = 0
                chunks[-1].append(queue.pop())
                tokens += added
        return [chunk for chunk in chunks if chunk]

    def _instance(
        self,
        number: int,
        asked: list[_Sentence],
        examples: list[list[_Sentence]],
        rng: random.Random,
    ) -> Instance:
        name, drawn = self.labelled.name, rng.sample(range(len(self.labels)), len(self.labels))
        numbers = dict(zip(self.labels, drawn, strict=True))
        texts = (
            "\n".join(self.labelled.example(row.text, numbers[row.label]) for row in chunk)
            for chunk in examples
        )
        made = chunked(
            (Chunk(text), (row.label for row in chunk))
            for text, chunk in zip(texts, examples, strict=True)
        )
        questions = []
        for row in asked:
            if (evidence := made.evidence([row.label])) is None:
                self.result.skipped[_NOT_SHOWN] += 1
                continue
            ask, kind = (
                f"{self.labelled.word}: {row.text}\n{ASK_LABEL}",
                self.labelled.kind(row.label),
            )
            answers = (str(numbers[row.label]),)
            questions.append(
                Question(ask, answers, self.options.metric, kind, evidence=evidence, id=row.where)
            )
        return Instance(
            f"{name}-{number}", name, made.chunks or (Chunk("(no examples)"),), tuple(questions)
        )


_SETS = (
    LabelledSet(
        "trec_coarse",
        "TREC question types, 6 labels: lines of COARSE:fine sentence",
        lines_of(r"(?P<label>[A-Z]+):\S+\s+(?P<text>.*)"),
        390,
    ),
    LabelledSet(
        "trec_fine",
        "TREC, 50 labels: the same lines",
        lines_of(r"(?P<label>[A-Z]+:\S+)\s+(?P<text>.*)"),
        390,
        kind=lambda label: label.partition(":")[0],
    ),
    LabelledSet(
        "banking77",
        "BANKING77 intents: CSV text,category",
        read_table,
        611,
        kind=lambda label: "intent",
    ),
    LabelledSet(
        "clinc150",
        "CLINC150: data_full.json",
        read_clinc,
        611,
        kind=lambda name: name if name == "oos" else "intent",
    ),
    LabelledSet(
        "hwu64",
        "HWU64: a folder of seq.in and label",
        read_parallel,
        611,
        kind=lambda name: name.partition("_")[0],
    ),
    LabelledSet(
        "pubmed_rct",
        "PubMed-RCT roles of sentences: lines of LABEL<tab>sentence",
        lines_of(r"(?P<label>[^\t]*)\t(?P<text>.*)"),
        1676,
        "Sample",
    ),
    LabelledSet(
        "csabstruct", "CSAbstruct roles of sentences: JSON Lines", read_abstracts, 1676, "Sample"
    ),
)
SOURCES = tuple(
    Source(labelled.name, labelled.form, labelled, ClassificationOptions) for labelled in _SETS
)
