"""Runs that are killed, stopped or damaged at any moment end bitwise where the undisturbed run
ends."""

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.cli import run
from memalpha.data.load import load_data
from memalpha.data.rows import instance_to_json
from memalpha.errors import RunFolderError
from memalpha.files import write_lines
from memalpha.generation.hf import HFGenerator
from memalpha.models import load_policy_model
from memalpha.record.folder import RunFolder
from memalpha.record.lock import LOCK_FILE
from memalpha.record.rows import InstanceRow
from memalpha.training.checkpoints import SEAL, check_weights, find_damage
from memalpha.training.rows import UpdateBatch, padding_row
from memalpha.training.run import measure_before
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.types import Sampling
from tests.helpers.runs_of_nano import (
    OPTIONS,
    SHORT,
    assert_same_end,
    launch,
    launched,
    train,
    two,
    untimed_metrics,
)

LATE = (
    "between-rollouts-and-update",
    "in-update",
    "after-gradients",
    "in-log",
    "in-checkpoint",
    "after-checkpoint",
)
EVERY_KILL = [
    pytest.param(fault, step, marks=pytest.mark.slow)
    for fault in ("before-rollouts", *LATE)
    for step in (1, 2, 3, 4)
]
KILLS = [("between-rollouts-and-update", 3), ("in-checkpoint", 4), *EVERY_KILL]

OF_TWO = [*OPTIONS, "--warm_start_steps", "0", *SHORT]
EVERY_KILL_OF_TWO = [
    pytest.param(fault, rank, marks=pytest.mark.slow)
    for fault in LATE
    for rank in ((0,) if fault in ("in-log", "after-checkpoint") else (0, 1))
]
TWO_KILLS = [("between-rollouts-and-update", 1), *EVERY_KILL_OF_TWO]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "run"
    assert train(folder) == 0
    models = folder.glob("checkpoint-*/model.safetensors")
    assert len({path.read_bytes() for path in models}) == 4  # every step moved the weights
    return folder


def test_a_checkpoint_draws_the_completions_of_the_next_step(whole_run):
    """Replay: the saved weights, loaded into a fresh model, write step 3 again, word for word;
    those of step 1 do not."""
    lines = (whole_run / "trajectories" / "step-000003-rank-0.jsonl").read_text().splitlines()
    wanted = [json.loads(line) for line in lines]
    instances = {
        instance.id: instance for instance in load_data("toy", {"n": 8, "split": "train"}, 1)
    }
    sampling = Sampling(32, 1.0, seed=random.Random("1/2/0").getrandbits(40))

    def written(step: int) -> list[list[str]]:
        policy = load_policy_model(str(whole_run / f"checkpoint-{step}"))
        agent = AgentStep(AgentConfig.load(whole_run / "adapter"), policy.tokenizer)
        generator = HFGenerator(policy.model, policy.tokenizer)
        rollouts = run_rollouts(
            [instances[row["instance"]] for row in wanted], agent, generator, sampling
        )
        return [[record.completion.text for record in rollout.steps] for rollout in rollouts]

    expected = [[step["completion"] for step in row["steps"]] for row in wanted]
    assert written(2) == expected != written(1)


@pytest.mark.parametrize(("fault", "step"), KILLS)
def test_a_killed_run_ends_where_the_whole_run_ended(whole_run, tmp_path, fault, step):
    folder = tmp_path / "killed"
    done = launch(
        "tests/helpers/faulty_run.py",
        fault,
        str(step),
        "0",
        "train",
        *OPTIONS,
        "--output_dir",
        str(folder),
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    whole = {f"checkpoint-{n}" for n in range(1, step + (fault == "after-checkpoint"))}
    assert {path.name for path in folder.glob("checkpoint-*")} == whole
    assert not (folder / "summary.json").exists()
    assert train(folder, "--resume") == 0
    assert_same_end(folder, whole_run)


@pytest.mark.parametrize("harm", ["flipped", "unsealed"])
def test_a_damaged_checkpoint_is_left_out_and_the_one_before_it_taken(
    whole_run, tmp_path, capsys, harm
):
    folder = tmp_path / "damaged"
    shutil.copytree(whole_run, folder)
    victim = (
        folder
        / "checkpoint-4"
        / ("memalpha_checkpoint.json" if harm == "unsealed" else "optimizer.pt")
    )
    data = victim.read_bytes()
    victim.unlink()
    if harm == "flipped":
        victim.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    assert train(folder, "--resume") == 0
    told = capsys.readouterr().out
    assert "checkpoint-4 is left out" in told and "continuing from checkpoint-3" in told
    assert_same_end(folder, whole_run)


def truncate(path):
    path.write_bytes(path.read_bytes()[:100])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])


def unseal(path):
    (path.parent / SEAL).write_text("{}\n")
    truncate(path)


