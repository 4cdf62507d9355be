"""Readers and judges that fail during real training runs: what is retried, what is masked, what
stops the run, by value.

The completions are written here, so that every reward and advantage can be worked out by hand:
rollout i of an instance keeps the first i words of each chunk. All else is the command line's own
run: model, trainer, update, run folder, clients and servers.
"""

import json
import math
import os
import re
import signal
import statistics
import threading
import time

import pytest

from memalpha.cli import run
from memalpha.qa.readers import NO_NOTES
from memalpha.record.folder import RunFolder
from memalpha.types import Chunk, Instance, Question
from tests.helpers.data_samples import write_instances
from tests.helpers.runs_of_nano import ROOT, launched
from tests.helpers.scripted import ScriptedGenerator
from tests.helpers.stub_server import Fault, StubServer, error

GROUP = 4
TEXTS = {
    "a": ("apple boat candle", "door engine feather"),
    "b": ("guitar hammer island", "jacket kettle ladder"),
}
SMALL = [
    "--config",
    str(ROOT / "configs" / "train" / "nano.yaml"),
    "--warm_start_steps",
    "0",
    "--eval_data",
    "",
    "--eval_options",
    "{}",
    "--train_options",
    "{}",
    "--per_device_train_batch_size",
    str(2 * GROUP),
    "--num_generations",
    str(GROUP),
    "--max_steps",
    "1",
    "--save_strategy",
    "no",
    "--reader",
    "endpoint",
    "--endpoint_model",
    "m",
    "--endpoint_backoff",
    "0.01",
    "--endpoint_retries",
    "2",
    "--endpoint_concurrency",
    "3",
]


def make_instance(name: str) -> Instance:
    words = " ".join(TEXTS[name]).split()
    return Instance(
        name,
        "test",
        tuple(map(Chunk, TEXTS[name])),
        tuple(Question(f"was {w} seen?", (w,), id=w) for w in words),
    )


class Keeper(ScriptedGenerator):
    """Rollout i of each group keeps the first i words of the chunk it reads."""

    def __init__(self, model, tokenizer, **options):
        super().__init__(self.say, tokenizer)

    def say(self, prompt):
        chunk = re.search(r"<chunk>\n(.*)\n</chunk>", prompt.messages[-1]["content"])[1]
        return "\n".join(f"+ {word}" for word in chunk.split()[: len(self.prompts) % GROUP]) or "."


def asked(body) -> str:
    return re.search(r"was (\w+) seen", body["messages"][-1]["content"])[1]


def notes(body) -> str:
    shown = body["messages"][-1]["content"].split("\n\nQuestion:")[0].removeprefix("Notes:\n")
    return shown.removeprefix("<memory>\n").removesuffix("\n</memory>")


def about_boat(body) -> bool:
    """Whether a rollout that kept "boat" (2 and 3 of a) is asked for it."""
    return asked(body) == "boat" and notes(body) != NO_NOTES


