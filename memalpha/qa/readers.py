"""Readers: from a question and the passages found for it to an answer, under one token budget for every reader.

| name | class | model |
| --- | --- | --- |
| recall | RecallReader | none: the answer is what was retrieved |
| base | ModelReader | any generating function, such as the policy's own frozen base model |
| endpoint | EndpointReader | an OpenAI-compatible server |

What always holds: a passage is read whole or not at all, and stands on a line of its own that it cannot leave; every reader
sees the same passages for the same budget; a reader that fails raises ServiceError and never answers in its model's stead.

Departure from the published system (arXiv 2509.25911): there the reader gets the top 20 of each section whatever their length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.protocols import ReadRequest, TokenCounter
from memalpha.text import one_line
from memalpha.types import Answer, Message, Sampling

SYSTEM = (
    "You answer questions from notes. Use the notes alone. Where notes disagree, the newest holds. "
    "Give the answer itself, as briefly as possible, without a sentence around it. If the notes do not say, answer: unknown"
)
"""System text of the readers with a model."""

USER = "Notes:\n{notes}\n\nQuestion: {question}\nAnswer:"
"""User text of the readers with a model; the notes are one passage a line."""

NO_NOTES = "(none)"

GREEDY = Sampling(max_new_tokens=128)
"""How an endpoint reader draws its answers unless told otherwise."""


def within_budget(passages: Sequence[str], budget_tokens: int, count_tokens: TokenCounter) -> tuple[str, ...]:
    """Return the passages that fit a budget, best first.

    Each is taken whole if it fits what is left and else left out, so a short one may follow a long one that did not fit. Line
    breaks between passages and the prompt around them are not counted.

    Args:
        passages: Best first.
        budget_tokens: Most tokens of all passages together.
        count_tokens: The policy's token counter.
    """
    kept, left = [], budget_tokens
    for passage in passages:
        cost = count_tokens(passage)
        if cost <= left:
            kept.append(passage)
            left -= cost
    return tuple(kept)


def reader_messages(question: str, passages: Sequence[str]) -> list[Message]:
    """Return the chat messages that ask a model one question about its notes."""
    notes = "\n".join(map(one_line, passages)) or NO_NOTES
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER.format(notes=notes, question=question)}]


class _BudgetedReader:
    """What the readers share: the budget."""

    def __init__(self, budget_tokens: int, count_tokens: TokenCounter) -> None:
        if budget_tokens < 1:
            raise InputError(f"the reader's budget is {budget_tokens} tokens", expected="at least 1")
        self.budget_tokens, self.count_tokens = budget_tokens, count_tokens

    def passages(self, request: ReadRequest) -> tuple[str, ...]:
        """Return what of a request is read."""
        return within_budget(request.passages, self.budget_tokens, self.count_tokens)

    def messages(self, requests: Sequence[ReadRequest]) -> list[list[Message]]:
        """Return the chat of each request."""
        return [reader_messages(request.question.text, self.passages(request)) for request in requests]


class RecallReader(_BudgetedReader):
    """Answers with what was retrieved; no model.

    Args:
        budget_tokens: Most tokens of the passages of one answer.
        count_tokens: The policy's token counter.
    """

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer a request: its passages inside the budget, and as text one a line."""
        kept = [self.passages(request) for request in requests]
        return [Answer("\n".join(passages), passages) for passages in kept]


class ModelReader(_BudgetedReader):
    """Answers with a model at hand, given as a function; the training package passes its base model with the adapters disabled.

    Args:
        generate: From a batch of chats to their replies, one each, in order.
        budget_tokens: Most tokens of the passages of one question.
        count_tokens: The policy's token counter.
    """

    def __init__(
        self, generate: Callable[[list[list[Message]]], list[str]], budget_tokens: int, count_tokens: TokenCounter
    ) -> None:
        super().__init__(budget_tokens, count_tokens)
        self._generate = generate

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer a request; ServiceError if the function does not give one reply each."""
        replies = self._generate(self.messages(requests)) if requests else []
        if len(replies) != len(requests):
            raise ServiceError(f"the reader's model gave {len(replies)} replies to {len(requests)} questions")
        return [Answer(reply.strip()) for reply in replies]


class EndpointReader(_BudgetedReader):
    """Answers with a model behind a chat server, as many requests at once as the client allows.

    Args:
        client: The server and model.
        budget_tokens: Most tokens of the passages of one question, by ``count_tokens``.
        count_tokens: The policy's token counter, so that all readers and systems have the same budget.
        sampling: How answers are drawn; greedy by default (published: temperature 0.7).
    """

    def __init__(
        self,
        client: ChatClient,
        budget_tokens: int,
        count_tokens: TokenCounter,
        sampling: Sampling = GREEDY,
    ) -> None:
        super().__init__(budget_tokens, count_tokens)
        self._client, self._sampling = client, sampling

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer a request.

        Raises:
            PartialServiceError: If any request failed after its retries; holds the other answers.
            InputError: If the server says that the key, model or URL is wrong.
        """
        try:
            replies = self._client.complete_many(self.messages(requests), self._sampling)
        except PartialServiceError as error:
            raise PartialServiceError(
                [outcome if isinstance(outcome, ServiceError) else Answer(outcome.text.strip()) for outcome in error.outcomes]
            ) from error
        return [Answer(reply.text.strip()) for reply in replies]


__all__ = [
    "EndpointReader", "GREEDY", "ModelReader", "NO_NOTES", "RecallReader", "SYSTEM", "USER", "reader_messages", "within_budget",
]  # fmt: skip
