"""The trial written by hand: its shape, that the text holds every answer and stale value, and that
no training set holds it."""

from collections import Counter
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest

from memalpha.data.leaks import LeakCheck
from memalpha.data.load import load_data, load_one
from memalpha.qa.metrics import contains, score
from memalpha.types import Answer

TRIAL = Path(__file__).parents[2] / "data" / "trial" / "conversations.jsonl"
# One line says both the old value and the new.
BOTH_IN_A_LINE = {"trial-15-2", "trial-16-2", "trial-17-3", "trial-22-5"}


@pytest.fixture(scope="module")
def trial():
    return load_one(str(TRIAL))


def said_in(instance, chunks):
    return [line for chunk in chunks for line in instance.chunks[chunk].text.split("\n")]


def test_forty_conversations_of_dated_sessions_with_five_questions(trial):
    assert len(trial) == 40
    assert {
        (len(instance.questions), instance.facts, 4 <= len(instance.chunks) <= 7)
        for instance in trial
    } == {(5, (), True)}
    days = [[date.fromisoformat(chunk.time) for chunk in instance.chunks] for instance in trial]
    assert all((later - day).days >= 7 for some in days for day, later in pairwise(some))
    kinds = Counter(question.kind for instance in trial for question in instance.questions)
    assert kinds == {"single": 77, "latest": 49, "removed": 32, "time": 22, "other": 20}
    assert sum(instance.chunks[0].text.startswith("User: ") for instance in trial) == 30


def test_the_evidence_says_the_answer_and_earlier_chunks_every_stale_value(trial):
    lost = set()
    for instance in trial:
        for question in instance.questions:
            last = max(question.evidence)
            before, after = (
                said_in(instance, range(last)),
                said_in(instance, range(last + 1, len(instance.chunks))),
            )
            assert bool(question.stale) or question.kind in {"single", "other", "time"}, question.id
            for stale in question.stale:
                assert any(contains(line, stale) for line in before), (question.id, stale)
                assert not any(contains(line, stale) for line in after), (question.id, stale)
            if question.kind == "removed":
                continue
            said = said_in(instance, question.evidence)
            lines = [
                line for line in said if any(contains(line, gold) for gold in question.answers)
            ]
            assert lines, question.id
            if score(question, Answer("", tuple(lines))) < 1:
                lost.add(question.id)
    assert lost == BOTH_IN_A_LINE


def test_no_generated_training_set_repeats_it(trial):
    check = LeakCheck()
    check.learn(trial)
    for instance in load_data("natural", {"n": 200, "split": "train"}):
        check.check(instance)
    assert check.leaks == []
