"""Schema-Guided Dialogue: facts and questions by value, and what is skipped."""

import json
import re

from memalpha.data.published.sgd import TIME_WORDINGS, WORDINGS
from memalpha.types import FactAction
from tests.helpers.data_samples import (
    load,
    sgd,
    sgd_dialogue,
    sgd_schema,
    write,
)

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
    asking = ("The usual number, you know it.", {"seats": ["4"]})
    again = ("Yes.", {"seats": ["4", "four in all"]})
    instance, (asked,), _ = made(tmp_path, asking, "So it is 4 seats, as it was?", again)
    (fact,) = instance.facts  # where it is said
    assert (fact.chunk, fact.action, fact.value) == (1, STATE, "4")
    assert (asked.kind, asked.stale) == ("single", ())  # a spelling more is no change
    turns = [(text, {"seats": [n]}) for text, n in (("Three.", "3"), ("No, six.", "6"))]
    instance, (asked,), _ = made(tmp_path, *turns)
    (fact,) = instance.facts  # one fact a chunk
    assert (fact.action, fact.value, fact.previous) == (STATE, "six", None)
    wanted = ("latest", ("six", "6"), ("3", "three"))
    assert (asked.kind, asked.answers, asked.stale) == wanted


def test_a_value_that_stands_in_another_note_is_not_asked(tmp_path):
    instance, (asked,), result = made(
        tmp_path, ("For 4 at 4 pm.", {"seats": ["4"], "leaving_time": ["4 pm"]})
    )
    assert (
        asked.answers == ("4 pm",)
        and [fact.value for fact in instance.facts] == ["4 pm"]
        and result.skipped["ambiguous"] == 1
    )


def test_unseen_services_and_wordings_of_the_part(tmp_path):
    frames = {
        part: [re.escape(text).replace(r"\{\}", ".+") for text in [*WORDINGS[part], *times]]
        for part, times in TIME_WORDINGS.items()
    }
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        sample = sgd(tmp_path / part)
        (instance,), _ = load("sgd", sample.path, dialogues="3,3")
        for question in instance.questions:
            fits = {of for of in frames for text in frames[of] if re.fullmatch(text, question.text)}
            assert fits == {part}
    seen = write(tmp_path / "seen.json", json.loads((sample.path / "schema.json").read_text())[:1])
    (instance,), _ = load("sgd", tmp_path, split="test", unseen_in=str(seen), dialogues="2,2")
    assert {question.subject for question in instance.questions} == {"baker"}
