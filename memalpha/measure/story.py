"""What training changed, in sentences: the first words of a run's report."""

from collections.abc import Sequence
from typing import NamedTuple

from memalpha.measure.summary import Cell, SetSummary, difference_from
from memalpha.measure.view import count_of, numeric, percent, points
from memalpha.record.folder import RunFolder
from memalpha.record.statistics import LEVEL, Estimate
from memalpha.types import JsonMapping

_RERUN = "To see more, run `memalpha report RUN` again later."


class Story(NamedTuple):
    """The answer in a few words, the sentence of accuracy, and further sentences."""

    verdict: str
    accuracy: str
    more: Sequence[str] = ()


class Move(NamedTuple):
    """An instance whose accuracy changed, with its pages."""

    instance: str
    was: float
    now: float
    before: str
    after: str


def tell_change(run: RunFolder, item: SetSummary, last: JsonMapping) -> Story:
    """Say what training changed; of a run that cannot tell yet, why; ``last``: last logged step."""
    before, after = (item.cells.get(name) for name in ("before", "after"))
    change = difference_from(item.differences, "before", "after")
    if not before or not after or not change:
        return _tell_why_not(run, item, last)
    verdict, meaning = _judge(change)
    bounds = ""
    if numeric(change.low) is not None:
        low, high = (points(value, signed=True) for value in (change.low, change.high))
        bounds = f" ({LEVEL:.0%} interval {low} to {high})".replace("%", " %")
    accuracy = (
        f"Accuracy over {count_of(change.n, 'held-out instance')} is "
        f"{percent(before.accuracy.mean)} before training and {percent(after.accuracy.mean)} after "
        f"it. The paired difference is {points(change.mean, signed=True)} points{bounds}. {meaning}"
    )
    more = [_tell_failures(before, after), _tell_operations(before, after)]
    if not run.summary:
        more.insert(0, "The run has no summary, so it was stopped at its end or is about to end.")
    return Story(verdict, accuracy, [text for text in more if text])


def find_moves(facts: Sequence[JsonMapping]) -> tuple[list[Move], list[Move]]:
    """Return the instances that got better and those that got worse, the largest change first."""
    known = {(fact["where"], fact["instance"]): fact for fact in facts if fact["step"] is None}
    moves = []
    for (where, instance), fact in known.items():
        later = known.get(("after", instance))
        if where == "before" and later and None not in (fact["accuracy"], later["accuracy"]):
            pages = fact["page"], later["page"]
            moves.append(Move(instance, fact["accuracy"], later["accuracy"], *pages))
    moves.sort(key=lambda move: -abs(move.now - move.was))
    better = [move for move in moves if move.now > move.was]
    return better, [move for move in moves if move.now < move.was]


def _judge(change: Estimate) -> tuple[str, str]:
    if numeric(change.low) is None:
        return "No difference can be told.", "One instance gives no interval."
    doubt = ""
    if change.agree is False:
        doubt = " The instances are so few that the interval itself is not certain."
    if change.low > 0:
        return "Training helped.", f"The whole interval is above 0.{doubt}"
    if change.high < 0:
        return "Training made it worse.", f"The whole interval is below 0.{doubt}"
    meaning = "The interval includes 0, so the difference may be chance."
    return "No difference can be told.", meaning + doubt


def _tell_failures(before: Cell, after: Cell) -> str:
    shares = []
    for cell in (before, after):
        made, failed = (numeric(cell.means[name]) for name in ("calls", "failed"))
        if made is None or failed is None:
            return ""
        shares.append(percent(failed / made) if made else "")
    if not any(shares):
        return "The policy makes no calls, neither before training nor after it."
    was, now = shares
    if not was or not now:
        when, other = ("before", "After") if not was else ("after", "Before")
        return f"The policy makes no calls {when} training. {other} it {was or now} of them fail."
    return f"Of the calls of the policy {was} fail before training and {now} fail after it."


def _tell_operations(before: Cell, after: Cell) -> str:
    parts = []
    for kind in ("insert", "update", "delete"):
        rates = []
        for cell in (before, after):
            count, chunks = (numeric(cell.means[name]) for name in (kind, "chunks"))
            if count is None or not chunks:
                return ""
            rates.append(round(count / chunks, 2))
        was, now = rates
        how = "more" if now > was else "fewer" if now < was else "as many"
        values = f"{was:.2f} before, {now:.2f} after" if now != was else f"{was:.2f}"
        parts.append(f"{how} {kind}s ({values})" if was or now else f"no {kind}s")
    return f"For each chunk the policy makes {parts[0]}, {parts[1]} and {parts[2]}."


def _tell_why_not(run: RunFolder, item: SetSummary, last: JsonMapping) -> Story:
    known = next(iter(item.cells.items()), None)
    measured = ""
    if known:
        name, cell = known
        when = f" {name} training" if name in ("before", "after") else ""
        over = count_of(cell.accuracy.n, "held-out instance")
        measured = f"Accuracy{when} is {percent(cell.accuracy.mean)} over {over}."
    if not run.summary:
        step, steps = last.get("step", 0), last.get("max_steps")
        place = (
            f"step {step} of {steps} is the last that is logged" if step else "no step is logged"
        )
        going = f"The run has not finished: {place}. {_RERUN}"
        stopped = "If the run has stopped, the same `memalpha train` command with `--resume true` "
        more = [stopped + "goes on from its last checkpoint."]
        return Story("This cannot be told yet.", going, [measured, *more] if measured else more)
    if "steps" not in run.summary:
        return Story("Nothing was trained.", f"This folder holds rollouts of one agent. {measured}")
    if not run.config.get("eval_data"):
        how = "No held-out instances were given, since `eval_data` is empty."
        fix = "Train with `eval_data` to have accuracy before and after training."
        return Story("This was not measured.", f"{how} {fix}")
    reasons = [f"`{name}` lacks {why}." for name, why in item.left_out.items()]
    why = "No held-out instance has a score both before and after training."
    return Story("This cannot be told.", why, [*([measured] if measured else []), *reasons])
