"""What other packages, and ``memalpha.contrib``, add to this one: entry points.

A package declares an entry point in one of the groups below (pyproject.toml, table
``project.entry-points``); once it is installed it is found.
"""

from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from memalpha.errors import InputError, MissingExtraError

# group: what the object that an entry point names is
PLUGIN_GROUPS: Mapping[str, str] = {
    "memalpha.clients": "a class or function that memalpha.clients offers under the entry's name",
    "memalpha.credits": "a class of memalpha.training.credit.Credit, made without arguments",
    "memalpha.demonstrations": "a function that makes demonstrations of instances, an agent, a"
    " TeacherConfig, the end token and a seed",
    "memalpha.embedders": "a class of the form memalpha.types.Embedder, made without arguments",
    "memalpha.exports": "a memalpha.contrib.importing.exports.Kind: files that import brings",
    "memalpha.metrics": "a memalpha.qa.metrics.AnswerMetric, or only its function: of a"
    " memalpha.types.Question and an Answer, which returns a score in [0, 1]",
    "memalpha.readers": "a function of a budget and a counter of tokens that returns a"
    " memalpha.qa.readers.BudgetedReader",
    "memalpha.roles": "a class of memalpha.training.role.Role, made without arguments",
    "memalpha.searching_readers": "a class of readers with an adapter that was trained to search"
    " again, made as memalpha.qa.readers says",
    "memalpha.detectors": "a function of names that returns a memalpha.use.guards.Guard",
    "memalpha.routes": "a class of the form memalpha.use.routes.Routes, routes of the server",
    "memalpha.sources": "a memalpha.data.source.Source, or a list of them: data sets",
    "memalpha.systems": "a subclass of memalpha.measure.systems.System, compared by evaluate",
    "memalpha.verbs": "a function that adds verbs to a typer.Typer, the command line",
}


@cache
def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, in the order of their names.

    InputError if two packages give one name to different objects.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group)):
        before = found.setdefault(entry.name, entry)
        if before.value != entry.value:
            raise InputError(
                f"two installed packages give {group!r} an entry point {entry.name!r}:"
                f" {before.value} and {entry.value}",
                expected="one entry point of this name",
                fix="pip uninstall one of the two packages",
            )
    return found


def plugin_names(group: str, own: Collection[str]) -> list[str]:
    """Return the names of what this package has itself, then those of a group's entry points.

    InputError if an entry point has one of ``own``.
    """
    found = find_plugins(group)
    for name in own:
        if name in found:
            raise InputError(
                f"an installed package gives {group!r} an entry point {name!r}:"
                f" {found[name].value}",
                expected="another name, since memalpha has this one itself",
                fix="pip uninstall the package",
            )
    return [*own, *found]


def load_plugin(entry: EntryPoint, extra: str = "") -> Any:
    """Import what an entry point names.

    InputError, with its cause, if that fails; MissingExtraError if it is one of this package and a
    library is missing that ``extra`` provides.
    """
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        is_own = entry.value.startswith("memalpha.")
        if extra and is_own and isinstance(error, ModuleNotFoundError):
            raise MissingExtraError(str(error.name), extra) from error
        package = f" of the package {entry.dist.name}" if entry.dist else ""
        raise InputError(
            f"the entry point {entry.name!r} ({entry.value}) of the group {entry.group!r}{package}"
            f" cannot be loaded: {error}",
            expected=PLUGIN_GROUPS[entry.group],
            fix="correct or uninstall that package",
        ) from error


def make_plugin(group: str, name: str, kind: Any) -> Any:
    """Return the object that the class of an entry point makes without arguments; InputError if it
    does not follow the protocol ``kind``.
    """
    entry = find_plugins(group)[name]
    made = load_plugin(entry)
    made = made() if callable(made) else made
    if not isinstance(made, kind):
        raise InputError(
            f"the entry point {name!r} of {group!r} names {entry.value}",
            expected=PLUGIN_GROUPS[group],
        )
    return made


def load_plugins(group: str, own: Collection[str] = ()) -> dict[str, Any]:
    """Import all of a group, by name; InputError if one has a name that is taken by ``own``."""
    plugin_names(group, own)
    return {name: load_plugin(entry) for name, entry in find_plugins(group).items()}
