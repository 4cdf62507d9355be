"""The digests by which an evaluation knows its inputs again."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.evaluation.folder import digest_adapter

CONFIG: dict[str, Any] = {
    "r": 16,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj", "up_proj"],
    "layers_to_transform": [0, 2, 1],
}


def adapter(folder: Path, weights: bytes = b"weights", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}, indent=2), encoding="utf-8")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@settings(max_examples=20, deadline=None)
@given(st.permutations(CONFIG["target_modules"]), st.permutations(list(CONFIG)))
def test_the_order_in_which_peft_writes_a_set_makes_no_other_adapter(modules: list[str], names: list[str]) -> None:
    with TemporaryDirectory() as temporary:
        folder = adapter(Path(temporary))
        before = digest_adapter(folder)
        config = {**CONFIG, "target_modules": modules}
        (folder / "adapter_config.json").write_text(json.dumps({name: config[name] for name in names}), encoding="utf-8")
        assert digest_adapter(folder) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": b"weighty"},
        {"r": 8},
        {"target_modules": ["q_proj", "v_proj"]},
        {"layers_to_transform": [0, 1, 2]},  # of numbers, order may mean something
        {"bias": None},
    ],
)
def test_another_adapter_has_another_digest(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert digest_adapter(adapter(tmp_path / "a")) != digest_adapter(adapter(tmp_path / "b", **changes))


def test_what_is_no_part_of_the_adapter_is_not_in_its_digest(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    before = digest_adapter(folder)
    (folder / "README.md").write_text("another date", encoding="utf-8")
    assert digest_adapter(folder) == before
