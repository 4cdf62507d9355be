"""Measures the GPU numbers of docs/performance.md in ten minutes on a rented GPU;
scripts/gpu_session.sh starts it.

Parts, in order of worth: ``decode`` and ``decode_4b`` (a call of the generator at the shapes of
SmolLM2-135M and Qwen3-4B, captured and plain, and whether both draw the same tokens), ``grpo`` (ten
steps of the quickstart), ``update`` (Qwen3-4B's shape, by variant), ``gradient`` (how far each is
from float32), ``grpo_vllm`` (rollouts by vLLM in the process), ``grpo_float16``, ``grpo_compiled``.
Each is written to DIR/gpu_session.json as it ends. A second call goes on with those that are
missing; those that failed or were cut off come last. ``--against`` names an older checkout, timed
beside. On a CPU all is small.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
SHAPES = {
    "135m": {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    },
    "4b": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "small": {
        "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
}  # fmt: skip
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


class Session:
    """What is measured, written as it is found."""

    def __init__(self, folder: Path, against: Path | None = None) -> None:
        self.folder = folder
        self.against = against
        self.file = folder / "gpu_session.json"
        self.found: dict[str, Any] = {"parts": {}}
        if self.file.exists():
            self.found = json.loads(self.file.read_text())
        self.found["device"] = torch.cuda.get_device_name() if CUDA else "CPU"
        self.found["torch"] = torch.__version__
        self.part = ""
        self.start = time.perf_counter()

    def say(self, name: str, **values: Any) -> None:
        rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}
        row = {"name": name, **rounded, "at": round(time.perf_counter() - self.start, 1)}
        print(json.dumps({"part": self.part, **row}), flush=True)
        self.found["parts"].setdefault(self.part, []).append(row)
        self.write()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.found, indent=1) + "\n")

    def run(self, name: str, measure: Callable[[Session], None]) -> None:
        if name in self.found.get("done", []):
            return
        self.part = name
        self.found["parts"][name] = []  # begun: it comes last if this process dies of it
        self.write()
        try:
            measure(self)
        except Exception as error:  # noqa: BLE001 - the other parts go on
            traceback.print_exc()
            self.say("failed", error=f"{type(error).__name__}: {error}"[:500])
        else:
            self.found.setdefault("done", []).append(name)
        self.write()
        free()


def free() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def seconds(call: Callable[[], object], times: int = 2) -> tuple[float, float]:
    """(least of ``times`` calls, first call)."""
    taken = []
    for _ in range(1 + times):
        began = time.perf_counter()
        call()
        if CUDA:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken[1:]), taken[0]


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if CUDA else 0.0


@contextmanager
def checkout(folder: Path | None) -> Iterator[None]:
    """Import memalpha from another folder in the block; this one's is back afterwards."""
    if folder is None:
        yield
        return
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if of_memalpha(name)}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if of_memalpha(name)]:
            del sys.modules[name]
        sys.modules.update(ours)


def of_memalpha(name: str) -> bool:
    return name.partition(".")[0] == "memalpha"


