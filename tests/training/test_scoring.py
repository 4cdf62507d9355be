"""Scoring rollouts: numbers by hand, failures of readers and judges that mask, and too many of them
that stop the run."""

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from memalpha.errors import InputError, PartialServiceError, ServiceError, TrainingAborted
from memalpha.qa.readers import QAEvaluator, RecallReader
from memalpha.record.measure import measure, rollout_memory
from memalpha.record.rows import InstanceRow, QuestionRow, summarise
from memalpha.rewards import RewardConfig, compression
from memalpha.training.config import parse_train_arguments
from memalpha.training.recording import ScoringExaminer
from memalpha.training.scoring import (
    RolloutScorer,
    asked_after_chunks,
    check_masked_share,
    first_error,
)
from memalpha.types import (
    Answer,
    Chunk,
    Instance,
    Question,
    ToolCall,
)
from tests.helpers.rollouts import make_agent, make_instance, run_script, step_reward

NAN = math.nan


class Recall:
    """Answers with what was found; fails on the words it is told to."""

    def __init__(self, *fails_on):
        self.fails_on = fails_on

    def read(self, requests):
        failed = [
            any(word in request.question.text for word in self.fails_on) for request in requests
        ]
        outcomes = [Answer("\n".join(request.passages), request.passages) for request in requests]
        if any(failed):
            down = ServiceError("the reader is down")
            raise PartialServiceError(
                [down if bad else said for bad, said in zip(failed, outcomes, strict=True)]
            )
        return outcomes


def rows_of(rollouts, rewards, config=None):
    scorer = SimpleNamespace(reward_config=config or RewardConfig(), score=lambda _: rewards)
    ((_, rows),) = measure(
        lambda _: [rollout_memory(rollout, 3) for rollout in rollouts],
        [rollout.instance for rollout in rollouts],
        {"scorer": ScoringExaminer(scorer)},
        names=("held out", "policy"),
        seed=0,
        count=rollouts[0].memory.count_tokens,
    )
    return rows


class Judge:
    """Finds every write right but the deletions; keeps what it was asked; fails on the chunks it is
    told to, such as a0."""

    def __init__(self, *fails_on):
        self.fails_on, self.asked = fails_on, []

    def judge(self, requests):
        self.asked.append(requests)
        outcomes = [
            ServiceError(f"the judge is down for {name}")
            if (name := f"{request.instance_id}{request.chunk_index}") in self.fails_on
            else [result.operation.content is not None for result in request.results]
            for request in requests
        ]
        if any(isinstance(outcome, ServiceError) for outcome in outcomes):
            raise PartialServiceError(outcomes)
        return outcomes


@pytest.fixture
def rollouts():
    """a: keeps apple, deletes it again and keeps candle. b: keeps its one word twice, and is cut
    off by nothing."""
    a = make_instance(
        "a", "apple boat engine engine", "candle engine engine engine", ask=("candle", "apple")
    )
    b = make_instance("b", "door feather", ask=("door",))
    return run_script(
        make_agent(), [a, b], ["+ apple\nwhat?", "+ door\n+ door"], ["- 1\n+ candle\n- 7"]
    )


def scorer_of(reader=None, judge=None, config=None, **settings):
    return RolloutScorer(
        QAEvaluator(reader or Recall(), k=3), judge or Judge(), config or RewardConfig(), **settings
    )


def test_parts_by_hand(rollouts):
    judge = Judge()
    rewards = scorer_of(judge=judge).score(rollouts)
    # a: candle found, apple gone; 1 token kept of 8; calls right 1 of 2, then 2 of 3; writes right
    # 1 of 1, then 1 of 2.
    assert rewards[0] == [step_reward(0.5, 0.5, 0.875, 1.0), step_reward(0.5, 2 / 3, 0.875, 0.5)]
    # b: door found; 1 token of 2; a duplicate is a success and no write.
    assert rewards[1] == [step_reward(1.0, 1.0, 0.5, 1.0)]
    assert [record.score for record in rollouts[0].questions] == [1.0, 0.0]


