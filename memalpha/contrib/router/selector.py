"""``ToolSelector``: a team of agents that learns from use which registered tool a query needs.

    selector = ToolSelector()
    selector.register("search", "looks facts up in the memory")
    selector.register("ask_user", "asks the person a question")
    selection = selector.select("What is the city of Marta?", context="...")
    selector.observe(selection, reward=1.0)  # learns by itself after ``update_every``

Several steps: ``observe(..., next_observation=(query, context), done=False)``, then ``select(query,
context, after=selection)``. Exploring, agents take turns, an episode each, and draw from their own
probabilities; greedy, the group takes the highest mean probability. Learning is that of multi-agent
GRPO (``learn_as_group``) on GAE. What another agent or an older policy chose is weighted by its
ratio: all agents learn from all steps, outcomes may come late, the buffer can be trained from.
Departure from the public selector: features are embeddings, not random numbers; their projection
keeps networks and file small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from memalpha.config import Options, make_options
from memalpha.contrib.router.learner import (
    GroupOptions,
    learn_as_group,
    make_agents,
    replay_episodes,
    seeds_of,
)
from memalpha.contrib.router.policy import (
    Checkpoint,
    NetworkOptions,
    PPOAgent,
    PPOOptions,
    Shape,
    as_plain_data,
    batch_of,
    pack,
    pack_tensors,
    unpack,
    unpack_tensors,
)
from memalpha.contrib.router.tasks import Experience
from memalpha.errors import InputError
from memalpha.retrieval.embedders import make_embedder
from memalpha.types import JsonMapping, JsonObject

Features = Callable[[str, str], NDArray[np.float32]]  # of (text, context): a vector of one length
Evaluator = Callable[[str, str], float]  # how good a context is for a query
# Of the tool, and how good the context was before and after it.
Reward = Callable[[str, float, float], float]
# Called with each agent's number and probabilities, as they are computed.
Progress = Callable[[int, Mapping[str, float]], None]

# Defaults of a selector.
SMALL = NetworkOptions(hidden=(16,))
FAST = PPOOptions(lr_actor=6e-3, lr_critic=6e-3)
TRIO = GroupOptions((0.3, 0.7, 0.7), (0.02, 0.01, 0.01))


@dataclass(frozen=True, slots=True)
class SelectorOptions(Options):
    """Options of a ``ToolSelector``.

    Attributes:
        update_every: The selector learns after this many observations; 0 learns only when
            ``update`` is called.
        replay: An update also learns from this many earlier observations.
        capacity: The buffer holds at most this many steps, and as many choices wait for an outcome;
            the oldest are dropped.
        embedder: This embedder makes the features, unless a function is given that makes them.
        features: The embeddings of a query and its context are projected to this many numbers.
        policy: Every agent has networks with these options, of kind ``separate``.
        ppo: Every agent is updated with these options.
        group: These options hold for the agents of the group.
        seed: First weights, explored tools and minibatches are drawn from this seed.
        device: The networks run on this Torch device.
    """

    update_every: NonNegativeInt = 100
    replay: NonNegativeInt = 0
    capacity: PositiveInt = 128
    embedder: str = "minilm"
    features: PositiveInt = 64
    policy: NetworkOptions = SMALL
    ppo: PPOOptions = FAST
    group: GroupOptions = TRIO
    seed: NonNegativeInt = 0
    device: str = "cpu"

    def check(self) -> None:
        """Check that an update's steps fit into the buffer and that tools can be added to the
        networks.
        """
        if self.update_every > self.capacity or self.policy.kind != "separate":
            what = f"update_every is {self.update_every} and capacity is {self.capacity}"
            expected = "update_every of at most the capacity, and kind separate"
            raise InputError(f"{what}, kind {self.policy.kind!r}", expected=expected)


class Selection(NamedTuple):
    """One choice, with the probabilities of who made it and of every agent; ``agent`` None = the
    whole group (greedy).
    """

    tool: str
    probabilities: dict[str, float]
    agents: tuple[dict[str, float], ...]
    agent: int | None
    number: int


class _Step(NamedTuple):
    """A step: features, action and its log-probability; whose episode it is in, as which selection,
    after which (-1 = none).
    """

    features: Tensor
    action: int
    log_prob: float
    agent: int
    episode: int
    number: int
    after: int
    quality: float = 0.0  # of the context, as ``context_evaluator`` saw it
    reward: float = 0.0
    reached: Tensor | None = None  # features of the next observation; None: the episode ended


def gain(tool: str, before: float, after: float) -> float:
    """Return ten times what the context gained, 0 if it lost: the public selector's reward."""
    return 10 * max(0.0, after - before)


