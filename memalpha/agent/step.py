"""The agent step: make the prompt of a chunk, and apply the completion to a memory. Training,
evaluation and use all call these.

What always holds: the system text and the chunk precede the memory, so rollouts of a chunk share a
prefix; text from chunks and memory cannot become a special token, close its fence, start a new line
of the view or pose as a section's name or another entry; nothing is truncated. The view also shows
entries related to the chunk; in arXiv 2509.25911 only the five newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

from memalpha.agent import archive
from memalpha.agent.codecs import Codec, CompactCodec, HermesCodec, make_codec
from memalpha.agent.config import AgentConfig
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, Snapshot, render_entry
from memalpha.memory.schema import (
    SEARCH,
    MemorySchema,
    query_of,
    to_call,
    to_operations,
    tool_schemas,
)
from memalpha.protocols import Retriever
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.text import (
    PromptEncoder,
    is_text,
    one_line,
    opens_thinking,
    quote,
    slot,
    takes_tools,
    unmarked,
)
from memalpha.times import check_time
from memalpha.types import (
    CallError,
    Change,
    Chunk,
    Completion,
    Entry,
    Operation,
    OperationResult,
    Prompt,
    ResultCode,
    ToolCall,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TIME_TOKENS = (
    40  # most tokens of a chunk's time, with its brackets: no token is less than a character
)
_LINE_TOKENS = 4  # least tokens of a view line, roughly
_LEAST_LOOKED_AT = 64  # least number of candidates of each kind


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Effect of a completion: one result per operation, failed call or parse error, and the applied
    changes, both in order.
    """

    results: tuple[OperationResult, ...]
    changes: tuple[Change, ...]


