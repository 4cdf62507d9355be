"""``memalpha chat``: what is said is answered, read into the memory, explained, taken back,
forgotten."""

import io
import sys
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import DEFAULT, Mock

import pytest

from memalpha.agent.step import AgentStep
from memalpha.cli import run
from memalpha.cli.chat import Conversation
from memalpha.errors import InputError, ServiceError
from memalpha.memory.schema import MemorySchema
from memalpha.models import load_policy_model, write_adapter_record
from memalpha.models.registry import make_tokenizer
from memalpha.qa.readers import ModelReader
from memalpha.store.journal import Journal, Namespace
from memalpha.use.agent import MemoryAgent
from tests.helpers.evaluation_stubs import loud_adapter
from tests.helpers.scripted import FACTS, ScriptedGenerator

CONFIG = FACTS


def keep(prompt):
    """Keep each line of the chunk; a line that says ``now`` corrects the first entry, and ``then``
    keeps another entry."""
    lines = prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0].split("\n")
    kept = [f"= 1 {line}" if " now " in line else f"+ {line}" for line in lines if line[:1] != "["]
    return "\n".join(call.replace(" then ", "\n+ ") for call in kept)


def conversation(store, **changes):
    step = AgentStep(replace(CONFIG, **changes), make_tokenizer(["facts"], 4096))
    agent = MemoryAgent(step, ScriptedGenerator(keep), store=store)
    return Conversation(agent, Namespace("Marta"), lambda: datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


@pytest.fixture
def talk(monkeypatch, capsys):
    def say(talking, *lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with talking.agent:
            talking.talk()
        return capsys.readouterr().out.splitlines()

    return say


@pytest.fixture
def said(talk, tmp_path):  # one conversation after the other on the same store
    return lambda *lines: talk(conversation(tmp_path / "memories.db"), *lines)


def stored(tmp_path):
    with Journal.open(tmp_path / "memories.db") as journal:
        durable = journal.memory(Namespace("Marta"), MemorySchema.load("facts"))
        return [entry.content for entry in durable.memory], durable.history()


def test_a_message_is_answered_then_read_and_known_afterwards(said, tmp_path):
    assert said("I live in Oslo", "where do I live?", "/quit", "never") == [
        "  remembered (1): + 1 User: I live in Oslo",
        "1. 2026-01-02  chat  1",
        "   > User: I live in Oslo",
        "  remembered (2): + 2 User: where do I live?",
    ]
    contents, operations = stored(tmp_path)
    assert contents == ["User: I live in Oslo", "User: where do I live?"]
    assert [event.origin.source for event in operations] == ["chat", "chat"]


def test_an_answer_names_the_passage_it_is_from_and_why_shows_all_that_was_read(talk, tmp_path):
    talking = conversation(tmp_path / "memories.db", archive=True)
    answers = {"Which pet, a cat?": "a cat", "Is it Oslo?": "Yes."}

    def read(chats):
        questions = [chat[-1]["content"].split("Question: ")[1] for chat in chats]
        return [answers.get(question.split("\n")[0], "Unknown.") for question in questions]

    talking.agent.reader = ModelReader(read, 40, talking.agent.step.encoder.count)
    lines = talk(
        talking, "I live in Oslo", "I have a cat", "Which pet, a cat?", "/why", "Is it Oslo?"
    )
    assert lines[0] == "  remembered (1): + 1 User: I live in Oslo"
    assert lines[-2] == "  no passage contains these words; /why shows what was read"
    answer = lines.index("a cat")
    assert lines[answer + 1] == "  from facts 2 [2026-01-02]: User: I have a cat"
    shown = lines[lines.index("entry\tsection\ttime\tcontent\toperation") + 1].split("\t")
    assert shown[:4] == ["2", "facts", "2026-01-02", "User: I have a cat"]


def test_undo_takes_back_the_last_message_then_the_one_before(said, tmp_path):
    lines = said("I live in Oslo", "I now live in Rome", "/undo", "/undo", "/undo")
    assert "  remembered (2): = 1 User: I now live in Rome (was: User: I live in Oslo)" in lines
    assert lines[-4:-1] == [
        "  taken back: = 1 User: I live in Oslo (was: User: I now live in Rome)",
        "  taken back: - 1 User: I live in Oslo",
        "error: this conversation has no change that is left to undo",
    ]
    assert stored(tmp_path)[0] == []
    assert said("/undo 4")[0] == "  taken back: + 1 User: I live in Oslo"
    assert [event.origin.agent for event in stored(tmp_path)[1]][2:] == ["Marta", "Marta", "Marta"]


def test_forgetting_asks_first(said, tmp_path):
    lines = said("the code is quagga", "/forget 1", "/forget 1 yes", "what code?", "/forget 9 yes")
    assert lines[1:3] == [
        "error: forgetting cannot be undone, so it must be confirmed",
        "  expected: /forget 1 yes",
    ]
    assert lines[3] == "  forgotten for good: entry 1, 1 records erased"
    assert (
        lines[4] == "I do not know."
        and "error: the namespace Marta/default/default has no entry or line '9'" in lines[6]
    )
    assert all(b"quagga" not in path.read_bytes() for path in tmp_path.iterdir())


def test_commands_that_are_none(said):
    lines = said("/undo 99", "/nonsense", "hello")
    assert "cannot be undone" in lines[0] and "error: there is no command '/nonsense'" in lines[2]
    assert lines[-1] == "  remembered (1): + 1 User: hello"


def test_a_failure_is_one_message_and_the_conversation_goes_on(talk, tmp_path):
    talking = conversation(tmp_path / "memories.db")
    failures = [ServiceError("the server is down"), KeyboardInterrupt(), DEFAULT]
    talking.agent.ask = Mock(wraps=talking.agent.ask, side_effect=failures)
    answers = ["error: the server is down", "interrupted", "  remembered (1): + 1 User: three"]
    assert talk(talking, "one", "two", "three") == answers


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = loud_adapter(tmp_path_factory.mktemp("nano") / "adapter", seed=0)
    base, tokenizer = load_policy_model("nano")
    write_adapter_record(folder, "nano", base.config, tokenizer)
    replace(CONFIG, max_chunk_tokens=800, view_tokens=200, max_completion_length=16).save(folder)
    return folder


def test_the_base_answers_and_the_agent_writes(trained, tmp_path, capsys, monkeypatch):
    base = Mock(side_effect=lambda chats: ["the base said this"] * len(chats))
    base.configure_mock(probabilities=None, sure=None)
    monkeypatch.setattr("memalpha.generation.hf.frozen_base", Mock(return_value=base))
    monkeypatch.setattr(sys, "stdin", io.StringIO("violin\nviolin\n"))
    options = f"--store {tmp_path}/m.db --user marta --archive true"
    assert run(["chat", str(trained), *options.split()]) == 0
    assert "the base said this" in capsys.readouterr().out


def test_an_export_that_is_piped_in_is_not_learnt(said, tmp_path):
    for line in ('[{"title": "Oslo"}]', "[", '"title": "Oslo",'):
        with pytest.raises(InputError, match="memalpha import FILE"):
            said(line, "I live in Oslo")
    lines = said("I live in Oslo", '{"role": "user"}', '[[Oslo]] is "home", he said', "/quit")
    assert [line for line in lines if line.startswith("error")] == [
        "error: this line is JSON, as in an export of chats, and was not stored"
    ]
    assert stored(tmp_path)[0] == ["User: I live in Oslo", 'User: [[Oslo]] is "home", he said']


def test_without_a_model_a_question_is_answered_and_not_kept(talk, tmp_path):
    agent = MemoryAgent.without_model(store=tmp_path / "m.db", retrieval="lexical")
    talking = Conversation(agent, Namespace("Marta"), lambda: datetime(2026, 1, 2, tzinfo=UTC))
    assert talk(talking, "/memory", "I live in Oslo.", "where do I live?", "Oslo?", "/memory") == [
        "  0 entries; 0 lines are kept as they were said",
        "  kept as it was said",
        *["1. 2026-01-02  chat  line-1", "   > User: I live in Oslo."] * 2,
        "  0 entries; 1 lines are kept as they were said",
    ]


def test_what_is_shown_is_looked_up_alone(talk, tmp_path, monkeypatch):
    talking = conversation(tmp_path / "memories.db")
    monkeypatch.setattr(talking.agent, "history", Mock(side_effect=AssertionError("the whole log")))
    lines = talk(talking, "I live in Oslo", "where do I live?", "/memory", "/why")
    assert lines[-1].split("\t")[:4] == ["1", "facts", "2026-01-02", "User: I live in Oslo"]
