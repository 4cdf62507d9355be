"""Rollouts for other trainers: the same numbers as in training, and those that TRL and verifiers
really got."""

import json
import math

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template
from trl_environment import trl_arguments

from memalpha.agent.rollout import run_rollouts
from memalpha.data.rows import instance_to_json
from memalpha.errors import InputError, TrainingAborted
from memalpha.memory.schema import MemorySchema, tool_schemas
from memalpha.models import build_nano
from memalpha.training.build import build_components
from memalpha.training.config import parse_train_arguments
from memalpha.training.environment import MemoryEnvironment
from memalpha.types import Chunk, Fact, FactAction, Instance, Question, Sampling
from tests.helpers.scripted import ScriptedGenerator

TEXTS = ("apple boat engine engine", "candle engine engine engine")
ASKED = tuple(Question(f"was {word} seen?", (word,), id=word) for word in ("candle", "apple"))
FACTS = (Fact(0, FactAction.STATE, "apple", "near", "boat"),)


def call(tool, **arguments):
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>\n"


APPLE, CANDLE = (
    call("memory_insert", section="facts", content=word) for word in ("apple", "candle")
)
GONE, WRONG, NEXT = (
    call("memory_delete", entry_id="1"),
    call("memory_insert", section="facts"),
    call("next_chunk"),
)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Instance 0 has two chunks and two questions; 1 begins with what a teacher kept of its first
    chunk; 2 has no questions."""
    folder = tmp_path_factory.mktemp("policy")
    chunks = tuple(map(Chunk, TEXTS))
    rows = [
        Instance("0", "t", chunks, ASKED),
        Instance("1", "t", chunks, ASKED, FACTS),
        Instance("2", "t", chunks, ()),
    ]
    (folder / "rows.jsonl").write_text(
        "\n".join(json.dumps(instance_to_json(row)) for row in rows) + "\n"
    )
    tools = json.dumps(tool_schemas(MemorySchema.load("facts")))
    build_nano(folder / "nano", [*TEXTS, tools, qwen2_5_chat_template, APPLE, NEXT], context=4096)
    tokenizer = AutoTokenizer.from_pretrained(folder / "nano")
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.save_pretrained(folder / "nano")
    data = {"train_data": str(folder / "rows.jsonl"), "rollout_chunks": 1, "max_masked_share": 1.0}
    return {
        "model": str(folder / "nano"),
        "schema": "facts",
        "use_cpu": True,
        "max_chunk_tokens": 64,
        **data,
    }


def play(options, index, *completions):
    environment = MemoryEnvironment(**options)
    messages = [environment.reset(index)]
    with pytest.raises(ValueError, match=r"0 of . chunks have been read"):
        environment.rewards()
    messages += map(environment.step, completions)
    assert messages.pop() is None
    return messages, environment.rewards()


def mean_total(options, *completions):
    rewards = play(options, 0, *completions)[1]
    return sum(step["total"] for step in rewards) / len(rewards)


def test_prompts_and_rewards_are_those_of_training(options):
    words = [
        f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in options.items()
    ]
    parts = build_components(parse_train_arguments(words))
    said = [
        [APPLE + "<tool_call>", GONE + CANDLE + call("memory_delete", entry_id="7")],
        [CANDLE],
        [APPLE, ""],
    ]
    script = [said[0][0], said[1][0], said[2][0], said[0][1], said[2][1]]  # in lockstep
    rollouts = run_rollouts(
        parts.instances, parts.agent, ScriptedGenerator(script, parts.tokenizer), Sampling(256)
    )
    for index, (rollout, steps) in enumerate(
        zip(rollouts, parts.scorer.score(rollouts), strict=True)
    ):
        messages, rewards = play(options, index, *said[index])
        assert [tuple(found) for found in messages] == [
            step.prompt.messages for step in rollout.steps
        ]
        totals = [{**step, "total": step.total(parts.scorer.reward_config)} for step in steps]
        assert rewards == [pytest.approx(step, nan_ok=True) for step in totals]
    # By hand, instance 0: candle is found and apple gone; right calls 1 of 2 and 2 of 3; 1 token
    # kept of 8.
    _, rewards = play(options, 0, *said[0])
    assert [(step["accuracy"], step["tool"], step["compression"]) for step in rewards] == [
        (0.5, 0.5, 0.875),
        (0.5, 2 / 3, 0.875),
    ]
    assert rewards[0]["total"] == pytest.approx(
        0.5 + 0.5 + 0.05 * 0.875 + 0.1 * rewards[0]["content"]
    )
    assert "apple near boat" in play(options, 1, CANDLE)[0][0][1]["content"]
    assert math.isnan(play(options, 2, APPLE, "")[1][0]["total"])


@pytest.mark.parametrize("wrong", [{"reader": "base"}, {"codec": "compact"}])
def test_what_another_trainer_cannot_do_is_refused(options, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        trl_arguments(**options, **wrong)


@pytest.mark.parametrize("schema", ["facts", "mem_alpha"])
def test_tools_of_trl_are_described_as_in_the_prompts_of_training(options, schema):
    tools = trl_arguments(**{**options, "schema": schema})["environment_factory"]()
    for wanted in tool_schemas(MemorySchema.load(schema)):
        found = get_json_schema(getattr(tools, wanted["function"]["name"]))
        assert found.pop("function") == {**wanted["function"], "return": {"type": "string"}}


def test_an_unscored_rollout_is_none_and_too_many_stop(options):
    def score(share):
        made = trl_arguments(**{**options, "max_masked_share": share})
        tools = [made["environment_factory"]() for _ in range(2)]
        for index, one in zip((0, 2), tools, strict=True):
            one.reset(index=index)
        return made["reward_funcs"](environments=tools, log_metric=lambda name, value: None)

    assert score(1.0) == [pytest.approx(mean_total(options, "", "")), None]
    with pytest.raises(TrainingAborted, match="1 of 2 rollouts"):
        score(0.4)


def test_a_step_of_trl(options, tmp_path):
    """Two rollouts of instance 0: one reads both chunks, one makes a wrong call and ends its turn
    without asking for the second."""
    turns = iter([[APPLE + NEXT, WRONG], [GONE + CANDLE + NEXT, "Nothing."], ["Done."]])

    class Scripted(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *_, **__):
            return [
                [*self._tokenizer.encode(text), self._tokenizer.eos_token_id]
                for text in next(turns)
            ], None

    made, scored = trl_arguments(**options), []

    def reward(score=made["reward_funcs"], **given):
        scored.extend([given["completions"], score(**given)])
        return scored[-1]

    model, tokenizer = (
        kind.from_pretrained(options["model"]) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    config = GRPOConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to="none",
        logging_steps=1,
        learning_rate=1e-3,
        max_steps=1,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=2048,
    )
    made = {**made, "reward_funcs": reward, "train_dataset": made["train_dataset"].select([0])}
    trainer = Scripted(model, args=config, processing_class=tokenizer, **made)
    trainer.train()
    both, early = (tools._environment.rollout for tools in trainer.environments)
    assert [[entry.content for entry in rollout.memory] for rollout in (both, early)] == [
        ["candle"],
        [],
    ]
    expected = [mean_total(options, APPLE, GONE + CANDLE), mean_total(options, WRONG, "")]
    completions, rewards = scored
    assert rewards == pytest.approx(expected) and expected[0] > expected[1]
    told = [message["content"] for message in completions[0] if message["role"] == "tool"]
    assert TEXTS[1] in told[1] and "1 apple" in told[1]
    assert [told[0], *told[2:]] == ["insert 1", "deleted 1", "insert 2", "That was the last chunk."]
    assert [m["content"] for m in completions[1] if m["role"] == "tool"] == [
        "{'error': 'memory_insert: missing content'}"
    ]
    logs = trainer.state.log_history[0]
    assert (logs["reward"], logs["memory/unread_chunks"]) == (
        pytest.approx(sum(expected) / 2),
        1 / 4,
    )
