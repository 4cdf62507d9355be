"""The leak check: does a data set repeat questions or contexts of another, word for word or nearly?

Texts are compared as their words: case-folded, in one Unicode form (NFKC), punctuation dropped; where a script has no spaces, each
sign is a word. Questions are compared line by line, without the lines that our loaders add (``memalpha.data.wording``); contexts
passage by passage (what stands between blank lines) and by runs of words; each without a leading ``Word:`` such as a speaker or
``Sentence:``.

| what | is a leak if |
| --- | --- |
| a line of a question, at least 4 words | it is equal to a line of a question there |
| a shorter line of a question | it is equal to one there *and* shares an answer with it that says something |
| a line of a question about a label, of any length | it is equal to one there, or to an example there, or the other way round |
| a question, at least 4 words | it is nearly equal to one there (MinHash) *and* shares an answer with it that says something |
| a passage, at least 12 words | it is equal, or nearly equal (MinHash), to one there |
| a shorter passage, at least 4 words, of a chunk without longer ones | it is equal to one there |
| a run of words | it stands in a context there, however both are cut: always from 99 words on, never below 50 |

Nearly equal is an estimated Jaccard similarity of at least 0.7 (MinHash, ``datasketch``): of the sets of four-letter pieces of two
questions, or of the sets of three-word pieces of two passages. The estimate is from 128 random permutations: its standard error is
below 0.05. Answers that say nothing are yes, no, none and the like, and numbers of one or two digits. Labels (metrics ``boxed``
and ``label``) are such numbers too, so sentences to label are compared word for word only: short utterances that differ in one word
are different questions. Runs are not looked for among their examples, which are compared as lines.

What is no leak: an example that a set took from another file, as a test set shows examples of the training set; a form, that is a
line that the other set asks several times with answers that share none (``Where is Mary?``, ``Summarise the text.``; a line about a
label only where one instance does so); what is below the lengths above, which says too little to be told apart.

What it does not find: a paraphrase, another language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.data.counting import apart
from memalpha.data.wording import as_asked
from memalpha.errors import InputError
from memalpha.qa.metrics import LABEL_METRICS
from memalpha.types import Instance, Question

if TYPE_CHECKING:
    import numpy as np
    from datasketch import MinHash
    from numpy.typing import NDArray

MIN_QUESTION_WORDS = 4
"""Shortest question line that is compared whatever its answer, and shortest passage of a chunk that has no longer ones."""

MIN_PASSAGE_WORDS = 12
"""Shortest passage that is compared in every chunk, and for being nearly equal."""

RUN_WORDS = 50
"""Words of a run: those learned lie end to end, those checked begin at each word. Formulas of meetings and notices are shorter."""

THRESHOLD = 0.7
"""Estimated Jaccard similarity from which two texts are nearly equal."""

_PERMUTATIONS = 128
_QUESTION_LETTERS, _PASSAGE_WORDS = 4, 3
_WORD = re.compile(r"\w+")
_LABEL = re.compile(r"^\s*\w+:\s+")
_SAYS_NOTHING = frozenset({"yes", "no", "none", "nothing", "maybe", "true", "false", "unknown", ""})
_SHOWN = 50


class Leak(NamedTuple):
    """One thing that comes again: a ``question`` or ``context``, its place in the new set, and its words.

    ``near``: it is nearly equal only. ``question``: its index in its instance, None if a chunk repeats something.
    """

    kind: str
    where: str
    text: str
    near: bool
    question: int | None = None

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        return f"{'near-duplicate' if self.near else 'same'} {self.kind}, {self.where}: {shown}"


class LeakError(InputError):
    """Data repeat questions or contexts of a set they must be apart from; ``leaks`` holds everything that was found."""

    def __init__(self, what: str, leaks: list[Leak]) -> None:
        self.leaks = leaks
        listed = "".join(f"\n    {leak}" for leak in leaks[:_SHOWN])
        more = f"\n    and {len(leaks) - _SHOWN} more" if len(leaks) > _SHOWN else ""
        super().__init__(
            f"{what} repeats {len(leaks)} questions or contexts of the sets it is checked against:{listed}{more}",
            expected="no question and no context in common",
            fix="prepare another part of the data, or leave out what repeats (--drop-leaks)",
        )


class LeakCheck:
    """Learns one or more sets, then finds what another one repeats of them; memory grows with what is learned alone."""

    def __init__(self) -> None:
        self._lines: dict[str, frozenset[str] | None] = {}  # question lines: answers in all instances so far, None for a form
        self._asked_in: dict[str, str] = {}
        self._context_lines: set[int] = set()
        self._passages: set[int] = set()
        self._runs: set[int] = set()
        self._label_lines: set[str] = set()
        self._near_questions, self._near_passages = _NearIndex(), _NearIndex()
        self.leaks: list[Leak] = []
        """What ``check`` found so far."""

    def learn(self, instances: Iterable[Instance], *, own_examples: bool = True) -> None:
        """Add the questions and contexts of a set; ``own_examples``: its labelled examples are not those of another file."""
        for instance in instances:
            labelled = _labelled(instance)
            for chunk in instance.chunks:
                if own_examples:
                    self._context_lines.update(hash(line) for line in _lines(chunk.text, short=labelled))
                if not labelled:
                    self._runs.update(hash(run) for run in _runs(chunk.text, RUN_WORDS))
                for passage in _passages(chunk.text, short=not labelled):
                    if hash(passage) not in self._passages:
                        self._passages.add(hash(passage))
                        if _length(passage) >= MIN_PASSAGE_WORDS:
                            self._near_passages.add(_word_pieces(passage))
            for question in instance.questions:
                self._learn_question(instance.id, question)

    def _learn_question(self, instance: str, question: Question) -> None:
        asked, said, labelled = as_asked(question.text), _answers(question), question.metric in LABEL_METRICS
        for line in _lines(asked, short=True):
            if labelled:
                self._label_lines.add(line)
            known = self._lines.get(line, said)
            elsewhere = self._asked_in.setdefault(line, instance) != instance
            # The label of a sentence is another number in another context, so only one context tells whether a line is a form.
            form = known is None or (known.isdisjoint(said) and not (labelled and elsewhere))
            self._lines[line] = None if form else (known or frozenset()) | said
        words, telling = " ".join(_words(asked)), _telling(said)
        if not labelled and telling and len(words.split()) >= MIN_QUESTION_WORDS:
            self._near_questions.add(_letter_pieces(words), telling)

    def check(self, instance: Instance, *, own_examples: bool = True) -> list[Leak]:
        """Return what an instance repeats, and add it to ``leaks``; nothing if nothing was learned. Arguments as of ``learn``."""
        if not self._lines and not self._passages:
            return []
        found: list[Leak] = []
        labelled = _labelled(instance)
        for index, chunk in enumerate(instance.chunks):
            where = f"instance {instance.id!r} chunk {index}"
            found += self._repeated_lines(chunk.text, where, short=labelled) if own_examples else ()
            found += self._repeated_context(chunk.text, where, labelled=labelled)
        for index, question in enumerate(instance.questions):
            if (leak := self._repeated_question(question, f"instance {instance.id!r} question {question.id!r}")) is not None:
                found.append(leak._replace(question=index))
        self.leaks += found
        return found

    def _repeated_context(self, text: str, where: str, *, labelled: bool) -> list[Leak]:
        found = []
        for passage in _passages(text, short=not labelled):
            if hash(passage) in self._passages:
                found.append(Leak("context", where, passage, near=False))
            elif _length(passage) >= MIN_PASSAGE_WORDS and self._near_passages.has(_word_pieces(passage)):
                found.append(Leak("context", where, passage, near=True))
        if not labelled and not found and (run := next((run for run in _runs(text, 1) if hash(run) in self._runs), None)):
            found.append(Leak("context", where, run, near=False))
        return found

    def _repeated_lines(self, text: str, where: str, *, short: bool) -> Iterator[Leak]:
        for line in _lines(text, short=short):
            if line in self._label_lines and self._lines[line] is not None:
                yield Leak("question", where, line, near=False)

    def _repeated_question(self, question: Question, where: str) -> Leak | None:
        asked, telling = as_asked(question.text), _telling(_answers(question))
        words, labelled = " ".join(_words(asked)), question.metric in LABEL_METRICS
        for line in _lines(asked, short=True):
            says_enough = labelled or len(line.split()) >= MIN_QUESTION_WORDS
            known = self._lines.get(line)
            if (known is not None and (says_enough or known & telling)) or (labelled and hash(line) in self._context_lines):
                return Leak("question", where, line, near=False)
        form = any(self._lines.get(line, telling) is None for line in _lines(asked))
        if form or not telling or labelled or len(words.split()) < MIN_QUESTION_WORDS:
            return None
        near = self._near_questions.has(_letter_pieces(words), telling)
        return Leak("question", where, words, near=True) if near else None


def without(instance: Instance, leaks: Sequence[Leak]) -> Instance | None:
    """Return an instance without the questions that leak; None if a chunk does, since its questions need it, or none is left."""
    leaking = {leak.question for leak in leaks}
    questions = tuple(question for index, question in enumerate(instance.questions) if index not in leaking)
    return None if None in leaking or (leaks and not questions) else replace(instance, questions=questions)


def _words(text: str) -> list[str]:
    return _WORD.findall(apart(unicodedata.normalize("NFKC", text).casefold()))


def _unlabelled_words(text: str) -> list[str]:
    """The words of a text, each line without its leading ``Word:``."""
    return [word for line in text.split("\n") for word in _words(_LABEL.sub("", line))]


def _labelled(instance: Instance) -> bool:
    """Whether an instance shows labelled examples."""
    return any(question.metric in LABEL_METRICS for question in instance.questions)


def _lines(text: str, *, short: bool = False) -> Iterator[str]:
    """The words of each line that is long enough, or of every one that is no mere number."""
    for line in text.split("\n"):
        words = " ".join(_words(_LABEL.sub("", line)))
        if words.count(" ") + 1 >= MIN_QUESTION_WORDS or (short and words and not words.isdigit()):
            yield words


def _runs(text: str, step: int) -> Iterator[str]:
    """The words of each run of a text; one begins every ``step`` words."""
    words = _unlabelled_words(text)
    for start in range(0, len(words) - RUN_WORDS + 1, step):
        yield " ".join(words[start : start + RUN_WORDS])


def _passages(text: str, *, short: bool) -> list[str]:
    """The words of each passage that is long enough; those of shorter ones where there are no others and ``short`` is given."""
    passages = [" ".join(_unlabelled_words(passage)) for passage in re.split(r"\n\s*\n", text)]
    found = [passage for passage in passages if _length(passage) >= MIN_PASSAGE_WORDS]
    return found or [passage for passage in passages if short and _length(passage) >= MIN_QUESTION_WORDS]


def _length(passage: str) -> int:
    return passage.count(" ") + 1


def _answers(question: Question) -> frozenset[str]:
    return frozenset(" ".join(_words(answer)) for answer in question.answers)


def _telling(answers: frozenset[str]) -> frozenset[str]:
    """The answers that say something."""
    return frozenset(answer for answer in answers if answer not in _SAYS_NOTHING and not (answer.isdigit() and len(answer) < 3))


def _letter_pieces(words: str) -> list[bytes]:
    return [words[i : i + _QUESTION_LETTERS].encode() for i in range(max(1, len(words) - _QUESTION_LETTERS + 1))]


def _word_pieces(passage: str) -> list[bytes]:
    words = passage.split()
    return [" ".join(words[i : i + _PASSAGE_WORDS]).encode() for i in range(max(1, len(words) - _PASSAGE_WORDS + 1))]


class _NearIndex:
    """Texts as the sets of their pieces, each with what must be shared with it besides (None = nothing), by MinHash."""

    def __init__(self) -> None:
        self._index: Any = None
        self._held: list[tuple[NDArray[np.uint64], frozenset[str] | None]] = []

    def add(self, pieces: list[bytes], shared: frozenset[str] | None = None) -> None:
        """Add a text."""
        from datasketch import MinHashLSH

        if self._index is None:
            # More weight on misses than on false candidates: these are thrown out by the estimate below.
            self._index = MinHashLSH(threshold=THRESHOLD, num_perm=_PERMUTATIONS, weights=(0.1, 0.9))
        signature = _signature(pieces)
        self._index.insert(len(self._held), signature)
        self._held.append((signature.hashvalues.copy(), shared))

    def has(self, pieces: list[bytes], shared: frozenset[str] = frozenset()) -> bool:
        """Whether a text is nearly equal to one that was added, and has in common with it what that one asks for."""
        if self._index is None:
            return False
        signature = _signature(pieces)
        for number in self._index.query(signature):
            held, needed = self._held[number]
            alike = float((held == signature.hashvalues).mean())  # estimates the Jaccard similarity
            if alike >= THRESHOLD and (needed is None or needed & shared):
                return True
        return False


def _signature(pieces: list[bytes]) -> MinHash:
    from datasketch import MinHash

    signature = MinHash(num_perm=_PERMUTATIONS, seed=1)
    signature.update_batch(pieces)
    return signature
