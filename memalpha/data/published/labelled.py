"""The common part of classification sets: learn the label numbers from examples, then label new
sentences.

As published for Mem-alpha (arXiv 2509.25911), with label numbers drawn per instance; option
``examples`` takes them from a file, as in MemoryAgentBench (arXiv 2507.05257). An input sentence is
used at most once, and never asked where it is an example (letter case ignored). Evidence: the
chunks with an example of the label.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from memalpha.data.chunks import index_chunks
from memalpha.data.published.shared import ASK_LABEL
from memalpha.data.rows import Row, text_lines
from memalpha.data.source import (
    EMPTY_ANSWER,
    CommonOptions,
    Draft,
    Metric,
    SkippedItem,
    Source,
    read_each,
)
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Question, TokenCounter

_NOT_SHOWN = "label not shown"
_WIDE = 999  # widest label number, to check lengths before the labels are known


@dataclass(frozen=True, slots=True)
class ClassificationOptions(CommonOptions):
    """How labelled sentences become instances.

    Attributes:
        chunk_tokens: A chunk has about this many tokens; 0 takes the published length of the set.
        chunks: An instance has this many chunks, or fewer if the examples run out.
        questions: An instance has at most this many questions (published: 100).
        examples: This file or Hub name holds the examples; an empty text takes them from the input.
        held_out: The sentences of this file or Hub name are left out of the input, such as the test
            set; an empty text leaves out none.
        metric: Every question has this metric. ``boxed`` takes the number in a LaTeX box, and
            ``label`` the first label given.
    """

    chunk_tokens: NonNegativeInt = 0
    chunks: PositiveInt = 10
    questions: PositiveInt = 100
    examples: str = ""
    held_out: str = ""
    metric: Metric = "boxed"


class _Sentence(NamedTuple):
    key: str  # the text without letter case
    text: str
    label: str
    where: str


_Pool = dict[str, _Sentence]  # the distinct sentences of a split in order, by key


def _read_pool(
    rows: Iterable[Row],
    source: str,
    split: str,
    fits: Callable[[str], bool] = bool,
    held_out: Mapping[str, object] = {},
) -> tuple[_Pool, list[SkippedItem]]:
    """Return the sentences of a split that can be used; InputError if there is no such split or no
    sentence.
    """
    pool: _Pool = {}
    splits: set[str] = set()

    def read(row: Row) -> SkippedItem | None:
        text = " ".join(row["text"].string().split())
        label = row["label"].scalar()
        own_split = row["split"].scalar()
        splits.add(own_split)
        key = text.casefold()
        reasons = {
            "other split": own_split not in ("", split, f"oos_{split}"),  # oos_train of CLINC150
            "empty sentence": not text,
            EMPTY_ANSWER: not label,
            "repeated sentence": key in pool,
            "held out": key in held_out,
            "too long": not fits(text),
        }
        for reason, holds in reasons.items():
            if holds:
                return SkippedItem(reason)
        pool[key] = _Sentence(key, text, label, row.where)
        return None

    skipped = [each for each in read_each(rows, read) if each is not None]
    if not pool and any(splits) and split not in splits:
        raise InputError(
            f"{source} has no split {split!r}",
            expected=f"one of {', '.join(sorted(splits - {''}))}",
        )
    if not pool:
        found = next(
            (each.problem for each in skipped if each.problem), f"{len(skipped)} lines skipped"
        )
        raise SchemaError(
            f"{source} has no labelled sentence: {found}", expected="sentences with labels"
        )
    return pool, skipped


def _queues(pool: _Pool, rng: random.Random) -> tuple[list[_Sentence], dict[str, list[_Sentence]]]:
    """Return the sentences in random order, and those of each label."""
    order = list(pool.values())
    queues: dict[str, list[_Sentence]] = {row.label: [] for row in order}
    rng.shuffle(order)
    for row in order:
        queues[row.label].append(row)
    return order, queues


def labelled_lines(pattern: str) -> Callable[[str, str], Iterator[Row]]:
    """Return a reader of lines of the form of a pattern with the groups ``label`` and ``text``."""

    def read(source: str, split: str) -> Iterator[Row]:
        for row in text_lines(source):
            line = str(row.data).strip()
            match = re.fullmatch(pattern, line)
            if line and not line.startswith("###"):
                yield Row(row.where, match.groupdict() if match else line, form=f"/{pattern}/")

    return read


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set and its loader: published ``chunk_tokens`` (or of the most similar set), ``word`` for a
    sentence, ``kind`` by label.
    """

    name: str
    # (source, split) to rows with the fields text, label and perhaps split
    read: Callable[[str, str], Iterator[Row]]
    chunk_tokens: int
    word: str = "Sentence"
    kind: str = ".+"  # the beginning of a label that is its kind, else "intent"

    def __call__(
        self, source: str, options: ClassificationOptions, seed: int, count: TokenCounter
    ) -> Iterator[Draft | SkippedItem]:
        """Load the set; it is read before the first instance is made. InputError if it cannot be
        read.
        """
        limit = options.chunk_tokens or self.chunk_tokens

        def fits(text: str) -> bool:
            return count(self.example(text, _WIDE)) <= limit

        pools: dict[str, _Pool] = {}
        for option, path, split in (
            ("held_out", options.held_out, "test"),
            ("examples", options.examples, "train"),
        ):
            if path:
                check = fits if option == "examples" else bool
                pools[option], skipped = _read_pool(self.read(path, split), path, split, check)
                for each in skipped:
                    reason = f"{each.reason} in the file of option {option!r}"
                    yield each._replace(reason=reason, questions=0)
        shown = pools.get("examples")
        rows = self.read(source, options.split)
        check = fits if shown is None else bool
        asked, skipped = _read_pool(rows, source, options.split, check, pools.get("held_out", {}))
        yield from skipped
        yield from self._drafts(asked, shown, options, limit, seed, count)

    def source(self, form: str) -> Source:
        """Return the set as a data source; ``form`` says what its files are."""
        return Source(self.name, form, self, ClassificationOptions)

    def example(self, text: str, number: int) -> str:
        """Return a sentence with its label number, as written in a chunk."""
        return f"{self.word}: {text}\nLabel: {number}"

    def _drafts(
        self,
        asked: _Pool,
        shown: _Pool | None,
        options: ClassificationOptions,
        limit: int,
        seed: int,
        count: TokenCounter,
    ) -> Iterator[Draft | SkippedItem]:
        names = {row.label for row in (*asked.values(), *(shown or {}).values())}
        labels = sorted(names, key=_label_order)
        widest = max(range(len(labels)), key=lambda number: count(str(number)))

        def tokens_of(row: _Sentence) -> int:
            return count(self.example(row.text, widest) + "\n")

        left, own = _queues(asked, random.Random(f"{self.name}:{seed}"))
        free = len(left)
        number = 0
        taken: set[str] = set()
        untaken = Counter(row.label for row in left)  # sentences of each label
        while free:
            most = free if shown is not None else max(1, free // 2)
            chosen: list[_Sentence] = []
            enough = not number or shown is not None or free >= 2 * options.questions
            while enough and left and len(chosen) < min(options.questions, most):
                row = left.pop()
                if row.key not in taken and (shown is not None or untaken[row.label] > 1):
                    untaken[row.label] -= 1
                    chosen.append(row)
            if not chosen:
                yield SkippedItem("left over" if number else _NOT_SHOWN, free)
                return
            taken |= {row.key for row in chosen}
            free -= len(chosen)
            rng = random.Random(f"{self.name}:{seed}:{number}")
            if shown is None:
                examples = _draw_examples(own, rng, taken, tokens_of, limit, options.chunks)
                used = [row for chunk in examples for row in chunk]
                taken |= {row.key for row in used}
                untaken -= Counter(row.label for row in used)
                yield from [SkippedItem("shown as an example")] * len(used)
                free -= len(used)
            else:
                barred = {row.key for row in chosen}
                queues = _queues(shown, rng)[1]
                examples = _draw_examples(queues, rng, barred, tokens_of, limit, options.chunks)
            drawn = rng.sample(range(len(labels)), len(labels))
            numbers = dict(zip(labels, drawn, strict=True))
            yield self._draft(number, chosen, examples, numbers, options.metric)
            number += 1

    def _draft(
        self,
        number: int,
        chosen: list[_Sentence],
        examples: list[list[_Sentence]],
        numbers: Mapping[str, int],
        metric: str,
    ) -> Draft:
        shown = []
        for rows in examples:
            lines = (self.example(row.text, numbers[row.label]) for row in rows)
            shown.append((Chunk("\n".join(lines)), {row.label for row in rows}))
        packed = index_chunks(shown)
        asked: list[Question | SkippedItem] = []
        for row in chosen:
            evidence = packed.evidence([row.label])
            text = f"{self.word}: {row.text}\n{ASK_LABEL}"
            answers = (str(numbers[row.label]),)
            match = re.match(self.kind, row.label)
            kind = match[0] if match else "intent"
            question = Question(text, answers, metric, kind, evidence=evidence, id=row.where)
            asked.append(SkippedItem(_NOT_SHOWN) if evidence is None else question)
        chunks = packed.chunks or (Chunk("(no examples)"),)
        return Draft(f"{self.name}-{number}", self.name, chunks, asked)


def _draw_examples(
    queues: dict[str, list[_Sentence]],
    rng: random.Random,
    barred: set[str],
    tokens_of: Callable[[_Sentence], int],
    limit: int,
    most: int,
) -> list[list[_Sentence]]:
    """Take sentences out of the queues, a label after the other, for at most ``most`` chunks."""
    chunks: list[list[_Sentence]] = [[]]
    tokens = 0
    while any(queues.values()):
        waiting = [queue for queue in queues.values() if queue]
        for queue in rng.sample(waiting, len(waiting)):
            while queue and queue[-1].key in barred:
                queue.pop()
            if not queue:
                continue
            added = tokens_of(queue[-1])
            if chunks[-1] and tokens + added > limit:
                if len(chunks) == most:
                    return chunks
                chunks.append([])
                tokens = 0
            chunks[-1].append(queue.pop())
            tokens += added
    return [chunk for chunk in chunks if chunk]


def _label_order(name: str) -> tuple[int, str]:
    return (len(name), name) if name.isdigit() else (0, name)
