"""vLLM through TRL's own client and engine calls, against stubs: fresh weights, token ids, equal counts, sampling parameters."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import gradient_check
import pytest
import torch
import vllm_run
from gradient_check import GROUP, LONGEST, Case, make_policy
from vllm_stub import StubLLM, StubModel, VLLMStub, install

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(monkeypatch):
    made = []

    def start(stale=False, stateful=True):
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        stub = VLLMStub(vllm_run.served_model(), gradient_check.tokenizer(), stale)
        install(lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False), stub.wire, stateful)
        made.append(stub)
        return stub

    yield start
    for stub in made:
        stub.close()


def run(stub, folder, **options):
    watched = vllm_run.make_run(folder, vllm_mode="server", vllm_server_base_url=stub.url, **options)
    watched.trainer.train()
    return watched


def steps_of(watched):
    return [log for log in watched.trainer.state.log_history if "loss" in log]


@pytest.mark.parametrize("stateful", [True, False], ids=["vllm 0.28 on", "vllm before"])
def test_every_batch_is_drawn_with_the_weights_just_updated_from_token_ids(server, tmp_path, stateful):
    stub = server(stateful=stateful)
    watched = run(stub, tmp_path)
    pushes = stub.served.pushes
    assert len(pushes) == len(watched.weights) == stub.resets == 3  # one hand-over a step, and cached prefixes forgotten
    for push, expected in zip(pushes, watched.weights, strict=True):
        assert push.keys() == expected.keys() - {"lm_head.weight"}  # tied
        assert max(float((push[name] - expected[name]).abs().max()) for name in push) < 1e-6
    moved = [max(float((a[n] - b[n]).abs().max()) for n in a) for a, b in pairwise(pushes)]
    assert min(moved) > 1e-3
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps_of(watched)) < 1e-4
    joined = {"master_address": "127.0.0.1", "master_port": 51216, "rank_offset": 1, "world_size": 2}
    assert stub.group == joined | ({"packed": True} if stateful else {})
    # the base weights stay bitwise
    before, after = make_policy(Case()).state_dict(), watched.trainer.model.state_dict()
    base = [name for name in before if ".lora_" not in name]
    assert len(base) > 10 and [name for name in base if not torch.equal(before[name], after[name])] == []
    # prompts arrive as token ids, with the sampling parameters
    bodies, expected = stub.completions(), []
    for rollouts in watched.rollouts:
        for t in range(max(len(rollout.steps) for rollout in rollouts)):
            expected.append([list(r.steps[t].prompt.ids) for r in rollouts if len(r.steps) > t])
    assert [body["prompt"] for body in bodies] == expected
    for body in bodies:
        wanted = {"n": 1, "temperature": 0.9, "top_p": 1.0, "top_k": 0, "max_tokens": LONGEST, "logprobs": 0, "min_p": 0.0}
        assert {name: body[name] for name in wanted} == wanted
        assert "seed" not in body  # equal prompts must draw different completions
    first = [r.steps[0].completion.ids for r in watched.rollouts[0][:GROUP]]
    assert len(set(first)) > 1


def test_a_server_with_stale_weights_is_seen_in_the_metrics(server, tmp_path):
    watched = run(server(stale=True), tmp_path)
    assert min(step["sampling/sampling_logp_difference/max"] for step in steps_of(watched)) > 0.1


def test_held_out_rollouts_have_sampling_parameters_of_their_own(server, tmp_path):
    from memalpha.types import Sampling

    stub = server()
    watched = vllm_run.make_run(tmp_path, vllm_mode="server", vllm_server_base_url=stub.url)
    watched.trainer.run_rollouts(watched.trainer.instances[:2], Sampling(5, 0.0))
    assert [(b["temperature"], b["max_tokens"]) for b in stub.completions()] == [(0.0, 5)] * 3
    assert watched.trainer.vllm_generation.temperature == 0.9


def test_colocated_vllm_takes_the_same_weights_and_prompts(monkeypatch, tmp_path):
    from trl.generation import vllm_generation

    engines = []

    def engine(**options):
        engines.append(StubLLM(StubModel(vllm_run.served_model(), gradient_check.tokenizer()), **options))
        return engines[-1]

    for name, value in {"is_vllm_available": lambda *_, **__: True, "LLM": engine, "SamplingParams": dict}.items():
        monkeypatch.setattr(vllm_generation, name, value, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # TRL sets them for the engine
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    settings = {"vllm_gpu_memory_utilization": 0.25, "vllm_max_model_length": 512, "vllm_tensor_parallel_size": 1}
    watched = vllm_run.make_run(tmp_path, steps=2, vllm_mode="colocate", **settings)
    watched.trainer.train()
    (llm,) = engines
    asked = ("gpu_memory_utilization", "max_model_len", "tensor_parallel_size", "max_num_seqs", "logprobs_mode")
    assert [llm.options[name] for name in asked] == [0.25, 512, 1, 2 * GROUP, "processed_logprobs"]
    assert len(llm.served.pushes) == len(watched.weights) == llm.resets == 2
    for push, expected in zip(llm.served.pushes, watched.weights, strict=True):
        assert max(float((push[name] - expected[name]).abs().max()) for name in push) < 1e-6
    prompts, sampling = llm.calls[0]
    assert [p["prompt_token_ids"] for p in prompts] == [list(r.steps[0].prompt.ids) for r in watched.rollouts[0]]
    assert {name: sampling[name] for name in ("n", "temperature", "max_tokens")} == {
        "n": 1,
        "temperature": 0.9,
        "max_tokens": LONGEST,
    }
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps_of(watched)) < 1e-4


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
FSDP2 = ["accelerate.commands.launch", "--config_file", "configs/accelerate/fsdp2.yaml", "--num_processes", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [TORCHRUN, [*FSDP2, "--mixed_precision", "no"]], ids=["ddp", "fsdp2"])
def test_two_ranks_ask_in_step_and_each_gets_its_own(launcher, tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", *launcher, "tests/scale/vllm_run.py", str(out)]
    paths = [ROOT, ROOT / "tests/training", ROOT / "tests/scale"]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1", "ACCELERATE_TORCH_DEVICE": "cpu"}
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert out.is_file(), done.stderr[-3000:]
    found = json.loads(out.read_text())
    ranks, filler = found["ranks"], [2]
    chunks = [[len(rollout) for rollout in rank["prompts"]] for rank in ranks]
    assert sum(chunks[0][2 : 2 + GROUP]) != sum(chunks[1][2 : 2 + GROUP]), "equally many chunks would not show who waits for whom"
    for sent in found["sent"]:
        half = len(sent) // 2
        for rank, part in zip(ranks, (sent[:half], sent[half:]), strict=True):
            own = [prompt for prompt in part if prompt != filler]
            assert all(prompt in [ids for rollout in rank["prompts"] for ids in rollout] for prompt in own)
    asked = sum(prompt != filler for sent in found["sent"] for prompt in sent)
    assert asked == sum(map(sum, chunks))
    assert found["pushes"] == 2  # before the held-out rollouts, which come first, and after the first step
    assert max(max(rank["difference"]) for rank in ranks) < 1e-4  # a completion of another rank's prompt would be off
