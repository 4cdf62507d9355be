"""The gradient check: p.grad right before the optimizer step against a loss written by hand over
one unpadded row at a time.

The hand-written side knows nothing of rows, padding, packing, ranks or TRL: from the finished
rollouts of all ranks it works out rewards and advantages in plain Python, and runs the policy over
one row after the other.

    torchrun --nproc_per_node 2 tests/helpers/gradient_check.py OUT.json      all cases of
    TWO_PROCESSES, two ranks on CPUs
"""

import json
import math
import os
import re
import sys
import tempfile
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from accelerate.utils import gather_object
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)

# also where torchrun starts it
sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from gradient_variance import VarianceTrainer

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import memory_episodes
from memalpha.agent.step import AgentStep
from memalpha.contrib.asker import training as asking
from memalpha.contrib.asker.reader import AskerStep
from memalpha.contrib.asker.training import AnswerCredit, AskerRole, one_by_one, read_with_writer
from memalpha.generation.hf import HFGenerator
from memalpha.models.registry import make_tokenizer, toy_texts
from memalpha.qa.readers import QAEvaluator, RecallReader
from memalpha.rewards import PARTS, RewardConfig, StepReward
from memalpha.training import trainer
from memalpha.training.config import GRPOOptions, RunOptions
from memalpha.training.credit import make_credit
from memalpha.training.scoring import RolloutScorer
from memalpha.types import Chunk, Instance, Question
from memalpha.update.prepare import prepare_policy

GROUP = 4
LONGEST = 10
REWARD = RewardConfig(
    accuracy_weight=1.0, tool_weight=0.5, compression_weight=0.05, content_weight=0.1
)
CHUNKS = (1, 3, 2, 4)
"""Chunks of each instance: two ranks never hold equally many rows."""


@dataclass(frozen=True)
class Case:
    """One training run of a few steps that is checked at every step."""

    loss: str = "dapo"
    beta: float = 0.0
    credit: str = "step"
    role: str = (
        "writer"  # "asker": rollouts of one to three turns, in which text is a search or not
    )
    packs: bool = True  # False: an attention that cannot share prefixes
    iterations: int = 1
    splits: int = 1  # steps_per_generation
    a_step: int = 0  # rollouts a process and step, 0: whole groups
    # the reference is a copy of the adapter that comes in; "fresh": a new one, so it is the base;
    # "full": no adapter
    start: str = "warm"
    scale: str = "group"
    level: str = "token"
    padding: int = 0  # padding rows beyond those needed, a multiple of GROUP
    drop_cut_off: bool = False  # mask_truncated_completions
    architecture: str = "llama"
    # "drifted" gives log-probabilities that are not the update's
    generator: str = "hf"
    staleness: int = 0  # batches drawn ahead
    correction: str = "token_truncate"
    variance: bool = False  # scripts/gradient_variance.py
    top_layers: int = 0  # train the adapters of that many upper layers
    unused: bool | None = None  # ddp_find_unused_parameters
    checkpointing: bool = False  # gradient_checkpointing
    # "padding" counts padding rows as real ones, "tokens" counts those without a loss
    fault: str = ""
    steps: int = 2


# ------------------------------------------------------------------------------------------------ a
# run in small
@lru_cache
def tokenizer():
    return make_tokenizer(toy_texts(), 1024)


class Drifted(HFGenerator):
    """Draws as ``HFGenerator``, and reports log-probabilities as an engine with other rounding (far
    other) would."""

    def generate(self, prompts, sampling):
        drift = torch.Generator().manual_seed(sampling.seed % 2**31)
        return [
            replace(
                c,
                logprobs=tuple(
                    (torch.tensor(c.logprobs) + torch.randn(len(c.ids), generator=drift)).tolist()
                ),
            )
            for c in super().generate(prompts, sampling)
        ]


class KeepingAgent(AgentStep):
    """Keeps whatever the policy wrote, so that the memories of a group differ although the policy
    is random."""

    def apply(self, memory, index, chunk, completion, cut_off=False):
        return super().apply(memory, index, chunk, f"+ {' '.join(completion.split()) or 'nothing'}")


