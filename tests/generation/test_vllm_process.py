"""vLLM inside the process, against an engine that only notes what it is told: what goes in and comes
out, adapters, sleep, random states. The real one: tests/scale/test_vllm_process.py."""

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from memalpha.errors import InputError, ServiceError
from memalpha.generation.vllm_process import VLLMProcess
from memalpha.models.registry import make_tokenizer
from memalpha.types import AdapterEngine, Completion, Prompt, Sampling, StopReason

TOKENIZER = make_tokenizer(("apple", "boat"), 512)
APPLE, BOAT = TOKENIZER("apple boat", add_special_tokens=False).input_ids
PROMPTS = [Prompt((), (1, 2)), Prompt((), (1, 2))]


def completion(ids=(APPLE, BOAT), logprobs=(-0.5, 0.0), finish="stop"):
    of_tokens = [
        {i: SimpleNamespace(logprob=value)} for i, value in zip(ids, logprobs, strict=True)
    ]
    return SimpleNamespace(token_ids=list(ids), logprobs=of_tokens, finish_reason=finish)


class Engine:
    """Stands in for ``vllm.LLM``."""

    def __init__(self, model, **options):
        torch.manual_seed(0)  # as vLLM does to its process
        random.seed(0)
        np.random.seed(0)
        if options["gpu_memory_utilization"] > 0.9:
            raise ValueError("Free memory is less than desired")
        self.model, self.options = model, options
        self.events, self.drawn = [], completion()
        self.parameters, self.adapter = [], None
        self.llm_engine = self

    def add_lora(self, request):
        if "bad" in request.lora_name:
            raise ValueError("rank 1024 is too large")
        self.events.append(f"add {request.lora_name} as {request.lora_int_id}")

    def remove_lora(self, number):
        self.events.append(f"remove {number}")

    def sleep(self, level):
        self.events.append(f"sleep {level}")

    def wake_up(self):
        self.events.append("wake")

    def generate(self, prompts, parameters, lora_request, use_tqdm):
        torch.rand(1)
        self.prompts, self.parameters, self.adapter = prompts, parameters, lora_request
        return [SimpleNamespace(outputs=[self.drawn]) for _ in prompts]


@pytest.fixture
def process(monkeypatch):
    platform = SimpleNamespace(is_cpu=lambda: True, is_sleep_mode_available=lambda: False)

    def adapter(name, number, path):
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)

    contents = {
        "vllm": {"LLM": Engine, "SamplingParams": SimpleNamespace},
        "vllm.platforms": {"current_platform": platform},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": adapter},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return VLLMProcess("base", TOKENIZER, len(TOKENIZER), gpu_memory_utilization=0.3)


def draw(process, seed=1):
    with process.awake():
        completions = process.generate(PROMPTS, Sampling(3, 0.7, 0.9, 5, seed))
    return completions, [parameters.seed for parameters in process._llm.parameters]


def test_token_ids_go_in_and_come_out_with_their_log_probabilities(process):
    made, _ = draw(process)
    text = TOKENIZER.decode([APPLE, BOAT])
    assert made == [Completion((APPLE, BOAT), text, StopReason.END, (-0.5, 0.0))] * 2
    llm = process._llm
    assert llm.prompts == [{"prompt_token_ids": [1, 2]}] * 2 and isinstance(process, AdapterEngine)
    asked = vars(llm.parameters[0])
    del asked["seed"]
    assert asked == {
        "max_tokens": 3,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "logprobs": 0,
        "stop_token_ids": [],
        "detokenize": False,
    }
    assert llm.options["enable_lora"] and llm.options["logprobs_mode"] == "processed_logprobs"


def test_a_seed_fixes_the_draws_and_the_random_states_stay_as_they_were(process):
    def states():
        return torch.rand(1).item(), random.random(), np.random.random()

    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    expected = states()
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    _, first = draw(process)
    assert states() == expected
    assert first[0] != first[1]  # equal prompts differ
    assert draw(process)[1] == first and set(draw(process, 2)[1]).isdisjoint(first)
    without = [draw(process, None)[1] for _ in range(2)]
    torch.manual_seed(7)
    again = [draw(process, None)[1] for _ in range(2)]
    torch.manual_seed(7)
    assert [draw(process, None)[1] for _ in range(2)] == again
    assert again[0] != again[1] and without[0] != without[1]


def test_an_adapter_is_loaded_once_and_the_one_before_removed(process):
    with process.awake():
        process.load("a", Path("served/a"))
        process.use("a", Path("served/a"))
        process.use("b", Path("served/b"))
        with pytest.raises(
            InputError, match=r"take the adapter served/bad: rank 1024 is too large"
        ):
            process.load("bad", Path("served/bad"))
    assert process._llm.events[:4] == ["add a as 1", "remove 1", "add b as 2", "remove 2"]
    draw(process)
    assert process._llm.adapter.lora_path == str(Path("served/b").resolve())


def test_the_engine_starts_when_it_is_needed_and_sleeps_between_draws(process):
    assert process._llm is None
    draw(process)
    draw(process)
    with pytest.raises(ZeroDivisionError), process.awake():
        raise ZeroDivisionError
    assert process._llm.events == ["sleep 1", "wake", "sleep 1", "wake", "sleep 1"]


def test_an_engine_that_fails_is_an_input_error(process, monkeypatch):
    process.options["gpu_memory_utilization"] = 0.95
    with pytest.raises(InputError, match=r"does not start: Free memory[\s\S]*change vllm_memory"):
        draw(process)
    process.options["gpu_memory_utilization"] = 0.3
    draw(process)

    def fail(*_, **__):
        raise RuntimeError("CUDA out of memory")

    for name, said in (("generate", "does not draw"), ("wake_up", "does not wake up")):
        monkeypatch.setattr(Engine, name, fail)
        with pytest.raises(
            InputError, match=rf"{said}: CUDA out of memory[\s\S]*lower vllm_memory"
        ):
            draw(process)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (completion((len(TOKENIZER), 3)), f"below {len(TOKENIZER)}"),
        (completion(logprobs=(float("nan"), 0.0)), "log-probability nan"),
        (completion((), ()), "0 token ids"),
        (completion(finish="abort"), "finish_reason 'abort'"),
    ],
)
def test_tokens_that_cannot_be_trained_on_are_refused(process, drawn, said):
    with process.awake():
        process._llm.drawn = drawn
        with pytest.raises(ServiceError, match="a completion of vLLM has") as caught:
            process.generate(PROMPTS, Sampling(3, 1.0))
    assert said in str(caught.value)
