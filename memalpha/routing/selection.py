"""What ``memalpha.routing.selector.ToolSelector`` takes, gives and tells: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from memalpha.routing.grpo import GroupOptions
from memalpha.routing.policies import PolicyOptions
from memalpha.routing.ppo import PPOOptions


@dataclass(frozen=True, slots=True)
class SelectorOptions:
    """How a selector learns.

    Attributes:
        update_every: Observations between updates (0 = only when ``update`` is called).
        policy: Every agent's networks.
        ppo: How they are updated.
        group: The agents.
        seed: Draws first weights, explored tools and minibatches.
    """

    update_every: int = 100
    policy: PolicyOptions = field(default_factory=lambda: PolicyOptions(hidden=(256, 128)))
    ppo: PPOOptions = field(default_factory=PPOOptions)
    group: GroupOptions = field(default_factory=lambda: GroupOptions((0.3, 0.7, 0.7), (0.02, 0.01, 0.01)))
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """One choice.

    Attributes:
        tool: Name of the chosen tool.
        probabilities: Each tool's probability where the choice was made.
        agent: Number of the agent that chose; None for the group (greedy).
        number: Counts selections; unique in a selector.
        update: Updates the selector had taken.
    """

    tool: str
    probabilities: dict[str, float]
    agent: int | None
    number: int
    update: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a callback is told after each update.

    Attributes:
        updates: Taken so far.
        observed: Rewards observed since the update before.
        rewards: Mean reward of each agent since then; None where it explored nothing.
        probabilities: For each agent, the mean probability of each tool on what was observed.
        reports: For each agent that learnt, what ``memalpha.routing.grpo.learn`` reports.
    """

    updates: int
    observed: int
    rewards: tuple[float | None, ...]
    probabilities: tuple[dict[str, float], ...]
    reports: tuple[dict[str, float], ...]
