"""How often the memory of a dialogue says that it knows, for questions that it answers and for
questions that it does not.

    python scripts/measure_unknown.py LOCOMO.json [--agent FOLDER --reader FOLDER --every 3]

LOCOMO.json has two dialogues or more in LoCoMo's form. Four kinds of questions: ``answered`` (of
categories 1 to 4), ``adversarial`` (category 5: true of the other speaker), ``other`` (those of one
dialogue, asked of the memory of the next one) and ``renamed`` (the same, with the names of its
speakers). For each least nearness of the best hit the table says which share of each kind is known.
With a reader also: for each least probability of its answer, how many of the answers that it gives
are right (F1 of at least .5) and wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.cli import run
from memalpha.qa.metrics import word_f1, words
from memalpha.use.agent import MemoryAgent
from memalpha.use.passages import FOUND, nearness

KINDS = ("answered", "other", "renamed", "adversarial")
NEARNESS = [place / 100 for place in range(24, 54, 3)]
PROBABILITIES = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
RIGHT = 0.5  # least F1 of a right answer
ADVERSARIAL = 5


class Asked(NamedTuple):
    """A question to the memory of a user; ``answer`` is empty if the memory has none."""

    kind: str
    user: str
    text: str
    answer: str


def questions_of(dialogues: list[dict[str, Any]]) -> Iterator[Asked]:
    """Yield the questions to each memory."""
    names = [[each["conversation"][f"speaker_{side}"] for side in "ab"] for each in dialogues]
    for place, dialogue in enumerate(dialogues):
        following = (place + 1) % len(dialogues)
        for asked in dialogue["qa"]:
            text = asked["question"]
            if asked["category"] == ADVERSARIAL:
                yield Asked("adversarial", str(place), text, "")
                continue
            yield Asked("answered", str(place), text, str(asked["answer"]))
            yield Asked("other", str(following), text, "")
            for name, another in zip(names[place], names[following], strict=True):
                text = text.replace(name, another)
            yield Asked("renamed", str(following), text, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialogues", type=Path)
    parser.add_argument("--agent", help="folder of an agent: it asks the reader, too")
    parser.add_argument("--reader", help="folder of the reader")
    parser.add_argument("--every", type=int, default=1, help="take every n-th question")
    options = parser.parse_args()
    dialogues = json.loads(options.dialogues.read_text(encoding="utf-8"))
    asked = list(questions_of(dialogues))[:: options.every]
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/memories.db"
        for place, dialogue in enumerate(dialogues):
            file = Path(folder) / f"{place}.json"
            file.write_text(json.dumps([dialogue]), encoding="utf-8")
            run(["import", str(file), "--store", store, "--user", str(place)])
        with MemoryAgent.without_model(store=store) as agent:
            show_nearness(agent, asked)
        if options.agent:
            with MemoryAgent.load(options.agent, store=store, reader=options.reader) as agent:
                show_answers(agent, asked)


def show_nearness(agent: MemoryAgent, asked: list[Asked]) -> None:
    """Print the share of each kind of questions that is known, by the least nearness."""
    best = defaultdict(list)
    for each in asked:
        with agent.searching(each.user) as (_, retriever):
            hits = retriever.search(each.text, FOUND)
            best[each.kind].append(nearness(retriever, each.text, hits))
    print("least nearness", *(f"{kind} ({len(best[kind])})" for kind in KINDS), sep="\t")
    for least in NEARNESS:
        shares = [sum(s >= least for s in best[k]) / max(1, len(best[k])) for k in KINDS]
        print(f"{least:.2f}", *(f"{share:.3f}" for share in shares), sep="\t")


def show_answers(agent: MemoryAgent, asked: list[Asked]) -> None:
    """Print how many answers are given, right and wrong, by the least probability."""
    agent.reader.sure = 0.0  # type: ignore[attr-defined]  # every answer is given, and weighed
    given: list[tuple[float, bool]] = []
    for each in asked:
        reply = agent.ask(each.text, namespace=each.user)
        if reply.by_reader and reply.known:
            alike = word_f1(words(reply.text), words(each.answer))
            right = bool(each.answer) and alike >= RIGHT
            given.append((reply.probability or 0.0, right))
    print(f"least probability\tright\twrong\twrong of all {len(asked)}")
    for least in PROBABILITIES:
        counts = Counter(right for probability, right in given if probability >= least)
        share = f"{counts[False] / len(asked):.3f}"
        print(f"{least:.2f}", counts[True], counts[False], share, sep="\t")


if __name__ == "__main__":
    main()
