"""Conversations of other programs: which branch is read, with which dates, of whom, and what a file
that is made to do harm ends in."""

import json
import random
import string
import struct
import zipfile
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from memalpha.contrib.importing.chats import BRANCH
from memalpha.contrib.importing.exports import Export
from memalpha.contrib.importing.items import UNREADABLE_TIME, ForeignEntry, time_in, time_of
from memalpha.contrib.importing.run import collect_items
from memalpha.contrib.importing.trees import Node, live_branch
from memalpha.errors import InputError

NONE = "00000000-0000-4000-8000-000000000000"
AT = "2025-02-01T10:00:00+00:00"
SECONDS = 1738404000  # the same time


@pytest.fixture
def read(tmp_path):
    def read(data, name="export.json", kind=None):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        export = Export(path, kind)
        items = list(export)
        said = [(each.role, each.text, each.time) for item in items for each in item.utterances]
        return export.kind, said, dict(export.skipped)

    return read


def lines(*values):
    return "\n".join(map(json.dumps, values))


# ------------------------------------------------------------------------------------------------
# programs
def openwebui(**more):
    def message(key, parent, role, text, seconds):
        return {"id": key, "parentId": parent, "role": role, "content": text, "timestamp": seconds}

    hidden = '<details type="reasoning" done="true">\n> Hm.\n</details>\n'
    messages = [
        message("a", None, "user", "I moved to Porto.", SECONDS),
        message("b", "a", "assistant", "Where?", SECONDS + 1),
        message("c", "a", "assistant", f"{hidden}Good luck.", SECONDS + 2),
    ]
    history = {"currentId": "b", "messages": {each["id"]: each for each in messages}}
    chat = {"title": "t", "history": history, "messages": messages[:2]}
    return {"id": "k", "user_id": "u", "chat": chat, "created_at": SECONDS, **more}


def librechat(*messages, **more):
    return {"conversationId": "k", "messages": list(messages), **more}


def librechat_message(key, parent, of_user, text, time="2025-02-01T10:00:00.000Z", **more):
    about = {"messageId": key, "parentMessageId": parent, "isCreatedByUser": of_user}
    return {**about, "text": text, "createdAt": time, **more}


def claude_code(key, parent, role, content, time="2025-02-01T10:00:00.000Z", **more):
    about = {"type": role, "uuid": key, "parentUuid": parent, "sessionId": "s", "timestamp": time}
    return {**about, "isSidechain": False, "message": {"role": role, "content": content}, **more}


PORTO = ("user", "I moved to Porto.", AT)
LUCK = ("assistant", "Good luck.", AT)


def test_open_webui_reads_the_branch_that_is_shown(read):
    shown = [PORTO, ("assistant", "Where?", "2025-02-01T10:00:01+00:00")]
    assert read([openwebui()]) == ("openwebui", shown, {"message on another branch": 1})
    chat = openwebui()
    chat["chat"]["history"]["currentId"] = None  # the newest end, without its reasoning
    assert read([chat])[1][1] == ("assistant", "Good luck.", "2025-02-01T10:00:02+00:00")
    assert read(openwebui())[1] == shown


@pytest.mark.parametrize("nested", [False, True])
def test_librechat_flat_or_with_answers_in_their_questions(read, nested):
    root = "00000000-0000-0000-0000-000000000000"
    thought = [{"type": "think", "think": "Hm"}, {"type": "text", "text": {"value": "Good luck."}}]
    question = librechat_message("u2", root, True, "I moved to Porto.")
    answer = librechat_message("a2", "u2", False, "", content=thought)
    early = "2025-02-01T09:00:00.000Z"
    edited = librechat_message("u1", root, True, "I moved to Faro.", early)
    if nested:
        data = librechat(edited, {**question, "children": [answer]}, recursive=True)
    else:
        data = librechat(edited, question, answer)
    lost = {"message on another branch": 1, "think part": 1}
    assert read(data) == ("librechat", [PORTO, LUCK], lost)


