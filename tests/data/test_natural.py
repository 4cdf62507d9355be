"""Natural conversations, made and written: what every question must be, and what stands apart."""

import random
import re
from collections import Counter
from datetime import date
from importlib import resources
from itertools import pairwise, product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.leaks import LeakCheck
from memalpha.data.load import load_data, load_one
from memalpha.data.natural import NaturalOptions, in_person, make_natural_instance
from memalpha.data.pools import hostile_lines, natural_words
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.qa.metrics import contains, score, words
from memalpha.types import Answer, FactAction
from tests.helpers.data_samples import keeper_scores

RAW = natural_words()
TRAITS, SAID = RAW["traits"], ("state", "change", "retract", "mention", "ask")
LISTS = {(word, kind): row[kind] for word, row in TRAITS.items() for kind in SAID if kind in row}
LISTS |= {("frames", use): said for use, said in RAW["frames"].items()}
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
DATE = rf"\d+ (?:{MONTHS})|(?:{MONTHS}) \d+(?:st|nd|rd|th)?|\d+\w\w of (?:{MONTHS})"


def parts(said):
    """Train and held-out wordings: the last third, rounded up, is held out."""
    held = -(-len(said) // 3)
    return said[:-held], said[-held:]


def values(split):
    """(value, attribute) of one split."""
    return [
        (value, word)
        for word, row in TRAITS.items()
        for value in row.get(split, "").split(", ")
        if value
    ]


def people(split):
    return [
        name
        for kind in ("names", "relations")
        for row in RAW[kind][split].values()
        for name in row.split(", ")
    ]


# ------------------------------------------------------------------------------------------------
# wordings
def test_values_names_and_things_are_many_and_none_is_part_of_another_or_of_a_wording():
    counted = {split: Counter(word for _, word in values(split)) for split in ("train", "test")}
    dated = {word for word, row in TRAITS.items() if row.get("dated")}
    assert len(TRAITS) >= 24 and dated == set(TRAITS) - set(counted["train"])
    assert min(counted["train"].values()) >= 20 and min(counted["test"].values()) >= 10
    wordings = [text for said in LISTS.values() for text in said] + [
        row["note"] for row in TRAITS.values()
    ]
    every = [
        word
        for split in ("train", "test")
        for word in (*(value for value, _ in values(split)), *people(split))
    ]
    assert [word for word, times in Counter(every).items() if times > 1] == []
    assert [
        (a, b) for a, b in product(every, [*every, *wordings]) if a is not b and contains(b, a)
    ] == []


@pytest.mark.parametrize(
    "hostile", [RAW["frames"]["hostile"], hostile_lines("all")], ids=["natural", "synthetic"]
)
def test_hostile_wordings_are_none_of_those_of_the_evaluation(hostile):
    attacks = yaml.safe_load(
        (resources.files("memalpha.contrib.benchmarks") / "attacks.yaml").read_text()
    )
    runs = [
        {
            " ".join(w[i : i + 3])
            for text in texts
            for w in [words(re.sub(r"\{\w+\}", "#", text))]
            for i in range(len(w) - 2)
        }
        for texts in ([text for row in attacks.values() for text in row["texts"]], hostile)
    ]
    assert runs[0] & runs[1] == set()


CLAUSE = "I've left and [don't] miss it. my house is I'm told empty, it bores me, I [cry] by myself"
TOLD = (
    "my aunt has left and doesn't miss it. her house is she's told empty, it bores her, "
    "she cries by herself"
)


@pytest.mark.parametrize(
    ("clause", "who", "pronoun", "named", "told"),
    [
        (CLAUSE, "my aunt", "she", False, TOLD),
        ("what [am] I and my [do]", "Tom", "he", True, "what is he and his does"),
        ("I've left and [don't] miss it", "", "she", False, "I've left and don't miss it"),
    ],
)
def test_a_clause_said_of_another(clause, who, pronoun, named, told):
    assert in_person(clause, who, pronoun, named=named) == told


# ------------------------------------------------------------------------------------------------
# replay
OPTIONS = st.builds(
    NaturalOptions,
    split=st.sampled_from(["train", "test"]),
    templates=st.sampled_from(["", "train", "held_out", "all"]),
    n_chunks=st.integers(1, 12),
    facts_per_chunk=st.sampled_from([(1, 1), (1, 3), (4, 5)]),
    p_change=st.floats(0, 0.6),
    p_retract=st.floats(0, 0.4),
    p_hostile=st.floats(0, 1),
)


def forms(value):
    """A date in every form, or the value."""
    if not re.fullmatch(DATE, value):
        return {value}
    (day,), (month,) = re.findall(r"\d+", value), re.findall(MONTHS, value)
    end = {"1": "st", "21": "st", "31": "st", "2": "nd", "22": "nd", "3": "rd", "23": "rd"}.get(
        day, "th"
    )
    return {f"{day} {month}", f"{month} {day}", f"{day}{end} of {month}", f"{month} {day}{end}"}


def expected(instance):
    """(subject, answers, stale, evidence) of every question, from the facts alone."""
    live, past, ends, rows = {}, {}, {}, []
    for fact in instance.facts:
        key = fact.subject, fact.attribute
        assert (
            fact.value not in {v for held in (*live.values(), *past.values()) for v in held}
            or fact.action is FactAction.RETRACT
        )
        now = live.setdefault(key, {})
        for gone in filter(
            None, (fact.previous, fact.value if fact.action is FactAction.RETRACT else None)
        ):
            past.setdefault(key, []).append(gone)
            now.pop(gone)
        if fact.action is FactAction.RETRACT:
            ends.setdefault(key, []).append(fact.chunk)
        else:
            now[fact.value] = fact.chunk
    user = {"User", *(fact.value for fact in instance.facts if fact.attribute == "name")}
    for key, now in live.items():
        if now or any(other for k, other in live.items() if k[0] == key[0]):
            multiple = TRAITS.get(key[1], {}).get("multiple")
            answers, stale = (
                {form for value in held for form in forms(value)}
                for held in (now, past.get(key, ()))
            )
            places = {*now.values(), *(ends.get(key, ()) if multiple or not now else ())}
            rows.append((None if key[0] in user else key[0], answers or {"none"}, stale, places))
    return sorted(map(repr, ((a, sorted(b), sorted(c), sorted(d)) for a, b, c, d in rows)))


@given(OPTIONS, st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_questions_are_those_of_a_replay_and_texts_and_notes_say_the_facts(chosen, seed):
    instance = make_natural_instance(0, seed, chosen)
    asked = [
        (q.subject, sorted(q.answers), sorted(set(q.stale)), sorted(q.evidence))
        for q in instance.questions
    ]
    assert sorted(map(repr, asked)) == expected(instance)
    kinds = {"count": "bound_all", "removed": "absent"}
    assert all(q.metric == kinds.get(q.kind, "bound") for q in instance.questions)
    assert [q.id for q in instance.questions] == [f"q{i}" for i in range(len(asked))]
    for fact in instance.facts:
        assert (
            contains(fact.note, fact.subject) and contains(fact.note, fact.value) and fact.sections
        )
        assert fact.action is FactAction.RETRACT or contains(
            instance.chunks[fact.chunk].text, fact.value
        )
    for line in "\n".join(chunk.text for chunk in instance.chunks).split(
        "\n"
    ):  # a person is named once, then by pronoun
        called = re.findall(r"my (?:friend )?(\w+)", line.lower())
        assert all(called.count(fact.subject.lower()) < 2 for fact in instance.facts)
    days = [chunk.time for chunk in instance.chunks]
    assert days == sorted({date.fromisoformat(day).isoformat() for day in days})
    for text in [chunk.text for chunk in instance.chunks] + [q.text for q in instance.questions]:
        assert text.strip() and not re.search(
            r"\{\w*\}|\[\w+\]|~| \| |I is\b|\b(he|she) am\b", text
        )


# ------------------------------------------------------------------------------------------------
# the teacher
@pytest.mark.parametrize("schema", ["facts", "mem_alpha", "nine_categories"])
def test_a_full_keeper_answers_every_question_and_one_who_never_corrects_fails_on_changes(schema):
    instances = load_data("natural", {"n": 25, "n_chunks": 8, "split": "test"})
    kinds = ("single", "latest", "removed", "count", "time", "other")

    def scores(p_correct):
        config = TeacherConfig(p_correct=p_correct)
        return keeper_scores(
            instances,
            MemorySchema.load(schema),
            config,
            lambda question, notes: score(question, Answer("", notes)),
        )

    assert scores(1.0) == dict.fromkeys(kinds, 1.0)
    never = scores(0.0)
    assert never["single"] == never["other"] == 1.0 and never["latest"] == never["removed"] == 0.0


# ------------------------------------------------------------------------------------------------
# many and apart
def test_train_and_test_share_no_value_name_or_wording():
    train, test = (
        load_data("natural", {"n": 80, "split": split, "n_chunks": 6})
        for split in ("train", "test")
    )
    found = [
        {word for i in part for f in i.facts for word in (f.subject, *forms(f.value))} - {"User"}
        for part in (train, test)
    ]
    assert found[0] & found[1] == set()
    check = LeakCheck()
    check.learn(test)
    assert [leak for instance in train for leak in check.check(instance)] == []
    said = " ".join(
        f" {' '.join(words(chunk.text))} " for instance in train for chunk in instance.chunks
    )
    held = [
        text
        for wordings in LISTS.values()
        for text in parts(wordings)[1]
        if not re.search(r"[\[{]|\b(I|my|me)\b", text)
    ]
    plain = [" ".join(words(text)) for text in held if len(words(text)) > 3]
    assert len(plain) > 15 and [text for text in plain if f" {text} " in said] == []


def test_the_sequence_and_the_share_of_empty_sessions():
    first = load_data("natural", {"n": 4, "seed": 7})
    assert first == load_data("natural", {"n": 6, "seed": 7})[:4] and first[
        3
    ] == make_natural_instance(3, 7)
    assert first != load_data("natural", {"n": 4, "seed": 8})
    many = load_data("natural", {"n": 300, "n_chunks": 6, "p_hostile": 0.0})
    empty = sum(
        len({fact.chunk for fact in instance.facts}) < 6 - i for instance in many for i in range(6)
    )
    assert abs(empty / (300 * 5) - 0.15) < 0.04


# ------------------------------------------------------------------------------------------------
# conversations written by hand
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
    lost = []
    for instance in written:
        notes = {}
        for config in (TEACHER, TeacherConfig(dates=False, p_correct=0.0)):
            memory = Memory(SCHEMA)
            teach(memory, instance, random.Random(0), config)
            notes[config.p_correct] = tuple(entry.content for entry in memory)
        for question in instance.questions:
            assert not any(contains(question.text, gold) for gold in question.answers), question.id
            if question.kind == "removed":
                held = {
                    p: any(contains("\n".join(notes[p]), old) for old in question.stale)
                    for p in notes
                }
                assert not held[1.0], question.id
                lost.append(held[0.0])
            else:
                given = [score(question, Answer("", (note,))) for note in notes[1.0]]
                assert max(given) == 1, question.id
    assert sum(lost) > 0.95 * len(lost) > 0


def test_no_training_set_repeats_dev_or_trial():
    check = LeakCheck()
    for held_out in ("written/dev", "trial/conversations"):
        check.learn(load_one(str(DATA / f"{held_out}.jsonl")))
    natural = load_data("natural", {"n": 200, "split": "train"})
    for instance in [*load_one(str(DATA / "written" / "train.jsonl")), *natural]:
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


def test_forty_conversations_of_five_questions_of_each_kind(trial):
    assert len(trial) == 40
    assert {(len(instance.questions), instance.facts) for instance in trial} == {(5, ())}
    kinds = Counter(question.kind for instance in trial for question in instance.questions)
    assert kinds == {"single": 77, "latest": 49, "removed": 32, "time": 22, "other": 20}


def test_the_evidence_says_the_answer_and_earlier_chunks_every_stale_value(trial):
    lost = set()
    for instance in trial:
        for question in instance.questions:
            last = max(question.evidence)
            before = said_in(instance, range(last))
            after = said_in(instance, range(last + 1, len(instance.chunks)))
            for stale in question.stale:
                assert any(contains(line, stale) for line in before), (question.id, stale)
                assert not any(contains(line, stale) for line in after), (question.id, stale)
            lines = [
                line
                for line in said_in(instance, question.evidence)
                if any(contains(line, gold) for gold in question.answers)
            ]
            if question.kind != "removed" and score(question, Answer("", tuple(lines))) < 1:
                lost.add(question.id)
    assert lost == BOTH_IN_A_LINE
