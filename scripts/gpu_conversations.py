"""GRPO on conversations, measured on one GPU; scripts/gpu_conversations.sh starts it.

Trains as configs/train/conversations.yaml says, compares the newest checkpoint with the warm start
and with the archive alone on data/trial, counts the faults of the rollouts by kind, and writes
DIR/conversations.json and DIR/conversations.md. The same command goes on where it stopped, also in
the training. Options that are not listed here are those of ``memalpha train``. Exit code 0: all of
it is written.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from memalpha import cli  # noqa: E402
from memalpha.data.load import load_data  # noqa: E402
from memalpha.files import write_object, write_whole  # noqa: E402
from memalpha.measure.summary import summarise_evaluation  # noqa: E402
from memalpha.measure.tables import Table, overall, pivot, set_texts  # noqa: E402
from memalpha.measure.view import mean, number, percent, sources_of  # noqa: E402
from memalpha.memory.schema import ARCHIVE, MemorySchema  # noqa: E402
from memalpha.qa.judges import FactContentJudge  # noqa: E402
from memalpha.qa.metrics import contains  # noqa: E402
from memalpha.record.folder import RunFolder, checkpoint_step, checkpoints_in  # noqa: E402
from memalpha.training.config import parse_train_arguments  # noqa: E402
from memalpha.types import (  # noqa: E402
    Chunk,
    Entry,
    Fact,
    FactAction,
    Operation,
    OperationKind,
    OperationResult,
    ResultCode,
    WriteRequest,
)

CONFIG = "configs/train/conversations.yaml"
SMALL = {
    "train_data": "natural",
    "train_options": "{n: 8, split: train, n_chunks: 4, p_change: 0.45, p_retract: 0.3}",
    "eval_instances": "1",
    "eval_strategy": "no",
    "per_device_train_batch_size": "8",
    "max_steps": "2",
    "save_steps": "1",
    "use_cpu": "true",
    "dtype": "auto",
    "bf16": "false",
}
TRIAL = "data/trial/conversations.jsonl"
CURVE = (
    "reward",
    "rewards/accuracy/mean",
    "rewards/immediate/mean",
    "rewards/content/mean",
    "rewards/tool/mean",
    "memory/calls_per_chunk",
    "memory/silent_chunks",
    "memory/update_share",
    "memory/delete_share",
    "frac_reward_zero_std",
    "step_time",
    "time/rollouts",
    "time/scoring",
)
SIDE = 10  # steps at the beginning and at the end whose faults are compared
PARTS = 10  # columns of the curve
KNOWN_CODES = ("applied", "unparsed", "unknown_id", "duplicate", "renewed")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="folder to write (runs/conversations)")
    parser.add_argument(
        "--max_minutes", type=float, help="stop the training at the end of a step after so long"
    )
    parser.add_argument("--small", action="store_true", help="two small steps on a CPU")
    known, more = parser.parse_known_args(arguments)
    folder = known.output or Path(
        "runs/conversations-small" if known.small else "runs/conversations"
    )
    folder = folder.resolve()
    os.chdir(ROOT)
    options = SMALL if known.small else {}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    words = ["--config", CONFIG, *words, *more, "--output_dir", str(folder / "train")]
    if code := train(folder / "train", words, known.max_minutes):
        return code
    if code := ask(folder, instances=2 if known.small else 0):
        return code
    write(folder, words)
    print(f"gpu_conversations: {folder / 'conversations.md'}")
    return 0


# ------------------------------------------------------------------------------------------------
# training, and the trial
def train(run: Path, words: list[str], minutes: float | None) -> int:
    """Train to the last step, or until the time is over; return the exit code."""
    begun = (run / "config.yaml").is_file()
    steps = parse_train_arguments(words).trainer.max_steps
    if begun and RunFolder(run).summary.get("steps", 0) >= steps:
        return 0
    with stopping_after(minutes) as stopped:
        code = cli.run(["train", *words, *(["--resume"] if begun else [])])
    return 0 if stopped.is_set() and checkpoints_in(run) else code


@contextmanager
def stopping_after(minutes: float | None) -> Iterator[threading.Event]:
    """Stop a training in the block as Ctrl-C does, after so many minutes; the event tells of it.

    The signal waits until the training handles it: before, it would break off a held-out
    evaluation.
    """
    stopped, over = threading.Event(), threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def wait() -> None:
        late = not over.wait(60 * minutes) if minutes is not None else False
        while late and signal.getsignal(signal.SIGINT) == before:
            late = not over.wait(0.5)
        if late:
            stopped.set()
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield stopped
    finally:
        over.set()


def ask(folder: Path, instances: int) -> int:
    """Evaluate the newest checkpoint, the warm start and the archive on the trial; return the exit
    code. A folder for each checkpoint, all in one evaluation: differences are paired."""
    config = RunFolder(folder / "train").config
    checkpoint = checkpoints_in(folder / "train")[-1]
    agent = {"kind": "agent", "archive": True}
    systems = [
        "archive",
        {**agent, "name": "trained", "adapter": str(checkpoint)},
        {**agent, "name": "warm start", "adapter": config["adapter"]},  # the last is the reference
    ]
    options = {
        "config": "configs/evaluate/natural.yaml",
        "model": config["model"],
        "dtype": config["dtype"],
        "sets": json.dumps([{"name": "trial", "data": TRIAL, "instances": instances}]),
        "systems": json.dumps(systems),
        "readers": "[recall]",
        "output_dir": str(trial(folder)),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return cli.run(["evaluate", *words])


def trial(folder: Path) -> Path:
    """The evaluation of the newest checkpoint."""
    step = checkpoint_step(checkpoints_in(folder / "train")[-1])
    return folder / f"trial-{step}"


# ------------------------------------------------------------------------------------------------
# faults
def count_faults(
    rollouts: Iterable[Mapping[str, Any]],
    facts: Mapping[str, Sequence[Fact]],
    schema: MemorySchema,
) -> dict[str, tuple[int, int]]:
    """Return (faults, cases) by kind, of rollouts as a run records them and of the facts of their
    instances."""
    judge = FactContentJudge(facts, schema)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def case(kind: str, fault: bool) -> None:
        counts[kind][0] += fault
        counts[kind][1] += 1

    for rollout in rollouts:
        for step, before, after in memories(rollout):
            results = step["results"]
            here = [fact for fact in facts[rollout["instance"]] if fact.chunk == step["chunk"]]
            case("completion: cut off", step["stop"] == "length")
            if here:
                case("chunk with facts: nothing is written", not results)
            else:
                case("chunk without facts: something is written", bool(results))
            for code in (result["code"] for result in results):
                case("call: is none", code == "unparsed")
                case("call: names no entry", code == "unknown_id")
                case("call: repeats an entry", code in ("duplicate", "renewed"))
                case("call: fails for another reason", code not in KNOWN_CODES)
            request = request_of(rollout["instance"], step, after)
            verdicts = judge.judge([request])[0]
            for result, right in zip(request.results, verdicts, strict=True):
                case(f"write: wrong {result.operation.kind}", not right)
            for fact in here:
                ended = fact.value if fact.action is FactAction.RETRACT else fact.previous
                if fact.action is not FactAction.RETRACT:
                    noted = says(after, fact.subject, fact.value)
                    case(f"fact of a {fact.action}: not noted", not noted)
                if ended and says(before, fact.subject, ended):
                    stays = says(after, fact.subject, ended)
                    case(f"fact ended by a {fact.action}: still there", stays)
    return {kind: (faults, of) for kind, (faults, of) in sorted(counts.items())}


def memories(
    rollout: Mapping[str, Any],
) -> list[tuple[Mapping[str, Any], list[Entry], list[Entry]]]:
    """Return each step with the entries before and after it, undone from the final memory."""
    entries = {
        entry["id"]: entry for entry in rollout["memory"] if entry["section"] != ARCHIVE.name
    }
    found = []
    for step in reversed(rollout["steps"]):
        after = list(entries.values())
        for change in reversed(step["changes"]):
            name = (change["after"] or change["before"])["id"]
            entries.pop(name, None)
            if change["before"]:
                entries[name] = change["before"]
        found.append((step, list(map(entry_of, entries.values())), list(map(entry_of, after))))
    return found[::-1]


def request_of(instance: str, step: Mapping[str, Any], after: Sequence[Entry]) -> WriteRequest:
    """Return what the judge was asked about a step: the writes that took effect."""
    changes = iter(step["changes"])
    results, before = [], []
    for result in step["results"]:
        changed = next(changes) if result["code"] in ("applied", "renewed") else None
        if changed and result["code"] == "applied":
            kind = OperationKind(result["operation"]["kind"])
            operation = Operation(**{**result["operation"], "kind": kind})
            results.append(OperationResult(True, ResultCode.APPLIED, "", operation))
            before.append(changed["before"] and entry_of(changed["before"]))
    chunk = Chunk(step["text"], step["time"])
    return WriteRequest(instance, step["chunk"], chunk, tuple(results), tuple(before), tuple(after))


def entry_of(entry: Mapping[str, Any]) -> Entry:
    return Entry(**entry)


def says(entries: Sequence[Entry], subject: str, value: str) -> bool:
    texts = [entry.content for entry in entries]
    return any(contains(text, subject) and contains(text, value) for text in texts)


# ------------------------------------------------------------------------------------------------
# the record
def write(folder: Path, words: Sequence[str]) -> None:
    """Write the record and the page of what there is."""
    run = RunFolder(folder / "train")
    evaluation = RunFolder(trial(folder))
    options = parse_train_arguments(words)
    seed = options.trainer.seed
    instances = load_data(options.run.train_data, options.run.train_options, seed)
    facts = {instance.id: instance.facts for instance in instances}
    schema = MemorySchema.load(options.agent.schema)
    sources = [source for source in sources_of(run) if source.step]
    side = min(SIDE, max(1, len(sources) // 2))
    sides = {f"first {side} steps": sources[:side], f"last {side} steps": sources[-side:]}
    faults = {
        name: count_faults(chain.from_iterable(s.rollouts(run) for s in own), facts, schema)
        for name, own in sides.items()
    }
    summary = summarise_evaluation(evaluation.path)
    metrics = run.metrics()
    record = {
        "steps": len(sources),
        "of": options.trainer.max_steps,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "environment": run.read_json("environment.json"),
        "config": run.config,
        "curve": [row for row in metrics if "reward" in row],
        "dev": [row for row in metrics if "eval_accuracy" in row],
        "dev_before_and_after": run.summary,
        "trial": summary.to_json(),
        "trial_config": evaluation.config,
        "faults": faults,
    }
    write_object(folder / "conversations.json", record)
    kinds = set_texts(summary.sets[0], summary.reference)["by kind of question"]
    dev = [
        {"step": str(row["step"]), "accuracy": number(row["eval_accuracy"])}
        for row in record["dev"]
    ]
    page = {
        f"# GRPO on conversations, {record['steps']} of {record['of']} steps": f"Device: "
        f"{record['device']}. In square brackets are 95 % intervals over conversations; "
        "differences are paired.",
        "## Right answers on data/trial over the archive": overall(summary, "recall"),
        "### By kind of question": pivot("system", kinds),
        "## Curve: means of equal parts of the steps": curve(record["curve"]),
        "## Curve: held-out conversations, data/written/dev.jsonl": Table.of(dev),
        "## Faults of the rollouts": fault_table(faults),
    }
    parts = [
        f"{head}\n\n{part.markdown() if isinstance(part, Table) else part}"
        for head, part in page.items()
        if not isinstance(part, Table) or part.rows  # --small validates nothing in between
    ]
    write_whole(folder / "conversations.md", "\n\n".join(parts) + "\n")


def curve(rows: Sequence[Mapping[str, Any]]) -> Table:
    size = -(-len(rows) // PARTS)
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    texts = []
    for part in parts:
        steps = f"{part[0]['step']}-{part[-1]['step']}"
        texts += [(name, steps, number(mean([row.get(name) for row in part]))) for name in CURVE]
    return pivot("mean", texts)


def fault_table(faults: Mapping[str, Mapping[str, tuple[int, int]]]) -> Table:
    texts = []
    for side, counts in faults.items():
        for kind, (count, of) in counts.items():
            texts.append((kind, side, f"{percent(count / of)} ({count} of {of})"))
    return pivot("fault", sorted(texts, key=itemgetter(0)))


if __name__ == "__main__":
    sys.exit(main())
