"""One base model for a whole evaluation: adapters are attached and detached; the bare base reads.

The base is loaded once, on first use, on the accelerator if there is one, with at most one adapter. Without an adapter, and while
reading, results are those of the bare model. Fully fine-tuned models are another base and need their own evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.agent.step import positions_of
from memalpha.models.policy import base_of, check_adapter, load_policy_model, load_tokenizer, weightless
from memalpha.models.registry import resolve_model
from memalpha.protocols import Generator
from memalpha.text import chat_ids
from memalpha.types import Completion, Message, Prompt, Sampling

if TYPE_CHECKING:
    from memalpha.generation.hf import HFGenerator


class PolicyHost:
    """The base model and its current adapter; ``max_batch``: most rows decoded, ``batch_tokens``: most tokens read at once."""

    def __init__(self, model: str, dtype: str = "float32", max_batch: int = 64, batch_tokens: int = 16_384) -> None:
        self.model, self.dtype, self.max_batch, self.batch_tokens = model, dtype, max_batch, batch_tokens
        self.tokenizer = load_tokenizer(model)
        self._policy: Any = None
        self._adapter = ""

    @cached_property
    def config(self) -> Any:
        """The base model's configuration; does not load the weights."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(resolve_model(self.model), trust_remote_code=False)

    @property
    def positions(self) -> int:
        """Context length of the model in tokens; 0 if unknown."""
        return positions_of(self.config) or 0

    def generator(self, adapter: str = "") -> Generator:
        """Return a generator of the base with an adapter (empty = none); InputError if it is missing or of another base."""
        if adapter:
            base_of(adapter)
            check_adapter(Path(adapter), resolve_model(self.model), weightless(self.config), self.tokenizer)
        return _Hosted(self, adapter)

    def answer(self, chats: Sequence[list[Message]], max_new_tokens: int) -> list[str]:
        """Answer chats greedily with the bare base; common prefixes are computed once."""
        prompts = sharing([Prompt(tuple(chat), chat_ids(self.tokenizer, chat)) for chat in chats])
        generator = self.attached("", keep_prefix=True)
        replies: list[str] = []
        for batch in within_tokens(prompts, self.batch_tokens, max_new_tokens):
            replies += [completion.text for completion in generator.generate(batch, Sampling(max_new_tokens))]
        return replies

    def release(self) -> None:
        """Detach the adapter; the base stays loaded."""
        if self._adapter:
            self._policy = self._policy.unload()
            self._adapter = ""

    def attached(self, adapter: str, *, keep_prefix: bool = False) -> HFGenerator:
        """Return a generator of the base with an adapter, which is attached now; it holds until another is."""
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


class _Hosted(NamedTuple):
    host: PolicyHost
    adapter: str

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        return self.host.attached(self.adapter).generate(prompts, sampling)


def sharing(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Mark common prefixes to compute once: of neighbours that share more than half, else of all prompts."""
    groups: list[list[Prompt]] = []
    common: list[int] = []
    for prompt in prompts:
        shared = _common(groups[-1][0].ids[: common[-1]], prompt.ids) if groups else 0
        if 2 * shared > len(prompt.ids):
            groups[-1].append(prompt)
            common[-1] = shared
        else:
            groups.append([prompt])
            common.append(len(prompt.ids))
    lone = [group[0].ids for group in groups if len(group) == 1]
    least = min(_common(lone[0], ids) for ids in lone) if len(lone) > 1 else 0
    marks = [shared if len(group) > 1 else least for group, shared in zip(groups, common, strict=True) for _ in group]
    return [Prompt(prompt.messages, prompt.ids, shared) for prompt, shared in zip(prompts, marks, strict=True)]


def within_tokens(prompts: Sequence[Prompt], tokens: int, new_tokens: int) -> list[list[Prompt]]:
    """Split prompts, in order, into batches with rows times (longest prompt + completion) at most ``tokens``, or of one prompt."""
    batches: list[list[Prompt]] = []
    for prompt in prompts:
        grown = [*batches[-1], prompt] if batches else []
        if grown and len(grown) * (max(len(row.ids) for row in grown) + new_tokens) <= tokens:
            batches[-1] = grown
        else:
            batches.append([prompt])
    return batches


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(first), len(second)))