def test_claude_code_without_side_chains_tools_and_what_the_program_wrote(read):
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "14 degrees"}]
    session = [
        {"type": "summary", "summary": "Moving", "leafUuid": "a2"},
        claude_code("m", None, "user", "<command-name>/model</command-name>"),
        claude_code("u1", "m", "user", "I moved to Faro.", "2025-02-01T09:00:00.000Z"),
        claude_code("u2", "m", "user", "I moved to Porto."),
        claude_code("t", "u2", "assistant", [{"type": "tool_use", "id": "t", "input": {}}]),
        claude_code("r", "t", "user", result),
        claude_code("x", None, "user", "Look it up.", isSidechain=True),
        {**claude_code("b", None, "system", ""), "subtype": "compact_boundary"},
        claude_code("z", "b", "user", "This session goes on ...", isCompactSummary=True),
        claude_code("a2", "z", "assistant", [{"type": "text", "text": "Good luck."}]),
    ]
    kind, said, lost = read(lines(*session), "session.jsonl")
    assert (kind, said) == ("claude-code", [PORTO, LUCK])
    assert lost == {
        "message of a sub-agent": 1,
        "message on another branch": 1,
        "message that the program wrote": 2,
        "note of the session (summary)": 1,
        "note of the session (system)": 1,
        "tool_result part": 1,
        "tool_use part": 1,
    }


def test_a_folder_of_sessions_is_read_file_by_file(tmp_path):
    for name in ("a", "b"):
        session = {**claude_code("u", None, "user", f"I am {name}."), "sessionId": name}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(session))
    (tmp_path / "other.json").write_text("[1]")
    export = Export(tmp_path)
    assert [(item.id, item.utterances[0].text) for item in export] == [
        ("a", "I am a."),
        ("b", "I am b."),
    ]
    assert export.skipped == {"file of another kind (*.json)": 1}


def test_sharegpt_grok_gemini_cli_deepseek_and_le_chat(read, tmp_path):
    turns = [
        {"from": "human", "value": "I moved to Porto."},
        {"from": "gpt", "value": "Good luck."},
    ]
    system = {"from": "system", "value": "Be kind."}
    kind, said, lost = read([{"id": "q", "conversations": [system, *turns]}])
    assert (kind, [each[:2] for each in said]) == ("sharegpt", [PORTO[:2], LUCK[:2]])
    assert lost == {"system message": 1}

    def response(key, sender, text, parent=None):
        date = {"$date": {"$numberLong": str(SECONDS * 1000)}}
        about = {"_id": key, "sender": sender, "message": text, "create_time": date}
        return {"response": {**about, "parent_response_id": parent}}

    answers = [response("1", "human", PORTO[1]), response("2", "ASSISTANT", LUCK[1], "1")]
    grok = {"conversations": [{"conversation": {"id": "g"}, "responses": answers}], "projects": []}
    assert read(grok) == ("grok", [PORTO, LUCK], {})

    time = {"timestamp": "2025-02-01T10:00:00.000Z"}
    session = [
        {"id": "1", "type": "user", "content": [{"text": "I moved to Porto."}], **time},
        {"id": "2", "type": "info", "content": "Updated.", **time},
        {"id": "3", "type": "gemini", "content": "Good luck.", "thoughts": [{}], **time},
    ]
    data = {"sessionId": "s", "startTime": time["timestamp"], "messages": session}
    assert read(data) == ("gemini-cli", [PORTO, LUCK], {"info message": 1})

    def node(key, parent, children, *parts):
        when = "2025-02-01T18:00:00.000000+08:00"
        fragments = [{"type": kind, "content": text} for kind, text in parts]
        message = {"files": [], "inserted_at": when, "fragments": fragments}
        return {"id": key, "parent": parent, "children": children, "message": parts and message}

    nodes = [
        node("root", None, ["1"]),
        node("1", "root", ["2"], ("REQUEST", "I moved to Porto.")),
        node("2", "1", [], ("THINK", "Hm."), ("RESPONSE", "Good luck.")),
    ]
    data = [{"id": "d", "inserted_at": "x", "mapping": {each["id"]: each for each in nodes}}]
    kind, said, lost = read(data)
    assert (kind, said[0][:2], said[1][:2]) == ("deepseek", PORTO[:2], LUCK[:2])
    assert said[0][2] == "2025-02-01T18:00:00+08:00" and lost == {"think part": 1}

    with zipfile.ZipFile(tmp_path / "chats.zip", "w") as archive:
        for chat in ("k1", "k2"):
            about = {"chatId": chat, "createdAt": "2025-02-01T10:00:00.000Z", "version": 0}
            said = [
                {"id": f"{chat}-{n}", "role": "user", "content": f"I said {n}."} for n in (1, 2)
            ]
            content = json.dumps([{**about, **each} for each in said])
            archive.writestr(f"chat-{chat}.json", content)
    export = Export(tmp_path / "chats.zip")
    assert [(item.id, len(item.utterances)) for item in export] == [("k1", 2), ("k2", 2)]


