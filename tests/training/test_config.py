"""Options: YAML and overrides reach every group, and what does not fit is one message that names it."""

from dataclasses import fields

import pytest
from trl import GRPOConfig

from memalpha.errors import InputError
from memalpha.training.config import MemoryGRPOConfig, RunOptions, parse_train_arguments
from memalpha.training.warm_start import parse_warmup_arguments

CPU = ["--use_cpu", "true"]


def write(tmp_path, text):
    path = tmp_path / "options.yaml"
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path)]


def test_defaults_are_those_of_chunk_step_training():
    run, agent, reward, grpo = parse_train_arguments(CPU)
    assert (run.model, run.grouping, run.rows_per_forward, run.share_prefix) == ("smollm2-135m-instruct", "step", 8, True)
    assert (agent.schema, agent.codec, agent.max_chunk_tokens) == ("mem_alpha", "hermes", 2048)
    assert reward.weights == (1.0, 1.0, 0.05, 0.1, 0.0)
    expected = {
        "loss_type": "dapo", "beta": 0.0, "bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": 16,
        "num_generations": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 1, "max_completion_length": 1024,
        "learning_rate": 1e-6, "temperature": 1.0, "logging_steps": 1, "max_grad_norm": 1.0, "save_total_limit": 2,
        "ddp_find_unused_parameters": False, "disable_tqdm": True, "scale_rewards": "group", "num_iterations": 1,
    }  # fmt: skip
    assert {name: getattr(grpo, name) for name in expected} == expected
    assert not grpo.report_to or grpo.report_to == "none"


def test_the_file_sets_options_of_every_group_and_the_command_line_wins(tmp_path):
    text = "model: some/model\nview_tokens: 77\ntool_weight: 0.25\nlearning_rate: 3.0e-4\nuse_cpu: true\nmax_steps: 9\n"
    run, agent, reward, grpo = parse_train_arguments([*write(tmp_path, text), "--max_steps", "4", "--codec", "compact"])
    assert (run.model, agent.view_tokens, agent.codec, reward.tool_weight) == ("some/model", 77, "compact", 0.25)
    assert (grpo.learning_rate, grpo.max_steps) == (3e-4, 4)
    assert agent.config(12).max_new_tokens == 12


@pytest.mark.parametrize("text", ["train_options: {n: 4, preset: small}", "train_options: '{n: 4, preset: small}'"])
def test_options_of_a_source_are_a_mapping_in_the_file_or_a_text(tmp_path, text):
    assert parse_train_arguments([*write(tmp_path, text), *CPU]).run.train_options == {"n": 4, "preset": "small"}
    found = parse_train_arguments([*CPU, "--train_options", "{n: 4, preset: small}"])
    assert found.run.train_options == {"n": 4, "preset": "small"}


@pytest.mark.parametrize(("text", "adapter"), [("null", ""), ("", ""), ("7", "7"), ("no", "False")])
def test_a_text_in_a_file_may_be_a_number_or_nothing(tmp_path, text, adapter):
    assert parse_train_arguments([*write(tmp_path, f"adapter: {text}\nseed: 3"), *CPU]).run.adapter == adapter
    assert parse_warmup_arguments([*write(tmp_path, f"adapter: {text}\nseed: 3"), *CPU]).warmup.adapter == adapter


def test_what_is_not_given_stays_not_given_once_the_parser_has_run():
    parse_train_arguments(CPU)  # it changes what dataclasses say of their fields' types
    assert RunOptions(endpoint_extra={"a": 1}).judge_extra == {"a": 1}
    assert RunOptions(endpoint_extra={"a": 1}, judge_extra={}).judge_extra == {}


def test_a_schema_or_a_retrieval_that_is_none_is_refused_as_it_is_read(tmp_path):
    with pytest.raises(InputError, match="schema is empty"):
        parse_train_arguments([*write(tmp_path, "schema: null"), *CPU])
    assert parse_train_arguments([*write(tmp_path, "schema: 5"), *CPU]).agent.schema == "5"
    with pytest.raises(InputError, match="retrieval is 'bm25'\n  expected: one of lexical, dense, hybrid"):
        parse_train_arguments([*CPU, "--retrieval", "bm25"])


def test_every_option_of_trl_is_there():
    parsed = parse_train_arguments(CPU).grpo
    assert isinstance(parsed, GRPOConfig)
    assert {field.name for field in fields(GRPOConfig)} == {field.name for field in fields(MemoryGRPOConfig)}
    command = ["--epsilon_high", "0.28", "--importance_sampling_level", "sequence", "--warmup_steps", "3", "--weight_decay", "0.5"]
    grpo = parse_train_arguments([*CPU, *command]).grpo
    assert (grpo.epsilon_high, grpo.importance_sampling_level, grpo.warmup_steps, grpo.weight_decay) == (0.28, "sequence", 3, 0.5)


