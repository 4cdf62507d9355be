"""``memalpha serve``, ``token`` and ``export``: offer an agent over HTTP and MCP, or a folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option

from memalpha.cli.console import complain, out, quiet_libraries
from memalpha.cli.options import (
    TRAINED,
    AgentOptions,
    ListOptions,
    WhoseOptions,
    read_options,
)
from memalpha.errors import InputError, from_extra
from memalpha.files import path_of
from memalpha.threads import describe_threads

if TYPE_CHECKING:
    from memalpha.use.access import Callers


@dataclass(frozen=True, slots=True)
class ServeOptions(WhoseOptions):
    """Options of the server. Without tokens, and over stdio, it serves the one user.

    Attributes:
        transport: The server speaks HTTP and MCP at a port (``http``), or MCP over standard input
            and output (``stdio``).
        tokens: This YAML file holds the tokens of the callers; null takes $MEMALPHA_TOKENS. A
            server that listens beyond this machine needs one.
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
                    "--user, --agent or --session is given beside tokens, which name the users",
                    expected="only one of the two",
                )
            return Callers.load(tokens)
        if not self.user:
            raise InputError(
                "no user is given whose memory is served",
                expected="--user NAME, or --tokens FILE (memalpha token NAME makes one)",
            )
        return Callers(Grant("local", self.user, self.agent, self.session))


def serve(context: Context, options: ListOptions = False) -> None:
    """Serve an agent and its memories over HTTP and MCP.

    Give a store, and an agent (TRAINED, or --endpoint URL --model NAME). Without an agent, added
    texts are kept as they are, and found again. The HTTP API is at /v1 and described at
    /openapi.json; MCP is at /mcp or over stdio. --options lists all options.
    """
    with from_extra("serve"):
        from memalpha.use.access import ServeConfig
        from memalpha.use.routes import route_options
        from memalpha.use.server import check_reach, serve_http, serve_stdio
    quiet_libraries()
    trained, agent, about, config, *of_routes = read_options(
        context, options, AgentOptions, ServeOptions, ServeConfig, *route_options()
    )
    callers = about.callers()
    if about.transport == "stdio":
        serve_stdio(agent.load(trained), config, callers)
        return
    check_reach(config, callers)  # before the model is loaded

    def started(url: str) -> None:
        complain(f"serving at {url} (API: /v1, MCP: /mcp; /openapi.json)")
        complain(f"threads: {describe_threads()}")

    serve_http(agent.load(trained), config, callers, started, of_routes)


def token(
    name: Annotated[str, Argument(help="The name of the caller, which the journal records.")],
    user: Annotated[
        str | None,
        Option(
            help="The token reaches the memories of this user; by default each request names one."
        ),
    ] = None,
    agent: Annotated[
        str | None,
        Option(help="The token reaches only this agent's memories; by default those of any."),
    ] = None,
    session: Annotated[
        str | None,
        Option(help="The token reaches only this session's memories; by default those of any."),
    ] = None,
) -> None:
    """Make a token for a caller of the server, and its line for the tokens file."""
    from memalpha.use.access import Grant, make_token

    secret, digest = make_token()
    # an empty name is refused, never replaced by "any"
    grant = Grant(name, user, agent, session, user is None, digest)
    given = {part: value for part, value in asdict(grant).items() if value}
    line = json.dumps(given, ensure_ascii=False)
    out(f"# give this to {name}; it is shown once:  {secret}")
    out(f"# and put this under `tokens:` in the tokens file:\n  - {line}")


def export_verb(
    trained: Annotated[str, Argument(metavar="TRAINED", help=TRAINED)],
    output: Annotated[str, Option(help="The folder to write.")],
    merge: Annotated[
        bool,
        Option(
            "--merge", help="Merge the adapter into its base, and check the result against both."
        ),
    ] = False,
    model: Annotated[
        str | None,
        Option(help="The base to merge into; by default it is the one that the adapter names."),
    ] = None,
    trust_tools: Annotated[
        bool,
        Option(
            "--trust-tools",
            help="Import the functions that a schema names as tools, to list them in the model "
            "card.",
        ),
    ] = False,
) -> None:
    """Write a trained agent into a folder with a model card, ready to share."""
    from memalpha.use.export import export as write_export

    quiet_libraries()
    for folder in (trained, output):
        path_of(folder, "the name of a folder")
    out(str(write_export(trained, output, model=model, merge=merge, trust_tools=trust_tools)))