def test_what_claude_has_noted_becomes_entries_of_a_sentence_or_paragraph(tmp_path):
    path = tmp_path / "memories.json"
    about = "**Work context**\n\nOlga is a nurse in Porto.\n\n**Personal**\n\nShe has a cat."
    notes = {"conversations_memory": about, "project_memories": {"p": "Builds a boat."}}
    path.write_text(json.dumps([{**notes, "account_uuid": "a"}]))
    export = Export(path)
    texts = ["Olga is a nurse in Porto.", "She has a cat.", "Builds a boat."]
    assert list(export) == [ForeignEntry(text, text, None, "a") for text in texts]
    assert export.skipped == {"title without text": 2}


def test_the_page_of_takeout_says_what_its_json_does(read):
    def card(said, when, answer, app="12ab"):
        cell = '<div class="content-cell mdl-cell mdl-cell--6-col mdl-typography--body-1">'
        caption = '<div class="content-cell mdl-cell mdl-cell--12-col mdl-typography--caption">'
        return (
            '<div class="outer-cell mdl-cell mdl-cell--12-col mdl-shadow--2dp"><div class="mdl-grid">'
            '<div class="header-cell"><p class="mdl-typography--title">Gemini Apps<br></p></div>'
            f"{cell}{said}<br>{when}<br>{answer}</div>{caption}<b>Products:</b><br>&emsp;Gemini Apps"
            f'<br><a href="https://gemini.google.com/app/{app}">x</a></div></div></div>'
        )

    page = "<html><head><style>b{}</style></head><body>{}</body></html>".replace(
        "{}</body>",
        card(
            "Prompted&nbsp;Is 2 &lt; 3?",
            "Feb 1, 2025, 10:00:00\u202fAM UTC",
            "<p>Yes, <b>it</b> is.</p>",
        )
        + card("Created Gemini Canvas", "Feb 1, 2025, 10:00:00 AM UTC", "")
        + card("Prompted Oi", "1 de fev. de 2025, 10:00:00 BRT", "<p>Oi</p>")
        + "</body>",
    )
    kind, said, lost = read(page, "MyActivity.html")
    assert (kind, said) == ("gemini", [("user", "Is 2 < 3?", AT), ("assistant", "Yes, it is.", AT)])
    assert lost == {"activity that is no prompt (Created)": 1, "activity without a time": 1}


# ------------------------------------------------------------------------------------------------
# branches
@pytest.mark.parametrize(
    ("nodes", "current", "branch"),
    [
        ("a: b:a c:b", "", "abc"),
        ("a: b:a c:a", "", "ac"),  # the last of equals
        ("a: b:a c:a", "b", "ab"),
        ("a: b:a c: d:c", "", "cd"),  # the first message was edited
        ("a:? b:a c:? d:c", "", "cd"),  # of roots that name one missing parent, too
        ("a: b:a c:gone d:c", "", "abcd"),  # what it follows is missing
        ("a b c", "", "abc"),
        ("a: b:a c d:c", "", "abcd"),
        ("a:b b:a", "", "ab"),  # a circle
        ("a:", "gone", "a"),
        ("", "", ""),
    ],
)
def test_the_branch_that_was_seen_last(nodes, current, branch):
    tree = []
    for each in nodes.split():
        name, colon, parent = each.partition(":")
        tree.append(Node(name, parent if colon else None, {"x": 1}))
    assert "".join(tree[place].id for place in live_branch(tree, current)) == branch


def test_the_newest_end_counts_not_the_last_place():
    def node(name, parent, time):
        return Node(name, parent, {"createdAt": time})

    tree = [node("a", "", 1e9), node("new", "a", 1.2e9), node("old", "a", 1.1e9)]
    assert live_branch(tree) == [0, 1]
    children = [Node("a", None, {}, ("b",)), Node("x", None, {}), Node("b", None, {})]
    assert live_branch([children[0], children[2], children[1]]) == [0, 1, 2]


