"""Options of the model: the adapter, 4 bits, the type of the weights."""

from importlib.util import find_spec

import pytest
import torch
from runs_of_nano import OPTIONS, SHORT, train
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.models import load_policy_model
from memalpha.record.folder import RunFolder
from memalpha.training import config
from memalpha.training.build import build_components, load_policy, resolve_dtype
from memalpha.training.config import RunOptions, parse_train_arguments
from memalpha.training.warm_start import parse_warmup_arguments
from memalpha.training.weights import Sharding, check_sharding
from memalpha.types import Prompt, Sampling
from memalpha.update.logps import Row, packed_logps


# ------------------------------------------------------------------------------------------------
# the adapter and the base
def lora_shapes(model):
    """Rank and scale of each adapted layer, by the end of its name."""
    layers = [
        (name.split(".")[-1], layer)
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    ]
    return {
        name: (layer.lora_A["default"].weight.shape[0], layer.scaling["default"])
        for name, layer in layers
    }


def test_an_adapter_has_the_layers_ranks_and_scale_of_its_options():
    given = "--model nano --use_cpu true --lora_r 4 --lora_alpha 8".split()
    run = parse_train_arguments([*given, "--lora_targets", "q_proj", "v_proj"]).run
    assert lora_shapes(load_policy(run)[0]) == {"q_proj": (4, 2.0), "v_proj": (4, 2.0)}
    whole = lora_shapes(
        load_policy(parse_warmup_arguments([*given, "--lora_targets", "all-linear"]).warmup)[0]
    )
    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert whole == dict.fromkeys(layers, (4, 2.0))


@pytest.mark.parametrize("targets", [["q_proj", "q"], ["lm_head"]])
def test_a_name_that_fits_no_adapted_layer_is_refused(targets):
    with pytest.raises(InputError, match=f"names '{targets[-1]}'"):
        load_policy(RunOptions(model="nano", lora_targets=targets))


def test_dropout_acts_in_updates_and_not_where_completions_are_drawn():
    model, tokenizer = load_policy(RunOptions(model="nano", lora_dropout=0.5))
    stir(model)
    prompt, generator = (
        Prompt((), tuple(range(5, 25))),
        HFGenerator(model.train(), tokenizer, logprobs=True),
    )
    (drawn,) = generator.generate([prompt], Sampling(9))
    first, second, exact = (
        packed_logps(model.train(mode), [Row(prompt.ids, drawn.ids)])[0].logps
        for mode in (True, True, False)
    )
    assert not torch.allclose(first, second)
    assert exact.tolist() == pytest.approx(drawn.logprobs, abs=1e-4)


def stir(model):
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def test_arguments_of_from_pretrained_reach_the_policy_and_its_reference():
    eager = ["--full_finetuning", "false", "--model_init_kwargs", "{attn_implementation: eager}"]
    arguments = parse_train_arguments([*OPTIONS, *SHORT, *eager])
    assert arguments.trl_arguments.model_init_kwargs == {"attn_implementation": "eager"}
    assert build_components(arguments).model.config._attn_implementation == "eager"
    with pytest.raises(InputError, match="model_init_kwargs holds device_map, dtype"):
        RunOptions(model_init_kwargs={"dtype": "float16", "device_map": "auto", "revision": "x"})


def test_the_revision_of_the_base_goes_to_model_and_tokenizer_and_is_kept_with_the_adapter(
    tmp_path, monkeypatch
):
    asked = []
    for kind in (AutoModelForCausalLM, AutoTokenizer):
        load = kind.from_pretrained
        fake = lambda *a, load=load, **more: asked.append(more["revision"]) or load(*a, **more)  # noqa: E731
        monkeypatch.setattr(kind, "from_pretrained", fake)
    model, _ = load_policy(RunOptions(model="nano", model_init_kwargs={"revision": "v7"}))
    model.save_pretrained(tmp_path)
    load_policy_model("nano", adapter=tmp_path)
    load_policy_model("nano")
    assert asked == ["v7"] * 4 + ["main"] * 2


# ------------------------------------------------------------------------------------------------
# dtype: auto
@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """Gives this machine a processor with these flags."""

    def give(flags):
        monkeypatch.setattr("memalpha.training.build.CPUS", tmp_path / "cpuinfo")
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu {flags} sse\n")

    return give


