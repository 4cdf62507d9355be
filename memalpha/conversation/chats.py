"""Readers of chats: ChatGPT, Claude, Gemini, lists of messages, dialogues in sessions.

Each is a generator of conversations from the elements of a file. It counts what it does not read,
message by message, by the reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

from memalpha.conversation.items import Chat, Reasons, clean, dated, fields, listed, time_of, word
from memalpha.conversation.messages import ASSISTANT, UNREAD, USER, Utterance, text_of

NO_MESSAGES = "conversation without messages"
NO_TEXT = "message without text"
BRANCH = "message on another branch"
_ROLES: Mapping[Any, str] = {
    USER: USER,
    "human": USER,
    ASSISTANT: ASSISTANT,
    "ai": ASSISTANT,
    "model": ASSISTANT,
}


# ------------------------------------------------------------------------------------------------
# ChatGPT: each conversation is a tree of messages. The branch that ends in ``current_node`` is what
# the user sees; an edited message or a second answer began another.
_REASONING = frozenset({"thoughts", "reasoning_recap"})
_SETTINGS = frozenset({"user_editable_context", "model_editable_context"})
_CITATION = re.compile("\ue200[^\ue201]*\ue201")  # a mark that the page shows as a link


def is_chatgpt(value: Any) -> bool:
    """Whether it is a conversation of ChatGPT's export."""
    return isinstance(fields(value).get("mapping"), dict)


