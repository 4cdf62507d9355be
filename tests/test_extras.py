"""Without the library of an extra: one error that names library and extra, and all else works."""

import subprocess
import sys
from pathlib import Path

import pytest

from memalpha.contrib.benchmarks.attacks import rate
from memalpha.errors import MissingExtraError
from memalpha.measure.site import draw_lines

ROOT = Path(__file__).resolve().parents[1]
WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # an import of it raises ModuleNotFoundError
from memalpha.cli import main
main()
"""
OPTIONAL = (
    "scipy,datasketch,matplotlib,detect_secrets,phonenumbers,gymnasium,openai,anthropic,langgraph"
)


def call(*words):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, OPTIONAL, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "synthetic"
    done = call("prepare", "synthetic", "--option", "n=2", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_what_needs_no_extra_works_without_any(prepared, tmp_path):
    store = ("--store", tmp_path / "s.db", "--user", "ann")
    (tmp_path / "chat.jsonl").write_text('{"role": "user", "content": "My cat is Biscuit."}\n')
    done = call("import", tmp_path / "chat.jsonl", *store)
    assert done.returncode == 0, done.stderr
    assert "Biscuit" in call("ask", "Which cat?", *store).stdout


@pytest.mark.parametrize(
    ("words", "library", "extra"),
    [
        (("prepare", "synthetic", "--option", "n=2", "--output", "OUT", "--check-against", "DATA"),
         "datasketch", "data"),
    ],
)  # fmt: skip
def test_the_extra_of_a_missing_library_is_named(prepared, tmp_path, words, library, extra):
    places = {"OUT": tmp_path / "out", "DATA": prepared}
    done = call(*(places.get(word, word) for word in words))
    assert done.returncode == 1 and f"{library} is not installed" in done.stderr, done.stderr
    assert f".[{extra}]" in done.stderr and "Traceback" not in done.stderr


def test_without_scipy_and_matplotlib_what_needs_them_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    monkeypatch.setitem(sys.modules, "matplotlib.ticker", None)
    with pytest.raises(MissingExtraError, match=r"scipy[^\0]*\.\[benchmarks\]"):
        rate([True, False])
    with pytest.raises(MissingExtraError, match=r"matplotlib[^\0]*\.\[report\]"):
        draw_lines(None, "reward", {})
