"""The digests by which an evaluation knows its inputs again."""

import json
from pathlib import Path

import pytest

from memalpha.measure.run import MODEL_FILES
from memalpha.record.folder import folder_digest

CONFIG = {
    "r": 16,
    "target_modules": ["q_proj", "v_proj", "up_proj"],
    "layers_to_transform": [0, 2, 1],
}


def adapter(folder: Path, weights: bytes = b"weights", **changes) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({**CONFIG, **changes}, indent=2), encoding="utf-8"
    )
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder_digest(folder, ("adapter_*",))


@pytest.mark.parametrize(
    "changes", [{"weights": b"weighty"}, {"r": 8}, {"layers_to_transform": [0, 1, 2]}]
)
def test_another_adapter_has_another_folder_digest(tmp_path: Path, changes: dict) -> None:
    assert adapter(tmp_path / "a") != adapter(tmp_path / "b", **changes)


def test_a_model_is_known_by_its_weights_template_and_configuration(tmp_path: Path) -> None:
    def model(name: str, weights: bytes = b"x", template: str = "{{ x }}", **config) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(
            json.dumps({"hidden_size": 8, **config}, indent=len(name)), encoding="utf-8"
        )
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        (folder / "memalpha_model.json").write_text(json.dumps({"date": name}), encoding="utf-8")
        return folder_digest(folder, MODEL_FILES)

    first = model("a")
    assert model("b") == first
    assert (
        len({first, model("c", b"y"), model("d", template="{{ y }}"), model("e", hidden_size=9)})
        == 4
    )
