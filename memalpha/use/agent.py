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
from memalpha.models.readers import load_reader
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
    """Result of reading a text, already stored: one record per piece.

    ``operations`` are the numbers whose ``undo``, the last first, takes all of it back: of each
    piece those of the model or, if it changed nothing, those of its lines of the archive.
    ``left_out`` was not read, since the memory had said it (``without_recalled``); ``removed`` is
    how many secrets a guard took out before.
    """

    steps: tuple[StepRecord, ...]
    left_out: tuple[str, ...] = ()
    removed: int = 0

    @property
    def changes(self) -> tuple[tuple[int, Change], ...]:
        """What the model changed, in order, each with the number of its operation."""
        return tuple(chain.from_iterable(map(_changes_of, self.steps)))

    @property
    def operations(self) -> tuple[int, ...]:
        """Numbers of the operations that take it back."""
        numbers: list[int] = []
        for step in self.steps:
            numbers += [number for number, _ in _changes_of(step)] or step.outcome.lines
        return tuple(numbers)

    @property
    def lines(self) -> tuple[int, ...]:
        """Numbers of the operations that put lines into the archive, in order."""
        return tuple(number for step in self.steps for number in step.outcome.lines)

    @property
    def results(self) -> tuple[OperationResult, ...]:
        """Result of each tool call of the model, in order, mistakes included."""
        return tuple(result for step in self.steps for result in step.outcome.results)


def _changes_of(step: StepRecord) -> list[tuple[int, Change]]:
    # the changes of the model come first, those of the archive after
    return list(enumerate(step.outcome.changes, step.chunk_index))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: what a reader says; without one, or where it is not sure, what was said, one
    passage a line; ``unknown`` if the memory does not say.
    """

    text: str
    entries: tuple[Hit, ...]  # retrieved for the question, best first
    read: tuple[Entry, ...]  # what the reader saw: blocks, then entries and lines, best first
    searches: tuple[str, ...] = ()  # what a reader that searches searched for, too
    # what was said that fits, best first; if the answer is unknown, what comes nearest
    passages: tuple[Passage, ...] = ()
    by_reader: bool = True  # whether ``text`` is what a reader says, and not what was said
    # how probable a local model finds its own answer, in [0, 1], also of one that is not given,
    # since it is too low; None: there is no such model, or it has no answer
    probability: float | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def known(self) -> bool:
        """Whether it is an answer, not that the memory does not say."""
        return is_answer(self.text)

    @property
    def source(self) -> Entry | None:
        """The passage read that has most of the answer's words, the best of equals; None if none
        has any, or nothing is known. Where no reader answered, it is the best that was found.
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
    """A ``MemoryStore`` that an agent writes and a reader answers from.

    ``name`` is the agent's name in the journal. Without ``reader``, ``ask`` returns passages.

    ``guards`` are names of detectors (``memalpha.use.guards``): what they find is refused when it
    would be written.
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
        """Load a trained agent with a store; for the arguments and errors see ``load_agent`` and
        ``MemoryAgent``.

        ``reader`` may be what ``open_reader`` takes: a trained reader's folder (``memalpha warmup
        --teaches reader``), ``base`` (the adapter's base without it), the client of a chat server,
        ``recall`` or an empty text (none: passages are shown). None takes the reader that the agent
        names, if any. It reads ``reader_tokens`` at most.
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
        """Let an untrained chat model on a server write the memory and answer; tokens are estimated
        (``ByteTokenizer``).
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
        """Keep what is added in the archive alone, and answer with the lines found.

        ``schema`` is that of the agent who will read the store later; None: each memory's own,
        ``small_core`` of a new one. ``retrieval`` and ``embedder`` are for
        ``usual_retrieval``.
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
        """Let the agent read a text, or chat messages, and update a memory; on disk when this
        returns.

        A long text is split at sentences, each piece with its speaker; a note on an error gives the
        pieces already stored. Of messages (``read_messages``) each may have its own ``time``; what
        an assistant said counts less than what the user said, and what of it the memory says
        already is left out, as is all that is tagged as recalled.
        ``time`` is ISO 8601 (blank: none); a str ``namespace`` names the user; an empty ``source``
        becomes the text's SHA-256. ``metadata`` is kept with all that is written
        (``Entry.metadata``). ServiceError if the generator fails.
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
        """Return the chunks that ``add`` would read; InputError for a blank or invalid text or an
        invalid time.
        """
        return [chunk for chunk, _ in self.labelled(self.guards.masked(text)[0], time)]

    def labelled(
        self, text: str | Sequence[Message], time: str | None
    ) -> list[tuple[Chunk, Sequence[Span] | None]]:
        """Return the chunks of a text from which a guard took what it takes, each with the places
        of its labels; None for a text, whose lines ``Speaker: ...`` say who speaks.
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
        """Let the agent read one chunk that fits (``pieces``), with the places of its ``labels``.

        ``keep`` archives the chunk in place of the agent, in the same transaction.
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
        """Drop the texts that step and guards keep, too."""
        super().drop_caches()
        self.step.forget_texts()
        self.guards.forget_texts()

    def ask(self, question: str, *, namespace: Namespace | str | None = None) -> Reply:
        """Answer a question from the memory alone, with retrieval and reading as in evaluation.

        Where no reader is sure of an answer, what was said is the answer, if it is near enough to
        the question (``passages.is_known``); else the answer is unknown.
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
        """Return at most ``k`` entries and lines for a query (None: ``retrieve_k``), best first."""
        return super().search(query, self.retrieve_k if k is None else k, namespace=namespace)


class AsyncMemoryAgent:
    """The calls of a ``MemoryAgent``, awaited: ``await awaited.ask(...)``; each runs in a thread,
    also if it is cancelled.
    """

    def __init__(self, agent: MemoryAgent) -> None:
        self.agent = agent

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return partial(asyncio.to_thread, getattr(self.agent, name))