def claude(*messages, **more):
    def message(key, parent, sender, text):
        return {"uuid": key, "parent_message_uuid": parent, "sender": sender, "text": text}

    talk = {"uuid": "c", "created_at": "2025-02-01T10:00:00Z", **more}
    return {**talk, "chat_messages": [message(*each) for each in messages]}


def test_edited_first_messages_and_gaps_in_claudes_export(read):
    first = ("u1", NONE, "human", "I like walnuts."), ("a1", "u1", "assistant", "Fine.")
    second = ("u2", NONE, "human", "I moved to Porto."), ("a2", "u2", "assistant", "Good luck.")
    assert read([claude(*first, *second)])[1:] == ([PORTO, LUCK], {"message on another branch": 2})
    gap = ("a3", "gone", "assistant", "Good luck.")
    assert read([claude(second[0], gap)])[1:] == ([PORTO, LUCK], {})


@pytest.mark.parametrize("flag", ["is_do_not_remember", "isTemporary", "is_temporary", "temporary"])
def test_what_is_not_to_be_remembered_is_counted_and_not_read(read, flag):
    talk = claude(("u", NONE, "human", "I have epilepsy."), **{flag: True})
    other = claude(("u", NONE, "human", "I moved to Porto."), **{flag: False})
    reason = "message of a conversation that is temporary or not to be remembered"
    assert read([talk, other])[1:] == ([PORTO], {reason: 1})


# ------------------------------------------------------------------------------------------------
# dates
NAMES = """createdAt created_at created createTime create_time inserted_at insertedAt sent_at sentAt
timestamp ts time date datetime date_time created_utc createTimeMs dateCreated date_sent updated_at
creationTimestamp message_time updateTime started_at Timestamp CREATED_AT""".split()


@pytest.mark.parametrize("name", NAMES)
def test_any_name_and_form_of_a_time(name):
    moment = datetime.fromtimestamp(SECONDS, UTC)
    forms = [
        SECONDS,
        float(SECONDS),
        SECONDS * 1000,
        SECONDS * 10**6,
        SECONDS * 10**9,
        str(SECONDS),
        str(SECONDS * 1000),
        "2025-02-01T10:00:00.000Z",
        "2025-02-01 10:00:00+00:00",
        "2025-02-01 10:00:00 UTC",
        format_datetime(moment),
        "Sat Feb 01 2025 10:00:00 GMT+0000 (Coordinated Universal Time)",
        "Feb 1, 2025, 10:00:00\u202fAM UTC",
        {"$date": {"$numberLong": str(SECONDS * 1000)}},
        {"$date": "2025-02-01T10:00:00Z"},
        {"_seconds": SECONDS, "_nanoseconds": 0},
    ]
    assert {time_in({"role": "user", name: form}) for form in forms} == {AT}


def test_other_zones_and_what_is_no_time():
    assert time_of("Sat Feb 01 2025 10:00:00 GMT+0530 (IST)") == "2025-02-01T10:00:00+05:30"
    assert time_of("Feb 1, 2025, 10:00 PM PST") == "2025-02-01T22:00:00-08:00"
    assert time_of(202502011430) == time_of("202502011430") == "2025-02-01T14:30:00"
    assert time_of(20250201143059) == time_of("20250201143059") == "2025-02-01T14:30:59"
    assert time_of(1738420259000) == time_of("1738420259") == "2025-02-01T14:30:59+00:00"
    assert (time_of(20250201), time_of("2025年2月1日 10:00")) == (
        "2025-02-01",
        "2025-02-01T10:00:00",
    )
    for value in ["01/02/2025", 7, 20259999, "9" * 30, 10**25, [1], {"$date": {}}, "x" * 100, 1e-5]:
        assert time_of(value) is None, value
    for name in ["end_time", "expires_at", "deleted_at", "birth_date", "content", "on", "timeout"]:
        assert time_in({name: SECONDS}) == "", name
    assert time_in({"updated_at": SECONDS + 60, "createdAt": SECONDS}) == AT
    assert time_in({"created_at": SECONDS + 60, "updatedAt": SECONDS}, updated=True) == AT


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("Mar 5, 2024, 2:30:00 PM", "2024-03-05T14:30:00"),
        ("March 5, 2024 at 2:30 PM", "2024-03-05T14:30:00"),
        ("2024-03-05 2:30 pm", "2024-03-05T14:30:00"),
        ("5 Mar 2024 2:30 P.M. PST", "2024-03-05T14:30:00-08:00"),
        ("Mar 5, 2024, 12:05 AM", "2024-03-05T00:05:00"),
        ("Mar 5, 2024, 12:05 PM", "2024-03-05T12:05:00"),
        ("Tuesday, March 5, 2024 at 2:30:00 PM UTC", "2024-03-05T14:30:00+00:00"),
        ("2024-03-05 14:30:00 -0730", "2024-03-05T14:30:00-07:30"),
        ("2024-03-05 14:30:00.25 +02:00", "2024-03-05T14:30:00+02:00"),
        ("2024-03-05 14:30:00 +0000 UTC", "2024-03-05T14:30:00+00:00"),
        ("Tue Mar 05 2024 14:30:00 GMT+1", "2024-03-05T14:30:00+01:00"),
    ],
)
def test_the_half_of_a_day_and_an_offset_count(written, time):
    assert time_of(written) == time


