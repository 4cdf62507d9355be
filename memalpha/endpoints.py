"""A client of OpenAI-compatible chat servers (vLLM, llama.cpp, hosted ones), and its options.

A reply is a completion or an error. Timeouts, lost connections, 408, 429, 5xx and malformed or huge
replies are retried with backoff, not before ``Retry-After``; at last they are a ServiceError. 401,
403, 404 and redirects raise InputError. What a server refuses of the sampling, or a system message,
is left out or said otherwise from then on, with a warning. The key comes from an environment
variable, is in no message and no ``repr``, and goes to no other host. Ctrl-C ends a batch at once.
"""

import asyncio
import json
import logging
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from memalpha.config import Options
from memalpha.errors import InputError, ServiceError, whole
from memalpha.text.encoding import without_system
from memalpha.text.thinking import content_of
from memalpha.types import Completion, JsonMapping, JsonObject, Sampling, StopReason

logger = logging.getLogger(__name__)

_RETRIED = {408, 429}
_WRONG_SETUP = {
    401: "the server does not accept the key",
    403: "the key may not use this model",
    404: "no such model or URL",
}
STOPS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence"), StopReason.END),
    "length": StopReason.LENGTH,
}
Finish = Annotated[
    Literal["stop", "eos", "eos_token", "stop_sequence", "length"],
    Field(validation_alias=AliasPath("choices", 0, "finish_reason")),
]
_Shape = TypeVar("_Shape", bound=BaseModel)
_SECRET_IN_URL = re.compile(r"(?<=//).*@|(?<=[?#]).+", re.DOTALL)
_URL = re.compile(
    r"https?://([\w.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?(/[!-~]*)?", re.ASCII | re.IGNORECASE
)
_SECONDS = re.compile(r"\s*\d+(\.\d*)?\s*")
_SHOWN = 300  # characters of a server's message that an error shows
_MAX_BODY = 2**24  # longest reply in bytes
_WARN_EVERY = 10.0  # seconds between warnings about one server
_OWN_FIELDS = ("model", "messages", "stream", "n")  # fields that ``extra`` may not change


_LEAST_SECRET = 6  # characters; shorter texts stand anywhere
# A refusal that names one of these fields near such words is of the field, not of its value.
_ADAPTED = {
    "max_tokens": r"max[_ -]?tokens",
    "temperature": r"temperature",
    "top_p": r"top[_ -]?p",
    "top_k": r"top[_ -]?k",
    "seed": r"seed",
    "system": r"(?:system|developer)[\s\"'`_-]{0,3}(?:role|message|prompt|instruction)s?"
    r"|[\"'`]system[\"'`]|roles",
}
_REFUSES = re.compile(
    r"unsupported|unrecogni[sz]ed|unknown|unexpected|deprecated|forbidden|disallowed|incompatible"
    r"|not[ _](?:\w+[ _]){0,2}(?:support|permit|allow|accept|recogni|implement|available"
    r"|compatible|valid|enabled)"
    r"|n['\u2019]t (?:\w+ )?(?:support|accept|allow|permit|recogni)"
    r"|cannot (?:\w+ ){0,2}(?:be (?:\w+ )?(?:specified|set|used|provided|sent)|find)"
    r"|only (?:the )?(?:default|1\b)|may only be|must alternate"
    r"|must be (?:1\b(?!\.\d)|omitted|unset)"
    r"|no longer|\u4e0d\u652f\u6301",
    re.IGNORECASE,
)
_NEAR = 160  # most characters between the two
_READ = 20_000  # characters of a refusal that are looked at
_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")


class _Refused(ServiceError):
    """A request was refused for what it asks; ``said``: the server's words, of 400 and 422."""

    said = ""


