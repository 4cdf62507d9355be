"""The readers of an evaluation: each reads every system's passages under one budget; see ``memalpha.qa.readers``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from memalpha.errors import InputError
from memalpha.evaluation.config import EvaluateArguments
from memalpha.evaluation.policies import PolicyHost
from memalpha.evaluation.specs import ReaderKind, ReaderSpec
from memalpha.evaluation.systems.base import Room
from memalpha.protocols import ReadRequest, TokenCounter
from memalpha.qa.readers import EndpointReader, ModelReader, RecallReader, reader_messages
from memalpha.text import chat_ids
from memalpha.types import Answer, Instance, Sampling

_LINE_BREAKS = 16
"""Tokens kept free in a window for what joins the passages."""


class BudgetedReader(Protocol):
    """A reader that says what of a request it reads."""

    def passages(self, request: ReadRequest) -> tuple[str, ...]:
        """Return what of a request is read."""
        ...

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer a request, in order."""
        ...


def make_reader(
    spec: ReaderSpec, tokens: int, arguments: EvaluateArguments, host: PolicyHost, count: TokenCounter
) -> BudgetedReader:
    """Return a reader with a budget of so many tokens."""
    if spec.kind is ReaderKind.RECALL:
        return RecallReader(tokens, count)
    if spec.kind is ReaderKind.ENDPOINT:
        return EndpointReader(arguments.reader_client(), tokens, count, Sampling(spec.max_new_tokens))
    return ModelReader(partial(host.answer, max_new_tokens=spec.max_new_tokens), tokens, count)


def room_of(spec: ReaderSpec, reader_tokens: int, reads_window: bool, host: PolicyHost, instances: Sequence[Instance]) -> Room:
    """Return what a reader takes of a system: the common budget, or its model's window where the system reads that.

    Args:
        spec: The reader.
        reader_tokens: The common budget.
        reads_window: Whether the system's reader reads as much as its model takes.
        host: The base model.
        instances: Their longest question must fit beside the passages.

    Raises:
        InputError: If the window is asked for and not known, or has no room for passages.
    """
    if not reads_window or spec.kind is ReaderKind.RECALL:
        return Room(reader_tokens)
    window = _window(spec, host)
    if not window:
        raise InputError(
            f"reader {spec.name!r} does not say how many tokens its model takes, and full context needs to know",
            expected="window_tokens of the reader",
            fix=f"{{name: {spec.name}, kind: {spec.kind}, window_tokens: 32768}}, or budget: reader for the system",
        )
    left = _left(spec, window, host, instances)
    if left < 1:
        raise InputError(
            f"reader {spec.name!r} has a window of {window} tokens, and question and answer alone take {window - left}",
            expected="a larger window",
        )
    return Room(left, window=True)


def check_budget(spec: ReaderSpec, reader_tokens: int, host: PolicyHost, instances: Sequence[Instance], name: str) -> None:
    """Check that the common budget fits the window of a reader's model, where that is known.

    Args:
        spec: The reader.
        reader_tokens: The common budget.
        host: The base model.
        instances: A set; its longest question must fit beside the passages.
        name: What the set is called.

    Raises:
        InputError: If it does not.
    """
    window = 0 if spec.kind is ReaderKind.RECALL else _window(spec, host)
    if window and (left := _left(spec, window, host, instances)) < reader_tokens:
        raise InputError(
            f"reader {spec.name!r} on set {name!r} has a window of {window} tokens, of which question and answer take "
            f"{window - left}, and reader_tokens is {reader_tokens}",
            expected=f"at most {left}" if left > 0 else "a larger window",
            fix="lower reader_tokens, for all sets or for this one, or take a reader of a larger window",
        )


def _window(spec: ReaderSpec, host: PolicyHost) -> int:
    """How many tokens a reader's model takes; 0 if that is not known."""
    return spec.window_tokens or (host.positions if spec.kind is ReaderKind.BASE else 0)


def _left(spec: ReaderSpec, window: int, host: PolicyHost, instances: Sequence[Instance]) -> int:
    """Tokens of a window that are left for passages beside the longest question and answer."""
    asked = {question.text for instance in instances for question in instance.questions} or {""}
    frame = max(len(chat_ids(host.tokenizer, reader_messages(text, ()))) for text in asked)
    return window - frame - spec.max_new_tokens - _LINE_BREAKS


__all__ = ["BudgetedReader", "check_budget", "make_reader", "room_of"]
