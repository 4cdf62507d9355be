"""Instances that begin with a memory: what the teacher kept of their first chunks, so that long
memories are trained, too.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from memalpha.agent.step import AgentStep
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.types import Fact, FactAction, Instance, Question


def begun(
    instances: Sequence[Instance],
    agent: AgentStep,
    chunks: int,
    seed: int,
    cut: bool = False,
    coverage: float = 1.0,
) -> list[Instance]:
    """Return the instances, those with annotated facts begun: the teacher has read all but
    ``chunks``.

    The share of the facts that it kept is drawn for each instance from ``coverage`` to 1. ``cut``
    ends each of these after a chunk drawn from the seed, with the questions as of then. 0 begins
    none. InputError if none has facts.
    """
    InputError.raise_if(
        chunks and not any(instance.facts for instance in instances),
        f"rollout_chunks is {chunks}, and no instance has annotated facts",
        expected="data with annotated facts, such as synthetic",
    )
    found, teacher = [], TeacherConfig((coverage, 1.0), dates=agent.config.show_times)
    for instance in instances:
        rng, count = random.Random(f"begin/{seed}/{instance.id}"), 0
        if chunks and instance.facts:
            if cut:
                instance = _cut(instance, chunks, random.Random(f"cut/{seed}/{instance.id}"))
            count = max(0, len(instance.chunks) - chunks)
        teach(memory := agent.new_memory(), instance, rng, teacher, count, agent.config.archive)
        found.append(replace(instance, begin=count, initial_entries=memory.snapshot().entries))
    return found


def _cut(instance: Instance, least: int, rng: random.Random) -> Instance:
    """End an instance after ``least`` or more chunks, by which at least one question can be
    asked.
    """
    whole = len(instance.chunks)
    asked = {
        end: tuple(
            filter(None, (_asked(question, instance.facts, end) for question in instance.questions))
        )
        for end in range(least, whole)
    }
    end = rng.choice([*(end for end, questions in asked.items() if questions), whole])
    if end == whole:
        return instance
    facts = tuple(fact for fact in instance.facts if fact.chunk < end)
    return replace(instance, chunks=instance.chunks[:end], questions=asked[end], facts=facts)


def _asked(question: Question, facts: Sequence[Fact], end: int) -> Question | None:
    """Return the question as of the first ``end`` chunks; None if they do not answer it.

    Where a later chunk changes or takes back the value that is asked for, the answer is the value
    of before.
    """
    if not question.evidence:
        return None
    if max(question.evidence) < end:
        return question
    if question.metric == "bound_all":  # all values of then are not known
        return None
    said = {
        FactAction.CHANGE: question.answers,
        FactAction.RETRACT: question.stale,
        FactAction.STATE: (),
    }
    later = (
        fact
        for fact in facts
        if fact.chunk >= end and fact.chunk in question.evidence and fact.value in said[fact.action]
    )
    ended = next(((fact.subject, fact.attribute) for fact in later), None)
    slot = [fact for fact in facts if fact.chunk < end and (fact.subject, fact.attribute) == ended]
    if not slot or slot[-1].action is FactAction.RETRACT or slot[-1].value not in question.stale:
        return None
    stale = tuple(dict.fromkeys(fact.value for fact in slot if fact.value != slot[-1].value))
    return replace(
        question,
        answers=(slot[-1].value,),
        stale=stale,
        metric="bound",
        kind="latest" if stale else "single",
        evidence=(slot[-1].chunk,),
    )