class CuriousStep(AskerStep):
    """Takes some replies of a random policy as searches, so that rollouts differ in their turns."""

    def take(self, inquiry, reply):
        searches = zlib.crc32(reply.encode()) % 2
        super().take(inquiry, f"search: {reply}" if searches else f"It is {reply}")


def spans_of_long_words(text, cut_off=False):
    """Stands in for a codec's calls, since a random policy makes none."""
    return [match.span() for match in re.finditer(r"\S{4,}", text)]


def counted_by_hand(step, ended):
    """Which tokens share a character with a long word or the white space before it, or end the
    completion; a token that only completes a character is of that one."""
    ids = step.completion.ids
    texts = [tokenizer().decode(ids[:n], skip_special_tokens=True) for n in range(len(ids) + 1)]
    inside = [False] * len(texts[-1])
    for word in re.finditer(r"\s*(?<!\S)\S{4,}", texts[-1]):
        inside[word.start() : word.end()] = [True] * (word.end() - word.start())
    pieces = [inside[min(len(a), len(b) - 1) : len(b)] for a, b in pairwise(texts)]
    return [any(piece) or (ended and piece is pieces[-1]) for piece in pieces]


ASKED = ("e", "th", "or", "ing", "un")
"""What the questions are about; the reader, without a model, wants to see these letters."""


def evidence_reward(rollout, t, count):
    """The reward of a step with credit ``evidence``, from the entries alone."""

    def answers(entries, letters):
        return any(letters in entry.content.lower() for entry in entries)

    total = owed = 0.0
    for question in rollout.instance.questions:
        entries = [hit.entry for hit in rollout.retriever.search(question.text, 3)]
        (letters,) = question.answers
        total += answers(entries, letters)
        for entry in entries:
            others = [other for other in entries if other is not entry]
            if answers(entries, letters) and not answers(others, letters):
                owed += entry.source_chunk == t
    kept = sum(count(entry.content) for entry in rollout.memory)
    read = sum(count(chunk.text) for chunk in rollout.instance.chunks)
    accuracy, evidence = total / len(ASKED), owed / len(ASKED)
    return 0.5 * accuracy + 0.5 * evidence + 0.5 + 0.05 * max(0.0, 1 - kept / read)


def pseudo_reward(index, rollout, t):
    """Deterministic numbers from texts; the second rollout of a rank cannot be scored at its first
    chunk."""

    def number(text):
        return zlib.crc32(text.encode()) % 1000 / 1000

    everything = "|".join(step.completion.text for step in rollout.steps)
    text = rollout.steps[t].completion.text
    masked = (index, t) == (1, 0)
    if rollout.answer is not None:  # one reward for all turns
        text = everything
        masked = index == 1
    content = math.nan if masked else number("content" + text)
    values = (
        number(everything),
        number("tool" + text),
        number("tokens" + everything),
        content,
        math.nan,
    )
    return StepReward(zip(PARTS, values, strict=True))


def make_base(architecture, attention="sdpa"):
    sizes = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": attention,
    }
    torch.manual_seed(0)
    config, model = (
        (LlamaConfig, LlamaForCausalLM)
        if architecture == "llama"
        else (Qwen3Config, Qwen3ForCausalLM)
    )
    base = model(config(**sizes)).float()
    base.generation_config.eos_token_id = [
        2,
        *range(20, 90),
    ]  # a random policy would never end otherwise
    return base


LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def make_policy(case):
    base = make_base(case.architecture, "sdpa" if case.packs else "eager")
    if case.start == "full":
        return base
    policy = get_peft_model(base, LoraConfig(**LORA))
    if case.start == "warm":
        stir(policy, seed=1)
    return policy


