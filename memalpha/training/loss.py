"""TRL's loss over packed rows (``trl>=1.16,<1.17``).

TRL pads the rows of a micro-batch and runs the model on them. Here rows are packed, a prefix that
rows share is computed once (``memalpha.update.logps``), and TRL's loss gets the log-probabilities.

Rows without a loss fill up the ranks that have fewer; they enter no statistic. A masked row has
advantage 0, but counts in the loss's mean and its KL term.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from memalpha.errors import InputError
from memalpha.generation.hf import end_ids
from memalpha.generation.products import Products, restoring, using
from memalpha.training.config import RunOptions
from memalpha.training.importance import GAP, gap_statistics, importance_weights
from memalpha.training.precision import check_scaler
from memalpha.training.rows import TrainingRow, UpdateBatch
from memalpha.types import AdapterEngine, Generator
from memalpha.update.logps import CompletionRow, TokenLogps, packed_logps
from memalpha.update.prepare import prepare_policy
from memalpha.upstream import LossOfTRL, as_reference

MOST_APART = 0.5
"""Mean difference in nats between the log-probabilities of two engines for one policy; rounding to
16 bits gives .1."""

ROW_MEAN_LOSSES = ("grpo", "dr_grpo")
"""Losses that TRL divides by the number of rows, padding rows included."""


class PackedGRPOTrainer(LossOfTRL, GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, given an ``UpdateBatch`` of packed rows in place of padded tensors. The model
    has gone through ``prepare_policy``; ``generator`` drew the rows.
    """

    def __init__(
        self, *, model: Any, args: Any, options: RunOptions, generator: Generator, **kwargs: Any
    ) -> None:
        self.options = options
        self.generator = generator
        self.products = Products()  # frozen weights, laid out to multiply fast
        self.update_batches: list[UpdateBatch] = []  # of the draw at hand
        has_adapter = isinstance(model, PeftModel)
        in_4bit = getattr(model, "is_loaded_in_4bit", False)
        adapters = [p for p in model.parameters() if in_4bit and p.requires_grad]
        exact = [parameter.data for parameter in adapters]
        with restoring([args], "model_init_kwargs"):
            if has_adapter or not args.beta:  # TRL loads no reference, and says it ignores them
                args.model_init_kwargs = None
            super().__init__(model=model, args=args, **kwargs)
        # as the generator: TRL does not ask the chat template
        self.eos_token_ids = sorted(end_ids(self.model, self.processing_class))
        check_scaler(self.accelerator)
        for parameter, data in zip(adapters, exact, strict=True):  # TRL rounds those to 16 bits,
            parameter.data = data.to(parameter.device)  # where small steps are lost
        if self.ref_model is not None:
            prepare_policy(self.accelerator.unwrap_model(self.ref_model))
        if self.adds_router_loss:
            raise InputError(
                "router_aux_loss_coef is set for a mixture of experts",
                expected="0",
                fix="set router_aux_loss_coef: 0",
            )
        # Log-probabilities that a generator keeps were drawn with other rounding, or by an older
        # policy, so the loss needs importance weights.
        self._keeps_logps = bool(getattr(generator, "logprobs", False))
        self._weighs: bool = self._keeps_logps and self.vllm_importance_sampling_correction

    @property
    def steps_per_draw(self) -> int:
        """Optimizer steps that train the same rollouts: its update batches times the passes."""
        return int(self.args.steps_per_generation * self.num_iterations)

    def _logps_before(self, rows: Sequence[TrainingRow]) -> None:
        """Set the log-probabilities that the loss compares with, where it does."""
        if self.steps_per_draw > 1 or self._keeps_logps:
            for row, of_policy in zip(rows, self._logps(self.model, rows), strict=True):
                row.old = of_policy.logps
        if self._keeps_logps:
            self._weigh(rows)
        if self.beta:
            policy = self.accelerator.unwrap_model(self.model)
            with nullcontext() if self.ref_model else as_reference(policy):
                results = self._logps(self.ref_model or self.model, rows)
            for row, of_reference in zip(rows, results, strict=True):
                row.reference = of_reference.logps

    def _weigh(self, rows: Sequence[TrainingRow]) -> None:
        """Set the importance weights, unless the correction is off, and log how far sampled and
        trained log-probabilities are apart, over all ranks.
        """
        gaps = [torch.zeros(0, device=self.args.device)]
        weights = list(gaps)
        for row in rows:
            assert row.old is not None
            gap = row.old - torch.tensor(row.sampled, device=row.old.device)
            weight = importance_weights(
                gap,
                self.vllm_importance_sampling_mode,
                self.vllm_importance_sampling_clip_min,
                self.vllm_importance_sampling_clip_max,
            )
            if self._weighs:
                row.weight = weight
            if not row.left_out:
                gaps.append(gap)
                weights.append(weight)
        statistics = gap_statistics(torch.cat(gather_object([torch.cat(gaps).cpu()])))
        self._record(statistics)
        if self._weighs:
            of_all = torch.cat(gather_object([torch.cat(weights).cpu()]))
            self._record({"sampling/importance_sampling_ratio/mean": of_all.mean().item()})
            if self.vllm_importance_sampling_mode.endswith("mask"):
                self._record({"sampling/masked": (of_all == 0).double().mean().item()})
        is_first = not self.update_batches
        mean = statistics[f"{GAP}/mean"]
        if is_first and isinstance(self.generator, AdapterEngine) and mean > MOST_APART:
            raise InputError(
                f"the log-probabilities of vLLM differ from the policy's by {mean:.2f} on average",
                expected=f"at most {MOST_APART}",
                fix="let vLLM serve the base model that is trained",
            )

    def _logps(
        self, model: Any, rows: Sequence[TrainingRow], compute_entropy: bool = False
    ) -> list[TokenLogps]:
        """Log-probabilities of completions, ``rows_per_forward`` at a time."""
        most = self.options.rows_per_forward
        logps: list[TokenLogps] = []
        packable = [CompletionRow(row.prompt_ids, row.completion_ids, row.shared) for row in rows]
        for start in range(0, len(rows), most):
            with using(self.products), self.accelerator.autocast():
                logps += packed_logps(
                    model,
                    packable[start : start + most],
                    temperature=self.temperature,
                    compute_entropy=compute_entropy,
                )
        return logps

    def compute_loss(
        self,
        model: Any,
        inputs: UpdateBatch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """Return TRL's loss of a micro-batch.

        TRL would run the model on padded rows; here it gets the forward of the packed rows.

        With the default options TRL's loss is the same formula as ``loss_of`` in
        examples/grpo_in_one_file.py; tests/training/test_gradient.py compares the gradients.
        """
        rows = inputs.rows
        device = self.args.device
        of_rows = self._logps(model, rows, compute_entropy=True)
        others = {}
        for name in ("old", "reference", "weight", "sampled"):
            values = [getattr(row, name) for row in rows]
            if not any(value is None for value in values):
                others[name] = pad_rows(values, device)
        logps, entropies = (pad_rows(values, device) for values in zip(*of_rows, strict=True))
        loss = self.loss_of_trl(
            model,
            logps=logps,
            entropies=entropies,
            mask=pad_rows([list(map(int, row.mask)) for row in rows], device),
            advantages=torch.tensor([row.advantage for row in rows], device=device),
            token_count=inputs.token_count,
            weighs=self._weighs,
            others=others,
        )
        if self.loss_type in ROW_MEAN_LOSSES:
            # (sum / len(rows)) becomes sum / (row_count / splits) * ranks; syncing divides by ranks
            ranks_and_splits = self.accelerator.num_processes * self.args.steps_per_generation
            loss = loss * len(rows) * ranks_and_splits / inputs.row_count
        return loss

    def sum_over_ranks(self, values: Sequence[float]) -> torch.Tensor:
        """Add each value over ranks, (len(values),) float32."""
        local = torch.tensor([list(values)], dtype=torch.float32, device=self.accelerator.device)
        return self.accelerator.gather(local).sum(0)  # type: ignore[no-any-return]

    def _record(self, values: Mapping[str, float]) -> None:
        """Add to the means that TRL logs."""
        for name, value in values.items():
            self.training_metrics[name].append(value)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._record({name: time.perf_counter() - start})


def pad_rows(values: Sequence[Any], device: torch.device) -> Tensor:
    """Return sequences or one-dimensional tensors as a (B, longest) tensor, padded with 0."""
    rows = [torch.as_tensor(value, device=device) for value in values]
    return pad_sequence(rows, batch_first=True)
