"""A client of OpenAI-compatible chat servers (vLLM, llama.cpp, hosted ones), and its options.

A reply is a completion or an error. Timeouts, lost connections, 408, 429, 5xx and malformed or huge
replies are retried with backoff, not before ``Retry-After``; at last they are a ServiceError. 401,
403, 404 and redirects raise InputError. The key comes from an environment variable, is in no
message and no ``repr``, and goes to no other host. Ctrl-C ends a batch at once.
"""

import asyncio
import json
import logging
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from memalpha.config import Options
from memalpha.errors import InputError, ServiceError, whole
from memalpha.text import content_of
from memalpha.types import Completion, Sampling, StopReason

logger = logging.getLogger(__name__)

_RETRIED = {408, 429}
_WRONG_SETUP = {
    401: "the server does not accept the key",
    403: "the key may not use this model",
    404: "no such model or URL",
}
STOPS = {"stop": StopReason.END, "length": StopReason.LENGTH}
Finish = Annotated[
    Literal["stop", "length"], Field(validation_alias=AliasPath("choices", 0, "finish_reason"))
]
_Shape = TypeVar("_Shape", bound=BaseModel)
_SHOWN = 300  # characters of a server's message that an error shows
_MAX_BODY = 2**24  # longest reply in bytes
_WARN_EVERY = 10.0  # seconds between warnings about one server
_OWN_FIELDS = ("model", "messages", "stream", "n")  # fields that ``extra`` may not change


class Transient(Exception):
    """A failure that may pass."""

    retry_after = 0.0


