"""Systems without a writing model: full context, retrieval over chunks, archive, verbatim, gold, and the rule-based teacher.

All but the teacher use ``pieces``, which never span two chunks. Departures from the baselines of Mem-alpha (arXiv
2509.25911): BM25 returns pieces, not two whole chunks; full context takes what the reader can take, not the last 30k tokens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import NonNegativeInt

from memalpha.agent import archive
from memalpha.config import Options
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.evaluation.systems import Kept, NoOptions, Setting, System, kept_memory, searched
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import TokenCounter
from memalpha.qa.evaluator import find_passages
from memalpha.qa.metrics import contains, label
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.two_layer import TwoLayerRetriever, retriever_factory
from memalpha.text import one_line
from memalpha.types import Answer, Chunk, Instance, Operation, OperationKind, OperationResult, Question, ResultCode
from memalpha.units import UNIT_TOKENS, units

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
    """Return the pieces in order: units of at most ``limit`` tokens, joined up to ``pack`` tokens with the time (1 = never)."""
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

    budget: Literal["window", "reader"] = "window"  # all that the reader's model takes, or the common budget


class FullContext(System):
    """No memory: the reader gets the input itself, in order, each chunk with its time; the oldest lines are left out first."""

    def __init__(self, setting: Setting, options: FullContextOptions) -> None:
        self.count = setting.count
        self.reads_window = options.budget == "window"

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Keep the input unchanged."""
        chunks = [Piece(chunk.text, chunk.time, index) for index, chunk in enumerate(instance.chunks)]
        lines, whole = pieces(instance.chunks, 1, UNIT_TOKENS, self.count), sum(self.count(chunk.render()) for chunk in chunks)
        tokens = sum(self.count(chunk.text) for chunk in instance.chunks)

        def read(budget: int) -> tuple[str, ...]:
            return newest_in_order(chunks, lines, budget, self.count)

        def left_out(budget: int) -> int:
            return whole - sum(map(self.count, read(budget)))

        return Kept(lambda questions, budget: [read(budget)] * len(questions), tokens, left_out=left_out)


def newest_in_order(chunks: Sequence[Piece], lines: Sequence[Piece], tokens: int, count: TokenCounter) -> tuple[str, ...]:
    """Return the newest chunks, then lines, that fit in ``tokens`` (a line break each), in reading order."""

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

    piece_tokens: NonNegativeInt = 0  # most of a piece (0 = reader's budget / ``retrieve_k``; 1 = no joining); a line may have 48
    embedder: str = "minilm"  # of ``rag_dense`` and ``rag_two_layer``
    chunks_kept: NonNegativeInt = 8  # ``rag_two_layer``: how many chunks layer 1 keeps (0 = all)


