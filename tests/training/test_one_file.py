"""The example of one file trains as the trainer does: one gradient on the same rollouts."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from gradient_check import Case, make_trainer, pseudo_reward
from transformers import TrainerCallback

from memalpha.rewards import StepReward

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_in_one_file.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


class Compare(TrainerCallback):
    """Works out the gradient of the example before the optimizer steps."""

    def __init__(self, trainer, example):
        self.trainer, self.example = trainer, example

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        (batch,) = self.trainer.update_batches
        turns = []
        for row in batch.rows:
            place = (str(row.group_index), row.chunk_index)
            ids = (list(row.prompt_ids), list(row.completion_ids))
            turns.append(self.example.Turn(*place, *ids, reward=row.total))
        self.example.set_advantages(turns)
        logps = self.example.token_logps(model, turns)
        loss = self.example.loss_of(logps, logps.detach(), turns)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        self.expected = torch.cat([gradient.flatten() for gradient in gradients])
        self.gradient = torch.cat([parameter.grad.flatten() for parameter in parameters])


def test_the_first_gradient_is_the_trainers_on_the_same_rollouts(tmp_path, example):
    trainer = make_trainer(Case(start="full", steps=1), tmp_path)
    trainer.temperature = 1.0
    trainer.args.epsilon = trainer.epsilon_low = trainer.epsilon_high = example.CLIP
    trainer.scorer.score = lambda rollouts: [
        [StepReward(pseudo_reward(i, rollout, t), content=0.5) for t in range(len(rollout.steps))]
        for i, rollout in enumerate(rollouts)
    ]
    compare = Compare(trainer, example)
    trainer.add_callback(compare)
    trainer.train()
    assert compare.expected.norm() > 0.01
    assert (compare.gradient - compare.expected).norm() < 1e-4 * compare.expected.norm()


def test_it_is_short():
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250 and max(map(len, lines)) <= 100
