"""Rollouts, each of which is one pass over one instance with one sample of the policy.

All episodes take their first turn in one batch, then their second, and so on: one prompt and one
completion a turn. A memory agent reads a chunk in each turn, from an empty memory on.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from memalpha.agent.step import AgentStep, StepOutcome
from memalpha.memory.memory import Memory
from memalpha.text.encoding import in_common
from memalpha.types import (
    Answer,
    Chunk,
    Completion,
    Generator,
    Instance,
    Prompt,
    QuestionRecord,
    Retriever,
    Sampling,
)

StepCallback = Callable[[int, int], None]
"""Called after each turn of all rollouts with (turns taken, turns in all)."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a rollout.

    Attributes:
        chunk_index: Index of the chunk.
        prompt: The prompt of the step.
        completion: The completion of the policy.
        outcome: The results of its calls, and the changes of the memory.
        memory_tokens: Tokens of the memory after the step.
        entries: Number of entries after the step.
    """

    chunk_index: int
    prompt: Prompt
    completion: Completion
    outcome: StepOutcome
    memory_tokens: int
    entries: int


@dataclass(slots=True)
class Rollout:
    """One pass of the policy over one instance.

    Scoring sets ``questions`` to ``errors`` before it computes the reward.

    Attributes:
        instance: The instance that is read.
        memory: The memory that the policy writes.
        retriever: The retriever that follows the memory.
        steps: A record of each step, one a chunk. For a role other than the writer a step is a
            turn.
        questions: Records of the questions asked on the final memory.
        immediate: For each step, records of the questions asked right after it; empty if none were
            asked.
        verdicts: For each step, the verdicts of the content judge on its writes; None if there are
            none.
        nothing_due: ``nothing_due[i]`` is the judge's verdict that step i needed no write; None if
            it was not judged.
        errors: By chunk index, the reason why a part of the reward could not be scored.
        credits: By name, the numbers of each step that a ``Credit`` keeps.
        tokens_before: Tokens of the memory with which the rollout began.
        answer: The answer that the last turn gives, for a role other than the writer; else None.
        role: The role of the policy that made the rollout.
    """

    instance: Instance
    memory: Memory
    retriever: Retriever
    steps: list[StepRecord] = field(default_factory=list)
    questions: list[QuestionRecord] = field(default_factory=list)
    immediate: list[list[QuestionRecord]] = field(default_factory=list)
    verdicts: list[list[bool] | None] = field(default_factory=list)
    nothing_due: list[bool | None] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    credits: dict[str, list[float]] = field(default_factory=dict)
    tokens_before: int = 0
    answer: Answer | None = None
    role: str = "writer"

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that the policy reads, in order."""
        return self.instance.chunks[self.instance.begin :]

    @property
    def tokens_read(self) -> int:
        """The number of tokens of these chunks."""
        return sum(self.memory.count_tokens(chunk.text) for chunk in self.chunks)

    @property
    def failures(self) -> list[str]:
        """The messages of the readers and judges that failed."""
        readers = [record.error for record in self.questions if record.error]
        return [*readers, *self.errors.values()]


class Episode(Protocol):
    """A rollout on its way: ``run_episodes`` asks for a prompt and hands back its completion, until
    it is done.
    """

    rollout: Rollout
    """What was recorded so far; each turn adds a step."""

    @property
    def turns(self) -> int:
        """The most turns that it takes."""

    @property
    def done(self) -> bool:
        """Whether no turn is left."""

    def prompt(self) -> Prompt:
        """Return the prompt of the next turn; InputError if a text of it is too long."""

    def take(self, prompt: Prompt, completion: Completion) -> None:
        """Apply the completion of that prompt and record the turn. What the policy did wrong is
        recorded, no error.
        """


def run_episodes(
    episodes: Sequence[Episode],
    generator: Generator,
    sampling: Sampling,
    on_step: StepCallback | None = None,
) -> list[Rollout]:
    """Run each episode to its end and return their rollouts.

    InputError if a chunk is too long, ServiceError if the generator fails. A seed of ``sampling``
    is that of the first turn; each later turn has the next one.
    """
    total = max((episode.turns for episode in episodes), default=0)
    turn = 0
    while active := [episode for episode in episodes if not episode.done]:
        prompts = sharing([episode.prompt() for episode in active])
        seed = None if sampling.seed is None else sampling.seed + turn
        completions = generator.generate(prompts, replace(sampling, seed=seed))
        for episode, prompt, completion in zip(active, prompts, completions, strict=True):
            episode.take(prompt, completion)
        turn += 1
        if on_step:
            on_step(turn, total)
    return [episode.rollout for episode in episodes]