def test_the_judge_sees_chunk_writes_and_what_was_there_before(rollouts):
    judge = Judge()
    scorer_of(judge=judge).score(rollouts)
    (asked,) = judge.asked  # all rollouts in one batch
    assert [(r.instance_id, r.chunk_index) for r in asked] == [("a", 0), ("a", 1), ("b", 0)]
    second = asked[1]
    assert [(str(result.operation.kind), result.entry_id) for result in second.results] == [
        ("delete", "1"),
        ("insert", "2"),
    ]
    assert [entry and entry.content for entry in second.before] == ["apple", None]
    assert [[entry.content for entry in request.kept] for request in asked] == [
        ["apple"],
        ["candle"],
        ["door"],
    ]


def test_a_judge_that_fails_masks_the_chunk_and_no_other(rollouts):
    scorer = scorer_of(judge=Judge("a0"))
    rewards = scorer.score(rollouts)
    first, second = rewards[0]
    assert (first["accuracy"], first["tool"], first["compression"]) == (0.5, 0.5, 0.875)
    assert math.isnan(first["content"]) and math.isnan(first.total(RewardConfig()))
    assert second == step_reward(0.5, 2 / 3, 0.875, 0.5)
    assert rewards[1] == [step_reward(1.0, 1.0, 0.5, 1.0)]
    assert [rollout.errors for rollout in rollouts] == [{0: "the judge is down for a0"}, {}]
    assert scorer.masked(rewards) == 1
    assert scorer.metrics(rollouts, rewards)["memory/masked_chunks"] == (1.0, 3)
    assert first_error(rollouts) == "the judge is down for a0"


class Quiet(Judge):
    def nothing_due(self, request):
        self.asked.append(request)
        return request.chunk_index == 1


@pytest.mark.parametrize("config", [{}, {"judge_silence": False}, {"content_weight": 0.0}])
def test_a_judge_that_knows_says_where_silence_was_right(config):
    instance = make_instance("x", "apple", "boat", "door", ask=("apple",))
    rollouts = run_script(make_agent(), [instance], ["."], ["."], ["+ door"])
    judge = Quiet()
    rewards = scorer_of(judge=judge, config=RewardConfig(silence=0.5, **config)).score(rollouts)[0]
    assert [step["tool"] for step in rewards] == (
        [0.5, 1.0, 1.0] if not config else [0.5, 0.5, 1.0]
    )
    asked = [request.chunk_index for request in judge.asked if not isinstance(request, list)]
    assert asked == ([] if config else [0, 1])


def test_too_many_masked_rollouts_stop_the_run():
    for masked, total, limit in (
        (1, 2, 0.5),
        (0, 2, 0.0),
        (2, 2, 1.0),
        (29, 100, 0.29),
        (0, 0, 0.0),
        (7, 10, 0.7),
    ):
        check_masked_share(masked, total, limit, [])  # exactly the share is still allowed
    for masked, total, limit in ((2, 2, 0.5), (1, 2, 0.49), (1, 2, 0.0), (30, 100, 0.29)):
        with pytest.raises(
            TrainingAborted,
            match=f"{masked} of {total} rollouts could not be scored, more than .* = {limit}",
        ):
            check_masked_share(masked, total, limit, [])
    with pytest.raises(TrainingAborted, match="first failure: HTTP 500: worn out\n  to fix"):
        check_masked_share(1, 1, 0.5, [None, "HTTP 500: worn out", "later"])


def test_a_gap_of_the_judge_enters_no_mean_of_an_evaluation(rollouts):
    rewards = scorer_of(judge=Judge("a1")).score(rollouts)
    summary = summarise(rows_of(rollouts, rewards))
    assert (summary["n"], summary["masked"], summary["accuracy"]) == (2, 0, 0.75)
    assert (summary["content"], summary["reward"]) == (
        1.0,
        pytest.approx(1.0 + 1.0 + 0.05 * 0.5 + 0.1),
    )  # b alone
    assert summary["compression"] == pytest.approx((0.875 + 0.5) / 2)


def test_a_summary_has_every_part_of_the_reward():
    means = {"total": 0.5, "accuracy": 0.125, "tool": 0.25, "immediate": 0.75, "brevity": 1.0}
    question = QuestionRow("0", "single", "?", 1.0, "apple")
    row = InstanceRow("s", "policy", "r", 0, "x", 2, 10, questions=(question,), rewards=means)
    summary = summarise([row])
    shown = {name: value for name, value in summary.items() if name.startswith("reward")}
    assert shown == {"reward": 0.5, "reward_immediate": 0.75, "reward_brevity": 1.0}
    assert (summary["accuracy"], summary["tool_success"]) == (1.0, 0.25)


