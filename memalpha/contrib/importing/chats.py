"""Readers of chats: trees and lists of messages of many programs, Gemini's activity, dialogues.

Each is a generator of conversations from the elements of a file. It counts what it does not read,
message by message, by the reason. Programs differ in where a conversation holds its messages and in
what they call the fields of one; ``trees`` and ``_conversation_from`` are the same for all.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from html.parser import HTMLParser
from typing import Any, NamedTuple

from memalpha.contrib.importing.items import (
    NOT_TO_REMEMBER,
    Chat,
    Reasons,
    as_list,
    clean_text,
    fields,
    in_time_order,
    is_newest_first,
    not_to_remember,
    owner_of,
    time_in,
    time_of,
    with_times,
    word,
)
from memalpha.contrib.importing.trees import Node, id_of, is_tree, live_branch, parent_of
from memalpha.conversation.messages import ASSISTANT, UNREAD, USER, Utterance
from memalpha.data.published.locomo import numbered_sessions, with_caption
from memalpha.text.times import moment

NO_MESSAGES = "conversation without messages"
NO_TEXT = "message without text"
BRANCH = "message on another branch"
_ROLES: Mapping[str, str] = {
    **dict.fromkeys((USER, "human", "request", "prompter"), USER),
    **dict.fromkeys((ASSISTANT, "ai", "model", "gpt", "chatgpt", "bot", "response"), ASSISTANT),
    **dict.fromkeys(("gemini", "claude", "grok", "bard", "bing", "chatbot"), ASSISTANT),
}

Say = Callable[[dict[str, Any], Reasons], tuple[str, str]]
"""Returns the role and the text of a message; no text, and a count, if nobody said it."""


def _conversation_from(
    name: str,
    about: dict[str, Any],
    nodes: Sequence[Node],
    say: Say,
    skipped: Reasons,
    *,
    current: str = "",
    start: str | None = None,
) -> Iterator[Chat]:
    """Yield the conversation of some nodes: the branch that is shown, in its order.

    ``about`` are its own fields: its time, its owner, and whether it is to be remembered.
    """
    forgotten = not_to_remember(about)
    in_tree = is_tree(nodes)
    nodes = nodes if in_tree else _number_nodes(nodes)
    branch = live_branch(nodes, current) if in_tree else list(range(len(nodes)))
    shown = set(branch)
    others = [place for place in range(len(nodes)) if place not in shown]
    told: list[Utterance] = []
    left: list[str] = []
    by_id: dict[str, dict[str, int]] = {}  # the texts of an id, which may be that of several
    for place in [*branch, *others]:
        node = nodes[place]
        if not node.message:
            continue
        role, text = say(node.message, skipped)
        id_ = id_of(node.message) or node.id or str(place)
        if text:
            of_id = by_id.setdefault(id_, {})
            number = of_id.setdefault(text, len(of_id) + 1)
            id_ = id_ if number == 1 else f"{id_} {number}"
        if text and place in shown and not forgotten:
            time = time_in(node.message, skipped=skipped) or None
            speaker = clean_text(node.message.get("name"))
            told.append(Utterance(role, text, speaker if role == USER else "", time, id_))
        elif text:
            skipped[NOT_TO_REMEMBER if forgotten else BRANCH] += 1
            left.append(id_)
    ordered = told if in_tree else in_time_order(told)
    began = start or time_in(about) or None
    if ordered or left:
        yield Chat(name, tuple(with_times(ordered, began)), tuple(left), owner_of(about))
    else:
        skipped[NO_MESSAGES] += 1


def _node(message: Any, place: int) -> Node:
    message = fields(message)
    return Node(id_of(message) or str(place), parent_of(message), message)


def _nodes(messages: Iterable[Any]) -> list[Node]:
    return [_node(message, place) for place, message in enumerate(messages)]


def _number_nodes(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes of a list, of which those without an id have their place: in a list that is
    newest first, and grows at its begin, that from its end.
    """
    if all(id_of(node.message) or node.id != str(place) for place, node in enumerate(nodes)):
        return nodes
    times = [moment(time_in(node.message)) for node in nodes]
    if not is_newest_first([time for time in times if time is not None]):
        return nodes
    last = len(nodes) - 1
    return [
        node if id_of(node.message) else node._replace(id=str(last - place))
        for place, node in enumerate(nodes)
    ]


