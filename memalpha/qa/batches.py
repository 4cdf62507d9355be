"""One batch for a reader or judge, with one outcome a request: its result, or the error it failed with.

What always holds: a failed request takes no other with it, and an outcome is never made up. A service that fails as a whole
(a plain ServiceError) is asked request by request; after three failures in a row it counts as down and the rest is not asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from memalpha.errors import PartialServiceError, ServiceError

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")

_MAX_FAILURES_IN_A_ROW = 3


def ask_all(
    ask: Callable[[Sequence[Request]], Sequence[Result]], requests: Sequence[Request], who: str
) -> list[Result | ServiceError]:
    """Return each request's result or its own ServiceError, in order.

    Args:
        ask: Gives one result a request, or raises ServiceError; PartialServiceError keeps what it could give.
        requests: The batch; an empty one asks nothing.
        who: Who is asked, for messages.

    Raises:
        ServiceError: If there is not one result a request: then nobody knows whose they are.
    """
    if not requests:
        return []
    outcomes: Sequence[Result | ServiceError]
    try:
        outcomes = ask(requests)
    except PartialServiceError as error:
        logger.warning("%s: %s", who, error)
        outcomes = error.outcomes
    except ServiceError as error:
        logger.warning("%s: %s; asking %d requests one by one", who, error, len(requests))
        outcomes = _ask_singly(ask, requests, who)
    return list(_one_each(outcomes, len(requests), who))


def _one_each(outcomes: Sequence[Result], requests: int, who: str) -> Sequence[Result]:
    if len(outcomes) != requests:
        raise ServiceError(f"{who} gave {len(outcomes)} results for {requests} requests")
    return outcomes


def _ask_singly(
    ask: Callable[[Sequence[Request]], Sequence[Result]], requests: Sequence[Request], who: str
) -> list[Result | ServiceError]:
    outcomes: list[Result | ServiceError] = []
    in_a_row = 0
    for request in requests:
        try:
            outcomes += _one_each(ask([request]), 1, who)
            in_a_row = 0
        except ServiceError as error:
            outcomes.append(error)
            in_a_row += 1
            if in_a_row == _MAX_FAILURES_IN_A_ROW:
                unasked = ServiceError(f"{error}; the service seems to be down, so this was not asked")
                return outcomes + [unasked] * (len(requests) - len(outcomes))
    return outcomes


__all__ = ["ask_all"]
