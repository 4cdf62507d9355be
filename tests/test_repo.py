"""The repository as a whole: configs say how they are run, nothing tracked names one machine, every public name is documented."""

from __future__ import annotations

import ast
import os
import re
import shutil
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


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def machine_faults(text: str) -> list[str]:
    """Absolute paths of somebody's folders and hosts of package registries in a text."""
    return [match.group() for match in MACHINE_PATH.finditer(text)] + [host for host in REGISTRY_HOSTS if host in text]


def undocumented(source: str) -> list[str]:
    """Public functions, methods and classes without a docstring; underscored names and overload stubs are not public."""
    found: list[str] = []

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If | ast.Try):
                look(child, prefix)
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or child.name.startswith("_"):
                continue
            decorators = {ast.unparse(item).rpartition(".")[2] for item in child.decorator_list}
            if not ast.get_docstring(child) and not decorators & {"overload", "setter"}:
                found.append(prefix + child.name)
            if isinstance(child, ast.ClassDef):
                look(child, f"{prefix}{child.name}.")

    tree = ast.parse(source)
    if not ast.get_docstring(tree):
        found.append("module")
    look(tree, "")
    return found


def exported(source: str) -> list[str] | None:
    """The value of ``__all__`` in a module, None where there is none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def by_kind(name: str) -> tuple[int, str]:
    """Order of linters: constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def bound(source: str) -> set[str]:
    """Names that a module binds anywhere: assigned, imported, defined."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def test_every_config_starts_with_the_command_that_runs_it_and_is_yaml() -> None:
    configs = sorted((ROOT / "configs").rglob("*.y*ml"))
    wrong = [str(path.relative_to(ROOT)) for path in configs if not COMMAND.match(path.read_text(encoding="utf-8"))]
    assert wrong == []
    assert [path for path in configs if not isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)] == []


@pytest.mark.parametrize(
    ("first", "ok"),
    [
        ("# accelerate launch -m memalpha train --config configs/train/nano.yaml", True),
        ("# memalpha evaluate RUN", True),
        ("# the nano run", False),
        ("model: memalpha", False),
    ],
)
def test_the_command_check_can_fail(first: str, ok: bool) -> None:
    assert bool(COMMAND.match(first)) is ok


def test_nothing_tracked_names_a_machine_or_a_registry() -> None:
    found = {}
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # weights and pictures
            continue
        if faults := machine_faults(text):
            found[str(path.relative_to(ROOT))] = faults[:3]
    assert found == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("base: /" + "home/ann/models", 1),
        ('"/' + 'work/x"', 1),
        ("https://" + REGISTRY_HOSTS[0] + "/simple", 1),
        ("runs/work/x ~/home/x $HOME/root/x /etc/home", 0),
        ("PyPI's wheel; https://download.pytorch.org/whl/cpu", 0),
    ],
)
def test_the_machine_check_can_fail(text: str, count: int) -> None:
    assert len(machine_faults(text)) == count


def test_every_public_name_is_documented_and_every_all_is_sorted_and_true() -> None:
    files = sorted((ROOT / "memalpha").rglob("*.py"))
    assert {str(path.relative_to(ROOT)): names for path in files if (names := undocumented(path.read_text(encoding="utf-8")))} == {}
    for path in files:
        source = path.read_text(encoding="utf-8")
        names = exported(source)
        if names is not None:
            assert names in (sorted(set(names)), sorted(set(names), key=by_kind)), path
            assert set(names) <= bound(source), path


def test_the_docstring_check_can_fail() -> None:
    source = '"""M."""\nclass A:\n    """D."""\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\nclass B: ...\n'
    assert undocumented(source) == ["A.f", "h", "B"]
    assert undocumented("x = 1") == ["module"]
    assert exported('__all__ = ["b", "a"]') == ["b", "a"]


def test_every_planted_fault_stands_once_and_names_tests_that_are_there() -> None:
    faults = yaml.safe_load((ROOT / "scripts" / "faults.yaml").read_text(encoding="utf-8"))
    texts = {fault["file"]: (ROOT / fault["file"]).read_text(encoding="utf-8") for fault in faults}
    assert [fault["name"] for fault in faults if texts[fault["file"]].count(fault["old"]) != 1] == []
    assert len({fault["name"] for fault in faults}) == len(faults)
    tests = {test.partition("::")[0] for fault in faults for test in fault["tests"]}
    assert [test for test in tests if not (ROOT / test).is_file()] == []


def test_licence_and_version() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["dynamic"]) == ("Apache-2.0", ["version"])
    assert memalpha.__version__ == metadata.version("memalpha")


def test_constraints_pin_every_direct_dependency_inside_its_range() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [
        line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    ]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    for requirement in map(Requirement, listed):
        if requirement.name != "memalpha":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_parse(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


def _install(tmp_path: Path, python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run install.sh in an empty copy of the project with the given interpreter."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "install.sh", tmp_path / "scripts")
    command = ["bash", str(tmp_path / "scripts" / "install.sh"), *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHON": python}, capture_output=True, text=True, check=False, timeout=60)


def test_install_without_a_new_enough_python_says_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = _install(tmp_path, str(old))
    assert done.returncode == 1
    assert "no Python 3.11 or newer found" in done.stderr
    assert str(old) in done.stderr
    assert "to fix: " in done.stderr
    assert done.stdout.startswith("[install] preparing .venv")
    assert not (tmp_path / ".venv").exists()


def test_install_of_an_unknown_set_says_which_there_are(tmp_path: Path) -> None:
    done = _install(tmp_path, "python3", "everything")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'everything'; expected: run or dev" in done.stderr
