"""``ToolSelector``: a group of agents that learns from use which registered tool a query needs.

    selector = ToolSelector(make_embedder("minilm"))
    selector.register("search", "looks facts up in the memory")
    selector.register("ask_user", "asks the person a question")
    selection = selector.select("What is the city of Marta?", context="...")
    selector.observe(selection, reward=1.0)        # learns by itself after ``update_every`` observations

The state is the embeddings of query and context. Exploring, agents take turns to draw from their own probabilities; greedy, the
group takes the highest mean probability. Learning is that of ``memalpha.routing.grpo``, on episodes of one step.

What always holds: learning uses the probability at the time of the choice; greedy choices are not learned from; choices older than
the last update are refused. A later tool adds an option to every network (first logit: mean of the others'), keeps what was learned
and drops pending observations. Loading with other tools is an InputError. Departures from the public selector: features are
embeddings, not random numbers; any finite reward is allowed, not only ``10 x max(0, gain)``.
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
"""Learner's name in a selector's checkpoint."""


@dataclass(frozen=True, slots=True)
class SelectorOptions(Options):
    """Options of a selector's learning.

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
        """Check that tools can be added to the networks."""
        if self.policy.kind != "separate":
            raise InputError(f"a selector with a policy of kind {self.policy.kind!r}", expected="separate")


class Selection(NamedTuple):
    """One choice; ``agent`` None = the whole group (greedy), ``update`` = number of updates before it."""

    tool: str
    probabilities: dict[str, float]
    agent: int | None
    number: int
    update: int


class Progress(NamedTuple):
    """Passed to the callback after each update.

    ``observed`` counts rewards since the previous update; ``rewards`` are means per agent (None: it explored nothing);
    ``probabilities`` are each agent's mean per tool on what was observed; ``reports`` are those of ``memalpha.routing.grpo.learn``,
    or empty.
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
    """Chooses tools and learns from rewards; ``callback`` runs after each update, e.g. ``show_progress(console)``."""

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

    def register(self, name: str, description: str) -> None:
        """Add a tool; InputError if the name is empty or taken."""
        if not name or name in self.tools:
            raise InputError(f"tool {name!r}", expected="a name that is not registered yet")
        self.tools[name] = description
        for agent in self._agents:
            _add_choice(agent)
        self._forget()

    def select(self, query: str, context: str = "", *, explore: bool = True) -> Selection:
        """Choose a tool; ``explore`` draws from the next agent and learns from it. InputError with fewer than two tools."""
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
        """Record a choice's reward (higher is better); returns the report of an update that it completed, if any.

        InputError if the reward is not finite, or the choice is another selector's, already observed or older than the last update.
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

    def update(self) -> dict[str, float]:
        """Learn from observations since the last update, drop open choices; returns figures such as ``agent_0/kl``."""
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

    def save(self, path: str | Path) -> None:
        """Write agents, optimizers, tools and random state; observations since the last update are not saved."""
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
        """Load what ``save`` wrote, with the same tools registered in the same order; InputError says what differs."""
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
    """Episodes of one step: advantage = reward - value, return = reward."""
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

    Its weights and bias are the means of the old ones, so its logit is the mean of theirs; odds among old options stay the same.
    Adam's running means of the last layer get a row of zeros.
    """
    policy = agent.policy
    last: Any = policy.actor[-1]
    for name in ("weight", "bias"):
        old: Tensor = getattr(last, name)
        new = nn.Parameter(torch.cat([old.detach(), old.detach().mean(dim=0, keepdim=True)]))
        for group in agent.optimizer.param_groups:
            group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
        if moments := agent.optimizer.state.pop(old, None):  # all but "step" have the parameter's shape
            padded = {key: torch.cat([m, torch.zeros_like(m[:1])]) if m.dim() else m for key, m in moments.items()}
            agent.optimizer.state[new] = padded
        setattr(last, name, new)
    last.out_features = policy.shape.choices + 1
    policy.shape = policy.shape._replace(choices=last.out_features)


def progress_table(progress: Progress) -> Table:
    """Return a table with one row per agent: mean reward, kl and entropy of its update, mean probability of each tool."""
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
