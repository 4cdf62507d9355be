"""Load a trained reader: a LoRA adapter that answers questions from passages, on a base of its
own.
"""

from pathlib import Path
from typing import Any

from memalpha.generation.answering import Answering, answer_chats
from memalpha.generation.hf import HFGenerator
from memalpha.generation.merging import exact
from memalpha.models.policy import base_of, load_policy_model, unknown_bias


def trained_reader(
    adapter: str | Path,
    *,
    dtype: str = "float32",
    device: Any = "cpu",
    max_new_tokens: int = 32,
    keep_prefix: bool = True,
) -> Answering:
    """Return a function that answers with a reader's adapter (``memalpha warmup --teaches reader``)
    on a base of its own.

    ``keep_prefix``: as in ``HFGenerator``; it holds what the last questions' notes had in common.
    """
    policy = load_policy_model(base_of(adapter), adapter=adapter, dtype=dtype)
    model = policy.model.merge_and_unload() if exact(policy.model) else policy.model
    bias = unknown_bias(adapter, policy.tokenizer)
    generator = HFGenerator(
        model.to(device).eval(), policy.tokenizer, keep_prefix=keep_prefix, first_bias=bias
    )
    return lambda chats: answer_chats(generator, policy.tokenizer, chats, max_new_tokens)
