"""Preparing every set of a folder: all its sets, all files of a task, and what is said where a file is left."""

import subprocess
import sys
from pathlib import Path

from data_samples import mab_row, memalpha_row, msc_row, write

from memalpha.data.prepare import load_prepared
from memalpha.data.registry import SOURCES

ROOT = Path(__file__).resolve().parents[2]


def prepare_all(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "prepare_all.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def answers(folder):
    return [question.answers for i in load_prepared(folder).instances for question in i.questions]


def test_every_source_that_reads_files_has_its_input(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import prepare_all as script

    assert {item.source for item in script.INPUTS} == {name for name, source in SOURCES.items() if source.needs_input}


def test_all_tasks_of_babi_are_prepared_and_each_part_has_its_own(tmp_path):
    originals = tmp_path / "in"
    for language in ("en", "hn"):
        (originals / language).mkdir(parents=True)
        for name, who in (("qa1_a_test", "Jo"), ("qa2_b_test", "Al"), ("qa1_a_train", "Mo")):
            (originals / language / f"{name}.txt").write_text(f"1 {who} came.\n2 Who came? \t{who}\t1\n")
    done = prepare_all(originals, tmp_path / "out")
    assert done.returncode == 0 and answers(tmp_path / "out" / "babi-test") == [("Jo",), ("Al",)]
    assert answers(tmp_path / "out" / "babi-train") == [("Mo",)]
    assert f"note: babi-test reads {originals / 'en'} and leaves {originals / 'hn'}" in done.stderr


def test_the_files_of_other_parts_of_msc_are_not_the_training_part(tmp_path):
    for folder, part, bees in (("session_5", "test", "wasps"), ("session_5", "valid", "ants"), ("session_4", "train", "bees")):
        (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
        rows = [msc_row(dialog=[{"text": f"I keep {bees}."}], previous_dialogs=[], self_instruct={"B": "What?", "A": bees})]
        (tmp_path / "in" / folder / f"{part}.txt").write_bytes(write(tmp_path / "x.jsonl", rows).read_bytes())
    done = prepare_all(tmp_path / "in", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert [answers(tmp_path / "out" / f"msc-{part}") for part in ("test", "train")] == [[("wasps",)], [("bees",)]]


def test_files_that_are_left_are_named(tmp_path):
    (tmp_path / "in" / "Memalpha" / "data").mkdir(parents=True)
    write(tmp_path / "in" / "Memalpha" / "data" / "test-0.jsonl", [memalpha_row()])
    write(tmp_path / "in" / "Accurate_Retrieval-0.jsonl", [mab_row()])
    write(tmp_path / "in" / "Accurate_Retrieval-1.jsonl", [mab_row()])
    done = prepare_all(tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0 and len(answers(tmp_path / "out" / "memalpha-test")) == 2
    assert len(answers(tmp_path / "out" / "memoryagentbench-accurate_retrieval")) == 2
    left = tmp_path / "in" / "Accurate_Retrieval-1.jsonl"
    assert done.stderr == (
        f"note: memoryagentbench-accurate_retrieval reads {left.with_name('Accurate_Retrieval-0.jsonl')} and leaves {left}\n"
    )


def test_a_tokenizer_that_is_not_there_is_one_line(tmp_path):
    done = prepare_all(tmp_path, tmp_path / "out", "--model", tmp_path / "nothing")
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
