"""A chat model on a server as the agent: the prompts of training go out, its calls are applied, and
a failure keeps nothing."""

import io
import json
import sys
from datetime import UTC, datetime

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.cli import run
from memalpha.endpoints import ChatClient
from memalpha.types import Chunk
from memalpha.use.agent import MemoryAgent

CONFIG = AgentConfig(schema="facts", archive=True, max_chunk_tokens=20, max_completion_length=50)


def call(tool, **arguments):
    body = {"name": f"memory_{tool}", "arguments": arguments}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


def model(body):
    """Keeps names, corrects cities, and answers from the notes."""
    asked = body["messages"][-1]["content"]
    if "<chunk>" not in asked:
        notes, question = asked.split("\n\nQuestion: ")
        return "Priya" if "name" in question and "name is Priya" in notes else "unknown"
    if "I'm Priya" in asked:
        section = "facts" if "- facts" in body["messages"][0]["content"] else "semantic"
        return f"They said a name.\n{call('insert', section=section, content='The name is Priya')}"
    if "Rome" in asked:
        return call("update", entry_id="1", content="The city is Rome")
    return call("insert", section="facts", content="The city is Oslo")


@pytest.fixture
def server(chat_server):
    chat_server.reply = model
    return chat_server


def agent_at(server, **options):
    return MemoryAgent.at_endpoint(ChatClient(server.url, "big", retries=0), CONFIG, **options)


def test_one_model_writes_and_answers_with_the_agents_own_prompts(server, monkeypatch):
    monkeypatch.setenv("MEMALPHA_API_KEY", "a-key")
    with agent_at(server) as agent:
        memory = agent.step.new_memory()
        chunk = Chunk("User: I live in Oslo.", "2024-03-05")
        prompt = agent.step.prompt(memory, agent.step.new_retriever(memory), chunk)
        agent.add("User: I live in Oslo.", "2024-03-05")
        agent.add("User: I'm Priya, in Rome now.", "2024-03-06")
        agent.add("User: Rome.", "2024-03-07")
        said, unsaid = agent.ask("What is my name?"), agent.ask("Which city?")
        kept = [entry.content for entry in agent.memory()]
        hashes = {each.origin.prompt_hash for each in agent.history() if each.origin.agent == "big"}
    sent = server.bodies[0]
    assert sent["messages"] == list(prompt.messages)
    assert (sent["model"], sent["max_tokens"], sent["temperature"]) == ("big", 50, 0)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer a-key"}
    assert kept == ["The city is Rome", "The name is Priya"] and len(hashes) == 3
    assert (said.text, said.source.content, said.source.timestamp) == (
        "Priya",
        "The name is Priya",
        "2024-03-06",
    )
    assert (unsaid.text, unsaid.known, unsaid.source) == ("unknown", False, None) and unsaid.read


@pytest.mark.parametrize(
    "text", ["User: one sentence is here. " * 9, "我叫普里亚。我住在奥斯陆。" * 9, "x" * 400]
)
def test_a_long_text_is_cut_by_its_bytes(server, text):
    with agent_at(server) as agent:
        pieces = agent.pieces(text)
        assert len(pieces) > 1 and all(
            len(piece.text.encode()) <= 4 * CONFIG.max_chunk_tokens for piece in pieces
        )


def test_chat_learns_the_name_and_says_where_from(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello, I'm Priya.\nWhat is my name?\n/why\n"))
    where = [
        "--endpoint",
        server.url,
        "--model",
        "big",
        "--endpoint-extra",
        "{top_k: 3}",
        "--archive",
        "true",
    ]
    assert run(["chat", *where, "--store", str(tmp_path / "m.db"), "--user", "p"]) == 0
    lines = capsys.readouterr().out.splitlines()
    day = datetime.now(UTC).date()  # of the write: the section keeps no times
    assert lines[:3] == [
        "  remembered (1): + 1 The name is Priya",
        "Priya",
        f"  from semantic 1 [{day}]: The name is Priya",
    ]
    assert f"1\tsemantic\t{day}\tThe name is Priya\t1" in lines and {
        body["top_k"] for body in server.bodies
    } == {3}
