"""The endpoints over HTTP (JSON, described at ``/openapi.json``) and as MCP tools.

A problem is the same JSON in both; in MCP it is the text of an error result. There is no tool to
erase a whole namespace. ``PAGE`` is a page for people: files that hold no data and call the API
with the token that a person gives it.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, FastAPI, Header, Query
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from memalpha import __version__
from memalpha.errors import MemAlphaError
from memalpha.text.page import load_templates
from memalpha.types import JsonObject
from memalpha.use.access import CALLER, HEADERS, Caller, Problem
from memalpha.use.operations import (
    ENDPOINTS,
    ApiAnswer,
    Endpoint,
    Endpoints,
    invalid,
    problem_of,
    read_json,
)

INSTRUCTIONS = (
    "A long-term memory. Call add with what was said and should be remembered; the memory's own "
    "model decides what to keep, correct or delete. Call ask or search before you answer from "
    "memory. undo takes one operation back, forget erases an entry for good."
)
_PROBLEMS: dict[int | str, JsonObject] = {
    code: {"model": Problem}
    for code in (400, 401, 403, 408, 409, 410, 413, 421, 422, 500, 502, 503)
}
PAGE = {  # templates by path
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_HEADERS = {
    400: {"Connection": "close"},  # what follows may be a smuggled request
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # the rest of a body is not read
    413: {"Connection": "close"},
    503: {"Retry-After": "1"},
}
_EXPECTED = "a request as /openapi.json describes it"


def respond(
    problem: Problem, headers: Mapping[str, str] | None = None, more: JsonObject | None = None
) -> JSONResponse:
    """Return the HTTP response for a problem, with ``more`` fields."""
    headers = {**_HEADERS.get(problem.status, {}), **(headers or {})}
    body = {**problem.body(), **(more or {})}
    return JSONResponse(body, problem.status, headers, media_type="application/problem+json")


async def _caller_of(
    request: Request,
    user: Annotated[
        str | None,
        Header(
            alias=HEADERS["user"],
            description="The user whose memory is meant, if the token leaves it open.",
        ),
    ] = None,
    agent: Annotated[str | None, Header(alias=HEADERS["agent"])] = None,
    session: Annotated[str | None, Header(alias=HEADERS["session"])] = None,
) -> Caller:
    caller: Caller = request.scope[CALLER]
    return caller


async def _check_place(request: Request) -> None:
    """Raise a Problem (422) for fields that stand where none are read, or twice: a deletion whose
    body names one entry must not erase all.
    """
    posts = request.method == "POST"
    read, unread = ("body", "query") if posts else ("query", "body")
    body = (await request.body()).strip()
    sent = request.url.query if posts else body
    where = f"{request.method} {request.url.path}"
    if sent not in ("", b"", b"{}"):
        raise _unprocessable(f"{where} with a {unread}", f"fields in the {read}")
    names = request.query_params.multi_items()
    if len(dict(names)) < len(names):
        raise _unprocessable("a field of the query stands there twice", "one value")
    kind = request.headers.get("content-type", "none").partition(";")[0].strip().lower()
    if body and posts and kind != "application/json" and not kind.endswith("+json"):
        raise _unprocessable(
            f"{where} with a body whose Content-Type is {kind[:80]!r}",
            "JSON, with the header Content-Type: application/json",
        )
    try:
        if posts:
            read_json(body or "{}")
    except ValueError as error:
        raise _unprocessable(f"the body is no JSON object: {error}", _EXPECTED) from error


def _unprocessable(what: str, expected: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, what, expected)


def build_api(
    endpoints: Endpoints,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """Return the application that offers the endpoints; each runs in a thread."""
    app = FastAPI(
        title="memalpha",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    for endpoint in ENDPOINTS:
        app.add_api_route(
            f"/v1{endpoint.path}",
            _handler(endpoints, endpoint),
            methods=[endpoint.method],
            name=endpoint.name,
            description=endpoint.description,
            response_model=endpoint.answer,
            responses=_PROBLEMS,
            dependencies=[Depends(HTTPBearer(auto_error=False)), Depends(_check_place)],
        )

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Say that the process runs."""
        return {"status": "running", "version": __version__}

    @app.get("/ready", responses={503: {"model": Problem}})
    def ready() -> JSONResponse:
        """Say whether the store can be read and requests are taken."""
        try:
            endpoints.agent.namespaces()
        except MemAlphaError as error:
            told = problem_of(error)
            return respond(Problem(HTTPStatus.SERVICE_UNAVAILABLE, told.what, fix=told.fix))
        return JSONResponse({"status": "ready"})

    async def failed(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            return respond(invalid(error, _EXPECTED))
        if isinstance(error, HTTPException):
            return respond(Problem(error.status_code, str(error.detail), _EXPECTED), error.headers)
        return respond(problem_of(error))

    templates = load_templates("memalpha.use", "page", autoescape=True)
    for path, (name, media_type) in PAGE.items():
        text = templates.get_template(name).render()
        app.add_route(path, _page(text, media_type), include_in_schema=False)
    for kind in (Problem, Exception, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, failed)
    return app


def _page(text: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(_: Request) -> Response:
        return Response(text, headers=_PAGE_HEADERS, media_type=media_type)

    return send


def _handler(endpoints: Endpoints, endpoint: Endpoint) -> Callable[..., ApiAnswer]:
    def handle(caller: Any, request: Any) -> ApiAnswer:
        return endpoints.call(endpoint.name, caller, request)

    request: Any = endpoint.request
    if endpoint.method != "POST":
        request = Annotated[request, Query()]
    handle.__annotations__ = {
        "caller": Annotated[Caller, Depends(_caller_of)],
        "request": request,
    }
    return handle


def _mcp_result(body: JsonObject, is_error: bool) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(body))],
        structured_content=None if is_error else body,
        is_error=is_error,
    )


def build_mcp(endpoints: Endpoints, local: Caller | None = None) -> Server:
    """Return the MCP server that offers the endpoints; ``local`` is the caller over stdio."""
    tools = {endpoint.name: endpoint for endpoint in ENDPOINTS if endpoint.tool}
    listed = [
        Tool(
            name=name,
            description=endpoint.description,
            input_schema=endpoint.request.model_json_schema(),
            output_schema=endpoint.answer.model_json_schema(mode="serialization"),
            annotations=ToolAnnotations(
                read_only_hint=not endpoint.writes, destructive_hint=endpoint.writes or None
            ),
        )
        for name, endpoint in tools.items()
    ]

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult:
        sent: Any = context.request
        try:
            if params.name not in tools:  # as the specification of MCP says
                known = f"expected one of {', '.join(tools)}"
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name[:200]!r}; {known}")
            request = tools[params.name].request.model_validate(params.arguments or {})
            caller = local or sent.scope[CALLER]
            answer = await to_thread.run_sync(endpoints.call, params.name, caller, request)
        except ValidationError as error:
            return _mcp_result(invalid(error, "what the tool's schema says").body(), True)
        except Problem as problem:
            return _mcp_result(problem.body(), True)
        return _mcp_result(answer.model_dump(mode="json"), False)

    return Server(
        "memalpha",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
