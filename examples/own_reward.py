"""Rewards of one's own, added to the built-in parts. To run them: own_reward.yaml, in this
folder.
"""

from memalpha import Rollout

LONGEST = 32


def brevity(rollout: Rollout) -> list[float]:
    """For each chunk, 1 for an empty completion, 0 for one of ``LONGEST`` tokens."""
    return [1 - len(step.completion.ids) / LONGEST for step in rollout.steps]


async def used(rollout: Rollout) -> float | None:
    """Share of the final entries that some question retrieved; None, not scored, without questions.

    An async function scores all rollouts at once, so it may wait for a server. ``ServiceError``
    says that the server failed.
    """
    if not rollout.questions:
        return None
    found = {entry for record in rollout.questions for entry in record.entry_ids}
    return len(found) / max(len(rollout.memory), 1)
