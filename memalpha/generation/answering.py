"""Greedy answers of a local model to chats, for readers."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.generation.products import restored
from memalpha.protocols import Generator
from memalpha.text import THINK, chat_ids, in_common, opens_thinking
from memalpha.types import Message, Prompt, Sampling

Answering = Callable[[list[list[Message]]], list[str]]
BATCH_TOKENS = 16_384


def answer_chats(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[list[Message]],
    max_new_tokens: int,
    batch_tokens: int = BATCH_TOKENS,
) -> list[str]:
    """Answer chats; equal chats and shared prefixes are computed once, and ``batch_tokens`` bounds
    what is read at once.

    An answer begins with ``THINK`` if the chat template has opened the thinking.
    """
    prompts = [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in chats]
    different = list({prompt.ids: prompt for prompt in prompts}.values())
    start = THINK if opens_thinking(tokenizer) else ""
    answers: dict[tuple[int, ...], str] = {}
    for batch in within_tokens(mark_prefixes(different), batch_tokens, max_new_tokens):
        completions = generator.generate(batch, Sampling(max_new_tokens))
        for prompt, completion in zip(batch, completions, strict=True):
            answers[prompt.ids] = start + completion.text
    return [answers[prompt.ids] for prompt in prompts]


def frozen_base(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int = 32
) -> Answering:
    """Return a function that answers without the policy's adapters; InputError if it has none."""
    InputError.raise_if(
        not hasattr(model, "disable_adapter"),
        "reader 'base' with a fully fine-tuned policy",
        expected="reader recall, trained or endpoint",
    )
    generator = HFGenerator(model, tokenizer, merge_adapters=False)

    def answer(chats: list[list[Message]]) -> list[str]:
        with restored(model.parameters(), "requires_grad"), model.disable_adapter():
            return answer_chats(generator, tokenizer, chats, max_new_tokens)

    return answer


def mark_prefixes(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Mark common prefixes to compute once: of neighbours that share more than half, else of all
    other prompts.
    """
    groups: list[list[Prompt]] = []
    shared = 0
    for prompt in prompts:
        shared = in_common([groups[-1][0].ids[:shared], prompt.ids]) if groups else 0
        if 2 * shared <= len(prompt.ids):
            groups.append([])
            shared = len(prompt.ids)
        groups[-1].append(prompt)
    lone = [group[0].ids for group in groups if len(group) == 1]
    least = in_common(lone) if len(lone) > 1 else 0
    marked: list[Prompt] = []
    for group in groups:
        shared = in_common([prompt.ids for prompt in group]) if len(group) > 1 else least
        marked += [replace(prompt, shared=shared) for prompt in group]
    return marked


def within_tokens(prompts: Sequence[Prompt], tokens: int, new_tokens: int) -> list[list[Prompt]]:
    """Split prompts, in order, into batches with rows times (longest prompt + completion) at most
    ``tokens``, or of one prompt.
    """
    batches: list[list[Prompt]] = []
    for prompt in prompts:
        grown = [*batches[-1], prompt] if batches else []
        if grown and len(grown) * (max(len(row.ids) for row in grown) + new_tokens) <= tokens:
            batches[-1] = grown
        else:
            batches.append([prompt])
    return batches
