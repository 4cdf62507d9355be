"""Training in float16, on the CPU: Accelerate makes no scaler there, so these tests give it one.

As a script, on two processes: one of them sees an infinite gradient, and both skip the step.
"""

import os
import shutil
import tempfile
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from memalpha.errors import InputError, MemAlphaError
from memalpha.generation.hf import HFGenerator
from memalpha.training.build import resolve_dtype
from memalpha.training.config import RunOptions, parse_train_arguments
from memalpha.training.run import choose_dtype
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.training.warm_start import WarmupTrainer
from memalpha.types import Prompt, Sampling, silent
from tests.helpers.gradient_check import Case, Check, make_base, make_trainer, tokenizer
from tests.helpers.runs_of_nano import SHORT, assert_same_end, train, two, untimed_metrics
from tests.training import test_same_policy
from tests.training.test_faults import optimizer_steps, spoil

FLOAT16 = [*SHORT, "--fp16", "true"]
COLD = [*FLOAT16, "--warm_start_steps", "0", "--save_strategy", "no", "--max_steps", "6"]


BEGIN = Accelerator.__init__


def with_scaler(accelerator, *args, **options):
    BEGIN(accelerator, *args, **options)
    if accelerator.mixed_precision == "fp16":
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")


@pytest.fixture
def scaled(monkeypatch):
    """Has Accelerate compute in float16 and scale the loss on the CPU as it does on a GPU."""
    monkeypatch.setattr(Accelerator, "__init__", with_scaler)


def scales(folder):
    return [(row["skipped"], row["loss_scale"]) for row in untimed_metrics(folder)]


def test_an_infinite_gradient_halves_the_scale_changes_no_weight_and_a_resumed_run_knows(
    tmp_path, monkeypatch, scaled
):
    spoil(monkeypatch, "gradient", 2)
    run = tmp_path / "run"
    assert train(run, *FLOAT16) == 0
    assert scales(run) == [(0, 65536), (1, 65536), (0, 32768), (0, 32768)]
    weights = [
        (run / f"checkpoint-{step}" / "model.safetensors").read_bytes() for step in (1, 2, 3)
    ]
    assert weights[0] == weights[1] != weights[2]
    assert [optimizer_steps(run, step) for step in (1, 2, 3)] == [{1.0}, {1.0}, {2.0}]
    resumed = tmp_path / "resumed"
    shutil.copytree(run, resumed, ignore=shutil.ignore_patterns("checkpoint-3", "checkpoint-4"))
    assert train(resumed, *FLOAT16, "--resume") == 0
    assert_same_end(resumed, run)


@pytest.mark.parametrize(
    ("high", "code", "skipped"),
    [
        # gradients fit from this scale on: 5 halvings, before any step was taken, are no failure
        ({1: 2048, 2: 2048, 3: 2048, 4: 2048, 5: 2048}, 0, [1, 1, 1, 1, 1, 0]),
        ({2: 1, 3: 1, 4: 1, 5: 1, 6: 1}, 1, [0, 1, 1]),  # later they are, with at most 2 in a row
    ],
    ids=["at the start", "later"],
)
def test_a_scale_that_is_looked_for_is_no_failure(
    tmp_path, monkeypatch, capsys, scaled, high, code, skipped
):
    real = MemoryGRPOTrainer._keep_step

    def overflowing(trainer, model, loss):
        fits = high.get(trainer.state.global_step + 1)
        if fits and trainer.accelerator.scaler.get_scale() > fits:
            next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[7] = torch.inf
        return real(trainer, model, loss)

    monkeypatch.setattr(MemoryGRPOTrainer, "_keep_step", overflowing)
    assert train(tmp_path / "run", *COLD, "--max_skipped_steps", "2") == code
    found = scales(tmp_path / "run")
    assert [row[0] for row in found] == skipped
    if code:
        assert "step 4: loss or gradient is not finite at loss scale 16384" in (
            capsys.readouterr().err
        )
    else:
        assert [row[1] for row in found] == [65536, 32768, 16384, 8192, 4096, 2048]


def test_a_loss_that_is_not_finite_is_a_failure_from_the_start(tmp_path, monkeypatch, scaled):
    spoil(monkeypatch, "loss", 1, 2, 3)
    assert train(tmp_path / "run", *COLD, "--max_skipped_steps", "2") == 1
    assert len(scales(tmp_path / "run")) == 2


def test_a_warm_start_that_finds_no_scale_ends(tmp_path, monkeypatch, capsys, scaled):
    def not_finite(trainer, *args, **more):
        return trainer.model.get_input_embeddings().weight.sum() * torch.nan

    monkeypatch.setattr(WarmupTrainer, "compute_loss", not_finite)
    assert train(tmp_path / "run", *FLOAT16) == 1
    said = capsys.readouterr()
    assert "overflows float16 at a loss scale of 1" in said.err
    assert "warm start step 15/40" in said.out and "step 20/40" not in said.out  # 17 halvings


