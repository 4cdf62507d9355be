"""An OpenAI-compatible chat server with a memory: a proxy in front of another one.

``POST /v1/chat/completions``, streamed or not, recalls, asks the server ``upstream`` and
remembers, as ``memalpha.wrap`` does (``chatting.ChatMemory``); ``GET /v1/models`` passes. The
namespace is that of the caller's token and headers. All other fields of a request pass as they
are; the caller's token stays here, and the key of the server is $MEMALPHA_API_KEY. Answers of the
server come back with their status. An answer ends when its turn is on disk; if it could not be
remembered the log says why, and an answer that is not streamed has the header
``Memalpha-Remembered: no``. A stream that its reader leaves before the end is not remembered.
"""

import json
import logging
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import httpx2
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from memalpha.endpoints import ChatClient
from memalpha.errors import InputError
from memalpha.types import JsonObject
from memalpha.use.access import CALLER, Caller, Problem, ServeConfig
from memalpha.use.agent import MemoryAgent
from memalpha.use.chatting import ChatMemory, ChatTurn, answer_of, with_block
from memalpha.use.operations import problem_of

_LOG = logging.getLogger(__name__)
_EVENT = b"data:"
_PASSED = ("content-type", "retry-after")  # headers of an answer


def add_proxy_routes(app: Starlette, agent: MemoryAgent, config: ServeConfig) -> None:
    """Add the routes to an application behind a ``Gate``."""
    proxy = _Proxy(agent, config)
    app.add_route("/v1/chat/completions", proxy.complete, methods=["POST"])
    app.add_route("/v1/models", proxy.models, methods=["GET"])


class _Proxy:
    def __init__(self, agent: MemoryAgent, config: ServeConfig) -> None:
        key = os.environ.get(ChatClient.api_key_env, "").strip()
        self._url = config.upstream.rstrip("/")
        self._model = config.upstream_model
        self._memory = ChatMemory(agent)
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=config.upstream_seconds,
        )

    async def models(self, _: Request) -> Response:
        """Return the models of the server."""
        answer = await self._send("GET", "models")
        return Response(await self._data(answer), answer.status_code, _headers(answer))

    async def complete(self, request: Request) -> Response:
        """Answer a chat with the memory; a problem has the message that clients show, too."""
        try:
            return await self._complete(request)
        except Problem as problem:
            body = {**problem.body(), "error": {"message": problem.what}}
            return JSONResponse(body, problem.status)

    async def _complete(self, request: Request) -> Response:
        caller: Caller = request.scope[CALLER]
        sent, streams, turn = await to_thread.run_sync(self._recall, caller, await request.body())
        answer = await self._send("POST", "chat/completions", sent)
        if answer.status_code != HTTPStatus.OK:
            return Response(await self._data(answer), answer.status_code, _headers(answer))
        if streams:
            return StreamingResponse(self._stream(answer, turn), headers=_headers(answer))
        data = await self._data(answer)
        headers = _headers(answer)
        if not await to_thread.run_sync(self._remember, turn, [data]):
            headers["Memalpha-Remembered"] = "no"
        return Response(data, headers=headers)

    def _recall(self, caller: Caller, data: bytes) -> tuple[bytes, bool, ChatTurn]:
        """Return the body of the request to the server, whether it asks for a stream, and the
        turn.
        """
        try:
            body: JsonObject = json.loads(data)
            messages = list(body["messages"])
            turn = self._memory.recall(messages, caller.namespace)
            model = {"model": self._model} if self._model else {}
            asked = {**body, **model, "messages": with_block(messages, turn.block)}
            return json.dumps(asked, allow_nan=False).encode(), bool(body.get("stream")), turn
        except InputError as error:  # of its messages
            raise problem_of(error) from error
        except (ValueError, TypeError, KeyError) as error:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"the body is no chat request: {type(error).__name__}: {error}",
                "a JSON object with messages",
            ) from error
        except Exception as error:  # the store, the embedder
            raise problem_of(error) from error

    async def _send(self, method: str, route: str, body: bytes | None = None) -> httpx2.Response:
        kind = {"Content-Type": "application/json"} if body else {}
        url = f"{self._url}/{route}"
        request = self._http.build_request(method, url, content=body, headers=kind)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise self._failed(error) from error

    async def _data(self, answer: httpx2.Response) -> bytes:
        try:
            return await answer.aread()
        except httpx2.HTTPError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Problem:
        _LOG.error("%s: %s: %s", self._url, type(error).__name__, error)
        what = "the model's server does not answer"
        return Problem(HTTPStatus.BAD_GATEWAY, what, fix="try again later")

    async def _stream(self, answer: httpx2.Response, turn: ChatTurn) -> AsyncIterator[bytes]:
        """Pass the events on as they come, and end when the turn is remembered; a failure of the
        server cuts the stream.
        """
        events: list[bytes] = []
        rest = b""
        is_last = False
        try:
            async for data in answer.aiter_bytes():
                *lines, rest = (rest + data).split(b"\n")
                events += [line for line in lines if line.startswith(_EVENT)]
                is_last = any(line.removeprefix(_EVENT).strip() == b"[DONE]" for line in lines)
                if is_last:
                    await to_thread.run_sync(self._remember, turn, events)
                yield data
            if not is_last:  # of a server that says no [DONE], or answers in one piece
                await to_thread.run_sync(self._remember, turn, [*events, rest])
        finally:
            await answer.aclose()

    def _remember(self, turn: ChatTurn, parts: list[bytes]) -> bool:
        """Remember a turn with its answer, which came as JSON or as events; log what fails."""
        texts = []
        for part in parts:
            text = part.removeprefix(_EVENT).strip()
            try:
                texts.append(answer_of(json.loads(text)) if text not in (b"", b"[DONE]") else "")
            except (ValueError, TypeError, AttributeError) as error:
                _LOG.error("%s sent what is no completion: %s", self._url, error)
        try:
            self._memory.remember(turn, "".join(texts))
        except Exception as error:  # noqa: BLE001 - the answer is not lost
            _LOG.error("a chat was not remembered: %s: %s", type(error).__name__, error)
            return False
        return True


def _headers(answer: Any) -> dict[str, str]:
    return {name: answer.headers[name] for name in _PASSED if name in answer.headers}
