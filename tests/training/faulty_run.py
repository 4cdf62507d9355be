"""Runs the command line with a fault planted at one step of one rank: ``faulty_run.py FAULT STEP RANK train ...``."""

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import torch

from memalpha import runs
from memalpha.cli import main
from memalpha.training import checkpoints as saving
from memalpha.training.trainer import MemoryGRPOTrainer


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


HOARD: list[torch.Tensor] = []


def no_memory() -> None:
    """Let this process have no more than it has, and take what is free of that but for some crumbs."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    for size in (2**20, 2**16):
        with suppress(RuntimeError):
            while True:
                HOARD.append(torch.empty(size))


WRAPPED = {  # the fault: what is wrapped, what happens, and whether afterwards
    "before-rollouts": ("_generate_and_score_completions", kill, False),
    "between-rollouts-and-update": ("_scored_rows", kill, True),
    "in-update": ("_compute_loss", kill, True),
    "after-gradients": ("_keep_step", kill, True),
    "no-memory": ("_compute_loss", no_memory, False),
}


def plant(fault: str, step: int, rank: int) -> None:
    real_append, real_publish, real_pending = runs.RunFolder.append_line, saving.publish, MemoryGRPOTrainer._save_pending

    def append_half(folder, name, row):
        if row["step"] == step:
            with (folder.path / name).open("a") as file:
                file.write('{"step": ')
            kill()
        real_append(folder, name, row)

    def publish_then_kill(unfinished, final):
        real_publish(unfinished, final)
        if final.name == f"checkpoint-{step}":
            kill()

    def half_saved(trainer, folder):
        if folder.name == f"checkpoint-{step}" and trainer.accelerator.process_index == rank:
            kill()
        real_pending(trainer, folder)

    if fault in WRAPPED:
        name, act, after = WRAPPED[fault]
        real = getattr(MemoryGRPOTrainer, name)

        def wrapped(trainer, *args, **kwargs):
            now = trainer.state.global_step + 1 == step and trainer.accelerator.process_index == rank
            if now and not after:
                act()
            result = real(trainer, *args, **kwargs)
            if now and after:
                act()
            return result

        setattr(MemoryGRPOTrainer, name, wrapped)
    elif fault == "in-log":
        runs.RunFolder.append_line = append_half
    elif fault == "after-checkpoint":
        saving.publish = publish_then_kill
    else:
        assert fault == "in-checkpoint", fault
        MemoryGRPOTrainer._save_pending = half_saved


if __name__ == "__main__":
    plant(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    main(sys.argv[4:])
