"""Says which of the bars set for the result are met: docs/bars.md and docs/results/bars.json, from an evaluation and rollouts.

    python scripts/bars.py runs/main runs/behaviour

Needs: the folder of configs/evaluate/main.yaml, and one of ``memalpha rollout`` on its dialogues for each agent, by its name there.
A bar about a difference is met where its whole 95% interval (paired bootstrap over instances) is on the right side, if nothing else
is said; one about behaviour where every training seed meets it. What was not evaluated, or not with every training seed, is neither
met nor missed, and said to be missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.evaluation.gathering import Gathered, Scored, accuracies, gather, on_kinds, read_config
from memalpha.evaluation.pieces import Piece
from memalpha.evaluation.statistics import Estimate, difference, estimate, paired_scores
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


def on_accuracy(sets: Mapping[str, Gathered]) -> Iterator[Bar]:
    """Bars about differences on one set."""
    home = sets[HOME].complete()
    gain = change(home, WARM, TRAINED)
    asked = f"{HOME}: GRPO gains at least .15 over its warm start, every seed above 0, interval off 0"
    yield about(asked, gain, lambda d: d.mean >= 0.15 and d.low > 0 and all(seed > 0 for seed in d.per_seed.values()))
    for rival in RAW:
        asked = f"{HOME}, questions about changed and removed facts: above `{rival}`"
        yield about(asked, on_changed(home, rival), lambda d: d.low > 0)
    for name, item in sets.items():
        if name in (HOME, *GROWN):
            continue
        found = change(item.complete(), WARM, TRAINED)
        if name in KIN:
            yield about(f"{name}: GRPO gains over its warm start", found, lambda d: d.low > 0)
        else:
            yield about(f"{name} (never trained on): no loss beyond the interval", found, lambda d: d.high >= 0)
    for name in (name for name in (HOME, "squad") if name in sets):
        found = change(sets[name].complete(), WARM, CONTROL)
        yield about(f"{name}: the control (advantages shuffled) does not gain", found, lambda d: d.low <= 0)


def change(rows: Mapping[str, Scored], first: str, second: str) -> Estimate | None:
    """Accuracy of the second group minus that of the first; None if one is not there."""
    return difference(accuracies(rows[first]), accuracies(rows[second])) if {first, second} <= rows.keys() else None


def on_changed(rows: Mapping[str, Scored], rival: str) -> Estimate | None:
    """Accuracy of the trained agents minus that of a rival, over the questions about changed and removed facts."""
    if not {TRAINED, rival} <= rows.keys():
        return None
    (before, counts), (after, _) = on_kinds(rows[rival], CHANGED), on_kinds(rows[TRAINED], CHANGED)
    return estimate(paired_scores(before, after), weights=counts)


def about(asked: str, found: Estimate | None, meets: Callable[[Estimate], bool]) -> Bar:
    """A bar about a difference."""
    return Bar(asked) if found is None else Bar(asked, shown(found), meets(found), numbers(found))


def on_growth(sets: Mapping[str, Gathered]) -> Iterator[Bar]:
    """Bars about longer inputs: how far accuracy falls from the usual length, against the retrievers over raw chunks."""
    home = sets[HOME].complete()
    for name in (name for name in GROWN if name in sets):
        grown = sets[name].complete()
        for rival in RAW[1:]:
            asked = f"{name}: accuracy falls no further than that of `{rival}` (means alone)"
            if not {TRAINED, rival} <= grown.keys() & home.keys():
                yield Bar(asked)
                continue
            levels = {group: (mean(home, group), mean(grown, group)) for group in (TRAINED, rival)}
            fall = {group: before - after for group, (before, after) in levels.items()}
            found = "; ".join(
                f"`{group}` {before:.3f} → {after:.3f}, by {fall[group]:.3f}" + (f", keeps {after / before:.2f}" if before else "")
                for group, (before, after) in levels.items()
            )
            yield Bar(asked, found, fall[TRAINED] <= fall[rival], {"accuracy": levels, "fall": fall})


def mean(rows: Mapping[str, Scored], group: str) -> float:
    """Mean accuracy of a group, over its members and instances."""
    return estimate(accuracies(rows[group])).mean


def on_behaviour(home: Gathered, rollouts: Mapping[str, Mapping[str, Any]], count: TokenCounter) -> Iterator[Bar]:
    """Bars about what the trained policies do, each seed, on the dialogues."""
    rows = home.complete().get(TRAINED, {})
    members = [next(iter(of.values())).system for of in rows.values()]
    known = rollouts if members and {WARM, *members} <= rollouts.keys() else {}
    asked = {
        "op success at least .85": ("tool_success", lambda value, warm: value >= 0.85),
        "content quality no more than .10 below its warm start": ("content", lambda value, warm: value >= warm - 0.10),
        "under 10% of completions cut off": ("cut_off", lambda value, warm: value < 0.10),
    }
    for text, (field, meets) in asked.items():
        values = {name: known[name][field] for name in (WARM, *members)} if known else {}
        yield of_seeds(f"{HOME}: {text}", values, meets)
    for name in ("update", "delete"):
        agents = {agent: known[agent] for agent in (WARM, *members)} if known else {}
        rate = {agent: row["calls_per_instance"] * row[f"{name}_share"] for agent, row in agents.items()}
        share = _series([row[f"{name}_share"] for row in agents.values()])
        text = f"{HOME}: {name}s above 0 and more an instance than at the warm start"
        bar = of_seeds(text, rate, lambda value, warm: value > warm)
        yield bar if bar.met is None else bar._replace(found=f"{bar.found} an instance ({share} of the calls)")
    text = f"{HOME}: memory at most half the tokens of the input"
    if not rows:
        yield Bar(text)
        return
    shares = [sum(r.memory_tokens for r in of.values()) / sum(r.input_tokens for r in of.values()) for of in rows.values()]
    dated = with_times(home, rows, count)
    found = f"{_plain(shares)}; with the time before each entry and each chunk, {_plain(dated)}"
    yield Bar(text, found, max(*shares, *dated) <= 0.5, {"contents": shares, "with_times": dated})


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


def page(bars: list[Bar], command: str) -> str:
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


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    sets = {item.set["name"]: item for item in gather(arguments.evaluation) if item.reader == READER}
    if HOME not in sets:
        raise SystemExit(
            f"error: {arguments.evaluation} has no set {HOME!r} with reader {READER!r}\n  expected: an evaluation of {CONFIG}"
        )
    rollouts = {path.parent.name: json.loads(path.read_text()) for path in sorted(arguments.rollouts.glob("*/summary.json"))}
    tokenizer = load_tokenizer(read_config(arguments.evaluation)["model"])
    behaviour = on_behaviour(sets[HOME], rollouts, lambda text: len(tokenizer(text, add_special_tokens=False).input_ids))
    bars = [*on_accuracy(sets), *on_growth(sets), *behaviour]
    named = [path.name if path.is_absolute() else str(path) for path in (arguments.evaluation, arguments.rollouts)]
    command = f"python scripts/bars.py {' '.join(named)}"
    record = {"command": command, "bars": [bar._asdict() for bar in bars], "rollouts": rollouts}
    (arguments.docs / "results").mkdir(parents=True, exist_ok=True)
    (arguments.docs / "results" / "bars.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (arguments.docs / "bars.md").write_text(page(bars, command), encoding="utf-8")


if __name__ == "__main__":
    main()
