"""SGD: facts and questions worked by hand, the real pieces, and what a keeper of the notes can
answer."""

import json
import random
import re
from collections import Counter

import pytest
from data_samples import load, sgd, sgd_dialogue, sgd_schema, write

from memalpha.data.sgd import TIME_WORDINGS, WORDINGS
from memalpha.data.teacher import TeacherConfig, teacher_operations
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import WriteRequest
from memalpha.qa.judges import FactContentJudge
from memalpha.qa.metrics import bound, contains
from memalpha.types import Answer, FactAction

ROOMY = MemorySchema("roomy", (Section("facts", SectionKind.LIST, timestamps=True),))
SCHEMAS = {
    "roomy": ROOMY,
    **{name: MemorySchema.load(name) for name in ("mem_alpha", "nine_categories")},
}
STATE, CHANGE = FactAction.STATE, FactAction.CHANGE


def test_facts_and_questions(tmp_path):
    sample = sgd(tmp_path)
    (instance,), result = load("sgd", sample.path, **sample.options)
    texts, times = (
        [chunk.text for chunk in instance.chunks],
        [chunk.time for chunk in instance.chunks],
    )
    start, baker = (
        next(i for i, text in enumerate(texts) if said in text) for said in ("A table", "Ann")
    )
    assert texts[start : start + 3] == [
        f"[Dialogue, {times[start]}]\nUser: A table in Lima at 6 pm.",
        f"[Dialogue, {times[start]}, continued]\nAssistant: Lima is full; Cusco or Ica?\n"
        "User: Cusco, and for two.",
        f"[Dialogue, {times[start]}, continued]\nAssistant: For two in Cusco at 6 pm?\n"
        "User: Better 7 pm.\nAssistant: Done.",
    ]
    assert times == sorted(times) and len(set(times)) == 3
    assert {
        (f.chunk, f.action, f.subject, f.attribute, f.value, f.previous, f.note, f.sections[0])
        for f in instance.facts
    } == {
        (baker, STATE, "baker", "name", "Ann", None, "Baker name: Ann", "semantic"),
        (start, STATE, "restaurant", "city", "Lima", None, "Restaurant city: Lima", "semantic"),
        (start, STATE, "restaurant", "time", "6 pm", None, "Restaurant time: 6 pm", "episodic"),
        (
            start + 1,
            CHANGE,
            "restaurant",
            "city",
            "Cusco",
            "Lima",
            "Restaurant city: Cusco",
            "semantic",
        ),
        (
            start + 1,
            STATE,
            "restaurant",
            "party size",
            "two",
            None,
            "Restaurant party size: two",
            "semantic",
        ),  # the state has "2"
        (
            start + 2,
            CHANGE,
            "restaurant",
            "time",
            "7 pm",
            "6 pm",
            "Restaurant time: 7 pm",
            "episodic",
        ),
    }
    (time,) = (question for question in instance.questions if question.kind == "time")
    assert time.answers == (times[time.evidence[0]],) and all(
        times[i] == times[time.evidence[0]] for i in time.evidence
    )
    asked = {
        (q.kind, q.subject, q.answers, q.stale, q.evidence)
        for q in instance.questions
        if q is not time
    }
    assert asked == {
        ("latest", "restaurant", ("Cusco",), ("Lima",), (start + 1,)),
        ("latest", "restaurant", ("7 pm", "19:00"), ("6 pm",), (start + 2,)),
        ("single", "restaurant", ("two", "2"), (), (start + 1,)),
        ("single", "baker", ("Ann",), (), (baker,)),
    }
    for described in (
        "the city in which the restaurant is",
        "the time of the booking for the restaurant",
        "the name of the baker",
    ):
        assert any(described in question.text for question in instance.questions)
    assert +result.skipped == {
        "yes or no": 1,
        "no value at the end": 1,
        "value not in the text, or a relative date": 1,
    }


def made(folder, *turns, service="Buses_1"):
    names = {name: name for turn in turns if isinstance(turn, tuple) for name in turn[1]}
    write(folder / "schema.json", [sgd_schema(service, **names)])
    write(folder / "dialogues_001.json", [sgd_dialogue(service, *turns)])
    (instance,), result = load("sgd", folder, dialogues="1,1", chunk_tokens=16)
    return (
        instance,
        [question for question in instance.questions if question.kind != "time"],
        result,
    )


def test_where_a_value_is_noted_and_what_is_a_change(tmp_path):
    given, again = {"seats": ["4"]}, {"seats": ["4", "four in all"]}
    instance, (asked,), _ = made(
        tmp_path,
        ("The usual number, you know it.", given),
        "So it is 4 seats, as it was?",
        ("Yes.", again),
    )
    assert [(fact.chunk, fact.action, fact.value) for fact in instance.facts] == [
        (1, STATE, "4")
    ]  # where it is said
    assert (asked.kind, asked.answers, asked.stale) == (
        "single",
        ("4", "four", "four in all"),
        (),
    )  # a spelling more is no change
    said = (
        ("Three.", {"seats": ["3"]}),
        ("No, five.", {"seats": ["5"]}),
        ("No, six.", {"seats": ["6"]}),
    )
    instance, (asked,), _ = made(tmp_path, *said)
    assert [(fact.action, fact.value, fact.previous) for fact in instance.facts] == [
        (STATE, "six", None)
    ]  # one fact a chunk
    assert (asked.kind, asked.answers, asked.stale) == (
        "latest",
        ("six", "6"),
        ("3", "three", "5", "five"),
    )


