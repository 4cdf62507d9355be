"""Questions asked while the memory is being built: each right after the chunk that completes its evidence.

The memory of a finished rollout is built again from its recorded operations, so nothing has to be kept while rollouts run.
"""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.agent.rollout import Rollout
from memalpha.agent.step import AgentStep
from memalpha.protocols import ReadRequest
from memalpha.qa.evaluator import QAEvaluator, find_passages
from memalpha.types import Question, QuestionRecord


def completed_by(questions: Sequence[Question], chunk_index: int) -> list[Question]:
    """Return the questions whose last piece of evidence is a chunk; those without known evidence are completed by none."""
    return [question for question in questions if question.evidence and max(question.evidence) == chunk_index]


def requests_after_chunks(rollout: Rollout, agent: AgentStep, k: int) -> list[list[ReadRequest]]:
    """Return, for each chunk, its questions with what the memory of that moment gives for them.

    Args:
        rollout: Finished; its memory is left alone.
        agent: Makes the memory and its retriever.
        k: How many entries are retrieved for a question.
    """
    memory = agent.new_memory()
    retriever = agent.new_retriever(memory)
    requests = []
    for step in rollout.steps:
        chunk = rollout.instance.chunks[step.chunk_index]
        for result in step.outcome.results:
            if result.operation is not None:
                memory.apply(result.operation, chunk=step.chunk_index, time=chunk.time)
        asked = completed_by(rollout.instance.questions, step.chunk_index)
        requests.append([ReadRequest(question, find_passages(memory, retriever, question.text, k).passages) for question in asked])
    return requests


def ask_after_chunks(rollouts: Sequence[Rollout], agent: AgentStep, evaluator: QAEvaluator) -> list[list[list[QuestionRecord]]]:
    """Return the scored questions of each chunk of each rollout; all are read as one batch."""
    requests = [requests_after_chunks(rollout, agent, evaluator.k) for rollout in rollouts]
    records = iter(evaluator.ask([request for chunks in requests for chunk in chunks for request in chunk]))
    return [[[next(records) for _ in chunk] for chunk in chunks] for chunks in requests]
