"""GRPO over chunk steps, as a subclass of TRL's trainer (``trl>=1.16,<1.17``). The one module that builds on trl's internals.

Each batch of rollouts becomes rows, one a (rollout, chunk), ordered (instance, chunk, rollout); TRL then pads, computes old and
reference log-probabilities, the loss and its own metrics as for any batch. What is ours:

* ``_generate_and_score_completions`` runs the rollouts, scores them, and pads the number of rows to what all ranks and splits need;
* ``_generate`` and ``_calculate_rewards`` hand TRL the finished rows; a padding row has ``tool_mask`` 0 and NaN rewards;
* the advantages are our own (``memalpha.training.advantages``): groups of a step or of an instance, masked rows left out;
* ``training_step`` goes through the rows ``rows_per_forward`` at a time inside one optimizer step;
* ``_get_per_token_logps_and_entropies`` packs rows without padding and computes the prefix that rows share once (exact);
* ``_compute_loss`` makes losses that are means over rows means over *real* rows.

What always holds: the sampled token ids are trained as sampled, end token included; padding rows enter no statistic and no mean; a step's
random numbers depend on (seed, step, rank) alone. Checked by a gradient test against a loss written by hand over unpadded rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from memalpha.agent.rollout import Rollout, run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.protocols import Generator
from memalpha.rewards.total import PARTS, RewardConfig, StepReward
from memalpha.training.advantages import Grouping, Scale
from memalpha.training.packed import Row, packed_logps
from memalpha.training.rows import TrainingRow, build_rows, shuffle_advantages
from memalpha.training.scoring import RolloutScorer
from memalpha.types import Completion, Instance, Prompt, Sampling, StopReason

ROW_MEAN_LOSSES = ("grpo", "dr_grpo")
"""Losses that TRL divides by the number of rows, padding rows included."""


class EpochSampler(RepeatSampler):
    """TRL's sampler with an order that depends on (seed, epoch), so a run resumed in a later epoch replays the right order."""

    trainer: Any

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed + int(self.trainer.state.epoch or 0))
        yield from super().__iter__()


