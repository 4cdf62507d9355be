"""A client of OpenAI-compatible chat servers (vLLM, llama.cpp, hosted ones), and its options.

A reply is a completion or an error; ``HTTPClient`` says what is tried again. What a server refuses
of the sampling, or a system message, is left out or said otherwise from then on, with a warning.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

from memalpha.config import Options
from memalpha.errors import InputError, ServiceError, raise_on_partial
from memalpha.http import ModelClient, RequestRefused, Transient, parse_reply
from memalpha.text.encoding import without_system
from memalpha.text.quoting import break_marks
from memalpha.text.thinking import content_of
from memalpha.types import Completion, JsonMapping, JsonObject, Sampling, StopReason

_logger = logging.getLogger(__name__)

STOPS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence"), StopReason.END),
    "length": StopReason.LENGTH,
}
Finish = Annotated[
    Literal["stop", "eos", "eos_token", "stop_sequence", "length"],
    Field(validation_alias=AliasPath("choices", 0, "finish_reason")),
]
_OWN_FIELDS = ("model", "messages", "stream", "n")  # fields that ``extra`` may not change
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
_UNFIT = (400, 422)  # statuses of a refusal that may say which part does not fit
_READ = 20_000  # bytes of a refusal that are looked at
_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")


@dataclass(eq=False)
class ChatClient(ModelClient, Options):
    """A client that asks one model of one chat server.

    Attributes:
        extra: Every request has these further fields, e.g. ``{"top_k": 20}``. They override the
            fields of the sampling, and a null takes a field out, e.g. ``{"max_tokens": null}``.
    """

    base_url: str
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = "MEMALPHA_API_KEY"
    timeout: Annotated[float, Field(gt=0)] = 120.0
    retries: NonNegativeInt = 4
    backoff: NonNegativeFloat = 1.0
    max_wait: NonNegativeFloat = 60.0
    concurrency: PositiveInt = 8
    extra: dict[str, JsonValue] = field(default_factory=dict, repr=False)
    route = "chat/completions"
    adapts = True  # whether what is refused may be left out
    _without: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def check(self) -> None:
        """Check the values, and read the key from the environment."""
        super().check()
        own = [name for name in _OWN_FIELDS if name in self.extra]
        if own:
            raise InputError(
                f"the endpoint's extra fields hold {own[0]!r}",
                expected=f"none of {', '.join(_OWN_FIELDS)}",
            )

    def secrets(self) -> Iterator[str]:
        """Yield the key and the values of ``extra``."""
        yield from super().secrets()
        yield from texts_in(self.extra)

    def call(self, route: str, body: JsonMapping | None = None) -> bytes:
        """Send one request (GET without a ``body``), without retries; return the reply.

        InputError as in ``complete_many``; ServiceError for any other failure.
        """
        method = "GET" if body is None else "POST"
        try:
            return self.run(lambda: self.fetch(method, route, body))
        except Transient as failure:
            raise ServiceError(self.hidden(f"{self.url(route)}: {failure}")) from failure

    def complete_many(self, batch: Sequence[Sequence[Any]], sampling: Sampling) -> list[Completion]:
        """Return one reply per request, in order, without its thinking; the seed grows by one per
        request.

        PartialServiceError with the other replies if one failed, is empty without thinking, or
        never ended it; InputError if key, model or URL are refused. After ``max(8, 2 *
        concurrency)`` failures in a row the server counts as down.
        """
        if not batch:
            return []

        async def ask(index: int) -> Completion:
            body = self._body(batch[index], sampling, index)
            return await self.with_retries(self.route, lambda: self._reply(body))

        return raise_on_partial(self.run(lambda: self.run_all(ask, len(batch), self.concurrency)))

    async def _reply(self, body: JsonObject) -> Completion:
        """Return the reply to a request, or to what is left of it for this server."""
        without = self._without
        why = ""
        while True:
            sent = self._left(body, without)
            try:
                reply = self._parse(await self.fetch("POST", self.route, sent), sent)
            except RequestRefused as refusal:
                refused = _refused_field(refusal, [*body.keys() - self.extra - without, "system"])
                if refused is None or not self.adapts or self._left(sent, {refused}) == sent:
                    raise
                without |= {refused}
                why = str(refusal)
                continue
            new = sorted(without - self._without)
            self._without |= without
            if new:
                told = (
                    "%s: further requests are sent without %s, which the server refused, or "
                    "say it in another form"
                )
                _logger.warning(told, why, ", ".join(new))
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

    def _parse(self, raw: bytes, body: JsonMapping) -> Completion:
        reply = parse_reply(_Chat, raw)
        server = f"{self.url(self.route)}: {self.model}"
        if reply.tool_calls:
            raise ServiceError(
                f"{server} took the tool calls out of the text",
                fix="start the server without a tool parser, since calls are read from the text",
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
                fix=f"switch the model's thinking off, or raise {limit} (extra fields of the "
                "request)",
            )
        return Completion((), text, stop)


def _refused_field(refusal: RequestRefused, names: Collection[str]) -> str | None:
    """Return which of a request's parts a server's words refuse: what stands nearest to a word that
    refuses; None if none does.
    """
    if refusal.status not in _UNFIT:
        return None
    text = refusal.reply[:_READ].decode("utf-8", "replace")
    said = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
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


@dataclass(frozen=True)
class EndpointOptions(Options):
    """Options of the servers whose models read and judge.

    The key is $MEMALPHA_API_KEY; a separate ``judge_url`` gets only $MEMALPHA_JUDGE_API_KEY.

    Attributes:
        endpoint_url: The OpenAI-compatible server for ``reader: endpoint`` and ``content_judge:
            endpoint`` has this URL, which ends with the version.
        endpoint_model: The server knows the model by this name.
        endpoint_timeout: One attempt may take this many seconds. Keep the sum over all attempts far
            below ``ddp_timeout``.
        endpoint_retries: A failed attempt is repeated at most this many times before the sample is
            masked.
        endpoint_backoff: The client waits this many seconds before the first repetition, and each
            further wait is twice as long.
        endpoint_concurrency: Each process sends at most this many requests in parallel.
        endpoint_extra: Every request has these further fields, e.g. ``{chat_template_kwargs:
            {enable_thinking: false}}``. A null takes a field out, e.g. ``{max_tokens: null}``.
        judge_url: The server of the judges has this URL; an empty text takes ``endpoint_url``.
        judge_model: The server of the judges knows the model by this name; an empty text takes
            ``endpoint_model``.
        judge_extra: The requests of the judges have these further fields; null takes
            ``endpoint_extra``.
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
                fix=f"give both --{kind}_url and --{kind}_model",
            )
        common = {
            name: getattr(self, f"endpoint_{name}")
            for name in ("timeout", "retries", "backoff", "concurrency")
        }
        return ChatClient(url, model, key, extra=dict(extra), **common)
