"""Rollouts in lockstep: the same as one by one, whatever the numbers of chunks, with everything
recorded."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from scripted import ScriptedGenerator

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts, sharing
from memalpha.agent.step import AgentStep
from memalpha.models.registry import make_tokenizer
from memalpha.types import Chunk, Completion, Instance, Prompt, Sampling, StopReason

WORDS = ["apple", "boat", "candle", "door", "engine", "feather"]
SAMPLING = Sampling(max_new_tokens=24)


def instance_of(name, *texts):
    return Instance(
        name, "test", tuple(Chunk(text, f"2024-03-0{i + 1}") for i, text in enumerate(texts)), ()
    )


INSTANCES = [
    instance_of("long", "apple boat", "candle apple", "door", "engine engine"),
    instance_of("short", "feather"),
    instance_of("middle", "boat door", "apple apple", "boat"),
    instance_of("again", "apple boat", "candle apple", "door", "engine engine"),
]


def answer(prompt):
    """Store the chunk's words; once the memory shows entry 2, delete entry 1 and say something that
    is no call."""
    chunk, view = prompt.messages[1]["content"].split("</chunk>")
    lines = [f"+ {word}" for word in chunk.split("\n")[2].split()]
    return "\n".join([*lines, "- 1", "well"] if "\n2 " in view else lines)


@pytest.fixture
def agent():
    return AgentStep(AgentConfig(schema="facts", codec="compact"), make_tokenizer(WORDS, 2048))


def test_lockstep_equals_one_by_one(agent):
    generator = Mock(wraps=ScriptedGenerator(answer, agent.encoder.tokenizer))
    together = run_rollouts(INSTANCES, agent, generator, SAMPLING)
    assert [len(call.args[0]) for call in generator.generate.mock_calls] == [4, 3, 3, 2]
    for instance, rollout in zip(INSTANCES, together, strict=True):
        (alone,) = run_rollouts([instance], agent, generator, SAMPLING)
        assert rollout.instance is instance
        assert [replace(step, prompt=replace(step.prompt, shared=0)) for step in rollout.steps] == [
            replace(step, prompt=replace(step.prompt, shared=0)) for step in alone.steps
        ]
        assert rollout.memory.snapshot() == alone.memory.snapshot()
        assert rollout.memory.changes == alone.memory.changes
    assert together[0].steps == together[3].steps
    assert together[0].memory is not together[3].memory


def test_rollouts_of_a_chunk_share_what_their_prompts_have_in_common():
    prompts = [
        Prompt((), ids, shared)
        for ids, shared in [
            ((1, 2, 3, 4, 5), 2),
            ((7, 2, 3), 1),
            ((1, 2, 3, 4, 6), 2),
            ((8, 8, 9), 2),
            ((7, 2, 3), 1),
            ((1, 2, 3), 2),
        ]
    ]
    assert [prompt.shared for prompt in sharing(prompts)] == [
        3,
        3,
        3,
        2,
        3,
        3,
    ]  # alone, (8, 8, 9) keeps its own
    assert [replace(prompt, shared=0) for prompt in sharing(prompts)] == [
        replace(prompt, shared=0) for prompt in prompts
    ]


def test_records_hold_what_happened(agent):
    rollout = run_rollouts(
        INSTANCES[:2], agent, ScriptedGenerator(answer, agent.encoder.tokenizer), SAMPLING
    )[0]
    memory = agent.new_memory()
    retriever = agent.new_retriever(memory)
    for index, step in enumerate(rollout.steps):
        chunk = rollout.instance.chunks[index]
        assert step.chunk_index == index
        assert step.prompt == agent.prompt(memory, retriever, chunk)
        assert step.completion.text == answer(step.prompt)
        assert step.outcome == agent.apply(memory, index, chunk, step.completion.text)
        assert (step.memory_tokens, step.entries) == (memory.tokens, len(memory))
    assert memory.snapshot() == rollout.memory.snapshot()
    # By hand: apple and boat; candle and (again) apple, then 1 goes; door, and 1 is no more; engine
    # once.
    assert [(entry.id, entry.content, entry.timestamp) for entry in memory] == [
        ("2", "boat", "2024-03-01"),
        ("3", "candle", "2024-03-02"),
        ("4", "door", "2024-03-03"),
        ("5", "engine", "2024-03-04"),
    ]
    assert [[r.code.value for r in step.outcome.results] for step in rollout.steps] == [
        ["applied", "applied"],
        ["applied", "renewed", "applied", "unparsed"],
        ["applied", "unknown_id", "unparsed"],
        ["applied", "duplicate", "unknown_id", "unparsed"],
    ]
    assert [step.entries for step in rollout.steps] == [2, 2, 3, 4]
    assert [hit.entry.id for hit in rollout.retriever.search("candle", 3)] == ["3"]
    assert rollout.questions == []


@pytest.mark.parametrize(("seed", "seeds"), [(None, [None, None, None]), (7, [7, 8, 9])])
def test_sampling_is_handed_on_with_a_seed_for_each_chunk(agent, seed, seeds):
    generator = Mock(generate=Mock(return_value=[Completion((), ".", StopReason.END)]))
    sampling = Sampling(max_new_tokens=24, temperature=0.7, top_p=0.9, top_k=5, seed=seed)
    (rollout,) = run_rollouts([INSTANCES[2]], agent, generator, sampling)
    assert [call.args[1] for call in generator.generate.mock_calls] == [
        replace(sampling, seed=value) for value in seeds
    ]
    assert len(rollout.memory) == 0 and all(step.outcome.results == () for step in rollout.steps)
