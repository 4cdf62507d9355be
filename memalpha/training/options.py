"""Checks of options before they are read into dataclasses: each has to exist, and its value in a file has to be of its kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from memalpha.errors import InputError

_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool, str), "true or false"),
    int: ((int, str), "a whole number"),
    float: ((int, float, str), "a number"),
    str: ((str, bool, int, float, NoneType), "a text"),
    list: ((list, str), "a list"),
    dict: ((dict, str), "a mapping"),
    NoneType: ((NoneType,), "nothing"),
}
"""What a file may hold for a type, and what it is called; the parser reads texts as the command line's."""

MOST_SEED = 2**32 - 1


def check_file(path: Path, groups: Sequence[type], program: str) -> None:
    """Check a YAML file of options.

    Args:
        path: The file.
        groups: Dataclasses of the options.
        program: What reads them, such as ``memalpha train``.

    Raises:
        InputError: If the file is missing or is no YAML mapping, or an option does not exist or is of another type.
    """
    if not path.is_file():
        raise InputError(f"no config file {str(path)!r}", expected="--config FILE with a YAML file, see configs/")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not YAML: {error}", expected="one option a line, name: value") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds {type(data).__name__}", expected="a YAML mapping of options")
    for name, value in data.items():
        if name == "env":  # variables of the environment, as TRL reads them
            continue
        check_name(str(name), groups, program, f" in {path}")
        kind = next(hints[name] for group in groups if name in (hints := get_type_hints(group)))
        if not _fits(value, kind):
            raise InputError(f"{name} is {value!r} in {path}", expected=_called(kind))


def check_name(name: str, groups: Sequence[type], program: str, where: str = "") -> None:
    """Raise InputError if there is no option of a name; it says which is nearest."""
    names = [field.name for group in groups for field in fields(group) if field.init]
    if name not in names:
        near = get_close_matches(name, names, n=1)
        raise InputError(
            f"there is no option {name!r}{where}",
            expected=f"such as {near[0]}" if near else f"an option of {program}",
            fix=f"{program} --options lists them all",
        )


def check_flags(rest: Sequence[str], groups: Sequence[type], program: str) -> None:
    """Raise InputError for words of a command line that the parser had no use for."""
    if not rest:
        return
    check_name(rest[0].removeprefix("--").partition("=")[0], groups, program)
    raise InputError(f"{rest[0]!r} is too much", expected=f"--option value, as {program} --options lists them")


def check_training(options: Any) -> None:
    """Check what transformers' ``TrainingArguments`` take for something else, or find out long after everything is loaded.

    Raises:
        InputError: For a number of steps, a rate, a batch or a seed with which nothing would be learned, or more than was meant;
            and for the Trainer's own evaluation, which has no data here.
    """
    steps = options.max_steps
    if steps < 1 and steps != -1:
        raise InputError(f"max_steps is {steps}", expected="at least 1 step, or -1 for as many as num_train_epochs says")
    if steps == -1 and not options.num_train_epochs > 0:
        raise InputError(f"num_train_epochs is {options.num_train_epochs}", expected="more than 0, or max_steps")
    check_rate("learning_rate", options.learning_rate)
    check_least(options, per_device_train_batch_size=1, seed=0)
    if options.seed > MOST_SEED:
        raise InputError(f"seed is {options.seed}", expected=f"at most {MOST_SEED}, which numpy takes")
    if options.eval_strategy not in ("no", False):
        raise InputError(
            f"eval_strategy is {str(options.eval_strategy)!r}", expected="'no': held-out data are read before and after training"
        )


def as_texts(options: Any) -> None:
    """Make texts of a dataclass's options that are texts, in place: in a file they may be a number, true or false, or nothing."""
    for kind in type(options).__mro__:  # as they were written: the parser changes the types that ``fields`` gives
        for name, declared in vars(kind).get("__annotations__", {}).items():
            if declared in ("str", str):
                value = getattr(options, name)
                setattr(options, name, "" if value is None else str(value))


def check_least(options: Any, **least: int) -> None:
    """Raise InputError for the first option below its least value, given by name."""
    for name, value in least.items():
        if not getattr(options, name) >= value:
            raise InputError(f"{name} is {getattr(options, name)}", expected=f"at least {value}")


def check_rate(name: str, value: float) -> None:
    """Raise InputError for a learning rate that is none."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} is {value}", expected="a number above 0, such as 1e-4")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from a file may be of a type; types not in ``_KINDS`` are left to the dataclass."""
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    accepted, _ = _KINDS.get(get_origin(kind) or kind, ((object,), ""))
    return isinstance(value, accepted) and (not isinstance(value, bool) or int not in accepted or bool in accepted)


def _called(kind: Any) -> str:
    """Name a type, each part of it."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return " or ".join(_KINDS[found][1] for member in members if (found := get_origin(member) or member) in _KINDS)
