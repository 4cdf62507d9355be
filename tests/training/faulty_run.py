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


WRAPPED = {  # the fault: what is wrapped, and whether the kill comes afterwards
    "before-rollouts": ("_drawn_and_scored", False),
    "between-rollouts-and-update": ("_next_update_batches", True),
    "in-update": ("_compute_loss", True),
    "after-gradients": ("_keep_step", True),
    "after-validation": ("evaluate", True),  # of the step before
}


def plant(fault: str, step: int, rank: int) -> None:
    real_append, real_publish, real_pending = (
        runs.RunFolder.append_line,
        saving.publish,
        MemoryGRPOTrainer._save_pending,
    )

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
        name, after = WRAPPED[fault]
        real = getattr(MemoryGRPOTrainer, name)

        def wrapped(trainer, *args, **kwargs):
            now = (
                trainer.state.global_step + 1 == step and trainer.accelerator.process_index == rank
            )
            if now and not after:
                kill()
            result = real(trainer, *args, **kwargs)
            if now and after:
                kill()
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
