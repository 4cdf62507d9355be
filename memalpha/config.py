"""Options: YAML files, command lines and keyword arguments become checked dataclasses.

The options of a command are dataclasses ("groups") in one flat namespace: ``--config FILE.yaml``,
overridden by ``--name value``. Our own derive from ``Options``, which checks each value against its
annotation; those of libraries check themselves.
"""

import inspect
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from difflib import SequenceMatcher
from functools import cache
from heapq import nlargest
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from memalpha.errors import InputError
from memalpha.files import load_yaml

_T = TypeVar("_T")
_CHECKS = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False, arbitrary_types_allowed=True)
ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""Name and description in a docstring's ``Attributes`` or ``Args``, after ``inspect.cleandoc``."""

Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
Range = Annotated[
    tuple[int, int],
    BeforeValidator(lambda value: re.split("[-,]", value) if isinstance(value, str) else value),
]
"""Two integers, fewest and most; ``80-160`` at the command line."""


class Options:
    """Base of our own groups of options: a dataclass that raises InputError for values that do not
    fit their annotations.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check and convert every field, then call ``check``."""
        for name in names(type(self)):
            object.__setattr__(self, name, fit(type(self), name, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raise InputError for values that do not fit together; subclasses override it."""


def names(group: type) -> list[str]:
    """The options of a group, in order."""
    return [field.name for field in fields(group) if field.init]


@cache
def _adapters(group: Any) -> Mapping[str, tuple[Any, TypeAdapter[Any] | None]]:
    found: dict[str, tuple[Any, TypeAdapter[Any] | None]] = {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        try:
            found[name] = hint, TypeAdapter(hint, config=_CHECKS)
        except PydanticUserError:
            found[name] = hint, None
    return found


def fit(group: Any, name: str, value: Any, where: str = "") -> Any:
    """Return a value as the type of an option; a text may be read as YAML. InputError if it does
    not fit.
    """
    hint, adapter = _adapters(group)[name]
    if isinstance(hint, type) and issubclass(hint, Options) and not isinstance(value, hint):
        return read(hint, _yaml(value) if isinstance(value, str) else value, name)
    if adapter is None:
        return value
    kinds = {hint, *get_args(hint)}
    candidates = [value]
    if isinstance(value, str):
        candidates = (
            [_yaml(value), value]
            if value.lstrip()[:1] in ("{", "[")
            else [value, _yaml(value), [value]]
        )
    problem = "another type"
    for candidate in candidates:
        if isinstance(candidate, bool) and bool not in kinds and Any not in kinds:
            continue  # pydantic takes true for 1
        try:
            return adapter.validate_python(candidate)
        except ValidationError as error:
            problem = (
                problem
                if candidate is not value
                else "; ".join(item["msg"] for item in error.errors()[:2])
            )
    raise InputError(f"{name} is {value!r}{where}", expected=problem)


def read(group: type[_T], values: Mapping[str, Any] | None, what: str, listed: str = "") -> _T:
    """Make a group from options by name; InputError if one is unknown, missing or unfit; None is
    the default unless accepted.
    """
    if not isinstance(values if values is not None else {}, Mapping):
        raise InputError(f"{what} is {values!r}", expected="a mapping of options")
    given = {}
    for name, value in (values or {}).items():
        check_name(str(name), [group], what, listed)
        if value is not None or NoneType in get_args(_adapters(group)[name][0]):  # type: ignore[arg-type]
            given[name] = fit(group, name, value, f" of {what}")
    for field in fields(group):  # type: ignore[arg-type]
        if (
            field.init
            and field.name not in given
            and field.default is MISSING
            and field.default_factory is MISSING
        ):
            raise InputError(
                f"{what} has no {field.name}",
                expected=_described(group).get(field.name, "a value"),
                fix=f"--{field.name} VALUE; {listed}" if listed else "",
            )
    try:
        return group(**given)
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # what a library's own group finds
        raise InputError(f"the options of {what} do not fit: {error}") from error


def parse(
    arguments: Sequence[str], groups: Sequence[type], program: str, presets: Path | None = None
) -> tuple[Any, ...]:
    """Read ``--config FILE`` and ``--name value`` into one object per group; an option in several
    groups goes to each.

    Several words make a list, no word means true. A repeated flag overrides, or extends a list.
    ``base: FILE`` in a file is another, relative to it, that is read first; ``preset: NAME`` is one
    of ``presets``. InputError if an option does not fit.
    """
    flags = _flags(
        arguments,
        program,
        {name for group in groups for name in names(group) if _is_list(_adapters(group)[name][0])},
    )
    values: dict[str, Any] = {}
    if (path := flags.pop("config", None)) is not None:
        values = _with_base(Path(str(path)))
    values |= flags
    if presets and (preset := values.pop("preset", None)) is not None:
        known = sorted(path.stem for path in presets.glob("*.yaml"))
        if preset not in known:
            raise InputError(f"preset is {preset!r}", expected=f"one of {', '.join(known)}")
        values = read_yaml(presets / f"{preset}.yaml") | values
    listed = f"{program} --options lists them all"
    for name in values:
        check_name(str(name), groups, program, listed)
        if _masked(str(name), values[name]):
            raise InputError(
                f"{name} holds a mask: the record of a run has no secrets",
                fix=f"give --{name} again",
            )
    given = (
        {name: value for name, value in values.items() if name in names(group)} for group in groups
    )
    return tuple(
        read(group, options, program, listed) for group, options in zip(groups, given, strict=True)
    )


def _with_base(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    values = read_yaml(path)
    if (base := values.pop("base", None)) is None:
        return values
    if path.resolve() in above:
        raise InputError(
            f"base of {path} leads back to it", expected="a file that does not begin with this one"
        )
    return _with_base(path.parent / str(base), (*above, path.resolve())) | values


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; InputError if there is none."""
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the config file {str(path)!r}: {error}",
            expected="a YAML file, see configs/",
        ) from error
    if not isinstance(data, dict):
        raise InputError(
            f"{path} holds {type(data).__name__}", expected="a YAML mapping of options, name: value"
        )
    return data


def check_name(name: str, groups: Sequence[type], what: str, listed: str = "") -> None:
    """Raise InputError if no group has an option of this name, with the nearest three, or without a
    list elsewhere all of them.
    """
    known = [option for group in groups for option in names(group)]
    if name not in known:
        near = nearest(name, known, 3 if listed else len(known))
        raise InputError(
            f"{what} has no option {name!r}", expected=f"perhaps {', '.join(near)}", fix=listed
        )


def nearest(name: str, known: Collection[str], count: int = 3) -> list[str]:
    """Return the names that a wrong one is most like, or most like a word or the initials of
    (``lr``), nearest first.
    """

    def likeness(option: str) -> float:
        words = re.findall("[a-z0-9]+", option.lower())
        forms = (option, "".join(word[0] for word in words), *words)
        return max(SequenceMatcher(None, name.lower(), form).ratio() for form in forms)

    return nlargest(count, dict.fromkeys(known), key=likeness)


def listing(groups: Sequence[type]) -> str:
    """Return every option of the groups with its default and its description."""
    lines = []
    for group in groups:
        texts = _described(group)
        for field in fields(group):
            if field.init:
                default = field.default if field.default is not MISSING else field.default_factory
                shown = default() if callable(default) else default
                said = texts.get(field.name, " ".join(str(field.metadata.get("help", "")).split()))
                lines.append(
                    f"  --{field.name} {'(required)' if shown is MISSING else repr(shown)}\n      {said}"
                )
    return "\n".join(lines)


def _described(group: type) -> dict[str, str]:
    texts: dict[str, str] = {}
    for kind in reversed(group.__mro__):
        texts |= dict(ATTRIBUTE.findall(inspect.cleandoc(kind.__doc__ or "")))
    return {name: " ".join(text.split()) for name, text in texts.items()}


def load_function(place: str, what: str) -> Any:
    """Import MODULE:FUNCTION, also from the working directory; InputError, naming ``what``, if that
    fails.
    """
    module, _, name = place.rpartition(":")
    if str(Path.cwd()) not in sys.path:  # as with ``python -m``
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        raise InputError(
            f"{what} names {place!r}, which cannot be imported: {type(error).__name__}: {error}",
            expected="MODULE:FUNCTION, installed or in the working directory",
        ) from error


def _is_list(hint: Any) -> bool:
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_origin(hint) is list or (get_origin(hint) is tuple and ... in get_args(hint))


def _flags(arguments: Sequence[str], program: str, lists: Collection[str]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    name = ""
    for word in arguments:
        if re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flags[name] = [
                *(flags.get(name, []) if name in lists else []),
                *([value] if equals else []),
            ]
        elif not name:
            raise InputError(
                f"unrecognized argument {word!r}",
                expected=f"--name value, as {program} --options lists them",
            )
        else:
            flags[name].append(word)
    flags = {
        name: words[-1:] if words and words[-1].startswith("[") else words
        for name, words in flags.items()
    }  # a whole list
    return {
        name: True if not words else words[0] if len(words) == 1 else words
        for name, words in flags.items()
    }


def _masked(name: str, value: Any) -> bool:
    """Whether ``runs.masked`` put a mask in the place of a value, or of a part of it."""
    if isinstance(value, Mapping):
        return any(_masked(str(key), inner) for key, inner in value.items())
    if isinstance(value, list):
        return any(_masked(name, inner) for inner in value)
    return isinstance(value, str) and (value == f"<{name.upper()}>" or "***" in value)


def _yaml(text: str) -> Any:
    with suppress(ValueError):
        return load_yaml(text)
    return text
