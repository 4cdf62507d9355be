"""The reward of a chunk step: r_t = w1 r1 + w2 r2_t + beta r3 + gamma r4_t, plus ``immediate``.

It is that of arXiv 2509.25911, section 3.3. r1 accuracy and r3 compression belong to a rollout; r2
tool success and r4 content quality to a chunk. Every part of ``PARTS`` is in [0, 1], or None if it
cannot be scored, which masks the steps that it belongs to; a failure never becomes 0. Departures
from the published code are switches of ``RewardConfig``, which ``preset: published`` sets to its
values; the judge also sees the chunk.
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

PartScores = float | None | list[float] | list[float | None]
"""A part of a rollout, or of each of its steps; None: cannot be scored."""
RewardFunction = Callable[[Rollout], PartScores | Awaitable[PartScores]]
"""Scores a rollout whose questions have been asked and whose writes have been judged."""


@dataclass(frozen=True)
class RewardConfig(Options):
    """Weights and switches of the reward of a chunk step (arXiv 2509.25911, section 3.3).

    Attributes:
        accuracy_weight: The accuracy r1, which is the mean score of the answers, has this weight
            (w1; published: 1).
        tool_weight: The tool success r2, which is the share of calls that succeed, has this weight
            (w2; published: 1). A small policy whose calls still fail needs a weight between 0.1 and
            0.5, or it learns to write less.
        compression_weight: The compression r3, which is 1 minus memory tokens / tokens read, has
            this weight (beta; published: 0.05).
        content_weight: The content quality r4, which is the share of writes that the judge finds
            right, has this weight (gamma; published: 0.1).
        immediate_weight: Questions whose evidence a chunk completes are asked right after it, and
            their score has this weight; 0 = off (published: no such part).
        silence: A chunk without calls gets this tool success r2, and one without changes this
            content quality r4, from 0 to 1 (published: 0).
        judge_silence: If true, a chunk without calls gets 1 for r2 and r4 if the judge finds that
            it needed no write (published: no). Training needs ``content_weight`` > 0 for it.
        duplicates_succeed: If true, a call that repeats an entry counts as a success (published:
            no).
        unknown_deletes_succeed: If true, a call that deletes an unknown entry counts as a success
            (published: yes).
        unparsed_fails: If true, text that is no call counts as a failed call (published: no, it is
            not counted).
        judge_deletes: If true, deletions are judged like other writes (published: no, they score
            0).
        judge_all: If true, the content quality r4 is a share of all calls. Failed and repeated
            writes are judged, too, and deletions count 0 (published: yes).
        clip_compression: If true, the compression r3 is at least 0 (published: no).
        graded_accuracy: If true, a question scores the probability that the reader gives to the
            right answer, instead of right or wrong (published: no). It needs a reader whose model
            runs here.
        rewards: Your own functions get these weights, e.g. ``{my_module:brevity: 0.2}``
            (docs/guides/own-reward.md). In Python you may give the functions themselves.
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
    graded_accuracy: bool = False
    rewards: dict[str | RewardFunction, float] = field(default_factory=dict)

    def check(self) -> None:
        """Check the names of ``rewards``; nothing is imported before ``parts`` is asked for."""
        names = list(PARTS)
        for reward in self.rewards:
            name = _own_name(reward)
            if name in names or not name.isidentifier():
                raise InputError(
                    f"rewards names {full_name(reward)!r}",
                    expected=f"a function with another name than {', '.join(names)}",
                )
            names.append(name)

    @cached_property
    def parts(self) -> Mapping[str, tuple[RewardFunction, float]]:
        """Function and weight of each part by name; InputError if one cannot be imported."""
        parts: dict[str, tuple[RewardFunction, float]] = {}
        for name, part in PARTS.items():
            parts[name] = partial(part, self), getattr(self, f"{name}_weight")
        for reward, weight in self.rewards.items():
            function = load_function(reward, "rewards") if isinstance(reward, str) else reward
            if not callable(function):
                raise InputError(f"rewards names {reward!r}", expected="MODULE:FUNCTION")
            parts[_own_name(reward)] = function, weight
        return parts


class StepReward(dict[str, float]):
    """The parts of one chunk step by name; NaN: not scored."""

    def total(self, config: RewardConfig) -> float:
        """The weighted sum without parts of weight 0; NaN if any other part is NaN."""
        weighed = (weight * self[name] for name, (_, weight) in config.parts.items() if weight)
        return sum(weighed, start=0.0)


def full_name(reward: str | RewardFunction) -> str:
    """MODULE:FUNCTION of a reward."""
    if isinstance(reward, str):
        return reward
    return f"{reward.__module__}:{getattr(reward, '__name__', type(reward).__name__)}"


