"""Completions from a vLLM server against a real local one that misbehaves: wrong tokens,
floods, adapters never listed."""

import json
import math
import time

import pytest

from memalpha.errors import InputError, ServiceError
from memalpha.generation.vllm_server import VLLMServers
from memalpha.models.registry import make_tokenizer
from memalpha.types import Completion, Prompt, Sampling, StopReason
from tests.helpers.stub_server import Fault, error

TOKENIZER = make_tokenizer(("apple", "boat"), 512)
APPLE, BOAT = TOKENIZER("apple boat", add_special_tokens=False).input_ids
VOCABULARY = len(TOKENIZER)
OK = Fault(200, b"Success")


def drawn(ids=(APPLE, BOAT), logprobs=(-0.5, 0.0), finish="stop", **more):
    """Reply of the completions route; its text is another than that of the ids."""
    choice = {
        "text": "lies",
        "token_ids": ids,
        "logprobs": {"token_logprobs": logprobs},
        "finish_reason": finish,
        **more,
    }
    return Fault(200, json.dumps({"choices": [choice]}).encode())


def listing(*names):
    return Fault(200, json.dumps({"data": [{"id": name} for name in names]}).encode())


@pytest.fixture
def servers(chat_server):
    chat_server.page = lambda: listing("base")
    made = VLLMServers([chat_server.url], TOKENIZER, VOCABULARY, timeout=1, wait=2)
    made._clients[0].backoff = 0
    return made


def draw(servers, most=3):
    return servers.generate([Prompt((), (1, 2))], Sampling(most, temperature=1.0))


def test_a_completion_is_its_ids_and_the_policys_tokenizer_reads_them(chat_server, servers):
    chat_server.fault_for = lambda body: drawn(finish="length")
    (made,) = draw(servers)
    assert made == Completion(
        (APPLE, BOAT), TOKENIZER.decode([APPLE, BOAT]), StopReason.LENGTH, (-0.5, 0.0)
    )
    assert chat_server.bodies[0]["prompt"] == [1, 2] and chat_server.bodies[0]["max_tokens"] == 3


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (drawn((-1, 3)), "token id -1"),
        (drawn((10**30, 3)), f"token id {10**30}"),
        (drawn((VOCABULARY, 3)), f"below {VOCABULARY}"),
        (drawn(logprobs=(math.nan, 0.0)), "log-probability nan"),
        (drawn(logprobs=(-math.inf, 0.0)), "log-probability -inf"),
        (drawn(logprobs=(0.5, 0.0)), "log-probability 0.5"),
        (drawn((3,) * 4, (-1.0,) * 4), "4 token ids"),
        (drawn((3,), (-1.0, -1.0)), "1 token ids and 2"),
        (drawn((), ()), "0 token ids"),
        (drawn((3.0, 3)), "valid integer"),
        (drawn(("3", 3)), "valid integer"),
        (drawn((True, 3)), "valid integer"),
        (drawn(logprobs=None), "valid array"),
        (drawn(logprobs=("-1", 0)), "valid number"),
        (drawn(logprobs=(None, 0)), "valid number"),
        (drawn(finish="abort"), "'stop'"),
        (Fault(200, b"[" * 10**6), "recursion limit"),
        (Fault(200, b"{}"), "Field required"),
        (Fault(200, b"null"), "not as expected"),
    ],
)
def test_tokens_that_cannot_be_trained_on_are_refused(chat_server, servers, reply, said):
    chat_server.fault_for = lambda body: reply
    with pytest.raises(ServiceError, match="a completion failed") as caught:
        draw(servers)
    assert said in str(caught.value) and len(chat_server.bodies) == 3


# ------------------------------------------------------------------------------------------------
# adapters
def test_an_adapter_is_loaded_once_and_the_one_before_unloaded(chat_server, servers, tmp_path):
    held = ["base"]
    chat_server.page = lambda: listing(*held)

    def answer(body):
        if "lora_path" in body:
            held.append(body["lora_name"])
        elif "lora_name" in body:
            held.remove(body["lora_name"])
        return drawn() if "prompt" in body else OK

    chat_server.fault_for = answer
    for name in ("a", "a", "b"):
        servers.load(name, tmp_path)
    assert held == ["base", "b"] and draw(servers)[0].ids == (APPLE, BOAT)
    assert [body.get("lora_name") for body in chat_server.bodies] == ["a", "b", "a", None]
    held.remove(
        "b"
    )  # as after a restart: the next batch fails once, then the adapter is given again
    chat_server.fault_for = lambda body: (
        error(404) if "prompt" in body and "b" not in held else answer(body)
    )
    assert draw(servers)[0].ids == (APPLE, BOAT) and held == ["base", "b"]


PAGES = {
    "never lists": listing("base"),
    "floods": Fault(200, b" " * 10**8),
    "no list": Fault(200, b'{"data": 1}'),
    "no object": Fault(200, b"[]"),
    "deep": Fault(200, b"[" * 10**6),
    "no JSON": OK,
    "an outage": error(500),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_server_that_never_lists_the_adapter_is_not_asked_for_ever(
    chat_server, servers, tmp_path, name
):
    chat_server.page = lambda: PAGES[name]
    chat_server.fault_for = lambda body: error(404) if "prompt" in body else OK
    for ask in (lambda: servers.load("a", tmp_path), lambda: draw(servers)):
        servers.use("a", tmp_path)
        began = time.monotonic()
        with pytest.raises(
            ServiceError,
            match=r"has not confirmed for 2 s that it holds the adapter a: .+\n.*--resume",
        ):
            ask()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_a_refused_adapter_is_an_input_error_that_names_the_servers_options(
    chat_server, servers, tmp_path, status
):
    chat_server.fault_for = lambda body: error(status, "rank 32 is too large")
    with pytest.raises(
        InputError, match=r"does not take the adapter.*rank 32 is too large[\s\S]*--max-lora-rank"
    ):
        servers.load("a", tmp_path)