@dataclass(slots=True)
class MemoryEpisode:
    """A memory agent reads the chunks of an instance, one in each turn."""

    agent: AgentStep
    rollout: Rollout

    @property
    def turns(self) -> int:
        """The chunks that it reads."""
        return len(self.rollout.chunks)

    @property
    def done(self) -> bool:
        """Whether it has read all."""
        return len(self.rollout.steps) == self.turns

    def prompt(self) -> Prompt:
        """Return the prompt of the next chunk, with the memory as it is."""
        rollout = self.rollout
        chunk = rollout.chunks[len(rollout.steps)]
        return self.agent.prompt(rollout.memory, rollout.retriever, chunk)

    def take(self, prompt: Prompt, completion: Completion) -> None:
        """Carry out the calls of a completion."""
        take_step(self.rollout, self.agent, prompt, completion)


BeginEpisodes = Callable[[Sequence[Instance], AgentStep], Sequence[Episode]]
"""Begins an episode of each instance; ``memory_episodes``, or what takes the same arguments."""


def memory_episodes(instances: Sequence[Instance], agent: AgentStep) -> list[MemoryEpisode]:
    """Begin an episode of each instance, with the memory that the instance begins with."""
    return [MemoryEpisode(agent, new_rollout(instance, agent)) for instance in instances]


def run_rollouts(
    instances: Sequence[Instance],
    agent: AgentStep,
    generator: Generator,
    sampling: Sampling,
    on_step: StepCallback | None = None,
) -> list[Rollout]:
    """Let a memory agent read each instance, all of them at the same time, chunk by chunk.

    Args:
        instances: The instances to read.
        agent: The agent step that makes prompts and applies completions.
        generator: The generator that draws the completions.
        sampling: The sampling settings. Its seed is for the first chunk, and each further chunk has
            the next one.
        on_step: A function that is called after each step with the steps taken and the steps in
            all.

    Returns:
        One rollout for each instance, in order, not scored yet.

    Raises:
        InputError: A chunk is too long for the agent.
        ServiceError: The generator failed.
    """
    return run_episodes(memory_episodes(instances, agent), generator, sampling, on_step)


def sharing(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Let the rollouts of a chunk share all leading ids of their prompts.

    The view, too, up to where it differs.
    """
    groups = defaultdict(list)
    for prompt in prompts:
        groups[prompt.ids[: prompt.shared]].append(prompt)
    common = {}
    for prefix, group in groups.items():
        alone = len(group) == 1
        common[prefix] = len(prefix) if alone else in_common([prompt.ids for prompt in group])
    return [replace(prompt, shared=common[prompt.ids[: prompt.shared]]) for prompt in prompts]


def new_rollout(instance: Instance, agent: AgentStep) -> Rollout:
    """Return a rollout before its first step, with the memory that the instance begins with.

    Args:
        instance: The instance to read.
        agent: The agent step that makes prompts and applies completions.

    Returns:
        The rollout, whose memory holds ``instance.initial_entries``.
    """
    memory = agent.new_memory(instance.initial_entries)
    return Rollout(instance, memory, agent.new_retriever(memory), tokens_before=memory.tokens)


def take_step(
    rollout: Rollout, agent: AgentStep, prompt: Prompt, completion: Completion
) -> StepRecord:
    """Apply the completion of a rollout's next chunk, and record the step.

    Args:
        rollout: The rollout, which is changed in place.
        agent: The agent step that applies the completion.
        prompt: The prompt of the chunk.
        completion: The completion that the policy drew for this prompt.

    Returns:
        The record of the step, which is also the last of ``rollout.steps``.

    Raises:
        InputError: A tool of your own failed. A mistake of the policy raises nothing; it is
            recorded.
    """
    t = rollout.instance.begin + len(rollout.steps)
    chunk = rollout.instance.chunks[t]
    outcome = agent.apply(rollout.memory, t, chunk, completion.text, completion.cut_off)
    record = StepRecord(t, prompt, completion, outcome, rollout.memory.tokens, len(rollout.memory))
    rollout.steps.append(record)
    return record
