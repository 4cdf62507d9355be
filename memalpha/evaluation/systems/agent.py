"""The memory agent: untrained (no adapter), warm-started or trained, with the very step of training and use.

Prompts, application and retrieval are those of ``memalpha.agent.step``; the rollouts of a batch run in lockstep, and what is kept
of them is the memory, so the cost in working memory is that of one batch, however many chunks there are.

``cut`` is 0: the agent reads every chunk whole or not at all, and one over its limit is an error before anything is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.rollout import Rollout, StepCallback, run_rollouts
from memalpha.agent.step import AgentStep, check_context
from memalpha.errors import InputError
from memalpha.evaluation.systems.base import Kept, PlainSystem, Sampled, Setting, count_operations, rendered, searched
from memalpha.evaluation.systems.rewriting import batch_sampling
from memalpha.memory.schema import MemorySchema
from memalpha.types import Instance


@dataclass(frozen=True, slots=True)
class AgentOptions(Sampled):
    """Which agent.

    Attributes:
        adapter: Its adapter's folder (empty = the untrained base model).
        settings: ``shared`` (the evaluation's schema, codec and limits; the adapter's own schema and codec must be the same) or
            ``own`` (what is saved beside the adapter).
    """

    adapter: str = ""
    settings: Literal["shared", "own"] = "shared"


class Agent(PlainSystem):
    """A policy that writes its memory by tool calls; a ``System``."""

    def __init__(self, setting: Setting, options: AgentOptions) -> None:
        self.setting = setting
        self.draws = options.draws(setting.temperature)
        self.step = _step(setting, options)
        self.generator = setting.host.generator(options.adapter)
        check_context(self.step, setting.host.config)

    def check(self, instances: Sequence[Instance]) -> None:
        """Raise InputError if a chunk is longer than the agent accepts."""
        for instance in instances:
            for index, chunk in enumerate(instance.chunks):
                self.step.check_chunk(chunk, where=f"chunk {index} of instance {instance.id}")

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Run one rollout an instance, in lockstep."""
        sampling = batch_sampling(self.step.config.max_completion_length, self.setting.temperature, seed, instances)
        return [self._keep(rollout) for rollout in run_rollouts(instances, self.step, self.generator, sampling, on_step=on_step)]

    def _keep(self, rollout: Rollout) -> Kept:
        return Kept(
            searched(rollout.memory, rollout.retriever, self.setting.retrieve_k),
            memory_tokens=rollout.memory.tokens,
            entries=rendered(rollout.memory),
            write_calls=len(rollout.steps),
            cut_off=sum(step.completion.cut_off for step in rollout.steps),
            operations=count_operations(result for step in rollout.steps for result in step.outcome.results),
        )


def _step(setting: Setting, options: AgentOptions) -> AgentStep:
    """The agent's prompts and application.

    Raises:
        InputError: If the adapter's own settings are asked for and there are none, or they are another agent's than the shared
            ones.
    """
    if not options.adapter:
        if options.settings == "own":
            raise InputError(
                "settings 'own' of an agent without an adapter", expected="an adapter", fix="add adapter, or leave it out"
            )
        return setting.step
    if options.settings == "own":
        return AgentStep(AgentConfig.load(options.adapter), setting.host.tokenizer)
    if not (Path(options.adapter) / AGENT_FILE).is_file():
        return setting.step  # an adapter of another program says nothing about its agent
    saved = AgentConfig.load(options.adapter)
    shared = setting.step.config
    if MemorySchema.load(saved.schema) != setting.step.schema or saved.codec != shared.codec:
        raise InputError(
            f"adapter {options.adapter} was trained with schema {saved.schema!r} and codec {saved.codec!r}, and this evaluation "
            f"has {shared.schema!r} and {shared.codec!r}",
            expected="the same for agents that are compared",
            fix="set schema and codec of the evaluation, or settings: own for this system",
        )
    return setting.step


__all__ = ["Agent", "AgentOptions"]
