"""Metrics: scores of an answer to a question in [0, 1], pure functions.

``METRICS`` lists those of several data sets. Those of one published set stand beside its loader
(``memalpha.data.published``), and are found by entry points, as are those of other packages. A
metric never raises for an answer; InputError is for a question that it cannot score. Sources:
Mem-alpha (arXiv 2509.25911, its repository's ``evaluate_agent_results.py``) for ``substring``,
``boxed`` and ``keywords``; SQuAD (its ``evaluate-v1.1.py``) for ``exact_match`` and ``f1``;
MemoryAgentBench (its ``utils/eval_other_utils.py``) for ``substring_all``; the others are this
project's. docs/reference/data-sets.md lists how each differs from its source.
Not covered: paraphrase (metric ``judge``, see ``memalpha.qa.judges``), languages without spaces.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from memalpha.errors import InputError
from memalpha.plugins import find_plugins, load_plugin, plugin_names
from memalpha.types import Answer, Question

METRICS_GROUP = "memalpha.metrics"  # entry points of metrics; memalpha.plugins lists what they name
JUDGE = "judge"  # metric of questions that an ``AnswerJudge`` decides; not in ``METRICS``
# the same, point by point: the share of a question's answers that the judge finds met
RUBRIC = "rubric"
JUDGED = frozenset({JUDGE, RUBRIC})
# the answer is the number of a label; numbers differ between instances
LABEL_METRICS = frozenset({"boxed", "label"})

_WORD = re.compile(r"(?<!\w)-\d\w*|\b\w-(?!\w)|\w+[+#]*")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BOXED = re.compile(r"\A\\boxed\s*\{\s*([+-]?[0-9]{1,18})\s*\}")
_BARE = re.compile(r"\A\s*(?:answer:\s*)?[\"']?([0-9]{1,18})[\"']?\s*\Z", re.IGNORECASE)
_LABELLED = re.compile(r"\blabel[\s:=#]{0,3}([+-]?[0-9]{1,18})(?![0-9])", re.IGNORECASE)
_INTEGER = re.compile(r"(?<![\w.,])([+-]?[0-9]{1,18})(?!\w|[.,][0-9])")
_LABEL = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
_NOTHING_KNOWN = (
    "none|nothing|unknown|n/a|no longer|no more|any more|anymore|any longer|no information|"
    "no record|not known|not mentioned|not stated|not specified|not available|not clear|not have|"
    "not know|don't know|doesn't have|cannot tell|can't tell|cannot answer|can't answer|"
    "cannot be determined|gave up|given up|has no|have no"
).split("|")
"""Phrases of a generated answer that mean "none"; so does an answer that begins with "no"."""


# ------------------------------------------------------------------------------------------------
# text
def normalise(text: str) -> str:
    """SQuAD normalisation: lower-case, without ASCII punctuation and articles.

    These stay if nothing is left (``"The The"``).
    """
    lowered = " ".join(text.lower().split())
    return " ".join(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)).split()) or lowered


@lru_cache(maxsize=8192)
def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, NFKC-normalised and case-folded.

    Runs of letters, digits, ``_`` and signs (``-3``, ``C++``).
    """
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


@lru_cache(maxsize=8192)
def _with_spaces(text: str) -> str:
    return f" {' '.join(words(text))} "


def contains(text: str, phrase: str) -> bool:
    """Whether ``text`` has the words of ``phrase`` in sequence.

    Without words (``"++"``), as a substring; never if blank.
    """
    if words(phrase):
        return _with_spaces(phrase) in _with_spaces(text)
    return bool(phrase.strip()) and phrase.strip() in text


def _holds(gold: str, text: str) -> bool:
    needle = normalise(gold)
    return needle in normalise(text) or needle in text.lower()


def golden_answers(question: Question) -> tuple[str, ...]:
    """Return the accepted answers of a question; InputError if it has none, or a blank one."""
    if not question.answers or not all(answer.strip() for answer in question.answers):
        raise InputError(
            f"the question {question.text!r} has the answers {list(question.answers)}",
            expected="at least one answer, and none of them blank",
        )
    return question.answers


# ------------------------------------------------------------------------------------------------
# containment and overlap
def substring(question: Question, answer: Answer) -> float:
    """1 if the answer or one of its passages contains an accepted answer.

    Both normalised, by characters (as published).
    """
    texts = answer.passages if answer.passages is not None else (answer.text,)
    return float(any(_holds(gold, text) for gold in golden_answers(question) for text in texts))


