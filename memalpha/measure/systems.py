"""The systems that are compared: each reads inputs, and later finds passages for questions.

A system is its options; what it reads with (models, schema, budget) comes as a ``Setting``. It does
not know the questions while it reads. The reader takes the passages of every system under the same
token budget, best first, whole passages only. ``teacher`` and ``gold`` are exceptions: they use
annotations or questions to show upper limits. The agent uses the prompts, application and retrieval
of training (``agent.step``).

Departures from the baselines of Mem-alpha (arXiv 2509.25911): BM25 returns pieces, which never span
two chunks, not two whole chunks; full context takes what the reader can take, not the last 30k
tokens. ``overwrite_summary``, after MemAgent (arXiv 2507.02259), rewrites the whole memory;
``constant_state``, after MEM1 (arXiv 2506.15841), may think first. Both write without knowing the
questions, untrained for the task, for the common reader and budget, with our own prompts.
"""

import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

from pydantic import NonNegativeInt
from typing_extensions import override

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.context import check_context
from memalpha.agent.rollout import StepCallback, run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.config import Options
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.measure.host import PolicyHost
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.models.shipped import resolve_adapter
from memalpha.plugins import load_plugins
from memalpha.qa.metrics import contains, label
from memalpha.qa.readers import find_passages
from memalpha.record.measure import (
    IngestedMemory,
    SearchedMemory,
    rollout_memory,
    written_memory,
)
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.archive import archive_all
from memalpha.retrieval.two_layer import TwoLayerRetriever, retriever_factory
from memalpha.text.encoding import PromptEncoder, slot
from memalpha.text.quoting import one_line, quote
from memalpha.text.thinking import THINK, content_of, opens_thinking
from memalpha.types import (
    Answer,
    Chunk,
    Instance,
    Operation,
    OperationKind,
    OperationResult,
    Prompt,
    Question,
    ResultCode,
    Sampling,
    TokenCounter,
)
from memalpha.units import UNIT_TOKENS, cut_text, units


@dataclass(frozen=True, slots=True)
class Setting:
    """The protocol of one set, with which a system reads. ``temperature`` 0 is greedy."""

    step: AgentStep
    host: PolicyHost
    reader_tokens: int
    retrieve_k: int
    temperature: float = 0.0

    @property
    def count(self) -> TokenCounter:
        """The common token counter: the model's tokenizer."""
        return self.step.encoder.count

    def sampling(self, max_new_tokens: int, seed: int, instances: Sequence[Instance]) -> Sampling:
        """Return the sampling of a batch: greedy, or drawn by the seed and the instances."""
        name = f"{seed}/" + "/".join(instance.id for instance in instances)
        number = zlib.crc32(name.encode()) if self.temperature else None
        return Sampling(max_new_tokens, self.temperature, seed=number)


@dataclass(frozen=True, slots=True)
class System(Options):
    """A memory system; its fields are its options.

    A subclass has ``ingest``, or ``ingest_all`` where a batch is read together.
    """

    budget = "reader"  # ``window``: its reader may use the model's whole window
    model_writes = False  # whether what it stores is drawn from a model
    writes_counted = True  # whether it is known how often a model is called to write

    def draws(self, temperature: float) -> bool:
        """Whether the stored memory depends on the seed."""
        return self.model_writes and temperature > 0

    def prepare(self, setting: Setting) -> Setting:
        """Return the setting with what the system itself decides; called once for each set."""
        return setting

    def check_fits(self, setting: Setting, instances: Sequence[Instance]) -> None:
        """InputError if it cannot read these instances; called before an evaluation starts."""

    def ingest_all(
        self,
        setting: Setting,
        instances: Sequence[Instance],
        seed: int,
        on_step: StepCallback | None = None,
    ) -> list[IngestedMemory]:
        """Read a batch of inputs; return the memory of each, in order."""
        return [self.ingest(setting, instance, seed) for instance in instances]

    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        """Read one input."""
        raise NotImplementedError


# -------------------------------------------------------------------------------- without a model
class Piece(NamedTuple):
    """A part of a chunk: stripped text, the chunk's time and index."""

    text: str
    time: str | None
    chunk: int

    def render(self) -> str:
        """Return ``[time] text``, the format of memory entries."""
        return f"[{self.time}] {self.text}" if self.time else self.text


