"""``ToolSelector``: a group of agents that learns from use which registered tool a query wants.

    selector = ToolSelector(make_embedder("minilm"))
    selector.register("search", "looks facts up in the memory")
    selector.register("ask_user", "asks the person a question")
    selection = selector.select("What is the city of Marta?", context="...")
    selector.observe(selection, reward=1.0)        # learns by itself after ``update_every`` observations

The state is the embedding of the query beside that of the context. Agents take turns; exploring, the one whose turn it is draws a
tool from its own probabilities; greedy, the group takes the likeliest by the mean of all. The learning is
``memalpha.routing.grpo``'s, on episodes of one step.

What always holds: a choice is learnt from with the probability it was made with; greedy choices were not drawn, so their rewards
are not learnt from; a choice older than the last update is refused by name rather than learnt from with a policy that no longer
is the one that made it. A tool registered later adds an option to every network (its first logit is the mean of the others'),
leaves what was learnt alone and drops what was not yet learnt from; loading into other tools is an error that names them.

Faults of the public selector that are mended here: a changed list of tools broke its networks silently, missing checkpoint files
were a warning, and its features were random numbers. Rewards are whatever the caller finds: its ``10 x max(0, gain)`` hides
losses, and scale is taken out by the normalised advantages anyhow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from memalpha.errors import InputError
from memalpha.protocols import Embedder
from memalpha.routing.checkpoints import Checkpoint, pack_policy, plain, unpack_members
from memalpha.routing.grow import grow_choices
from memalpha.routing.grpo import Member, group_probabilities, learn, make_members
from memalpha.routing.learner import seeds_of
from memalpha.routing.policies import Shape
from memalpha.routing.ppo import Batch
from memalpha.routing.selection import Progress, Selection, SelectorOptions

LEARNER = "tool_selector"
"""Name of the learner in a selector's checkpoint."""


