"""The scorecard by hand: every measure on one small instance, what is missing where, and what a
keeper of known faults gets."""

import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import MARTA, recalled, said
from examples import result as made
from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import TeacherConfig, teacher_operations
from memalpha.measure.summary import Measure, observe, scorecard
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.qa.metrics import contains, score
from memalpha.types import Answer, Fact, FactAction

ROOMY = MemorySchema("roomy", (Section("facts", SectionKind.LIST, timestamps=True),))
LATEST, REMOVED, COUNT, SINGLE, CASCADE, ABSENCE = MARTA.questions


def observed(instance, entries=(), questions=(), **values):
    """The row of a system of which some of an instance's questions were asked."""
    asked = {question.text: question for question in instance.questions}
    partly = replace(instance, questions=tuple(asked[row.text] for row in questions))
    row = made(instance.id, entries=tuple(entries), questions=tuple(questions), **values)
    return replace(row, observed=observe(partly, row))


def measured(entries=(), questions=(), instance=MARTA, **values):
    """By measure the sum of the hits and how much was looked at."""
    hits = observed(instance, entries, questions, **values).observed
    return {measure: (sum(values), len(values)) for measure, values in hits.items()}


@pytest.mark.parametrize(
    ("entries", "current", "contradictions", "residue"),
    [
        (["Marta city Rome", "Hugo pet goat"], 1, 0, 0),
        (["Marta city Rome", "Marta city Oslo"], 1, 1, 0),
        (["Marta city Oslo", "Hugo city Rome"], 0, 0, 0),
        (["Marta moved from Oslo to Rome", "Hugo job baker"], 1, 1, 1),
        (["Marta city Rome\nHugo city Oslo"], 1, 0, 0),  # each line on its own
        (["Marta lives in Rome. Hugo lives in Oslo."], 1, 0, 0),  # and each sentence
        (["Hugo: pony and goat", "Hugo was a baker; Marta, romeo"], 0, 0, 2),
        ([MARTA.chunks[0].text, MARTA.chunks[1].text, MARTA.chunks[2].text], 1, 1, 2),
    ],
)
def test_what_a_memory_holds(entries, current, contradictions, residue):
    found = measured(entries)
    assert found[Measure.CURRENT] == (current, 1)
    assert found[Measure.CONTRADICTIONS] == (contradictions, 1)
    assert found[Measure.RESIDUE_MEMORY] == (residue, 2)


def test_a_system_that_keeps_the_input_holds_all_of_it_and_an_empty_memory_nothing():
    raw, empty = measured(memory_tokens=50), measured(memory_tokens=0)
    assert [raw[m] for m in (Measure.CURRENT, Measure.CONTRADICTIONS, Measure.RESIDUE_MEMORY)] == [
        (1, 1),
        (1, 1),
        (2, 2),
    ]
    assert [
        empty[m] for m in (Measure.CURRENT, Measure.CONTRADICTIONS, Measure.RESIDUE_MEMORY)
    ] == [(0, 1), (0, 1), (0, 2)]


@given(
    st.lists(st.text("ab. \n+", max_size=12), max_size=4),
    st.text("ab +", max_size=4),
    st.text("ab +", max_size=4),
)
@settings(max_examples=300)
def test_a_memory_is_searched_as_a_loop_over_its_sentences_would(entries, subject, value):
    facts = (
        Fact(0, FactAction.STATE, subject, "x", value),
        Fact(1, FactAction.RETRACT, subject, "x", value),
    )
    sentences = [
        sentence
        for entry in entries
        for line in entry.split("\n")
        for sentence in re.split(r"(?<=[.])\s+", line)
    ]
    expected = any(
        contains(sentence, subject) and contains(sentence, value) for sentence in sentences
    )
    assert measured(entries, instance=replace(MARTA, facts=facts), memory_tokens=0)[
        Measure.RESIDUE_MEMORY
    ] == (expected, 1)