@pytest.mark.parametrize("harm", [truncate, empty, flip, unseal])
@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", SEAL]
)
def test_every_damage_of_a_file_is_seen(whole_run, tmp_path, harm, name):
    checkpoint = tmp_path / "checkpoint-4"
    shutil.copytree(whole_run / "checkpoint-4", checkpoint)
    shutil.copy(whole_run / "config.yaml", tmp_path)
    shutil.copy(whole_run / "inputs.json", tmp_path)
    assert find_damage(checkpoint) == ""
    harm(checkpoint / name)
    assert find_damage(checkpoint)


def test_a_checkpoint_of_another_run_or_with_a_file_more_is_left_out(whole_run, tmp_path):
    run_folder, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(whole_run, run_folder)
    shutil.copytree(whole_run, other)
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(
        config.replace("learning_rate: 0.001", "learning_rate: 0.002")
    )
    for left in (".DS_Store", "x/.nfs0001"):  # by a desktop, by a network file system
        (run_folder / "checkpoint-4" / left).parent.mkdir(exist_ok=True)
        (run_folder / "checkpoint-4" / left).write_bytes(b"x")
    assert find_damage(run_folder / "checkpoint-4") == ""
    assert (
        find_damage(other / "checkpoint-4")
        == "the checkpoint belongs to a run with other options or data"
    )
    (run_folder / "checkpoint-4" / "rows_0.pt").write_bytes(b"x")
    assert find_damage(run_folder / "checkpoint-4") == "rows_0.pt does not belong to the checkpoint"


def test_a_run_with_every_checkpoint_damaged_does_not_begin_again(whole_run, tmp_path, capsys):
    folder = tmp_path / "damaged"
    shutil.copytree(whole_run, folder)
    for checkpoint in folder.glob("checkpoint-*"):
        truncate(checkpoint / "optimizer.pt")
    before = untimed_metrics(folder)
    assert train(folder, "--resume") == 1
    said = capsys.readouterr().err
    assert (
        "has no checkpoint from which it can continue" in said
        and "--overwrite instead of --resume" in said
    )
    assert all(f"checkpoint-{step}: optimizer.pt" in said for step in (1, 2, 3, 4))
    assert untimed_metrics(folder) == before and len(list((folder / "trajectories").iterdir())) == 4


def test_what_torch_cannot_load_is_one_clear_error(whole_run, tmp_path, capsys):
    """A whole checkpoint, but of another version of the libraries: here, of no optimizer."""
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    shutil.rmtree(folder / "checkpoint-4")
    checkpoint = folder / "checkpoint-3"
    (checkpoint / "optimizer.pt").write_bytes(b"no pickle")
    sealed = json.loads((checkpoint / SEAL).read_text())
    sealed["optimizer.pt"] = hashlib.sha256(b"no pickle").hexdigest()
    (checkpoint / SEAL).write_text(json.dumps(sealed))
    assert train(folder, "--resume") == 1
    said = capsys.readouterr().err
    assert "checkpoint-3 cannot be loaded: UnpicklingError" in said and "Traceback" not in said


def test_two_commands_do_not_write_to_one_run(whole_run, tmp_path, capsys):
    """The holder is a process of its own, which is killed: then the run goes on."""
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    shutil.rmtree(folder / "checkpoint-4")
    program = (
        "import sys, time; from memalpha.record.lock import FolderLock\n"
        "with FolderLock(sys.argv[1]) as lock: lock.take(); print('held', flush=True); time.sleep(99)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        for more in ("--resume", "--overwrite"):
            assert train(folder, more) == 1
            said = capsys.readouterr().err
            assert f"process {holder.pid} on {socket.gethostname()} writes to" in said
        assert (folder / "checkpoint-3").is_dir()
        holder.kill()
    assert train(folder, "--resume") == 0
    assert_same_end(folder, whole_run)
    assert not (folder / LOCK_FILE).exists()


def test_a_checkpoint_amid_a_batch_of_rollouts_keeps_the_rows_that_are_left(tmp_path):
    reuse = [
        "--steps_per_generation",
        "2",
        "--num_iterations",
        "2",
        "--train_options",
        "{n: 16, split: train}",
        "--max_steps",
        "6",
        *SHORT,
    ]
    assert train(tmp_path / "whole", *reuse) == 0
    assert (
        len(list((tmp_path / "whole" / "trajectories").iterdir())) == 2
    )  # four steps share a batch of rollouts
    for step in (0, 1, 3):  # from the beginning, in the middle of the first pass, and of the second
        folder = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        for later in range(step + 1, 7):
            shutil.rmtree(folder / f"checkpoint-{later}")
        assert train(folder, "--resume", *reuse) == 0
        assert_same_end(folder, tmp_path / "whole", steps=6)


def test_rows_without_the_weights_that_another_generator_needs_are_refused():
    rows = [replace(padding_row(1), weight=weight) for weight in (torch.ones(1), None)]
    zero = torch.zeros(())
    check_weights([UpdateBatch(rows, zero, zero)], False, "checkpoint-3")
    check_weights([UpdateBatch(rows[:1], zero, zero)], True, "checkpoint-3")
    with pytest.raises(RunFolderError, match="checkpoint-3 lies within a draw of rollouts"):
        check_weights([UpdateBatch(rows, zero, zero)], True, "checkpoint-3")


def test_a_signal_saves_after_the_step_and_says_how_to_go_on(
    whole_run, tmp_path, monkeypatch, capsys
):
    real = MemoryGRPOTrainer._next_update_batches

    def interrupted(trainer, *args):
        if trainer.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(trainer, *args)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryGRPOTrainer, "_next_update_batches", interrupted)
        assert train(tmp_path / "run", "--save_strategy", "no") == 130
    said = capsys.readouterr().err
    assert f"stopped after step 3 of 4, saved as {tmp_path / 'run' / 'checkpoint-3'}\n" in said
    assert "--resume" in said
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-3"]
    assert train(tmp_path / "run", "--resume") == 0
    assert_same_end(tmp_path / "run", whole_run)


