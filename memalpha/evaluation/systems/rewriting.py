"""What memories have in common that are one text, written anew by a language model at each chunk.

All instances of a batch read their first chunk together, then their second; a prompt holds the chunk and the text as it stands, the
reply (parsed by the kind at hand) is the text from then on. Reply and text are bounded by the same number of tokens.

What always holds: the questions are unknown while writing; text from the data can neither become a special token nor close its
fence; a reply that ended at its limit is counted (``cut_off``) and kept as it stands; an empty one empties the text, as it would be
used. A rewrite that changed the text counts as an update. The reader gets the text line by line, whole as long as it fits its
budget.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from memalpha.agent.rollout import StepCallback
from memalpha.errors import InputError
from memalpha.evaluation.pieces import units
from memalpha.evaluation.results import OperationCounts
from memalpha.evaluation.systems.base import Kept, PlainSystem, Room, Sampled, Setting
from memalpha.text import PromptEncoder, quote, slot
from memalpha.types import Chunk, Completion, Instance, Prompt, Question, Sampling


@dataclass(frozen=True, slots=True)
class RewritingOptions(Sampled):
    """Who writes how much.

    Attributes:
        memory_tokens: Most tokens of the text (0 = the reader's budget).
        adapter: Adapter of the model that writes (empty = the base model).
    """

    memory_tokens: int = 0
    adapter: str = ""

    def __post_init__(self) -> None:
        """Check the number."""
        if self.memory_tokens < 0:
            raise InputError(f"memory_tokens is {self.memory_tokens}", expected="0 (the reader's budget) or more")


@dataclass(slots=True)
class _Text:
    """One instance's text and what it cost so far."""

    text: str = ""
    calls: int = 0
    cut_off: int = 0
    updates: int = 0
    lines: list[str] = field(default_factory=list)


class Rewriting(PlainSystem):
    """One text a memory; a ``System``.

    Args:
        setting: The protocol.
        options: Who writes how much.
        instructions: System text; may hold ``{tokens}``.
        parse: From a reply to the new text.
    """

    def __init__(
        self, setting: Setting, options: RewritingOptions, instructions: str, parse: Callable[[str], str] = str.strip
    ) -> None:
        self.setting, self.parse = setting, parse
        self.draws = options.draws(setting.temperature)
        self.limit = options.memory_tokens or setting.reader_tokens
        self.generator = setting.host.generator(options.adapter)
        layout = [
            {"role": "system", "content": instructions.format(tokens=self.limit)},
            {"role": "user", "content": f"<chunk>\n{slot('chunk')}\n</chunk>\n<memory>\n{slot('memory')}\n</memory>"},
        ]
        self.encoder = PromptEncoder(setting.host.tokenizer, layout)

    def check(self, instances: Sequence[Instance]) -> None:
        """Raise InputError if a chunk, the text and its reply do not fit the model's window together, as long as they may be."""
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
        sampling = batch_sampling(self.limit, self.setting.temperature, seed, instances)
        for t in range(total):
            active = [(i, text) for i, text in enumerate(texts) if t < len(instances[i].chunks)]
            prompts = [self._prompt(instances[i].chunks[t], text.text) for i, text in active]
            drawn = replace(sampling, seed=None if sampling.seed is None else sampling.seed + t)
            for (_, text), completion in zip(active, self.generator.generate(prompts, drawn), strict=True):
                self._take(text, completion)
            if on_step:
                on_step(t + 1, total)
        return [self._keep(text) for text in texts]

    def _prompt(self, chunk: Chunk, text: str) -> Prompt:
        said = quote(f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text)
        ids, shared = self.encoder.encode({"chunk": said, "memory": quote(text) or "empty"}, shared="chunk")
        return Prompt((), ids, shared)

    def _take(self, text: _Text, completion: Completion) -> None:
        new = self.parse(completion.text)
        text.calls += 1
        text.cut_off += completion.cut_off
        text.updates += new != text.text
        text.text = new

    def _keep(self, text: _Text) -> Kept:
        count = self.setting.count
        lines = tuple(units(text.text, max(1, self.limit), count))

        def find(questions: Sequence[Question], room: Room) -> list[tuple[str, ...]]:
            return [lines] * len(questions)

        return Kept(
            find,
            memory_tokens=count(text.text),
            entries=lines,
            write_calls=text.calls,
            cut_off=text.cut_off,
            operations=OperationCounts(update=text.updates),
        )


def batch_sampling(max_new_tokens: int, temperature: float, seed: int, instances: Sequence[Instance]) -> Sampling:
    """Return how a batch is drawn: greedily, or with random numbers that depend on the seed and the batch's instances alone."""
    name = f"{seed}/" + "/".join(instance.id for instance in instances)
    return Sampling(max_new_tokens, temperature, seed=zlib.crc32(name.encode()) if temperature else None)


__all__ = ["Rewriting", "RewritingOptions", "batch_sampling"]