def test_a_time_that_cannot_be_read_is_counted(read):
    message = {"role": "user", "content": "Hi", "date": "01/02/2025"}
    assert read([message])[1:] == ([("user", "Hi", None)], {UNREADABLE_TIME: 1})
    assert read([{**message, "date": None}])[2] == {}


def said(*messages):
    return [{"role": role, "content": text, "ts": SECONDS + at} for role, text, at in messages]


def test_a_list_that_is_newest_first_is_turned_round(read):
    order = [("user", "1", 0), ("assistant", "2", 5), ("user", "3", 9), ("assistant", "4", 9)]
    for messages in [order, order[::-1], [*order[2:], *order[:2]]]:
        for data in [said(*messages), {"messages": said(*messages)}, lines(*said(*messages))]:
            assert [text for _, text, _ in read(data)[1]] == ["1", "2", "3", "4"], messages
    undated = [{"role": "user", "content": "5"}]
    texts = [text for _, text, _ in read([*said(*order), *undated])[1]]
    assert texts == ["1", "2", "3", "4", "5"]


def rows(parents, *, talk="k", start=0):
    """Messages of a database: message number n follows the one that ``parents`` names."""
    return [
        {
            "id": f"{talk}{number}",
            "conversationId": talk,
            "role": ("user", "assistant")[number % 2],
            "content": f"{talk}{number}",
            "parentId": None if parent is None else f"{talk}{parent}",
            "createdAt": SECONDS + start + number,
        }
        for number, parent in enumerate(parents)
    ]


@pytest.mark.parametrize(
    ("parents", "shown"),
    [
        ([None] * 6, "012345"),  # a column that nobody fills
        ([None] * 2, "01"),
        ([None, 0, None, 2, None, 4], "012345"),  # of an answer its question
        ([None, 0, 0, None, 3, None, 5], "023456"),  # and one was answered anew
        ([None, 0, None, 2], "23"),  # the first message was edited
        ([None, 0, 1, 2, None, 4, None], "6"),
    ],
)
def test_parents_that_are_not_filled_in_part_no_conversation(read, parents, shown):
    messages = rows(parents)
    kind, said, skipped = read({"messages": messages})
    assert (kind, [text for _, text, _ in said]) == ("messages", [f"k{each}" for each in shown])
    left = len(parents) - len(shown)
    assert skipped == ({BRANCH: left} if left else {})


def test_a_list_of_several_conversations_is_each_of_them(read, tmp_path):
    messages = [*rows([None, 0, 1, 2], talk="a"), *rows([None, 0, 1, 1], talk="b", start=60)]
    for data in [messages, {"messages": messages}, {"data": {"messages": messages[::-1]}}]:
        said = [text for _, text, _ in read(data)[1]]
        assert sorted(said) == ["a0", "a1", "a2", "a3", "b0", "b1", "b3"]
        assert said.index("a0") < said.index("a1") < said.index("a2")
        found = collect_items(Export(tmp_path / "export.json"))
        assert {each.source for each in found.messages} == {
            f"messages/{each[0]}/{each}" for each in said
        }
        assert found.left == ("messages/b/b2",)