def pieces(chunks: Iterable[Chunk], pack: int, limit: int, count: TokenCounter) -> list[Piece]:
    """Return the pieces in order: units of at most ``limit`` tokens.

    Units are joined up to ``pack`` tokens with the time (1 = never).
    """
    parts: list[Piece] = []
    for index, chunk in enumerate(chunks):
        parts.append(Piece("", chunk.time, index))
        for text in units(chunk.text, limit, count):
            longer = parts[-1]._replace(text=f"{parts[-1].text}\n{text}".lstrip("\n"))
            if not parts[-1].text or count(longer.render()) <= pack:
                parts[-1] = longer
            else:
                parts.append(Piece(text, chunk.time, index))
    return [piece for piece in parts if piece.text]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeInput(IngestedMemory):
    """The input itself; a reader gets its newest part."""

    chunks: tuple[Piece, ...]
    count: TokenCounter

    @override
    def passages(self, question: Question, budget: int) -> tuple[str, ...]:
        return tuple(piece.render() for piece in newest_in_order(self.chunks, budget, self.count))

    @override
    def sourced(self, question: Question, budget: int) -> list[tuple[str, int | None]]:
        newest = newest_in_order(self.chunks, budget, self.count)
        return [(piece.render(), piece.chunk) for piece in newest]

    @override
    def left_out(self, budget: int) -> int:
        whole = sum(self.count(chunk.render()) for chunk in self.chunks)
        return whole - sum(map(self.count, self.passages(Question(""), budget)))


@lru_cache(maxsize=64)  # all questions of an instance ask for the same
def newest_in_order(chunks: Sequence[Piece], tokens: int, count: TokenCounter) -> tuple[Piece, ...]:
    """Return the newest chunks, then lines, that fit in ``tokens``, in reading order.

    A passage costs its tokens and a line break.
    """
    newest: list[Piece] = []
    for chunk in reversed(chunks):
        needed = count(one_line(chunk.render())) + 1
        if needed <= tokens:
            newest.append(chunk)
            tokens -= needed
            continue
        lines = units(chunk.text, UNIT_TOKENS, count)
        tails = [chunk._replace(text="\n".join(lines[i:])) for i in range(len(lines))]
        newest += [tail for tail in tails if count(one_line(tail.render())) < tokens][:1]
        break
    return tuple(reversed(newest))


@dataclass(frozen=True, slots=True)
class FullContext(System):
    """No memory: the reader gets the input itself, in order, each chunk with its time.

    The oldest lines are left out first.

    Attributes:
        budget: The reader gets as many tokens as its model takes (``window``), or as many as with
            every other system (``reader``).
    """

    budget: Literal["window", "reader"] = "window"

    @override
    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        chunks = [
            Piece(chunk.text, chunk.time, index) for index, chunk in enumerate(instance.chunks)
        ]
        tokens = sum(setting.count(chunk.text) for chunk in chunks)
        return WholeInput(memory_tokens=tokens, chunks=tuple(chunks), count=setting.count)


