"""Chat messages as an agent reads them: who speaks, when, and in which chunks."""

import pytest
from scripted import ScriptedGenerator

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.conversation.messages import Utterance, joined_messages, read_messages
from memalpha.errors import InputError
from memalpha.memory.memory import count_words
from memalpha.memory.schema import ARCHIVE
from memalpha.models.registry import make_tokenizer
from memalpha.types import Chunk
from memalpha.units import units
from memalpha.use.agent import MemoryAgent


def test_only_what_somebody_said_is_read():
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": [{"type": "text", "text": "I live in Oslo."}, {"type": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "14 degrees"},
        {"role": "assistant", "content": "Noted. ", "time": "2024-05-01T10:00", "id": "m7"},
        {"role": "user", "content": "Bye", "name": "Marta"},
    ]
    assert read_messages(messages, "2024-05-02") == [
        Utterance("user", "I live in Oslo.", time="2024-05-02"),
        Utterance("assistant", "Noted.", time="2024-05-01T10:00", id="m7"),
        Utterance("user", "Bye", "Marta", "2024-05-02"),
    ]
    wrong = [["text"], {"role": "user"}, {"role": "pirate", "content": "x"}]
    wrong += [{"role": "user", "content": 5}, {"role": "user", "content": "x", "time": "noon"}]
    for message in wrong[:1] + wrong[2:]:
        with pytest.raises(InputError, match="message 0"):
            read_messages([message])
    assert read_messages([wrong[1]]) == []


def test_messages_of_a_day_share_a_chunk_and_a_long_one_is_cut_with_its_speaker():
    said = [
        Utterance("user", "one two three", time="2024-05-01T10:00"),
        Utterance("assistant", "four five", time="2024-05-01T11:00"),
        Utterance("user", "six", time="2024-05-02"),
        Utterance("user", "a b c. d e f. g h i.", "Marta", "2024-05-02"),
    ]
    assert [joined.chunk for joined in joined_messages(said, 7, count_words)] == [
        Chunk("User: one two three\nAssistant: four five", "2024-05-01T10:00"),
        Chunk("User: six", "2024-05-02"),
        Chunk("Marta: a b c. d e f.", "2024-05-02"),
        Chunk("Marta: g h i.", "2024-05-02"),
    ]


def test_a_heading_in_an_answer_is_nobody_who_speaks():
    text = "Assistant: Two ways.\n\nFlask: it is small.\n\nDjango: it has all."
    assert units(text, 6, count_words) == [
        "Assistant: Two ways.",
        "Assistant: Flask: it is small.",
        "Assistant: Django: it has all.",
    ]


def test_what_the_user_said_stays_above_what_an_assistant_said_later(tmp_path):
    config = AgentConfig(schema="facts", codec="compact", archive=True, max_completion_length=64)
    step = AgentStep(config, make_tokenizer(["facts"], 4096))
    with MemoryAgent(step, ScriptedGenerator(lambda prompt: ""), store=tmp_path / "m.db") as agent:
        user = {"role": "user", "content": "My flight to Oslo leaves at nine."}
        guess = {"role": "assistant", "content": "My flight to Oslo leaves at ten."}
        agent.add([user], "2024-05-01", namespace="marta")
        agent.add([guess], "2024-05-02", namespace="marta")
        best = agent.search("When does my flight to Oslo leave?", namespace="marta")[0].entry
        assert (best.section, best.content) == (ARCHIVE.name, "User: " + user["content"])
        agent.add([{**user, "content": guess["content"]}], "2024-05-03", namespace="marta")
        best = agent.search("When does my flight to Oslo leave?", namespace="marta")[0].entry
        assert best.content == "User: " + guess["content"]
        with pytest.raises(InputError, match="without a word"):
            agent.add([{"role": "system", "content": "Talk."}], namespace="marta")


def test_an_assistant_with_a_name_is_an_assistant():
    named = {"role": "assistant", "name": "Clara", "content": "Hi."}
    (said,) = read_messages([named])
    assert said.labelled[0] == "Assistant: Hi."
