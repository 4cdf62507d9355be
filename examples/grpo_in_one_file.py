"""GRPO for a memory agent in one file: read this first, from top to bottom.

    python examples/grpo_in_one_file.py        (about a minute on one CPU core)

A memory agent reads a text chunk by chunk, each once, and writes to a memory after each. At the
end, questions are asked on the memory alone. The share that is answered is the reward.

A step of the training:

1. Rollouts. The policy reads each text eight times, with different random numbers.
2. Reward. Each rollout is asked the questions of its text. Each chunk is scored for its calls.
3. Advantage. A completion is compared with the seven others on the same chunk of the same text.
4. Update. Completions that were better than the others become likelier (a clipped ratio).

The policy is a transformer of half a million parameters that knows some seventy words. A chunk is
eight words, four of them things, four of them noise. Each thing is asked for. First the policy
learns the notation from a teacher that keeps random words. What is worth keeping it learns from
the reward alone.

What ``memalpha train`` adds, and this file leaves out (a test holds the first gradient of both to
each other):

* real models: LoRA, 16 and 4 bits, several GPUs, vLLM servers (models/policy.py, update/prepare.py)
* speed: a prefix of several prompts is computed once (generation/hf.py, update/logps.py)
* other losses than DAPO's, a KL term, importance weights (training/trainer.py)
* more reward; readers and judges that are models, whose failures mask (training/scoring.py)
* checkpoints and bitwise resume, held-out data, records (training/checkpoints.py, record/)
"""

import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.data.toy import toy_teacher_operations, toy_vocabulary
from memalpha.memory.memory import Memory
from memalpha.models import build_nano
from memalpha.qa.readers import QAEvaluator, RecallReader
from memalpha.rewards import RewardConfig, accuracy, tool_success
from memalpha.types import Instance, Retriever

SEED = 1
TEACHING_STEPS = 150  # of supervised learning
STEPS = 60  # of reinforcement learning
TEXTS = 4  # of a step
GROUP = 8  # rollouts of a text
LONGEST = 32  # tokens of a completion
CLIP = 0.2  # a ratio outside of 1 - CLIP to 1 + CLIP has no gradient
TOOL_WEIGHT = 0.2  # of calls that succeed, beside the answers


@dataclass
class Turn:
    """One chunk of one rollout: what the policy read, what it wrote, and what that was worth."""

    instance: str  # its id
    chunk: int
    prompt: list[int]  # token ids
    completion: list[int]  # token ids, with the end token unless the length limit cut it off
    reward: float = 0.0
    advantage: float = 0.0


def main() -> None:
    """Teach the notation, then train on the reward; print the mean reward of every step."""
    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = build_nano(folder, toy_vocabulary())
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path)
    config = AgentConfig(
        schema="toy",  # the memory is one list of short entries
        codec="compact",  # "+ apple" writes the entry "apple"
        view_tokens=64,  # how much of the memory the prompt shows
        max_completion_length=LONGEST,
        retrieve_k=4,  # entries that are found for a question
        show_times=False,
    )
    agent = AgentStep(config, tokenizer)
    texts = load_data("toy", {"n": 512, "split": "train"}, SEED)
    rng = random.Random(SEED)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(TEACHING_STEPS):
        turns = list(demonstrations(rng.sample(texts, 8), agent, rng))
        loss = -token_logps(model, turns).sum() / count_tokens(turns)
        take(optimizer, loss)
        if step % 50 == 49:
            print(f"teaching, step {step + 1:3}: loss {loss.item():.3f}")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        repeated = [text for text in rng.sample(texts, TEXTS) for _ in range(GROUP)]
        turns = roll_out(model, repeated, agent)
        set_advantages(turns)
        # One update a batch: the ratio is 1, and only its gradient counts.
        old = token_logps(model, turns).detach()
        take(optimizer, loss_of(token_logps(model, turns), old, turns))
        print(f"step {step + 1:3}: reward {mean(turn.reward for turn in turns):.3f}")


