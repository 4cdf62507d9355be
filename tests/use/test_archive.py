"""The archive in use: found, undone, forgotten to the last byte, and apart for each user."""

import pytest
from scripted import ScriptedGenerator

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.models.nano import make_tokenizer
from memalpha.use.agent import MemoryAgent

CONFIG = AgentConfig(schema="facts", codec="compact", max_completion_length=64, retrieve_k=5, archive=True)
SCRIPT = ["+ Marta city Oslo\n+ Marta drink tea", "= 1 Marta city Rome", "+ Ivan city Lima"]


@pytest.fixture
def agent(tmp_path):
    step = AgentStep(CONFIG, make_tokenizer(["facts"], 4096))
    with MemoryAgent(step, ScriptedGenerator(SCRIPT), store=tmp_path / "m.db") as agent:
        agent.added = [
            agent.add("Marta: I live in Oslo near zebrastreet.\nMarta: I like tea.", "2024-01-01", namespace="marta"),
            agent.add("Marta: I moved to Rome.", "2024-02-01", namespace="marta"),
            agent.add("Ivan: Lima it is.", namespace="ivan"),
        ]
        yield agent


def found(agent, question, who="marta"):
    return set(agent.ask(question, namespace=who).text.splitlines())


def test_lines_and_entries_answer_together_and_each_user_has_his_own(agent):
    assert found(agent, "Oslo") == {"unknown"}
    assert found(agent, "Rome") == {"[2024-02-01] Marta city Rome", "[2024-02-01] Marta: I moved to Rome."}
    assert found(agent, "tea") == {"[2024-01-01] Marta drink tea", "[2024-01-01] Marta: I like tea."}
    assert found(agent, "Lima", "ivan") == {"Ivan city Lima", "Ivan: Lima it is."} and found(agent, "Lima") == {"unknown"}
    assert [entry.content for entry in agent.memory("marta")] == ["Marta city Rome", "Marta drink tea"]
    assert [len(added.operations) for added in agent.added] == [2, 1, 1]  # those that undo takes


def test_with_an_undo_the_line_returns(agent):
    (operation,) = agent.added[1].operations
    agent.undo(operation, namespace="marta")
    assert found(agent, "Oslo") == {"[2024-01-01] Marta city Oslo", "[2024-01-01] Marta: I live in Oslo near zebrastreet."}


def test_forgetting_an_entry_erases_what_the_archive_has_of_its_chunks(agent, tmp_path):
    path = tmp_path / "m.db"
    assert b"zebrastreet" in path.read_bytes() + (tmp_path / "m.db-wal").read_bytes()
    agent.forget("1", namespace="marta")
    assert found(agent, "Oslo") == found(agent, "Rome") == {"unknown"}
    assert found(agent, "tea") == {"[2024-01-01] Marta drink tea"}  # its line stood in the same chunk
    agent.close()
    left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert not any(word in left for word in (b"zebrastreet", b"Oslo", b"moved to Rome", b"I like tea"))
    assert b"Marta drink tea" in left
    with MemoryAgent(agent.step, ScriptedGenerator([]), store=path) as again:
        assert [entry.content for entry in again.memory("marta")] == ["Marta drink tea"]
        assert again.journal.verify().faults == ()
