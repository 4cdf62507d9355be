"""Ablations: every variant's options exist, and two tiny runs end in the numbers of their run folders."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memalpha.training.config import parse_train_arguments

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "ablations.py"
VARIANTS = yaml.safe_load((ROOT / "configs" / "train" / "ablations.yaml").read_text())
TINY = ["--warm_start_steps", "2", "--max_steps", "1", "--per_device_train_batch_size", "8", "--save_steps", "1"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_one_change_to_the_options_of_training(name):
    def options(*more):
        config = ROOT / "configs" / "train" / "mixed.yaml"
        groups = parse_train_arguments(["--config", str(config), *more])
        return {key: value for group in groups for key, value in vars_of(group).items()}

    changed = options(*[text for key, value in VARIANTS[name].items() for text in (f"--{key}", str(value))])
    before = options()
    assert {key for key in before if str(before[key]) != str(changed[key])} - {"reward_weights"} == set(VARIANTS[name])
    assert all(changed[key] == value for key, value in VARIANTS[name].items())


def vars_of(group):
    return {name: getattr(group, name) for name in group.__dataclass_fields__}


def run(folder, *more):
    options = ["--config", str(ROOT / "configs" / "train" / "nano.yaml"), "--output_dir", str(folder / "runs")]
    command = [sys.executable, str(SCRIPT), *options, "--result", str(folder / "found.json")]
    command += ["--page", str(folder / "page.md"), *more]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)


def test_two_runs_end_in_the_numbers_of_their_folders(tmp_path):
    eval_options = ["--eval_options", "{n: 8, split: test}"]
    done = run(tmp_path, "--only", "default,control", *TINY, *eval_options)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["name"] for row in found["runs"]] == ["control", "default"]
    control, default = found["runs"]
    assert control["change"] == {"shuffle_advantages": True} and default["change"] == {}
    after = {}
    for row in found["runs"]:
        lines = (tmp_path / "runs" / row["name"] / "seed-1" / "held_out" / "after.jsonl").read_text().splitlines()
        after[row["name"]] = [json.loads(line)["result"]["accuracy"] for line in lines]
        assert row["after"]["accuracy"] == pytest.approx(sum(after[row["name"]]) / 8)
    differences = [mine - theirs for mine, theirs in zip(after["control"], after["default"], strict=True)]
    mean = sum(differences) / 8
    assert control["against_default"]["mean"] == pytest.approx(mean)
    assert control["against_default"]["stderr"] == pytest.approx(math.sqrt(sum((d - mean) ** 2 for d in differences) / 7 / 8))
    assert default["against_default"]["mean"] == 0
    rows = [line.split(" | ") for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == ["| default", "| control"]
    assert rows[1][1:5] == [
        "`shuffle_advantages: True`",
        "1, 1",
        f"{control['before']['accuracy']:.3f}",
        f"{control['after']['accuracy']:.3f}",
    ]
    assert rows[1][6] == f"{mean:+.3f} ± {control['against_default']['stderr']:.3f}"
    again = run(tmp_path, "--only", "default,control", *TINY, *eval_options)
    assert again.stdout.count("is finished") == 2 and "memalpha train" not in again.stdout


def test_an_unknown_name_is_refused(tmp_path):
    done = run(tmp_path, "--only", "typo")
    assert done.returncode == 1 and "no ablation 'typo'" in done.stderr and "control" in done.stderr
