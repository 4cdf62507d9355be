"""One base model for a whole evaluation: adapters are attached and detached; the bare base reads.

The base is loaded once, on first use, on the accelerator if there is one, with at most one adapter. Without an adapter, and while
reading, results are those of the bare model. Fully fine-tuned models are another base and need their own evaluation.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.agent.step import positions_of
from memalpha.models.policy import base_of, check_adapter, load_policy_model, load_tokenizer, unknown_bias, weightless
from memalpha.models.registry import resolve_model
from memalpha.protocols import Generator
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
        self.drawn: dict[tuple[str, int, bytes], tuple[Completion, float]] = {}  # greedy completions and their seconds, by prompt
        self.saved = 0.0  # seconds that ``drawn`` has saved; they belong to the cost of what used it

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

    def answer(self, chats: Sequence[list[Message]], max_new_tokens: int, adapter: str = "") -> list[str]:
        """Answer chats greedily with the base: bare, or with a reader's adapter."""
        from memalpha.generation.answering import answer_chats

        return answer_chats(self.attached(adapter, keep_prefix=True), chats, max_new_tokens, self.batch_tokens)

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

                self._policy = PeftModel.from_pretrained(self._policy, adapter, autocast_adapter_dtype=False).eval()
                self._adapter = adapter
        bias = unknown_bias(adapter, self.tokenizer) if adapter else None
        return HFGenerator(self._policy, self.tokenizer, max_batch=self.max_batch, keep_prefix=keep_prefix, first_bias=bias)


class _Hosted(NamedTuple):
    host: PolicyHost
    adapter: str

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Complete prompts; a greedy completion is drawn once for all agents of this adapter, which may differ in reading only."""
        if sampling.temperature:
            return self.host.attached(self.adapter).generate(prompts, sampling)
        drawn = self.host.drawn
        keys = [(self.adapter, sampling.max_new_tokens, array("I", prompt.ids).tobytes()) for prompt in prompts]
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in drawn}
        self.host.saved += sum(drawn[key][1] for key in keys if key in drawn)
        clock = time.perf_counter()
        made = self.host.attached(self.adapter).generate(list(new.values()), sampling) if new else []
        seconds = (time.perf_counter() - clock) / max(1, len(new))
        drawn.update((key, (completion, seconds)) for key, completion in zip(new, made, strict=True))
        return [drawn[key][0] for key in keys]
