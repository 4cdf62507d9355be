"""The update against a loss written by hand: exact for every loss that is offered, and the check
sees planted faults."""

import json

import grpo_in_one_file as example
import pytest
import torch
from transformers import TrainerCallback

from memalpha.rewards import StepReward
from tests.helpers import gradient_check
from tests.helpers.gradient_check import TWO_PROCESSES, Case, check, make_trainer, pseudo_reward
from tests.helpers.runs_of_nano import two

EXACT = 1e-5
FOUND = 1e-2

CASES = {
    "dapo, KL, two epochs, by trajectory, no packing": Case(
        "dapo", 0.1, "trajectory", packs=False, iterations=2
    ),
    "dapo, KL to the base": Case("dapo", 0.1, start="fresh", iterations=2),
    "dapo, KL, all weights": Case("dapo", 0.1, start="full"),
    "dapo, cut off rows dropped": Case("dapo", drop_cut_off=True, steps=1),
    "grpo, two epochs, by trajectory": Case("grpo", 0.0, "trajectory", iterations=2, padding=4),
    "grpo, KL, no packing, Qwen3": Case(
        "grpo", 0.1, packs=False, padding=4, architecture="qwen3", steps=1
    ),
    "grpo, KL, three splits, two epochs": Case("grpo", 0.1, splits=3, iterations=2, steps=6),
    "grpo, ratio of the sequence": Case("grpo", level="sequence", iterations=2),
    "dr_grpo, KL, by trajectory": Case("dr_grpo", 0.1, "trajectory", padding=4, scale="none"),
    "dapo, KL, sampled by another engine": Case("dapo", 0.1, generator="drifted", iterations=2),
    "dr_grpo, sampled by another engine": Case("dr_grpo", generator="drifted", padding=4),
    "grpo, KL, other engine, tokens masked": Case(
        "grpo", 0.1, generator="drifted", correction="token_mask", iterations=2
    ),
    "dapo, other engine, sequences masked": Case(
        "dapo", generator="drifted", correction="sequence_mask", padding=4
    ),
    "grpo, ratio of the sequence, other engine, sequences truncated": Case(
        "grpo", generator="drifted", correction="sequence_truncate", level="sequence"
    ),
    "dapo, steps smaller than a group": Case("dapo", splits=4, a_step=2, steps=4),
    "dapo, drawn a batch ahead": Case("dapo", staleness=1, steps=4),
    "grpo, KL, drawn two batches ahead, two epochs": Case(
        "grpo", 0.1, staleness=2, iterations=2, steps=8
    ),
    "cispo, KL, two epochs": Case("cispo", 0.1, start="fresh", iterations=2, scale="batch"),
    "grpo, ratio of the sequence, no packing": Case("grpo", level="sequence", packs=False, steps=1),
    "dapo, KL, same state, two epochs": Case("dapo", 0.1, "same_state", iterations=2),
    "grpo, same state": Case("grpo", credit="same_state", scale="batch", padding=4, steps=1),
    "dapo, KL, asker, two epochs": Case("dapo", 0.1, "trajectory", role="asker", iterations=2),
    "grpo, asker": Case("grpo", 0.0, "trajectory", role="asker", scale="group", padding=4),
    "dapo, evidence": Case(credit="evidence", scale="none"),
    "dapo, KL, memory tokens, two epochs": Case("dapo", 0.1, "memory_tokens", iterations=2),
    "grpo, memory tokens, ratio of the sequence": Case(
        "grpo", 0.1, "memory_tokens", level="sequence", iterations=2, padding=4
    ),
    "dr_grpo, memory tokens, other engine, cut off rows dropped": Case(
        "dr_grpo", credit="memory_tokens", generator="drifted", drop_cut_off=True, steps=1
    ),
    "dapo, memory tokens, variance": Case(credit="memory_tokens", variance=True),
    "dr_grpo, drawn a batch ahead": Case("dr_grpo", staleness=1, padding=4, steps=4),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_loss_by_hand(name):
    case = CASES[name]
    report = check(case)
    assert len(report.errors) == case.steps
    assert max(report.errors) < EXACT
    assert max(report.advantage_errors) < 1e-6
    assert report.masked > 0
    assert len({prompt for prompt, _ in report.lengths}) > 2
    assert len({completion for _, completion in report.lengths}) > 2
    assert report.padding == case.padding * len(report.advantage_errors)
    if case.staleness:
        assert report.weights[0] < 1e-4 and max(report.weights[case.iterations :]) > 0.01
    if case.iterations > 1:
        assert report.ratios[0] < 0.8 and report.ratios[1] > 1.25, (
            "the check must reach the clipped region"
        )


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("two") / "reports.json"
    done = two(gradient_check.__file__, str(out))
    assert out.exists(), done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_two_ranks_train_the_gradient_of_all_rows(two_ranks, name):
    case, reports = TWO_PROCESSES[name], [rank[name] for rank in two_ranks]
    assert [report["world"] for report in reports] == [2, 2]
    assert sum(report["padding"] for report in reports) > 0, (
        "ranks must differ in their number of rows"
    )
    for report in reports:
        assert max(report["advantage_errors"]) < 1e-6
        assert report["logged"] == pytest.approx(report["p99"], rel=1e-3, abs=1e-5)
        assert len(report["logged"]) == (case.steps if case.staleness else 0)
        if case.top_layers:  # frozen layers stay so when the reference switches adapters
            assert all(".layers.1." in n and ".default." in n for n in report["trained"])
        if case.fault:
            assert max(report["errors"]) > FOUND
        else:
            assert len(report["errors"]) == case.steps
            assert max(report["errors"]) < EXACT


class Compare(TrainerCallback):
    """Works out the gradient of the example before the optimizer steps."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        (batch,) = self.trainer.update_batches
        turns = []
        for row in batch.rows:
            ids = (list(row.prompt_ids), list(row.completion_ids))
            turns.append(
                example.Turn(str(row.group_index), row.chunk_index, *ids, reward=row.total)
            )
        example.set_advantages(turns)
        logps = example.token_logps(model, turns)
        loss = example.loss_of(logps, logps.detach(), turns)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        self.expected = torch.cat([gradient.flatten() for gradient in gradients])
        self.gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_the_first_gradient_is_the_trainers_on_the_same_rollouts(tmp_path):
    trainer = make_trainer(Case(start="full", steps=1), tmp_path)
    trainer.temperature = 1.0
    trainer.args.epsilon = trainer.epsilon_low = trainer.epsilon_high = example.CLIP
    trainer.scorer.score = lambda rollouts: [
        [StepReward(pseudo_reward(i, rollout, t), content=0.5) for t in range(len(rollout.steps))]
        for i, rollout in enumerate(rollouts)
    ]
    compare = Compare(trainer)
    trainer.add_callback(compare)
    trainer.train()
    assert compare.expected.norm() > 0.01
    assert (compare.gradient - compare.expected).norm() < 1e-4 * compare.expected.norm()
