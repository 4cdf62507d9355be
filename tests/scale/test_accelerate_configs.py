"""Every configuration of the launcher, read by Accelerate's own loader and turned into the
environment it would start with."""

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from accelerate.commands import launch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin

from memalpha.training.config import parse_train_arguments

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs/accelerate"

# name: (distributed type, GPUs in all, machines, mixed precision)
EXPECTED = {
    "gpu-1": ("NO", 1, 1, "bf16"),
    "ddp": ("MULTI_GPU", 8, 1, "bf16"),
    "fsdp2": ("FSDP", 8, 1, "bf16"),
    "zero3": ("DEEPSPEED", 8, 1, "bf16"),
    "cpu-2": ("MULTI_GPU", 2, 1, "no"),
}


def launched(name, *arguments):
    """What the launcher makes of a configuration: its arguments, and the environment of the
    processes; nothing is started."""
    parser = launch.launch_command_parser()
    threads = ["--num_cpu_threads_per_process", "1"]
    given = [
        "--config_file",
        str(FOLDER / f"{name}.yaml"),
        *threads,
        *arguments,
        "-m",
        "memalpha",
        "train",
    ]
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
        mock.patch.object(launch, "is_deepspeed_available", lambda: True),
        mock.patch.dict(sys.modules, deepspeed),
        mock.patch("accelerate.utils.launch.is_port_in_use", lambda port: False),
    ):
        launch.launch_command(parser.parse_args(given))
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
    assert config.mixed_precision == precision and config.use_cpu is (name == "cpu-2")
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
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.cpu_ram_efficient_loading is False
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"


def test_a_machine_of_several_is_told_by_the_launchers_own_options():
    arguments, _ = launched(
        "ddp",
        "--num_machines",
        "4",
        "--num_processes",
        "32",
        "--machine_rank",
        "2",
        "--main_process_ip",
        "10.0.0.1",
        "--main_process_port",
        "29500",
    )
    assert (int(arguments.nproc_per_node), int(arguments.nnodes)) == (8, 4)
    assert (arguments.node_rank, arguments.rdzv_endpoint) == (2, "10.0.0.1:29500")


def test_the_run_for_eight_gpus_has_the_published_batch():
    path = ROOT / "configs/train/qwen3-4b.yaml"
    run, agent, reward, grpo, _ = parse_train_arguments(
        ["--config", str(path), "--use_cpu", "true", "--bf16", "false"]
    )
    assert (run.model, agent.schema, agent.codec) == ("Qwen/Qwen3-4B", "mem_alpha", "hermes")
    assert [weight for _, weight in reward.parts.values()] == [1.0, 1.0, 0.05, 0.1, 0.0]
    assert (grpo.num_generations, grpo.max_completion_length) == (8, 2048)
    gpus = EXPECTED["ddp"][1]
    assert grpo.per_device_train_batch_size * (grpo.steps_per_generation or 1) * gpus == 32 * 8
