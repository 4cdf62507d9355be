"""LongMemEval, LoCoMo, LoCoMo-Plus and MSC: instances by value, and what is skipped."""

import pytest

from memalpha.qa.judges import ANSWER_SYSTEMS
from memalpha.types import Chunk, Question
from tests.helpers.data_samples import (
    load,
    locomo_plus,
    locomo_sample,
    longmemeval_item,
    msc_row,
    write,
)


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


def test_sessions_of_locomo_are_in_the_order_of_their_numbers(tmp_path):
    def said(text):
        return [{"speaker": "Ada", "dia_id": "D1:1", "text": text}]

    talk = {"session_10": said("tenth"), "session_2": said("second"), "session_01": said("first")}
    talk |= {"session_2_date_time": "9:05 am on 2 June, 2023", "session_x": said("none")}
    row = locomo_sample(conversation=talk)
    (instance,), _ = load("locomo", write(tmp_path / "locomo.json", [row]))
    assert [chunk.text for chunk in instance.chunks] == [
        "[Session 1]\nAda: first",
        "[Session 2, 2023-06-02T09:05]\nAda: second",
        "[Session 10]\nAda: tenth",
    ]


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
