"""LongMemEval, LoCoMo, MSC, PerLTQA and SGD: instances by value, and what is skipped."""

import json
import re

import pytest

from memalpha.data.sgd import TIME_WORDINGS, WORDINGS
from memalpha.errors import InputError
from memalpha.qa.judges import ANSWER_SYSTEMS
from memalpha.types import Chunk, FactAction, Question
from tests.helpers.data_samples import (
    beam,
    beam_chat,
    beam_questions,
    load,
    locomo_plus,
    locomo_sample,
    longmemeval_item,
    msc_row,
    perltqa_memories,
    perltqa_questions,
    sgd,
    sgd_dialogue,
    sgd_schema,
    write,
)


# ------------------------------------------------------------------------------------------------
# dialogues
def test_longmemeval(tmp_path):
    items = [
        longmemeval_item("q1"),
        longmemeval_item("q2_abs", answer=7),
        longmemeval_item("q1", answer="", question_type=None),
    ]
    instances, result = load("longmemeval", write(tmp_path / "lme.json", items), chunk_tokens=12)
    first, second = instances
    assert [chunk.text for chunk in first.chunks] == [
        "[Session, 2023-05-20T10:20]\nuser: It rains.\nassistant: Indeed.",
        "[Session, 2023-05-25T20:21]\nuser: I bought a cello.\nassistant: Well done.",
    ]
    assert [chunk.time for chunk in first.chunks] == ["2023-05-20T10:20", "2023-05-25T20:21"]
    text = "Asked on 2023/06/01 (Thu) 00:58.\nWhat instrument did I buy?"
    assert first.questions == (
        Question(text, ("a cello",), "judge", "single-session-user", evidence=(1,), id="q1"),
    )
    assert (second.questions[0].kind, second.questions[0].answers) == ("abstention", ("7",))
    assert result.skipped == {"empty answer": 1} and result.asked == 3


def test_longmemeval_evidence_by_session_where_no_turn_is_marked(tmp_path):
    turns = ("I bought a cello.", "It rains.")
    sessions = [[{"role": "user", "content": text}] for text in turns]
    path = write(tmp_path / "lme.json", [longmemeval_item(haystack_sessions=sessions)])
    (instance,), _ = load("longmemeval", path, join=False)
    assert instance.questions[0].evidence == (1,)


def test_locomo(tmp_path):
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample()]))
    assert instance.chunks == (
        Chunk(
            "[Session 1, 2023-05-08T13:56]\nAda: I adopted a goat.\n"
            "Ben: Look! [shows a photo of a boat]",
            "2023-05-08T13:56",
        ),
        Chunk("[Session 2, 2023-06-02T09:05]\nBen: I sold the boat.", "2023-06-02T09:05"),
    )
    assert instance.questions == (
        Question(
            "What did Ada adopt?", ("a goat",), "stemmed_f1", "single-hop", evidence=(0,), id="0"
        ),
        Question("When was that?", ("2023",), "stemmed_f1", "temporal", evidence=(0, 1), id="1"),
    )
    assert (instance.id, result.skipped) == ("conv-1", {"adversarial, no gold answer": 1})


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (
            {"answer": "Likely no; she prefers people", "category": 3},
            ("stemmed_f1", "open-domain", ("Likely no",)),
        ),
        ({"answer": " Yes;no;maybe", "category": 3}, ("stemmed_f1", "open-domain", ("Yes",))),
        ({"answer": "tea; coffee", "category": 4}, ("stemmed_f1", "single-hop", ("tea; coffee",))),
        (
            {"answer": "tea, milk; rum", "category": 1},
            ("stemmed_list_f1", "multi-hop", ("tea, milk; rum",)),
        ),
        (
            {"answer": "No", "adversarial_answer": "Yes", "category": 5},
            ("unmentioned", "adversarial", ("No", "unknown")),
        ),
        ({"answer": "; explained", "category": 3}, "empty answer"),
        ({"adversarial_answer": "Yes", "category": 5}, "adversarial, no gold answer"),
    ],
)
def test_locomo_answers_and_metrics_by_category(tmp_path, asked, wanted):
    rows = [{"question": "first?", "answer": "a", "category": 4}, {"question": "q?", **asked}]
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample(qa=rows)]))
    if isinstance(wanted, str):
        assert (len(instance.questions), result.skipped) == (1, {wanted: 1})
    else:
        assert [(q.metric, q.kind, q.answers) for q in instance.questions[1:]] == [wanted]
    (judged,), _ = load(
        "locomo",
        write(tmp_path / "locomo.json", [locomo_sample(qa=rows)]),
        metric="judge",
        adversarial=True,
    )
    assert {q.metric for q in judged.questions} == {"judge"}
    assert len(judged.questions) == (1 if wanted == "empty answer" else 2)


