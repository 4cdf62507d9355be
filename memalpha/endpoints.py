"""A small client of OpenAI-compatible chat servers (vLLM, llama.cpp, hosted ones): one request, or many at once in threads.

What always holds: a reply is a completion or an error, never an empty stand-in. Timeouts, lost connections, 408, 429, 5xx and
replies that are no chat completion are retried with exponential backoff and jitter, waiting at least as long as ``Retry-After``
asks; after the last attempt they become a ServiceError. Any other refusal is not retried: 401, 403, 404 and redirects mean a wrong
key, model or URL and raise InputError; the rest (a prompt too long for the server) are a ServiceError of that one request. The key
is read from an environment variable, is in no message and no ``repr``, and goes to no other host (redirects are not followed).
Texts reach the server without marks that its tokenizer would take for special tokens (``special_text``). The first failed attempt
of a stretch is logged as a warning, and so is the first reply after it, at most every ten seconds: a run that waits says why.

It does not cover streaming, tool parsing by the server, or connection reuse: a reply takes longer than a handshake.

Options that say which servers read and judge, and the clients made from them; part of ``RunArguments``.

One server (``endpoint_*``) serves both unless the judge has its own (``judge_*``). Keys come from the environment, and a judge on
another server never sees the reader's: $MEMALPHA_API_KEY, and $MEMALPHA_JUDGE_API_KEY for a ``judge_url`` of its own.

Keeps text from data from posing as a chat's structure where a server tokenises it.

A policy at hand tokenises texts from data with special tokens switched off (``memalpha.text``). A chat server puts
messages into its template and tokenises the whole, so ``<|im_end|>`` inside a chunk would end the turn. Here a space goes after
the first character of such a mark: ``< |im_end|>``. A space and not an invisible character, because a person sees it, every
tokenizer keeps it, and a model that copies the text into a memory copies nothing hidden.

What always holds: text without such a mark is returned as it is; the result holds no mark; doing it twice changes no more.

It does not cover marks of other families than those below; marks that structure a reply and not a conversation (``<think>``,
``<tool_call>``: our own prompts hold them); nor a model's obedience to a text that gives it orders.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.types import Completion, Message, Sampling, StopReason

logger = logging.getLogger(__name__)

_RETRIED = {408, 429}
_WRONG_SETUP = {401: "the server does not accept the key", 403: "the key may not use this model", 404: "no such model or URL"}
_STOPS = {"stop": StopReason.END, "length": StopReason.LENGTH}
_SHOWN = 300
"""How many characters of a server's message an error shows."""
_QUIET = 10.0
"""Seconds between warnings about one server."""
_MAX_BODY = 2**24
"""Bytes of a reply past which it is garbage."""
_MAX_SAID = 65536
"""Bytes of a refusal past which no more of it is read."""
_SECONDS = re.compile(r"\s*\d+(\.\d*)?\s*")
_MAX_DOUBLINGS = 64
"""Doublings of the wait past which no float has room for many more."""
_OWN_FIELDS = ("model", "messages", "stream", "n")
"""Fields of a request that ``extra`` may not change: the reply would not be one reply to what was asked."""