class AgentStep:
    """Makes prompts and applies completions; InputError if the tokenizer has no chat template or a
    name is unknown.
    """

    def __init__(self, config: AgentConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config = config
        self.schema = MemorySchema.load(config.schema)
        self.codec: Codec = make_codec(config.codec, self.schema, config.searches > 0)
        described = not (isinstance(self.codec, HermesCodec) and takes_tools(tokenizer))
        self.system = system_text(self.codec, self.schema, described)
        self._spelt_out = system_text(
            self.codec, self.schema, True
        )  # chat servers get no ``tools=``
        layout = [
            {"role": "system", "content": self.system},
            {
                "role": "user",
                "content": f"<chunk>\n{slot('chunk')}\n</chunk>\n<memory>\n{slot('memory')}\n</memory>",
            },
        ]
        tools = None if described else tool_schemas(self.schema, config.searches > 0)
        self.encoder = PromptEncoder(tokenizer, layout, tools)
        self.codec.begins_thinking = opens_thinking(tokenizer)
        self.around: tuple[tuple[int, ...], tuple[int, ...]] = (
            (),
            (),
        )  # ids before and after an answer to a search
        if (
            config.searches
        ):  # a user's message: every template takes it, and a tool's message not all
            layout += [
                {"role": "assistant", "content": slot("said")},
                {"role": "user", "content": slot("found")},
            ]
            self.around = PromptEncoder(tokenizer, layout, tools).around("found")
        self.new_retriever: Callable[[Memory], Retriever] = retriever_factory(
            config, archive=config.archive
        )  # one that follows a memory
        self._cost = lru_cache(maxsize=100_000)(self._line_tokens)

    def new_memory(self, held: Sequence[Entry] = ()) -> Memory:
        """Return a memory of these entries, in order of creation, that counts tokens with the
        policy's tokenizer.
        """
        memory = Memory(self.schema, self.encoder.count)
        memory.restore(Snapshot(self.schema.name, tuple(held), 1))
        return memory

    # --------------------------------------------------------------------------------------------
    # prompt
    def prompt(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> Prompt:
        """Make the prompt of one step; InputError if the chunk is longer than
        ``max_chunk_tokens``.
        """
        self._check_text(chunk, "a chunk")
        text = quote(
            f"[{one_line(chunk.time)}]\n{chunk.text}"
            if self.config.show_times and chunk.time
            else chunk.text
        )
        view = self.view(memory, retriever, chunk)
        ids, shared = self.encoder.encode({"chunk": text, "memory": view}, shared="chunk")
        content = f"<chunk>\n{text}\n</chunk>\n<memory>\n{view}\n</memory>"
        return Prompt(
            ({"role": "system", "content": self._spelt_out}, {"role": "user", "content": content}),
            ids,
            shared,
        )

    def check_chunk(self, chunk: Chunk, where: str = "a chunk") -> None:
        """Raise InputError, naming ``where``: a text that is too long or not Unicode, a time that
        is not ISO 8601.
        """
        self._check_text(chunk, where)
        if chunk.time is not None:
            check_time(chunk.time, f"the time of {where}")

    def _check_text(self, chunk: Chunk, where: str) -> None:
        if not is_text(chunk.text + (chunk.time or "")):
            raise InputError(
                f"{where} holds a lone surrogate ({chunk.text[:40]!a}...)",
                expected="Unicode text, from a source in UTF-8",
            )
        if (tokens := self.chunk_tokens(chunk.text)) > self.config.max_chunk_tokens:
            raise InputError(
                f"{where} has {tokens} tokens ({chunk.text[:40]!r}...)",
                expected=f"at most max_chunk_tokens = {self.config.max_chunk_tokens}",
                fix="prepare the data with shorter chunks or raise max_chunk_tokens",
            )

    def chunk_tokens(self, text: str) -> int:
        """Return the tokens of a chunk's text as the prompt shows it (quoted)."""
        return self.encoder.count(quote(text))

    def view(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> str:
        """Render the memory for the policy: blocks, then the entries that fit the budget, by
        section, oldest first; one line each.

        If not all fit: while they fit, the entries most related to the chunk and the
        ``view_recent`` newest in turn, then the other newest; at most ``view_tokens`` / 4 of each
        kind (at least 64), so that the cost of a step does not grow with the memory.
        """
        return self._rendered(self.shown(memory, retriever, chunk), memory)

    def _rendered(self, entries: Iterable[Entry], memory: Memory | None = None) -> str:
        shown: dict[str, list[str]] = {section.name: [] for section in self.schema.sections}
        for entry in sorted(entries, key=lambda entry: entry.created):
            shown[entry.section].append(self._line(entry))
        lines = []
        for section in self.schema.sections:
            body = shown[section.name]
            if (
                memory is not None
                and section in self.schema.blocks
                and (text := memory.block(section.name))
            ):
                line = one_line(quote(text))
                body = [f"| {line}" if self._poses(line, memory) else line]
            if body and len(self.schema.sections) > 1:
                lines.append(f"{section.name}:")
            lines += body
        return "\n".join(lines) or "empty"

    def _poses(self, line: str, memory: Memory) -> bool:
        """Whether a block's line could be read as a section's name, or as the line of an entry that
        there is.
        """
        read = unmarked(line)
        first = read.split(maxsplit=1)[:1]
        named = "".join(read.split()) in {f"{section.name}:" for section in self.schema.sections}
        return (
            named
            or read[:1].isspace()
            or (not self.codec.names_by_text and bool(first) and memory.get(first[0]) is not None)
        )

    def _line(self, entry: Entry) -> str:
        return f"{'' if self.codec.names_by_text else entry.id} {self._shown(entry)}"

    def _shown(self, entry: Entry) -> str:
        return one_line(quote(render_entry(entry) if self.config.show_times else entry.content))

    def shown(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> list[Entry]:
        """Return the entries that the view shows, in no order."""
        if not self.config.view_related:
            return self._chosen(
                islice(memory.newest(), self.config.view_recent),
                self.config.view_tokens,
                skips=False,
            )
        newest = self._chosen(memory.newest(), self.config.view_tokens, skips=False)
        if len(newest) == sum(memory.section_size(section.name) for section in self.schema.lists):
            return newest
        looked_at = max(_LEAST_LOOKED_AT, self.config.view_tokens // _LINE_TOKENS)
        newest = list(islice(memory.newest(), looked_at))
        related = self._search(retriever, chunk.text, looked_at)
        mixed = chain.from_iterable(zip_longest(related, newest[: self.config.view_recent]))
        return self._chosen(
            {entry.id: entry for entry in (*mixed, *newest) if entry is not None}.values(),
            self.config.view_tokens,
        )

    def _search(self, retriever: Retriever, query: str, k: int) -> list[Entry]:
        lists = [section.name for section in self.schema.lists]
        return [hit.entry for hit in retriever.search(query, k, lists)]

    def _chosen(self, entries: Iterable[Entry], left: int, skips: bool = True) -> list[Entry]:
        """Each entry, in order, that fits what is ``left`` of a budget in tokens; one that does not
        is skipped, or ends it.
        """
        chosen = []
        for entry in entries:
            cost = self._cost(entry)
            if cost <= left:
                chosen.append(entry)
                left -= cost
            elif not skips:
                break
        return chosen

    def _line_tokens(self, entry: Entry) -> int:
        return self.encoder.count(self._line(entry)) + 1

    def forget_texts(self) -> None:
        """Clear the caches of token ids and lengths, which hold texts."""
        self.encoder.untrusted.cache_clear()
        self._cost.cache_clear()

    # --------------------------------------------------------------------------------------------
    # search
    def query(self, completion: Completion) -> str | None:
        """Return what the first search of a completion's last turn looks for; None if it does not
        search.
        """
        return next(
            filter(None, map(query_of, self._read(completion.text, completion.cut_off))), None
        )

    def found(self, retriever: Retriever, query: str) -> str:
        """Return the message with the entries found, as in the view: while they fit, in half of its
        budget.
        """
        entries = self._chosen(
            self._search(retriever, query, self.config.retrieve_k), self.config.view_tokens // 2
        )
        return f"<memory>\n{self._rendered(entries)}\n</memory>"

    def answered(self, completion: Completion, found: str) -> Completion:
        """Return a completion that searched with the message ``found`` behind it, up to where the
        next turn begins.
        """
        message: tuple[int, ...] = ()
        if completion.ids:
            before, after = self.around
            if before[:1] in (
                completion.ids[-1:],
                (self.encoder.tokenizer.eos_token_id,),
            ):  # the model has written it
                before = before[1:]
            message = (*before, *self.encoder.untrusted(found), *after)
        return replace(
            completion,
            ids=(*completion.ids, *message),
            searched=(*completion.searched, (completion.text, found)),
            logprobs=None
            if completion.logprobs is None
            else (*completion.logprobs, *[0.0] * len(message)),
            mask=(*(completion.mask or [True] * len(completion.ids)), *[False] * len(message)),
        )

    def continued(self, prompt: Prompt, completion: Completion) -> Prompt:
        """Return the prompt of the turn after those of a completion that is ``answered``."""
        roles = ("assistant", "user")
        turns = (
            {"role": role, "content": text}
            for turn in completion.searched
            for role, text in zip(roles, turn, strict=True)
        )
        return Prompt((*prompt.messages, *turns), (*prompt.ids, *completion.ids), prompt.shared)

    # --------------------------------------------------------------------------------------------
    # completion
    def apply(
        self,
        memory: Memory,
        index: int,
        chunk: Chunk,
        completion: str,
        cut_off: bool = False,
        searched: Sequence[tuple[str, str]] = (),
    ) -> StepOutcome:
        """Apply a completion of the chunk with this index, in place and in order. ``cut_off``: by a
        length limit.

        A turn that ``searched`` does nothing else: its search is no result, and what stands beside
        it a failed one. Raises nothing for what the model wrote; InputError if a tool of one's own
        fails (``own_tools``).
        """
        start = len(memory.changes)
        calls = [self._beside(text) for text, _ in searched]
        calls += [
            self._apply_one(item, memory, index, chunk) for item in self._read(completion, cut_off)
        ]
        outcome = StepOutcome(tuple(chain.from_iterable(calls)), tuple(memory.changes[start:]))
        if self.config.archive:
            archive.keep(memory, index, chunk, outcome.changes)
        return outcome

    def _read(self, text: str, cut_off: bool = False) -> list[ToolCall | CallError]:
        parsed = self.codec.parse(text, cut_off)
        return sorted([*parsed.calls, *parsed.errors], key=lambda item: item.start)

    def _beside(self, text: str) -> list[OperationResult]:
        items = self._read(text)
        items.remove(next(item for item in items if query_of(item)))
        return [
            OperationResult(
                False, ResultCode.NOT_ALLOWED, "not done: a turn that searches does nothing else"
            )
            for _ in items
        ]

    def _apply_one(
        self, item: ToolCall | CallError, memory: Memory, index: int, chunk: Chunk
    ) -> list[OperationResult]:
        if isinstance(item, CallError):
            return [OperationResult(False, ResultCode.UNPARSED, item.message)]
        if self.config.searches and item.name == SEARCH:
            said = f"not answered: a search is for one text, at most {self.config.searches} a chunk and with room to write"
            return [OperationResult(False, ResultCode.NOT_ALLOWED, said)]
        named = (
            self._by_text(item, memory)
            if self.codec.names_by_text and "entry_id" in item.arguments
            else item
        )
        operations = to_operations(named, memory) if isinstance(named, ToolCall) else named
        if isinstance(operations, OperationResult):
            return [operations]
        return memory.apply_all(operations, chunk=index, time=chunk.time)

    def _by_text(self, call: ToolCall, memory: Memory) -> ToolCall | OperationResult:
        """Replace the text by the id of the oldest entry with that text."""
        text = call.arguments["entry_id"]
        found = memory.reading(text)
        if found is None and (
            self.config.show_times or "&lt;" in text or "\\n" in text
        ):  # the view shows another text
            found = next((entry for entry in memory.entries() if self._shown(entry) == text), None)
        if found is None:
            return OperationResult(False, ResultCode.UNKNOWN_ID, f"no entry reads {text!r}")
        return replace(call, arguments={**call.arguments, "entry_id": found.id})

    def name_of(self, entry: Entry) -> str:
        """Return how calls name a list entry: its id or, with ``names_by_text``, its text as the
        view shows it.
        """
        return self._shown(entry) if self.codec.names_by_text else entry.id

    def write(self, memory: Memory, operations: Sequence[Operation]) -> str:
        """Return the completion that asks for operations, applied in order; ValueError if the
        notation cannot express one.
        """
        if not self.codec.names_by_text:
            return self.codec.render([to_call(operation) for operation in operations])
        calls, trial = [], memory.copy()
        for operation in operations:
            call = to_call(operation)
            if (entry := trial.get(operation.entry_id or "")) is not None:
                call = replace(call, arguments={**call.arguments, "entry_id": self.name_of(entry)})
            calls.append(call)
            trial.apply(operation)
        return self.codec.render(calls)


def system_text(codec: Codec, schema: MemorySchema, described: bool) -> str:
    """Return the instructions for a codec and schema; ``described`` lists the tools, for templates
    without tools.
    """
    folder = resources.files("memalpha.agent") / "prompts"
    if isinstance(codec, CompactCodec):
        return (
            (folder / "compact.txt")
            .read_text(encoding="utf-8")
            .format(operations=codec.operations())
            .strip()
        )
    sections = "\n".join(
        f"- {section.name} ({section.kind}): {section.description}" for section in schema.sections
    )
    text = (folder / f"{codec.name}.txt").read_text(encoding="utf-8").format(sections=sections)
    if described:
        tools = []
        for function in (tool["function"] for tool in tool_schemas(schema, codec.searches)):
            required, properties = (
                function["parameters"]["required"],
                function["parameters"]["properties"],
            )
            arguments = ", ".join(name if name in required else f"{name}?" for name in properties)
            tools.append(f"- {function['name']}({arguments}): {function['description']}")
        text += (
            (folder / "hermes_described.txt")
            .read_text(encoding="utf-8")
            .format(tools="\n".join(tools))
        )
    return text.strip()


def positions_of(model_config: Any) -> int | None:
    """Return a model's maximum number of positions; None if unknown."""
    return getattr(model_config.get_text_config(), "max_position_embeddings", None) or None


def longest_prompt(agent: AgentStep) -> int:
    """Return the maximum number of prompt tokens; a block without a limit counts as empty."""
    frame, _ = agent.encoder.encode({"chunk": "", "memory": ""}, shared="chunk")
    blocks = sum(section.max_tokens for section in agent.schema.blocks)
    times = TIME_TOKENS if agent.config.show_times else 0
    return (
        len(frame)
        + agent.config.max_chunk_tokens
        + times
        + agent.config.view_tokens
        + _names_tokens(agent)
        + blocks
    )


def longest_answer(agent: AgentStep) -> int:
    """Return the maximum number of tokens of an answer to a search, with what the chat template
    puts around it.
    """
    frame = agent.encoder.count("<memory>\nempty\n</memory>")
    return (
        sum(map(len, agent.around)) + frame + _names_tokens(agent) + agent.config.view_tokens // 2
    )


def _names_tokens(agent: AgentStep) -> int:
    sections = agent.schema.sections
    return (
        sum(agent.encoder.count(f"{section.name}:\n") for section in sections)
        if len(sections) > 1
        else 0
    )


def check_context(agent: AgentStep, model_config: Any) -> None:
    """Raise InputError if the longest prompt and completion exceed the model's positions."""
    positions = positions_of(model_config)
    needed = longest_prompt(agent) + agent.config.max_completion_length
    if agent.config.searches:  # a turn is drawn with the room of the one in its batch that has most
        needed += agent.config.searches * longest_answer(agent) + agent.config.max_completion_length
    if positions and needed > positions:
        names = ("max_chunk_tokens", "view_tokens", "max_completion_length")
        fix = f"lower {', '.join(f'{name} (now {getattr(agent.config, name)})' for name in names)}"
        raise InputError(
            f"prompt and completion can have {needed} tokens, and the model takes {positions}",
            fix=fix,
        )
