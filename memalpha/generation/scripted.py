"""A generator that says what it is told to: the supported test double for everything that takes a ``Generator``.

What always holds: it draws nothing at random, keeps every prompt it was given (``prompts``), and never makes an answer up: a list
that is used up raises. Sampling is looked at for ``max_new_tokens`` alone.

Not covered: log-probabilities; a completion's are None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memalpha.errors import InputError
from memalpha.types import Completion, Prompt, Sampling, StopReason


class ScriptedGenerator:
    """Answers from a script; a :class:`memalpha.protocols.Generator`.

    Args:
        script: A function of the prompt, or the answers in the order in which prompts are asked, over all calls.
        tokenizer: Makes a completion's ids (no special tokens added, its end token appended). Without one, ids are empty, as from a
            backend that gives only text, and ``max_new_tokens`` is not applied.

    Attributes:
        prompts: Every prompt asked so far, in order.

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
        """Return the script's answer to each prompt, in order.

        With a tokenizer, an answer longer than ``max_new_tokens`` (its end token included) is cut off there, with
        ``StopReason.LENGTH``, as a model's would be.

        Raises:
            InputError: The list of answers is used up; none of this call's prompts is answered or kept then.
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
