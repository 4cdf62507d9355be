"""GRPO over chunk steps, as a subclass of TRL's trainer (``trl>=1.16,<1.17``).

A step of :class:`MemoryGRPOTrainer`, from top to bottom: draw rollouts and score them, make rows of
them (one per chunk step, ordered instance, chunk, rollout), compute the log-probabilities of
before, then forward and backward over the rows. TRL's is the loss, transformers' the loop around.
Draw, update batch and micro-batch are defined in ``rows.py``; only rewards are called scores.

Rows without a loss fill up the ranks that have fewer; they enter no statistic. A masked row has
advantage 0, but counts in the loss's mean and its KL term. Random numbers depend on (seed, step,
rank) only, except those of vLLM servers.
"""

import logging
import math
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import use_adapter

from memalpha.agent.rollout import (
    BeginEpisodes,
    Rollout,
    StepCallback,
    memory_episodes,
    run_episodes,
)
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, TrainingAborted
from memalpha.generation.hf import end_ids
from memalpha.generation.products import Products, restored, using
from memalpha.rewards import StepReward
from memalpha.training.checkpoints import WholeCheckpoints
from memalpha.training.config import RunOptions
from memalpha.training.importance import GAP, gap_statistics, importance_weights
from memalpha.training.precision import check_scaler, overflow
from memalpha.training.rows import (
    STD_EPSILON,
    Scale,
    TrainingRow,
    UpdateBatch,
    padding_row,
    shuffle_advantages,
)
from memalpha.training.schedule import (
    Drawn,
    at_once,
    in_background,
    instances_of_draw,
    of_each_kind,
)
from memalpha.training.scoring import RolloutScorer, check_masked_share, first_error
from memalpha.training.weights import Sharding, hand_over, sharding_of, whole_weights
from memalpha.types import AdapterEngine, Generator, Instance, Sampling
from memalpha.update.logps import Row, TokenLogps, packed_logps
from memalpha.update.prepare import prepare_policy

logger = logging.getLogger(__name__)

MOST_APART = 0.5
"""Mean difference in nats between the log-probabilities of two engines for one policy; rounding to
16 bits gives .1."""

ROW_MEAN_LOSSES = ("grpo", "dr_grpo")
"""Losses that TRL divides by the number of rows, padding rows included."""


