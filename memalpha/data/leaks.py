"""Leak check: finds questions or contexts that a data set shares with another one, exactly or
nearly; docs/data.md has the rules.

Texts are compared as words (NFKC, case-folded, no punctuation, no leading ``Word:``; in scripts
without spaces, signs): questions line by line, without lines our loaders add; contexts by passage
(split at blank lines) and word run. Nearly equal: MinHash estimate of the Jaccard similarity of
four-letter pieces of questions, or three-word pieces of passages.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from memalpha.data.packing import apart
from memalpha.data.source import as_asked
from memalpha.errors import InputError
from memalpha.qa.metrics import LABEL_METRICS
from memalpha.types import Instance, Question

MIN_QUESTION_WORDS = (
    4  # shortest question line compared without its answer; shortest passage compared at all
)
MIN_PASSAGE_WORDS = 12  # shortest passage compared in every chunk, and for near equality
# words of a run: learned runs do not overlap, checked runs start at every word; common formulas are
# shorter
RUN_WORDS = 50
THRESHOLD = 0.7  # Jaccard similarity of nearly equal texts
_PERMUTATIONS = 128
_WORD = re.compile(r"\w+")
_LABEL = re.compile(r"^\s*\w+:\s+")
_SAYS_NOTHING = frozenset({"yes", "no", "none", "nothing", "maybe", "true", "false", "unknown", ""})
_SHOWN = 50


class Leak(NamedTuple):
    """A repeated ``question`` or ``context`` (``near``: nearly equal only); ``question`` is its
    index, None for a chunk.
    """

    kind: str
    where: str
    text: str
    near: bool
    question: int | None = None

    def __str__(self) -> str:
        return f"{'near-duplicate' if self.near else 'same'} {self.kind}, {self.where}: {self.text:.80}"


class LeakError(InputError):
    """Data repeat questions or contexts of another set; ``leaks`` holds all of them."""

    def __init__(self, what: str, leaks: list[Leak]) -> None:
        self.leaks = leaks
        listed = "".join(f"\n    {leak}" for leak in leaks[:_SHOWN]) + "\n    and more" * (
            len(leaks) > _SHOWN
        )
        found = f"{what} repeats {len(leaks)} questions or contexts of the sets it is checked against:{listed}"
        super().__init__(
            found, fix="prepare another part of the data, or leave out what repeats (--drop-leaks)"
        )


class LeakCheck:
    """Learns one or more sets, then finds what another set repeats; memory grows only with the
    learned sets.
    """

    def __init__(self) -> None:
        self._lines: dict[
            str, frozenset[str] | None
        ] = {}  # question line: its answers, None for a form
        self._asked_in: dict[str, str] = {}
        self._context_lines, self._passages, self._runs = (
            set[int](),
            set[int](),
            set[int](),
        )  # hashes
        self._label_lines = set[str]()
        self._near_questions, self._near_passages = _NearIndex(), _NearIndex()
        self.leaks: list[Leak] = []

    def learn(self, instances: Iterable[Instance], *, own_examples: bool = True) -> None:
        """Add the questions and contexts of a set; ``own_examples`` = False if its labelled
        examples come from another file.
        """
        for instance in instances:
            labelled = any(question.metric in LABEL_METRICS for question in instance.questions)
            for chunk in instance.chunks:
                if own_examples:
                    self._context_lines.update(
                        hash(line) for line in _lines(chunk.text, short=labelled)
                    )
                if not labelled:
                    self._runs.update(hash(run) for run in _runs(chunk.text, RUN_WORDS))
                for passage in _passages(chunk.text, short=not labelled):
                    if (
                        hash(passage) not in self._passages
                        and _length(passage) >= MIN_PASSAGE_WORDS
                    ):
                        self._near_passages.add(_word_pieces(passage))
                    self._passages.add(hash(passage))
            for question in instance.questions:
                self._learn_question(instance.id, question)

    def _learn_question(self, instance: str, question: Question) -> None:
        asked, (said, telling), labelled = (
            as_asked(question.text),
            _answers(question),
            question.metric in LABEL_METRICS,
        )
        for line in _lines(asked, short=True):
            if labelled:
                self._label_lines.add(line)
            known = self._lines.get(line, said)
            elsewhere = self._asked_in.setdefault(line, instance) != instance
            # Label numbers differ between instances, so only one instance can show that a label
            # line is a form.
            form = known is None or (known.isdisjoint(said) and not (labelled and elsewhere))
            self._lines[line] = None if form else (known or frozenset()) | said
        words = " ".join(_words(asked))
        if not labelled and telling and len(words.split()) >= MIN_QUESTION_WORDS:
            self._near_questions.add(_letter_pieces(words), telling)

    def check(self, instance: Instance, *, own_examples: bool = True) -> list[Leak]:
        """Return what an instance repeats and add it to ``leaks``; arguments as of ``learn``."""
        if not self._lines and not self._passages:
            return []
        found: list[Leak] = []
        labelled = any(question.metric in LABEL_METRICS for question in instance.questions)
        for index, chunk in enumerate(instance.chunks):
            where = f"instance {instance.id!r} chunk {index}"
            shown = _lines(chunk.text, short=labelled) if own_examples else ()
            again = (
                line
                for line in shown
                if line in self._label_lines and self._lines[line] is not None
            )
            found += (Leak("question", where, line, near=False) for line in again)
            found += self._repeated_context(chunk.text, where, labelled=labelled)
        for index, question in enumerate(instance.questions):
            if (
                leak := self._repeated_question(
                    question, f"instance {instance.id!r} question {question.id!r}"
                )
            ) is not None:
                found.append(leak._replace(question=index))
        self.leaks += found
        return found

    def _repeated_context(self, text: str, where: str, *, labelled: bool) -> list[Leak]:
        found = []
        for passage in _passages(text, short=not labelled):
            if hash(passage) in self._passages:
                found.append(Leak("context", where, passage, near=False))
            elif _length(passage) >= MIN_PASSAGE_WORDS and self._near_passages.has(
                _word_pieces(passage)
            ):
                found.append(Leak("context", where, passage, near=True))
        if (
            not labelled
            and not found
            and (run := next((run for run in _runs(text, 1) if hash(run) in self._runs), None))
        ):
            found.append(Leak("context", where, run, near=False))
        return found

    def _repeated_question(self, question: Question, where: str) -> Leak | None:
        asked, (_, telling) = as_asked(question.text), _answers(question)
        words, labelled = " ".join(_words(asked)), question.metric in LABEL_METRICS
        for line in _lines(asked, short=True):
            says_enough = labelled or len(line.split()) >= MIN_QUESTION_WORDS
            known = self._lines.get(line)
            if (known is not None and (says_enough or known & telling)) or (
                labelled and hash(line) in self._context_lines
            ):
                return Leak("question", where, line, near=False)
        form = any(self._lines.get(line, telling) is None for line in _lines(asked))
        if form or not telling or labelled or len(words.split()) < MIN_QUESTION_WORDS:
            return None
        near = self._near_questions.has(_letter_pieces(words), telling)
        return Leak("question", where, words, near=True) if near else None


def without(instance: Instance, leaks: Sequence[Leak]) -> Instance | None:
    """Return an instance without its leaking questions; None if a chunk leaks or no question is
    left.
    """
    leaking = {leak.question for leak in leaks}
    questions = tuple(
        question for index, question in enumerate(instance.questions) if index not in leaking
    )
    return (
        None
        if None in leaking or (leaks and not questions)
        else replace(instance, questions=questions)
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(apart(unicodedata.normalize("NFKC", text).casefold()))


def _unlabelled_words(text: str) -> list[str]:
    return [word for line in text.split("\n") for word in _words(_LABEL.sub("", line))]


def _lines(text: str, *, short: bool = False) -> Iterator[str]:
    for line in text.split("\n"):
        words = " ".join(_words(_LABEL.sub("", line)))
        if words.count(" ") + 1 >= MIN_QUESTION_WORDS or (short and words and not words.isdigit()):
            yield words


def _runs(text: str, step: int) -> Iterator[str]:
    words = _unlabelled_words(text)
    for start in range(0, len(words) - RUN_WORDS + 1, step):
        yield " ".join(words[start : start + RUN_WORDS])


def _passages(text: str, *, short: bool) -> list[str]:
    passages = [" ".join(_unlabelled_words(passage)) for passage in re.split(r"\n\s*\n", text)]
    found = [passage for passage in passages if _length(passage) >= MIN_PASSAGE_WORDS]
    return found or [
        passage for passage in passages if short and _length(passage) >= MIN_QUESTION_WORDS
    ]


def _length(passage: str) -> int:
    return passage.count(" ") + 1


def _answers(question: Question) -> tuple[frozenset[str], frozenset[str]]:
    said = frozenset(" ".join(_words(answer)) for answer in question.answers)
    return said, frozenset(
        each
        for each in said
        if each not in _SAYS_NOTHING and not (each.isdigit() and len(each) < 3)
    )


def _letter_pieces(words: str) -> list[bytes]:
    return [words[i : i + 4].encode() for i in range(max(1, len(words) - 3))]


def _word_pieces(passage: str) -> list[bytes]:
    words = passage.split()
    return [" ".join(words[i : i + 3]).encode() for i in range(max(1, len(words) - 2))]


class _NearIndex:
    """MinHash index of texts; each can need a shared answer (None = no)."""

    def __init__(self) -> None:
        self._texts: list[tuple[Any, frozenset[str] | None]] = []  # signature and answers

    @cached_property
    def _index(self) -> Any:
        from datasketch import MinHashLSH  # a slow import

        # Weights that avoid misses; the estimate in ``has`` removes false candidates.
        return MinHashLSH(threshold=THRESHOLD, num_perm=_PERMUTATIONS, weights=(0.1, 0.9))

    def add(self, pieces: list[bytes], shared: frozenset[str] | None = None) -> None:
        signature = _signature(pieces)
        self._index.insert(len(self._texts), signature)
        self._texts.append((signature, shared))

    def has(self, pieces: list[bytes], shared: frozenset[str] = frozenset()) -> bool:
        if not self._texts:
            return False
        signature = _signature(pieces)
        candidates = (self._texts[number] for number in self._index.query(signature))
        return any(
            (needed is None or needed & shared) and text.jaccard(signature) >= THRESHOLD
            for text, needed in candidates
        )


def _signature(pieces: list[bytes]) -> Any:
    from datasketch import LeanMinHash, MinHash

    signature = MinHash(num_perm=_PERMUTATIONS, seed=1)
    signature.update_batch(pieces)
    return LeanMinHash(signature)
