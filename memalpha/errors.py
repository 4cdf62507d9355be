"""The exceptions of this package.

A mistake of the model is recorded data and never an exception. A mistake of the user, or a failure
of the infrastructure, raises one of these.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

_Result = TypeVar("_Result")

# characters of each part of a message: values from files and servers can have any length
_LONGEST = 3000


class MemAlphaError(Exception):
    """Base of all errors of this package, with the problem, the expected value and a way to fix it.

    The command line prints the message without a traceback.

    Args:
        what: The problem, as a sentence without a full stop.
        expected: The value that was expected.
        fix: The step that mends the problem.
    """

    def __init__(self, what: str, *, expected: str = "", fix: str = "") -> None:
        cut = (
            part if len(part) <= _LONGEST else f"{part[:_LONGEST]}..."
            for part in (what, expected, fix)
        )
        self.what, self.expected, self.fix = cut
        lines = [
            self.what,
            self.expected and f"expected: {self.expected}",
            self.fix and f"to fix: {self.fix}",
        ]
        super().__init__("\n  ".join(line for line in lines if line))


class InputError(MemAlphaError, ValueError):
    """A value from the user (file, option, schema, model, adapter) cannot be used."""


class SchemaError(InputError):
    """A memory schema or a data row does not have the documented form."""


class RunFolderError(InputError):
    """A run folder already exists, is not a run folder, or cannot be resumed."""


class MissingExtraError(MemAlphaError, ImportError):
    """An import is missing that an extra of memalpha installs.

    Args:
        package: The package that could not be imported.
        extra: The extra that provides it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed", fix=f"pip install 'memalpha[{extra}]'")


@contextmanager
def from_extra(extra: str) -> Iterator[None]:
    """Raise MissingExtraError if an import inside fails because ``extra`` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), extra) from error


class ServiceError(MemAlphaError):
    """A reader, judge or generation endpoint failed after all retries.

    The sample is masked, not scored.
    """


class PartialServiceError(ServiceError):
    """Some requests of a batch failed.

    ``outcomes`` holds the result or ServiceError of each request, in order.
    """

    def __init__(self, outcomes: Sequence[Any]) -> None:
        self.outcomes = tuple(outcomes)
        failed = [outcome for outcome in self.outcomes if isinstance(outcome, ServiceError)]
        super().__init__(
            f"{len(failed)} of {len(self.outcomes)} requests failed; the first: {failed[0]}"
        )


def raise_on_partial(outcomes: Sequence[_Result | ServiceError]) -> list[_Result]:
    """Return the outcomes of a batch; PartialServiceError if one is a ServiceError."""
    results = [outcome for outcome in outcomes if not isinstance(outcome, ServiceError)]
    if len(results) < len(outcomes):
        raise PartialServiceError(outcomes)
    return results


class JournalError(MemAlphaError):
    """A durable store cannot do what was asked."""


class JournalBusyError(JournalError):
    """Another writer held the store for longer than the waiting time. Try again."""


class JournalDamagedError(JournalError):
    """The stored data differs from what was written: edited, missing, reordered or cut off.

    Nothing is read from it.
    """


class JournalConflictError(JournalError):
    """The request conflicts with a later write, e.g. an undo of an entry that was written again."""


class ForgottenError(JournalError):
    """The requested data was forgotten on purpose.

    Undo, history and import cannot bring it back.
    """


class TrainingAborted(MemAlphaError):
    """A training run had to stop because of masked samples, non-finite numbers, or a full memory or
    disk.
    """


class TrainingStopped(MemAlphaError):
    """A training run was stopped by request, and has a checkpoint from which it can continue.

    The command line exits with code 130.
    """


class ImportStopped(MemAlphaError):
    """An import was stopped by request after a batch, and the same import continues there.

    The command line exits with code 130.
    """


def outcomes_of(
    ask: Callable[..., list[_Result]], *arguments: object
) -> list[_Result | ServiceError]:
    """Call ``ask``, and return one result or error for each item of the batch."""
    try:
        return list(ask(*arguments))
    except PartialServiceError as error:
        return list(error.outcomes)
