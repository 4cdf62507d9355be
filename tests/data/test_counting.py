"""Words: as the memory counts them, but for scripts that are written without spaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.counting import count_words_and_signs
from memalpha.data.packing import split_text
from memalpha.memory.memory import count_words


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (" a b\nc ", 3),
        ("caf\u00e9 \u05e9\u05dc\u05d5\u05dd \U0001f642 \u043c\u0438\u0440", 4),
        ("\u4e2d\u56fd", 2),
        ("\u4e2d\u56fd\u4eba\u3002", 4),  # a mark stands for a word of its own, as "." does alone
        ("GPT\u306f\u826f\u3044 model", 5),
        ("\u4e2d\u6587 is Chinese", 3),
        ("\u4e2d\u6587", 2),
    ],
)
def test_by_value(text, count):
    assert count_words_and_signs(text) == count


@given(st.text(st.characters(max_codepoint=0x0DFF)))
def test_text_with_spaces_counts_as_ever(text):
    assert count_words_and_signs(text) == count_words(text)


def test_text_without_spaces_is_cut():
    text = "\u4e2d\u56fd" * 5_000
    pieces = [text[span.start : span.end] for span in split_text(text, 2048, count_words_and_signs)]
    assert "".join(pieces) == text and all(len(piece) <= 2048 for piece in pieces)
