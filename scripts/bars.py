"""Says which of the bars set for the result are met: docs/bars.md and docs/results/bars.json.

    python scripts/bars.py runs/main runs/behaviour     after an evaluation of all sets, and rollouts
    python scripts/bars.py                              after an evaluation of some sets that has changed the published comparison

Needs: docs/results/comparison.json, as scripts/evaluate_all.py writes it; the folder of its dialogues' evaluation, and one of
``memalpha rollout`` on the same dialogues for each agent, by its name there. What is made from these two folders stays as it was
where they are not given.

A bar about a difference is met where its whole 95% interval (paired bootstrap over instances) is on the right side, if nothing else
is said; one about longer inputs by the means alone, with the interval beside it; one about behaviour where every training seed
meets it. What was not evaluated is neither met nor missed, and said to be missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import MemAlphaError
from memalpha.evaluation.gathering import Gathered, Scored, gather, on_kinds, read_config
from memalpha.evaluation.pieces import Piece
from memalpha.evaluation.published import Published
from memalpha.evaluation.statistics import Estimate, estimate, paired_scores
from memalpha.evaluation.summary import Cell, SetSummary, difference_from
from memalpha.files import write_object
from memalpha.models.policy import load_tokenizer
from memalpha.protocols import TokenCounter

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "configs/evaluate/main.yaml"
WARM, TRAINED, CONTROL = "warm", "grpo", "control"
HOME, GROWN = "dialogues", ("dialogues 10x", "dialogues 100x")
KIN = ("dependent", "squad")  # of the sources that were trained on; what is neither was never trained on
RAW = ("verbatim", "rag_bm25", "rag_dense", "rag_two_layer")
CHANGED = ("latest", "removed")
READER = "recall"
MET = {True: "yes", False: "**no**", None: "?"}


class Bar(NamedTuple):
    """One bar: what was asked, what was found, whether that meets it (None: not evaluated), and the numbers."""

    asked: str
    found: str = "not evaluated"
    met: bool | None = None
    numbers: Any = None


def shown(value: Estimate) -> str:
    """A difference with its interval and each seed's."""
    seeds = ", ".join(f"{seed:+.3f}" for seed in value.per_seed.values())
    unsure = "*" if value.agree is False else ""
    text = f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]{unsure}, n = {value.n}"
    return f"{text} (seeds {seeds})" if len(value.per_seed) > 1 else text


