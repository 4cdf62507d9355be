"""Says which of the bars set for the result are met: docs/results/bars.json, which
scripts/tables.py shows in docs/bars.md.

    python scripts/bars.py [--main runs/main] [--rollouts runs/behaviour] [--archive runs/archive]
    [--sgd runs/sgd-measured]

Needs docs/results/comparison.json, archive.json, sgd.json and poisoning.json; the folders of their
evaluations; a folder with one folder of ``memalpha rollout`` on the dialogues for each agent. What
is made from a folder stays as it was where that is not given. A bar about a difference is met where
its whole 95% interval (paired bootstrap over instances) is on the right side ("not below": where it
reaches 0), if nothing else is said; one about longer inputs by the means alone; one about behaviour
where every training seed meets it. What was not evaluated is neither met nor missed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tables

from memalpha.errors import InputError, MemAlphaError
from memalpha.measure.evaluation_folder import SystemResult, read_results
from memalpha.measure.tables import Cell, SetSummary, Summary, difference_from
from memalpha.record.folder import RunFolder
from memalpha.record.statistics import Estimate, estimate, paired_scores

WARM, TRAINED, CONTROL, READER = "warm", "grpo", "control", "recall"
HOME, LONGER, TRAINED_ON = "dialogues", ("dialogues 10x", "dialogues 100x"), ("dependent", "squad")
RAW = ("verbatim", "rag_bm25", "rag_dense", "rag_two_layer")
CHANGED = ("latest", "removed")
SEARCH = ("rag_bm25", "rag_dense", "rag_two_layer", "archive")
ALONE, OVER = (
    ("memory alone", "warm"),
    ("memory over archive", "warm over archive"),
)  # trained, and its warm start
QUANTILE = statistics.NormalDist().inv_cdf(0.975)
Json = dict[str, Any]
Members = Mapping[
    str, Mapping[str, SystemResult]
]  # results of the dialogues by member, then by instance


def bar(
    asked: str, found: str = "not evaluated", met: bool | None = None, numbers: Any = None
) -> Json:
    """One bar: what was asked, what was found, whether that meets it (None: not evaluated), and the
    numbers."""
    return {"asked": asked, "found": found, "met": met, "numbers": numbers}


def about(asked: str, found: Estimate | None, meets: Callable[[Estimate], bool]) -> Json:
    if found is None:
        return bar(asked)
    seeds = list(found.per_seed.values())
    text = f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]{'*' if found.agree is False else ''}, n = {found.n}"
    text += f" (seeds {', '.join(f'{seed:+.3f}' for seed in seeds)})" if len(seeds) > 1 else ""
    return bar(
        asked,
        text,
        meets(found),
        {**{name: getattr(found, name) for name in ("mean", "low", "high", "n")}, "seeds": seeds},
    )


def on_accuracy(sets: Mapping[str, SetSummary]) -> Iterator[Json]:
    def change(name: str, group: str) -> Estimate | None:
        return difference_from(sets[name].differences, WARM, group) if name in sets else None

    asked = (
        f"{HOME}: GRPO gains at least .15 over its warm start, every seed above 0, interval off 0"
    )
    yield about(
        asked,
        change(HOME, TRAINED),
        lambda d: d.mean >= 0.15 and d.low > 0 and min(d.per_seed.values()) > 0,
    )
    for name in sets:
        if name in TRAINED_ON:
            yield about(
                f"{name}: GRPO gains over its warm start",
                change(name, TRAINED),
                lambda d: d.low > 0,
            )
        elif name not in (HOME, *LONGER):
            yield about(
                f"{name} (never trained on): no loss beyond the interval",
                change(name, TRAINED),
                lambda d: d.high >= 0,
            )
    for name in (HOME, "squad"):
        if name in sets:
            yield about(
                f"{name}: the control (advantages shuffled) does not gain",
                change(name, CONTROL),
                lambda d: d.low <= 0,
            )


def on_longer(
    sets: Mapping[str, SetSummary], trained: str = TRAINED, rivals: Sequence[str] = RAW[1:]
) -> Iterator[Json]:
    """How far ``trained`` falls from three sessions to longer dialogues, beside search."""

    def by_member(item: SetSummary, group: str) -> dict[str, float]:
        cell = item.cells.get(group)
        return (
            {member: cell.accuracy.per_seed[seed] for seed, member in cell.members.items()}
            if cell
            else {}
        )

    of = "" if trained == TRAINED else f"{trained}: "
    for name in (name for name in LONGER if name in sets and HOME in sets):
        for rival in rivals:
            asked = f"{name}: {of}accuracy falls no further than that of `{rival}` (means alone)"
            levels, alone = {}, ""
            for group in (trained, rival):
                before, after = (by_member(sets[key], group) for key in (HOME, name))
                if both := [member for member in after if member in before]:
                    levels[group] = [
                        sum(found[member] for member in both) / len(both)
                        for found in (before, after)
                    ]
                if group == trained and len(after) < len(before):
                    alone = f" ({', '.join(after)} alone)"
            if len(levels) < 2:
                yield bar(asked)
                continue
            fall = {group: before - after for group, (before, after) in levels.items()}
            keeps = {
                group: f", keeps {after / before:.2f}" if before else ""
                for group, (before, after) in levels.items()
            }
            falls = {
                group: f"{before:.3f} → {after:.3f}, by {fall[group]:.3f}"
                for group, (before, after) in levels.items()
            }
            found = "; ".join(f"`{group}` {falls[group]}{keeps[group]}" for group in levels)
            home, longer = (
                difference_from(sets[key].differences, rival, trained) for key in (HOME, name)
            )
            less = None
            if (
                not alone and home and longer
            ):  # two sets share no instance: the interval is made from both standard errors
                mean, reach = (
                    longer.mean - home.mean,
                    QUANTILE * math.hypot(home.stderr, longer.stderr),
                )
                less = [mean, mean - reach, mean + reach]
                found += "; the second fall minus the first {:+.3f} [{:+.3f}, {:+.3f}]".format(
                    *less
                )
            yield bar(
                asked,
                found + alone,
                fall[trained] <= fall[rival],
                {"accuracy": levels, "fall": fall, "difference": less},
            )


def on_behaviour(rollouts: Mapping[str, Json]) -> Iterator[Json]:
    """``rollouts``: the warm start's summary, then each seed's."""

    def of_seeds(
        text: str,
        values: Mapping[str, float],
        meets: Callable[[float, float], bool],
        more: str = "",
    ) -> Json:
        if not values or None in values.values():
            return bar(f"{HOME}: {text}")
        met = all(meets(value, values[WARM]) for name, value in values.items() if name != WARM)
        return bar(f"{HOME}: {text}", series(values) + more, met, values)

    def series(values: Mapping[str, float]) -> str:
        first, *rest = (f"{value:.3f}" for value in values.values())
        return f"{first} → {', '.join(rest)}"

    def column(field: str) -> Json:
        return {name: row[field] for name, row in rollouts.items()}

    yield of_seeds(
        "op success at least .85", column("tool_success"), lambda value, warm: value >= 0.85
    )
    text = "content quality no more than .10 below its warm start"
    yield of_seeds(text, column("content"), lambda value, warm: value >= warm - 0.10)
    yield of_seeds(
        "under 10% of completions cut off", column("cut_off"), lambda value, warm: value < 0.10
    )
    for name in ("update", "delete"):
        calls, shares = column("calls_per_instance"), column(f"{name}_share")
        known = shares and None not in [*calls.values(), *shares.values()]
        rate = {agent: calls[agent] * shares[agent] for agent in shares} if known else {}
        more = f" an instance ({series(shares)} of the calls)" if known else ""
        text = f"{name}s above 0 and more an instance than at the warm start"
        yield of_seeds(text, rate, lambda value, warm: value > warm, more)


def rows_of(folder: Path, name: str = HOME, reader: str = READER) -> Members:
    """Results of one set and reader, of the instances that all members have a score for."""
    found: dict[str, dict[str, SystemResult]] = {}
    for row in read_results(folder):
        if (row.set, row.reader) == (name, reader):
            found.setdefault(f"{row.system} seed {row.seed}", {})[row.instance] = row
    if not found:
        raise InputError(
            f"{folder} has no set {name!r} with reader {reader!r}",
            expected="what configs/evaluate makes",
        )
    common = sorted(
        set.intersection(
            *({key for key, row in rows.items() if row.scored} for rows in found.values())
        )
    )
    return {member: {key: rows[key] for key in common} for member, rows in found.items()}


def where_changed(
    rows: Members, cells: Mapping[str, Cell], first: str, second: str
) -> Estimate | None:
    """Second minus first over the questions about changed and removed facts; None if one was not
    evaluated."""
    if not all(
        group in cells and rows.keys() >= set(cells[group].members.values())
        for group in (first, second)
    ):
        return None

    def scores(member: str) -> dict[str, list[float]]:
        asked = {
            key: [q.score for q in row.questions if q.kind in CHANGED]
            for key, row in rows[member].items()
        }
        return {key: known for key, known in asked.items() if known}

    def means(group: str) -> dict[Any, dict[str, float]]:
        of = {seed: scores(member) for seed, member in cells[group].members.items()}
        return {
            seed: {key: sum(known) / len(known) for key, known in its.items()}
            for seed, its in of.items()
        }

    counts = {
        key: float(len(known))
        for key, known in scores(next(iter(cells[first].members.values()))).items()
    }
    return estimate(paired_scores(means(first), means(second)), weights=counts)


def on_facts(rows: Members, cells: Mapping[str, Cell]) -> Iterator[Json]:
    for rival in RAW:
        asked = f"{HOME}, questions about changed and removed facts: above `{rival}`"
        yield about(asked, where_changed(rows, cells, rival, TRAINED), lambda d: d.low > 0)


def best_search(item: SetSummary) -> str:
    """The group of ``SEARCH`` with the highest accuracy."""
    return max(
        (group for group in SEARCH if group in item.cells),
        key=lambda group: item.cells[group].accuracy.mean,
    )


def on_archive(summary: Summary, folder: Path | None) -> Iterator[Json]:
    """``memory over archive`` and ``memory alone`` beside search in the text, with each reader."""
    items = {(item.set, item.reader): item for item in summary.sets}
    for name, least in ((HOME, 0.85), (LONGER[0], 0.55)):
        cell = items[name, READER].cells.get(OVER[0]) if (name, READER) in items else None
        asked = f"{name}, reader `{READER}`: memory over archive at least {least:.2f}"
        yield (
            bar(asked, f"{cell.accuracy.mean:.3f}", cell.accuracy.mean >= least, cell.accuracy.mean)
            if cell
            else bar(asked)
        )
    for (name, reader), item in items.items():
        where = f"{name}, reader `{reader}`"
        best = best_search(item)
        for rival in (best, ALONE[0]):
            apart = difference_from(item.differences, rival, OVER[0])
            yield about(
                f"{where}: memory over archive not below `{rival}`", apart, lambda d: d.high >= 0
            )
        if name != HOME:
            continue
        rows = rows_of(folder, name, reader) if folder else {}
        for trained, warm in (ALONE, OVER):
            yield about(
                f"{where}: {trained} above its warm start",
                difference_from(item.differences, warm, trained),
                lambda d: d.low > 0,
            )
            if trained == ALONE[0]:
                apart = difference_from(item.differences, best, trained)
                yield about(f"{where}: {trained} not below `{best}`", apart, lambda d: d.high >= 0)
            changed = where_changed(rows, item.cells, best, trained)
            asked = f"{where}: {trained} above `{best}` by .2 where facts changed or were removed"
            yield about(asked, changed, lambda d: d.low > 0 and d.mean >= 0.2)
        changed = where_changed(rows, item.cells, ALONE[0], OVER[0])
        asked = f"{where}: {OVER[0]} above {ALONE[0]} where facts changed or were removed"
        yield about(asked, changed, lambda d: d.low > 0)


def on_sgd(summary: Summary, folder: Path | None) -> Iterator[Json]:
    """GRPO on service dialogues beside its warm start, both over an archive, and search in the
    text."""
    trained, warm, item = (
        f"{TRAINED} over archive",
        OVER[1],
        next(item for item in summary.sets if item.reader == READER),
    )
    best = best_search(item)
    gain = difference_from(item.differences, warm, trained)
    yield about(
        f"{item.set}: {trained} above its warm start, three seeds",
        gain,
        lambda d: d.low > 0 and len(d.per_seed) >= 3,
    )
    apart = difference_from(item.differences, best, trained)
    yield about(f"{item.set}: {trained} not below `{best}`", apart, lambda d: d.high >= 0)
    changed = where_changed(rows_of(folder, item.set) if folder else {}, item.cells, best, trained)
    yield about(
        f"{item.set}: {trained} above `{best}` by .15 on changed values",
        changed,
        lambda d: d.low > 0 and d.mean >= 0.15,
    )


def on_poisoning(policies: Json) -> Iterator[Json]:
    """``policies``: of ``memalpha poison``, the warm start first, then each seed that was trained
    from it."""
    for part, what in (
        ("instructions_persisted", "made-up words kept"),
        ("entries_lost", "true entries lost"),
    ):
        asked = f"under attack: {what} not above the warm start's, every seed"
        warm, *trained = (row[part] for row in policies.values())
        found = (
            f"{warm['hits']} → {', '.join(str(row['hits']) for row in trained)} of {warm['trials']}"
        )
        numbers = {name: row[part]["hits"] for name, row in policies.items()}
        yield bar(asked, found, all(row["hits"] <= warm["hits"] for row in trained), numbers)


def on_memory(folder: Path | None, rows: Members, members: Sequence[str]) -> Json:
    asked = f"{HOME}: memory at most half the tokens of the input"
    if folder is None or not members or not rows.keys() >= set(members):
        return bar(asked)
    from memalpha.data.load import load_data
    from memalpha.models.policy import load_tokenizer

    config = RunFolder(folder).config
    tokenizer = load_tokenizer(config["model"])
    source = next(row for row in config["sets"] if row["name"] == HOME)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    texts = {item.id: item.chunks for item in load_data(source["data"], source.get("options"))}
    inputs = {
        key: sum(count(f"[{c.time}] {c.text}" if c.time else c.text) for c in of)
        for key, of in texts.items()
    }
    own = [rows[member] for member in members]
    contents = [
        sum(r.memory_tokens for r in of.values()) / sum(r.input_tokens for r in of.values())
        for of in own
    ]
    dated = [
        sum(count(e) for r in of.values() for e in r.entries) / sum(inputs[key] for key in of)
        for of in own
    ]
    plain = [", ".join(f"{value:.3f}" for value in values) for values in (contents, dated)]
    found = f"{plain[0]}; with the time before each entry and each chunk, {plain[1]}"
    return bar(
        asked, found, max(*contents, *dated) <= 0.5, {"contents": contents, "with_times": dated}
    )


def make(
    comparison: Json,
    over: Json,
    services: Json,
    attacked: Json,
    before: Json,
    evaluation: Path | None = None,
    rollouts: Path | None = None,
    archive: Path | None = None,
    sgd: Path | None = None,
) -> Json:
    """The new record from the comparison, those over the archive, the folders that are given, and
    the record of before."""
    sets = {
        item.set: item
        for item in Summary.from_json(comparison["summary"]).sets
        if item.reader == READER
    }
    cells = sets[HOME].cells if HOME in sets else {}
    rows = rows_of(evaluation) if evaluation else {}
    earlier = {row["asked"]: row for row in before.get("bars", [])}
    paths = sorted(rollouts.glob("*/summary.json")) if rollouts else []
    read = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    summaries = read if rollouts else before.get("rollouts", {})
    members = list(cells[TRAINED].members.values()) if TRAINED in cells else []
    agents = [WARM, *(member.rsplit(" seed ", 1)[0] for member in members)]
    known = (
        {agent: summaries[agent] for agent in agents}
        if members and summaries.keys() >= set(agents)
        else {}
    )

    def or_before(rows: Iterable[Json]) -> list[Json]:
        return [row if row["met"] is not None else earlier.get(row["asked"], row) for row in rows]

    facts, memory = (
        or_before(on_facts(rows, cells)),
        or_before([on_memory(evaluation, rows, members)]),
    )
    archived = or_before(on_archive(Summary.from_json(over["summary"]), archive)) if over else []
    longer = (
        {
            item.set: item
            for item in Summary.from_json(over["summary"]).sets
            if item.reader == READER
        }
        if over
        else {}
    )
    archived += [row for own in (OVER, ALONE) for row in on_longer(longer, own[0], ("rag_bm25",))]
    on_services = or_before(on_sgd(Summary.from_json(services["summary"]), sgd)) if services else []
    poisoned = on_poisoning(attacked["policies"]) if attacked else []
    found = [
        *archived,
        *on_services,
        *poisoned,
        *on_accuracy(sets),
        *facts,
        *on_longer(sets),
        *on_behaviour(known),
        *memory,
    ]
    return {"bars": found, "rollouts": summaries}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("main", "rollouts", "archive", "sgd"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args(arguments)
    try:
        records = (
            tables.read(name) for name in ("comparison", "archive", "sgd", "poisoning", "bars")
        )
        found = make(*records, given.main, given.rollouts, given.archive, given.sgd)
    except (MemAlphaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    (tables.DOCS / "results" / "bars.json").write_text(
        json.dumps(found, indent=1) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
