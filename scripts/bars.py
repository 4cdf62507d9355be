"""Says which of the bars set for the result are met: docs/bars.md and docs/results/bars.json, from an evaluation and rollouts.

    python scripts/bars.py runs/main runs/behaviour

Needs: the folder of configs/evaluate/main.yaml, and one of ``memalpha rollout`` on its dialogues for each agent, by its name there.
A bar about a difference is met where its whole 95% interval (paired bootstrap over instances) is on the right side, if nothing else
is said; one about behaviour where every training seed meets it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.evaluation.gathering import Gathered, Scored, accuracies, gather, on_kinds
from memalpha.evaluation.statistics import Estimate, difference, estimate, paired_scores

ROOT = Path(__file__).resolve().parent.parent
WARM, TRAINED, CONTROL = "warm", "grpo", "control"
HOME, GROWN = "dialogues", ("dialogues 10x", "dialogues 100x")
RAW = ("verbatim", "rag_bm25", "rag_dense", "rag_two_layer")
CHANGED = ("latest", "removed")
READER = "recall"


class Bar(NamedTuple):
    """One bar: what was asked, what was found, whether that meets it, and the numbers."""

    asked: str
    found: str
    met: bool
    numbers: Any


def shown(value: Estimate) -> str:
    """A difference with its interval and each seed's."""
    seeds = ", ".join(f"{seed:+.3f}" for seed in value.per_seed.values()) if len(value.per_seed) > 1 else ""
    return f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]" + (f" (seeds {seeds})" if seeds else "")


def numbers(value: Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {"mean": value.mean, "low": value.low, "high": value.high, "n": value.n, "seeds": list(value.per_seed.values())}


def on_accuracy(sets: Mapping[str, Gathered]) -> Iterator[Bar]:
    """Bars about differences on one set."""
    home = sets[HOME].complete()
    gain = difference(accuracies(home[WARM]), accuracies(home[TRAINED]))
    met = gain.mean >= 0.15 and gain.low > 0 and all(seed > 0 for seed in gain.per_seed.values())
    yield Bar(
        f"{HOME}: GRPO gains at least .15 over its warm start, every seed above 0, interval off 0", shown(gain), met, numbers(gain)
    )
    for rival in RAW:
        (before, counts), (after, _) = on_kinds(home[rival], CHANGED), on_kinds(home[TRAINED], CHANGED)
        margin = estimate(paired_scores(before, after), weights=counts)
        yield Bar(
            f"{HOME}, questions about changed and removed facts: above `{rival}`", shown(margin), margin.low > 0, numbers(margin)
        )
    for name, item in sets.items():
        rows = item.complete()
        if name in (HOME, *GROWN) or not {WARM, TRAINED} <= rows.keys():
            continue
        change = difference(accuracies(rows[WARM]), accuracies(rows[TRAINED]))
        if name == "squad":
            yield Bar(f"{name}: GRPO gains over its warm start", shown(change), change.low > 0, numbers(change))
        else:
            yield Bar(f"{name} (never trained on): no loss beyond the interval", shown(change), change.high >= 0, numbers(change))
    for name in (HOME, "squad"):
        rows = sets[name].complete()
        if CONTROL in rows:
            change = difference(accuracies(rows[WARM]), accuracies(rows[CONTROL]))
            yield Bar(f"{name}: the control (advantages shuffled) does not gain", shown(change), change.low <= 0, numbers(change))


def on_growth(sets: Mapping[str, Gathered]) -> Iterator[Bar]:
    """Bars about longer inputs: how far accuracy falls from the usual length, against the retrievers over raw chunks."""
    home = sets[HOME].complete()
    for name in (name for name in GROWN if name in sets):
        grown = sets[name].complete()
        for rival in RAW[1:]:
            asked = f"{name}: accuracy falls no further than that of `{rival}` (means alone)"
            if not {TRAINED, rival} <= grown.keys():
                yield Bar(asked, "not evaluated", False, None)
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


def on_behaviour(home: Gathered, rollouts: Mapping[str, Mapping[str, Any]]) -> Iterator[Bar]:
    """Bars about what the trained policies do, each seed, on the dialogues."""
    warm, seeds = rollouts[WARM], {name: row for name, row in rollouts.items() if name.startswith(f"{TRAINED}-")}
    above = {
        "op success at least .85": ("tool_success", lambda value: value >= 0.85),
        "content quality no more than .10 below its warm start": ("content", lambda value: value >= warm["content"] - 0.10),
        "under 10% of completions cut off": ("cut_off", lambda value: value < 0.10),
    }
    for asked, (field, meets) in above.items():
        values = {name: row[field] for name, row in seeds.items()}
        found = _series([warm[field], *values.values()])
        yield Bar(f"{HOME}: {asked}", found, all(map(meets, values.values())), {WARM: warm[field], **values})
    for name in ("update", "delete"):
        rate = {agent: row["calls_per_instance"] * row[f"{name}_share"] for agent, row in {WARM: warm, **seeds}.items()}
        share = [row[f"{name}_share"] for row in (warm, *seeds.values())]
        found = f"{_series(list(rate.values()))} an instance ({_series(share)} of the calls)"
        met = all(rate[agent] > rate[WARM] for agent in seeds)
        yield Bar(f"{HOME}: {name}s above 0 and more an instance than at the warm start", found, met, rate)
    rows = home.complete()[TRAINED]
    shares = [sum(r.memory_tokens for r in of.values()) / sum(r.input_tokens for r in of.values()) for of in rows.values()]
    found = ", ".join(f"{share:.3f}" for share in shares)
    yield Bar(f"{HOME}: memory at most half the tokens of the input", found, max(shares) <= 0.5, shares)


def _series(values: list[float]) -> str:
    """The warm start's, then each seed's."""
    return f"{values[0]:.3f} → " + ", ".join(f"{value:.3f}" for value in values[1:])


def page(bars: list[Bar], command: str) -> str:
    """The Markdown page."""
    lines = [
        "# The bars",
        "",
        f"Made by `{command}` from the evaluation of [comparison.md](comparison.md) and rollouts on the same dialogues; not",
        "written by hand. Differences are in accuracy with the `recall` reader, with 95% intervals from a paired bootstrap over",
        "instances; all numbers: [results/bars.json](results/bars.json).",
        "",
        "| asked | found | met |",
        "| --- | --- | --- |",
        *(f"| {bar.asked} | {bar.found} | {'yes' if bar.met else '**no**'} |" for bar in bars),
        "",
        f"{sum(bar.met for bar in bars)} of {len(bars)} are met.",
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
    rollouts = {path.parent.name: json.loads(path.read_text()) for path in sorted(arguments.rollouts.glob("*/summary.json"))}
    bars = [*on_accuracy(sets), *on_growth(sets), *on_behaviour(sets[HOME], rollouts)]
    command = f"python scripts/bars.py {arguments.evaluation} {arguments.rollouts}"
    record = {"command": command, "bars": [bar._asdict() for bar in bars], "rollouts": rollouts}
    (arguments.docs / "results").mkdir(parents=True, exist_ok=True)
    (arguments.docs / "results" / "bars.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (arguments.docs / "bars.md").write_text(page(bars, command), encoding="utf-8")


if __name__ == "__main__":
    main()
