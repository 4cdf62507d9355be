"""Options: YAML and command line reach every group, and what does not fit is one message that names
it."""

import re
import shlex
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path

import pytest
import yaml
from pydantic import PositiveInt
from transformers import TrainingArguments
from trl import GRPOConfig

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.cli import run
from memalpha.config import Options, Range, config_names, find_config, names, parse
from memalpha.errors import InputError
from memalpha.files import read_object
from memalpha.measure.options import parse_evaluate_options
from memalpha.memory.schema import MemorySchema
from memalpha.record.folder import RunFolder, mask_options
from memalpha.training.config import PASSED_ON, REFUSED, GRPOOptions, parse_train_arguments
from memalpha.training.run import all_options
from memalpha.training.warm_start import WarmupTrainerOptions, parse_warmup_arguments
from memalpha.use.access import Callers

ROOT = Path(__file__).parents[1]
CPU = ["--use_cpu", "true"]


@dataclass(frozen=True)
class Group(Options):
    """A group.

    Attributes:
        size: How many.
        span: Fewest and
            most.
    """

    size: PositiveInt = 3
    span: Range = (1, 2)
    name: str = ""
    rate: float = 1.0
    more: dict[str, object] | None = None
    rows: tuple[str, ...] = ()
    on: bool = False


def write(tmp_path, text):
    path = tmp_path / "options.yaml"
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path)]


# ------------------------------------------------------------------------------------------------
# the parser
def test_a_file_begins_with_the_options_of_its_base_and_a_flag_comes_last(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "first.yaml").write_text("size: 1\nspan: [5, 6]\nrows: [a, b]\n")
    (tmp_path / "second.yaml").write_text("base: far/first.yaml\nspan: null\nrows: [c]\n")
    given = [*write(tmp_path, "base: second.yaml\nrate: 2.0\n"), "--rate", "3"]
    wanted = Group(size=1, rate=3.0, rows=("c",))  # null: the default again
    assert parse(given, [Group], "it")[0] == wanted


def test_what_a_caller_gives_is_above_the_file_and_below_the_flags(tmp_path):
    file = write(tmp_path, "size: 5\nname: file\nrate: 2.5\n")
    given = {"name": "null", "rows": ["[a", "b: c"], "size": 6}
    wanted = Group(size=7, name="null", rate=2.5, rows=("[a", "b: c"))
    assert parse([*file, "--size", "7"], [Group], "it", given=given)[0] == wanted


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--size", "7"], {"size": 7}),
        (["--span", "80-160"], {"span": (80, 160)}),
        (["--span", "[80, 160]"], {"span": (80, 160)}),
        (["--name", "7"], {"name": "7"}),
        (["--rate", "1e-4"], {"rate": 1e-4}),
        (["--more", "{a: 1}"], {"more": {"a": 1}}),
        (["--rows", "a", "b"], {"rows": ("a", "b")}),
        (["--rows", "a", "--size", "4", "--rows", "b"], {"rows": ("b",), "size": 4}),
        (["--rows", "[b, c]"], {"rows": ("b", "c")}),
        (["--on"], {"on": True}),
        (["--on", "false"], {"on": False}),
    ],
)
def test_words_of_the_command_line_become_values(arguments, expected):
    assert parse(arguments, [Group], "it")[0] == Group(**expected)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--size", "many"], "size is 'many'"),
        (["--size", "true"], "size is 'true'"),
        (["--rate", "nan"], "rate is 'nan'"),
        (["--siz", "1"], "no option 'siz'"),
        (["size", "1"], "the argument 'size' is not recognised"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_does_not_fit_is_named(arguments, named):
    with pytest.raises(InputError) as caught:
        parse(arguments, [Group], "it")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["- a\n- b\n", "a: [1", "", "name: [a]", "siz: 1", "base: no.yaml", "base: options.yaml"],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text):
    with pytest.raises(InputError):
        parse(write(tmp_path, text), [Group], "it")


# ------------------------------------------------------------------------------------------------
# configurations of the package
@pytest.mark.parametrize("kind", ["accelerate", "data", "evaluate", "train"])
def test_a_configuration_of_the_package_goes_by_its_name(kind):
    files = {path.stem: path for path in (ROOT / "configs" / kind).glob("*.yaml")}
    assert config_names(kind) == sorted(files) and len(files) >= 3
    for name, path in files.items():
        assert find_config(kind, name).read_bytes() == path.read_bytes()


