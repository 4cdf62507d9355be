"""Rollouts: one pass over one instance with one sample of the policy, from an empty memory on.

All rollouts read their first chunk in one batch, then their second, and so on: one prompt and one
completion a chunk.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from memalpha.agent.step import AgentStep, StepOutcome
from memalpha.memory.memory import Memory
from memalpha.text import in_common
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
"""Called after each chunk of all rollouts with (chunks read, chunks in all)."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a rollout.

    ``memory_tokens`` and ``entries`` (their number) are counted after the step.
    """

    chunk_index: int
    prompt: Prompt
    completion: Completion
    outcome: StepOutcome
    memory_tokens: int
    entries: int


@dataclass(slots=True)
class Rollout:
    """One pass over one instance.

    ``questions`` to ``errors`` are set when it is scored, before its reward is. ``questions`` were
    asked on the final memory, ``immediate`` after each step (empty: were not). ``verdicts`` are
    those of the content judge on each step, ``nothing_due`` whether it finds that no write was due
    there; None where it has none. ``errors`` say, by chunk index, why a part of the reward could
    not be scored. ``credits`` are numbers of each step that a ``Credit`` keeps, by their name.
    ``tokens_before`` are those of the memory that it began with. ``answer`` is that of an asker,
    whose steps are turns.
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

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that the policy reads."""
        return self.instance.chunks[self.instance.begin :]

    @property
    def tokens_read(self) -> int:
        """Tokens of these chunks."""
        return sum(self.memory.count_tokens(chunk.text) for chunk in self.chunks)

    @property
    def failures(self) -> list[str]:
        """Messages of the readers and judges that failed."""
        readers = [record.error for record in self.questions if record.error]
        return [*readers, *self.errors.values()]


def run_rollouts(
    instances: Sequence[Instance],
    agent: AgentStep,
    generator: Generator,
    sampling: Sampling,
    on_step: StepCallback | None = None,
) -> list[Rollout]:
    """Run one rollout for each instance.

    InputError if a chunk is too long, ServiceError if the generator fails. A seed of ``sampling``
    is that of the first chunk; each later chunk has the next one.
    """
    rollouts = [new_rollout(instance, agent) for instance in instances]
    total = max((len(rollout.chunks) for rollout in rollouts), default=0)
    for t in range(total):
        active = [rollout for rollout in rollouts if len(rollout.chunks) > t]
        prompts = [
            agent.prompt(rollout.memory, rollout.retriever, rollout.chunks[t]) for rollout in active
        ]
        prompts = sharing(prompts)
        seed = None if sampling.seed is None else sampling.seed + t
        completions = generator.generate(prompts, replace(sampling, seed=seed))
        for rollout, prompt, completion in zip(active, prompts, completions, strict=True):
            take_step(rollout, agent, prompt, completion)
        if on_step:
            on_step(t + 1, total)
    return rollouts


RunRollouts = Callable[..., list[Rollout]]
"""``run_rollouts``, or what takes the same arguments."""


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
    """Return a rollout before its first step, with the memory that the instance begins with."""
    memory = agent.new_memory(instance.initial_entries)
    return Rollout(instance, memory, agent.new_retriever(memory), tokens_before=memory.tokens)


def take_step(
    rollout: Rollout, agent: AgentStep, prompt: Prompt, completion: Completion
) -> StepRecord:
    """Apply the completion of a rollout's next chunk and record the step."""
    t = rollout.instance.begin + len(rollout.steps)
    chunk = rollout.instance.chunks[t]
    outcome = agent.apply(rollout.memory, t, chunk, completion.text, completion.cut_off)
    record = StepRecord(t, prompt, completion, outcome, rollout.memory.tokens, len(rollout.memory))
    rollout.steps.append(record)
    return record
