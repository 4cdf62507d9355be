"""Mem0 (arXiv 2504.19413) through its published package, with its language model behind an OpenAI-compatible server.

Each instance has its own in-process Mem0. A chunk is one ``add`` call, in order; a question is one ``search`` for ``retrieve_k``.
Telemetry is off and nothing is written to the user's home. Requests use this package's client and ``$MEMALPHA_MEM0_API_KEY``, never
Mem0's own variables (``OPENROUTER_API_KEY``, ``OPENAI_BASE_URL``). Only this module imports mem0, on first use.

Failures in Mem0 2.2: an unreachable model stops the evaluation (run again to continue). An invalid reply, which Mem0 logs, skips or
raises for, counts as failed operations. A memory that cannot be stored, which Mem0 drops, is an error: every text must be stored or
stored before (``duplicate``).

Departures: this package's embedder, not OpenAI's; the evaluation's temperature and ``top_p`` 1 (Mem0: 0.1 and 0.1); special tokens
are broken up. ``add`` takes no time, so a chunk begins with its time, which is also metadata, and ``prompt`` names it as
observation date; Mem0's prompt still holds today's date. A chunk is one user message. Search is by embedding only: ``fastembed``
and ``spacy``, with which Mem0 downloads models, are refused. Mem0's hosted platform is not covered.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from pydantic import PositiveInt

from memalpha.agent.rollout import StepCallback
from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, MemAlphaError, MissingExtraError, ServiceError
from memalpha.evaluation.results import OperationCounts
from memalpha.evaluation.systems.base import Kept, Setting, System, WriterOptions
from memalpha.protocols import Embedder
from memalpha.retrieval.embedders import make_embedder
from memalpha.text import is_text
from memalpha.types import Chunk, Instance, Message, Sampling

API_KEY = "MEMALPHA_MEM0_API_KEY"
"""Environment variable of the key; the reader's key is not sent to this server."""

RELEASE = "2.2."
"""Version prefix of the tested releases."""

_OWNER = {"user_id": "memalpha"}
_OBSERVED = "The new messages were written at the time in square brackets that they begin with. It is their Observation Date."

_embedder = lru_cache(maxsize=4)(make_embedder)  # one for all sets


@dataclass(frozen=True, slots=True)
class Mem0Options(WriterOptions):
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
    max_new_tokens: PositiveInt = 2000
    embedder: str = "minilm"
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 1.0

    def check(self) -> None:
        """InputError without a server or a model."""
        if not (self.url and self.model):
            raise InputError(
                f"system 'mem0' has url {self.url!r} and model {self.model!r}",
                expected="both",
                fix="e.g. {kind: mem0, url: http://localhost:8000/v1, model: NAME}",
            )


class Mem0(System):
    """Mem0 with the common embedder, readers and budget; errors of ``load_mem0``, InputError if an option is invalid."""

    def __init__(self, setting: Setting, options: Mem0Options) -> None:
        load_mem0()
        self.setting, self.options = setting, options
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
        """Add the chunks, one instance after the other; an error names the chunk."""
        total, done = sum(len(instance.chunks) for instance in instances), 0
        kept = []
        for instance in instances:
            sampling = self.setting.sampling(self.options.max_new_tokens, seed, [instance])
            peer = _Peer(self.embedder, _Model(self.client, sampling))
            for index, chunk in enumerate(instance.chunks):
                peer.add(chunk, where=f"Mem0 at chunk {index} of instance {instance.id}")
                done += 1
                if on_step:
                    on_step(done, total)
            kept.append(peer.kept(self.setting))
        return kept


class _Model:
    """Mem0's language model: counts calls and keeps the last reply."""

    def __init__(self, client: ChatClient, sampling: Sampling) -> None:
        self._client, self._sampling = client, sampling
        self.calls = self.cut_off = 0
        self.reply = ""

    def generate_response(self, messages: Sequence[Message], response_format: Any = None) -> str:
        seed = None if self._sampling.seed is None else self._sampling.seed + self.calls
        completion = self._client.complete(messages, replace(self._sampling, seed=seed))
        self.calls += 1
        self.cut_off += completion.cut_off
        self.reply = completion.text
        return completion.text


