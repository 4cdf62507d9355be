"""The trained agent as something to use: feed it text, ask it questions, see, undo and forget what it wrote.

    agent = MemoryAgent.load("data/adapters/smollm2-135m-memory", store="memories.db")
    agent.add("Marta: I moved to Oslo.", time="2024-03-05", namespace="marta")
    agent.ask("What is the city of Marta?", namespace="marta").text

What always holds: prompts and the handling of completions are those of training (``memalpha.agent.step``), under the configuration
that lies beside the adapter. When ``add``, ``undo`` or ``forget`` returns, the store has it on disk. A completion is applied to
the very memory its prompt showed: if somebody wrote in between, the model is asked again. Safe for threads: texts of one namespace
are read one after the other, those of several are generated in one batch.

Every call names its namespace where there is a store. Without one the journal lives in the process (``:memory:``), is gone with
it, and ``namespace`` may be left out; everything else is the same code. ``AsyncMemoryAgent`` has the same calls for asyncio.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from memalpha.agent.rollout import StepRecord
from memalpha.agent.step import TIME_TOKENS, AgentStep
from memalpha.data.packing import split_text
from memalpha.errors import InputError, JournalBusyError, JournalError, MemAlphaError, ServiceError
from memalpha.generation.batching import BatchingGenerator
from memalpha.memory.memory import Snapshot, render_entry
from memalpha.memory.tools import is_text
from memalpha.protocols import Generator, Hit, Reader, ReadRequest
from memalpha.qa.evaluator import answer, find_passages
from memalpha.qa.readers import ModelReader, RecallReader
from memalpha.store.indexed import IndexedStore
from memalpha.store.journal import IN_MEMORY, Event, Journal, Namespace, Origin, Receipt, hash_prompt
from memalpha.store.memory import JournalMemory
from memalpha.text import one_line
from memalpha.types import Change, Chunk, Entry, OperationResult, Question, Sampling
from memalpha.use.trained import load_trained

LOCAL = Namespace("local")
"""The namespace of an agent without a store, unless another is named."""
_TRIES = 5
"""How often a text is read again because its namespace was written meanwhile."""
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Added:
    """What reading a text did; all of it is in the store.

    Attributes:
        steps: One record a piece of the text: what the model saw, what it wrote, what that did.
        operations: Numbers of the operations in the namespace's journal, in order: what ``undo`` takes.
    """

    steps: tuple[StepRecord, ...]
    operations: tuple[int, ...]

    @property
    def results(self) -> tuple[OperationResult, ...]:
        """What came of each call of the model, in order; mistakes of the model are results too."""
        return tuple(result for step in self.steps for result in step.outcome.results)


def joined(parts: Sequence[Added]) -> Added:
    """Return what reading several texts one after the other did."""
    return Added(tuple(step for part in parts for step in part.steps), tuple(done for part in parts for done in part.operations))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and where it came from.

    Attributes:
        text: The answer; without a reader what was found, a passage a line.
        entries: The retrieved entries the answer was read from, best first; written blocks were read as well.
    """

    text: str
    entries: tuple[Hit, ...]

    def __str__(self) -> str:
        """Return the answer."""
        return self.text