def numbers(value: Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {"mean": value.mean, "low": value.low, "high": value.high, "n": value.n, "seeds": list(value.per_seed.values())}


def on_accuracy(sets: Mapping[str, SetSummary]) -> Iterator[Bar]:
    """Bars about what training has changed, set by set."""
    asked = f"{HOME}: GRPO gains at least .15 over its warm start, every seed above 0, interval off 0"
    gain = change(sets, HOME, TRAINED)
    yield about(asked, gain, lambda d: d.mean >= 0.15 and d.low > 0 and all(seed > 0 for seed in d.per_seed.values()))
    for name in (name for name in sets if name not in (HOME, *GROWN)):
        found = change(sets, name, TRAINED)
        if name in KIN:
            yield about(f"{name}: GRPO gains over its warm start", found, lambda d: d.low > 0)
        else:
            yield about(f"{name} (never trained on): no loss beyond the interval", found, lambda d: d.high >= 0)
    for name in (name for name in (HOME, "squad") if name in sets):
        asked = f"{name}: the control (advantages shuffled) does not gain"
        yield about(asked, change(sets, name, CONTROL), lambda d: d.low <= 0)


def change(sets: Mapping[str, SetSummary], name: str, group: str) -> Estimate | None:
    """Accuracy of a group minus that of the warm start on a set; None if one is not there."""
    return difference_from(sets[name].differences, WARM, group) if name in sets else None


def on_facts(home: Gathered | None) -> Iterator[Bar]:
    """Bars about questions on changed and removed facts, against what keeps the input as it is."""
    rows = home.complete() if home else {}
    for rival in RAW:
        asked = f"{HOME}, questions about changed and removed facts: above `{rival}`"
        yield about(asked, on_changed(rows, rival), lambda d: d.low > 0)


def on_changed(rows: Mapping[str, Scored], rival: str) -> Estimate | None:
    """Accuracy of the trained agents minus that of a rival, over the questions about changed and removed facts."""
    if not {TRAINED, rival} <= rows.keys():
        return None
    (before, counts), (after, _) = on_kinds(rows[rival], CHANGED), on_kinds(rows[TRAINED], CHANGED)
    return estimate(paired_scores(before, after), weights=counts)


def about(asked: str, found: Estimate | None, meets: Callable[[Estimate], bool]) -> Bar:
    """A bar about a difference."""
    return Bar(asked) if found is None else Bar(asked, shown(found), meets(found), numbers(found))


def on_growth(sets: Mapping[str, SetSummary]) -> Iterator[Bar]:
    """Bars about longer inputs: how far accuracy falls from the usual length, against the retrievers over raw chunks."""
    home = sets[HOME].cells if HOME in sets else {}
    for name in (name for name in GROWN if name in sets):
        grown = sets[name].cells
        for rival in RAW[1:]:
            asked = f"{name}: accuracy falls no further than that of `{rival}` (means alone)"
            shared = {group: both(home, grown, group) for group in (TRAINED, rival)}
            if not all(shared.values()):
                yield Bar(asked)
                continue
            levels = {group: fallen(home[group], grown[group], members) for group, members in shared.items()}
            fall = {group: before - after for group, (before, after) in levels.items()}
            found = "; ".join(
                f"`{group}` {before:.3f} → {after:.3f}, by {fall[group]:.3f}" + (f", keeps {after / before:.2f}" if before else "")
                for group, (before, after) in levels.items()
            )
            members = grown[TRAINED].members.values()
            alone = f" ({', '.join(members)} alone)" if len(members) < len(home[TRAINED].members) else ""
            less = apart(sets[HOME], sets[name], rival)
            between = "; the second fall minus the first {:+.3f} [{:+.3f}, {:+.3f}]".format(*less) if less else ""
            data = {"accuracy": levels, "fall": fall, "difference": less}
            yield Bar(asked, found + between + alone, fall[TRAINED] <= fall[rival], data)


def apart(home: SetSummary, grown: SetSummary, rival: str) -> tuple[float, float, float] | None:
    """By how much less the trained agents fall than a rival, with a 95% interval; None where some were not evaluated on both sets.

    The two sets share no instance, so the interval is made from the standard errors of both differences.
    """
    before, after = (difference_from(item.differences, rival, TRAINED) for item in (home, grown))
    if before is None or after is None or home.cells[TRAINED].members != grown.cells[TRAINED].members:
        return None
    mean, stderr = after.mean - before.mean, math.hypot(before.stderr, after.stderr)
    return mean, *Estimate(mean, math.nan, math.nan, stderr, before.n + after.n).normal


def both(home: Mapping[str, Cell], grown: Mapping[str, Cell], group: str) -> list[str]:
    """The members of a group that were evaluated on both sets; none where the group was not."""
    if group not in home or group not in grown:
        return []
    there = by_member(home[group])
    return [member for member in by_member(grown[group]) if member in there]


def fallen(home: Cell, grown: Cell, members: Sequence[str]) -> tuple[float, float]:
    """Mean accuracy of some members before and after."""
    before, after = ([by_member(cell)[member] for member in members] for cell in (home, grown))
    return sum(before) / len(before), sum(after) / len(after)


def by_member(cell: Cell) -> dict[str, float]:
    """Accuracy by the system's name and sampling seed."""
    return {member: cell.accuracy.per_seed[seed] for seed, member in cell.members.items()}


def on_behaviour(members: Sequence[str], rollouts: Mapping[str, Mapping[str, Any]]) -> Iterator[Bar]:
    """Bars about what the trained policies do, each seed, on the dialogues."""
    there = members and {WARM, *members} <= rollouts.keys()
    known = {name: rollouts[name] for name in (WARM, *members)} if there else {}
    asked = {
        "op success at least .85": ("tool_success", lambda value, warm: value >= 0.85),
        "content quality no more than .10 below its warm start": ("content", lambda value, warm: value >= warm - 0.10),
        "under 10% of completions cut off": ("cut_off", lambda value, warm: value < 0.10),
    }
    for text, (field, meets) in asked.items():
        values = {name: row[field] for name, row in known.items()} if all_known(known, field) else {}
        yield of_seeds(f"{HOME}: {text}", values, meets)
    for name in ("update", "delete"):
        whole = all_known(known, "calls_per_instance", f"{name}_share")
        agents = known if whole else {}
        rate = {agent: row["calls_per_instance"] * row[f"{name}_share"] for agent, row in agents.items()}
        share = _series([row[f"{name}_share"] for row in agents.values()])
        text = f"{HOME}: {name}s above 0 and more an instance than at the warm start"
        bar = of_seeds(text, rate, lambda value, warm: value > warm)
        yield bar if bar.met is None else bar._replace(found=f"{bar.found} an instance ({share} of the calls)")


def all_known(rollouts: Mapping[str, Mapping[str, Any]], *fields: str) -> bool:
    """Whether every rollout has these numbers: one without a call, for example, has no share of them that succeeded."""
    return all(row[field] is not None for row in rollouts.values() for field in fields)


def on_memory(home: Gathered | None, count: TokenCounter | None) -> Bar:
    """The bar about the size of the memory."""
    text = f"{HOME}: memory at most half the tokens of the input"
    rows = home.complete().get(TRAINED) if home else None
    if home is None or rows is None or count is None:
        return Bar(text)
    shares = [sum(r.memory_tokens for r in of.values()) / sum(r.input_tokens for r in of.values()) for of in rows.values()]
    dated = with_times(home, rows, count)
    found = f"{_plain(shares)}; with the time before each entry and each chunk, {_plain(dated)}"
    return Bar(text, found, max(*shares, *dated) <= 0.5, {"contents": shares, "with_times": dated})


def of_seeds(asked: str, values: Mapping[str, float], meets: Callable[[float, float], bool]) -> Bar:
    """A bar about a number of the warm start and of each seed; without numbers, one that was not evaluated."""
    if not values:
        return Bar(asked)
    met = all(meets(value, values[WARM]) for name, value in values.items() if name != WARM)
    return Bar(asked, _series(list(values.values())), met, dict(values))


def with_times(home: Gathered, rows: Scored, count: TokenCounter) -> list[float]:
    """Tokens of the memory as a share of those of the input, both as a reader sees them, by member."""
    inputs = {item.id: sum(count(Piece(c.text, c.time, 0).render()) for c in item.chunks) for item in home.instances()}
    return [
        sum(count(entry) for r in of.values() for entry in r.entries) / sum(inputs[name] for name in of) for of in rows.values()
    ]


def _plain(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _series(values: list[float]) -> str:
    """The warm start's, then each seed's."""
    return f"{_plain(values[:1])} → {_plain(values[1:])}"


def page(bars: Sequence[Bar], command: str) -> str:
    """The Markdown page."""
    missing = sum(bar.met is None for bar in bars)
    lines = [
        "# The bars",
        "",
        f"Made by `{command}` from the evaluation of [comparison.md](comparison.md) and rollouts on the same dialogues; not",
        "written by hand. Differences are in accuracy with the `recall` reader, with 95% intervals from a paired bootstrap over",
        "instances (n; * where one made from the standard error does not confirm it); all numbers:",
        "[results/bars.json](results/bars.json).",
        "",
        "| asked | found | met |",
        "| --- | --- | --- |",
        *(f"| {bar.asked} | {bar.found} | {MET[bar.met]} |" for bar in bars),
        "",
        f"{sum(bar.met is True for bar in bars)} of {len(bars)} are met" + (f"; {missing} were not evaluated." if missing else "."),
    ]
    return "\n".join(lines) + "\n"


def kept(bars: Sequence[Bar], before: Mapping[str, Any]) -> list[Bar]:
    """The bars, with what an earlier record found where it is not known now."""
    found = {row["asked"]: Bar(**row) for row in before.get("bars", [])}
    return [found.get(bar.asked, bar) if bar.met is None else bar for bar in bars]


def read_home(folder: Path | None) -> tuple[Gathered | None, TokenCounter | None]:
    """The dialogues of an evaluation with ``READER``, and its model's token counter."""
    if folder is None:
        return None, None
    home = next((item for item in gather(folder) if (item.set["name"], item.reader) == (HOME, READER)), None)
    if home is None:
        raise SystemExit(f"error: {folder} has no set {HOME!r} with reader {READER!r}\n  expected: an evaluation of {CONFIG}")
    tokenizer = load_tokenizer(read_config(folder)["model"])
    return home, lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)


def main() -> int:
    """Write both files; what is wrong with the arguments is one message, and 1."""
    try:
        _main()
    except (MemAlphaError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path, nargs="?")
    parser.add_argument("rollouts", type=Path, nargs="?")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    record = arguments.docs / "results" / "bars.json"
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    home, count = read_home(arguments.evaluation)
    summary = Published.read(arguments.docs / "results" / "comparison.json").summary
    sets = {item.set: item for item in summary.sets if item.reader == READER}
    rollouts = before.get("rollouts", {})
    if arguments.rollouts:
        paths = sorted(arguments.rollouts.glob("*/summary.json"))
        rollouts = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    cell = sets[HOME].cells.get(TRAINED) if HOME in sets else None
    members = [member.rsplit(" seed ", 1)[0] for member in cell.members.values()] if cell else []
    bars = [
        *on_accuracy(sets),
        *kept(list(on_facts(home)), before),
        *on_growth(sets),
        *on_behaviour(members, rollouts),
        *kept([on_memory(home, count)], before),
    ]
    named = [path.name if path.is_absolute() else str(path) for path in (arguments.evaluation, arguments.rollouts) if path]
    command = " ".join(["python scripts/bars.py", *named]) if named else before.get("command", "python scripts/bars.py")
    write_object(record, {"command": command, "bars": [bar._asdict() for bar in bars], "rollouts": rollouts})
    (arguments.docs / "bars.md").write_text(page(bars, command), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
