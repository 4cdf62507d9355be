"""Credit decides for which chunk steps of a rollout, and for which of their tokens, a reward is.

``trajectory`` and ``step`` say which rows are compared. Any other is found by an entry point of
``memalpha.credits``, whose name is the value of the option ``credit``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from typing_extensions import override

from memalpha.agent.rollout import BeginEpisodes, Rollout, run_episodes
from memalpha.agent.step import AgentStep
from memalpha.plugins import make_plugin, plugin_names
from memalpha.qa.readers import QAEvaluator
from memalpha.rewards import RewardConfig, StepReward
from memalpha.training.rows import Scale, TrainingRow, build_rows
from memalpha.types import Generator, Instance, Sampling

if TYPE_CHECKING:
    from memalpha.training.config import RunOptions

CREDITS_GROUP = "memalpha.credits"


@runtime_checkable
class Credit(Protocol):
    """The rule that decides which steps and tokens a reward is for, from the options to the rows.

    The methods are first called in the order in which they stand here: ``check`` and ``reward``
    when options are read, of objects that are made for that alone; then, all of one object,
    ``reward`` when the scorer is made and the others in each draw. With ``staleness`` a draw may
    begin before the one before it is scored; held-out rollouts are only asked. A group has
    ``group_size`` rollouts of one instance, one after the other. An own credit is best derived from
    ``StepCredit``, of which each method does nothing more than it has to.
    """

    needs_trainer: bool
    """Whether ``draw`` or ``rows`` do something of their own: the scorer alone, with the trainer of
    another package, is then not this credit."""

    def check(self, options: "RunOptions", group_size: int) -> None:
        """Raise InputError for options of a run that do not fit this credit."""

    def reward(self, config: RewardConfig) -> RewardConfig:
        """Return the reward that is paid if the options say ``config``."""

    def draw(
        self,
        begin: BeginEpisodes,
        instances: Sequence[Instance],
        agent: AgentStep,
        generator: Generator,
        sampling: Sampling,
        group_size: int,
    ) -> list[Rollout]:
        """Return a rollout of each of ``instances``, a group of each, whose episodes ``begin``
        begins; others may be run beside them. Errors as ``run_episodes``.
        """

    def ask(self, rollouts: Sequence[Rollout], evaluator: QAEvaluator) -> None:
        """Ask more of rollouts whose own questions have been asked. Numbers that come of it are
        kept in ``Rollout.credits`` for functions of the reward, failures in ``Rollout.errors``.
        """

    def rows(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[Sequence[StepReward]],
        group_size: int,
        config: RewardConfig,
        scale: Scale,
        agent: AgentStep,
    ) -> list[TrainingRow]:
        """Return the rows of scored rollouts with their advantages, as ``build_rows`` does."""

    def group_key(self, row: TrainingRow, group_size: int) -> tuple[int, int]:
        """Return a name of the group of rows with which a row is compared."""

    def metrics(self, rollouts: Sequence[Rollout]) -> Mapping[str, tuple[float, int]]:
        """Return metrics by name, as ``RolloutScorer.metrics`` does."""


class StepCredit:
    """The credit ``step``, the default, which compares the rows of one chunk of an instance."""

    needs_trainer = False

    def check(self, options: "RunOptions", group_size: int) -> None:
        """Accept all options."""

    def reward(self, config: RewardConfig) -> RewardConfig:
        """Return the reward as it is."""
        return config

    def draw(
        self,
        begin: BeginEpisodes,
        instances: Sequence[Instance],
        agent: AgentStep,
        generator: Generator,
        sampling: Sampling,
        group_size: int,
    ) -> list[Rollout]:
        """Run each rollout once."""
        return run_episodes(begin(instances, agent), generator, sampling)

    def ask(self, rollouts: Sequence[Rollout], evaluator: QAEvaluator) -> None:
        """Ask nothing more."""

    def rows(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[Sequence[StepReward]],
        group_size: int,
        config: RewardConfig,
        scale: Scale,
        agent: AgentStep,
    ) -> list[TrainingRow]:
        """Return rows compared by ``group_key``."""
        return build_rows(rollouts, rewards, group_size, config, self.group_key, scale)

    def group_key(self, row: TrainingRow, group_size: int) -> tuple[int, int]:
        """Return the instance and the chunk."""
        return (row.group_index, row.chunk_index)

    def metrics(self, rollouts: Sequence[Rollout]) -> Mapping[str, tuple[float, int]]:
        """Return no metrics."""
        return {}


class TrajectoryCredit(StepCredit):
    """The credit ``trajectory``, which compares all rows of an instance's rollouts (published)."""

    @override
    def group_key(self, row: TrainingRow, group_size: int) -> tuple[int, int]:
        """Return the instance."""
        return (row.group_index, -1)


CREDITS: Mapping[str, Callable[[], Credit]] = {"trajectory": TrajectoryCredit, "step": StepCredit}


def credit_names() -> list[str]:
    """Return the names of all credits."""
    return plugin_names(CREDITS_GROUP, CREDITS)


def make_credit(name: str) -> Credit:
    """Return the credit of a name; InputError if its entry point names something else."""
    credit: Credit = (
        CREDITS[name]() if name in CREDITS else make_plugin(CREDITS_GROUP, name, Credit)
    )
    return credit
