"""A mistake at the command line is one clear message: the value, what was expected, what to do. A traceback only with --debug."""

import json
import shutil
from pathlib import Path

import pytest

from memalpha.cli import run
from memalpha.data.load import load_one
from memalpha.data.schema import write_instances
from memalpha.errors import InputError
from memalpha.models import fetch

NANO = str(Path(__file__).parents[2] / "configs" / "train" / "nano.yaml")


def train(tmp_path: Path, *more: str) -> list[str]:
    return ["train", "--config", NANO, "--output_dir", str(tmp_path / "run"), "--warm_start_steps", "0", *more]


@pytest.fixture(scope="module")
def nano() -> Path:
    return fetch("nano")


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def without_template(tmp_path: Path, nano: Path) -> list[str]:
    folder = tmp_path / "bare"
    shutil.copytree(nano, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return train(tmp_path, "--model", str(folder))


def other_base(tmp_path: Path, nano: Path) -> list[str]:
    adapter = Path(__file__).parents[2] / "data" / "adapters" / "smollm2-135m-warmup"
    return train(tmp_path, "--full_finetuning", "false", "--adapter", str(adapter))


def long_chunk(tmp_path: Path, nano: Path) -> list[str]:
    return train(tmp_path, "--max_chunk_tokens", "3")


def unknown_section(tmp_path: Path, nano: Path) -> list[str]:
    text = "name: x\nsections:\n  - {name: facts, kind: shelf}\n"
    return train(tmp_path, "--schema", write(tmp_path / "schema.yaml", text))


CASES = {
    "missing config": (lambda t, n: ["train", "--config", str(t / "none.yaml")], ["no config file", "--config FILE"]),
    "unknown option": (
        lambda t, n: ["train", "--config", write(t / "c.yaml", "learning_rat: 1\n")],
        ["no option 'learning_rat'", "such as learning_rate"],
    ),
    "config is no mapping": (lambda t, n: ["train", "--config", write(t / "c.yaml", "- 1\n")], ["list", "mapping"]),
    "missing data": (lambda t, n: train(t, "--train_data", "none.jsonl"), ["no data at 'none.jsonl'", "memalpha prepare"]),
    "wrong data": (
        lambda t, n: train(t, "--train_data", write(t / "d.jsonl", '{"id": 1}\n'), "--train_options", "{}"),
        ["d.jsonl", "line 1"],
    ),
    "no data": (lambda t, n: train(t, "--train_data", "", "--train_options", "{}"), ["train_data is empty", "prepared folder"]),
    "no demonstrations": (
        lambda t, n: ["warmup", "--model", "nano", "--data", "", "--use_cpu", "true", "--output_dir", str(t / "w")],
        ["data is empty", "prepared folder"],
    ),
    "adapter and a warm start in its place": (
        lambda t, n: train(t, "--full_finetuning", "false", "--adapter", "runs/warm", "--warm_start_steps", "3"),
        ["warm_start_steps is 3, with the adapter 'runs/warm'", "one of the two"],
    ),
    "unknown schema": (lambda t, n: train(t, "--schema", "nine"), ["no memory schema 'nine'", "nine_categories"]),
    "wrong schema": (unknown_section, ["shelf", "block or list"]),
    "unknown codec": (lambda t, n: train(t, "--codec", "xml"), ["'xml'", "compact, compact_text, hermes"]),
    "chunk over the budget": (long_chunk, ["chunk 0 of instance", "max_chunk_tokens = 3", "shorter chunks"]),
    "no chat template": (without_template, ["no chat template", "instruct"]),
    "adapter of another base": (other_base, ["another base", "smollm2-135m-instruct@pypi"]),
    "loss that is not checked": (lambda t, n: train(t, "--loss_type", "bnpo"), ["'bnpo'", "dapo, grpo"]),
    "batch that is no whole group": (lambda t, n: train(t, "--num_generations", "5"), ["num_generations 5", "multiple"]),
    "unknown source": (lambda t, n: ["prepare", "squid", "--output", str(t / "o")], ["unknown data source 'squid'", "squad"]),
    "prepare without input": (lambda t, n: ["prepare", "squad", "--output", str(t / "o")], ["squad", "input"]),
    "no run folder": (lambda t, n: ["inspect", str(t)], ["no run folder", "config.yaml"]),
    "no adapter folder": (
        lambda t, n: train(t, "--full_finetuning", "false", "--adapter", str(t / "none")),
        ["does not exist", "memalpha warmup"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_message(name, tmp_path, nano, capsys):
    make, said = CASES[name]
    arguments = make(tmp_path, nano)
    assert run(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and "Traceback" not in error
    for words in (*said, "expected: "):
        assert words in error, error


def test_a_traceback_only_with_debug(tmp_path, nano):
    with pytest.raises(InputError, match="no memory schema"):
        run([*train(tmp_path, "--schema", "nine"), "--debug"])


@pytest.mark.parametrize("verb", ["model", "prepare", "warmup", "train", "rollout", "evaluate", "report", "inspect"])
def test_help_says_what_a_verb_needs_and_makes(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        run([verb, "--help"])
    said = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert stopped.value.code == 0
    assert "Needs: " in said and ("Makes: " in said or "Shows: " in said)


def test_training_and_evaluation_without_options_say_what_is_needed(capsys):
    assert run(["train"]) == 1 and "expected: what to train on what: --config FILE" in capsys.readouterr().err
    assert run(["warmup"]) == 1 and "expected: where demonstrations come from: --config FILE" in capsys.readouterr().err
    assert run(["evaluate"]) == 1 and "--trained FOLDER with --data SET" in capsys.readouterr().err


def test_a_run_that_fails_before_it_begins_leaves_no_folder(tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = [
        "train",
        "--model",
        "nano",
        "--train_data",
        str(tmp_path / "nowhere"),
        "--output_dir",
        str(folder),
        "--use_cpu",
        "true",
    ]
    for _ in range(2):
        assert run(arguments) == 1
        assert "no data at" in capsys.readouterr().err
    assert not folder.exists()


def test_a_run_whose_trainer_cannot_be_made_leaves_no_folder(tmp_path, nano, capsys):
    few = train(tmp_path, "--train_options", "{n: 4, split: train}", "--per_device_train_batch_size", "40")
    for _ in range(2):
        assert run(few) == 1
        assert "4 training instances are fewer than the 5 of one step" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_to_be_overwritten_stays_where_the_new_one_cannot_begin(tmp_path, nano, capsys):
    short = ("--max_steps", "1", "--eval_data", "")
    assert run(train(tmp_path, *short)) == 0
    folder = tmp_path / "run"
    start = str(folder / "adapter")
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for wrong, said in (
        (["--train_data", str(tmp_path / "nowhere")], "no data at"),
        (["--model", str(tmp_path / "nothing")], "nothing"),
        (["--model", start], f"model {start!r} lies in the run that is to be overwritten"),
        (["--adapter", start], f"adapter {start!r} lies in the run that is to be overwritten"),
        (["--train_data", f"toy, {start}"], f"train_data {start!r} lies in the run that is to be overwritten"),
    ):
        assert run(train(tmp_path, *short, *wrong, "--overwrite", "true")) == 1
        assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    assert run(train(tmp_path, *short, "--seed", "5", "--overwrite", "true")) == 0
    assert "seed: 5" in (folder / "config.yaml").read_text() and not list(tmp_path.glob(".*"))


def test_what_looks_at_a_run_does_not_overwrite_it(tmp_path, nano, capsys):
    assert run(train(tmp_path, "--max_steps", "1", "--eval_data", "", "--full_finetuning", "false")) == 0
    folder = tmp_path / "run"
    start = str(folder / "adapter")
    shutil.copy(write_instances(tmp_path / "mine.jsonl", load_one("toy")), folder / "mine.jsonl")
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    onto = ("--output_dir", str(folder), "--overwrite", "true")
    rollout = ["rollout", "--config", NANO, *onto]
    for command, said in (
        ([*rollout, "--adapter", start], f"adapter {start!r}"),
        ([*rollout, "--eval_data", str(folder / "mine.jsonl")], f"eval_data {str(folder / 'mine.jsonl')!r}"),
        (["evaluate", "--trained", str(folder), "--data", "toy", *onto], f"the adapter {start!r}"),
        (["evaluate", "--model", "nano", "--sets", str([str(folder / "mine.jsonl")]), "--systems", "[gold]", *onto], "the set"),
    ):
        assert run(command) == 1
        error = capsys.readouterr().err
        assert said in error and "lies in the run that is to be overwritten" in error and "choose another --output_dir" in error
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_an_option_whose_package_is_missing_is_one_message(tmp_path, nano, capsys, monkeypatch):
    def missing(**_):
        raise ImportError("vLLM is not available")

    monkeypatch.setattr("memalpha.training.run.MemoryGRPOTrainer", missing)
    assert run(train(tmp_path)) == 1
    assert "error: an option needs a package that is not installed: vLLM is not available" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_place_of_a_run_folder_is_named(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert run(["train", "--model", "nano", "--train_data", "toy", "--output_dir", str(tmp_path / "notes.txt")]) == 1
    assert "notes.txt' is a file" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("verb", ["train", "warmup", "evaluate"])
@pytest.mark.parametrize("place", ["file", "under a file", "proc", "long"])
def test_a_folder_that_cannot_be_made_is_one_clear_message_and_nothing_is_left(verb, place, tmp_path, nano, capsys):
    (tmp_path / "afile").write_text("mine")
    long = str(tmp_path / ("x" * 300))
    folder = {"file": str(tmp_path / "afile"), "under a file": str(tmp_path / "afile" / "run"), "proc": "/proc/x", "long": long}[
        place
    ]
    options = {
        "train": ["--train_data", "toy", "--use_cpu", "true"],
        "warmup": ["--data", "toy", "--use_cpu", "true"],
        "evaluate": ["--sets", "[{data: toy, instances: 1}]", "--systems", "gold"],
    }
    assert run([verb, "--model", "nano", *options[verb], "--output_dir", folder]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and folder in error and "to fix: " in error
    assert [path.name for path in tmp_path.iterdir()] == ["afile"] and (tmp_path / "afile").read_text() == "mine"


def test_a_rollout_needs_no_training_data(tmp_path, nano):
    folder = tmp_path / "rollout"
    more = [
        "--train_data",
        str(tmp_path / "nowhere"),
        "--train_options",
        "{}",
        "--eval_instances",
        "1",
        "--output_dir",
        str(folder),
    ]
    assert run(["rollout", "--config", NANO, *more]) == 0
    assert len((folder / "held_out" / "rollouts.jsonl").read_text().splitlines()) == 1


def test_what_was_noted_about_an_error_is_shown_with_it(monkeypatch, capsys):
    error = InputError("the second piece is too long")
    error.add_note("the first 1 of 2 pieces is in the store")

    def fails(arguments, rest):
        raise error

    monkeypatch.setattr("memalpha.cli.serve.run_token", fails)
    assert run(["token", "laptop"]) == 1
    assert capsys.readouterr().err == "error: the second piece is too long\n  the first 1 of 2 pieces is in the store\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["chat", "x" * 300, "--store", "x.db", "--user", "marta"],
        ["serve", f"./{'x' * 300}", "--store", "x.db", "--user", "marta"],
        ["export", "x" * 300, "--output", "x"],
        ["export", ".", "--output", "x" * 300],
    ],
)
def test_a_name_too_long_for_a_file_is_one_message(arguments, capsys):
    assert run(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "File name too long" in error and "expected: " in error
