"""The weights that write a step's completions are those the last update left: by hash, by replay, and with every generator."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_resume import train

from memalpha.training import trainer as trainer_module
from memalpha.training.guards import ELEMENTS, fingerprint
from memalpha.training.trainer import MemoryGRPOTrainer


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "run"
    assert train(folder, "--eval_data", "") == 0
    return folder


def test_the_run_folder_names_the_weights_of_every_rollout(finished):
    left = [row["policy"] for row in rows(finished / "metrics.jsonl")]
    wrote = [{row["policy"] for row in rows(finished / "trajectories" / f"step-{step:06d}-rank-0.jsonl")} for step in (1, 2, 3, 4)]
    assert wrote[1:] == [{policy} for policy in left[:-1]]
    assert len({*left, *wrote[0]}) == 5


def test_the_hash_is_that_of_the_checkpoint(finished):
    from transformers import AutoModelForCausalLM

    for row in rows(finished / "metrics.jsonl"):
        folder = finished / f"checkpoint-{row['step']}"
        digest = hashlib.sha256()
        tensors = load_file(folder / "model.safetensors")
        for name, parameter in AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters():
            digest.update(f"{name} torch.float32 {tuple(parameter.shape)}".encode() + tensors[name].numpy().tobytes())
        assert digest.hexdigest()[:16] == row["policy"]


def test_a_checkpoint_draws_the_completions_of_the_next_step(finished, tmp_path, monkeypatch):
    """Replay: the saved weights, loaded into a fresh model, write step 3 again, word for word; those of step 1 do not."""
    from memalpha.agent.config import AgentConfig
    from memalpha.agent.rollout import run_rollouts
    from memalpha.agent.step import AgentStep
    from memalpha.data.load import load_data
    from memalpha.generation.hf import HFGenerator
    from memalpha.models import load_policy_model

    sampling: list = []
    real = MemoryGRPOTrainer._sampling
    monkeypatch.setattr(MemoryGRPOTrainer, "_sampling", lambda trainer: sampling.append(real(trainer)) or sampling[-1])
    assert train(tmp_path / "again", "--eval_data", "") == 0  # the seeds of the same run
    wanted = rows(finished / "trajectories" / "step-000003-rank-0.jsonl")
    instances = {instance.id: instance for instance in load_data("toy", {"n": 8, "split": "train"}, 1)}

    def written(step: int) -> list[list[str]]:
        policy = load_policy_model(str(finished / f"checkpoint-{step}"))
        agent = AgentStep(AgentConfig.load(finished / "adapter"), policy.tokenizer)
        generator = HFGenerator(policy.model, policy.tokenizer)
        rollouts = run_rollouts([instances[row["instance"]] for row in wanted], agent, generator, sampling[2])
        return [[record.completion.text for record in rollout.steps] for rollout in rollouts]

    expected = [[step["completion"] for step in row["steps"]] for row in wanted]
    assert written(2) == expected
    assert written(1) != expected


def test_a_generator_with_weights_of_its_own_is_found_out(tmp_path, monkeypatch):
    import copy

    class Stale(trainer_module.MemoryGRPOTrainer):
        def train(self, *args, **kwargs):
            self.generator.model = copy.deepcopy(self.generator.model)
            return super().train(*args, **kwargs)

    monkeypatch.setattr("memalpha.training.run.MemoryGRPOTrainer", Stale)
    with pytest.raises(RuntimeError, match="stale weights"):
        train(tmp_path / "run", "--eval_data", "")
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 1  # found before the second step


def test_trl_s_own_generation_draws_with_the_updated_weights(finished, tmp_path, monkeypatch):
    """The path that vLLM takes, with transformers behind it."""
    from memalpha.training import run as run_module

    real = run_module.MemoryGRPOTrainer
    seen: list[tuple[str, str]] = []

    class Watched(real):
        def __init__(self, **kwargs):
            super().__init__(**{**kwargs, "generator": None})

        def _generate_single_turn(self, *args, **kwargs):
            unwrapped = self.accelerator.unwrap_model(self.model_wrapped)
            seen.append((self.policy, fingerprint(unwrapped)))
            return super()._generate_single_turn(*args, **kwargs)

    monkeypatch.setattr(run_module, "MemoryGRPOTrainer", Watched)
    assert train(tmp_path / "run", "--eval_data", "") == 0
    assert len(seen) >= 4 and all(left == held for left, held in seen)
    assert len({held for _, held in seen}) == 4


def test_the_fingerprint_sees_every_change_that_an_optimizer_makes():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Embedding(2, ELEMENTS))
    first = fingerprint(model)
    assert fingerprint(model) == first
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    second = fingerprint(model)
    assert second != first
    model[0].weight.data[1, 2] += 1e-6
    third = fingerprint(model)
    assert third != second
    model[0].weight.requires_grad_(False)
    frozen = fingerprint(model)
    model[0].weight.data[1, 2] += 1
    assert fingerprint(model) == frozen != third
