"""``memalpha launch``: two real processes on CPUs that are interrupted, killed or refused, and what
the launcher says of it."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from memalpha.cli import run
from memalpha.cli.launch import _complete, _failure, _first, _options
from memalpha.errors import InputError, TrainingAborted
from memalpha.signals import handle_signals
from memalpha.training.recording import StopOnSignal
from tests.helpers.runs_of_nano import (
    OPTIONS,
    ROOT,
    SHORT,
    assert_same_end,
    launched,
    processes_environment,
    train,
)

STEPS = 12
CONTINUE = "to continue from the last checkpoint, run the same command with --resume"
INTERRUPTED = (
    "interrupted; a training run continues from its last checkpoint with --resume, and an "
    "evaluation when the same command is run again\n"
)
GUIDE = (ROOT / "docs" / "guides" / "gpus.md").read_text()
SHOWN = re.search(r"`memalpha (launch --cpu --num_processes 2 train .*?)`", GUIDE)
COMMAND = [
    *shlex.split(SHOWN[1]),
    *("--warm_start_steps", "0", "--train_options", "{n: 16, split: train}", *SHORT),
    *("--per_device_train_batch_size", "16", "--max_steps", str(STEPS), "--save_steps", "1"),
]


def start(*command):
    """The command, in a session of its own: a signal reaches the launcher alone."""
    return subprocess.Popen(
        [sys.executable, "-m", "memalpha", *command],
        cwd=ROOT,
        env=processes_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(launcher, due, seconds=120):
    end = time.monotonic() + seconds
    while not due():
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.02)


def ranks_of(launcher):
    return psutil.Process(launcher.pid).children()


def trains(folder):
    metrics = folder / "metrics.jsonl"
    return lambda: metrics.is_file() and metrics.read_text().count("\n") >= 1


def checkpoints(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch") / "run"
    done = launched(*COMMAND[4:], "--output_dir", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_as_many_processes_train_as_the_command_says(whole_run):
    assert json.loads((whole_run / "environment.json").read_text())["world_size"] == 2
    assert len(list((whole_run / "trajectories").glob("step-*-rank-1.jsonl"))) == STEPS


def test_an_interrupted_run_says_so_once_and_resumes_to_the_same_end(whole_run, tmp_path):
    folder = tmp_path / "run"
    command = [*COMMAND, "--output_dir", str(folder), "--save_strategy", "no"]
    with start(*command) as launcher:
        wait_until(launcher, trains(folder))
        launcher.send_signal(signal.SIGINT)
        printed, said = launcher.communicate(timeout=60)
    (step,) = checkpoints(folder)
    assert 1 <= step < STEPS
    assert said.splitlines() == [
        "WARNING memalpha.training.recording: SIGINT received: the run is saved after this step; "
        "Ctrl-C again stops at once",
        f"stopped after step {step} of {STEPS}, saved as {folder / f'checkpoint-{step}'}",
        "  to continue: run the same command with --resume",
    ]
    assert launcher.returncode == 0 and "Traceback" not in printed
    done = launched(*COMMAND[4:], "--output_dir", str(folder), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_end(folder, whole_run, STEPS)


def test_a_second_interruption_stops_at_once(tmp_path):
    folder = tmp_path / "run"
    with start(*COMMAND, "--output_dir", str(folder)) as launcher:
        wait_until(launcher, trains(folder))
        ranks = ranks_of(launcher)
        for rank in ranks:
            rank.suspend()  # a step that does not end
        launcher.send_signal(signal.SIGINT)
        time.sleep(1.2)
        launcher.send_signal(signal.SIGINT)
        said = launcher.communicate(timeout=20)[1]
    assert (launcher.returncode, said) == (130, INTERRUPTED)
    assert len(ranks) == 2 and not any(rank.is_running() for rank in ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_before_training_says_so_once(tmp_path, number):
    folder = tmp_path / "run"
    with start(*COMMAND, "--output_dir", str(folder)) as launcher:
        wait_until(launcher, lambda: len(ranks_of(launcher)) == 2)
        time.sleep(2)  # the processes load
        launcher.send_signal(number)
        said = launcher.communicate(timeout=60)[1]
    assert (launcher.returncode, said) == (130, INTERRUPTED)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_is_named_once_and_the_others_stop(tmp_path, rank):
    folder = tmp_path / "run"
    with start(*COMMAND, "--output_dir", str(folder)) as launcher:
        wait_until(launcher, trains(folder))
        ranks = ranks_of(launcher)
        (victim,) = (each for each in ranks if each.environ()["RANK"] == str(rank))
        victim.kill()
        said = launcher.communicate(timeout=60)[1]
    assert said.splitlines() == [
        f"error: rank {rank} was ended by SIGKILL; the system does so when memory runs out",
        f"  to fix: {CONTINUE}",
    ]
    assert launcher.returncode == 1 and not any(each.is_running() for each in ranks)


def test_an_error_of_one_process_is_shown_once(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(
        "import os\n\ndef fail(rollout):\n"
        "    if os.environ['RANK'] == '1':\n        raise ValueError('a broken reward')\n"
        "    return 1.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [*COMMAND[4:], "--rewards", "{'broken:fail': 1.0}"]
    done = launched(*command, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("error:") == 1 and done.stderr.startswith("error: rank 1: ")
    assert "a broken reward" in done.stderr
    done = launched("--debug", *command, "--output_dir", str(tmp_path / "debug"))
    assert done.returncode == 1 and "in fail" in done.stderr and "Traceback" in done.stderr


def test_an_error_of_all_processes_is_shown_once(tmp_path):
    done = launched(*COMMAND[4:], "--learning_rates", "1", "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 1 and done.stderr.splitlines()[1:] == [
        "  expected: an option that exists, perhaps learning_rate, warm_start_learning_rate",
        "  to fix: memalpha train --options lists them all",
    ]
    assert "has no option 'learning_rates'" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "launch got no verb, such as train; see memalpha launch --help"),
        (
            ["--cpu", "--num_processes", "0", "train"],
            1,
            "error: num_processes is 0\n  expected: 1 or more",
        ),
        (["--cpu"], 2, "launch got no verb, such as train; see memalpha launch --help"),
        (
            ["--cpus", "2", "train"],
            2,
            "unrecognized arguments: --cpus; see memalpha launch --help",
        ),
        (
            ["serve", "--user", "me"],
            2,
            "launch starts train or warmup, not 'serve'; see memalpha launch --help",
        ),
        (
            ["--config_file", "ddq", "train"],
            1,
            "error: there is no configuration 'ddq'\n"
            "  expected: ddp, fsdp2 or zero3, or a path with a slash or a suffix, such as mine.yaml",
        ),
        (
            ["--config_file", "ddp.yaml", "train"],
            1,
            "error: there is no file 'ddp.yaml'\n  expected: a file, or one of ddp, fsdp2, zero3",
        ),
    ],
)
def test_a_wrong_command_is_one_clear_error(words, code, said, capsys):
    assert run(["launch", *words]) == code
    assert capsys.readouterr().err == f"{said}\n"


def completed(*words):
    options = _options(words)
    return options, _complete(options)


@pytest.fixture
def eight_processors(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("memalpha.cli.launch.processors", lambda: 8)
    monkeypatch.setattr("memalpha.cli.launch.quota", lambda: 6.5)


@pytest.mark.usefixtures("eight_processors")
def test_processes_on_cpus_share_the_processors(tmp_path):
    use_cpu = tmp_path / "cpus.yaml"
    use_cpu.write_text("distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 3\n")
    for words, threads in (
        (["--cpu", "--num_processes", "2"], 3),
        (["--config_file", str(use_cpu)], 2),
        (["--config_file", str(use_cpu), "--num_processes", "2"], 3),
        (["--cpu", "--num_processes", "9"], 1),
    ):
        options, environment = completed(*words, "train")
        assert environment["ACCELERATE_USE_CPU"] == "true", words
        assert (options.multi_gpu, options.cpu) == (True, False)
        assert options.num_cpu_threads_per_process == threads
    options, environment = completed("--cpu", "train")
    assert "ACCELERATE_USE_CPU" not in environment and not options.multi_gpu
    assert options.num_cpu_threads_per_process == 6


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
    with pytest.raises(InputError, match=r"2 processes need a device each.* is 1\n.*--cpu"):
        completed("--num_processes", "2", "train")
    options, environment = completed("--num_processes", "1", "train")
    assert not options.multi_gpu and "ACCELERATE_USE_CPU" not in environment
    options, _ = completed("--config_file", "ddp", "--num_processes", "1", "train")
    assert Path(options.config_file).samefile(ROOT / "configs" / "accelerate" / "ddp.yaml")


def failed(code, seconds, message=""):
    return SimpleNamespace(exitcode=code, timestamp=seconds, message=message)


def raised(seconds, message):
    return failed(1, seconds, {"message": message})


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ({0: raised(9, LOST), 1: failed(-9, 9)}, 1),
        ({0: raised(9, "DistBackendError: remote error"), 1: raised(9, "ValueError: no")}, 1),
        ({0: failed(-15, 9), 1: failed(3, 10)}, 1),
        ({0: failed(-9, 40), 1: raised(9, "ValueError: no")}, 1),
        ({0: raised(9, "InputError: no"), 1: raised(9, "InputError: no")}, 0),
        ({0: raised(9, LOST), 1: raised(8, LOST)}, 1),
    ],
)
def test_the_process_because_of_which_the_others_failed_is_named(failures, rank):
    assert _first(failures) == (rank, failures[rank])


def test_a_failure_says_what_happened_and_what_to_do():
    error = _failure(1, 1, {"message": "InputError: no data\n  expected: some"})
    assert str(error) == "rank 1: no data\n  expected: some"
    error = _failure(0, 1, {"message": "ValueError: no"})
    assert str(error) == (
        f"rank 0: ValueError: no\n  to fix: {CONTINUE}; --debug shows the traceback"
    )
    assert str(_failure(2, -11, "")) == f"rank 2 was ended by SIGSEGV\n  to fix: {CONTINUE}"
    assert isinstance(_failure(0, 3, ""), TrainingAborted)


@pytest.mark.parametrize(
    ("number", "torchrun", "main", "said"),
    [
        (signal.SIGINT, True, True, True),
        (signal.SIGINT, True, False, False),
        (signal.SIGTERM, False, True, True),
        (signal.SIGTERM, True, True, False),  # another process has failed
    ],
)
def test_the_main_process_alone_says_that_a_signal_came(
    monkeypatch, caplog, number, torchrun, main, said
):
    state = SimpleNamespace(is_main_process=main)
    monkeypatch.setattr("memalpha.training.recording.PartialState", lambda: state)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with handle_signals(StopOnSignal().handle):
        signal.raise_signal(number)
    name = signal.Signals(number).name
    assert (f"{name} received: the run is saved after this step" in caplog.text) is said


def rows(folder, name="before"):
    lines = (folder / "held_out" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(folder, *SHORT, "--max_steps", "1") == 0
    return folder / "adapter"


@pytest.mark.parametrize("instances", [1, 3])
def test_instances_that_do_not_divide_among_processes_are_measured_as_by_one(
    trained, tmp_path, instances
):
    """With one instance the second process has none. Without sampling both write the same."""
    options = [*OPTIONS, "--model", str(trained), "--warm_start_steps", "0", "--max_steps", "1"]
    options += ["--eval_temperature", "0", "--eval_instances", str(instances)]
    assert run(["train", *options, "--output_dir", str(tmp_path / "one")]) == 0
    halves = [*options, "--per_device_train_batch_size", "16"]
    done = launched("train", *halves, "--output_dir", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert len(rows(tmp_path / "two", "after")) == instances


def test_fewer_training_instances_than_groups_are_one_clear_error(tmp_path):
    few = ["--train_options", "{n: 3, split: train}", "--output_dir", str(tmp_path / "run")]
    done = launched(*COMMAND[4:], *few)
    said = re.fullmatch(r"error: rank [01]: (.*)\n  to fix: .*\n", done.stderr)
    assert done.returncode == 1 and said, done.stderr
    assert said[1] == "3 training instances are fewer than the 4 of one step"
