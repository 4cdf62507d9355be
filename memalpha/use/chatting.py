"""A memory around a chat with any model: recall before it is asked, remember after it has answered.

``memalpha.wrap`` and the proxy of ``memalpha serve`` call this and differ in transport alone. What
is recalled goes into the system message, between tags. What is remembered is the user's new
message and the answer: of messages those after the last answer, so a history that is sent again
with each request is never read again, nor are system prompts, tools' outputs and examples before
the first answer; a request that is sent again within an hour, as after a failure or with the
outputs of tools, adds only its new answer. Left out are tagged blocks, a model's thinking, and
sentences of the answer that restate what was recalled or stands in the memory
(``conversation.recalled``). A conversation that began without this memory is not read:
``MemoryAgent.add`` takes its messages.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memalpha.conversation.messages import ASSISTANT, USER, read_messages
from memalpha.conversation.recalled import tagged, without_recalled
from memalpha.memory.memory import render_entry
from memalpha.qa.readers import within_budget
from memalpha.store.journal import Namespace
from memalpha.text import content_of
from memalpha.types import JsonMapping, JsonObject
from memalpha.use.agent import MemoryAgent

RECALL_TOKENS = 512
_AGAIN = 3600.0  # seconds in which the same request is the same turn
_NAMESPACES = 256  # whose conversations are kept in mind, those last used
_PASSAGES = 500  # recalled and kept in mind, of a namespace
_INSTRUCTIONS = ("system", "developer")


class ChatTurn(NamedTuple):
    """One request to a model: the user's new messages and what was recalled for them."""

    namespace: Namespace | str | None
    said: tuple[JsonMapping, ...]  # messages of the user that were not answered before
    digest: str  # of all that was said up to here
    block: str  # the tagged passages; empty if nothing was found


class _Conversation:
    """What was recalled and read of late in one namespace; dicts keep the order."""

    def __init__(self) -> None:
        self.recalled: dict[str, None] = {}
        self.read: dict[str, float] = {}  # digests of turns and answers, with the time


class ChatMemory:
    """The memory of an agent for chats; thread-safe."""

    def __init__(self, agent: MemoryAgent, recall_tokens: int = RECALL_TOKENS) -> None:
        self.agent = agent
        self.recall_tokens = recall_tokens
        self._conversations: OrderedDict[object, _Conversation] = OrderedDict()
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
        utterances = read_messages(messages)
        while utterances and utterances[-1].role == ASSISTANT:  # the beginning of the answer
            utterances.pop()
        answers = [place for place, each in enumerate(utterances) if each.role == ASSISTANT]
        said = utterances[answers[-1] + 1 if answers else 0 :]
        users = [each.text for each in utterances if each.role == USER]
        asked = "\n".join([each.text for each in said] or users[-1:])
        passages = self._passages(asked, namespace) if asked else ()
        conversation = self._conversation(namespace)
        with self._lock:
            conversation.recalled.update(dict.fromkeys(passages))
            while len(conversation.recalled) > _PASSAGES:
                del conversation.recalled[next(iter(conversation.recalled))]
        texts = [[each.role, each.text] for each in utterances]
        return ChatTurn(
            namespace,
            tuple({"role": USER, "content": each.text, "name": each.speaker} for each in said),
            _digest([thread, texts]),
            tagged(passages) if passages else "",
        )

    def remember(self, turn: ChatTurn, answer: str) -> None:
        """Let the agent read a turn and its answer, with the time of now; on disk when this
        returns. Raises as ``MemoryAgent.add``.
        """
        conversation = self._conversation(turn.namespace)
        answered = _digest([turn.digest, answer])
        with self._lock:
            recalled = list(conversation.recalled)
            messages = [] if _was_read(conversation, turn.digest) else list(turn.said)
            answer = without_recalled(content_of(answer)[0], recalled)[0]
            if answer.strip() and not _was_read(conversation, answered):
                messages.append({"role": ASSISTANT, "content": answer})
        if not messages:
            return
        now = datetime.now(UTC).isoformat(timespec="minutes")
        self.agent.add(messages, now, namespace=turn.namespace, source=f"chat {turn.digest}")
        with self._lock:
            conversation.read.update(dict.fromkeys((turn.digest, answered), time.monotonic()))

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


def _was_read(conversation: _Conversation, digest: str) -> bool:
    """Whether a turn or an answer was read within the last hour; forgets those before."""
    now = time.monotonic()
    recent = {key: when for key, when in conversation.read.items() if now - when < _AGAIN}
    conversation.read = recent
    return digest in recent


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------
# OpenAI's forms
def with_block(messages: Sequence[Any], block: str) -> list[Any]:
    """Return messages with a block of passages at the end of the first system message, which is
    made if there is none.
    """
    if not block:
        return list(messages)
    first = messages[0] if messages and isinstance(messages[0], Mapping) else {}
    if first.get("role") not in _INSTRUCTIONS:
        return [{"role": "system", "content": block}, *messages]
    content = first.get("content") or ""
    if isinstance(content, str):
        content = f"{content}\n\n{block}".strip()
    else:
        content = [*content, {"type": "text", "text": block}]
    return [{**first, "content": content}, *messages[1:]]


def answer_of(completion: JsonMapping) -> str:
    """Return the text of the first choice of a chat completion, or what a chunk of a stream adds
    to it; empty if it has none.
    """
    choices = completion.get("choices") or ()
    first: JsonObject = next((each for each in choices if not each.get("index")), {})
    message = first.get("message") or first.get("delta") or {}
    content = message.get("content")
    return content if isinstance(content, str) else ""