def test_bfloat16_is_taken_where_it_is_computed(cpu, monkeypatch):
    def chosen(device, **options):
        return resolve_dtype(RunOptions(dtype="auto", **options), torch.device(device))[0].dtype

    for flags, expected in (
        ("avx512f avx512_bf16", "bfloat16"),
        ("amx_bf16", "bfloat16"),
        ("avx512f avx_ne_convert", "float32"),
    ):
        cpu(flags)
        assert (chosen("cpu"), chosen("mps")) == (expected, "float32")
        assert chosen("cpu", full_finetuning=True) == "float32"
    for native in (True, False):  # a T4 emulates it
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True, it=native: including_emulation or it,
        )
        assert chosen("cuda") == ("bfloat16" if native else "float32")
    given = RunOptions(dtype="bfloat16")
    assert resolve_dtype(given, torch.device("mps")) == (given, "the option dtype")


def test_a_resumed_run_keeps_the_type_and_the_adapter_it_began_with(tmp_path, cpu):
    options = [
        *SHORT,
        "--full_finetuning",
        "false",
        "--dtype",
        "auto",
        "--warm_start_steps",
        "1",
        "--save_steps",
        "1",
    ]
    options += [
        "--lora_targets",
        "q_proj",
        "up_proj",
        "--bf16",
        "true",
    ]  # as on a GPU
    cpu("amx_bf16")
    assert train(tmp_path / "run", *options, "--max_steps", "1") == 0
    assert (
        train(
            tmp_path / "all", *options[:2], *options[4:8], "--full_finetuning", "--max_steps", "1"
        )
        == 0
    )
    assert (
        RunFolder(tmp_path / "all").config["dtype"] == "float32"
    )  # though the processor computes bfloat16
    cpu("of another machine")
    assert train(tmp_path / "run", *options, "--max_steps", "2", "--resume") == 0
    folder = RunFolder(tmp_path / "run")
    began = folder.read_json("environment.json")
    assert folder.config["dtype"] == "bfloat16" and len(folder.metrics()) == 2
    assert began["dtype"] == "bfloat16: this cpu computes bfloat16" and began["resumed"][0][
        "dtype"
    ].startswith("bfloat16")
    for part in ("adapter", "warm_start"):
        shapes = lora_shapes(load_policy_model("nano", adapter=folder.path / part).model)
        assert shapes == {"q_proj": (16, 2.0), "up_proj": (16, 2.0)}


# ------------------------------------------------------------------------------------------------ a
# base in 4 bits
needs_bitsandbytes = pytest.mark.skipif(
    not find_spec("bitsandbytes"), reason="bitsandbytes is not installed"
)


def test_4_bits_are_refused_without_their_library_and_for_weights_that_train_or_are_sharded(
    monkeypatch,
):
    with pytest.raises(InputError, match="full_finetuning with load_in_4bit"):
        RunOptions(full_finetuning=True, load_in_4bit=True)
    with pytest.raises(InputError, match="load_in_4bit with zero3"):
        check_sharding(Sharding.ZERO3, "recall", gathers=True, in_4bit=True)
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install bitsandbytes"):
        RunOptions(load_in_4bit=True)


@needs_bitsandbytes
def test_the_gradient_through_a_4_bit_base_is_that_of_its_weights_after_completions_were_drawn(
    tmp_path,
):
    from bitsandbytes.functional import dequantize_4bit

    model, tokenizer = load_policy(RunOptions(model="nano", load_in_4bit=True, lora_r=4))
    stir(model)
    plain, _ = load_policy(RunOptions(model="nano", lora_r=4))
    stir(plain)
    for (name, layer), mirror in zip(model.named_modules(), plain.modules(), strict=True):
        if type(layer).__name__ == "Linear4bit" and "base_layer" in name:
            mirror.weight.data = dequantize_4bit(
                layer.weight.data, layer.weight.quant_state
            ).float()
    prompt = Prompt((), tuple(range(5, 25)))
    (drawn,) = HFGenerator(model, tokenizer, logprobs=True).generate([prompt], Sampling(12))
    gradients = []
    for policy in (model.train(), plain.train()):
        (scores,) = packed_logps(policy, [Row(prompt.ids, drawn.ids)])
        logps = scores.logps
        assert logps.tolist() == pytest.approx(drawn.logprobs, abs=0.05)
        logps.sum().backward()
        gradients.append(
            torch.cat(
                [p.grad.flatten() for name, p in policy.named_parameters() if "lora_" in name]
            )
        )
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[
        1
    ].norm()  # products are rounded to bfloat16
