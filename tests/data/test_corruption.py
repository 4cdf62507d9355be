"""Every loader under damage: a located error or a manifest whose counts add up, never a crash and never a silent loss."""

import json
import re
import shutil

import pytest
from data_samples import SAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memalpha.data.prepare import load_prepared, prepare
from memalpha.data.registry import SOURCES
from memalpha.errors import InputError, ServiceError

WRONG = st.sampled_from([
    None, "", " ", 0, -1, 3.5, True, [], {}, [None], [[]], "text", {"a": 1}, "\ud800", "caf\u00e9\r\n", 10**30, ["", 5],
    float("nan"), float("-inf"),
])  # fmt: skip
WRONG_KEYS = st.sampled_from(["", " ", "\ud800", "caf\u00e9\r\n", "text", "events ", "9" * 5000, "session_" + "9" * 5000])


def test_there_is_a_sample_of_every_source_that_reads():
    assert set(SAMPLES) == {name for name, source in SOURCES.items() if source.needs_input}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_sample_itself_is_counted_whole(tmp_path, name):
    sample = SAMPLES[name](tmp_path)
    manifest = prepare(name, sample.path, tmp_path / "out", options=sample.options, seed=3)
    assert manifest.asked == sample.asked == manifest.questions + sum(manifest.skipped.values())
    assert manifest.skipped.get("malformed", 0) == 0
    again = prepare(name, sample.path, tmp_path / "again", options=sample.options, seed=3)
    assert again.sha256 == manifest.sha256


def positions(data, path=()):
    """Every place in a JSON value."""
    yield path
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in steps:
        yield from positions(value, (*path, key))


def replaced(data, path, value, *, drop=False):
    """A copy with another value at a place, or without it."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    if drop and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(data[path[0]], path[1:], value, drop=drop)
    return copy


def at(data, path):
    return at(data[path[0]], path[1:]) if path else data


def renamed(data, path, key):
    """A copy with another key at a place inside an object."""
    return replaced(data, path[:-1], {key if name == path[-1] else name: value for name, value in at(data, path[:-1]).items()})


def corrupt_text(draw, raw):
    kind = draw(st.sampled_from(["cut", "bytes", "crlf", "cr", "bom", "twice", "line", "empty"]))
    at = draw(st.integers(0, max(0, len(raw) - 1)))
    if kind == "cut":
        return raw[:at]
    if kind == "bytes":
        return raw[:at] + draw(st.binary(min_size=1, max_size=4)) + raw[at + draw(st.integers(0, 3)) :]
    if kind == "crlf":
        return raw.replace(b"\n", b"\r\n")
    if kind == "cr":
        return raw[:at] + raw[at:].replace(b"\n", b"\r")
    if kind == "bom":
        return b"\xef\xbb\xbf" + raw
    if kind == "line":
        lines = raw.splitlines(keepends=True)
        del lines[draw(st.integers(0, len(lines) - 1))]
        return b"".join(lines)
    return raw + raw if kind == "twice" else b""


def corrupt_values(draw, raw, lines):
    data = [json.loads(line) for line in raw.splitlines()] if lines else json.loads(raw)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in positions(data) if place]
        if not places:
            break
        place = draw(st.sampled_from(places))
        if isinstance(place[-1], str) and draw(st.booleans()):
            data = renamed(data, place, draw(WRONG_KEYS))
        else:
            data = replaced(data, place, draw(WRONG), drop=draw(st.booleans()))
    return ("".join(json.dumps(row) + "\n" for row in data) if lines else json.dumps(data)).encode()


def listed(value):
    return len(value) if isinstance(value, list) else 0


def questions_in(data):
    """How many objects in PerLTQA's file have a field ``Question``, wherever they stand."""
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return (isinstance(data, dict) and "Question" in data) + sum(map(questions_in, parts))


# An independent count of the questions that stand in (damaged) data: how many at least.
COUNT = {
    "hotpotqa": len,
    "musique": len,
    "longmemeval": len,
    "booksum": len,
    "perltqa": questions_in,
    "msc": lambda rows: sum(1 for row in rows if isinstance(row, dict) and row.get("self_instruct") is not None),
    "locomo": lambda rows: sum(listed(row.get("qa")) if isinstance(row, dict) else 1 for row in rows),
    "memoryagentbench": lambda rows: sum(listed(row.get("questions")) if isinstance(row, dict) else 1 for row in rows),
    "qmsum": lambda rows: sum(
        listed(row.get("general_query_list")) + listed(row.get("specific_query_list")) if isinstance(row, dict) else 1
        for row in rows
    ),
    "csabstruct": lambda rows: sum(listed(row.get("sentences")) if isinstance(row, dict) else 1 for row in rows),
    "squad": lambda data: sum(
        listed(paragraph.get("qas"))
        for article in (data.get("data") if isinstance(data, dict) else data)
        if isinstance(article, dict)
        for paragraph in (article.get("paragraphs") or [])
        if isinstance(paragraph, dict)
    ),
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_a_located_error_or_is_counted(tmp_path, name, data):
    shutil.rmtree(tmp_path / "in", ignore_errors=True)
    (tmp_path / "in").mkdir()
    sample = SAMPLES[name](tmp_path / "in")
    files = sorted(file for file in (tmp_path / "in").rglob("*") if file.is_file())
    file = data.draw(st.sampled_from([*files, sample.file]))
    raw = file.read_bytes()
    as_values = file.suffix in (".json", ".jsonl") and data.draw(st.booleans())
    lines = file.suffix == ".jsonl"
    damaged = corrupt_values(data.draw, raw, lines) if as_values else corrupt_text(data.draw, raw)
    file.write_bytes(damaged)
    try:
        manifest = prepare(name, sample.path, tmp_path / "out", options=sample.options, seed=1, overwrite=True)
    except InputError as error:
        assert not isinstance(error, ServiceError)
        names = "|".join(re.escape(each.name) for each in files)
        assert re.search(rf"{names}|memories of|made no instance", str(error)), str(error)
        return
    assert manifest.asked == manifest.questions + sum(manifest.skipped.values())
    if as_values and name in COUNT and file == sample.file:
        stands = [json.loads(line) for line in damaged.splitlines()] if lines else json.loads(damaged)
        assert manifest.asked >= COUNT[name](stands)
    assert manifest.questions == sum(len(instance.questions) for instance in load_prepared(tmp_path / "out").instances)
    if manifest.skipped.get("malformed"):
        assert manifest.problems and all(
            re.search(r"line|item|row|sentence|question|\[|'", problem) for problem in manifest.problems
        )
