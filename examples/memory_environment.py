"""The agent as an environment of ``verifiers`` 0.4: an episode is a rollout, and each of its chunks
a run of the agent.

So a chunk's prompt holds no earlier turn, and each trace has the reward of its own step, as in our
trainer. ``verifiers`` finds plugins by the name of a module: with this folder on PYTHONPATH, this
one is ``--env.taskset.id memory_environment``.
"""

import asyncio
import math
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any

import httpx2
import verifiers.v1 as vf

from memalpha import MemoryEnvironment, ServiceError

__all__ = ["MemoryEnv", "MemoryHarness", "MemoryTaskset"]


class MemoryTasksetConfig(vf.TasksetConfig):
    """``options``: those of ``memalpha train``."""

    options: dict[str, Any] = {}  # noqa: RUF012


class MemoryTaskset(vf.Taskset[vf.Task, MemoryTasksetConfig]):
    """One task for each instance of ``train_data``."""

    @cached_property
    def environment(self) -> MemoryEnvironment:
        """Data, reader and judges, loaded once."""
        return MemoryEnvironment(**self.config.options)

    def load(self) -> Iterator[vf.Task]:
        """Yield the tasks; the prompts are made while they run."""
        return (vf.Task(vf.TaskData(id=instance.id)) for instance in self.environment.instances)


class MemoryHarness(vf.Harness[vf.HarnessConfig]):
    """Asks the policy once, in this process."""

    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Send the task's messages to the policy's endpoint."""
        chat = [
            {"role": "system", "content": data.system_prompt},
            {"role": "user", "content": data.prompt},
        ]
        url, headers = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(
            timeout=None, trust_env=False
        ) as client:  # verifiers bounds the time
            reply = await client.post(
                url, headers=headers, json={"model": ctx.model, "messages": chat}
            )
        return vf.ProgramResult(0 if reply.is_success else 1, "", reply.text)


class MemoryEnvConfig(vf.EnvConfig):
    """One agent, on this machine: it runs no code."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class MemoryEnv(vf.Env[MemoryEnvConfig]):
    """Reads an instance chunk by chunk; the parts of the reward are recorded on each chunk's trace,
    by name and weight.
    """

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Run one episode; one with an unscored step fails (ServiceError), as does one in which a
        run of the agent failed.
        """
        environment, traces = copy(self.taskset.environment), []
        messages = environment.reset(task.data.idx)
        while messages is not None:
            system, user = (message["content"] for message in messages)
            trace = await agents.agent.run(
                vf.Task(task.data.model_copy(update={"system_prompt": system, "prompt": user}))
            )
            if not trace.ok:
                return
            traces.append(trace)
            messages = environment.step(
                trace.assistant_messages[-1].content or "", trace.is_truncated
            )
        rewards = await asyncio.to_thread(environment.rewards)
        if any(math.isnan(step["total"]) for step in rewards):
            failures = environment.rollout.failures or ["a part of the reward could not be scored"]
            raise ServiceError(failures[0])
        for trace, step in zip(traces, rewards, strict=True):
            for name, (_, weight) in environment.scorer.reward_config.parts.items():
                if weight:
                    trace.record_reward(name, step[name], weight)
                elif not math.isnan(step[name]):
                    trace.record_metric(name, step[name])


def load_environment(**options: Any) -> MemoryEnv:
    """Return the environment of these options of ``memalpha train``; InputError if they do not
    fit.
    """
    return MemoryEnv(
        vf.resolve_env_config({"taskset": {"id": "memory_environment", "options": options}})
    )
