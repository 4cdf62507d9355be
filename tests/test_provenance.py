"""Where numbers come from: the versions, the machine, the exact code; no secret of a user; and run folders."""

import math
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from memalpha import __version__
from memalpha.cli import run as memalpha
from memalpha.errors import RunFolderError
from memalpha.measure.site import write_site
from memalpha.record import folder as runs
from memalpha.record.folder import (
    RunFolder,
    checkpoint_step,
    checkpoints_in,
    environment,
    mask_options,
    masked_command,
    nameless,
    trajectory_name,
)


def test_the_code_version_is_that_of_the_checkout_and_says_when_it_differs(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@x")
        return subprocess.check_output(["git", "-C", tmp_path, *identity, *arguments], text=True)

    code = tmp_path / "memalpha" / "record" / "folder.py"
    code.parent.mkdir(parents=True)
    monkeypatch.setattr(runs, "__file__", str(code))
    assert runs.code_version() == f"release {__version__}"
    code.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD").strip()
    (tmp_path / "notes.txt").write_text("not code")
    assert runs.code_version() == commit[:12]
    code.write_text("2")
    assert runs.code_version() == environment()["code"] == commit[:12] + "+changes"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/" + "home/ann/a.jsonl,/" + "home/ann/b", "a.jsonl,b"),
        ("--config=/" + "home/ann/c.yaml", "--config=c.yaml"),
        ("--train_data=/" + "home/ann/a,runs/b", "--train_data=a,runs/b"),
        ("{n: 4, split: train}", "{n: 4, split: train}"),
    ],
)
def test_a_word_of_a_command_can_be_shown_without_the_folders_of_a_machine(word, shown):
    assert nameless(word) == shown


# ----------------------------------------------------------------------------------------------------
# secrets
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--hub_token", "S3CRET", "--seed", "1"], ["--hub_token", "***", "--seed", "1"]),
        (["--hub-token=S3CRET"], ["--hub-token=***"]),
        (
            ["--api_key", "S3CRET", "S3CRET", "--password=S3CRET"],
            ["--api_key", "***", "***", "--password=***"],
        ),
        (["--judge_extra", "{user: S3CRET, n: 1}"], ["--judge_extra", "***"]),
        (
            ["--eval_options={n: 4, auth: {token: S3CRET}}"],
            ["--eval_options={n: 4, auth: {token: ***}}"],
        ),
        (
            ["--endpoint_url", "http://ann:S3CRET@host:80/v1"],
            ["--endpoint_url", "http://***@host:80/v1"],
        ),
        (
            ["--model", "http://S3CRET@host/v1?n=1&api_key=S3CRET", "sk-" + "S3CRET" * 4],
            ["--model", "http://***@host/v1?n=1&api_key=***", "***"],
        ),
        (
            ["--endpoint_url", "https://gw/key/S3CRET/v1"],
            ["--endpoint_url", "https://gw/key/***/v1"],
        ),
        (
            ["--endpoint_url", "https://gw/S3CRET0a1b2c3d4e/v1"],
            ["--endpoint_url", "https://gw/***/v1"],
        ),
        (
            ["--run_name", "ghp_" + "S3CRET" * 6, "AKIAS3CRETS3CRETS3CR"],
            ["--run_name", "***", "***"],
        ),
        (
            ["--train_data", "/data/github_pat_S3CRETS3CRETS3CRET/x"],
            ["--train_data", "/data/***/x"],
        ),
        (
            ["--trl", '{"hub_token": "S3CRET S3CRET", "optim": "adamw"}'],
            ["--trl", '{"hub_token": ***, "optim": "adamw"}'],
        ),
        (
            ["--endpoint_url", "https://gw/v1/6f1e2d3c-1234-4abc-9def-0123456789ab/openai"],
            ["--endpoint_url", "https://gw/v1/***/openai"],
        ),
        # names of models are no keys
        (["--endpoint_url", "https://a.azure.com/openai/deployments/gpt-4o-mini-2024-07-18"],) * 2,
        (["--model", "https://hf.co/Qwen/Qwen3-30B-A3B-Instruct-2507/x"],) * 2,
        (["--train_data", "/data/key/mine.jsonl", "http://localhost:8000/v1/monkey/x"],) * 2,
        (["--view_tokens", "64", "--tokenizer", "x", "--train_options", "{n:  4}"],) * 2,
    ],
)
def test_secrets_of_a_command_are_masked_and_nothing_else(words, shown):
    assert masked_command(["memalpha", "train", *words]) == ["memalpha", "train", *shown]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Authorization: Bearer s3cr3t.S3CRET, n: 1", "Authorization: ***, n: 1"),
        ("{'authorization': 'Bearer S3CRET'}", "{'authorization': ***}"),
        ('{"Proxy-Authorization": "Basic UzNDUkVU=="}', '{"Proxy-Authorization": ***}'),
        ("authorization: token S3CRET", "authorization: ***"),
        ("bearer S3CRETS3CRET was sent", "bearer *** was sent"),
        ("password: 'S3CRET and more', n: 1", "password: ***, n: 1"),
        *[("Bearer authentication is wanted, basic level 12345678 is not",) * 2],
    ],
)
def test_what_a_server_echoes_of_a_header_is_masked_whole(said, shown):
    assert mask_options(said) == mask_options(mask_options(said)) == shown


