"""The systems that are compared: each reads inputs without knowing the questions, and later finds
passages for them.

``teacher`` and ``gold`` are exceptions: they use annotations or questions to show upper limits. The
reader takes the passages of every system under the same token budget, best first, whole passages
only. Departures from the baselines of Mem-alpha (arXiv
2509.25911): BM25 returns pieces, which never span two chunks, not two whole chunks; full context
takes what the reader can take, not the last 30k tokens. The agent uses prompts, application and
retrieval of training (``agent.step``). ``overwrite_summary``, after MemAgent (arXiv 2507.02259),
rewrites the whole memory; ``constant_state``, after MEM1 (arXiv 2506.15841), may think first.
Departures of both: questions are unknown while writing, no training for the task, the reader's
budget, the common reader, our own prompts.
"""

import random
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeInt

from memalpha.agent import archive
from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.rollout import StepCallback, run_rollouts
from memalpha.agent.step import AgentStep, check_context
from memalpha.config import Options
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.measure.evaluation_folder import OperationCounts
from memalpha.measure.host import PolicyHost
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import Retriever, TokenCounter
from memalpha.qa.evaluator import find_passages
from memalpha.qa.metrics import contains, label
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.two_layer import TwoLayerRetriever, retriever_factory
from memalpha.text import THINK, PromptEncoder, content_of, one_line, opens_thinking, quote, slot
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
)
from memalpha.units import UNIT_TOKENS, units

