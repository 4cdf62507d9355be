"""Small exports of each kind, made for the tests, in the forms of today."""


def node(key, parent, role, text, time=None, **message):
    content = {"content_type": "text", "parts": [text]}
    said = {"id": key, "author": {"role": role}, "create_time": time, "content": content}
    return {"id": key, "parent": parent, "children": [], "message": {**said, **message}}


def chatgpt(name="c1", more=(), last="a2"):
    """Two answers to one question, and what is no message of anybody."""
    hidden = {"metadata": {"is_visually_hidden_from_conversation": True}}
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    heard = {"content_type": "audio_transcription", "text": "and by train?"}
    several = {"content_type": "multimodal_text", "parts": [image, "How far is Lima?", heard]}
    profile = {"content_type": "user_editable_context", "user_profile": "a cook"}
    nodes = [
        {"id": "root", "parent": None, "children": ["s"], "message": None},
        node("s", "root", "system", "", **hidden),
        node("p", "s", "user", "", content=profile),
        node("u1", "p", "user", "I live in Oslo.", 1714557600.25),
        node("a1", "u1", "assistant", "An answer that was made again.", 1714557605.0),
        node("t", "u1", "assistant", "search(Oslo)", 1714557606.0, recipient="browser"),
        node("r", "t", "tool", "14 degrees", 1714557607.0),
        node("th", "r", "assistant", "", content={"content_type": "thoughts", "thoughts": []}),
        node("u2", "th", "user", "", 1714557700.0, content=several),
        node("a2", "u2", "assistant", "Far.\ue200cite\ue202turn0\ue201 11,000 km."),
        *more,
    ]
    mapping = {each["id"]: each for each in nodes}
    about = {"title": "Oslo", "conversation_id": name, "create_time": 1714557600.0}
    return {**about, "mapping": mapping, "current_node": last}


CLAUDE = {
    "uuid": "k1",
    "name": "Cats",
    "created_at": "2024-06-01T09:00:00.000000Z",
    "chat_messages": [
        {
            "uuid": "m1",
            "sender": "human",
            "text": "old form of it",
            "content": [{"type": "text", "text": "My cat is Biscuit."}],
            "created_at": "2024-06-01T09:00:00.123456Z",
            "attachments": [{"file_name": "cat.txt", "extracted_content": "purr"}],
            "parent_message_uuid": "00000000-0000-4000-8000-000000000000",
        },
        {"uuid": "m2", "sender": "assistant", "text": "Once.", "parent_message_uuid": "m1"},
        {
            "uuid": "m3",
            "sender": "assistant",
            "text": "",
            "content": [{"type": "thinking", "thinking": "a cat"}, {"type": "text", "text": "Hi!"}],
            "parent_message_uuid": "m1",
        },
    ],
}

GEMINI = [
    {
        "header": "Gemini Apps",
        "title": "Prompted What is 2 < 3 & more?",
        "time": "2026-03-10T18:12:00.123Z",
        "products": ["Gemini Apps"],
        "details": [{"url": "https://gemini.google.com/app/12ab"}],
        "safeHtmlItem": [
            {"html": "<p>A <b>truth</b>.</p><ul><li>2 &lt; 3</li></ul><script>x()</script>"},
            {"html": "<p>Again</p>"},
        ],
    },
    {"header": "Gemini Apps", "title": "Gave feedback: Good", "time": "2026-03-10T18:13:00Z"},
    {"header": "Search", "title": "Searched for pizza", "time": "2026-03-10T17:00:00Z"},
]

MESSAGES = {
    "id": "chat-1",
    "created_at": 1714557600,
    "messages": [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": [{"type": "input_text", "text": "Ahoy"}], "name": "Marta"},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "assistant", "content": "Arr", "timestamp": 1714557660000},
    ],
}

LOCOMO = {
    "sample_id": "conv-1",
    "qa": [],
    "conversation": {
        "speaker_a": "Ana",
        "session_2": [{"speaker": "Ben", "dia_id": "D2:1", "text": "Late."}],
        "session_2_date_time": "1:05 pm on 9 May, 2023",
        "session_1": [
            {"speaker": "Ana", "dia_id": "D1:1", "text": "Look!", "blip_caption": "a red kite"}
        ],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
    },
}

MEM0 = {
    "results": [
        {"id": "a", "memory": "Likes tea", "created_at": "2024-01-02T03:04:05-08:00"},
        {"id": "b", "memory": "Old", "state": "deleted", "user_id": "u"},
        {"id": "c", "text": "Has a dog", "metadata": {"updated_at": "2024-02-01T00:00:00Z"}},
    ],
    "relations": [{"source": "a"}],
}

MEMOS = {
    "nodes": [
        {"id": "n1", "memory": "Loves rain", "metadata": {"status": "activated"}},
        {"id": "n2", "payload": {"memory": "Is a cook", "metadata": {"memory_time": "2025-06-03"}}},
        {
            "id": "n3",
            "memory": "x",
            "metadata": {"status": "archived", "memory_type": "UserMemory"},
        },
    ],
    "edges": [],
}

LANGMEM = [
    {
        "namespace": ["memories", "me"],
        "key": "k1",
        "value": {"kind": "Memory", "content": {"content": "Plays chess"}},
        "created_at": "2024-10-02T17:22:31.590602+00:00",
        "updated_at": "2024-10-03T17:22:31.590605+00:00",
    },
    {
        "namespace": ["me"],
        "key": "k2",
        "value": {"food": "pizza", "age": 3, "pets": ["cat", "dog"]},
    },
    {"namespace": ["me"], "key": "k3", "value": {}},
]
