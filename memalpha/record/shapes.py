"""What the lines of a run's files are, checked where they are read.

Somebody may have edited them, or a disk changed them: what does not fit is one InputError with file
and line, before anything is shown or computed. Fields that are not named here may be anything.
"""

import math
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictStr,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from memalpha.errors import InputError
from memalpha.types import JsonMapping, JsonObject

_open = with_config(ConfigDict(extra="allow"))


def _nan_for_null(value: object) -> object:
    return math.nan if value is None else value


def _finite(value: float) -> float:
    if math.isinf(value):
        raise ValueError("it is infinite")
    return value


def _share(value: float) -> float:
    if value < 0 or value > 1:
        raise ValueError("it is outside of [0, 1]")
    return value


Number = Annotated[float, BeforeValidator(_nan_for_null), AfterValidator(_finite)]
"""A float; NaN is null in JSON."""
Score = Annotated[Number, AfterValidator(_share)]
"""A number in [0, 1], or NaN."""
Count = Annotated[int, Field(ge=0, lt=2**63)]


@_open
class EntryShape(TypedDict):
    """An entry of a memory."""

    id: StrictStr
    section: StrictStr
    content: StrictStr
    timestamp: StrictStr | None
    created: Count


def _not_nothing(change: Any) -> Any:
    if change["before"] is None and change["after"] is None:
        raise ValueError("nothing before and nothing after")
    return change


class _ChangeShape(TypedDict):
    before: EntryShape | None
    after: EntryShape | None


@_open
class _OperationShape(TypedDict):
    kind: StrictStr
    section: StrictStr
    content: StrictStr | None
    entry_id: StrictStr | None


@_open
class _ResultShape(TypedDict):
    ok: bool
    code: StrictStr
    message: StrictStr
    entry: StrictStr | None
    operation: _OperationShape | None


@_open
class _StepShape(TypedDict):
    chunk: Count
    text: StrictStr
    time: StrictStr | None
    prompt: StrictStr
    prompt_tokens: Count
    completion: StrictStr
    completion_tokens: Count
    stop: StrictStr
    results: list[_ResultShape]
    changes: list[Annotated[_ChangeShape, AfterValidator(_not_nothing)]]
    memory_tokens: Count
    entries: Count
    reward: dict[str, Number]
    total: Number
    advantage: Number | None
    error: StrictStr | None


def _change_of_each(step: Any) -> Any:
    applied = sum(result["code"] == "applied" for result in step["results"])
    if applied > len(step["changes"]):
        raise ValueError(f"{applied} applied calls and {len(step['changes'])} changes")
    if "accuracy" not in step["reward"]:
        raise ValueError("its reward has no accuracy")
    return step


@_open
class _QuestionShape(TypedDict):
    question: StrictStr
    kind: StrictStr
    answers: list[StrictStr]
    stale: list[StrictStr]
    evidence: list[Count] | None
    answer: StrictStr | None
    entries: list[StrictStr]
    score: Number
    error: StrictStr | None


@_open
class RolloutShape(TypedDict):
    """A rollout, as ``rows.rollout_to_json`` writes it."""

    role: NotRequired[StrictStr]
    instance: StrictStr
    source: StrictStr
    system: StrictStr
    steps: list[Annotated[_StepShape, AfterValidator(_change_of_each)]]
    questions: list[_QuestionShape]
    memory: list[EntryShape]
    memory_tokens: Count
    input_tokens: Count


@_open
class HeldOutShape(TypedDict):
    """A line of a held-out evaluation: the rollout of an ``InstanceRow``."""

    rollout: RolloutShape


@_open
class MetricsShape(TypedDict):
    """A line of ``metrics.jsonl``."""

    step: Count
    max_steps: NotRequired[Count]


@_open
class _SelectionShape(TypedDict):
    step: Count
    metric: StrictStr
    value: Number
    instances: Count
    on_after: bool


@_open
class SummaryShape(TypedDict):
    """``summary.json``."""

    steps: NotRequired[Count]
    seconds: NotRequired[Number]
    selection: NotRequired[_SelectionShape]


@_open
class EnvironmentShape(TypedDict):
    """``environment.json``."""

    command: NotRequired[list[StrictStr]]
    resumed: NotRequired[list[JsonObject]]


@_open
class _NamedShape(TypedDict):
    name: StrictStr
    group: NotRequired[StrictStr]


@_open
class ConfigShape(TypedDict):
    """``config.yaml``."""

    sets: NotRequired[list[_NamedShape]]
    systems: NotRequired[list[_NamedShape]]
    readers: NotRequired[list[_NamedShape]]


InputsShape = dict[str, dict[str, Any]]
"""``inputs.json``."""


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def check_shape(
    shape: type,
    data: JsonMapping,
    place: str | Path,
    error_kind: type[InputError] = InputError,
) -> JsonObject:
    """Return data of this shape; InputError, with ``place``, for other data."""
    try:
        return dict(_adapter(shape).validate_python(data))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise error_kind(
            f"{place} is damaged: {where or 'it'}: {wrong['msg']}",
            expected="the file as memalpha wrote it",
            fix="restore the file from a copy",
        ) from error