class _Transient(Exception):
    """An attempt failed in a way worth repeating; ``retry_after`` is the server's wish in seconds."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class ChatClient:
    """Asks one model of one server.

    Args:
        base_url: URL up to and including the version, e.g. ``http://localhost:8000/v1``.
        model: Name of the model there.
        api_key_env: Environment variable that holds the key; without a value in it no key is sent.
        timeout: Seconds one attempt may take.
        retries: How many times a failed attempt is repeated.
        backoff: Seconds before the first repetition; doubled each time, then scaled by a random factor in [0.5, 1).
        max_wait: Most seconds between attempts; a server that asks for more in ``Retry-After`` is given up.
        concurrency: Requests of one batch under way at once.
        extra: More fields of the request body, e.g. ``{"chat_template_kwargs": {"enable_thinking": False}}``; they replace those
            of the sampling.
        sleep: Waits so many seconds (tests replace it).
        clock: Seconds since the epoch, to read a ``Retry-After`` given as a date.

    Raises:
        InputError: If an argument or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "MEMALPHA_API_KEY",
        timeout: float = 120.0,
        retries: int = 4,
        backoff: float = 1.0,
        max_wait: float = 60.0,
        concurrency: int = 8,
        extra: Mapping[str, Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_url(base_url)
        if not model:
            raise InputError("the endpoint's model name is empty", expected="a name that the server lists under /models")
        _check_numbers(timeout=(timeout, 0.001), backoff=(backoff, 0), max_wait=(max_wait, 0))
        _check_numbers(whole=True, retries=(retries, 0), concurrency=(concurrency, 1))
        _check_extra(extra or {})
        self.url, self.model = f"{base_url.rstrip('/')}/chat/completions", model
        self.concurrency = concurrency
        self._timeout, self._retries, self._backoff, self._max_wait = timeout, retries, backoff, max_wait
        self._extra, self._sleep, self._clock, self._key_env = dict(extra or {}), sleep, clock, api_key_env
        self._key = _key(api_key_env)
        authorization = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._headers = {"Content-Type": "application/json", **authorization}
        self._random = random.Random()  # its own, so that waiting disturbs no seeded run
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._trouble = _Trouble()

    def __repr__(self) -> str:
        return f"ChatClient({self.url!r}, {self.model!r})"

    def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Return the model's reply; its ``ids`` are empty.

        Raises:
            ServiceError: If the request failed for good.
            InputError: If the server says that the key, model or URL is wrong.
        """
        body = json.dumps(self._body(messages, sampling)).encode()
        for attempt in range(self._retries + 1):
            try:
                reply = self._attempt(body)
                if failed := self._trouble.over():
                    logger.warning("%s: answers again; failed attempts: %d", self.url, failed)
                return reply
            except _Transient as failure:
                news = self._trouble.begins()
                wait = self._wait(attempt, failure.retry_after)
                if attempt == self._retries or wait > self._max_wait:
                    waiting = f"; it asks to wait {wait:.0f} s" if wait > self._max_wait else ""
                    raise ServiceError(f"{self.url}: {failure} (after {attempt + 1} attempts{waiting})") from failure
                level = logging.WARNING if news else logging.INFO
                logger.log(level, "%s: %s; attempt %d follows in %.1f s", self.url, failure, attempt + 2, wait)
                self._sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def complete_many(self, batch: Sequence[Sequence[Message]], sampling: Sampling) -> list[Completion]:
        """Return one reply a request, in order.

        A seed is advanced by one from request to request, so that equal prompts may differ. Once ``2 * concurrency`` requests (at
        least eight) have failed in a row, each after all its attempts, the server counts as down and the rest is not sent. Requests
        go in a mixed order, so that neighbours which fail for a reason of their own do not look like an outage.

        Raises:
            PartialServiceError: If any request failed; it holds the replies of the others.
            InputError: As ``complete``; requests not yet sent are dropped.
        """
        outage = _Outage(max(8, 2 * self.concurrency))

        def ask(index: int) -> Completion | ServiceError:
            if outage.error is not None:
                return ServiceError(f"{outage.error}; the server seems to be down, so this was not sent")
            seed = None if sampling.seed is None else sampling.seed + index
            try:
                reply = self.complete(batch[index], replace(sampling, seed=seed))
            except ServiceError as error:
                if isinstance(error.__cause__, _Transient):  # a refusal says that the server is up
                    outage.failed(error)
                return error
            outage.succeeded()
            return reply

        pool = ThreadPoolExecutor(max(1, min(self.concurrency, len(batch))))
        try:
            order = random.Random(len(batch)).sample(range(len(batch)), len(batch))
            answered = dict(zip(order, pool.map(ask, order), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)
        outcomes = [answered[index] for index in range(len(batch))]
        replies = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
        if len(replies) < len(outcomes):
            raise PartialServiceError(outcomes)
        return replies

    # -------------------------------------------------------------------------------------------- one attempt
    def _body(self, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{**message, "content": break_marks(str(message["content"]))} for message in messages],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        body |= {"seed": sampling.seed} if sampling.seed is not None else {}
        return body | self._extra

    def _attempt(self, body: bytes) -> Completion:
        request = urllib.request.Request(self.url, body, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return _parse(_read(response, time.monotonic() + self._timeout), self._key)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error, time.monotonic() + self._timeout) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error

    def _refused(self, error: urllib.error.HTTPError, deadline: float) -> Exception:
        said = f"HTTP {error.code}: {_said(error, deadline, self._key) or error.reason}"
        if error.code in _RETRIED or error.code >= 500:
            return _Transient(said, _retry_after(error.headers.get("Retry-After"), self._clock()))
        if error.code in _WRONG_SETUP or error.code < 400:
            return InputError(
                f"{self.url} (model {self.model!r}): {said}",
                expected=_WRONG_SETUP.get(error.code, "an endpoint that does not redirect"),
                fix=f"check the URL, the model name and the key in ${self._key_env}",
            )
        return ServiceError(f"{self.url}: {said}")

    def _wait(self, attempt: int, retry_after: float) -> float:
        step = min(self._max_wait, self._backoff * 2.0 ** min(attempt, _MAX_DOUBLINGS))
        return max(step * self._random.uniform(0.5, 1.0), retry_after)


class _Trouble:
    """Counts the failed attempts of a stretch without a good one, over threads, and says what is worth a warning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._failed, self._told, self._quiet_until = 0, False, -math.inf
        self._clock, self._lock = clock, threading.Lock()

    def begins(self) -> bool:
        """Count a failed attempt; return whether to tell of it: the first of a stretch, and not too soon after the last news."""
        with self._lock:
            self._failed += 1
            news = self._failed == 1 and self._clock() >= self._quiet_until
            if news:
                self._told, self._quiet_until = True, self._clock() + _QUIET
            return news

    def over(self) -> int:
        """End the stretch; return how many attempts failed in it if its beginning was told, else 0."""
        with self._lock:
            failed = self._failed if self._told else 0
            self._failed, self._told = 0, False
            return failed


class _Outage:
    """Counts failures in a row, over threads; ``error`` is the last of them once there are ``limit``."""

    def __init__(self, limit: int) -> None:
        self.error: ServiceError | None = None
        self._limit, self._in_a_row, self._lock = limit, 0, threading.Lock()

    def failed(self, error: ServiceError) -> None:
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= self._limit:
                self.error = error

    def succeeded(self) -> None:
        with self._lock:
            self._in_a_row = 0


def check_url(url: str) -> None:
    """Raise InputError unless an endpoint's base URL can be asked."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        good = False
    plain = url.isascii() and url.isprintable() and not {" ", "?", "#"} & set(url)  # a path is put behind it
    if not good or not plain:
        raise InputError(f"endpoint {url!r}", expected="a URL such as http://localhost:8000/v1, without a user name, '?' or '#'")


def _check_numbers(*, whole: bool = False, **limits: tuple[Any, float]) -> None:
    """Raise InputError unless each value is a finite number and at least what stands beside it."""
    for name, (value, least) in limits.items():
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not (is_number and value >= least and math.isfinite(value)):
            number = "whole number" if whole else "number"
            raise InputError(f"endpoint {name} is {value!r}", expected=f"a {number} of at least {least}")


def _check_extra(extra: Mapping[str, Any]) -> None:
    if wrong := [name for name in _OWN_FIELDS if name in extra]:
        raise InputError(f"the endpoint's extra fields hold {wrong[0]!r}", expected=f"none of {', '.join(_OWN_FIELDS)}")
    try:
        json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the endpoint's extra fields {extra!r}: {error}", expected="values that JSON knows") from error


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable():
        raise InputError(f"the value of ${variable} is no key", expected="printable ASCII characters")
    return key


def _without(key: str, raw: bytes) -> bytes:
    """What a server said without the key, which some repeat where they refuse it."""
    return raw.replace(key.encode(), b"***") if key else raw


def _pieces(response: http.client.HTTPResponse, deadline: float) -> Iterator[bytes]:
    """Iterate over the pieces of a body to its end; TimeoutError past the deadline, even if bytes keep trickling in."""
    while piece := response.read1(65536):
        yield piece
        if time.monotonic() > deadline:
            raise TimeoutError("the reply did not end in time")


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read a body to its end; TimeoutError past the deadline; _Transient if it is too long."""
    pieces, size = [], 0
    for piece in _pieces(response, deadline):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_BODY:
            raise _Transient(f"the reply is longer than {_MAX_BODY} bytes")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _parse(raw: bytes, key: str) -> Completion:
    """Read a chat completion; _Transient if the body is anything else."""
    try:
        choice = json.loads(raw)["choices"][0]
        text, stop = choice["message"]["content"], _STOPS[choice["finish_reason"]]
        text.encode()  # a lone surrogate is no text
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        shown = _without(key, raw)[:_SHOWN].decode("utf-8", "replace")
        raise _Transient(f"the reply is no finished chat completion ({type(error).__name__}): {shown!r}") from error
    return Completion((), text, stop)


def _said(error: urllib.error.HTTPError, deadline: float, key: str) -> str:
    """The server's own message, shortened, on one line and fit to be printed and stored; empty if it cannot be read.

    What came of it before the deadline, or before the connection broke, is all that is waited for.
    """
    raw = b""
    with suppress(OSError, http.client.HTTPException):
        for piece in _pieces(cast(http.client.HTTPResponse, error.fp), deadline):
            raw += piece
            if len(raw) > _MAX_SAID:
                break
    raw = _without(key, raw)
    try:
        text = str(json.loads(raw)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        text = raw.decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text[:_SHOWN]).strip()


def _retry_after(value: str | None, now: float) -> float:
    """Seconds a ``Retry-After`` header asks for, in seconds or as a date (RFC 9110, section 10.2.3); 0 if it cannot be read.

    Some servers send a fraction of a second, which the RFC does not know.
    """
    if not value:
        return 0.0
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now)


