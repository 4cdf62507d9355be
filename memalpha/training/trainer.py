"""GRPO over chunk steps: draw, score, make rows, go forward and backward.

A step of :class:`MemoryGRPOTrainer`, from top to bottom: take rollouts and their rewards
(``sampling.py``), make rows of them (``rows.py``: one per chunk step, ordered instance, chunk,
rollout), compute the log-probabilities of before and the loss (``loss.py``, where TRL's trainer
is). transformers' is the loop around.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from torch import Tensor
from transformers import Trainer
from trl.models import unwrap_model_for_generation

from memalpha.agent.rollout import (
    BeginEpisodes,
    Rollout,
    StepCallback,
    memory_episodes,
    run_episodes,
)
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, TrainingAborted
from memalpha.generation.products import restoring, using
from memalpha.rewards import StepReward
from memalpha.training.checkpoints import WholeCheckpoints
from memalpha.training.config import RunOptions
from memalpha.training.loss import PackedGRPOTrainer
from memalpha.training.precision import overflow
from memalpha.training.rows import (
    STD_EPSILON,
    Scale,
    TrainingRow,
    UpdateBatch,
    padding_row,
    shuffle_advantages,
)
from memalpha.training.sampling import DrawPlan, RolloutSampler
from memalpha.training.scoring import RolloutScorer, check_masked_share, first_error
from memalpha.training.weights import Sharding, hand_over, sharding_of, whole_weights
from memalpha.types import AdapterEngine, Generator, Instance, Sampling

_logger = logging.getLogger(__name__)


class MemoryGRPOTrainer(WholeCheckpoints, PackedGRPOTrainer):
    """Trains a memory agent with GRPO. The model has gone through ``prepare_policy``."""

    control: Any
    on_rollouts: Any = None
    """Called with (rollouts, rows, rewards) after each draw."""
    validate: Any = None
    """Called by all ranks every ``eval_steps`` steps; returns the means over held-out instances by
    name."""

    def __init__(
        self,
        *,
        model: Any,
        args: Any,
        agent: AgentStep,
        instances: Sequence[Instance],
        generator: Generator,
        scorer: RolloutScorer,
        options: RunOptions,
        begin: BeginEpisodes = memory_episodes,
        **kwargs: Any,
    ) -> None:
        self.agent = agent
        self.scorer = scorer
        self.begin = begin
        self.skipped_in_a_row = 0
        self.has_stepped = False
        self._served = -1  # step whose adapter vLLM holds
        places = Dataset.from_dict({"instance": range(len(instances))})  # read for its length only
        super().__init__(
            model=model,
            args=args,
            options=options,
            generator=generator,
            reward_funcs=scorer.score,  # TRL wants one, and does not call it here
            train_dataset=places,
            eval_dataset=None if args.eval_strategy == "no" else places,
            **kwargs,
        )
        plan = DrawPlan(
            rollouts=self.args.generation_batch_size,
            group_size=self.num_generations,
            steps=self.steps_per_draw,
            seed=self.args.seed,
            rank=self.accelerator.process_index,
            ranks=self.accelerator.num_processes,
            sampling=Sampling(
                self.max_completion_length, self.temperature, self.top_p, self.top_k or 0
            ),
            staleness=options.staleness,
            question_share=options.question_share,
        )
        self.sampler = RolloutSampler(
            agent, instances, generator, scorer, begin, plan, self._ready_to_draw
        )

    # One step ------------------------------------------------------------------------------------

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Draw rollouts if they are due, and go forward and backward over one update batch, in
        micro-batches of ``rows_per_forward``; gradients sync once, at the end.

        ``inputs``, what transformers' loader gives, is ignored: the step number says what is read.
        """
        step = self.state.global_step
        if not self.update_batches or step % self.steps_per_draw == 0:
            model.train()
            self.update_batches = self._next_update_batches()
        # a draw has steps_per_generation update batches, and passes through them in turn
        update_batch = self.update_batches[step % self.args.steps_per_generation]
        with self._timed("step_time"), explain_out_of_memory(self.options.rows_per_forward):
            total = self._backward(model, update_batch, num_items_in_batch)
        return total if self._keep_step(model, total) else torch.zeros_like(total)

    def _backward(
        self,
        model: Any,
        update_batch: UpdateBatch,
        num_items_in_batch: Any,
        *,
        ends_step: bool = True,
    ) -> Tensor:
        """Add the gradients of the micro-batches, and return their summed loss."""
        micro_batches = update_batch.micro_batches(self.options.rows_per_forward)
        total = torch.zeros((), device=self.args.device)
        for micro_batch in micro_batches:
            last = ends_step and micro_batch is micro_batches[-1]
            self.accelerator.sync_gradients = last
            sync = nullcontext() if last else self.accelerator.no_sync(model)
            with using(self.products), sync:
                # transformers' step: TRL's draws, and counts every micro-batch as a step
                loss = Trainer.training_step(self, model, micro_batch, num_items_in_batch)
                total = total + loss
        return total

    def _next_update_batches(self) -> list[UpdateBatch]:
        """Return the scored rows of a new draw, in ``steps_per_generation`` update batches."""
        self.products.clear()  # the adapters have changed since
        rollouts, rewards = self._drawn_and_scored()
        rows = self._rows(rollouts, rewards)
        self._record_rollouts(rollouts, rewards, rows)
        if self.on_rollouts:
            self.on_rollouts(rollouts, rows, rewards)
        masked, count = self.sum_over_ranks([self.scorer.masked(rewards), len(rewards)]).tolist()
        errors = gather_object([first_error(rollouts)])
        check_masked_share(int(masked), int(count), self.scorer.max_masked_share, errors)
        trained = sum(sum(row.mask) for row in rows)
        row_count, token_count = self.sum_over_ranks([len(rows), trained])
        rows = self._with_padding(rows)
        frozen = restoring(self.model.parameters(), "requires_grad")
        with torch.no_grad(), frozen, self._timed("time/logps"):
            self._logps_before(rows)
        # a step gets random rows, but in their order, in which neighbours share their prefix
        places = torch.randperm(len(rows)).chunk(self.args.steps_per_generation)
        update_batches = []
        for part in places:
            own = [rows[place] for place in sorted(part.tolist())]
            update_batches.append(UpdateBatch(own, row_count, token_count))
        return update_batches

    def _keep_step(self, model: torch.nn.Module, loss: torch.Tensor) -> bool:
        finite_loss = bool(torch.isfinite(loss))
        finite = finite_loss and finite_gradients(model)
        wrong_losses, wrong = self.sum_over_ranks([not finite_loss, not finite]).tolist()
        skip = bool(wrong)
        step = self.state.global_step + 1
        scaler = self.accelerator.scaler  # in float16; it has not divided the gradients yet
        scale = 1.0
        at_scale = ""
        if scaler is not None:
            scale = scaler.get_scale()
            at_scale = f" at loss scale {scale:g}"
            self._record({"loss_scale": scale})
        if skip:
            _logger.warning(
                "step %d is skipped, since loss or gradient is not finite%s", step, at_scale
            )
        if skip and scaler is not None:
            overflow(model)
        elif skip:
            model.zero_grad()
        self._record({"skipped": float(skip)})
        # Until this process has taken a step, the scaler looks for its scale, from 65,536 down to 1
        # if need be: no failure yet. But the loss looked at is not scaled.
        looking = scale > 1 and not wrong_losses and not self.has_stepped
        if not skip:
            self.skipped_in_a_row = 0
            self.has_stepped = True
        elif not looking:
            self.skipped_in_a_row += 1
        # DeepSpeed's engine has stepped already
        stepped = self.accelerator.distributed_type is DistributedType.DEEPSPEED
        most = self.options.max_skipped_steps
        if self.skipped_in_a_row > (0 if stepped else most):
            raise TrainingAborted(
                f"step {step}: loss or gradient is not finite{at_scale}, {self.skipped_in_a_row} "
                f"steps in a row (max_skipped_steps = {most})",
                fix="lower learning_rate or max_grad_norm, and look at the rewards in "
                "trajectories/",
            )
        return not skip

    # Rollouts ------------------------------------------------------------------------------------

    def draw_rollouts(
        self, instances: Sequence[Instance], sampling: Sampling, on_step: StepCallback | None = None
    ) -> list[Rollout]:
        """Run this rank's rollouts with the current weights; all ranks call it together."""
        with self._ready_to_draw():
            episodes = self.begin(instances, self.agent)
            return run_episodes(episodes, self.generator, sampling, on_step)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log the means of held-out rollouts with the current weights as ``eval_NAME``, and return
        them.
        """
        means = {f"eval_{name}": value for name, value in self.validate().items()}
        self.model.eval()  # TRL then adds no means of training
        self.log(means)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, means)
        return means

    @contextmanager
    def _ready_to_draw(self) -> Iterator[None]:
        """Have whole weights here, or the current adapter in vLLM."""
        if isinstance(self.generator, AdapterEngine):
            with self.generator.awake():
                if self._served != self.state.global_step:
                    self._hand_over(self.generator)
                yield
            return
        self.products.clear()  # room for those of the merged weights
        gathered: Any = nullcontext()
        if sharding_of(self.accelerator) is Sharding.ZERO3:
            gathered = unwrap_model_for_generation(self.model_wrapped, self.accelerator)
        with gathered, whole_weights(self.model, self.accelerator), self.accelerator.autocast():
            yield

    def _hand_over(self, engine: AdapterEngine) -> None:
        self.sampler.wait()
        hand_over(self.model, self.accelerator, engine, Path(self.args.output_dir) / "served")
        self._served = self.state.global_step

    def _drawn_and_scored(self) -> tuple[list[Rollout], list[list[StepReward]]]:
        """Return the rollouts of a draw and the rewards of their steps."""
        with self._timed("time/rollouts"):
            drawn = self.sampler.take(self.state.global_step, self.state.max_steps)
            rollouts = drawn.rollouts.result()
        with self._timed("time/scoring"):
            rewards = drawn.rewards.result()
        return rollouts, rewards

    # Rows ----------------------------------------------------------------------------------------

    def _rows(
        self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]
    ) -> list[TrainingRow]:
        scale = Scale(self.scale_rewards)
        config = self.scorer.reward_config
        size = self.num_generations
        rows = self.scorer.credit.rows(rollouts, rewards, size, config, scale, self.agent)
        if scale is Scale.BATCH:
            _, std = self._mean_and_std([row.total for row in rows])
            for row in rows:
                row.advantage /= std + STD_EPSILON
        if self.options.shuffle_advantages:
            shuffle_advantages(rows, seed=self.state.global_step)
        for row in rows:
            row.left_out = self.args.mask_truncated_completions and self._cut_off(row)
        return rows

    def _cut_off(self, row: TrainingRow) -> bool:
        return row.completion_ids[-1] not in self.eos_token_ids

    def _mean_and_std(self, values: Sequence[float]) -> tuple[float, float]:
        """Mean and unbiased standard deviation over ranks of what is not NaN."""
        known = [value for value in values if not math.isnan(value)]
        count, total = self.sum_over_ranks([len(known), sum(known)]).tolist()
        mean = total / count if count else math.nan
        squares = self.sum_over_ranks([sum((value - mean) ** 2 for value in known)]).item()
        return mean, math.sqrt(squares / (count - 1)) if count > 1 else 0.0

    def _with_padding(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        """Return the rows with those that all ranks need to have equally many."""
        missing = self._padded_count(len(rows)) - len(rows)
        return [*rows, *(padding_row(self.processing_class.eos_token_id) for _ in range(missing))]

    def _padded_count(self, rows: int) -> int:
        splits = self.args.steps_per_generation
        most: int = max(gather_object([rows]))
        return int(math.ceil(most / splits) * splits)

    # What is logged ------------------------------------------------------------------------------

    def _record_rollouts(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[Sequence[StepReward]],
        rows: Sequence[TrainingRow],
    ) -> None:
        metrics = self.scorer.metrics(rollouts, rewards)
        sums = self.sum_over_ranks([number for pair in metrics.values() for number in pair])
        for name, (total, count) in zip(metrics, sums.view(-1, 2).tolist(), strict=True):
            if count:
                self._record({name: total / count})
        self._record_lengths(rows)
        groups: dict[tuple[int, int], set[float]] = defaultdict(set)
        for row in rows:
            known = set() if math.isnan(row.total) else {row.total}
            groups[self.scorer.credit.group_key(row, self.num_generations)] |= known
        alike = sum(len(totals) < 2 for totals in groups.values())
        silent, count = self.sum_over_ranks([alike, len(groups)]).tolist()
        mean, std = self._mean_and_std([row.total for row in rows])
        self._record({"reward": mean, "reward_std": std, "frac_reward_zero_std": silent / count})

    def _record_lengths(self, rows: Sequence[TrainingRow]) -> None:
        cut_off = sum(map(self._cut_off, rows))
        written = sum(len(row.completion_ids) for row in rows)
        read = sum(len(row.prompt_ids) for row in rows)
        local = [len(rows), written, read, cut_off]
        count, written, read, cut_off = self.sum_over_ranks(local).tolist()
        self.state.num_input_tokens_seen += int(written + read)
        self.training_metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        self._record(
            {
                "rows": count,
                "completions/mean_length": written / count,
                "completions/clipped_ratio": cut_off / count,
                "prompts/mean_length": read / count,
            }
        )


def finite_gradients(model: torch.nn.Module) -> bool:
    """Return whether every gradient is finite (under sharding: of this rank's part; DeepSpeed: in
    the last step, by their norm).
    """
    norm_of = getattr(model, "get_global_grad_norm", None)
    if norm_of:  # DeepSpeed shows no p.grad; -1 is a norm that is not finite
        norm = norm_of()
        if norm is None:
            raise InputError(
                "DeepSpeed computes no gradient norm",
                expected="ZeRO stage 1, 2 or 3, which computes it",
            )
        return 0 <= float(norm) < math.inf
    largest = []
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        if gradient is not None:
            gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            largest += [gradient.abs().amax().float()] if gradient.numel() else []
    return not largest or bool(torch.stack(largest).isfinite().all())


@contextmanager
def explain_out_of_memory(rows: int) -> Iterator[None]:
    """Turn out-of-memory errors into TrainingAborted, which names the option to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not of_memory and "can't allocate memory" not in str(error):
            raise
        advice = "lower view_tokens or max_completion_length, or shorten the chunks"
        if rows > 1:
            advice = f"lower rows_per_forward, which is {rows}"
        raise TrainingAborted(
            "the memory is not enough for the update with rows_per_forward = "
            f"{rows}: {str(error).splitlines()[0]}",
            fix=f"{advice}; on a GPU bf16 or gradient_checkpointing also help",
        ) from error