class MemoryAgent:
    """An agent with a memory for each namespace.

    Args:
        step: Prompt maker and applier.
        generator: Writes the completions; used by one thread at a time.
        reader: Answers questions; None makes ``ask`` answer with what was found.
        store: Path or URL of a store (``Journal.open``), or a journal, which the caller closes; None keeps all in the process.
        key: Key of the store (``Journal.open``), where it is given by its address.
        retrieve_k: Entries retrieved for a question; None takes the agent's own.
        name: What the journal calls this agent.
        max_batch: Most texts read in one call of the generator.
    """

    def __init__(
        self,
        step: AgentStep,
        generator: Generator,
        reader: Reader | None = None,
        *,
        store: str | Path | Journal | None = None,
        key: bytes | None = None,
        retrieve_k: int | None = None,
        name: str = "agent",
        max_batch: int = 32,
    ) -> None:
        if retrieve_k is not None:
            _need_number("retrieve_k", retrieve_k, "a number of entries, at least 1")
        _need_text("name", name)
        self.step, self.name = step, name
        self.reader = reader or RecallReader(step.config.reader_tokens, step.encoder.count)
        self.retrieve_k = retrieve_k or step.config.retrieve_k
        self.generator = BatchingGenerator(generator, max_batch)
        self._default = LOCAL if store is None else None
        self._owned = not isinstance(store, Journal)
        self.journal = store if isinstance(store, Journal) else Journal.open(IN_MEMORY if store is None else store, key=key)
        self._store = IndexedStore(self.journal, step.schema, step.new_retriever, step.encoder.count)
        self._locks: WeakValueDictionary[Namespace, threading.Lock] = WeakValueDictionary()
        self._locks_lock = threading.Lock()
        self._next_chunk: dict[Namespace, int] = {}
        step.encoder.count("a")  # so that no thread ever switches the tokenizer's treatment of special tokens

    @classmethod
    def load(
        cls,
        trained: str | Path,
        model: str | Path | None = None,
        *,
        store: str | Path | Journal | None = None,
        key: bytes | None = None,
        reader: Reader | None = None,
        router: str | Path | None = None,
        retrieve_k: int | None = None,
        device: str = "cpu",
    ) -> MemoryAgent:
        """Load a trained agent.

        Args:
            trained: What ``memalpha train`` or ``memalpha warmup`` wrote, an adapter or a whole model: a folder, or a Hub name
                ``owner/name`` or ``owner/name@revision``.
            model: Base of the adapter: registered name, folder or Hub name; None takes the one the adapter names.
            store: Where memories are kept; None keeps them in the process.
            key: Key of the store.
            reader: Answers questions; None answers with what was found.
            router: Trained section router for layer 1 of its retriever; None takes the agent's own, if it has one.
            retrieve_k: Entries retrieved for a question; None takes the agent's own.
            device: Where the model runs, as torch names it.

        Raises:
            InputError: If it is no agent of ours, belongs to another base, or the router or the store's address is none.
            ServiceError: If something had to be fetched and could not be.
            JournalError: If the store cannot be opened.
        """
        step, generator, name = load_trained(trained, model, router=router, device=device)
        return cls(step, generator, reader, store=store, key=key, retrieve_k=retrieve_k, name=name)

    def close(self) -> None:
        """Close the store, unless it was given as a journal; nothing is lost by not doing so."""
        if self._owned:
            self.journal.close()

    def __enter__(self) -> MemoryAgent:
        """Return itself; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # -------------------------------------------------------------------------------------------- writing
    def add(
        self,
        text: str,
        time: str | None = None,
        *,
        namespace: Namespace | str | None = None,
        source: str = "",
        on_piece: Callable[[Added], None] | None = None,
    ) -> Added:
        """Let the agent read a text and update a memory; on disk when this returns.

        A text of more than ``max_chunk_tokens`` is cut at sentences (``memalpha.data.packing.split_text``) and read piece by piece,
        each piece durable before the next is read; an error says how many pieces are in the store by then, and by which operations.

        Args:
            text: What to read.
            time: When it was said (ISO 8601); a blank one is none.
            namespace: Whose memory; a plain text names the user.
            source: Your name for the text, for the journal; its SHA-256 if empty.
            on_piece: Called with what each piece did, as soon as that is durable.

        Raises:
            InputError: If text, time, namespace or source cannot be used.
            JournalError: If it could not be put to disk.
            JournalBusyError: If others kept writing to the same namespace.
            ServiceError: If the generator fails.
        """
        _need_text("source", source)
        whose, pieces = self._whose(namespace), self.pieces(text, time)
        done: list[Added] = []
        with self._writing(whose):
            for piece in pieces:
                try:
                    added = self._read(whose, piece, source)
                except MemAlphaError as error:
                    if done:
                        numbers = list(joined(done).operations)
                        error.add_note(
                            f"the first {len(done)} of {len(pieces)} pieces are in the store, by the operations {numbers}"
                        )
                    raise
                done.append(added)
                if on_piece:
                    on_piece(added)
        return joined(done)

    def pieces(self, text: str, time: str | None = None) -> list[Chunk]:
        """Return what ``add`` would read, one after the other: the text itself, or its pieces if it is too long for one prompt.

        Raises:
            InputError: If the text is blank or no Unicode text, or the time no text of one line or longer than a prompt has room
                for.
        """
        _need_text("text", text)
        if not text.strip():
            raise InputError("a text without a word", expected="something to read")
        if time is not None:
            _need_text("time", time, "a text in ISO 8601, as isoformat() gives it")
            if one_line(time) != time or self.step.time_tokens(time) > TIME_TOKENS:
                raise InputError(f"the time {time[:60]!r}", expected="ISO 8601, such as 2024-03-05 or 2024-03-05T14:30:00+01:00")
            time = time if time.strip() else None
        limit, count = self.step.config.max_chunk_tokens, self.step.chunk_tokens
        if count(text) > limit:
            return [Chunk(text[span.start : span.end], time) for span in split_text(text, limit, count)]
        self.step.check_chunk(Chunk(text, time), "a text")
        return [Chunk(text, time)]

    def _read(self, whose: Namespace, chunk: Chunk, source: str) -> Added:
        for _ in range(_TRIES):
            with self._store.reading(whose) as (memory, retriever):
                seen = _state(memory)
                prompt = self.step.prompt(memory, retriever, chunk)
            completion = self.generator.generate([prompt], Sampling(self.step.config.max_completion_length))[0]
            digest = f"sha256:{hashlib.sha256(chunk.text.encode()).hexdigest()}"
            with self._store.writing(whose, Origin(self.name, source or digest, hash_prompt(prompt.ids))) as memory:
                if _state(memory) == seen:
                    index = self._chunk_number(whose, memory)
                    outcome = self.step.apply(memory, index, chunk, completion.text, completion.cut_off)
                    record = StepRecord(index, prompt, completion, outcome, memory.tokens, len(memory))
                    written = tuple(range(seen[0] + 1, memory.seq + 1))
                    break
        else:
            raise JournalBusyError(f"namespace {whose} was written {_TRIES} times while a text was read", fix="try again")
        self._next_chunk[whose] = index + 1
        return Added((record,), written)

    def _chunk_number(self, whose: Namespace, memory: JournalMemory) -> int:
        """Number of the chunk: counted in this process, starting after the last one that left an entry."""
        left = [entry.source_chunk for entry in memory if entry.source_chunk is not None]
        return self._next_chunk.get(whose) or max(left, default=-1) + 1

    def undo(self, operation: int, *, namespace: Namespace | str | None = None, by: str = "user") -> Change:
        """Take one operation back (or take that back); return what changed.

        Args:
            operation: Its number, as ``Added.operations`` and ``history`` give it.
            namespace: Whose memory.
            by: Who asks, for the journal.

        Raises:
            InputError: If there is no such operation, or ``by`` is no text.
            JournalConflictError: If its entry was written since.
            ForgottenError: If it was forgotten.
        """
        _need_number("operation", operation, "the number of an operation, as history gives it")
        _need_text("by", by, "who asks, as a text (str)")
        whose = self._whose(namespace)
        with self._writing(whose):
            return self._store.undo(whose, operation, Origin(by))

    def forget(self, entry: str, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase an entry for good: from the log, the memory, every file of the store and its backups (``DurableMemory.forget``)."""
        _need_text("entry", entry, "the id of an entry; forget_all erases the whole namespace")
        return self._forget(self._whose(namespace), entry)

    def forget_all(self, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase a whole namespace for good, its name included; also one begun with another schema, which no other call takes."""
        return self._forget(self._whose(namespace), None)

    def _forget(self, whose: Namespace, entry: str | None) -> Receipt:
        with self._writing(whose):
            try:
                self._store.durable(whose)
            except InputError:  # begun with another schema: this process holds nothing of it
                if entry is None:
                    return self.journal.forget(whose)
                raise
            try:
                return self._store.forget(whose, entry)
            finally:
                self._next_chunk.pop(whose, None)
                self.step.forget_texts()

    # -------------------------------------------------------------------------------------------- reading
    def ask(self, question: str, *, namespace: Namespace | str | None = None) -> Reply:
        """Answer a question from the memory alone, retrieved and read as in evaluation."""
        _need_text("question", question)
        with self._store.reading(self._whose(namespace)) as (memory, retriever):
            found = find_passages(memory, retriever, question, self.retrieve_k)
        read = partial(answer, self.reader, [ReadRequest(Question(question, ("",)), found.passages)])
        # a model in this process may be the very one that writes
        said = self.generator.alone(read)[0] if isinstance(self.reader, ModelReader) else read()[0]
        if isinstance(said, ServiceError):
            raise said
        return Reply(said.text, found.hits)

    def search(self, query: str, k: int | None = None, *, namespace: Namespace | str | None = None) -> list[Hit]:
        """Return at most ``k`` entries found for a query, best first."""
        _need_text("query", query)
        if k is not None:
            _need_number("k", k, "a number of entries, at least 1")
        return self._store.search(self._whose(namespace), query, k or self.retrieve_k)

    def memory(self, namespace: Namespace | str | None = None) -> tuple[Entry, ...]:
        """Return all entries, written blocks included, in order of creation."""
        with self._store.reading(self._whose(namespace)) as (memory, _):
            return tuple(memory)

    def history(self, entry: str | None = None, *, namespace: Namespace | str | None = None) -> list[Event]:
        """Return what happened to an entry, or in the whole namespace, in order: by whom, from which text and prompt, when."""
        if entry is not None:
            _need_text("entry", entry, "the id of an entry, or None for all that happened")
        whose = self._whose(namespace)
        with self._store.reading(whose):
            durable = self._store.durable(whose)
            return durable.operations() if entry is None else durable.history(entry)

    def __repr__(self) -> str:
        """Show the memory of an agent without a store, an entry a line; else the store's namespaces by number only."""
        if self._default is None:
            return f"MemoryAgent {self.name} with {len(self.journal.namespaces())} namespaces"
        lines = [f"{entry.id} {render_entry(entry)}" for entry in self.memory()]
        return "\n".join([f"MemoryAgent with {len(lines)} entries", *lines])

    # -------------------------------------------------------------------------------------------- namespaces
    def _whose(self, namespace: Namespace | str | None) -> Namespace:
        found = Namespace(namespace) if isinstance(namespace, str) else namespace or self._default
        if not isinstance(found, Namespace):
            raise InputError(
                "no namespace" if namespace is None else f"namespace {namespace!r}",
                expected="whose memory it is: Namespace(user, agent, session), or the user's name",
            )
        return found

    def _writing(self, whose: Namespace) -> threading.Lock:
        """Return the lock of a namespace's writers in this process."""
        with self._locks_lock:
            return self._locks.setdefault(whose, threading.Lock())


def _state(memory: JournalMemory) -> tuple[int, Snapshot]:
    return memory.seq, memory.snapshot()


def _need_text(what: str, value: object, expected: str = "a text (str)") -> None:
    """Raise InputError unless a value is a str of Unicode text: an entry that is None must not be read as "all of them"."""
    if not isinstance(value, str):
        raise InputError(f"{what} is {repr(value)[:80]}, of type {type(value).__name__}", expected=expected)
    if not is_text(value):
        raise InputError(f"{what} holds a lone surrogate ({value[:40]!a})", expected="Unicode text")


def _need_number(what: str, value: object, expected: str) -> None:
    """Raise InputError unless a value is an integer, and no bool, of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{what} is {repr(value)[:80]}", expected=expected)


# ------------------------------------------------------------------------------------------------ asyncio
def _awaited(
    call: Callable[Concatenate[MemoryAgent, _Parameters], _Result],
) -> Callable[Concatenate[AsyncMemoryAgent, _Parameters], Coroutine[Any, Any, _Result]]:
    """Return the same call for asyncio."""

    @wraps(call)
    async def awaited(self: AsyncMemoryAgent, /, *arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        same: Callable[_Parameters, _Result] = getattr(self.agent, call.__name__)
        return await self.run(same, *arguments, **options)

    return awaited


class AsyncMemoryAgent:
    """A ``MemoryAgent`` for asyncio: the same calls, awaited, each in a thread of its own.

    The event loop never waits for a model or a disk; calls that wait for the model are generated together. A call that is
    cancelled while it runs goes on to its end in its thread: a write is then done, and nobody was told. ``aclose`` waits for those.

    Args:
        agent: Does the work; closed by ``aclose``.
        threads: Calls under way at once; more wait.
    """

    def __init__(self, agent: MemoryAgent, threads: int = 64) -> None:
        _need_number("threads", threads, "at least 1")
        self.agent = agent
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="memalpha")

    add = _awaited(MemoryAgent.add)
    ask = _awaited(MemoryAgent.ask)
    search = _awaited(MemoryAgent.search)
    memory = _awaited(MemoryAgent.memory)
    history = _awaited(MemoryAgent.history)
    undo = _awaited(MemoryAgent.undo)
    forget = _awaited(MemoryAgent.forget)
    forget_all = _awaited(MemoryAgent.forget_all)

    async def run(
        self, call: Callable[_Parameters, _Result], /, *arguments: _Parameters.args, **options: _Parameters.kwargs
    ) -> _Result:
        """Call a function in one of the agent's threads and return what it returns; JournalError once the agent was closed."""
        if self._closed:
            raise JournalError("the agent was closed", fix="make another one")
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *arguments, **options))

    async def aclose(self) -> None:
        """Wait for the calls under way, then close the agent; a later call raises JournalError."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        self.agent.close()

    async def __aenter__(self) -> AsyncMemoryAgent:
        """Return itself; it is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()


__all__ = ["LOCAL", "Added", "AsyncMemoryAgent", "MemoryAgent", "Reply", "joined"]
