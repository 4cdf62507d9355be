"""The first page of a report: the evaluation, curves, where the time went, what went wrong, pages to look at first, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from memalpha.report.catalogue import Catalogue
from memalpha.report.compare import Group, comparison, read_run, spread_note
from memalpha.report.curves import write_curves
from memalpha.report.examples import find_picks
from memalpha.report.figures import Variant, write_figures
from memalpha.report.overview import cards, drawn, failures, several_headline, state, time_split, troubles
from memalpha.report.tables import headline, summary_markdown, summary_rows
from memalpha.report.templating import render
from memalpha.runs import RunFolder

TABLE_FILE = "report/table.md"

HIGHLIGHTS: Mapping[str, tuple[str, ...]] = {
    "policy": ("model", "adapter", "full_finetuning", "lora_r", "lora_alpha", "warm_start_steps"),
    "agent": ("schema", "codec", "max_chunk_tokens", "view_tokens", "max_completion_length", "retrieval", "embedder"),
    "data": ("train_data", "train_options", "eval_data", "eval_options", "eval_instances", "eval_temperature"),
    "questions": ("reader", "reader_tokens", "retrieve_k", "content_judge"),
    "reward": ("accuracy_weight", "tool_weight", "compression_weight", "content_weight", "immediate_weight", "question_share"),
    "training": (
        "max_steps", "learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "num_generations", "grouping",
        "loss_type", "scale_rewards", "beta", "temperature", "seed",
    ),
}  # fmt: skip
"""Options shown first, by topic; all the others are on the page too, folded away."""


def overview_page(
    runs: Sequence[RunFolder],
    target: Path,
    catalogue: Catalogue,
    pairs: Mapping[tuple[int, str], str],
    shared: Mapping[str, Any],
) -> str:
    """Write the curves into ``target/figures`` and return the page as HTML.

    Of a single run it also writes ``curves.png`` and ``table.md`` into the run's report, for a README.

    Args:
        runs: One run, or seeds of one configuration.
        target: Folder of the site.
        catalogue: What has a page.
        pairs: Page of each (run, instance) evaluated before and after training.
        shared: What every page of the site is given.
    """
    config = runs[0].config
    found = [read_run(run) for run in runs]
    summaries = [run.summary for run in found]
    variant = Variant("", [run.metrics for run in found], summaries)
    return render(
        "overview.html",
        **shared,
        headline=headline(summaries[0]) if len(runs) == 1 else several_headline(summaries),
        states=[(run.name, state(run.metrics, run.summary)) for run in found],
        environments=[run.read_optional("environment.json") for run in runs],
        cards=cards(found[0].metrics, config) if len(runs) == 1 else [],
        control=bool(config.get("shuffle_advantages")),
        tables=_tables(runs, summaries),
        drawn=drawn(config),
        pictures=write_figures(target / "figures", [variant]),
        split=time_split([row for run in found for row in run.metrics], _whole(summaries)),
        troubles=[trouble for run in found for trouble in troubles([], run.metrics)] + troubles(catalogue.facts, []),
        failures=failures(catalogue.facts),
        picks=find_picks(catalogue.facts, pairs),
        pages=len(catalogue.facts),
        training=sum(fact.source.step is not None for fact in catalogue.facts),
        all_training=catalogue.training,
        highlights=_highlights(config),
        config=yaml.safe_dump(config, sort_keys=True, allow_unicode=True),
    )


def _tables(runs: Sequence[RunFolder], summaries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The evaluation as a table; for a single run also written to files."""
    if len(runs) > 1:
        read = [read_run(run) for run in runs]
        groups = [Group(run.name, [run]) for run in read] + [Group("mean", read)]
        return {"columns": [group.label for group in groups], "rows": comparison(groups), "note": spread_note(groups)}
    columns, rows = summary_rows(summaries[0])
    write_curves(runs[0], summaries[0])
    if rows:
        path = runs[0].path / TABLE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(summary_markdown(summaries[0]), encoding="utf-8")
    return {"columns": columns, "rows": rows, "note": "± is the standard error over instances."}


def _whole(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds of all runs together, unless one of them has not ended."""
    seconds = [summary.get("seconds") for summary in summaries]
    return {} if None in seconds else {"seconds": sum(float(value) for value in seconds if value is not None)}


def _highlights(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    shown = {topic: {name: _option(config[name]) for name in names if name in config} for topic, names in HIGHLIGHTS.items()}
    return {topic: values for topic, values in shown.items() if values}


def _option(value: Any) -> str:
    if value in ("", None):
        return "none"
    return ", ".join(f"{key} {item}" for key, item in value.items()) or "none" if isinstance(value, Mapping) else str(value)