class Transient(Exception):
    """A failure that may pass; the server asks for ``retry_after`` seconds before the next try."""

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
            sampling, and a null takes one out, e.g. ``{"max_tokens": null}``.
    """

    base_url: str
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = "MEMALPHA_API_KEY"
    timeout: Annotated[float, Field(gt=0)] = 120.0
    retries: NonNegativeInt = 4
    backoff: NonNegativeFloat = 1.0
    max_wait: NonNegativeFloat = 60.0
    concurrency: PositiveInt = 8
    extra: dict[str, JsonValue] = field(default_factory=dict, repr=False)  # may hold a key
    route = "chat/completions"
    adapts = True  # whether what is refused may be left out
    _key: str = field(default="", init=False, repr=False)
    _quiet_until: float = field(default=0.0, init=False, repr=False)
    _without: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def check(self) -> None:
        """Check the values, and read the key from the environment."""
        if not _URL.fullmatch(self.base_url) or {"?", "#", "@"} & set(self.base_url):
            raise InputError(
                f"endpoint {_SECRET_IN_URL.sub('***', self.base_url)!r}",
                expected="such as http://localhost:8000/v1, without a user name, '?' or '#'",
            )
        own = [name for name in _OWN_FIELDS if name in self.extra]
        if own:
            raise InputError(
                f"the endpoint's extra fields hold {own[0]!r}",
                expected=f"none of {', '.join(_OWN_FIELDS)}",
            )
        self._key = os.environ.get(self.api_key_env, "").strip()
        if not self._key.isascii() or not self._key.isprintable():
            raise InputError(
                f"the value of ${self.api_key_env} is no key",
                expected="printable ASCII characters",
            )

    def call(self, route: str, body: JsonMapping | None = None) -> bytes:
        """Send one request (GET without a ``body``), without retries; return the reply.

        InputError as in ``complete_many``; ServiceError for any other failure.
        """
        try:
            return bytes(self._run(lambda http: self._fetch(http, route, body)))
        except Transient as failure:
            raise ServiceError(self.hidden(f"{self._url(route)}: {failure}")) from failure

    def hidden(self, text: str) -> str:
        """Return a message without the key and the values of ``extra``, which a server may echo."""
        for secret in (self._key, *texts_in(self.extra)):
            text = text.replace(secret, "***") if len(secret) >= _LEAST_SECRET else text
        return text

    def complete_many(self, batch: Sequence[Sequence[Any]], sampling: Sampling) -> list[Completion]:
        """Return one reply per request, in order, without its thinking; the seed grows by one per
        request.

        PartialServiceError with the other replies if one failed, is empty without thinking, or
        never ended it; InputError if key, model or URL are refused. After ``max(8, 2 *
        concurrency)`` failures in a row the server counts as down.
        """
        if not batch:
            return []
        return whole(self._run(lambda http: self._complete_all(http, batch, sampling)))

    def _url(self, route: str) -> str:
        return f"{self.base_url.rstrip('/')}/{route}"

    def _run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await a function of the HTTP client in a thread and loop of its own, as in a notebook."""
        import httpx2
        from anyio.from_thread import start_blocking_portal

        key = {"Authorization": f"Bearer {self._key}"} if self._key else {}

        async def run() -> Any:
            async with httpx2.AsyncClient(
                headers={"Accept-Encoding": "identity", **key}, timeout=None
            ) as http:
                return await work(http)

        with start_blocking_portal() as portal:
            return portal.call(run)

    async def _complete_all(
        self, http: Any, batch: Sequence[Sequence[Any]], sampling: Sampling
    ) -> list[Completion | ServiceError]:
        outcomes: dict[int, Completion | ServiceError] = {}
        free = asyncio.Semaphore(self.concurrency)
        down = max(8, 2 * self.concurrency)
        failures = 0  # in a row
        last = ""  # of them

        async def ask(index: int) -> None:
            nonlocal failures, last
            async with free:
                if failures >= down:
                    outcomes[index] = ServiceError(
                        f"{last}; {failures} requests in a row failed, "
                        "the server seems to be down, and this was not sent"
                    )
                    return
                try:
                    body = self._body(batch[index], sampling, index)
                    outcomes[index] = await self._with_retries(http, body)
                    failures = 0
                except ServiceError as error:  # a refusal means that the server is up
                    outcomes[index] = error
                    if isinstance(error.__cause__, Transient):
                        failures += 1
                        last = str(error)

        order = random.Random(len(batch)).sample(range(len(batch)), len(batch))
        tasks = [asyncio.create_task(ask(index)) for index in order]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [outcomes[index] for index in range(len(batch))]

    async def _with_retries(self, http: Any, body: JsonObject) -> Completion:
        url = self._url(self.route)
        step = self.backoff
        for attempt in count(1):
            try:
                return await self._reply(http, body)
            except Transient as failure:
                wait = max(step * random.Random().uniform(0.5, 1.0), failure.retry_after)
                step = min(self.max_wait, 2 * step)
                if attempt > self.retries or wait > self.max_wait:
                    asks = f"; it asks to wait {wait:.0f} s" if wait > self.max_wait else ""
                    message = f"{url}: {failure} (after {attempt} attempts{asks})"
                    raise ServiceError(self.hidden(message)) from failure
                if time.monotonic() >= self._quiet_until:
                    self._quiet_until = time.monotonic() + _WARN_EVERY
                    logger.warning(
                        "%s; attempt %d follows in %.1f s",
                        self.hidden(f"{url}: {failure}"),
                        attempt + 1,
                        wait,
                    )
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _reply(self, http: Any, body: JsonObject) -> Completion:
        """Return the reply to a request, or to what is left of it for this server."""
        without = self._without
        why = ""
        while True:
            sent = self._left(body, without)
            try:
                reply = self._parse(await self._fetch(http, self.route, sent), sent)
            except _Refused as refusal:
                refused = _refused(refusal.said, [*body.keys() - self.extra - without, "system"])
                if refused is None or not self.adapts or self._left(sent, {refused}) == sent:
                    raise
                without |= {refused}
                why = str(refusal)
                continue
            new = sorted(without - self._without)
            self._without |= without
            if new:
                told = "%s: it is asked without %s from here on, so it draws in its own way"
                logger.warning(told, why, ", ".join(new))
            return reply

    def _left(self, body: JsonObject, without: Set[str]) -> JsonObject:
        """Return a request's body without what a server refuses, or with it said otherwise."""
        left = {name: value for name, value in body.items() if name not in without}
        if "max_tokens" in without and "max_tokens" in body:
            left.setdefault("max_completion_tokens", body["max_tokens"])
        if "system" in without and body["messages"][0]["role"] == "system":
            left["messages"] = without_system(body["messages"])
        return left

    def _body(self, messages: Sequence[Any], sampling: Sampling, index: int) -> JsonObject:
        body: JsonObject = {
            "model": self.model,
            "messages": [
                {**message, "content": break_marks(str(message["content"]))} for message in messages
            ],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.seed is not None:
            body["seed"] = sampling.seed + index
        asked = body | self.extra
        return {name: value for name, value in asked.items() if value is not None}

    async def _fetch(self, http: Any, route: str, body: JsonMapping | None) -> bytes:
        """Send one request in at most ``timeout`` seconds; the bytes of a reply of status 200."""
        import httpx2

        url = self._url(route)
        raw = b""
        try:
            async with (
                asyncio.timeout(self.timeout),
                http.stream("POST" if body else "GET", url, json=body) as response,
            ):
                async for piece in response.aiter_raw():  # packed, a few bytes could be gigabytes
                    raw += piece
                    if len(raw) > _MAX_BODY:
                        raise Transient(f"the reply is longer than {_MAX_BODY} bytes")
        except TimeoutError as error:
            raise Transient(f"timed out: the reply did not end in {self.timeout:g} s") from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error
        if self._key:
            raw = raw.replace(self._key.encode(), b"***")  # some servers echo the key
        status = response.status_code
        message = self.hidden(f"HTTP {status}: {_message_in(raw)}")
        if status != 200:
            raise self._failure(response, f"{url} (model {self.model!r})", message, raw)
        return raw

    def _failure(self, response: Any, where: str, message: str, raw: bytes) -> Exception:
        """Return the error of a reply whose status is not 200."""
        status = response.status_code
        if status in _RETRIED or status >= 500:
            failure = Transient(message)
            retry_after = response.headers.get("Retry-After", "")
            if _SECONDS.fullmatch(retry_after):
                failure.retry_after = float(retry_after)
            return failure
        if status in _WRONG_SETUP or 200 < status < 400:
            return InputError(
                f"{where}: {message}: {_WRONG_SETUP.get(status, 'it redirects')}",
                fix=f"check these and ${self.api_key_env}",
            )
        refusal = _Refused(f"{where}: {message}")
        if status in (400, 422):
            text = raw[:_READ].decode("utf-8", "replace")
            refusal.said = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
        return refusal

    def _parse(self, raw: bytes, body: JsonMapping) -> Completion:
        reply = read_json(_Chat, raw)
        server = f"{self._url(self.route)}: {self.model}"
        if reply.tool_calls:
            raise ServiceError(
                f"{server}'s calls were taken out of its text",
                fix="start the server without a tool parser: calls are read from the text",
            )
        text, open_at = content_of(reply.written)
        stop = STOPS[reply.finish_reason]
        silent = not text.strip()
        cut_off = stop is StopReason.LENGTH
        unseen = cut_off and "max_completion_tokens" in body  # which counts thinking not shown
        if silent and not unseen and not reply.reasoning and text == reply.written:
            raise Transient(f"the reply is empty (finish_reason {reply.finish_reason!r})")
        if open_at is not None or (silent and cut_off):
            limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
            raise ServiceError(
                f"{server} did not end its thinking in {body.get(limit, 'its limit of')} tokens",
                fix=f"switch its thinking off, or raise {limit} (extra fields of the request)",
            )
        return Completion((), text, stop)


def _refused(said: str, names: Collection[str]) -> str | None:
    """Return which of a request's parts a server's words refuse: what stands nearest to a word that
    refuses; None if none does.
    """
    words = [found.span() for found in _REFUSES.finditer(said)]
    gaps = []
    for name in _ADAPTED.keys() & set(names):
        for part in re.finditer(rf"(?<!\w)(?:{_ADAPTED[name]})(?!\w)", said, re.IGNORECASE):
            gaps += [(max(part.start() - end, start - part.end(), 0), name) for start, end in words]
    gap, name = min(gaps, default=(_NEAR, ""))
    return name if gap < _NEAR else None


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

    @property
    def written(self) -> str:
        """The text, of its parts those that are text."""
        if isinstance(self.content, list):
            parts = [part for part in self.content if isinstance(part, dict)]
            texts = [part for part in parts if part.get("type", "text") in ("text", "output_text")]
            return "".join(str(part.get("text", "")) for part in texts)
        return self.content or ""


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts in a mapping or list, the longest of all first."""
    inner: list[object] = []
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    found = [text for item in inner for text in texts_in(item)]
    yield from sorted(found, key=len, reverse=True)


def read_json(shape: type[_Shape], raw: bytes) -> _Shape:
    """Read the fields of a reply; Transient if one is missing or of another type."""
    try:
        return shape.model_validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Transient(
            f"the reply is not as expected ({where} {first['msg']}): {_message_in(raw)!r}"
        ) from None


def _message_in(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        text = str(json.loads(raw)["error"]["message"])
    return "".join(char if char.isprintable() else " " for char in text[:_SHOWN]).strip()


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
            false}}``; a null takes a field out, e.g. ``{max_tokens: null}``.
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
    endpoint_extra: JsonObject = field(default_factory=dict)
    judge_url: str = ""
    judge_model: str = ""
    judge_extra: JsonObject | None = None

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

    def _client(self, kind: str, url: str, model: str, key: str, extra: JsonMapping) -> ChatClient:
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
