"""Atomic checkpoints, and the trainer's mixin that saves and resumes them.

A checkpoint is written under a temporary name, hashed, flushed to disk and then renamed, so
``checkpoint-N`` was complete when it got this name; an older one is removed only afterwards. Not
covered: nodes without a shared file system.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer import TRAINER_STATE_NAME

from memalpha.errors import InputError, MemAlphaError, RunFolderError, TrainingAborted
from memalpha.files import file_sha256, flush, read_object, write_object
from memalpha.record.folder import checkpoint_step, checkpoints_in, run_digest
from memalpha.training.rows import UpdateBatch
from memalpha.upstream import CheckpointSteps

_logger = logging.getLogger(__name__)

SEAL = "memalpha_checkpoint.json"  # SHA-256 of every other file of the checkpoint
_RUN = "run"  # in the seal, beside the files: what it is a checkpoint of
UNFINISHED = ".unfinished"  # temporary folder of a checkpoint, inside the run folder


def publish(unfinished: Path, final: Path) -> None:
    """Seal a written checkpoint and rename it to ``final``, which it replaces; both on one file
    system.
    """
    run = run_digest(final.parent)
    write_object(unfinished / SEAL, _digests(unfinished) | ({_RUN: run} if run else {}))
    for path in [*unfinished.rglob("*"), unfinished]:
        flush(path)
    if final.exists():
        shutil.rmtree(final)
    unfinished.rename(final)
    flush(final.parent)


def find_damage(checkpoint: Path) -> str:
    """Return the damage of a checkpoint; empty if every file is as it was written.

    Also wrong is a checkpoint of a run with other options or data, and a file that was not sealed.
    """
    if not (checkpoint / SEAL).is_file():
        return f"{SEAL} is missing, so the checkpoint was not finished"
    try:
        sealed = read_object(checkpoint / SEAL)
    except InputError:
        return f"{SEAL} cannot be read"
    run = sealed.pop(_RUN, None)
    if run is not None and run != run_digest(checkpoint.parent):
        return "the checkpoint belongs to a run with other options or data"
    if TRAINER_STATE_NAME not in sealed:
        return f"{SEAL} does not list {TRAINER_STATE_NAME}"
    digests = _digests(checkpoint)
    wrong = [name for name in sealed if digests.get(name) != sealed[name]]
    if wrong:
        return f"{wrong[0]} is missing or was changed"
    # what desktops and network file systems leave behind, such as .DS_Store, is loaded by nobody
    more = sorted(name for name in digests.keys() - sealed.keys() if not _is_hidden(name))
    return f"{more[0]} does not belong to the checkpoint" if more else ""


def _is_hidden(name: str) -> bool:
    return Path(name).name.startswith(".")


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SEAL]
    return {str(path.relative_to(folder)): file_sha256(path) for path in sorted(files)}


def newest_whole(checkpoints: Sequence[Path]) -> tuple[Path | None, dict[str, str]]:
    """Return the newest undamaged checkpoint, and the damage of each newer one by name; the input
    is in order of steps.
    """
    damaged: dict[str, str] = {}
    for path in reversed(checkpoints):
        reason = find_damage(path)
        if not reason:
            return path, damaged
        damaged[path.name] = reason
    return None, damaged


@contextmanager
def _explaining(checkpoint: object) -> Iterator[None]:
    """Turn what torch and pickle raise for a file of a checkpoint into one RunFolderError."""
    try:
        yield
    except MemAlphaError:
        raise
    except Exception as error:  # of many kinds, by the file and by its damage
        if not checkpoint:
            raise
        name = Path(str(checkpoint)).name
        raise RunFolderError(
            f"{name} cannot be loaded: {type(error).__name__}: {error}",
            expected="a checkpoint that this run wrote with these versions of the libraries",
            fix=f"remove {checkpoint} and resume from an earlier one, or train again "
            "with --overwrite",
        ) from error


def check_weights(pending: Sequence[UpdateBatch], weighs: bool, name: str) -> None:
    """Raise RunFolderError if pending rows need importance weights (``weighs``) and have none."""
    without = any(row.weight is None for batch in pending for row in batch.rows)
    if weighs and without:
        raise RunFolderError(
            f"{name} lies within a draw of rollouts without importance weights",
            expected="the generator that drew them, which may change only after the last "
            "step of the draw",
        )


class WholeCheckpoints(CheckpointSteps):
    """Mixin for TRL's trainer: publishes complete checkpoints only, with the rows that later steps
    still need.
    """

    update_batches: list[UpdateBatch]
    _weighs: bool
    _served: int
    _saving_to: str | None = None

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """As ``Trainer.train``; ``resume_from_checkpoint`` is a folder or None."""
        path = Path(resume_from_checkpoint or "") / self._pending_name
        if resume_from_checkpoint:
            self._check_processes(path.parent)
        if resume_from_checkpoint and path.is_file():
            with _explaining(resume_from_checkpoint):
                pending = torch.load(path, map_location=self.args.device, weights_only=True)
                self.update_batches = [UpdateBatch.from_fields(fields) for fields in pending]
            check_weights(self.update_batches, self._weighs, path.parent.name)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def load_weights(self, checkpoint: str, model: Any = None) -> None:
        """As ``Trainer``'s; RunFolderError if the weights cannot be loaded."""
        with _explaining(checkpoint):
            super().load_weights(checkpoint, model)

    def load_random_state(self, checkpoint: str | None) -> None:
        """As ``Trainer``'s; RunFolderError if it cannot be loaded."""
        with _explaining(checkpoint):
            super().load_random_state(checkpoint)

    def load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As ``Trainer``'s, with the rate of today's schedule: a checkpoint's is of the number of
        steps of then; RunFolderError if it cannot be loaded.
        """
        with _explaining(checkpoint):
            super().load_optimizer_and_scheduler(checkpoint)
        # inside DeepSpeed's wrapper
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        if checkpoint and isinstance(scheduler, LambdaLR):
            shares = [share(scheduler.last_epoch) for share in scheduler.lr_lambdas]
            rates = [base * share for base, share in zip(scheduler.base_lrs, shares, strict=True)]
            scheduler._last_lr = rates
            for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _check_processes(self, checkpoint: Path) -> None:
        """Warn if another number of processes wrote a checkpoint; RunFolderError if this one cannot
        go on from it.
        """
        wrote = len(list(checkpoint.glob("rng_state*.pth")))
        now = self.args.world_size
        if wrote in (0, now):
            return
        problem = f"{checkpoint.name} was written by {wrote} processes, but there are {now}"
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        why = "its optimizer is sharded" if sharded else "it lies within a draw of rollouts"
        if sharded or any(checkpoint.glob("rows_*.pt")):
            raise RunFolderError(
                f"{problem}; {why}",
                expected=f"{wrote} processes",
            )
        _logger.warning("%s: the following rollouts have other random numbers", problem)

    def load_best(self) -> int:
        """Load the best checkpoint's weights (if a step was evaluated), and return the step of the
        weights.
        """
        now = int(self.state.global_step)
        best = int(self.state.best_global_step or now)
        if best != now:
            path = Path(self.args.output_dir) / f"checkpoint-{best}"
            reason = find_damage(path)
            if reason:
                raise RunFolderError(
                    f"the best checkpoint, {path.name}, cannot be loaded: {reason}",
                    expected="the checkpoint as it was saved",
                )
            self.state.best_model_checkpoint = str(path)
            self.load_best_weights()
            self.state.best_model_checkpoint = None
            self._served = -1  # vLLM's weights are not these
        return best

    def checkpoints_folder(self, trial: Any) -> str:
        """As ``Trainer``'s; while a checkpoint is written, its temporary place."""
        return self._saving_to or super().checkpoints_folder(trial)

    def write_checkpoint(self, model: Any, trial: Any) -> None:
        """As ``Trainer``'s, but complete or not at all; TrainingAborted if it cannot be written."""
        run = Path(self.args.output_dir)
        name = f"checkpoint-{self.state.global_step}"
        unfinished = run / UNFINISHED
        if self.args.should_save:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            self._saving_to = str(unfinished)
            super().write_checkpoint(model, trial)
            self._save_pending(unfinished / name)
            # transformers names the best one by its temporary place, deletes and looks for it there
            if self.args.should_save:
                self.state.best_model_checkpoint = None
                self.state.save_to_json(str(unfinished / name / TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish(unfinished / name, run / name)
                self._rotate(run)
        except Exception as error:  # for a full disk, torch, safetensors and json raise others
            whole = ", ".join(path.name for path in checkpoints_in(run))
            free = shutil.disk_usage(run).free // 2**20
            raise TrainingAborted(
                f"{name} could not be saved, with {free} MiB free in {run}: {error}\n"
                f"  kept: {whole or 'no checkpoint'}",
                fix="free disk space (a lower save_total_limit keeps fewer checkpoints), "
                "then continue with --resume",
            ) from error
        finally:
            self._saving_to = None
            if self.args.should_save:
                shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()

    def _rotate(self, run: Path) -> None:
        limit = self.args.save_total_limit or 0
        best = self.state.best_global_step if self.args.load_best_model_at_end else None
        others = [path for path in checkpoints_in(run) if checkpoint_step(path) != best]
        for path in others[:-limit] if limit else []:
            shutil.rmtree(path)

    def _save_pending(self, folder: Path) -> None:
        if self.state.global_step % self.steps_per_draw:
            torch.save(
                [asdict(batch) for batch in self.update_batches], folder / self._pending_name
            )

    @property
    def _pending_name(self) -> str:
        return f"rows_{self.args.process_index}.pt"