def test_a_word_without_a_slash_and_a_suffix_is_a_name_and_all_else_is_a_path(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for path in ("nano", "mine.yaml", "far/nano"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(f"model: model/{path}\n")
    Path("above.yaml").write_text("base: nano\nseed: 7\n")  # of the package, not the file beside

    def model(config):
        run, _, _, arguments, _ = parse_train_arguments(["--config", config, *CPU])
        return run.model, arguments.seed

    assert model("nano") == ("nano", 1)
    assert model("above.yaml") == ("nano", 7)
    for path in ("./nano", "mine.yaml", "far/nano", str(tmp_path / "nano")):
        read = yaml.safe_load(Path(path).read_text())
        assert model(path)[0] == read["model"] != "nano"
    for verb in (parse_train_arguments, parse_warmup_arguments):
        with pytest.raises(
            InputError, match=r"configuration 'mine'\n.*archive, .*nano, .*mine\.yaml"
        ):
            verb(["--config", "mine"])
    with pytest.raises(InputError, match=r"no\.yaml(.|\n)*a name: archive, .*nano"):
        parse_train_arguments(["--config", "no.yaml"])
    with pytest.raises(InputError, match=r"configuration 'nano'\n.*archive, .*quick"):
        parse_evaluate_options(["--config", "nano"])
    Path("far/options").write_text("size: 4\n")
    monkeypatch.chdir("far")
    assert parse(["--config", "options"], [Group], "it")[0].size == 4  # there are no names


# ------------------------------------------------------------------------------------------------
# hostile YAML
BOMB = (
    "a0: &a0 ["
    + ", ".join(["x" * 9] * 9)
    + "]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 8))
)


@pytest.mark.parametrize(
    "read_it",
    [
        MemorySchema.load,
        lambda path: parse(["--config", str(path)], [Group], "it"),
        read_object,
        Callers.load,
    ],
)
@pytest.mark.parametrize("text", [BOMB, f"size: {'9' * 100_000}", "[" * 10_000])
def test_yaml_that_grows_is_refused_with_a_short_message(tmp_path, read_it, text):
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_it(path)
    assert len(str(caught.value)) < 10_000


# ------------------------------------------------------------------------------------------------
# training
def test_the_file_sets_options_of_every_group(tmp_path):
    text = "model: some/model\nview_tokens: 77\ntool_weight: 0.25\nlearning_rate: 3.0e-4\n"
    given = [*write(tmp_path, text), "--max_completion_length", "12", *CPU]
    run, agent, reward, grpo, _ = parse_train_arguments(given)
    assert (run.model, reward.tool_weight, grpo.learning_rate) == ("some/model", 0.25, 3e-4)
    assert (agent.view_tokens, agent.max_completion_length) == (77, 12)
    assert grpo.max_completion_length == 12  # an option of two groups goes to both


MORE = {
    "validation": "--eval_strategy steps --eval_steps 5 --save_steps 5 --load_best_model_at_end",
    "mini-batches": "--per_device_train_batch_size 32 --steps_per_generation 2 --num_iterations 2",
    "schedule": "--lr_scheduler_type cosine --trl '{lr_scheduler_kwargs: {num_cycles: 2}}'",
    "sharding": "--trl '{fsdp: full_shard, fsdp_config: {transformer_layer_cls_to_wrap: [X]}}'",
    "full": "--full_finetuning --beta 0.1 --trl '{optim: adamw_torch}'",
    "memory": "--gradient_checkpointing --scale_rewards none",
    "cispo": "--loss_type cispo --epsilon_high 5 --max_steps -1 --num_train_epochs 2.5",
    "values": "--endpoint_extra '{top_k: 5}' --rewards '{builtins:len: 0.3}' --lora_targets q_proj",
    "command": "--resume --overwrite",
    "preset": "--preset published",
}
FILES = sorted((ROOT / "configs" / "train").glob("*.yaml"))
NAMES = [path.stem for path in FILES if not path.stem.startswith(("warmup", "reader"))]


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_the_record_of_a_run_is_a_configuration_of_the_same_run(tmp_path, name):
    shipped = ["--config", str(ROOT / "configs" / "train" / f"{name}.yaml")]
    given = parse_train_arguments([*(shlex.split(MORE[name]) if name in MORE else shipped), *CPU])
    recorded = RunFolder.create(tmp_path / "run", all_options(given))
    again = parse_train_arguments(["--config", str(recorded.path / "config.yaml")])
    assert mask_options(all_options(again)) == recorded.config
    of_a_command = {"overwrite": False, "resume": False}
    assert [replace(given.run, **of_a_command), *given[1:3]] == list(again[:3])
    assert given.trl_arguments.to_dict() == again.trl_arguments.to_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trl", "{hub_token: S3CRET}"),
        ("endpoint_extra", "{api_key: S3CRET, top_k: 5}"),
        ("endpoint_extra", "{stop: [S3CRET]}"),
        ("model", "http://ann:S3CRET@host/m"),
        ("train_options", "{n: 4, deep: [{password: S3CRET}]}"),
    ],
)
def test_a_secret_that_the_record_left_out_is_asked_for(tmp_path, name, value):
    folder = RunFolder.create(
        tmp_path / "run", all_options(parse_train_arguments([*CPU, f"--{name}", value]))
    )
    given = ["--config", str(folder.path / "config.yaml")]
    with pytest.raises(
        InputError, match=rf"{name} holds \*\*\*(.|\n)*give the value again with --{name}"
    ):
        parse_train_arguments(given)
    assert (
        mask_options(all_options(parse_train_arguments([*given, f"--{name}", value])))
        == folder.config
    )


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("{weight_decai: 0.5}", "weight_decay"),
        ("{fp16: true}", "the option of this name"),
        ("{trust_remote_code: true}", "is never run"),
        ("{learning_rate: 1}", "the option of this name"),
        ("{min_p: 0.1}", "temperature, top_p and top_k"),
        ("{use_vllm: true}", "generator: vllm"),
        ("{save_strategy: 1}", "the option of this name"),
        ("{optim: nothing}", "nothing is not a valid"),
    ],
)
def test_what_the_mapping_may_not_hold_is_named(value, named):
    with pytest.raises(InputError, match=named):
        parse_train_arguments([*CPU, "--trl", value])


