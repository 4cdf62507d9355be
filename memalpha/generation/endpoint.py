"""Generation by an OpenAI-compatible chat server, for a policy that is served and not trained.

A request that fails after its retries fails the call. Marks of a chat template in the text are broken by a space
(``memalpha.endpoints``); a local policy reads the same text unchanged. Not covered: training, because the server returns text only
(``Completion.ids`` is empty, no log-probabilities).
"""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.endpoints import ChatClient
from memalpha.types import Completion, Prompt, Sampling


class EndpointGenerator:
    """A ``memalpha.protocols.Generator`` that asks a chat server, several prompts at once."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, in order; equal prompts get different seeds.

        ServiceError if any prompt failed after its retries, InputError if the server refuses the key, model or URL.
        """
        return self._client.complete_many([prompt.messages for prompt in prompts], sampling, may_be_empty=True)


__all__ = ["EndpointGenerator"]
