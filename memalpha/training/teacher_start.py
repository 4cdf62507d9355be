"""Instances that begin with a memory, which a teacher kept of their first chunks, so that long
memories are trained, too.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from memalpha.agent.step import AgentStep
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.qa.metrics import needs_all
from memalpha.types import Fact, FactAction, Instance, Question


def start_from_teacher(
    instances: Sequence[Instance],
    agent: AgentStep,
    chunks: int,
    seed: int,
    cut: bool = False,
    coverage: float = 1.0,
) -> list[Instance]:
    """Return the instances; of those with annotated facts the teacher has read all but ``chunks``.

    The share of the facts that it kept is drawn for each instance from ``coverage`` to 1. ``cut``
    ends each of these after a chunk drawn from the seed, with the questions as of then. 0: the
    teacher has read nothing. InputError if none has facts.
    """
    if chunks and not any(instance.facts for instance in instances):
        raise InputError(
            f"rollout_chunks is {chunks}, but no instance has annotated facts",
            expected="data with annotated facts, such as synthetic",
            fix="for data without facts give --rollout_chunks 0 --rollout_coverage 1",
        )
    teacher = TeacherConfig((coverage, 1.0), dates=agent.config.show_times)
    started = []
    for instance in instances:
        begin = 0
        if chunks and instance.facts:
            if cut:
                instance = _cut_short(instance, chunks, random.Random(f"cut/{seed}/{instance.id}"))
            begin = max(0, len(instance.chunks) - chunks)
        memory = agent.new_memory()
        rng = random.Random(f"begin/{seed}/{instance.id}")
        teach(memory, instance, rng, teacher, begin, agent.config.archive)
        entries = memory.snapshot().entries
        started.append(replace(instance, begin=begin, initial_entries=entries))
    return started


def _cut_short(instance: Instance, least: int, rng: random.Random) -> Instance:
    """End an instance after ``least`` or more chunks, by which at least one question can be
    asked.
    """
    questions = {len(instance.chunks): instance.questions}
    ends = []
    for end in range(least, len(instance.chunks)):
        as_of = (_as_of(question, instance.facts, end) for question in instance.questions)
        questions[end] = tuple(filter(None, as_of))
        ends += [end] if questions[end] else []
    end = rng.choice([*ends, len(instance.chunks)])
    facts = tuple(fact for fact in instance.facts if fact.chunk < end)
    return replace(instance, chunks=instance.chunks[:end], questions=questions[end], facts=facts)


def _as_of(question: Question, facts: Sequence[Fact], end: int) -> Question | None:
    """Return the question as of the first ``end`` chunks; None if they do not answer it.

    Where a later chunk changes or takes back the value that is asked for, the answer is the value
    of before.
    """
    if not question.evidence:
        return None
    if max(question.evidence) < end:
        return question
    if needs_all(question):  # all values of then are not known
        return None
    ended_by = {
        FactAction.CHANGE: question.answers,
        FactAction.RETRACT: question.stale,
        FactAction.STATE: (),
    }
    changed = None
    for fact in reversed(facts):  # the first one after the end counts
        if fact.chunk >= end and fact.chunk in question.evidence:
            changed = fact if fact.value in ended_by[fact.action] else changed
    if changed is None:
        return None
    key = (changed.subject, changed.attribute)
    slot = [fact for fact in facts if fact.chunk < end and (fact.subject, fact.attribute) == key]
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