class _Embeddings:
    """Mem0's embedder."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self.embed_batch([text])[0]

    def embed_batch(self, texts: Sequence[str], memory_action: str = "add") -> list[list[float]]:
        return [[float(value) for value in row] for row in self._embedder.embed(texts)]


class _Peer:
    """One instance's Mem0 and its operation counts."""

    def __init__(self, embedder: Embedder, model: _Model) -> None:
        self._memory, self._model = _new_memory(model, embedder), model
        self._stored: list[tuple[str, str | None]] = []  # text and time
        self._failed = self._duplicates = 0

    def add(self, chunk: Chunk, where: str) -> None:
        """Add a chunk to Mem0; errors begin with ``where``."""
        from mem0.exceptions import MemoryError as Mem0Error

        text = f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text
        dated = {"metadata": {"time": chunk.time}, "prompt": _OBSERVED} if chunk.time else {}
        asked = self._model.calls
        try:
            events = self._memory.add(text, **_OWNER, **dated)["results"]
        except Mem0Error as error:
            raise _failure(error.__cause__ or error, where) from error
        except (AttributeError, TypeError, ValueError):  # of a reply in another form, or an error of its own
            if self._model.calls == asked or not read_reply(self._model.reply)[1]:
                raise
            texts, failed = read_reply(self._model.reply)
            self._failed += failed + len(texts)
            return
        if self._model.calls == asked:
            raise MemAlphaError(f"{where}: it did not ask its model")
        texts, failed = read_reply(self._model.reply)
        added = [event["memory"] for event in events if event["event"] == "ADD"]
        if len(added) < len(events):
            raise MemAlphaError(f"{where}: it says {events!r:.200}, and releases that were tried only add")
        if lost := set(texts) - {text for text, _ in self._stored} - set(added):
            raise MemAlphaError(f"{where}: it did not store {min(lost)!r:.80}; its log says why")
        self._stored += [(text, chunk.time) for text in added]
        self._failed += failed
        self._duplicates += len(texts) - len(added)

    def kept(self, setting: Setting) -> Kept:
        """Return what Mem0 keeps."""

        def passages(question: str) -> tuple[str, ...]:  # nothing for a blank question, which Mem0 does not take
            found = self._memory.search(question, filters=_OWNER, top_k=setting.retrieve_k)["results"] if question.strip() else []
            return tuple(_render(row["memory"], (row.get("metadata") or {}).get("time")) for row in found)

        return Kept(
            lambda questions, room: [passages(question.text) for question in questions],
            memory_tokens=sum(setting.count(text) for text, _ in self._stored),
            entries=tuple(_render(text, time) for text, time in self._stored),
            write_calls=self._model.calls,
            cut_off=self._model.cut_off,
            operations=OperationCounts(insert=len(self._stored), failed=self._failed, duplicate=self._duplicates),
        )


def _render(text: str, time: str | None) -> str:
    """A memory in the format of entries (``memalpha.memory.memory``)."""
    return f"[{time}] {text}" if time else text


def _failure(cause: BaseException, where: str) -> MemAlphaError:
    """The error for a chunk whose model or store failed."""
    if isinstance(cause, InputError):
        return InputError(f"{where}: {cause.what}", expected=cause.expected, fix=cause.fix)
    return ServiceError(f"{where}: {cause}\n  to go on: the same command again, once the service is back")


@lru_cache(maxsize=1)
def load_mem0() -> None:
    """Import mem0 with telemetry off; MissingExtraError if not installed, InputError if the release or its setup is refused."""
    with tempfile.TemporaryDirectory(prefix="memalpha-") as folder, patch.dict(os.environ, MEM0_DIR=folder, MEM0_TELEMETRY="False"):
        try:
            import mem0
        except ImportError as error:
            raise MissingExtraError("mem0", "mem0") from error
        from mem0.memory import telemetry
    if telemetry.MEM0_TELEMETRY:
        raise InputError(
            "mem0 was imported before, with its telemetry on", expected="it off", fix="export MEM0_TELEMETRY=False and start again"
        )
    if not mem0.__version__.startswith(RELEASE):
        raise InputError(f"mem0ai is {mem0.__version__}", expected=f"{RELEASE}*", fix="pip install 'memalpha[mem0]'")
    if extra := next((name for name in ("fastembed", "spacy") if find_spec(name)), None):
        raise InputError(
            f"{extra} is installed, for which Mem0 downloads a model and ranks otherwise",
            expected="the same Mem0 wherever it is compared",
            fix=f"evaluate it in an environment without {extra}",
        )
    for hint in ("mem0.vector_stores.qdrant", "mem0.utils.spacy_models"):  # each memory would say that those are missing
        logging.getLogger(hint).setLevel(logging.ERROR)


def _new_memory(model: _Model, embedder: Embedder) -> Any:
    """An in-process ``mem0.Memory`` (Qdrant local mode, SQLite ``:memory:``); placeholder model and embedder are replaced."""
    import mem0

    size = embedder.dimension
    memory = mem0.Memory.from_config(
        {
            "history_db_path": ":memory:",
            "llm": {"provider": "openai", "config": {"api_key": "unused"}},
            "embedder": {"provider": "openai", "config": {"api_key": "unused", "embedding_dims": size}},
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": ":memory:", "collection_name": "memalpha", "embedding_model_dims": size},
            },
        }
    )
    memory.llm, memory.embedding_model = model, _Embeddings(embedder)
    return memory


def read_reply(text: str) -> tuple[list[str], int]:
    """Parse a reply with Mem0's helpers: the memories and the number of invalid items (1 if it is not a list)."""
    from mem0.memory.utils import extract_json, remove_code_blocks

    bare = remove_code_blocks(text)
    try:
        try:
            items = json.loads(bare, strict=False)["memory"]
        except json.JSONDecodeError:
            items = json.loads(extract_json(bare), strict=False)["memory"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return [], 1
    if not isinstance(items, list):
        return [], 1
    said = [item.get("text") for item in items if isinstance(item, Mapping)]
    texts = [text for text in said if isinstance(text, str) and text and is_text(text)]
    return texts, len(items) - len(texts)