def take(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Take a step downhill."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


# 1. Rollouts --------------------------------------------------------------------------------------


def roll_out(model: torch.nn.Module, texts: Sequence[Instance], agent: AgentStep) -> list[Turn]:
    """Read each text once with the policy; all texts read their first chunk together, then their
    second. Return the turns with their rewards.
    """
    memories = [agent.new_memory() for _ in texts]
    retrievers = [agent.new_retriever(memory) for memory in memories]
    turns = []
    for place in range(len(texts[0].chunks)):
        # A prompt holds the instructions, the chunk, and the entries of the memory.
        prompts = [
            list(agent.prompt(memory, retriever, text.chunks[place]).ids)
            for text, memory, retriever in zip(texts, memories, retrievers, strict=True)
        ]
        tokenizer = agent.encoder.tokenizer
        completions = sample(model, prompts, tokenizer.eos_token_id)
        for number, text in enumerate(texts):
            written = tokenizer.decode(completions[number], skip_special_tokens=True)
            # The completion's calls change the memory; what is no call is an error that is scored.
            outcome = agent.apply(memories[number], place, text.chunks[place], written)
            turn = Turn(text.id, place, prompts[number], completions[number])
            turn.reward = TOOL_WEIGHT * tool_success(outcome.results, RewardConfig(), silence=0.0)
            turns.append(turn)
    for number, text in enumerate(texts):
        share = answered(text, memories[number], retrievers[number], agent)
        for turn in turns[number :: len(texts)]:  # this rollout's, since all read a chunk together
            turn.reward += share
    return turns


@torch.no_grad()
def sample(model: torch.nn.Module, prompts: Sequence[list[int]], end: int) -> list[list[int]]:
    """Draw a completion of each prompt from the whole distribution, up to the token ``end``."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):  # padding goes to the left
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    whole = {"do_sample": True, "top_k": 0, "max_new_tokens": LONGEST, "pad_token_id": end}
    drawn = model.generate(input_ids=ids, attention_mask=mask, **whole)[:, width:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in drawn]


# 2. Reward ----------------------------------------------------------------------------------------


def answered(text: Instance, memory: Memory, retriever: Retriever, agent: AgentStep) -> float:
    """Return the share of the questions that a memory answers: the reader is no model, an answer
    is right if it is among the entries that are found for the question.
    """
    reader = RecallReader(agent.config.reader_tokens, agent.encoder.count)
    evaluator = QAEvaluator(reader, agent.config.retrieve_k)
    (records,) = evaluator.evaluate_many([(memory, retriever, text.questions)])
    return accuracy(records) or 0.0  # None: no question could be scored


# 3. Advantage -------------------------------------------------------------------------------------


def set_advantages(turns: Sequence[Turn]) -> None:
    """How much better a turn was than the others on the same chunk, in standard deviations."""
    groups = defaultdict(list)
    for turn in turns:
        groups[turn.instance, turn.chunk].append(turn)
    for group in groups.values():
        rewards = [turn.reward for turn in group]
        for turn in group:
            turn.advantage = (turn.reward - mean(rewards)) / (stdev(rewards) + 1e-4)


# 4. Update ----------------------------------------------------------------------------------------


def token_logps(model: torch.nn.Module, turns: Sequence[Turn]) -> torch.Tensor:
    """Return the log-probability of each token of each completion, (turns, longest completion);
    0 after the end of a completion.
    """
    ids = [torch.tensor([*turn.prompt, *turn.completion]) for turn in turns]
    padded = pad_sequence(ids, batch_first=True)  # on the right; the model is causal: no mask
    logits = model(input_ids=padded).logits
    rows = []
    for row, turn in enumerate(turns):
        # The logits at a token say what comes next, so they start one token before the completion.
        start = len(turn.prompt) - 1
        own = logits[row, start : start + len(turn.completion)]
        rows.append(-cross_entropy(own, torch.tensor(turn.completion), reduction="none"))
    return pad_sequence(rows, batch_first=True)


def loss_of(logps: torch.Tensor, old: torch.Tensor, turns: Sequence[Turn]) -> torch.Tensor:
    """Return the clipped loss, the mean over all tokens (DAPO). Its gradient pulls up tokens of a
    positive advantage and pushes down the others.
    """
    advantages = torch.tensor([turn.advantage for turn in turns])[:, None]
    ratio = (logps - old).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    mask = pad_sequence([torch.ones(len(turn.completion)) for turn in turns], batch_first=True)
    return -(gain * mask).sum() / count_tokens(turns)


def count_tokens(turns: Sequence[Turn]) -> int:
    """Return the number of tokens of all completions."""
    return sum(len(turn.completion) for turn in turns)


# The teacher --------------------------------------------------------------------------------------


def demonstrations(
    texts: Sequence[Instance], agent: AgentStep, rng: random.Random
) -> Iterator[Turn]:
    """Yield what a teacher writes that keeps random words of each chunk."""
    for text in texts:
        memory = agent.new_memory()
        retriever = agent.new_retriever(memory)
        for place, chunk in enumerate(text.chunks):
            prompt = agent.prompt(memory, retriever, chunk)
            written = agent.write(memory, toy_teacher_operations(text, place, memory, rng))
            agent.apply(memory, place, chunk, written)
            end = agent.encoder.tokenizer.eos_token_id
            completion = [*agent.encoder.untrusted(written), end]  # no special token but the end
            yield Turn(text.id, place, list(prompt.ids), completion)


if __name__ == "__main__":
    main()