class ToolSelector:
    """Chooses a tool for a query, and learns from rewards which tool suits which query.

    The functions are called and never saved.

    Args:
        options: The options; None takes the defaults.
        feature_extractor: A function that turns a query and its context into numbers; None embeds
            them.
        reward_function: A function that makes a reward from the evaluations of the context before
            and after a tool.
        context_evaluator: A function that evaluates a context for ``reward_function``; None needs a
            reward with each observation.
    """

    def __init__(
        self,
        options: SelectorOptions | None = None,
        *,
        feature_extractor: Features | None = None,
        reward_function: Reward = gain,
        context_evaluator: Evaluator | None = None,
    ) -> None:
        self.options = options or SelectorOptions()
        self.tools: dict[str, str] = {}
        # of each tool: outcomes, and the sum of their rewards
        self.earned: dict[str, tuple[int, float]] = {}
        self.updates = 0
        self.buffer: deque[_Step] = deque(maxlen=self.options.capacity)
        self._extract = feature_extractor or _embedding(
            self.options.embedder, self.options.features
        )
        self._reward = reward_function
        self._evaluate = context_evaluator
        self._agents: list[PPOAgent] = []
        self._members = b""  # they as they are saved; empty once they have changed
        self._size = 0  # of a feature vector; 0: none was seen
        self._generator = torch.Generator().manual_seed(self.options.seed)
        self._open: dict[int, _Step] = {}
        self._number = 0  # of selections
        self._episodes = 0
        self._fresh = 0  # steps at the buffer's end that were not learned from

    def register(self, name: str, description: str) -> None:
        """Add a tool; what was learned about the others is kept.

        Args:
            name: The new name of the tool.
            description: The description of the tool.

        Raises:
            InputError: The name is empty or taken.
        """
        if not name or name in self.tools:
            raise InputError(
                f"the name of a tool, {name!r}, is empty or registered already",
                expected="a new name",
            )
        self.tools[name] = description
        self.earned[name] = 0, 0.0
        self._members = b""
        for agent in self._agents:
            _add_choice(agent)

    def select(
        self,
        query: str,
        context: str = "",
        *,
        explore: bool = True,
        after: Selection | int | None = None,
        progress: Progress | None = None,
    ) -> Selection:
        """Choose a tool for a query.

        Args:
            query: The query.
            context: The context of the query.
            explore: Whether the tool is drawn, so that the selector learns from it. With False it
                is the most probable tool.
            after: The selection of the step that this one follows; None begins an episode.
            progress: A measure of progress for the features, if there is one.

        Returns:
            The selection, with its tool and number.

        Raises:
            InputError: There are fewer than two tools, the features have another length, or
                ``after`` is not held any more.
        """
        features = self._features(query, context)
        names = list(self.tools)
        before = None if after is None else self._find(after)
        rows = []
        everyone = []
        for i, agent in enumerate(self._agents):
            with torch.no_grad():
                log_probs = agent.policy.log_probs(features[None].to(self.options.device))
            rows.append(log_probs[0, 0].exp().cpu())
            everyone.append(dict(zip(names, rows[-1].tolist(), strict=True)))
            if progress:
                progress(i, everyone[-1])
        number = self._number
        self._number += 1
        if not explore:
            mean = torch.stack(rows).mean(dim=0)
            probabilities = dict(zip(names, mean.tolist(), strict=True))
            best = names[int(mean.argmax())]
            return Selection(best, probabilities, tuple(everyone), None, number)
        own = before.agent if before else self._episodes % len(rows)
        episode = before.episode if before else self._episodes
        previous = before.number if before else -1
        if before is None:
            self._episodes += 1
        action = int(torch.multinomial(rows[own], 1, generator=self._generator))
        log_prob = float(rows[own][action].log())
        quality = self._evaluate(query, context) if self._evaluate else 0.0
        step = _Step(features, action, log_prob, own, episode, number, previous, quality)
        self._open[number] = step
        if len(self._open) > self.options.capacity:
            del self._open[min(self._open)]
        return Selection(names[action], everyone[own], tuple(everyone), own, number)

    def observe(
        self,
        selection: Selection | int,
        reward: float | None = None,
        *,
        next_observation: tuple[str, str] | None = None,
        done: bool = True,
    ) -> dict[str, float]:
        """Record the outcome of a selection, and learn if an update is due.

        Greedy selections are not learned from.

        Args:
            selection: The selection or its number.
            reward: The reward; None computes it with ``reward_function`` from the evaluations of
                the contexts.
            next_observation: The query and the context after the tool.
            done: Whether the episode ends here.

        Returns:
            The report of an update that this outcome completes; else an empty dict.

        Raises:
            InputError: The reward is missing or not finite, the selection is unknown or observed
                already, or ``next_observation`` is missing.
        """
        if isinstance(selection, Selection) and selection.agent is None:
            return {}
        number = selection if isinstance(selection, int) else selection.number
        if number not in self._open:
            expected = (
                f"one of the last {self.options.capacity} selections that was made "
                "while exploring and is not observed yet"
            )
            raise InputError(f"the selection {number} is unknown", expected=expected)
        if next_observation is None and (reward is None or not done):
            raise InputError(
                f"the step has reward {reward}, done {done} and no next_observation",
                expected="next_observation as (query, context) after the tool",
            )
        step = self._open[number]
        if reward is None and next_observation is not None:
            if self._evaluate is None:
                raise InputError(
                    "no reward is given",
                    expected="a finite number, or a selector with a context_evaluator",
                )
            reward = self._reward(
                list(self.tools)[step.action], step.quality, self._evaluate(*next_observation)
            )
        if reward is None or not np.isfinite(reward):
            raise InputError(f"the reward is {reward!r}", expected="a finite number")
        reached = None if done or next_observation is None else self._features(*next_observation)
        del self._open[number]
        self.buffer.append(step._replace(reward=float(reward), reached=reached))
        tool = list(self.tools)[step.action]
        self.earned[tool] = self.earned[tool][0] + 1, self.earned[tool][1] + float(reward)
        self._fresh = min(self._fresh + 1, self.options.capacity)
        return self.update() if self._fresh == self.options.update_every else {}

    def update(self) -> dict[str, float]:
        """Learn from the observations since the last update.

        Returns:
            Figures such as ``agent_0/kl``; an empty dict without observations.
        """
        if not self._fresh:
            return {}
        first = max(0, len(self.buffer) - self._fresh - self.options.replay)
        self._fresh = 0
        return self._learn(list(islice(self.buffer, first, None)))

    def train(self, passes: int = 1) -> list[dict[str, float]]:
        """Learn from the whole buffer, off policy, with one update for each pass.

        Args:
            passes: The number of passes.

        Returns:
            The report of each update.
        """
        return [self._learn(list(self.buffer)) for _ in range(passes if self.buffer else 0)]

    def _learn(self, steps: Sequence[_Step]) -> dict[str, float]:
        seed = int(np.random.SeedSequence([self.options.seed, self.updates]).generate_state(1)[0])
        ordered = sorted(steps, key=attrgetter("episode", "number"))
        team = Experience(*(column.to(self.options.device) for column in _columns(ordered)))
        batches = []
        for agent in self._agents:
            replayed = replay_episodes(agent.policy, team, agent.options.max_ratio)
            batches.append(batch_of(replayed, agent.options))
        reports = learn_as_group(self._agents, self.options.group.relative_weights, batches, seed)
        self._members = b""
        self.updates += 1
        metrics: dict[str, float] = {}
        for i, report in enumerate(reports):
            metrics |= {f"agent_{i}/{name}": value for name, value in report.items()}
        return metrics

    def save(self, path: str | Path) -> None:
        """Write the whole state: tools, options, agents, optimizers, buffer, open selections and
        random state.

        Args:
            path: The file to write.
        """
        self._features("", "")
        self._members = self._members or pack_tensors(pack(self._agents))
        state = {
            "members": torch.frombuffer(bytearray(self._members), dtype=torch.uint8),
            "generator": self._generator.get_state(),
            "earned": self.earned,
            "buffer": _pack(self.buffer),
            "open": _pack(self._open.values()),
            "episodes": self._episodes,
            "fresh": self._fresh,
        }
        checkpoint = Checkpoint(
            learner="tool_selector",
            updates=self.updates,
            steps=self._number,
            seed=self.options.seed,
            config=as_plain_data(asdict(self.options)),
            state=state,
            routes={"tools": dict(self.tools), "size": self._size},
        )
        checkpoint.save(path)

    def stats(self) -> JsonObject:
        """Return the rewards of every tool, and the numbers of observations and updates.

        Returns:
            An object of plain JSON values.
        """
        tools = {
            name: {
                "description": self.tools[name],
                "observations": n,
                "mean_reward": earned / n if n else None,
            }
            for name, (n, earned) in self.earned.items()
        }
        return {
            "tools": tools,
            "observations": self.observations,
            "updates": self.updates,
            "waiting": sorted(self._open),
        }

    @property
    def observations(self) -> int:
        """The number of observed outcomes, including those that have left the buffer."""
        return sum(n for n, _ in self.earned.values())

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None, **functions: Any) -> ToolSelector:
        """Return the selector that ``save`` wrote.

        Args:
            path: The file.
            device: The Torch device; None takes the one on which it was saved.
            functions: The functions with which it was made, by the names of the constructor's
                arguments.

        Returns:
            The selector.

        Raises:
            InputError: The file is not a selector, or the features have another length.
        """
        checkpoint = Checkpoint.load(path)
        if checkpoint.learner != "tool_selector":
            raise InputError(f"{path} was made by {checkpoint.learner!r}", expected="tool_selector")
        config = dict(checkpoint.config)
        config["device"] = device or config["device"]
        selector = cls(make_options(SelectorOptions, config, f"the selector {path}"), **functions)
        for name, description in checkpoint.routes["tools"].items():
            selector.register(name, description)
        selector._size = checkpoint.routes["size"]
        selector._features("", "")
        state = checkpoint.state
        unpack(unpack_tensors(state["members"].numpy().tobytes()), selector._agents)
        selector._generator.set_state(state["generator"])
        selector.updates = checkpoint.updates
        selector._number = checkpoint.steps
        selector._episodes = state["episodes"]
        selector._fresh = state["fresh"]
        selector.earned = state["earned"]
        selector.buffer.extend(_unpack(state["buffer"]))
        selector._open = {step.number: step for step in _unpack(state["open"])}
        return selector

    def _find(self, selection: Selection | int) -> _Step | None:
        if isinstance(selection, Selection) and selection.agent is None:
            return None
        number = selection if isinstance(selection, int) else selection.number
        held = self._open.get(number) or next(
            (step for step in reversed(self.buffer) if step.number == number), None
        )
        if held is None:
            raise InputError(
                f"the selection {number} cannot be continued",
                expected="a selection that was made while exploring and is still held",
            )
        return held

    def _features(self, query: str, context: str) -> Tensor:
        """Return the features, after building the networks for their length."""
        if len(self.tools) < 2:
            raise InputError(
                f"there are {len(self.tools)} tools to choose from",
                expected="at least two registered tools",
            )
        found = torch.from_numpy(np.array(self._extract(query, context), dtype=np.float32))
        if found.dim() != 1 or not found.isfinite().all() or self._size not in (0, len(found)):
            expected = f"a vector of {self._size or 'finite'} numbers"
            raise InputError(
                f"the features of {query[:60]!r} have the shape {tuple(found.shape)}",
                expected=expected,
            )
        self._size = len(found)
        if not self._agents:
            options = self.options
            shape = Shape(self._size, 1, len(self.tools), ((0, self._size),))
            (seed,) = seeds_of(options.seed, 1)
            self._agents = make_agents(
                shape, options.policy, options.ppo, options.group, seed, options.device
            )
        return found


