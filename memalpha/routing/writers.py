"""Several writers behind one: which agent (adapter) writes a chunk is chosen by the chunk's text.

``RoutedGenerator`` is a ``memalpha.protocols.Generator`` over named generators, e.g. one a LoRA adapter, so a rollout or a
``MemoryAgent`` uses it as it uses one. The choice is a ``ToolSelector``'s, whose tools are the generators: exploring while it is
trained, greedy otherwise. ``reward`` hands it what came of the last call.

What always holds: the prompts are the agent's own, unchanged, so all writers must share its tokenizer and notation; completions
come back in the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memalpha.errors import InputError
from memalpha.protocols import Generator
from memalpha.routing.selection import Selection
from memalpha.routing.selector import ToolSelector
from memalpha.types import Completion, Prompt, Sampling


class RoutedGenerator:
    """Lets a selector choose who writes.

    Args:
        writers: Generators by name; the names are the selector's tools.
        selector: Chooses among them.
        explore: Whether its choices are drawn, and learnt from.

    Raises:
        InputError: If the selector's tools are not the writers.
    """

    def __init__(self, writers: Mapping[str, Generator], selector: ToolSelector, *, explore: bool = False) -> None:
        if set(writers) != set(selector.tools):
            raise InputError(f"writers {sorted(writers)}", expected=f"those the selector knows: {sorted(selector.tools)}")
        self.writers, self.selector, self.explore = dict(writers), selector, explore
        self.selections: list[Selection] = []

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion for each prompt, in order, each by the writer chosen for it."""
        self.selections = [self.selector.select(chunk_of(prompt), explore=self.explore) for prompt in prompts]
        completions: dict[int, Completion] = {}
        for name, writer in self.writers.items():
            rows = [i for i, selection in enumerate(self.selections) if selection.tool == name]
            if rows:
                completions |= dict(zip(rows, writer.generate([prompts[i] for i in rows], sampling), strict=True))
        return [completions[i] for i in range(len(prompts))]

    def reward(self, rewards: Sequence[float]) -> None:
        """Tell the selector what came of the prompts of the last call, one reward each."""
        for selection, reward in zip(self.selections, rewards, strict=True):
            self.selector.observe(selection, reward)


def chunk_of(prompt: Prompt) -> str:
    """Return the chunk's text out of a prompt: what stands between ``<chunk>`` and ``</chunk>`` in its last message.

    Raises:
        InputError: If the prompt has no such fence.
    """
    content = str(prompt.messages[-1]["content"]) if prompt.messages else ""
    _, opened, rest = content.partition("<chunk>")
    text, closed, _ = rest.partition("</chunk>")
    if not (opened and closed):
        raise InputError("a prompt without a fenced chunk", expected="one made by AgentStep.prompt")
    return text.strip()
