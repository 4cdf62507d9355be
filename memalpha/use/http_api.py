"""The HTTP API: JSON routes for ``OPERATIONS``, described at ``/openapi.json``; no ``/docs``, which loads remote scripts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from memalpha import __version__
from memalpha.errors import MemAlphaError
from memalpha.use.access import HEADERS, Caller
from memalpha.use.gate import CALLER, problem_response
from memalpha.use.messages import Answer, Problem, Refused, invalid, problem_of
from memalpha.use.operations import OPERATIONS, Operations

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (400, 401, 403, 408, 409, 410, 413, 421, 422, 429, 500, 502, 503)
}
_EXPECTED = "what /openapi.json says"


def _caller_of(
    request: Request,
    user: Annotated[str | None, Header(alias=HEADERS["user"], description="Whose memory, where the token leaves it open.")] = None,
    agent: Annotated[str | None, Header(alias=HEADERS["agent"])] = None,
    session: Annotated[str | None, Header(alias=HEADERS["session"])] = None,
) -> Caller:
    """Return the caller from the gate; the parameters only describe the headers."""
    caller: Caller = request.scope[CALLER]
    return caller


def build_api(operations: Operations, lifespan: Lifespan | None = None) -> FastAPI:
    """Return the application that offers the operations."""
    app = FastAPI(title="memalpha", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False)
    for name, (request, answer, method, path, description, *_) in OPERATIONS.items():
        app.add_api_route(
            f"/v1{path}",
            _endpoint(operations, name, request if method == "POST" else Annotated[request, Query()]),
            methods=[method],
            name=name,
            description=description,
            response_model=answer,
            responses=_PROBLEMS,
            dependencies=[Depends(HTTPBearer(auto_error=False))],
        )
    _add_health(app, operations)
    _add_problems(app)
    return app


def _endpoint(operations: Operations, name: str, request_type: Any) -> Callable[..., Any]:
    async def endpoint(caller: Any, request: Any) -> Answer:
        return await operations.call(name, caller, request)

    endpoint.__annotations__ = {"caller": Annotated[Caller, Depends(_caller_of)], "request": request_type}
    return endpoint


def _add_health(app: FastAPI, operations: Operations) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Say that the process runs."""
        return {"status": "running", "version": __version__}

    @app.get("/ready", responses={503: {"model": Problem}})
    async def ready() -> JSONResponse:
        """Say whether the store can be read and requests are taken."""
        try:
            await operations.ready()
        except MemAlphaError as error:
            told = problem_of(error)
            return problem_response(Problem(HTTPStatus.SERVICE_UNAVAILABLE, told.what, fix=told.fix))
        return JSONResponse({"status": "ready"})


def _add_problems(app: FastAPI) -> None:
    async def respond(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            return problem_response(invalid(error, _EXPECTED))
        if isinstance(error, HTTPException):
            return problem_response(Problem(error.status_code, str(error.detail), _EXPECTED), error.headers)
        return problem_response(problem_of(error))

    for kind in (MemAlphaError, Refused, Exception, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, respond)


__all__ = ["build_api"]
