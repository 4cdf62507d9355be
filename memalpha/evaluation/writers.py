"""Systems with a model that writes: the memory agent, and memories of one text that is rewritten at each chunk.

The agent uses prompts, application and retrieval of training (``agent.step``). ``overwrite_summary``, after MemAgent (arXiv
2507.02259), rewrites the whole memory; ``constant_state``, after MEM1 (arXiv 2506.15841), may think first. Departures of both:
questions are unknown while writing, no training for the task, the reader's budget, the common reader, our own prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.rollout import StepCallback, run_rollouts
from memalpha.agent.step import AgentStep, check_context
from memalpha.config import Options
from memalpha.errors import InputError
from memalpha.evaluation.folder import OperationCounts
from memalpha.evaluation.systems import Kept, Setting, System, kept_memory
from memalpha.memory.schema import MemorySchema
from memalpha.retrieval import RetrievalMode
from memalpha.text import THINK, PromptEncoder, content_of, opens_thinking, quote, slot
from memalpha.types import Chunk, Instance, Prompt
from memalpha.units import units


@dataclass(frozen=True, slots=True)
class AgentOptions(Options):
    """Which agent."""

    adapter: str = ""  # its adapter's folder (empty = the untrained base model)
    settings: Literal["shared", "own"] = "shared"  # the evaluation's (the adapter's schema and codec must match), or the adapter's
    archive: bool | None = None  # search what was read, too; this and the next two as its settings say (None), or otherwise
    retrieval: RetrievalMode | None = None
    sections_kept: NonNegativeInt | None = None  # by layer 1 (0 = all)
    trust_tools: bool = False  # import the functions that the adapter's schema names as tools


class Agent(System):
    """A policy that writes its memory by tool calls."""

    def __init__(self, setting: Setting, options: AgentOptions) -> None:
        self.setting = setting
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

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Run one rollout for each instance, in lockstep."""
        sampling = self.setting.sampling(self.step.config.max_completion_length, seed, instances)
        return [
            kept_memory(
                rollout.memory,
                rollout.retriever,
                self.setting.retrieve_k,
                [result for step in rollout.steps for result in step.outcome.results],
                write_calls=len(rollout.steps),
                cut_off=sum(step.completion.cut_off for step in rollout.steps),
            )
            for rollout in run_rollouts(instances, self.step, self.generator, sampling, on_step=on_step)
        ]


def _step(setting: Setting, options: AgentOptions) -> AgentStep:
    if options.settings == "own":
        if not options.adapter:
            raise InputError("settings 'own' of an agent without an adapter", expected="an adapter, or settings: shared")
        return AgentStep(AgentConfig.load(options.adapter, options.trust_tools), setting.host.tokenizer)
    if options.adapter and (Path(options.adapter) / AGENT_FILE).is_file():  # an adapter of another program has no such file
        saved, shared = AgentConfig.load(options.adapter, options.trust_tools), setting.step.config
        if MemorySchema.load(saved.schema) != setting.step.schema or saved.codec != shared.codec:
            what = f"adapter {options.adapter} was trained with schema {saved.schema!r} and codec {saved.codec!r}"
            raise InputError(what, expected=f"{shared.schema!r} and {shared.codec!r} as for all agents, or settings: own")
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
        self.begun = THINK if opens_thinking(setting.host.tokenizer) else ""

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if a chunk, the longest text and the longest reply exceed the model's window."""
        window = self.setting.host.positions
        for instance in instances if window else ():
            for index, chunk in enumerate(instance.chunks):
                if (asked := len(self._prompt(chunk, "").ids) + 2 * self.limit) > window:
                    what = f"chunk {index} of instance {instance.id} takes {asked} tokens with instructions and two texts"
                    expected = "smaller chunks, or a lower memory_tokens"
                    raise InputError(f"{what} of {self.limit} tokens, and the model's window has {window}", expected=expected)

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Rewrite the texts chunk by chunk, all instances in lockstep."""
        texts, cut_off, updates = [""] * len(instances), [0] * len(instances), [0] * len(instances)
        total = max(len(instance.chunks) for instance in instances)
        sampling = self.setting.sampling(self.limit, seed, instances)
        for t in range(total):
            active = [i for i, instance in enumerate(instances) if t < len(instance.chunks)]
            prompts = [self._prompt(instances[i].chunks[t], texts[i]) for i in active]
            drawn = replace(sampling, seed=None if sampling.seed is None else sampling.seed + t)
            for i, completion in zip(active, self.generator.generate(prompts, drawn), strict=True):
                before, texts[i] = texts[i], self.parse(content_of(self.begun + completion.text)[0])
                cut_off[i] += completion.cut_off
                updates[i] += texts[i] != before
            if on_step:
                on_step(t + 1, total)
        made = zip(texts, instances, cut_off, updates, strict=True)
        return [self._kept(text, len(instance.chunks), cut, changed) for text, instance, cut, changed in made]

    def _kept(self, text: str, calls: int, cut_off: int, updates: int) -> Kept:
        lines, tokens = tuple(units(text, self.limit, self.setting.count)), self.setting.count(text)
        counts = OperationCounts(update=updates)
        return Kept(lambda questions, budget: [lines] * len(questions), tokens, lines, calls, cut_off, operations=counts)

    def _prompt(self, chunk: Chunk, text: str) -> Prompt:
        said = quote(f"[{chunk.time}]\n{chunk.text}" if chunk.time else chunk.text)
        ids, shared = self.encoder.encode({"chunk": said, "memory": quote(text) or "empty"}, shared="chunk")
        return Prompt((), ids, shared)
