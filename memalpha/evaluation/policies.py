"""One base model for a whole evaluation: adapters are put on it and taken off, and the bare base reads.

What always holds: the base is loaded once, when it is first needed; one adapter at most is on it; without one, and while the base
reads, the weights and results are those of the bare model; text from the data gives no special token. Where there is an accelerator
the model lies on it.

It does not cover policies whose whole weights were trained: those are another base (an evaluation of its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.agent.step import positions_of
from memalpha.models.policy import base_of, check_adapter, load_policy_model, load_tokenizer, weightless
from memalpha.models.registry import resolve_model
from memalpha.protocols import Generator
from memalpha.text import chat_ids
from memalpha.types import Completion, Message, Prompt, Sampling

if TYPE_CHECKING:
    from memalpha.evaluation.underway import UnderWay
    from memalpha.generation.hf import HFGenerator

_BASE = ""


class PolicyHost:
    """The base model and the adapter that is on it.

    Args:
        model: Registered name, folder or Hub name of the base.
        dtype: Type of its weights.
        max_batch: Most rows decoded at once.
        batch_tokens: Most tokens, padding included, of the chats that are read at once.

    Raises:
        InputError: If there is no such model, or its tokenizer has no chat template.
    """

    def __init__(self, model: str, dtype: str = "float32", max_batch: int = 64, batch_tokens: int = 16_384) -> None:
        self.model, self.dtype, self.max_batch, self.batch_tokens = model, dtype, max_batch, batch_tokens
        self.tokenizer = load_tokenizer(model)
        self.underway: UnderWay | None = None  # where calls are kept until their batch is done
        self._policy: Any = None
        self._adapter = _BASE

    @cached_property
    def config(self) -> Any:
        """The base model's configuration; does not load its weights."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(resolve_model(self.model))

    @cached_property
    def _skeleton(self) -> Any:
        """The base model without weights, made once."""
        return weightless(self.config)

    @property
    def positions(self) -> int:
        """How many tokens the model was made for; 0 if it does not say."""
        return positions_of(self.config) or 0

    def generator(self, adapter: str = _BASE) -> Generator:
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

        return draw() if self.underway is None else self.underway.completions(adapter, prompts, sampling, draw)

    def answer(self, chats: Sequence[list[Message]], max_new_tokens: int) -> list[str]:
        """Answer chats greedily with the bare base; neighbours that begin alike, and long ones, are read economically."""
        prompts = sharing([Prompt(tuple(chat), chat_ids(self.tokenizer, chat)) for chat in chats])
        generator = self._generator(_BASE, keep_prefix=True)
        replies: list[str] = []
        for batch in within_tokens(prompts, self.batch_tokens, max_new_tokens):
            replies += [completion.text for completion in generator.generate(batch, Sampling(max_new_tokens))]
        return replies

    def release(self) -> None:
        """Take off the adapter; the base stays."""
        if self._adapter != _BASE:
            self._policy = self._policy.unload()
            self._adapter = _BASE

    def _generator(self, adapter: str, *, keep_prefix: bool = False) -> HFGenerator:
        from memalpha.generation.hf import HFGenerator

        if self._policy is None:
            self._policy = _to_accelerator(load_policy_model(self.model, dtype=self.dtype).model).eval()
        if adapter != self._adapter:
            self.release()
            if adapter != _BASE:
                self._put_on(adapter)
        return HFGenerator(self._policy, self.tokenizer, max_batch=self.max_batch, keep_prefix=keep_prefix)

    def _put_on(self, adapter: str) -> None:
        from peft import PeftModel

        self._policy = PeftModel.from_pretrained(self._policy, adapter).eval()
        self._adapter = adapter


class _Hosted:
    """A ``Generator`` that uses one adapter of a host."""

    def __init__(self, host: PolicyHost, adapter: str) -> None:
        self._host, self._adapter = host, adapter

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion for each prompt, in order."""
        return self._host.generate(self._adapter, prompts, sampling)


def sharing(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Say of prompts that begin alike how much they have in common, so that it is computed once.

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
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))


def _to_accelerator(model: Any) -> Any:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model.to(accelerator) if accelerator is not None else model


__all__ = ["PolicyHost", "sharing", "within_tokens"]