def test_a_value_that_stands_in_another_note_is_not_asked(tmp_path):
    instance, (asked,), result = made(
        tmp_path, ("For 4 at 4 pm.", {"seats": ["4"], "leaving_time": ["4 pm"]})
    )
    assert (
        asked.answers == ("4 pm",)
        and [fact.value for fact in instance.facts] == ["4 pm"]
        and result.skipped["ambiguous"] == 1
    )


NOUNS = {
    "Buses_3": "bus",
    "Houses_1": "house",
    "RideSharing_2": "ride",
    "RentalCars_1": "rental car",
    "Bus_Trips_1": "bus trip",
    "Glass_1": "glass",
    "Messaging_1": "messaging",
    "Services_3": "eye doctor",
}


@pytest.mark.parametrize("service", NOUNS)
def test_the_noun_of_a_service(tmp_path, service):
    instance, _, _ = made(tmp_path, ("Dr Ey.", {"eye_doctor_name": ["Dr Ey"]}), service=service)
    assert instance.facts[0].subject == NOUNS[service]


def test_unseen_services_and_wordings_of_the_part(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        sample = sgd(tmp_path / part)
    seen = write(tmp_path / "seen.json", json.loads((sample.path / "schema.json").read_text())[:1])
    (instance,), result = load("sgd", tmp_path, split="test", unseen_in=str(seen), dialogues="2,2")
    assert {question.subject for question in instance.questions} == {"baker"} and result.skipped[
        "of dialogues left over"
    ] == 3
    for part in ("train", "test"):
        for question in load("sgd", tmp_path / part, dialogues="3,3")[0][0].questions:
            frames = {
                of: [
                    re.escape(frame).replace(r"\{\}", ".+")
                    for frame in (*WORDINGS[of], *TIME_WORDINGS[of])
                ]
                for of in WORDINGS
            }
            assert [
                of
                for of in WORDINGS
                if any(re.fullmatch(frame, question.text) for frame in frames[of])
            ] == [part]
    (tmp_path / "test" / "schema.json").unlink()
    with pytest.raises(InputError, match=r"schema\.json"):
        load("sgd", tmp_path / "test")


# ------------------------------------------------------------------------------------------------
# real dialogues
@pytest.mark.parametrize("part", ["dev", "test"])
def test_real_dialogues(real, part):
    raw = [
        d
        for path in sorted(real(f"sgd/{part}").glob("dialogues_*.json"))
        for d in json.loads(path.read_text())
    ]
    instances, result = load("sgd", real(f"sgd/{part}"), 1)
    assert len(instances) >= 30 and not result.problems
    assert (
        instances
        == load("sgd", real("sgd"), 1, split=part)[0]
        != load("sgd", real(f"sgd/{part}"), 2)[0]
    )
    said = Counter(
        " ".join(" ".join(turn["utterance"] for turn in d["turns"]).split()) for d in raw
    )
    for instance in instances:
        days: dict[str, list[str]] = {}
        for chunk in instance.chunks:
            lines = chunk.text.split("\n")[1:]
            days.setdefault(chunk.time, []).extend(
                re.sub("^(User|Assistant): ", "", line) for line in lines
            )
        assert 8 <= len(days) <= 12 and list(days) == sorted(days) and len(instance.questions) <= 12
        said.subtract(" ".join(lines) for lines in days.values())
        for fact in instance.facts:
            assert contains(instance.chunks[fact.chunk].text, fact.value) and contains(
                fact.note, fact.value
            )
        homes = {(fact.subject, instance.chunks[fact.chunk].time) for fact in instance.facts}
        assert len(homes) == len(
            {subject for subject, _ in homes}
        )  # one day, so one dialogue, for each domain
    assert min(said.values()) == 0  # no dialogue twice, no line lost


def kept(instance, schema, p_correct):
    """The passages of the memory that the teacher keeps; the judge finds all writes of one who
    corrects right, and none due."""
    memory, rng, judge = (
        Memory(schema),
        random.Random(instance.id),
        FactContentJudge({instance.id: instance.facts}),
    )
    for index, chunk in enumerate(instance.chunks):
        before, results = [], []
        for operation in teacher_operations(
            instance, index, memory, rng, TeacherConfig(p_correct=p_correct)
        ):
            before.append(
                next((entry for entry in memory.entries() if entry.id == operation.entry_id), None)
            )
            results.append(memory.apply(operation, chunk=index, time=chunk.time))
            assert results[-1].changed
        request = WriteRequest(
            instance.id, index, chunk, tuple(results), tuple(before), tuple(memory.entries())
        )
        assert p_correct < 1 or (all(judge.judge([request])[0]) and judge.nothing_due(request))
    return Answer("", tuple(render_entry(entry) for entry in memory.entries()))


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_full_keeper_answers_every_question_and_one_who_never_corrects_fails_on_changes(
    real, schema
):
    right, asked = Counter(), Counter()
    for instance in load("sgd", real("sgd/test"), 1, chunk_tokens=64)[0]:
        full, never = kept(instance, schema, 1.0), kept(instance, schema, 0.0)
        changed = {(fact.subject, fact.value) for fact in instance.facts if fact.action is CHANGE}
        for question in instance.questions:
            kind = (
                "changed"
                if any((question.subject, answer) in changed for answer in question.answers)
                else "other"
            )
            asked[kind] += 1
            right["full", kind] += bound(question, full)
            right["never", kind] += bound(question, never)
    assert asked["changed"] > 50 and asked["other"] > 300
    others = {("full", "other"): asked["other"], ("never", "other"): asked["other"]}
    assert right == {("full", "changed"): asked["changed"], ("never", "changed"): 0, **others}
