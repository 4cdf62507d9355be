"""Instances that begin with a memory: what the teacher kept of their first chunks, so that long memories are trained, too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from memalpha.agent.step import AgentStep
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.types import Instance


def begun(instances: Sequence[Instance], agent: AgentStep, chunks: int, seed: int) -> list[Instance]:
    """Return the instances, those with annotated facts begun: the teacher, which leaves nothing out, has read all but ``chunks``.

    0 begins none. InputError if none has facts.
    """
    if chunks and not any(instance.facts for instance in instances):
        expected = "data with annotated facts, such as synthetic"
        raise InputError(f"rollout_chunks is {chunks}, and no instance has annotated facts", expected=expected)
    found, teacher = [], TeacherConfig(dates=agent.config.show_times)
    for instance in instances:
        rng = random.Random(f"begin/{seed}/{instance.id}")
        count = max(0, len(instance.chunks) - chunks) if chunks and instance.facts else 0
        teach(memory := agent.new_memory(), instance, rng, teacher, count, agent.config.archive)
        found.append(replace(instance, begin=count, held=memory.snapshot().entries))
    return found
