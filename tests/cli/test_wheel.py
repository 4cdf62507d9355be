"""The wheel, outside the checkout: it holds what the package needs at run time, and the commands work from it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that holds nothing but the installed wheel; dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"  # a copy: building leaves files behind
    shutil.copytree(ROOT / "memalpha", source / "memalpha", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the wheel's build tools cannot be had: {built.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder


def call(installed: Path, *words: str, **more) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed / "site"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "memalpha", *words]
    done = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def test_prepare_training_and_chat_work_from_the_wheel(installed):
    code = "import memalpha; print(memalpha.__file__)"
    environment = os.environ | {"PYTHONPATH": str(installed / "site"), "HF_HUB_OFFLINE": "1"}
    where = subprocess.run([sys.executable, "-c", code], cwd=installed, env=environment, capture_output=True, text=True).stdout
    assert Path(where.strip()).is_relative_to(installed)
    call(installed, "prepare", "synthetic", "--output", "data", "--option", "n=3")
    assert json.loads((installed / "data" / "manifest.json").read_text())["instances"] == 3
    options = ["--model", "nano", "--full_finetuning", "true", "--train_data", "toy", "--schema", "toy", "--codec", "compact"]
    options += ["--view_tokens", "64", "--max_chunk_tokens", "64", "--max_completion_length", "8", "--max_steps", "1"]
    call(installed, "train", *options, "--train_options", "{n: 16, split: train}", "--use_cpu", "true", "--output_dir", "run")
    assert json.loads((installed / "run" / "summary.json").read_text())["steps"] == 1
    call(installed, "report", "run")
    said = call(installed, "chat", "run", "--store", "m.db", "--user", "marta", input="apple boat\n/memory\n/quit\n")
    assert said.stdout.splitlines()[-1].split() == ["entry", "section", "time", "content", "operation"]  # nothing was remembered
    command = [sys.executable, "-m", "memalpha", "serve", "run", "--store", "m.db", "--user", "marta", "--port", "0"]
    server = subprocess.Popen(command, cwd=installed, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert any(line.startswith("serving at http://127.0.0.1:") for line in server.stderr)
    finally:
        server.terminate()
    assert server.wait(30) == 0
