"""The agent in use takes the very steps of training: same prompts, same memory."""

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.api import MemoryAgent
from memalpha.data.synthetic import generate
from memalpha.generation.scripted import ScriptedGenerator
from memalpha.models.nano import make_tokenizer
from memalpha.types import Chunk, Instance, Sampling

CONFIG = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=2000, view_tokens=500, max_new_tokens=64)


def keeper(prompt):
    """Keeps the first line of the chunk and corrects what the memory showed first."""
    chunk = prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n")[1]
    return f"+ {chunk}\n= 1 corrected by {chunk}"


def step():
    return AgentStep(CONFIG, make_tokenizer(["facts"], 4096))


def test_prompts_and_memories_equal_those_of_training_rollouts():
    instance = generate(1, seed=5)[0]
    trained = run_rollouts([instance], step(), ScriptedGenerator(keeper), Sampling(64))[0]
    used = MemoryAgent(step(), ScriptedGenerator(keeper))
    for chunk in instance.chunks:
        used.add(chunk.text, chunk.time)
    assert [record.prompt for record in used.history] == [record.prompt for record in trained.steps]
    assert [record.outcome for record in used.history] == [record.outcome for record in trained.steps]
    assert used.memory == tuple(trained.memory)


def test_ask_without_a_reader_answers_with_what_was_found():
    agent = MemoryAgent(step(), ScriptedGenerator(["+ Marta city Oslo\n+ Ivan job nurse", "= 1 Marta city Rome"]))
    agent.add("Marta: I live in Oslo.", time="2024-03-05")
    assert agent.ask("What is the city of Marta?") == "[2024-03-05] Marta city Oslo"
    results = agent.add("Marta: I moved to Rome.", time="2024-05-01")
    assert [result.message for result in results] == ["update 1"]
    assert agent.ask("What is the city of Marta?") == "[2024-05-01] Marta city Rome"
    assert repr(agent) == "MemoryAgent with 2 entries\n1 [2024-05-01] Marta city Rome\n2 [2024-03-05] Ivan job nurse"


def test_an_instance_of_no_questions_can_be_read():
    bare = Instance("live", "live", (Chunk("Ivan: hello"),), ())
    rollout = run_rollouts([bare], step(), ScriptedGenerator(["."]), Sampling(8))[0]
    assert len(rollout.memory) == 0 and rollout.steps[0].outcome.results == ()
