"""Scores a trained reader on questions about sentences: F1, exact match, and "unknown" with and
without the answer.

    python scripts/reader_bars.py ADAPTER DATA [--questions 400] [--skip 200] >
    docs/results/reader.json

Each question is shown the sentence with its answer and two others that BM25 finds; then the same
without that sentence.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.data.teacher import TeacherConfig
from memalpha.models.policy import base_of, load_tokenizer
from memalpha.models.reader import trained_reader
from memalpha.qa.metrics import contains, exact_match, f1
from memalpha.qa.readers import UNKNOWN, reader_messages
from memalpha.record.folder import environment
from memalpha.training.readings import make_readings
from memalpha.types import Answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("adapter", help="folder of the reader")
    parser.add_argument("data", help="prepared SQuAD that it was not trained on")
    parser.add_argument("--questions", type=int, default=400, help="how many, drawn with seed 0")
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out as many of them first: those to choose by"
    )
    parser.add_argument("--dtype", default="float32", help="of the base's weights")
    known = parser.parse_args()
    config = AgentConfig(schema="facts", codec="compact", retrieve_k=3, reader_tokens=256)
    agent = AgentStep(config, load_tokenizer(base_of(known.adapter)))
    answer = trained_reader(known.adapter, dtype=known.dtype)
    instances, found, began = load_data(known.data, {}, 0), {}, time.time()
    golds = {question.text: question for instance in instances for question in instance.questions}
    for name, left_out in (("with", 0.0), ("without", 1.0)):
        readings = list(make_readings(instances, agent, 0, left_out, TeacherConfig()))
        some = [
            reading
            for reading in random.Random(0).sample(readings, len(readings))
            if (reading.answer != UNKNOWN) is (not left_out)
        ]
        some = some[known.skip : known.skip + known.questions]
        said = answer([reader_messages(reading.question, reading.passages) for reading in some])
        rows = list(zip(some, said, strict=True))
        found[name] = {
            "questions": len(rows),
            "unknown": sum(contains(text, UNKNOWN) for _, text in rows) / len(rows),
        }
        if not left_out:
            for metric in (f1, exact_match):
                scores = [metric(golds[reading.question], Answer(text)) for reading, text in rows]
                found[name][metric.__name__] = sum(scores) / len(rows)
    about = {
        "command": " ".join(["python scripts/reader_bars.py", *sys.argv[1:]]),
        "seconds": round(time.time() - began),
    }
    print(json.dumps({**found, **about, "environment": environment()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
