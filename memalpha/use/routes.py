"""Routes that other packages add to the server: entry points of the group ``memalpha.routes``."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from starlette.applications import Starlette
from starlette.responses import Response

from memalpha.config import Options
from memalpha.errors import InputError
from memalpha.plugins import load_plugins
from memalpha.use.access import Callers, Problem, ServeConfig
from memalpha.use.operations import Endpoints


class Routes(Protocol):
    """Further routes of a server. An entry point names a class of this form.

    Attributes:
        options: The dataclass of its options of ``memalpha serve``; None if it has none.
        names_user: Whether a request says itself whose memory it is about: the gate then checks its
            token alone.
        max_body_bytes: Longest body of a request, in bytes.
    """

    options: ClassVar[type[Options] | None]
    names_user: ClassVar[bool]
    max_body_bytes: int

    @classmethod
    def build(
        cls, endpoints: Endpoints, callers: Callers, config: ServeConfig, options: Any
    ) -> "Routes | None":
        """Return the routes of a server; None if its options switch them off."""

    def owns(self, path: str) -> bool:
        """Whether a request with this path is for these routes."""
        ...

    def add_to(self, app: Starlette) -> None:
        """Add the routes to the application, which is behind the gate."""

    def respond(self, problem: Problem) -> Response:
        """Return the answer to a request that the gate refuses, in the form of these routes."""
        ...


def find_routes() -> list[type[Routes]]:
    """Return the installed routes by name in order; the first that owns a path gets it."""
    return list(load_plugins("memalpha.routes").values())


def route_options() -> list[type[Options]]:
    """Return the options of ``memalpha serve`` that the installed routes add."""
    return [kind.options for kind in find_routes() if kind.options]


def build_routes(
    endpoints: Endpoints, callers: Callers, config: ServeConfig, options: Sequence[Options]
) -> list[Routes]:
    """Return the routes of a server; those without options in ``options`` have their defaults.

    InputError for options of which no installed routes know.
    """
    given = {type(option): option for option in options}
    built = []
    for kind in find_routes():
        chosen = given.pop(kind.options, None) or kind.options() if kind.options else None
        routes = kind.build(endpoints, callers, config, chosen)
        if routes:
            built.append(routes)
    if given:
        names = ", ".join(sorted(kind.__name__ for kind in given))
        raise InputError(
            f"the options {names} belong to routes that are not installed",
            expected="options of installed routes (entry points of memalpha.routes)",
        )
    return built