@dataclass(frozen=True, slots=True)
class Rag(System):
    """Retrieval over pieces of the input by BM25, with the agent's retriever.

    Attributes:
        piece_tokens: A piece has at most this many tokens; 0 takes the reader's budget /
            ``retrieve_k``, and 1 joins no lines. A single line may have 48.
        embedder: ``rag_dense`` and ``rag_two_layer`` use this embedder.
        chunks_kept: Layer 1 of ``rag_two_layer`` keeps this many chunks; 0 keeps all.
    """

    piece_tokens: NonNegativeInt = 0
    embedder: str = "minilm"
    chunks_kept: NonNegativeInt = 8

    mode: ClassVar[RetrievalMode] = "lexical"

    @override
    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        by_chunk = self.mode == "hybrid"
        sections = self.chunks_kept if by_chunk else 0
        config = RetrievalConfig(
            retrieval=self.mode, embedder=self.embedder, sections_kept=sections
        )
        pack = self.piece_tokens or max(1, setting.reader_tokens // setting.retrieve_k)
        parts = pieces(instance.chunks, pack, max(pack, UNIT_TOKENS), setting.count)
        memory = piece_memory(parts, setting.count, by_chunk=by_chunk)
        return _index(memory, config, setting)


class DenseRag(Rag):
    """The same by embeddings."""

    mode = "dense"


class TwoLayerRag(Rag):
    """Layer 1 selects chunks, layer 2 their pieces, by words and embeddings."""

    mode = "hybrid"


def piece_memory(parts: Sequence[Piece], count: TokenCounter, *, by_chunk: bool = False) -> Memory:
    """Return an unlimited memory of pieces, in one section or one for each chunk.

    The same text and time is stored once.
    """
    names = [f"chunk_{piece.chunk}" if by_chunk else "pieces" for piece in parts]
    first = {(piece.text, piece.time): piece for piece in reversed(parts)}
    once = [
        (name, piece)
        for name, piece in zip(names, parts, strict=True)
        if first[piece.text, piece.time] is piece
    ]
    sections = dict.fromkeys(name for name, _ in once) or ["pieces"]
    lists = [Section(name, SectionKind.LIST, timestamps=True) for name in sections]
    memory = Memory(MemorySchema("pieces", tuple(lists)), count)
    for name, piece in once:
        insert = Operation(OperationKind.INSERT, name, piece.text, timestamp=piece.time)
        memory.apply(insert, chunk=piece.chunk)
    return memory


def _index(memory: Memory, config: RetrievalConfig, setting: Setting) -> SearchedMemory:
    return SearchedMemory(
        memory_tokens=memory.tokens,
        memory=memory,
        retriever=retriever_factory(config)(memory),
        k=setting.retrieve_k,
    )


@dataclass(frozen=True, slots=True)
class Archive(System):
    """An archive of every line of the input, which is what an agent with ``archive: true`` searches
    if it writes nothing.

    Attributes:
        retrieval: The lines are searched in this mode: ``lexical``, ``dense`` or ``hybrid``.
    """

    retrieval: RetrievalMode = "hybrid"

    @override
    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        memory = setting.step.new_memory()
        archive_all(memory, instance.chunks)
        embedder = setting.step.config.embedder
        config = RetrievalConfig(retrieval=self.retrieval, embedder=embedder)
        return _index(memory, config, setting)


@dataclass(frozen=True, slots=True)
class Verbatim(System):
    """Stores every line or sentence of the input unchanged, in the schema's first list.

    When that is full, the oldest are deleted.
    """

    @override
    def check_fits(self, setting: Setting, instances: Sequence[Instance]) -> None:
        lists = setting.step.schema.lists[:1]
        needed = {OperationKind.INSERT, OperationKind.DELETE}
        if not lists or not needed <= set(lists[0].operations):
            raise InputError(
                "system 'verbatim' cannot write a memory with the schema "
                f"{setting.step.schema.name!r}",
                expected="a schema whose first list allows delete and insert",
            )

    @override
    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        section = setting.step.schema.lists[0]
        memory = setting.step.new_memory()
        retriever = setting.step.new_retriever(memory)
        limit = section.max_entry_tokens or UNIT_TOKENS
        results: list[OperationResult] = []
        tokens = 0
        for piece in pieces(instance.chunks, 1, limit, setting.count):
            insert = Operation(OperationKind.INSERT, section.name, piece.text, timestamp=piece.time)
            result = memory.apply(insert, chunk=piece.chunk, time=piece.time)
            if result.code is ResultCode.SECTION_FULL:
                oldest = memory.entries(section.name)[0].id
                delete = Operation(OperationKind.DELETE, section.name, entry_id=oldest)
                results.append(memory.apply(delete))
                result = memory.apply(insert, chunk=piece.chunk, time=piece.time)
            results.append(result)
            tokens += setting.count(piece.text) if result.changed else 0
        cut = tokens - memory.tokens
        return written_memory(memory, retriever, setting.retrieve_k, results, cut=cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(IngestedMemory):
    """Facts as entries, or pieces of the input; a reader gets those of the question's evidence."""

    pieces: Sequence[Piece] = ()
    count: TokenCounter

    @override
    def passages(self, question: Question, budget: int) -> tuple[str, ...]:
        if self.entries:
            subject = question.subject or ""
            texts = [text for text in self.entries if not subject or contains(text, subject)]
        else:
            memory = piece_memory(_evidence(question, self.pieces), self.count)
            retriever = TwoLayerRetriever(memory)
            ranked = find_passages(memory, retriever, question.text, len(memory)).passages
            texts = list(dict.fromkeys([*ranked, *map(render_entry, memory)]))
        return tuple(sorted(texts, key=lambda text: not _answers(question, text)))


def _evidence(question: Question, parts: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in parts if not question.evidence or piece.chunk in question.evidence]


def _answers(question: Question, text: str) -> bool:
    if question.metric == "label":
        return label(question, Answer(text, (text,))) == 1
    return any(contains(text, answer) for answer in question.answers)


@dataclass(frozen=True, slots=True)
class Gold(System):
    """An upper limit: the facts that hold at the end and name the question's subject.

    Without facts, pieces of the evidence chunks, by BM25, then in reading order. Those with an
    accepted answer come first.
    """

    @override
    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        count = setting.count
        if instance.facts:
            facts = Section("facts", SectionKind.LIST, timestamps=True)
            memory = Memory(MemorySchema("gold", (facts,)), count)
            teach(memory, instance, random.Random(0), TeacherConfig())
            entries = tuple(map(render_entry, memory))
            return Evidence(memory_tokens=memory.tokens, entries=entries, count=count)
        parts = pieces(instance.chunks, 1, UNIT_TOKENS, count)
        evidence = set[Piece]()
        for question in instance.questions:
            evidence.update(_evidence(question, parts))
        tokens = sum(count(piece.text) for piece in parts if piece in evidence)
        return Evidence(memory_tokens=tokens, pieces=parts, count=count)


@dataclass(frozen=True, slots=True)
class Teacher(TeacherConfig, System):
    """The teacher, which writes the annotated facts of generated data as in demonstrations; it is
    an upper limit.
    """

    @override
    def draws(self, temperature: float) -> bool:
        return self.coverage != 1 or self.p_correct < 1 or 0 < self.p_update < 1

    @override
    def check_fits(self, setting: Setting, instances: Sequence[Instance]) -> None:
        for instance in instances:
            if not instance.facts:
                raise InputError(
                    f"system 'teacher' cannot read instance {instance.id}, which has no "
                    "annotated facts",
                    expected="generated data in the sets of this system",
                )

    @override
    def ingest(self, setting: Setting, instance: Instance, seed: int) -> IngestedMemory:
        step = setting.step
        memory = step.new_memory()
        rng = random.Random(f"{seed}/{instance.id}")
        results = teach(memory, instance, rng, self, keep_lines=step.config.archive)
        return written_memory(memory, step.new_retriever(memory), setting.retrieve_k, results)


# -------------------------------------------------------------------------------- with a model
@dataclass(frozen=True, slots=True)
class Agent(System):
    """A policy that writes its memory by tool calls.

    Attributes:
        adapter: The policy has this adapter: a folder, the name of a shipped adapter (``memalpha
            fetch``) or a Hub name. An empty text takes the untrained base model.
        settings: The agent has the settings of the evaluation (``shared``), with which the
            adapter's schema and codec must agree, or those saved with the adapter (``own``).
        archive: The agent also searches what it has read; null does as its settings say.
        retrieval: The memory is searched in this mode; null does as its settings say.
        sections_kept: Layer 1 keeps this many sections (0 = all); null does as its settings say.
        trust_tools: If true, the functions that the adapter's schema names as tools may be
            imported.
        cut_chunks: If true, a chunk that is longer than the agent's limit is read in parts. With
            false it is an error.
    """

    adapter: str = ""
    settings: Literal["shared", "own"] = "shared"
    archive: bool | None = None
    retrieval: RetrievalMode | None = None
    sections_kept: NonNegativeInt | None = None
    trust_tools: bool = False
    cut_chunks: bool = False

    model_writes = True

    @override
    def prepare(self, setting: Setting) -> Setting:
        """Return the setting with the agent's own step; InputError if the adapter has others."""
        step = setting.step
        config = step.config
        folder = resolve_adapter(self.adapter) if self.adapter else None
        if self.settings == "own":
            config = AgentConfig.load(folder or setting.host.model, self.trust_tools)
        elif folder and (folder / AGENT_FILE).is_file():  # others have none
            saved = AgentConfig.load(folder, self.trust_tools)
            same = saved.codec == config.codec and MemorySchema.load(saved.schema) == step.schema
            if not same:
                raise InputError(
                    f"the adapter {self.adapter} was trained with schema {saved.schema!r} "
                    f"and codec {saved.codec!r}",
                    expected=f"{config.schema!r} and {config.codec!r}, as for all agents, or "
                    "settings: own",
                )
        options = ("archive", "retrieval", "sections_kept")
        given = {name: getattr(self, name) for name in options if getattr(self, name) is not None}
        config = replace(config, **given)
        if config == step.config:
            return setting
        return replace(setting, step=AgentStep(config, setting.host.tokenizer))

    @override
    def check_fits(self, setting: Setting, instances: Sequence[Instance]) -> None:
        setting.host.generator(self.adapter)
        check_context(setting.step, setting.host.config)
        for instance in () if self.cut_chunks else instances:
            for index, chunk in enumerate(instance.chunks):
                setting.step.check_chunk(chunk, where=f"chunk {index} of instance {instance.id}")

    @override
    def ingest_all(
        self,
        setting: Setting,
        instances: Sequence[Instance],
        seed: int,
        on_step: StepCallback | None = None,
    ) -> list[IngestedMemory]:
        generator = setting.host.generator(self.adapter)
        sampling = setting.sampling(setting.step.config.max_completion_length, seed, instances)
        parts_of: list[tuple[int, ...]] = [()] * len(instances)
        if self.cut_chunks:
            parted = [_in_parts(instance, setting.step) for instance in instances]
            instances = [instance for instance, _ in parted]
            parts_of = [chunks for _, chunks in parted]
        rollouts = run_rollouts(instances, setting.step, generator, sampling, on_step=on_step)
        memories: list[IngestedMemory] = []
        for rollout, chunks in zip(rollouts, parts_of, strict=True):
            memories.append(replace(rollout_memory(rollout, setting.retrieve_k), parts_of=chunks))
        return memories


def _in_parts(instance: Instance, step: AgentStep) -> tuple[Instance, tuple[int, ...]]:
    """The instance in chunks that the agent takes, and the chunk that each is a part of."""
    chunks: list[Chunk] = []
    parts_of: list[int] = []
    for index, chunk in enumerate(instance.chunks):
        for text in cut_text(chunk.text, step.config.max_chunk_tokens, step.chunk_tokens):
            chunks.append(replace(chunk, text=text))
            parts_of.append(index)
    return replace(instance, chunks=tuple(chunks), facts=()), tuple(parts_of)


OVERWRITE_SUMMARY = (
    "You read a long text chunk by chunk and keep a memory of it, of at most {tokens} tokens. "
    "Questions will be answered from the memory alone. Read the chunk, then write the whole memory "
    "anew: keep what still holds, add what is new, correct what has changed. One fact a line, with "
    "names. Write the memory and nothing else."
)
CONSTANT_STATE = (
    "You read a long text chunk by chunk. Between chunks you remember only your internal state; "
    "questions will be answered from it at the end. First think, in a few words, about what the "
    "chunk changes. Then write your whole new state between <IS> and </IS>, in at most {tokens} "
    "tokens: what still holds of the memory and what is new, one fact a line, with names."
)
_STATE = re.compile(r"<IS>(.*?)(?:</IS>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OverwriteSummary(System):
    """A memory of one text, which a model writes again at each chunk.

    Attributes:
        memory_tokens: The text has at most this many tokens; 0 takes the reader's budget.
        adapter: The model that writes has this adapter, named as for an agent; an empty text takes
            the base model.
    """

    memory_tokens: NonNegativeInt = 0
    adapter: str = ""

    model_writes = True
    instructions = OVERWRITE_SUMMARY

    @staticmethod
    def parse(reply: str) -> str:
        """Return the new text of a reply."""
        return reply.strip()

    def encoder(self, setting: Setting, limit: int) -> PromptEncoder:
        """Return what lays out a chunk and a text of at most ``limit`` tokens."""
        user = f"<chunk>\n{slot('chunk')}\n</chunk>\n<memory>\n{slot('memory')}\n</memory>"
        system = self.instructions.format(tokens=limit)
        layout = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return PromptEncoder(setting.host.tokenizer, layout)

    @override
    def check_fits(self, setting: Setting, instances: Sequence[Instance]) -> None:
        setting.host.generator(self.adapter)
        window = setting.host.positions
        limit = self.memory_tokens or setting.reader_tokens
        encoder = self.encoder(setting, limit)
        for instance in instances:
            for index, chunk in enumerate(instance.chunks):
                tokens = len(_prompt(encoder, chunk, "").ids) + 2 * limit
                if 0 < window < tokens:
                    raise InputError(
                        f"chunk {index} of instance {instance.id} takes {tokens} tokens with "
                        f"instructions and two texts of {limit} tokens, but the model's window "
                        f"has {window}",
                        expected="smaller chunks, or a lower memory_tokens",
                    )

    @override
    def ingest_all(
        self,
        setting: Setting,
        instances: Sequence[Instance],
        seed: int,
        on_step: StepCallback | None = None,
    ) -> list[IngestedMemory]:
        limit = self.memory_tokens or setting.reader_tokens
        encoder = self.encoder(setting, limit)
        generator = setting.host.generator(self.adapter)
        sampling = setting.sampling(limit, seed, instances)
        opening = THINK if opens_thinking(setting.host.tokenizer) else ""
        texts = [[""] for _ in instances]  # of each instance, as it was before and after each chunk
        cut_off = [0] * len(instances)
        total = max(len(instance.chunks) for instance in instances)
        for t in range(total):
            active = [i for i, instance in enumerate(instances) if t < len(instance.chunks)]
            prompts = [_prompt(encoder, instances[i].chunks[t], texts[i][-1]) for i in active]
            of_step = replace(sampling, seed=None if sampling.seed is None else sampling.seed + t)
            for i, completion in zip(active, generator.generate(prompts, of_step), strict=True):
                texts[i].append(self.parse(content_of(opening + completion.text)[0]))
                cut_off[i] += completion.cut_off
            if on_step:
                on_step(t + 1, total)
        memories: list[IngestedMemory] = []
        for versions, n in zip(texts, cut_off, strict=True):
            rewritten = sum(a != b for a, b in pairwise(versions))
            memory = IngestedMemory(
                memory_tokens=setting.count(versions[-1]),
                entries=tuple(units(versions[-1], limit, setting.count)),
                write_calls=len(versions) - 1,
                cut_off=n,
                operations={f"text/{OperationKind.REPLACE}": rewritten},
            )
            memories.append(memory)
        return memories


def _prompt(encoder: PromptEncoder, chunk: Chunk, text: str) -> Prompt:
    shown = quote(f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text)
    texts = {"chunk": shown, "memory": quote(text) or "empty"}
    ids, shared = encoder.encode(texts, shared="chunk")
    return Prompt((), ids, shared)


class ConstantState(OverwriteSummary):
    """A memory of one text that a model writes after some thinking.

    The text is the last state of a reply, closed or not, or without a mark the whole reply.
    """

    instructions = CONSTANT_STATE

    @override
    @staticmethod
    def parse(reply: str) -> str:
        states = _STATE.findall(reply)
        return (states[-1] if states else reply.replace("</IS>", "")).strip()


_OWN: Mapping[str, type[System]] = {  # by the name that a configuration gives them
    "agent": Agent,
    "archive": Archive,
    "constant_state": ConstantState,
    "full_context": FullContext,
    "gold": Gold,
    "overwrite_summary": OverwriteSummary,
    "rag_bm25": Rag,
    "rag_dense": DenseRag,
    "rag_two_layer": TwoLayerRag,
    "teacher": Teacher,
    "verbatim": Verbatim,
}


@cache
def system_kinds() -> Mapping[str, type[System]]:
    """Return the kinds of systems by name, with those of entry points ``memalpha.systems``."""
    return {**_OWN, **load_plugins("memalpha.systems", _OWN)}
