"""A memory around a chat with any model: recall before it is asked, remember after it has answered.

``memalpha.wrap`` and the proxy of ``memalpha serve`` call this through ``exchange.Exchange`` and
differ in transport alone. What is remembered is the user's new message and the answer: of messages
those after the last answer, so a history that is sent again with each request is never read again,
nor are system prompts, tools' outputs and examples before the first answer. Where no model writes
entries, a message that only asks is not kept: it would be found in place of its answer. A request
is the same turn again, and adds only its new answer, if within an hour it is sent twice in a row,
as after a failure, or with the outputs of tools. The same words after another turn were said again.
Left out are tagged blocks, a model's thinking, and sentences of the answer that restate what was
recalled or stands in the memory (``conversation.recalled``). A conversation that began without this
memory is not read: ``MemoryAgent.add`` takes its messages.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memalpha.conversation.messages import ASSISTANT, USER, Utterance, read_messages, text_of
from memalpha.conversation.recalled import tag_passages, without_recalled
from memalpha.memory.memory import render_entry
from memalpha.qa.readers import within_budget
from memalpha.retrieval.archive import is_question
from memalpha.store.journal import Namespace
from memalpha.text.thinking import content_of
from memalpha.types import JsonMapping
from memalpha.use.agent import MemoryAgent

RECALL_TOKENS = 512
_AGAIN = 3600.0  # seconds in which the same request may be the same turn
_NAMESPACES = 256  # whose conversations are kept in mind, those last used
_PASSAGES = 500  # recalled and kept in mind, of a namespace
_MODELS = 256  # that refuse system messages and are kept in mind
_ASKED = 10_000  # characters at the end of the user's messages that passages are searched for
_TOKEN = 100  # more characters than a token of a text has
_TOOLS = ("tool", "function")


class ChatTurn(NamedTuple):
    """One request to a model: the user's new messages and what was recalled for them."""

    namespace: Namespace | str | None
    said: tuple[JsonMapping, ...]  # messages of the user that were not answered before
    digests: tuple[str, ...]  # of all that was said up to each of them
    digest: str  # of all that was said up to here
    goes_on: bool  # whether outputs of tools follow
    block: str  # the tagged passages; empty if nothing was found


class _Conversation:
    """The recent recalls and readings in one namespace; dicts keep their order."""

    def __init__(self) -> None:
        self.recalled: dict[str, None] = {}
        self.read: dict[str, float] = {}  # digests of turns and answers, with the time
        self.last = ""  # digest of the turn that was read last
        self.reading = threading.Lock()  # a request may come again while its first is read