def written(body) -> str:
    return json.loads(body["messages"][-1]["content"])["after"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr("memalpha.training.build.HFGenerator", Keeper)
    return write_instances(tmp_path / "instances.jsonl", map(make_instance, TEXTS))


@pytest.fixture
def reader(chat_server):
    chat_server.reply = notes
    return chat_server


@pytest.fixture
def judge():
    server = StubServer()
    server.reply = lambda body: "yes"
    yield server
    server.close()


class Run:
    def __init__(self, folder):
        lines = [
            line
            for path in (folder / "trajectories").glob("*")
            for line in path.read_text().splitlines()
        ]
        self.rollouts = {
            (row["instance"], row["rollout"] % GROUP): row for row in map(json.loads, lines)
        }
        self.metrics = RunFolder(folder).metrics()

    def values(self, name):
        """A value of each chunk step, by (instance, rollout, chunk)."""
        return {
            (*key, step["chunk"]): step[name]
            for key, row in self.rollouts.items()
            for step in row["steps"]
        }

    def masked(self):
        return {key for key, total in self.values("total").items() if total is None}


def train(tmp_path, data, url, *more):
    code = run(
        [
            "train",
            *SMALL,
            "--train_data",
            str(data),
            "--output_dir",
            str(tmp_path / "run"),
            "--endpoint_url",
            url,
            *more,
        ]
    )
    return code, Run(tmp_path / "run")


def expected_totals(masked=(), content=lambda i: 0.0):
    """Accuracy i / 3 + .2 tool success + content of each chunk step, by hand; silence has neither
    of the latter."""
    steps = [(name, i, t) for name in TEXTS for i in range(GROUP) for t in range(2)]
    return {
        key: key[1] / 3 + (0.2 if key[1] else 0.0) + content(key[1])
        for key in steps
        if key not in masked
    }


def expected_advantages(totals):
    """(x - mean) / (std + 1e-4) over the scored rollouts of the same chunk, 0 for the masked."""
    found = {}
    for name in TEXTS:
        for t in range(2):
            group = {i: totals[name, i, t] for i in range(GROUP) if (name, i, t) in totals}
            mean, std = statistics.mean(group.values()), statistics.stdev(group.values())
            found |= {
                (name, i, t): (group[i] - mean) / (std + 1e-4) if i in group else 0.0
                for i in range(GROUP)
            }
    return found


def check_by_value(done, masked, **parts):
    totals = expected_totals(masked, **parts)
    assert done.masked() == set(masked)
    assert {
        key: total for key, total in done.values("total").items() if total is not None
    } == pytest.approx(totals)
    assert done.values("advantage") == pytest.approx(expected_advantages(totals))
    rollouts = {key[:2] for key in masked}
    (metrics,) = done.metrics
    assert metrics["memory/masked"] == pytest.approx(len(rollouts) / 8)
    assert metrics["memory/masked_chunks"] == pytest.approx(len(masked) / 16)
    assert math.isfinite(metrics["loss"])


# ------------------------------------------------------------------------------------------------
# readers
def test_a_reader_that_is_down_ends_the_run_with_one_message_that_names_it(
    tmp_path, data, reader, capsys
):
    reader.fault_for = lambda body: error(503, "no model is loaded")
    code, done = train(tmp_path, data, reader.url)
    said = capsys.readouterr().err
    assert code == 1 and said.count("error: ") == 1 and "Traceback" not in said
    assert "8 of 8 rollouts could not be scored, more than max_masked_share = 0.5" in said
    assert (
        f"first failure: {reader.url}/chat/completions: HTTP 503: no model is loaded (after 3 attempts)"
        in said
    )
    assert len(reader.bodies) <= 3 * 10  # 8 questions in a row and what was under way, of 48
    assert done.metrics == []  # nothing was trained
    records = [record for row in done.rollouts.values() for record in row["questions"]]
    assert len(records) == 48 and all(
        record["score"] is None and "HTTP 503" in record["error"] for record in records
    )
    assert set(done.values("total").values()) == {None}


FAULTS = {
    "server error": error(500, "worn out"),
    "refusal": error(400, "worn out: too long"),
    "silence": Fault(hang=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_question_that_fails_masks_its_rollout_and_no_other(tmp_path, data, reader, fault):
    reader.fault_for = lambda body: FAULTS[fault] if about_boat(body) else None
    code, done = train(
        tmp_path, data, reader.url, "--endpoint_timeout", "0.5" if fault == "silence" else "20"
    )
    assert code == 0
    check_by_value(done, {("a", i, t) for i in (2, 3) for t in range(2)})
    for (name, i), row in done.rollouts.items():
        for record in row["questions"]:
            if (name, record["answers"]) == ("a", ["boat"]) and i >= 2:
                assert (record["score"], record["answer"]) == (None, None)
                assert ("timed out" if fault == "silence" else "worn out") in record["error"]
            else:
                assert record["error"] is None and record["score"] == float(
                    record["answers"][0] in record["answer"]
                )
    assert sum(map(about_boat, reader.bodies)) == 2 * (1 if fault == "refusal" else 3)


@pytest.mark.parametrize("ahead", ["0", "1"])
def test_a_second_ctrl_c_ends_a_step_that_waits_for_a_dead_reader(
    tmp_path, data, reader, capsys, caplog, ahead
):
    """The first one lets the step finish, which may take all attempts; the second ends the run
    within two seconds."""
    sent = []

    def interrupt():
        while not reader.bodies:
            time.sleep(0.01)
        while "SIGINT" not in caplog.text:  # one that comes just before a wait does not end it
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        time.sleep(1.1)  # a repetition within a second of the first is ignored: the launcher's
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    reader.fault_for = lambda body: Fault(hang=True)
    helper = threading.Thread(target=interrupt)
    helper.start()
    code, done = train(
        tmp_path, data, reader.url, "--endpoint_timeout", "600", "--staleness", ahead
    )
    assert time.monotonic() - sent[0] < 2 and code == 130 and done.metrics == []
    helper.join()


# ------------------------------------------------------------------------------------------------
# judges
JUDGED = ["--content_judge", "endpoint", "--content_weight", "0.5", "--judge_model", "strict"]


def test_a_write_that_cannot_be_judged_masks_its_chunk_alone(
    tmp_path, data, reader, judge, monkeypatch
):
    monkeypatch.setenv("MEMALPHA_API_KEY", "for-the-reader")
    judge.fault_for = lambda body: error(500, "worn out") if written(body) == "boat" else None
    judge.reply = lambda body: (
        "no" if written(body) in ("candle", "feather", "island", "ladder") else "yes"
    )
    code, done = train(tmp_path, data, reader.url, *JUDGED, "--judge_url", judge.url)
    assert code == 0
    share = {
        0: 0.0,
        1: 1.0,
        2: 1.0,
        3: 2 / 3,
    }  # the third word of a chunk is judged not worth keeping
    check_by_value(done, {("a", 2, 0), ("a", 3, 0)}, content=lambda i: 0.5 * share[i])
    errors = {key: text for key, text in done.values("error").items() if text}
    assert errors.keys() == {("a", 2, 0), ("a", 3, 0)} and all(
        "HTTP 500: worn out" in text for text in errors.values()
    )
    rewards = done.values("reward")
    assert rewards["a", 3, 0] == {**rewards["a", 3, 1], "content": None}
    assert {body["model"] for body in judge.bodies} == {"strict"}
    assert all("Authorization" not in headers for headers in judge.headers)
    assert {headers["Authorization"] for headers in reader.headers} == {"Bearer for-the-reader"}


# ------------------------------------------------------------------------------------------------
# two processes
def test_a_failure_on_one_process_ends_both_with_its_message(tmp_path, reader):
    """Each process has one instance. All questions of b fail: half of all rollouts, all of one
    process and none of the other."""
    data = write_instances(tmp_path / "instances.jsonl", map(make_instance, TEXTS))
    words = set(" ".join(TEXTS["b"]).split())
    reader.fault_for = lambda body: error(400, "worn out") if asked(body) in words else None
    options = [
        *SMALL,
        "--per_device_train_batch_size",
        str(GROUP),
        "--train_data",
        str(data),
        "--endpoint_url",
        reader.url,
    ]
    done = launched(
        "train",
        *options,
        "--max_masked_share",
        "0.49",
        "--output_dir",
        str(tmp_path / "run"),
    )
    found = Run(tmp_path / "run")
    message = r"(?m)^error: rank \d: 4 of 8 rollouts could not be scored, .* = 0\.49\n  first failure: .*: worn out$"
    assert done.returncode == 1 and len(re.findall(message, done.stderr)) == 1, done.stderr[-3000:]
    assert len(found.rollouts) == 8 and {key[0] for key in found.masked()} == {"b"}
    assert found.metrics == []
