"""What a rented GPU measures, run in small on the CPU."""

import json
import math

import gpu_session
import pytest

from memalpha.update import prepare


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "CUDA", False)
    monkeypatch.setattr(gpu_session, "DEVICE", "cpu")
    monkeypatch.setattr(prepare, "BACKEND", "aot_eager")  # no C++ to compile
    file = tmp_path / "gpu_session.json"

    def run(*words):
        return gpu_session.main(["--output", str(tmp_path), *words])

    return run, lambda: json.loads(file.read_text())


def test_each_part_is_measured_once_and_a_second_call_goes_on(small, monkeypatch):
    run, found = small
    monkeypatch.setitem(gpu_session.PARTS, "update", lambda session: 1 / 0)
    parts = ["decode", "decode_4b", "gradient", "grpo", "grpo_vllm"]
    assert run("--only", *parts, "update") == 1
    first = found()
    assert first["done"] == parts
    assert first["parts"]["update"][0]["error"].startswith("ZeroDivisionError")
    rows = {name: {row["name"]: row for row in rows} for name, rows in first["parts"].items()}
    assert rows["decode"]["small 8 rows, captured against plain"]["equal"] == 8
    assert all(0 < row["from_float32"] < 0.1 for row in rows["gradient"].values())
    assert len(rows["grpo"]["step_time"]["by_step"]) == 2
    assert all(map(math.isfinite, rows["grpo"]["accuracy"]["apart"]))
    monkeypatch.setitem(gpu_session.PARTS, "update", lambda session: session.say("x", seconds=1.0))
    assert run("--only", *parts, "update") == 0
    second = found()
    assert second["parts"].pop("update")[0]["seconds"] == 1.0
    first["parts"].pop("update")
    assert second["parts"] == first["parts"]


def test_useful_work_and_rows_of_the_update(small):
    run, found = small
    assert run("--only", "update") == 0
    rows = {row["name"]: row for row in found()["parts"]["update"]}
    assert list(rows) == [
        "small plain",
        "small flash",
        "small compiled",
        "small compiled, checkpointing",
    ]
    assert all(row["tflops"] > 0 and row["seconds"] > 0 for row in rows.values())


def test_a_part_that_ended_the_process_comes_last(small, monkeypatch):
    run, found = small
    ran = []

    def part(name):
        return lambda session: ran.append(name)

    def ends(session):
        raise SystemExit(137)

    monkeypatch.setattr(gpu_session, "PARTS", {"decode": ends, "grpo": part("grpo")})
    with pytest.raises(SystemExit):
        run("--only", "decode", "grpo")
    monkeypatch.setitem(gpu_session.PARTS, "decode", part("decode"))
    assert run("--only", "decode", "grpo") == 0
    assert ran == found()["done"] == ["grpo", "decode"]
