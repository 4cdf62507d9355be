"""Rollouts of the agent for other trainers: prompts, steps and rewards of a training run, without
its policy and its trainer.

``MemoryEnvironment`` knows no framework. examples/trl_environment.py makes TRL's
``environment_factory`` of it, examples/memory_environment.py an environment of ``verifiers``;
docs/guides/other-trainers.md says what differs from our trainer.
"""

import threading
from collections.abc import Sequence
from typing import Any

from memalpha.agent.rollout import MemoryEpisode, Rollout, memory_episodes
from memalpha.agent.step import AgentStep
from memalpha.config import one_of
from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.memory.schema import tool_schemas
from memalpha.models.policy import load_tokenizer
from memalpha.training.build import make_scorer
from memalpha.training.config import parse_train_arguments
from memalpha.training.credit import credit_names, make_credit
from memalpha.training.role import WRITER
from memalpha.training.teacher_start import start_from_teacher
from memalpha.types import Completion, Message, OperationResult, Prompt, StopReason


class MemoryEnvironment:
    """Rollouts of a memory agent for a trainer of another package, one rollout at a time.

    Call ``reset``, then ``step`` with each completion until it returns None, then ``rewards``.
    ``tools`` holds the JSON schemas of the calls. A copy shares everything but the rollout.

    Args:
        options: Options of ``memalpha train`` by name, ``config`` and ``preset`` among them. Of the
            model only the tokenizer is loaded; ``train_data`` is read.

    Raises:
        InputError: The options do not fit, or need the trainer of this package.
    """

    _episode: MemoryEpisode
    _prompt: Prompt | None = None  # of the chunk at hand; None: every chunk was read

    def __init__(self, **options: Any) -> None:
        config = options.pop("config", None)
        words = [] if config is None else ["--config", str(config)]
        arguments = parse_train_arguments(words, given=options)
        run = arguments.run
        seed = arguments.trl_arguments.seed
        if run.reader == "base" or run.question_share < 1:
            raise InputError(
                f"an environment for another trainer cannot have reader {run.reader!r} "
                f"and question_share {run.question_share}",
                expected="reader recall, trained or endpoint, and question_share 1",
            )
        if run.role != WRITER:
            raise InputError(
                f"an environment for another trainer cannot have role {run.role}",
                expected=f"role {WRITER}",
            )
        if make_credit(run.credit).needs_trainer:
            others = [name for name in credit_names() if not make_credit(name).needs_trainer]
            raise InputError(
                f"an environment for another trainer cannot have credit {run.credit}",
                expected=f"{one_of(others)}, since the other trainer draws the rollouts and "
                "computes the loss",
            )
        tokenizer = load_tokenizer(run.model, run.model_init_kwargs.get("revision", "main"))
        self.agent = AgentStep(arguments.agent, tokenizer)
        self.tools = tool_schemas(self.agent.schema)
        instances = load_data(run.train_data, run.train_options, seed)
        self.scorer = make_scorer(arguments, self.agent, instances, None)
        self.instances = start_from_teacher(
            instances, self.agent, run.rollout_chunks, seed, run.rollout_cut, run.rollout_coverage
        )
        self._scoring = threading.Lock()  # a reader on this machine answers one batch at a time

    def reset(self, index: int) -> Sequence[Message]:
        """Begin a rollout.

        Args:
            index: Index of the instance.

        Returns:
            The chat messages of its first chunk.
        """
        (self._episode,) = memory_episodes([self.instances[index]], self.agent)
        return self._next_prompt()

    def step(self, completion: str, cut_off: bool = False) -> Sequence[Message] | None:
        """Apply the completion of the current chunk.

        Args:
            completion: The text of the completion.
            cut_off: Whether it reached the limit of tokens.

        Returns:
            The chat messages of the next chunk; None at the end.
        """
        if self._prompt is None:
            raise ValueError("all chunks have been read")
        stop = StopReason.LENGTH if cut_off else StopReason.END
        made = Completion((), completion, stop)
        self._episode.take(self._prompt, made)
        self._prompt = None
        return None if self._episode.done else self._next_prompt()

    @property
    def rollout(self) -> Rollout:
        """The current rollout."""
        return self._episode.rollout

    @property
    def done(self) -> bool:
        """Whether all chunks have been read."""
        return self._prompt is None

    def preview(self, completion: str) -> Sequence[OperationResult]:
        """Return the results that the calls of a completion would have, without changing the
        memory.

        Args:
            completion: The text of the completion.
        """
        place = self.rollout.instance.begin + len(self.rollout.steps)
        chunk = self.rollout.instance.chunks[place]
        return self.agent.apply(self.rollout.memory.copy(), place, chunk, completion).results

    def rewards(self) -> list[dict[str, float]]:
        """Return the reward of each step of a finished rollout.

        Returns:
            For each step, the parts of the reward by name, and their weighted sum as ``total``; NaN
            is not scored.

        Raises:
            ValueError: The rollout has not ended.
        """
        if not self.done:
            steps_read = f"{len(self.rollout.steps)} of {len(self.rollout.chunks)}"
            raise ValueError(f"{steps_read} chunks have been read")
        with self._scoring:
            (steps,) = self.scorer.score([self.rollout])
        return [{**step, "total": step.total(self.scorer.reward_config)} for step in steps]

    def _next_prompt(self) -> Sequence[Message]:
        self._prompt = self._episode.prompt()
        return self._prompt.messages