@dataclass
class EndpointArguments:
    """Servers with an OpenAI-compatible chat API.

    Attributes:
        endpoint_url: Base URL, for ``reader: endpoint`` and ``content_judge: endpoint``.
        endpoint_model: Name of the model there.
        endpoint_timeout: Seconds one attempt may take. Processes wait for the slowest: keep all attempts of a request far below
            ``ddp_timeout``.
        endpoint_retries: How often a failed attempt is repeated before the sample is masked.
        endpoint_backoff: Seconds before the first repetition, doubled each time.
        endpoint_concurrency: Requests under way at once, a process.
        endpoint_extra: More fields of each request, e.g. ``{chat_template_kwargs: {enable_thinking: false}}``.
        judge_url: Base URL of the judges' server (empty: ``endpoint_url``).
        judge_model: Name of the judges' model (empty: ``endpoint_model``).
        judge_extra: More fields of the judges' requests (not given: ``endpoint_extra``).
    """

    endpoint_url: str = ""
    endpoint_model: str = ""
    endpoint_timeout: float = 120.0
    endpoint_retries: int = 4
    endpoint_backoff: float = 1.0
    endpoint_concurrency: int = 8
    endpoint_extra: None | str | dict[str, Any] = None  # in this order: the parser takes the second as its type
    judge_url: str = ""
    judge_model: str = ""
    judge_extra: None | str | dict[str, Any] = None  # in this order: the parser takes the second as its type

    @property
    def has_judge_endpoint(self) -> bool:
        """Whether a judge can be asked, by the options of its own or the common ones."""
        return bool((self.judge_url or self.endpoint_url) and (self.judge_model or self.endpoint_model))

    def reader_client(self) -> ChatClient:
        """Return the client of the reader; InputError if an option does not fit."""
        if not (self.endpoint_url and self.endpoint_model):
            raise InputError(
                "reader is 'endpoint', but endpoint_url or endpoint_model is empty",
                expected="both",
                fix="add e.g. --endpoint_url http://localhost:8000/v1 --endpoint_model NAME",
            )
        return self._client(self.endpoint_url, self.endpoint_model, self.endpoint_extra, "MEMALPHA_API_KEY")

    def judge_client(self) -> ChatClient:
        """Return the client of the judges; InputError if an option does not fit."""
        if not self.has_judge_endpoint:
            raise InputError(
                "a judge behind an endpoint is asked for, but its URL or model is empty",
                expected="judge_url and judge_model, or endpoint_url and endpoint_model",
                fix="add e.g. --judge_url http://localhost:8000/v1 --judge_model NAME",
            )
        own = self.judge_url not in ("", self.endpoint_url)
        return self._client(
            self.judge_url or self.endpoint_url,
            self.judge_model or self.endpoint_model,
            self.judge_extra,
            "MEMALPHA_JUDGE_API_KEY" if own else "MEMALPHA_API_KEY",
        )

    def _client(self, url: str, model: str, extra: None | str | Mapping[str, Any], key: str) -> ChatClient:
        if isinstance(extra, str):
            raise InputError(f"extra fields {extra!r}", expected="a mapping")
        return ChatClient(
            url,
            model,
            api_key_env=key,
            timeout=self.endpoint_timeout,
            retries=self.endpoint_retries,
            backoff=self.endpoint_backoff,
            concurrency=self.endpoint_concurrency,
            extra=extra,
        )


