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


def executed(name: str) -> list[str]:
    """Run a notebook in its folder; return the text each cell said, pictures and tables as
    ``<type>`` and its text."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    where = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    said = []
    for cell in notebook.cells:
        said.append("")
        for output in cell.get("outputs", ()):
            data = dict(output.get("data", {}))
            if data.pop("image/png", None):
                said[-1] += "<image/png>"
            text = output.get("text", "") if output.get("name") != "stderr" else ""
            said[-1] += text + "".join(data.values())
    return said


def test_there_are_the_notebooks_and_none_holds_output() -> None:
    names = ["data_tour", "evaluation", "rollouts", "train_on_one_gpu"]
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == names
    for path in FOLDER.glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs") and not cell.get("execution_count"), path.name


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
