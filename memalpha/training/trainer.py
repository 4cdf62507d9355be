"""GRPO over chunk steps, as a subclass of TRL's trainer (``trl>=1.16,<1.17``). Only this module
uses trl's internals.

A batch of rollouts becomes rows, one per (rollout, chunk), ordered (instance, chunk, rollout). TRL
pads them and computes old and reference log-probabilities, the loss and its metrics; rollouts,
rewards, advantages, packing and the number of rows are ours.
``tool_mask`` is 0 for what a search found, which has no loss, and all of a padding row, which
(rewards NaN) enters no statistic; a masked row has advantage 0, but counts in the loss's mean and
KL. Random numbers depend on (seed, step, rank) only, except vLLM's.
"""

import logging
import math
import random
import shutil
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from peft import PeftModel
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import RepeatSampler

from memalpha.agent.rollout import Rollout, StepCallback, run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, TrainingAborted
from memalpha.files import file_sha256
from memalpha.generation.merging import restored
from memalpha.generation.products import Products, using
from memalpha.generation.vllm_server import VLLMServers
from memalpha.protocols import Generator
from memalpha.rewards.total import StepReward
from memalpha.training.checkpoints import WholeCheckpoints
from memalpha.training.config import RunOptions
from memalpha.training.overlap import Part, at_once, in_background, joined, parts_of
from memalpha.training.packed import packed_logps, pad, trim, unpad
from memalpha.training.rows import (
    STD_EPSILON,
    Scale,
    TrainingRow,
    build_rows,
    group_key,
    shuffle_advantages,
)
from memalpha.training.scoring import RolloutScorer, check_masked_share, first_error
from memalpha.training.sharding import Sharding, sharding_of, whole_weights
from memalpha.training.trl_generator import TRLGenerator
from memalpha.types import Instance, Sampling

logger = logging.getLogger(__name__)

MOST_APART = 0.5
"""Mean difference in nats between the log-probabilities of two engines for one policy; rounding to 16 bits gives .1."""

ROW_MEAN_LOSSES = ("grpo", "dr_grpo")
"""Losses that TRL divides by the number of rows, padding rows included."""


