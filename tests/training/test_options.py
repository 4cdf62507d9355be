"""Options of the model, and what does not fit, found before anything is trained."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.data.rows import instance_to_json
from memalpha.errors import InputError
from memalpha.models import load_policy_model
from memalpha.record.folder import RunFolder
from memalpha.training import build, config
from memalpha.training.build import (
    build_components,
    check_notation,
    load_policy,
    make_judge,
    resolve_dtype,
)
from memalpha.training.config import PolicyOptions, RunOptions, parse_train_arguments
from memalpha.training.weights import Sharding, check_sharding
from memalpha.types import (
    Chunk,
    Entry,
    Fact,
    FactAction,
    Instance,
    Operation,
    OperationKind,
    OperationResult,
    Question,
    ResultCode,
    WriteRequest,
)
from tests.helpers.gradient_check import make_base
from tests.helpers.runs_of_nano import SHORT, train


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


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"codec": "hermes"}, "codec 'compact', but the run has 'facts' and 'hermes'"),
        (
            {"schema": "small_core"},
            "schema 'facts' and codec 'compact', but the run has 'small_core'",
        ),
        ({"schema": "own.yaml"}, "the run has 'own.yaml'"),
        ({}, ""),
    ],
)
def test_a_policy_of_another_notation_is_refused(tmp_path, monkeypatch, more, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("name: own\nsections: [{name: facts, kind: list}]\n")
    AgentConfig(schema="facts", codec="compact").save(tmp_path)
    _, tokenizer = load_policy(PolicyOptions(model="nano"))
    agent = AgentStep(AgentConfig(**{"schema": "facts", "codec": "compact", **more}), tokenizer)
    check_notation("", agent)  # a base without an agent's file
    if named:
        with pytest.raises(InputError, match=named):
            check_notation(str(tmp_path), agent)
    else:
        check_notation(str(tmp_path), agent)


@pytest.mark.parametrize("targets", [["q_proj", "q"], ["lm_head"]])
def test_a_name_that_fits_no_adapted_layer_is_refused(targets):
    with pytest.raises(InputError, match=f"names '{targets[-1]}'"):
        load_policy(RunOptions(model="nano", lora_targets=targets))


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
    with pytest.raises(InputError, match="model_init_kwargs holds device_map, dtype"):
        RunOptions(model_init_kwargs={"dtype": "float16", "device_map": "auto", "revision": "x"})


# ------------------------------------------------------------------------------------------------
# dtype: auto
@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """Gives this machine a processor with these flags."""

    def give(flags):
        monkeypatch.setattr("memalpha.training.build.CPUS", tmp_path / "cpuinfo")
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu {flags} sse\n")

    return give


def test_bfloat16_is_taken_where_it_is_computed(cpu):
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
        "--lora_targets",
        "q_proj",
        "up_proj",
        "--bf16",
        "true",
    ]  # as on a GPU
    cpu("amx_bf16")
    assert train(tmp_path / "run", *options, "--max_steps", "1") == 0
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


def test_4_bits_are_refused_without_their_library_and_for_weights_that_train_or_are_sharded(
    monkeypatch,
):
    with pytest.raises(InputError, match="full_finetuning cannot be combined with load_in_4bit"):
        RunOptions(full_finetuning=True, load_in_4bit=True)
    with pytest.raises(InputError, match="load_in_4bit cannot be combined with zero3"):
        check_sharding(Sharding.ZERO3, "recall", gathers=True, in_4bit=True)
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install bitsandbytes"):
        RunOptions(load_in_4bit=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vllm_urls": ["http://a/v1"]}, "vllm_urls is given, but generator is transformers"),
        (
            {"generator": "vllm", "full_finetuning": True},
            "full_finetuning cannot be combined with generator vllm",
        ),
        (
            {"generator": "vllm", "load_in_4bit": True},
            "load_in_4bit cannot be used with vLLM in this process",
        ),
        ({"generator": "vllm"}, r"pip install 'memalpha\[vllm\]'"),
    ],
)
def test_generators_that_cannot_be_are_refused(monkeypatch, options, said):
    there = {"bitsandbytes": True}
    monkeypatch.setattr(config, "find_spec", there.get)
    with pytest.raises(InputError, match=said):
        RunOptions(**options)
    RunOptions(generator="vllm", vllm_urls=["http://a/v1"])  # needs no vLLM here


def instance(city: str, name: str = "1") -> Instance:
    fact = Fact(0, FactAction.STATE, "Ann", "city", city)
    return Instance(
        name, "mine", (Chunk(f"Ann lives in {city}."),), (Question("Where?", (city,)),), (fact,)
    )


def wrote(city: str, name: str) -> WriteRequest:
    result = OperationResult(
        True,
        ResultCode.APPLIED,
        "",
        Operation(OperationKind.INSERT, "facts", f"Ann city {city}"),
        "1",
    )
    entry = Entry("1", "facts", f"Ann city {city}")
    return WriteRequest(name, 0, Chunk(f"Ann lives in {city}."), (result,), (None,), (entry,))


@pytest.mark.parametrize("judge", ["facts", "auto"])
def test_instances_of_one_id_are_not_judged_by_the_facts_of_one_another(judge):
    run = RunOptions(content_judge=judge)
    with pytest.raises(InputError, match="two instances with different facts are called '1'"):
        make_judge(run, [instance("Oslo"), instance("Rome")])
    with pytest.raises(InputError, match="are called '1'"):
        make_judge(run, [instance("Oslo"), replace(instance("Oslo"), facts=())])
    made = make_judge(run, [instance("Oslo"), instance("Rome", "2")])
    assert made.judge([wrote("Oslo", "1"), wrote("Oslo", "2")]) == [[True], [False]]


@pytest.mark.parametrize("where", ["--train_data", "--eval_data"])
def test_a_question_that_cannot_be_scored_is_found_before_anything_is_trained(tmp_path, where):
    known = instance("Oslo")
    unscorable = replace(known, questions=(replace(known.questions[0], metric="judge"),))
    for name, row in (("good", known), ("bad", unscorable)):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps(instance_to_json(row)) + "\n", encoding="utf-8"
        )
    data = {"--train_data": "good", "--eval_data": "good", where: "bad"}
    options = [
        word for name, file in data.items() for word in (name, str(tmp_path / f"{file}.jsonl"))
    ]
    agent = [
        "--schema",
        "toy",
        "--codec",
        "compact",
        "--max_chunk_tokens",
        "64",
        "--max_completion_length",
        "8",
    ]
    with pytest.raises(InputError, match="judge"):
        build_components(
            parse_train_arguments(["--use_cpu", "true", "--model", "nano", *agent, *options])
        )


def test_layers_are_compiled_on_cuda_where_that_pays(monkeypatch):
    model = make_base("llama")
    monkeypatch.setattr(build, "WORTH_COMPILING", sum(p.numel() for p in model.parameters()))

    def compiles(device="cuda", kind=DistributedType.NO, compiler="/usr/bin/cc", **options):
        state = SimpleNamespace(device=torch.device(device), distributed_type=kind)
        monkeypatch.setattr(build, "PartialState", lambda: state)
        monkeypatch.setattr(build, "which", lambda name: compiler)
        return build.compiles(SimpleNamespace(**vars(PolicyOptions()) | options), model)

    monkeypatch.delenv("CC", raising=False)
    assert compiles()
    assert not compiles("cpu") and compiles("cpu", compile=True)
    assert not compiles(compile=False) and not compiles(compiler=None)
    assert not compiles(load_in_4bit=True) and not compiles(kind=DistributedType.FSDP)
    monkeypatch.setattr(build, "WORTH_COMPILING", build.WORTH_COMPILING + 1)
    assert not compiles()


def test_a_hub_that_makes_no_repository_is_one_clear_error(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ConnectionError("no route to the Hub")

    monkeypatch.setattr(Trainer, "init_hf_repo", refuse)
    more = [*SHORT, "--warm_start_steps", "0", "--trl", "{push_to_hub: true}"]
    assert train(tmp_path / "run", *more) == 1
    said = capsys.readouterr().err
    assert "error: push_to_hub is set, but no repository can be made: no route to the Hub" in said
    assert not (tmp_path / "run").exists()
