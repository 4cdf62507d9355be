"""Runs that are killed, stopped or damaged at any moment end bitwise where the undisturbed run ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memalpha.cli import run
from memalpha.data.load import load_data
from memalpha.data.schema import instance_to_json
from memalpha.errors import RunFolderError
from memalpha.training.trainer import MemoryGRPOTrainer

ROOT = Path(__file__).parents[2]
OPTIONS = ["--config", "configs/train/nano.yaml", "--warm_start_steps", "40", "--max_steps", "4", "--save_steps", "1"]
OPTIONS += ["--save_total_limit", "10", "--eval_instances", "4"]
OPTIONS += ["--train_options", "{n: 8, split: train}"]  # two steps an epoch: step 3 begins the second

LATE = "between-rollouts-and-update", "in-update", "after-gradients", "in-log", "in-checkpoint", "after-checkpoint"
EVERY_KILL = [pytest.param(fault, step, marks=pytest.mark.slow) for fault in ("before-rollouts", *LATE) for step in (1, 2, 3, 4)]
KILLS = [("between-rollouts-and-update", 3), ("in-checkpoint", 4), ("in-log", 2), *EVERY_KILL]

MAIN_ONLY = "in-log", "after-checkpoint"
TWO_KILLS = [("between-rollouts-and-update", 1)]
TWO_KILLS += [pytest.param(fault, 0, marks=pytest.mark.slow) for fault in LATE]
TWO_KILLS += [pytest.param(fault, 1, marks=pytest.mark.slow) for fault in LATE if fault not in MAIN_ONLY]


def launch(*command: str, timeout: float = 300) -> subprocess.CompletedProcess:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def train(folder: Path, *more: str) -> int:
    return run(["train", *OPTIONS, "--output_dir", str(folder), *more])


def two(*command: str) -> subprocess.CompletedProcess:
    return launch("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *command, timeout=120)


def untimed_metrics(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "step_time" and not name.startswith("time/")} for row in rows]


def assert_same_end(folder: Path, whole: Path, steps: int = 4) -> None:
    for path in sorted((whole / f"checkpoint-{steps}").iterdir()):
        if path.suffix in (".safetensors", ".pt", ".pth"):
            assert (folder / f"checkpoint-{steps}" / path.name).read_bytes() == path.read_bytes(), path.name
    names = [path.name for path in sorted((whole / "trajectories").iterdir())]
    assert names == [path.name for path in sorted((folder / "trajectories").iterdir())]
    for name in names:
        assert (folder / "trajectories" / name).read_bytes() == (whole / "trajectories" / name).read_bytes(), name
    assert untimed_metrics(folder) == untimed_metrics(whole)
    first, second = (json.loads((path / "summary.json").read_text()) for path in (whole, folder))
    kept = ("before", "after", "delta", "steps")
    assert {key: second[key] for key in kept} == {key: first[key] for key in kept}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "run"
    done = launch("-m", "accelerate.commands.launch", "-m", "memalpha", "train", *OPTIONS, "--output_dir", str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_every_checkpoint_is_there_with_safetensors(whole_run):
    for step in (1, 2, 3, 4):
        assert (whole_run / f"checkpoint-{step}" / "model.safetensors").stat().st_size > 100_000
    assert [row["step"] for row in untimed_metrics(whole_run)] == [1, 2, 3, 4]
    assert len({row["policy"] for row in untimed_metrics(whole_run)}) == 4  # every step moved the weights
    assert all(row["rewards/tool/mean"] > 0 for row in untimed_metrics(whole_run))  # and there was something to learn


def test_every_epoch_has_an_order_of_its_own(whole_run):
    steps = [[json.loads(line)["instance"] for line in path.open()] for path in sorted((whole_run / "trajectories").iterdir())]
    first, second = [list(dict.fromkeys(steps[i] + steps[i + 1])) for i in (0, 2)]
    assert sorted(first) == sorted(second) and len(first) == 8
    assert first != second


@pytest.mark.parametrize(("fault", "step"), KILLS)
def test_a_killed_run_ends_where_the_whole_run_ended(whole_run, tmp_path, fault, step):
    folder = tmp_path / "killed"
    done = launch("tests/training/faulty_run.py", fault, str(step), "0", "train", *OPTIONS, "--output_dir", str(folder))
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    whole = {f"checkpoint-{n}" for n in range(1, step + (fault == "after-checkpoint"))}
    assert {path.name for path in folder.glob("checkpoint-*")} == whole
    assert not (folder / "summary.json").exists()
    assert train(folder, "--resume") == 0
    assert_same_end(folder, whole_run)


@pytest.mark.parametrize("harm", ["cut", "flipped", "gone", "unsealed"])
def test_a_damaged_checkpoint_is_left_out_and_the_one_before_it_taken(whole_run, tmp_path, capsys, harm):
    folder = tmp_path / "damaged"
    shutil.copytree(whole_run, folder)
    victim = folder / "checkpoint-4" / ("memalpha_checkpoint.json" if harm == "unsealed" else "optimizer.pt")
    data = victim.read_bytes()
    if harm in ("gone", "unsealed"):
        victim.unlink()
    else:
        victim.write_bytes(data[:-1] if harm == "cut" else data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    assert train(folder, "--resume") == 0
    told = capsys.readouterr().out
    assert "checkpoint-4 is left out" in told and "going on from checkpoint-3" in told
    assert_same_end(folder, whole_run)


def test_a_run_without_any_whole_checkpoint_starts_from_the_beginning(whole_run, tmp_path, capsys):
    folder = tmp_path / "none"
    shutil.copytree(whole_run, folder)
    for step in (1, 2, 3, 4):
        shutil.rmtree(folder / f"checkpoint-{step}")
    assert train(folder, "--resume") == 0
    assert "going on from the beginning" in capsys.readouterr().out
    assert_same_end(folder, whole_run)


def test_a_checkpoint_amid_a_batch_of_rollouts_keeps_the_rows_that_are_left(tmp_path):
    reuse = ["--steps_per_generation", "2", "--num_iterations", "2", "--train_options", "{n: 16, split: train}", "--max_steps", "6"]
    assert train(tmp_path / "whole", *reuse) == 0
    assert len(list((tmp_path / "whole" / "trajectories").iterdir())) == 2  # four steps share a batch of rollouts
    for step in (1, 2, 3, 5):
        folder = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        for later in range(step + 1, 7):
            shutil.rmtree(folder / f"checkpoint-{later}")
        assert train(folder, "--resume", *reuse) == 0
        assert_same_end(folder, tmp_path / "whole", steps=6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_after_the_step_and_says_how_to_go_on(whole_run, tmp_path, monkeypatch, capsys, number):
    real = MemoryGRPOTrainer._scored_rows

    def interrupted(trainer, *args):
        if trainer.state.global_step == 2:
            os.kill(os.getpid(), number)
        return real(trainer, *args)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryGRPOTrainer, "_scored_rows", interrupted)
        assert train(tmp_path / "run", "--save_strategy", "no") == 130
    said = capsys.readouterr().err
    assert "stopped after step 3 of 4" in said and "checkpoint-3" in said and "--resume" in said
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-3"]
    assert signal.getsignal(signal.SIGINT) is before
    assert train(tmp_path / "run", "--resume") == 0
    assert_same_end(tmp_path / "run", whole_run)


def test_a_second_ctrl_c_stops_at_once(monkeypatch):
    from memalpha.training import run as stopping

    with stopping.stop_request() as request:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # a launcher's repetition
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.signal is signal.SIGINT
        monkeypatch.setattr(stopping, "REPEATED_AFTER", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


def test_other_options_or_processes_are_refused(whole_run, tmp_path, capsys):
    before = (whole_run / "summary.json").read_bytes()
    assert train(whole_run) == 1
    assert "exists already" in (said := capsys.readouterr().err) and "--overwrite or --resume" in said
    assert train(whole_run, "--resume", "--learning_rate", "0.5", "--seed", "7") == 1
    said = capsys.readouterr().err
    assert "learning_rate was 0.001 and is 0.5" in said and "seed was 1 and is 7" in said
    assert train(tmp_path / "nowhere", "--resume") == 1
    assert "no run folder" in capsys.readouterr().err
    assert (whole_run / "summary.json").read_bytes() == before
    from memalpha.training.run_folder import check_same_processes

    with pytest.raises(RunFolderError, match="began with 2 processes and is resumed with 1"):
        check_same_processes({"world_size": 2}, 1)


@pytest.mark.parametrize("option", ["--train_data", "--eval_data"])
def test_other_data_at_the_same_place_are_refused(tmp_path, capsys, option):
    sets = {
        "--train_data": load_data("toy", {"n": 4, "split": "train"}),
        "--eval_data": load_data("toy", {"n": 2, "split": "test"}),
    }
    lines = {name: [json.dumps(instance_to_json(instance)) for instance in instances] for name, instances in sets.items()}
    files = {name: tmp_path / f"{name[2:]}.jsonl" for name in sets}
    for name, file in files.items():
        file.write_text("\n".join(lines[name]) + "\n", encoding="utf-8")
    options = [word for name, file in files.items() for word in (name, str(file))]
    options += ["--train_options", "{}", "--eval_options", "{}", "--warm_start_steps", "0", "--save_strategy", "no"]
    assert train(tmp_path / "run", *options, "--max_steps", "1") == 0
    began = json.loads((tmp_path / "run" / "environment.json").read_text())["data"]
    assert (began["train_data"]["instances"], began["eval_data"]["instances"]) == (4, 2)
    files[option].write_text("\n".join(reversed(lines[option])) + "\n", encoding="utf-8")
    capsys.readouterr()
    assert train(tmp_path / "run", *options, "--max_steps", "1", "--resume") == 1
    was = f"{began[option[2:]]['instances']} instances with sha256 {began[option[2:]]['sha256'][:12]}"
    assert f"the run began with other data: {option[2:]} was {was} and is {was[:12]}" in capsys.readouterr().err
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.fixture(scope="module")
def whole_run_of_two(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    done = two("-m", "memalpha", "train", *OPTIONS, "--output_dir", str(folder))
    assert (folder / "summary.json").is_file(), done.stderr[-2000:]  # gloo may abort at exit, after all work is done
    return folder


def test_two_processes_are_two(whole_run_of_two):
    assert json.loads((whole_run_of_two / "environment.json").read_text())["world_size"] == 2
    assert len(list((whole_run_of_two / "trajectories").glob("step-*-rank-1.jsonl"))) == 4
    assert json.loads((whole_run_of_two / "summary.json").read_text())["after"]["n"] == 4


@pytest.mark.parametrize(("fault", "rank"), TWO_KILLS)
def test_two_processes_one_of_them_killed(whole_run_of_two, tmp_path, fault, rank):
    folder = tmp_path / "killed"
    clock = time.monotonic()
    died = two("tests/training/faulty_run.py", fault, "3", str(rank), "train", *OPTIONS, "--output_dir", str(folder))
    assert died.returncode and time.monotonic() - clock < 90  # a minute for the others to stop, and the time to step 3
    assert f"rank      : {rank}" in died.stderr and "SIGKILL" in died.stderr  # torchrun's report
    whole = {"checkpoint-1", "checkpoint-2", *(["checkpoint-3"] if fault == "after-checkpoint" else [])}
    assert {path.name for path in folder.glob("checkpoint-*")} == whole
    done = two("-m", "memalpha", "train", *OPTIONS, "--output_dir", str(folder), "--resume")
    assert (folder / "summary.json").is_file(), done.stderr[-2000:]
    assert_same_end(folder, whole_run_of_two)


def test_one_rank_fails_and_the_others_stop_with_its_message(tmp_path):
    done = two("tests/training/faulty_run.py", "error", "2", "1", "train", *OPTIONS, "--output_dir", str(tmp_path / "run"))
    assert done.returncode
    assert "[rank 1] error: a fault was planted" in done.stderr
    report = done.stderr[done.stderr.index("Root Cause") :]
    assert "rank      : 1" in report and "a fault was planted" in report
