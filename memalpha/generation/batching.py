"""One model for many threads: waiting prompts are generated in one call.

The first thread that finds the model free runs it for all that wait with equal sampling without a seed. A caller gets its own
completions or its own error: if a joint call fails, each caller's prompts are tried alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from memalpha.errors import InputError, ServiceError
from memalpha.protocols import Generator
from memalpha.types import Completion, Prompt, Sampling

Result = TypeVar("Result")


class _Job(NamedTuple):
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    future: Future[list[Completion]]


class BatchingGenerator:
    """A ``Generator`` for many threads; joins up to ``max_batch`` prompts (a larger call stays whole)."""

    def __init__(self, generator: Generator, max_batch: int = 32) -> None:
        if max_batch < 1:
            raise InputError(f"max_batch {max_batch}", expected="at least 1")
        self.generator, self.max_batch = generator, max_batch
        self._changed = threading.Condition()
        self._waiting: list[_Job] = []
        self._busy = False

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, in order; raises what the generator raises for them."""
        job = _Job(tuple(prompts), sampling, Future())
        with self._changed:
            self._waiting.append(job)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: job.future.done() or not self._busy)
                if job.future.done():
                    return job.future.result()
                self._busy, batch = True, self._take()
            try:
                self._run(batch)
            finally:
                for other in batch:  # after an interruption, jobs have no result
                    if not other.future.done():
                        other.future.set_exception(ServiceError("generation was interrupted"))
                self._free()

    def alone(self, action: Callable[[], Result]) -> Result:
        """Run another action on the same model between two batches; return its result."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            self._busy = True
        try:
            return action()
        finally:
            self._free()

    def _free(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _take(self) -> list[_Job]:
        first = self._waiting.pop(0)
        batch, size = [first], len(first.prompts)
        if first.sampling.seed is None:
            for job in tuple(self._waiting):
                if job.sampling == first.sampling and size + len(job.prompts) <= self.max_batch:
                    self._waiting.remove(job)
                    batch.append(job)
                    size += len(job.prompts)
        return batch

    def _run(self, batch: Sequence[_Job]) -> None:
        prompts = [prompt for job in batch for prompt in job.prompts]
        try:
            made = iter(self._made(prompts, batch[0].sampling))
            for job in batch:
                job.future.set_result([next(made) for _ in job.prompts])
        except Exception as error:  # noqa: BLE001 - each caller gets its own error
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for job in batch:
                self._run([job])

    def _made(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        made = self.generator.generate(prompts, sampling)
        if len(made) != len(prompts):
            raise ServiceError(f"the generator gave {len(made)} completions to {len(prompts)} prompts")
        return made