def policy(shape: str, rank: int, kind: torch.dtype, layers: int = 0) -> Any:
    """A model of random weights with LoRA on all linear layers, whose B is not zero."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict(SHAPES[shape])
    sizes["num_hidden_layers"] = layers or sizes["num_hidden_layers"]
    config = AutoConfig.for_model(
        sizes.pop("model_type"), **sizes, tie_word_embeddings=True, max_position_embeddings=8192
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        base = AutoModelForCausalLM.from_config(config, dtype=kind)
    lora = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def draw_ids(vocabulary: int, seed: int = 0) -> Callable[[int], list[int]]:
    numbers = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(3, vocabulary, (count,), generator=numbers).tolist()

    return ids


# ------------------------------------------------------------------------------------------------
# decode


def decode(session: Session) -> None:
    cases = [("135m", 64, 200, 60, 48), ("135m", 256, 200, 60, 48)]
    for shape, rows, shared, own, new in cases if CUDA else [("small", 8, 20, 8, 20)]:
        decode_case(session, shape, rows, shared, own, new)


def decode_4b(session: Session) -> None:
    for case in (("4b", 64, 1867, 600, 64),) if CUDA else (("small", 8, 40, 8, 4),):
        decode_case(session, *case)


def decode_case(session: Session, shape: str, rows: int, shared: int, own: int, new: int) -> None:
    kind = torch.bfloat16 if CUDA else torch.float32
    ids = draw_ids(SHAPES[shape]["vocab_size"])
    given = []
    for _ in range(rows // 8):
        common = ids(shared)
        given += [(common + ids(own), shared) for _ in range(8)]
    variants = {"captured": None, "plain": None}
    if session.against and rows <= 64 and shape != "4b":
        variants["older"] = session.against
    drawn = {}
    for name, folder in variants.items():
        with checkout(folder):
            free()
            draw = drawing(policy(shape, 16, kind), given, rows, plain=name == "plain")
            taken, first = seconds(partial(draw, new), 1 if folder else 3)
            drawn[name] = draw(new)
            short, _ = seconds(partial(draw, 8), 1)
            memory = peak()
            session.say(
                f"{shape} {rows} rows x {new}, {name}",
                seconds=taken,
                first=first,
                tokens_s=rows * new / taken,
                ms_token=1000 * (taken - short) / (new - 8) if new > 8 else None,
                of_8_tokens=short,
                GB=memory,
            )
            if CUDA and rows == 64 and name == "captured":
                session.say(f"{shape} {rows} rows: kernels", **kernels(partial(draw, new)))
            del draw
    for name in set(drawn) - {"captured"}:
        pairs = list(zip(drawn["captured"], drawn[name], strict=True))
        apart = [
            abs(x - y) for a, b in pairs if a.ids == b.ids
            for x, y in zip(a.logprobs, b.logprobs, strict=True)
        ]  # fmt: skip
        session.say(
            f"{shape} {rows} rows, captured against {name}",
            rows=rows,
            equal=sum(a.ids == b.ids for a, b in pairs),
            most_apart=max(apart, default=None),
        )


def drawing(model: Any, given: Sequence[Any], rows: int, *, plain: bool) -> Any:
    """What draws so many tokens for each row, by the checkout in use."""
    hf = importlib.import_module("memalpha.generation.hf")
    kinds = importlib.import_module("memalpha.types")
    prepare = importlib.import_module("memalpha.update.prepare")
    prepare.prepare_policy(model, trained=False)
    tokenizer = SimpleNamespace(decode=no_text, eos_token_id=None, added_tokens_decoder={})
    endless = type("Endless", (hf.HFGenerator,), {"end_ids": frozenset()})
    generator = endless(model, tokenizer, max_batch=rows, merge_adapters=False, logprobs=True)
    if plain:
        generator._graphs._capture = itself
    prompts = [kinds.Prompt((), tuple(ids), shared) for ids, shared in given]

    def draw(new: int) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
            return generator.generate(prompts, kinds.Sampling(new, 1.0, seed=1))

    return draw


def never(*_: Any) -> bool:
    return False


def itself(unit: Any) -> Any:
    return unit  # a call of it in the place of a replay


def no_text(ids: Sequence[int], **_: Any) -> str:
    return ""


# ------------------------------------------------------------------------------------------------
# update


UPDATES: dict[str, dict[str, Any]] = {
    "older": {},
    "plain": {"flash": False},
    "flash": {},
    "compiled": {"compiled": True},
    "compiled, checkpointing": {"compiled": True, "rows": 8},
}


def update(session: Session) -> None:
    """One group of rows of 1,867 shared and 1,000 own tokens, 400 of them completion."""
    from benchmarks.update import flops

    from memalpha.update.logps import CompletionRow

    shape = "4b" if CUDA else "small"
    for name, how in UPDATES.items():
        if name == "older" and not session.against:
            continue
        with checkout(session.against if name == "older" else None):
            free()
            model = policy(shape, 32, torch.bfloat16)
            rows = update_rows(shape, how.get("rows", 4))
            step = updating(model, rows, **how)
            taken, first = seconds(step, 4)
        work = flops(model, [CompletionRow(*row) for row in rows], len(rows))["total"]
        rate = work / taken / 1e12
        session.say(f"{shape} {name}", seconds=taken, first=first, tflops=rate, GB=peak())
        if CUDA and name in ("flash", "compiled"):
            session.say(f"{shape} {name}: kernels", **kernels(step))
        del model, step  # or the next model's memory would be counted beside this one's


def gradient(session: Session) -> None:
    """How far gradients in bfloat16 are from that of the same weights in float32, four layers."""
    shape = "4b" if CUDA else "small"
    rows = update_rows(shape, 4)
    model = policy(shape, 32, torch.bfloat16, layers=4).float()
    expected = gradient_of(model, updating(model, rows, flash=False, casts=False))
    for name, how in UPDATES.items():
        if "rows" in how or (name == "older" and not session.against):
            continue
        with checkout(session.against if name == "older" else None):
            free()
            model = policy(shape, 32, torch.bfloat16, layers=4)
            found = gradient_of(model, updating(model, rows, **how))
        apart = float((found - expected).norm() / expected.norm())
        session.say(f"{shape}, 4 layers, {name}", from_float32=apart)


def update_rows(shape: str, count: int) -> list[tuple[list[int], list[int], int]]:
    """(prompt ids, completion ids, shared) of each row."""
    shared, own, completion = (1867, 600, 400) if shape == "4b" else (40, 20, 12)
    ids = draw_ids(SHAPES[shape]["vocab_size"])
    common = ids(shared)
    return [(common + ids(own), ids(completion), shared) for _ in range(count)]


def updating(
    model: Any,
    given: Sequence[Any],
    *,
    flash: bool = True,
    compiled: bool = False,
    casts: bool = True,
    rows: int = 4,
) -> Callable[[], None]:
    """A forward and backward, by the checkout in use; more than four rows need checkpointing."""
    prepare = importlib.import_module("memalpha.update.prepare")
    logps = importlib.import_module("memalpha.update.logps")
    attention = sys.modules.get("memalpha.update.attention")
    if attention:
        real = vars(attention).setdefault("really_runs_flash", attention.runs_flash)
        attention.runs_flash = real if flash else never
    prepare.prepare_policy(model, **({"compiled": True} if compiled else {}))
    model.train()
    if rows > 4:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    packable = [logps.CompletionRow(*row) for row in given]
    count = sum(len(row.completion_ids) for row in packable)
    weights = torch.randn(count, generator=torch.Generator().manual_seed(3)).to(DEVICE)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=casts):
            values = [of_row.logps for of_row in logps.packed_logps(model, packable)]
        (torch.cat(values) * weights).sum().backward()

    return step


def gradient_of(model: Any, step: Callable[[], None]) -> torch.Tensor:
    step()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def kernels(call: Callable[[], object]) -> dict[str, Any]:
    """Seconds on the GPU by kernel, the ten longest."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    sums: dict[str, float] = {}
    count = 0
    for event in seen.key_averages():
        if event.device_type == DeviceType.CUDA:
            sums[event.key[:70]] = event.self_device_time_total / 1e6
            count += event.count
    longest = sorted(sums, key=sums.__getitem__, reverse=True)[:16]
    return {"kernels": count, "all": sum(sums.values()), **{k: round(sums[k], 4) for k in longest}}


