"""Completions from one or several vLLM servers that load the policy's LoRA adapter while they run.

Start each server with ``--enable-lora --max-lora-rank R --logprobs-mode processed_logprobs`` and
``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`` (docs/guides/gpus.md). An adapter is handed over as a folder
that server and trainer both see. Token ids go in; sampled ids and their log-probabilities come out,
so nothing is tokenised twice and the update can correct for what differs between the two engines. A
server that does not answer is waited for, then given the adapter again.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, FailFast, Field
from transformers import PreTrainedTokenizerBase

from memalpha.endpoints import STOPS, ChatClient, Finish
from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.http import Transient, parse_reply
from memalpha.text.encoding import more_ends
from memalpha.text.thinking import decode_completion
from memalpha.types import Completion, JsonMapping, JsonObject, Prompt, Sampling

_ROUNDING = 1e-3  # by which a log-probability may exceed 0
_TRIES = 5  # of a batch, by a server that loses the adapter


class _CompletionReply(BaseModel):
    ids: Annotated[list[int], FailFast()] = Field(
        validation_alias=AliasPath("choices", 0, "token_ids")
    )
    logprobs: Annotated[list[float], FailFast()] = Field(
        validation_alias=AliasPath("choices", 0, "logprobs", "token_logprobs")
    )
    finish_reason: Finish


class _Models(BaseModel):
    data: Annotated[list[JsonObject], FailFast()]


class _Tokens(ChatClient):
    route = "completions"
    adapts = False

    def __init__(
        self, url: str, tokenizer: PreTrainedTokenizerBase, vocabulary: int, **options: Any
    ) -> None:
        super().__init__(url, "base", **options)
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary

    def _body(self, messages: Sequence[Any], sampling: Sampling, index: int) -> JsonObject:
        return {
            "model": self.model,
            "prompt": list(messages),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": more_ends(self.tokenizer),
            # no seed: with one, vLLM 0.32 on CPUs dies where a prompt is read in parts
            **self.extra,
        }

    def _parse(self, raw: bytes, body: JsonMapping) -> Completion:
        drawn = parse_reply(_CompletionReply, raw)
        problem = token_problem(drawn.ids, drawn.logprobs, body["max_tokens"], self.vocabulary)
        if problem:
            raise Transient(f"the reply has {problem}")
        return Completion(
            tuple(drawn.ids),
            decode_completion(self.tokenizer, drawn.ids),
            STOPS[drawn.finish_reason],
            tuple(drawn.logprobs),
        )


def token_problem(
    ids: Sequence[int], logprobs: Sequence[float], limit: int, vocabulary: int
) -> str:
    """Return why a completion's token ids and log-probabilities cannot be trained on; empty if they
    can.
    """
    if len(ids) != len(logprobs) or not 0 < len(ids) <= limit:
        counts = f"{len(ids)} token ids and {len(logprobs)} log-probabilities"
        return f"{counts}, where 1 to {limit} were asked for"
    for token, value in zip(ids, logprobs, strict=True):
        if not (0 <= token < vocabulary and -math.inf < value <= _ROUNDING):
            limits = f"ids are below {vocabulary} and logarithms at most 0"
            return f"token id {token} of log-probability {value}, where {limits}"
    return ""


class VLLMServers:
    """Draws at vLLM servers (base URLs with ``/v1``), which share the prompts; waits ``wait``
    seconds for one that went away.

    ``vocabulary`` is the number of the policy's token ids, which ``tokenizer`` decodes.
    """

    logprobs = True
    concurrent = True

    def __init__(
        self,
        urls: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: int,
        *,
        timeout: float = 600.0,
        wait: float = 300.0,
        concurrency: int = 256,
    ) -> None:
        self.wait = wait
        self._clients = [
            _Tokens(url, tokenizer, vocabulary, timeout=timeout, retries=2, concurrency=concurrency)
            for url in urls
        ]
        self._folder: Path | None = None

    def awake(self) -> AbstractContextManager[None]:
        """Do nothing: servers have memory of their own."""
        return nullcontext()

    def load(self, name: str, folder: Path) -> None:
        """Draw with the adapter in ``folder`` from now on; the one before is unloaded. InputError
        if a server refuses it.
        """
        for client in self._clients:
            self._load(client, name, folder)
            if self._folder and name != client.model and client.model in self._held(client):
                client.call("unload_lora_adapter", {"lora_name": client.model})
        self.use(name, folder)

    def use(self, name: str, folder: Path) -> None:
        """Draw with an adapter that another process has loaded."""
        self._folder = folder
        for client in self._clients:
            client.model = name

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, with log-probabilities; ServiceError if a server stays
        away longer than ``wait``.
        """
        size = -(-len(prompts) // len(self._clients)) or 1
        shares = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        with ThreadPoolExecutor(len(self._clients)) as pool:
            futures = [
                pool.submit(self._ask, client, share, sampling)
                for client, share in zip(self._clients, shares, strict=False)
            ]
            return [completion for future in futures for completion in future.result()]

    def _ask(
        self, client: _Tokens, prompts: Sequence[Prompt], sampling: Sampling
    ) -> list[Completion]:
        for _ in range(_TRIES):
            try:
                return client.complete_many([prompt.ids for prompt in prompts], sampling)
            except (PartialServiceError, InputError) as error:
                problem = error
            if self._folder is None or client.model in self._held(client):
                break
            self._load(client, client.model, self._folder)
        raise ServiceError(f"{client.base_url}: a completion failed: {problem}") from problem

    def _load(self, client: _Tokens, name: str, folder: Path) -> None:
        """Load an adapter unless it is there (its name tells the weights); wait for a server that
        does not answer or list it.
        """
        until = time.monotonic() + self.wait
        problem = ""
        while time.monotonic() < until:
            try:
                if name not in self._held(client, fail=True):
                    client.call(
                        "load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())}
                    )
                if name in self._held(client, fail=True):
                    return
                problem = "the server accepts the adapter but does not list it"
            except (ServiceError, InputError, Transient) as error:
                problem = str(error)
                if self._held(client):
                    raise InputError(
                        f"{client.base_url} does not take the adapter {folder}: {error}",
                        expected="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, "
                        "--max-lora-rank of at least lora_r, and the trainer's file system",
                    ) from error
            time.sleep(1)
        raise ServiceError(
            f"{client.base_url} has not confirmed for {self.wait:.0f} s that it "
            f"holds the adapter {name}: {problem}",
            fix="start the server, then continue with --resume",
        )

    def _held(self, client: _Tokens, *, fail: bool = False) -> list[str]:
        """Models and adapters of a server; none if it does not answer (ServiceError with
        ``fail``).
        """
        try:
            return [
                str(model.get("id")) for model in parse_reply(_Models, client.call("models")).data
            ]
        except (ServiceError, Transient):
            if fail:
                raise
            return []
