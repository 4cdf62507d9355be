"""``ToolSelector``: a group of agents that learns from use which registered tool a query wants.

    selector = ToolSelector(make_embedder("minilm"))
    selector.register("search", "looks facts up in the memory")
    selector.register("ask_user", "asks the person a question")
    selection = selector.select("What is the city of Marta?", context="...")
    selector.observe(selection, reward=1.0)        # learns by itself after ``update_every`` observations

The state is the embedding of the query beside that of the context. Agents take turns; exploring, the one whose turn it is draws a
tool from its own probabilities; greedy, the group takes the likeliest by the mean of all. The learning is
``memalpha.routing.grpo``'s, on episodes of one step.

What always holds: a choice is learned from with the probability it was made with; greedy choices were not drawn, so their rewards
are not learned from; a choice older than the last update is refused by name, because the policy that made it is gone. A tool
registered later adds an option to every network (its first logit is the mean of the others'), leaves what was learned alone and
drops what was not yet learned from; loading into other tools is an error that names them.

Faults of the public selector that are mended here: a changed list of tools broke its networks silently, missing checkpoint files
were a warning, and its features were random numbers. Rewards are whatever the caller finds: its ``10 x max(0, gain)`` hides
losses, and the normalised advantages take the scale out anyhow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from memalpha.config import Options
from memalpha.errors import InputError
from memalpha.policies import Checkpoint, PolicyOptions, Shape, plain
from memalpha.protocols import Embedder
from memalpha.routing.grpo import GroupOptions, learn, make_agents
from memalpha.routing.learner import seeds_of
from memalpha.routing.ppo import Agent, Batch, PPOOptions, pack, unpack

LEARNER = "tool_selector"
"""Name of the learner in a selector's checkpoint."""


@dataclass(frozen=True, slots=True)
class SelectorOptions(Options):
    """How a selector learns.

    Attributes:
        update_every: Observations between updates (0 = only when ``update`` is called).
        policy: Every agent's networks, of kind ``separate``.
        ppo: How they are updated.
        group: The agents.
        seed: Draws first weights, explored tools and minibatches.
    """

    update_every: NonNegativeInt = 100
    policy: PolicyOptions = field(default_factory=lambda: PolicyOptions(hidden=(256, 128)))
    ppo: PPOOptions = field(default_factory=PPOOptions)
    group: GroupOptions = field(default_factory=lambda: GroupOptions((0.3, 0.7, 0.7), (0.02, 0.01, 0.01)))
    seed: NonNegativeInt = 0

    def check(self) -> None:
        """See that tools can be added to the networks."""
        if self.policy.kind != "separate":
            raise InputError(f"a selector with a policy of kind {self.policy.kind!r}", expected="separate")


class Selection(NamedTuple):
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


class Progress(NamedTuple):
    """What a callback is told after each update.

    Attributes:
        updates: Taken so far.
        observed: Rewards observed since the update before.
        rewards: Mean reward of each agent since then; None where it explored nothing.
        probabilities: For each agent, the mean probability of each tool on what was observed.
        reports: For each agent, what ``memalpha.routing.grpo.learn`` reports; empty if it explored nothing.
    """

    updates: int
    observed: int
    rewards: tuple[float | None, ...]
    probabilities: tuple[dict[str, float], ...]
    reports: tuple[dict[str, float], ...]


class _Step(NamedTuple):
    observation: NDArray[np.float32]
    action: int
    log_prob: float
    value: float
    reward: float = float("nan")


