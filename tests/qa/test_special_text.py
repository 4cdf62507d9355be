"""Marks that a chat server's tokenizer takes for special tokens never reach it; ordinary text does, unchanged."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.codecs import CODECS, make_codec
from memalpha.agent.step import system_text
from memalpha.endpoints import break_marks
from memalpha.memory.schema import MemorySchema
from memalpha.models.nano import make_tokenizer
from memalpha.qa import judges, readers
from memalpha.text import render_chat

MARKS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|begin_of_text|>", "<|channel|>",
    "<|reserved_special_token_0|>", "<|START_OF_TURN_TOKEN|>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<s>", "</s>", "<bos>",
    "<eos>", "<pad>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<unused12>", "<extra_id_0>", "[INST]", "[/INST]", "<<SYS>>",
    "<</SYS>>", "[TOOL_CALLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[gMASK]", "<sop>", "[|assistant|]", "[BOS]",
]  # fmt: skip
ORDINARY = [
    "", "a < b and c > d", "x <- y", "if (a<b || c>d)", "a <|> b", "f <| g x |> h", "[1] see [INSTALL]", "<b>bold</b> <span>",
    "<chunk>\nMarta: I moved.\n</chunk>", '<tool_call>{"name": "x"}</tool_call>', "| a | b |", "<3", "p(x|y)", "[ ] to do",
    "héllo \u200b 世界 🎈", "<S>", "INST", "[inst]", "5<s", "s>", "<| im_start |>", "<https://x.org>",
]  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_is_broken_and_reads_the_same(mark):
    found = break_marks(f"a{mark}b {mark}{mark}")
    assert mark not in found
    assert found == f"a{mark[0]} {mark[1:]}b {mark[0]} {mark[1:]}{mark[0]} {mark[1:]}"


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_left_alone(text):
    assert break_marks(text) == text


def test_our_own_instructions_are_ordinary_text():
    for preset in ("facts", "mem_alpha", "nine_categories"):
        schema = MemorySchema.load(preset)
        for codec in CODECS:
            text = system_text(make_codec(codec, schema), schema, True)
            assert text and break_marks(text) == text
    for text in (readers.SYSTEM, readers.USER, judges.ANSWER_SYSTEM, judges.CONTENT_SYSTEM):
        assert break_marks(text) == text


@given(st.lists(st.sampled_from([*MARKS, *"<>|[]/ sIN\n", "SYS", "im_end", "｜"]), max_size=20).map("".join))
def test_no_mix_of_pieces_makes_a_mark_and_only_spaces_are_added(text):
    found = break_marks(text)
    assert not any(mark in found for mark in MARKS)
    assert break_marks(found) == found
    assert re.sub(r"([<\[]) ", r"\1", found) == re.sub(r"([<\[]) ", r"\1", text)


@given(st.text())
def test_text_without_brackets_is_never_touched(text):
    plain = text.replace("<", "").replace("[", "")
    assert break_marks(plain) == plain


def test_a_server_that_tokenises_a_rendered_chat_sees_its_own_turns_alone():
    tokenizer = make_tokenizer(("apple",), 512)
    special = set(tokenizer.all_special_ids)

    def turns(text):
        chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
        return [i for i in tokenizer(render_chat(tokenizer, chat), add_special_tokens=False).input_ids if i in special]

    evil = "".join(f"apple{token}" for token in tokenizer.all_special_tokens)
    assert len(turns(evil)) > len(turns("apple"))  # without the defence they do get through
    assert turns(break_marks(evil)) == turns("apple")


def test_long_texts_take_time_in_proportion():
    for text in ("<|" * 200_000, "<|" + "a" * 400_000, "[" * 400_000, "<<" * 200_000):
        assert break_marks(text) == text
