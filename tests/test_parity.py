"""Training rollouts, evaluation and the agent in use: the same prompts, completions and memories on
the same input."""

import json
from dataclasses import replace

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import Rollout
from memalpha.agent.step import AgentStep
from memalpha.cli import run
from memalpha.data.load import load_data
from memalpha.measure.systems import SearchedMemory
from memalpha.models.registry import make_tokenizer
from memalpha.qa.readers import QAEvaluator, RecallReader
from memalpha.record.rows import rollout_to_json
from memalpha.rewards import RewardConfig
from memalpha.training.build import build_components, make_training_reader
from memalpha.training.config import RunOptions, parse_train_arguments
from memalpha.training.run import build_trainer
from memalpha.types import Chunk, Question, ReadRequest, Sampling
from memalpha.use.agent import MemoryAgent
from memalpha.use.store import LOCAL
from tests.helpers.rollouts import step_reward
from tests.helpers.scripted import ScriptedGenerator

DATA = {"n": 4, "split": "test"}
OPTIONS = [
    "--config",
    "configs/train/nano.yaml",
    "--warm_start_steps",
    "60",
    "--max_steps",
    "2",
    "--train_options",
    "{n: 4, split: train}",
]
OPTIONS += [
    "--eval_options",
    json.dumps(DATA),
    "--view_tokens",
    "24",
]  # a view that not everything fits into


def seen(row):
    """What a record says of a rollout's steps, by field, and the memory that it ends with."""
    row = json.loads(json.dumps(row))
    fields = ("prompt", "completion", "stop", "results", "changes")
    steps = {name: [step[name] for step in row["steps"]] for name in fields}
    return {**steps, "memory": row["memory"]}


def used(agent, instance):
    steps = [step for chunk in instance.chunks for step in agent.add(chunk.text, chunk.time).steps]
    chunks = {
        step.chunk_index: place for place, step in enumerate(steps)
    }  # of those with one number only the last wrote anything
    steps = [replace(step, chunk_index=place) for place, step in enumerate(steps)]
    with agent.reading(LOCAL) as (memory, retriever):
        rollout = Rollout(instance, memory, retriever, steps=steps)
    row = rollout_to_json(
        rollout, [step_reward(0.0, 0.0, 0.0, 0.0)] * len(instance.chunks), RewardConfig()
    )
    return from_zero(seen(row), chunks)


def from_zero(found, chunks):
    """A journal counts operations from 1, a memory counts changes from 0; a chunk's number in use
    is that of an operation."""
    entries = [
        entry
        for changes in found["changes"]
        for change in changes
        for entry in change.values()
        if entry
    ] + found["memory"]
    for entry in {id(entry): entry for entry in entries}.values():
        entry["created"], entry["updated"] = entry["created"] - 1, entry["updated"] - 1
        entry["source_chunk"] = chunks[entry["source_chunk"]]
    return found


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(["train", *OPTIONS, "--eval_data", "", "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def adapter(whole_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "run"
    start = [
        "--model",
        str(whole_model / "adapter"),
        "--full_finetuning",
        "false",
        "--warm_start_steps",
        "0",
    ]
    assert run(["train", *OPTIONS, *start, "--eval_data", "", "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(params=["whole_model", "adapter"])
def trained(request):
    return request.getfixturevalue(request.param)


def test_the_three_ways_see_and_do_the_same(trained, whole_model, tmp_path):
    base = whole_model / "adapter"
    policy = ["--model", str(base)]
    policy += (
        []
        if trained == whole_model
        else ["--adapter", str(trained / "adapter"), "--full_finetuning", "false"]
    )
    instances = load_data("toy", DATA, 1)

    # training: the trainer's own rollouts, all in lockstep
    arguments = parse_train_arguments(
        [*OPTIONS, *policy, "--warm_start_steps", "0", "--output_dir", str(tmp_path / "unused")]
    )
    parts = build_components(arguments)
    trainer = build_trainer(arguments, parts)
    rollouts = trainer.draw_rollouts(instances, Sampling(parts.agent.config.max_completion_length))
    rewards = parts.scorer.score(rollouts)
    training = [
        seen(rollout_to_json(r, reward, RewardConfig()))
        for r, reward in zip(rollouts, rewards, strict=True)
    ]

    # evaluation: the command
    options = [
        *OPTIONS,
        *policy,
        "--eval_temperature",
        "0",
        "--output_dir",
        str(tmp_path / "evaluated"),
    ]
    assert run(["rollout", *options]) == 0
    lines = (tmp_path / "evaluated" / "held_out" / "rollouts.jsonl").read_text().splitlines()
    evaluation = [seen(json.loads(line)["rollout"]) for line in lines]

    # use: one text after the other
    use = [used(MemoryAgent.load(trained / "adapter", base), instance) for instance in instances]

    assert training == evaluation == use
    assert sum(len(rollout["memory"]) for rollout in use) >= len(use)  # something was kept
    assert len({tuple(rollout["prompt"]) for rollout in use}) == len(use)


def test_ask_retrieves_and_reads_as_training_and_evaluation_do():
    texts = ["marta city oslo", "ivan city rome", "marta job nurse in oslo", "marta pet cat"]
    step = AgentStep(
        AgentConfig(
            schema="facts", codec="compact", retrieve_k=2, reader_tokens=5, show_times=False
        ),
        make_tokenizer([*texts, "What is the city of marta?"], 2048),
    )
    question = Question("What is the city of marta?", ("oslo",))
    agent = MemoryAgent(step, ScriptedGenerator(["\n".join(f"+ {text}" for text in texts)]))
    agent.add("a chunk")
    memory = step.new_memory()
    step.apply(memory, 0, Chunk("a chunk"), "\n".join(f"+ {text}" for text in texts))
    retriever = step.new_retriever(memory)

    # training: the reader and the number of entries that the agent's configuration says
    evaluator = QAEvaluator(
        make_training_reader(RunOptions(), step, None, None), step.config.retrieve_k
    )
    ((record,),) = evaluator.evaluate_many([(memory, retriever, [question])])
    # evaluation: what an agent's finder gives to a reader of the same budget
    searched = SearchedMemory(
        memory_tokens=memory.tokens, memory=memory, retriever=retriever, k=step.config.retrieve_k
    )
    passages = searched.passages(question, step.config.reader_tokens)
    (evaluated,) = QAEvaluator(RecallReader(step.config.reader_tokens, step.encoder.count), 1).ask(
        [ReadRequest(question, passages)]
    )

    said = agent.ask(question.text)
    assert (
        said.text == record.answer.text == evaluated.answer.text == "marta city oslo"
    )  # the second passage is over the budget
    assert [hit.entry.content for hit in said.entries] == [
        memory.get(key).content for key in record.entry_ids
    ]
    assert len(said.entries) == len(passages) == 2 and said.read == (said.entries[0].entry,)
