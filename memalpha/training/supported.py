"""Options of TRL that chunk-step training cannot honour, each with the reason, and the one check of them all."""

from __future__ import annotations

from typing import Any

from memalpha.errors import InputError
from memalpha.rewards.total import RewardConfig

SUPPORTED_ONLY: dict[str, tuple[Any, str]] = {
    "multi_objective_aggregation": ("sum_then_normalize", "the reward is one weighted sum"),
    "top_entropy_quantile": (1.0, "the quantile would be that of rows_per_forward rows"),
    "entropy_coef": (0.0, "the mean entropy would be that of rows_per_forward rows"),
    "use_adaptive_entropy": (False, "the mean entropy would be that of rows_per_forward rows"),
    "remove_unused_columns": (False, "the column that names the instance would be removed"),
    "log_completions": (False, "every trajectory is in the run folder"),
}
"""Options of ``GRPOConfig`` that must keep their default, and why."""

TRL_GENERATION_ONLY: dict[str, Any] = {"min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}
"""Options that only TRL's own generation knows (``generator=None``)."""


def check_supported(args: Any, reward_config: RewardConfig, *, own_generator: bool) -> None:
    """Raise InputError if an option of TRL's is set that chunk-step training cannot honour.

    Args:
        args: A ``GRPOConfig``.
        reward_config: Holds the weights of the reward.
        own_generator: Whether completions are drawn by a generator of this package.
    """
    for name, (only, reason) in SUPPORTED_ONLY.items():
        if getattr(args, name) != only:
            raise InputError(f"{name} is {getattr(args, name)!r}", expected=f"{only!r}: {reason}")
    for name, only in TRL_GENERATION_ONLY.items():
        if own_generator and getattr(args, name) != only:
            raise InputError(f"{name} is {getattr(args, name)!r}", expected=f"{only!r} without use_vllm")
    if fixed := {"seed", "n"} & (args.generation_kwargs or {}).keys():
        raise InputError(
            f"generation_kwargs sets {', '.join(sorted(fixed))}",
            expected="neither seed nor n: the rollouts of a group read the same first prompt, and one draw each must differ",
        )
    if args.reward_weights not in (None, list(reward_config.weights)):
        raise InputError(f"reward_weights is {args.reward_weights}", expected="the weights by name, such as accuracy_weight: 1.0")
