"""The agent step makes the prompt of a chunk, and applies the completion to a memory.

Training, evaluation and use all call these two functions. Some things always hold. The system text
and the chunk precede the memory, so rollouts of a chunk share a prefix. Text from chunks and memory
cannot become a special token or close its fence, start a new line of the memory, nor pose as a
section's name or as another entry. The memory is shown within a budget of tokens, line by line, and
no line is truncated. A mistake of the model is a failed result and no exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from itertools import chain, islice, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING

from memalpha.agent.codecs import Codec, CompactCodec, HermesCodec, make_codec
from memalpha.agent.config import AgentConfig
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, Snapshot, render_entry
from memalpha.memory.schema import MemorySchema, to_call, to_operations, tool_schemas
from memalpha.retrieval.archive import archive_chunk, says
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.text.encoding import PromptEncoder, slot, takes_tools
from memalpha.text.quoting import is_text, one_line, quote, strip_marks
from memalpha.text.thinking import opens_thinking
from memalpha.text.times import check_time
from memalpha.types import (
    CallError,
    Change,
    Chunk,
    Entry,
    JsonObject,
    Operation,
    OperationResult,
    Prompt,
    ResultCode,
    Retriever,
    Span,
    TokenCounter,
    ToolCall,
)
from memalpha.units import UNIT_TOKENS, units

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# ------------------------------------------------------------------------------------------------
# what the policy sees: the instructions, and its memory as lines

_LINE_TOKENS = 4  # least tokens of a line, roughly
_LEAST_LOOKED_AT = 64  # least number of candidates of each kind


def system_text(codec: Codec, schema: MemorySchema, described: bool) -> str:
    """Return the instructions for a codec and schema.

    ``described`` lists the tools, for templates without tools.
    """
    if isinstance(codec, CompactCodec):
        return _text("compact").format(operations=codec.operations()).strip()
    sections = [
        f"- {section.name} ({section.kind}): {section.description}" for section in schema.sections
    ]
    text = _text("hermes").format(sections="\n".join(sections))
    if described:
        tools = [_describe(tool["function"]) for tool in tool_schemas(schema)]
        text += _text("hermes_described").format(tools="\n".join(tools))
    return text.strip()


def _text(name: str) -> str:
    path = resources.files("memalpha.agent") / "prompts" / f"{name}.txt"
    return path.read_text(encoding="utf-8")


def _describe(function: JsonObject) -> str:
    parameters = function["parameters"]
    arguments = [
        name if name in parameters["required"] else f"{name}?" for name in parameters["properties"]
    ]
    return f"- {function['name']}({', '.join(arguments)}): {function['description']}"


class MemoryView:
    """Renders memories of one schema as the policy sees them; ``count`` counts its tokens."""

    def __init__(self, config: AgentConfig, codec: Codec, count: TokenCounter) -> None:
        self.config = config
        self.codec = codec
        self.schema = codec.schema
        self._count = count
        self._cost = lru_cache(maxsize=100_000)(self._line_tokens)

    def render(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> str:
        """Return the blocks, then the entries that fit the budget, by section, oldest first.

        One line each. If not all fit: while they fit, the entries most related to the chunk and the
        ``view_recent`` newest in turn, then the other newest; at most ``view_tokens`` / 4 of each
        kind (at least 64), so that the cost of a step does not grow with the memory. Related are
        the best of each of the chunk's lines, then the second best of each, and so on.
        """
        schema = memory.schema  # its own: nothing of a memory that no model writes is called
        lines: dict[str, list[str]] = {section.name: [] for section in schema.sections}
        for entry in sorted(self._shown(memory, retriever, chunk), key=attrgetter("created")):
            lines[entry.section].append(self.line(entry))
        for section in schema.blocks:
            if memory.block(section.name):
                lines[section.name] = [self._block_line(memory.block(section.name), memory)]
        if len(schema.sections) > 1:
            for name, body in lines.items():
                lines[name] = [f"{name}:", *body] if body else []
        return "\n".join(chain.from_iterable(lines.values())) or "empty"

    def line(self, entry: Entry) -> str:
        """Return the line of a list entry."""
        return f"{'' if self.codec.names_by_text else entry.id} {self._text(entry)}"

    def name_of(self, entry: Entry) -> str:
        """Return how calls name a list entry.

        Its id or, with ``names_by_text``, its text as it is shown.
        """
        return self._text(entry) if self.codec.names_by_text else entry.id

    def entry_named(self, text: str, memory: Memory) -> Entry | None:
        """Return the oldest entry that is shown with a text; None if there is none."""
        entry = memory.entry_with(text)
        if entry is None and (self.config.show_times or "&lt;" in text or "\\n" in text):
            same = (entry for entry in memory.entries() if self._text(entry) == text)
            entry = next(same, None)
        return entry

    def forget_texts(self) -> None:
        """Clear the cache of lengths, which holds texts."""
        self._cost.cache_clear()

    def _text(self, entry: Entry) -> str:
        text = render_entry(entry) if self.config.show_times else entry.content
        return one_line(quote(text))

    def _block_line(self, text: str, memory: Memory) -> str:
        """The line of a block, marked if it could be read as another line.

        As a section's name, or as the line of an entry that there is.
        """
        line = one_line(quote(text))
        seen = strip_marks(line)
        names = {f"{section.name}:" for section in memory.schema.sections}
        poses = seen[:1].isspace() or "".join(seen.split()) in names
        if not self.codec.names_by_text:
            poses = poses or any(memory.get(word) for word in seen.split(maxsplit=1)[:1])
        return f"| {line}" if poses else line

    def _shown(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> list[Entry]:
        config = self.config
        if not config.view_related:
            return self._fitting(islice(memory.newest(), config.view_recent), skips=False)
        lists = [section.name for section in memory.schema.lists]
        shown = self._fitting(memory.newest(), skips=False)
        if len(shown) == sum(map(memory.section_size, lists)):
            return shown
        looked_at = max(_LEAST_LOOKED_AT, config.view_tokens // _LINE_TOKENS)
        newest = list(islice(memory.newest(), looked_at))
        related: dict[str, Entry] = {}
        # a search for the whole chunk finds what resembles all of its lines, and no line's old fact
        lines = units(chunk.text, UNIT_TOKENS, self._count)
        found = [retriever.search(line, looked_at, lists) for line in lines]
        for hits in zip_longest(*found):
            related |= {hit.entry.id: hit.entry for hit in hits if hit is not None}
        most = islice(related.values(), looked_at)
        in_turn = chain.from_iterable(zip_longest(most, newest[: config.view_recent]))
        entries = {entry.id: entry for entry in chain(in_turn, newest) if entry is not None}
        return self._fitting(entries.values())

    def _fitting(self, entries: Iterable[Entry], skips: bool = True) -> list[Entry]:
        """Each entry, in order, that fits what is left of the budget.

        One that does not is skipped, or ends it.
        """
        left = self.config.view_tokens
        fitting = []
        for entry in entries:
            cost = self._cost(entry)
            if cost <= left:
                fitting.append(entry)
                left -= cost
            elif not skips:
                break
        return fitting

    def _line_tokens(self, entry: Entry) -> int:
        return self._count(self.line(entry)) + 1


# ------------------------------------------------------------------------------------------------
# prompts in, completions out

Refusal = Callable[[Memory, int, Chunk, Sequence[Operation]], str]
"""Tells why the operations of a call on a chunk, by its index, are refused; empty: they are not."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Effect of a completion.

    One result per operation, failed call or parse error, and the applied changes, both in order.
    ``lines`` are the numbers of the changes that put a line of the chunk into the archive.
    """

    results: tuple[OperationResult, ...]
    changes: tuple[Change, ...]
    lines: tuple[int, ...] = ()


class AgentStep:
    """Makes the prompt of a chunk, and applies a completion to the memory.

    Training, evaluation and use all call ``prompt`` and ``apply``. ``new_retriever`` makes a
    retriever that follows a memory.

    Args:
        config: The settings of the agent.
        tokenizer: The tokenizer of the policy, with a chat template.

    Raises:
        InputError: The tokenizer has no chat template, or a name in ``config`` is unknown.
    """

    def __init__(self, config: AgentConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config = config
        self.schema = MemorySchema.load(config.schema)
        self.codec: Codec = make_codec(config.codec, self.schema)
        self.codec.begins_thinking = opens_thinking(tokenizer)
        announced = isinstance(self.codec, HermesCodec) and takes_tools(tokenizer)
        self.system = system_text(self.codec, self.schema, described=not announced)
        # chat servers get no ``tools=``
        self._spelt_out = system_text(self.codec, self.schema, described=True)
        layout = _messages(self.system, slot("chunk"), slot("memory"))
        tools = tool_schemas(self.schema) if announced else None
        self.encoder = PromptEncoder(tokenizer, layout, tools)
        self.view = MemoryView(config, self.codec, self.encoder.count)
        self.new_retriever = retriever_factory(config, archive=config.archive)

    def new_memory(self, entries: Sequence[Entry] = ()) -> Memory:
        """Return a memory of these entries, which counts tokens with the policy's tokenizer.

        Args:
            entries: The entries in order of creation.

        Returns:
            The memory, with the schema of the agent.
        """
        memory = Memory(self.schema, self.encoder.count)
        memory.restore(Snapshot(self.schema.name, tuple(entries), 1))
        return memory

    def forget_texts(self) -> None:
        """Clear the caches that hold texts."""
        self.encoder.untrusted.cache_clear()
        self.view.forget_texts()

    # --------------------------------------------------------------------------------------------
    # prompt
    def prompt(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> Prompt:
        """Make the prompt of one step.

        Args:
            memory: The memory, of which the view shows a part.
            retriever: The retriever of the memory, which finds related entries.
            chunk: The chunk to read.

        Returns:
            The prompt as messages and token ids.

        Raises:
            InputError: The chunk is longer than ``max_chunk_tokens``, or not Unicode text.
        """
        self._check_text(chunk, "a chunk")
        shows_time = self.config.show_times and chunk.time
        text = f"[{one_line(str(chunk.time))}]\n{chunk.text}" if shows_time else chunk.text
        texts = {"chunk": quote(text), "memory": self.view.render(memory, retriever, chunk)}
        ids, shared = self.encoder.encode(texts, shared="chunk")
        return Prompt(tuple(_messages(self._spelt_out, **texts)), ids, shared)

    def check_chunk(self, chunk: Chunk, where: str = "a chunk") -> None:
        """Raise InputError if a chunk cannot be read.

        Args:
            chunk: The chunk to check.
            where: The name of the chunk in the message.

        Raises:
            InputError: Its text is too long or not Unicode, or its time is not ISO 8601.
        """
        self._check_text(chunk, where)
        if chunk.time is not None:
            check_time(chunk.time, f"the time of {where}")

    def chunk_tokens(self, text: str) -> int:
        """Return the number of tokens of a chunk's text as the prompt shows it (quoted).

        Args:
            text: The text of the chunk.

        Returns:
            The number of tokens.
        """
        return self.encoder.count(quote(text))

    def _check_text(self, chunk: Chunk, where: str) -> None:
        if not is_text(chunk.text + (chunk.time or "")):
            raise InputError(
                f"{where} holds a lone surrogate ({chunk.text[:40]!a}...)",
                expected="Unicode text, from a source in UTF-8",
            )
        tokens = self.chunk_tokens(chunk.text)
        if tokens > self.config.max_chunk_tokens:
            raise InputError(
                f"{where} has {tokens} tokens ({chunk.text[:40]!r}...)",
                expected=f"at most max_chunk_tokens = {self.config.max_chunk_tokens}",
                fix="prepare the data with shorter chunks or raise max_chunk_tokens",
            )

    # --------------------------------------------------------------------------------------------
    # completion
    def apply(
        self,
        memory: Memory,
        index: int,
        chunk: Chunk,
        completion: str,
        cut_off: bool = False,
        *,
        keep: bool = True,
        guard: Refusal | None = None,
        labels: Sequence[Span] | None = None,
    ) -> StepOutcome:
        """Apply the calls of a completion to a memory, in place and in order.

        Args:
            memory: The memory, which is changed.
            index: Index of the chunk, which the written entries record.
            chunk: The chunk that the policy has read.
            completion: The text of the completion.
            cut_off: Whether the completion reached the limit of tokens.
            keep: Whether the chunk is archived here, if the agent has an archive; False if the
                caller does it.
            guard: A function that may refuse a write; it is only for use, not for training.
            labels: Places of the speakers' labels in the chunk, if they are known.

        Returns:
            The result of each call, the changes, and the numbers of the archived lines.

        Raises:
            InputError: A tool of your own failed. A mistake of the policy raises nothing; it is a
                failed result.
        """
        start = len(memory.changes)
        results: list[OperationResult] = []
        for item in self.codec.parse(completion, cut_off):
            results += self._apply_one(item, memory, index, chunk, guard)
        changes = tuple(memory.changes[start:])
        lines: Sequence[int] = ()
        if self.config.archive and keep:
            lines = archive_chunk(memory, index, chunk, changes, labels)
        return StepOutcome(tuple(results), changes, tuple(lines))

    def _apply_one(
        self,
        item: ToolCall | CallError,
        memory: Memory,
        index: int,
        chunk: Chunk,
        guard: Refusal | None,
    ) -> list[OperationResult]:
        if isinstance(item, CallError):
            return [OperationResult(False, ResultCode.UNPARSED, item.message)]
        if self.codec.names_by_text and "entry_id" in item.arguments:
            text = item.arguments["entry_id"]
            entry = self.view.entry_named(text, memory)
            if entry is None:
                return [OperationResult(False, ResultCode.UNKNOWN_ID, f"no entry reads {text!r}")]
            item = _naming(item, entry.id)
        operations = to_operations(item, memory)
        if isinstance(operations, OperationResult):
            return [operations]
        refusal = guard(memory, index, chunk, operations) if guard else ""
        if refusal:
            return [OperationResult(False, ResultCode.GUARDED, refusal, operations[0])]
        return memory.apply_all(
            operations, chunk=index, time=chunk.time, says=partial(says, chunk.text)
        )

    def write(self, memory: Memory, operations: Sequence[Operation]) -> str:
        """Return the completion that asks for operations.

        Args:
            memory: The memory to which the operations apply; it is not changed.
            operations: The operations, in order.

        Returns:
            The text of the completion in the agent's tool-call format.

        Raises:
            ValueError: The format cannot express one of the operations.
        """
        calls = []
        trial = memory.copy()
        for operation in operations:
            call = to_call(operation)
            entry = trial.get(operation.entry_id or "")
            calls.append(_naming(call, self.view.name_of(entry)) if entry else call)
            trial.apply(operation)
        return self.codec.render(calls)


def user_text(chunk: str, memory: str) -> str:
    """Return what a prompt says after the instructions."""
    return f"<chunk>\n{chunk}\n</chunk>\n<memory>\n{memory}\n</memory>"


def _messages(system: str, chunk: str, memory: str) -> list[dict[str, str]]:
    user = user_text(chunk, memory)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _naming(call: ToolCall, name: str) -> ToolCall:
    return replace(call, arguments={**call.arguments, "entry_id": name})
