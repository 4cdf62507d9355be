"""Options of the servers that read and judge: what they do to the requests, and one clear message for what does not fit."""

import pytest
from rollouts import make_agent
from stub_server import StubServer, error

from memalpha.errors import InputError, PartialServiceError
from memalpha.protocols import AnswerRequest, ReadRequest, WriteRequest
from memalpha.training.build import make_answer_judge, make_judge, make_reader
from memalpha.training.config import RunOptions, parse_train_arguments
from memalpha.types import Answer, Chunk, Operation, OperationKind, OperationResult, Question, ResultCode

REQUESTS = [ReadRequest(Question(f"was {i} seen?", ("x",)), ()) for i in range(12)]
ANSWERS = [AnswerRequest(request.question, Answer("x")) for request in REQUESTS]
WRITES = [
    WriteRequest(
        "i",
        0,
        Chunk("x"),
        (OperationResult(True, ResultCode.APPLIED, "", Operation(OperationKind.INSERT, "facts", "x")),),
        (None,),
        (),
    )
]


@pytest.fixture
def other_server():
    server = StubServer()
    yield server
    server.close()


def options(server, **more):
    return RunOptions(reader="endpoint", endpoint_url=server.url, endpoint_model="m", endpoint_backoff=0.0, **more)


def read(run):
    return make_reader(run, make_agent(), None, None).read(REQUESTS)


def test_the_options_reach_the_requests(chat_server, tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text(
        f"reader: endpoint\nendpoint_url: {chat_server.url}\nendpoint_model: m\nendpoint_retries: 1\nendpoint_concurrency: 3\n"
        "endpoint_backoff: 0\nendpoint_extra: {chat_template_kwargs: {enable_thinking: false}}\nuse_cpu: true\n"
    )
    run = parse_train_arguments(["--config", str(path)]).run
    chat_server.delay = 0.05
    assert len(read(run)) == 12
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} and body["model"] == "m" for body in chat_server.bodies)
    assert 2 <= chat_server.most_active <= 3
    chat_server.bodies.clear()
    chat_server.fault_for = lambda body: error(500) if "was 7 seen" in body["messages"][-1]["content"] else None
    with pytest.raises(PartialServiceError, match="1 of 12"):
        read(run)
    assert len(chat_server.bodies) == 13  # one was repeated, once


def test_extra_fields_can_be_given_at_the_command_line():
    said = ["--use_cpu", "true", "--endpoint_extra", "{chat_template_kwargs: {enable_thinking: false}, seed: 1}"]
    assert parse_train_arguments(said).run.endpoint_extra == {"chat_template_kwargs": {"enable_thinking": False}, "seed": 1}
    assert parse_train_arguments(said[:2]).run.endpoint_extra == {}


def test_a_timeout_is_that_of_one_attempt(chat_server):
    chat_server.delay = 5.0
    with pytest.raises(PartialServiceError, match="timed out"):
        read(options(chat_server, endpoint_timeout=0.1, endpoint_retries=0, endpoint_concurrency=12))


def test_the_judges_ask_the_readers_server_unless_they_have_their_own(chat_server, other_server, monkeypatch):
    monkeypatch.setenv("MEMALPHA_API_KEY", "for-the-reader")
    monkeypatch.setenv("MEMALPHA_JUDGE_API_KEY", "for-the-judge")
    chat_server.reply = other_server.reply = lambda body: "yes"

    def asked(server, **more):
        run = options(chat_server, content_judge="endpoint", endpoint_extra={"a": 1}, **more)
        server.bodies.clear()
        server.headers.clear()
        assert make_judge(run, []).judge(WRITES) == [[True]]
        assert make_answer_judge(run).judge(ANSWERS[:1]) == [True]
        assert len(server.bodies) == 2
        found = {
            (body["model"], headers["Authorization"], body.get("a"), body.get("b"))
            for body, headers in zip(server.bodies, server.headers, strict=True)
        }
        return found.pop() if len(found) == 1 else found

    assert asked(chat_server) == ("m", "Bearer for-the-reader", 1, None)
    assert asked(chat_server, judge_model="strict") == ("strict", "Bearer for-the-reader", 1, None)
    assert asked(other_server, judge_url=other_server.url) == ("m", "Bearer for-the-judge", 1, None)
    own = {"judge_url": other_server.url, "judge_model": "strict", "judge_extra": {"b": 2}}
    assert asked(other_server, **own) == ("strict", "Bearer for-the-judge", None, 2)
    assert asked(other_server, **{**own, "judge_extra": {}}) == ("strict", "Bearer for-the-judge", None, None)


def test_a_judge_of_answers_alone_may_be_named_and_without_a_server_there_is_none(other_server):
    assert make_answer_judge(RunOptions()) is None
    run = RunOptions(judge_url=other_server.url, judge_model="m")
    other_server.reply = lambda body: "no"
    assert make_answer_judge(run).judge(ANSWERS) == [False] * 12


URL = {"endpoint_url": "http://localhost:1/v1", "endpoint_model": "m"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reader": "endpoint"}, "endpoint_url or endpoint_model is empty"),
        ({"reader": "endpoint", "endpoint_url": "http://localhost:1/v1"}, "endpoint_url or endpoint_model is empty"),
        ({"reader": "endpoint", "judge_url": "http://localhost:1/v1", "judge_model": "m"}, "endpoint_url or endpoint_model"),
        ({"content_judge": "endpoint"}, "expected: judge_url and judge_model, or endpoint_url and endpoint_model"),
        ({"content_judge": "endpoint", "judge_url": "http://localhost:1/v1"}, "judge_url and judge_model"),
        ({**URL, "reader": "endpoint", "endpoint_url": "localhost:1/v1"}, "endpoint 'localhost:1/v1'"),
        ({**URL, "judge_url": "ftp://x/v1"}, "endpoint 'ftp://x/v1'"),
        ({**URL, "reader": "endpoint", "endpoint_timeout": 0}, "timeout is 0"),
        ({**URL, "reader": "endpoint", "endpoint_retries": -1}, "retries is -1"),
        ({**URL, "reader": "endpoint", "endpoint_backoff": -1.0}, "backoff is -1"),
        ({**URL, "reader": "endpoint", "endpoint_concurrency": 0}, "concurrency is 0"),
        ({**URL, "endpoint_extra": "[1"}, "endpoint_extra is '[1'"),
        ({**URL, "endpoint_extra": [1]}, "endpoint_extra is"),
        ({**URL, "judge_extra": {"stream": True}}, "'stream'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_before_anything_is_loaded(given, said):
    with pytest.raises(InputError) as caught:
        RunOptions(**given)
    assert said in str(caught.value) and "expected: " in str(caught.value)
