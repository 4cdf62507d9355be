"""One policy: log-probabilities kept of what is drawn are those the update computes; what rounding
leaves is a weight of the loss.

Each run trains a random LoRA policy for one real step of 1e-4 and looks at what the second step
draws. In float32 both sides agree. In 16 bits every product is rounded; their difference is
compared with the adapter's effect (log-probabilities minus the base's).
"""

import os
import sys
from pathlib import Path

import pytest
import torch

from memalpha.training.build import build_components
from memalpha.training.config import parse_train_arguments
from memalpha.training.run import build_trainer
from tests.helpers.gradient_check import make_base, pseudo_reward, tokenizer
from tests.helpers.runs_of_nano import two

PRECISIONS = {
    "float32": [],
    "weights in 16 bits": ["--dtype", "bfloat16"],
    "products in 16 bits": ["--bf16", "true"],
}
OPTIONS = [
    "--config",
    "configs/train/nano.yaml",
    "--eval_data",
    "",
    "--full_finetuning",
    "false",
    "--warm_start_steps",
    "0",
    "--max_steps",
    "2",
    "--save_strategy",
    "no",
    "--learning_rate",
    "1e-4",
    "--temperature",
    "0.8",
]


def after_a_step(base, precision, merge=None):
    """Return of each token drawn: its log-probability as kept, by the update, by the update without
    adapter; its weight."""
    arguments = parse_train_arguments(
        [*OPTIONS, "--model", str(base), "--output_dir", str(base / "run"), *PRECISIONS[precision]]
    )
    parts = build_components(arguments)
    parts.generator.logprobs |= precision == "float32"  # exact, so not kept otherwise
    parts.generator.merge_adapters = parts.generator.merge_adapters if merge is None else merge
    trainer = build_trainer(arguments, parts)
    trainer.scorer.score = lambda rollouts: [
        [pseudo_reward(i, r, t) for t in range(len(r.steps))] for i, r in enumerate(rollouts)
    ]
    trainer.train()
    (batch,) = trainer.update_batches
    with torch.no_grad(), trainer.model.disable_adapter():
        of_base = trainer._logps(trainer.model, batch.rows)
    tokens = [
        (torch.tensor(row.sampled), row.old, scores.logps, row.weight)
        for row, scores in zip(batch.rows, of_base, strict=True)
    ]
    return [torch.cat(column) for column in zip(*tokens, strict=True)]


def check(precision, sampled, trained, base, weight):
    gap, effect = trained - sampled, trained - base
    assert len(gap) > 200 and effect.square().mean().sqrt() > 0.005
    torch.testing.assert_close(weight, gap.exp().clamp(max=2.0))
    assert (weight.mean() - 1).abs() < 5 * weight.std() / len(
        gap
    ) ** 0.5 + 1e-5  # kept are those it was drawn by
    if precision == "float32":
        assert gap.abs().max() < 1e-4  # 4e-6 measured
    else:  # measured: .34 to .42 and .91 to .94 (four seeds); merged and rounded .98 and .49
        correlation = torch.corrcoef(torch.stack([sampled - base, effect]))[0, 1]
        assert gap.norm() < 0.65 * effect.norm() and correlation > 0.75, (
            "the adapter's effect is lost"
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "base"
    make_base("qwen3").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_drawn_comes_from_the_policy_that_is_trained(base, precision):
    check(precision, *after_a_step(base, precision))
    if precision == "float32":  # that was merged
        check(precision, *after_a_step(base, precision, merge=False))
    elif precision == "products in 16 bits":  # the fault: merged and rounded
        with pytest.raises(AssertionError, match="effect is lost"):
            check(precision, *after_a_step(base, precision, merge=True))


def test_on_two_processes_as_well(base):
    done = two(__file__, str(base))
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    for name in PRECISIONS:
        check(name, *after_a_step(Path(sys.argv[1]), name))
    torch.distributed.barrier()
    os._exit(0)  # gloo sometimes aborts in its static destructors, after all work is done
