"""Lockstep rollouts: all rollouts read their first chunk in one batch, then their second, and so
on.

A rollout is one pass over one instance with one sample of the policy: a new memory, and one prompt
and completion per chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memalpha.agent.step import AgentStep, StepOutcome
from memalpha.memory.memory import Memory
from memalpha.protocols import Generator, Retriever
from memalpha.text import decoded, in_common
from memalpha.types import Chunk, Completion, Instance, Prompt, QuestionRecord, Sampling, StopReason


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a rollout; ``memory_tokens`` and ``entries`` (their number) are counted after the
    step.
    """

    chunk_index: int
    prompt: Prompt
    completion: Completion
    outcome: StepOutcome
    memory_tokens: int
    entries: int


@dataclass(slots=True)
class Rollout:
    """One pass over one instance; ``questions`` to ``errors`` are set when it is scored, before its
    reward is.
    """

    instance: Instance
    memory: Memory
    retriever: Retriever
    steps: list[StepRecord] = field(default_factory=list)
    questions: list[QuestionRecord] = field(default_factory=list)  # asked on the final memory
    immediate: list[list[QuestionRecord]] = field(
        default_factory=list
    )  # asked after each step; empty: were not
    verdicts: list[list[bool] | None] = field(
        default_factory=list
    )  # of the content judge on each step; None: has none
    nothing_due: list[bool | None] = field(
        default_factory=list
    )  # for each step, whether it knows so; None: does not know
    errors: dict[int, str] = field(
        default_factory=dict
    )  # why a part of the reward could not be scored, by chunk index
    tokens_before: int = 0  # of the memory that it began with

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


StepCallback = Callable[
    [int, int], None
]  # called after each lockstep with (steps done, steps in all)


def run_rollouts(
    instances: Sequence[Instance],
    agent: AgentStep,
    generator: Generator,
    sampling: Sampling,
    on_step: StepCallback | None = None,
) -> list[Rollout]:
    """Run one rollout for each instance; InputError if a chunk is too long, ServiceError if the
    generator fails.
    """
    rollouts = [new_rollout(instance, agent) for instance in instances]
    total = max((len(rollout.chunks) for rollout in rollouts), default=0)
    for t in range(total):
        active = [rollout for rollout in rollouts if len(rollout.chunks) > t]
        prompts = sharing(
            [
                agent.prompt(rollout.memory, rollout.retriever, rollout.chunks[t])
                for rollout in active
            ]
        )
        seed = None if sampling.seed is None else sampling.seed + t  # another seed for each chunk
        finds = [partial(agent.found, rollout.retriever) for rollout in active]
        completions = complete(prompts, finds, agent, generator, replace(sampling, seed=seed))
        for rollout, prompt, completion in zip(active, prompts, completions, strict=True):
            take_step(rollout, agent, prompt, completion)
        if on_step:
            on_step(t + 1, total)
    return rollouts


def sharing(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Let the rollouts of a chunk share all leading ids of their prompts: the view, too, up to
    where it differs.
    """
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.ids[: prompt.shared], []).append(prompt.ids)
    common = {shared: in_common(ids) for shared, ids in groups.items() if len(ids) > 1}
    return [
        replace(prompt, shared=common.get(prompt.ids[: prompt.shared], prompt.shared))
        for prompt in prompts
    ]


Find = Callable[[str], str]  # from a query to the message with what ``AgentStep.found`` finds


def complete(
    prompts: Sequence[Prompt],
    finds: Sequence[Find],
    agent: AgentStep,
    generator: Generator,
    sampling: Sampling,
) -> list[Completion]:
    """Draw a completion for each prompt, turn by turn: those that search are answered and go on in
    a smaller batch.

    ``max_new_tokens`` bounds what all turns of a completion write together (estimated where there
    are no ids), ``searches`` their number. The ids of a completion are those of its turns and of
    the answers in between, which its ``mask`` leaves out.
    """
    completions = list(generator.generate(prompts, sampling))
    drawn, left = dict(enumerate(completions)), [sampling.max_new_tokens] * len(completions)
    for turn in range(1, agent.config.searches + 1):
        for i, new in drawn.items():
            left[i] -= len(new.ids) or agent.encoder.count(new.text)
        queries = {
            i: query for i in drawn if left[i] > 0 and (query := agent.query(completions[i]))
        }
        if not queries:
            break
        for i, query in queries.items():
            completions[i] = agent.answered(completions[i], finds[i](query))
        asked = [agent.continued(prompts[i], completions[i]) for i in queries]
        seed = (
            None if sampling.seed is None else sampling.seed + (turn << 41)
        )  # above those of all chunks
        made = generator.generate(
            asked, replace(sampling, max_new_tokens=max(left[i] for i in queries), seed=seed)
        )
        drawn = {i: _within(new, left[i], agent) for i, new in zip(queries, made, strict=True)}
        for i, new in drawn.items():
            completions[i] = _joined(completions[i], new)
    return completions


def _within(new: Completion, left: int, agent: AgentStep) -> Completion:
    if len(new.ids) <= left:
        return new
    ids, logprobs = new.ids[:left], new.logprobs and new.logprobs[:left]
    return Completion(ids, decoded(agent.encoder.tokenizer, ids), StopReason.LENGTH, logprobs)


def _joined(before: Completion, new: Completion) -> Completion:
    logprobs = (
        None
        if before.logprobs is None or new.logprobs is None
        else (*before.logprobs, *new.logprobs)
    )
    mask = (*(before.mask or ()), *[True] * len(new.ids))
    return replace(
        new, ids=(*before.ids, *new.ids), logprobs=logprobs, mask=mask, searched=before.searched
    )


def new_rollout(instance: Instance, agent: AgentStep) -> Rollout:
    """Return a rollout before its first step, with the memory that the instance begins with."""
    memory = agent.new_memory(instance.held)
    return Rollout(instance, memory, agent.new_retriever(memory), tokens_before=memory.tokens)


def take_step(
    rollout: Rollout, agent: AgentStep, prompt: Prompt, completion: Completion
) -> StepRecord:
    """Apply the completion of a rollout's next chunk and record the step."""
    t = rollout.instance.begin + len(rollout.steps)
    outcome = agent.apply(
        rollout.memory,
        t,
        rollout.instance.chunks[t],
        completion.text,
        completion.cut_off,
        completion.searched,
    )
    record = StepRecord(t, prompt, completion, outcome, rollout.memory.tokens, len(rollout.memory))
    rollout.steps.append(record)
    return record
