"""One question to a store, and a store that no model writes."""

import json

from memalpha.cli import run
from memalpha.use.agent import MemoryAgent


def test_what_was_said_is_found_without_a_model(tmp_path, capsys):
    store = str(tmp_path / "m.db")
    with MemoryAgent.without_model(store=store) as agent:
        added = agent.add(
            [{"role": "user", "content": "My cat is called Bailey."}], "2024-05-01", namespace="me"
        )
        agent.add("User: I live in Oslo.", "2024-05-02", namespace="me")
        assert added.operations == added.lines == (1,) and added.results == ()
        assert agent.memory("me") == ()
    who = ["--store", store, "--user", "me"]
    assert run(["ask", "What is my cat called?", *who, "--retrieve_k", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1. 2024-05-01  line-1",
        "   > User: My cat is called Bailey.",
        "2. 2024-05-02  line-2",
        "   > User: I live in Oslo.",
    ]
    assert run(["ask", "What is my cat called?", *who[:3], "you"]) == 1
    assert "there is no namespace you/default/default" in capsys.readouterr().err


def test_a_mistake_is_told_and_no_store_is_made(tmp_path, capsys):
    store = str(tmp_path / "m.db")
    assert run(["ask", "Where?", "--store", store, "--user", "me"]) == 1
    told = capsys.readouterr().err
    assert "no store at" in told and "a file that holds a store" in told
    assert not list(tmp_path.iterdir())
    assert run(["ask", "--store", store, "--user", "me"]) == 1
    assert "got no question" in capsys.readouterr().err


def test_an_answer_as_json(tmp_path, capsys):
    store = str(tmp_path / "m.db")
    with MemoryAgent.without_model(store=store) as agent:
        agent.add("User: My cat is called Bailey.", "2024-05-01", namespace="me")
    assert run(["ask", "cat", "--store", store, "--user", "me", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    old = ["answer", "source", "read", "searches"]
    assert list(told) == [*old, "known", "by_reader", "probability", "passages"]
    assert told["answer"] == "[2024-05-01] User: My cat is called Bailey."
    assert told["source"]["content"] == "User: My cat is called Bailey."
    assert [entry["id"] for entry in told["read"]] == [told["source"]["id"]]
    with MemoryAgent.without_model(store=store) as agent:
        agent.forget(told["source"]["id"], namespace="me")
    assert run(["ask", "cat", "--store", store, "--user", "me", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    none = {"answer": None, "source": None, "read": [], "searches": []}
    more = {"known": False, "by_reader": False, "probability": None, "passages": []}
    assert told == none | more
