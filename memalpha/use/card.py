"""The model card of an exported agent: what it is, what it was trained on and for what, what that gave, what it cannot do.

What always holds: every number comes from the run's own files; what they do not say is said to be unknown. The metadata are those
``huggingface_hub`` knows; a base is named there only if it is on the Hub.

It does not cover the Hub's own check of the metadata, which needs the Hub (``ModelCard.validate``).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from memalpha.agent.config import AgentConfig
from memalpha.files import read_object
from memalpha.memory.schema import MemorySchema
from memalpha.models.registry import MODELS, DownloadSpec
from memalpha.provenance import nameless
from memalpha.rewards.total import RewardConfig
from memalpha.runs import RunFolder

_MEASURES = (
    "accuracy", "reward", "tool_success", "content", "compression", "memory_tokens", "input_tokens", "entries",
    "calls_per_instance", "update_share", "delete_share",
)  # fmt: skip
_TRAINING = (
    "adapter", "train_data", "train_options", "eval_data", "eval_options", "reader", "content_judge", "loss_type", "learning_rate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known about how an agent was made; empty where its files do not say.

    Attributes:
        summary: ``summary.json`` of its run.
        config: ``config.yaml`` of its run.
        environment: ``environment.json`` of its run.
        warmup: ``memalpha_warmup.json`` beside its adapter.
    """

    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    warmup: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> RunFacts:
        """Read them for an adapter's or a model's folder; a run's own are those of its ``adapter``, not of its warm start."""
        warmup = read_object(folder / "memalpha_warmup.json") if (folder / "memalpha_warmup.json").is_file() else {}
        parent = folder.resolve().parent
        if folder.resolve().name != "adapter" or not (parent / "config.yaml").is_file():
            return cls({}, {}, {}, warmup)
        run = RunFolder(parent)
        return cls(run.read_optional("summary.json"), run.config, run.read_optional("environment.json"), warmup)


def hub_name(base: str) -> str | None:
    """Return the Hub name of a base as its user named it, or None if it is not on the Hub, as a folder here is not."""
    spec = MODELS.get(base.partition("@")[0])
    if spec is not None:
        return spec.hub if isinstance(spec, DownloadSpec) else None
    return base if base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists() else None


def make_card(config: AgentConfig, base: str, facts: RunFacts, *, merged: bool, repo: str = "", note: str = "") -> str:
    """Return the text of the card, metadata included.

    Args:
        config: The agent's configuration.
        base: Its base, as its user named it; empty if nobody knows.
        facts: How it was made.
        merged: Whether the folder holds a whole model.
        repo: Hub name it goes to, for the example.
        note: A line about its limits, from its maker.
    """
    from huggingface_hub import ModelCard

    parts = [_intro(base, merged, repo), _memory(config), _training(facts), _results(facts), _limits(config, note)]
    text = "\n\n".join(part for part in parts if part)
    return str(ModelCard(f"---\n{_metadata(base, facts, merged).to_yaml()}\n---\n\n{text}\n"))


def _metadata(base: str, facts: RunFacts, merged: bool) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    spec = MODELS.get(base.partition("@")[0])
    after = facts.summary.get("after") or {}
    data = str(facts.config.get("eval_data") or "")
    results = None
    if after.get("accuracy") is not None and data:
        names = ", ".join(Path(name.strip()).name for name in data.split(","))
        results = [EvalResult("question-answering", "custom", names, "accuracy", after["accuracy"])]
    return ModelCardData(
        base_model=hub_name(base) if base else None,
        license=spec.license.lower() if spec else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["memory", "agent", "tool-use", *([] if facts.warmup and not facts.summary else ["grpo"]), "memalpha"],
        model_name="memory agent" if results else None,
        eval_results=results,
    )


def _intro(base: str, merged: bool, repo: str) -> str:
    kind = "a whole model, adapter merged in" if merged else "a LoRA adapter"
    return "\n".join(
        [
            "# A memory agent",
            "",
            f"Reads text chunk by chunk and keeps a structured memory by calls (insert, update, delete). This is {kind}"
            + (f"; its base is `{base}`." if base else "; its base is not known."),
            "",
            "```python",
            "from memalpha import MemoryAgent",
            "",
            f'agent = MemoryAgent.load("{repo or "path/to/this/folder"}", store="memories.db")',
            'agent.add("Marta: I moved to Oslo.", time="2024-03-05", namespace="marta")',
            'print(agent.ask("What is the city of Marta?", namespace="marta"))',
            "```",
        ]
    )


