"""One request of OpenAI's two APIs with a memory: chat completions and responses.

What is recalled goes between tags into the system message, or into ``instructions``; for a model
that refuses these, into the user's last message. The answer is read as it comes, as JSON or as
server-sent events, in linear time, and at most ``MAX_HEARD`` bytes of it are held. It is remembered
if it is whole. Of one that failed, was cut off, is too long or cannot be read, the user's words
alone are remembered: they were said.
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from memalpha.contrib.clients.chatting import ChatMemory
from memalpha.conversation.messages import USER
from memalpha.errors import InputError
from memalpha.store.journal import Namespace
from memalpha.types import JsonMapping, JsonObject

MAX_HEARD = 2**24
"""Most bytes of an answer that are held to be remembered."""
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
REFUSALS = (*_REFUSED, HTTPStatus.INTERNAL_SERVER_ERROR)
"""Statuses with which servers refuse a system message."""
_OF_ROLES = re.compile(r"\b(?:system|developer|roles?|template|jinja)\b", re.IGNORECASE)
_INSTRUCTIONS = ("system", "developer")
# reasons for which an answer ends before its time, of several servers
_CUT = frozenset(
    """
    abort cancelled content_filter error length max_output_tokens max_tokens recitation safety
    """.split()
)
_TEXTS = ("text", "output_text")
_BEFORE = b"\xef\xbb\xbf \t\r\n"  # what may stand before an answer: white space, a mark of UTF-8


class AnswerPart(NamedTuple):
    """One part of an answer: more of its text or the whole text, whether the answer ends, and the
    reason if it is no answer.
    """

    text: str = ""
    whole: bool = False
    ended: bool = False
    problem: str = ""
    may_end: bool = False


class ApiForm(Protocol):
    """One of the two APIs: its route, and where it keeps messages, instructions and answers."""

    route: str

    def asked(self, body: JsonMapping) -> JsonObject:
        """Return a request with its messages as a list; InputError if it has none."""

    def messages(self, asked: JsonMapping) -> list[Any]:
        """Return them as messages of a chat."""

    def thread(self, asked: JsonMapping) -> str:
        """Return what names the conversation that the server keeps; empty if there is none."""

    def instructed(self, asked: JsonMapping, block: str) -> JsonObject:
        """Return the request with a block in its instructions."""

    def beside(self, asked: JsonMapping, block: str) -> JsonObject:
        """Return the request with a block in its last message of the user, if it has one."""

    def heard(self, data: JsonMapping) -> AnswerPart | None:
        """Read an answer or an event; None if it is of another form."""


class ChatForm:
    """``POST /chat/completions``."""

    route = "chat/completions"

    def asked(self, body: JsonMapping) -> JsonObject:
        """Return a request with its messages as a list; InputError if it has none."""
        return {**body, "messages": [_plain(each) for each in _list_of(body, "messages")]}

    def messages(self, asked: JsonMapping) -> list[Any]:
        """Return them."""
        return list(asked["messages"])

    def thread(self, asked: JsonMapping) -> str:
        """Return an empty text: each request has the whole conversation."""
        return ""

    def instructed(self, asked: JsonMapping, block: str) -> JsonObject:
        """Return the request with a block at the end of the first system or developer message,
        which is made if there is none.
        """
        messages = list(asked["messages"])
        places = [place for place, each in enumerate(messages) if _role(each) in _INSTRUCTIONS]
        if not places:
            return {**asked, "messages": [{"role": "system", "content": block}, *messages]}
        first = messages[places[0]]
        content = first.get("content") or ""
        if isinstance(content, str):
            content = f"{content}\n\n{block}".strip()
        else:
            content = [*content, {"type": "text", "text": block}]
        messages[places[0]] = {**first, "content": content}
        return {**asked, "messages": messages}

    def beside(self, asked: JsonMapping, block: str) -> JsonObject:
        """Return the request with a block in its last message of the user, if it has one."""
        return {**asked, "messages": _beside(asked["messages"], block, "text")}

    def heard(self, data: JsonMapping) -> AnswerPart | None:
        """Read the first choice of a completion, or of a chunk of one."""
        if data.get("error") or data.get("type") == "error":
            return AnswerPart(problem="the server sent an error")
        choices = data.get("choices")
        if not isinstance(choices, list):
            return None
        first: JsonObject = next((each for each in choices if not each.get("index")), {})
        message = first.get("message") or first.get("delta") or {}
        reason = str(first.get("finish_reason") or "")
        is_cut = reason.casefold() in _CUT
        problem = f"it ended with {reason!r}" if is_cut else ""
        text = _text_of(message.get("content"))
        # some servers give a reason with every piece of the text
        return AnswerPart(text, False, bool(reason) and not text, problem, bool(reason))


class ResponsesForm:
    """``POST /responses``."""

    route = "responses"

    def asked(self, body: JsonMapping) -> JsonObject:
        """Return a request with its input as a list of items or a text; InputError if the answer
        would be fetched later, or the instructions are no text.
        """
        if body.get("background"):
            raise InputError(
                "the request asks for a response in the background",
                expected="a response that is given at once, since one that is fetched later is not "
                "remembered",
            )
        instructions = body.get("instructions") or ""
        if not isinstance(instructions, str):
            raise InputError(f"the instructions are {ascii(instructions)[:80]}", expected="a text")
        given = body.get("input") or ""
        if isinstance(given, str):
            return dict(body)
        return {**body, "input": _list_of(body, "input")}

    def messages(self, asked: JsonMapping) -> list[Any]:
        """Return the input as messages: an item without a role is of the model, or of a tool."""
        given = asked.get("input") or []
        items = [{"role": USER, "content": given}] if isinstance(given, str) else given
        return [_message(_plain(item)) for item in items]

    def thread(self, asked: JsonMapping) -> str:
        """Return the response before and the conversation that a request names."""
        names = ("previous_response_id", "conversation")
        return " ".join(str(asked.get(name) or "") for name in names).strip()

    def instructed(self, asked: JsonMapping, block: str) -> JsonObject:
        """Return the request with a block at the end of its instructions."""
        both = f"{asked.get('instructions') or ''}\n\n{block}".strip()
        return {**asked, "instructions": both}

    def beside(self, asked: JsonMapping, block: str) -> JsonObject:
        """Return the request with a block in its last message of the user, if it has one."""
        given = asked.get("input") or ""
        if isinstance(given, str):
            return {**asked, "input": f"{block}\n\n{given}"}
        return {**asked, "input": _beside(map(_plain, given), block, "input_text")}

    def heard(self, data: JsonMapping) -> AnswerPart | None:
        """Read a response, or an event of one."""
        kind = str(data.get("type") or "")
        if kind == "error" or data.get("error"):
            return AnswerPart(problem="the server sent an error")
        if kind == "response.output_text.delta":
            return AnswerPart(str(data.get("delta") or ""))
        if kind in ("response.completed", "response.failed", "response.incomplete"):
            response = data.get("response") or {}
            status = kind.removeprefix("response.")
            return self._heard_whole({**response, "status": status})
        if kind.startswith("response."):
            return AnswerPart()
        return self._heard_whole(data) if isinstance(data.get("output"), list) else None

    def _heard_whole(self, response: JsonMapping) -> AnswerPart:
        status = str(response.get("status") or "completed")
        if status != "completed" or response.get("error"):
            return AnswerPart(problem=f"its status is {status!r}")
        items = response.get("output") or ()
        texts = [_text_of(each.get("content")) for each in items if each.get("type") == "message"]
        text = "".join(texts)
        return AnswerPart(text, whole=bool(text), ended=True)


CHAT: ApiForm = ChatForm()
RESPONSES: ApiForm = ResponsesForm()


class Exchange:
    """One request with its turn, and what was heard of the answer.

    ``feed`` takes the bytes of the answer and ``end`` says that they have ended; ``remember`` then
    lets the memory read both. ``ended`` tells that the answer itself said so. InputError for what
    is no request; raises as ``MemoryAgent.search``.
    """

    def __init__(
        self,
        memory: ChatMemory,
        form: ApiForm,
        body: JsonMapping,
        namespace: Namespace | str | None = None,
    ) -> None:
        self._memory = memory
        self._form = form
        self._asked = form.asked(body)
        self._messages = form.messages(self._asked)
        self._turn = memory.recall(self._messages, namespace, form.thread(self._asked))
        self._block = self._turn.block
        self._model = str(body.get("model") or "")
        self._is_beside = memory.refuses_system(self._model)
        self._held = bytearray()  # of the line that has not ended, or of the whole JSON object
        self._is_json: bool | None = None
        self._texts: list[str] = []
        self._size = 0  # of the texts
        self._may_end = False  # whether what was heard is whole if nothing follows
        self._is_read = False  # whether it was remembered
        self.ended = False
        self.problem = ""

    @property
    def body(self) -> JsonObject:
        """The request with what was recalled."""
        if not self._block:
            return dict(self._asked)
        place = self._form.beside if self._is_beside else self._form.instructed
        return place(self._asked, self._block)

    def moves_block(self, status: int, answer: str) -> bool:
        """Whether a refusal may be that of a system message which was made for what was recalled;
        then ``body`` has it in the user's message, to be asked once more.
        """
        roles = {_role(message) for message in self._messages}
        own = "instructions" in self._asked and self._asked["instructions"]
        if not self._block or self._is_beside or own or not roles.isdisjoint(_INSTRUCTIONS):
            return False
        if USER not in roles or not (
            status in _REFUSED or (status in REFUSALS and _OF_ROLES.search(answer))
        ):
            return False
        self._is_beside = True
        return True

    def feed(self, data: bytes) -> None:
        """Take up the next bytes of the answer."""
        if self.problem or self._is_read:
            return
        if self._is_json is None:
            data = data.lstrip(_BEFORE)
            if not data:
                return
            self._is_json = data.startswith(b"{")
        *lines, rest = [data] if self._is_json else data.split(b"\n")
        for line in lines:
            self._held += line
            self._line(bytes(self._held))
            self._held.clear()
        self._held += rest
        if len(self._held) + self._size > MAX_HEARD:
            self.fail(f"it is longer than {MAX_HEARD} bytes")

    def end(self) -> None:
        """Take up that the answer has no more bytes."""
        if self._is_json:
            self._hear(bytes(self._held))
        else:
            self._line(bytes(self._held))
        self.ended = self.ended or (self._may_end and not self.problem)
        if not (self.ended or self.problem):
            self.fail("it has no end" if self._texts else "it is none")

    def fail(self, problem: str) -> None:
        """Take up why what was heard is no answer, unless it had ended before."""
        if not self.ended:
            self.problem = self.problem or problem
            self._held.clear()
            self._texts.clear()

    def remember(self, *, closed: bool = False) -> str:
        """Let the memory read the turn, once, and return what of it was left out and why, if
        anything. ``closed``: the reader wanted no more of the answer. Raises as
        ``MemoryAgent.add``.
        """
        if self._is_read:
            return ""
        self._is_read = True
        if not (self.ended or closed):
            self.fail("it has no end")
        left_out = self._memory.remember(self._turn, "".join(self._texts))
        return left_out or (f"an answer was not remembered: {self.problem}" if self.problem else "")

    def accepted(self) -> None:
        """Take up that the request was answered: keep in mind where its model takes a block."""
        if self._is_beside and self._block:
            self._memory.note_refusal(self._model)

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.strip()
        if name == b"event" and value == b"error":
            self.fail("the server sent an error")
        elif name == b"data" and value.startswith(b"[DONE]"):
            self.ended = self.ended or not self.problem
        elif name == b"data" and value:
            self._hear(value)

    def _hear(self, value: bytes) -> None:
        if self.ended or self.problem:
            return
        try:
            data = json.loads(value)
            heard = self._form.heard(data)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            self.fail(f"it cannot be read ({type(error).__name__})")
            return
        if heard is None:
            return
        if heard.whole:
            self._texts.clear()
            self._size = 0
        if heard.text:
            self._texts.append(heard.text)
            self._size += len(heard.text)
        if heard.problem:
            self.fail(heard.problem)
        self._may_end = self._may_end or heard.may_end
        self.ended = not self.problem and (heard.ended or bool(self._is_json))


def _list_of(body: JsonMapping, name: str) -> list[Any]:
    given: Any = body.get(name)
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
        raise InputError(f"{name} is {ascii(given)[:80]}", expected="a list of messages")
    return list(given)


def _plain(message: Any) -> Any:
    """A message as a mapping: programs append what the client returned."""
    dump = getattr(message, "model_dump", None)
    return dump(exclude_unset=True) if dump else message


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _message(item: Any) -> Any:
    """An item of a response's input as a message of a chat."""
    if not isinstance(item, Mapping) or item.get("role"):
        return item
    kind = str(item.get("type") or "")
    if kind.endswith(("_output", "_response")):
        return {"role": "tool", "content": None}
    return {"role": "assistant", "content": None, "tool_calls": [kind]}


def _beside(messages: Any, block: str, kind: str) -> list[Any]:
    """Messages with a block at the beginning of the user's last one; ``kind``: type of its part."""
    changed = list(messages)
    places = [place for place, each in enumerate(changed) if _role(each) == USER]
    for place in places[-1:]:
        content = changed[place].get("content") or ""
        if isinstance(content, str):
            content = f"{block}\n\n{content}".strip()
        else:
            content = [{"type": kind, "text": block}, *content]
        changed[place] = {**changed[place], "content": content}
    return changed


def _text_of(content: Any) -> str:
    """The text of an answer's content, of its parts those that are text."""
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, Mapping)]
    texts = [part.get("text") for part in parts if part.get("type", "text") in _TEXTS]
    return "".join(text for text in texts if isinstance(text, str))
