"""Exports of other systems: what is read of each, with whom and when, and what is counted as not
read."""

import io
import json
import random
import zipfile
from contextlib import suppress
from copy import deepcopy
from functools import reduce
from operator import getitem

import pytest

from memalpha.contrib.importing import exports
from memalpha.contrib.importing.exports import Export, json_values
from memalpha.contrib.importing.items import Chat, ForeignEntry, time_of
from memalpha.conversation.messages import Utterance
from memalpha.errors import InputError
from tests.helpers.export_samples import (
    CLAUDE,
    GEMINI,
    LANGMEM,
    LOCOMO,
    MEM0,
    MEMOS,
    MESSAGES,
    chatgpt,
    node,
)


@pytest.fixture
def read(tmp_path):
    def read(data, name="conversations.json", kind=None):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        export = Export(path, kind)
        return export.kind, list(export), dict(export.skipped)

    return read


def test_the_branch_of_chatgpt_that_is_shown_with_what_people_said(read):
    kind, items, skipped = read([chatgpt(), {"mapping": {}, "title": "empty"}])
    first, then = "2024-05-01T10:00:00+00:00", "2024-05-01T10:01:40+00:00"
    assert (kind, items) == (
        "chatgpt",
        [
            Chat(
                "c1",
                (
                    Utterance("user", "I live in Oslo.", time=first, id="u1"),
                    Utterance("user", "How far is Lima?\nand by train?", time=then, id="u2"),
                    Utterance("assistant", "Far. 11,000 km.", time=then, id="a2"),
                ),
                ("a1",),
            )
        ],
    )
    assert skipped == {
        "message on another branch": 1,
        "hidden message": 1,
        "custom instructions": 1,
        "call of a tool": 1,
        "tool message": 1,
        "reasoning": 1,
        "part without text (image_asset_pointer)": 1,
        "conversation without messages": 1,
    }


def test_a_tree_without_its_last_node_or_with_a_circle_is_read_from_the_newest_message(read):
    more = [node("u3", "a2", "user", "Bye \ud83d", 1714560000)]
    _, (conversation,), _ = read([chatgpt(more=more, last="gone")])
    assert [each.id for each in conversation.utterances] == ["u1", "u2", "a2", "u3"]
    assert conversation.utterances[-1].text == "Bye \ufffd"
    round_and_round = [node("x", "y", "user", "one", 1), node("y", "x", "user", "two", 2)]
    _, items, _ = read([chatgpt(more=round_and_round, last="x")])
    assert [each.text for each in items[0].utterances] == ["two", "one"]


def test_claude(read):
    kind, items, skipped = read([CLAUDE])
    said = (
        Utterance("user", "My cat is Biscuit.", time="2024-06-01T09:00:00+00:00", id="m1"),
        Utterance("assistant", "Hi!", time="2024-06-01T09:00:00+00:00", id="m3"),
    )
    assert (kind, items) == ("claude", [Chat("k1", said, ("m2",))])
    assert skipped == {"message on another branch": 1, "thinking block": 1, "attached file": 1}


def test_gemini(read):
    kind, items, skipped = read(GEMINI, "MyActivity.json")
    time, stamp = "2026-03-10T18:12:00+00:00", "2026-03-10T18:12:00.123Z"
    said = (
        Utterance("user", "What is 2 < 3 & more?", time=time, id=f"{stamp} user"),
        Utterance("assistant", "A truth.\n- 2 < 3\nAgain", time=time, id=f"{stamp} assistant"),
    )
    assert (kind, items) == ("gemini", [Chat("12ab", said)])
    assert skipped == {
        "activity that is no prompt (Gave)": 1,
        "activity of another product": 1,
    }


def test_a_prompt_of_gemini_without_an_answer_or_a_time(read):
    alone = {"header": "Gemini Apps", "title": "Prompted Hm", "time": "2026-03-10T18:12:00.123Z"}
    _, items, skipped = read([alone, {**alone, "time": "?"}])
    assert [[each.text for each in item.utterances] for item in items] == [["Hm"]]
    assert skipped == {"prompt without an answer": 1, "activity without a time": 1}


def test_messages_of_openais_form(read):
    said = (
        Utterance("user", "Ahoy", "Marta", "2024-05-01T10:00:00+00:00", "1"),
        Utterance("assistant", "Arr", time="2024-05-01T10:01:00+00:00", id="3"),
    )
    lost = {"system message": 1, "call of a tool": 1}
    for data in (MESSAGES, [MESSAGES], {"conversations": [MESSAGES]}):
        assert read(data) == ("messages", [Chat("chat-1", said)], lost)
    alone = "\n".join(json.dumps(message) for message in MESSAGES["messages"])
    for data in (alone, MESSAGES["messages"], [MESSAGES["messages"]]):
        kind, (conversation,), skipped = read(data)
        assert (kind, conversation.id, skipped) == ("messages", "", lost)
        assert [each.text for each in conversation.utterances] == ["Ahoy", "Arr"]


def test_dialogues_in_sessions_in_the_order_of_their_numbers(read):
    said = (
        Utterance("user", "Look! [shows a red kite]", "Ana", "2023-05-08T13:56", "D1:1"),
        Utterance("user", "Late.", "Ben", "2023-05-09T13:05", "D2:1"),
    )
    assert read([LOCOMO]) == ("locomo", [Chat("conv-1", said)], {})
    assert read(LOCOMO["conversation"])[1] == [Chat("", said)]


