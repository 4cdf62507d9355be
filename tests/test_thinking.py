"""What a model thinks is no call, no answer and no verdict: every form, wherever a model's text is
read, from servers and here."""

import json
import math
from contextlib import nullcontext

import pytest

from memalpha.agent.codecs import make_codec
from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.endpoints import ChatClient
from memalpha.errors import PartialServiceError, ServiceError
from memalpha.generation.hf import answer_chats
from memalpha.memory.memory import count_words
from memalpha.memory.schema import MemorySchema, to_call
from memalpha.models.registry import make_tokenizer
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.readers import EndpointReader, ModelReader, QAEvaluator
from memalpha.text.thinking import content_of, decode_completion, opens_thinking
from memalpha.types import (
    Answer,
    AnswerRequest,
    Chunk,
    Instance,
    Operation,
    OperationKind,
    Question,
    ReadRequest,
    Sampling,
    ToolCall,
)
from tests.helpers.scripted import ScriptedGenerator
from tests.helpers.stub_server import Fault, completion

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


def cities(codec, text):
    """Cities of the calls read, and the errors."""
    items = make_codec(codec, SCHEMA).parse(text, False)
    calls = [item for item in items if isinstance(item, ToolCall)]
    assert all("Marta lives in" in text[call.start : call.end] for call in calls)  # of the whole
    errors = [item.message for item in items if item not in calls]
    return [str(item.arguments["content"]).split()[-1] for item in calls], errors


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
        assert (len(blanked), blanked.split(), open_at) == (len(text), said.split(), None)
    assert content_of(f"Well. {opening}Rome") == ("Well. ", 6)


@pytest.mark.parametrize("marks", MARKS, ids=[marks[0].strip() for marks in MARKS])
@pytest.mark.parametrize("codec", WRITTEN)
def test_no_draft_of_the_thinking_is_a_call(marks, codec):
    (opening, closing), wrong, right = marks, WRITTEN[codec]("Rome"), WRITTEN[codec]("Oslo")
    for text, outcome in (
        (f"{opening}Perhaps\n{wrong}\nno.{closing}\n{right}", (["Oslo"], [])),
        (f"Perhaps\n{wrong}\nno.{closing}\n{right}", (["Oslo"], [])),
        (f"{opening}a{closing}\n{right}\n{opening}{wrong}{closing}\n", (["Oslo"], [])),
        (f"{opening}Perhaps\n{wrong}\n", ([], ["the thinking never ends"])),
    ):
        assert cities(codec, text) == outcome


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
    contents = [content, "Marta lives in Oslo"]
    calls = [to_call(Operation(OperationKind.INSERT, "facts", text)) for text in contents]
    text = made.render(calls)
    for written in (text, f"<think>{line('Rome')}</think>\n{text}"):
        assert made.parse(written, False)[0].arguments["content"] == content
    assert [call.arguments["content"] for call in made.parse(text, False)] == contents


@pytest.mark.parametrize("codec", WRITTEN)
@pytest.mark.parametrize("opened", [False, True])
def test_wherever_a_completion_is_cut_off_no_draft_is_carried_out(codec, opened):
    made, write = make_codec(codec, SCHEMA), WRITTEN[codec]
    made.begins_thinking = opened  # by the prompt
    draft = f"\nPerhaps\n{write('Rome')}\n- no, she said Oslo</think>\n{write('Oslo')}"
    text = draft if opened else f"<think>{draft}"
    for end in range(1, len(text)):
        items = made.parse(text[:end], True)
        assert "Rome" not in str([item for item in items if isinstance(item, ToolCall)])
        assert all(0 <= item.start <= item.end <= end for item in items)
    (call,) = made.parse(text, False)
    assert call.arguments["content"] == "Marta lives in Oslo"


# ------------------------------------------------------------------------------------------------
# models here
def tokenizer_of(tail="", special=()):
    """A tokenizer whose template ends with ``tail``."""
    made = make_tokenizer(("apple", "boat"), 2048)
    made.add_special_tokens({"additional_special_tokens": list(special)})
    for end in ("assistant\\n", "assistant\n"):
        made.chat_template = made.chat_template.replace(end, end + tail)
    return made


def test_marks_that_are_special_tokens_are_still_seen_and_no_other_is():
    tokenizer = tokenizer_of(special=("[THINK]", "[/THINK]"))
    ids = tokenizer("[THINK]apple[/THINK]boat<|im_end|>", add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "appleboat"  # as if it had said both
    assert decode_completion(tokenizer, ids) == "[THINK]apple[/THINK]boat"
    assert decode_completion(tokenizer, ids[-2:]) == "boat"


@pytest.mark.parametrize(
    ("tail", "opens"),
    [("", False), ("<think>", True), ("<think></think>", False), ("[THINK]", True)],
)
def test_a_policy_whose_template_opens_the_thinking_begins_inside_it(tail, opens):
    tokenizer = tokenizer_of(tail)
    assert opens_thinking(tokenizer) is opens
    agent = AgentStep(AgentConfig(schema="facts", codec="compact"), tokenizer)
    thought = f"Perhaps\n{line('Rome')}\n"
    for text, contents in (
        (f"{thought}</think>\n{line('Oslo')}", ["Marta lives in Oslo"]),
        (thought, [] if opens else ["Marta lives in Rome"]),
    ):
        generator = ScriptedGenerator([text], tokenizer)
        instance = Instance("a", "test", (Chunk("x"),), ())
        (rollout,) = run_rollouts([instance], agent, generator, Sampling(512))
        assert [entry.content for entry in rollout.memory.entries()] == contents
        assert rollout.steps[0].completion.text == text  # training sees all of it


@pytest.mark.parametrize("tail", ["", "<think>"])
def test_a_reader_whose_template_opens_the_thinking_begins_inside_it(tail):
    tokenizer = tokenizer_of(tail)
    generator = ScriptedGenerator(["Rome or apple</think>boat", "Rome or apple"], tokenizer)
    reader = ModelReader(
        lambda chats: answer_chats(generator, tokenizer, chats, 64), 99, count_words
    )
    question = ReadRequest(Question("Where?", ("boat",)), ("x",))
    assert reader.read([question]) == [Answer("boat")]
    ends = pytest.raises(PartialServiceError, match="did not end its thinking")
    with ends if tail else nullcontext():
        assert reader.read([question]) == [Answer("Rome or apple")]


# ------------------------------------------------------------------------------------------------
# servers


@pytest.mark.parametrize("metric", ["substring", "f1", "exact_match", "bound"])
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (completion("<think>Rome, I think.</think>\nOslo"), None),
        (completion("Oslo", reasoning="Rome"), None),
        (completion("Oslo, because", "length"), "was cut off by"),
        (completion("<think>Oslo"), "did not end its"),
        (completion("<think>Oslo</think>"), "is empty"),
        (completion("<think>a</think>Oslo", "length"), "was cut off by"),
    ],
)
def test_an_endpoint_reader_is_scored_by_its_answer_and_masked_without_a_whole_one(
    chat_server, metric, reply, error
):
    chat_server.fault_for = lambda body: Fault(200, reply)
    reader = EndpointReader(ChatClient(chat_server.url, "m", retries=0), 99, count_words)
    question = Question("Where?", ("Oslo",), metric, subject="Marta", stale=("Rome",))
    (record,) = QAEvaluator(reader, 1).ask([ReadRequest(question, ())])
    if error is None:
        assert (record.score, record.answer.text) == (1.0, "Oslo")
    else:
        assert math.isnan(record.score) and record.answer is None and error in record.error


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
