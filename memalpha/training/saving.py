"""How a trainer saves and takes up its checkpoints: whole or not at all, at any step, also amid a batch of rollouts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from memalpha.errors import TrainingAborted
from memalpha.runs import checkpoints_in
from memalpha.training.checkpoints import UNFINISHED, keep_newest, publish

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Trainer
else:
    _Trainer = object


class WholeCheckpoints(_Trainer):  # type: ignore[misc]
    """Mixin for TRL's trainer.

    A checkpoint is written to a folder of another name and published when it is complete (``memalpha.training.checkpoints``). Where
    a batch of rollouts serves several optimizer steps, what is left of it goes into the checkpoint, so that a resumed run goes on
    with the same rows instead of drawing new ones.
    """

    _step: int
    _saving_to: str | None = None

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """As ``Trainer.train``; ``resume_from_checkpoint`` is a folder or None."""
        if resume_from_checkpoint:
            self._restore_pending(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        return self._saving_to or str(super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(self.args.output_dir)
        name, unfinished = f"checkpoint-{self.state.global_step}", run / UNFINISHED
        if self.args.should_save:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            self._saving_to = str(unfinished)
            super()._save_checkpoint(model, trial)
            self._save_pending(unfinished / name)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish(unfinished / name, run / name)
                keep_newest(checkpoints_in(run), self.args.save_total_limit)
        except Exception as error:  # torch, safetensors and json each raise their own when a disk is full
            kept = [path.name for path in checkpoints_in(run)]
            raise TrainingAborted(
                f"{name} could not be saved, with {shutil.disk_usage(run).free / 2**20:.0f} MiB free in {run}: {error}\n"
                f"  kept: {', '.join(kept) or 'no checkpoint'}\n"
                "  to fix: make room (save_total_limit keeps fewer checkpoints), then go on with --resume"
            ) from error
        finally:
            self._saving_to = None
            if self.args.should_save:
                shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()

    def _save_pending(self, folder: Path) -> None:
        """Keep the rows that later steps train on, if this step was not the last of its batch of rollouts."""
        if self._step % (self.args.steps_per_generation * self.num_iterations):
            torch.save({"step": self._step, "rows": self._buffered_inputs}, folder / self._pending_name)

    def _restore_pending(self, folder: Path) -> None:
        path = folder / self._pending_name
        if path.is_file():
            kept = torch.load(path, map_location=self.args.device, weights_only=True)
            self._step, self._buffered_inputs = kept["step"], kept["rows"]

    @property
    def _pending_name(self) -> str:
        return f"rows_{self.args.process_index}.pt"
