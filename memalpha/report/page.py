"""A run as one self-contained page, ``RUN/report/index.html``.

It holds everything it shows (style and pictures inline, no script, nothing fetched), so it opens from disk and can be sent. It
follows the reader's light or dark setting and narrow windows. Jinja escapes every value: text of a data set or a model is text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

from memalpha.report.curves import DARK, curves_png, write_curves
from memalpha.report.examples import find_examples
from memalpha.report.tables import headline, summary_markdown, summary_rows
from memalpha.report.view import calls, counted, entry_text, known, number, retrieved, rollout_accuracy, rollout_reward
from memalpha.runs import RunFolder

PAGE_FILE = "report/index.html"
TABLE_FILE = "report/table.md"

HIGHLIGHTS: Mapping[str, tuple[str, ...]] = {
    "policy": ("model", "adapter", "full_finetuning", "lora_r", "lora_alpha", "warm_start_steps"),
    "agent": ("schema", "codec", "max_chunk_tokens", "view_tokens", "max_completion_length", "retrieval", "embedder"),
    "data": ("train_data", "train_options", "eval_data", "eval_options", "eval_instances", "eval_temperature"),
    "questions": ("reader", "reader_tokens", "retrieve_k", "content_judge"),
    "reward": ("accuracy_weight", "tool_weight", "compression_weight", "content_weight"),
    "training": (
        "max_steps", "learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "num_generations", "grouping",
        "loss_type", "scale_rewards", "beta", "temperature", "seed",
    ),
}  # fmt: skip
"""Options shown first, by topic; all the others are on the page too, folded away."""

_FILES = ("summary.json", "environment.json")


def write_report(run: RunFolder) -> Path:
    """Write the page, ``report/curves.png`` and ``report/table.md`` of what a run has so far; return the page's path.

    Raises:
        InputError: If a file of the run is damaged; names the file and line.
    """
    summary, environment = (_optional(run, name) for name in _FILES)
    target = run.path / PAGE_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    curves = write_curves(run, summary)
    pictures = (curves.read_bytes(), curves_png(run.metrics(), summary, DARK)) if curves else (None, None)
    if summary_rows(summary).rows:
        (run.path / TABLE_FILE).write_text(summary_markdown(summary), encoding="utf-8")
    target.write_text(render_page(run, summary, environment, pictures), encoding="utf-8")
    return target


def render_page(
    run: RunFolder, summary: Mapping[str, Any], environment: Mapping[str, Any], pictures: tuple[bytes | None, bytes | None]
) -> str:
    """Return the page as HTML.

    Args:
        run: Where metrics and rollouts are read from.
        summary: What ``summary.json`` holds, empty if there is none yet.
        environment: What ``environment.json`` holds, empty if there is none.
        pictures: The curves as PNG, for light and for dark; None if there are none.
    """
    config = run.config
    columns, rows = summary_rows(summary)
    return _template().render(
        name=run.path.resolve().name,
        headline=headline(summary),
        state=_state(run.metrics(), summary),
        control=bool(config.get("shuffle_advantages")),
        columns=columns,
        rows=rows,
        drawn=_drawn(config),
        pictures=[_data_uri(picture) for picture in pictures],
        examples=find_examples(run),
        highlights=_highlights(config),
        config=yaml.safe_dump(config, sort_keys=True, allow_unicode=True),
        environment=environment,
    )


def _optional(run: RunFolder, name: str) -> dict[str, Any]:
    data: dict[str, Any] = run.read_json(name) if (run.path / name).is_file() else {}
    return data


def _state(metrics: list[dict[str, Any]], summary: Mapping[str, Any]) -> str:
    """How far the run came, in one line."""
    if "steps" in summary:
        return f"{number(summary['steps'], 0)} steps in {_duration(summary.get('seconds'))}"
    if summary:
        return f"evaluation in {_duration(summary.get('seconds'))}"
    if not metrics:
        return "no step logged yet"
    last = metrics[-1]
    return f"unfinished: step {number(last.get('step'), 0)} of {number(last.get('max_steps'), 0)}"


def _drawn(config: Mapping[str, Any]) -> str:
    """How the held-out rollouts were drawn."""
    temperature = known(config.get("eval_temperature")) or 0.0
    return f"Rollouts drawn at temperature {temperature:g}" if temperature else "Greedy rollouts"


def _duration(seconds: Any) -> str:
    found = known(seconds)
    if found is None or found < 120:
        return f"{number(found, 1)} s"
    return f"{number(found / 60, 1)} min" if found < 7200 else f"{number(found / 3600, 1)} h"


def _highlights(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    shown = {topic: {name: _option(config[name]) for name in names if name in config} for topic, names in HIGHLIGHTS.items()}
    return {topic: values for topic, values in shown.items() if values}


def _option(value: Any) -> str:
    if value in ("", None):
        return "none"
    return ", ".join(f"{key} {item}" for key, item in value.items()) or "none" if isinstance(value, Mapping) else str(value)


def _data_uri(picture: bytes | None) -> str | None:
    return f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}" if picture else None


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("memalpha.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.globals.update(
        calls=calls,
        counted=counted,
        entry_text=entry_text,
        retrieved=retrieved,
        accuracy=rollout_accuracy,
        reward=rollout_reward,
        known=known,
    )
    return environment.get_template("run.html")
