"""The repository as a whole: configs say how they are run, nothing tracked names one machine, every
public name is documented."""

import os
import re
import shlex
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import memalpha
from memalpha.cli.options import AgentOptions
from memalpha.cli.serve import ServeOptions
from memalpha.config import config_names, parse
from memalpha.data.load import load_data
from memalpha.models.registry import MODEL_RECORD, models_dir
from memalpha.use.access import ServeConfig

ROOT = Path(__file__).resolve().parents[1]

# Written in pieces, so that this file does not hold what it looks for.
HOMES = ("work", "root", "home", "Users")
MACHINE_PATH = re.compile(r"(?<![\w.}~-])/(?:" + "|".join(HOMES) + r")/[\w.-]")
REGISTRY_HOSTS = ("pypi" + ".org", "files.python" + "hosted.org", "pypi" + ".python.org")
SCRIPTS = (
    "scripts/docs.sh",
    "scripts/install.sh",
    "scripts/install_newest.sh",
    "scripts/test.sh",
    "scripts/gpu_check.sh",
    ".ci/run",
)
COMMAND = re.compile(r"^# .*\b(?:memalpha|python scripts/).*")
# a kind of configurations, and what stands before the name of one in a command
NAMED = {
    "train": r"\b(?:train|warmup|rollout) --config ",
    "evaluate": r"\bevaluate --config ",
    "accelerate": r"--config_file ",
    "data": r"scripts/prepare\.py ",
}


def tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def machine_faults(text):
    """Absolute paths of somebody's folders and hosts of package registries in a text."""
    return [match.group() for match in MACHINE_PATH.finditer(text)] + [
        host for host in REGISTRY_HOSTS if host in text
    ]


def configs_in(text, kind):
    """Names of configurations of a kind in the commands of a text; not paths and placeholders."""
    words = re.findall(rf"{NAMED[kind]}([\w./-]+)", text)
    return [word for word in words if not re.search(r"[./]|^[A-Z]+$", word)]


def test_every_config_starts_with_the_command_that_runs_it_and_is_yaml():
    configs = sorted((ROOT / "configs").rglob("*.y*ml"))
    for path in configs:
        command = COMMAND.match(path.read_text(encoding="utf-8"))
        assert command and path.stem in configs_in(command[0], path.parent.name), path
    assert [
        path
        for path in configs
        if not isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    ] == []


def test_commands_name_configurations_that_exist():
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("configs/*/*.yaml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    for kind in NAMED:
        names = configs_in(text, kind)
        assert names and set(names) <= set(config_names(kind)), kind


def test_nothing_tracked_names_a_machine_or_a_registry():
    found = {}
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # weights and pictures
            continue
        if faults := machine_faults(text):
            found[str(path.relative_to(ROOT))] = faults[:3]
    assert found == {}


def test_licence_and_version():
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["dynamic"]) == ("Apache-2.0", ["version"])
    assert memalpha.__version__ == metadata.version("memalpha")


def test_constraints_pin_every_direct_dependency_inside_its_range():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    pins = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }
    assert len(pins) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    del extras["vllm"]  # for GPUs alone, and with an older fastapi than the pinned one
    listed = [
        *project["dependencies"],
        *(line for lines in extras.values() for line in lines),
    ]
    for requirement in map(Requirement, listed):
        if requirement.name != "memalpha":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), (
                requirement
            )


def test_forms_and_workflow_are_whole_and_run_what_is_there():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form), path
            assert all(part["type"] in {"textarea", "input", "markdown"} for part in form["body"])
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert versions == [line.rsplit(" ", 1)[1] for line in classifiers if ":: 3." in line]
    commands = " ".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    scripts = re.findall(r"bash ([\w./]+)", commands)
    assert set(scripts) == {".ci/run", "scripts/install.sh", "scripts/docs.sh"}
    assert all((ROOT / script).is_file() for script in scripts)
    weekly = (ROOT / ".github/workflows/newest.yml").read_text(encoding="utf-8")
    assert "bash scripts/test.sh --newest" in weekly and yaml.safe_load(weekly)["jobs"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-format", "ruff-check", "mypy", "docs"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_parse(name):
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


# --------------------------------------------------------------------------------------------
# README and the pages: what is shown works
BASE = models_dir() / "smollm2-135m-instruct" / "pypi"
EXAMPLE = re.search(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.skipif(
    not (BASE / MODEL_RECORD).is_file(),
    reason="needs the base: memalpha fetch smollm2-135m-instruct",
)
def test_the_example_does_what_it_says(tmp_path, monkeypatch, capsys):
    assert EXAMPLE is not None
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize("name", ["README.md", "docs/guides/train.md", "docs/guides/serve.md"])
def test_every_server_that_is_shown_knows_whose_memory_it_serves(name, monkeypatch):
    monkeypatch.setattr("memalpha.use.access.Callers.load", Path)
    shown = commands(name, "serve")
    assert shown
    for words in shown:
        given = words[1:] if words[1].startswith("--") else words[2:]
        _, options, _ = parse(given, [AgentOptions, ServeOptions, ServeConfig], "memalpha serve")
        options.callers()


def test_the_instances_that_are_shown_are_some(tmp_path, monkeypatch):
    block = re.search(
        r"```python\n(.*?)```",
        (ROOT / "docs/guides/train.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(block[1], "train.md", "exec"), {})
    mine, held_out = load_data("mine.jsonl"), load_data("held-out.jsonl")
    assert (len(mine), len(held_out)) == (8, 2)
    first = mine[0]
    assert (first.id, len(first.chunks), first.questions[0].stale) == ("Marta", 2, ("Oslo",))
    assert [fact.value for fact in first.facts] == ["Oslo", "Rome"]
