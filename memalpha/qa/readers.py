"""Readers: answer a question from its passages, under one token budget for all readers.

A passage is read whole or not at all, on one line; all readers see the same passages; a reader that fails raises ServiceError.
Departure from arXiv 2509.25911: there the reader gets the top 20 entries of each section, of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memalpha.endpoints import ChatClient
from memalpha.errors import PartialServiceError, ServiceError
from memalpha.protocols import ReadRequest, TokenCounter
from memalpha.text import one_line
from memalpha.types import Answer, Message, Sampling

UNKNOWN = "unknown"
SYSTEM = (
    "You answer questions from notes. Use the notes alone. Where notes disagree, the newest holds. "
    f"Give the answer itself, as briefly as possible, without a sentence around it. If the notes do not say, answer: {UNKNOWN}"
)
USER = "Notes:\n{notes}\n\nQuestion: {question}\nAnswer:"
NO_NOTES = "(none)"
Generate = Callable[[list[list[Message]]], list[str]]
GREEDY = Sampling(max_new_tokens=128)


def within_budget(passages: Sequence[str], budget_tokens: int, count_tokens: TokenCounter) -> tuple[str, ...]:
    """Return the passages (best first) that fit a token budget, each whole; line breaks and the prompt are not counted."""
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
    def __init__(self, budget_tokens: int, count_tokens: TokenCounter) -> None:
        self.budget_tokens, self.count_tokens = budget_tokens, count_tokens

    def passages(self, request: ReadRequest) -> tuple[str, ...]:
        """Return the passages of a request that fit the budget."""
        return within_budget(request.passages, self.budget_tokens, self.count_tokens)

    def messages(self, requests: Sequence[ReadRequest]) -> list[list[Message]]:
        """Return the chat of each request."""
        return [reader_messages(request.question.text, self.passages(request)) for request in requests]


class RecallReader(_BudgetedReader):
    """Answers with the retrieved passages; no model."""

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer per request: the passages in the budget, as text one per line."""
        kept = [self.passages(request) for request in requests]
        return [Answer("\n".join(passages), passages) for passages in kept]


class ModelReader(_BudgetedReader):
    """Answers with ``generate``: a batch of chats to one reply each, in order (in training: the base model without adapters).

    ``own_model``: whether nothing else runs its model, so that it may run beside a generator.
    """

    def __init__(self, generate: Generate, budget_tokens: int, count_tokens: TokenCounter, *, own_model: bool = False) -> None:
        super().__init__(budget_tokens, count_tokens)
        self._generate, self.own_model = generate, own_model

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer per request; ServiceError if the number of replies differs."""
        replies = self._generate(self.messages(requests)) if requests else []
        if len(replies) != len(requests):
            raise ServiceError(f"the reader's model gave {len(replies)} replies to {len(requests)} questions")
        return [Answer(reply.strip()) for reply in replies]


class EndpointReader(_BudgetedReader):
    """Answers with a chat server; greedy by default (published: temperature 0.7)."""

    def __init__(self, client: ChatClient, budget_tokens: int, count_tokens: TokenCounter, sampling: Sampling = GREEDY) -> None:
        super().__init__(budget_tokens, count_tokens)
        self._client, self._sampling = client, sampling

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer per request; PartialServiceError if a request failed, InputError if key, model or URL is wrong."""
        try:
            replies = self._client.complete_many(self.messages(requests), self._sampling)
        except PartialServiceError as error:
            said = [item if isinstance(item, ServiceError) else Answer(item.text.strip()) for item in error.outcomes]
            raise PartialServiceError(said) from error
        return [Answer(reply.text.strip()) for reply in replies]
