"""The policy's own frozen base model as a chat model: a reader without a second model in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.text import chat_ids
from memalpha.types import Message, Prompt, Sampling


def frozen_base(
    model: Any, tokenizer: Any, max_new_tokens: int = 32, max_batch: int = 64
) -> Callable[[list[list[Message]]], list[str]]:
    """Return a function that answers chats greedily with the base model, the policy's adapters switched off.

    Args:
        model: The policy, a PEFT model.
        tokenizer: Its tokenizer.
        max_new_tokens: Longest answer, in tokens.
        max_batch: Most chats decoded at once.

    Raises:
        InputError: If the policy has no adapters: its base would not stay as it was.
    """
    if not hasattr(model, "disable_adapter"):
        raise InputError(
            "reader 'base' with a fully fine-tuned policy", expected="a LoRA policy", fix="use reader: recall or endpoint"
        )
    generator = HFGenerator(model, tokenizer, max_batch=max_batch, merge_adapters=False)

    def answer(chats: list[list[Message]]) -> list[str]:
        prompts = [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in chats]
        trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        try:
            with model.disable_adapter():
                return [completion.text for completion in generator.generate(prompts, Sampling(max_new_tokens))]
        finally:  # peft makes every adapter weight trainable on the way back, frozen layers included
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(trainable[name])

    return answer
