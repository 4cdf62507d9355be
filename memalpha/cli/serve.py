"""``memalpha serve`` and ``token``: offer a trained agent and its store over HTTP and MCP."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt

from memalpha.cli.console import out, quiet_libraries
from memalpha.cli.inputs import AgentOptions, add_verb, read_options
from memalpha.config import Options
from memalpha.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from memalpha.use.access import Callers, Grant

TOKENS_VARIABLE = "MEMALPHA_TOKENS"
_EXTRA = ("fastapi", "mcp", "uvicorn", "starlette")


@dataclass(frozen=True, slots=True)
class ServeOptions(Options):
    """Whose memory is offered, and how.

    Attributes:
        transport: ``http`` (HTTP and MCP at a port) or ``stdio`` (MCP over standard input and output).
        tokens: YAML file of tokens; null takes $MEMALPHA_TOKENS. Required off loopback.
        user: Without tokens, and over stdio: the one user.
        agent: Without tokens: the one agent; null: named by each request.
        session: Without tokens: the one session; null: named by each request.
        reader_tokens: Most tokens of passages that the model at reader_url reads.
    """

    transport: Literal["http", "stdio"] = "http"
    tokens: str | None = None
    user: str | None = None
    agent: str | None = None
    session: str | None = None
    reader_tokens: PositiveInt = 2048

    def callers(self) -> Callers:
        """Return who may call; InputError if nobody, or if set in two ways."""
        from memalpha.use.access import Callers

        tokens = self.tokens or os.environ.get(TOKENS_VARIABLE)
        if not tokens or self.transport == "stdio":
            return Callers(self.local())
        if self.user or self.agent or self.session:
            what = "--user, --agent or --session beside tokens"
            raise InputError(what, expected="one of the two", fix="write it into the tokens file")
        return Callers.load(tokens)

    def local(self) -> Grant:
        """Return what local callers may reach; InputError without a user."""
        from memalpha.use.access import Grant

        if not self.user:
            expected = "--user NAME, or tokens (--tokens FILE)"
            raise InputError("nobody whose memory it is", expected=expected, fix="memalpha token NAME makes a token")
        grant = Grant("local", self.user, self.agent, self.session)
        grant.namespace({})  # validates the names
        return grant


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    add_verb(
        verbs,
        "serve",
        run_serve,
        help="offer an agent and its memories over HTTP and MCP",
        description="Needs: a trained agent, a store. Serves /v1 (/openapi.json says how) and /mcp, or MCP over stdio. "
        "All options: --options.",
        epilog="memalpha serve data/adapters/smollm2-135m-memory --store memories.db --user marta",
    )
    token = verbs.add_parser("token", help="make a token for memalpha serve", description="Prints a new token and its line.")
    token.add_argument("name", metavar="NAME", help="who will use it, for the journal")
    token.add_argument("--user", help="the user whose memories it reaches (default: any, named by each request)")
    token.add_argument("--agent", help="the one agent it reaches (default: any)")
    token.add_argument("--session", help="the one session it reaches (default: any)")
    token.set_defaults(run=run_token, takes_more=False)


def run_serve(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Serve until stopped."""
    from memalpha.use.access import ServeConfig

    quiet_libraries()
    trained, options, about, config = read_options(arguments, rest, AgentOptions, ServeOptions, ServeConfig)
    callers = about.callers()
    try:
        from memalpha.use.server import check_reach, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in _EXTRA:
            raise MissingExtraError(error.name, "serve") from error
        raise
    if about.transport == "http":
        check_reach(config, callers)
    agent = options.load(trained)
    if client := options.reader():
        from memalpha.qa.readers import EndpointReader

        agent.reader = EndpointReader(client, about.reader_tokens, agent.step.encoder.count)
    if about.transport == "stdio":
        serve_stdio(agent, config, about.local())
    else:
        serve_http(agent, config, callers, _show_url)
    return 0


def _show_url(url: str) -> None:
    sys.stderr.write(f"serving at {url} (API: /v1, MCP: /mcp, description: /openapi.json)\n")
    sys.stderr.flush()


def run_token(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Print a new token and its line for the tokens file."""
    from memalpha.store.journal import Namespace
    from memalpha.use.access import make_token

    if not arguments.name.strip() or not arguments.name.isprintable():
        raise InputError(f"the token's name is {arguments.name!r}", expected="who will use it, in printable characters")
    reach = {part: value for part in ("user", "agent", "session") if (value := getattr(arguments, part)) is not None}
    Namespace(**{"user": "any", **reach})  # an empty name is refused, never replaced by "any"
    token, digest = make_token()
    row = {"name": arguments.name, "sha256": digest, **({} if "user" in reach else {"any_user": True}), **reach}
    out(f"# give this to {arguments.name}; it is shown once:  {token}")
    out("# and put this under `tokens:` in the tokens file:")
    out(f"  - {json.dumps(row, ensure_ascii=False)}")
    return 0
