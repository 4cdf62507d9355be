"""What the first page of a report says beside its curves: how far the run came, where its time went, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memalpha.report.catalogue import Facts
from memalpha.report.curves import series
from memalpha.report.seeds import interval
from memalpha.report.view import UNKNOWN, counted, known, number

TIMES: Mapping[str, str] = {"time/rollouts": "rollouts", "time/scoring": "scoring", "step_time": "update"}
"""Parts of a training step's time, as ``metrics.jsonl`` has them, and what to call them. Those of the first process."""


class Part(NamedTuple):
    """Seconds of one part of a run, and its share of the whole."""

    name: str
    seconds: float
    share: float


class Card(NamedTuple):
    """One number of the head of the page: its name, the number, and what it is compared with."""

    name: str
    value: str
    note: str


class Trouble(NamedTuple):
    """What could not be scored at one place: a message, and how often it occurred."""

    where: str
    message: str
    times: int


class Failures(NamedTuple):
    """Calls that failed in rollouts of one kind, by code, as (code, count, share of calls)."""

    where: str
    calls: int
    codes: tuple[tuple[str, int, float], ...]


def state(metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """How far a run came, in one line."""
    if "steps" in summary:
        return f"{number(summary['steps'], 0)} steps in {duration(summary.get('seconds'))}"
    if summary:
        return f"evaluation in {duration(summary.get('seconds'))}"
    if not metrics:
        return "no step logged yet"
    last = metrics[-1]
    return f"unfinished: step {number(last.get('step'), 0)} of {number(last.get('max_steps'), 0)}"


def duration(seconds: Any) -> str:
    """Return a time in seconds, minutes or hours."""
    found = known(seconds)
    if found is None or found < 120:
        return f"{number(found, 1)} s"
    return f"{number(found / 60, 1)} min" if found < 7200 else f"{number(found / 3600, 1)} h"


def time_split(metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[Part]:
    """Return where a run's time went: the parts of its steps that were measured, and the rest of it.

    The rest is loading, held-out evaluation, and what a step does besides; it is known only once a run has ended.
    """
    sums = {}
    for key, name in TIMES.items():
        values = [value for row in metrics if (value := known(row.get(key))) is not None]
        if values:
            sums[name] = sum(values)
    measured = sum(sums.values())
    whole = known(summary.get("seconds")) or 0.0
    if sums and whole > measured:
        sums["everything else"] = whole - measured
    total = sum(sums.values())
    return [Part(name, seconds, seconds / total) for name, seconds in sums.items()] if total else []


def troubles(facts: Sequence[Facts], metrics: Sequence[Mapping[str, Any]]) -> list[Trouble]:
    """Return what could not be scored and which steps were skipped, by place, in order."""
    found = [
        Trouble(f"step {number(row.get('step'), 0)}", "the step was skipped: loss or gradient was not finite", 1)
        for row in metrics
        if known(row.get("skipped"))
    ]
    places: dict[str, Counter[str]] = {}
    for fact in facts:
        if fact.errors:
            places.setdefault(fact.source.where, Counter()).update(fact.errors)
    return found + [Trouble(where, text, count) for where, counts in places.items() for text, count in counts.most_common()]


def failures(facts: Sequence[Facts]) -> list[Failures]:
    """Return the calls that failed, by code: of training rollouts together, and of each held-out evaluation."""
    places: dict[str, list[Facts]] = {}
    for fact in facts:
        places.setdefault("training" if fact.source.step is not None else fact.source.where, []).append(fact)
    return [_failures(where, members) for where, members in places.items()]


def _failures(where: str, facts: Sequence[Facts]) -> Failures:
    codes: Counter[str] = Counter()
    for fact in facts:
        codes.update(fact.codes)
    calls = sum(fact.calls for fact in facts)
    return Failures(where, calls, tuple((code, count, count / calls) for code, count in codes.most_common()))


def several_headline(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return in a sentence what several seeds of one configuration say; empty if none was evaluated both times."""
    changes = interval([(summary.get("delta") or {}).get("accuracy") for summary in summaries])
    if changes is None:
        return ""
    ends = (UNKNOWN, UNKNOWN) if changes.low is None else (number(changes.low, signed=True), number(changes.high, signed=True))
    return (
        f"Held-out accuracy changed by {number(changes.mean, signed=True)} (95% interval {ends[0]} to {ends[1]}), "
        f"mean of {counted(changes.n, 'run')}."
    )


def cards(metrics: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[Card]:
    """Return the numbers that the head of the page shows of one run: the last step's, and what they were at the first.

    Args:
        metrics: Rows of ``metrics.jsonl``.
        config: The run's options, for the KL coefficient.
    """
    if not metrics:
        return []
    found = [
        _last("reward", metrics, ("reward",), 3),
        _last("accuracy in training", metrics, ("rewards/accuracy/mean", "memory/reward_accuracy"), 3),
        _last("tokens a completion", metrics, ("completions/mean_length",), 1),
        _last("tokens in the final memory", metrics, ("memory/tokens",), 1),
        _last("entropy", metrics, ("entropy",), 2),
        _last("KL to the reference", metrics, ("kl",), 4) if known(config.get("beta")) else Card("KL term", "off", ""),
    ]
    masked = [value for row in metrics if (value := known(row.get("memory/masked"))) is not None]
    if masked:
        found.append(Card("rollouts not scored", f"{number(100 * sum(masked) / len(masked), 1)}%", "of all"))
    return [card for card in found if card]


def _last(name: str, metrics: Sequence[Mapping[str, Any]], keys: Sequence[str], digits: int) -> Card | None:
    values = series(metrics, keys).values
    if not values:
        return None
    note = f"from {number(values[0], digits)} at the first step" if len(values) > 1 else "at the only step"
    return Card(name, number(values[-1], digits), note)


def drawn(config: Mapping[str, Any]) -> str:
    """How the held-out rollouts were drawn."""
    temperature = known(config.get("eval_temperature")) or 0.0
    return f"Rollouts drawn at temperature {temperature:g}" if temperature else "Greedy rollouts"