def chatgpt(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``conversations.json`` of ChatGPT."""
    for value in map(fields, values):
        nodes = {key: fields(node) for key, node in fields(value.get("mapping")).items()}
        branch = _branch(nodes, word(value.get("current_node")))
        others = [node for key, node in nodes.items() if key not in branch and node.get("message")]
        if others:
            skipped[BRANCH] += len(others)
        told = []
        for key in branch:
            message = fields(nodes[key].get("message"))
            if not message:
                continue
            text = _chatgpt_text(message, skipped)
            if text:
                role = _ROLES[fields(message["author"])["role"]]
                name = str(message.get("id") or key)
                time = time_of(message.get("create_time"))
                told.append(Utterance(role, text, time=time, id=name))
        name = str(value.get("conversation_id") or value.get("id") or "")
        yield from _chat(name, told, time_of(value.get("create_time")), skipped)


def _chat(name: str, told: list[Utterance], start: str | None, skipped: Reasons) -> Iterator[Chat]:
    """Yield the conversation, or count it if nothing was said in it."""
    if told:
        yield Chat(name, tuple(dated(told, start)))
    else:
        skipped[NO_MESSAGES] += 1


def _branch(nodes: Mapping[str, dict[str, Any]], last: str) -> dict[str, None]:
    """Return the keys of the nodes from the root to ``last``, else to the newest message."""
    if last not in nodes:
        times = {key: fields(node.get("message")).get("create_time") for key, node in nodes.items()}
        written = {key: time for key, time in times.items() if isinstance(time, int | float)}
        last = max(written, key=written.__getitem__, default="")
    keys: dict[str, None] = {}
    while last in nodes and last not in keys:
        keys[last] = None
        last = word(nodes[last].get("parent"))
    return dict.fromkeys(reversed(keys))


def _chatgpt_text(message: dict[str, Any], skipped: Reasons) -> str:
    """Return what a message says; nothing, and a count, if nobody said it."""
    role = word(fields(message.get("author")).get("role"))
    content = fields(message.get("content"))
    kind = word(content.get("content_type"))
    if fields(message.get("metadata")).get("is_visually_hidden_from_conversation"):
        reason = "hidden message"
    elif role not in _ROLES:
        reason = f"{role} message"
    elif message.get("recipient") not in (None, "all"):
        reason = "call of a tool"
    elif kind in _REASONING:
        reason = "reasoning"
    elif kind in _SETTINGS:
        reason = "custom instructions"
    elif kind not in ("text", "multimodal_text", "code"):
        reason = f"content of type {kind}"
    else:
        parts = listed(content.get("parts")) or [content.get("text")]
        texts = [part if isinstance(part, str) else fields(part).get("text") for part in parts]
        skipped.update(
            f"part without text ({part.get('content_type')})"
            for part in parts
            if isinstance(part, dict) and not isinstance(part.get("text"), str)
        )
        said = "\n".join(clean(text) for text in texts if clean(text))
        text = _CITATION.sub("", said).strip()
        reason = "" if text else NO_TEXT
        if text:
            return text
    skipped[reason] += 1
    return ""


# ------------------------------------------------------------------------------------------------
# Claude
def is_claude(value: Any) -> bool:
    """Whether it is a conversation of Claude's export."""
    return isinstance(fields(value).get("chat_messages"), list)


def claude(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``conversations.json`` of Claude.

    Where messages name their parents, the branch of the last one is read.
    """
    for value in map(fields, values):
        messages = [fields(each) for each in listed(value.get("chat_messages"))]
        nodes = {str(each.get("uuid") or place): each for place, each in enumerate(messages)}
        branch = _claude_branch(nodes)
        if len(branch) < len(nodes):
            skipped[BRANCH] += len(nodes) - len(branch)
        told = []
        for key in branch:
            message = nodes[key]
            text = _claude_text(message, skipped)
            role = _ROLES.get(word(message.get("sender")))
            if text and role:
                told.append(Utterance(role, text, time=time_of(message.get("created_at")), id=key))
            else:
                skipped[NO_TEXT if role else f"{message.get('sender')} message"] += 1
        start = time_of(value.get("created_at"))
        yield from _chat(str(value.get("uuid") or ""), told, start, skipped)


def _claude_branch(nodes: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the keys of the last message and all before it; all, if parents are missing."""
    parents = {key: str(node.get("parent_message_uuid") or "") for key, node in nodes.items()}
    roots = [key for key, parent in parents.items() if parent not in nodes]
    if not nodes or roots != [next(iter(nodes))]:
        return list(nodes)
    tree = {key: {"parent": parent} for key, parent in parents.items()}
    return list(_branch(tree, list(nodes)[-1]))


def _claude_text(message: dict[str, Any], skipped: Reasons) -> str:
    blocks = [fields(block) for block in listed(message.get("content")) if isinstance(block, dict)]
    skipped.update(f"{block.get('type')} block" for block in blocks if block.get("type") != "text")
    attached = [*listed(message.get("attachments")), *listed(message.get("files"))]
    if attached:
        skipped["attached file"] += len(attached)
    texts = [clean(block.get("text")) for block in blocks if block.get("type") == "text"]
    return "\n".join(filter(None, texts)) or ("" if blocks else clean(message.get("text")))


# ------------------------------------------------------------------------------------------------
# Gemini: Google Takeout's "My Activity" as JSON. It lacks answers to some prompts, pictures and, in
# older exports, which prompts are one conversation. A prompt and its answers have one time. The
# words before a prompt ("Prompted") stay where they are not English.
_VERB = re.compile(r"(?:Prompted|Asked|Said|Branched|Answered|Submitted query)(?: Gemini)?:?\s+")
_GEMINI_ID = re.compile(r"gemini\.google\.com/app/(\w+)")
_NO_PROMPT = re.compile(r"(?:Created|Used|Added|Gave|Selected|Viewed|Visited|Deleted)\b")
_BLOCKS = frozenset("p div br li ul ol tr table pre blockquote h1 h2 h3 h4 h5 h6 hr".split())


def is_gemini(value: Any) -> bool:
    """Whether it is an activity in Gemini."""
    entry = fields(value)
    names = [entry.get("header"), *listed(entry.get("products"))]
    gemini = any(isinstance(name, str) and re.search("Gemini|Bard", name) for name in names)
    return gemini and isinstance(entry.get("title"), str) and "time" in entry


def gemini(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``MyActivity.json`` of Gemini; a prompt and its answers come as one."""
    seen: Counter[str] = Counter()
    for value in map(fields, values):
        if not is_gemini(value):
            skipped["activity of another product"] += 1
            continue
        title = value["title"]
        answers = [fields(item).get("html") for item in listed(value.get("safeHtmlItem"))]
        answer = "\n".join(_text_of_html(html) for html in answers if isinstance(html, str))
        if _NO_PROMPT.match(title) or not (_VERB.match(title) or answer):
            skipped[f"activity that is no prompt ({title.split(' ')[0]})"] += 1
            continue
        for extra in ("attachedFiles", "imageFile"):
            if value.get(extra):
                skipped["attached file"] += 1
        stamp = str(value["time"])
        seen[stamp] += 1
        place = stamp if seen[stamp] == 1 else f"{stamp} {seen[stamp]}"
        time = time_of(stamp)
        if time is None:
            skipped["activity without a time"] += 1
            continue
        said = [(USER, clean(_VERB.sub("", title, count=1))), (ASSISTANT, clean(answer))]
        told = [
            Utterance(role, text, time=time, id=f"{place} {role}") for role, text in said if text
        ]
        skipped.update(
            NO_TEXT if role == USER else "prompt without an answer"
            for role, text in said
            if not text
        )
        links = [fields(each).get("url") for each in listed(value.get("details"))]
        known = _GEMINI_ID.search(" ".join(map(str, [value.get("titleUrl"), *links])))
        if told:
            yield Chat(known[1] if known else "activity", tuple(told))


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("script", "style")
        if tag in _BLOCKS:
            self.parts.append("\n- " if tag == "li" else "\n")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def _text_of_html(html: str) -> str:
    parser = _Html()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line not in ("", "-"))


# ------------------------------------------------------------------------------------------------
# lists of messages, as OpenAI's API takes them
def is_messages(value: Any) -> bool:
    """Whether it is a message, or a list of messages, or an object with one."""
    listed = fields(value).get("messages") if isinstance(value, dict) else value
    if isinstance(listed, list):
        return any(isinstance(fields(each).get("role"), str) for each in listed)
    return isinstance(fields(value).get("role"), str) and "content" in value


def messages(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``{"messages": [...]}`` a line, lists of messages, or one message a line: those are one
    conversation.
    """
    alone = []
    for value in values:
        listed = fields(value).get("messages") if isinstance(value, dict) else value
        if isinstance(listed, list):
            about = fields(value)
            name = about.get("conversation_id") or about.get("id") or ""
            start = time_of(about.get("created_at"), about.get("time"), about.get("timestamp"))
            yield from _conversation(str(name), listed, start, skipped)
        else:
            alone.append(value)
    if alone:
        yield from _conversation("", alone, None, skipped)


def _conversation(
    name: str, listed: list[Any], start: str | None, skipped: Reasons
) -> Iterator[Chat]:
    told = []
    for place, message in enumerate(map(fields, listed)):
        role = word(message.get("role"))
        text = clean(text_of(message.get("content")) or "")
        if role in UNREAD or role not in _ROLES:
            skipped[f"{role} message" if role else "no message"] += 1
        elif not text:
            skipped["call of a tool" if message.get("tool_calls") else NO_TEXT] += 1
        else:
            keys = ("time", "timestamp", "created_at", "create_time", "date")
            time = time_of(*(message.get(key) for key in keys))
            id_ = str(message.get("id") or place)
            speaker = clean(message.get("name"))
            told.append(Utterance(_ROLES[role], text, speaker, time, id_))
    yield from _chat(name, told, start, skipped)


# ------------------------------------------------------------------------------------------------
# dialogues in sessions, as LoCoMo has them: two people talk, and both are users
_SESSION = re.compile(r"session_([0-9]+)")


def _by_number(session: re.Match[str]) -> tuple[int, str]:
    digits = session[1].lstrip("0")
    return len(digits), digits


def is_locomo(value: Any) -> bool:
    """Whether it is a dialogue with ``session_1``, or holds one."""
    talk = fields(value).get("conversation", value)
    return any(_SESSION.fullmatch(key) for key in fields(talk))


def locomo(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read dialogues with ``session_N`` and ``session_N_date_time``."""
    for value in map(fields, values):
        talk = fields(value.get("conversation", value))
        numbers = [match for match in map(_SESSION.fullmatch, talk) if match]
        told: list[Utterance] = []
        for session in sorted(numbers, key=_by_number):
            time = time_of(talk.get(f"{session[0]}_date_time"))
            for place, turn in enumerate(map(fields, listed(talk[session[0]])), start=1):
                caption = clean(turn.get("blip_caption"))
                text = f"{clean(turn.get('text'))}{f' [shows {caption}]' if caption else ''}"
                speaker = clean(turn.get("speaker"))
                name = str(turn.get("dia_id") or f"D{session[1]}:{place}")
                if text.strip() and speaker:
                    told.append(Utterance(USER, text.strip(), speaker, time, name))
                else:
                    skipped[NO_TEXT] += 1
        if told:
            yield Chat(str(value.get("sample_id") or ""), tuple(told))
        else:
            skipped[NO_MESSAGES] += 1
