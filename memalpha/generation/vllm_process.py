"""Completions from vLLM inside this process, which loads the policy's LoRA adapter anew after each
update.

Between draws the engine sleeps: on a GPU its base weights wait in main memory, and the room of its
keys and values is free for the update. On CPUs vLLM has no sleep; its calls then only pause it.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from memalpha.endpoints import STOPS
from memalpha.errors import InputError, ServiceError
from memalpha.generation.graphs import CAPTURING
from memalpha.generation.vllm_server import token_problem
from memalpha.text.encoding import more_ends
from memalpha.text.thinking import decode_completion
from memalpha.types import Completion, Prompt, Sampling

_SWITCHES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is here, not in a child process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are the trainer's, too
    "VLLM_LOGGING_LEVEL": "ERROR",  # on CPUs it warns at each sleep
    "VLLM_NO_USAGE_STATS": "1",  # it would send statistics to its makers
}
# Level 1 keeps the base in main memory. Level 2 would drop it, and with LoRA vLLM crashes when it
# reads the base again (its issue 39934).
_SLEEP = 1
_LESS = "if memory is short, lower vllm_memory, generation_rows or rows_per_forward"


class VLLMProcess:
    """Draws by vLLM in this process; the engine starts when it is first awake.

    ``model`` is the base's folder or name, ``options`` are further arguments of ``vllm.LLM``.
    ``vocabulary`` is the number of the policy's token ids, which ``tokenizer`` decodes. Equal seeds
    give equal completions of equal batches.
    """

    logprobs = True
    concurrent = False

    def __init__(
        self, model: str, tokenizer: PreTrainedTokenizerBase, vocabulary: int, **options: Any
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.options = options
        self._llm: Any = None
        self._adapter: Any = None
        self._adapters = 0  # loaded so far: vLLM wants a new number for each

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Hold the engine in the GPU's memory for the block; InputError if vLLM fails."""
        if self._llm is None:
            self._start()
        else:
            with CAPTURING:
                torch.cuda.empty_cache()  # what the update left there; nothing without a GPU
            with _reporting("does not wake up", _LESS):
                self._llm.wake_up()
        try:
            yield
        finally:
            self._llm.sleep(level=_SLEEP)

    def load(self, name: str, folder: Path) -> None:
        """Draw with the adapter in ``folder`` from now on, and drop the one before; InputError if
        vLLM refuses it.
        """
        from vllm.lora.request import LoRARequest

        self._adapters += 1
        request = LoRARequest(name, self._adapters, str(folder.resolve()))
        engine = self._llm.llm_engine
        if self._adapter:
            engine.remove_lora(self._adapter.lora_int_id)
        fix = (
            "train LoRA with a rank of at most 512 on linear layers, or set generator: transformers"
        )
        with _reporting(f"does not take the adapter {folder}", fix):
            engine.add_lora(request)
        self._adapter = request

    def use(self, name: str, folder: Path) -> None:
        """Draw with an adapter; one that is loaded is not loaded again."""
        if self._adapter is None or self._adapter.lora_name != name:
            self.load(name, folder)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, with log-probabilities; InputError if vLLM fails,
        ServiceError if it gives what cannot be trained on.
        """
        from vllm import SamplingParams

        seed = sampling.seed
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        seeds = random.Random(seed)
        ends = more_ends(self.tokenizer)
        parameters = [
            SamplingParams(
                max_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                logprobs=0,  # of the drawn token alone
                seed=seeds.getrandbits(62),
                stop_token_ids=ends,
                detokenize=False,
            )
            for _ in prompts
        ]
        with _reporting("does not draw", _LESS), _same_random_state():
            outputs = self._llm.generate(
                [{"prompt_token_ids": list(prompt.ids)} for prompt in prompts],
                parameters,
                lora_request=self._adapter,
                use_tqdm=False,
            )
        return [self._completion(output.outputs[0], sampling) for output in outputs]

    def _completion(self, drawn: Any, sampling: Sampling) -> Completion:
        ids = tuple(drawn.token_ids)
        values = [of_token[i].logprob for i, of_token in zip(ids, drawn.logprobs, strict=True)]
        problem = token_problem(ids, values, sampling.max_new_tokens, self.vocabulary)
        if drawn.finish_reason not in STOPS:
            problem = f"the finish_reason {drawn.finish_reason!r}, which is none of {[*STOPS]}"
        if problem:
            raise ServiceError(f"a completion of vLLM has {problem}")
        text = decode_completion(self.tokenizer, ids)
        return Completion(ids, text, STOPS[drawn.finish_reason], tuple(values))

    def _start(self) -> None:
        for name, value in _SWITCHES.items():
            os.environ.setdefault(name, value)
        options = dict(self.options)
        with _reporting("does not start", "change vllm_memory"), _same_random_state():
            from vllm import LLM
            from vllm.platforms import current_platform

            if current_platform.is_cpu():
                options["enforce_eager"] = True
                # a seeded request whose prompt is read in parts crashes on CPUs
                options["enable_chunked_prefill"] = False
                options["block_size"] = 32  # only whole blocks are shared, by default of 128 tokens
            else:  # graphs of decoding alone: as fast here, and up a minute sooner
                options["compilation_config"] = {
                    "mode": 0,
                    "cudagraph_mode": "FULL_DECODE_ONLY",
                }
            self._llm = LLM(
                self.model,
                enable_lora=True,
                enable_sleep_mode=current_platform.is_sleep_mode_available(),
                logprobs_mode="processed_logprobs",
                **options,
            )


@contextmanager
def _reporting(what: str, fix: str) -> Iterator[None]:
    """Turn vLLM's errors, which share no base, into one."""
    try:
        yield
    except Exception as error:
        raise InputError(f"vLLM {what}: {error}", fix=fix) from error


@contextmanager
def _same_random_state() -> Iterator[None]:
    """Leave the random states as they were: vLLM sets and uses those of the process."""
    python = random.getstate()
    array = np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        yield
    random.setstate(python)
    np.random.set_state(array)
