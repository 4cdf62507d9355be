"""From users' feedback to a router: ``python feedback_log.py FOLDER`` writes a log, trains on it
and prints what is estimated.

The log is what a service would have: routes taken at random, how likely each was, what the user
said (1 or 0), the cost.
"""

import csv
import random
import sys
from pathlib import Path

from memalpha.cli import run

TOPICS = {
    "search": "What is the city of {}?",
    "count": "How many pets has {} now?",
    "ask": "Please find out whether {} agrees.",
}
COSTS = {"search": 0.1, "count": 0.1, "ask": 0.3}


def write_log(path: Path, n: int = 1500, seed: int = 0) -> None:
    """One row a question; half of all questions went to search."""
    chance, names = random.Random(seed), list(TOPICS)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("prompt", "route", "reward", "cost", "probability"))
        for number in range(n):
            topic, route = chance.choice(names), chance.choices(names, (0.5, 0.25, 0.25))[0]
            liked = float((route == topic) != (chance.random() < 0.1))
            table.writerow(
                (
                    TOPICS[topic].format(f"N{number}"),
                    route,
                    liked,
                    COSTS[route],
                    0.5 if route == "search" else 0.25,
                )
            )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_log(folder / "log.csv")
    rows = f"{{rows: {folder / 'log.csv'}, embedder: hashing}}"
    settings = {
        "task": "log",
        "task_options": rows,
        "kind": "team",
        "hidden": "[16]",
        "steps": "12000",
        "update_every": "384",
    }
    settings |= {"lr_actor": "0.01", "lr_critic": "0.01", "epochs": "4", "target_kl": "0"}
    (folder / "log.yaml").write_text(
        "".join(f"{name}: {value}\n" for name, value in settings.items())
    )
    sys.exit(
        run(
            [
                "router",
                "train",
                "--config",
                str(folder / "log.yaml"),
                "--output",
                str(folder / "run"),
                *sys.argv[2:],
            ]
        )
    )