@pytest.mark.parametrize("where", ["file", "file=", "command line"])
def test_an_unknown_option_is_named_with_the_nearest(tmp_path, where):
    arguments = {"file": write(tmp_path, "learning_rat: 1"), "command line": ["--learning_rat", "1"]}
    arguments["file="] = ["=".join(arguments["file"])]
    with pytest.raises(InputError) as raised:
        parse_train_arguments([*arguments[where], *CPU])
    place = "" if where == "command line" else f" in {tmp_path / 'options.yaml'}"
    assert str(raised.value) == (
        f"there is no option 'learning_rat'{place}\n  expected: such as learning_rate\n"
        "  to fix: memalpha train --options lists them all"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reader_tokens: [1]", r"reader_tokens is \[1\] in .*options.yaml\n  expected: a whole number"),
        ("reader_tokens: 1.5", r"reader_tokens is 1.5 in .*\n  expected: a whole number"),
        ("seed: true", "seed is True in .*\n  expected: a whole number"),
        ("learning_rate: {a: 1}", "learning_rate is .*\n  expected: a number"),
        ("overwrite: 1", "overwrite is 1 in .*\n  expected: true or false"),
        ("adapter: [a]", "adapter is .*\n  expected: a text"),
        ("report_to: {a: b}", "report_to is .*\n  expected: nothing or a text or a list"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_is_expected(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        parse_train_arguments([*write(tmp_path, text), *CPU])


@pytest.mark.parametrize("verb", [parse_train_arguments, parse_warmup_arguments])
@pytest.mark.parametrize(
    ("name", "value"),
    [("max_steps", "-5"), ("max_steps", "0"), ("learning_rate", "-1"), ("learning_rate", "0"), ("learning_rate", "nan")],
)
def test_steps_and_rates_that_train_nothing_or_without_end_are_refused_as_they_are_read(verb, name, value):
    with pytest.raises(InputError, match=f"{name} is {value}"):
        verb([*CPU, f"--{name}", value])


@pytest.mark.parametrize("verb", [parse_train_arguments, parse_warmup_arguments])
@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", "-1"), ("seed", "4294967296"), ("eval_strategy", "steps"), ("per_device_train_batch_size", "0"), ("lora_alpha", "0")],
)
def test_what_would_be_found_out_after_everything_is_loaded_is_refused_as_it_is_read(verb, name, value):
    with pytest.raises(InputError, match=f"{name} is '?{value}"):
        verb([*CPU, f"--{name}", value])
    with pytest.raises(InputError, match="num_train_epochs is 0"):
        verb([*CPU, "--max_steps", "-1", "--num_train_epochs", "0"])


def test_a_warm_start_needs_a_rank_and_a_budget():
    for name, value in (("lora_r", "0"), ("pack_tokens", "-1")):
        with pytest.raises(InputError, match=f"{name} is {value}"):
            parse_warmup_arguments([*CPU, f"--{name}", value])


def test_minus_one_step_is_as_many_as_the_epochs_say():
    assert parse_train_arguments([*CPU, "--max_steps", "-1"]).grpo.max_steps == -1


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b\n", "holds list"), ("a: [1", "is not YAML"), ("", "holds NoneType"), ("loss_type: bnpo\n", "loss_type is 'bnpo'")],
)
def test_a_file_that_cannot_be_used_is_one_message(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        parse_train_arguments([*write(tmp_path, text), *CPU])


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match=r"no config file 'nowhere\.yaml'"):
        parse_train_arguments(["--config", "nowhere.yaml"])
    with pytest.raises(InputError, match="no config file"):
        parse_train_arguments(["--config"])


def test_a_value_of_the_wrong_type_is_refused_by_name(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse_train_arguments([*CPU, "--max_steps", "many"])
    assert exit_.value.code == 2
    assert "--max_steps" in capsys.readouterr().err


@pytest.mark.parametrize("loss", ["bnpo", "sapo", "luspo", "vespo", "nonsense"])
def test_losses_that_were_not_checked_are_refused(loss):
    with pytest.raises(InputError, match=f"loss_type is '{loss}'"):
        MemoryGRPOConfig(loss_type=loss, use_cpu=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_device_train_batch_size": 12, "num_generations": 8}, "per_device_train_batch_size is 12, num_generations 8"),
        ({"per_device_train_batch_size": 4, "num_generations": 8}, "per_device_train_batch_size is 4, num_generations 8"),
        ({"per_device_train_batch_size": 4, "num_generations": 1}, "num_generations 1"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2"),
        ({"steps_per_generation": 0}, "steps_per_generation is 0"),
        ({"num_iterations": 0}, "num_iterations is 0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"scale_rewards": "groups"}, "scale_rewards is 'groups'\n  expected: one of group, batch, none"),
    ],
)
def test_batches_and_scales_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        MemoryGRPOConfig(use_cpu=True, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("reader", "oracle"), ("content_judge", "none"), ("grouping", "batch"), ("rows_per_forward", 0), ("lora_r", 0),
        ("max_masked_share", 0.0), ("max_masked_share", 1.5), ("train_options", "a list"),
        ("warm_start_steps", -1), ("warm_start_learning_rate", 0.0), ("eval_instances", -1), ("eval_temperature", -1.0),
        ("eval_temperature", float("nan")), ("max_skipped_steps", -1), ("log_rollouts", -1), ("train_layers", -1),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused_by_name(option, value):
    with pytest.raises(InputError, match=f"{option} is "):
        RunOptions(**{option: value})


def test_an_endpoint_needs_its_address():
    with pytest.raises(InputError, match="endpoint_url"):
        RunOptions(reader="endpoint")
    assert RunOptions(reader="endpoint", endpoint_url="http://x/v1", endpoint_model="m").reader == "endpoint"