class MemoryGRPOTrainer(WholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """Trains a memory agent with GRPO. ``instances`` are indexed by the dataset's ``instance``
    column (``prompt`` is unused).
    """

    control: Any
    on_rollouts: Any = None
    """Called with (rollouts, rows, rewards) after each batch."""
    validate: Any = None
    """Called by all ranks every ``eval_steps`` steps; returns the means over held-out instances by name."""

    def __init__(
        self,
        *,
        agent: AgentStep,
        instances: Sequence[Instance],
        generator: Generator | None,
        scorer: RolloutScorer,
        options: RunOptions,
        **kwargs: Any,
    ) -> None:
        self.agent, self.instances, self.scorer, self.options = agent, instances, scorer, options
        self.skipped_in_a_row, self._shared = 0, list[int]()
        self.products = (
            Products()
        )  # of the frozen weights: neither a step nor a checkpoint changes them
        self.rows: list[TrainingRow | None] = []
        self._read_ahead, self._drawn = deque[Any](), deque[list[Part]]()
        self._scoring = threading.Lock()
        InputError.raise_if(
            kwargs["args"].use_vllm and isinstance(kwargs["model"], PeftModel),
            "use_vllm with an adapter",
            expected="full_finetuning, or vllm_urls for a LoRA policy",
        )
        kwargs["args"].reward_weights = [
            weight for _, weight in scorer.reward_config.parts.values()
        ]
        rounded = (
            kwargs["model"].parameters()
            if getattr(kwargs["model"], "is_loaded_in_4bit", False)
            else ()
        )
        exact = [(parameter, parameter.data) for parameter in rounded if parameter.requires_grad]
        init, reference = (
            kwargs["args"].model_init_kwargs,
            kwargs["args"].beta and not isinstance(kwargs["model"], PeftModel),
        )
        kwargs["args"].model_init_kwargs = (
            init if reference else None
        )  # where TRL loads no model, it says that it ignores them
        super().__init__(
            reward_funcs=[self._calculate_rewards] * len(scorer.reward_config.parts), **kwargs
        )
        self.reward_func_names = list(scorer.reward_config.parts)
        kwargs["args"].model_init_kwargs = init
        for (
            parameter,
            data,
        ) in (
            exact
        ):  # TRL rounds the adapters of a 4-bit base to bfloat16, where small steps are lost
            parameter.data = data.to(parameter.device)
        InputError.raise_if(
            self.aux_loss_enabled,
            "router_aux_loss_coef of a mixture of experts",
            expected="0",
            fix="set router_aux_loss_coef: 0",
        )
        self.generator: Generator = generator or TRLGenerator(self)
        self._served = -1  # step whose adapter the vLLM servers hold
        if getattr(generator, "logprobs", False):  # drawn with other rounding, or by another engine
            self.use_vllm = (
                True  # TRL then weighs the loss by trained over sampled probability, and logs both
            )

    def run_rollouts(
        self, instances: Sequence[Instance], sampling: Sampling, on_step: StepCallback | None = None
    ) -> list[Rollout]:
        """Run this rank's rollouts with the current weights. If TRL generates, all ranks must call
        it together.
        """
        if isinstance(self.generator, TRLGenerator):
            rollouts = run_rollouts(
                instances, self.agent, self.generator, sampling, on_step=on_step
            )
            self.generator.finish(sampling)
            return rollouts
        if isinstance(self.generator, VLLMServers):
            if self._served != self.state.global_step:
                self._hand_over(self.generator)
            return run_rollouts(instances, self.agent, self.generator, sampling, on_step=on_step)
        self.products.clear()  # room for those of the merged weights
        zero3 = sharding_of(self.accelerator) is Sharding.ZERO3
        with (
            unwrap_model_for_generation(self.model_wrapped, self.accelerator)
            if zero3
            else nullcontext(),
            whole_weights(self.model, self.accelerator),
            self.accelerator.autocast(),
        ):
            return run_rollouts(instances, self.agent, self.generator, sampling, on_step=on_step)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log the means of held-out rollouts with the current weights as ``eval_NAME``, and return
        them.
        """
        means = {f"eval_{name}": value for name, value in self.validate().items()}
        super(GRPOTrainer, self).log(
            means
        )  # TRL's would add the means of training since the last log, and forget them
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, means)
        return means

    def _hand_over(self, servers: VLLMServers) -> None:
        for parts in self._drawn:  # a rollout keeps its policy
            joined([part.rollouts for part in parts])
        served = Path(self.args.output_dir) / "served"
        names: list[Any] = [None]
        with whole_weights(self.model, self.accelerator):
            policy = self.accelerator.unwrap_model(self.model)
            weights = {
                name: parameter.detach()
                for name, parameter in policy.named_parameters()
                if ".lora_" in name
            }
            if self.accelerator.is_main_process:
                policy.save_pretrained(served / "next", state_dict=weights)
                names = [
                    f"memalpha-{file_sha256(served / 'next' / 'adapter_model.safetensors')[:16]}"
                ]
                if not (served / names[0]).exists():
                    (served / "next").rename(served / names[0])
                servers.load(names[0], served / names[0])
                for old in served.iterdir():
                    if old.name != names[0]:
                        shutil.rmtree(old)
        broadcast_object_list(names)
        servers.use(names[0], served / names[0])
        if self._served < 0:
            self._check_same_policy(servers)
        self._served = self.state.global_step

    def _check_same_policy(self, servers: VLLMServers) -> None:
        """Raise InputError unless the servers give a short completion the probability that the
        policy gives it.
        """
        memory = self.agent.new_memory()
        prompt = self.agent.prompt(
            memory, self.agent.new_retriever(memory), self.instances[0].chunks[0]
        )
        (drawn,) = servers.generate([prompt], Sampling(8, self.temperature))
        ids = torch.tensor([[*prompt.ids, *drawn.ids]], device=self.accelerator.device)
        with torch.no_grad():
            logps, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids, torch.ones_like(ids), len(drawn.ids)
            )
        apart = float((logps[0].cpu() - torch.tensor(drawn.logprobs)).abs().mean())
        InputError.raise_if(
            apart > MOST_APART,
            f"log-probabilities of the vLLM servers differ from the policy's by {apart:.2f}",
            expected=f"at most {MOST_APART}",
            fix="serve the base model that is trained",
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with restored(self.model.parameters(), "requires_grad"):
            real = self._scored_rows(inputs)
            self.rows = [*real, *[None] * (self._padded_count(len(real)) - len(real))]
            self._shared = [row.shared if row else 0 for row in self.rows]
            batch: dict[str, Any] = super()._generate_and_score_completions(
                [{"prompt": ""}] * len(self.rows)
            )
        self._log_silent_groups(real)
        device = batch["advantages"].device
        batch["advantages"] = torch.tensor(
            [row.advantage if row else 0.0 for row in self.rows], device=device
        )
        batch["row_order"] = torch.arange(len(self.rows), device=device)
        batch["row_shared"] = torch.tensor(self._shared, device=device)
        batch["real_rows"] = self.sum_over_ranks([len(real)])[0]
        return batch

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Read as far ahead as rollouts are drawn, in one epoch."""
        ahead = self.options.staleness * self.args.steps_per_generation * self.num_iterations
        self._read_ahead += islice(
            epoch_iterator, max(0, num_batches + ahead - len(self._read_ahead))
        )
        return [
            self._read_ahead.popleft() for _ in range(min(num_batches, len(self._read_ahead)))
        ], None

    def _draw_ahead(self, inputs: list[dict[str, Any]]) -> list[Part]:
        """Draw this batch, and those that ``staleness`` allows beside it, unless they are drawn
        already.
        """
        every = self.args.steps_per_generation * self.num_iterations
        while len(self._drawn) <= self.options.staleness:
            ahead = len(self._drawn) * every
            if ahead and (
                ahead > len(self._read_ahead)
                or self.state.global_step + ahead >= self.state.max_steps
            ):
                break
            self._drawn.append(
                self._draw(
                    self._read_ahead[ahead - 1] if ahead else inputs, self.state.global_step + ahead
                )
            )
        return self._drawn.popleft()

    def _draw(self, inputs: list[dict[str, Any]], step: int) -> list[Part]:
        instances = [self._asked(self.instances[x["instance"]], step) for x in inputs]
        servers = isinstance(self.generator, VLLMServers) and self.options.overlaps
        if isinstance(self.generator, VLLMServers) and self._served != self.state.global_step:
            self._hand_over(self.generator)

        def part(number: int, where: slice) -> Part:
            some, sampling = instances[where], self._sampling(step, number)
            if servers:
                rollouts = in_background(
                    lambda: run_rollouts(some, self.agent, self.generator, sampling)
                )
            else:
                rollouts = at_once(lambda: self.run_rollouts(some, sampling))
            return Part(
                rollouts,
                in_background(lambda: self._score(rollouts)) if self.options.overlaps else None,
            )

        slices = parts_of(len(instances), self.num_generations, self.options.scoring_parts)
        return [part(number, where) for number, where in enumerate(slices)]

    def _score(self, rollouts: Future[list[Rollout]]) -> list[list[StepReward]]:
        drawn = rollouts.result()
        with self._scoring:
            return self.scorer.score(drawn)

    def _scored_rows(self, inputs: list[dict[str, Any]]) -> list[TrainingRow]:
        with self._timed("rollouts"):
            parts = self._draw_ahead(inputs)
            rollouts = joined([part.rollouts for part in parts])
        with self._timed("scoring"):
            rewards = joined(
                [part.rewards or at_once(lambda: self._score(part.rollouts)) for part in parts]  # noqa: B023
            )
        scale, config = Scale(self.scale_rewards), self.scorer.reward_config
        rows = build_rows(
            rollouts, rewards, self.num_generations, config, self.options.grouping, scale
        )
        if scale is Scale.BATCH:
            self._divide_by_batch(rows)
        if self.options.shuffle_advantages:
            shuffle_advantages(rows, seed=self.state.global_step)
        self._log_rollouts(rollouts, rewards)
        if self.on_rollouts:
            self.on_rollouts(rollouts, rows, rewards)
        masked, total = self.sum_over_ranks([self.scorer.masked(rewards), len(rewards)]).tolist()
        errors = gather_object([first_error(rollouts)]) if masked else []
        check_masked_share(int(masked), int(total), self.scorer.max_masked_share, errors)
        return rows

    def _asked(self, instance: Instance, step: int) -> Instance:
        count = math.ceil(self.options.question_share * len(instance.questions))
        rng = random.Random(f"questions/{self.args.seed}/{step}/{instance.id}")
        places = sorted(rng.sample(range(len(instance.questions)), count))
        return replace(instance, questions=tuple(instance.questions[place] for place in places))

    def _divide_by_batch(self, rows: Sequence[TrainingRow]) -> None:
        known = [row.total for row in rows if not math.isnan(row.total)]
        count, total = self.sum_over_ranks([len(known), sum(known)]).tolist()
        squares = self.sum_over_ranks(
            [sum((value - total / max(count, 1)) ** 2 for value in known)]
        ).item()
        std = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
        for row in rows:
            row.advantage /= std + STD_EPSILON

    def _sampling(self, step: int, part: int) -> Sampling:
        name = f"{self.args.seed}/{step}/{self.accelerator.process_index}" + (
            f"/{part}" if part else ""
        )
        seed = random.Random(name).getrandbits(40)
        return Sampling(
            self.max_completion_length, self.temperature, self.top_p, self.top_k or 0, seed
        )

    def _padded_count(self, rows: int) -> int:
        unit = math.lcm(self.num_generations, self.args.steps_per_generation)
        gathered = self.accelerator.gather(torch.tensor([rows], device=self.accelerator.device))
        return math.ceil(int(gathered.max()) / unit) * unit

    def sum_over_ranks(self, values: Sequence[float]) -> torch.Tensor:
        """Add each value over ranks, (len(values),) float32."""
        local = torch.tensor([list(values)], dtype=torch.float32, device=self.accelerator.device)
        return self.accelerator.gather(local).sum(0)  # type: ignore[no-any-return]

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        end = self._tokenizer.eos_token_id
        filler = TrainingRow(
            0, 0, 0, (end,), (end,), 0, StepReward(), math.nan, logprobs=(0.0,), mask=(False,)
        )
        rows = [row or filler for row in self.rows]
        self._log_lengths([row for row in self.rows if row])
        for queue in (
            *self._logs["rewards"].values(),
            self._logs["prompt"],
            self._logs["completion"],
            self._logs["advantages"],
        ):
            queue.clear()
        mask = [[*map(int, row.mask or [True] * len(row.completion_ids))] for row in rows]
        logprobs = (
            [list(row.logprobs or ()) for row in rows]
            if all(row.logprobs for row in rows)
            else None
        )
        completions = ["" for _ in rows]
        return (
            [list(r.prompt_ids) for r in rows],
            [list(r.completion_ids) for r in rows],
            mask,
            completions,
            logprobs,
            {},
            None,
            [],
        )

    def _calculate_rewards(self, *_: Any) -> torch.Tensor:
        nan = [math.nan] * len(self.scorer.reward_config.parts)
        parts = [
            list(row.reward.values()) if row and not math.isnan(row.total) else nan
            for row in self.rows
        ]
        return self.accelerator.gather(torch.tensor(parts, device=self.accelerator.device))  # type: ignore[no-any-return]

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._metrics["train"][f"time/{part}"].append(time.perf_counter() - began)

    def _log_lengths(self, rows: Sequence[TrainingRow]) -> None:
        cut = sum(row.completion_ids[-1] not in self.eos_token_ids for row in rows)
        tokens = sum(len(r.prompt_ids) + len(r.completion_ids) for r in rows)
        sampled = sum(len(r.completion_ids) if r.mask is None else sum(r.mask) for r in rows)
        totals = [
            len(rows),
            sampled,
            tokens - sampled,
            cut,
        ]  # what a search found is read, as the prompt is
        count, written, read, cut = self.sum_over_ranks(totals).tolist()
        self.state.num_input_tokens_seen += int(written + read)
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        means = {
            "completions/mean_length": written,
            "completions/clipped_ratio": cut,
            "prompts/mean_length": read,
        }
        for name, value in means.items():
            self._metrics["train"][name].append(value / count)
        self._metrics["train"]["rows"].append(count)

    def _log_rollouts(
        self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]
    ) -> None:
        metrics = self.scorer.metrics(rollouts, rewards)
        sums = (
            self.sum_over_ranks([number for pair in metrics.values() for number in pair])
            .view(-1, 2)
            .tolist()
        )
        for name, (total, count) in zip(metrics, sums, strict=True):
            if count:
                self._metrics["train"][f"memory/{name}"].append(total / count)

    def _log_silent_groups(self, rows: Sequence[TrainingRow]) -> None:
        groups: dict[tuple[int, int], set[float]] = defaultdict(set)
        for row in rows:
            groups[group_key(row, self.options.grouping)] |= (
                set() if math.isnan(row.total) else {row.total}
            )
        silent, count = self.sum_over_ranks(
            [sum(len(totals) < 2 for totals in groups.values()), len(groups)]
        ).tolist()
        self._metrics["train"]["frac_reward_zero_std"][-1] = silent / count

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        sampler.__class__, sampler.trainer = EpochSampler, self
        sampler.sources = [
            self.instances[index].source for index in sampler.data_source["instance"]
        ]
        return sampler

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return (
            generation_batch
            if "completion_ids" in generation_batch
            else super()._prepare_inputs(generation_batch)
        )

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward over one step, ``rows_per_forward`` rows at a time; gradients sync
        once, at the end.
        """
        model.train()  # before the inputs: TRL decides by this mode
        batch, step = self._prepare_inputs(inputs), self._step
        most = self.options.rows_per_forward
        order = batch[
            "row_order"
        ].argsort()  # undo TRL's shuffle, so that a group's rows share their prefix
        total, state = torch.zeros((), device=self.args.device), self.accelerator.gradient_state
        outer = state.sync_gradients
        for start in range(0, len(order), most):
            part, last = order[start : start + most], start + most >= len(order)
            state._set_sync_gradients(outer and last)
            sync = nullcontext() if last else self.accelerator.no_sync(model)
            with using(self.products), sync, explain_out_of_memory(most):
                rows = {
                    name: value if value.ndim == 0 else value[part] for name, value in batch.items()
                }
                total = total + super().training_step(model, rows, num_items_in_batch)
        state._set_sync_gradients(outer)
        self._step = step + 1  # TRL counted and timed every part
        times, parts = self._metrics["train"]["step_time"], math.ceil(len(order) / most)
        times[-parts:] = [sum(times[-parts:])]
        return total if self._keep_step(model, total) else torch.zeros_like(total)

    def _keep_step(self, model: torch.nn.Module, loss: torch.Tensor) -> bool:
        finite = bool(torch.isfinite(loss)) and finite_gradients(model)
        skip = bool(self.sum_over_ranks([not finite]))
        if skip:
            model.zero_grad()
            logger.warning(
                "step %d is skipped: loss or gradient is not finite", self.state.global_step + 1
            )
        self._metrics["train"]["skipped"].append(float(skip))
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skip else 0
        in_engine = (
            self.accelerator.distributed_type is DistributedType.DEEPSPEED
        )  # it has stepped already
        TrainingAborted.raise_if(
            self.skipped_in_a_row > (0 if in_engine else self.options.max_skipped_steps),
            f"step {self.state.global_step + 1}: loss or gradient is not finite, "
            f"{self.skipped_in_a_row} steps in a row (max_skipped_steps = {self.options.max_skipped_steps})",
            fix="lower learning_rate or max_grad_norm, and see the rewards in trajectories/",
        )
        return not skip

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = trim(dict(inputs))
        real_rows = inputs.pop("real_rows")
        inputs.pop("row_order")
        self._shared = inputs.pop("row_shared").tolist()
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        if self.loss_type in ROW_MEAN_LOSSES:
            splits = self.args.steps_per_generation
            loss = (
                loss
                * len(inputs["advantages"])
                * self.accelerator.num_processes
                * splits
                / real_rows
            )
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        most = self.options.rows_per_forward
        if not self.options.share_prefix:
            return super()._get_per_token_logps_and_entropies(  # type: ignore[no-any-return]
                model, input_ids, attention_mask, logits_to_keep, most, compute_entropy, **kwargs
            )
        rows = unpad(
            input_ids, attention_mask, logits_to_keep, self._shared or [0] * len(input_ids)
        )
        logps, entropies = [], []
        for start in range(0, len(rows), most):
            some = rows[start : start + most]
            with using(self.products), self.accelerator.autocast():
                part = packed_logps(
                    model, some, temperature=self.temperature, compute_entropy=compute_entropy
                )
            logps += part.logps
            entropies += part.entropies or []
        return (
            pad(logps, logits_to_keep),
            pad(entropies, logits_to_keep) if compute_entropy else None,
            None,
        )


def finite_gradients(model: torch.nn.Module) -> bool:
    """Return whether every gradient is finite (under sharding: of this rank's part; DeepSpeed: in
    the last step, by their norm).
    """
    if norm_of := getattr(
        model, "get_global_grad_norm", None
    ):  # DeepSpeed shows no p.grad; -1 is a norm that is not finite
        if (norm := norm_of()) is None:
            raise InputError(
                "DeepSpeed computes no gradient norm", expected="ZeRO stage 1, 2 or 3 with its norm"
            )
        return 0 <= float(norm) < math.inf
    gradients = [
        p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        for p in model.parameters()
        if p.grad is not None
    ]
    largest = [gradient.abs().amax().float() for gradient in gradients if gradient.numel()]
    return not largest or bool(torch.stack(largest).isfinite().all())


@contextmanager
def explain_out_of_memory(rows: int) -> Iterator[None]:
    """Turn out-of-memory errors into TrainingAborted, which names the option to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(
            error, MemoryError | torch.OutOfMemoryError
        ) and "can't allocate memory" not in str(error):
            raise
        advice = (
            f"lower rows_per_forward (now {rows})"
            if rows > 1
            else "shorten chunks, view_tokens or max_completion_length"
        )
        raise TrainingAborted(
            f"out of memory in the update, with rows_per_forward = {rows}: {str(error).splitlines()[0]}",
            fix=f"{advice}; on a GPU also bf16 or gradient_checkpointing",
        ) from error


class EpochSampler(RepeatSampler):  # type: ignore[misc]
    """TRL's sampler with the order of :func:`spread`, by (seed, epoch) only, so a resumed run
    repeats it.
    """

    trainer: Any
    sources: Sequence[str]

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.num_samples))
        if self.shuffle:
            order = spread(self.sources, self.seed + int(self.trainer.state.epoch or 0))
        positions = RepeatSampler(
            order, self.mini_repeat_count, self.batch_size, self.repeat_count, shuffle=False
        )
        for position in positions:
            yield order[position]


def spread(sources: Sequence[str], seed: int) -> list[int]:
    """Return a random order in which each source comes at even intervals: steps of one source alone
    unlearn the others.
    """
    generator = torch.Generator().manual_seed(seed)
    members: dict[str, list[int]] = defaultdict(list)
    for index in torch.randperm(len(sources), generator=generator).tolist():
        members[sources[index]].append(index)
    places = []
    for name in sorted(members):
        first = float(torch.rand((), generator=generator))
        places += [
            ((rank + first) / len(members[name]), index) for rank, index in enumerate(members[name])
        ]
    return [index for _, index in sorted(places)]
