"""The leak check: questions or contexts that a data set shares with another one, exactly or nearly.

docs/reference/data-sets.md has the rules. Texts are compared as words (NFKC, case-folded, no
punctuation, no leading ``Word:``; in scripts without spaces, signs): questions line by line,
without lines our loaders add; contexts by passage (split at blank lines) and word run. Nearly
equal: MinHash estimate of the Jaccard similarity of four-letter pieces of questions, or three-word
pieces of passages.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from memalpha.data.chunks import space_signs
from memalpha.data.published.shared import as_asked
from memalpha.errors import InputError, from_extra
from memalpha.qa.metrics import LABEL_METRICS
from memalpha.types import Instance, Question

# shortest question line compared without its answer; shortest passage compared at all
MIN_QUESTION_WORDS = 4
MIN_PASSAGE_WORDS = 12  # shortest passage compared in every chunk, and for near equality
# words of a run: learned runs do not overlap, checked runs start at every word; common formulas are
# shorter
RUN_WORDS = 50
THRESHOLD = 0.7  # Jaccard similarity of nearly equal texts
_PERMUTATIONS = 128
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
        how = "near-duplicate" if self.near else "same"
        return f"{how} {self.kind}, {self.where}: {self.text:.80}"


class LeakError(InputError):
    """Data repeat questions or contexts of another set; ``leaks`` holds all of them."""

    def __init__(self, what: str, leaks: list[Leak]) -> None:
        self.leaks = leaks
        listed = [*map(str, leaks[:_SHOWN]), *["and more"][: len(leaks) > _SHOWN]]
        repeats = f"{what} repeats {len(leaks)} questions or contexts of the sets it is checked"
        fix = "prepare another part of the data, or leave out what repeats (--drop-leaks)"
        super().__init__("\n    ".join([f"{repeats} against:", *listed]), fix=fix)


class LeakCheck:
    """Learns one or more sets, then finds what another set repeats; memory grows only with the
    learned sets.
    """

    def __init__(self) -> None:
        self.leaks: list[Leak] = []
        self._contexts: set[int] = set()  # hashes of (what, text): lines, runs, passages
        self._answers: dict[str, frozenset[str] | None] = {}  # of a question's line; None: a form
        self._first_asked: dict[str, str] = {}  # the instance of a question's line
        self._label_lines: set[str] = set()
        self._near_questions = _NearIndex(4, "")
        self._near_passages = _NearIndex(3, " ")

    def learn(self, instances: Iterable[Instance], *, own_examples: bool = True) -> None:
        """Add the questions and contexts of a set; ``own_examples`` = False if its labelled
        examples come from another file.
        """
        for instance in instances:
            labelled = _asks_for_labels(instance)
            for chunk in instance.chunks:
                lines = _lines(chunk.text, short=labelled) if own_examples else ()
                runs = () if labelled else _runs(chunk.text, RUN_WORDS)
                self._contexts |= {hash(("line", line)) for line in lines}
                self._contexts |= {hash(("run", run)) for run in runs}
                for passage in _passages(chunk.text, short=not labelled):
                    key = hash(("passage", passage))
                    if key not in self._contexts and _length(passage) >= MIN_PASSAGE_WORDS:
                        self._near_passages.add(passage)
                    self._contexts.add(key)
            for question in instance.questions:
                self._learn_question(instance.id, question)

    def _learn_question(self, instance: str, question: Question) -> None:
        text = as_asked(question.text)
        answers, telling = _answers(question)
        labelled = question.metric in LABEL_METRICS
        for line in _lines(text, short=True):
            if labelled:
                self._label_lines.add(line)
            known = self._answers.get(line, answers)
            elsewhere = self._first_asked.setdefault(line, instance) != instance
            # Label numbers differ between instances, so only one instance can show that a label
            # line is a form.
            form = known is None or (known.isdisjoint(answers) and not (labelled and elsewhere))
            self._answers[line] = None if form else (known or frozenset()) | answers
        words = " ".join(_words(text))
        if not labelled and telling and _length(words) >= MIN_QUESTION_WORDS:
            self._near_questions.add(words, telling)

    def check(self, instance: Instance, *, own_examples: bool = True) -> list[Leak]:
        """Return what an instance repeats and add it to ``leaks``; arguments as of ``learn``."""
        found: list[Leak] = []
        if not self._answers and not self._contexts:
            return found
        labelled = _asks_for_labels(instance)
        for index, chunk in enumerate(instance.chunks):
            where = f"instance {instance.id!r} chunk {index}"
            lines = _lines(chunk.text, short=labelled) if own_examples else ()
            found += [
                Leak("question", where, line, near=False)
                for line in lines
                if line in self._label_lines and self._answers[line] is not None
            ]
            found += self._repeated_context(chunk.text, where, labelled=labelled)
        for index, question in enumerate(instance.questions):
            where = f"instance {instance.id!r} question {question.id!r}"
            leak = self._repeated_question(question, where)
            if leak is not None:
                found.append(leak._replace(question=index))
        self.leaks += found
        return found

    def _repeated_context(self, text: str, where: str, *, labelled: bool) -> list[Leak]:
        found = []
        for passage in _passages(text, short=not labelled):
            same = hash(("passage", passage)) in self._contexts
            long = _length(passage) >= MIN_PASSAGE_WORDS
            if same or (long and self._near_passages.has(passage)):
                found.append(Leak("context", where, passage, near=not same))
        runs = () if labelled or found else _runs(text, 1)
        again = next((run for run in runs if hash(("run", run)) in self._contexts), None)
        return found if again is None else [Leak("context", where, again, near=False)]

    def _repeated_question(self, question: Question, where: str) -> Leak | None:
        text = as_asked(question.text)
        _, telling = _answers(question)
        labelled = question.metric in LABEL_METRICS
        for line in _lines(text, short=True):
            known = self._answers.get(line) or frozenset()
            enough = labelled or _length(line) >= MIN_QUESTION_WORDS or known & telling
            shown = labelled and hash(("line", line)) in self._contexts
            if (known and enough) or shown:
                return Leak("question", where, line, near=False)
        words = " ".join(_words(text))
        form = any(self._answers.get(line, telling) is None for line in _lines(text))
        if form or not telling or labelled or _length(words) < MIN_QUESTION_WORDS:
            return None
        near = self._near_questions.has(words, telling)
        return Leak("question", where, words, near=True) if near else None


def without(instance: Instance, leaks: Sequence[Leak]) -> Instance | None:
    """Return an instance without its leaking questions; None if a chunk leaks or no question is
    left.
    """
    leaking = {leak.question for leak in leaks}
    numbered = enumerate(instance.questions)
    questions = tuple(question for index, question in numbered if index not in leaking)
    lost = None in leaking or (leaks and not questions)
    return None if lost else replace(instance, questions=questions)


def _asks_for_labels(instance: Instance) -> bool:
    return any(question.metric in LABEL_METRICS for question in instance.questions)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", space_signs(unicodedata.normalize("NFKC", text).casefold()))


def _length(words: str) -> int:
    return words.count(" ") + 1


def _without_labels(text: str) -> list[str]:
    """Return the words of each line, joined, without a label at its beginning."""
    return [" ".join(_words(_LABEL.sub("", line))) for line in text.split("\n")]


def _lines(text: str, *, short: bool = False) -> Iterator[str]:
    for words in _without_labels(text):
        if _length(words) >= MIN_QUESTION_WORDS or (short and words and not words.isdigit()):
            yield words


def _runs(text: str, step: int) -> Iterator[str]:
    words = " ".join(_without_labels(text)).split()
    for start in range(0, len(words) - RUN_WORDS + 1, step):
        yield " ".join(words[start : start + RUN_WORDS])


def _passages(text: str, *, short: bool) -> list[str]:
    blocks = re.split(r"\n\s*\n", text)
    passages = [" ".join(filter(None, _without_labels(block))) for block in blocks]
    long = [passage for passage in passages if _length(passage) >= MIN_PASSAGE_WORDS]
    least = MIN_QUESTION_WORDS if short and not long else MIN_PASSAGE_WORDS
    return [passage for passage in passages if _length(passage) >= least]


def _answers(question: Question) -> tuple[frozenset[str], frozenset[str]]:
    """Return the accepted answers, and those that tell questions apart."""
    answers = frozenset(" ".join(_words(answer)) for answer in question.answers)
    numbers = {answer for answer in answers if answer.isdigit() and len(answer) < 3}
    return answers, answers - _SAYS_NOTHING - numbers


class _NearIndex:
    """MinHash index of texts by their pieces of ``size`` letters or words; each can need a shared
    answer (None = no).
    """

    def __init__(self, size: int, separator: str) -> None:
        self._size = size
        self._separator = separator
        self._texts: list[tuple[Any, frozenset[str] | None]] = []  # signature and answers

    @cached_property
    def _index(self) -> Any:
        with from_extra("data"):
            from datasketch import MinHashLSH  # a slow import

        # Weights that avoid misses; the estimate in ``has`` removes false candidates.
        return MinHashLSH(threshold=THRESHOLD, num_perm=_PERMUTATIONS, weights=(0.1, 0.9))

    def add(self, text: str, shared: frozenset[str] | None = None) -> None:
        signature = self._signature(text)
        self._index.insert(len(self._texts), signature)
        self._texts.append((signature, shared))

    def has(self, text: str, shared: frozenset[str] = frozenset()) -> bool:
        if not self._texts:
            return False
        signature = self._signature(text)
        candidates = [self._texts[number] for number in self._index.query(signature)]
        near = [needed for other, needed in candidates if other.jaccard(signature) >= THRESHOLD]
        return any(needed is None or needed & shared for needed in near)

    def _signature(self, text: str) -> Any:
        with from_extra("data"):
            from datasketch import LeanMinHash, MinHash

        units = text.split(self._separator) if self._separator else list(text)
        starts = range(max(1, len(units) - self._size + 1))
        pieces = (self._separator.join(units[i : i + self._size]).encode() for i in starts)
        signature = MinHash(num_perm=_PERMUTATIONS, seed=1)
        signature.update_batch(list(pieces))
        return LeanMinHash(signature)
