"""Export a trained agent as a self-contained folder with a model card: as an adapter, or merged
into a whole model.

The folder is written completely or not at all; it holds the agent's schema, no code, no pickles and
no secrets.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, MemAlphaError
from memalpha.files import read_object, replacing_folder, write_object
from memalpha.memory.schema import MemorySchema, Section, presets
from memalpha.models.adapters import (
    ADAPTER_FILES,
    ADAPTER_RECORD,
    TOKENIZER_FILES,
    adapter_keys,
    adapter_record,
    base_name,
    base_of,
    copy_files,
)
from memalpha.models.agent import find_agent, own_reader
from memalpha.models.policy import load_policy_model
from memalpha.models.registry import LICENSE, MODELS, hub_name
from memalpha.record.folder import RunFolder, mask_options, masked_command, nameless
from memalpha.rewards import RewardConfig
from memalpha.types import Chunk, JsonMapping

_WARMUP_RECORD = "memalpha_warmup.json"
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
)
_TOLERANCE = 1e-3  # relative to the largest logit; float32 rounding is about 1e-5


def export(
    trained: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    merge: bool = False,
    trust_tools: bool = False,
) -> Path:
    """Write an adapter, whole model or run folder ``trained`` as the new folder ``output``; nothing
    that is not its own.

    ``merge`` makes one float32 model of base (``model``, if not as the adapter says) and adapter;
    MemAlphaError if logits differ.
    ``trust_tools`` as in ``AgentConfig.load``.
    """
    source, _ = find_agent(trained)
    target = Path(output)
    if target.exists():
        raise InputError(f"{str(output)!r} exists already", expected="the name of a new folder")
    config = AgentConfig.load(source, trust_tools)
    whole = (source / "config.json").is_file()
    base = "" if whole else str(model or base_of(source)) if merge else base_name(source)
    if not whole:
        adapter_keys(source)
    elif not any(source.glob("*.safetensors")):
        raise InputError(
            f"{source} has no weights that can be read",
            expected="a whole model with *.safetensors beside its config.json",
        )
    facts = RunFacts.of(source)
    base = base or str(facts.config.get("model") or "")
    with replacing_folder(target) as draft:
        if merge and not whole:
            _merge(source, base, config, draft)
        else:
            copy_files(source, draft, _MODEL_FILES if whole else ADAPTER_FILES)
        reader = own_reader(source)
        if reader:
            copy_files(reader, draft / "reader", ADAPTER_FILES)
            write_object(draft / ADAPTER_RECORD, {**adapter_record(draft), "reader": "reader"})
        if not (whole or merge):
            if facts.warmup:
                write_object(draft / _WARMUP_RECORD, facts.warmup)
            path = draft / "adapter_config.json"
            name = hub_name(base) or read_object(path)["base_model_name_or_path"]
            write_object(path, {**read_object(path), "base_model_name_or_path": name})
        if config.schema in presets():  # a later version of the package changes nothing
            preset = resources.files("memalpha.memory") / "presets" / f"{config.schema}.yaml"
            config = replace(config, schema=str(preset))
        config.save(draft)
        (draft / "README.md").write_text(
            make_card(config, base, facts, merged=whole or merge), encoding="utf-8"
        )
        for path in draft.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def _merge(source: Path, base: str, config: AgentConfig, draft: Path) -> None:
    import torch

    @torch.no_grad()
    def logits(model: Any) -> Any:
        return model.eval()(input_ids=torch.tensor([ids], device=model.device)).logits[0].float()

    policy = load_policy_model(base, adapter=source)
    step = AgentStep(config, policy.tokenizer)
    memory = step.new_memory()
    ids = step.prompt(memory, step.new_retriever(memory), Chunk("Marta: I moved to Oslo.")).ids
    wanted = logits(policy.model)
    merged = policy.model.merge_and_unload()
    difference = float((logits(merged) - wanted).abs().max())
    if not difference <= _TOLERANCE * float(wanted.abs().max()):
        raise MemAlphaError(
            f"the merged model differs from base and adapter by {difference:.3g} logits",
            fix="leave --merge out, which exports the adapter alone",
        )
    merged.to(torch.float32).save_pretrained(draft)
    policy.tokenizer.save_pretrained(draft)


# ------------------------------------------------------------------------------------------------
# the model card
_TRAINING = (
    "adapter",
    "train_data",
    "train_options",
    "eval_data",
    "eval_options",
    "reader",
    "content_judge",
    "loss_type",
    "learning_rate",
)
_LIMITS = ("max_tokens", "max_entry_tokens", "max_entries")
_MEASURES = (
    "accuracy",
    "reward",
    "tool_success",
    "content",
    "compression",
    "memory_tokens",
    "input_tokens",
    "entries",
    "calls_per_instance",
    "update_share",
    "delete_share",
)


class RunFacts(NamedTuple):
    """Records of the run that made an agent, without secrets; empty where files are missing."""

    summary: JsonMapping
    config: JsonMapping
    environment: JsonMapping
    warmup: JsonMapping

    @classmethod
    def of(cls, folder: Path) -> RunFacts:
        """Read the records of an adapter's or model's folder; only a run's ``adapter`` folder takes
        those of the run.
        """
        warmup = read_object(folder / _WARMUP_RECORD) if (folder / _WARMUP_RECORD).is_file() else {}
        parent = folder.resolve().parent
        facts = cls({}, {}, {}, warmup)
        if folder.resolve().name == "adapter" and (parent / "config.yaml").is_file():
            run = RunFolder(parent)
            environment = run.read_optional("environment.json")
            environment["command"] = masked_command(environment.get("command") or [])
            facts = cls(run.read_optional("summary.json"), run.config, environment, warmup)
        return cls(*map(mask_options, facts))


def make_card(config: AgentConfig, base: str, facts: RunFacts, *, merged: bool) -> str:
    """Return the text of the model card with its metadata; ``base`` is empty if unknown."""
    from huggingface_hub import ModelCard
    from jinja2 import Environment

    before = facts.summary.get("before") or {}
    after = facts.summary.get("after") or {}
    schema = MemorySchema.load(config.schema)
    others = [name for name in after if name.startswith("reward_") and after[name] is not None]
    measures = [*_MEASURES, *others]
    results = [(name, before.get(name), after.get(name)) for name in measures if name in after]
    kinds_before = before.get("kinds") or {}
    for kind, row in (after.get("kinds") or {}).items():
        earlier = kinds_before.get(kind) or {}
        results.append((f"accuracy, {kind}", earlier.get("accuracy"), row["accuracy"]))
    command = facts.environment.get("command")
    environment = Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters |= {"shown": _show_value, "number": _number}
    template = (resources.files("memalpha.use") / "card.md.jinja").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        config=config,
        base=base,
        facts=facts,
        merged=merged,
        schema=schema,
        results=results,
        before=before,
        after=after,
        delta=facts.summary.get("delta") or {},
        sections=[(section, _limits_of(section)) for section in schema.sections],
        training=_given_options(facts.config, _TRAINING),
        reward=_given_options(facts.config, [each.name for each in fields(RewardConfig)]),
        command=shlex.join(["memalpha", *map(nameless, command[1:])]) if command else "",
    )
    return str(ModelCard(f"---\n{_metadata(base, facts, merged).to_yaml()}\n---\n\n{text}"))


def _given_options(config: JsonMapping, names: Sequence[str]) -> list[tuple[str, Any]]:
    return [(name, config[name]) for name in names if name in config]


def _limits_of(section: Section) -> str:
    limits = {name[4:].replace("_", " "): getattr(section, name) for name in _LIMITS}
    return ", ".join(f"{most} {what}" for what, most in limits.items() if most)


def _metadata(base: str, facts: RunFacts, merged: bool) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    registered = base.partition("@")[0] in MODELS
    after = facts.summary.get("after") or {}
    data = str(facts.config.get("eval_data") or "")
    results = None
    if after.get("accuracy") is not None and data:
        names = ", ".join(Path(name.strip()).name for name in data.split(","))
        results = [EvalResult("question-answering", "custom", names, "accuracy", after["accuracy"])]
    return ModelCardData(
        base_model=hub_name(base) if base else None,
        license=LICENSE.lower() if registered else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=[
            "memory",
            "agent",
            "tool-use",
            *([] if facts.warmup and not facts.summary else ["grpo"]),
            "memalpha",
        ],
        model_name="memory agent" if results else None,
        eval_results=results,
    )


def _show_value(value: Any) -> str:
    text = f"`{json.dumps(value)}`" if isinstance(value, dict | list) else nameless(str(value))
    return text.replace("|", "\\|")


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"
