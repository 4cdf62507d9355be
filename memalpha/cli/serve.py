"""``memalpha serve`` and ``token``: offer an agent and its store over HTTP and MCP; ``export``:
make it a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from memalpha.cli.console import complain, out, quiet_libraries
from memalpha.cli.inputs import AGENT, TRAINED, AgentOptions, WhoseOptions, add_verb, read_options
from memalpha.config import Options
from memalpha.errors import InputError, MissingExtraError
from memalpha.files import path_of

if TYPE_CHECKING:
    from memalpha.use.access import Callers


@dataclass(frozen=True, slots=True)
class ServeOptions(WhoseOptions):
    """How it is offered; without tokens, and over stdio, to the one user.

    Attributes:
        transport: ``http`` (HTTP and MCP at a port) or ``stdio`` (MCP over standard input and
            output).
        tokens: YAML file of tokens; null takes $MEMALPHA_TOKENS. Required off loopback.
    """

    transport: Literal["http", "stdio"] = "http"
    tokens: str | None = None

    def callers(self) -> Callers:
        """Return who may call; InputError if nobody, or if set in two ways."""
        from memalpha.use.access import Callers, Grant

        tokens = self.tokens or os.environ.get("MEMALPHA_TOKENS")
        if tokens and self.transport == "http":
            if self.user or self.agent or self.session:
                raise InputError(
                    "--user, --agent or --session beside tokens", expected="one of the two"
                )
            return Callers.load(tokens)
        if not self.user:
            raise InputError(
                "nobody whose memory it is",
                expected="--user NAME, or --tokens FILE (memalpha token NAME makes one)",
            )
        return Callers(Grant("local", self.user, self.agent, self.session))


@dataclass(frozen=True, slots=True)
class ExportOptions(Options):
    """What to make.

    Attributes:
        output: Folder to make.
        merge: Merge the adapter into its base and check the whole model against both.
        model: Base of the adapter to merge into; null takes the one it names.
        trust_tools: Whether the functions that the agent's schema names as tools may be imported,
            for the card.
    """

    output: str
    merge: bool = False
    model: str | None = None
    trust_tools: bool = False


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    add_verb(
        verbs,
        "serve",
        run_serve,
        "Offer an agent and its memories over HTTP (/v1, /openapi.json) and MCP (/mcp, stdio). Needs: an agent, a store.",
        options=AGENT,
    )
    token = add_verb(
        verbs,
        "token",
        run_token,
        "Make a token for memalpha serve, and its line for the tokens file.",
    )
    token.add_argument("name", metavar="NAME", help="who will use it, for the journal")
    token.add_argument(
        "--user", help="the user whose memories it reaches (default: any, named by each request)"
    )
    token.add_argument("--agent", help="the one agent it reaches (default: any)")
    token.add_argument("--session", help="the one session it reaches (default: any)")
    add_verb(
        verbs,
        "export",
        run_export,
        "Write a trained agent as a folder with a model card, --output DIR.",
        options=TRAINED,
    )


def run_serve(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Serve until stopped."""
    try:
        from memalpha.use.access import ServeConfig
        from memalpha.use.server import check_reach, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "serve") from error
    quiet_libraries()
    trained, options, about, config = read_options(
        arguments, rest, AgentOptions, ServeOptions, ServeConfig
    )
    callers = about.callers()
    if about.transport == "stdio":
        serve_stdio(options.load(trained), config, callers)
        return
    check_reach(config, callers)  # before the model is loaded
    serve_http(
        options.load(trained),
        config,
        callers,
        lambda url: complain(f"serving at {url} (API: /v1, MCP: /mcp; /openapi.json)"),
    )


def run_token(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Print a new token and its line for the tokens file."""
    from memalpha.use.access import Grant, make_token

    reach = {
        part: value
        for part in ("user", "agent", "session")
        if (value := getattr(arguments, part)) is not None
    }
    reach |= {} if "user" in reach else {"any_user": True}
    token, digest = make_token()
    Grant(arguments.name, **reach)  # an empty name is refused, never replaced by "any"
    out(f"# give this to {arguments.name}; it is shown once:  {token}")
    out("# and put this under `tokens:` in the tokens file:")
    out(
        f"  - {json.dumps({'name': arguments.name, 'sha256': digest, **reach}, ensure_ascii=False)}"
    )


def run_export(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Export an agent."""
    from memalpha.use.export import export

    quiet_libraries()
    trained, options = read_options(arguments, rest, ExportOptions)
    for folder in (trained, options.output):
        path_of(folder, "the name of a folder")
    out(
        str(
            export(
                trained,
                options.output,
                model=options.model,
                merge=options.merge,
                trust_tools=options.trust_tools,
            )
        )
    )
