"""Llama and Qwen2 without transformers' model code: the logits are those of transformers and peft."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from stubs import loud_adapter
from transformers import DynamicCache, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from memalpha.files import read_object
from memalpha.models import load_policy_model, resolve_model
from memalpha.models.llama import AdaptedLlama, load_llama, read_lora
from memalpha.models.policy import base_fingerprint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    folder = resolve_model("nano")
    adapter = loud_adapter(tmp_path_factory.mktemp("nano") / "adapter", seed=3)
    return folder, adapter, load_policy_model("nano", adapter=adapter).model.eval()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """With biases, a head of its own, and weights that are large enough for oneDNN."""
    folder = tmp_path_factory.mktemp("qwen")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.k_proj.bias)
    model.save_pretrained(folder)
    settings = LoraConfig(
        r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(model, settings)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    adapted.save_pretrained(folder / "adapter")
    return folder, folder / "adapter", adapted.eval()


def logits_of(model, mask):
    """Of a prompt of two rows, of more of it, and of one token, from one cache."""
    ids = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(1))
    cache = DynamicCache()
    found = []
    for start, end, keep in ((0, 15, torch.tensor([[3], [14]])), (15, 23, 0), (23, 24, 1)):
        shown = {} if mask is None else {"attention_mask": mask[:, :end]}
        with torch.no_grad():
            output = model(
                input_ids=ids[:, start:end],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=keep,
                **shown,
            )
        found.append(output.logits)
    return found


HOLES = torch.ones(2, 24, dtype=torch.long)
HOLES[0, 4:9] = 0
HOLES[1, 20:23] = 0


@pytest.mark.parametrize("name", ["nano", "qwen"])
@pytest.mark.parametrize("mask", [None, HOLES], ids=["whole", "holes"])
def test_logits_are_those_of_transformers_and_peft(name, mask, request):
    folder, adapter, theirs = request.getfixturevalue(name)
    base = load_llama(folder)
    fields = read_object(adapter / "adapter_config.json")
    ours = AdaptedLlama(base, read_lora(base, fields, adapter / "adapter_model.safetensors"))
    with theirs.disable_adapter(), ours.disable_adapter():
        pairs = list(zip(logits_of(ours, mask), logits_of(theirs, mask), strict=True))
    pairs += zip(logits_of(ours, mask), logits_of(theirs, mask), strict=True)
    for mine, expected in pairs:
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=2e-4)
    assert not torch.allclose(pairs[0][0], pairs[3][0], atol=0.1)
    assert base_fingerprint(base.config, 7) == base_fingerprint(theirs.config, 7)


def copied(folder, target, **changes):
    """A copy of a model's folder with other fields in its config.json."""
    target.mkdir()
    for file in folder.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    fields = read_object(folder / "config.json") | changes
    (target / "config.json").write_text(json.dumps(fields))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
        {"a_field_of_tomorrow": 1},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 3},
    ],
    ids=str,
)
def test_what_it_does_not_compute_is_left_to_transformers(nano, tmp_path, changes):
    assert load_llama(copied(nano[0], tmp_path / "same")) is not None
    assert load_llama(copied(nano[0], tmp_path / "other", **changes)) is None


def test_an_adapter_that_is_more_than_lora_is_left_to_peft(nano):
    folder, adapter, _ = nano
    base = load_llama(folder)
    weights = adapter / "adapter_model.safetensors"
    fields = read_object(adapter / "adapter_config.json")
    assert read_lora(base, fields, weights) is not None
    for more in ({"use_dora": True}, {"rank_pattern": {"q_proj": 2}}, {"bias": "all"}):
        assert read_lora(base, fields | more, weights) is None


def test_weights_of_16_bits_are_read_as_float32(nano, tmp_path):
    folder = copied(nano[0], tmp_path / "half")
    rounded = {name: w.bfloat16() for name, w in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype="float32").eval()
    pairs = zip(logits_of(load_llama(folder), None), logits_of(theirs, None), strict=True)
    for mine, expected in pairs:
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=2e-4)


def test_the_end_of_text_is_that_of_the_generation_config(nano, tmp_path):
    folder = copied(nano[0], tmp_path / "ends")
    (Path(folder) / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert load_llama(folder).generation_config.eos_token_id == [2, 5]
