"""Whether what a model is to read can fit it, said before anything is read."""

from __future__ import annotations

from typing import Any

from memalpha.agent.step import TIME_TOKENS, AgentStep
from memalpha.errors import InputError


def positions_of(model_config: Any) -> int | None:
    """Return how many tokens a model was made for; None if its configuration does not say."""
    positions: int | None = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    return positions or None


def longest_prompt(agent: AgentStep) -> int:
    """Return the most tokens a prompt of this agent can have; a block without a limit counts as empty."""
    frame, _ = agent.encoder.encode({"chunk": "", "memory": ""}, shared="chunk")
    sections = agent.schema.sections
    names = sum(agent.encoder.count(f"{section.name}:\n") for section in sections) if len(sections) > 1 else 0
    blocks = sum(section.max_tokens for section in agent.schema.blocks)
    times = TIME_TOKENS if agent.config.show_times else 0
    return len(frame) + agent.config.max_chunk_tokens + times + agent.config.view_tokens + names + blocks


def check_context(agent: AgentStep, model_config: Any) -> None:
    """Compare the longest prompt and completion with the positions a model was made for.

    Raises:
        InputError: If they do not fit; names the budgets.
    """
    positions = positions_of(model_config)
    needed = longest_prompt(agent) + agent.config.max_completion_length
    if positions and needed > positions:
        config = agent.config
        raise InputError(
            f"prompt and completion can have {needed} tokens, and the model takes {positions}",
            expected=f"at most {positions} tokens",
            fix=f"lower max_chunk_tokens (now {config.max_chunk_tokens}), view_tokens (now {config.view_tokens}) or "
            f"max_completion_length (now {config.max_completion_length})",
        )


__all__ = ["TIME_TOKENS", "check_context", "longest_prompt", "positions_of"]