class MemoryGRPOTrainer(GRPOTrainer):
    """Trains a memory agent with GRPO.

    Args:
        agent: Makes prompts and applies completions.
        instances: What the dataset's ``instance`` column points into.
        generator: Draws completions with the policy's current weights.
        scorer: Scores finished rollouts.
        reward_config: Weights of the reward's parts.
        grouping: Rows compared with one another.
        rows_per_forward: Rows of one forward and backward pass.
        share_prefix: Pack rows and share their common prefixes in the update.
        shuffled_advantages: Permute the advantages (control runs only).
        on_rollouts: Called with (rollouts, rows, rewards) after each batch, for recording.
        **kwargs: As ``GRPOTrainer``; ``train_dataset`` has the columns ``prompt`` (unused) and ``instance``.
    """

    def __init__(
        self,
        *,
        agent: AgentStep,
        instances: Sequence[Instance],
        generator: Generator | None,
        scorer: RolloutScorer,
        reward_config: RewardConfig,
        grouping: Grouping = Grouping.STEP,
        rows_per_forward: int = 8,
        share_prefix: bool = True,
        shuffled_advantages: bool = False,
        on_rollouts: Any = None,
        **kwargs: Any,
    ) -> None:
        self.agent, self.instances, self.scorer, self.reward_config = agent, instances, scorer, reward_config
        self.grouping, self.rows_per_forward, self.share_prefix = grouping, rows_per_forward, share_prefix
        self.shuffled_advantages, self.on_rollouts = shuffled_advantages, on_rollouts
        self.rows: list[TrainingRow | None] = []
        self._shared: list[int] | None = None
        kwargs["args"].reward_weights = list(reward_config.weights)
        super().__init__(reward_funcs=[_reward_stub(name) for name in PARTS], **kwargs)
        self.generator: Generator = generator or TRLGenerator(self)

    # -------------------------------------------------------------------------------------------- rollouts to rows
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        size = self.num_generations if self.model.training else self.num_generations_eval
        rollouts = run_rollouts([self.instances[x["instance"]] for x in inputs], self.agent, self.generator, self._sampling())
        rewards = self.scorer.score(rollouts)
        real = build_rows(
            rollouts,
            rewards,
            group_size=size,
            reward_config=self.reward_config,
            grouping=self.grouping,
            scale=Scale(self.scale_rewards),
        )
        if self.shuffled_advantages:
            shuffle_advantages(real, seed=self.state.global_step)
        self._log_rollouts(rollouts, rewards)
        if self.on_rollouts:
            self.on_rollouts(rollouts, real, rewards)
        self.rows = [*real, *[None] * (self._padded_count(len(real), size) - len(real))]
        self._shared = [row.shared if row else 0 for row in self.rows]
        batch: dict[str, Any] = super()._generate_and_score_completions([{"prompt": ""}] * len(self.rows))
        device = batch["advantages"].device
        batch["advantages"] = torch.tensor([row.advantage if row else 0.0 for row in self.rows], device=device)
        batch["row_order"] = torch.arange(len(self.rows), device=device)
        batch["row_shared"] = torch.tensor(self._shared, device=device)
        batch["real_rows"] = self._sum_over_ranks(len(real)).float()
        return batch

    def _sampling(self) -> Sampling:
        rank = self.accelerator.process_index
        seed = random.Random(f"{self.args.seed}/{self.state.global_step}/{rank}").getrandbits(40)
        return Sampling(self.max_completion_length, self.temperature, self.top_p, self.top_k or 0, seed)

    def _padded_count(self, rows: int, group_size: int) -> int:
        """Rows every rank must hold: a multiple of G and of the splits, the same on all ranks."""
        unit = math.lcm(group_size, self.args.steps_per_generation if self.model.training else 1)
        gathered = self.accelerator.gather(torch.tensor([rows], device=self.accelerator.device))
        return math.ceil(int(gathered.max()) / unit) * unit

    def _sum_over_ranks(self, value: float) -> torch.Tensor:
        return self.accelerator.gather(torch.tensor([value], device=self.accelerator.device)).sum()  # type: ignore[no-any-return]

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Hand TRL the finished rows. ``tool_mask`` 0 takes padding rows out of every token count."""
        end = self._tokenizer.eos_token_id
        filler = TrainingRow(0, 0, 0, (end,), (end,), 0, StepReward(*[math.nan] * 4), math.nan, logprobs=(0.0,))
        rows = [row or filler for row in self.rows]
        self._log_lengths([row for row in self.rows if row])
        for queue in (*self._logs["rewards"].values(), self._logs["prompt"], self._logs["completion"], self._logs["advantages"]):
            queue.clear()
        mask = [[int(kept is not None)] * len(row.completion_ids) for kept, row in zip(self.rows, rows, strict=True)]
        logprobs = [list(row.logprobs or ()) for row in rows] if all(row.logprobs for row in rows) else None
        completions = ["" for _ in rows]
        return [list(r.prompt_ids) for r in rows], [list(r.completion_ids) for r in rows], mask, completions, logprobs, {}, None, []

    def _calculate_rewards(self, *_: Any) -> torch.Tensor:
        """Return the parts of all ranks' rows, (rows, parts); a padding or masked row is NaN throughout."""
        nan = [math.nan] * len(PARTS)
        parts = [list(row.reward) if row and not math.isnan(row.total) else nan for row in self.rows]
        return self.accelerator.gather(torch.tensor(parts, device=self.accelerator.device))  # type: ignore[no-any-return]

    # -------------------------------------------------------------------------------------------- metrics
    def _log_lengths(self, rows: Sequence[TrainingRow]) -> None:
        mode = "train" if self.model.training else "eval"
        cut = sum(row.completion_ids[-1] not in self.eos_token_ids for row in rows)
        totals = [len(rows), sum(len(r.completion_ids) for r in rows), sum(len(r.prompt_ids) for r in rows), cut]
        count, written, read, cut = (self._sum_over_ranks(value).item() for value in totals)
        if mode == "train":
            self.state.num_input_tokens_seen += int(written + read)
        self._metrics[mode]["num_tokens"] = [self.state.num_input_tokens_seen]
        for name, value in {
            "completions/mean_length": written / count,
            "completions/clipped_ratio": cut / count,
            "prompts/mean_length": read / count,
            "rows": count,
        }.items():
            self._metrics[mode][name].append(value)

    def _log_rollouts(self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]) -> None:
        mode = "train" if self.model.training else "eval"
        for name, (total, count) in self.scorer.metrics(rollouts, rewards).items():
            count_all = self._sum_over_ranks(count).item()
            value = self._sum_over_ranks(total).item()
            if count_all:
                self._metrics[mode][f"memory/{name}"].append(value / count_all)

    # -------------------------------------------------------------------------------------------- the update
    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        sampler.__class__, sampler.trainer = EpochSampler, self
        return sampler

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        ready = isinstance(generation_batch, dict) and "completion_ids" in generation_batch
        return generation_batch if ready else super()._prepare_inputs(generation_batch)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward over the rows of one step, ``rows_per_forward`` at a time; gradients sync once, at the last."""
        batch, step = self._prepare_inputs(inputs), self._step
        order = batch["row_order"].argsort()  # TRL shuffles rows; in order, rows of a group lie together and share their prefix
        total, state = 0.0, self.accelerator.gradient_state
        outer = state.sync_gradients
        for start in range(0, len(order), self.rows_per_forward):
            part = order[start : start + self.rows_per_forward]
            last = start + self.rows_per_forward >= len(order)
            state._set_sync_gradients(outer and last)
            with nullcontext() if last else self.accelerator.no_sync(model):
                rows = {name: value if value.ndim == 0 else value[part] for name, value in batch.items()}
                total = total + super().training_step(model, rows, num_items_in_batch)
        state._set_sync_gradients(outer)
        self._step = step + 1  # TRL counted every part
        return total  # type: ignore[return-value]

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = _trim(dict(inputs))
        real_rows = inputs.pop("real_rows")
        inputs.pop("row_order")
        self._shared = inputs.pop("row_shared").tolist()
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        if self.loss_type in ROW_MEAN_LOSSES:
            splits = self.args.steps_per_generation if self.model.training else 1
            loss = loss * len(inputs["advantages"]) * self.accelerator.num_processes * splits / real_rows
        return loss

    def _get_per_token_logps_and_entropies(  # type: ignore[override]
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """As TRL's, (B, T) over the completion, but without padding and with each shared prefix computed once."""
        if not self.share_prefix:
            return super()._get_per_token_logps_and_entropies(  # type: ignore[no-any-return]
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **kwargs
            )
        rows = _unpad(input_ids, attention_mask, logits_to_keep, self._shared or [0] * len(input_ids))
        logps, entropies = [], []
        for start in range(0, len(rows), self.rows_per_forward):
            with self.accelerator.autocast():
                part = packed_logps(
                    model, rows[start : start + self.rows_per_forward], temperature=self.temperature, compute_entropy=compute_entropy
                )
            logps += part.logps
            entropies += part.entropies or []
        return _pad(logps, logits_to_keep), _pad(entropies, logits_to_keep) if compute_entropy else None, None


