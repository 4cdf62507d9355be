"""Checks that prompts and rows of tokens fit a model: its positions, window and vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError

if TYPE_CHECKING:
    from memalpha.agent.step import AgentStep

TIME_TOKENS = 40
"""Most tokens of a chunk's time with its brackets: no token is less than a character."""


def positions_of(model_config: Any) -> int | None:
    """Return a model's maximum number of positions; None if unknown."""
    return getattr(model_config.get_text_config(), "max_position_embeddings", None) or None


def longest_prompt(agent: AgentStep) -> int:
    """Return the maximum number of prompt tokens; a block without a limit counts as empty."""
    frame, _ = agent.encoder.encode({"chunk": "", "memory": ""}, shared="chunk")
    tokens = len(frame) + agent.config.max_chunk_tokens + agent.config.view_tokens
    if agent.config.show_times:
        tokens += TIME_TOKENS
    for section in agent.schema.sections:
        if len(agent.schema.sections) > 1:
            tokens += agent.encoder.count(f"{section.name}:\n")
        tokens += section.max_tokens if section in agent.schema.blocks else 0
    return tokens


def window_of(model_config: Any) -> int | None:
    """Return up to how many tokens a row is computed alike, alone or with longer ones: those that a
    layer with a sliding window looks back at, or those after which longrope changes all positions;
    None if there is no such number.
    """
    text = model_config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ("sliding_attention",)
    sliding = getattr(text, "sliding_window", None) if "sliding_attention" in kinds else None
    rope = getattr(text, "rope_parameters", None) or {}
    rotations = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    windows = [sliding] + [
        rotation.get("original_max_position_embeddings")
        for rotation in rotations
        if rotation.get("rope_type") == "longrope"
    ]
    return min((window for window in windows if window), default=None)


def context_of(model_config: Any) -> int | None:
    """Return up to how many tokens this package gives a model; None if unknown."""
    limits = (positions_of(model_config), window_of(model_config))
    return min((limit for limit in limits if limit), default=None)


def check_tokens(ids: Sequence[int], model_config: Any) -> None:
    """Raise InputError if a model has no embedding of one of these tokens, as when tokens were
    added to its tokenizer alone.
    """
    vocabulary = getattr(model_config.get_text_config(), "vocab_size", None)
    highest = max(ids, default=0)
    if vocabulary and highest >= vocabulary:
        raise InputError(
            f"the tokenizer gives the token {highest}, but the model has embeddings for "
            f"only {vocabulary} tokens",
            expected="a model that has all tokens of its tokenizer",
            fix="resize the model's embeddings if tokens were added, or give the model its own "
            "tokenizer",
        )


def check_context(agent: AgentStep, model_config: Any) -> None:
    """Raise InputError if the longest prompt and completion exceed the model's positions, or its
    window, or a prompt has tokens that the model has not.
    """
    check_tokens(agent.encoder.encode({"chunk": "", "memory": ""}, shared="")[0], model_config)
    positions = context_of(model_config)
    needed = longest_prompt(agent) + agent.config.max_completion_length
    names = ("max_chunk_tokens", "view_tokens", "max_completion_length")
    settings = [f"{name} (now {getattr(agent.config, name)})" for name in names]
    if positions and needed > positions:
        raise InputError(
            f"prompt and completion can have {needed} tokens together, but the model takes "
            f"{positions}" + (" (its window)" if positions == window_of(model_config) else ""),
            fix=f"lower {', '.join(settings)}",
        )
