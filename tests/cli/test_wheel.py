"""The wheel, outside the checkout: it holds every file of the package and the configurations, as does
the sdist, and the commands work from it."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = (
    "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
)
TRAIN = """train --config nano --train_options {"n":16,"split":"train"} --warm_start_steps 0
    --eval_instances 1 --max_completion_length 8 --max_steps 1 --output_dir run"""
TYPED = """from memalpha import MemoryAgent

agent = MemoryAgent.without_model(store=":memory:")
reveal_type(agent.ask("Where?", namespace="ann").text)
reveal_type(agent.memory(namespace="ann")[0])
agent.ask(5)
"""
WHOSE = "run --store m.db --user marta"


def build(kind, source, folder, tools):
    """Build a wheel or an sdist, as an installer does, and return its path."""
    folder.mkdir()
    words = [sys.executable, "-c", BUILD, f"build_{kind}", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    subprocess.run(words, cwd=source, env=environment, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def content_of(wheel):
    """Names and checksums of the files of a wheel."""
    with ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def test_wheel_and_sdist_hold_every_file_of_the_package_and_the_wheel_works(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    source, site, tools = tmp_path / "source", tmp_path / "site", tmp_path / "tools"
    had = subprocess.run(
        [*pip, "--target", str(tools), "setuptools>=77"], capture_output=True, text=True
    )
    if had.returncode:
        pytest.skip(f"the build tools cannot be had: {had.stderr.strip().splitlines()[-1]}")
    # a copy, since building leaves files behind; the tests, to see that they do not travel
    for name in ("memalpha", "configs", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    top = {"pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
    for name in top:
        shutil.copy(ROOT / name, source / name)
    paths = [path for path in (source / "memalpha").rglob("*") if path.is_file()]
    files = {str(path.relative_to(source)) for path in paths}
    configs = (source / "configs").rglob("*.yaml")
    files |= {f"memalpha/{path.relative_to(source)}" for path in configs}
    sdist = build("sdist", source, tmp_path / "sdist", tools)
    wheel = build("wheel", source, tmp_path / "wheel", tools)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
        names = {info.name.partition("/")[2] for info in archive if info.isfile()}
    made = {name for name in names if name.startswith("memalpha.egg-info/")}
    assert names - made == files | top | {"PKG-INFO", "setup.cfg"}
    content = content_of(wheel)
    assert {name for name in content if ".dist-info/" not in name} == files
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert content_of(build("wheel", unpacked, tmp_path / "again", tools)) == content
    subprocess.run([*pip, "--no-deps", "--target", str(site), str(wheel)], check=True)
    place = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"},
        "text": True,
    }
    memalpha = [sys.executable, "-P", "-m", "memalpha"]

    def call(words, said=""):
        done = subprocess.run(
            [*memalpha, *words.split()], input=said, capture_output=True, timeout=300, **place
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    code = "import memalpha; print(memalpha.__file__)"
    assert subprocess.check_output([sys.executable, "-c", code], **place).startswith(str(site))
    call(TRAIN)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 1
    assert (
        call(f"chat {WHOSE}", "apple boat\n/memory\n")
        .splitlines()[-1]
        .strip()
        .startswith("0 entries")
    )  # nothing was remembered
    server = subprocess.Popen(
        [*memalpha, "serve", *WHOSE.split(), "--port", "0"], stderr=subprocess.PIPE, **place
    )
    try:
        url = next(line for line in server.stderr if line.startswith("serving at ")).split()[2]
        assert httpx.get(f"{url}/v1/memory", trust_env=False).json() == {
            "entries": [],
            "total": 0,
            "lines": 0,
        }
    finally:
        server.terminate()
    assert server.wait(30) == 0
    assert types_seen(site, tmp_path) == [
        'note: Revealed type is "str"',
        'note: Revealed type is "memalpha.types.Entry"',
        'error: Argument 1 to "ask" of "MemoryAgent" has incompatible type "int"; expected "str"',
    ]


def types_seen(site, folder):
    """What mypy says of a program outside the checkout that uses the installed package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "other"], cwd=folder, check=True)
    (packages,) = folder.glob("other/lib/python*/site-packages")
    (packages / "site.pth").write_text(str(site))
    (folder / "outside.py").write_text(TYPED)
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--python-executable=other/bin/python"),
            *("--hide-error-codes", "--no-error-summary", "outside.py"),
        ],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    return [line.split(": ", 1)[1] for line in checked.stdout.splitlines()]