@cache
def _embedding(name: str, width: int) -> Features:
    """Return embeddings of both texts, projected by random signs that are always the same
    (Achlioptas 2003).
    """
    embedder = make_embedder(name)
    bits = np.random.SeedSequence(width).generate_state(2 * embedder.dimension * width) % 2
    signs = (np.float32(2) * bits - 1).astype(np.float32).reshape(-1, width)
    signs /= np.float32(width**0.5)

    def features(query: str, context: str) -> NDArray[np.float32]:
        return np.asarray(np.concatenate(embedder.embed([query, context])) @ signs)

    return features


def _columns(steps: Sequence[_Step]) -> Experience:
    """Return steps, sorted by episode; a step is its episode's last one here if its successor does
    not follow it.
    """
    following = [later.after == step.number for step, later in pairwise(steps)]
    features = torch.stack([step.features for step in steps])
    reached = [step.features if step.reached is None else step.reached for step in steps]
    terminated = [step.reached is None for step in steps]
    actions = torch.tensor([step.action for step in steps])
    log_probs = torch.tensor([step.log_prob for step in steps])
    rewards = torch.tensor([step.reward for step in steps])
    return Experience(
        features,
        actions[:, None],
        log_probs,
        rewards,
        torch.stack(reached),
        torch.tensor(terminated),
        ~torch.tensor([*following, False]),
    )


