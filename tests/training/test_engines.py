"""A generator with weights of its own draws with each step's adapter, awake only while it draws."""

import json
from contextlib import contextmanager

import pytest

from memalpha.cli import run
from memalpha.generation.hf import HFGenerator
from memalpha.models import load_policy_model
from memalpha.training import build
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.training.weights import adapter_name
from tests.helpers.runs_of_nano import ROOT

LORA = [
    *("--config", str(ROOT / "configs" / "train" / "nano.yaml")),
    *"--full_finetuning false --warm_start_steps 0 --max_steps 3".split(),
    *"--per_device_train_batch_size 8 --max_completion_length 8".split(),
    *("--train_options", "{n: 8, split: train}", "--eval_options", "{n: 2, split: test}"),
]


class Engine:
    """Draws with what is in an adapter's folder, by transformers; notes what happens."""

    logprobs = True
    concurrent = False

    def __init__(self):
        self.events, self.loaded, self.awakened = [], [], False

    @contextmanager
    def awake(self):
        self.awakened = True
        yield
        self.awakened = False

    def load(self, name, folder):
        assert self.awakened
        self.events.append("load")
        self.loaded.append((name, folder))
        self.model, self.tokenizer = load_policy_model("nano", adapter=folder)

    def use(self, name, folder):
        assert (folder / "adapter_model.safetensors").is_file()

    def generate(self, prompts, sampling):
        assert self.awakened
        self.events += ["draw"] if self.events[-1] != "draw" else []
        drawn = HFGenerator(self.model, self.tokenizer, logprobs=True)
        return drawn.generate(prompts, sampling)


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    right = MemoryGRPOTrainer._keep_step

    def keep_step(self, model, loss):
        assert not made.awakened
        made.events.append("update")
        for parameter in model.parameters():  # nano gets no reward, and so no gradient
            if parameter.requires_grad:
                parameter.data += 0.02
        return right(self, model, loss)

    monkeypatch.setattr(MemoryGRPOTrainer, "_keep_step", keep_step)
    monkeypatch.setattr(build, "make_generator", lambda *_: made)
    return made


def test_each_step_draws_with_its_own_adapter_and_the_engine_sleeps_while_it_updates(
    engine, tmp_path
):
    assert run(["train", *LORA, "--output_dir", str(tmp_path / "run")]) == 0
    # the first is that of the measurement before, too; the last that of the one after
    assert engine.events == [*["load", "draw", "update"] * 3, "load", "draw"]
    assert all(name == folder.name for name, folder in engine.loaded)
    assert len(set(engine.loaded)) == 4
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    gaps = [json.loads(line)["sampling/sampling_logp_difference/max"] for line in lines]
    assert len(gaps) == 3 and max(gaps) < 1e-4


def test_a_saved_adapter_is_measured_not_its_base(engine, tmp_path):
    none = ["--eval_data", "", "--max_steps", "1"]
    assert run(["train", *LORA, *none, "--output_dir", str(tmp_path / "run")]) == 0
    adapter = tmp_path / "run" / "adapter"
    engine.events.clear()
    measured = ["--adapter", str(adapter), "--output_dir", str(tmp_path / "rollouts")]
    assert run(["rollout", *LORA, *measured]) == 0
    assert engine.events == ["load", "draw"]
    assert engine.loaded[-1] == (adapter_name(adapter), adapter)
