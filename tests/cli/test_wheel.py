"""The wheel, outside the checkout: it holds every file of the package, and a command works from it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_every_file_of_the_package_and_works(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source, site = tmp_path / "source", tmp_path / "site"  # a copy: building leaves files behind
    shutil.copytree(ROOT / "memalpha", source / "memalpha", ignore=shutil.ignore_patterns("__pycache__"))
    files = {path.relative_to(source) for path in (source / "memalpha").rglob("*") if path.is_file()}
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source)], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the wheel's build tools cannot be had: {built.stderr.strip().splitlines()[-1]}")
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    assert files == {path.relative_to(site) for path in (site / "memalpha").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    command = [sys.executable, "-m", "memalpha", "prepare", "synthetic", "--output", "data", "--option", "n=3"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("3 instances"), done.stderr
