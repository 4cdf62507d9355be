"""Evaluate a policy without training it: the same options, agent, reader and rewards as a training run."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memalpha.agent.rollout import run_rollouts
from memalpha.errors import InputError
from memalpha.provenance import environment
from memalpha.runs import RunFolder, check_apart
from memalpha.training.build import build_parts
from memalpha.training.config import TrainArguments
from memalpha.training.opening import inputs
from memalpha.training.results import check_results, evaluate_instances, summarise
from memalpha.training.run import Report


def evaluate(arguments: TrainArguments, report: Report = lambda event, data: None) -> dict[str, Any]:
    """Evaluate the adapter the options name on their held-out instances; return the summary (also ``summary.json``).

    Raises:
        InputError: If an option, file, model or adapter does not fit, no held-out data are named, or they or the adapter lie in the
            run to be overwritten.
        TrainingAborted: If too many instances could not be scored; their rollouts are written all the same.
    """
    if not arguments.run.eval_data:
        raise InputError("eval_data is empty", expected="held-out instances", fix="add --eval_data")
    path = Path(str(arguments.grpo.output_dir))
    if RunFolder.check_free(path, overwrite=arguments.run.overwrite):
        check_apart(path, inputs(arguments))
    clock = time.time()
    report("load", {"what": f"{arguments.run.model} and {arguments.run.eval_data}"})
    parts = build_parts(arguments, training=False)
    config = {**asdict(arguments.run), **asdict(arguments.agent), **asdict(arguments.reward), **arguments.grpo.to_dict()}
    folder = RunFolder.create(path, config, overwrite=arguments.run.overwrite)
    folder.write_json("environment.json", environment())
    shown = {"name": "held out", "instances": len(parts.held_out)}
    found = evaluate_instances(
        parts.held_out,
        lambda instances, sampling, on_step: run_rollouts(instances, parts.agent, parts.generator, sampling, on_step=on_step),
        parts.agent,
        parts.scorer,
        lambda done, total: report("evaluate", {**shown, "done": done, "total": total}),
        parts.eval_temperature,
        arguments.grpo.seed,
    )
    folder.write_lines("held_out/rollouts.jsonl", [{"result": asdict(result), "rollout": rollout} for result, rollout in found])
    check_results(found, parts.scorer.max_masked_share)
    summary = {
        "model": arguments.run.model,
        "adapter": arguments.run.adapter,
        "seed": arguments.grpo.seed,
        "seconds": round(time.time() - clock, 1),
        **summarise([result for result, _ in found]),
    }
    folder.write_json("summary.json", summary)
    report("evaluated", {"name": "held out", **summary})
    return summary