def test_locomo_plus_puts_the_cue_where_its_date_is(tmp_path):
    sample = locomo_plus(tmp_path)
    (first, second), _ = load("locomo_plus", tmp_path, turns=True)
    # the last session is of 2 June, the question of 9 June; two weeks before is 26 May
    assert first.chunks == (
        Chunk("Ada: I adopted a goat.", "2023-05-08T13:56"),
        Chunk("Ben: Look! [shows a photo of a boat]", "2023-05-08T13:56"),
        Chunk("Ada: I said no today.", "2023-05-26T09:05"),
        Chunk("Ben: That is a skill.", "2023-05-26T09:05"),
        Chunk("Ben: I sold the boat.", "2023-06-02T09:05"),
    )
    text = "Asked on 2023-06-09.\nAda: I took on a project again."
    cue = ("Ada: I said no today.\nBen: That is a skill.",)
    asked = Question(text, cue, "judge", "causal cue", evidence=(2, 3), id="0")
    assert first.questions == (asked,)
    assert [chunk.time[:10] for chunk in second.chunks[:2]] == ["2023-03-11"] * 2  # 90 days before
    assert "causal cue" in ANSWER_SYSTEMS
    (whole, _), _ = load("locomo_plus", sample.path)
    assert whole.chunks[1].text == (
        "[Session 2, 2023-05-26T09:05]\nAda: I said no today.\nBen: That is a skill."
    )
    assert whole.questions[0].evidence == (1,)


def test_a_chunk_for_each_turn_makes_evidence_a_turn(tmp_path):
    path = write(tmp_path / "locomo.json", [locomo_sample()])
    (instance,), _ = load("locomo", path, turns=True)
    assert [chunk.text for chunk in instance.chunks][2] == "Ben: I sold the boat."
    assert [question.evidence for question in instance.questions] == [(0,), (0, 2)]
    items = [longmemeval_item(), longmemeval_item("q2", answer_session_ids=["early"])]
    for turn in items[1]["haystack_sessions"][0]:
        turn.pop("has_answer", None)
    (marked, unmarked), _ = load("longmemeval", write(tmp_path / "lme.json", items), turns=True)
    assert marked.chunks[2] == Chunk("user: I bought a cello.", "2023-05-25T20:21")
    assert marked.questions[0].evidence == (2,) and unmarked.questions[0].evidence is None


def test_msc_with_a_question_of_its_own(tmp_path):
    path = write(
        tmp_path / "test.txt", msc_row(self_instruct={"B": "What do I keep?", "A": "bees"})
    )
    (instance,), _ = load("msc", path)
    assert [chunk.text for chunk in instance.chunks] == [
        "[Session 1, 3 days before the last]\nSpeaker 1: I keep bees.\nSpeaker 2: How nice.",
        "[Last session]\nSpeaker 1: Hello again.\nSpeaker 2: Hi! I swam today.",
    ]
    assert instance.questions == (
        Question("What do I keep?", ("bees",), "judge", "recall", id="0"),
    )
    assert instance.id == "valid_7"


def test_msc_asks_for_the_personas_where_it_has_no_question(tmp_path):
    rows = [
        msc_row(),
        msc_row(personas=[["I ski."], []]),
        msc_row(dialog=[], previous_dialogs=[]),
        msc_row(personas="none"),
    ]
    instances, result = load("msc", write(tmp_path / "x.jsonl", rows))
    asked = "What has Speaker {} said about themselves?"
    assert [[(q.text, q.answers, q.metric, q.kind) for q in i.questions] for i in instances] == [
        [
            (asked.format(1), ("I keep bees. I am tall.",), "f1", "persona"),
            (asked.format(2), ("I swim.",), "f1", "persona"),
        ],
        [(asked.format(1), ("I ski.",), "f1", "persona")],
    ]
    assert result.skipped == {"empty answer": 1, "malformed": 2}