def stir(policy, seed):
    """Give the adapter weights that matter; PEFT starts one half of them at zero."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name and ".ref." not in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=draw)


def make_instances(asked=()):
    words = " ".join(toy_texts()[:48]).split()
    texts = [" ".join(words[i : i + 2 + i % 5]) for i in range(sum(CHUNKS))]
    starts = [sum(CHUNKS[:i]) for i in range(len(CHUNKS))]
    every = " ".join(dict.fromkeys(words))
    questions = tuple(Question(every, (letters,)) for letters in asked)
    return [
        Instance(
            f"i{number}",
            "check",
            tuple(Chunk(text) for text in texts[start : start + n]),
            questions,
        )
        for number, (start, n) in enumerate(zip(starts, CHUNKS, strict=True))
    ]


def make_trainer(case, folder, **more):
    world = int(os.environ.get("WORLD_SIZE", "1"))
    options = GRPOOptions(
        output_dir=str(folder),
        use_cpu="ACCELERATE_USE_FSDP" not in os.environ,
        num_generations=GROUP,
        per_device_train_batch_size=case.a_step
        or (GROUP if case.splits > 1 else 2 * GROUP // world),
        steps_per_generation=case.splits,
        num_iterations=case.iterations,
        max_steps=case.steps,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        beta=case.beta,
        vllm_importance_sampling_mode=case.correction,
        loss_type=case.loss,
        temperature=0.9,
        max_grad_norm=0.0,
        gradient_checkpointing=case.checkpointing,
        epsilon_high=1.02 if case.loss == "cispo" else 0.25,
        scale_rewards=case.scale,
        trl={
            "importance_sampling_level": case.level,
            "mask_truncated_completions": case.drop_cut_off,
            "ddp_find_unused_parameters": case.unused,
            **more.pop("trl", {}),
        },
        save_strategy="no",
        seed=3,
        **more,
    )
    arguments = options.arguments(max_completion_length=LONGEST)
    policy = make_policy(case)
    instances = make_instances(ASKED if case.credit == "evidence" else ())
    begin = memory_episodes
    if (
        case.start == "full" and case.beta
    ):  # TRL loads the reference from where the policy came from
        policy.save_pretrained(Path(folder) / "base")
        policy = type(policy).from_pretrained(Path(folder) / "base")
    agent_config = AgentConfig(
        schema="facts",
        codec="compact",
        max_chunk_tokens=64,
        view_tokens=64,
        max_completion_length=LONGEST,
        archive=case.role == "asker",
        searches=2,
    )
    prepare_policy(policy, top_layers=case.top_layers)
    credit = AnswerCredit() if case.role == "asker" else make_credit(case.credit)
    scorer = RolloutScorer(evaluator=None, judge=None, reward_config=REWARD, credit=credit)
    scorer.score = lambda rollouts: [
        [pseudo_reward(i, rollout, t) for t in range(len(rollout.steps))]
        for i, rollout in enumerate(rollouts)
    ]
    agent = KeepingAgent(agent_config, tokenizer())
    if case.role == "asker":
        questions = [
            replace(each, questions=make_instances(ASKED[:1])[0].questions) for each in instances
        ]
        instances = one_by_one(read_with_writer(questions, agent, "", "float32", "cpu"), turns=3)
        begin = AskerRole().episodes
    if case.credit == "memory_tokens":
        agent.codec.spans = spans_of_long_words
    if case.credit == "evidence":
        scorer = evidence_scorer(agent, credit)
    kind = Drifted if case.generator == "drifted" else HFGenerator
    made = (CheckedVariance if case.variance else CheckedTrainer)(
        model=policy,
        args=arguments,
        processing_class=tokenizer(),
        agent=agent,
        instances=instances,
        generator=kind(policy, tokenizer(), logprobs=kind is Drifted or case.staleness > 0),
        scorer=scorer,
        begin=begin,
        options=RunOptions(
            role=case.role,
            credit=case.credit,
            rows_per_forward=3,
            staleness=case.staleness,
        ),
    )
    made.more_padding = case.padding
    made.fault = case.fault
    if case.start == "fresh":
        stir(made.model, seed=2)
    return made


def evidence_scorer(agent, credit):
    """The real scorer; as with ``pseudo_reward``, one step cannot be scored."""
    evaluator = QAEvaluator(RecallReader(1024, agent.encoder.count), k=3)
    config = replace(REWARD, content_weight=0.0)
    scorer = RolloutScorer(evaluator, None, config, credit=credit)
    score = scorer.score

    def with_a_gap(rollouts):
        rewards = score(rollouts)
        rewards[1][0]["tool"] = math.nan
        return rewards

    scorer.score = with_a_gap
    return scorer


class CheckedTrainer(trainer.MemoryGRPOTrainer):
    """The trainer with more padding than needed and, if wanted, a fault: padding rows count as
    sampled, or tokens without a loss as trained."""

    more_padding = 0
    fault = ""
    on_batch = staticmethod(lambda: None)

    def _padded_count(self, rows):
        return super()._padded_count(rows) + self.more_padding

    def _logps_before(self, rows):
        self.rows = rows
        super()._logps_before(rows)

    def _next_update_batches(self):
        batches = super()._next_update_batches()
        self.on_batch()
        for batch in batches:
            if self.fault == "padding":
                batch.row_count = self.sum_over_ranks([len(self.rows)])[0]
            if self.fault == "tokens":
                written = [len(row.completion_ids) for row in self.rows if not row.left_out]
                batch.token_count = self.sum_over_ranks([sum(written)])[0]
        return batches


class CheckedVariance(CheckedTrainer, VarianceTrainer):
    """The trainer that logs the variance of the gradient, checked alike."""


# ------------------------------------------------------------------------------------------------
# the other side, by hand


def sampled(rows):
    """Those that are no padding."""
    return [row for row in rows if row.rollout_index >= 0]


def advantages_by_hand(rows, scale):
    scored = [row.reward for row in rows if not math.isnan(row.reward)]
    for row in rows:
        group = torch.tensor(
            [r.reward for r in rows if r.key == row.key and not math.isnan(r.reward)],
            dtype=torch.float64,
        )
        if not math.isnan(row.reward):
            spread = {
                "group": group.std(),
                "batch": torch.tensor(scored, dtype=torch.float64).std(),
            }.get(scale)
            row.advantage = float(
                (row.reward - group.mean()) / (1.0 if spread is None else spread + 1e-4)
            )


def spread_by_hand(rows, scale):
    """Compare rollouts, each counted once, and give all turns of one the same."""
    turns = [row for row in rows if row.place[1] == 0]
    advantages_by_hand(turns, scale)
    for row in rows:
        (first,) = [t for t in turns if (t.key, t.place[2]) == (row.key, row.place[2])]
        row.advantage = first.advantage


class Check(TrainerCallback):
    def __init__(self, case, made):
        self.case, self.trainer = case, made
        # ``errors``: |grad - by hand| / |by hand| of each optimizer step; ``advantage_errors``: the
        # largest difference to those by hand of each batch; ``weights``: the largest distance of
        # an importance weight from 1; ``p99``: what 99% of all ranks' tokens are at most apart in
        # log-probability, ``logged``: as the trainer says; ``ratios``: smallest and largest importance ratio;
        # ``lengths``: distinct (prompt, completion) lengths of the last batch; ``trained``: names
        # of the parameters that have a gradient
        self.report = SimpleNamespace(
            errors=[],
            advantage_errors=[],
            weights=[],
            p99=[],
            variances=[],
            masked=0,
            padding=0,
            world=made.accelerator.num_processes,
        )
        self.reference = make_policy(case)  # an untouched copy of what training starts from
        self.rows, self.ratios, self.weights = [], [], []
        made.on_rollouts = self.on_rollouts

    def on_rollouts(self, rollouts, rows, rewards):
        """Write down all ranks' rows, with log-probabilities under the policy as it is and under
        the reference."""
        rank, case = self.trainer.accelerator.process_index, self.case
        ends = set(self.trainer.eos_token_ids)
        rows = []
        for i, rollout in enumerate(rollouts):
            for t, step in enumerate(rollout.steps):
                reward = sum(
                    w * part
                    for w, part in zip(
                        (1.0, 0.5, 0.05, 0.1), pseudo_reward(i, rollout, t).values(), strict=False
                    )
                )
                if case.credit == "evidence":
                    count = self.trainer.agent.encoder.count
                    reward = math.nan if (i, t) == (1, 0) else evidence_reward(rollout, t, count)
                chunk = step.chunk_index
                local = case.credit == "same_state" and i % GROUP in (2, 3)
                whole = case.credit in ("trajectory", "same_state") and not local
                key = (rank, i // GROUP, "all" if whole else chunk)
                ids = list(step.completion.ids)
                ended = ids[-1] in ends
                counted = [True] * len(ids)
                if case.credit == "memory_tokens":
                    counted = counted_by_hand(step, ended)
                rows.append(
                    SimpleNamespace(
                        key=key,  # names its group
                        place=(i // GROUP, chunk, i),  # where it stands among its rank's rows
                        prompt=list(step.prompt.ids),
                        completion=ids,
                        reward=reward,
                        cut_off=not ended,
                        counted=counted,
                        advantage=0.0,
                        sampled=step.completion.logprobs,
                    )
                )
        rows.sort(key=lambda row: row.place)
        self.rows = gather_object(rows)
        advantages_by_hand(self.rows, case.scale)
        if case.role == "asker":
            spread_by_hand(self.rows, case.scale)
        policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
        with torch.no_grad():
            for row in self.rows:
                row.old, row.reference = self.logps(policy, row), self.logps(self.reference, row)
        if self.rows[0].sampled:
            drawn = torch.cat([torch.tensor(row.sampled) for row in self.rows])
            apart = sorted((torch.cat([row.old for row in self.rows]) - drawn).abs().tolist())
            self.report.p99.append(apart[math.ceil(0.99 * len(apart)) - 1])
        self.trained = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        made, case = self.trainer, self.case
        split = state.global_step % case.splits
        places = {id(row): place for place, row in enumerate(sampled(made.rows))}
        order = gather_object(
            [[places[id(row)] for row in sampled(made.update_batches[split].rows)]]
        )
        counts = [sum(row.key[0] == rank for row in self.rows) for rank in range(self.report.world)]
        mine = [sum(counts[:rank]) + i for rank, indices in enumerate(order) for i in indices]
        self.trained = sorted(self.trained + mine)
        if (split + 1) % case.splits == 0:
            assert self.trained == list(range(len(self.rows))), (
                "every row is trained once in each pass"
            )
            self.trained = []
        policy = made.accelerator.unwrap_model(model)
        parameters = [p for p in policy.parameters() if p.requires_grad]
        loss = sum(self.loss(policy, self.rows[i]) for i in mine) * case.splits
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        found = torch.cat([p.grad.flatten() for p in parameters])
        if case.variance:  # the first of two instances of each process
            early = [i for i in mine if self.rows[i].place[0] == 0]
            loss = sum(self.loss(policy, self.rows[i]) for i in early)
            first = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
            self.report.variances.append(float((expected - 2 * first).square().sum()))
        self.report.errors.append(float((found - expected).norm() / expected.norm()))
        self.report.weights.append(max((abs(weight - 1) for weight in self.weights), default=0.0))
        self.weights = []
        self.report.trained = [name for name, p in policy.named_parameters() if p.grad is not None]

    def loss(self, policy, row):
        case, args = self.case, self.trainer.args
        kept = [row for row in self.rows if not (case.drop_cut_off and row.cut_off)]
        if case.drop_cut_off and row.cut_off:
            return torch.zeros(())
        counted = torch.tensor(row.counted)
        logp = self.logps(policy, row)[counted]
        log_ratio = logp - row.old[counted]
        ratio = torch.exp(
            log_ratio if case.level == "token" else log_ratio.mean().expand(len(log_ratio))
        )
        self.ratios += ratio.tolist()
        if case.loss == "cispo":
            loss = -ratio.clamp(max=args.epsilon_high).detach() * row.advantage * logp
        else:
            loss = -torch.min(
                ratio * row.advantage,
                ratio.clamp(1 - args.epsilon, 1 + args.epsilon_high) * row.advantage,
            )
        if case.generator == "drifted" or case.staleness:  # truncated importance sampling
            weight = (row.old - torch.tensor(row.sampled)).exp()
            if case.correction.startswith("sequence"):
                weight = weight.prod().repeat(len(weight))
            self.weights += weight.tolist()
            most = args.vllm_importance_sampling_clip_max
            beyond = most if case.correction.endswith("truncate") else 0.0
            loss = loss * torch.where(weight > most, beyond, weight)[counted]
        if case.beta:
            difference = row.reference[counted] - logp
            loss = loss + case.beta * (difference.exp() - difference - 1) * (
                ratio if args.use_bias_correction_kl else 1
            )
        if case.loss == "grpo":
            return loss.sum() / max(1, sum(row.counted)) / len(self.rows)
        if case.loss == "dr_grpo":
            return loss.sum() / (len(self.rows) * LONGEST)
        return loss.sum() / sum(sum(row.counted) for row in kept)

    def logps(self, model, row):
        ids = torch.tensor([row.prompt + row.completion])
        logits = (
            model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1] / self.trainer.args.temperature
        )
        return logits.log_softmax(-1).gather(1, torch.tensor(row.completion)[:, None])[:, 0]

    def on_batch(self):
        """Compare the advantages that are trained with those by hand."""
        rank = self.trainer.accelerator.process_index
        by_hand = [row.advantage for row in self.rows if row.key[0] == rank]
        trained = [row.advantage for row in sampled(self.trainer.rows)]
        report = self.report
        report.padding += len(self.trainer.rows) - len(by_hand)
        report.masked += sum(math.isnan(row.reward) for row in self.rows)
        report.lengths = sorted({(len(row.prompt), len(row.completion)) for row in self.rows})
        report.advantage_errors.append(
            max(abs(a - b) for a, b in zip(trained, by_hand, strict=True))
        )


def check(case):
    """Train for ``case.steps`` steps and return what was compared."""
    curious = patch.object(asking, "AskerStep", CuriousStep)
    with tempfile.TemporaryDirectory() as folder, curious:
        made = make_trainer(case, folder)
        callback = Check(case, made)
        made.add_callback(callback)
        made.remove_callback(PrinterCallback)
        made.on_batch = callback.on_batch
        made.train()
        name = "sampling/sampling_logp_difference/p99"
        history = made.state.log_history
        logged = [row["gradient/variance"] for row in history if "gradient/variance" in row]
        assert logged == pytest.approx(callback.report.variances, rel=1e-4)
        assert len(logged) == case.steps * case.variance
        callback.report.logged = [row[name] for row in made.state.log_history if name in row]
        callback.report.ratios = [min(callback.ratios), max(callback.ratios)]
        clipped = made.args.vllm_importance_sampling_clip_max - 1
        assert case.generator != "drifted" or max(callback.report.weights) > clipped
        return callback.report


# ------------------------------------------------------------------------------------------------
# two processes
TWO_PROCESSES = {
    "dapo, KL, upper layers": Case(beta=0.1, iterations=2, top_layers=1),
    "grpo": Case("grpo", beta=0.1, credit="trajectory", packs=False, steps=1),
    "dr_grpo": Case("dr_grpo", scale="batch", splits=2),
    "drawn ahead": Case(staleness=1, steps=3),
    "same state": Case(credit="same_state", scale="none"),
    "asker": Case(role="asker", credit="trajectory", scale="none"),
    "memory tokens, variance": Case(credit="memory_tokens", beta=0.1, a_step=8, variance=True),
    "cispo": Case("cispo", beta=0.1, start="fresh", steps=1),
    "unused parameters, all weights": Case(start="full", unused=True),
    "unused parameters, upper layers": Case(beta=0.1, iterations=2, top_layers=1, unused=True),
    "unused parameters, checkpointing": Case(unused=True, checkpointing=True, steps=1),
    "no unused parameters, checkpointing": Case(unused=False, checkpointing=True, steps=1),
    "padding in the mean": Case("grpo", fault="padding", steps=1),
}


def main(out):
    reports = {name: check(case) for name, case in TWO_PROCESSES.items()}
    gathered = gather_object([{name: vars(report) for name, report in reports.items()}])
    if int(os.environ["RANK"]) == 0:
        Path(out).write_text(json.dumps(gathered))
    torch.distributed.barrier()


if __name__ == "__main__":
    assert int(os.environ.get("WORLD_SIZE", "1")) == 2, "start with torchrun --nproc_per_node 2"
    main(sys.argv[1])
    os._exit(0)  # gloo sometimes aborts in its static destructors, after all work is done
