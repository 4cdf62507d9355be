"""Mem0 (arXiv 2504.19413) as a peer: its published package, with its language model behind an OpenAI-compatible server.

Each instance has a Mem0 of its own, all of it in this process's memory and gone with what was kept. Each chunk is one call of its
``add``, in order; a question is one ``search`` for the common ``retrieve_k``, its results rendered as other memories' entries are,
best first.

What always holds: what is kept is a Mem0 that heard every chunk, or there is an error. Its telemetry is off, and nothing is written
under the user's home. Its requests go through this package's own client: the key is that of ``$MEMALPHA_MEM0_API_KEY``, and none of
Mem0's own variables (``OPENROUTER_API_KEY``, ``OPENAI_BASE_URL``) sends a text elsewhere.

What Mem0 2.2 does when something fails, as read and tried, and what becomes of it here:

- The model cannot be asked: it raises. Here the client's error, once the client has tried again; the evaluation stops, and the
  same command goes on with it.
- The reply is no JSON, or JSON without ``memory``: it logs an error, or nothing, and keeps nothing. Here a failed operation.
- The reply is JSON of another form (``{"memory": ["a"]}``): it raises Python's own error (``AttributeError``, ``TypeError``, ...)
  and keeps nothing. Here failed operations, and the next chunk follows: the model's fault, not the service's.
- An item without text: it skips it in silence. Here a failed operation.
- A memory cannot be embedded or stored: it drops it with a line in its log. Here an error: every text of a reply must be stored or
  be one that was stored before (``duplicate``), and in the end what was added must be what is listed.

Departures from Mem0 as its makers offer it: the embedder is this package's (theirs is OpenAI's); temperature is the evaluation's,
and ``top_p`` 1 (0.1 and 0.1 there); marks that a tokenizer would take for special tokens are broken, as in all requests. ``add`` of
the open package takes no time and tells the model that today is the observation date. So a chunk begins with its time, as for the
other systems that write, the time is kept as metadata, and custom instructions (``prompt``) say that it is the observation date.
The day of the run stands in the prompt all the same, so that a greedy reply may differ from one day to the next. A chunk is one
message of one user, whoever speaks in it. Search is by meaning alone, as ``mem0ai`` comes: with ``fastembed`` or ``spacy`` it would
download models and rank otherwise, so they are refused.

It does not cover Mem0's hosted platform or its optional search packages, and calls are made one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from memalpha.agent.rollout import StepCallback
from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, MemAlphaError, ServiceError
from memalpha.evaluation.results import OperationCounts
from memalpha.evaluation.systems.base import Kept, PlainSystem, Room, Sampled, Setting
from memalpha.evaluation.systems.mem0_package import load_mem0, mem0_error, new_memory, read_reply
from memalpha.evaluation.systems.rewriting import batch_sampling
from memalpha.protocols import Embedder
from memalpha.retrieval.embedders import make_embedder
from memalpha.types import Chunk, Instance, Message, Question, Sampling

API_KEY = "MEMALPHA_MEM0_API_KEY"
"""Environment variable of the key; the reader's goes to no other server."""

_OWNER = {"user_id": "memalpha"}
_OBSERVED = "The new messages were written at the time in square brackets that they begin with. It is their Observation Date."


@dataclass(frozen=True, slots=True)
class Mem0Options(Sampled):
    """Which model writes Mem0's memories, and how it is asked.

    Attributes:
        url: Base URL of an OpenAI-compatible server, e.g. ``http://localhost:8000/v1``.
        model: Name of the model there.
        max_new_tokens: Longest reply, in the server's tokens (2000 is Mem0's own).
        embedder: Embedder of its memories and queries.
        timeout: Seconds one attempt may take.
        retries: How often a failed attempt is repeated.
        backoff: Seconds before the first repetition, doubled each time.
    """

    url: str = ""
    model: str = ""
    max_new_tokens: int = 2000
    embedder: str = "minilm"
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 1.0

    def __post_init__(self) -> None:
        """Check what no client does."""
        if not (self.url and self.model):
            raise InputError(
                f"system 'mem0' has url {self.url!r} and model {self.model!r}",
                expected="both",
                fix="e.g. {kind: mem0, url: http://localhost:8000/v1, model: NAME}",
            )
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}", expected="at least 1")


