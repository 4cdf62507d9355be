"""Options that say which servers read and judge, and the clients made from them; part of ``RunArguments``.

One server (``endpoint_*``) serves both unless the judge has its own (``judge_*``). Keys come from the environment, and a judge on
another server never sees the reader's: $MEMALPHA_API_KEY, and $MEMALPHA_JUDGE_API_KEY for a ``judge_url`` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memalpha.errors import InputError
from memalpha.qa.endpoint import ChatClient


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


__all__ = ["EndpointArguments"]
