"""Conversations written by hand, to train on and to be tried: they say their facts and answers, a
keeper of the notes is right everywhere, and no set repeats another."""

import random
from collections import Counter
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest

from memalpha.data.load import LeakCheck, load_data, load_one
from memalpha.data.teacher import TeacherConfig, teach, teacher_operations
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import WriteRequest
from memalpha.qa.judges import FactContentJudge
from memalpha.qa.metrics import contains, score
from memalpha.types import Answer, FactAction

# ------------------------------------------------------------------------------------------------
# written
DATA = Path(__file__).parents[2] / "data"
SCHEMA = MemorySchema.load("mem_alpha")
TEACHER = TeacherConfig(dates=False, p_update=1.0)


@pytest.fixture(scope="module", params=["train", "dev"])
def written(request):
    return load_one(str(DATA / "written" / f"{request.param}.jsonl"))


def test_sessions_are_dated_and_facts_stand_in_them(written):
    for instance in written:
        days = [date.fromisoformat(chunk.time) for chunk in instance.chunks]
        assert len(days) >= 3 and all(day < later for day, later in pairwise(days)), instance.id
        said = [fact for fact in instance.facts if fact.action is not FactAction.RETRACT]
        assert len(said) >= 3, instance.id
        for fact in said:
            assert contains(instance.chunks[fact.chunk].text, fact.value), (instance.id, fact)
            assert contains(fact.note, fact.subject) and contains(fact.note, fact.value), (
                instance.id,
                fact,
            )


def test_a_full_keeper_answers_every_question_and_only_he_who_corrects_does(written):
    lost = asked = 0
    for instance in written:
        memory, careless = Memory(SCHEMA), Memory(SCHEMA)
        teach(memory, instance, random.Random(0), TEACHER)
        teach(careless, instance, random.Random(0), TeacherConfig(dates=False, p_correct=0.0))
        for question in instance.questions:
            assert not any(contains(question.text, gold) for gold in question.answers), question.id
            notes, kept = (tuple(entry.content for entry in one) for one in (memory, careless))
            if question.kind == "removed":
                assert not any(contains(note, old) for note in notes for old in question.stale), (
                    question.id
                )
                asked, lost = (
                    asked + 1,
                    lost + any(contains(note, old) for note in kept for old in question.stale),
                )
            else:
                assert any(score(question, Answer("", (note,))) == 1 for note in notes), question.id
    assert lost > 0.95 * asked > 0


def test_the_judge_finds_a_keeper_right_and_silence_after_him(written):
    verdicts, due = list[bool](), list[bool]()
    for instance in written:
        memory, judge, rng = (
            Memory(SCHEMA),
            FactContentJudge({instance.id: instance.facts}, SCHEMA),
            random.Random(0),
        )
        for index, chunk in enumerate(instance.chunks):
            done = len(memory.changes)
            operations = teacher_operations(instance, index, memory, rng, TEACHER)
            results = [
                memory.apply(operation, chunk=index, time=chunk.time) for operation in operations
            ]
            before = tuple(change.before for change in memory.changes[done:])
            asked = WriteRequest(instance.id, index, chunk, tuple(results), before, tuple(memory))
            verdicts += judge.judge([asked])[0]
            due.append(judge.nothing_due(asked))
    assert sum(verdicts) > 0.98 * len(verdicts) and sum(due) > 0.99 * len(
        due
    )  # names that stand in two notes confuse it


def test_training_repeats_neither_dev_nor_trial():
    check = LeakCheck()
    for held_out in ("written/dev", "trial/conversations"):
        check.learn(load_one(str(DATA / f"{held_out}.jsonl")))
    for instance in load_one(str(DATA / "written" / "train.jsonl")):
        check.check(instance)
    assert check.leaks == []


# ------------------------------------------------------------------------------------------------
# trial
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
