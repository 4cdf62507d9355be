"""The wheel, outside the checkout: it holds every file of the package, and the commands work from
it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """train --model nano --full_finetuning true --train_data toy --schema toy
    --train_options {"n":16,"split":"train"} --codec compact --view_tokens 64
    --max_chunk_tokens 64 --max_completion_length 8 --max_steps 1 --output_dir run"""
TYPED = """from memalpha import MemoryAgent

agent = MemoryAgent.without_model(store=":memory:")
reveal_type(agent.ask("Where?", namespace="ann").text)
reveal_type(agent.memory(namespace="ann")[0])
agent.ask(5)
"""
WHOSE = "run --store m.db --user marta"


def test_the_wheel_holds_every_file_of_the_package_and_works(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source, site = tmp_path / "source", tmp_path / "site"  # a copy: building leaves files behind
    shutil.copytree(
        ROOT / "memalpha", source / "memalpha", ignore=shutil.ignore_patterns("__pycache__")
    )
    files = {
        path.relative_to(source) for path in (source / "memalpha").rglob("*") if path.is_file()
    }
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
    )
    if built.returncode:
        pytest.skip(
            f"the wheel's build tools cannot be had: {built.stderr.strip().splitlines()[-1]}"
        )
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    assert files == {
        path.relative_to(site)
        for path in (site / "memalpha").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
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