def test_memories_of_others(read):
    assert read(MEM0) == (
        "mem0",
        [
            ForeignEntry("a", "Likes tea", "2024-01-02T03:04:05-08:00"),
            ForeignEntry("c", "Has a dog", "2024-02-01T00:00:00+00:00"),
        ],
        {"entry that is deleted": 1, "relations: no text of a memory": 1},
    )
    assert read(MEMOS) == (
        "memos",
        [ForeignEntry("n1", "Loves rain", None), ForeignEntry("n2", "Is a cook", "2025-06-03")],
        {"entry that is archived": 1},
    )
    assert read(LANGMEM) == (
        "langmem",
        [
            ForeignEntry(
                "memories/me/k1", "Plays chess", "2024-10-03T17:22:31+00:00", "memories/me"
            ),
            ForeignEntry("me/k2", "food: pizza; age: 3; pets: cat, dog", None, "me"),
        ],
        {"entry without text": 1},
    )


def test_a_zip_and_its_folder_hold_the_same(read, tmp_path):
    files = {"conversations-000.json": [chatgpt()], "conversations-001.json": [chatgpt("c2")]}
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        for name, data in {**files, "user.json": {}, "a.png": 1}.items():
            archive.writestr(f"x/{name}", json.dumps(data))
            (tmp_path / "folder" / name).write_text(json.dumps(data))
    for name in ("export.zip", "folder"):
        export = Export(tmp_path / name)
        assert [item.id for item in export] == ["c1", "c2"]
        lost = {key: n for key, n in export.skipped.items() if key.startswith("file")}
        assert lost == {"file of another kind (*.json)": 1, "file of another kind (*.png)": 1}


def test_the_wrong_file_gets_one_error_that_says_what_was_sought_and_found(read, tmp_path):
    for data, said in [
        ([{"question": "?", "answer": "!"}], r"holds objects with 'question', 'answer'\n.*mapping"),
        ({"format": "memalpha-journal", "version": 1}, "memalpha journal import STORE FILE"),
        ("Dear diary, today", "cannot be read: .*Dear diary"),
        ("[1, 2", "cannot be read"),
        ('[{"mapping": {}}] trailing', "more follows"),
        ("[" * 100_000, "nested too deeply"),
        ("", "holds nothing"),
        ([{"id": 1, "text": "of a data set", "label": 2}], "holds objects with 'id'"),
    ]:
        with pytest.raises(InputError, match=f"(?s){said}"):
            read(data)
    with pytest.raises(InputError, match=r"(?s)'mapping'.*expected: claude: objects with"):
        read([chatgpt()], kind="claude")
    with pytest.raises(InputError, match="one of chatgpt, claude"):
        read([chatgpt()], kind="gpt")
    (tmp_path / "binary").write_bytes(b"SQLite format 3\x00\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        Export(tmp_path / "binary")


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 20])
def test_a_stream_of_json_gives_what_loading_it_whole_does(monkeypatch, block):
    monkeypatch.setattr(exports, "_BLOCK", block)
    values = [{"a": [1, {"b": "]"}]}, "x, [", 12345, None, [], {"é": "\n"}]
    for text in (
        json.dumps(values),
        json.dumps(values, indent=2, ensure_ascii=False),
        "[]",
        " [ ]",
    ):
        assert list(json_values(io.StringIO(text))) == json.loads(text)
    lines = "\n".join(json.dumps(value) for value in values)
    assert list(json_values(io.StringIO(lines))) == values[:4] + values[4:]


def test_times_of_all_forms():
    for given, iso in [
        (1714557600.9, "2024-05-01T10:00:00+00:00"),
        (1714557600900, "2024-05-01T10:00:00+00:00"),
        ("2024-05-01T10:00:00.25Z", "2024-05-01T10:00:00+00:00"),
        ("2024-05-01", "2024-05-01"),
        ("8:10 am on 1 May, 2024", "2024-05-01T08:10"),
        (True, None),
        (0, None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        ("yesterday", None),
        (None, None),
    ]:
        assert time_of(given) == iso, given
    assert time_of(10**400, -1, float("nan")) is None
    assert time_of("?", None, 1714557600) == "2024-05-01T10:00:00+00:00"


WRONG = [None, True, 0, -1.5, 10**30, "", "x", "9" * 5000, [], {}, [[]], [None], {"a": 1}, "\ud800"]
KEYS = ["", "text", "session_" + "9" * 5000, "conversation", "mapping", "chat_messages", "role"]
WHOLE = [[chatgpt()], [CLAUDE], GEMINI, [LOCOMO], MEM0, MEMOS, LANGMEM, [MESSAGES]]


def places(value, path=()):
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else listed:
        yield (*path, key)
        yield from places(each, (*path, key))


@pytest.mark.parametrize("number", range(len(WHOLE)))
def test_damage_is_counted_or_one_clear_error(tmp_path, number):
    rng = random.Random(number)
    path = tmp_path / "export.json"
    for _ in range(60):
        data = deepcopy(WHOLE[number])
        for _ in range(rng.randint(1, 3)):
            *above, key = rng.choice(list(places(data)) or [("x",)])
            parent = reduce(getitem, above, data)
            wrong = deepcopy(rng.choice(WRONG))
            if isinstance(parent, dict) and rng.random() < 0.3:
                parent[rng.choice(KEYS)] = parent.pop(key, wrong)
            elif isinstance(parent, dict) or parent:
                parent[key] = wrong
        path.write_text(json.dumps(data))
        with suppress(InputError):
            list(Export(path))
