"""The digests by which an evaluation knows its inputs again."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.evaluation.folder import digest_adapter, digest_model

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


@pytest.mark.parametrize("place", [0, 1, 3_000_000, 4_194_303])
def test_another_byte_anywhere_in_four_mb_of_weights_is_another_model(place, tmp_path):
    weights = bytearray(4_194_304)
    for name, value in (("a", 0), ("b", 1)):
        weights[place] = value
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    assert digest_model(tmp_path / "a") != digest_model(tmp_path / "b")


def test_a_model_is_known_again_but_not_by_its_layout_or_what_wrote_it(tmp_path):
    def model(name: str, size: int = 40_000_000, end: bytes = b"", template: str = "{{ x }}", **config: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        with (folder / "model.safetensors").open("wb") as file:  # sparse
            file.truncate(size - len(end))
            file.seek(0, 2)
            file.write(end)
        (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **config}, indent=len(name)), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        (folder / "memalpha_model.json").write_text(json.dumps({"date": name}), encoding="utf-8")
        return digest_model(folder)

    first = model("a")
    assert model("ab", transformers_version="9") == first
    others = [model("b", 40_000_001), model("c", end=b"x"), model("d", template="{{ y }}"), model("e", hidden_size=9)]
    assert len({first, *others}) == 5
