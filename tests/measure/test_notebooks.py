"""The notebooks: each runs to its end and says what it should; what is kept in git holds no
output."""

import json
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def faults(text: str) -> list[str]:
    """What a notebook in git must not hold."""
    notebook = json.loads(text)
    found = [
        f"cell {i} has been run"
        for i, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code"
        and (cell["outputs"] or cell["execution_count"] is not None or cell["metadata"])
    ]
    extra = set(notebook["metadata"]) - {"kernelspec", "language_info"}
    version = set(notebook["metadata"].get("language_info", {})) - {"name"}
    return found + [f"metadata {name}" for name in sorted(extra | version)]


def executed(name: str) -> list[str]:
    """Run a notebook in its folder; return the text each cell said, pictures and tables as
    ``<type>`` and its text."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    said = []
    for cell in notebook.cells:
        parts = []
        for output in cell.get("outputs", ()):
            if output.get("name") != "stderr":  # progress of libraries
                parts.append(output.get("text", ""))
            for kind, data in output.get("data", {}).items():
                parts.append("<image/png>" if kind == "image/png" else data)
        said.append("".join(parts))
    return said


def test_there_are_the_notebooks_and_none_holds_output() -> None:
    assert NAMES == [
        "data_tour.ipynb",
        "evaluation.ipynb",
        "rollouts.ipynb",
        "train_on_one_gpu.ipynb",
    ]
    assert {
        name: found
        for name in NAMES
        if (found := faults((FOLDER / name).read_text(encoding="utf-8")))
    } == {}


def test_the_data_tour() -> None:
    said = executed("data_tour.ipynb")
    text = "\n".join(said)
    assert text.count("<image/png>") == 1
    scores = next(cell for cell in said if cell.startswith("1.0 ["))
    assert [line[:3] for line in scores.splitlines()] == ["1.0", "0.0", "0.0", "0.0"]
    assert "removed" in text and "small     3 chunks" in text


def test_the_evaluation() -> None:
    said = executed("evaluation.ipynb")
    assert any(
        cell.startswith("144 results, 0 failed") for cell in said
    )  # 2 sets x 6 systems x 12 instances
    assert sum("<image/png>" in cell for cell in said) == 1
    overall = next(cell for cell in said if "mean over 2 sets" in cell and "| gold |" in cell)
    rows = dict(re.findall(r"^\| (\w+) \| \S+ \[.*?\]\*? \| (\S+) \[", overall, re.M))
    assert float(rows["careful"]) > float(rows["careless"]) > 0
    card = next(cell for cell in said if "contradictions" in cell)
    assert "| careful | .000 [.000, .000] |" in card
    assert (
        said[-1].startswith("+0.163 [") and "{1: 0.175, 2: 0.15}" in said[-1]
    )  # (.2 + .1 + 0 + .4) / 4, (.1 + .1 + .1 + .3) / 4


def test_the_rollouts() -> None:
    said = executed("rollouts.ipynb")
    assert sum("<image/png>" in cell for cell in said) == 2
    assert "metrics.jsonl" in "".join(said)
    (sums,) = [cell for cell in said if "largest sum of advantages" in cell]
    assert abs(float(sums.rpartition(":")[2])) < 1e-4
    (counted,) = [cell for cell in said if "never written" in cell]
    assert (
        sum(map(int, re.findall(r"\d+", counted))) == 32 * 8
    )  # rollouts of a step x questions of an instance
    assert "paired difference" in said[-2] and "on 8 instances" in said[-2]


def test_the_training_on_one_gpu_in_small(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MEMALPHA_SMALL", "1")
    monkeypatch.setenv("MEMALPHA_RUN", str(tmp_path / "run"))
    said = executed("train_on_one_gpu.ipynb")
    assert sum("<image/png>" in cell for cell in said) == 1
    (trained,) = [cell for cell in said if "paired difference" in cell]
    assert "step 4 of 4" in trained and "on 8 instances" in trained
    assert said[-1].startswith("memory: [") and "was " in said[-1] and "expected '" in said[-1]