@pytest.mark.parametrize("done", [2, 4])
def test_more_steps_are_taken_whether_the_run_was_finished_or_cut_off(tmp_path, done):
    """Step k, from 0, has the rate 1 - k / steps, of the new number from the resumed step on."""
    folder = tmp_path / "run"
    options = ["--warm_start_steps", "0", *SHORT]
    assert train(folder, *options) == 0
    for step in range(done + 1, 5):
        shutil.rmtree(folder / f"checkpoint-{step}")
    assert train(folder, *options, "--resume", "--max_steps", "7") == 0
    rows = untimed_metrics(folder)
    assert [(row["step"], row["max_steps"]) for row in rows] == [
        (k, 4 if k <= done else 7) for k in range(1, 8)
    ]
    rates = [1e-3 * (1 - k / 4) for k in range(done)]
    rates += [1e-3 * (1 - k / 7) for k in range(done, 7)]
    assert [row["learning_rate"] for row in rows] == pytest.approx(rates, abs=1e-12)
    state = json.loads((folder / "checkpoint-7" / "trainer_state.json").read_text())
    assert RunFolder(folder).config["max_steps"] == state["max_steps"] == 7


def test_a_run_goes_on_and_is_repeated_from_its_own_configuration(whole_run, tmp_path, capsys):
    folder, began = tmp_path / "run", RunFolder(whole_run).config
    shutil.copytree(
        whole_run, folder, ignore=shutil.ignore_patterns("checkpoint-3", "checkpoint-4")
    )
    assert (
        run(
            [
                "train",
                "--config",
                str(folder / "config.yaml"),
                "--output_dir",
                str(folder),
                "--resume",
            ]
        )
        == 0
    )
    assert_same_end(folder, whole_run)
    assert {**RunFolder(folder).config, "output_dir": began["output_dir"]} == began
    assert (
        run(
            [
                "train",
                "--config",
                str(folder / "config.yaml"),
                "--output_dir",
                str(tmp_path / "again"),
            ]
        )
        == 0
    )
    assert_same_end(tmp_path / "again", whole_run)
    rollout = [
        "--config",
        str(folder / "config.yaml"),
        "--model",
        str(folder / "adapter"),
        "--output_dir",
        str(tmp_path / "seen"),
    ]
    assert run(["rollout", *rollout]) == 0
    assert list(RunFolder(tmp_path / "seen").read_lines("held_out/rollouts.jsonl")) == list(
        RunFolder(folder).read_lines("held_out/after.jsonl")
    )
    assert train(folder, "--resume", "--max_steps", "3") == 1
    assert "max_steps is 3, but the run has a checkpoint of step 4" in capsys.readouterr().err
    assert RunFolder(folder).config["max_steps"] == 4


def test_other_options_or_processes_are_refused(whole_run, capsys):
    before = (whole_run / "summary.json").read_bytes()
    assert train(whole_run) == 1
    assert (
        "exists already" in (said := capsys.readouterr().err)
        and "--overwrite" in said
        and "--resume" in said
    )
    assert train(whole_run, "--resume", "--learning_rate", "0.5", "--seed", "7") == 1
    said = capsys.readouterr().err
    assert "learning_rate was 0.001 and is 0.5" in said and "seed was 1 and is 7" in said
    assert (whole_run / "summary.json").read_bytes() == before
    assert train(whole_run, "--resume", "--per_device_train_batch_size", "64") == 1
    assert "'rollouts of a step' was 32 and is 64" in capsys.readouterr().err