def test_metrics_by_hand(rollouts):
    scorer = scorer_of(Recall("apple"))
    metrics = scorer.metrics(rollouts, scorer.score(rollouts))
    # Calls: apple, what?; delete 1, candle, delete 7; door, door. Three chunks, two rollouts, the
    # first without accuracy.
    assert metrics == {
        "rewards/accuracy/mean": (1.0, 1),
        "rewards/tool/mean": (pytest.approx(0.5 + 2 / 3 + 1.0), 3),
        "rewards/content/mean": (2.5, 3),
        "rewards/compression/mean": (0.875 + 0.875 + 0.5, 3),
        "rewards/immediate/mean": (0, 0),
        "memory/calls_per_chunk": (7, 3),
        "memory/silent_chunks": (0, 3),
        "memory/cut_off": (0, 3),
        "memory/entries": (2, 2),
        "memory/tokens": (2, 2),
        "memory/masked": (1, 2),
        "memory/masked_chunks": (2, 3),
        "memory/duplicates": (1, 7),
        "memory/unparsed": (1, 7),
        "memory/verbatim": (3, 3),
        "memory/entry_words": (3, 3),
        "memory/insert_share": (3, 7),
        "memory/update_share": (0, 7),
        "memory/delete_share": (1, 7),
        "memory/replace_share": (0, 7),
        "memory/ops/facts/insert": (3, 7),
        "memory/ops/facts/update": (0, 7),
        "memory/ops/facts/delete": (1, 7),
    }


# ------------------------------------------------------------------------------------------------
# rewards of one's own
def own(rollouts, function):
    """Totals of the steps (None: masked), and the function's metric."""
    config = RewardConfig(1.0, 0.0, 0.0, 0.0, rewards={function: 0.5})
    scorer = scorer_of(config=config)
    rewards = scorer.score(rollouts)
    totals = [step.total(config) for steps in rewards for step in steps]
    metric = scorer.metrics(rollouts, rewards)[f"rewards/{function.__name__}/mean"]
    return [None if math.isnan(total) else total for total in totals], metric


def test_async_functions_score_rollouts_at_once_and_none_and_outages_mask(rollouts):
    both = asyncio.Barrier(2)

    async def sparse(rollout):
        await asyncio.wait_for(both.wait(), 60)
        if rollout.instance.id == "b":
            raise ServiceError("down")
        return [None, 1]

    async def notebook():  # has a loop already
        return own(rollouts, sparse)

    assert asyncio.run(notebook()) == ([None, 1.0, None], (1.0, 1))
    assert first_error(rollouts) == "sparse: down"


@pytest.mark.parametrize("value", [NAN, math.inf, [1.0], [1.0, -math.inf], "high", {}.popitem])
def test_a_bug_or_no_finite_number_is_an_error_that_names_function_and_instance(rollouts, value):
    def brevity(rollout):
        return 0.0 if rollout.instance.id == "b" else value() if callable(value) else value

    with pytest.raises(InputError, match="reward brevity failed on instance a: "):
        own(rollouts, brevity)


@pytest.mark.parametrize(
    "name", ["nowhere:f", "math:nothing", "math:pi", "math", "memalpha.rewards:accuracy"]
)
def test_a_reward_that_is_not_there_or_has_a_taken_name_is_refused_with_the_options(name):
    with pytest.raises(InputError, match=f"rewards names '{name}'"):
        _ = RewardConfig(rewards={name: 1.0}).parts


