"""The trained agent as something to use: feed it text, ask it questions, see, undo and forget what it wrote.

    agent = MemoryAgent.load("data/adapters/smollm2-135m-memory", store="memories.db")
    agent.add("Marta: I moved to Oslo.", time="2024-03-05", namespace="marta")
    agent.ask("What is the city of Marta?", namespace="marta").text

What always holds: prompts and the handling of completions are those of training (``memalpha.agent.step``), under the configuration
that lies beside the adapter. When ``add``, ``undo`` or ``forget`` returns, the store has it on disk. A completion is applied to
the very memory its prompt showed: if somebody wrote in between, the model is asked again. Safe for threads: texts of one namespace
are read one after the other, those of several are generated in one batch.

Every call names its namespace where there is a store. Without one the journal lives in the process (``:memory:``), is gone with
it, and ``namespace`` may be left out; everything else is the same code.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from weakref import WeakValueDictionary

from memalpha.agent.limits import TIME_TOKENS
from memalpha.agent.rollout import StepRecord
from memalpha.agent.step import AgentStep
from memalpha.data.packing import split_text
from memalpha.errors import InputError, JournalBusyError, MemAlphaError
from memalpha.generation.batching import BatchingGenerator
from memalpha.memory.memory import Snapshot
from memalpha.memory.render import render_entry
from memalpha.protocols import Generator, Hit, Reader, ReadRequest
from memalpha.store.indexed import IndexedStore
from memalpha.store.journal import IN_MEMORY, Event, Journal, Namespace, Origin, Receipt, hash_prompt
from memalpha.store.memory import JournalMemory
from memalpha.text import one_line
from memalpha.types import Change, Chunk, Entry, Question, Sampling
from memalpha.use.checks import need_entries, need_number, need_text
from memalpha.use.records import Added, Reply, joined
from memalpha.use.trained import load_trained

LOCAL = Namespace("local")
"""The namespace of an agent without a store, unless another is named."""
_TRIES = 5
"""How often a text is read again because its namespace was written meanwhile."""


class MemoryAgent:
    """An agent with a memory for each namespace.

    Args:
        step: Prompt maker and applier.
        generator: Writes the completions; used by one thread at a time.
        reader: Answers questions; None makes ``ask`` answer with what was found.
        store: Path or URL of a store (``Journal.open``), or a journal, which the caller closes; None keeps all in the process.
        key: Key of the store (``Journal.open``), where it is given by its address.
        retrieve_k: Entries retrieved for a question.
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
        retrieve_k: int = 5,
        name: str = "agent",
        max_batch: int = 32,
    ) -> None:
        need_entries("retrieve_k", retrieve_k)
        need_text("name", name)
        self.step, self.reader, self.retrieve_k, self.name = step, reader, retrieve_k, name
        self.generator = BatchingGenerator(generator, max_batch)
        self._default = LOCAL if store is None else None
        self._owned = not isinstance(store, Journal)
        self.journal = store if isinstance(store, Journal) else Journal.open(IN_MEMORY if store is None else store, key=key)
        self._store = IndexedStore(self.journal, step.schema, step.new_retriever, step.encoder.count)
        self._lanes: WeakValueDictionary[Namespace, threading.Lock] = WeakValueDictionary()
        self._lanes_lock = threading.Lock()
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
        retrieve_k: int = 5,
        device: str = "cpu",
    ) -> MemoryAgent:
        """Load a trained agent.

        Args:
            trained: What ``memalpha train`` or ``memalpha warmup`` wrote, an adapter or a whole model: a folder, or a Hub name
                ``owner/name`` or ``owner/name@revision``.
            model: Base of the adapter: registered name, folder or Hub name; None takes the one the adapter names.
            store: Where memories are kept; None keeps them in the process.
            key: Key of the store, where it is given by its address.
            reader: Answers questions; None answers with what was found.
            router: Trained section router for layer 1 of its retriever; None takes the agent's own, if it has one.
            retrieve_k: Entries retrieved for a question.
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
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
        need_text("source", source)
        whose, pieces = self._whose(namespace), self.pieces(text, time)
        done: list[Added] = []
        with self._lane(whose):
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
        need_text("text", text)
        if not text.strip():
            raise InputError("a text without a word", expected="something to read")
        time = self._time(time)
        limit, count = self.step.config.max_chunk_tokens, self.step.chunk_tokens
        if count(text) > limit:
            return [Chunk(text[span.start : span.end], time) for span in split_text(text, limit, count)]
        self.step.check_chunk(Chunk(text, time), "a text")
        return [Chunk(text, time)]

    def _time(self, time: str | None) -> str | None:
        if time is None:
            return None
        need_text("time", time, "a text in ISO 8601, as isoformat() gives it")
        if one_line(time) != time or self.step.time_tokens(time) > TIME_TOKENS:
            raise InputError(f"the time {time[:60]!r}", expected="ISO 8601, such as 2024-03-05 or 2024-03-05T14:30:00+01:00")
        return time if time.strip() else None

    def _read(self, whose: Namespace, chunk: Chunk, source: str) -> Added:
        for _ in range(_TRIES):
            with self._store.reading(whose) as (memory, retriever):
                seen = _state(memory)
                prompt = self.step.prompt(memory, retriever, chunk)
            completion = self.generator.generate([prompt], Sampling(self.step.config.max_new_tokens))[0]
            origin = Origin(self.name, source or _digest(chunk), hash_prompt(prompt.ids))
            with self._store.writing(whose, origin) as memory:
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
        need_number("operation", operation, "the number of an operation, as history gives it")
        need_text("by", by, "who asks, as a text (str)")
        whose = self._whose(namespace)
        with self._lane(whose):
            return self._store.undo(whose, operation, Origin(by))

    def forget(self, entry: str, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase an entry for good: from the log, the memory, every file of the store and its backups (``DurableMemory.forget``)."""
        need_text("entry", entry, "the id of an entry; forget_all erases the whole namespace")
        return self._forget(self._whose(namespace), entry)

    def forget_all(self, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase a whole namespace for good, its name included; also one begun with another schema, which no other call takes."""
        return self._forget(self._whose(namespace), None)

    def _forget(self, whose: Namespace, entry: str | None) -> Receipt:
        with self._lane(whose):
            try:
                if entry is None and not self._fits(whose):
                    return self.journal.forget(whose)
                return self._store.forget(whose, entry)
            finally:
                self._next_chunk.pop(whose, None)
                self.step.forget_texts()

    def _fits(self, whose: Namespace) -> bool:
        """Whether a namespace was not begun with another schema; if it was, this process holds nothing of it."""
        try:
            self._store.durable(whose)
        except InputError:
            return False
        return True

    # -------------------------------------------------------------------------------------------- reading
    def ask(self, question: str, *, namespace: Namespace | str | None = None) -> Reply:
        """Answer a question from the memory alone, retrieved and read as in evaluation."""
        need_text("question", question)
        whose = self._whose(namespace)
        with self._store.reading(whose) as (memory, retriever):
            blocks = [text for section in memory.schema.blocks if (text := memory.block(section.name))]
            hits = tuple(retriever.search(question, self.retrieve_k))
        passages = (*blocks, *(render_entry(hit.entry) for hit in hits))
        if self.reader is None:
            return Reply("\n".join(passages), hits)
        return Reply(self._answer(self.reader, ReadRequest(Question(question, ("",)), passages)), hits)

    def _answer(self, reader: Reader, request: ReadRequest) -> str:
        from memalpha.qa.readers import ModelReader

        if isinstance(reader, ModelReader):  # it may be the very model that writes
            return self.generator.alone(lambda: reader.read([request]))[0].text
        return reader.read([request])[0].text

    def search(self, query: str, k: int | None = None, *, namespace: Namespace | str | None = None) -> list[Hit]:
        """Return at most ``k`` entries found for a query, best first."""
        need_text("query", query)
        if k is not None:
            need_entries("k", k)
        return self._store.search(self._whose(namespace), query, k or self.retrieve_k)

    def memory(self, namespace: Namespace | str | None = None) -> tuple[Entry, ...]:
        """Return all entries, written blocks included, in order of creation."""
        with self._store.reading(self._whose(namespace)) as (memory, _):
            return tuple(memory)

    def history(self, entry: str | None = None, *, namespace: Namespace | str | None = None) -> list[Event]:
        """Return what happened to an entry, or in the whole namespace, in order: by whom, from which text and prompt, when."""
        if entry is not None:
            need_text("entry", entry, "the id of an entry, or None for all that happened")
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

    def _lane(self, whose: Namespace) -> threading.Lock:
        """Return the lock of a namespace's writers in this process."""
        with self._lanes_lock:
            lane = self._lanes.get(whose)
            if lane is None:
                lane = self._lanes[whose] = threading.Lock()
            return lane


def _state(memory: JournalMemory) -> tuple[int, Snapshot]:
    return memory.seq, memory.snapshot()


def _digest(chunk: Chunk) -> str:
    return f"sha256:{hashlib.sha256(chunk.text.encode()).hexdigest()}"


__all__ = ["LOCAL", "Added", "MemoryAgent", "Reply"]
