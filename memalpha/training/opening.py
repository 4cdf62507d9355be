"""Instances that begin with a memory: what the teacher kept of their first chunks, so that long memories are trained, too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from memalpha.agent.step import AgentStep
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.types import Instance


def begun(instances: Sequence[Instance], agent: AgentStep, chunks: int, seed: int, cut: bool = False) -> list[Instance]:
    """Return the instances, those with annotated facts begun: the teacher, which leaves nothing out, has read all but ``chunks``.

    ``cut`` ends each of these after a chunk drawn from the seed. 0 begins none. InputError if none has facts.
    """
    if chunks and not any(instance.facts for instance in instances):
        expected = "data with annotated facts, such as synthetic"
        raise InputError(f"rollout_chunks is {chunks}, and no instance has annotated facts", expected=expected)
    found, teacher = [], TeacherConfig(dates=agent.config.show_times)
    for instance in instances:
        rng, count = random.Random(f"begin/{seed}/{instance.id}"), 0
        if chunks and instance.facts:
            if cut:
                instance = _cut(instance, chunks, random.Random(f"cut/{seed}/{instance.id}"))
            count = max(0, len(instance.chunks) - chunks)
        teach(memory := agent.new_memory(), instance, rng, teacher, count, agent.config.archive)
        found.append(replace(instance, begin=count, held=memory.snapshot().entries))
    return found


def _cut(instance: Instance, least: int, rng: random.Random) -> Instance:
    """End an instance after ``least`` or more chunks, with the questions whose evidence is read by then, at least one."""
    complete = {question: max(question.evidence) + 1 for question in instance.questions if question.evidence}
    whole = len(instance.chunks)
    end = rng.randint(min(max(least, min(complete.values(), default=whole)), whole), whole)
    if end == whole:
        return instance
    questions = tuple(question for question, chunks in complete.items() if chunks <= end)
    facts = tuple(fact for fact in instance.facts if fact.chunk < end)
    return replace(instance, chunks=instance.chunks[:end], questions=questions, facts=facts)