# ------------------------------------------------------------------------------------------------
# questions right after a chunk
def test_questions_are_asked_on_the_memory_of_the_chunk_that_completes_their_evidence():
    """The rollout keeps apple and boat; deletes apple and keeps candle, but not door."""
    evidence = {"apple": (0,), "candle": (0, 1), "door": (1,), "engine": None}
    questions = tuple(
        Question(f"was {word} seen?", (word,), evidence=chunks, id=word)
        for word, chunks in evidence.items()
    )
    agent = make_agent()
    instance = replace(
        make_instance("a", "apple boat engine", "candle door engine", "boat"), questions=questions
    )
    (made,) = run_script(
        agent, [instance], ["+ apple\n+ boat\nwhat?"], ["- 1\n+ candle\n- 7"], ["= 2 engine"]
    )
    before = [entry.content for entry in made.memory]
    evaluator = QAEvaluator(RecallReader(64, agent.encoder.count), k=3)
    first, second, third = evaluator.evaluate_many([], asked_after_chunks([made], agent))
    assert [(record.question.id, record.score) for record in first] == [
        ("apple", 1.0)
    ]  # deleted later
    assert [(record.question.id, record.score) for record in second] == [
        ("candle", 1.0),
        ("door", 0.0),
    ]
    assert third == [] and [entry.content for entry in made.memory] == before == [
        "engine",
        "candle",
    ]
    evaluator.reader.read = Mock(wraps=evaluator.reader.read)
    (paid,) = RolloutScorer(
        evaluator, Judge(), RewardConfig(immediate_weight=1.0), agent=agent
    ).score([made])
    (batch,) = [call.args[0] for call in evaluator.reader.read.call_args_list]
    assert [request.question.id for request in batch] == [*evidence, "apple", "candle", "door"]
    # At the end candle and engine are found, apple and door are not: r1 = 1/2, which the last
    # chunk, asked nothing, takes.
    assert [(step["accuracy"], step["immediate"]) for step in paid] == [
        (0.5, 1.0),
        (0.5, 0.5),
        (0.5, 0.5),
    ]
    (unpaid,) = RolloutScorer(evaluator, Judge(), RewardConfig()).score([made])
    assert all(math.isnan(step["immediate"]) for step in unpaid)


def test_the_archive_right_after_a_chunk_is_that_of_then():
    """The first chunk's line is there until an update outdates it; the second's comes with the
    second."""
    agent = make_agent(archive=True)
    asked = tuple(
        Question("what boat?", ("red",), evidence=(index,), id=str(index)) for index in (0, 1)
    )
    instance = Instance("i", "", (Chunk("the boat was red"), Chunk("the boat is blue")), asked)
    (made,) = run_script(agent, [instance], ["+ boat red"], ["= 1 boat blue"])
    evaluator = QAEvaluator(RecallReader(64, agent.encoder.count), k=3)
    (early,), (late,) = evaluator.evaluate_many([], asked_after_chunks([made], agent))
    assert early.answer and set(early.answer.passages or ()) == {"boat red", "the boat was red"}
    assert late.answer and set(late.answer.passages or ()) == {"boat blue", "the boat is blue"}


def test_the_published_settings_give_the_published_reward():
    """A chunk by hand: r2 = 2 of 4 parsed calls, r4 = 3 of 4, r3 = 1 - 90 / 60; deletes 0, silence
    0, repeats are judged."""
    published = parse_train_arguments(
        ["--preset", "published", "--use_cpu", "true", "--per_device_train_batch_size", "8"]
    ).reward
    agent = make_agent(codec="hermes", schema="mem_alpha")
    calls = [
        ToolCall("memory_insert", {"section": "semantic", "content": "the apple was seen"}),
        ToolCall("memory_insert", {"section": "semantic", "content": "the apple was seen"}),
        ToolCall("memory_update", {"entry_id": "77", "content": "the boat was seen"}),
        ToolCall("memory_delete", {"entry_id": "88"}),
    ]
    written = agent.codec.render(calls) + "\n<tool_call>\nno JSON\n</tool_call>"
    (rollout,) = run_script(
        agent, [make_instance("i", "the apple and the boat", "more")], [written], [""]
    )
    judge = Mock(
        judge=lambda requests: [[True] * len(request.results) for request in requests],
        spec=["judge"],
    )
    scorer = RolloutScorer(Mock(evaluate_many=lambda items, passing: [[]]), judge, published)
    (parts,) = scorer.score([rollout])
    codes = [result.code.value for result in rollout.steps[0].outcome.results]
    assert codes == ["applied", "duplicate", "unknown_id", "unknown_id", "unparsed"]
    assert (parts[0]["tool"], parts[0]["content"], parts[1]["tool"], parts[1]["content"]) == (
        0.5,
        0.75,
        0.0,
        0.0,
    )
    first = step_reward(
        0.5,
        parts[0]["tool"],
        compression(90, 60, clip=published.clip_compression),
        parts[0]["content"],
    )
    assert first.total(published) == pytest.approx(1.05)
