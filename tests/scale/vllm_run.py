"""A short training run whose rollouts are drawn by the stub of a vLLM server; also on two processes, for tests.

torchrun --nproc_per_node 2 tests/scale/vllm_run.py OUT.json
"""

import copy
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import gradient_check
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from gradient_check import GROUP, LONGEST, Case, KeepingAgent, PseudoScorer, make_base, make_instances, make_policy
from sharded_on_cpus import cpus_as_accelerators
from transformers import PrinterCallback
from vllm_stub import VLLMStub, install

from memalpha.agent.config import AgentConfig
from memalpha.training.config import MemoryGRPOConfig, RunOptions
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.types import Sampling

TEMPERATURE, TOP_P, TOP_K = 0.9, 1.0, 0


@dataclass
class Watched:
    """What a run did, as seen from the trainer."""

    weights: list = field(default_factory=list)  # merged weights when each batch of rollouts was drawn, by name
    rollouts: list = field(default_factory=list)  # of this rank, a list a step
    trainer: MemoryGRPOTrainer | None = None

    def watch(self, rollouts, rows, rewards):
        self.weights.append(merged_by_hand(self.trainer.accelerator.unwrap_model(self.trainer.model)))
        self.rollouts.append(rollouts)


def merged_by_hand(policy):
    """The base weights plus alpha / r times B A, in plain tensor arithmetic."""
    state = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    merged = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        stem = name.removesuffix(".base_layer.weight")
        if stem != name:
            scale = gradient_check.LORA["lora_alpha"] / gradient_check.LORA["r"]
            tensor = tensor + scale * state[f"{stem}.lora_B.default.weight"] @ state[f"{stem}.lora_A.default.weight"]
        merged[name.removeprefix("base_model.model.").replace(".base_layer", "")] = tensor
    return merged


def make_run(folder, steps=3, **vllm):
    """A trainer whose completions come from vLLM; patch TRL before."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    arguments = MemoryGRPOConfig(
        output_dir=str(folder), use_cpu=not sharded(), num_generations=GROUP, per_device_train_batch_size=2 * GROUP // world,
        max_steps=steps, max_completion_length=LONGEST, learning_rate=1e-2, lr_scheduler_type="constant",
        temperature=TEMPERATURE, top_p=TOP_P, top_k=TOP_K, save_strategy="no", seed=3, use_vllm=True, **vllm,
    )  # fmt: skip
    instances, tokenizer = make_instances(), gradient_check.tokenizer()
    config = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=64, view_tokens=64, max_completion_length=LONGEST)
    watched = Watched()
    watched.trainer = MemoryGRPOTrainer(
        model=make_policy(Case()), args=arguments, processing_class=tokenizer, agent=KeepingAgent(config, tokenizer),
        train_dataset=Dataset.from_list([{"prompt": "", "instance": i} for i in range(len(instances))]), instances=instances,
        generator=None, scorer=PseudoScorer(), options=RunOptions(rows_per_forward=3),
    )  # fmt: skip
    watched.trainer.on_rollouts = watched.watch
    watched.trainer.remove_callback(PrinterCallback)
    return watched


def sharded():
    return "ACCELERATE_USE_FSDP" in os.environ


def served_model():
    """What the server loaded: the base model, from a random start that the first push must replace."""
    model = copy.deepcopy(make_base("llama"))
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    return model


def main(out):
    rank = int(os.environ["RANK"])
    cpus_as_accelerators()
    stub = VLLMStub(served_model(), gradient_check.tokenizer()) if rank == 0 else None
    install(lambda *change: mock.patch.object(*change, create=True).start(), stub.wire if stub else None)
    with tempfile.TemporaryDirectory() as folder:
        url = stub.url if stub else "http://127.0.0.1:1"  # only rank 0 asks
        watched = make_run(folder, steps=2, vllm_mode="server", vllm_server_base_url=url)
        watched.trainer.on_rollouts = lambda rollouts, rows, rewards: watched.rollouts.append(rollouts)
        watched.rollouts.append(watched.trainer.run_rollouts(watched.trainer.instances[rank::2], Sampling(5)))
        watched.trainer.train()
    assert any(hasattr(p, "to_local") for p in watched.trainer.model.parameters()) == sharded()
    mine = [[list(step.prompt.ids) for step in rollout.steps] for rollouts in watched.rollouts for rollout in rollouts]
    logs = [log for log in watched.trainer.state.log_history if "loss" in log]
    gathered = gather_object([{"prompts": mine, "difference": [log["sampling/sampling_logp_difference/max"] for log in logs]}])
    if stub:
        sent = [body["prompt"] for body in stub.completions()]
        Path(out).write_text(json.dumps({"ranks": gathered, "sent": sent, "pushes": len(stub.served.pushes)}))
    torch.distributed.barrier()


if __name__ == "__main__":
    os.environ["no_proxy"] = "127.0.0.1"
    main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo sometimes aborts in its static destructors, after all work is done
