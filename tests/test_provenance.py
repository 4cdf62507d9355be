"""Where numbers come from: the versions, the machine, the exact code; and no secret of a user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memalpha import __version__
from memalpha.cli import run as memalpha
from memalpha.measure.site import write_site
from memalpha.record import folder as runs
from memalpha.record.folder import RunFolder, environment, masked, masked_command, nameless


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
        (["--view_tokens", "64", "--tokenizer", "x", "--train_options", "{n:  4}"],) * 2,
    ],
)
def test_secrets_of_a_command_are_masked_and_nothing_else(words, shown):
    assert masked_command(["memalpha", "train", *words]) == ["memalpha", "train", *shown]


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
    found = masked(config)
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
    assert masked(found) == found


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
