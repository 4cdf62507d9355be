"""Planted wrong answers: that they are wrong and of the sort they say, and the rates of judges whose faults are known."""

import json
import re
from collections import Counter

import pytest
from stub_server import error

from memalpha.data.synthetic import PRESETS, generate
from memalpha.endpoints import ChatClient
from memalpha.errors import ServiceError
from memalpha.evaluation.judging import false_accepts, plant_answers
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.types import Chunk, Instance, Question

SET = generate(12, 0, PRESETS["medium"])


def tokens(text):
    return set(re.findall(r"[\w-]+", text.lower())) - {"a", "an", "the"}


def asked(*questions):
    return [Instance("i", "x", (Chunk("text"),), tuple(Question(t, a, stale=s) for t, a, s in questions))]


@pytest.fixture
def judge(chat_server):
    return EndpointAnswerJudge(ChatClient(chat_server.url, "judge", retries=0))


# ------------------------------------------------------------------------------------------------ what is planted
def test_planted_answers_are_wrong_and_of_the_sort_they_say():
    planted = plant_answers(SET, max_questions=0)
    everything = {answer for instance in SET for question in instance.questions for answer in question.answers}
    for instance, question, plant, text in planted:
        assert question in next(i for i in SET if i.id == instance).questions
        right = set().union(*map(tokens, question.answers))
        if plant == "accepted":
            assert text == (", ".join(question.answers) if question.kind == "count" else question.answers[0])
            continue
        assert not tokens(text) & right
        if plant == "stale":
            assert text in question.stale
        else:
            assert text in everything and text not in question.stale
        if plant == "same_type":
            assert ("-" in text) == ("-" in question.answers[0]) and text[0].isupper() == question.answers[0][0].isupper()
    found = Counter(item.plant for item in planted)
    questions = [question for instance in SET for question in instance.questions]
    assert found["accepted"] == found["other"] == len(questions)
    assert found["stale"] == sum(bool(question.stale) for question in questions)
    same = sum(question.answers != ("none",) for question in questions)  # of "none" there is no other
    assert 0.9 * same <= found["same_type"] <= same


def test_an_answer_that_shares_a_word_is_never_planted():
    data = asked(("Who?", ("the green tea",), ()), ("What?", ("Green!",), ()), ("Which?", ("tea",), ()))
    assert {(p.question.text, p.plant, p.text) for p in plant_answers(data) if p.plant == "other"} == {
        ("What?", "other", "tea"),
        ("Which?", "other", "Green!"),
    }
    stale = asked(("Drink?", ("green tea",), ("tea", "beer")))
    for seed in range(5):
        (wrong,) = (p.text for p in plant_answers(stale, seed) if p.plant == "stale")
        assert wrong == "beer"  # "tea" is part of the right answer


def test_the_same_seed_plants_the_same_and_only_so_many():
    assert plant_answers(SET, 3) == plant_answers(SET, 3) != plant_answers(SET, 4)
    few = plant_answers(SET, max_questions=7)
    assert sum(item.plant == "accepted" for item in few) == 7
    assert len({item.question.text + item.instance for item in few}) == 7
    assert plant_answers(asked(("Who?", (), ()))) == []


# ------------------------------------------------------------------------------------------------ what judges say
def shown(body):
    return json.loads(body["messages"][-1]["content"])


def test_a_judge_that_believes_stale_values(judge, chat_server):
    stale = {value for instance in SET for question in instance.questions for value in question.stale}

    def reply(body):
        right = shown(body)["accepted_answers"]
        return "yes" if shown(body)["given_answer"] in {*stale, *right, ", ".join(right)} else "no"

    chat_server.reply = reply
    planted = plant_answers(SET, max_questions=30)
    found = false_accepts(judge, planted)
    assert found["rates"]["accepted"]["mean"] == found["rates"]["stale"]["mean"] == 1.0
    for plant in ("other", "same_type"):
        texts = [item.text for item in planted if item.plant == plant]
        assert found["rates"][plant]["mean"] == pytest.approx(sum(text in stale for text in texts) / len(texts))
    assert found["failed"] == 0
    assert sum(rate["asked"] for rate in found["rates"].values()) == len(planted) == len(chat_server.bodies)
    assert all(example["plant"] != "accepted" and example["planted"] in stale for example in found["examples"])
    assert len(found["examples"]) == 10 and json.dumps(found)


@pytest.mark.parametrize(("reply", "rate"), [("yes", 1.0), ("no", 0.0)])
def test_a_judge_that_always_says_the_same(judge, chat_server, reply, rate):
    chat_server.reply = lambda body: reply
    found = false_accepts(judge, plant_answers(SET, max_questions=10))
    assert {plant: row["mean"] for plant, row in found["rates"].items()} == dict.fromkeys(found["rates"], rate)
    assert set(found["rates"]) >= {"other", "same_type", "accepted"}


def test_verdicts_that_were_not_given_enter_no_rate(judge, chat_server):
    planted = [item for item in plant_answers(SET, max_questions=10) if item.plant in ("other", "accepted")]
    lost = {item.text for item in planted if item.plant == "other"} - {item.text for item in planted if item.plant == "accepted"}
    chat_server.reply = lambda body: "no"
    chat_server.fault_for = lambda body: error(500) if shown(body)["given_answer"] in lost else None
    found = false_accepts(judge, planted)
    assert found["failed"] == sum(item.text in lost for item in planted) > 0
    assert found["rates"]["accepted"]["asked"] == 10 and found["rates"]["other"]["asked"] == 10 - found["failed"]
    chat_server.fault_for = lambda body: error(500)
    with pytest.raises(ServiceError):
        false_accepts(judge, planted)