class Mem0(PlainSystem):
    """Mem0 with the common embedder, readers and budget; a ``System``.

    Args:
        setting: The protocol.
        options: Which model writes.

    Raises:
        MissingExtraError: If mem0 is not installed.
        InputError: If mem0 cannot be used as it is (``load_mem0``), or an option does not fit.
    """

    def __init__(self, setting: Setting, options: Mem0Options) -> None:
        load_mem0()
        self.setting, self.options = setting, options
        self.draws = options.draws(setting.temperature)
        self.embedder = _embedder(options.embedder)
        self.client = ChatClient(
            options.url,
            options.model,
            api_key_env=API_KEY,
            timeout=options.timeout,
            retries=options.retries,
            backoff=options.backoff,
            extra={"response_format": {"type": "json_object"}},  # what Mem0 asks for in its only kind of request
        )

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Add the chunks, one instance after the other.

        Raises:
            ServiceError: If the model could not be asked.
            InputError: If the server says that the key, model or URL is wrong.
            MemAlphaError: If Mem0 lost a memory.
        """
        total, done = sum(len(instance.chunks) for instance in instances), 0
        kept = []
        for instance in instances:
            sampling = batch_sampling(self.options.max_new_tokens, self.setting.temperature, seed, [instance])
            peer = _Peer(self.embedder, _Model(self.client, sampling))
            for index, chunk in enumerate(instance.chunks):
                peer.add(chunk, where=f"Mem0 at chunk {index} of instance {instance.id}")
                done += 1
                if on_step:
                    on_step(done, total)
            kept.append(peer.kept(self.setting, where=f"Mem0 after instance {instance.id}"))
        return kept


class _Model:
    """Mem0's language model: counts its calls and keeps the last reply."""

    def __init__(self, client: ChatClient, sampling: Sampling) -> None:
        self._client, self._sampling = client, sampling
        self.calls = self.cut_off = 0
        self.reply: str | None = None

    def forget(self) -> None:
        """Forget the last reply, so that none stands for one that did not come."""
        self.reply = None

    def generate_response(self, messages: Sequence[Message], response_format: Any = None) -> str:
        """Return the reply; the client asks for the format."""
        seed = None if self._sampling.seed is None else self._sampling.seed + self.calls
        completion = self._client.complete(messages, replace(self._sampling, seed=seed))
        self.calls += 1
        self.cut_off += completion.cut_off
        self.reply = completion.text
        return completion.text


class _Peer:
    """One instance's Mem0, and what was done to it."""

    def __init__(self, embedder: Embedder, model: _Model) -> None:
        self._memory, self._model = new_memory(model, embedder), model
        self._ids: list[str] = []  # in the order of adding; listed they come in that of their random ids
        self._texts: set[str] = set()
        self._counts = OperationCounts()

    def add(self, chunk: Chunk, where: str) -> None:
        """Let Mem0 hear a chunk; errors begin with ``where``."""
        text = f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text
        dated = {"metadata": {"time": chunk.time}, "prompt": _OBSERVED} if chunk.time else {}
        self._model.forget()
        try:
            events = self._memory.add(text, **_OWNER, **dated)["results"]
        except mem0_error() as error:
            raise _failure(error.__cause__ or error, where) from error
        except (AttributeError, TypeError, ValueError):
            if self._model.reply is None or not (reply := read_reply(self._model.reply)).failed:
                raise
            self._count(failed=reply.failed + len(reply.texts))
        else:
            self._take(events, where)

    def _take(self, events: Sequence[Mapping[str, str]], where: str) -> None:
        """Count what Mem0 says it did, and check that no memory of the reply is missing."""
        if self._model.reply is None:
            raise MemAlphaError(f"{where}: it did not ask its model")
        texts, failed = read_reply(self._model.reply)
        if other := next((event["event"] for event in events if event["event"] != "ADD"), None):
            raise MemAlphaError(f"{where}: it says {other!r}, and releases that were tried only add")
        if lost := set(texts) - self._texts - {event["memory"] for event in events}:
            raise MemAlphaError(f"{where}: it did not store {min(lost)!r:.80}; its log says why")
        self._ids += [event["id"] for event in events]
        self._texts |= set(texts)
        self._count(insert=len(events), failed=failed, duplicate=len(texts) - len(events))

    def _count(self, *, insert: int = 0, failed: int = 0, duplicate: int = 0) -> None:
        had = self._counts
        self._counts = OperationCounts(insert=had.insert + insert, failed=had.failed + failed, duplicate=had.duplicate + duplicate)

    def kept(self, setting: Setting, where: str) -> Kept:
        """Return what Mem0 keeps; MemAlphaError if that is not what it said it added."""
        listed = self._memory.get_all(filters=_OWNER, top_k=len(self._ids) + 1)["results"]
        rows = {row["id"]: row for row in listed}
        if rows.keys() != set(self._ids):
            raise MemAlphaError(f"{where}: it added {len(self._ids)} memories and lists {len(rows)}, or others")

        def find(questions: Sequence[Question], room: Room) -> list[tuple[str, ...]]:
            return [self._passages(question.text, setting.retrieve_k) for question in questions]

        return Kept(
            find,
            memory_tokens=sum(setting.count(row["memory"]) for row in rows.values()),
            entries=tuple(_render(rows[identity]) for identity in self._ids),
            write_calls=self._model.calls,
            cut_off=self._model.cut_off,
            operations=self._counts,
        )

    def _passages(self, question: str, k: int) -> tuple[str, ...]:
        """What Mem0 finds, best first; nothing for a blank question, which it does not take."""
        found = self._memory.search(question, filters=_OWNER, top_k=k)["results"] if question.strip() else []
        return tuple(map(_render, found))


def _render(row: Mapping[str, Any]) -> str:
    """A memory as entries read (``memalpha.memory.memory``)."""
    time = (row.get("metadata") or {}).get("time")
    return f"[{time}] {row['memory']}" if time else str(row["memory"])


def _failure(cause: BaseException, where: str) -> MemAlphaError:
    """The error of a chunk whose model, or store, failed."""
    if isinstance(cause, InputError):
        return InputError(f"{where}: {cause.what}", expected=cause.expected, fix=cause.fix)
    return ServiceError(f"{where}: {cause}\n  to go on: the same command again, once the service is back")


@lru_cache(maxsize=4)
def _embedder(name: str) -> Embedder:
    """One embedder for all sets."""
    return make_embedder(name)


__all__ = ["API_KEY", "Mem0", "Mem0Options"]
