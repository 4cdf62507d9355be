"""The reward of a chunk step: r_t = w1 r1 + w2 r2_t + beta r3 + gamma r4_t (arXiv 2509.25911,
section 3.3), plus ``immediate``.

r1 accuracy and r3 compression belong to a rollout; r2 tool success and r4 content quality to a
chunk. Every part of ``PARTS`` is in [0, 1], or None if it cannot be scored, which masks the steps
that it belongs to; a failure never becomes 0. Departures from the published code are switches of
``RewardConfig``, which ``preset: published`` sets to its values; the judge also sees the chunk.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from memalpha.agent.rollout import Rollout
from memalpha.config import Options, Share, load_function
from memalpha.errors import InputError
from memalpha.types import OperationKind, OperationResult, QuestionRecord, ResultCode

Scores = float | None | list[float] | list[float | None]
"""A part of a rollout, or of each of its steps; None: cannot be scored."""
Reward = Callable[[Rollout], Scores | Awaitable[Scores]]
"""Scores a rollout whose questions have been asked and whose writes have been judged."""

PARTS: Mapping[str, Callable[[RewardConfig, Rollout], Scores]] = {
    "accuracy": lambda config, rollout: accuracy(rollout.questions),
    "tool": lambda config, rollout: [
        tool_success(r, config, silence=quiet) for r, _, quiet in _steps(config, rollout)
    ],
    "compression": lambda config, rollout: compression(
        max(0, rollout.memory.tokens - rollout.tokens_before),
        rollout.tokens_read,
        clip=config.clip_compression,
    ),
    "content": lambda config, rollout: [
        content_quality(r, v, config, silence=quiet) for r, v, quiet in _steps(config, rollout)
    ],
    "immediate": lambda config, rollout: (
        [accuracy(asked or rollout.questions) for asked in rollout.immediate] or None
    ),
}
"""The parts that are always scored; the weight of NAME is the option ``NAME_weight``."""


@dataclass(frozen=True)
class RewardConfig(Options):
    """Weights and switches of the reward.

    Attributes:
        accuracy_weight: w1 (published 1).
        tool_weight: w2 (published 1; use 0.1 to 0.5 for a small policy whose calls still fail, or
            it learns to write less).
        compression_weight: beta (published 0.05).
        content_weight: gamma (published 0.1).
        immediate_weight: Weight of the questions whose evidence a chunk completes, asked right
            after it (published: no such part).
        silence: r2 of a chunk without calls and r4 of one that changed nothing (published 0).
        judge_silence: Whether both are 1 if the judge finds no write due (published: no); training
            needs ``content_weight`` > 0.
        duplicates_succeed: Whether repeating an entry is a success (published: no).
        unknown_deletes_succeed: Whether deleting what is not there is a success (published: yes).
        unparsed_fails: Whether text that is no call counts as a failed call (published: no, it is
            not counted).
        judge_deletes: Whether deletes are judged like other writes (published: no, they score 0).
        judge_all: Whether r4 is over all calls, failed and repeated writes judged, too, and deletes
            0 (published: yes).
        clip_compression: Whether r3 is at least 0 (published: no).
        rewards: Weights of functions of your own, e.g. ``{my_module:brevity: 0.2}``
            (docs/recipe.md); Python may give functions.
    """

    accuracy_weight: float = 1.0
    tool_weight: float = 1.0
    compression_weight: float = 0.05
    content_weight: float = 0.1
    immediate_weight: float = 0.0
    silence: Share = 0.0
    judge_silence: bool = True
    duplicates_succeed: bool = True
    unknown_deletes_succeed: bool = False
    unparsed_fails: bool = True
    judge_deletes: bool = True
    judge_all: bool = False
    clip_compression: bool = True
    rewards: dict[str | Reward, float] = field(default_factory=dict)

    def check(self) -> None:
        """Check the names of ``rewards`` before anything is loaded."""
        _ = self.parts

    @cached_property
    def parts(self) -> Mapping[str, tuple[Reward, float]]:
        """Function and weight of each part by name; InputError if it cannot be imported, or if its
        name is taken or no name.
        """
        found: dict[str, tuple[Reward, float]] = {}
        for name, part in PARTS.items():
            found[name] = partial(part, self), getattr(self, f"{name}_weight")
        for reward, weight in self.rewards.items():
            name = full_name(reward).rpartition(":")[2]
            function = load_function(reward, "rewards") if isinstance(reward, str) else reward
            if name in found or not name.isidentifier() or not callable(function):
                raise InputError(
                    f"rewards names {full_name(reward)!r}",
                    expected=f"a function not called {', '.join(found)}",
                )
            found[name] = function, weight
        return found


class StepReward(dict[str, float]):
    """The parts of one chunk step by name; NaN: not scored."""

    def total(self, config: RewardConfig) -> float:
        """The weighted sum without parts of weight 0; NaN if any other part is NaN."""
        return sum(
            (weight * self[name] for name, (_, weight) in config.parts.items() if weight), start=0.0
        )


def full_name(reward: str | Reward) -> str:
    """MODULE:FUNCTION of a reward."""
    return (
        reward
        if isinstance(reward, str)
        else f"{reward.__module__}:{getattr(reward, '__name__', type(reward).__name__)}"
    )


def accuracy(records: Sequence[QuestionRecord]) -> float | None:
    """r1: mean score of the questions on the final memory; None without questions or if any failed
    (else questions differ).
    """
    scores = [record.score for record in records]
    return sum(scores) / len(scores) if scores and not any(map(math.isnan, scores)) else None


def _steps(
    config: RewardConfig, rollout: Rollout
) -> list[tuple[Sequence[OperationResult], list[bool] | None, float]]:
    """Results and verdicts of each step, and what silence scores there."""
    quiet = [
        1.0 if config.judge_silence and known else config.silence for known in rollout.nothing_due
    ]
    return list(
        zip([step.outcome.results for step in rollout.steps], rollout.verdicts, quiet, strict=True)
    )


def tool_success(
    results: Sequence[OperationResult], config: RewardConfig, *, silence: float
) -> float:
    """r2: share of a chunk's calls that succeeded; ``silence`` if there are none."""
    calls: list[bool] = []
    for result in results:
        if result.part:  # a call is carried out whole; it succeeds if one of its operations does
            calls[-1] |= _succeeded(result, config)
        elif config.unparsed_fails or result.code is not ResultCode.UNPARSED:
            calls.append(_succeeded(result, config))
    return sum(calls) / len(calls) if calls else silence


