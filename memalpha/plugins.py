"""What other packages, and ``memalpha.contrib``, add to this one: entry points.

A package declares an entry point in one of the groups below (pyproject.toml, table
``project.entry-points``); once it is installed it is found.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from memalpha.errors import InputError

# group: what the object that an entry point names is
GROUPS: Mapping[str, str] = {
    "memalpha.verbs": "a function that adds verbs to a typer.Typer, the command line",
    "memalpha.detectors": "a function of names that returns a memalpha.use.guards.Guard",
    "memalpha.sources": "a memalpha.data.source.Source, or a list of them: data sets",
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
                expected="one",
                fix="pip uninstall one of the two packages",
            )
    return found


def load_plugin(entry: EntryPoint) -> Any:
    """Import what an entry point names; InputError, with its cause, if that fails."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"the entry point {entry.name!r} of {entry.group!r} cannot be loaded: {error}",
            expected=f"{GROUPS[entry.group]} at {entry.value}",
            fix="install its package again, or uninstall it",
        ) from error
