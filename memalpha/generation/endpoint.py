"""Generation behind an OpenAI-compatible chat server: a policy that is served, not trained.

What always holds: prompts go as chat messages and come back in order; a request that fails after its retries fails the call, since
a rollout cannot go on without its completion. Marks of a chat template in a chunk or an entry are broken by a space
(``memalpha.endpoints``); a policy at hand reads the same text as ordinary tokens, without the space.

It does not cover training: such a server gives text, so ``Completion.ids`` is empty and there are no log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.endpoints import ChatClient
from memalpha.types import Completion, Prompt, Sampling


class EndpointGenerator:
    """A ``memalpha.protocols.Generator`` that asks a chat server, several prompts at once.

    Args:
        client: The server and model; its ``concurrency`` bounds the requests under way.
    """

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion for each prompt, in order; equal prompts are drawn with different seeds.

        Raises:
            ServiceError: If any prompt failed after its retries.
            InputError: If the server says that the key, model or URL is wrong.
        """
        return self._client.complete_many([prompt.messages for prompt in prompts], sampling, may_be_empty=True)


__all__ = ["EndpointGenerator"]
