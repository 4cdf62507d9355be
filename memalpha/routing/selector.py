"""``ToolSelector``: a group of agents that learns from use which registered tool a query needs.

    selector = ToolSelector(make_embedder("minilm"))
    selector.register("search", "looks facts up in the memory")
    selector.register("ask_user", "asks the person a question")
    selection = selector.select("What is the city of Marta?", context="...")
    selector.observe(selection, reward=1.0)        # learns by itself after ``update_every`` observations

Exploring, agents take turns to draw from their own probabilities; greedy, the group takes the highest mean probability. Learning is
that of multi-agent GRPO (``learn``), on episodes of one step. Departure from the public selector: features are embeddings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt
from torch import Tensor, nn

from memalpha.config import Options
from memalpha.errors import InputError
from memalpha.policies import Checkpoint, PolicyOptions, Shape, plain
from memalpha.protocols import Embedder
from memalpha.routing.learner import GroupOptions, learn, make_agents, seeds_of
from memalpha.routing.ppo import Agent, Batch, PPOOptions, pack, unpack


@dataclass(frozen=True, slots=True)
class SelectorOptions(Options):
    """Options of a selector's learning."""

    update_every: NonNegativeInt = 100  # observations between updates (0 = only when ``update`` is called)
    policy: PolicyOptions = field(default_factory=lambda: PolicyOptions(hidden=(256, 128)))  # every agent's networks, separate
    ppo: PPOOptions = field(default_factory=PPOOptions)
    group: GroupOptions = field(default_factory=lambda: GroupOptions((0.3, 0.7, 0.7), (0.02, 0.01, 0.01)))
    seed: NonNegativeInt = 0  # draws first weights, explored tools and minibatches


class Selection(NamedTuple):
    """One choice; ``agent`` None = the whole group (greedy)."""

    tool: str
    probabilities: dict[str, float]
    agent: int | None
    number: int


class _Step(NamedTuple):
    observation: NDArray[np.float32]
    action: int
    log_prob: float
    value: float
    reward: float = float("nan")


class ToolSelector:
    """Chooses tools and learns from rewards."""

    def __init__(self, embedder: Embedder, options: SelectorOptions | None = None) -> None:
        self.options = options or SelectorOptions()
        self.tools: dict[str, str] = {}
        self.updates = 0
        self._embedder = embedder
        self._agents: list[Agent] = []
        self._generator = torch.Generator().manual_seed(self.options.seed)
        self._number = 0
        self._forget()

    def register(self, name: str, description: str) -> None:
        """Add a tool; InputError if the name is empty or taken. What was learned is kept, pending observations are dropped."""
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
        seen = torch.from_numpy(observation[None])
        with torch.no_grad():
            probabilities = np.concatenate([agent.policy.log_probs(seen).exp()[:, 0].numpy() for agent in self._agents])
            number, names = self._number, list(self.tools)
            self._number += 1
            if not explore:
                mean = probabilities.mean(axis=0)
                return Selection(names[int(mean.argmax())], dict(zip(names, mean.tolist(), strict=True)), None, number)
            agent = number % len(self._agents)
            own = probabilities[agent]
            action = int(torch.multinomial(torch.from_numpy(own), 1, generator=self._generator))
            value = float(self._agents[agent].policy.value(seen))
        self._open[number] = _Step(observation, action, float(np.log(own[action])), value)
        return Selection(names[action], dict(zip(names, own.tolist(), strict=True)), agent, number)

    def observe(self, selection: Selection, reward: float) -> dict[str, float]:
        """Record a choice's reward; returns the report of an update that it completed. Greedy choices are not learned from."""
        if not np.isfinite(reward):
            raise InputError(f"reward {reward!r}", expected="a finite number")
        if selection.agent is None:
            return {}
        if selection.number not in self._open:
            raise InputError(f"selection {selection.number}", expected=f"one made since update {self.updates}, observed once")
        self._done[selection.agent].append(self._open.pop(selection.number)._replace(reward=float(reward)))
        return self.update() if sum(map(len, self._done)) == self.options.update_every else {}

    def update(self) -> dict[str, float]:
        """Learn from observations since the last update, drop open choices; returns figures such as ``agent_0/kl``."""
        learners = [i for i, steps in enumerate(self._done) if steps]
        if not learners:
            return {}
        seed = int(np.random.SeedSequence([self.options.seed, self.updates]).generate_state(1)[0])
        weights, batches = [self.options.group.relative_weights[i] for i in learners], []
        for i in learners:  # episodes of one step: advantage = reward - value, return = reward
            observations, actions, log_probs, values, rewards = zip(*self._done[i], strict=True)
            taken = torch.from_numpy(np.stack(observations)), torch.tensor(actions)[:, None], torch.tensor(log_probs)[:, None]
            batches.append(Batch(*taken, torch.tensor(rewards) - torch.tensor(values), torch.tensor(rewards)))
        reports = learn([self._agents[i] for i in learners], weights, batches, seed)
        self.updates += 1
        self._forget()
        pairs = zip(learners, reports, strict=True)
        return {f"agent_{i}/{name}": value for i, report in pairs for name, value in report.items()}

    def save(self, path: str | Path) -> None:
        """Write agents, optimizers, tools and random state; observations since the last update are not saved."""
        self._build()
        state = {"members": pack(self._agents), "generator": self._generator.get_state()}
        routes = {"tools": dict(self.tools), "dimension": self._embedder.dimension}
        config = plain(asdict(self.options))
        Checkpoint("tool_selector", self.updates, self._number, self.options.seed, config, state, routes).save(path)

    def load(self, path: str | Path) -> None:
        """Load what ``save`` wrote, with the same tools registered in the same order; InputError says what differs."""
        checkpoint = Checkpoint.load(path)
        if checkpoint.learner != "tool_selector":
            raise InputError(f"{path} was made by {checkpoint.learner!r}", expected="tool_selector")
        tools, dimension = list(checkpoint.routes["tools"]), checkpoint.routes["dimension"]
        if tools != list(self.tools) or dimension != self._embedder.dimension:
            expected = f"the registered tools in their order, {list(self.tools)}, and embeddings of {self._embedder.dimension}"
            raise InputError(f"{path} chooses among {tools} by embeddings of {dimension}", expected=expected)
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

    def _forget(self) -> None:
        self._open: dict[int, _Step] = {}
        self._done: list[list[_Step]] = [[] for _ in self.options.group.relative_weights]


def _add_choice(agent: Agent) -> None:
    """Add an option whose logit is the mean of the old ones', so odds among these stay the same; Adam's means get zeros."""
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
