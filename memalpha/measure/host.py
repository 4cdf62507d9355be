"""One base model for a whole evaluation: adapters are attached and detached; the base reads, bare
or with a reader's adapter.

The base is loaded once, on first use, on the accelerator if there is one, with at most one adapter.
Fully fine-tuned models are another base and need their own evaluation. Greedy completions and
answers are made once: agents that differ only in what they search draw nothing twice.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.agent.context import context_of
from memalpha.models.adapters import check_adapter, weightless
from memalpha.models.policy import load_policy_model, load_tokenizer
from memalpha.models.readers import reader_opening, unknown_bias
from memalpha.models.registry import resolve_model
from memalpha.models.shipped import resolve_adapter
from memalpha.qa.readers import BASE
from memalpha.types import Completion, Generator, Message, Prompt, Sampling


class PolicyHost:
    """The base model and its current adapter; ``max_batch``: most rows decoded, ``batch_tokens``:
    most tokens read at once.
    """

    def __init__(
        self, model: str, dtype: str = "float32", max_batch: int = 64, batch_tokens: int = 16_384
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.max_batch = max_batch
        self.batch_tokens = batch_tokens
        self.tokenizer = load_tokenizer(model)
        self._policy: Any = None
        self._attached = "", False  # the adapter at hand, and whether it reads
        self._generator: Generator | None = None  # what it keeps is of the adapter at hand
        # greedy completions and their seconds, by adapter, limit and prompt
        self.drawn: dict[str, tuple[Completion, float]] = {}
        # seconds that ``drawn`` has saved; they belong to the cost of what used it
        self.saved = 0.0
        self._checked = set[str]()

    @cached_property
    def config(self) -> Any:
        """The base model's configuration; does not load the weights."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(resolve_model(self.model), trust_remote_code=False)

    def clock(self) -> float:
        """Return the seconds of a clock on which cached completions take the time that drawing them
        took.
        """
        return time.perf_counter() + self.saved

    @property
    def positions(self) -> int:
        """Context length of the model in tokens; 0 if unknown."""
        return context_of(self.config) or 0

    def generator(self, adapter: str = "") -> Generator:
        """Return a generator of the base with an adapter, as in ``resolve_adapter`` (empty = none);
        InputError if it is missing or of another base.
        """
        adapter = adapter and str(resolve_adapter(adapter))
        self._check(adapter)
        return _HostedGenerator(self, adapter, reads=False)

    def _check(self, adapter: str) -> None:
        if adapter and adapter not in self._checked:
            base = resolve_model(self.model)
            check_adapter(Path(adapter), base, weightless(self.config), self.tokenizer)
            self._checked.add(adapter)

    def reader(self, reader: str, max_new_tokens: int) -> HostedReader:
        """Return what answers chats greedily: the base alone (``base``) or with the adapter in a
        reader's folder.
        """
        return HostedReader(self, "" if reader == BASE else reader, max_new_tokens)

    def release(self) -> None:
        """Detach the adapter; the base stays loaded."""
        if self._attached[0]:
            self._policy = self._policy.unload()
        self._generator = None
        self._attached = "", False

    def attached(self, adapter: str, *, reads: bool) -> Generator:
        """Return a generator of the base with an adapter, of a policy or a reader, attached now; it
        holds until another is.
        """
        from memalpha.generation.hf import HFGenerator

        if self._policy is None:
            import torch

            model = load_policy_model(self.model, dtype=self.dtype).model
            accelerator = (
                torch.accelerator.current_accelerator()
                if torch.accelerator.is_available()
                else None
            )
            self._policy = (model if accelerator is None else model.to(accelerator)).eval()
        if self._generator is None or (adapter, reads) != self._attached:
            self.release()
            if adapter:
                from peft import PeftModel

                self._check(adapter)
                self._policy = PeftModel.from_pretrained(
                    self._policy, adapter, autocast_adapter_dtype=False
                ).eval()
            bias = unknown_bias(adapter, self.tokenizer) if adapter and reads else None
            self._generator = HFGenerator(
                self._policy,
                self.tokenizer,
                max_batch=self.max_batch,
                keep_products=reads,
                first_bias=bias,
                opening=reader_opening(self.tokenizer) if reads else (),
            )
            self._attached = adapter, reads
        return self._generator


class _HostedGenerator(NamedTuple):
    host: PolicyHost
    adapter: str
    reads: bool

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Complete prompts, greedily only what was not completed before."""
        host = self.host
        if sampling.temperature:
            return host.attached(self.adapter, reads=self.reads).generate(prompts, sampling)
        who = f"{self.adapter} {self.reads} {sampling.max_new_tokens} ".encode()
        keys = [sha256(who + array("I", prompt.ids).tobytes()).hexdigest() for prompt in prompts]
        new = {
            key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in host.drawn
        }
        host.saved += sum(host.drawn[key][1] for key in keys if key in host.drawn)
        if new:
            clock = time.perf_counter()
            made = host.attached(self.adapter, reads=self.reads).generate(
                list(new.values()), sampling
            )
            seconds = (time.perf_counter() - clock) / len(new)
            for key, completion in zip(new, made, strict=True):
                host.drawn[key] = completion, seconds
        return [host.drawn[key][0] for key in keys]


class HostedReader(NamedTuple):
    """Answers with a host's base and the adapter of a reader (empty: none); ``max_new_tokens`` is
    the most that it writes.
    """

    host: PolicyHost
    adapter: str
    max_new_tokens: int
    own_model: bool = False
    probabilities: None = None
    sure: None = None

    def __call__(self, chats: Sequence[list[Message]]) -> list[str]:
        """Return a reply to each chat."""
        from memalpha.generation.hf import answer_chats

        host = self.host
        return answer_chats(
            _HostedGenerator(host, self.adapter, reads=True),
            host.tokenizer,
            chats,
            self.max_new_tokens,
            host.batch_tokens,
        )
