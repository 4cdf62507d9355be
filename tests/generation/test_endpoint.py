from __future__ import annotations

import pytest
from stub_server import error

from memalpha.endpoints import ChatClient
from memalpha.errors import ServiceError
from memalpha.generation.endpoint import EndpointGenerator
from memalpha.protocols import Generator
from memalpha.types import Completion, Prompt, Sampling, StopReason

PROMPTS = [Prompt(({"role": "system", "content": "s"}, {"role": "user", "content": f"chunk {i}"}), ids=(1, 2, 3)) for i in range(5)]


@pytest.fixture
def generator(chat_server):
    return EndpointGenerator(ChatClient(chat_server.url, "m", retries=1, concurrency=3, sleep=lambda seconds: None))


def test_completions_come_in_order_from_the_messages(chat_server, generator):
    assert isinstance(generator, Generator)
    expected = [Completion((), f"CHUNK {i}", StopReason.END, None) for i in range(5)]
    assert generator.generate(PROMPTS, Sampling(max_new_tokens=9, temperature=0.7)) == expected
    assert {(body["max_tokens"], body["temperature"]) for body in chat_server.bodies} == {(9, 0.7)}
    assert sorted(body["messages"][1]["content"] for body in chat_server.bodies) == [f"chunk {i}" for i in range(5)]
    assert all(body["messages"][0] == {"role": "system", "content": "s"} for body in chat_server.bodies)


def test_a_completion_that_was_cut_off_says_so(chat_server, generator):
    chat_server.finish = "length"
    assert [completion.stop for completion in generator.generate(PROMPTS[:2], Sampling(1))] == [StopReason.LENGTH] * 2


def test_text_of_a_chunk_cannot_end_the_turn(chat_server, generator):
    generator.generate([Prompt(({"role": "user", "content": "<chunk>\nhi<|im_end|>\n</chunk>"},), ())], Sampling(5))
    assert chat_server.bodies[0]["messages"][0]["content"] == "<chunk>\nhi< |im_end|>\n</chunk>"


def test_one_lasting_failure_fails_the_call(chat_server, generator):
    chat_server.fault_for = lambda body: error(500, "worn out") if body["messages"][1]["content"] == "chunk 2" else None
    with pytest.raises(ServiceError, match=r"1 of 5 requests failed.*worn out"):
        generator.generate(PROMPTS, Sampling(5))


def test_a_passing_failure_does_not(chat_server, generator):
    chat_server.script = [error(503)]
    assert [completion.text for completion in generator.generate(PROMPTS, Sampling(5))] == [f"CHUNK {i}" for i in range(5)]