class TRLGenerator:
    """Completions through TRL's own generation (``use_vllm``), for the trainer that owns it."""

    def __init__(self, trainer: MemoryGRPOTrainer) -> None:
        self.trainer = trainer

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion a prompt. All ranks ask for equally many: the server's results are sliced by rank."""
        trainer = self.trainer
        gathered = trainer.accelerator.gather(torch.tensor([len(prompts)], device=trainer.accelerator.device))
        filler = [[trainer._tokenizer.eos_token_id]] * (int(gathered.max()) - len(prompts))
        ids, logprobs = trainer._generate_single_turn([list(p.ids) for p in prompts] + filler, None, {}, 1)
        texts = trainer._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            Completion(
                tuple(ids[i]),
                texts[i],
                StopReason.END if ids[i][-1] in trainer.eos_token_ids else StopReason.LENGTH,
                tuple(logprobs[i]) if logprobs else None,
            )
            for i in range(len(prompts))
        ]


def _reward_stub(name: str) -> Any:
    """A named reward for TRL's weights and metrics; its values come from the rollouts."""

    def reward(**_: Any) -> list[float]:
        raise RuntimeError("rewards are computed by the rollouts")

    reward.__name__ = name
    return reward


def _trim(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cut the padding that no row of this part needs."""
    completion = max(1, int(inputs["completion_mask"].sum(1).max()))
    prompt = int(inputs["prompt_mask"].any(0).int().argmax())
    for name, value in inputs.items():
        if value.ndim == 2:
            inputs[name] = value[:, prompt:] if name.startswith("prompt_") else value[:, :completion]
    return inputs


def _unpad(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, shared: Sequence[int]) -> list[Row]:
    kept = attention_mask.bool()
    return [
        Row(ids[:-keep][mask[:-keep]].tolist(), ids[-keep:][mask[-keep:]].tolist(), prefix)
        for ids, mask, prefix in zip(input_ids, kept, shared, strict=True)
    ]


def _pad(values: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    padded = pad_sequence(list(values), batch_first=True)
    return torch.nn.functional.pad(padded, (0, width - padded.shape[1]))
