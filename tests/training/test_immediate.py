"""Questions asked right after their chunk: which, on what memory, and what they pay."""

import math
from dataclasses import replace

import pytest
from rollouts import make_agent, make_instance, run_script

from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.judges import GroundedContentJudge
from memalpha.qa.readers import RecallReader
from memalpha.rewards.total import RewardConfig
from memalpha.training.scoring import RolloutScorer, ask_after_chunks, completed_by
from memalpha.types import Question


def asking(word, *evidence):
    return Question(f"was {word} seen?", (word,), evidence=evidence or None, id=word)


QUESTIONS = (asking("apple", 0), asking("candle", 0, 1), asking("door", 1), asking("engine"))


def rollout():
    """Keeps apple and boat; deletes apple and keeps candle, but not door."""
    agent = make_agent()
    instance = replace(make_instance("a", "apple boat engine", "candle door engine", "boat"), questions=QUESTIONS)
    (made,) = run_script(agent, [instance], ["+ apple\n+ boat\nwhat?"], ["- 1\n+ candle\n- 7"], ["= 2 engine"])
    return agent, made


def evaluator(agent):
    return QAEvaluator(RecallReader(64, agent.encoder.count), k=3)


def test_a_question_belongs_to_the_chunk_that_completes_its_evidence():
    assert [[question.id for question in completed_by(QUESTIONS, t)] for t in range(3)] == [["apple"], ["candle", "door"], []]


def test_each_is_asked_on_the_memory_of_its_moment():
    agent, made = rollout()
    before = [entry.content for entry in made.memory]
    ((first, second, third),) = ask_after_chunks([made], agent, evaluator(agent))
    assert [(record.question.id, record.score) for record in first] == [("apple", 1.0)]  # deleted later
    assert first[0].answer.text == "apple"
    assert [(record.question.id, record.score) for record in second] == [("candle", 1.0), ("door", 0.0)]
    assert third == []
    assert [entry.content for entry in made.memory] == before == ["engine", "candle"]


def test_the_scorer_pays_them_where_they_have_a_weight():
    agent, made = rollout()
    config = RewardConfig(immediate_weight=1.0)
    (paid,) = RolloutScorer(evaluator(agent), GroundedContentJudge(), config, agent=agent).score([made])
    # At the end candle and engine are found, apple and door are not: r1 = 1/2, which the last chunk, asked nothing, takes.
    assert [step.accuracy for step in paid] == [0.5] * 3
    assert [step.immediate for step in paid] == [1.0, 0.5, 0.5]
    (unpaid,) = RolloutScorer(evaluator(agent), GroundedContentJudge(), RewardConfig()).score([made])
    assert all(math.isnan(step.immediate) for step in unpaid)
    more = [step.total(config) - plain.total(RewardConfig()) for step, plain in zip(paid, unpaid, strict=True)]
    assert more == pytest.approx([1.0, 0.5, 0.5])
