"""How many texts a second one agent reads for many clients, one model call a text or together.

    python scripts/bench_agent.py --trained data/adapters/smollm2-135m-warmup --clients 16 --texts 2

Each client is a thread with a namespace of its own and adds its texts one after the other, into a store on disk. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from memalpha.data.synthetic import generate
from memalpha.use.agent import MemoryAgent
from memalpha.use.trained import load_trained


def measure(trained: object, clients: int, texts: int, max_batch: int) -> dict[str, float]:
    step, generator, _ = trained
    chunks = [instance.chunks for instance in generate(clients, seed=3)]
    with (
        tempfile.TemporaryDirectory() as folder,
        MemoryAgent(step, generator, store=Path(folder) / "s.db", max_batch=max_batch) as agent,
    ):

        def client(number: int) -> int:
            added = [agent.add(chunk.text, chunk.time, namespace=f"user {number}") for chunk in chunks[number][:texts]]
            return sum(len(record.completion.ids) for each in added for record in each.steps)

        began = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            tokens = sum(pool.map(client, range(clients)))
        seconds = time.perf_counter() - began
    return {"max_batch": max_batch, "seconds": round(seconds, 2), "texts/s": round(clients * texts / seconds, 3), "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", default="data/adapters/smollm2-135m-warmup")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    given = parser.parse_args()
    trained = load_trained(given.trained)
    for max_batch in given.batches:
        print(json.dumps(measure(trained, given.clients, given.texts, max_batch)), flush=True)


if __name__ == "__main__":
    main()
