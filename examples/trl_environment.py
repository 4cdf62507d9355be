"""The agent as an environment of TRL's ``GRPOTrainer`` (1.16).

    GRPOTrainer(model, args=..., processing_class=tokenizer, **trl_arguments(config="mine.yaml"))

A rollout is one conversation: ``reset`` gives the first chunk, the tools of the schema write,
``next_chunk`` goes on. In chunks that the policy did not ask for it wrote nothing. The reward is
the mean of the steps' totals, None if one is not scored, which TRL masks.
"""

import json
import math
from collections.abc import Callable, Sequence
from copy import copy
from inspect import Parameter, Signature
from typing import Any, Literal

from datasets import Dataset

from memalpha import InputError, MemoryEnvironment, TrainingAborted

__all__ = ["trl_arguments"]


def trl_arguments(**options: Any) -> dict[str, Any]:
    """Return ``environment_factory``, ``reward_funcs`` and ``train_dataset``.

    ``options`` are those of ``memalpha train``; InputError without ``codec: hermes``.
    """
    shared = MemoryEnvironment(**options)
    codec = shared.agent.config.codec
    if codec != "hermes":
        raise InputError(f"codec is {codec!r}", expected="hermes: TRL reads tool calls as JSON")

    class MemoryTools:
        def __init__(self) -> None:
            self._environment = copy(shared)

        def reset(self, index: int, **row: Any) -> str:
            self._calls: list[str] = []
            self._unread = 0
            return str(self._environment.reset(index)[-1]["content"])

        def next_chunk(self) -> str:
            """Read the next chunk, once everything worth keeping of this one is written."""
            messages = self._environment.step("".join(self._calls))
            self._calls = []
            return str(messages[-1]["content"]) if messages else "That was the last chunk."

        def _write(self, name: str, arguments: dict[str, Any]) -> str:
            if self._environment.done:
                raise ValueError("that was the last chunk; nothing more is kept")
            call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
            self._calls.append(f"<tool_call>\n{call}\n</tool_call>\n")
            # next_chunk applies them all
            result = self._environment.preview("".join(self._calls))[-1]
            if not result.ok:
                raise ValueError(result.message)
            return result.message

        def _finish(self) -> None:
            while not self._environment.done:
                self.next_chunk()
                self._unread += not self._environment.done

    for schema in shared.tools:
        setattr(MemoryTools, schema["function"]["name"], _method(**schema["function"]))

    def reward(
        environments: Sequence[MemoryTools], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        means = []
        for tools in environments:
            tools._finish()
            totals = [step["total"] for step in tools._environment.rewards()]
            means.append(sum(totals) / len(totals))
        masked = sum(map(math.isnan, means))
        if masked > shared.scorer.max_masked_share * len(means):
            raise TrainingAborted(f"{masked} of {len(means)} rollouts could not be scored")
        chunks = sum(len(tools._environment.rollout.steps) for tools in environments)
        unread = sum(tools._unread for tools in environments)
        log_metric("memory/unread_chunks", unread / chunks)
        return [None if math.isnan(mean) else mean for mean in means]

    system = f"{shared.agent.system}\n\nThen call next_chunk, until it says that there is none."
    prompt = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
    rows = [{"prompt": prompt, "index": index} for index in range(len(shared.instances))]
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
        return str(self._write(name, arguments))

    kinds: dict[str, Any] = {}
    given = [Parameter("self", Parameter.POSITIONAL_ONLY)]
    lines = [f"{description}\n\nArgs:"]
    for key, value in parameters["properties"].items():
        kinds[key] = Literal[tuple(value["enum"])] if "enum" in value else str
        default = Parameter.empty if key in parameters["required"] else None
        given.append(Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=kinds[key]))
        lines.append(f"    {key}: {value['description']}")
    method.__name__, method.__doc__ = name, "\n".join(lines)
    method.__annotations__ = {**kinds, "return": str}
    method.__signature__ = Signature(given)  # type: ignore[attr-defined]
    return method