def _succeeded(call: OperationResult, config: RewardConfig) -> bool:
    if (
        call.code is ResultCode.UNKNOWN_ID
        and call.operation
        and call.operation.kind is OperationKind.DELETE
    ):
        return config.unknown_deletes_succeed
    return call.ok and (config.duplicates_succeed or not call.repeated)


def compression(memory_tokens: int, input_tokens: int, *, clip: bool) -> float:
    """r3: 1 - memory tokens / input tokens, at least 0 with ``clip``; ValueError if
    ``input_tokens`` is not positive.

    Both count what came since the rollout began: the memory's growth (0 if it is smaller now) and
    the chunks read.
    """
    if input_tokens <= 0:
        raise ValueError(f"input_tokens is {input_tokens}; an instance has text")
    value = 1.0 - memory_tokens / input_tokens
    return max(0.0, value) if clip else value


def content_quality(
    results: Sequence[OperationResult],
    verdicts: Sequence[bool] | None,
    config: RewardConfig,
    *,
    silence: float,
) -> float | None:
    """r4: share of a chunk's ``judged`` calls that are found right; ``silence`` if there are none,
    None without ``verdicts``.
    """
    if verdicts is None:
        return None
    asked = judged(results, config)
    if len(verdicts) != len(asked):
        raise ValueError(f"{len(verdicts)} verdicts for {len(asked)} writes")
    calls = (
        [result for result in results if result.code is not ResultCode.UNPARSED]
        if config.judge_all
        else asked
    )
    if not calls:
        return silence
    kinds = [result.operation.kind if result.operation else None for result in asked]
    right = zip(kinds, verdicts, strict=True)
    return sum(
        found and (config.judge_deletes or kind is not OperationKind.DELETE)
        for kind, found in right
    ) / len(calls)


def judged(results: Sequence[OperationResult], config: RewardConfig) -> list[OperationResult]:
    """Return the results that a content judge is asked about: applied ones, or with ``judge_all``
    every text that was written.
    """
    if not config.judge_all:
        return [result for result in results if result.changed]
    return [
        result
        for result in results
        if result.operation and result.operation.kind is not OperationKind.DELETE
    ]