def _own_name(reward: str | RewardFunction) -> str:
    return full_name(reward).rpartition(":")[2]


# ------------------------------------------------------------------------------------------------
# the parts
def accuracy(records: Sequence[QuestionRecord], *, graded: bool = False) -> float | None:
    """r1: mean score of the questions on the final memory; ``graded``: of their graded scores.

    None without questions or if any failed (else questions differ).
    """
    scores = [record.graded if graded else record.score for record in records]
    return sum(scores) / len(scores) if scores and not any(map(math.isnan, scores)) else None


def tool_success(
    results: Sequence[OperationResult], config: RewardConfig, *, silence: float
) -> float:
    """r2: share of a chunk's calls that succeeded; ``silence`` if there are none."""
    calls: list[bool] = []
    for result in results:
        if result.part:  # a call is carried out whole; it succeeds if one of its operations does
            calls[-1] |= _has_succeeded(result, config)
        elif config.unparsed_fails or result.code is not ResultCode.UNPARSED:
            calls.append(_has_succeeded(result, config))
    return sum(calls) / len(calls) if calls else silence


def _has_succeeded(result: OperationResult, config: RewardConfig) -> bool:
    if result.code is ResultCode.UNKNOWN_ID and _is_delete(result):
        return config.unknown_deletes_succeed
    return result.ok and (config.duplicates_succeed or not result.repeated)


def _is_delete(result: OperationResult) -> bool:
    return result.operation is not None and result.operation.kind is OperationKind.DELETE


def compression(memory_tokens: int, input_tokens: int, *, clip: bool) -> float:
    """r3: 1 - memory tokens / input tokens, at least 0 with ``clip``.

    ValueError if ``input_tokens`` is not positive. Both count what came since the rollout began:
    the memory's growth (0 if it is smaller now) and the chunks read.
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
    """r4: share of a chunk's ``results_to_judge`` calls that are found right.

    ``silence`` if there are none, None without ``verdicts``.
    """
    if verdicts is None:
        return None
    writes = results_to_judge(results, config)
    if len(verdicts) != len(writes):
        raise ValueError(f"{len(verdicts)} verdicts for {len(writes)} writes")
    calls = writes
    if config.judge_all:
        calls = [result for result in results if result.code is not ResultCode.UNPARSED]
    right = [
        verdict and (config.judge_deletes or not _is_delete(write))
        for write, verdict in zip(writes, verdicts, strict=True)
    ]
    return sum(right) / len(calls) if calls else silence


def results_to_judge(
    results: Sequence[OperationResult], config: RewardConfig
) -> list[OperationResult]:
    """Return the results that a content judge is asked about.

    Applied ones, or with ``judge_all`` every text that was written.
    """
    if not config.judge_all:
        return [result for result in results if result.changed]
    return [result for result in results if result.operation and not _is_delete(result)]


# ------------------------------------------------------------------------------------------------
# the parts of a rollout
def _accuracy(config: RewardConfig, rollout: Rollout) -> PartScores:
    return accuracy(rollout.questions, graded=config.graded_accuracy)


def _tool(config: RewardConfig, rollout: Rollout) -> PartScores:
    silences = _silences(config, rollout)
    return [
        tool_success(step.outcome.results, config, silence=silence)
        for step, silence in zip(rollout.steps, silences, strict=True)
    ]


def _compression(config: RewardConfig, rollout: Rollout) -> PartScores:
    growth = max(0, rollout.memory.tokens - rollout.tokens_before)
    return compression(growth, rollout.tokens_read, clip=config.clip_compression)


def _content(config: RewardConfig, rollout: Rollout) -> PartScores:
    rows = zip(rollout.steps, rollout.verdicts, _silences(config, rollout), strict=True)
    return [
        content_quality(step.outcome.results, verdicts, config, silence=silence)
        for step, verdicts, silence in rows
    ]


def _immediate(config: RewardConfig, rollout: Rollout) -> PartScores:
    graded = config.graded_accuracy
    asked = [records or rollout.questions for records in rollout.immediate]
    return [accuracy(records, graded=graded) for records in asked] or None


def _silences(config: RewardConfig, rollout: Rollout) -> list[float]:
    """What silence scores at each step."""
    certain = 1.0 if config.judge_silence else config.silence
    return [certain if known else config.silence for known in rollout.nothing_due]


PARTS: Mapping[str, Callable[[RewardConfig, Rollout], PartScores]] = {
    "accuracy": _accuracy,
    "tool": _tool,
    "compression": _compression,
    "content": _content,
    "immediate": _immediate,
}
"""The parts that are always scored; the weight of NAME is the option ``NAME_weight``."""
