"""``memalpha import``: what it says, what it writes, and how it stops."""

import json
import signal

import pytest

from memalpha.cli import run
from memalpha.contrib.importing import verb
from memalpha.memory.schema import MemorySchema
from memalpha.store.journal import Journal, Namespace
from tests.helpers.export_samples import LANGMEM, chatgpt


@pytest.fixture
def bring(tmp_path, capsys):
    def bring(data, *more, code=0):
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps(data))
        words = ["import", str(file), "--store", str(tmp_path / "m.db"), "--user", "marta", *more]
        assert run(words) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    return bring


def test_a_dry_run_says_what_would_be_read_and_writes_nothing(bring, tmp_path):
    lines = bring([chatgpt()], "--dry-run").splitlines()
    assert lines[:4] == [
        "chatgpt: 1 conversations, 0 entries",
        "  2 messages of user",
        "  1 messages of assistant",
        "  from 2024-05-01T10:00:00+00:00 to 2024-05-01T10:01:40+00:00",
    ]
    assert "  skipped: 1 message on another branch" in lines and "nothing was" in lines[-1]
    assert not (tmp_path / "m.db").exists()
    bring([chatgpt()])
    plan = json.loads(bring([chatgpt()], "--dry-run", "--json"))
    assert (plan["already there"], plan["messages"]) == (3, {"user": 2, "assistant": 1})


def test_a_summary_and_the_memory_of_the_shipped_agents(bring, tmp_path):
    done = json.loads(bring([chatgpt()], "--json"))
    assert (done["read"], done["already there"], done["kind"]) == (3, 0, "chatgpt")
    assert done["skipped"]["reasoning"] == 1
    assert bring(LANGMEM, "--from-user", "me").startswith("langmem: 2 read, 0 read before (")
    with Journal.open(tmp_path / "m.db") as journal:
        durable = journal.memory(Namespace("marta"), MemorySchema.load("small_core"))
        assert [each.content for each in durable.memory] == [
            "food: pizza; age: 3; pets: cat, dog",
            "Plays chess",
        ]


def test_history_shows_what_was_read(bring, tmp_path, capsys):
    bring([chatgpt()])
    assert run(["journal", "history", str(tmp_path / "m.db"), "-n", "marta"]) == 0
    last = capsys.readouterr().out.splitlines()[-1].split("\t")
    assert (last[2], last[5]) == ("read", "3 messages or entries")


def test_wrong_usage_is_one_message(bring, tmp_path, capsys):
    assert "one of the two" in bring([chatgpt()], "--adapter", "x", "--schema", "facts", code=1)
    assert "a list of the schema 'small_core'" in bring(LANGMEM[:1], "--section", "core", code=1)
    assert "expected: claude" in bring([chatgpt()], "--kind", "claude", code=1)
    bring([chatgpt()])
    exported = str(tmp_path / "m.jsonl")
    assert run(["journal", "export", str(tmp_path / "m.db"), exported]) == 0
    words = ["import", exported, "--store", str(tmp_path / "n.db"), "--user", "marta"]
    assert run(words) == 1
    assert "memalpha journal import STORE FILE" in capsys.readouterr().err
    assert run(["journal", "import", str(tmp_path / "n.db"), str(tmp_path / "conversations.json")])
    assert "memalpha import FILE" in capsys.readouterr().err


def test_a_file_of_which_nothing_is_read_ends_with_1_and_says_why(bring, tmp_path):
    unsaid = [{**chatgpt(), "is_do_not_remember": True}]
    for more in ([], ["--dry-run"]):
        told = bring(unsaid, *more, code=1)
        assert "nothing in" in told and "(chatgpt)" in told and "not to be remembered" in told
    long = [{"id": "1", "memory": "word " * 4000, "user_id": "u"}]
    assert "1 entry refused" in bring(long, code=1)
    tools = [{"role": "tool", "content": "14 degrees"}]
    assert "1 tool message" in bring(tools, code=1)
    bring([chatgpt()])
    assert "0 read, 3 read before" in bring([chatgpt()])


def test_users_of_a_dump_and_messages_without_a_date_are_told(bring):
    memories = [
        {"id": "1", "memory": "Lives in Porto", "user_id": "ivan"},
        {"id": "2", "memory": "Lives in Gdansk", "user_id": "olga", "created_at": 1714557600},
        {"id": "3", "memory": "Has diabetes", "user_id": "olga", "created_at": 1714557600},
    ]
    refused = bring({"results": memories}, code=1)
    assert "'olga': 2, 'ivan': 1" in refused and "--from-user NAME" in refused
    told = bring({"results": memories}, "--from-user", "ivan")
    assert "mem0: 1 read" in told and "skipped: 2 message or entry of another user" in told
    assert "without a date: 1" in told
    plan = json.loads(bring({"results": memories}, "--from-user", "olga", "--dry-run", "--json"))
    assert (plan["entries"], plan["undated"]) == (2, 0)


def test_progress_is_told_where_there_is_no_terminal(bring, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(verb, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr("memalpha.contrib.importing.run.BATCH", 1)
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([chatgpt()]))
    assert run(["import", str(file), "--store", str(tmp_path / "m.db"), "--user", "marta"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"reading: {n} of 3" for n in (1, 2, 3)]


def test_ctrl_c_stops_after_a_batch_and_the_same_command_goes_on(bring, monkeypatch):
    monkeypatch.setattr("memalpha.contrib.importing.run.BATCH", 1)
    signals = iter([True])

    def shown(total):
        return verb.contextmanager(interrupt)()

    def interrupt():
        yield lambda done: next(signals, None) and signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(verb, "_progress", shown)
    assert bring([chatgpt()], code=130).startswith(
        "the import was stopped after 1 of 3 messages and entries\n"
    )
    assert "2 read, 1 read before" in bring([chatgpt()])
