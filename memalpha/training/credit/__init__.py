"""Credit: which chunk steps of a rollout, and which of its tokens, a reward is for.

``trajectory`` and ``step`` say which rows are compared (``rows.group_key``). Each of the others is
a file that names its paper and departs from it in what its docstring lists; all but ``same_state``
compare as ``step`` does.
"""

from enum import StrEnum


class Credit(StrEnum):
    """Who is credited with a reward.

    ``trajectory``: all rows of an instance's rollouts are compared (published). ``step``: those of
    one chunk. ``same_state``: half of a group begins from one memory of the other half.
    ``evidence``: the step whose entry answered is paid. ``memory_tokens``: tokens of calls alone.
    """

    TRAJECTORY = "trajectory"
    STEP = "step"
    SAME_STATE = "same_state"
    EVIDENCE = "evidence"
    MEMORY_TOKENS = "memory_tokens"
