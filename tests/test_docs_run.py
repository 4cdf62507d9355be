"""The blocks of a page that follow one another are run in order, as a reader would, in one folder.

Each command gets options that make it small (``SMALL``), so that a page names what is worth running
and the test takes seconds. A block whose first line is ``# FILE`` is saved as that file. A line
that nobody can run is a failure.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import prepare
import pytest

from memalpha.cli import run as memalpha
from memalpha.config import find_config
from memalpha.files import read_object
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema, Section
from memalpha.types import Operation, OperationKind, Question, ReadRequest

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(python|bash|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")
_AGENT = "--max_chunk_tokens 700 --view_tokens 64 --dtype float32 --max_completion_length".split()
SMALL = {
    "prepare": ["--option", "n=4"],
    "warmup": "--model nano --lora_r 2 --max_steps 1 --per_device_train_batch_size 2 --bf16 false"
    " --use_cpu true --pack_tokens 0".split(),
    "train": "--model nano --max_steps 1 --save_steps 1 --per_device_train_batch_size 16"
    " --num_generations 2 --rows_per_forward 8 --train_layers 0 --eval_instances 1"
    " --use_cpu true".split(),
    "evaluate": "--model nano --batch_size 1".split(),
}
SETS = ["--sets", "[{name: d, data: synthetic, options: {n: 1, preset: small, split: test}}]"]
NOT_RUN = {"ask", "serve"}  # needs the base of its agent; ends when it is stopped
SETUP = {"pip", "hf"}  # needs a network
GUIDES = "docs/guides"
TRAIN = f"{GUIDES}/train.md"
PAGES = [TRAIN, *(f"{GUIDES}/{name}.md" for name in ("asker", "own-reward", "own-tool", "router"))]


def steps_of(page: str) -> Iterator[tuple[str, str]]:
    """The blocks of Python, those that are files, and the lines of those of a shell, in order."""
    for kind, text in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if _FILE.match(text):
            yield "file", text
            continue
        if kind == "python":
            yield kind, text
        if kind != "bash":
            continue
        for line in text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield kind, line


def small(words: list[str]) -> list[str]:
    """The words of a command and what makes it small; what a page gives itself stays."""
    verb = words[0]
    more = list(SMALL.get(verb, []))
    if verb in ("warmup", "train", "evaluate"):
        more += [*_AGENT, "160" if verb == "warmup" else "16"]  # demonstrations are not cut
    if verb == "warmup" and "--adapter" not in words:  # the configuration's is of another base
        more += ["--adapter", ""]
    if words[:2] == ["router", "train"]:
        more += ["--steps", "1920"]
    if "--warm_start_steps" in words:
        more += ["--warm_start_steps", "2"]
    if verb == "evaluate" and "--trained" not in words:
        more += SETS
    if verb == "evaluate" and "--trained" in words:
        more = []  # the settings are the agent's own
    return [*words, *more]


def run_line(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[:2] == ["accelerate", "launch"]:
        words = words[words.index("-m") + 1 :]
    if words[0] in SETUP or (words[0] == "memalpha" and words[1] in NOT_RUN):
        return
    if words[0] == "memalpha":
        assert memalpha(small(words[1:])) == 0, line
    elif words[:2] == ["python", "scripts/prepare.py"]:
        config = Path("small.yaml")  # the same sets, of two instances
        config.write_text(re.sub(r"\bn: [0-9]+", "n: 2", find_config("data", words[2]).read_text()))
        assert prepare.main([str(config), *words[3:], "--model", "nano"]) == 0, line
    else:
        pytest.fail(f"nobody runs this line of a page: {line}")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_follow_one_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("configs", "data", "examples", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    names: dict[str, object] = {}
    for kind, text in steps_of(page):
        if kind == "file":
            file = _FILE.match(text)
            assert file
            (tmp_path / file[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, page, "exec"), names)
        else:
            run_line(text)
    if page == TRAIN:
        assert read_object(Path("runs/mine/summary.json"))["steps"] == 1
        measured = read_object(Path("runs/mine-measured/config.yaml"))
        assert [row["name"] for row in measured["systems"]] == ["mine"]
        assert (Path("runs/mine-export") / "README.md").is_file()
    elif page == f"{GUIDES}/asker.md":
        assert read_object(Path("runs/asker/summary.json"))["steps"] == 1


def test_the_quickstart_prints_what_it_shows(tmp_path):
    """Each shell block that has an output is run in one folder; "..." stands for further lines, and
    the head of a store, which depends on random bytes, is not shown.
    """
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    pairs = [(a[1], b[1]) for a, b in pairwise(blocks) if (a[0], b[0]) == ("bash", "text")]
    assert len(pairs) == 2
    place = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": place, "PYTHONPATH": str(ROOT)}
    for commands, shown in pairs:
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        printed = iter(done.stdout.splitlines())
        missing = [line for line in shown.splitlines() if line != "..." and line not in printed]
        assert missing == [], done.stdout


def test_the_retriever_of_contributing_finds_entries_and_lines_newest_first():
    names = {}
    (sample,) = [text for _, text in steps_of("CONTRIBUTING.md") if "NewestRetriever" in text]
    exec(compile(sample, "CONTRIBUTING.md", "exec"), names)
    memory = Memory(MemorySchema("two", (Section("facts"), Section("events"))))
    retriever = names["NewestRetriever"](memory)
    for section, content in (
        ("facts", "one"),
        (ARCHIVE.name, "Ann: two"),
        ("events", "three"),
        (ARCHIVE.name, "Ann: four"),
        ("facts", "five"),
    ):
        assert memory.apply(Operation(OperationKind.INSERT, section, content)).ok

    def search(k, sections=None):
        hits = retriever.search("one", k, sections)
        return [hit.entry.content.removeprefix("Ann: ") for hit in hits]

    assert search(0) == []
    assert search(1) == ["five", "four"]
    assert search(9) == ["five", "four", "three", "two", "one"]
    assert search(2, ["facts"]) == ["five", "one"]
    assert search(1, ["facts", ARCHIVE.name]) == ["five", "four"]
    assert search(1, [ARCHIVE.name]) == ["four"]


def test_the_reader_of_contributing_answers_with_the_first_passage_that_fits():
    names = {}
    (sample,) = [text for _, text in steps_of("CONTRIBUTING.md") if "FirstReader" in text]
    exec(compile(sample, "CONTRIBUTING.md", "exec"), names)
    reader = names["FirstReader"](5, len)
    requests = [ReadRequest(Question("?"), passages) for passages in (("too long", "ab", "c"), ())]
    assert [answer.text for answer in reader.read(requests)] == ["ab", "unknown"]
