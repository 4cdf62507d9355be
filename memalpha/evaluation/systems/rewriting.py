"""Memories that are one text, rewritten by a language model at each chunk: ``overwrite_summary`` and ``constant_state``.

A batch runs in lockstep by chunk. Chunk text cannot become a special token or close its fence. A reply that ends at the token limit
is kept and counted (``cut_off``); an empty reply empties the text; a changed text counts as an update. The reader gets the lines.

* ``overwrite_summary``, after MemAgent (arXiv 2507.02259): rewrites the whole memory.
* ``constant_state``, after MEM1 (arXiv 2506.15841): the model may think, then writes its state between ``<IS>`` and ``</IS>``.
  Thinking is dropped but uses the same token limit. A reply without the mark is the state (the published system drops it).

Departures: questions are unknown while writing; no training for the task unless an adapter is given; the memory has the reader's
budget, not 1,024 tokens; the common reader answers; our own prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import NonNegativeInt

from memalpha.agent.rollout import StepCallback
from memalpha.errors import InputError
from memalpha.evaluation.results import OperationCounts
from memalpha.evaluation.systems.base import Kept, Setting, System, WriterOptions
from memalpha.evaluation.systems.raw import units
from memalpha.text import PromptEncoder, quote, slot
from memalpha.types import Chunk, Instance, Prompt

OVERWRITE_SUMMARY = (
    "You read a long text chunk by chunk and keep a memory of it, of at most {tokens} tokens. Questions will be answered from the "
    "memory alone. Read the chunk, then write the whole memory anew: keep what still holds, add what is new, correct what has "
    "changed. One fact a line, with names. Write the memory and nothing else."
)
"""System text of ``overwrite_summary``; ``{tokens}`` is the memory size."""

CONSTANT_STATE = (
    "You read a long text chunk by chunk. Between chunks you remember only your internal state; questions will be answered from it "
    "at the end. First think, in a few words, about what the chunk changes. Then write your whole new state between <IS> and "
    "</IS>, in at most {tokens} tokens: what still holds of the memory and what is new, one fact a line, with names."
)
"""System text of ``constant_state``; ``{tokens}`` is the limit of a turn."""

_STATE = re.compile(r"<IS>(.*?)(?:</IS>|\Z)", re.DOTALL)


def parse_state(reply: str) -> str:
    """Return the last state of a reply, closed or not; without a mark, the whole reply."""
    found = _STATE.findall(reply)
    return (found[-1] if found else reply.replace("</IS>", "")).strip()


@dataclass(frozen=True, slots=True)
class RewritingOptions(WriterOptions):
    """Which model writes, and how much.

    Attributes:
        memory_tokens: Most tokens of the text (0 = the reader's budget).
        adapter: Adapter of the model that writes (empty = the base model).
    """

    memory_tokens: NonNegativeInt = 0
    adapter: str = ""


@dataclass(slots=True)
class _Text:
    """One instance's text and its cost."""

    text: str = ""
    calls: int = 0
    cut_off: int = 0
    updates: int = 0


class Rewriting(System):
    """A memory of one text; ``instructions`` holds ``{tokens}``, ``parse`` turns a reply into the new text."""

    def __init__(
        self, setting: Setting, options: RewritingOptions, instructions: str, parse: Callable[[str], str] = str.strip
    ) -> None:
        self.setting, self.parse = setting, parse
        self.limit = options.memory_tokens or setting.reader_tokens
        self.generator = setting.host.generator(options.adapter)
        layout = [
            {"role": "system", "content": instructions.format(tokens=self.limit)},
            {"role": "user", "content": f"<chunk>\n{slot('chunk')}\n</chunk>\n<memory>\n{slot('memory')}\n</memory>"},
        ]
        self.encoder = PromptEncoder(setting.host.tokenizer, layout)

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if a chunk, the longest text and the longest reply exceed the model's window."""
        window = self.setting.host.positions
        for instance in instances if window else ():
            for index, chunk in enumerate(instance.chunks):
                if (asked := len(self._prompt(chunk, "").ids) + 2 * self.limit) > window:
                    raise InputError(
                        f"chunk {index} of instance {instance.id} takes {asked} tokens with instructions, the text as it stands "
                        f"and the text as it becomes ({self.limit} each), and the model's window has {window}",
                        expected="room for all of them",
                        fix="cut the chunks smaller, lower memory_tokens, or name the system's sets",
                    )

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Rewrite the texts chunk by chunk, all instances in lockstep."""
        texts = [_Text() for _ in instances]
        total = max(len(instance.chunks) for instance in instances)
        sampling = self.setting.sampling(self.limit, seed, instances)
        for t in range(total):
            active = [(i, text) for i, text in enumerate(texts) if t < len(instances[i].chunks)]
            prompts = [self._prompt(instances[i].chunks[t], text.text) for i, text in active]
            drawn = replace(sampling, seed=None if sampling.seed is None else sampling.seed + t)
            for (_, text), completion in zip(active, self.generator.generate(prompts, drawn), strict=True):
                new = self.parse(completion.text)
                text.calls += 1
                text.cut_off += completion.cut_off
                text.updates += new != text.text
                text.text = new
            if on_step:
                on_step(t + 1, total)
        return [self._kept(text) for text in texts]

    def _prompt(self, chunk: Chunk, text: str) -> Prompt:
        said = quote(f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text)
        ids, shared = self.encoder.encode({"chunk": said, "memory": quote(text) or "empty"}, shared="chunk")
        return Prompt((), ids, shared)

    def _kept(self, text: _Text) -> Kept:
        lines = tuple(units(text.text, self.limit, self.setting.count))
        return Kept(
            lambda questions, room: [lines] * len(questions),
            memory_tokens=self.setting.count(text.text),
            entries=lines,
            write_calls=text.calls,
            cut_off=text.cut_off,
            operations=OperationCounts(update=text.updates),
        )
