"""The memory agent (untrained, warm-started or trained) and the rule-based teacher policy of the demonstrations.

The agent uses the prompts, application and retrieval of training (``memalpha.agent.step``). A batch runs in lockstep. ``cut`` is 0:
a chunk above the limit is an error before the evaluation starts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.rollout import Rollout, StepCallback, run_rollouts
from memalpha.agent.step import AgentStep, check_context
from memalpha.config import Share
from memalpha.data.teacher import Style, TeacherConfig, teacher_operations
from memalpha.errors import InputError
from memalpha.evaluation.systems.base import (
    Kept,
    Setting,
    System,
    SystemOptions,
    WriterOptions,
    count_operations,
    rendered,
    searched,
)
from memalpha.memory.schema import MemorySchema
from memalpha.types import Instance, OperationResult


@dataclass(frozen=True, slots=True)
class AgentOptions(WriterOptions):
    """Which agent.

    Attributes:
        adapter: Its adapter's folder (empty = the untrained base model).
        settings: ``shared`` (the evaluation's; the adapter's schema and codec must match) or ``own`` (saved beside the adapter).
    """

    adapter: str = ""
    settings: Literal["shared", "own"] = "shared"


class Agent(System):
    """A policy that writes its memory by tool calls."""

    def __init__(self, setting: Setting, options: AgentOptions) -> None:
        self.setting = setting
        self.step = _step(setting, options)
        self.generator = setting.host.generator(options.adapter)
        check_context(self.step, setting.host.config)

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if a chunk is longer than the agent accepts."""
        for instance in instances:
            for index, chunk in enumerate(instance.chunks):
                self.step.check_chunk(chunk, where=f"chunk {index} of instance {instance.id}")

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Run one rollout for each instance, in lockstep."""
        sampling = self.setting.sampling(self.step.config.max_completion_length, seed, instances)
        return [self._kept(rollout) for rollout in run_rollouts(instances, self.step, self.generator, sampling, on_step=on_step)]

    def _kept(self, rollout: Rollout) -> Kept:
        return Kept(
            searched(rollout.memory, rollout.retriever, self.setting.retrieve_k),
            memory_tokens=rollout.memory.tokens,
            entries=rendered(rollout.memory),
            write_calls=len(rollout.steps),
            cut_off=sum(step.completion.cut_off for step in rollout.steps),
            operations=count_operations(result for step in rollout.steps for result in step.outcome.results),
        )


def _step(setting: Setting, options: AgentOptions) -> AgentStep:
    """The agent's step; InputError if its own settings are missing or conflict with the shared ones."""
    if options.settings == "own":
        if not options.adapter:
            raise InputError("settings 'own' of an agent without an adapter", expected="an adapter, or settings: shared")
        return AgentStep(AgentConfig.load(options.adapter), setting.host.tokenizer)
    if (Path(options.adapter) / AGENT_FILE).is_file() and options.adapter:  # an adapter of another program has no such file
        saved, shared = AgentConfig.load(options.adapter), setting.step.config
        if MemorySchema.load(saved.schema) != setting.step.schema or saved.codec != shared.codec:
            raise InputError(
                f"adapter {options.adapter} was trained with schema {saved.schema!r} and codec {saved.codec!r}, "
                f"and this evaluation has {shared.schema!r} and {shared.codec!r}",
                expected="the same for agents that are compared",
                fix="set schema and codec of the evaluation, or settings: own for this system",
            )
    return setting.step


@dataclass(frozen=True, slots=True)
class TeacherOptions(SystemOptions):
    """Quality of the teacher; see ``memalpha.data.teacher.TeacherConfig``.

    Attributes:
        coverage: Probability that a fact is acted on.
        p_correct: Probability that a changed or retracted fact is corrected in place.
        p_update: Of those, the probability of an update rather than a deletion and an insertion.
        style: Wording of an entry.
    """

    coverage: Share = 1.0
    p_correct: Share = 1.0
    p_update: Share = 0.5
    style: Style = "words"

    def draws(self, temperature: float) -> bool:
        """Whether what is kept depends on the seed; the temperature does not matter, because no model writes."""
        return min(self.coverage, self.p_correct) < 1 or 0 < self.p_update < 1


class Teacher(System):
    """Writes what the annotations of generated data say: an upper limit for a policy trained on its demonstrations."""

    def __init__(self, setting: Setting, options: TeacherOptions) -> None:
        self.setting = setting
        self.config = TeacherConfig(options.coverage, options.p_correct, options.p_update, options.style)

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if an instance has no annotations."""
        if bare := next((instance for instance in instances if not instance.facts), None):
            raise InputError(
                f"system 'teacher' on instance {bare.id}, which has no annotated facts",
                expected="generated data",
                fix="name the sets it is for: sets: [synthetic]",
            )

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Keep what the annotations say."""
        step, rng = self.setting.step, random.Random(f"{seed}/{instance.id}")
        memory = step.new_memory()
        retriever = step.new_retriever(memory)
        results: list[OperationResult] = []
        for index, chunk in enumerate(instance.chunks):
            operations = teacher_operations(instance, index, memory, rng, self.config)
            results += [memory.apply(operation, chunk=index, time=chunk.time) for operation in operations]
        return Kept(
            searched(memory, retriever, self.setting.retrieve_k),
            memory_tokens=memory.tokens,
            entries=rendered(memory),
            operations=count_operations(results),
        )
