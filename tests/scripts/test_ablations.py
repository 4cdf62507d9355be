"""Ablations: every variant's options exist, and two tiny runs end in the numbers of their run folders."""

import json
import math
import subprocess
import sys
from pathlib import Path

import ablations
import pytest
import yaml

from memalpha.runs import RunFolder
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


CONFIG = str(ROOT / "configs" / "train" / "mixed.yaml")


def made(path, steps, before, after, *, options=("--max_steps", "16"), change=()):
    """A finished run as the script leaves it, with accuracies by instance; None was not scored."""
    command = ["--config", CONFIG, "--output_dir", str(path), "--seed", "1", *options, *change]
    groups = parse_train_arguments(command)
    config = {**vars_of(groups.run), **vars_of(groups.agent), **vars_of(groups.reward), **groups.grpo.to_dict()}
    run = RunFolder.create(path, config)
    about = {"started": "now", "code": "x", "processor": "p", "cores": 2}
    run.write_json("environment.json", {"command": ["/somewhere/memalpha/__main__.py", "train", *command], **about})
    shown = {"accuracy": 0.5, "kinds": {}, "n": 2} | {name: None for name in ablations.WATCHED if name != "accuracy"}
    run.write_json("summary.json", {"seed": 1, "steps": steps, "seconds": 9.0, "before": shown, "after": shown})
    rest = dict.fromkeys(("reward", "tool_success", "compression", "content", "cut_off"), 0.0)
    rest |= dict.fromkeys(("memory_tokens", "input_tokens", "entries", "calls", "updates", "deletes"), 0)
    for name, found in (("before", before), ("after", after)):
        rows = [
            {"result": {"instance": key, "accuracy": value, "kinds": {}, "kind_counts": {}, **rest}, "rollout": {}}
            for key, value in found.items()
        ]
        run.write_lines(f"held_out/{name}.jsonl", rows)
    return run


def test_an_instance_without_a_score_is_left_out_of_both_sides_and_counted(tmp_path):
    start = {"a": 0.0, "b": 0.5, "c": None, "d": 0.0}
    made(tmp_path / "default" / "seed-1", 16, start, {"a": 0.5, "b": 0.5, "c": 1.0, "d": 0.25})
    made(tmp_path / "tool_1" / "seed-1", 16, start, {"a": 1.0, "b": None, "c": 1.0, "d": 0.5}, change=["--tool_weight", "1.0"])
    default, changed = ablations.collect(tmp_path)
    assert default["gain"] == pytest.approx({"mean": 0.25, "stderr": 0.25 / math.sqrt(3), "n": 3, "left_out": 1})
    assert changed["gain"] == pytest.approx({"mean": 0.75, "stderr": 0.25, "n": 2, "left_out": 2})
    assert changed["against_default"] == pytest.approx({"mean": 0.25, "stderr": 0.25 / math.sqrt(3), "n": 3, "left_out": 1})
    assert default["options"] == changed["options"] == ["--max_steps", "16"]
    assert changed["change"] == {"tool_weight": 1.0}
    text = ablations.page({"command": "x", "runs": [default, changed]})
    assert "| +0.750 ± 0.250 (2 of 4 left out) | +0.250 ± 0.144 (1 of 4 left out) |" in text


def test_runs_of_different_lengths_are_not_compared(tmp_path):
    made(tmp_path / "default" / "seed-1", 16, {"a": 0.0}, {"a": 0.5})
    made(tmp_path / "tool_1" / "seed-1", 24, {"a": 0.0}, {"a": 0.5})
    with pytest.raises(SystemExit, match=r"has 16 steps and .* has 24"):
        ablations.collect(tmp_path)


def test_a_finished_run_is_kept_only_if_it_was_begun_with_what_is_asked_for(tmp_path, capsys):
    path = tmp_path / "default" / "seed-1"
    run = made(path, 16, {"a": 0.0}, {"a": 0.5})
    ablations.train(Path(CONFIG), path, 1, ["--max_steps", "16", "--rows_per_forward", "8"])
    assert "is finished" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"other options: max_steps was 16 and is 24\n"):
        ablations.train(Path(CONFIG), path, 1, ["--max_steps", "24"])
    (run.path / "summary.json").unlink()
    with pytest.raises(SystemExit, match=r"other options: tool_weight was 0.4 and is 0.5\n"):
        ablations.train(Path(CONFIG), path, 1, ["--max_steps", "16", "--tool_weight", "0.5"])


def test_nothing_finished_overwrites_nothing(tmp_path):
    (tmp_path / "page.md").write_text("as it was")
    done = run(tmp_path, "--collect")
    assert done.returncode == 1 and "no finished run" in done.stderr
    assert (tmp_path / "page.md").read_text() == "as it was" and not (tmp_path / "found.json").exists()


def record(name, seed, accuracy):
    return {"name": name, "seed": seed, "after": {"accuracy": accuracy}}


def test_runs_made_elsewhere_stay_if_the_default_came_out_alike():
    earlier = [record("default", 1, 0.5), record("control", 1, 0.25), record("kl", 1, 0.4)]
    here = [record("default", 1, 0.5), record("kl", 1, 0.45)]
    assert ablations.with_earlier(here, earlier) == [*here, earlier[1]]
    assert ablations.with_earlier([record("kl", 2, 0.3)], earlier) == [record("kl", 2, 0.3), *earlier]
    assert (
        ablations.with_earlier([record("default", 1, 0.6), *earlier[1:]], earlier)[0]["after"]["accuracy"] == 0.6
    )  # all made anew
    with pytest.raises(SystemExit, match=r"default with seed 1 has accuracy 0\.6 and had 0\.5"):
        ablations.with_earlier([record("default", 1, 0.6)], earlier)
