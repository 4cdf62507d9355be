"""The process of ``memalpha.sandbox``: reads a task as JSON, writes what comes of it.

It is started as a program and imports nothing of the package. Templates see what transformers gives
them, but the clock stands still, and ``random`` begins anew each time.
"""

import json
import random
import re
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

SECONDS = 4  # of processor time
MEMORY = 2**29  # bytes
LONGEST = 2**22  # characters of a rendered chat
DATE = datetime(2024, 7, 26)  # a template's today; Llama's own where it finds no clock
_SHOWN = 300  # characters of an error


def set_limits() -> None:
    """Limit this process, where the system can."""
    try:
        import resource
    except ImportError:
        return
    limits = (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CORE, 0),
    )
    for kind, most in limits:
        hard = resource.getrlimit(kind)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):  # macOS refuses a limit of the address space
            resource.setrlimit(kind, (soft, hard))


def match(patterns: list[str], names: list[str]) -> str:
    """Return what is wrong with an expression; nothing if all are matched with all names."""
    for pattern in patterns:
        try:
            expression = re.compile(pattern)
        except (re.error, RecursionError, OverflowError, MemoryError) as error:
            return f"{pattern[:_SHOWN]!r}: {type(error).__name__}: {error}"[: 2 * _SHOWN]
        for name in names:
            expression.match(name)
            expression.fullmatch(name)
    return ""


def render(template: str, chats: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return text and error of a template for each set of variables."""
    from jinja2 import nodes

    try:
        environment = _environment()
        for node in environment.parse(template).find_all(
            (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
        ):
            raise ValueError(f"line {node.lineno} takes in another template")
        compiled = environment.from_string(template)
    except Exception as error:  # noqa: BLE001
        return [("", _show_error(error))] * len(chats)
    outcomes = []
    for variables in chats:
        random.seed(0)
        text = ""
        try:
            for piece in compiled.generate({"date_string": f"{DATE:%d %b %Y}", **variables}):
                text += piece
                if len(text) > LONGEST:
                    raise ValueError(f"its text is longer than {LONGEST} characters")
            outcomes.append((text, ""))
        except Exception as error:  # noqa: BLE001
            outcomes.append(("", _show_error(error)))
    return outcomes


def _show_error(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN]


def _environment() -> Any:
    from jinja2 import Environment, TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """``{% generation %}`` marks what an assistant wrote; its text stands as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class PlainNamespace(Namespace):
        """Takes no name with an underscore, which could reach into Python."""

        def __init__(*args: Any, **values: Any) -> None:
            for name in dict(*args[1:], **values):
                _check_name(name)
            Namespace.__init__(*args, **values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    def make_dict(*pairs: Any, **values: Any) -> dict[Any, Any]:
        return dict(*pairs, **values)

    def as_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def fail(message: str) -> None:
        raise TemplateError(message)

    environment: Environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = as_json
    environment.globals |= {
        "raise_exception": fail,
        "strftime_now": DATE.strftime,
        "namespace": PlainNamespace,
        "dict": make_dict,
    }
    return environment


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise ValueError(f"a namespace takes no name like {name!r}")


def run_worker() -> None:
    """Do the task on standard input."""
    task = json.load(sys.stdin)
    sys.path[:] = task.pop("path")
    what = task.pop("task")
    if what == "render":
        import jinja2.sandbox  # noqa: F401
    set_limits()
    json.dump(render(**task) if what == "render" else match(**task), sys.stdout)


if __name__ == "__main__":
    run_worker()