class ToolSelector:
    """Chooses tools and learns from what came of it.

    Args:
        embedder: Embeds queries and contexts.
        options: How it learns.
        callback: Told after each update, e.g. ``show_progress(console)``.
    """

    def __init__(
        self, embedder: Embedder, options: SelectorOptions | None = None, callback: Callable[[Progress], None] | None = None
    ) -> None:
        self.options, self.callback = options or SelectorOptions(), callback
        self.tools: dict[str, str] = {}
        self.updates = 0
        self._embedder = embedder
        self._agents: list[Agent] = []
        self._generator = torch.Generator().manual_seed(self.options.seed)
        self._number = 0
        self._forget()

    # -------------------------------------------------------------------------------------------- choosing
    def register(self, name: str, description: str) -> None:
        """Add a tool; InputError if the name is empty or taken."""
        if not name or name in self.tools:
            raise InputError(f"tool {name!r}", expected="a name that is not registered yet")
        self.tools[name] = description
        for agent in self._agents:
            _add_choice(agent)
        self._forget()

    def select(self, query: str, context: str = "", *, explore: bool = True) -> Selection:
        """Choose a tool.

        Args:
            query: What is asked.
            context: What is known; may be empty.
            explore: Draw from the agent's probabilities whose turn it is, and learn from it; else the group's likeliest.

        Raises:
            InputError: If fewer than two tools are registered.
        """
        self._build()
        observation = np.concatenate(self._embedder.embed([query, context]))
        probabilities = self._probabilities(observation[None])[:, 0]  # (agents, tools)
        number, names = self._number, list(self.tools)
        self._number += 1
        if not explore:
            mean = probabilities.mean(axis=0)
            return Selection(names[int(mean.argmax())], self._by_tool(mean), None, number, self.updates)
        agent = number % len(self._agents)
        action = int(torch.multinomial(torch.from_numpy(probabilities[agent]), 1, generator=self._generator))
        with torch.no_grad():
            value = float(self._agents[agent].policy.value(torch.from_numpy(observation[None])))
        self._open[number] = _Step(observation, action, float(np.log(probabilities[agent, action])), value)
        return Selection(names[action], self._by_tool(probabilities[agent]), agent, number, self.updates)

    def observe(self, selection: Selection, reward: float) -> dict[str, float]:
        """Tell what came of a choice; returns what an update reports, if this observation was the one that completed it.

        Args:
            selection: What ``select`` returned.
            reward: Higher is better; any finite number.

        Raises:
            InputError: If the reward is not finite, the choice is not of this selector, was observed already, or is older than the
                last update (observe before ``update``).
        """
        if not np.isfinite(reward):
            raise InputError(f"reward {reward!r}", expected="a finite number")
        if selection.agent is None:
            return {}
        if selection.number not in self._open:
            raise InputError(
                f"selection {selection.number} of update {selection.update}",
                expected=f"one made since update {self.updates}, observed once",
            )
        self._done[selection.agent].append(self._open.pop(selection.number)._replace(reward=float(reward)))
        return self.update() if sum(map(len, self._done)) == self.options.update_every else {}

    # -------------------------------------------------------------------------------------------- learning
    def update(self) -> dict[str, float]:
        """Learn from what was observed since the last update; returns each agent's figures, ``agent_0/kl`` and so on.

        Choices that were not observed are dropped: the policy that made them is gone.
        """
        learners = [i for i, steps in enumerate(self._done) if steps]
        if not learners:
            return {}
        seed = int(np.random.SeedSequence([self.options.seed, self.updates]).generate_state(1)[0])
        weights = [self.options.group.relative_weights[i] for i in learners]
        batches = [_batch(self._done[i]) for i in learners]
        reports = dict(zip(learners, learn([self._agents[i] for i in learners], weights, batches, seed), strict=True))
        self.updates += 1
        if self.callback is not None:
            self.callback(self._progress(reports))
        self._forget()
        return {f"agent_{i}/{name}": value for i, report in reports.items() for name, value in report.items()}

    # -------------------------------------------------------------------------------------------- files
    def save(self, path: str | Path) -> None:
        """Write agents, optimizers, tools and the state of chance; observations since the last update are not kept."""
        self._build()
        Checkpoint(
            learner=LEARNER,
            updates=self.updates,
            steps=self._number,
            seed=self.options.seed,
            config=plain(asdict(self.options)),
            state={"members": pack(self._agents), "generator": self._generator.get_state()},
            routes={"tools": dict(self.tools), "dimension": self._embedder.dimension},
        ).save(path)

    def load(self, path: str | Path) -> None:
        """Load what ``save`` wrote; the same tools must be registered, in the same order.

        Raises:
            InputError: If there is no such file, it is no selector's, or tools, embedder or networks differ; says which.
        """
        checkpoint = Checkpoint.load(path)
        if checkpoint.learner != LEARNER:
            raise InputError(f"{path} was made by {checkpoint.learner!r}", expected=LEARNER)
        tools, dimension = list(checkpoint.routes["tools"]), checkpoint.routes["dimension"]
        if tools != list(self.tools) or dimension != self._embedder.dimension:
            known = ", ".join(self.tools) or "none"
            raise InputError(
                f"{path} chooses among {', '.join(tools)} by embeddings of {dimension}",
                expected=f"the registered tools, {known}, in this order, and embeddings of {self._embedder.dimension}",
                fix="register the same tools in the same order, then load, then register new ones",
            )
        self._build()
        unpack(checkpoint.state["members"], self._agents)
        self._generator.set_state(checkpoint.state["generator"])
        self.updates, self._number = checkpoint.updates, checkpoint.steps
        self._forget()

    # -------------------------------------------------------------------------------------------- inside
    def _build(self) -> None:
        if len(self.tools) < 2:
            raise InputError(f"a choice among {len(self.tools)} tools", expected="at least two registered tools")
        if not self._agents:
            o, size = self.options, 2 * self._embedder.dimension
            shape = Shape(size, 1, len(self.tools), ((0, size),))
            self._agents = make_agents(shape, o.policy, o.ppo, o.group, seeds_of(o.seed, 1)[0])

    @torch.no_grad()
    def _probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Each agent's probability of each tool, shape (agents, n, tools)."""
        seen = torch.from_numpy(observations)
        return np.stack([agent.policy.log_probs(seen).exp()[:, 0].numpy() for agent in self._agents])

    def _forget(self) -> None:
        self._open: dict[int, _Step] = {}
        self._done: list[list[_Step]] = [[] for _ in self.options.group.relative_weights]

    def _progress(self, reports: dict[int, dict[str, float]]) -> Progress:
        seen = np.stack([step.observation for steps in self._done for step in steps])
        return Progress(
            updates=self.updates,
            observed=len(seen),
            rewards=tuple(float(np.mean([step.reward for step in steps])) if steps else None for steps in self._done),
            probabilities=tuple(self._by_tool(row) for row in self._probabilities(seen).mean(axis=1)),
            reports=tuple(reports.get(i, {}) for i in range(len(self._agents))),
        )

    def _by_tool(self, values: NDArray[np.float32]) -> dict[str, float]:
        return dict(zip(self.tools, map(float, values), strict=True))


