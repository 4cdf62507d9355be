"""The exception tree, and the policy it stands for.

What the *model* does wrong (text that does not parse, a call to an unknown section, an answer that is wrong) is recorded data and
never an exception. What the *user* or the *infrastructure* does wrong raises one of these, with the value, what was expected and
what to do. Neither ever turns into a silent zero, a silent skip or a silent truncation.

    MemAlphaError
    ├── InputError            a value the user gave cannot be used (file, option, schema, model, adapter); a ValueError as well
    │   ├── SchemaError       a memory schema or a data row does not fit its published form
    │   └── RunFolderError    a run folder exists already, or is not one, or cannot be resumed
    ├── MissingExtraError     an optional dependency is not installed; says the install line
    ├── ServiceError          a reader, judge or generation endpoint failed after its retries
    │   └── PartialServiceError  some requests of a batch did; holds what the others gave
    ├── JournalError          a durable store cannot do what was asked; nothing was written that was not acknowledged
    │   ├── JournalBusyError     somebody else is writing and did not finish in time
    │   ├── JournalDamagedError  what is stored is not what was written
    │   ├── JournalConflictError  what was asked does not fit what was written since
    │   └── ForgottenError       what was asked for was forgotten on purpose
    ├── TrainingAborted       a training run had to stop (too many masked samples, non-finite numbers, no memory, no disk)
    └── TrainingStopped       somebody stopped a training run, which has saved where it was
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class MemAlphaError(Exception):
    """Base of every error this package raises on purpose; the command line prints it without a traceback.

    Attributes:
        what: What is wrong, in one part; empty where the message is all there is.
        expected: What would have been right, or empty.
        fix: What to do about it, or empty.
    """

    what = ""
    expected = ""
    fix = ""


class InputError(MemAlphaError, ValueError):
    """A value the user gave cannot be used.

    Args:
        what: What is wrong, naming the value.
        expected: What would have been accepted.
        fix: What to do about it.
    """

    def __init__(self, what: str, *, expected: str = "", fix: str = "") -> None:
        super().__init__(_message(what, expected, fix))
        self.what, self.expected, self.fix = what, expected, fix


class SchemaError(InputError):
    """A memory schema or a data row does not have the published form."""


class RunFolderError(InputError):
    """A run folder already exists, is not a run folder, or cannot be resumed."""


class MissingExtraError(MemAlphaError, ImportError):
    """An optional dependency is missing.

    Args:
        package: The import that failed.
        extra: The extra of this package that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed\n  to fix: pip install -e '.[{extra}]' in the checkout of memalpha")


class ServiceError(MemAlphaError):
    """A reader, judge or generation endpoint failed after all retries. Never scored: the sample is masked."""


class PartialServiceError(ServiceError):
    """Some requests of a batch failed.

    Args:
        outcomes: In order, each request's result or its own ServiceError; at least one of the latter.
    """

    def __init__(self, outcomes: Sequence[Any]) -> None:
        self.outcomes = tuple(outcomes)
        failed = [outcome for outcome in self.outcomes if isinstance(outcome, ServiceError)]
        super().__init__(f"{len(failed)} of {len(self.outcomes)} requests failed; the first: {failed[0]}")


class JournalError(MemAlphaError):
    """A durable store cannot do what was asked.

    Args:
        what: What is wrong, naming the store.
        expected: What would have been right.
        fix: What to do about it.
    """

    def __init__(self, what: str, *, expected: str = "", fix: str = "") -> None:
        super().__init__(_message(what, expected, fix))
        self.what, self.expected, self.fix = what, expected, fix


class JournalBusyError(JournalError):
    """Another writer (or, for an erasure, a reader) held the store for longer than the time to wait; try again."""


class JournalDamagedError(JournalError):
    """What is stored is not what was written: edited, missing, reordered, cut off or flipped. Never answered from."""


class JournalConflictError(JournalError):
    """What was asked does not fit what was written since: an undo of an entry that was written later, for one."""


class ForgottenError(JournalError):
    """What was asked for was forgotten: forgetting wins over undo, history and import."""


class TrainingAborted(MemAlphaError):
    """A training run stopped because going on would train on damaged data."""


class TrainingStopped(MemAlphaError):
    """A training run was asked to stop, saved a checkpoint and can be resumed. The command line exits with 130."""


def _message(what: str, expected: str, fix: str) -> str:
    parts = [what]
    if expected:
        parts.append(f"expected: {expected}")
    if fix:
        parts.append(f"to fix: {fix}")
    return "\n  ".join(parts)