# ------------------------------------------------------------------------------------------------
# perltqa
def test_perltqa(tmp_path):
    write(tmp_path / "perltmem_en.json", perltqa_memories())
    (instance,), result = load("perltqa", write(tmp_path / "perltqa_en.json", perltqa_questions()))
    assert [chunk.text for chunk in instance.chunks] == [
        "[Profile]\nProtagonist: Ann Lee\nAge: 28\nHobbies: chess\nAnn Lee plays chess.",
        "[People around]\nBo Lee (brother): Lives in Ely.",
        "[Event, 2022-05-12] A trip\nThey sailed to Ely.",
        "[Dialogue, 2022-05-13T10:00]\nAnn Lee: What a trip!",
        "[Event, in spring] Bread\nThey baked bread.",
    ]
    assert [chunk.time for chunk in instance.chunks] == [
        None,
        None,
        "2022-05-12",
        "2022-05-13T10:00",
        None,
    ]
    assert instance.questions == (
        Question("How old is Ann?", ("28",), "parts", "profile", evidence=(0,), id="0"),
        Question("Who is Bo?", ("brother",), "parts", "social_relationship", evidence=(1,), id="1"),
        Question(
            "Where did they go?",
            ("sailed; Bo's Ely, town",),
            "parts",
            "events",
            evidence=(2,),
            id="2",
        ),
    )
    assert result.skipped == {"empty answer": 1}


# ------------------------------------------------------------------------------------------------
# SGD
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


# ------------------------------------------------------------------------------------------------
# BEAM
HENS = Question(
    "How many hens do I keep?",
    ("LLM response should state: five hens",),
    "rubric",
    "knowledge_update",
    evidence=(0, 4),
    id="1",
    outdated=(0,),
)


def test_beam_turn_by_turn(tmp_path):
    (instance,), result = load("beam", beam(tmp_path).path, turns=True)
    assert [(chunk.text, chunk.time) for chunk in instance.chunks] == [
        ("user: I keep two hens.", "2024-03-15"),
        ("assistant: Nice.\n**Feed:** corn\n**Water:** daily\n**Feed:** less", "2024-03-15"),
        ("user: I rent a plot.", "2024-03-15"),
        ("assistant: Good.", "2024-03-15"),
        ("user: Now I keep five hens.", "2024-04-02"),
    ]
    cat, hens, corn = instance.questions
    assert (cat.kind, cat.evidence, cat.outdated) == ("abstention", None, ())
    assert hens == HENS
    assert (corn.answers, corn.evidence) == (("names corn", "is short"), (1, 2))
    assert (instance.id, result.skipped, result.asked) == ("beam-1", {"empty answer": 1}, 4)


def test_beam_in_chunks_of_a_session_and_compared_with_the_ideal_answer(tmp_path):
    (instance,), _ = load("beam", beam(tmp_path).path / "1", metric="f1")
    assert [chunk.text.split("\n")[0] for chunk in instance.chunks] == [
        "[Session 1, 2024-03-15]",
        "[Session 2, 2024-04-02]",
    ]
    assert [(asked.answers, asked.evidence) for asked in instance.questions] == [
        (("The chat does not say.",), None),
        (("Five.",), (0, 1)),
        (("Names corn.",), (0,)),
    ]


def test_beam_as_the_hub_has_it(tmp_path):
    chat = [[turn for pair in batch["turns"] for turn in pair] for batch in beam_chat()]
    row = {"conversation_id": "1", "chat": chat, "probing_questions": repr(beam_questions())}
    as_rows = load("beam", write(tmp_path / "beam.jsonl", [row]), turns=True)[0]
    assert as_rows == load("beam", beam(tmp_path).path, turns=True)[0]


def test_beam_at_10m_has_the_batches_of_its_plans_in_order(tmp_path):
    path = beam(tmp_path).path
    expected = load("beam", path, turns=True)[0]
    first, second = beam_chat()
    in_items = [{"plan-1": [first]}, {"plan-2": [second]}]
    as_the_hub = [{"plan-1": [first], "plan-2": None}, {"plan-1": None, "plan-2": [second]}]
    in_one = [{"plan-10": [second], "plan-9": [first]}]  # by number, not by letters
    for chat in (in_items, as_the_hub, in_one):
        write(path / "1" / "chat.json", chat)
        assert load("beam", path, turns=True)[0] == expected
    write(path / "1" / "chat.json", [{"plan-1": {"turns": []}}])
    assert load("beam", path)[1].skipped == {"malformed": 1}


def test_beam_says_what_is_wrong_with_a_chat(tmp_path):
    with pytest.raises(InputError, match=r"has no chat\n  expected: N/chat\.json"):
        load("beam", tmp_path)
    path = beam(tmp_path).path
    chat = beam_chat()
    chat[0]["turns"][0][0]["time_anchor"] = "some day"
    del chat[1]["turns"]
    write(path / "1" / "chat.json", chat)
    _, result = load("beam", path)
    assert result.skipped == {"malformed": 1}
    assert result.problems[0].startswith("chat 1 field 'chat[1].turns' is missing")
    chat[1]["turns"] = []
    write(path / "1" / "chat.json", chat)
    (instance,), result = load("beam", path)
    assert instance.chunks[0].text.startswith("[Session 1, some day]")
    assert result.notes == {"sessions with a date that cannot be read": 1}