def _batch(steps: list[_Step]) -> Batch:
    """Episodes of one step: the advantage is the reward less the value, the return is the reward."""
    observations, actions, log_probs, values, rewards = zip(*steps, strict=True)
    returns = torch.tensor(rewards)
    return Batch(
        observations=torch.from_numpy(np.stack(observations)),
        actions=torch.tensor(actions)[:, None],
        log_probs=torch.tensor(log_probs)[:, None],
        advantages=returns - torch.tensor(values),
        returns=returns,
    )


def _add_choice(agent: Agent) -> None:
    """Add an option to a separate policy of one decider, in place.

    The new option starts with the mean weights and bias of the old ones, so its logit is the mean of theirs for every observation,
    and the old options keep their odds among one another. Adam's running means of the last layer get a row of zeros.
    """
    policy = agent.policy
    last: Any = policy.actor[-1]
    for name in ("weight", "bias"):
        old: Tensor = getattr(last, name)
        new = nn.Parameter(torch.cat([old.detach(), old.detach().mean(dim=0, keepdim=True)]))
        for group in agent.optimizer.param_groups:
            group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
        if moments := agent.optimizer.state.pop(old, None):  # "step" is a number, the others are shaped as the parameter
            padded = {key: torch.cat([m, torch.zeros_like(m[:1])]) if m.dim() else m for key, m in moments.items()}
            agent.optimizer.state[new] = padded
        setattr(last, name, new)
    last.out_features = policy.shape.choices + 1
    policy.shape = policy.shape._replace(choices=last.out_features)


# ------------------------------------------------------------------------------------------------ what is shown
def progress_table(progress: Progress) -> Table:
    """Return a table with a row an agent: mean reward, divergence and entropy of its update, and each tool's mean probability."""
    table = Table(title=f"update {progress.updates}: {progress.observed} rewards observed")
    for name in ("agent", "reward", "kl", "entropy", *progress.probabilities[0]):
        table.add_column(name, justify="right")
    for i, (reward, tools, report) in enumerate(zip(*progress[2:], strict=True)):
        figures = [reward, report.get("kl"), report.get("entropy"), *tools.values()]
        table.add_row(str(i), *("-" if figure is None else f"{figure:.3f}" for figure in figures))
    return table


def show_progress(console: Console) -> Callable[[Progress], None]:
    """Return a callback for ``ToolSelector`` that prints the table."""
    return lambda progress: console.print(progress_table(progress))