@pytest.mark.parametrize("verb", [parse_train_arguments, parse_warmup_arguments])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("{adam_beta1: a}", "adam_beta1: 'a'"),
        ("{adam_beta1: 1.0}", "adam_beta1: 1.0\n.*less than 1"),
        ("{adam_epsilon: 0}", "adam_epsilon: 0\n.*greater than 0"),
        ("{weight_decay: -1}", "weight_decay: -1\n"),
        ("{log_level: loud}", "log_level: 'loud'\n.*'warning'"),
        ("{full_determinism: 3}", "full_determinism: 3\n"),
        ("{hub_token: 12345}", r"hub_token: (12345|'\*\*\*')\n"),
        ("{lr_scheduler_kwargs: 3}", "lr_scheduler_kwargs: 3\n"),
        ("{lr_scheduler_kwargs: {nope: 1}}", "do not fit: .*'nope'"),
        ("{deepspeed: not_there.json}", "do not fit: "),
    ],
)
def test_values_that_would_fail_after_loading_are_refused_as_they_are_read(verb, value, named):
    with pytest.raises(InputError, match=named):
        verb([*CPU, "--trl", value])


@pytest.mark.parametrize(
    "value",
    [
        "{top_p: 2}",
        "{top_p: 0}",
        "{top_k: -5}",
        "{delta: -1}",
        "{importance_sampling_level: word}",
        "{off_policy_mask_threshold: x}",
        "{vllm_importance_sampling_clip_max: 0}",
    ],
)
def test_values_that_make_no_loss_or_no_draw_are_refused(value):
    name = value[1:].partition(":")[0]
    with pytest.raises(InputError, match=f"trl holds {name}: "):
        parse_train_arguments([*CPU, "--trl", value])


def test_a_schedule_that_lacks_a_value_is_refused_and_one_that_has_it_is_taken():
    given = [*CPU, "--lr_scheduler_type", "cosine_with_min_lr"]
    with pytest.raises(InputError, match="min_lr or min_lr_rate"):
        parse_train_arguments(given)
    more = "{lr_scheduler_kwargs: {min_lr: 1.0e-7}, adam_epsilon: 1e-6, delta: null, top_k: 20}"
    taken = parse_train_arguments([*given, "--trl", more]).trl_arguments
    assert taken.lr_scheduler_type == "cosine_with_min_lr" and taken.top_k == 20
    assert taken.adam_epsilon == 1e-6 and taken.delta is None