_NAMED = (
    "s", "/s", "bos", "eos", "pad", "unk", "mask", "sop", "eop", "start_of_turn", "end_of_turn", "start_of_image", "end_of_image",
    "BOS_TOKEN", "EOS_TOKEN", "PAD_TOKEN", "end_of_utterance",
)  # fmt: skip
_BRACKETED = (
    "INST", "/INST", "SYSTEM_PROMPT", "/SYSTEM_PROMPT", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS",
    "/TOOL_RESULTS", "TOOL_CONTENT", "CALL_ID", "ARGS", "THINK", "/THINK", "IMG", "IMG_BREAK", "IMG_END", "PREFIX", "MIDDLE",
    "SUFFIX", "BOS", "EOS", "EOT", "PAD", "UNK", "gMASK", "sMASK",
)  # fmt: skip

_MARK = re.compile(
    r"<(?=[|｜][^\s|｜<>]{1,64}[|｜]>)"  # <|im_start|>, <|eot_id|>, <|channel|>; with wide bars too
    r"|\[(?=\|[^\s|\[\]]{1,64}\|\])"  # [|assistant|]
    rf"|<(?=(?:{'|'.join(_NAMED)}|unused\d+|extra_id_\d+)>)"  # <s>, <end_of_turn>
    rf"|\[(?=(?:{'|'.join(_BRACKETED)})\])"  # [INST]
    r"|<(?=</?SYS>>)"  # <<SYS>>
)


def break_marks(text: str) -> str:
    """Return the text with a space inside every mark that a chat model's tokenizer may take for a special token."""
    return _MARK.sub(lambda found: f"{found[0]} ", text)
