"""A mistake at the command line is one clear message: the value, what was expected, what to do. A
traceback only with --debug."""

from pathlib import Path

import pytest

from memalpha.cli import run
from memalpha.data.load import load_one
from memalpha.errors import MemAlphaError
from memalpha.record.folder import RunFolder
from tests.helpers.data_samples import write_instances

ROOT = Path(__file__).parents[2]
NANO = str(ROOT / "configs" / "train" / "nano.yaml")


def train(tmp_path: Path, *more: str) -> list[str]:
    return [
        "train",
        "--config",
        NANO,
        "--output_dir",
        str(tmp_path / "run"),
        "--warm_start_steps",
        "0",
        *more,
    ]


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def folder_of_run(path: Path) -> str:
    (path / "earlier" / "adapter").mkdir(parents=True, exist_ok=True)
    return str(path / "earlier")


def folder_of_model(path: Path) -> str:
    (path / "model").mkdir(exist_ok=True)
    write(path / "model" / "config.json", "{}")
    return str(path / "model")


LORA = ("--full_finetuning", "false")
WARM = str(ROOT / "data" / "adapters" / "smollm2-135m-warmup")
AT = ("--store", "x.db", "--endpoint", "http://localhost/v1")
STEMS = ["--store", "x.db", "--user", "marta"]
CASES = {
    "agent without a store": (
        lambda t: ["chat", str(t), "--user", "marta"],
        "--store VALUE; memalpha chat --options",
    ),
    "agent without a user": (
        lambda t: ["chat", str(t), "--store", str(t / "x.db")],
        "expected: --user NAME",
    ),
    "initials": (lambda t: train(t, "--lr", "1"), "learning_rate"),
    "one word of a name": (lambda t: train(t, "--epochs", "1"), "perhaps num_train_epochs"),
    "words of a name": (lambda t: train(t, "--batch-size", "1"), "per_device_train_batch_size"),
    "initials in a file": (
        lambda t: ["warmup", "--config", write(t / "c.yaml", "lr: 1\n")],
        "learning_rate",
    ),
    "option of serve": (lambda t: ["serve", "x", *STEMS, "--prt", "1"], "perhaps port"),
    "option of chat": (lambda t: ["chat", "x", *STEMS, "--sesion", "1"], "perhaps session"),
    "what others call top_k": (
        lambda t: ["ask", "where?", *STEMS, "--topk", "3"],
        "perhaps retrieve_k\n",
    ),
    "nothing like it": (
        lambda t: ["ask", "where?", *STEMS, "--zzzzzz", "3"],
        "has no option 'zzzzzz'\n  to fix:",
    ),
    "option of evaluate": (lambda t: ["evaluate", "--out_dir", "x"], "perhaps output_dir"),
    "key of a system": (
        lambda t: [
            "evaluate",
            "--model",
            "nano",
            "--sets",
            "[{data: toy, instnces: 1}]",
            "--systems",
            "gold",
            "--output_dir",
            str(t / "run"),
        ],
        "perhaps instances",
    ),
    "system without an adapter": (
        lambda t: [
            *("evaluate", "--model", "nano", "--sets", "[toy]", "--output_dir", str(t / "run")),
            *("--systems", "[{kind: agent, adapter: []}]"),
        ],
        "adapter of 'agent' is an empty list",
    ),
    "seed of a source": (
        lambda t: train(t, "--train_options", "{n: 8, seed: x}"),
        "the seed of source 'toy' is 'x'",
    ),
    "optimizer without its package": (
        lambda t: train(t, "--trl", "{optim: lomo}"),
        "a package that is not installed: You need to install `lomo_optim`",
    ),
    "optimizer of a warm start without its package": (
        lambda t: [
            *("warmup", "--model", "nano", "--data", "toy", "--schema", "toy", "--codec"),
            *("compact", "--show_times", "false", "--data_options", "{n: 2}", "--use_cpu", "true"),
            *("--output_dir", str(t / "w"), "--trl", "{optim: lomo}"),
        ],
        "a package that is not installed: You need to install `lomo_optim`",
    ),
    "sharding of one process": (
        lambda t: train(t, "--trl", "{fsdp: true}"),
        "the options of the trainer do not fit: Using fsdp only works in distributed",
    ),
    "run for an adapter": (
        lambda t: train(t, *LORA, "--adapter", folder_of_run(t)),
        "to fix: give ",
    ),
    "model for an adapter": (
        lambda t: train(t, *LORA, "--adapter", folder_of_model(t)),
        "holds a whole model and no adapter",
    ),
    "missing config": (lambda t: ["train", "--config", str(t / "none.yaml")], "none.yaml"),
    "unknown option": (
        lambda t: ["train", "--config", write(t / "c.yaml", "learning_rat: 1\n")],
        "'learning_rat'",
    ),
    "missing data": (lambda t: train(t, "--train_data", "none.jsonl"), "'none.jsonl'"),
    "no demonstrations": (
        lambda t: ["warmup", "--model", "nano", "--data", "", "--output_dir", str(t / "w")],
        "data",
    ),
    "unknown schema": (lambda t: train(t, "--schema", "nine"), "nine_categories"),
    "wrong schema": (
        lambda t: train(
            t, "--schema", write(t / "s.yaml", "{name: x, sections: [{name: f, kind: shelf}]}")
        ),
        "shelf",
    ),
    "too few instances": (
        lambda t: train(t, "--train_options", "{n: 4}", "--per_device_train_batch_size", "40"),
        "4 training inst",
    ),
    "chunk over the budget": (
        lambda t: train(t, "--max_chunk_tokens", "3"),
        "max_chunk_tokens = 3",
    ),
    "adapter of another base": (
        lambda t: train(t, *LORA, "--adapter", WARM),
        "smollm2-135m-instruct@pypi",
    ),
    "loss that is not checked": (lambda t: train(t, "--loss_type", "bnpo"), "bnpo"),
    "unknown source": (lambda t: ["prepare", "squid", "--output", str(t / "o")], "squad"),
    "train got no options": (lambda t: ["train"], "--config FILE"),
    "name too long to chat": (
        lambda t: ["chat", "x" * 300, "--store", "x.db", "--user", "marta"],
        "File name too long",
    ),
    "agent of two kinds": (
        lambda t: ["serve", "folder", *AT, "--model", "m"],
        "folder and an endpoint",
    ),
    "agent of no kind": (lambda t: ["chat"], "got no store"),
    "endpoint without model": (lambda t: ["chat", *AT, "--user", "marta"], "model is ''"),
    "endpoint and reader": (
        lambda t: ["serve", *AT, "--model", "m", "--reader", "x"],
        "both a reader and an endpoint are given",
    ),
    "name too long to export to": (
        lambda t: ["export", ".", "--output", "x" * 300],
        "File name too long",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_message(name, tmp_path, capsys):
    make, value = CASES[name]
    assert run(make(tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("error: ") == 1 and "Traceback" not in error
    assert value in error and ("expected: " in error or "to fix: " in error)
    with pytest.raises(MemAlphaError):
        run([*make(tmp_path), "--debug"])
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_to_be_overwritten_stays_where_the_new_one_cannot_begin(tmp_path, capsys):
    short = ("--max_steps", "1", "--eval_data", "", *LORA)
    assert run(train(tmp_path, *short)) == 0
    folder, start = tmp_path / "run", str(tmp_path / "run" / "adapter")
    mine = write_instances(folder / "mine.jsonl", load_one("toy"))
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    onto = ["--output_dir", str(folder)]
    for command, value in (
        (train(tmp_path, *short, "--model", str(tmp_path / "nothing")), "which no run made"),
        (train(tmp_path, *short, "--model", start), f"model {start!r}"),
        (train(tmp_path, *short, "--adapter", start), f"adapter {start!r}"),
        (train(tmp_path, *short, "--train_data", f"toy, {start}"), f"train_data {start!r}"),
        (["rollout", "--config", NANO, "--eval_data", str(mine), *onto], str(mine)),
        (["evaluate", "--trained", str(folder), "--data", "toy", *onto], start),
    ):
        assert run([*command, "--overwrite", "true"]) == 1
        assert value in capsys.readouterr().err
    assert files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run(train(tmp_path, *short, "--seed", "5", "--overwrite", "true")) == 1
    assert "holds 'mine.jsonl', which no run made" in capsys.readouterr().err
    assert mine.is_file()
    mine.unlink()
    assert run(train(tmp_path, *short, "--seed", "5", "--overwrite", "true")) == 0
    assert "seed: 5" in (folder / "config.yaml").read_text() and not list(tmp_path.glob(".*"))


NOWHERE = {  # of each verb that writes a folder or a file, the words before it
    "prepare": ["prepare", "toy", "--output"],
    "warmup": ["warmup", "--model", "nano", "--data", "toy", "--use_cpu", "true", "--output_dir"],
    "rollout": ["rollout", "--config", NANO, "--output_dir"],
    "report": ["report", "{run}", "--output"],
    "compare": ["compare", "{run}", "--output"],
    "export": ["export", "{run}", "--output"],
    "poison": ["poison", "{run}", "--output"],
    "router": [
        *("router", "train", "--config", "{run}/router.yaml", "--steps", "64", "--output"),
    ],
}


@pytest.mark.parametrize("place", ["afile/below", "x" * 300, "afile"])
@pytest.mark.parametrize("verb", NOWHERE)
def test_a_place_that_cannot_be_written_is_one_message(verb, place, tmp_path, capsys, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", {"model": "nano"}).path
    (folder / "router.yaml").write_text("learner: linucb\ntask: synthetic\n")
    (tmp_path / "afile").write_text("mine")
    words = [word.replace("{run}", str(folder)) for word in NOWHERE[verb]]
    assert run([*words, str(tmp_path / place)]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and "Traceback" not in error
    assert (tmp_path / "afile").read_text() == "mine"


PLACES = {
    "train": ("afile", ["--train_data", "toy", "--use_cpu", "true"]),
    "evaluate": ("x" * 300, ["--sets", "[{data: toy, instances: 1}]", "--systems", "gold"]),
}


@pytest.mark.parametrize("verb", PLACES)
def test_a_folder_that_cannot_be_made_is_one_clear_message_and_nothing_is_left(
    verb, tmp_path, capsys
):
    place, options = PLACES[verb]
    (tmp_path / "afile").write_text("mine")
    assert run([verb, "--model", "nano", *options, "--output_dir", str(tmp_path / place)]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and str(tmp_path / place) in error and "to fix: " in error
    assert [path.name for path in tmp_path.iterdir()] == ["afile"] and (
        tmp_path / "afile"
    ).read_text() == "mine"
