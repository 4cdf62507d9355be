"""A chat model behind an OpenAI-compatible server as the policy: messages go in, text comes out,
and the tokenizer stays there.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from memalpha.agent.codecs import Codec
from memalpha.endpoints import ChatClient
from memalpha.errors import ServiceError
from memalpha.types import Completion, Message, Prompt, Sampling

# of UTF-8 that count as one token: about what models take for English, and more than they take for
# Chinese
_BYTES = 4


class EndpointGenerator:
    """A ``Generator`` that asks a chat server; completions have no ids."""

    def __init__(self, client: ChatClient, codec: Codec) -> None:
        self.client, self.codec = client, codec

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt; ServiceError if one failed, is empty or was cut off
        before it made a call.
        """
        completions = self.client.complete_many([prompt.messages for prompt in prompts], sampling)
        for completion in completions:
            ServiceError.raise_if(
                completion.cut_off and not self.codec.parse(completion.text, cut_off=True),
                f"{self.client.model} wrote {sampling.max_new_tokens} tokens and made no call",
                fix="switch its thinking off (extra fields of the request), or raise "
                "max_completion_length",
            )
        return completions


class ByteTokenizer:
    """Stands in for the server's tokenizer in ``AgentStep``: every four bytes of UTF-8 are a token,
    so lengths are estimates.
    """

    name_or_path = "the server's"
    chat_template = "the server's"
    added_tokens_decoder: Mapping[int, str] = {}

    def __call__(self, text: str, **how: bool) -> SimpleNamespace:
        """Return ``input_ids``."""
        data = text.encode("utf-8", "surrogatepass")
        return SimpleNamespace(
            input_ids=[int.from_bytes(data[at : at + _BYTES]) for at in range(0, len(data), _BYTES)]
        )

    def apply_chat_template(self, messages: Sequence[Message], **how: Any) -> str:
        """Return the contents, one after the other; tools are not shown."""
        return "\n".join(str(message["content"]) for message in messages)