def test_no_list_of_options_shows_how_python_writes_a_default(capsys):
    for verb in ("train", "warmup", "rollout", "evaluate", "scoreboard", "ask", "chat", "serve"):
        assert run([verb, "--options", *(["--data", "x"] if verb == "scoreboard" else [])]) == 0
        shown = capsys.readouterr().out
        assert re.findall(r"^  --.*<.*>.*$", shown, re.MULTILINE) == []
    assert "--retrieval None" in shown
    assert run(["train", "--options"]) == 0
    assert "--retrieval 'lexical'" in capsys.readouterr().out


TRAINERS = [(GRPOConfig, GRPOOptions), (TrainingArguments, WarmupTrainerOptions)]


@pytest.mark.parametrize(("kind", "group"), TRAINERS)
def test_each_option_of_the_trainer_is_ours_or_acts_or_is_refused_with_what_to_use(kind, group):
    there = {field.name for field in fields(kind) if field.init}
    ours = set(names(group))
    assert there - ours - PASSED_ON - REFUSED.keys() == set(), "new in the trainer: does it act?"
    assert not PASSED_ON & (REFUSED.keys() | ours)
    if kind is GRPOConfig:
        assert (PASSED_ON | REFUSED.keys()) - there == set(), "gone from the trainer"
    for name in sorted(there - PASSED_ON):
        own = name in ours and name != "trl"
        with pytest.raises(InputError, match=f"^trl holds {name}\n") as refused:
            group(trl={name: 1})
        expected = "the option of this name" if own else REFUSED[name]
        assert refused.value.expected == expected and expected


def test_an_option_that_a_newer_trainer_has_is_refused_until_somebody_looks(monkeypatch):
    newer = make_dataclass("Newer", [("novelty", float, field(default=0.0))], bases=(GRPOConfig,))
    with pytest.raises(InputError, match="trl holds novelty, which has no effect in this version"):
        GRPOOptions(trl={"novelty": 1.0}, use_cpu=True).passed_on(newer, {})


@pytest.mark.parametrize(
    ("trl", "more", "named"),
    [
        ("{delta: 1.5}", ["--loss_type", "cispo", "--epsilon_high", "5"], "loss_type is cispo"),
        ("{use_bias_correction_kl: true}", [], "beta is 0"),
    ],
)
def test_an_option_without_the_one_that_it_acts_on_is_refused(trl, more, named):
    with pytest.raises(InputError, match=named):
        parse_train_arguments([*CPU, "--trl", trl, *more])


@pytest.mark.parametrize("verb", [parse_train_arguments, parse_warmup_arguments])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", "-5"),
        ("max_steps", "0"),
        ("learning_rate", "-1"),
        ("learning_rate", "nan"),
        ("seed", "-1"),
        ("seed", "4294967296"),
        ("eval_strategy", "epoch"),
        ("per_device_train_batch_size", "0"),
        ("num_train_epochs", "0"),
        ("lora_alpha", "0"),
    ],
)
def test_what_would_train_nothing_or_fail_late_is_refused_as_it_is_read(verb, name, value):
    with pytest.raises(InputError, match=name):
        verb([*CPU, f"--{name}", value])


# ------------------------------------------------------------------------------------------------
# the agent's own file
def test_what_is_saved_is_what_is_loaded_also_a_schema_of_the_users_own(tmp_path):
    mine, saved, again = tmp_path / "mine.yaml", tmp_path / "adapter", tmp_path / "copy"
    mine.write_text("name: mine\nsections:\n- {name: people, kind: list}\n")
    saved.mkdir()
    config = AgentConfig(schema=str(mine), retrieval="hybrid", show_times=False)
    config.save(saved)
    mine.unlink()
    loaded = AgentConfig.load(saved.rename(again))  # a folder can be moved
    assert MemorySchema.load(loaded.schema).sections[0].name == "people"
    assert replace(loaded, schema=str(mine)) == config


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"colour": 1}',
        '{"max_chunk_tokens": "many"}',
        '{"max_chunk_tokens": 0}',
        '{"retrieval": "guess"}',
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, text):
    (tmp_path / AGENT_FILE).write_text(text)
    with pytest.raises(InputError, match=AGENT_FILE):
        AgentConfig.load(tmp_path)


def test_an_agent_of_somebody_else_sends_no_text_to_a_server_of_its_choice(tmp_path):
    AgentConfig(schema="facts", embedder="https://u:hunter2@evil.example/v1#m").save(tmp_path)
    with pytest.raises(InputError, match=r"is a server, https://u:\*\*\*@evil.example") as raised:
        AgentConfig.load(tmp_path)
    assert "hunter2" not in str(raised.value)
    assert "evil" in AgentConfig.load(tmp_path, trust_tools=True).embedder
