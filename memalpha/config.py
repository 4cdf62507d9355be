"""Options: YAML files, command lines and keyword arguments become checked dataclasses.

A group of options derives from ``Options``. Its annotations say which values fit, and its docstring
explains each option. The groups of a command share one flat namespace: ``--config FILE.yaml``,
overridden by ``--name value``. A value is checked once, when its group is made.

The files of the folder ``configs`` are in the package, and go by name: ``--config nano``.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, make_dataclass
from difflib import SequenceMatcher
from enum import Enum
from functools import cache
from heapq import nlargest
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from memalpha.errors import InputError
from memalpha.files import load_yaml
from memalpha.types import JsonObject

_CONFIGS = Path(__file__).parent / "configs"
_LIKE = 0.65  # least likeness of two names, in [0, 1], of which one may be meant
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


@dataclass(frozen=True)
class OneOf:
    """A check of a text for an ``AfterValidator``: the text must be one of ``names()``, which
    depend on the installed packages. ``listing`` shows them.
    """

    names: Callable[[], Sequence[str]]

    def __call__(self, value: str) -> str:
        """Return the text; pydantic's error if it is none of the names."""
        known = self.names()
        if value not in known:
            expected = one_of([f"'{name}'" for name in known])
            raise PydanticCustomError("enum", "Input should be {expected}", {"expected": expected})
        return value


def one_of(names: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


class Options:
    """Base of groups of options: a dataclass that raises InputError for values that do not fit its
    annotations.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check and convert every field, then call ``check``."""
        group: Any = type(self)
        given = {name: getattr(self, name) for name in names(group)}
        try:
            checked = _adapter(group).validate_python(given)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = str(wrong["loc"][0])
            raise InputError(f"{name} is {given[name]!r}", expected=wrong["msg"]) from error
        for name, value in vars(checked).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raise InputError for values that do not fit together; subclasses override it."""


def names(group: type) -> list[str]:
    """The options of a group, in order."""
    return [field.name for field in fields(group) if field.init]


@cache
def _adapter(group: Any) -> TypeAdapter[Any]:
    """What checks all values of a group at once."""
    hints = get_type_hints(group, include_extras=True)
    fitting = [(name, hints[name]) for name in names(group)]
    namespace = {"__pydantic_config__": _CHECKS}
    return TypeAdapter(make_dataclass(group.__name__, fitting, namespace=namespace))


@cache
def _lists(group: Any) -> list[str]:
    """The options of a group that are lists of any length."""
    hints = get_type_hints(group)
    kinds = {name: (get_origin(hint), get_args(hint)) for name, hint in hints.items()}
    return [
        name for name, (kind, of) in kinds.items() if kind is list or (kind is tuple and ... in of)
    ]


def make_options(group: type[_T], values: object, what: str, listed: str = "") -> _T:
    """Make a group from options by name, where None is the default; InputError, which names
    ``what``, if one is unknown, missing or does not fit.
    """
    if not isinstance(values, Mapping | None):
        raise InputError(f"{what} is {values!r}", expected="a mapping of options")
    given = {str(name): value for name, value in (values or {}).items() if value is not None}
    for name, value in given.items():
        check_name(name, [group], what)
        if isinstance(value, str) and name in _lists(group):  # type: ignore[arg-type]
            given[name] = [value]
    try:
        inspect.signature(group).bind(**given)
    except TypeError as error:
        missing = str(error).rpartition(" ")[2].strip("'")
        raise InputError(
            f"{what} has no {missing}",
            expected=descriptions(group).get(missing, "a value"),
            fix=f"--{missing} VALUE; {listed}" if listed else "",
        ) from error
    try:
        return group(**given)
    except InputError as error:
        raise type(error)(
            f"{error.what} ({what})", expected=error.expected, fix=error.fix
        ) from error


def parse(
    arguments: Sequence[str],
    groups: Sequence[type],
    program: str,
    presets: Path | None = None,
    replaced: Mapping[str, str] | None = None,
    given: Mapping[str, object] | None = None,
    kind: str = "",
) -> tuple[Any, ...]:
    """Read ``--config FILE`` and ``--name value`` into one object per group; an option in several
    groups goes to each.

    Several words make a list, no word means true; a list or mapping may be given as YAML. ``base:
    FILE`` in a file is another, relative to it, that is read first; ``preset: NAME`` is one of
    ``presets``. ``--config`` and ``base`` also take the name of a file of the package of this
    ``kind`` (``find_config``). ``replaced`` says what took the place of an option that is gone.
    What a caller has ``given`` by name takes the place of a file's value, and a flag that of both.
    InputError if an option does not fit.
    """
    flags = _flags(arguments, program)
    path = flags.pop("config", None)
    file = _with_base(find_config(kind, str(path)), kind) if path is not None else {}
    values = {**file, **(given or {}), **flags}
    preset = values.pop("preset", None)
    if presets and preset is not None:
        values = {**read_yaml(presets / f"{preset}.yaml"), **values}
    listed = f"{program} --options lists them all"
    for name, value in values.items():
        instead = (replaced or {}).get(name, "")
        if instead:
            raise InputError(f"{program} has no option {name!r} any more", expected=instead)
        check_name(str(name), groups, program, listed)
        if "***" in repr(value):
            raise InputError(  # as ``record.folder.masked`` writes
                f"{name} holds *** instead of a secret, since the record of a run has no secrets",
                fix=f"give the value again with --{name}",
            )
    return tuple(
        make_options(group, {name: values.get(name) for name in names(group)}, program, listed)
        for group in groups
    )


def _flags(arguments: Sequence[str], program: str) -> dict[str, object]:
    flags: dict[str, list[str]] = {}
    name = ""
    for word in arguments:
        if re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flags[name] = [value] if equals else []
        elif name:
            flags[name].append(word)
        else:
            raise InputError(
                f"the argument {word!r} is not recognised",
                expected=f"--name value, as {program} --options lists them",
            )
    return {name: _value(words) for name, words in flags.items()}


def _value(words: list[str]) -> object:
    if len(words) != 1:
        return words or "true"
    if words[0][:1] in ("{", "[") or words[0] == "null":
        with suppress(ValueError):
            return load_yaml(words[0])
    return words[0]


def config_names(kind: str) -> list[str]:
    """Return the names of the package's configurations of a kind, a folder of ``configs``."""
    return sorted(path.stem for path in (_CONFIGS / kind).glob("*.yaml"))


def find_config(kind: str, name: str) -> Path:
    """Return the file of a configuration: a word with neither a slash nor a suffix names one of
    the package, all else is a path.

    Args:
        kind: ``train``, ``evaluate``, ``data`` or ``accelerate``; without it all are paths.
        name: The name or the path, which need not exist.

    Raises:
        InputError: The package has none of this name.
    """
    path = Path(name)
    if not kind or path.suffix or path.name != name:
        return path
    known = config_names(kind)
    if name not in known:
        raise InputError(
            f"there is no configuration {name!r}",
            expected=f"{one_of(known)}, or a path with a slash or a suffix, such as mine.yaml",
        )
    return _CONFIGS / kind / f"{name}.yaml"


def _with_base(path: Path, kind: str, above: tuple[Path, ...] = ()) -> dict[str, object]:
    values = read_yaml(path, config_names(kind))
    base = values.pop("base", None)
    if base is None:
        return values
    if path.resolve() in above:
        raise InputError(
            f"the base of {path} leads back to this file",
            expected="a base that does not build on this file",
        )
    first = path.parent / find_config(kind, str(base))
    return _with_base(first, kind, (*above, path.resolve())) | values


def read_yaml(path: Path, known: Sequence[str] = ()) -> JsonObject:
    """Read a YAML mapping; InputError, which lists the ``known`` names, if the file holds none."""
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the config file {str(path)!r}: {error}",
            expected=f"a YAML file{', or a name: ' * bool(known)}{one_of(known)}",
        ) from error
    if not isinstance(data, dict):
        raise InputError(
            f"{path} holds {type(data).__name__}", expected="a YAML mapping of options, name: value"
        )
    return data