class ChatMemory:
    """The memory of an agent for chats; thread-safe.

    A message or an answer of more than ``max_text_tokens`` is not remembered (None: no limit).
    """

    def __init__(
        self,
        agent: MemoryAgent,
        recall_tokens: int = RECALL_TOKENS,
        max_text_tokens: int | None = None,
    ) -> None:
        self.agent = agent
        self.recall_tokens = recall_tokens
        self.max_text_tokens = max_text_tokens
        self._conversations: OrderedDict[object, _Conversation] = OrderedDict()
        self._without_system: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def recall(
        self,
        messages: Sequence[Any],
        namespace: Namespace | str | None = None,
        thread: str = "",
    ) -> ChatTurn:
        """Return the turn that chat messages are in, with what is recalled for it.

        ``thread`` names the conversation where a server keeps the messages before. InputError for
        what is no message; raises as ``MemoryAgent.search``.
        """
        read_messages(messages)  # all are checked
        users = [place for place, each in enumerate(messages) if each["role"] == USER]
        end = users[-1] + 1 if users else 0  # what follows is the beginning of the answer
        answers = [place for place, each in enumerate(messages[:end]) if _is_answer(each)]
        start = answers[-1] + 1 if answers else 0
        before = read_messages(messages[:start])
        said = [each for each in read_messages(messages[start:end]) if each.role == USER]
        digests = list(_digests(thread, [*before, *said]))
        earlier = [each.text for each in before if each.role == USER]
        asked = "\n".join([each.text for each in said] or earlier[-1:])[-_ASKED:]
        passages = self._passages(asked, namespace) if asked else ()
        conversation = self._conversation(namespace)
        with self._lock:
            conversation.recalled.update(dict.fromkeys(passages))
            while len(conversation.recalled) > _PASSAGES:
                del conversation.recalled[next(iter(conversation.recalled))]
        return ChatTurn(
            namespace,
            tuple({"role": USER, "content": each.text, "name": each.speaker} for each in said),
            tuple(digests[len(before) + 1 :]),
            digests[-1],
            any(each["role"] in _TOOLS for each in messages[end:]),
            tag_passages(passages) if passages else "",
        )

    def remember(self, turn: ChatTurn, answer: str) -> str:
        """Let the agent read a turn and its answer, with the time of now; on disk when this
        returns. Returns what is too long and was left out, if anything. Raises as
        ``MemoryAgent.add``.
        """
        conversation = self._conversation(turn.namespace)
        words = "\n".join(str(message["content"]) for message in turn.said)
        if self._is_too_long(words):
            return f"a message of more than {self.max_text_tokens} tokens was not remembered"
        left_out = ""
        if self._is_too_long(answer):
            left_out = f"an answer of more than {self.max_text_tokens} tokens was not remembered"
            answer = ""
        with conversation.reading:
            read = _read_of_late(conversation)
            again = turn.digest in read and (turn.goes_on or conversation.last == turn.digest)
            messages: list[JsonMapping] = []
            for message, digest in zip(turn.said, turn.digests, strict=True):
                if again or (digest != turn.digest and digest in read):
                    continue
                if self.agent.writes or not is_question(str(message["content"])):
                    messages.append(message)
            answered = _digest([turn.digest, answer])
            with self._lock:
                recalled = list(conversation.recalled)
            answer = without_recalled(content_of(answer)[0], recalled)[0]
            if answer.strip() and not (again and answered in read):
                messages.append({"role": ASSISTANT, "content": answer})
            if messages:
                now = datetime.now(UTC).isoformat(timespec="minutes")
                source = f"chat {turn.digest}"
                self.agent.add(messages, now, namespace=turn.namespace, source=source)
                read.update(dict.fromkeys((turn.digest, answered), time.monotonic()))
                conversation.last = turn.digest
        return left_out

    def refuses_system(self, model: str) -> bool:
        """Whether a model is known to refuse system messages (``note_refusal``)."""
        return model in self._without_system

    def note_refusal(self, model: str) -> None:
        """Keep in mind that a model refuses system messages."""
        with self._lock:
            self._without_system[model] = None
            if len(self._without_system) > _MODELS:
                self._without_system.popitem(last=False)

    def _is_too_long(self, text: str) -> bool:
        limit = self.max_text_tokens
        if limit is None or len(text) <= limit // _TOKEN:
            return False
        return len(text) > limit * _TOKEN or self.agent.step.encoder.count(text) > limit

    def _passages(self, asked: str, namespace: Namespace | str | None) -> tuple[str, ...]:
        agent = self.agent
        always = agent.blocks(namespace)
        found = [hit.entry for hit in agent.search(asked, namespace=namespace)]
        passages = list(dict.fromkeys(map(render_entry, [*always, *found])))
        return within_budget(passages, self.recall_tokens, agent.step.encoder.count)

    def _conversation(self, namespace: Namespace | str | None) -> _Conversation:
        with self._lock:
            conversation = self._conversations.setdefault(namespace, _Conversation())
            self._conversations.move_to_end(namespace)
            if len(self._conversations) > _NAMESPACES:
                self._conversations.popitem(last=False)
            return conversation


def _read_of_late(conversation: _Conversation) -> dict[str, float]:
    """Digests of what was read within the last hour; forgets those before."""
    now = time.monotonic()
    recent = {key: when for key, when in conversation.read.items() if now - when < _AGAIN}
    conversation.read = recent
    return recent


def _is_answer(message: JsonMapping) -> bool:
    """Whether a model wrote a message: a text, or calls of tools."""
    calls = message.get("tool_calls") or message.get("function_call")
    text = text_of(message.get("content")) or ""
    return message["role"] == ASSISTANT and bool(calls or text.strip())


def _digests(thread: str, messages: Sequence[Utterance]) -> Iterator[str]:
    """Yield a digest of a conversation before its first message, and of all up to each of them; in
    time linear in its length.
    """
    digest = hashlib.sha256(json.dumps(thread).encode())
    yield digest.hexdigest()
    for each in messages:
        digest.update(json.dumps([each.role, each.text]).encode())
        yield digest.hexdigest()


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()