# Questions and the reader's budget in tokens to the passages of each, best first; may be more than
# fit.
Finder = Callable[[Sequence[Question], int], list[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a system kept of one instance, and its cost."""

    find: Finder
    memory_tokens: int
    entries: tuple[str, ...] = ()  # none if the input is kept unchanged
    write_calls: int = 0
    cut_off: int = 0  # write calls that ended at the length limit
    cut: int = 0  # tokens not kept because of a limit
    left_out: Callable[[int], int] = lambda budget: (
        0
    )  # input tokens that ``find`` leaves out for a budget
    operations: OperationCounts = field(default_factory=OperationCounts)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a system is built from: the protocol of one set. ``temperature`` 0 is greedy."""

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
        """Sampling of a batch: greedy, or random numbers that depend only on the seed and the
        batch's instances.
        """
        name = f"{seed}/" + "/".join(instance.id for instance in instances)
        return Sampling(
            max_new_tokens,
            self.temperature,
            seed=zlib.crc32(name.encode()) if self.temperature else None,
        )


@dataclass(frozen=True, slots=True)
class NoOptions(Options):
    """The options of a kind that has none."""


@dataclass
class System:
    """A memory system with its own ``keep`` or ``write``; ``reads_window``: whether its reader may
    use the model's whole window.
    """

    setting: Setting
    options: Any  # of its kind
    reads_window = False

    def __post_init__(self) -> None:
        """Prepare what serves every input; subclasses override it."""

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if the system cannot process these instances; called before the evaluation
        starts.
        """

    def write(
        self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None
    ) -> list[Kept]:
        """Read a batch of inputs; return what is kept of each, in order."""
        return [self.keep(instance, seed) for instance in instances]

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Read one input."""
        raise NotImplementedError


def searched(memory: Memory, retriever: Retriever, k: int) -> Finder:
    """Return the finder of a memory: its blocks, then the ``k`` entries found, as in training."""
    return lambda questions, budget: [
        find_passages(memory, retriever, question.text, k).passages for question in questions
    ]


def kept_memory(
    memory: Memory, find: Finder, results: Sequence[OperationResult], **costs: Any
) -> Kept:
    """Return what a system keeps whose memory has entries, as a reader sees them; ``costs`` are
    fields of ``Kept``.
    """
    entries = tuple(render_entry(entry) for entry in memory)
    applied = [
        result.operation.kind
        for result in results
        if result.changed and result.operation is not None
    ]
    counts = OperationCounts(
        insert=applied.count(OperationKind.INSERT),
        update=applied.count(OperationKind.UPDATE) + applied.count(OperationKind.REPLACE),
        delete=applied.count(OperationKind.DELETE),
        failed=sum(not result.ok for result in results),
        duplicate=sum(result.repeated for result in results),
    )
    return Kept(find, memory.tokens, entries, operations=counts, **costs)


# -------------------------------------------------------------------------------- without a writing
# model
_FACTS = MemorySchema("gold", (Section("facts", SectionKind.LIST, timestamps=True),))


class Piece(NamedTuple):
    """A part of a chunk: stripped text, the chunk's time and index."""

    text: str
    time: str | None
    chunk: int

    def render(self) -> str:
        """Return ``[time] text``, the format of memory entries."""
        return f"[{self.time}] {self.text}" if self.time else self.text


def pieces(chunks: Iterable[Chunk], pack: int, limit: int, count: TokenCounter) -> list[Piece]:
    """Return the pieces in order: units of at most ``limit`` tokens, joined up to ``pack`` tokens
    with the time (1 = never).
    """
    found: list[Piece] = []
    for index, chunk in enumerate(chunks):
        joined: list[Piece] = []
        for text in units(chunk.text, limit, count):
            grown = joined[-1]._replace(text=f"{joined[-1].text}\n{text}") if joined else None
            if grown and count(grown.render()) <= pack:
                joined[-1] = grown
            else:
                joined.append(Piece(text, chunk.time, index))
        found += joined
    return found


@dataclass(frozen=True, slots=True)
class FullContextOptions(Options):
    """How much is read."""

    budget: Literal["window", "reader"] = (
        "window"  # all that the reader's model takes, or the common budget
    )


class FullContext(System):
    """No memory: the reader gets the input itself, in order, each chunk with its time; the oldest
    lines are left out first.
    """

    def __post_init__(self) -> None:
        self.reads_window = self.options.budget == "window"

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Keep the input unchanged."""
        count = self.setting.count
        chunks = [
            Piece(chunk.text, chunk.time, index) for index, chunk in enumerate(instance.chunks)
        ]
        lines = pieces(instance.chunks, 1, UNIT_TOKENS, count)
        whole = sum(count(chunk.render()) for chunk in chunks)
        tokens = sum(count(chunk.text) for chunk in chunks)

        def read(budget: int) -> tuple[str, ...]:
            return newest_in_order(chunks, lines, budget, count)

        def left_out(budget: int) -> int:
            return whole - sum(map(count, read(budget)))

        return Kept(
            lambda questions, budget: [read(budget)] * len(questions), tokens, left_out=left_out
        )


def newest_in_order(
    chunks: Sequence[Piece], lines: Sequence[Piece], tokens: int, count: TokenCounter
) -> tuple[str, ...]:
    """Return the newest chunks, then lines, that fit in ``tokens`` (a line break each), in reading
    order.
    """

    def cost(piece: Piece) -> int:
        return count(one_line(piece.render())) + 1

    kept: list[str] = []
    for chunk in reversed(chunks):
        needed = cost(chunk)
        if needed > tokens:
            tail = ""
            for line in reversed([line for line in lines if line.chunk == chunk.chunk]):
                grown = f"{line.text}\n{tail}" if tail else line.text
                if cost(Piece(grown, line.time, line.chunk)) > tokens:
                    break
                tail = grown
            kept += [chunk._replace(text=tail).render()] if tail else []
            break
        kept.append(chunk.render())
        tokens -= needed
    return tuple(reversed(kept))


@dataclass(frozen=True, slots=True)
class RagOptions(Options):
    """What is searched and how."""

    # most of a piece (0 = reader's budget / ``retrieve_k``; 1 = no joining); a line may have 48
    piece_tokens: NonNegativeInt = 0
    embedder: str = "minilm"  # of ``rag_dense`` and ``rag_two_layer``
    chunks_kept: NonNegativeInt = 8  # ``rag_two_layer``: how many chunks layer 1 keeps (0 = all)


@dataclass
class Rag(System):
    """Retrieval over pieces of the input, with the agent's retriever; ``hybrid`` selects chunks
    (layer 1), then their pieces.
    """

    mode: RetrievalMode

    def __post_init__(self) -> None:
        self.by_chunk = self.mode is RetrievalMode.HYBRID
        sections = self.options.chunks_kept if self.by_chunk else 0
        config = RetrievalConfig(
            retrieval=self.mode, embedder=self.options.embedder, sections_kept=sections
        )
        self._make_retriever = retriever_factory(config)

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Index the input."""
        pack = self.options.piece_tokens or max(
            1, self.setting.reader_tokens // self.setting.retrieve_k
        )
        found = pieces(instance.chunks, pack, max(pack, UNIT_TOKENS), self.setting.count)
        memory = piece_memory(found, self.setting.count, by_chunk=self.by_chunk)
        return Kept(
            searched(memory, self._make_retriever(memory), self.setting.retrieve_k),
            memory_tokens=memory.tokens,
        )


def piece_memory(found: Sequence[Piece], count: TokenCounter, *, by_chunk: bool = False) -> Memory:
    """Return an unlimited memory of pieces, in one section or one for each chunk; the same text and
    time is kept once.
    """
    first = {(piece.text, piece.time): piece for piece in reversed(found)}
    once = [piece for piece in found if first[piece.text, piece.time] is piece]
    rows = [(f"chunk_{piece.chunk}" if by_chunk else "pieces", piece) for piece in once]
    names = dict.fromkeys(section for section, _ in rows) or {"pieces": None}
    schema = MemorySchema(
        "pieces", tuple(Section(name, SectionKind.LIST, timestamps=True) for name in names)
    )
    memory = Memory(schema, count)
    for section, piece in rows:
        memory.apply(
            Operation(OperationKind.INSERT, section, piece.text, timestamp=piece.time),
            chunk=piece.chunk,
        )
    return memory


@dataclass(frozen=True, slots=True)
class ArchiveOptions(Options):
    """How the archive is searched."""

    retrieval: RetrievalMode = RetrievalMode.HYBRID


class Archive(System):
    """What an agent with ``archive: true`` searches if it writes nothing: every line, in the same
    ranking.
    """

    def __post_init__(self) -> None:
        config = RetrievalConfig(
            retrieval=self.options.retrieval, embedder=self.setting.step.config.embedder
        )
        self._make_retriever = retriever_factory(config)

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Archive the input."""
        memory = self.setting.step.new_memory()
        for index, chunk in enumerate(instance.chunks):
            archive.keep(memory, index, chunk, ())
        return Kept(
            searched(memory, self._make_retriever(memory), self.setting.retrieve_k),
            memory_tokens=memory.tokens,
        )


@dataclass(frozen=True, slots=True)
class VerbatimOptions(Options):
    """How much is kept."""

    memory_tokens: NonNegativeInt = (
        0  # most of all entries (0 = schema limits only), to match another system's memory size
    )


class Verbatim(System):
    """Stores every line or sentence of the input unchanged, in the schema's first list; when it is
    full, the oldest are deleted.
    """

    def __post_init__(self) -> None:
        schema = self.setting.step.schema
        section = next(iter(schema.lists), None)
        bounded = bool(self.options.memory_tokens or (section and section.max_entries))
        needed = {OperationKind.INSERT, *([OperationKind.DELETE] if bounded else [])}
        if section is None or not needed <= set(section.operations):
            expected = f"a schema whose first list allows {' and '.join(sorted(needed))}"
            raise InputError(f"system 'verbatim' with schema {schema.name!r}", expected=expected)
        self.section = section

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Store the input line by line."""
        count, most, section = self.setting.count, self.options.memory_tokens, self.section
        memory = self.setting.step.new_memory()
        find = searched(memory, self.setting.step.new_retriever(memory), self.setting.retrieve_k)
        results: list[OperationResult] = []

        def drop_oldest() -> None:
            oldest = memory.entries(section.name)[0]
            results.append(
                memory.apply(Operation(OperationKind.DELETE, section.name, entry_id=oldest.id))
            )

        for piece in pieces(instance.chunks, 1, section.max_entry_tokens or UNIT_TOKENS, count):
            insert = Operation(OperationKind.INSERT, section.name, piece.text, timestamp=piece.time)
            while (
                result := memory.apply(insert, chunk=piece.chunk, time=piece.time)
            ).code is ResultCode.SECTION_FULL:
                drop_oldest()
            results.append(result)
            while 0 < most < memory.tokens:
                drop_oldest()
        written = [
            result.operation.content for result in results if result.changed and result.operation
        ]
        return kept_memory(
            memory, find, results, cut=sum(count(text) for text in written if text) - memory.tokens
        )


class Gold(System):
    """An upper limit: the facts that hold at the end, else pieces of the evidence chunks; first
    those with an accepted answer.
    """

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Look up the evidence."""
        count = self.setting.count
        if instance.facts:
            memory = Memory(_FACTS, count)
            teach(memory, instance, random.Random(0), TeacherConfig())
            texts = tuple(render_entry(entry) for entry in memory)
            return Kept(
                lambda questions, budget: [about(question, texts) for question in questions],
                memory.tokens,
                texts,
            )
        found = pieces(instance.chunks, 1, UNIT_TOKENS, count)

        def evidence(question: Question) -> list[Piece]:
            return [
                piece
                for piece in found
                if not question.evidence or piece.chunk in question.evidence
            ]

        wanted = {piece for question in instance.questions for piece in evidence(question)}
        tokens = sum(count(piece.text) for piece in found if piece in wanted)
        return Kept(
            lambda questions, budget: [answers_first(q, evidence(q), count) for q in questions],
            tokens,
        )


def about(question: Question, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that name the question's subject (all if it has none), those with an
    accepted answer first.
    """
    named = [text for text in texts if not question.subject or contains(text, question.subject)]
    return tuple(sorted(named, key=lambda text: not _answers(question, text)))


def answers_first(
    question: Question, found: Sequence[Piece], count: TokenCounter
) -> tuple[str, ...]:
    """Return pieces as passages: those with an accepted answer first, then by BM25, then in reading
    order.
    """
    memory = piece_memory(found, count)
    ranked = find_passages(memory, TwoLayerRetriever(memory), question.text, len(memory)).passages
    passages = dict.fromkeys([*ranked, *(render_entry(entry) for entry in memory)])
    return tuple(sorted(passages, key=lambda text: not _answers(question, text)))


def _answers(question: Question, text: str) -> bool:
    if question.metric == "label":
        return label(question, Answer(text, (text,))) == 1
    return any(contains(text, answer) for answer in question.answers)


class Teacher(System):
    """Writes what the annotations of generated data say: an upper limit for a policy trained on its
    demonstrations.
    """

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if an instance has no annotations."""
        if bare := next((instance for instance in instances if not instance.facts), None):
            what = f"system 'teacher' on instance {bare.id}, which has no annotated facts"
            raise InputError(what, expected="generated data, named in its sets")

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Keep what the annotations say."""
        step, rng = self.setting.step, random.Random(f"{seed}/{instance.id}")
        memory = step.new_memory()
        results = teach(memory, instance, rng, self.options, keep_lines=step.config.archive)
        return kept_memory(
            memory, searched(memory, step.new_retriever(memory), self.setting.retrieve_k), results
        )


# -------------------------------------------------------------------------------- with one
@dataclass(frozen=True, slots=True)
class AgentOptions(Options):
    """Which agent."""

    adapter: str = ""  # its adapter's folder (empty = the untrained base model)
    settings: Literal["shared", "own"] = (
        "shared"  # the evaluation's (the adapter's schema and codec must match), or the adapter's
    )
    archive: bool | None = (
        # search what was read, too; this and the next two as its settings say (None), or otherwise
        None
    )
    retrieval: RetrievalMode | None = None
    sections_kept: NonNegativeInt | None = None  # by layer 1 (0 = all)
    trust_tools: bool = False  # import the functions that the adapter's schema names as tools


class Agent(System):
    """A policy that writes its memory by tool calls."""

    def __post_init__(self) -> None:
        setting, options = self.setting, self.options
        self.step = _step(setting, options)
        given = {name: getattr(options, name) for name in ("archive", "retrieval", "sections_kept")}
        if changed := {name: value for name, value in given.items() if value is not None}:
            self.step = AgentStep(replace(self.step.config, **changed), setting.host.tokenizer)
        self.generator = setting.host.generator(options.adapter)
        check_context(self.step, setting.host.config)

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if a chunk is longer than the agent accepts."""
        for instance in instances:
            for index, chunk in enumerate(instance.chunks):
                self.step.check_chunk(chunk, where=f"chunk {index} of instance {instance.id}")

    def write(
        self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None
    ) -> list[Kept]:
        """Run one rollout for each instance, in lockstep."""
        sampling = self.setting.sampling(self.step.config.max_completion_length, seed, instances)
        return [
            kept_memory(
                rollout.memory,
                searched(rollout.memory, rollout.retriever, self.setting.retrieve_k),
                [result for step in rollout.steps for result in step.outcome.results],
                write_calls=len(rollout.steps),
                cut_off=sum(step.completion.cut_off for step in rollout.steps),
            )
            for rollout in run_rollouts(
                instances, self.step, self.generator, sampling, on_step=on_step
            )
        ]


def _step(setting: Setting, options: AgentOptions) -> AgentStep:
    if options.settings == "own":
        if not options.adapter:
            raise InputError(
                "settings 'own' of an agent without an adapter",
                expected="an adapter, or settings: shared",
            )
        return AgentStep(
            AgentConfig.load(options.adapter, options.trust_tools), setting.host.tokenizer
        )
    if (
        options.adapter and (Path(options.adapter) / AGENT_FILE).is_file()
    ):  # an adapter of another program has no such file
        saved, shared = AgentConfig.load(options.adapter, options.trust_tools), setting.step.config
        if MemorySchema.load(saved.schema) != setting.step.schema or saved.codec != shared.codec:
            what = f"adapter {options.adapter} was trained with schema {saved.schema!r} and codec {saved.codec!r}"
            raise InputError(
                what,
                expected=f"{shared.schema!r} and {shared.codec!r} as for all agents, or settings: own",
            )
    return setting.step


OVERWRITE_SUMMARY = (
    "You read a long text chunk by chunk and keep a memory of it, of at most {tokens} tokens. Questions will be answered from the "
    "memory alone. Read the chunk, then write the whole memory anew: keep what still holds, add what is new, correct what has "
    "changed. One fact a line, with names. Write the memory and nothing else."
)
CONSTANT_STATE = (
    "You read a long text chunk by chunk. Between chunks you remember only your internal state; questions will be answered from it "
    "at the end. First think, in a few words, about what the chunk changes. Then write your whole new state between <IS> and "
    "</IS>, in at most {tokens} tokens: what still holds of the memory and what is new, one fact a line, with names."
)
_STATE = re.compile(r"<IS>(.*?)(?:</IS>|\Z)", re.DOTALL)


def parse_state(reply: str) -> str:
    """Return the last state of a reply, closed or not; without a mark, the whole reply."""
    found = _STATE.findall(reply)
    return (found[-1] if found else reply.replace("</IS>", "")).strip()


@dataclass(frozen=True, slots=True)
class RewritingOptions(Options):
    """Which model writes, and how much."""

    memory_tokens: NonNegativeInt = 0  # most tokens of the text (0 = the reader's budget)
    adapter: str = ""  # of the model that writes (empty = the base model)


@dataclass
class Rewriting(System):
    """A memory of one text; ``instructions`` holds ``{tokens}``, ``parse`` turns a reply into the
    new text.
    """

    instructions: str
    parse: Callable[[str], str] = str.strip

    def __post_init__(self) -> None:
        host = self.setting.host
        self.limit = self.options.memory_tokens or self.setting.reader_tokens
        self.generator = host.generator(self.options.adapter)
        layout = [
            {"role": "system", "content": self.instructions.format(tokens=self.limit)},
            {
                "role": "user",
                "content": f"<chunk>\n{slot('chunk')}\n</chunk>\n<memory>\n{slot('memory')}\n</memory>",
            },
        ]
        self.encoder = PromptEncoder(host.tokenizer, layout)
        self.begun = THINK if opens_thinking(host.tokenizer) else ""

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if a chunk, the longest text and the longest reply exceed the model's
        window.
        """
        window = self.setting.host.positions
        for instance in instances if window else ():
            for index, chunk in enumerate(instance.chunks):
                if (asked := len(self._prompt(chunk, "").ids) + 2 * self.limit) > window:
                    what = f"chunk {index} of instance {instance.id} takes {asked} tokens with instructions and two texts"
                    expected = "smaller chunks, or a lower memory_tokens"
                    raise InputError(
                        f"{what} of {self.limit} tokens, and the model's window has {window}",
                        expected=expected,
                    )

    def write(
        self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None
    ) -> list[Kept]:
        """Rewrite the texts chunk by chunk, all instances in lockstep."""
        texts = [[""] for _ in instances]  # of each instance, as it was before and after each chunk
        cut_off = [0] * len(instances)
        total = max(len(instance.chunks) for instance in instances)
        sampling = self.setting.sampling(self.limit, seed, instances)
        for t in range(total):
            active = [i for i, instance in enumerate(instances) if t < len(instance.chunks)]
            prompts = [self._prompt(instances[i].chunks[t], texts[i][-1]) for i in active]
            drawn = replace(sampling, seed=None if sampling.seed is None else sampling.seed + t)
            for i, completion in zip(active, self.generator.generate(prompts, drawn), strict=True):
                texts[i].append(self.parse(content_of(self.begun + completion.text)[0]))
                cut_off[i] += completion.cut_off
            if on_step:
                on_step(t + 1, total)
        return list(map(self._kept, texts, cut_off))

    def _kept(self, texts: Sequence[str], cut_off: int) -> Kept:
        lines = tuple(units(texts[-1], self.limit, self.setting.count))
        tokens = self.setting.count(texts[-1])
        counts = OperationCounts(update=sum(before != after for before, after in pairwise(texts)))
        return Kept(
            lambda questions, budget: [lines] * len(questions),
            tokens,
            lines,
            len(texts) - 1,
            cut_off,
            operations=counts,
        )

    def _prompt(self, chunk: Chunk, text: str) -> Prompt:
        said = quote(f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text)
        ids, shared = self.encoder.encode(
            {"chunk": said, "memory": quote(text) or "empty"}, shared="chunk"
        )
        return Prompt((), ids, shared)
