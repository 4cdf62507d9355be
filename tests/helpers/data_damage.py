"""What is held of every source that reads a file, on a small valid one: it is counted whole, and its
damage is a located error or is counted."""

import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from memalpha.data.load import iter_prepared, prepare
from memalpha.errors import InputError
from tests.helpers.data_samples import Sample

WRONG = st.sampled_from(
    [
        None,
        "",
        " ",
        0,
        -1,
        3.5,
        True,
        [],
        {},
        [None],
        [[]],
        "text",
        {"a": 1},
        "\ud800",
        "caf\u00e9\r\n",
        10**30,
        ["", 5],
        float("nan"),
        float("-inf"),
    ]
)
WRONG_KEYS = st.sampled_from(
    ["", " ", "\ud800", "caf\u00e9\r\n", "text", "events ", "9" * 5000, "session_" + "9" * 5000]
)


damaging = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check_counted(tmp_path: Path, name: str, make: Callable[[Path], Sample]) -> None:
    sample = make(tmp_path)
    manifest = prepare(name, sample.path, tmp_path / "out", options=sample.options, seed=3)
    assert manifest.asked == sample.asked == manifest.questions + sum(manifest.skipped.values())
    assert manifest.skipped.get("malformed", 0) == 0
    again = prepare(name, sample.path, tmp_path / "again", options=sample.options, seed=3)
    assert again.sha256 == manifest.sha256


def positions(data, path=()):
    """Every place in a JSON value."""
    yield path
    steps = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in steps:
        yield from positions(value, (*path, key))


def corrupt_text(draw, raw):
    at, lines = draw(st.integers(0, len(raw) - 1)), raw.splitlines(keepends=True)
    del lines[draw(st.integers(0, len(lines) - 1))]
    other = raw[:at] + draw(st.binary(min_size=1, max_size=4)) + raw[at + draw(st.integers(0, 3)) :]
    return draw(
        st.sampled_from(
            [
                raw[:at],
                other,
                raw.replace(b"\n", b"\r\n"),
                b"\xef\xbb\xbf" + raw,
                raw + raw,
                b"".join(lines),
                b"",
            ]
        )
    )


def corrupt_values(draw, raw, lines):
    data = [json.loads(line) for line in raw.splitlines()] if lines else json.loads(raw)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in positions(data) if place]
        if not places:
            break
        *above, key = draw(st.sampled_from(places))
        parent = reduce(getitem, above, data)
        match draw(st.sampled_from(["drop", "rename", "replace"])):
            case "drop":
                del parent[key]
            case "rename" if isinstance(key, str):
                parent[draw(WRONG_KEYS)] = parent.pop(key)
            case _:
                parent[key] = deepcopy(draw(WRONG))
    return ("".join(json.dumps(row) + "\n" for row in data) if lines else json.dumps(data)).encode()


def check_damaged(tmp_path: Path, name: str, make: Callable[[Path], Sample], data) -> None:
    shutil.rmtree(tmp_path / "in", ignore_errors=True)
    (tmp_path / "in").mkdir()
    sample = make(tmp_path / "in")
    files = sorted(file for file in (tmp_path / "in").rglob("*") if file.is_file())
    file = data.draw(st.sampled_from([*files, sample.file]))
    raw = file.read_bytes()
    as_values = file.suffix in (".json", ".jsonl") and data.draw(st.booleans())
    lines = file.suffix == ".jsonl"
    damaged = corrupt_values(data.draw, raw, lines) if as_values else corrupt_text(data.draw, raw)
    file.write_bytes(damaged)
    try:
        manifest = prepare(
            name, sample.path, tmp_path / "out", options=sample.options, seed=1, overwrite=True
        )
    except InputError as error:
        names = "|".join(re.escape(each.name) for each in files)
        assert re.search(rf"{names}|memories of|made no instance", str(error)), str(error)
        return
    assert manifest.asked == manifest.questions + sum(manifest.skipped.values())
    assert manifest.questions == sum(
        len(instance.questions) for instance in iter_prepared(tmp_path / "out")
    )
    assert bool(manifest.problems) or not manifest.skipped.get("malformed")