class MemoryGRPOTrainer(WholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
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
        self.instances = instances
        self.generator = generator
        self.scorer = scorer
        self.options = options
        self.begin = begin
        self.update_batches: list[UpdateBatch] = []  # of the draw at hand
        self.skipped_in_a_row = 0
        self.has_stepped = False
        self.products = Products()  # frozen weights, laid out to multiply fast
        self._drawn = deque[Drawn]()
        self._scoring = threading.Lock()
        self._served = -1  # step whose adapter vLLM holds
        places = Dataset.from_dict({"instance": range(len(instances))})  # read for its length only
        has_adapter = isinstance(model, PeftModel)
        in_4bit = getattr(model, "is_loaded_in_4bit", False)
        adapters = [p for p in model.parameters() if in_4bit and p.requires_grad]
        exact = [parameter.data for parameter in adapters]
        with restored([args], "model_init_kwargs"):
            if has_adapter or not args.beta:  # TRL loads no reference, and says it ignores them
                args.model_init_kwargs = None
            super().__init__(
                model=model,
                args=args,
                reward_funcs=scorer.score,  # TRL wants one, and does not call it here
                train_dataset=places,
                eval_dataset=None if args.eval_strategy == "no" else places,
                **kwargs,
            )
        # as the generator: TRL does not ask the chat template
        self.eos_token_ids = sorted(end_ids(self.model, self.processing_class))
        check_scaler(self.accelerator)
        for parameter, data in zip(adapters, exact, strict=True):  # TRL rounds those to 16 bits,
            parameter.data = data.to(parameter.device)  # where small steps are lost
        if self.ref_model is not None:
            prepare_policy(self.accelerator.unwrap_model(self.ref_model))
        if self.aux_loss_enabled:
            raise InputError(
                "router_aux_loss_coef of a mixture of experts",
                expected="0",
                fix="set router_aux_loss_coef: 0",
            )
        # Not vLLM itself: TRL's switch for importance weights. Log-probabilities that are kept were
        # drawn with other rounding, or by an older policy, so the loss needs such weights.
        self.use_vllm = bool(getattr(generator, "logprobs", False))
        self._weighs = self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def steps_per_draw(self) -> int:
        """Optimizer steps that train the same rollouts: its update batches times the passes."""
        return int(self.args.steps_per_generation * self.num_iterations)

    # One step ------------------------------------------------------------------------------------

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Draw rollouts if it is time, and go forward and backward over one update batch, in
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
        frozen = restored(self.model.parameters(), "requires_grad")
        with torch.no_grad(), frozen, self._timed("time/logps"):
            self._logps_before(rows)
        # a step gets random rows, but in their order, in which neighbours share their prefix
        places = torch.randperm(len(rows)).chunk(self.args.steps_per_generation)
        update_batches = []
        for part in places:
            own = [rows[place] for place in sorted(part.tolist())]
            update_batches.append(UpdateBatch(own, row_count, token_count))
        return update_batches

    def _logps_before(self, rows: Sequence[TrainingRow]) -> None:
        """Set the log-probabilities that the loss compares with, where it does."""
        if self.steps_per_draw > 1 or self.use_vllm:
            for row, of_policy in zip(rows, self._logps(self.model, rows), strict=True):
                row.old = of_policy.logps
        if self.use_vllm:
            self._weigh(rows)
        if self.beta:
            policy = self.accelerator.unwrap_model(self.model)
            with nullcontext() if self.ref_model else use_adapter(policy, "ref"):
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
                f"log-probabilities of vLLM differ from the policy's by {mean:.2f}",
                expected=f"at most {MOST_APART}",
                fix="serve the base model that is trained",
            )

    def _logps(
        self, model: Any, rows: Sequence[TrainingRow], compute_entropy: bool = False
    ) -> list[TokenLogps]:
        """Log-probabilities of completions, ``rows_per_forward`` at a time."""
        most = self.options.rows_per_forward
        logps: list[TokenLogps] = []
        packable = [Row(row.prompt_ids, row.completion_ids, row.shared) for row in rows]
        for start in range(0, len(rows), most):
            with using(self.products), self.accelerator.autocast():
                logps += packed_logps(
                    model,
                    packable[start : start + most],
                    temperature=self.temperature,
                    compute_entropy=compute_entropy,
                )
        return logps

    def _prepare_inputs(self, inputs: UpdateBatch) -> UpdateBatch:
        return inputs  # finished; TRL would draw and score here

    def compute_loss(
        self,
        model: Any,
        inputs: UpdateBatch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """Return TRL's loss of a micro-batch.

        TRL would run the model on padded rows; here the packed rows have had their forward already.
        So what travels to TRL as its ``model`` is (log-probabilities, entropies, None), and
        ``_get_per_token_logps_and_entropies``, where TRL asks a model for them, gives it back.

        With the default options TRL's ``_compute_loss`` is the same formula as ``loss_of`` in
        examples/grpo_in_one_file.py; tests/training/test_gradient.py compares the gradients.
        """
        rows = inputs.rows
        device = self.args.device
        of_rows = self._logps(model, rows, compute_entropy=True)
        mask = padded([list(map(int, row.mask)) for row in rows], device)
        tensors = {
            # TRL puts ids and masks together for a forward of its own, which does not take place
            **dict.fromkeys(("prompt_ids", "prompt_mask", "completion_ids"), mask),
            "completion_mask": mask,
            "advantages": torch.tensor([row.advantage for row in rows], device=device),
            "num_items_in_batch": inputs.token_count,
        }
        for name, field in (
            ("old_per_token_logps", "old"),
            ("ref_per_token_logps", "reference"),
            ("importance_sampling_ratio", "weight"),
            ("sampling_per_token_logps", "sampled"),
        ):
            values = [getattr(row, field) for row in rows]
            if not any(value is None for value in values):
                tensors[name] = padded(values, device)
        logps, entropies = (padded(values, device) for values in zip(*of_rows, strict=True))
        of_policy = (logps, entropies, None)
        loss: Tensor = self._compute_loss(of_policy, tensors)
        if self.loss_type in ROW_MEAN_LOSSES:
            # (sum / len(rows)) becomes sum / (row_count / splits) * ranks; syncing divides by ranks
            ranks_and_splits = self.accelerator.num_processes * self.args.steps_per_generation
            loss = loss * len(rows) * ranks_and_splits / inputs.row_count
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *_: Any, **__: Any) -> Any:
        return model  # TRL's loss asks here, with what compute_loss gave it

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
            logger.warning("step %d is skipped: loss or gradient is not finite%s", step, at_scale)
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
                fix="lower learning_rate or max_grad_norm, and see the rewards in trajectories/",
            )
        return not skip

    # Rollouts ------------------------------------------------------------------------------------

    def run_rollouts(
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
        for drawn in self._drawn:  # a rollout keeps its policy
            drawn.rollouts.result()
        hand_over(self.model, self.accelerator, engine, Path(self.args.output_dir) / "served")
        self._served = self.state.global_step

    def _drawn_and_scored(self) -> tuple[list[Rollout], list[list[StepReward]]]:
        """Return the rollouts of a draw and the rewards of their steps.

        With staleness 0: one draw, awaited at once. Else the draws of up to ``staleness`` later
        steps are begun before the oldest is taken.
        """
        with self._timed("time/rollouts"):
            while len(self._drawn) <= self.options.staleness:
                step = self.state.global_step + len(self._drawn) * self.steps_per_draw
                if self._drawn and step >= self.state.max_steps:
                    break
                self._drawn.append(self._draw(step))
            drawn = self._drawn.popleft()
            rollouts = drawn.rollouts.result()
        with self._timed("time/scoring"):
            rewards = drawn.rewards.result()
        return rollouts, rewards

    def _draw(self, step: int) -> Drawn:
        """Begin the rollouts that ``step`` trains; they are scored in the background."""
        engine = self.generator
        concurrent = isinstance(engine, AdapterEngine) and engine.concurrent
        start: Any = in_background if concurrent and self.options.staleness else at_once
        with self._ready_to_draw():
            instances = self._instances(step)
            sampling = self._sampling(step)
            run = partial(self.scorer.credit.draw, self.begin, instances, self.agent)
            rollouts = start(partial(run, self.generator, sampling, self.num_generations))
        return Drawn(rollouts, in_background(partial(self._score, rollouts)))

    def _score(self, rollouts: Any) -> list[list[StepReward]]:
        drawn = rollouts.result()
        with self._scoring:
            return self.scorer.score(drawn)

    def _instances(self, step: int) -> list[Instance]:
        """This rank's instances of a step, each ``num_generations`` times."""
        group = self.num_generations
        count = self.args.generation_batch_size // group
        sources = [instance.source for instance in self.instances]
        draw = step // self.steps_per_draw
        places = instances_of_draw(sources, draw, count, self.args.seed)
        share = self.args.generation_batch_size // self.accelerator.num_processes
        first = self.accelerator.process_index * share
        mine = [place for place in places for _ in range(group)][first : first + share]
        return [self._with_questions(self.instances[place], step) for place in mine]

    def _with_questions(self, instance: Instance, step: int) -> Instance:
        """Keep ``question_share`` of the questions of each kind, the same for a group."""
        count = math.ceil(self.options.question_share * len(instance.questions))
        rng = random.Random(f"questions/{self.args.seed}/{step}/{instance.id}")
        places = of_each_kind([question.kind for question in instance.questions], count, rng)
        return replace(instance, questions=tuple(instance.questions[place] for place in places))

    def _sampling(self, step: int) -> Sampling:
        name = f"{self.args.seed}/{step}/{self.accelerator.process_index}"
        seed = random.Random(name).getrandbits(40)
        longest = self.max_completion_length
        return Sampling(longest, self.temperature, self.top_p, self.top_k or 0, seed)

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

    def sum_over_ranks(self, values: Sequence[float]) -> torch.Tensor:
        """Add each value over ranks, (len(values),) float32."""
        local = torch.tensor([list(values)], dtype=torch.float32, device=self.accelerator.device)
        return self.accelerator.gather(local).sum(0)  # type: ignore[no-any-return]

    # What is logged ------------------------------------------------------------------------------

    def _record(self, values: Mapping[str, float]) -> None:
        """Add to the means that TRL logs."""
        for name, value in values.items():
            self._metrics["train"][name].append(value)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._record({name: time.perf_counter() - start})

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
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        self._record(
            {
                "rows": count,
                "completions/mean_length": written / count,
                "completions/clipped_ratio": cut_off / count,
                "prompts/mean_length": read / count,
            }
        )


def padded(values: Sequence[Any], device: torch.device) -> Tensor:
    """Return sequences or one-dimensional tensors as a (B, longest) tensor, padded with 0."""
    rows = [torch.as_tensor(value, device=device) for value in values]
    return pad_sequence(rows, batch_first=True)


def finite_gradients(model: torch.nn.Module) -> bool:
    """Return whether every gradient is finite (under sharding: of this rank's part; DeepSpeed: in
    the last step, by their norm).
    """
    norm_of = getattr(model, "get_global_grad_norm", None)
    if norm_of:  # DeepSpeed shows no p.grad; -1 is a norm that is not finite
        norm = norm_of()
        if norm is None:
            raise InputError(
                "DeepSpeed computes no gradient norm", expected="ZeRO stage 1, 2 or 3 with its norm"
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
        advice = "shorten chunks, view_tokens or max_completion_length"
        if rows > 1:
            advice = f"lower rows_per_forward (now {rows})"
        raise TrainingAborted(
            f"out of memory in the update, with rows_per_forward = {rows}: "
            f"{str(error).splitlines()[0]}",
            fix=f"{advice}; on a GPU also bf16 or gradient_checkpointing",
        ) from error