@dataclass(slots=True)
class _Step:
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
        callback: Told after each update, e.g. ``memalpha.routing.selector_view.show_progress(console)``.
    """

    def __init__(
        self, embedder: Embedder, options: SelectorOptions | None = None, callback: Callable[[Progress], None] | None = None
    ) -> None:
        self.options, self.callback = options or SelectorOptions(), callback
        self.tools: dict[str, str] = {}
        self.updates = 0
        self.group_rewards: list[list[float]] = [[] for _ in self.options.group.relative_weights]
        self._embedder = embedder
        self._members: list[Member] = []
        self._generator = torch.Generator().manual_seed(self.options.seed)
        self._number = 0
        self._open: dict[int, tuple[int, _Step]] = {}
        self._done: list[list[_Step]] = [[] for _ in self.options.group.relative_weights]
        self._observed = 0

    # -------------------------------------------------------------------------------------------- tools
    def register(self, name: str, description: str) -> None:
        """Add a tool.

        Raises:
            InputError: If the name is empty or taken.
        """
        if not name or name in self.tools:
            raise InputError(f"tool {name!r}", expected="a name that is not registered yet")
        self.tools[name] = description
        for member in self._members:
            grow_choices(member, len(self.tools))
        self._forget()

    # -------------------------------------------------------------------------------------------- choosing
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
        observation = self._observe(query, context)
        probabilities = group_probabilities(self._members, observation)[:, 0, 0]  # (agents, tools)
        number, names = self._number, list(self.tools)
        self._number += 1
        if not explore:
            mean = probabilities.mean(axis=0)
            return Selection(names[int(mean.argmax())], _by_name(names, mean), None, number, self.updates)
        agent = number % len(self._members)
        action = int(torch.multinomial(torch.from_numpy(probabilities[agent]), 1, generator=self._generator))
        with torch.no_grad():
            value = float(self._members[agent].policy.value(torch.from_numpy(observation)))
        log_prob = float(np.log(probabilities[agent, action]))
        self._open[number] = (agent, _Step(observation[0], action, log_prob, value))
        return Selection(names[action], _by_name(names, probabilities[agent]), agent, number, self.updates)

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
        agent, step = self._open.pop(selection.number)
        step.reward = float(reward)
        self._done[agent].append(step)
        self.group_rewards[agent].append(float(reward))
        self._observed += 1
        return self.update() if self._observed == self.options.update_every else {}

    # -------------------------------------------------------------------------------------------- learning
    def update(self) -> dict[str, float]:
        """Learn from what was observed since the last update; returns each agent's figures, ``agent_0/kl`` and so on.

        Choices that were not observed are dropped: whatever came of them, the policy that made them is gone.
        """
        learners = [i for i, steps in enumerate(self._done) if steps]
        if not learners:
            return {}
        batches = [_batch(self._done[i]) for i in learners]
        seed = int(np.random.SeedSequence([self.options.seed, self.updates]).generate_state(1)[0])
        reports = learn([self._members[i] for i in learners], batches, seed)
        self.updates += 1
        if self.callback is not None:
            self.callback(self._progress(reports))
        self._forget()
        return {f"agent_{i}/{name}": value for i, report in zip(learners, reports, strict=True) for name, value in report.items()}

    # -------------------------------------------------------------------------------------------- files
    def save(self, path: str | Path) -> None:
        """Write agents, optimizers, tools and the state of chance; observations since the last update are not kept."""
        self._build()
        Checkpoint(
            learner=LEARNER,
            updates=self.updates,
            steps=self._number,
            seed=self.options.seed,
            config=plain(self.options),
            state={
                "members": [pack_policy(member.policy, member.optimizer) for member in self._members],
                "generator": self._generator.get_state(),
            },
            routes={"tools": dict(self.tools), "dimension": self._embedder.dimension},
        ).save(path)

    def load(self, path: str | Path) -> None:
        """Take up what ``save`` wrote; the same tools must be registered, in the same order.

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
        unpack_members(checkpoint.state, [(member.policy, member.optimizer) for member in self._members])
        self._generator.set_state(checkpoint.state["generator"])
        self.updates, self._number = checkpoint.updates, checkpoint.steps
        self._forget()

    # -------------------------------------------------------------------------------------------- inside
    def _build(self) -> None:
        if len(self.tools) < 2:
            raise InputError(f"a choice among {len(self.tools)} tools", expected="at least two registered tools")
        if not self._members:
            o, size = self.options, 2 * self._embedder.dimension
            shape = Shape(size, 1, len(self.tools), ((0, size),))
            self._members = make_members(shape, o.policy, o.ppo, o.group, seeds_of(o.seed, 1)[0])

    def _observe(self, query: str, context: str) -> NDArray[np.float32]:
        """The embeddings side by side, shape (1, 2 * dimension); zeros for an empty context."""
        return np.concatenate(self._embedder.embed([query, context]))[None]

    def _forget(self) -> None:
        self._open.clear()
        self._done = [[] for _ in self._done]
        self.group_rewards = [[] for _ in self.group_rewards]
        self._observed = 0

    def _progress(self, reports: list[dict[str, float]]) -> Progress:
        seen = np.stack([step.observation for steps in self._done for step in steps])
        means = group_probabilities(self._members, seen)[:, :, 0].mean(axis=1)  # (agents, tools)
        return Progress(
            updates=self.updates,
            observed=self._observed,
            rewards=tuple(float(np.mean(own)) if own else None for own in self.group_rewards),
            probabilities=tuple(_by_name(list(self.tools), row) for row in means),
            reports=tuple(reports),
        )


def _batch(steps: list[_Step]) -> Batch:
    """Episodes of one step: the advantage is the reward less the value, the return is the reward."""
    rewards = torch.tensor([step.reward for step in steps])
    return Batch(
        observations=torch.from_numpy(np.stack([step.observation for step in steps])),
        actions=torch.tensor([[step.action] for step in steps]),
        log_probs=torch.tensor([[step.log_prob] for step in steps]),
        advantages=rewards - torch.tensor([step.value for step in steps]),
        returns=rewards,
    )


def _by_name(names: list[str], values: NDArray[np.float32]) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