@dataclass(eq=False)
class ChatClient(Options):
    """Asks one model of one server.

    Attributes:
        base_url: URL up to and including the version, e.g. ``http://localhost:8000/v1``.
        model: Name of the model on the server.
        api_key_env: Environment variable that holds the key; if it is empty, no key is sent.
        timeout: Seconds one attempt may take.
        retries: How many times a failed attempt is repeated.
        backoff: Seconds before the first repetition; doubled each time, then scaled by a random
            factor in [0.5, 1).
        max_wait: Longest wait between attempts in seconds; a request whose ``Retry-After`` is
            longer fails.
        concurrency: Parallel requests of one batch.
        extra: More fields of the request body, e.g. ``{"top_k": 20}``; they override those of the
            sampling.
    """

    base_url: str
    model: str
    api_key_env: str = "MEMALPHA_API_KEY"
    timeout: Annotated[float, Field(gt=0)] = 120.0
    retries: NonNegativeInt = 4
    backoff: NonNegativeFloat = 1.0
    max_wait: NonNegativeFloat = 60.0
    concurrency: PositiveInt = 8
    extra: dict[str, Any] = field(default_factory=dict)
    route = "chat/completions"
    _key: str = field(default="", init=False, repr=False)
    _headers: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _quiet_until: float = field(default=0.0, init=False, repr=False)

    def check(self) -> None:
        """Check the values, and read the key from the environment."""
        url = self.base_url
        try:
            parts = urlsplit(url)
            good = (
                parts.scheme in ("http", "https")
                and bool(parts.hostname)
                and parts.port != 0
                and parts.username is None
            )
        except ValueError:
            good = False
        if not (good and url.isascii() and url.isprintable()) or {" ", "?", "#"} & set(
            url
        ):  # a path is appended
            raise InputError(
                f"endpoint {url!r}",
                expected="such as http://localhost:8000/v1, without a user name, '?' or '#'",
            )
        if not self.model:
            raise InputError(
                "the endpoint's model name is empty",
                expected="a name that the server lists under /models",
            )
        if wrong := [name for name in _OWN_FIELDS if name in self.extra]:
            raise InputError(
                f"the endpoint's extra fields hold {wrong[0]!r}",
                expected=f"none of {', '.join(_OWN_FIELDS)}",
            )
        try:
            json.dumps(self.extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the endpoint's extra fields {self.extra!r}: {error}",
                expected="values that JSON knows",
            ) from error
        key = os.environ.get(self.api_key_env, "").strip()
        if not key.isascii() or not key.isprintable():
            raise InputError(
                f"the value of ${self.api_key_env} is no key", expected="printable ASCII characters"
            )
        self._key, self._headers = (
            key,
            {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
        )

    def _url(self, route: str) -> str:
        return f"{self.base_url.rstrip('/')}/{route}"

    def _http(self) -> Any:
        import httpx2

        return httpx2.AsyncClient(headers=self._headers, timeout=None)

    def call(self, route: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Send one request (GET without a ``body``), without retries; return the reply.

        InputError as in ``complete_many``; ServiceError for any other failure.
        """
        from anyio.from_thread import start_blocking_portal

        with start_blocking_portal() as portal:
            try:
                return bytes(portal.call(self._call, route, body))
            except Transient as failure:
                raise ServiceError(f"{self._url(route)}: {failure}") from failure

    async def _call(self, route: str, body: Mapping[str, Any] | None) -> bytes:
        async with self._http() as http:
            return await self._fetch(http, route, body)

    def complete_many(self, batch: Sequence[Sequence[Any]], sampling: Sampling) -> list[Completion]:
        """Return one reply per request, in order, without its thinking; the seed grows by one per
        request.

        PartialServiceError with the other replies if one failed, is empty without thinking, or
        never ended it; InputError if key, model or URL are refused. After ``max(8, 2 *
        concurrency)`` failures in a row the server counts as down.
        """
        from anyio.from_thread import start_blocking_portal

        if not batch:
            return []
        with start_blocking_portal() as portal:  # own thread and loop: works in a notebook
            return whole(portal.call(self._complete_all, batch, sampling))

    async def _complete_all(self, batch: Sequence[Sequence[Any]], sampling: Sampling) -> list[Any]:
        outcomes: dict[int, Completion | ServiceError] = {}
        waiting = random.Random(len(batch)).sample(range(len(batch)), len(batch))
        down, in_a_row = max(8, 2 * self.concurrency), 0

        async def work(http: Any) -> None:
            nonlocal in_a_row
            while waiting:
                index = waiting.pop(0)
                try:
                    outcomes[index] = await self._with_retries(
                        http, self._body(batch[index], sampling, index)
                    )
                    in_a_row = 0
                except ServiceError as error:
                    outcomes[index] = error
                    if isinstance(
                        error.__cause__, Transient
                    ):  # a refusal means that the server is up
                        in_a_row += 1
                    if in_a_row >= down:
                        unsent = ServiceError(
                            f"{error}; the server seems to be down, so this was not sent"
                        )
                        outcomes.update(dict.fromkeys(waiting, unsent))
                        waiting.clear()

        async with self._http() as http:
            workers = [
                asyncio.create_task(work(http)) for _ in range(min(self.concurrency, len(batch)))
            ]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
        return [outcomes[index] for index in range(len(batch))]

    async def _with_retries(self, http: Any, body: dict[str, Any]) -> Completion:
        for attempt in range(self.retries + 1):
            try:
                return self._parse(await self._fetch(http, self.route, body), body)
            except Transient as failure:
                step = min(self.max_wait, self.backoff * 2.0 ** min(attempt, 64))
                wait = max(step * random.Random().uniform(0.5, 1.0), failure.retry_after)
                if attempt == self.retries or wait > self.max_wait:
                    asks = f"; it asks to wait {wait:.0f} s" if wait > self.max_wait else ""
                    raise ServiceError(
                        f"{self._url(self.route)}: {failure} (after {attempt + 1} attempts{asks})"
                    ) from failure
                if time.monotonic() >= self._quiet_until:
                    self._quiet_until = time.monotonic() + _WARN_EVERY
                    logger.warning(
                        "%s: %s; attempt %d follows in %.1f s",
                        self._url(self.route),
                        failure,
                        attempt + 2,
                        wait,
                    )
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _body(self, messages: Sequence[Any], sampling: Sampling, index: int) -> dict[str, Any]:
        said = [
            {**message, "content": break_marks(str(message["content"]))} for message in messages
        ]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": said,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        body |= {"seed": sampling.seed + index} if sampling.seed is not None else {}
        return body | self.extra

    async def _fetch(self, http: Any, route: str, body: Mapping[str, Any] | None) -> bytes:
        """Send one request in at most ``timeout`` seconds; the bytes of a reply of status 200."""
        import httpx2

        method, url = "GET" if body is None else "POST", self._url(route)
        status, headers, raw = 0, httpx2.Headers(), b""
        try:
            async with (
                asyncio.timeout(self.timeout),
                http.stream(method, url, json=body) as response,
            ):
                status, headers = response.status_code, response.headers
                async for (
                    piece
                ) in response.aiter_raw():  # not unpacked: a few bytes could become gigabytes
                    raw += piece
                    if len(raw) > _MAX_BODY:
                        raise Transient(f"the reply is longer than {_MAX_BODY} bytes")
        except TimeoutError as error:
            if status < 400:
                raise Transient(
                    f"timed out: the reply did not end in {self.timeout:g} s"
                ) from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            if status < 400:
                raise Transient(f"{type(error).__name__}: {error}") from error
        if self._key:
            raw = raw.replace(self._key.encode(), b"***")  # some servers echo the key
        if status == 200:
            return raw
        said = f"HTTP {status}: {_said(raw)}"
        if status in _RETRIED or status >= 500:
            passing = Transient(said)
            if re.fullmatch(r"\s*\d+(\.\d*)?\s*", asked := headers.get("Retry-After", "")):
                passing.retry_after = float(asked)
            raise passing
        if status in _WRONG_SETUP or status < 400:
            raise InputError(
                f"{url} (model {self.model!r}): {said}: {_WRONG_SETUP.get(status, 'it redirects')}",
                fix=f"check these and ${self.api_key_env}",
            )
        raise ServiceError(f"{url}: {said}")

    def _parse(self, raw: bytes, body: Mapping[str, Any]) -> Completion:
        reply = read_json(_Chat, raw)
        written = reply.content or ""
        if not isinstance(written, str):
            parts = [
                part
                for part in written
                if isinstance(part, dict) and part.get("type", "text") in ("text", "output_text")
            ]
            written = "".join(str(part.get("text", "")) for part in parts)
        if reply.tool_calls:
            what = f"{self._url(self.route)}: {self.model}'s calls were taken out of its text"
            raise ServiceError(
                what, fix="start the server without a tool parser: calls are read from the text"
            )
        text, open_at = content_of(written)
        stop = STOPS[reply.finish_reason]
        if not text.strip() and not reply.reasoning and text == written:
            raise Transient(f"the reply is empty (finish_reason {reply.finish_reason!r})")
        if open_at is not None or (not text.strip() and stop is StopReason.LENGTH):
            raise ServiceError(
                f"{self._url(self.route)}: {self.model} did not end its thinking in {body['max_tokens']} tokens",
                fix="switch its thinking off, or raise max_tokens (extra fields of the request)",
            )
        return Completion((), text, stop)


class _Chat(BaseModel):
    content: str | list[Any] | None = Field(
        validation_alias=AliasPath("choices", 0, "message", "content")
    )
    finish_reason: Finish
    tool_calls: Any = Field(None, validation_alias=AliasPath("choices", 0, "message", "tool_calls"))
    reasoning: Any = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("choices", 0, "message", "reasoning_content"),
            AliasPath("choices", 0, "message", "reasoning"),
        ),
    )


def read_json(shape: type[_Shape], raw: bytes) -> _Shape:
    """Read the fields of a reply; Transient if one is missing or of another type."""
    try:
        return shape.model_validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Transient(
            f"the reply is not as expected ({where} {first['msg']}): {_said(raw)!r}"
        ) from None


def _said(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        text = str(json.loads(raw)["error"]["message"])
    return "".join(
        character if character.isprintable() else " " for character in text[:_SHOWN]
    ).strip()


@dataclass(frozen=True)
class EndpointOptions(Options):
    """Which servers read and judge.

    The key is $MEMALPHA_API_KEY; a separate ``judge_url`` gets only $MEMALPHA_JUDGE_API_KEY.

    Attributes:
        endpoint_url: Base URL, for ``reader: endpoint`` and ``content_judge: endpoint``.
        endpoint_model: Name of the model on the server.
        endpoint_timeout: Seconds one attempt may take; keep the sum over all attempts far below
            ``ddp_timeout``.
        endpoint_retries: How often a failed attempt is repeated before the sample is masked.
        endpoint_backoff: Seconds before the first repetition, doubled each time.
        endpoint_concurrency: Parallel requests per process.
        endpoint_extra: More fields of each request, e.g. ``{chat_template_kwargs: {enable_thinking:
            false}}``.
        judge_url: Base URL of the judges' server (empty: ``endpoint_url``).
        judge_model: Name of the judges' model (empty: ``endpoint_model``).
        judge_extra: More fields of the judges' requests (not given: ``endpoint_extra``).
    """

    endpoint_url: str = ""
    endpoint_model: str = ""
    endpoint_timeout: Annotated[float, Field(gt=0)] = 120.0
    endpoint_retries: NonNegativeInt = 4
    endpoint_backoff: NonNegativeFloat = 1.0
    endpoint_concurrency: PositiveInt = 8
    endpoint_extra: dict[str, Any] = field(default_factory=dict)
    judge_url: str = ""
    judge_model: str = ""
    judge_extra: dict[str, Any] | None = None

    @property
    def has_judge(self) -> bool:
        """Whether the options name a server and a model for judges."""
        return bool(
            (self.judge_url or self.endpoint_url) and (self.judge_model or self.endpoint_model)
        )

    def reader_client(self) -> ChatClient:
        """Return the client of the reader; InputError if an option does not fit."""
        return self._client(
            "endpoint",
            self.endpoint_url,
            self.endpoint_model,
            "MEMALPHA_API_KEY",
            self.endpoint_extra,
        )

    def judge_client(self) -> ChatClient:
        """Return the client of the judges; InputError if an option does not fit."""
        key = (
            "MEMALPHA_API_KEY"
            if self.judge_url in ("", self.endpoint_url)
            else "MEMALPHA_JUDGE_API_KEY"
        )
        extra = self.endpoint_extra if self.judge_extra is None else self.judge_extra
        return self._client(
            "judge",
            self.judge_url or self.endpoint_url,
            self.judge_model or self.endpoint_model,
            key,
            extra,
        )

    def _client(
        self, kind: str, url: str, model: str, key: str, extra: Mapping[str, Any]
    ) -> ChatClient:
        if not (url and model):
            raise InputError(
                f"{kind}_url is {url!r} and {kind}_model is {model!r}",
                fix=f"add --{kind}_url and --{kind}_model",
            )
        common = {
            name: getattr(self, f"endpoint_{name}")
            for name in ("timeout", "retries", "backoff", "concurrency")
        }
        return ChatClient(url, model, key, extra=dict(extra), **common)


_NAMED = (
    "s",
    "/s",
    "bos",
    "eos",
    "pad",
    "unk",
    "mask",
    "sop",
    "eop",
    "start_of_turn",
    "end_of_turn",
    "start_of_image",
    "end_of_image",
    "BOS_TOKEN",
    "EOS_TOKEN",
    "PAD_TOKEN",
    "end_of_utterance",
)
_BRACKETED = (
    "INST",
    "/INST",
    "SYSTEM_PROMPT",
    "/SYSTEM_PROMPT",
    "AVAILABLE_TOOLS",
    "/AVAILABLE_TOOLS",
    "TOOL_CALLS",
    "TOOL_RESULTS",
    "/TOOL_RESULTS",
    "TOOL_CONTENT",
    "CALL_ID",
    "ARGS",
    "THINK",
    "/THINK",
    "IMG",
    "IMG_BREAK",
    "IMG_END",
    "PREFIX",
    "MIDDLE",
    "SUFFIX",
    "BOS",
    "EOS",
    "EOT",
    "PAD",
    "UNK",
    "gMASK",
    "sMASK",
)

_MARK = re.compile(
    r"<(?=[|｜][^\s|｜<>]{1,64}[|｜]>)"  # <|im_start|>, <|eot_id|>, <|channel|>; with wide bars too
    r"|\[(?=\|[^\s|\[\]]{1,64}\|\])"  # [|assistant|]
    rf"|<(?=(?:{'|'.join(_NAMED)}|unused\d+|extra_id_\d+)>)"  # <s>, <end_of_turn>
    rf"|\[(?=(?:{'|'.join(_BRACKETED)})\])"  # [INST]
    r"|<(?=</?SYS>>)"  # <<SYS>>
)


def break_marks(text: str) -> str:
    """Put a space into every mark that a server may read as a special token; ``<think>`` and
    ``<tool_call>`` stay.
    """
    return _MARK.sub(lambda found: f"{found[0]} ", text)