class Rag(System):
    """Retrieval over pieces of the input, with the agent's retriever; ``hybrid`` selects chunks (layer 1), then their pieces."""

    def __init__(self, setting: Setting, options: RagOptions, mode: RetrievalMode) -> None:
        self.setting, self.by_chunk = setting, mode is RetrievalMode.HYBRID
        self.pack = options.piece_tokens or max(1, setting.reader_tokens // setting.retrieve_k)
        kept = options.chunks_kept if self.by_chunk else 0
        self._make_retriever = retriever_factory(RetrievalConfig(retrieval=mode, embedder=options.embedder, sections_kept=kept))

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Index the input."""
        count = self.setting.count
        found = pieces(instance.chunks, self.pack, max(self.pack, UNIT_TOKENS), count)
        memory = piece_memory(found, count, by_chunk=self.by_chunk)
        return Kept(searched(memory, self._make_retriever(memory), self.setting.retrieve_k), memory_tokens=memory.tokens)


def piece_memory(found: Sequence[Piece], count: TokenCounter, *, by_chunk: bool = False) -> Memory:
    """Return an unlimited memory of pieces, in one section or one for each chunk; the same text and time is kept once."""
    first = {(piece.text, piece.time): piece for piece in reversed(found)}
    once = [piece for piece in found if first[piece.text, piece.time] is piece]
    rows = [(f"chunk_{piece.chunk}" if by_chunk else "pieces", piece) for piece in once]
    names = dict.fromkeys(section for section, _ in rows) or {"pieces": None}
    schema = MemorySchema("pieces", tuple(Section(name, SectionKind.LIST, timestamps=True) for name in names))
    memory = Memory(schema, count)
    for section, piece in rows:
        memory.apply(Operation(OperationKind.INSERT, section, piece.text, timestamp=piece.time), chunk=piece.chunk)
    return memory


@dataclass(frozen=True, slots=True)
class ArchiveOptions(Options):
    """How the archive is searched."""

    retrieval: RetrievalMode = RetrievalMode.HYBRID


class Archive(System):
    """What an agent with ``archive: true`` searches if it writes nothing: every line, in the same ranking."""

    def __init__(self, setting: Setting, options: ArchiveOptions) -> None:
        self.setting = setting
        self._make_retriever = retriever_factory(
            RetrievalConfig(retrieval=options.retrieval, embedder=setting.step.config.embedder)
        )

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Archive the input."""
        memory = self.setting.step.new_memory()
        for index, chunk in enumerate(instance.chunks):
            archive.keep(memory, index, chunk, ())
        return Kept(searched(memory, self._make_retriever(memory), self.setting.retrieve_k), memory_tokens=memory.tokens)


@dataclass(frozen=True, slots=True)
class VerbatimOptions(Options):
    """How much is kept."""

    memory_tokens: NonNegativeInt = 0  # most of all entries (0 = schema limits only), to match another system's memory size


class Verbatim(System):
    """Stores every line or sentence of the input unchanged, in the schema's first list; when it is full, the oldest are deleted."""

    def __init__(self, setting: Setting, options: VerbatimOptions) -> None:
        self.setting, self.options = setting, options
        section = next(iter(setting.step.schema.lists), None)
        bounded = bool(options.memory_tokens or (section and section.max_entries))
        needed = {OperationKind.INSERT, *([OperationKind.DELETE] if bounded else [])}
        if section is None or not needed <= set(section.operations):
            expected = f"a schema whose first list allows {' and '.join(sorted(needed))}"
            raise InputError(f"system 'verbatim' with schema {setting.step.schema.name!r}", expected=expected)
        self.section = section

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Store the input line by line."""
        step, most = self.setting.step, self.options.memory_tokens
        memory, held = step.new_memory(), deque[str]()
        retriever = step.new_retriever(memory)
        results: list[OperationResult] = []
        cut = 0

        def drop_oldest() -> int:
            before = memory.tokens
            results.append(memory.apply(Operation(OperationKind.DELETE, self.section.name, entry_id=held.popleft())))
            return before - memory.tokens

        for piece in pieces(instance.chunks, 1, self.section.max_entry_tokens or UNIT_TOKENS, self.setting.count):
            insert = Operation(OperationKind.INSERT, self.section.name, piece.text, timestamp=piece.time)
            while (result := memory.apply(insert, chunk=piece.chunk, time=piece.time)).code is ResultCode.SECTION_FULL:
                cut += drop_oldest()
            results.append(result)
            if result.changed:
                held.append(result.entry_id or "")
            while 0 < most < memory.tokens:
                cut += drop_oldest()
        return kept_memory(memory, retriever, self.setting.retrieve_k, results, cut=cut)


class Gold(System):
    """An upper limit: the facts that hold at the end, else pieces of the evidence chunks; first those with an accepted answer."""

    def __init__(self, setting: Setting, options: NoOptions) -> None:
        self.count = setting.count

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Look up the evidence."""
        if instance.facts:
            memory = Memory(_FACTS, self.count)
            teach(memory, instance, random.Random(0), TeacherConfig())
            texts = tuple(render_entry(entry) for entry in memory)
            return Kept(lambda questions, budget: [about(question, texts) for question in questions], memory.tokens, texts)
        found = pieces(instance.chunks, 1, UNIT_TOKENS, self.count)

        def evidence(question: Question) -> list[Piece]:
            return [piece for piece in found if not question.evidence or piece.chunk in question.evidence]

        wanted = {piece for question in instance.questions for piece in evidence(question)}
        tokens = sum(self.count(piece.text) for piece in found if piece in wanted)
        return Kept(lambda questions, budget: [answers_first(q, evidence(q), self.count) for q in questions], tokens)


def about(question: Question, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that name the question's subject (all if it has none), those with an accepted answer first."""
    named = [text for text in texts if not question.subject or contains(text, question.subject)]
    return tuple(sorted(named, key=lambda text: not _answers(question, text)))


def answers_first(question: Question, found: Sequence[Piece], count: TokenCounter) -> tuple[str, ...]:
    """Return pieces as passages: those with an accepted answer first, then by BM25, then in reading order."""
    memory = piece_memory(found, count)
    ranked = find_passages(memory, TwoLayerRetriever(memory), question.text, len(memory)).passages
    passages = dict.fromkeys([*ranked, *(render_entry(entry) for entry in memory)])
    return tuple(sorted(passages, key=lambda text: not _answers(question, text)))


def _answers(question: Question, text: str) -> bool:
    if question.metric == "label":
        return label(question, Answer(text, (text,))) == 1
    return any(contains(text, answer) for answer in question.answers)


class Teacher(System):
    """Writes what the annotations of generated data say: an upper limit for a policy trained on its demonstrations."""

    def __init__(self, setting: Setting, options: TeacherConfig) -> None:
        self.setting, self.config = setting, options

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if an instance has no annotations."""
        if bare := next((instance for instance in instances if not instance.facts), None):
            what = f"system 'teacher' on instance {bare.id}, which has no annotated facts"
            raise InputError(what, expected="generated data, named in its sets")

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Keep what the annotations say."""
        step, rng = self.setting.step, random.Random(f"{seed}/{instance.id}")
        memory = step.new_memory()
        results = teach(memory, instance, rng, self.config, keep_lines=step.config.archive)
        retriever = step.new_retriever(memory)
        return kept_memory(memory, retriever, self.setting.retrieve_k, results)
