"""Runs the command line with a fault planted at one step of one rank: ``faulty_run.py FAULT STEP
RANK train ...``."""

import os
import signal
import sys

from memalpha.cli import main
from memalpha.record import folder as runs
from memalpha.training import checkpoints as saving
from memalpha.training.trainer import MemoryGRPOTrainer


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


AT_STEP = {  # the fault: the trainer's method, and whether the kill comes afterwards
    "before-rollouts": ("_drawn_and_scored", False),
    "between-rollouts-and-update": ("_next_update_batches", True),
    "in-update": ("compute_loss", True),
    "after-gradients": ("_keep_step", True),
    "after-validation": ("evaluate", True),  # of the step before
    "in-checkpoint": ("_save_pending", False),
}


def plant(fault: str, step: int, rank: int) -> None:
    if fault == "in-log":
        owner, name, after = runs.RunFolder, "append_line", False
    elif fault == "after-checkpoint":
        owner, name, after = saving, "publish", True
    else:
        owner, (name, after) = MemoryGRPOTrainer, AT_STEP[fault]
    real = getattr(owner, name)

    def due(subject, *args) -> bool:
        if fault == "in-log":
            return args[1]["step"] == step
        if "checkpoint" in fault and args[0].name != f"checkpoint-{step}":
            return False
        if fault == "after-checkpoint":
            return True
        begun = subject.state.global_step + (fault != "in-checkpoint")
        return begun == step and subject.accelerator.process_index == rank

    def wrapped(*args, **kwargs):
        now = due(*args)
        if now and fault == "in-log":
            with (args[0].path / args[1]).open("a") as file:
                file.write('{"step": ')
        if now and not after:
            kill()
        result = real(*args, **kwargs)
        if now:
            kill()
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    plant(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    main(sys.argv[4:])