def test_what_macos_keeps_beside_files_is_not_read(tmp_path):
    beside = b"\0\5\x16\7\0\2\0\0Mac OS X\xff\xfe"
    files = {"Chats/A.json": json.dumps(rows([None] * 2)).encode()}
    files |= {"__MACOSX/Chats/._A.json": beside, "Chats/._B.jsonl": beside}
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    (tmp_path / "export").mkdir()
    with zipfile.ZipFile(tmp_path / "export.zip") as archive:
        archive.extractall(tmp_path / "export")
    for name in ("export.zip", "export"):
        found = collect_items(Export(tmp_path / name))
        assert [each.what.text for each in found.messages] == ["k0", "k1"]
        assert found.skipped.total() == 2


def test_messages_that_have_one_id_are_each_read(read, tmp_path):
    turns = [("user", "I moved to Porto."), ("assistant", "Good luck.")]
    messages = [{"id": 1, "role": role, "content": text} for role, text in turns]
    assert [text for _, text, _ in read(messages)[1]] == [text for _, text in turns]
    found = collect_items(Export(tmp_path / "export.json"))
    assert [each.what.id for each in found.messages] == ["1", "1 2"]
    again = read([*messages, messages[1]])
    assert len(again[1]) == 3
    found = collect_items(Export(tmp_path / "export.json"))
    assert (len(found.messages), found.skipped.total()) == (2, 1)


def test_messages_of_openais_threads_come_in_their_order(read):
    def message(key, role, text, time):
        parts = [{"type": "text", "text": {"value": text, "annotations": []}}]
        about = {"id": key, "object": "thread.message", "created_at": time, "thread_id": "t"}
        return {**about, "role": role, "content": parts}

    thread = [message("2", *LUCK[:2], SECONDS + 5), message("1", *PORTO[:2], SECONDS)]
    later = ("assistant", "Good luck.", "2025-02-01T10:00:05+00:00")
    assert read({"object": "list", "data": thread}) == ("messages", [PORTO, later], {})
    parts = [{"type": "reasoning", "text": "Hm"}, {"type": "text", "text": "Good luck."}]
    ui = {"id": "1", "role": "assistant", "parts": parts, "createdAt": SECONDS}
    assert read([ui]) == ("messages", [LUCK], {"reasoning part": 1})


# ------------------------------------------------------------------------------------------------
# whose
@pytest.mark.parametrize(
    "data",
    [
        [{"id": n, "memory": f"m{n}", "user_id": user} for n, user in enumerate(("olga", "ivan"))],
        [
            {"id": n, "memory": "m", "payload": {"user_id": u}}
            for n, u in enumerate(("olga", "ivan"))
        ],
        [
            {"id": "1", "memory": "m1", "user_id": "ivan"},
            {"id": "2", "memory": "m2", "agent_id": "b"},
        ],
        [
            {"namespace": ["memories", u], "key": "k", "value": {"text": u}}
            for u in ("olga", "ivan")
        ],
        [{"id": u, "memory": u, "metadata": {"user_id": u, "status": "activated"}} for u in "oi"],
        [openwebui(user_id="olga"), openwebui(id="k2", user_id="ivan")],
        [claude(("u", NONE, "human", "Hi"), uuid=u, account={"uuid": u}) for u in ("olga", "ivan")],
        [{"messages": said(("user", "Hi", 0)), "user": u} for u in ("olga", "ivan")],
        [{"role": "user", "content": "Hi", "user_id": u} for u in ("olga", "ivan")],
        [{"conversations_memory": "Hi.", "account_uuid": u} for u in ("olga", "ivan")],
    ],
)
def test_a_file_of_several_users_is_refused_or_one_is_chosen(tmp_path, data):
    path = tmp_path / "export.json"
    path.write_text(json.dumps(data))
    with pytest.raises(
        InputError, match=r"(?s)of 2 users or namespaces: .*--from-user NAME"
    ) as refused:
        collect_items(Export(path), "ivan")
    users = {"ivan", "olga", "agent_id=b", "o", "i", "memories/ivan", "memories/olga"}
    named = {user for user in users if f"'{user}': " in str(refused.value)}
    assert len(named) == 2
    for user in named:
        found = collect_items(Export(path), "ivan", [user.rpartition("/")[2]])
        chosen = len(found.messages) + len(found.entries)
        assert chosen > 0 and found.skipped["message or entry of another user"] > 0
    whole = collect_items(Export(path), "ivan", sorted(named))
    assert "message or entry of another user" not in whole.skipped
    with pytest.raises(InputError, match="holds nothing of 'nobody'"):
        collect_items(Export(path), "ivan", ["nobody"])


