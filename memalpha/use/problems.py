"""What a client is told when something goes wrong: one JSON object (RFC 9457) with what, what was expected, and what to do.

What the client did wrong is 4xx and told in full. What the infrastructure did wrong is 5xx: the client is told the kind, the log of
the server has the message, since that may name files and addresses. What the model did wrong is no problem but a recorded result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from memalpha.errors import (
    ForgottenError,
    InputError,
    JournalBusyError,
    JournalConflictError,
    JournalDamagedError,
    JournalError,
    MemAlphaError,
    ServiceError,
)

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1
"""What ``Retry-After`` says."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong.

    Attributes:
        status: HTTP status.
        what: What is wrong, naming the value.
        expected: What would have been right, or empty.
        fix: What to do about it, or empty.
        headers: Further headers of the response.
    """

    status: int
    what: str
    expected: str = ""
    fix: str = ""
    headers: Mapping[str, str] | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON object."""
        parts = {"what": self.what, "expected": self.expected, "fix": self.fix}
        return {"title": HTTPStatus(self.status).phrase, "status": self.status, **{k: v for k, v in parts.items() if v}}


class Refused(Exception):
    """A request that is not carried out.

    Args:
        problem: Why.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class _Kind(NamedTuple):
    error: type[MemAlphaError]
    status: HTTPStatus
    told: str  # instead of the message; empty = the message itself


_KINDS = (
    _Kind(ForgottenError, HTTPStatus.GONE, ""),
    _Kind(JournalConflictError, HTTPStatus.CONFLICT, ""),
    _Kind(JournalBusyError, HTTPStatus.SERVICE_UNAVAILABLE, "the store is busy; nothing was written"),
    _Kind(JournalDamagedError, HTTPStatus.INTERNAL_SERVER_ERROR, "the store is damaged; nothing is answered from it"),
    _Kind(JournalError, HTTPStatus.INTERNAL_SERVER_ERROR, "the store could not do this; it was not acknowledged"),
    _Kind(ServiceError, HTTPStatus.BAD_GATEWAY, "the model, or the reader of answers, failed"),
    _Kind(InputError, HTTPStatus.BAD_REQUEST, ""),
)
"""The first that fits counts."""

_UNKNOWN = _Kind(MemAlphaError, HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed")
_ASK = "try again; if it stays, the server's log says why"
UNEXPECTED = Problem(_UNKNOWN.status, _UNKNOWN.told, fix=_ASK)
"""What is told about an exception that nobody foresaw."""


def problem_of(error: Exception) -> Problem:
    """Return what to tell a client about an exception; what it is not told is logged."""
    if isinstance(error, Refused):
        return error.problem
    kind = next((kind for kind in _KINDS if isinstance(error, kind.error)), _UNKNOWN)
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, MemAlphaError) and not kind.told:
        return Problem(kind.status, (error.what or str(error)) + notes, error.expected, error.fix)
    log.error("%s: %s%s", type(error).__name__, error, notes, exc_info=None if isinstance(error, MemAlphaError) else error)
    retry = {"Retry-After": str(RETRY_SECONDS)} if kind.status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Problem(kind.status, kind.told + notes, fix=_ASK, headers=retry)


__all__ = ["MEDIA_TYPE", "RETRY_SECONDS", "UNEXPECTED", "Problem", "Refused", "problem_of"]