def check_name(name: str, groups: Sequence[type], what: str, listed: str = "") -> None:
    """Raise InputError if no group has an option of this name; it says which are most like it (or
    like a word of it, or its initials: ``lr``). If all are ``listed`` elsewhere, these are three at
    most, and none that is like it by chance. What others call ``top_k`` is ``retrieve_k`` here.
    """

    def likeness(option: str) -> float:
        words = option.split("_")
        forms = [option, "".join(word[:1] for word in words), *words]
        forms += ["topk", "top_k"] * (words[-1] == "k")
        return max(SequenceMatcher(None, name.lower(), form).ratio() for form in forms)

    known = list(dict.fromkeys(option for group in groups for option in names(group)))
    if name not in known:
        if listed:
            near = [
                option for option in nlargest(3, known, key=likeness) if likeness(option) > _LIKE
            ]
        else:
            near = nlargest(len(known), known, key=likeness)
        raise InputError(
            f"{what} has no option {name!r}",
            expected=f"an option that exists, perhaps {', '.join(near)}"
            if near
            else ""
            if known
            else "no options",
            fix=listed,
        )


def listing(groups: Sequence[type]) -> str:
    """Return every option of the groups with its default and its description; the first sentence
    of a group's docstring stands above its options.
    """
    lines = []
    for group in groups:
        lines.append(f"\n{first_sentence(group)}\n")
        meanings = descriptions(group)
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            if field.init:
                factory = field.default_factory
                default = field.default if factory is MISSING else factory()
                shown = "(required)" if default is MISSING else repr(plain(default))
                meaning = meanings.get(field.name, "")
                for check in getattr(hints[field.name], "__metadata__", ()):
                    if isinstance(check, AfterValidator) and isinstance(check.func, OneOf):
                        meaning += f" One of: {', '.join(check.func.names())}."
                lines.append(f"  --{field.name} {shown}\n      {meaning}")
    return "\n".join(lines)


def first_sentence(group: type) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = inspect.cleandoc(group.__doc__ or "").split("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".") + "."


def plain(value: Any) -> Any:
    """Return a default as a user would write it: of an enumeration the value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return {name: plain(item) for name, item in value.items()} if type(value) is dict else value


def descriptions(group: type) -> dict[str, str]:
    """Return the description of each option of a group, from its docstring and its bases'."""
    texts: dict[str, str] = {}
    for kind in reversed(group.__mro__):
        texts |= ATTRIBUTE.findall(inspect.cleandoc(kind.__doc__ or ""))
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
