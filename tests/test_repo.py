"""The repository as a whole: configs say how they are run, nothing tracked names one machine, every
public name is documented."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import memalpha

ROOT = Path(__file__).resolve().parents[1]

# Written in pieces, so that this file does not hold what it looks for.
HOMES = ("work", "root", "home", "Users")
MACHINE_PATH = re.compile(r"(?<![\w.}~-])/(?:" + "|".join(HOMES) + r")/[\w.-]")
REGISTRY_HOSTS = ("pypi" + ".org", "files.python" + "hosted.org", "pypi" + ".python.org")
SCRIPTS = ("scripts/install.sh", "scripts/test.sh", "scripts/gpu_check.sh", ".ci/run")
COMMAND = re.compile(r"^# .*\b(memalpha|accelerate launch|torchrun|(bash|python) scripts/)")


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


def test_every_config_starts_with_the_command_that_runs_it_and_is_yaml():
    configs = sorted((ROOT / "configs").rglob("*.y*ml"))
    wrong = [
        str(path.relative_to(ROOT))
        for path in configs
        if not COMMAND.match(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
    assert [
        path
        for path in configs
        if not isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    ] == []


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
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text
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
    listed = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    for requirement in map(Requirement, listed):
        if requirement.name != "memalpha":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), (
                requirement
            )


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_parse(name):
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)