def _pack(steps: Iterable[_Step]) -> JsonObject:
    """Return steps as few tensors: features, next ones where there are any, and the plain rest."""
    steps = list(steps)
    features = [step.features for step in steps]
    reached = [step.reached for step in steps if step.reached is not None]
    rest = [[*step[1:-1], step.reached is not None] for step in steps]
    return {"features": _stack(features), "reached": _stack(reached), "rest": rest}


def _stack(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows) if rows else torch.zeros(0, 0)


def _unpack(packed: JsonMapping) -> list[_Step]:
    reached = iter(packed["reached"])
    rows = zip(packed["features"], packed["rest"], strict=True)
    return [
        _Step._make((features, *rest[:-1], next(reached) if rest[-1] else None))
        for features, rest in rows
    ]


def _add_choice(agent: PPOAgent) -> None:
    """Add an option whose logit is the mean of the old ones', so odds among these stay the same;
    Adam's means get zeros.
    """
    policy = agent.policy
    last: Any = policy.actor[-1]
    for name in ("weight", "bias"):
        old: Tensor = getattr(last, name)
        new = nn.Parameter(torch.cat([old.detach(), old.detach().mean(dim=0, keepdim=True)]))
        for group in agent.optimizer.param_groups:
            group["params"] = [new if own is old else own for own in group["params"]]
        moments = agent.optimizer.state.pop(old, {})
        for key, moment in moments.items():
            if moment.dim():  # all but "step" have the parameter's shape
                moments[key] = torch.cat([moment, torch.zeros_like(moment[:1])])
        if moments:
            agent.optimizer.state[new] = moments
        setattr(last, name, new)
    last.out_features = policy.shape.choices + 1
    policy.shape = policy.shape._replace(choices=last.out_features)