def _memory(config: AgentConfig) -> str:
    schema = MemorySchema.load(config.schema)
    lines = [
        "## Memory",
        "",
        f"Schema `{schema.name}`, notation `{config.codec}`; chunks of at most {config.max_chunk_tokens} tokens, a view of "
        f"{config.view_tokens} tokens, completions of at most {config.max_completion_length}. `memalpha_agent.json` and the schema "
        "beside it fix the prompts: those of use are those of training.",
        "",
        "| section | kind | what belongs in it | limits |",
        "| --- | --- | --- | --- |",
    ]
    for section in schema.sections:
        limits = [f"{getattr(section, name)} {name.removeprefix('max_').replace('_', ' ')}"
                  for name in ("max_tokens", "max_entry_tokens", "max_entries") if getattr(section, name)]  # fmt: skip
        lines.append(f"| {section.name} | {section.kind} | {section.description} | {', '.join(limits) or 'none'} |")
    return "\n".join(lines)


def _training(facts: RunFacts) -> str:
    lines = ["## Training", ""]
    if facts.config:
        weights = {f.name: facts.config[f.name] for f in fields(RewardConfig) if f.name in facts.config}
        lines += _table(("option", "value"), [(name, _shown(facts.config[name])) for name in _TRAINING if name in facts.config])
        lines += ["", "Reward:", "", *_table(("part", "value"), [(name, _shown(value)) for name, value in weights.items()])]
        steps, seed = facts.summary.get("steps", "unknown"), facts.summary.get("seed", "unknown")
        code = facts.environment.get("code", "unknown")
        lines += ["", f"{steps} steps of GRPO, seed {seed}; {facts.environment.get('started', 'unknown')}, code {code}."]
        if command := facts.environment.get("command"):
            lines += ["", f"Made by `{shlex.join(['memalpha', *map(nameless, command[1:])])}`."]
    if facts.warmup:
        made = facts.warmup.get("warmup", {})
        lines += ["", f"Warm start: {facts.warmup.get('steps')} steps on {facts.warmup.get('demonstrations')} demonstrations from "
                  f"`{made.get('data')}` ({_shown(made.get('data_options'))}), seed {facts.warmup.get('seed')}."]  # fmt: skip
    return "\n".join(lines if len(lines) > 2 else [*lines, "Unknown: the folder was not in its run's folder when it was exported."])


def _results(facts: RunFacts) -> str:
    before, after, delta = (facts.summary.get(name) or {} for name in ("before", "after", "delta"))
    if not before or not after:
        return "## Results\n\nUnknown: the run kept no held-out evaluation."
    rows = [(name, _number(before.get(name)), _number(after.get(name))) for name in _MEASURES if name in after]
    rows += [(f"accuracy, {kind}", _number((before["kinds"].get(kind) or {}).get("accuracy")), _number(row["accuracy"]))
             for kind, row in (after.get("kinds") or {}).items()]  # fmt: skip
    sure = f"{_number(before.get('stderr'))} before, {_number(after.get('stderr'))} after"
    return "\n".join(
        [
            "## Results",
            "",
            f"On {after.get('n')} held-out instances; standard error of the accuracy {sure}. Paired difference in accuracy "
            f"{_number(delta.get('accuracy'))} ± {_number(delta.get('stderr'))} (n = {delta.get('n')}), one seed.",
            "",
            *_table(("held out", "before", "after"), rows),
        ]
    )


def _limits(config: AgentConfig, note: str) -> str:
    lines = [
        "## Limits",
        "",
        "* The numbers hold for data like those named above; nothing is known about others.",
        "* It may store what a text tells it to store, and delete what a text tells it to delete: treat what it reads as input "
        "from strangers. `memalpha poison` measures it.",
        f"* A text of more than {config.max_chunk_tokens} tokens is read in pieces, each without sight of the others.",
    ]
    return "\n".join([*lines, f"* {note}"] if note else lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _shown(value: Any) -> str:
    """A value as a cell; of an absolute path the last part alone: where a file lay is nobody's business."""
    return f"`{json.dumps(value)}`" if isinstance(value, dict | list) else nameless(str(value))


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


__all__ = ["RunFacts", "hub_name", "make_card"]
