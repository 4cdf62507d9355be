"""One base model for a whole evaluation: adapters are put on it and taken off, and the bare base reads.

The base is loaded once, when it is first needed, onto the accelerator if there is one; at most one adapter is on it. Without one,
and while the base reads, weights and results are those of the bare model. Policies whose whole weights were trained are another
base: they need an evaluation of their own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.agent.step import positions_of
from memalpha.files import append_lines, drop_cut_line, parse_line
from memalpha.models.policy import base_of, check_adapter, load_policy_model, load_tokenizer, weightless
from memalpha.models.registry import resolve_model
from memalpha.protocols import Generator
from memalpha.text import chat_ids
from memalpha.types import Completion, Message, Prompt, Sampling, StopReason

if TYPE_CHECKING:
    from memalpha.generation.hf import HFGenerator


class PolicyHost:
    """The base model and the adapter that is on it.

    Args:
        model: Registered name, folder or Hub name of the base.
        dtype: Type of its weights.
        max_batch: Most rows decoded at once.
        batch_tokens: Most tokens, padding included, of the chats that are read at once.

    Attributes:
        calls: Where the calls of the current batch are recorded; None records nothing.

    Raises:
        InputError: If there is no such model, or its tokenizer has no chat template.
    """

    def __init__(self, model: str, dtype: str = "float32", max_batch: int = 64, batch_tokens: int = 16_384) -> None:
        self.model, self.dtype, self.max_batch, self.batch_tokens = model, dtype, max_batch, batch_tokens
        self.tokenizer = load_tokenizer(model)
        self.calls: RecordedCalls | None = None
        self._policy: Any = None
        self._adapter = ""

    @cached_property
    def config(self) -> Any:
        """The base model's configuration; does not load its weights."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(resolve_model(self.model))

    @cached_property
    def _skeleton(self) -> Any:
        return weightless(self.config)

    @property
    def positions(self) -> int:
        """How many tokens the model was made for; 0 if it does not say."""
        return positions_of(self.config) or 0

    def generator(self, adapter: str = "") -> Generator:
        """Return what draws completions from the base with an adapter (empty = without).

        Raises:
            InputError: If the folder holds no adapter, or one of another base.
        """
        if adapter:
            base_of(adapter)
            check_adapter(Path(adapter), resolve_model(self.model), self._skeleton, self.tokenizer)
        return _Hosted(self, adapter)

    def generate(self, adapter: str, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Draw completions, or recall them; puts the adapter on the base first if it is not there."""

        def draw() -> list[Completion]:
            return self._generator(adapter).generate(prompts, sampling)

        return draw() if self.calls is None else self.calls.completions(adapter, prompts, sampling, draw)

    def answer(self, chats: Sequence[list[Message]], max_new_tokens: int) -> list[str]:
        """Answer chats greedily with the bare base; the common beginning of neighbours is computed once."""
        prompts = sharing([Prompt(tuple(chat), chat_ids(self.tokenizer, chat)) for chat in chats])
        generator = self._generator("", keep_prefix=True)
        replies: list[str] = []
        for batch in within_tokens(prompts, self.batch_tokens, max_new_tokens):
            replies += [completion.text for completion in generator.generate(batch, Sampling(max_new_tokens))]
        return replies

    def release(self) -> None:
        """Take off the adapter; the base stays."""
        if self._adapter:
            self._policy = self._policy.unload()
            self._adapter = ""

    def _generator(self, adapter: str, *, keep_prefix: bool = False) -> HFGenerator:
        from memalpha.generation.hf import HFGenerator

        if self._policy is None:
            import torch

            model = load_policy_model(self.model, dtype=self.dtype).model
            accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            self._policy = (model if accelerator is None else model.to(accelerator)).eval()
        if adapter != self._adapter:
            self.release()
            if adapter:
                from peft import PeftModel

                self._policy = PeftModel.from_pretrained(self._policy, adapter).eval()
                self._adapter = adapter
        return HFGenerator(self._policy, self.tokenizer, max_batch=self.max_batch, keep_prefix=keep_prefix)


class _Hosted:
    """A ``Generator`` that uses one adapter of a host."""

    def __init__(self, host: PolicyHost, adapter: str) -> None:
        self._host, self._adapter = host, adapter

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        return self._host.generate(self._adapter, prompts, sampling)


class RecordedCalls:
    """What the policy has written in the current batch, in a file: a killed evaluation goes on at that chunk.

    A batch of long inputs takes hours. A call is answered from the file only if adapter, prompts and sampling are the same. A line
    cut short by a kill is dropped; calls without random numbers of their own (a temperature without a seed) are always drawn.
    Mem0's calls of a server are not covered.

    Args:
        path: The file; made by the first call. InputError if it is damaged elsewhere than at its end.

    Attributes:
        seconds: What the calls answered from the file had taken when they were drawn.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.seconds = path, 0.0
        drop_cut_line(path)
        lines = path.read_bytes().splitlines() if path.is_file() else []
        self._calls = {row["call"]: row for row in (parse_line(line, path, number) for number, line in enumerate(lines, 1))}

    def completions(
        self, adapter: str, prompts: Sequence[Prompt], sampling: Sampling, draw: Callable[[], list[Completion]]
    ) -> list[Completion]:
        """Return the completions of a call: the recorded ones, or what ``draw`` gives, which is recorded."""
        if sampling.temperature and sampling.seed is None:
            return draw()
        call = hashlib.sha256(json.dumps([adapter, asdict(sampling), [prompt.ids for prompt in prompts]]).encode()).hexdigest()
        if (row := self._calls.get(call)) is None:
            clock = time.perf_counter()
            drawn = draw()
            seconds = round(time.perf_counter() - clock, 3)
            append_lines(self.path, [{"call": call, "seconds": seconds, "completions": [asdict(item) for item in drawn]}])
            return drawn
        self.seconds += row["seconds"]
        return [
            Completion(tuple(item["ids"]), item["text"], StopReason(item["stop"]), item["logprobs"] and tuple(item["logprobs"]))
            for item in row["completions"]
        ]

    def clear(self) -> None:
        """Forget the calls: the batch is done."""
        self.path.unlink(missing_ok=True)
        self._calls.clear()
        self.seconds = 0.0


def sharing(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Say of prompts that begin alike how many tokens they have in common, so that these are computed once.

    Questions about one long text follow one another and differ in their last tokens alone: neighbours with more than half in common
    share that. All others share what all of them begin with, such as the reader's instructions.
    """
    groups: list[list[Prompt]] = []
    common: list[int] = []
    for prompt in prompts:
        shared = _common(groups[-1][0].ids[: common[-1]], prompt.ids) if groups else 0
        if groups and 2 * shared > len(prompt.ids):
            groups[-1].append(prompt)
            common[-1] = shared
        else:
            groups.append([prompt])
            common.append(len(prompt.ids))
    lone = [group[0].ids for group in groups if len(group) == 1]
    least = min(_common(lone[0], ids) for ids in lone) if len(lone) > 1 else 0
    return [
        Prompt(prompt.messages, prompt.ids, shared if len(group) > 1 else least)
        for group, shared in zip(groups, common, strict=True)
        for prompt in group
    ]


def within_tokens(prompts: Sequence[Prompt], tokens: int, new_tokens: int) -> list[list[Prompt]]:
    """Cut prompts, in order, into batches whose rows times their longest prompt with its completion stay within ``tokens``.

    A prompt that is longer alone has a batch to itself.
    """
    batches: list[list[Prompt]] = []
    longest = 0
    for prompt in prompts:
        grown = max(longest, len(prompt.ids) + new_tokens)
        if batches and grown * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(prompt)
            longest = grown
        else:
            batches.append([prompt])
            longest = len(prompt.ids) + new_tokens
    return batches


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    different = (index for index, (left, right) in enumerate(zip(first, second, strict=False)) if left != right)
    return next(different, min(len(first), len(second)))
