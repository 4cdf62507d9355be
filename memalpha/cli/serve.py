"""``memalpha serve`` and ``token``: offer a trained agent and its store to programs, over HTTP and MCP."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from memalpha.cli.console import out, quiet_libraries
from memalpha.cli.inputs import load_agent
from memalpha.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from memalpha.use.agent import MemoryAgent
    from memalpha.use.callers import Callers, Grant
    from memalpha.use.serve_config import ServeConfig

TOKENS_VARIABLE = "MEMALPHA_TOKENS"
"""Environment variable that may name the tokens file."""
_EXTRA = ("fastapi", "mcp", "uvicorn", "starlette", "pydantic")


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    serve = verbs.add_parser(
        "serve",
        help="offer an agent and its memories over HTTP and MCP",
        description="Needs: a trained agent, a store. Serves /v1 (/openapi.json says how) and /mcp, or MCP over stdio.",
    )
    serve.add_argument("trained", metavar="TRAINED", help="folder or Hub name of a trained agent")
    serve.add_argument("--store", required=True, help="path of a SQLite file, or postgresql://user@host/database")
    serve.add_argument("--key-file", help="file with the key of a keyed store")
    serve.add_argument("--model", help="base of the adapter (default: the one it names)")
    serve.add_argument("--device", default="cpu", help="where the model runs (default: %(default)s)")
    serve.add_argument("--transport", choices=("http", "stdio"), default="http", help="HTTP and MCP at a port, or MCP over stdio")
    serve.add_argument("--retrieve-k", type=int, default=5, help="entries retrieved for a question (default: %(default)s)")
    _add_callers(serve)
    _add_limits(serve)
    _add_reader(serve)
    serve.set_defaults(run=run_serve, takes_more=False)
    token = verbs.add_parser("token", help="make a token for memalpha serve", description="Prints a new token and its line.")
    token.add_argument("name", metavar="NAME", help="who will use it, for the journal")
    token.add_argument("--user", help="the user whose memories it reaches (default: any, named by each request)")
    token.add_argument("--agent", help="the one agent it reaches (default: any)")
    token.add_argument("--session", help="the one session it reaches (default: any)")
    token.set_defaults(run=run_token, takes_more=False)


def _add_callers(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("whose memory")
    who.add_argument("--tokens", help=f"YAML file of tokens (default: ${TOKENS_VARIABLE}); required off loopback")
    who.add_argument("--user", help="without tokens, and over stdio: the one user")
    who.add_argument("--agent", help="without tokens: the one agent (default: named by each request)")
    who.add_argument("--session", help="without tokens: the one session (default: named by each request)")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    from memalpha.use.serve_config import ServeConfig

    limits = parser.add_argument_group("where and how much")
    limits.add_argument("--host", default=ServeConfig().host, help="address to listen at (default: %(default)s)")
    limits.add_argument("--port", type=int, default=ServeConfig().port, help="0 takes a free one (default: %(default)s)")
    limits.add_argument("--allow-host", action="append", default=[], help="a further name clients may use for this server")
    limits.add_argument("--allow-origin", action="append", default=[], help="an origin whose web pages may call it")
    for name, text in (
        ("max_body_bytes", "longest request body, in bytes"),
        ("max_text_tokens", "longest text to add, in tokens"),
        ("max_requests", "requests under way at once"),
        ("max_requests_per_token", "requests of one token under way at once"),
        ("stop_seconds", "seconds that requests have to end when it is told to stop"),
    ):
        default = getattr(ServeConfig(), name)
        limits.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"{text} (default: %(default)s)")


def _add_reader(parser: argparse.ArgumentParser) -> None:
    reader = parser.add_argument_group("who answers questions (default: nobody; the answer is what was found)")
    reader.add_argument("--reader-url", help="an OpenAI-compatible server, up to and including the version")
    reader.add_argument("--reader-model", help="the model's name there")
    reader.add_argument("--reader-tokens", type=int, default=2048, help="most tokens of passages it reads (default: %(default)s)")


def run_serve(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Serve until told to stop."""
    quiet_libraries()
    config, known = _config(arguments), _known(arguments)
    try:
        from memalpha.use.server import check_reach, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in _EXTRA:
            raise MissingExtraError(error.name, "serve") from error
        raise
    if arguments.transport == "stdio":
        serve_stdio(_agent(arguments), config, _local(arguments))
        return 0
    check_reach(config, known)
    serve_http(
        _agent(arguments), config, known, lambda url: _say(f"serving at {url} (API: /v1, MCP: /mcp, description: /openapi.json)")
    )
    return 0


def _config(arguments: argparse.Namespace) -> ServeConfig:
    from memalpha.use.serve_config import ServeConfig

    return ServeConfig(
        host=arguments.host,
        port=arguments.port,
        hosts=tuple(arguments.allow_host),
        origins=tuple(arguments.allow_origin),
        max_body_bytes=arguments.max_body_bytes,
        max_text_tokens=arguments.max_text_tokens,
        max_requests=arguments.max_requests,
        max_requests_per_token=arguments.max_requests_per_token,
        stop_seconds=arguments.stop_seconds,
    )


def _known(arguments: argparse.Namespace) -> Callers:
    from memalpha.use.callers import Callers, Tokens

    tokens = arguments.tokens or os.environ.get(TOKENS_VARIABLE)
    if not tokens or arguments.transport == "stdio":
        return Callers(_local(arguments))
    if arguments.user or arguments.agent or arguments.session:
        raise InputError(
            "--user, --agent or --session beside tokens", expected="one of the two", fix="write it into the tokens file"
        )
    return Callers(Tokens.load(tokens))


def _local(arguments: argparse.Namespace) -> Grant:
    from memalpha.store.journal import Namespace
    from memalpha.use.callers import Grant

    if not arguments.user:
        raise InputError(
            "nobody whose memory it is", expected="--user NAME, or tokens (--tokens FILE)", fix="memalpha token NAME makes a token"
        )
    Namespace(arguments.user, arguments.agent or "default", arguments.session or "default")
    return Grant("local", arguments.user, arguments.agent, arguments.session)


def _agent(arguments: argparse.Namespace) -> MemoryAgent:
    agent = load_agent(arguments)
    if arguments.reader_url or arguments.reader_model:
        from memalpha.endpoints import ChatClient
        from memalpha.qa.readers import EndpointReader

        client = ChatClient(arguments.reader_url or "", arguments.reader_model or "")
        agent.reader = EndpointReader(client, arguments.reader_tokens, agent.step.encoder.count)
    return agent


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def run_token(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Print a new token and the line of the tokens file that makes it known."""
    import json

    from memalpha.store.journal import Namespace
    from memalpha.use.callers import make_token

    if not arguments.name.strip() or not arguments.name.isprintable():
        raise InputError(f"the token's name is {arguments.name!r}", expected="who will use it, in printable characters")
    reach = {part: value for part in ("user", "agent", "session") if (value := getattr(arguments, part)) is not None}
    Namespace(**{"user": "any", **reach})  # an empty name is refused, never taken for "any"
    token, digest = make_token()
    row = {"name": arguments.name, "sha256": digest, **({} if "user" in reach else {"any_user": True}), **reach}
    out(f"# give this to {arguments.name}; it is shown once:  {token}")
    out("# and put this under `tokens:` in the tokens file:")
    out(f"  - {json.dumps(row, ensure_ascii=False)}")
    return 0
