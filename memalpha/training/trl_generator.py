"""Completions through TRL's own generation: vLLM, or transformers for tests without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memalpha.generation.merging import merged_lora
from memalpha.training.sharding import Sharding, sharding_of, whole_weights
from memalpha.types import Completion, Prompt, Sampling, StopReason

if TYPE_CHECKING:
    from memalpha.training.trainer import MemoryGRPOTrainer


class TRLGenerator:
    """Completions through TRL's own generation (``use_vllm``), for the trainer that owns it.

    TRL needs all ranks in every call with equal numbers of prompts. So each call first agrees on the largest number, and a rank
    without rollouts left calls ``finish`` to take part in the others' calls.
    """

    def __init__(self, trainer: MemoryGRPOTrainer) -> None:
        self.trainer = trainer
        if trainer.use_vllm:
            hand_over_exactly(trainer.vllm_generation)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt; ``sampling.seed`` is not used."""
        return self._generate(prompts, self._most(len(prompts)), sampling)

    def finish(self, sampling: Sampling) -> None:
        """Take part in other ranks' calls until all ranks are here."""
        while most := self._most(0):
            self._generate([], most, sampling)

    def _most(self, count: int) -> int:
        accelerator = self.trainer.accelerator
        return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())

    def _generate(self, prompts: Sequence[Prompt], most: int, sampling: Sampling) -> list[Completion]:
        trainer = self.trainer
        filler = [[trainer._tokenizer.eos_token_id]] * (most - len(prompts))
        with self._drawing(sampling):
            ids, logprobs = trainer._generate_single_turn([list(p.ids) for p in prompts] + filler, None, {}, 1)
        texts = trainer._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            Completion(
                tuple(ids[i]),
                texts[i],
                StopReason.END if ids[i][-1] in trainer.eos_token_ids else StopReason.LENGTH,
                tuple(logprobs[i]) if logprobs else None,
            )
            for i in range(len(prompts))
        ]

    @contextmanager
    def _drawing(self, sampling: Sampling) -> Iterator[None]:
        """Set TRL's sampling options inside the block."""
        wanted: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        if self.trainer.use_vllm:
            target: Any = self.trainer.vllm_generation
            wanted["max_completion_length"] = sampling.max_new_tokens
        else:
            target = self.trainer.generation_config
            wanted |= {"max_new_tokens": sampling.max_new_tokens, "do_sample": sampling.temperature > 0}
            wanted["temperature"] = sampling.temperature or 1.0
        before = {name: getattr(target, name) for name in wanted}
        try:
            for name, value in wanted.items():
                setattr(target, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(target, name, value)


def hand_over_exactly(vllm: Any) -> None:
    """Replace the weight iterator of TRL's ``VLLMGeneration``, so that vLLM gets weights without changing the base weights.

    TRL merges adapters in place and subtracts them again; in 16 bits the rounding errors add up. Here copies are merged. Under
    FSDP2 the whole weights are handed over, also before they are sharded.
    """
    named_weights = vllm._iter_named_params

    def from_copies() -> Iterator[tuple[str, torch.Tensor]]:
        with copied_base(vllm.model):
            yield from named_weights()

    def from_whole() -> Iterator[tuple[str, torch.Tensor]]:
        with whole_weights(vllm.model, vllm.accelerator), merged_lora(vllm.model):
            yield from vllm_weights(vllm.model)

    fsdp = sharding_of(vllm.accelerator) is Sharding.FSDP2
    vllm._iter_named_params = from_whole if fsdp else from_copies


def vllm_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over weights, adapters merged, by the names that vLLM uses."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield name.removeprefix("base_model.model.").replace(".base_layer", ""), parameter.data


@contextmanager
def copied_base(model: torch.nn.Module) -> Iterator[None]:
    """Replace weights that adapters are merged into by copies inside the block; without adapters nothing changes."""
    from peft.tuners.lora import LoraLayer

    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, LoraLayer)]
    originals = [(parameter, parameter.data) for layer in layers for parameter in layer.parameters(recurse=False)]
    for parameter, data in originals:
        parameter.data = data.clone()
    try:
        yield
    finally:
        for parameter, data in originals:
            parameter.data = data