def test_secrets_of_a_configuration_are_masked_once_and_for_all():
    config: dict[str, Any] = {
        "hub_token": "S3CRET",
        "view_tokens": 64,
        "include_num_input_tokens_seen": "no",
        "push_to_hub_token": None,
        "endpoint_extra": {
            "headers": {"Authorization": "Bearer S3CRET"},
            "stop": ["S3CRET"],
            "max_tokens": 9,
            "echo": True,
        },
        "judge_extra": "{api_key: S3CRET}",
        "systems": [{"name": "mem0", "options": {"api_key": "S3CRET", "n": 1}}],
    }
    found = mask_options(config)
    assert found == {
        "hub_token": "***",
        "view_tokens": 64,
        "include_num_input_tokens_seen": "no",
        "push_to_hub_token": None,
        "endpoint_extra": {
            "headers": {"Authorization": "***"},
            "stop": ["***"],
            "max_tokens": 9,
            "echo": True,
        },
        "judge_extra": "***",
        "systems": [{"name": "mem0", "options": {"api_key": "***", "n": 1}}],
    }
    assert mask_options(found) == found


def test_no_file_of_a_run_folder_and_no_page_of_its_report_holds_a_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        ["memalpha", "train", "--hub_token", "S3CRET", "--endpoint_extra={api_key: S3CRET}"],
    )
    run = RunFolder.create(
        tmp_path / "run",
        {"hub_token": "S3CRET", "endpoint_extra": {"api_key": "S3CRET"}, "seed": 1},
    )
    run.write_json("environment.json", environment())
    assert "--hub_token ***" in write_site(run).read_text()
    assert [
        path for path in run.path.rglob("*") if path.is_file() and b"S3CRET" in path.read_bytes()
    ] == []


def test_a_run_with_secret_options_is_resumed_with_them(tmp_path):
    nano = str(Path(__file__).parents[1] / "configs" / "train" / "nano.yaml")
    small = [
        "--warm_start_steps",
        "0",
        "--eval_data",
        "",
        "--train_options",
        "{n: 8, split: train}",
        "--save_steps",
        "1",
    ]
    secret = [
        "--per_device_train_batch_size",
        "8",
        "--endpoint_extra",
        "{api_key: S3CRET, top_k: 5}",
    ]
    for more in (["--max_steps", "1"], ["--max_steps", "2", "--resume", "true"]):
        assert (
            memalpha(
                ["train", "--config", nano, "--output_dir", str(tmp_path), *small, *secret, *more]
            )
            == 0
        )
    assert len(RunFolder(tmp_path).metrics()) == 2
    assert RunFolder(tmp_path).config["endpoint_extra"] == {"api_key": "***", "top_k": 5}


# --------------------------------------------------------------------------------------------
# the run folder: never overwritten by accident, never half-written, exact about what it holds
CONFIG = {"model": "nano", "seed": 3, "train_options": {"n": 4}}


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", CONFIG)


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ------------------------------------------------------------------------------------------------
# making one
def test_a_new_run_holds_its_options(run):
    made = everything(run.path)
    assert made.keys() == {"config.yaml", "environment.json"}
    assert made["config.yaml"] == yaml.safe_dump(CONFIG, sort_keys=True).encode()
    assert RunFolder(run.path).config == CONFIG


def test_an_existing_run_is_left_alone_unless_told(run):
    run.append_line("metrics.jsonl", {"step": 1})
    before = everything(run.path)
    for how in ({}, {"overwrite": True, "resume": True}):
        with pytest.raises(RunFolderError):
            RunFolder.create(run.path, {"model": "other"}, **how)
    assert everything(run.path) == before
    assert RunFolder.create(run.path, {"model": "other"}, resume=True).config == CONFIG
    assert everything(run.path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_run_is_never_touched(tmp_path, overwrite):
    folder, file = tmp_path / "thesis", tmp_path / "notes.txt"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work", encoding="utf-8")
    file.write_text("notes", encoding="utf-8")
    before = everything(tmp_path)
    for path in (folder, file, file / "run"):
        with pytest.raises(RunFolderError, match=r"exists|is a file"):
            RunFolder.create(path, CONFIG, overwrite=overwrite)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        *(
            "notes.txt",
            "thesis/main.tex",
            "adapter/notes.md",
            "checkpoint-3-good/model.safetensors",
        ),
        *("held_out/mine.csv", "report/index.html", "figures/a.svg", "data.json", "mine.yaml"),
    ],
)
def test_a_run_that_holds_what_no_run_made_is_not_overwritten(run, name):
    (run.path / "adapter").mkdir()
    (run.path / "adapter" / "adapter_config.json").write_text("{}")
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).write_text("years of work")
    before = everything(run.path)
    with pytest.raises(RunFolderError, match=f"holds '{name}', which no run made"):
        RunFolder.create(run.path, CONFIG, overwrite=True)
    assert everything(run.path) == before
    (run.path / name).unlink()
    RunFolder.create(run.path, CONFIG, overwrite=True)
    assert everything(run.path).keys() == {"config.yaml", "environment.json"}


