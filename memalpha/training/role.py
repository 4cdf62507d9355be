"""The role is the part that is trained.

``writer``, the default, reads chunks and writes the memory. Any other role is found by an entry
point of ``memalpha.roles``, whose name is the value of the option ``role``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from memalpha.agent.rollout import Episode, memory_episodes
from memalpha.agent.step import AgentStep
from memalpha.plugins import make_plugin, plugin_names
from memalpha.qa.readers import QAEvaluator
from memalpha.rewards import RewardConfig
from memalpha.training.credit import Credit
from memalpha.training.scoring import RolloutScorer
from memalpha.training.teacher_start import start_from_teacher
from memalpha.types import ContentJudge, Instance

if TYPE_CHECKING:
    from memalpha.training.config import RunOptions

ROLES_GROUP = "memalpha.roles"
WRITER = "writer"


@runtime_checkable
class Role(Protocol):
    """The part that is trained. Its methods are called in the order in which they stand here."""

    def check(self, options: "RunOptions", reward: RewardConfig) -> None:
        """Raise InputError for options of a run that do not fit this role."""

    def scorer(
        self,
        evaluator: QAEvaluator,
        judge: ContentJudge,
        reward: RewardConfig,
        max_masked_share: float,
        agent: AgentStep,
        credit: Credit,
    ) -> RolloutScorer:
        """Return the scorer of its rollouts."""

    def start(
        self,
        parts: Sequence[Sequence[Instance]],
        agent: AgentStep,
        options: "RunOptions",
        seed: int,
    ) -> list[list[Instance]]:
        """Return the instances that are rolled out for those of training (empty: nothing is
        trained), held-out ones and those of validation. InputError if some do not fit.
        """

    def episodes(self, instances: Sequence[Instance], agent: AgentStep) -> Sequence[Episode]:
        """Begin an episode of each of these instances, for ``run_episodes``."""


class WriterRole:
    """The role of the memory agent."""

    def check(self, options: "RunOptions", reward: RewardConfig) -> None:
        """Accept all options."""

    def scorer(
        self,
        evaluator: QAEvaluator,
        judge: ContentJudge,
        reward: RewardConfig,
        max_masked_share: float,
        agent: AgentStep,
        credit: Credit,
    ) -> RolloutScorer:
        """Score the memory that was written."""
        return RolloutScorer(evaluator, judge, reward, max_masked_share, agent, credit=credit)

    def start(
        self,
        parts: Sequence[Sequence[Instance]],
        agent: AgentStep,
        options: "RunOptions",
        seed: int,
    ) -> list[list[Instance]]:
        """Let a teacher begin the instances of training, as the options say."""
        train, *others = map(list, parts)
        if train:
            train = start_from_teacher(
                train,
                agent,
                options.rollout_chunks,
                seed,
                options.rollout_cut,
                options.rollout_coverage,
            )
        return [train, *others]

    def episodes(self, instances: Sequence[Instance], agent: AgentStep) -> Sequence[Episode]:
        """Let the agent read each instance."""
        return memory_episodes(instances, agent)


ROLES: Mapping[str, type[WriterRole]] = {WRITER: WriterRole}


def role_names() -> list[str]:
    """Return the names of all roles."""
    return plugin_names(ROLES_GROUP, ROLES)


def make_role(name: str) -> Role:
    """Return the role of a name; InputError if its entry point names something else."""
    role: Role = ROLES[name]() if name in ROLES else make_plugin(ROLES_GROUP, name, Role)
    return role
