"""Rollouts of the agent for other trainers: prompts, steps and rewards of a training run, without
its policy and its trainer.

``MemoryEnvironment`` knows no framework. ``trl_arguments`` makes TRL's ``environment_factory`` of
it, and examples/memory_environment.py an environment of ``verifiers``; docs/recipe.md, section 8,
says what differs from our trainer.
"""

import json
import math
import threading
from collections.abc import Callable, Sequence
from copy import copy
from inspect import Parameter, Signature
from typing import Any, Literal

from datasets import Dataset

from memalpha.agent.rollout import Rollout, new_rollout, take_step
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.memory.calls import tool_schemas
from memalpha.models.policy import load_tokenizer
from memalpha.training.build import make_scorer
from memalpha.training.config import parse_train_arguments
from memalpha.training.opening import begun
from memalpha.training.scoring import check_masked_share, first_error
from memalpha.types import Completion, Message, Prompt, StopReason, ToolCall


class MemoryEnvironment:
    """One rollout at a time: ``reset``, ``step`` with each completion until it returns None, then
    ``rewards``.

    ``options`` are those of ``memalpha train``, ``config`` and ``preset`` among them;
    ``train_data`` is read, and of the model the tokenizer. A copy shares all but the rollout.
    InputError as ``build_parts``, and for what only our trainer can do.
    """

    rollout: Rollout
    _prompt: Prompt | None = None  # of the chunk at hand; None: every chunk was read

    def __init__(self, **options: Any) -> None:
        words = [
            f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in options.items()
        ]
        arguments = parse_train_arguments(words)
        run, seed = arguments.run, arguments.grpo.seed
        InputError.raise_if(
            run.reader == "base" or run.question_share < 1,
            f"reader {run.reader!r}, question_share {run.question_share} "
            "in an environment for another trainer",
            expected="reader recall, trained or endpoint, question_share 1",
        )
        self.agent = AgentStep(
            arguments.agent,
            load_tokenizer(run.model, run.model_init_kwargs.get("revision", "main")),
        )
        instances = load_data(run.train_data, run.train_options, seed)
        self.scorer = make_scorer(arguments, self.agent, instances, None)
        self.instances = begun(
            instances, self.agent, run.rollout_chunks, seed, run.rollout_cut, run.rollout_coverage
        )
        self._scoring = threading.Lock()  # a reader on this machine answers one batch at a time

    def reset(self, index: int) -> Sequence[Message]:
        """Begin a rollout of the instance with this index; return the messages of its first
        chunk.
        """
        self.rollout = new_rollout(self.instances[index], self.agent)
        return self._ask().messages

    def step(self, completion: str, cut_off: bool = False) -> Sequence[Message] | None:
        """Apply the completion of the chunk at hand (``cut_off``: by a length limit); return the
        next messages, None at the end.
        """
        if self._prompt is None:
            raise ValueError("every chunk was read")
        take_step(
            self.rollout,
            self.agent,
            self._prompt,
            Completion((), completion, StopReason.LENGTH if cut_off else StopReason.END),
        )
        self._prompt = None
        return None if len(self.rollout.steps) == len(self.rollout.chunks) else self._ask().messages

    def rewards(self) -> list[dict[str, float]]:
        """Return the parts of each step's reward and their weighted sum, ``total``; NaN: not
        scored. ValueError before the end.
        """
        if self._prompt is not None:
            raise ValueError(
                f"{len(self.rollout.steps)} of {len(self.rollout.chunks)} chunks were read"
            )
        with self._scoring:
            (steps,) = self.scorer.score([self.rollout])
        return [{**step, "total": step.total(self.scorer.reward_config)} for step in steps]

    def _ask(self) -> Prompt:
        self._prompt = self.agent.prompt(
            self.rollout.memory,
            self.rollout.retriever,
            self.rollout.chunks[len(self.rollout.steps)],
        )
        return self._prompt


