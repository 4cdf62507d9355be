"""The HTTP API: JSON in, JSON out, described at ``/openapi.json``.

It stands behind the gate, which has settled who calls. ``/docs`` pages are left out: they would load scripts from elsewhere.
"""

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

from memalpha.errors import MemAlphaError
from memalpha.use.callers import HEADERS, Caller
from memalpha.use.gate import CALLER, problem_response
from memalpha.use.messages import (
    AddAnswer,
    AddRequest,
    AskAnswer,
    AskRequest,
    ChangeAnswer,
    ForgetAnswer,
    ForgetRequest,
    HistoryAnswer,
    HistoryRequest,
    MemoryAnswer,
    MemoryRequest,
    ProblemModel,
    SearchAnswer,
    SearchRequest,
    UndoRequest,
)
from memalpha.use.operations import Operations
from memalpha.use.problems import UNEXPECTED, Problem, Refused, problem_of
from memalpha.version import __version__

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def caller_of(
    request: Request,
    user: Annotated[str | None, Header(alias=HEADERS["user"], description="Whose memory, where the token leaves it open.")] = None,
    agent: Annotated[str | None, Header(alias=HEADERS["agent"])] = None,
    session: Annotated[str | None, Header(alias=HEADERS["session"])] = None,
) -> Caller:
    """Return the caller whom the gate let in; the headers are named for the description."""
    caller: Caller = request.scope[CALLER]
    return caller


From = Annotated[Caller, Depends(caller_of)]
_TOLD: dict[int | str, dict[str, Any]] = {
    code: {"model": ProblemModel} for code in (400, 401, 403, 408, 409, 410, 413, 421, 422, 429, 500, 502, 503)
}


def build_api(operations: Operations, lifespan: Lifespan | None = None) -> FastAPI:
    """Return the application.

    Args:
        operations: What it offers.
        lifespan: Run around its life.
    """
    app = FastAPI(title="memalpha", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False)
    _add_health(app, operations)
    _add_problems(app)
    options: dict[str, Any] = {"responses": _TOLD, "dependencies": [Depends(HTTPBearer(auto_error=False))]}

    @app.post("/v1/add", **options)
    async def add(caller: From, request: AddRequest) -> AddAnswer:
        """Read a text and update the memory; on disk when this is answered."""
        return await operations.add(caller, request)

    @app.post("/v1/ask", **options)
    async def ask(caller: From, request: AskRequest) -> AskAnswer:
        """Answer a question from the memory alone."""
        return await operations.ask(caller, request)

    @app.post("/v1/search", **options)
    async def search(caller: From, request: SearchRequest) -> SearchAnswer:
        """Find entries, best first."""
        return await operations.search(caller, request)

    @app.get("/v1/memory", **options)
    async def memory(caller: From, request: Annotated[MemoryRequest, Query()]) -> MemoryAnswer:
        """List entries in order of creation."""
        return await operations.memory(caller, request)

    @app.get("/v1/history", **options)
    async def history(caller: From, request: Annotated[HistoryRequest, Query()]) -> HistoryAnswer:
        """List the newest operations, of one entry or of all, in order."""
        return await operations.history(caller, request)

    @app.post("/v1/undo", **options)
    async def undo(caller: From, request: UndoRequest) -> ChangeAnswer:
        """Take one operation back."""
        return await operations.undo(caller, request)

    @app.post("/v1/forget", **options)
    async def forget(caller: From, request: ForgetRequest) -> ForgetAnswer:
        """Erase an entry for good, from the log, every file of the store and its backups."""
        return await operations.forget(caller, request)

    @app.delete("/v1/memory", **options)
    async def forget_all(caller: From) -> ForgetAnswer:
        """Erase the whole namespace for good."""
        return await operations.forget_all(caller)

    return app


def _add_health(app: FastAPI, operations: Operations) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Say that the process runs."""
        return {"status": "running", "version": __version__}

    @app.get("/ready", responses={503: {"model": ProblemModel}})
    async def ready() -> JSONResponse:
        """Say whether the store can be read and requests are taken."""
        try:
            await operations.ready()
        except MemAlphaError as error:
            told = problem_of(error)
            return problem_response(Problem(HTTPStatus.SERVICE_UNAVAILABLE, told.what, fix=told.fix))
        return JSONResponse({"status": "ready"})


def _add_problems(app: FastAPI) -> None:
    async def own(_: Request, error: Exception) -> JSONResponse:
        return problem_response(problem_of(error))

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return problem_response(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(found), "what /openapi.json says"))

    async def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return problem_response(Problem(error.status_code, str(error.detail), "what /openapi.json says", headers=error.headers))

    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return problem_response(UNEXPECTED)  # the server around this logs it

    for kind in (MemAlphaError, Refused):
        app.add_exception_handler(kind, own)
    app.add_exception_handler(Exception, unexpected)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, of_http)


__all__ = ["build_api"]
