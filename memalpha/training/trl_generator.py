"""Completions through TRL's own generation: a vLLM server for full fine-tuning, or transformers for
tests without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memalpha.errors import ServiceError
from memalpha.generation.merging import restored
from memalpha.generation.vllm_server import token_problem
from memalpha.text import decoded
from memalpha.types import Completion, Prompt, Sampling, StopReason

if TYPE_CHECKING:
    from memalpha.training.trainer import MemoryGRPOTrainer


class TRLGenerator:
    """Completions through TRL, which needs equal numbers of prompts on all ranks; ``finish`` takes
    part in the others' calls.
    """

    def __init__(self, trainer: MemoryGRPOTrainer) -> None:
        self.trainer = trainer
        if (
            trainer.use_vllm
        ):  # TRL's own asks for shards, which there are none of before the first step
            trainer.vllm_generation._iter_fsdp2_params = lambda model: _whole_parameters(
                model, trainer.accelerator.device
            )

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt; ``sampling.seed`` is not used. ServiceError for ids
        that the policy does not have.
        """
        return self._generate(prompts, self._most(len(prompts)), sampling)

    def finish(self, sampling: Sampling) -> None:
        """Take part in other ranks' calls until all ranks are here."""
        while most := self._most(0):
            self._generate([], most, sampling)

    def _most(self, count: int) -> int:
        accelerator = self.trainer.accelerator
        return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())

    def _generate(
        self, prompts: Sequence[Prompt], most: int, sampling: Sampling
    ) -> list[Completion]:
        trainer = self.trainer
        filler = [[trainer._tokenizer.eos_token_id]] * (most - len(prompts))
        with self._drawing(sampling):
            ids, logprobs = trainer._generate_single_turn(
                [list(p.ids) for p in prompts] + filler, None, {}, 1
            )
        vocabulary = (
            trainer.accelerator.unwrap_model(trainer.model).config.get_text_config().vocab_size
        )
        for i in range(len(prompts)):
            problem = token_problem(
                ids[i],
                logprobs[i] if logprobs else [0.0] * len(ids[i]),
                sampling.max_new_tokens,
                vocabulary,
            )
            ServiceError.raise_if(
                problem,
                f"a completion that TRL drew has {problem}",
                fix="serve the model that is trained",
            )
        ends = (StopReason.LENGTH, StopReason.END)
        return [
            Completion(
                tuple(ids[i]),
                decoded(trainer._tokenizer, ids[i]),
                ends[ids[i][-1] in trainer.eos_token_ids],
                tuple(logprobs[i]) if logprobs else None,
            )
            for i in range(len(prompts))
        ]

    @contextmanager
    def _drawing(self, sampling: Sampling) -> Iterator[None]:
        wanted: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
        if self.trainer.use_vllm:
            target: Any = self.trainer.vllm_generation
            wanted["max_completion_length"] = sampling.max_new_tokens
        else:
            target = self.trainer.generation_config
            wanted |= {
                "max_new_tokens": sampling.max_new_tokens,
                "do_sample": sampling.temperature > 0,
            }
            wanted["temperature"] = sampling.temperature or 1.0
        with restored([target], *wanted):
            vars(target).update(wanted)
            yield


def _whole_parameters(
    model: torch.nn.Module, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        part: Any = parameter.detach().to(device)
        yield (
            name.replace("_checkpoint_wrapped_module.", ""),
            part.full_tensor() if hasattr(part, "full_tensor") else part,
        )
