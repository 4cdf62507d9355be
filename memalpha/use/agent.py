"""Use a trained agent: add texts, ask questions, read, undo and forget what it wrote.

Writing calls return when the change is on disk. If the memory changed during generation, the model
is asked again. Thread-safe: texts of one namespace are read in order, those of several in one
batch. With a store, each call needs a ``namespace``; without one, the journal is in memory and lost
with the process.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import StepRecord
from memalpha.agent.step import AgentStep
from memalpha.conversation.messages import ASSISTANT, joined_messages, read_messages
from memalpha.conversation.recalled import sentences_of, without_recalled
from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, JournalBusyError, MemAlphaError, ServiceError
from memalpha.generation.serving import (
    BatchingGenerator,
    ByteTokenizer,
    EndpointGenerator,
    SilentGenerator,
    Turns,
)
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import OF_PROGRAMS, MemorySchema
from memalpha.models.agent import load_agent, own_reader
from memalpha.models.policy import PolicyModel
from memalpha.models.readers import load_reader, resolve_reader
from memalpha.qa.readers import (
    RECALL,
    UNKNOWN,
    EndpointReader,
    ModelReader,
    RecallReader,
    Retrieval,
    answer_and_weigh,
    find_passages,
    is_answer,
    open_reader,
)
from memalpha.retrieval import RetrievalMode
from memalpha.retrieval.embedders import usual_retrieval
from memalpha.retrieval.lexical import tokenize
from memalpha.store.durable import DurableMemory
from memalpha.store.journal import Journal, Namespace, Origin, hash_prompt
from memalpha.text.times import check_said
from memalpha.types import (
    Change,
    Chunk,
    Entry,
    Generator,
    Hit,
    Message,
    OperationResult,
    Question,
    Reader,
    ReadRequest,
    Sampling,
    Span,
)
from memalpha.units import cut_text
from memalpha.use.guards import Guards
from memalpha.use.passages import (
    FOUND,
    READER_NEARNESS,
    Passage,
    find_turns,
    is_known,
    is_outdated,
    nearness,
    says_all,
)
from memalpha.use.store import MemoryStore, need_text

Keeper = Callable[[DurableMemory, Memory, int, Origin, Sequence[Change]], None]
"""Archives a chunk that an agent has read: is given the memory to write to, the chunk's number, the
origin of the operations, and what they changed."""
NEW_SCHEMA = "small_core"  # of a new memory without a model
CHAT_MODEL = AgentConfig(reader_tokens=2048)  # of a chat model on a server, not trained
_KNOWN_HITS = 5  # entries, and lines, that a sentence of an assistant is compared with
_BASE_TOKENS = 128  # most that a base without its adapter writes as an answer
_TRIES = 5  # to read a text whose namespace changes meanwhile


@dataclass(frozen=True, slots=True)
class AddResult:
    """The result of reading a text, which is stored already.

    To undo all of it, call ``undo`` with each of ``operations``, the last first. For each piece
    these are the operations of the model or, if it changed nothing, those of its archived lines.

    Attributes:
        steps: One record for each piece of the text.
        left_out: Sentences that were not read, since the memory had said them
            (``without_recalled``).
        removed: Number of secrets that a guard took out of the text.
    """

    steps: tuple[StepRecord, ...]
    left_out: tuple[str, ...] = ()
    removed: int = 0

    @property
    def changes(self) -> tuple[tuple[int, Change], ...]:
        """The changes of the model in order, each with the number of its operation."""
        return tuple(chain.from_iterable(map(_changes_of, self.steps)))

    @property
    def operations(self) -> tuple[int, ...]:
        """The numbers of the operations whose undo takes everything back."""
        numbers: list[int] = []
        for step in self.steps:
            numbers += [number for number, _ in _changes_of(step)] or step.outcome.lines
        return tuple(numbers)

    @property
    def lines(self) -> tuple[int, ...]:
        """The numbers of the operations that archived a line, in order."""
        return tuple(number for step in self.steps for number in step.outcome.lines)

    @property
    def results(self) -> tuple[OperationResult, ...]:
        """The result of each tool call of the model in order, with its mistakes."""
        return tuple(result for step in self.steps for result in step.outcome.results)


def _changes_of(step: StepRecord) -> list[tuple[int, Change]]:
    # the changes of the model come first, those of the archive after
    return list(enumerate(step.outcome.changes, step.chunk_index))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer from a memory.

    ``text`` is the answer of a reader. Without a reader, or if it is not sure, it is passages as
    they were said, one on each line, and ``unknown`` if the memory does not say.

    Attributes:
        text: The answer.
        entries: The entries that were retrieved for the question, best first.
        read: The entries that the reader saw: blocks, then entries and lines, best first.
        searches: The words for which a searching reader also searched.
        passages: Fitting passages as they were said, best first. If the answer is unknown, they are
            the nearest ones.
        by_reader: Whether a reader gave ``text``.
        probability: The probability from 0 to 1 that a local model gives to its own answer, also if
            the answer is not shown because it is too low. None if there is no such model or no
            answer.
    """

    text: str
    entries: tuple[Hit, ...]
    read: tuple[Entry, ...]
    searches: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    by_reader: bool = True
    probability: float | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def known(self) -> bool:
        """Whether the memory knows an answer."""
        return is_answer(self.text)

    @property
    def source(self) -> Entry | None:
        """The entry that the reader saw and that has most words of the answer; None if there is
        none.

        If no reader answered, it is the best entry that was found.
        """
        if not self.known:
            return None
        if not self.by_reader:
            return next((hit.entry for hit in self.entries), None)
        words = set(tokenize(self.text))
        passages = [render_entry(entry) for entry in self.read]
        shared = [len(words.intersection(tokenize(passage))) for passage in passages]
        return self.read[shared.index(max(shared))] if any(shared) else None


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Collect no garbage in the block. Importing torch and transformers makes a million objects
    that stay; to look through them again and again takes a quarter of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class MemoryAgent(MemoryStore):
    """Memories that a trained agent writes and from which a reader answers.

    Use ``MemoryAgent.load`` for a trained agent, ``at_endpoint`` for a chat model on a server, and
    ``without_model`` for an archive alone.

    Args:
        step: The agent step, which makes prompts and applies completions.
        generator: The generator that draws the completions.
        reader: The reader that answers questions; None answers with passages.
        store: Path or URL of the store, or a journal that the caller closes; None keeps all in this
            process.
        key: The key of a keyed store.
        retrieve_k: The number of entries found for a question; None takes the agent's own.
        name: The name of the agent in the journal.
        max_batch: The most texts that are completed in one batch.
        guards: Names of detectors (``memalpha.use.guards``), which refuse to write the kinds of
            content that they find.
        adopts: A function that tells whether a recorded schema is taken instead of the agent's.
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
        guards: Sequence[str] = (),
        adopts: Callable[[MemorySchema], bool] = lambda _: False,
    ) -> None:
        self.guards = Guards(guards)
        super().__init__(
            store, step.schema, step.new_retriever, step.encoder.count, key=key, adopts=adopts
        )
        self.step = step
        self.name = name
        self.reader = reader or RecallReader(step.config.reader_tokens, step.encoder.count)
        self.retrieve_k = retrieve_k or step.config.retrieve_k
        self.generator = BatchingGenerator(generator, max_batch)
        self._reader_turns = Turns(max_batch)  # of a reader with a model of its own
        step.encoder.count("a")  # sets the tokenizer's special-token mode before threads use it

    @classmethod
    @_collecting_later()
    def load(
        cls,
        trained: str | Path,
        model: str | Path | None = None,
        *,
        store: str | Path | Journal | None = None,
        key: bytes | None = None,
        reader: Reader | ChatClient | str | Path | None = None,
        reader_tokens: int = 512,
        retrieve_k: int | None = None,
        archive: bool | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        trust_tools: bool = False,
        guards: Sequence[str] = (),
    ) -> MemoryAgent:
        """Load a trained agent with a store.

        Args:
            trained: The folder of a run, an adapter or a whole model, the name of a shipped
                adapter (``memalpha fetch``), or a Hub name.
            model: The base of the adapter; None takes the one that it names.
            store: Path or URL of the store, or a journal that the caller closes; None keeps all in
                this process.
            key: The key of a keyed store.
            reader: The reader that answers: a trained reader, given as ``trained`` is; ``base``
                (the base without its adapter); the client of a chat server; or ``recall`` or an
                empty text for passages. None takes the reader that the agent names, if any.
            reader_tokens: The most tokens of passages that the reader sees.
            retrieve_k: The number of entries found for a question; None takes the agent's own.
            archive: Whether the agent keeps and searches an archive of what it reads; None does as
                in its training.
            device: The Torch device of the model.
            dtype: The type of the base's weights, ``float32`` or ``bfloat16``.
            trust_tools: Whether tools of the agent's schema may be imported, and texts sent to a
                server that it names as its embedder.
            guards: Names of detectors, as for ``MemoryAgent``.

        Returns:
            The agent; close it, or use it in a ``with`` block.

        Raises:
            InputError: A folder, model, device or option cannot be used.
            JournalError: The store cannot be opened.
        """
        loaded = load_agent(
            trained,
            model,
            archive=archive,
            device=device,
            dtype=dtype,
            trust_tools=trust_tools,
            for_use=True,
        )
        step, generator = loaded.step, loaded.generator
        source = own_reader(loaded.folder) or RECALL if reader is None else reader or RECALL
        if isinstance(source, str | Path | ChatClient):
            source = resolve_reader(source)
            load_model = partial(
                load_reader,
                policy=PolicyModel(generator.model, generator.tokenizer),
                beside=True,
                base_tokens=_BASE_TOKENS,
                dtype=dtype,
                device=device,
                keep_products=False,
            )
            budget = step.config.reader_tokens if source == RECALL else reader_tokens
            source = open_reader(source, budget, step.encoder.count, load_model)
        return cls(
            step,
            generator,
            source,
            store=store,
            key=key,
            retrieve_k=retrieve_k,
            name=loaded.name,
            guards=guards,
        )

    @classmethod
    def at_endpoint(
        cls,
        client: ChatClient,
        config: AgentConfig = CHAT_MODEL,
        *,
        store: str | Path | Journal | None = None,
        key: bytes | None = None,
        retrieve_k: int | None = None,
        guards: Sequence[str] = (),
    ) -> MemoryAgent:
        """Let an untrained chat model on a server write the memory and answer questions.

        Tokens are estimated from bytes (``ByteTokenizer``).

        Args:
            client: The client of the server.
            config: The settings of the agent.
            store: Path or URL of the store, or a journal that the caller closes; None keeps all in
                this process.
            key: The key of a keyed store.
            retrieve_k: The number of entries found for a question; None takes the one of
                ``config``.
            guards: Names of detectors, as for ``MemoryAgent``.
        """
        tokenizer: Any = ByteTokenizer()
        step = AgentStep(config, tokenizer)
        return cls(
            step,
            EndpointGenerator(client, step.codec),
            EndpointReader(client, config.reader_tokens, step.encoder.count),
            store=store,
            key=key,
            retrieve_k=retrieve_k,
            name=client.model,
            guards=guards,
        )

    @classmethod
    def without_model(
        cls,
        schema: str | None = None,
        *,
        store: str | Path | Journal | None = None,
        key: bytes | None = None,
        retrieve_k: int | None = None,
        reader_tokens: int = 512,
        retrieval: RetrievalMode | None = None,
        embedder: str | None = None,
        guards: Sequence[str] = (),
    ) -> MemoryAgent:
        """Keep added texts in the archive alone, and answer with the lines found.

        Args:
            schema: The schema for the agent that will read the store later. None takes each
                memory's own, and ``small_core`` for a new one.
            store: Path or URL of the store, or a journal that the caller closes; None keeps all in
                this process.
            key: The key of a keyed store.
            retrieve_k: The number of lines found for a question; None takes the default.
            reader_tokens: The most tokens of the passages in an answer.
            retrieval: How lines are searched; None takes hybrid, or lexical if MiniLM is not
                installed.
            embedder: The embedder of the search; None takes minilm.
            guards: Names of detectors, as for ``MemoryAgent``.
        """
        tokenizer: Any = ByteTokenizer()
        searched = usual_retrieval(retrieval, embedder)
        config = AgentConfig(
            retrieval=searched.retrieval,
            embedder=searched.embedder,
            schema=schema or NEW_SCHEMA,
            reader_tokens=reader_tokens,
            archive=True,
        )
        return cls(
            AgentStep(config, tokenizer),
            SilentGenerator(),
            store=store,
            key=key,
            retrieve_k=retrieve_k,
            name="archive",
            guards=guards,
            adopts=lambda recorded: schema is None and recorded.name not in OF_PROGRAMS,
        )

    @property
    def writes(self) -> bool:
        """Whether a model writes entries; if not, only the archive keeps what was said."""
        return not isinstance(self.generator.generator, SilentGenerator)

    def add(
        self,
        text: str | Sequence[Message],
        time: str | None = None,
        *,
        namespace: Namespace | str | None = None,
        source: str = "",
        metadata: str | None = None,
    ) -> AddResult:
        """Let the agent read a text or chat messages, and update the memory, which is on disk when
        this returns.

        A long text is split at sentences, and each piece keeps its speaker. If an error stops the
        reading, a note on it names the pieces that are stored already. In messages
        (``read_messages``), the assistant's statements count less than the user's. Parts that the
        memory holds already, or that are tagged as recalled, are left out.

        Args:
            text: The text, or the messages, each of which may have its own ``time``.
            time: The time at which it was said, as ISO 8601; None or blank if it is unknown.
            namespace: The namespace, or the name of its user.
            source: The name of the text in the journal; an empty one becomes the text's SHA-256.
            metadata: JSON that is kept with every entry that is written (``Entry.metadata``).

        Returns:
            The operations, the changes and the results of the calls.

        Raises:
            InputError: The text is blank or invalid, the time is invalid, or there is no namespace.
            ServiceError: The generator failed.
            JournalBusyError: Others kept changing the memory.
        """
        whose = self.namespace(namespace)
        left_out: list[str] = []
        if isinstance(text, list | tuple):
            text, left_out = self._not_recalled(whose, text, time)
        elif isinstance(text, str):
            text, left_out = without_recalled(text)
            text = text if text.strip() or not left_out else ""
        if left_out and not text:
            return AddResult((), tuple(left_out))
        text, removed = self.guards.masked(text)
        pieces = self.labelled(text, time)
        steps: list[StepRecord] = []
        with self.turn(whose):
            try:
                for piece, labels in pieces:
                    steps.append(
                        self.add_chunk(whose, piece, source, labels=labels, metadata=metadata)
                    )
            except MemAlphaError as error:
                if steps:
                    error.add_note(
                        f"the first {len(steps)} of {len(pieces)} pieces are stored, "
                        f"by the operations {list(AddResult(tuple(steps)).operations)}"
                    )
                raise
        return AddResult(tuple(steps), tuple(left_out), removed)

    def _not_recalled(
        self, whose: Namespace, messages: Sequence[Message], time: str | None
    ) -> tuple[list[Message], list[str]]:
        """Messages without what the memory said, and what was left out of them."""
        left: list[Message] = []
        left_out: list[str] = []
        for said in read_messages(messages, time):
            known: list[str] = []
            if said.role == ASSISTANT:
                known += [each["content"] for each in left[-1:]]  # an echo says nothing new
                with self.searching(whose) as (_, retriever):
                    for sentence in sentences_of(said.text):
                        hits = retriever.search(sentence, _KNOWN_HITS)
                        known += [render_entry(hit.entry) for hit in hits]
            text, removed = without_recalled(said.text, known)
            left_out += removed
            message = {"role": said.role, "content": text, "name": said.speaker, "id": said.id}
            left += [{**message, "time": said.time}] if text.strip() else []
        return left, left_out

    def pieces(self, text: str | Sequence[Message], time: str | None = None) -> list[Chunk]:
        """Return the chunks that ``add`` would read.

        Args:
            text: The text or messages.
            time: The time, as in ``add``.

        Raises:
            InputError: The text is blank or invalid, or the time is invalid.
        """
        return [chunk for chunk, _ in self.labelled(self.guards.masked(text)[0], time)]

    def labelled(
        self, text: str | Sequence[Message], time: str | None
    ) -> list[tuple[Chunk, Sequence[Span] | None]]:
        """Return the chunks that ``add`` would read, each with the places of its speakers' labels.

        The places are None for a text, whose lines ``Speaker: ...`` name the speakers.

        Args:
            text: The text or messages, after the guards.
            time: The time, as in ``add``.

        Raises:
            InputError: The text is blank or invalid, or the time is invalid.
        """
        need_text("time", "" if time is None else time)
        time = time if time and time.strip() else None
        limit = self.step.config.max_chunk_tokens
        count = self.step.chunk_tokens
        chunks: list[tuple[Chunk, Sequence[Span] | None]]
        if isinstance(text, list | tuple):
            joined = joined_messages(read_messages(text, time), limit, count)
            chunks = [(each.chunk, each.labels) for each in joined]
        else:
            text = need_text("text", text)
            texts = cut_text(text, limit, count) if count(text) > limit else [text]
            chunks = [(Chunk(piece, time), None) for piece in texts if piece.strip()]
        if not chunks:
            raise InputError("the text has no word", expected="a text with at least one word")
        for chunk, _ in chunks:
            self.step.check_chunk(chunk, "a text")
            check_said(chunk.time, self.journal.clock(), "the time of a text")
        return chunks

    def add_chunk(
        self,
        whose: Namespace,
        chunk: Chunk,
        source: str = "",
        keep: Keeper | None = None,
        labels: Sequence[Span] | None = None,
        *,
        metadata: str | None = None,
    ) -> StepRecord:
        """Let the agent read one chunk that fits a prompt (see ``pieces``).

        Args:
            whose: The namespace.
            chunk: The chunk.
            source: The name of the text in the journal; an empty one becomes the text's SHA-256.
            keep: A function that archives the chunk instead of the agent, in the same transaction.
            labels: Places of the speakers' labels in the chunk, if they are known.
            metadata: JSON that is kept with every entry that is written.

        Returns:
            The record of the step.

        Raises:
            ServiceError: The generator failed.
            JournalBusyError: Others kept changing the memory.
        """
        sampling = Sampling(self.step.config.max_completion_length)
        source = source or f"sha256:{hashlib.sha256(chunk.text.encode()).hexdigest()}"
        for _ in range(_TRIES):
            with self.reading(whose) as (memory, retriever):
                seen = memory.clock, memory.snapshot()
                prompt = self.step.prompt(memory, retriever, chunk)
            (completion,) = self.generator.generate([prompt], sampling)
            origin = Origin(self.name, source, hash_prompt(prompt.ids))
            with self.durable(whose) as durable, durable.writing(origin, metadata) as memory:
                if (memory.clock, memory.snapshot()) == seen:
                    index = memory.clock  # no other text ever gets this number
                    outcome = self.step.apply(
                        memory,
                        index,
                        chunk,
                        completion.text,
                        completion.cut_off,
                        keep=keep is None,
                        guard=self.guards.refusal if self.guards else None,
                        labels=labels,
                    )
                    if keep is not None:
                        keep(durable, memory, index, origin, outcome.changes)
                    return StepRecord(
                        index, prompt, completion, outcome, memory.tokens, len(memory)
                    )
        raise JournalBusyError(
            f"the namespace {whose} was written {_TRIES} times while a text was read",
            fix="try again",
        )

    def drop_caches(self) -> None:
        """Drop the texts in the caches of the store, the agent step and the guards."""
        super().drop_caches()
        self.step.forget_texts()
        self.guards.forget_texts()

    def ask(self, question: str, *, namespace: Namespace | str | None = None) -> Reply:
        """Answer a question from the memory alone, with retrieval and reading as in evaluation.

        If no reader is sure of an answer, the reply has the passages that are near enough to the
        question (``passages.is_known``), and is unknown if there are none.

        Args:
            question: The question.
            namespace: The namespace, or the name of its user.

        Returns:
            The reply; ``str(reply)`` is the answer.

        Raises:
            InputError: The question is not text, or there is no namespace.
            ServiceError: The reader failed.
        """
        need_text("question", question)
        whose = self.namespace(namespace)
        entry_of: dict[str, Entry] = {}

        def search(words: str, when: str) -> tuple[str, ...]:
            return find(words, when).passages

        def find(words: str, when: str = "") -> Retrieval:
            with self.searching(whose) as (memory, retriever):
                found = find_passages(memory, retriever, words, self.retrieve_k, when)
            for passage, entry in zip(found.passages, found.entries, strict=True):
                entry_of.setdefault(passage, entry)
            return found

        with self.searching(whose):  # one state of the memory
            retrieved = find(question)
            passages, near = self._passages(whose, question, retrieved)
        request = ReadRequest(Question(question), retrieved.passages, search)
        positions = self.reader.fitting(request)
        if not positions:
            return Reply(UNKNOWN, retrieved.hits, (), (), passages, by_reader=False)
        answer_all = partial(answer_and_weigh, self.reader)
        if isinstance(self.reader, ModelReader):
            # a reader on the policy's model takes turns with it
            turns = self._reader_turns if self.reader.own_model else self.generator
            ((outcome, weight),) = turns.call(self.reader, [request], answer_all, owner=whose)
        else:
            ((outcome, weight),) = answer_all([request])
        if isinstance(outcome, ServiceError):
            raise outcome
        entries = tuple(retrieved.entries[position] for position in positions)
        if outcome.read is not None:
            entries = tuple(entry_of[passage] for passage in outcome.read)
        blocks = len(retrieved.entries) - len(retrieved.hits)
        from_block = min(positions) < blocks
        known = from_block or is_known(self.step.config, near)
        text = outcome.text
        by_reader = outcome.passages is None
        said: Sequence[Entry] = entries
        if isinstance(self.reader, ModelReader) and weight is not None:
            # dates do not count: when a thing was said is seldom when it was
            said_so = says_all(text, [entry.content for entry in entries])
            said_so = said_so and not is_outdated(text, passages)
            is_near = from_block or is_known(self.step.config, near, READER_NEARNESS)
            by_reader = is_near and said_so and weight >= self.reader.sure
            said = [passage.entry for passage in passages]
        if not by_reader:
            text = "\n".join(map(render_entry, said)) if known else UNKNOWN
        return Reply(text, retrieved.hits, entries, outcome.searches, passages, by_reader, weight)

    def _passages(
        self, whose: Namespace, question: str, retrieved: Retrieval
    ) -> tuple[tuple[Passage, ...], float]:
        """What was said that fits a question, and how near the best of it is; written blocks stand
        behind what was found.
        """
        with self.searching(whose) as (memory, retriever):
            hits = list(retrieved.hits)
            blocks = retrieved.entries[: len(retrieved.entries) - len(hits)]
            if self.retrieve_k < FOUND:
                hits = retriever.search(question, FOUND)
            near = nearness(retriever, question, hits)
            hits += [Hit(block, 0.0) for block in blocks]
            events_of = partial(self.events_at, namespace=whose)
            return find_turns(memory, retriever, question, hits, events_of), near

    def search(
        self, query: str, k: int | None = None, *, namespace: Namespace | str | None = None
    ) -> list[Hit]:
        """Return the best entries and archived lines for a query.

        Args:
            query: The query.
            k: The most results; None takes ``retrieve_k``.
            namespace: The namespace, or the name of its user.

        Returns:
            The hits, best first.
        """
        return super().search(query, self.retrieve_k if k is None else k, namespace=namespace)


class AsyncMemoryAgent:
    """The calls of a ``MemoryAgent``, to be awaited, such as ``await awaited.ask(...)``.

    Each call runs in a thread, and goes on there if it is cancelled.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: MemoryAgent) -> None:
        self.agent = agent

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return partial(asyncio.to_thread, getattr(self.agent, name))
