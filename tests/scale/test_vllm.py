"""Full fine-tuning with rollouts drawn through TRL's ``use_vllm``, against a stub of its client:
one process here, two by torchrun.

torchrun --nproc_per_node 2 tests/scale/test_vllm.py OUT.json
"""

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from unittest import mock

import gradient_check
import pytest
import torch
from accelerate.utils import gather_object
from gradient_check import GROUP, LONGEST, Case, make_base
from sharded_on_cpus import cpus_as_accelerators, is_shard
from trl.generation import vllm_generation

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.types import Prompt, Sampling

ROOT = Path(__file__).parents[2]
FILLER = [2]


class StubClient:
    """TRL's client and the server behind it: takes weights under the names, types and shapes
    announced, and draws with them."""

    def __init__(self, **_):
        model = make_base("llama").eval()
        for parameter in model.parameters():
            parameter.data.mul_(0.5)  # a start that the first push must replace
        self.own, self.generator = (
            dict(model.named_parameters()),
            HFGenerator(model, gradient_check.tokenizer(), logprobs=True),
        )
        self.pushes, self.asked, self.resets = [], [], 0

    def init_communicator(self, device):
        assert not self.pushes

    def update_named_params(self, metadata, named):
        self.pushes.append({})
        for (name, dtype, shape), (sent, tensor) in zip(metadata, named, strict=True):
            assert (sent, str(tensor.dtype), list(tensor.shape)) == (name, f"torch.{dtype}", shape)
            assert tensor.shape == self.own[name].shape
            self.pushes[-1][name] = tensor.detach().clone()
            self.own[name].data.copy_(tensor)

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def reset_prefix_cache(self):
        self.resets += 1

    def generate(self, prompts, features, **asked):
        assert all(isinstance(i, int) for ids in prompts for i in ids) and all(prompts)
        self.asked.append((prompts, asked))
        sampling = Sampling(
            asked["max_tokens"],
            asked["temperature"],
            asked["top_p"],
            asked["top_k"],
            seed=len(self.asked),
        )
        made = self.generator.generate([Prompt((), tuple(ids)) for ids in prompts], sampling)
        ids, logprobs = (
            [list(one.ids) for one in made],
            [[[value] for value in one.logprobs] for one in made],
        )
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": logprobs}


def make_trainer(folder, steps, start="full"):
    """A trainer whose ``seen`` has the (weights, rollouts) of each batch."""
    with mock.patch.multiple(
        vllm_generation, VLLMClient=StubClient, is_vllm_available=lambda *_, **__: True
    ):
        case = Case(start=start, generator="trl", steps=steps)
        made = gradient_check.make_trainer(case, folder, use_vllm=True)
    made.seen = []

    def watch(rollouts, rows, rewards):
        weights = made.accelerator.unwrap_model(made.model).named_parameters()
        made.seen.append(
            ({name: parameter.detach().clone() for name, parameter in weights}, rollouts)
        )

    made.on_rollouts = watch
    return made


def differences(trainer):
    return [
        log["sampling/sampling_logp_difference/max"]
        for log in trainer.state.log_history
        if "loss" in log
    ]


def test_every_batch_is_drawn_with_the_weights_just_updated_from_token_ids(tmp_path):
    trainer = make_trainer(tmp_path, 3)
    trainer.train()
    server = trainer.vllm_generation.vllm_client
    assert len(server.pushes) == len(trainer.seen) == server.resets == 3
    for push, (weights, _) in zip(server.pushes, trainer.seen, strict=True):
        assert push.keys() == weights.keys() and all(
            torch.equal(push[name], weights[name]) for name in push
        )
    assert (
        min(max(float((a[n] - b[n]).abs().max()) for n in a) for a, b in pairwise(server.pushes))
        > 1e-3
    )
    assert max(differences(trainer)) < 1e-4
    asked = []
    for _, rollouts in trainer.seen:
        for t in range(max(len(rollout.steps) for rollout in rollouts)):
            asked.append([list(r.steps[t].prompt.ids) for r in rollouts if len(r.steps) > t])
    assert [prompts for prompts, _ in server.asked] == asked
    wanted = {
        "n": 1,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": LONGEST,
        "logprobs": 0,
        "min_p": 0.0,
    }
    for _, sampling in server.asked:
        assert {name: sampling[name] for name in wanted} == wanted and not sampling[
            "generation_kwargs"
        ]
    # held-out rollouts have sampling parameters of their own
    done = len(server.asked)
    trainer.run_rollouts(trainer.instances[:2], Sampling(5, 0.0))
    assert {(s["temperature"], s["max_tokens"]) for _, s in server.asked[done:]} == {(0.0, 5)}
    assert trainer.vllm_generation.temperature == 0.9


def test_adapters_are_refused(tmp_path):
    with pytest.raises(InputError, match="vllm_urls"):
        make_trainer(tmp_path, 1, start="warm")


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
FSDP2 = [
    "accelerate.commands.launch",
    "--config_file",
    "configs/accelerate/fsdp2.yaml",
    "--num_processes",
    "2",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [TORCHRUN, [*FSDP2, "--mixed_precision", "no"]], ids=["ddp", "fsdp2"]
)
def test_two_ranks_ask_in_step_and_each_gets_its_own(launcher, tmp_path):
    out = tmp_path / "out.json"
    paths = os.pathsep.join(map(str, [ROOT, ROOT / "tests/training", ROOT / "tests/scale"]))
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_TORCH_DEVICE": "cpu",
    }
    command = [sys.executable, "-m", *launcher, "tests/scale/test_vllm.py", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert out.is_file(), done.stderr[-3000:]
    found = json.loads(out.read_text())
    chunks = [[len(rollout) for rollout in rank["prompts"]] for rank in found["ranks"]]
    assert sum(chunks[0][2 : 2 + GROUP]) != sum(chunks[1][2 : 2 + GROUP]), (
        "equally many chunks would not show who waits for whom"
    )
    for sent in found["sent"]:
        half = len(sent) // 2
        for rank, part in zip(found["ranks"], (sent[:half], sent[half:]), strict=True):
            own = [ids for rollout in rank["prompts"] for ids in rollout]
            assert all(prompt in own for prompt in part if prompt != FILLER)
    assert sum(prompt != FILLER for sent in found["sent"] for prompt in sent) == sum(
        map(sum, chunks)
    )
    assert (
        found["pushes"] == 2
    )  # before the held-out rollouts, which come first, and after the first step
    assert (
        max(max(rank["difference"]) for rank in found["ranks"]) < 1e-4
    )  # a completion of another rank's prompt would be off


def main(out):
    cpus_as_accelerators()
    rank = int(os.environ["RANK"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, 2)
        rollouts = trainer.run_rollouts(trainer.instances[rank::2], Sampling(5))
        trainer.train()
    assert any(map(is_shard, trainer.model.parameters())) == ("ACCELERATE_USE_FSDP" in os.environ)
    for _, drawn in trainer.seen:
        rollouts += drawn
    mine = [[list(step.prompt.ids) for step in rollout.steps] for rollout in rollouts]
    gathered = gather_object([{"prompts": mine, "difference": differences(trainer)}])
    if rank == 0:
        server = trainer.vllm_generation.vllm_client
        sent = [prompts for prompts, _ in server.asked]
        Path(out).write_text(
            json.dumps({"ranks": gathered, "sent": sent, "pushes": len(server.pushes)})
        )
    torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo sometimes aborts in its static destructors, after all work is done
