"""How many texts a second one agent reads for many clients, one model call a text or together.

Each client is a thread with a namespace of its own and adds its texts one after the other, into a store on disk.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def add_arguments(parser: Any) -> None:
    parser.add_argument("--trained", default="data/adapters/smollm2-135m-warmup", help="adapter or run folder")
    parser.add_argument("--clients", type=int, default=16, help="threads (default 16)")
    parser.add_argument("--texts", type=int, default=2, help="texts a client adds (default 2)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="most texts of a model call (default 1 32)")


def trained(path: str) -> tuple[Any, Any]:
    """Step and generator of a trained agent."""
    from memalpha.use.agent import load_trained

    step, generator, _ = load_trained(path)
    return step, generator


def nano() -> tuple[Any, Any]:
    """Step and generator of an untrained agent of seconds."""
    from memalpha.agent.config import AgentConfig
    from memalpha.agent.step import AgentStep
    from memalpha.generation.hf import HFGenerator
    from memalpha.models.policy import load_policy_model

    model, tokenizer = load_policy_model("nano")
    return AgentStep(AgentConfig(schema="facts", codec="compact", max_completion_length=8), tokenizer), HFGenerator(
        model.eval(), tokenizer
    )


def run(options: Any) -> dict[str, Any]:
    """Measure each size of a batch once."""
    from memalpha.data.synthetic import generate
    from memalpha.use.agent import MemoryAgent

    clients, texts = (2, 1) if options.quick else (options.clients, options.texts)
    step, generator = nano() if options.quick else trained(options.trained)
    chunks = [instance.chunks for instance in generate(clients, seed=3)]

    def measure(max_batch: int) -> dict[str, Any]:
        def client(number: int) -> int:
            added = [agent.add(chunk.text, chunk.time, namespace=f"user {number}") for chunk in chunks[number][:texts]]
            return sum(len(record.completion.ids) for each in added for record in each.steps)

        with MemoryAgent(step, generator, store=Path(options.folder) / f"{max_batch}.db", max_batch=max_batch) as agent:
            began = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                tokens = sum(pool.map(client, range(clients)))
            seconds = time.perf_counter() - began
        return {"max_batch": max_batch, "seconds": seconds, "texts_s": clients * texts / seconds, "tokens": tokens}

    rows = [measure(max_batch) for max_batch in options.batches]
    ratios = {f"batch_{row['max_batch']}": row["texts_s"] / rows[0]["texts_s"] for row in rows[1:]}
    return {"name": "agent", "ratios": ratios, "details": {"sizes": {"clients": clients, "texts": texts}, "table": rows}}
