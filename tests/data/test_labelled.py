"""Labelled sentences from files of odd forms: line ends of old systems, rows in place of splits, labels that are missing."""

import gzip

import pytest

from memalpha.data.labelled import read_abstracts, read_parallel, read_trec_coarse


def read(reader, source, split="train"):
    return [(row.text, row.label) for row in reader(str(source), split)]


# ------------------------------------------------------------------------------------------------ line ends
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ends", ["\r", "\n", "\r\n", "\n\r", "\n\r\r\n"])
def test_lines_end_at_every_line_end_and_at_several_in_one_file(tmp_path, ends, packed):
    def put(name, lines):
        raw = "".join(line + ("\n" if n % 3 else ends) for n, line in enumerate(lines)).encode("latin-1")
        (tmp_path / f"{name}.gz" if packed else tmp_path / name).write_bytes(gzip.compress(raw) if packed else raw)

    wanted = [(f"What caf\u00e9 is {n} ?", "AB"[n % 2]) for n in range(8)]
    end = ".gz" if packed else ""
    put("x.txt", [f"{label}:x {text}" for text, label in wanted])
    assert read(read_trec_coarse, tmp_path / f"x.txt{end}") == wanted
    put("y.txt", ["###1", *(f"{label}\t{text}" for text, label in wanted)])
    assert read(read_abstracts, tmp_path / f"y.txt{end}") == wanted
    put("seq.in", [text for text, _ in wanted])
    put("label", [label for _, label in wanted])
    assert read(read_parallel, tmp_path) == wanted