def test_stale_answers_and_passages():
    generated = measured(
        questions=[
            said(LATEST, "Oslo", ["Marta city Rome"]),
            said(REMOVED, "unknown", ["Hugo job baker"]),
            said(COUNT, "one", ["Marta has a pony", "Hugo pet goat"]),
            said(SINGLE, "Oslo", ["Marta city Oslo"]),
            said(CASCADE, None),  # its reader failed
        ]
    )
    assert generated[Measure.STALE_ANSWERS] == (1, 3)
    assert generated[Measure.STALE_PASSAGES] == (1, 3)
    assert generated[Measure.RESIDUE_ANSWERS] == (0, 2)
    assert Measure.CASCADE not in generated and Measure.ABSENCE not in generated


def test_cascade_and_absence_are_accuracies():
    found = measured(
        questions=[said(CASCADE, "Rome", score=1.0), said(ABSENCE, "none", score=0.25)]
    )
    assert (found[Measure.CASCADE], found[Measure.ABSENCE]) == ((1.0, 1), (0.25, 1))
    masked = measured(questions=[said(CASCADE, "Rome", score=math.nan)])
    assert Measure.CASCADE not in masked


def test_without_annotations_only_what_questions_say_is_measured():
    bare = replace(MARTA, facts=())
    found = measured(
        ["Marta city Oslo"], [said(LATEST, "Oslo"), said(SINGLE, "Ford")], instance=bare
    )
    assert found == {Measure.STALE_ANSWERS: (1, 1), Measure.STALE_PASSAGES: (0, 1)}
    assert measured(["x"], [said(SINGLE, "Ford")], instance=bare) == {}
    card = scorecard({0: [observed(bare, questions=[said(SINGLE, "Ford")])]})
    assert card == dict.fromkeys(Measure)


def test_shares_are_over_everything_and_seeds_are_averaged():
    unmoved = observed(replace(MARTA, id="twin"), ["text"], [said(LATEST, "Oslo")])
    rest = [said(REMOVED, "none"), said(COUNT, "goat")]
    rows = {
        seed: [observed(MARTA, ["text"], [said(LATEST, city), *rest]), unmoved]
        for seed, city in (("first", "Oslo"), ("second", "Rome"))
    }
    card = scorecard(rows)
    stale = card[Measure.STALE_ANSWERS]
    assert stale.per_seed == {"first": 0.5, "second": 0.25} and stale.mean == 0.375 and stale.n == 2
    assert card[Measure.CASCADE] is None
    assert card[Measure.CONTRADICTIONS].mean == 0.0


def kept(instance, config):
    """What a rule-based keeper of the given faults gets, its whole memory being read."""
    memory, rng = Memory(ROOMY), random.Random(0)
    for index, chunk in enumerate(instance.chunks):
        for operation in teacher_operations(instance, index, memory, rng, config):
            memory.apply(operation, chunk=index, time=chunk.time)
    entries = tuple(render_entry(entry) for entry in memory.entries())
    answer = Answer("\n".join(entries), entries)
    questions = tuple(
        replace(recalled(q, *entries), id=q.id, score=score(q, answer)) for q in instance.questions
    )
    return observed(instance, entries, questions)


def test_a_keeper_who_corrects_and_one_who_never_does():
    instances = generate(12, 0, PRESETS["dependent"])
    good, bad = ([kept(i, TeacherConfig(p_correct=p)) for i in instances] for p in (1.0, 0.0))
    perfect = {measure: float(measure.higher_is_better) for measure in Measure}
    assert {measure: share.mean for measure, share in scorecard({0: good}).items()} == perfect
    never = {measure: share.mean for measure, share in scorecard({0: bad}).items()}
    assert never[Measure.CURRENT] == 1.0 and never[Measure.CASCADE] == 0.0
    assert (
        0 < never[Measure.ABSENCE] < 1
    )  # what was never told is still right, what was taken back is not
    for measure in (
        Measure.STALE_ANSWERS,
        Measure.STALE_PASSAGES,
        Measure.CONTRADICTIONS,
        Measure.RESIDUE_MEMORY,
        Measure.RESIDUE_ANSWERS,
    ):
        assert never[measure] == 1.0, measure