# ------------------------------------------------------------------------------------------------
# real training


def grpo(session: Session) -> None:
    """Ten steps of the quickstart's form, 64 rollouts each, on SmolLM2-135M in bfloat16."""
    train(session, "bfloat16", 10, compile="false")


def grpo_compiled(session: Session) -> None:
    train(session, "compiled", 10, compile="true")


def grpo_float16(session: Session) -> None:
    types = {"dtype": "float16", "bf16": "false", "fp16": "true"} if CUDA else {}
    train(session, "float16", 10, compile="false", **types)


def grpo_vllm(session: Session) -> None:
    """The same with rollouts by vLLM in the process, which loads each step's adapter."""
    if importlib.util.find_spec("vllm") is None:
        session.say("not measured", why="vllm is not installed: pip install 'memalpha[vllm]'")
        return
    train(session, "vllm", 10, compile="false", generator="vllm")


def train(session: Session, name: str, steps: int, **more: str) -> None:
    import gpu_check

    from memalpha import cli

    options = dict(gpu_check.GPU_OPTIONS if CUDA else gpu_check.CPU_OPTIONS)
    if CUDA:
        options |= {"rows_per_forward": "64", "generation_rows": "64"}
    options |= {"max_steps": str(steps if CUDA else 2), **more}
    run = session.folder / name
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    began = time.perf_counter()
    code = cli.run(["train", *words, "--output_dir", str(run), "--overwrite"])
    if code:
        raise RuntimeError(f"memalpha train ended with code {code}")
    session.say("run", code=code, seconds=time.perf_counter() - began, GB=peak())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for metric in ("step_time", "time/rollouts", "time/scoring", "time/logps", "skipped"):
        session.say(metric, by_step=[round(row[metric], 3) for row in rows])
    summary = json.loads((run / "summary.json").read_text())
    gap = "sampling/sampling_logp_difference/mean"
    session.say(
        "accuracy",
        before=summary["before"]["accuracy"],
        after=summary["after"]["accuracy"],
        reward=[round(row["reward"], 3) for row in rows],
        apart=[round(row[gap], 5) for row in rows],
    )


PARTS = {
    "decode": decode,
    "grpo": grpo,
    "update": update,
    "gradient": gradient,
    "decode_4b": decode_4b,
    "grpo_vllm": grpo_vllm,
    "grpo_float16": grpo_float16,
    "grpo_compiled": grpo_compiled,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_session"))
    parser.add_argument("--against", type=Path, help="an older checkout, timed beside")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    known = parser.parse_args(arguments)
    against = known.against and known.against.resolve()
    session = Session(known.output.resolve(), against)
    for name in sorted(known.only, key=lambda name: name in session.found["parts"]):
        session.run(name, PARTS[name])
    missing = [name for name in known.only if name not in session.found.get("done", [])]
    print(f"gpu_session: {session.file}; not done: {', '.join(missing) or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
