"""A test double for a ``Generator``. It uses no randomness; of the sampling, it uses ``max_new_tokens`` only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memalpha.errors import InputError
from memalpha.types import Completion, Prompt, Sampling, StopReason


class ScriptedGenerator:
    """Answers from a script; a :class:`memalpha.protocols.Generator`. ``prompts`` lists all prompts asked so far.

    Args:
        script: A function of the prompt, or the answers in the order of the prompts, over all calls.
        tokenizer: Makes ids and an end token. Without it, ids are empty and ``max_new_tokens`` is not applied.

    Example:
        >>> from memalpha.types import Prompt, Sampling
        >>> generator = ScriptedGenerator(["first", "second"])
        >>> [c.text for c in generator.generate([Prompt((), (1,)), Prompt((), (2,))], Sampling(max_new_tokens=8))]
        ['first', 'second']
    """

    def __init__(self, script: Callable[[Prompt], str] | Sequence[str], tokenizer: Any = None) -> None:
        if isinstance(script, str):
            raise InputError(
                f"script {script!r}", expected="a function of the prompt, or a sequence of answers", fix="put it in a list"
            )
        self._script = script if callable(script) else tuple(script)
        self._tokenizer = tokenizer
        self.prompts: list[Prompt] = []

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return the script's answer to each prompt, in order, cut to ``max_new_tokens`` if there is a tokenizer.

        InputError if too few answers are left; then no prompt of this call is answered.
        """
        self._check_enough(len(prompts))
        completions = []
        for prompt in prompts:
            text = self._script(prompt) if callable(self._script) else self._script[len(self.prompts)]
            self.prompts.append(prompt)
            completions.append(self._completion(text, sampling.max_new_tokens))
        return completions

    def _check_enough(self, asked: int) -> None:
        if callable(self._script) or len(self.prompts) + asked <= len(self._script):
            return
        raise InputError(
            f"a script of {len(self._script)} answers, of which {len(self.prompts)} are used, for {asked} more prompts",
            expected="one answer a prompt, over all calls",
            fix="give more answers, or a function of the prompt",
        )

    def _completion(self, text: str, limit: int) -> Completion:
        if self._tokenizer is None:
            return Completion(ids=(), text=text, stop=StopReason.END)
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        if len(ids) <= limit:
            return Completion(tuple(ids), text, StopReason.END)
        ids = ids[:limit]
        return Completion(tuple(ids), self._tokenizer.decode(ids, skip_special_tokens=True), StopReason.LENGTH)