def test_the_gradient_is_that_of_float32_rounded(tmp_path, scaled):
    case = Case("dapo", beta=0.1, iterations=2)
    made = make_trainer(case, tmp_path, fp16=True)
    callback = Check(case, made)
    made.add_callback(callback)
    made.on_batch = callback.on_batch
    made.train()
    assert 1e-5 < max(callback.report.errors) < 0.02  # by hand in float32; not scaled any more


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_drawn_comes_from_the_policy_that_is_trained(tmp_path, monkeypatch, scaled, dtype):
    base = tmp_path / "base"
    make_base("qwen3").save_pretrained(base)
    tokenizer().save_pretrained(base)
    options = ["--dtype", dtype, "--fp16", "true"]
    monkeypatch.setitem(test_same_policy.PRECISIONS, "float16", options)
    sampled, trained, of_base, weight = test_same_policy.after_a_step(base, "float16")
    test_same_policy.check("float16", sampled, trained, of_base, weight)
    assert (trained - sampled).norm() < 0.2 * (trained - of_base).norm()  # bfloat16: .34 to .42


def test_an_overflow_while_drawing_is_an_error_and_no_text():
    model = make_base("qwen3").half()
    generator = HFGenerator(model, tokenizer())
    prompts = [Prompt((), (5, 6, 7))]
    assert len(generator.generate(prompts, Sampling(4))) == 1
    model.model.layers[0].mlp.down_proj.weight.data.fill_(torch.finfo(torch.float16).max)
    with pytest.raises(MemAlphaError, match=r"not finite in torch.float16"):
        generator.generate(prompts, Sampling(4))


def test_two_processes_skip_alike():
    done = two(__file__)
    assert done.stdout.count("as expected") == 2, done.stderr[-3000:]


def skip_on_two_processes(folder):
    made = make_trainer(Case(steps=3), folder, fp16=True)
    keep = made._keep_step
    weights = []

    def spoilt(model, loss):
        weights.append([p.detach().clone() for p in model.parameters() if p.requires_grad])
        if made.state.global_step == 1 and made.accelerator.process_index == 1:
            next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[7] = torch.inf
        return keep(model, loss)

    made._keep_step = spoilt
    made.train()
    rows = [row for row in made.state.log_history if "loss_scale" in row]
    found = [(row["skipped"], row["loss_scale"]) for row in rows]
    assert found == [(0, 65536), (1, 65536), (0, 32768)]
    same = [all(map(torch.equal, before, after)) for before, after in pairwise(weights)]
    assert same == [False, True]
    digests = gather_object([sum(float(p.double().sum()) for p in weights[-1])])
    assert digests[0] == digests[1]
    print("as expected", flush=True)


# ------------------------------------------------------------------------------------------------
# which type is taken, and what is refused
def give_gpu(monkeypatch, native, capability):
    def supported(including_emulation=True):
        return including_emulation or native

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


@pytest.mark.parametrize(
    ("native", "capability", "expected"),
    [
        (False, (7, 5), "float16"),  # T4
        (False, (7, 0), "float16"),  # V100
        (False, (6, 1), "float32"),  # computes float16 slowly
        (True, (8, 0), "bfloat16"),
    ],
)
def test_auto_takes_float16_where_a_gpu_has_no_bfloat16(monkeypatch, native, capability, expected):
    give_gpu(monkeypatch, native, capability)
    options = RunOptions(dtype="auto")
    assert resolve_dtype(options, torch.device("cuda"))[0].dtype == expected
    full = replace(options, full_finetuning=True)
    assert resolve_dtype(full, torch.device("cuda"))[0].dtype == "float32"


def test_a_run_that_takes_float16_computes_in_it(monkeypatch):
    give_gpu(monkeypatch, False, (7, 5))
    given = parse_train_arguments(["--use_cpu", "true", "--dtype", "auto"])
    # the arguments are made as on a CPU; their device is then a T4
    monkeypatch.setattr(type(given.trl_arguments), "device", torch.device("cuda"))
    chosen, _ = choose_dtype(given, silent)
    assert chosen.run.dtype == "float16" and chosen.trainer.fp16
    assert chosen.trl_arguments.fp16 and chosen.trl_arguments.mixed_precision == "fp16"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fp16", "true"], "fp16 is set on a CPU"),
        (["--dtype", "float16"], "dtype is float16, but fp16 is not set"),
        (["--dtype", "float16", "--bf16", "true"], "dtype is float16, but fp16 is not set"),
        (["--dtype", "bfloat16", "--fp16", "true"], "dtype is bfloat16, but fp16 is set"),
        (["--bf16", "true", "--fp16", "true"], "bf16 and fp16"),
    ],
)
def test_float16_without_a_scaled_loss_is_refused(tmp_path, capsys, options, said):
    lora = ["--full_finetuning", "false", "--warm_start_steps", "0", *SHORT]
    assert train(tmp_path / "run", *lora, *options) == 1
    assert said in capsys.readouterr().err


def test_a_warm_start_is_refused_alike(tmp_path, capsys):
    assert train(tmp_path / "run", *SHORT, "--fp16", "true") == 1
    assert "fp16 is set on a CPU" in capsys.readouterr().err
    with pytest.raises(InputError, match="fp16 is set on a CPU"):
        make_trainer(Case(), tmp_path, fp16=True)


if __name__ == "__main__":
    Accelerator.__init__ = with_scaler
    with tempfile.TemporaryDirectory() as place:
        skip_on_two_processes(place)
    torch.distributed.barrier()
    os._exit(0)  # gloo sometimes aborts in its static destructors, after all work is done