def _name(about: dict[str, Any]) -> str:
    return str(next((about[key] for key in _CONVERSATION_IDS if about.get(key)), ""))


# of a conversation; and in a message, of the one that it belongs to
_OF_A_MESSAGE = (
    "conversation_id",
    "conversationId",
    "chatId",
    "chat_id",
    "chatID",
    "thread_id",
    "threadId",
    "sessionId",
    "session_id",
)
_CONVERSATION_IDS = (*_OF_A_MESSAGE, "id", "uuid", "_id")


# ------------------------------------------------------------------------------------------------
# what a message says
_TEXTS = ("content", "text", "parts", "message", "value", "fragments", "contentChunks")
_INNER = ("text", "content", "value", "parts")
_REASONING_HTML = re.compile(
    r'<details type="(?:reasoning|tool_calls|code_interpreter)".*?</details>\s*', re.S
)
_FRAGMENTS = frozenset({"request", "response", "user", "assistant"})
_DEPTH = 4  # of objects around a text


def _say(message: dict[str, Any], skipped: Reasons) -> tuple[str, str]:
    """Say what a message of most programs says."""
    role = _role(message)
    if role in UNREAD or role not in _ROLES:
        skipped[f"{role[:40]} message" if role else "no message"] += 1
        return "", ""
    lost: Reasons = Counter()
    texts = (clean_text("\n".join(_texts(message[key], lost))) for key in _TEXTS if key in message)
    text = next(filter(None, texts), "")
    if _ROLES[role] == ASSISTANT and "<details" in text:
        text = _REASONING_HTML.sub("", text).strip()
    skipped.update(lost)
    if not text and not lost:
        calls = message.get("tool_calls") or message.get("toolCalls")
        skipped["call of a tool" if calls else NO_TEXT] += 1
    return _ROLES[role], text


def _role(message: dict[str, Any]) -> str:
    made = message.get("isCreatedByUser")
    if isinstance(made, bool):
        return USER if made else ASSISTANT
    author = message.get("author")
    named = [message.get(key) for key in ("role", "sender", "from", "type")]
    named += [author, fields(author).get("role")]
    fragments = [word(fields(each).get("type")) for each in as_list(message.get("fragments"))]
    if fragments:
        named.append("request" if "REQUEST" in fragments else "response")
    return next((word(each).casefold() for each in named if word(each)), "")