def substring_all(question: Question, answer: Answer) -> float:
    """1 if *all* of the question's answers are contained, as in ``substring``.

    Source: MemoryAgentBench's EventQA.
    """
    texts = answer.passages if answer.passages is not None else (answer.text,)
    golds = golden_answers(question)
    return float(all(any(_holds(gold, text) for text in texts) for gold in golds))


def exact_match(question: Question, answer: Answer) -> float:
    """1 if the answer equals an accepted answer, both normalised. Source: SQuAD."""
    return float(normalise(answer.text) in {normalise(gold) for gold in golden_answers(question)})


def f1(question: Question, answer: Answer) -> float:
    """Harmonic mean of normalised word precision and recall, best over the accepted answers.
    Source: SQuAD.
    """
    given = normalise(answer.text).split()
    return max(word_f1(given, normalise(gold).split()) for gold in golden_answers(question))


def word_f1(left: Sequence[str], right: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of words; 0 if there are none."""
    common = Counter(left) & Counter(right)
    return 2 * common.total() / max(1, len(left) + len(right))


def keywords(question: Question, answer: Answer) -> float:
    """Share of the question's answers (keywords) that the answer contains.

    Source: BookSum and InfBench-Sum, as published.
    """
    return contained_share(golden_answers(question), answer.text)


def contained_share(golds: Iterable[str], text: str) -> float:
    """Return the share of the phrases, blank ones aside, that a text contains as ``substring``."""
    wanted = [gold for gold in golds if gold.strip()]
    return sum(_holds(gold, text) for gold in wanted) / len(wanted) if wanted else 0.0


def boxed_label(question: Question, answer: Answer) -> float:
    r"""1 if the integer in the answer's last ``\boxed{...}`` is an accepted answer.

    So is one that is all of the answer.

    Source: the published classification sets. There the first box counts.
    """
    number = (
        _number(_BARE, answer.text)
        if _boxed_number(answer.text) is None
        else _boxed_number(answer.text)
    )
    return float(number in _labels(question))


def label(question: Question, answer: Answer) -> float:
    """1 if the answer's first label is an accepted answer.

    Passages: the first number after the word "label". Generated answer: that of ``boxed``, else the
        first after "label", else the first number.
    """
    text = answer.text
    numbers = [_boxed_number(text), _number(_LABELLED, text), _number(_INTEGER, text)]
    if answer.passages is not None:
        numbers = [_number(_LABELLED, passage) for passage in answer.passages]
    known = [number for number in numbers if number is not None]
    return float(next(iter(known), None) in _labels(question))


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _boxed_number(text: str) -> int | None:
    return _number(_BOXED, text[max(0, text.rfind(r"\boxed")) :])


def _labels(question: Question) -> set[int]:
    golds = golden_answers(question)
    wrong = [gold for gold in golds if not _LABEL.fullmatch(gold)]
    if wrong:
        raise InputError(
            f"the question {question.text!r} has metric {question.metric!r} and the "
            f"answer {wrong[:1]}",
            expected="an integer label",
        )
    return {int(gold) for gold in golds}


# ------------------------------------------------------------------------------------------------
# bound to the subject
def bound_to_subject(question: Question, answer: Answer) -> float:
    """1 if the answer gives an accepted answer for the right subject and no stale value.

    Passages: one passage contains subject and accepted answer as whole words; no passage with the
        subject contains a stale value. Without a subject every passage counts, here and in
        ``bound_all`` and ``absent``.
    Generated answer: it contains an accepted answer and no stale value.
    """
    golds = golden_answers(question)
    texts = _about_subject(question, answer)
    return float(
        any(contains(text, gold) for text in texts for gold in golds)
        and not gives_stale(question, answer)
    )


def bound_all(question: Question, answer: Answer) -> float:
    """1 if *all* of the question's answers are given for the right subject, and no stale value.

    Passages: each answer is in a passage with the subject. Generated answer: it contains all; for
        "how many" it may also be just their number, in digits or as a word up to twenty.
    """
    golds = golden_answers(question)
    texts = _about_subject(question, answer)
    if gives_stale(question, answer):
        return 0.0
    numbers = [str(len(golds)), *_NUMBER_WORDS[len(golds) : len(golds) + 1]]
    counted = (
        answer.passages is None
        and contains(question.text, "how many")
        and words(answer.text) in [(number,) for number in numbers]
    )
    return float(counted or all(any(contains(text, gold) for text in texts) for gold in golds))


def absent(question: Question, answer: Answer) -> float:
    """1 if the answer shows that there is no value any more for the question.

    Passages: at least one contains the subject, and none of those a stale value. Generated answer:
        it says that there is none or that it is not known, and gives no stale value.
    """
    texts = _about_subject(question, answer)
    if gives_stale(question, answer):
        return 0.0
    if answer.passages is not None:
        return float(bool(texts))
    return float(
        words(answer.text)[:1] == ("no",)
        or any(contains(answer.text, phrase) for phrase in _NOTHING_KNOWN)
    )


def _about_subject(question: Question, answer: Answer) -> list[str]:
    if answer.passages is None:
        return [answer.text]
    subject = question.subject
    return (
        [passage for passage in answer.passages if contains(passage, subject)]
        if subject
        else list(answer.passages)
    )


def gives_stale(question: Question, answer: Answer) -> bool:
    """Whether an answer gives a stale value (in passages: beside the subject, if there is one)."""
    texts = _about_subject(question, answer)
    return any(_gives(text, stale, question.answers) for text in texts for stale in question.stale)


def _gives(text: str, stale: str, answers: tuple[str, ...]) -> bool:
    """Whether a text has a stale value, not only as a part of a longer accepted answer."""
    if not words(stale):
        return contains(text, stale)
    rest = _with_spaces(text)
    for gold in sorted(answers, key=len, reverse=True):
        if contains(gold, stale) and words(gold) != words(stale):
            while _with_spaces(gold) in rest:  # adjacent matches share a space, so repeat
                rest = rest.replace(_with_spaces(gold), " | ")
    return _with_spaces(stale) in rest


# ------------------------------------------------------------------------------------------------
# the table
class AnswerMetric(NamedTuple):
    """A metric, and what readers and their teachers have to know of it."""

    score: Callable[[Question, Answer], float]
    needs_all: bool = False  # the answers are parts of one answer, not spellings of it
    teachable: bool = False  # an accepted answer, as it stands, is what a reader should write


METRICS: dict[str, AnswerMetric] = {
    "substring": AnswerMetric(substring, teachable=True),
    "substring_all": AnswerMetric(substring_all, needs_all=True, teachable=True),
    "exact_match": AnswerMetric(exact_match, teachable=True),
    "f1": AnswerMetric(f1, teachable=True),
    "boxed": AnswerMetric(boxed_label),
    "label": AnswerMetric(label),
    "keywords": AnswerMetric(keywords, needs_all=True),
    "bound": AnswerMetric(bound_to_subject, teachable=True),
    "bound_all": AnswerMetric(bound_all, needs_all=True, teachable=True),
    "absent": AnswerMetric(absent, teachable=True),
}


def metric_names() -> list[str]:
    """Return the names of all metrics that need no judge: of ``METRICS``, then of entry points."""
    return plugin_names(METRICS_GROUP, METRICS)


def check_metric(name: str, *, judged: bool = False) -> None:
    """Raise InputError unless ``name`` is a metric, or one of ``JUDGED`` where there is a judge."""
    if name in JUDGED and not judged:
        raise InputError(
            f"the metric {name!r} needs a judge",
            expected="an answer judge",
            fix="configure a judge, or give the questions another metric",
        )
    if name not in METRICS and name not in JUDGED and name not in find_plugins(METRICS_GROUP):
        raise InputError(
            f"the metric {name!r} is unknown",
            expected=f"one of {', '.join(metric_names())}, {JUDGE} or {RUBRIC}",
        )


@cache
def find_metric(name: str) -> AnswerMetric:
    """Return a metric that needs no judge; InputError if there is no metric of this name."""
    check_metric(name)
    if name in METRICS:
        return METRICS[name]
    metric = load_plugin(find_plugins(METRICS_GROUP)[name])
    return metric if isinstance(metric, AnswerMetric) else AnswerMetric(metric)


def needs_all(question: Question) -> bool:
    """Whether the question's answers are parts of one answer, not spellings of it."""
    return question.metric not in JUDGED and find_metric(question.metric).needs_all


def is_teachable(question: Question) -> bool:
    """Whether a reader should write an accepted answer word by word."""
    return question.metric not in JUDGED and find_metric(question.metric).teachable


def score(question: Question, answer: Answer) -> float:
    """Return the score of an answer by the metric of its question.

    Args:
        question: The question with its accepted answers.
        answer: The answer of a reader.

    Returns:
        A score from 0 to 1.

    Raises:
        InputError: The metric is unknown or cannot score the question.
    """
    return find_metric(question.metric).score(question, answer)
