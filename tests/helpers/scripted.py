"""A test double for a ``Generator``: answers from a script, without randomness."""

from memalpha.agent.config import AgentConfig
from memalpha.errors import InputError
from memalpha.types import Completion, Prompt, Sampling, StopReason

FACTS = AgentConfig(
    schema="facts",
    codec="compact",
    max_chunk_tokens=2000,
    view_tokens=500,
    max_completion_length=64,
)
"""How a scripted agent reads and writes."""


class ScriptedGenerator:
    """``script``: a function of the prompt, or the answers in the order of the prompts, over all
    calls.

    ``prompts`` lists all prompts asked so far. The tokenizer makes ids and an end token, and cuts
    to ``max_new_tokens``; without it ids are empty and nothing is cut.
    """

    def __init__(self, script, tokenizer=None):
        self._script, self._tokenizer = script, tokenizer
        self.prompts: list[Prompt] = []

    def generate(self, prompts, sampling: Sampling) -> list[Completion]:
        return [self._answer(prompt, sampling.max_new_tokens) for prompt in prompts]

    def _answer(self, prompt: Prompt, limit: int) -> Completion:
        if not callable(self._script) and len(self.prompts) == len(self._script):
            raise InputError(f"a script of {len(self._script)} answers is used up")
        text = self._script(prompt) if callable(self._script) else self._script[len(self.prompts)]
        self.prompts.append(prompt)
        if self._tokenizer is None:
            return Completion((), text, StopReason.END)
        ids = [
            *self._tokenizer.encode(text, add_special_tokens=False),
            self._tokenizer.eos_token_id,
        ]
        if len(ids) <= limit:
            return Completion(tuple(ids), text, StopReason.END)
        return Completion(
            tuple(ids[:limit]),
            self._tokenizer.decode(ids[:limit], skip_special_tokens=True),
            StopReason.LENGTH,
        )
