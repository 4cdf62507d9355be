"""Warm start: supervised training of a LoRA adapter on demonstrations.

A small model has to know the notation and every tool before reinforcement learning can improve on it.

The loss is the mean over completion tokens of -log p, over rows packed without padding (``memalpha.training.packed``). Optimizer,
schedule, clipping, checkpoints and distribution are transformers' ``Trainer``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from memalpha.training.demonstrations import Demonstration
from memalpha.training.packed import Row, packed_logps


class _Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: Sequence[Demonstration]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Demonstration:
        return self.rows[index]


class WarmupTrainer(Trainer):  # type: ignore[misc]
    """``Trainer`` over demonstrations.

    Args:
        demonstrations: What to imitate.
        common_prefix: Leading prompt ids that all demonstrations share (the system text), computed once a batch.
        pack_tokens: Tokens of one forward; the prefix is computed once for each.
        **kwargs: As ``Trainer``.
    """

    def __init__(self, demonstrations: Sequence[Demonstration], common_prefix: int, pack_tokens: int = 1024, **kwargs: Any) -> None:
        self.pack_tokens = pack_tokens
        self.common_prefix = common_prefix
        super().__init__(train_dataset=_Rows(demonstrations), data_collator=lambda rows: {"rows": rows}, **kwargs)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Return the next micro-batches; no token count, each micro-batch is a mean of its own."""
        return [next(epoch_iterator) for _ in range(num_batches)], None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Mean of -log p over the completion tokens of the batch."""
        rows = [Row(d.prompt_ids, d.completion_ids, min(self.common_prefix, d.shared)) for d in inputs["rows"]]
        logps = packed_logps(model, rows, temperature=1.0, max_tokens=self.pack_tokens).logps
        return -torch.cat(list(logps)).mean()


def common_prefix(demonstrations: Sequence[Demonstration]) -> int:
    """Return how many leading prompt ids all demonstrations share."""
    first = demonstrations[0].prompt_ids
    length = len(first)
    for demonstration in demonstrations:
        ids = demonstration.prompt_ids
        while first[:length] != ids[:length]:
            length -= 1
    return length


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Hands every logged row to a function."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report = report

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report the row with its step."""
        if state.is_world_process_zero and logs:
            self.report({"step": state.global_step, "max_steps": state.max_steps, **logs})