def trl_arguments(**options: Any) -> dict[str, Any]:
    """Return ``environment_factory``, ``reward_funcs`` and ``train_dataset`` for TRL's
    ``GRPOTrainer``; InputError without hermes.

    A rollout is one conversation: ``reset`` gives the first chunk, the tools of the schema write,
    ``next_chunk`` goes on. In chunks that the policy did not ask for it wrote nothing. The reward
    is the mean of the steps' totals, None if one is not scored.
    """
    shared = MemoryEnvironment(**options)
    agent, scorer = shared.agent, shared.scorer
    InputError.raise_if(
        agent.config.codec != "hermes",
        f"codec is {agent.config.codec!r}",
        expected="hermes: TRL reads tool calls as JSON",
    )

    class MemoryTools:
        def __init__(self) -> None:
            self._environment = copy(shared)

        def reset(self, index: int, **row: Any) -> str:
            self._calls: list[ToolCall] = []
            self._unread = 0
            return str(self._environment.reset(index)[-1]["content"])

        def next_chunk(self) -> str:
            """Read the next chunk, once everything worth keeping of this one is written."""
            messages = self._environment.step(agent.codec.render(self._calls))
            self._calls = []
            return str(messages[-1]["content"]) if messages else "That was the last chunk."

        def _write(self, call: ToolCall) -> str:
            rollout = self._environment.rollout
            if self._environment._prompt is None:
                raise ValueError("that was the last chunk; nothing more is kept")
            self._calls.append(call)
            place = rollout.instance.begin + len(rollout.steps)
            trial, text = (
                rollout.memory.copy(),
                agent.codec.render(self._calls),
            )  # next_chunk applies them all
            result = agent.apply(trial, place, rollout.instance.chunks[place], text).results[-1]
            if not result.ok:
                raise ValueError(result.message)
            return result.message

        def _finish(self) -> Rollout:
            while self._environment._prompt is not None:
                self.next_chunk()
                self._unread += self._environment._prompt is not None
            return self._environment.rollout

    for schema in tool_schemas(agent.schema):
        setattr(MemoryTools, schema["function"]["name"], _method(**schema["function"]))

    def reward(
        environments: Sequence[MemoryTools], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        rollouts = [environment._finish() for environment in environments]
        rewards = scorer.score(rollouts)
        check_masked_share(
            scorer.masked(rewards), len(rollouts), scorer.max_masked_share, [first_error(rollouts)]
        )
        unread = (
            sum(environment._unread for environment in environments),
            sum(len(rollout.steps) for rollout in rollouts),
        )
        for name, (value, count) in {
            **scorer.metrics(rollouts, rewards),
            "unread_chunks": unread,
        }.items():
            if count:
                log_metric(f"memory/{name}", value / count)
        totals = [
            sum(step.total(scorer.reward_config) for step in steps) / len(steps)
            for steps in rewards
        ]
        return [None if math.isnan(total) else total for total in totals]  # TRL masks None

    system = {
        "role": "system",
        "content": f"{agent.system}\n\nThen call next_chunk, until it says that there is none.",
    }
    rows = [
        {"prompt": [system, {"role": "user", "content": ""}], "index": index}
        for index in range(len(shared.instances))
    ]
    return {
        "environment_factory": MemoryTools,
        "reward_funcs": reward,
        "train_dataset": Dataset.from_list(rows),
    }


def _method(name: str, description: str, parameters: dict[str, Any]) -> Callable[..., str]:
    """Return a method that transformers describes by this JSON schema; any arguments reach it, for
    wrong ones are failed calls.
    """

    def method(self: Any, **arguments: Any) -> str:
        return str(self._write(ToolCall(name, arguments)))

    properties, required = parameters["properties"].items(), parameters["required"]
    kinds = {
        key: Literal[tuple(value["enum"])] if "enum" in value else str for key, value in properties
    }
    given = [
        Parameter(key, Parameter.KEYWORD_ONLY, default=Parameter.empty if key in required else None)
        for key in kinds
    ]
    given = [
        Parameter("self", Parameter.POSITIONAL_ONLY),
        *(one.replace(annotation=kinds[one.name]) for one in given),
    ]
    lines = "\n".join(f"    {key}: {value['description']}" for key, value in properties)
    method.__name__, method.__doc__ = name, f"{description}\n\nArgs:\n{lines}"
    method.__annotations__, method.__signature__ = {**kinds, "return": str}, Signature(given)  # type: ignore[attr-defined]
    return method
