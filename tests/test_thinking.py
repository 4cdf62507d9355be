"""What a model thinks is no call, no answer and no verdict: every form, wherever a model's text is
read, from servers and here."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedGenerator
from stub_server import Fault, completion

from memalpha.agent.codecs import make_codec
from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.endpoints import ChatClient
from memalpha.errors import PartialServiceError, ServiceError
from memalpha.generation.answering import answer_chats
from memalpha.memory.calls import to_call
from memalpha.memory.memory import count_words
from memalpha.memory.schema import MemorySchema
from memalpha.models.registry import make_tokenizer
from memalpha.protocols import AnswerRequest, ReadRequest
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.readers import EndpointReader, ModelReader, QAEvaluator
from memalpha.text import content_of, decoded, opens_thinking
from memalpha.types import (
    Answer,
    Chunk,
    Instance,
    Operation,
    OperationKind,
    Question,
    Sampling,
    ToolCall,
)
from memalpha.use.agent import MemoryAgent

SCHEMA = MemorySchema.load("facts")
MARKS = [
    ("<think>", "</think>"),
    ("<think>\n", "\n</think>\n\n"),
    ("<THINK>", "</THINK>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<longcat_think>", "</longcat_think>"),
    ("<think:x>", "</think:x>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]
THOUGHT = "Rome?\n- Not Rome.\n"


def call(city):
    body = {
        "name": "memory_insert",
        "arguments": {"section": "facts", "content": f"Marta lives in {city}"},
    }
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


def line(city):
    return f"+ Marta lives in {city}"


WRITTEN = {"hermes": call, "compact": line, "compact_text": line}


def parse(codec, text, cut_off=False):
    """The calls and the errors of a text."""
    items = codec.parse(text, cut_off)
    calls = [item for item in items if isinstance(item, ToolCall)]
    return calls, [item for item in items if item not in calls]


def cities(codec, text):
    """Cities of the calls read, and the errors."""
    calls, errors = parse(make_codec(codec, SCHEMA), text)
    assert all(
        "Marta lives in" in text[item.start : item.end] for item in calls
    )  # the offsets are those of the whole text
    return [str(item.arguments["content"]).split()[-1] for item in calls], [
        error.message for error in errors
    ]


# ------------------------------------------------------------------------------------------------
# forms
@pytest.mark.parametrize("marks", MARKS, ids=[marks[0].strip() for marks in MARKS])
def test_every_form_of_thinking_is_separated(marks):
    opening, closing = marks
    for text, said in (
        (f"{opening}{THOUGHT}{closing}Oslo", "Oslo"),
        (f"{THOUGHT}{closing}Oslo", "Oslo"),
        (f"{opening}a{closing}The city {opening}b{closing}is Oslo", "The city is Oslo"),
        (f"{opening}{closing}Oslo", "Oslo"),
        (f"{opening}a{opening}b{closing}c{closing}Oslo", "Oslo"),
        (f"{opening}I end with {closing} and then answer.{closing}Oslo", "Oslo"),
    ):
        spoken, open_at = content_of(text)
        assert (" ".join(spoken.split()), open_at) == (said, None)
        blanked, open_at = content_of(text, in_place=True)
        assert (
            len(blanked) == len(text)
            and "".join(blanked.split()) == "".join(said.split())
            and open_at is None
        )
    assert content_of(f"Well. {opening}Rome") == ("Well. ", 6)
    for codec, write in WRITTEN.items():
        wrong, right = write("Rome"), write("Oslo")
        assert cities(codec, f"{opening}Perhaps\n{wrong}\nno.{closing}\n{right}") == (["Oslo"], [])
        assert cities(codec, f"Perhaps\n{wrong}\nno.{closing}\n{right}") == (["Oslo"], [])
        both = f"{opening}a{closing}\n{right}\n{opening}{wrong}{closing}\n{right}\n"
        assert cities(codec, both) == (["Oslo", "Oslo"], [])
        assert cities(codec, f"{opening}Perhaps\n{wrong}\n") == ([], ["the thinking never ends"])


@pytest.mark.parametrize(
    "text", ["<think>I could write a <tool_call> for that.</think>", "a <tool_call>\n{\n</think>\n"]
)
def test_an_unclosed_draft_is_no_part_of_the_call(text):
    assert cities("hermes", text + call("Oslo")) == (["Oslo"], [])


@pytest.mark.parametrize(
    "wrapped", ["<answer>\nOslo\n</answer>", "<response>Oslo</response>", "\n<answer>Oslo"]
)
def test_the_tags_of_an_answer_go_with_the_thinking(wrapped):
    assert content_of(f"<think>Rome</think>{wrapped}")[0].strip() == "Oslo"


@given(
    st.lists(
        st.sampled_from(
            [
                *"ab<>/[]◁▷|{}`+- \n",
                "think",
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                "answer",
            ]
        )
    )
)
def test_text_without_thinking_is_not_touched(pieces):
    text = "".join(pieces)
    spoken, open_at = content_of(text)
    if not re.search(r"[<\[◁]/?think", text):
        assert (spoken, open_at) == (text, None)
    blanked, again = content_of(text, in_place=True, lines=True)
    assert len(blanked) == len(text) and (again is None or 0 <= again < len(text))


@pytest.mark.parametrize("codec", WRITTEN)
@pytest.mark.parametrize(
    "content",
    [
        "ends with </think>",
        "<think>",
        "a <think>b</think> c",
        "[THINK] x",
        "</answer>",
        "the </think> tag and <think> too",
        "`</think>`",
    ],
)
def test_a_mark_in_what_is_stored_is_data(codec, content):
    made = make_codec(codec, SCHEMA)
    calls = [
        to_call(Operation(OperationKind.INSERT, "facts", text))
        for text in (content, "Marta lives in Oslo")
    ]
    text = made.render(calls)
    assert [item.arguments["content"] for item in parse(made, text)[0]] == [
        content,
        "Marta lives in Oslo",
    ]
    assert [
        item.arguments["content"]
        for item in parse(made, f"<think>{line('Rome')}</think>\n{text}")[0]
    ][:1] == [content]


@pytest.mark.parametrize("codec", WRITTEN)
@pytest.mark.parametrize("opened", [False, True])
def test_wherever_a_completion_is_cut_off_no_draft_is_carried_out(codec, opened):
    made, write = make_codec(codec, SCHEMA), WRITTEN[codec]
    made.begins_thinking = opened  # by the prompt
    text = (
        "" if opened else "<think>"
    ) + f"\nPerhaps\n{write('Rome')}\n- no, she said Oslo</think>\n{write('Oslo')}"
    for end in range(1, len(text) + 1):
        calls, errors = parse(made, text[:end], cut_off=end < len(text))
        assert "Rome" not in str(calls)
        assert all(0 <= error.start <= error.end <= end for error in errors)
    assert [item.arguments["content"] for item in calls] == ["Marta lives in Oslo"]
    assert errors == []


# ------------------------------------------------------------------------------------------------
# models here
def tokenizer_of(tail="", special=()):
    """A tokenizer whose template ends with ``tail``."""
    made = make_tokenizer(("apple", "boat"), 2048)
    made.add_special_tokens({"additional_special_tokens": list(special)})
    made.chat_template = made.chat_template.replace("assistant\\n", f"assistant\\n{tail}").replace(
        "assistant\n", f"assistant\n{tail}"
    )
    assert not tail or made.apply_chat_template(
        [{"role": "user", "content": "x"}], add_generation_prompt=True, tokenize=False
    ).endswith(tail)
    return made


def test_marks_that_are_special_tokens_are_still_seen_and_no_other_is():
    tokenizer = tokenizer_of(special=("[THINK]", "[/THINK]"))
    ids = tokenizer("[THINK]apple[/THINK]boat<|im_end|>", add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "appleboat"  # as if it had said both
    assert decoded(tokenizer, ids) == "[THINK]apple[/THINK]boat"
    assert decoded(tokenizer, ids[-2:]) == "boat"


@pytest.mark.parametrize(
    ("tail", "opens"),
    [("", False), ("<think>", True), ("<think></think>", False), ("[THINK]", True)],
)
def test_a_policy_whose_template_opens_the_thinking_begins_inside_it(tail, opens):
    tokenizer = tokenizer_of(tail)
    assert opens_thinking(tokenizer) is opens
    agent = AgentStep(AgentConfig(schema="facts", codec="compact"), tokenizer)
    instances = [Instance("a", "test", (Chunk("x"),), ())]
    thought = f"Perhaps\n{line('Rome')}\n"
    for text, contents, codes in (
        (f"{thought}</think>\n{line('Oslo')}", ["Marta lives in Oslo"], ["applied"]),
        (
            thought,
            [] if opens else ["Marta lives in Rome"],
            ["unparsed"] if opens else ["unparsed", "applied"],
        ),
    ):
        (rollout,) = run_rollouts(
            instances, agent, ScriptedGenerator(lambda _, text=text: text, tokenizer), Sampling(512)
        )
        assert [entry.content for entry in rollout.memory.entries()] == contents
        assert [result.code.value for result in rollout.steps[0].outcome.results] == codes
        assert rollout.steps[0].completion.text == text  # training sees all of it
    generator = ScriptedGenerator(["Rome or apple</think>boat", "Rome or apple"], tokenizer)
    reader = ModelReader(
        lambda chats: answer_chats(generator, tokenizer, chats, 64), 99, count_words
    )
    question = ReadRequest(Question("Where?", ("boat",)), ("x",))
    assert reader.read([question]) == [Answer("boat")]
    if opens:
        with pytest.raises(PartialServiceError, match="did not end its thinking"):
            reader.read([question])
    else:
        assert reader.read([question]) == [Answer("Rome or apple")]


# ------------------------------------------------------------------------------------------------
# servers
def test_an_agent_at_a_server_that_thinks_stores_and_answers_what_it_says(chat_server):
    chat_server.reply = lambda body: (
        f"<think>\nCould be {call('Rome')}, no.\n</think>\n\n{call('Oslo')}"
        if "You keep a memory" in body["messages"][0]["content"]
        else "<think>\nRome or Oslo?\n</think>\n\nOslo"
    )
    with MemoryAgent.at_endpoint(
        ChatClient(chat_server.url, "m", retries=0), AgentConfig(schema="facts")
    ) as agent:
        added = agent.add("Marta: I live in Oslo.")
        said = agent.ask("Where does Marta live?")
        assert [entry.content for entry in agent.memory()] == ["Marta lives in Oslo"] and [
            x.ok for x in added.results
        ] == [True]
        assert said.text == "Oslo" and said.source.content == "Marta lives in Oslo"
        chat_server.reply = lambda body: "<think>Nothing new.</think>"
        assert agent.add("Marta: hello.").results == ()
        for text, finish in (
            (f"<think>\n{call('Rome')}", "length"),
            (f"<think>\n{call('Rome')}", "stop"),
        ):
            chat_server.script = [Fault(200, completion(text, finish))]
            with pytest.raises(ServiceError, match="did not end its thinking"):
                agent.add("Marta: I am in Rome.")
        chat_server.reply = lambda body: "<think>Rome"
        with pytest.raises(ServiceError, match="did not end its thinking"):
            agent.ask("Where does Marta live?")
        assert [entry.content for entry in agent.memory()] == ["Marta lives in Oslo"]


@pytest.mark.parametrize("metric", ["substring", "f1", "exact_match", "bound"])
def test_an_endpoint_reader_is_scored_by_its_answer_and_masked_without_a_whole_one(
    chat_server, metric
):
    replies = {
        "whole": Fault(200, completion("<think>Rome, I think.</think>\nOslo")),
        "field": Fault(200, completion("Oslo", reasoning="Rome")),
        "cut": Fault(200, completion("Oslo, because", "length")),
        "open": Fault(200, completion("<think>Oslo")),
        "silent": Fault(200, completion("<think>Oslo</think>")),
        "cut after": Fault(200, completion("<think>a</think>Oslo", "length")),
    }
    chat_server.fault_for = lambda body: replies[
        body["messages"][1]["content"].split("Question: ")[1].split("\n")[0]
    ]
    reader = EndpointReader(ChatClient(chat_server.url, "m", retries=0), 99, count_words)
    asked = [
        ReadRequest(Question(name, ("Oslo",), metric, subject="Marta", stale=("Rome",)), ())
        for name in replies
    ]
    records = QAEvaluator(reader, 1).ask(asked)
    assert [record.score for record in records[:2]] == [1.0, 1.0] and [
        record.answer.text for record in records[:2]
    ] == ["Oslo"] * 2
    assert all(math.isnan(record.score) and record.answer is None for record in records[2:])
    for record, said in zip(
        records[2:],
        ["was cut off by", "did not end its", "is empty", "was cut off by"],
        strict=True,
    ):
        assert said in record.error


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (completion("<think>no?</think> yes"), True),
        (completion("yes", reasoning_content="no"), True),
        (completion("<think>yes</think>No."), False),
        (completion("yes", "length"), None),
        (completion("<think>yes", "length"), None),
        (completion("<think>yes</think>"), None),
        (completion(None, "length", reasoning="yes"), None),
    ],
)
def test_a_judge_says_yes_or_no_after_its_thinking_or_cannot_tell(chat_server, reply, verdict):
    chat_server.fault_for = lambda body: Fault(200, reply)
    judge = EndpointAnswerJudge(ChatClient(chat_server.url, "m", retries=0))
    request = AnswerRequest(Question("Where?", ("Oslo",)), Answer("Oslo"))
    if verdict is None:
        with pytest.raises(ServiceError):
            judge.judge([request])
    else:
        assert judge.judge([request]) == [verdict]