def test_a_link_a_foreign_configuration_or_ones_own_folder_is_not_overwritten(
    run, tmp_path, monkeypatch
):
    home, foreign = tmp_path / "home", tmp_path / "foreign"
    home.mkdir()
    foreign.mkdir()
    (foreign / "config.yaml").write_text("title: my site\n")
    with pytest.raises(RunFolderError, match="no run wrote it"):
        RunFolder.create(foreign, CONFIG, overwrite=True)
    (run.path / "held_out").symlink_to(home)
    with pytest.raises(RunFolderError, match="holds 'held_out', which no run made"):
        RunFolder.create(run.path, CONFIG, overwrite=True)
    (run.path / "held_out").unlink()
    for name, value in (("cwd", run.path), ("home", run.path / "x")):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, lambda value=value: value)
            with pytest.raises(RunFolderError, match="holds the folder"):
                RunFolder.create(run.path, CONFIG, overwrite=True)
    (tmp_path / "link").symlink_to(run.path)  # a link to a run is the run
    RunFolder.create(tmp_path / "link", {"model": "other"}, overwrite=True)
    assert RunFolder(run.path).config == {"model": "other"}


def test_only_a_run_can_be_opened_or_resumed(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunFolderError, match=r"is not a run folder(.|\n)*config\.yaml"):
            RunFolder(path)
        with pytest.raises(RunFolderError, match="is not a run folder"):
            RunFolder.create(path, CONFIG, resume=True)
    assert everything(tmp_path) == {}


# ------------------------------------------------------------------------------------------------
# writing and reading
def test_json_round_trips_with_null_for_what_is_no_number(run):
    data = {
        "a": math.nan,
        "b": [1.5, math.inf, {"c": -math.inf}],
        "text": "é ☂ \u2028",
        3: (1, 2),
        "t": True,
        "n": None,
    }
    run.write_json("deep/er.json", data)
    assert run.read_json("deep/er.json") == {
        "a": None,
        "b": [1.5, None, {"c": None}],
        "text": "é ☂ \u2028",
        "3": [1, 2],
        "t": True,
        "n": None,
    }
    assert "NaN" not in (run.path / "deep/er.json").read_text(encoding="utf-8")


def test_lines_round_trip_whatever_the_text(run):
    rows = [{"text": "one\ntwo\r\u2028\x85", "score": math.nan}, {"text": ""}]
    run.write_lines("held_out/before.jsonl", iter(rows))
    read = list(run.read_lines("held_out/before.jsonl"))
    assert read == [{"text": "one\ntwo\r\u2028\x85", "score": None}, {"text": ""}]
    assert list(run.read_lines("held_out/after.jsonl")) == []


def test_a_write_that_fails_leaves_the_old_files(run):
    for last, wrong in ((2, False), (object(), True)):
        old = everything(run.path)
        for write, name in ((run.write_lines, "rows.jsonl"), (run.write_json, "summary.json")):
            with pytest.raises(TypeError) if wrong else nullcontext():
                write(name, [{"n": 1}, {"n": last}])
    assert {
        name: data for name, data in everything(run.path).items() if not name.startswith(".")
    } == old


@pytest.mark.parametrize("cut", ['{"step": 2, "los', '{"step": 2}'])
def test_a_line_of_the_metrics_cut_by_a_kill_is_left_out_and_said(run, cut, caplog):
    text = '{"step": 1}\n' + cut
    (run.path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert run.metrics() == [{"step": 1}]
    assert "ends in an incomplete line" in caplog.text
    assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "content", [b"", b"- 1\n", b"model: [na", b'{"a": "\xff"}', b'{"steps": 1', b"null", b"[1]"]
)
@pytest.mark.parametrize("name", ["config.yaml", "summary.json"])
def test_a_damaged_file_is_named(run, name, content):
    (run.path / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=name):
        _ = run.config if name == "config.yaml" else run.read_json(name)


# ------------------------------------------------------------------------------------------------
# resuming
def test_a_resumed_run_forgets_what_it_will_write_again(run):
    for step in range(1, 13):
        run.append_line("metrics.jsonl", {"step": step, "reward": step / 2})
        for rank in (0, 1):
            run.write_lines(trajectory_name(step, rank), [{"step": step, "rank": rank}])
    run.drop_after(9)
    assert run.metrics() == [{"step": step, "reward": step / 2} for step in range(1, 10)]
    steps = [checkpoint_step(file) for file in run.trajectory_files()]
    assert steps == sorted([*range(1, 10)] * 2)
    run.drop_after(0)
    assert (run.metrics(), run.trajectory_files()) == ([], [])


def test_checkpoints_come_in_the_order_of_their_steps(run):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-best"):
        (run.path / name).mkdir()
    assert [path.name for path in checkpoints_in(run.path)] == ["checkpoint-9", "checkpoint-10"]