def _texts(content: Any, lost: Reasons, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a content, which is a text, an object with one, or a list of them; count
    the parts that nobody said, such as calls of tools and reasoning.
    """
    if isinstance(content, str):
        if clean_text(content):
            yield content.strip()
    elif isinstance(content, list):
        for part in content:
            yield from _texts(part, lost, depth)
    elif isinstance(content, dict) and depth < _DEPTH:
        kind = word(content.get("type")).casefold()
        if kind and "text" not in kind and "transcri" not in kind and kind not in _FRAGMENTS:
            lost[f"{kind[:40]} part"] += 1
            return
        inner = next((content[key] for key in _INNER if content.get(key)), None)
        if inner is not None:
            yield from _texts(inner, lost, depth + 1)


# ------------------------------------------------------------------------------------------------
# ChatGPT: each conversation is a tree of messages. The branch that ends in ``current_node`` is what
# the user sees; an edited message or a second answer began another.
_REASONING = frozenset({"thoughts", "reasoning_recap"})
_SETTINGS = frozenset({"user_editable_context", "model_editable_context"})
_CITATION = re.compile("\ue200[^\ue201]*\ue201")  # a mark that the page shows as a link


def is_chatgpt(value: Any) -> bool:
    """Whether it is a conversation of ChatGPT's export."""
    return isinstance(fields(value).get("mapping"), dict) and not is_deepseek(value)


def chatgpt(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``conversations.json`` of ChatGPT."""
    for value in map(fields, values):
        current = word(value.get("current_node"))
        yield from _conversation_from(
            _name(value), value, _nodes_of_mapping(value), _say_chatgpt, skipped, current=current
        )


def _nodes_of_mapping(value: dict[str, Any]) -> list[Node]:
    nodes = []
    for key, each in fields(value.get("mapping")).items():
        node = fields(each)
        children = tuple(filter(None, map(word, as_list(node.get("children")))))
        nodes.append(Node(key, parent_of(node), fields(node.get("message")), children))
    return nodes


def _say_chatgpt(message: dict[str, Any], skipped: Reasons) -> tuple[str, str]:
    """Say what a message of ChatGPT says."""
    role = word(fields(message.get("author")).get("role"))
    content = fields(message.get("content"))
    kind = word(content.get("content_type")) or "text"
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
        parts = as_list(content.get("parts")) or [content.get("text")]
        texts = [part if isinstance(part, str) else fields(part).get("text") for part in parts]
        skipped.update(
            f"part without text ({part.get('content_type')})"
            for part in parts
            if isinstance(part, dict) and not isinstance(part.get("text"), str)
        )
        said = "\n".join(clean_text(text) for text in texts if clean_text(text))
        text = _CITATION.sub("", said).strip()
        reason = "" if text else NO_TEXT
        if text:
            return _ROLES[role], text
    skipped[reason] += 1
    return "", ""


# ------------------------------------------------------------------------------------------------
# Claude
def is_claude(value: Any) -> bool:
    """Whether it is a conversation of Claude's export."""
    return isinstance(fields(value).get("chat_messages"), list)


def claude(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``conversations.json`` of Claude.

    Where messages name their parents, the branch with the newest end is read.
    """
    for value in map(fields, values):
        nodes = _nodes(as_list(value.get("chat_messages")))
        current = word(value.get("current_leaf_message_uuid"))
        name = str(value.get("uuid") or "")
        yield from _conversation_from(name, value, nodes, _say_claude, skipped, current=current)


def _say_claude(message: dict[str, Any], skipped: Reasons) -> tuple[str, str]:
    role = _ROLES.get(word(message.get("sender")))
    if role is None:
        skipped[f"{message.get('sender')} message"] += 1
        return "", ""
    blocks = [fields(block) for block in as_list(message.get("content")) if isinstance(block, dict)]
    skipped.update(f"{block.get('type')} block" for block in blocks if block.get("type") != "text")
    attached = [*as_list(message.get("attachments")), *as_list(message.get("files"))]
    if attached:
        skipped["attached file"] += len(attached)
    texts = [clean_text(block.get("text")) for block in blocks if block.get("type") == "text"]
    text = "\n".join(filter(None, texts)) or ("" if blocks else clean_text(message.get("text")))
    if not text:
        skipped[NO_TEXT] += 1
    return role, text


# ------------------------------------------------------------------------------------------------
# other programs: where a conversation holds its messages
class _Talk(NamedTuple):
    """A conversation of another program: its id, its fields, its messages, and the last one that is
    shown.
    """

    name: str
    about: dict[str, Any]
    nodes: list[Node]
    current: str = ""


def _read_talks(talks: Iterable[_Talk], skipped: Reasons) -> Iterator[Chat]:
    for talk in talks:
        yield from _conversation_from(
            talk.name, talk.about, talk.nodes, _say, skipped, current=talk.current
        )


def is_deepseek(value: Any) -> bool:
    """Whether it is a conversation of DeepSeek's export."""
    nodes = fields(fields(value).get("mapping")).values()
    messages = (fields(fields(node).get("message")) for node in nodes)
    return "fragments" in next(filter(None, messages), {})


def deepseek(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``conversations.json`` of DeepSeek."""
    objects = map(fields, values)
    return _read_talks(
        (_Talk(_name(each), each, _nodes_of_mapping(each)) for each in objects), skipped
    )


def is_openwebui(value: Any) -> bool:
    """Whether it is a chat of Open WebUI."""
    chat = fields(fields(value).get("chat"))
    messages = fields(chat.get("history")).get("messages")
    return isinstance(messages, dict) or is_messages(chat)


def openwebui(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read the exported chats of Open WebUI."""
    return _read_talks(map(_of_openwebui, map(fields, values)), skipped)


def _of_openwebui(value: dict[str, Any]) -> _Talk:
    chat = fields(value.get("chat"))
    history = fields(chat.get("history"))
    messages = fields(history.get("messages")).values() or as_list(chat.get("messages"))
    return _Talk(_name(value), {**chat, **value}, _nodes(messages), word(history.get("currentId")))


def is_librechat(value: Any) -> bool:
    """Whether it is a conversation of LibreChat."""
    messages = as_list(fields(value).get("messages"))
    return any(isinstance(fields(each).get("isCreatedByUser"), bool) for each in messages)


def librechat(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read exported conversations of LibreChat, also those whose messages hold their answers."""
    objects = map(fields, values)
    talks = (_Talk(_name(each), each, _flat(as_list(each.get("messages")))) for each in objects)
    return _read_talks(talks, skipped)


def _flat(messages: Sequence[Any]) -> list[Node]:
    """Return messages and those in their ``children``, which follow them."""
    nodes: list[Node] = []
    left: list[tuple[str | None, Any]] = [(None, message) for message in reversed(messages)]
    while left:
        above, message = left.pop()
        node = _node(message, len(nodes))
        nodes.append(node if above is None else node._replace(parent=above))
        left += [(node.id, child) for child in reversed(as_list(node.message.get("children")))]
    return nodes


def is_grok(value: Any) -> bool:
    """Whether it is a conversation of Grok's export."""
    return isinstance(fields(value).get("responses"), list)


def grok(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read the conversations of ``prod-grok-backend.json``."""
    return _read_talks(map(_of_grok, map(fields, values)), skipped)


def _of_grok(value: dict[str, Any]) -> _Talk:
    about = fields(value.get("conversation"))
    responses = [fields(each) for each in as_list(value.get("responses"))]
    nodes = _nodes(fields(each.get("response")) or each for each in responses)
    return _Talk(_name(about), about, nodes, word(about.get("leaf_response_id")))


def is_sharegpt(value: Any) -> bool:
    """Whether it is a conversation in ShareGPT's form."""
    turns = _turns(fields(value))
    return any({"from", "value"} <= fields(turn).keys() for turn in turns)


def _turns(value: dict[str, Any]) -> list[Any]:
    return as_list(value.get("conversations")) or as_list(value.get("items"))


def sharegpt(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read conversations in ShareGPT's form."""
    objects = map(fields, values)
    return _read_talks(
        (_Talk(_name(each), each, _nodes(_turns(each))) for each in objects), skipped
    )


def is_gemini_cli(value: Any) -> bool:
    """Whether it is a session of Gemini CLI."""
    session = fields(value)
    kinds = {word(fields(each).get("type")) for each in as_list(session.get("messages"))}
    return "sessionId" in session and not kinds.isdisjoint(("user", "gemini"))


def gemini_cli(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read saved sessions of Gemini CLI."""
    objects = map(fields, values)
    talks = (_Talk(_name(each), each, _nodes(as_list(each.get("messages")))) for each in objects)
    return _read_talks(talks, skipped)


# ------------------------------------------------------------------------------------------------
# Claude Code: a line is a message or a note, and names what it follows. Sub-agents talk in side
# chains; where a session was made shorter, its summary follows what it stands for.
_NOTED = re.compile(
    r"\s*<(command-name|command-message|local-command-stdout|local-command-caveat|bash-input"
    r"|bash-stdout|system-reminder|task-notification)>"
)


def is_claude_code(value: Any) -> bool:
    """Whether it is a message of a session of Claude Code."""
    line = fields(value)
    said = word(line.get("type")) in (USER, ASSISTANT) and "role" in fields(line.get("message"))
    return said and not line.keys().isdisjoint(("sessionId", "uuid", "parentUuid"))


def claude_code(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read sessions of Claude Code: JSON Lines."""
    sessions: dict[str, list[Node]] = {}
    for line in map(fields, values):
        if "uuid" not in line and not is_claude_code(line):
            skipped[f"note of the session ({word(line.get('type'))[:40]})"] += 1
            continue
        nodes = sessions.setdefault(str(line.get("sessionId") or ""), [])
        node = _node(line, len(nodes))
        begins = line.get("isCompactSummary") or line.get("subtype") == "compact_boundary"
        nodes.append(node._replace(parent=None) if begins and not node.parent else node)
    for name, nodes in sessions.items():
        main = [node for node in nodes if not node.message.get("isSidechain")]
        if len(main) < len(nodes):
            skipped["message of a sub-agent"] += len(nodes) - len(main)
        yield from _conversation_from(name, {}, main, _say_claude_code, skipped)


def _say_claude_code(line: dict[str, Any], skipped: Reasons) -> tuple[str, str]:
    if word(line.get("type")) not in _ROLES:
        skipped[f"note of the session ({word(line.get('type'))[:40]})"] += 1
        return "", ""
    if line.get("isMeta") or line.get("isCompactSummary"):
        skipped["message that the program wrote"] += 1
        return "", ""
    role, text = _say(fields(line.get("message")), skipped)
    if role == USER and _NOTED.match(text):
        skipped["message that the program wrote"] += 1
        return "", ""
    return role, text


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
    names = [entry.get("header"), *as_list(entry.get("products"))]
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
        answers = [fields(item).get("html") for item in as_list(value.get("safeHtmlItem"))]
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
        said = [(USER, clean_text(_VERB.sub("", title, count=1))), (ASSISTANT, clean_text(answer))]
        told = [
            Utterance(role, text, time=time, id=f"{place} {role}") for role, text in said if text
        ]
        skipped.update(
            NO_TEXT if role == USER else "prompt without an answer"
            for role, text in said
            if not text
        )
        links = [fields(each).get("url") for each in as_list(value.get("details"))]
        known = _GEMINI_ID.search(" ".join(map(str, [value.get("titleUrl"), *links])))
        if told:
            yield Chat(known[1] if known else "activity", tuple(told))


_CARD = re.compile(r'<div class="outer-cell\b')
_CAPTION = re.compile(r'<div class="[^"]*\bmdl-typography--caption\b')
_LONGEST_PROMPT = 400  # lines before the time


def activities_of(page: str) -> Iterator[dict[str, Any]]:
    """Yield the activities of ``MyActivity.html`` as ``MyActivity.json`` holds them."""
    before, *cards = _CARD.split(page)
    for card in cards or [before]:
        text = _text_of_html(_CAPTION.split(card.partition(">")[2])[0] if cards else card)
        header, *lines = text.splitlines() or [""]
        times = (place for place, line in enumerate(lines[:_LONGEST_PROMPT]) if time_of(line))
        place = next(times, len(lines))
        links = re.findall(_GEMINI_ID, card)
        yield {
            "header": header,
            "title": "\n".join(lines[:place]),
            "time": lines[place] if place < len(lines) else "",
            "safeHtmlItem": [{"html": "<br>".join(map(escape, lines[place + 1 :]))}],
            "titleUrl": f"gemini.google.com/app/{links[0]}" if links else "",
        }


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
_LISTS = ("messages", "conversations", "conversation", "turns", "history", "chat", "dialogue")
_USERS = ("user_id", "userId", "userID")


def is_messages(value: Any) -> bool:
    """Whether it is a message, or a list of messages, or an object with one."""
    if _messages_in(value) is not None:
        return True
    message = fields(value)
    return isinstance(message.get("role"), str) and any(key in message for key in _TEXTS)


def _messages_in(value: Any) -> list[Any] | None:
    """Return the messages of a list, or of the object that holds it; None if there are none."""
    about = fields(value)
    for messages in [value, *(about.get(key) for key in _LISTS)]:
        if any(isinstance(fields(each).get("role"), str) for each in as_list(messages)):
            return as_list(messages)
    return None


def messages(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read ``{"messages": [...]}`` a line, lists of messages, or one message a line: those are one
    conversation, or several if they say which they belong to.
    """
    alone: dict[str, list[Node]] = {}
    for value in values:
        inside = _messages_in(value)
        if inside is not None:
            yield from _by_conversation(fields(value), inside, skipped)
        elif is_messages(value) or not fields(value):
            nodes = alone.setdefault(_conversation_of(value), [])
            nodes.append(_node(value, len(nodes)))
        else:
            skipped["no message"] += 1
    for name, nodes in alone.items():
        yield from _by_owner(name, {}, nodes, skipped)


def _by_conversation(
    about: dict[str, Any], inside: Sequence[Any], skipped: Reasons
) -> Iterator[Chat]:
    """Yield the conversation of a list; several, if its messages name several. What names none
    belongs to the one before it.
    """
    named = list(map(_conversation_of, inside))
    if len({name for name in named if name}) < 2:
        name = _name(about) or (named[0] if named else "")
        yield from _by_owner(name, about, _nodes(inside), skipped)
        return
    by_name: dict[str, list[Any]] = {}
    before = next(filter(None, named))
    for name, message in zip(named, inside, strict=True):
        before = name or before
        by_name.setdefault(before, []).append(message)
    for name, own in by_name.items():
        yield from _by_owner(name, about, _nodes(own), skipped)


def _conversation_of(message: Any) -> str:
    about = fields(message)
    return str(next((about[key] for key in _OF_A_MESSAGE if about.get(key)), ""))


def _by_owner(
    name: str, about: dict[str, Any], nodes: Sequence[Node], skipped: Reasons
) -> Iterator[Chat]:
    """Yield a conversation; several, if its messages name several users. What names none belongs to
    the user before it.
    """
    owner = owner_of(about)
    by_owner: dict[str, list[Node]] = {}
    for node in nodes:
        named = {key: node.message[key] for key in _USERS if key in node.message}
        owner = owner_of(named) or owner
        by_owner.setdefault(owner, []).append(node)
    if not by_owner:
        skipped[NO_MESSAGES] += 1
    for owner, own in by_owner.items():
        for chat in _conversation_from(name, about, own, _say, skipped):
            yield chat._replace(owner=owner)


# ------------------------------------------------------------------------------------------------
# dialogues in sessions, as LoCoMo has them: two people talk, and both are users
def is_locomo(value: Any) -> bool:
    """Whether it is a dialogue with ``session_1``, or holds one."""
    talk = fields(value).get("conversation", value)
    return bool(numbered_sessions(fields(talk)))


def locomo(values: Iterable[Any], skipped: Reasons) -> Iterator[Chat]:
    """Read dialogues with ``session_N`` and ``session_N_date_time``."""
    for value in map(fields, values):
        talk = fields(value.get("conversation", value))
        told: list[Utterance] = []
        for number, turns, date in numbered_sessions(talk):
            time = time_of(date)
            for place, turn in enumerate(map(fields, as_list(turns)), start=1):
                text = with_caption(
                    clean_text(turn.get("text")), clean_text(turn.get("blip_caption"))
                )
                speaker = clean_text(turn.get("speaker"))
                name = str(turn.get("dia_id") or f"D{number}:{place}")
                if text and speaker:
                    told.append(Utterance(USER, text, speaker, time, name))
                else:
                    skipped[NO_TEXT] += 1
        if told:
            yield Chat(str(value.get("sample_id") or ""), tuple(told))
        else:
            skipped[NO_MESSAGES] += 1
