"""Generators for use: one local model for many threads, and a model behind a chat server.

A thread of its own runs the local model for all that wait. Calls of one kind are joined in one
batch. The kinds of calls take turns, and in a batch the owners of the calls. A caller gets its own
results or its own error: if a joint call fails, each caller's items are tried alone. One thread at
a time, since the C library keeps what each has freed (of 16, gigabytes); it is given back when
nothing waits. A process waits for that thread at its end: torch would abort it amid a product.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

from memalpha.agent.codecs import Codec
from memalpha.endpoints import ChatClient
from memalpha.errors import ServiceError
from memalpha.types import Completion, Generator, Message, Prompt, Sampling, StopReason

_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
RunBatch = Callable[[Sequence[Any]], Sequence[Any]]


class _Job(NamedTuple):
    kind: Hashable
    owner: Hashable
    items: tuple[Any, ...]
    run: RunBatch
    future: Future[list[Any]]


class Turns:
    """Runs the calls of many threads in one; a batch has ``max_batch`` items, or is one call."""

    def __init__(self, max_batch: int = 32) -> None:
        self.max_batch = max_batch
        self._lock = threading.Lock()
        self._waiting: list[_Job] = []
        self._busy = False
        self._last_kind: Hashable = None

    def call(
        self, kind: Hashable, items: Sequence[Any], run: RunBatch, owner: Hashable = None
    ) -> list[Any]:
        """Return the result of each item, in order, of ``run``, which may get more of this kind.

        Raises what ``run`` raises for these items.
        """
        job = _Job(kind, owner, tuple(items), run, Future())
        with self._lock:
            self._waiting.append(job)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, args=(self._take(),), daemon=False).start()
        return job.future.result()

    def _work(self, batch: list[_Job]) -> None:
        while batch:
            _run(batch)
            with self._lock:
                batch = self._take()
                self._busy = bool(batch)
        if hasattr(_LIBC, "malloc_trim"):  # glibc has it
            _LIBC.malloc_trim(0)

    def _take(self) -> list[_Job]:
        """Take the next batch: of the kind that waits longest and had not the last turn, the first
        job of each owner before the second of any.
        """
        kinds = [job.kind for job in self._waiting]
        others = [kind for kind in kinds if kind != self._last_kind]
        self._last_kind = next(iter(others or kinds), None)
        jobs = [job for job in self._waiting if job.kind == self._last_kind]
        turns: list[tuple[int, int]] = []
        for place, job in enumerate(jobs):
            before = [earlier.owner for earlier in jobs[:place]]
            turns.append((before.count(job.owner), place))
        batch: list[_Job] = []
        size = 0
        for _, place in sorted(turns):
            job = jobs[place]
            if not batch or size + len(job.items) <= self.max_batch:
                batch.append(job)
                size += len(job.items)
        self._waiting = [job for job in self._waiting if job not in batch]
        return batch


def _run(batch: Sequence[_Job]) -> None:
    items = [item for job in batch for item in job.items]
    try:
        results = batch[0].run(items)
        if len(results) != len(items):
            raise ServiceError(f"the model gave {len(results)} results for {len(items)} prompts")
    except BaseException as error:  # noqa: BLE001
        if len(batch) == 1:
            batch[0].future.set_exception(error)
            return
        for job in batch:
            _run([job])
        return
    rest = iter(results)
    for job in batch:
        job.future.set_result(list(islice(rest, len(job.items))))


class BatchingGenerator(Turns):
    """A ``Generator`` for many threads; prompts of equal sampling without a seed are joined."""

    def __init__(self, generator: Generator, max_batch: int = 32) -> None:
        super().__init__(max_batch)
        self.generator = generator

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, in order; raises what the generator raises for them."""
        kind = sampling if sampling.seed is None else object()
        return self.call(kind, prompts, lambda joined: self.generator.generate(joined, sampling))


# ------------------------------------------------------------------------------------------------
# a chat server
# Messages go in, text comes out, and the tokenizer stays there.

# of UTF-8 that count as one token: about what models take for English, and more than they take for
# Chinese
_BYTES = 4


class EndpointGenerator:
    """A ``Generator`` that asks a chat server; completions have no ids."""

    def __init__(self, client: ChatClient, codec: Codec) -> None:
        self.client, self.codec = client, codec

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt; ServiceError if one failed, is empty or was cut off
        before it made a call.
        """
        completions = self.client.complete_many([prompt.messages for prompt in prompts], sampling)
        for completion in completions:
            if completion.cut_off and not self.codec.parse(completion.text, cut_off=True):
                raise ServiceError(
                    f"{self.client.model} wrote {sampling.max_new_tokens} tokens and made no call",
                    fix="switch the model's thinking off (extra fields of the request), or "
                    "raise max_completion_length",
                )
        return completions


class SilentGenerator:
    """A ``Generator`` without a model, which writes nothing."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return an empty completion for each prompt."""
        return [Completion((), "", StopReason.END) for _ in prompts]


class ByteTokenizer:
    """Stands in for the server's tokenizer in ``AgentStep``: every four bytes of UTF-8 are a token,
    so lengths are estimates.
    """

    name_or_path = "the server's"
    chat_template = "the server's"
    added_tokens_decoder: Mapping[int, str] = {}

    def __call__(self, text: str, **how: bool) -> SimpleNamespace:
        """Return ``input_ids``."""
        data = text.encode("utf-8", "surrogatepass")
        return SimpleNamespace(
            input_ids=[int.from_bytes(data[at : at + _BYTES]) for at in range(0, len(data), _BYTES)]
        )

    def apply_chat_template(self, messages: Sequence[Message], **how: Any) -> str:
        """Return the contents, one after the other; tools are not shown."""
        return "\n".join(str(message["content"]) for message in messages)
