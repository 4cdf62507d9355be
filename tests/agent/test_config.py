"""The agent's configuration: saved beside an adapter, read back the same, refused where it does not fit."""

import json

import pytest

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.errors import InputError
from memalpha.memory.schema import MemorySchema
from memalpha.retrieval.config import RetrievalConfig, RetrievalMode


def test_what_is_saved_is_what_is_loaded(tmp_path):
    config = AgentConfig(
        "facts", "compact", 100, 0, 0, False, 30, False, RetrievalConfig(mode=RetrievalMode.HYBRID, embedder="hashing")
    )
    config.save(tmp_path)
    assert AgentConfig.load(tmp_path) == config
    assert AgentConfig.load(tmp_path) != AgentConfig()


def test_a_schema_of_the_user_s_own_goes_with_the_agent(tmp_path):
    mine, saved, again = tmp_path / "mine.yaml", tmp_path / "adapter", tmp_path / "copy"
    mine.write_text("name: mine\nsections:\n- {name: people, kind: list}\n")
    for folder in (saved, again):
        folder.mkdir()
    AgentConfig(schema=str(mine)).save(saved)
    mine.unlink()
    loaded = AgentConfig.load(saved)
    assert [section.name for section in MemorySchema.load(loaded.schema).sections] == ["people"]
    loaded.save(again)
    assert (again / "memalpha_schema.yaml").read_text() == (saved / "memalpha_schema.yaml").read_text()
    assert str(tmp_path) not in (again / AGENT_FILE).read_text()  # a folder can be moved


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_chunk_tokens": 0}, "max_chunk_tokens is 0"),
        ({"max_completion_length": 0}, "max_new_tokens is 0"),
        ({"view_tokens": -1}, "view_tokens is -1"),
        ({"view_recent": -1}, "view_recent is -1"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        AgentConfig(**settings)


def test_a_folder_without_one_says_what_was_expected(tmp_path):
    with pytest.raises(InputError, match=f"no {AGENT_FILE}") as caught:
        AgentConfig.load(tmp_path)
    assert "the folder of an adapter that memalpha trained" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"colour": 1}', r"unknown keys \['colour'\]"),
        ('{"max_chunk_tokens": "many"}', "cannot be read"),
        ('{"max_chunk_tokens": 0}', "max_chunk_tokens is 0"),
        ('{"retrieval": {"colour": 1}}', "cannot be read"),
        ('{"retrieval": 5}', "cannot be read"),
        ('{"retrieval": {"mode": "guess"}}', "retrieval mode 'guess'"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, text, message):
    (tmp_path / AGENT_FILE).write_text(text)
    with pytest.raises(InputError, match=message):
        AgentConfig.load(tmp_path)


def test_a_file_that_leaves_things_out_takes_the_defaults(tmp_path):
    (tmp_path / AGENT_FILE).write_text(json.dumps({"codec": "compact"}))
    assert AgentConfig.load(tmp_path) == AgentConfig(codec="compact")