def test_other_data_at_the_same_place_are_refused(tmp_path, capsys):
    lines = [
        json.dumps(instance_to_json(instance))
        for instance in load_data("toy", {"n": 4, "split": "train"})
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = [
        "--train_data",
        str(data),
        "--train_options",
        "{}",
        "--warm_start_steps",
        "0",
        "--save_strategy",
        "no",
        *SHORT,
    ]
    assert train(tmp_path / "run", *options, "--max_steps", "1") == 0
    began = json.loads((tmp_path / "run" / "inputs.json").read_text())["data"]["train_data"]
    data.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")
    capsys.readouterr()
    assert train(tmp_path / "run", *options, "--max_steps", "1", "--resume") == 1
    assert f"digest of data 'train_data' was {began!r} and is" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole_run_of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    done = launched("train", *OF_TWO, "--output_dir", str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((folder / "environment.json").read_text())["world_size"] == 2
    assert len(list((folder / "trajectories").glob("step-*-rank-1.jsonl"))) == 4
    return folder


@pytest.mark.parametrize(("fault", "rank"), TWO_KILLS)
def test_two_processes_one_of_them_killed(whole_run_of_two, tmp_path, fault, rank):
    folder = tmp_path / "killed"
    clock = time.monotonic()
    died = two(
        "tests/helpers/faulty_run.py",
        fault,
        "3",
        str(rank),
        "train",
        *OF_TWO,
        "--output_dir",
        str(folder),
    )
    assert (
        died.returncode and time.monotonic() - clock < 90
    )  # a minute for the others to stop, and the time to step 3
    assert f"rank      : {rank}" in died.stderr and "SIGKILL" in died.stderr  # torchrun's report
    whole = {
        "checkpoint-1",
        "checkpoint-2",
        *(["checkpoint-3"] if fault == "after-checkpoint" else []),
    }
    assert {path.name for path in folder.glob("checkpoint-*")} == whole
    done = launched("train", *OF_TWO, "--output_dir", str(folder), "--resume")
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same_end(folder, whole_run_of_two)


def test_one_process_goes_on_as_two_and_two_as_one(whole_run, tmp_path, caplog, capsys):
    folder = tmp_path / "run"
    shutil.copytree(
        whole_run, folder, ignore=shutil.ignore_patterns("checkpoint-3", "checkpoint-4")
    )
    command = ["train", *OPTIONS, "--output_dir", str(folder), "--resume"]
    done = launched(*command, "--per_device_train_batch_size", "16")
    assert "checkpoint-2 was written by 1 processes, but there are 2" in done.stderr
    shutil.rmtree(folder / "checkpoint-4")
    rows = folder / "checkpoint-3" / "rows_1.pt"
    rows.touch()  # as left within a draw of rollouts
    seal = (rows.parent / SEAL).read_text()
    with_rows = {**json.loads(seal), rows.name: hashlib.sha256(b"").hexdigest()}
    (rows.parent / SEAL).write_text(json.dumps(with_rows))
    assert train(folder, "--resume") == 1
    assert (
        "checkpoint-3 was written by 2 processes" in (said := capsys.readouterr().err)
        and "within a draw" in said
    )
    rows.unlink()
    (rows.parent / SEAL).write_text(seal)
    assert train(folder, "--resume") == 0
    assert "checkpoint-3 was written by 2 processes, but there are 1" in caplog.text

    def steps(run):
        drawn = {step: [] for step in (1, 2, 3, 4)}
        for path in (run / "trajectories").iterdir():
            drawn[int(path.name[5:11])] += [json.loads(line)["instance"] for line in path.open()]
        return [
            (row["step"], row["rows"], row["learning_rate"], sorted(drawn[row["step"]]))
            for row in untimed_metrics(run)
        ]

    assert steps(folder) == steps(whole_run)


def test_rows_of_a_part_of_the_instances_are_measured_anew(tmp_path):
    def row(name):
        values = {"set": "held out", "system": "policy", "reader": "scorer", "seed": 0}
        return InstanceRow(**values, instance=name, chunks=1, input_tokens=1)

    (tmp_path / "held_out").mkdir()
    parts = SimpleNamespace(held_out=[SimpleNamespace(id="a"), SimpleNamespace(id="b")])
    anew = SimpleNamespace(measure=lambda instances, name: [name])
    opened = SimpleNamespace(folder=SimpleNamespace(path=tmp_path), parts=parts, held_out=anew)
    for names, kept in (("ab", True), ("a", False), ("", False), ("aba", False)):
        write_lines(tmp_path / "held_out" / "before.jsonl", [row(name).to_json() for name in names])
        rows = measure_before(opened)
        assert rows == ([row(name) for name in names] if kept else ["before"])
