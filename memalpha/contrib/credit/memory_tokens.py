"""The advantage on the tokens of calls alone: HiMPO (arXiv 2606.16285).

Only calls change the memory, so only their tokens are credited with what the memory is worth. Free
text and thinking have no loss: no advantage and no KL term, and they do not count in its mean.

What counts beside the calls is what decides about them:

* text that should have been a call, and thinking that never ends: both fail, and are to be unlearnt
* white space before a call, such as a line break: the decision that another one follows
* the end token: the decision that none follows
* of a completion without any call, all that is no thinking: the decision for silence is made in its
  first token, and the end token after ``.`` or a sentence is certain

Departures. The paper's agent also acts and answers, and those tokens keep the advantage of the
trajectory; here a completion has no others. Its advantage of memory tokens is that of what can be
recovered after a write and not before, filtered by hindsight; here it is that of ``step``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from memalpha.agent.codecs import Codec
from memalpha.agent.rollout import Rollout
from memalpha.agent.step import AgentStep
from memalpha.rewards import RewardConfig, StepReward
from memalpha.text.thinking import decode_completion
from memalpha.training.credit import StepCredit
from memalpha.training.rows import Scale, TrainingRow
from memalpha.types import Completion


class MemoryTokensCredit(StepCredit):
    """Rows are compared as with ``step``, and the tokens of calls alone have a loss."""

    needs_trainer = True

    @override
    def rows(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[Sequence[StepReward]],
        group_size: int,
        config: RewardConfig,
        scale: Scale,
        agent: AgentStep,
    ) -> list[TrainingRow]:
        rows = super().rows(rollouts, rewards, group_size, config, scale, agent)
        count_calls_alone(rows, rollouts, agent)
        return rows


def count_calls_alone(
    rows: Sequence[TrainingRow], rollouts: Sequence[Rollout], agent: AgentStep
) -> None:
    """Set ``counted`` of the rows of these rollouts."""
    for row in rows:
        rollout = rollouts[row.rollout_index]
        step = rollout.steps[row.chunk_index - rollout.instance.begin]
        row.counted = call_tokens(step.completion, agent.codec, agent.encoder.tokenizer)


def call_tokens(completion: Completion, codec: Codec, tokenizer: Any) -> tuple[bool, ...]:
    """Return whether each id of a completion counts; one that shares a character with a call
    does.
    """
    ids = completion.ids
    text = decode_completion(tokenizer, ids)

    def length(count: int) -> int:
        """Characters of the first ids, which never become fewer."""
        return len(decode_completion(tokenizer, ids[:count]))

    places = range(len(ids) + 1)
    counted = [False] * len(ids)
    for start, end in codec.spans(text, completion.cut_off):
        behind = len(text[:start].rstrip())
        first = bisect_right(places, behind, key=length) - 1
        # of several ids that make one character only the first has its length
        last = max(bisect_left(places, end, key=length), bisect_right(places, end, key=length) - 1)
        counted[first:last] = [True] * (last - first)
    if not completion.cut_off:
        counted[-1] = True
    return tuple(counted)
