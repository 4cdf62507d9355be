"""How long prompts can be, and whether they fit a model."""

from typing import Any

from memalpha.agent.step import AgentStep
from memalpha.errors import InputError

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


def check_context(agent: AgentStep, model_config: Any) -> None:
    """Raise InputError if the longest prompt and completion exceed the model's positions."""
    positions = positions_of(model_config)
    needed = longest_prompt(agent) + agent.config.max_completion_length
    names = ("max_chunk_tokens", "view_tokens", "max_completion_length")
    settings = [f"{name} (now {getattr(agent.config, name)})" for name in names]
    InputError.raise_if(
        positions and needed > positions,
        f"prompt and completion can have {needed} tokens, and the model takes {positions}",
        fix=f"lower {', '.join(settings)}",
    )
