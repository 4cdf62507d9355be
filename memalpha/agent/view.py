"""What the policy sees: the instructions, and its memory as lines within a budget of tokens.

Text from the memory cannot start a new line of the view, nor pose as a section's name or as another
entry; nothing is truncated.
"""

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from itertools import chain, islice, zip_longest
from operator import attrgetter

from memalpha.agent.codecs import Codec, CompactCodec
from memalpha.agent.config import AgentConfig
from memalpha.memory.calls import tool_schemas
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Retriever, TokenCounter
from memalpha.text import one_line, quote, unmarked
from memalpha.types import Chunk, Entry, JsonObject

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
        tools = [_described(tool["function"]) for tool in tool_schemas(schema)]
        text += _text("hermes_described").format(tools="\n".join(tools))
    return text.strip()


def _text(name: str) -> str:
    path = resources.files("memalpha.agent") / "prompts" / f"{name}.txt"
    return path.read_text(encoding="utf-8")


def _described(function: JsonObject) -> str:
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
        kind (at least 64), so that the cost of a step does not grow with the memory.
        """
        lines: dict[str, list[str]] = {section.name: [] for section in self.schema.sections}
        for entry in sorted(self._shown(memory, retriever, chunk), key=attrgetter("created")):
            lines[entry.section].append(self.line(entry))
        for section in self.schema.blocks:
            if memory.block(section.name):
                lines[section.name] = [self._block_line(memory.block(section.name), memory)]
        if len(self.schema.sections) > 1:
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
        entry = memory.reading(text)
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
        seen = unmarked(line)
        names = {f"{section.name}:" for section in self.schema.sections}
        poses = seen[:1].isspace() or "".join(seen.split()) in names
        if not self.codec.names_by_text:
            poses = poses or any(memory.get(word) for word in seen.split(maxsplit=1)[:1])
        return f"| {line}" if poses else line

    def _shown(self, memory: Memory, retriever: Retriever, chunk: Chunk) -> list[Entry]:
        config = self.config
        if not config.view_related:
            return self._fitting(islice(memory.newest(), config.view_recent), skips=False)
        lists = [section.name for section in self.schema.lists]
        shown = self._fitting(memory.newest(), skips=False)
        if len(shown) == sum(map(memory.section_size, lists)):
            return shown
        looked_at = max(_LEAST_LOOKED_AT, config.view_tokens // _LINE_TOKENS)
        newest = list(islice(memory.newest(), looked_at))
        related = [hit.entry for hit in retriever.search(chunk.text, looked_at, lists)]
        in_turn = chain.from_iterable(zip_longest(related, newest[: config.view_recent]))
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
