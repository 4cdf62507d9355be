"""Routed writers: each chunk by the writer chosen for it, in order, through the agent's own prompts."""

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.generation.scripted import ScriptedGenerator
from memalpha.models.nano import make_tokenizer
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.routing.policies import PolicyOptions
from memalpha.routing.ppo import PPOOptions
from memalpha.routing.selection import SelectorOptions
from memalpha.routing.selector import ToolSelector
from memalpha.routing.writers import RoutedGenerator, chunk_of
from memalpha.types import Chunk, Prompt, Sampling
from memalpha.use.agent import MemoryAgent

STEP = AgentStep(AgentConfig(schema="facts", codec="compact", max_chunk_tokens=200), make_tokenizer(["facts"], 4096))


def routed(explore=True) -> RoutedGenerator:
    ppo = PPOOptions(lr_actor=1e-2, lr_critic=1e-2, target_kl=0.1, entropy=0.0)
    selector = ToolSelector(HashingEmbedder(32), SelectorOptions(update_every=40, policy=PolicyOptions(hidden=(16,)), ppo=ppo))
    for name in ("tables", "talk"):
        selector.register(name, "an adapter")
    writers = {name: ScriptedGenerator(lambda prompt, name=name: f"+ {name} wrote {chunk_of(prompt)}") for name in selector.tools}
    return RoutedGenerator(writers, selector, explore=explore)


def prompts(*texts: str) -> list[Prompt]:
    memory = STEP.new_memory()
    return [STEP.prompt(memory, STEP.new_retriever(memory), Chunk(text)) for text in texts]


def test_each_prompt_is_written_by_the_one_chosen_for_it_and_order_is_kept():
    generator = routed()
    asked = prompts(*(f"text {i}" for i in range(12)))
    texts = [completion.text for completion in generator.generate(asked, Sampling(64))]
    assert texts == [f"+ {choice.tool} wrote text {i}" for i, choice in enumerate(generator.selections)]
    assert {choice.tool for choice in generator.selections} == {"tables", "talk"}


def test_it_learns_who_writes_what_and_an_agent_uses_it():
    generator = routed()
    wanted = {"tables": "row column number {}", "talk": "she said hello to {}"}
    for i in range(40):
        names = ["tables", "talk"] * 4
        generator.generate(prompts(*(wanted[name].format(i) for name in names)), Sampling(64))
        generator.reward([float(choice.tool == name) for choice, name in zip(generator.selections, names, strict=True)])
    generator.explore = False
    agent = MemoryAgent(STEP, generator)
    agent.add("row column number 99")
    agent.add("she said hello to Ivan")
    assert [entry.content for entry in agent.memory()] == ["tables wrote row column number 99", "talk wrote she said hello to Ivan"]


def test_what_cannot_be_is_said():
    generator = routed()
    with pytest.raises(InputError, match=r"\['tables'\]"):
        RoutedGenerator({"tables": generator.writers["tables"]}, generator.selector)
    with pytest.raises(InputError, match="without a fenced chunk"):
        chunk_of(Prompt(({"role": "user", "content": "<chunk> open"},), ()))