def test_a_file_of_one_user_of_any_name_needs_no_choice(tmp_path):
    path = tmp_path / "export.json"
    for data in [
        [{"id": n, "memory": f"m{n}", "user_id": "u7", "agent_id": f"a{n}"} for n in range(2)],
        [{"namespace": ["marta", kind], "key": "k", "value": {"text": kind}} for kind in "ab"],
    ]:
        path.write_text(json.dumps(data))
        assert len(collect_items(Export(path), "marta").entries) == 2


# ------------------------------------------------------------------------------------------------
# files that are made to do harm
def packed(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_a_zip_that_unpacks_to_far_more_than_a_text_is_refused_before_it_is_read(tmp_path):
    spaces = b"[" + b" " * 80_000_000 + b"]"
    path = packed(tmp_path / "one.zip", {"conversations.json": spaces})
    with pytest.raises(InputError, match=r"unpacks from .* to 80000002 bytes"):
        Export(path)
    parts = {f"conversations-{n}.json": spaces[:20_000_000] for n in range(4)}
    with pytest.raises(InputError, match="unpacks from"):
        Export(packed(tmp_path / "parts.zip", parts))


def test_a_damaged_zip_is_one_clear_error(tmp_path):
    talk = json.dumps([claude(("u", NONE, "human", "I moved to Porto. " * 30))])
    content = packed(tmp_path / "good.zip", {"conversations.json": talk}).read_bytes()
    entry = content.rfind(b"PK\x01\x02")
    smaller = content[: entry + 24] + struct.pack("<I", 100) + content[entry + 28 :]
    locked = bytearray(content)
    locked[6] |= 1
    locked[entry + 8] |= 1
    mangled = content[:70] + b"\xff" * 10 + content[80:]
    path = tmp_path / "bad.zip"
    for bad, reason in [(smaller, "CRC"), (bytes(locked), "password"), (mangled, "decompressing")]:
        path.write_bytes(bad)
        with pytest.raises(InputError, match=f"cannot be read: .*{reason}"):
            list(Export(path))
    with pytest.raises(InputError, match="unpack the zip archive in it"):
        Export(packed(tmp_path / "nested.zip", {"export.zip": content}))


def test_links_in_a_folder_or_zip_are_not_followed(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("password: hunter2")
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "conversations.json").symlink_to(secret)
    with pytest.raises(InputError, match="1 links, which are not followed") as refused:
        Export(folder)
    assert "hunter2" not in str(refused.value)
    (folder / "other.json").write_text(json.dumps(said(("user", "Hi", 0))))
    export = Export(folder)
    assert (len(list(export)), export.skipped["link to another file"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":' * 100_000, "nested too deeply"),
        (
            '[{"namespace": ["a"], "key": "k", "value": '
            + '{"content":' * 2500
            + '"x"'
            + "}" * 2500
            + "}]",
            "nested too deeply",
        ),
        ('[{"role": "user", "content": "x", "time": ' + "9" * 5000 + "}]", "4300 digits"),
        ('[{"role": "user", "content": "\udcff"}]', "codec can't decode"),
        ("\0\0", "cannot be read"),
    ],
)
def test_hostile_json_is_one_clear_error(tmp_path, text, reason):
    path = tmp_path / "export.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=reason):
        list(Export(path))


def test_a_null_character_leaves_a_text_and_white_space_is_no_value(read):
    assert read('[{"role": "user", "content": "a\\u0000b"}]')[1] == [("user", "ab", None)]
    with pytest.raises(InputError, match="holds nothing"):
        read(" " * 5_000_000)


def test_one_value_has_a_limit(read, monkeypatch):
    monkeypatch.setattr("memalpha.contrib.importing.exports._BLOCK", 1000)
    monkeypatch.setattr("memalpha.contrib.importing.exports._LONGEST", 5000)
    letters = "".join(random.Random(0).choices(string.ascii_letters, k=9000))
    with pytest.raises(InputError, match="more than 5000 characters"):
        read([{"role": "user", "content": letters}])
    short = [{"role": "user", "content": letters[:900]} for _ in range(20)]
    assert len(read(short)[1]) == 20
