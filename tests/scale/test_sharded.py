"""FSDP2 and DeepSpeed on two CPU processes end where DDP ends: same completions, same weights. What
cannot work is refused."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
from accelerate.commands import launch as launcher
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from safetensors.torch import load_file

from memalpha.errors import InputError
from memalpha.training.weights import Sharding, check_sharding

ROOT = Path(__file__).parents[2]
OPTIONS = [
    "train",
    "--config",
    "configs/train/nano.yaml",
    "--max_steps",
    "2",
    "--save_steps",
    "1",
    "--eval_instances",
    "5",
    "--per_device_train_batch_size",
    "8",
    "--rows_per_forward",
    "4",
]
DRIVER = "tests/helpers/sharded_on_cpus.py"
LORA = ["--full_finetuning", "false", "--lora_r", "4", "--learning_rate", "1e-2"]
DEEPSPEED = ROOT / ".venv-deepspeed" / "bin" / "python"
needs_deepspeed = pytest.mark.skipif(
    not DEEPSPEED.exists(), reason="no .venv-deepspeed: bash scripts/install_deepspeed.sh"
)


def launch(config, *command, **environment):
    """Run a command on two CPU processes by one of ``configs/accelerate``, or a file of its own."""
    path = Path(config) if isinstance(config, Path) else ROOT / f"configs/accelerate/{config}.yaml"
    command = [
        str(DEEPSPEED) if "DEEPSPEED" in path.read_text() else sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        path,
        "--num_processes",
        "2",
        "--mixed_precision",
        "no",
        "--main_process_port",
        "0",
        *command,
    ]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
    }
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def train(config, folder, warm=None):
    """Train all weights, then an adapter, both from one warm start: that of ``warm``, or else one
    made here."""
    full, lora = folder / "full", folder / "lora"
    options = OPTIONS if config == "ddp" else [*OPTIONS, "--use_cpu", "false"]
    start = ["--warm_start_steps", "0", "--model", warm] if warm else ["--warm_start_steps", "40"]
    adapter = [
        *LORA,
        "--warm_start_steps",
        "0",
        "--model",
        warm or full / "warm_start",
        "--output_dir",
        lora,
    ]
    done = launch(
        config, DRIVER, *options, *start, "--output_dir", full, "--then", *options, *adapter
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    return train("ddp", tmp_path_factory.mktemp("ddp"))


def completions(folder):
    rows = [
        json.loads(line)
        for path in sorted((folder / "trajectories").iterdir())
        for line in path.read_text().splitlines()
    ]
    return [[step["completion"] for step in row["steps"]] for row in rows]


def weights(folder, kind):
    name = {"full": "model.safetensors", "lora": "adapter_model.safetensors"}[kind]
    found = load_file(folder / kind / "adapter" / name)
    found.pop("lm_head.weight", None)  # tied to the embeddings; some write it twice
    return torch.cat([found[key].flatten() for key in sorted(found)])


def held_out(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return summary["before"], summary["after"]


def compare(found, expected, sharded):
    for kind in ("full", "lora"):
        assert completions(found / kind) == completions(expected / kind)
        assert held_out(found / kind) == held_out(expected / kind)
        wanted = weights(expected, kind)
        assert (weights(found, kind) - wanted).norm() <= 1e-4 * wanted.norm()
        shards, parameters = json.loads((found / kind / "sharded.json").read_text())[0]
        assert (
            shards > parameters / 2 if sharded else shards == 0
        )  # in the first step: ZeRO-3 keeps small weights whole
    assert json.loads((found / "full" / "environment.json").read_text())["world_size"] == 2
    lengths = {len(text) for run in completions(found / "full") for text in run}
    assert len(lengths) > 3, (
        "completions of one length would not show ranks that wait for one another"
    )


@pytest.fixture(scope="module")
def fsdp2(ddp, tmp_path_factory):
    return train("fsdp2", tmp_path_factory.mktemp("fsdp2"), ddp / "full" / "warm_start")


@pytest.mark.slow
def test_fsdp2_ends_where_ddp_ends(ddp, fsdp2):
    compare(fsdp2, ddp, sharded=True)


@pytest.mark.slow
def test_fsdp2_resumes_bitwise(ddp, fsdp2, tmp_path):
    """Both ranks; each holds its own part of the weights that the run folder's fingerprint is
    of."""
    folder = tmp_path / "lora"
    shutil.copytree(fsdp2 / "lora", folder)
    for name in ("checkpoint-2", "adapter"):
        shutil.rmtree(folder / name)
    (folder / "summary.json").unlink()
    start = [
        "--use_cpu",
        "false",
        *LORA,
        "--warm_start_steps",
        "0",
        "--model",
        ddp / "full" / "warm_start",
    ]
    done = launch("fsdp2", DRIVER, *OPTIONS, *start, "--output_dir", folder, "--resume")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert torch.equal(weights(tmp_path, "lora"), weights(fsdp2, "lora"))
    assert completions(folder) == completions(fsdp2 / "lora")


def zero(stage, folder):
    """The shipped configuration of ZeRO-3 with another stage, as docs/guides/gpus.md says."""
    shipped = (ROOT / "configs/accelerate/zero3.yaml").read_text()
    assert "zero_stage: 3" in shipped
    path = folder / f"zero{stage}.yaml"
    path.write_text(shipped.replace("zero_stage: 3", f"zero_stage: {stage}"))
    return path


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_ends_where_ddp_ends(ddp, tmp_path, stage):
    config = zero(stage, tmp_path)
    compare(train(config, tmp_path, ddp / "full" / "warm_start"), ddp, sharded=stage == 3)


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_a_gradient_that_is_not_finite_is_seen_under_zero(tmp_path, stage):
    options = [
        *OPTIONS,
        *LORA,
        "--use_cpu",
        "false",
        "--warm_start_steps",
        "0",
        "--output_dir",
        tmp_path / "run",
    ]
    done = launch(zero(stage, tmp_path), DRIVER, *options, NAN_GRADIENT="1")
    assert (
        done.returncode != 0
        and "step 1: loss or gradient is not finite" in done.stdout + done.stderr
    )
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("sharding", "reader", "gathers", "named"),
    [
        (Sharding.FSDP1, "recall", True, "fsdp_version is 1"),
        (Sharding.FSDP2, "base", True, "reader 'base' cannot be used with"),
        (Sharding.ZERO3, "recall", False, "ds3_gather_for_generation is false"),
        (Sharding.FSDP2, "recall", True, "fsdp_cpu_ram_efficient_loading is true"),
    ],
)
def test_what_would_hang_is_refused_by_name_and_the_rest_passes(
    monkeypatch, sharding, reader, gathers, named
):
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", str("ram" in named))
    with pytest.raises(InputError, match=named):
        check_sharding(sharding, reader, gathers)
    check_sharding(Sharding.NONE, "base", gathers=False)
    check_sharding(Sharding.ZERO3, "endpoint", gathers=True)


def test_a_warm_start_on_two_processes_gives_the_same_in_one_forward_and_in_many(tmp_path):
    """In packs of 900 tokens the processes differ in the number of forwards of a step."""
    options = [
        "--model",
        "nano",
        "--data",
        "synthetic",
        "--data_options",
        "{n: 12}",
        "--schema",
        "facts",
        "--codec",
        "compact",
        "--lora_r",
        "4",
        "--max_steps",
        "6",
        "--warmup_steps",
        "0",
        "--use_cpu",
        "true",
    ]
    weights = []
    for tokens in ("0", "900"):
        done = launch(
            "ddp",
            "-m",
            "memalpha",
            "warmup",
            *options,
            "--pack_tokens",
            tokens,
            "--output_dir",
            tmp_path / tokens,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        weights.append(load_file(tmp_path / tokens / "adapter_model.safetensors"))
    first, second = weights
    assert first.keys() == second.keys() and any(
        bool(value.any()) for name, value in first.items() if "lora_B" in name
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------
# configurations of the launcher: read by Accelerate, turned into an environment; none is started
FOLDER = ROOT / "configs/accelerate"

# name: (distributed type, GPUs in all, machines, mixed precision)
EXPECTED = {
    "ddp": ("MULTI_GPU", 8, 1, "bf16"),
    "fsdp2": ("FSDP", 8, 1, "bf16"),
    "zero3": ("DEEPSPEED", 8, 1, "bf16"),
}


def launched(name):
    """What the launcher makes of a configuration: its arguments, and the environment of the
    processes; nothing is started."""
    parser = launcher.launch_command_parser()
    path = str(FOLDER / f"{name}.yaml")
    threads = ["--num_cpu_threads_per_process", "1"]
    given = ["--config_file", path, *threads, "-m", "memalpha", "train"]
    seen = {}

    def start(args):
        seen.update(arguments=args, environment=dict(os.environ))

    def start_plain(command, env):
        seen.update(arguments=argparse.Namespace(nproc_per_node="1", nnodes="1"), environment=env)
        return mock.Mock(returncode=0)

    deepspeed = {
        name: ModuleType(name)
        for name in ("deepspeed", "deepspeed.launcher", "deepspeed.launcher.runner")
    }
    deepspeed["deepspeed.launcher.runner"].DEEPSPEED_ENVIRONMENT_NAME = ""
    with (
        mock.patch("torch.distributed.run.run", start),
        mock.patch("subprocess.Popen", start_plain),
        mock.patch.object(launcher, "is_deepspeed_available", lambda: True),
        mock.patch.dict(sys.modules, deepspeed),
        mock.patch("accelerate.utils.launch.is_port_in_use", lambda port: False),
    ):
        launcher.launch_command(parser.parse_args(given))
    return seen["arguments"], seen["environment"]


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_it_as_meant_and_the_launcher_starts_the_processes(name):
    kind, processes, machines, precision = EXPECTED[name]
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert (config.distributed_type.value, config.num_processes, config.num_machines) == (
        kind,
        processes,
        machines,
    )
    assert config.mixed_precision == precision and not config.use_cpu
    arguments, environment = launched(name)
    assert int(arguments.nproc_per_node) == processes // machines
    assert environment["ACCELERATE_MIXED_PRECISION"] == precision
    assert ("ACCELERATE_USE_FSDP" in environment) is (name == "fsdp2")
    assert ("ACCELERATE_USE_DEEPSPEED" in environment) is name.startswith("zero")


def test_fsdp_is_version_2_and_loads_on_every_rank(monkeypatch):
    _, environment = launched("fsdp2")
    for name, value in environment.items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.state_dict_type.name) == (2, "FULL_STATE_DICT")
    assert (plugin.reshard_after_forward, plugin.cpu_ram_efficient_loading) == (True, False)
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
