"""Graded answers: the probability of the right one under the reader, against a forward of each row
alone."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

from memalpha.generation.hf import AnsweringModel, HFGenerator, frozen_base
from memalpha.models import load_policy_model, resolve_model
from memalpha.qa.readers import ModelReader, QAEvaluator, reader_messages, wanted_answers
from memalpha.rewards import RewardConfig
from memalpha.text.encoding import chat_ids, plain_ids
from memalpha.training.scoring import RolloutScorer
from memalpha.types import Question, ReadRequest
from tests.helpers.rollouts import make_agent, make_instance, run_script

CHATS = [reader_messages("was apple seen?", notes) for notes in ((), ("an apple",), ("a boat",))]
ANSWERS = ["apple", "an apple and a boat", "unknown"]


@pytest.fixture(scope="module")
def nano():
    model, tokenizer = load_policy_model(resolve_model("nano"))
    return model.eval(), tokenizer


def alone(model, tokenizer, chat, answer, bias=()):
    """exp of the mean log-probability of an answer and its end token."""
    asked = chat_ids(tokenizer, chat)
    said = [*plain_ids(tokenizer, answer), tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*asked, *said]])).logits[0, len(asked) - 1 : -1]
    for token, value in bias:
        logits[0, token] += value
    logps = [row.log_softmax(-1)[token].item() for row, token in zip(logits, said, strict=True)]
    return math.exp(sum(logps) / len(logps))


def test_probabilities_of_a_batch_are_those_of_each_row_alone(nano):
    model, tokenizer = nano
    pairs = [(chat, answer) for chat in CHATS for answer in ANSWERS] * 2
    bias = {plain_ids(tokenizer, "unknown")[0]: 3.0}
    for given in ({}, bias):
        generator = HFGenerator(model, tokenizer, first_bias=given)
        found = AnsweringModel(generator, tokenizer, 8).probabilities(
            *map(list, zip(*pairs, strict=True))
        )
        expected = [alone(model, tokenizer, *pair, bias=given.items()) for pair in pairs]
        assert found == pytest.approx(expected, rel=1e-4) and len(set(found)) == len(pairs) / 2


def test_the_base_is_asked_without_the_adapters(nano):
    base, tokenizer = nano
    expected = alone(base, tokenizer, CHATS[1], "apple")
    policy = get_peft_model(
        load_policy_model(resolve_model("nano"))[0],
        LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, parameter in policy.named_parameters():
        parameter.data += 0.5 * ("lora_B" in name)
    assert alone(policy, tokenizer, CHATS[1], "apple") != pytest.approx(expected, rel=1e-2)
    found = frozen_base(policy, tokenizer).probabilities([CHATS[1]], ["apple"])
    assert found == pytest.approx([expected], rel=1e-4)


def test_the_best_of_the_right_answers_counts_and_all_where_all_are_needed():
    several = Question("?", ("a", "b"))
    assert wanted_answers(several) == ("a", "b")
    assert wanted_answers(Question("?", ("a", "b"), metric="bound_all")) == ("a, b",)
    assert wanted_answers(Question("?", ("a",), metric="absent")) == ("unknown",)
    values = {"a": 0.25, "b": 0.5, "c": 0.125}

    def probabilities(chats, answers):
        assert len(chats) == len(answers)
        return [values[answer] for answer in answers]

    reader = ModelReader(lambda chats: ["a"] * len(chats), 64, len, probabilities=probabilities)
    requests = [ReadRequest(several, ()), ReadRequest(Question("?", ("c",)), ("n",))]
    assert reader.grade(requests) == [0.5, 0.125]

    agent = make_agent()
    instance = make_instance("i", "x", ask=("a", "c"))
    rollouts = run_script(agent, [instance], ["+ apple"])
    evaluator = QAEvaluator(reader, 3, grade=reader.grade)
    config = RewardConfig(1.0, 0.0, 0.0, 0.0, graded_accuracy=True)
    scorer = RolloutScorer(evaluator, None, config)
    rewards = scorer.score(rollouts)
    assert [record.score for record in rollouts[0].questions] == [1.0, 0.0]
    assert rewards[0][0]["accuracy"] == (0.25 + 0.125) / 2
    assert scorer.metrics(rollouts, rewards)["rewards/exact_accuracy/mean"] == (0.5, 1)
