"""Packing: ranges kept, nothing lost, and the cut of long texts, against hand-worked cases and properties."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.packing import Packed, Span, TokenRange, overlapping, pack_texts, split_text
from memalpha.errors import InputError


def count_words(text):
    return len(text.split())


def test_texts_join_until_the_drawn_length():
    texts = ["a b c", "d e", "f g h i", "j"]  # 3, 2, 4, 1 words; every drawn length is 5
    packed = list(pack_texts(texts, TokenRange(5, 5), count_words, random.Random(0)))
    assert packed == [Packed("a b c\n\nd e", (0, 1)), Packed("f g h i\n\nj", (2, 3))]


def test_a_short_chunk_grows_past_its_drawn_length_but_not_past_the_limit():
    # Drawn 4 each time (low = 4). "a b c" is below 4, so it takes three more words to 6 = high; the last text would make 7.
    rng = random.Random(0)
    rng.randint = lambda low, high: low
    packed = list(pack_texts(["a b c", "d e f", "g"], TokenRange(4, 6), count_words, rng))
    assert [chunk.parts for chunk in packed] == [(0, 1), (2,)]
    packed = list(pack_texts(["a b c", "d e f g", "h"], TokenRange(4, 6), count_words, rng))
    assert [chunk.parts for chunk in packed] == [(0,), (1,), (2,)]


def test_a_text_over_the_limit_is_refused():
    with pytest.raises(InputError, match="a text has 4 tokens"):
        list(pack_texts(["a b c d"], TokenRange(1, 3), count_words, random.Random(0)))


def test_a_counter_that_counts_more_for_the_whole_than_for_the_parts_never_overfills():
    def count(text):  # every separator costs five, though alone it costs one
        return len(text.replace("\n\n", "")) + 5 * text.count("\n\n") if text.strip() else 1

    packed = list(pack_texts(["aaa", "bbb", "cc", "d"], TokenRange(10, 10), count, random.Random(0)))
    assert [part for chunk in packed for part in chunk.parts] == [0, 1, 2, 3]
    assert all(count(chunk.text) <= 10 for chunk in packed)


_TEXTS = st.lists(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=9).map(" ".join), max_size=20)


@settings(max_examples=150, deadline=None)
@given(_TEXTS, st.integers(1, 9), st.integers(9, 30), st.integers(0, 99))
def test_packing_keeps_order_and_range(texts, low, high, seed):
    packed = list(pack_texts(texts, TokenRange(low, high), count_words, random.Random(seed)))
    assert [part for chunk in packed for part in chunk.parts] == list(range(len(texts)))
    for index, chunk in enumerate(packed):
        assert chunk.text == "\n\n".join(texts[part] for part in chunk.parts)
        assert count_words(chunk.text) <= high
        if index + 1 < len(packed) and count_words(chunk.text) < low:
            following = texts[packed[index + 1].parts[0]]
            assert count_words(chunk.text) + count_words(following) > high
    assert packed == list(pack_texts(texts, TokenRange(low, high), count_words, random.Random(seed)))


def pieces_of(text, limit, count=count_words):
    return [text[span.start : span.end] for span in split_text(text, limit, count)]


def test_long_texts_are_cut_at_sentences_then_words_then_characters():
    assert pieces_of("One two. Three four five! Six?", 5) == ["One two. Three four five!", "Six?"]
    assert pieces_of('He said "go." Then left.\nNew line here', 3) == ['He said "go."', "Then left.", "New line here"]
    assert pieces_of("a b c d e f g. h", 3) == ["a b c", "d e f", "g. h"]
    assert pieces_of("  abcdefgh  ", 3, len) == ["ab", "cd", "ef", "gh"]
    assert pieces_of(" short ", 9) == ["short"]
    assert pieces_of("  \n ", 9) == []


@settings(max_examples=150, deadline=None)
@given(
    st.text("ab. !\n\u00e9\u3042", max_size=80),
    st.integers(1, 12),
    st.sampled_from([len, count_words, lambda text: len(text) ** 2]),
)
def test_pieces_cover_the_text_in_order_and_fit(text, limit, count):
    spans = split_text(text, limit, count)
    end = 0
    for span in spans:
        assert text[end : span.start].strip() == "" and span.start < span.end
        assert count(text[span.start : span.end]) <= limit
        end = span.end
    assert text[end:].strip() == ""


def test_a_megabyte_of_white_space_or_dots_is_cut_quickly():
    assert pieces_of("a." + " " * 500_000 + "b", 1) == ["a.", "b"]
    assert pieces_of("." * 200_000, 5) == ["." * 200_000]


def test_overlapping_spans():
    spans = [Span(0, 5), Span(6, 10), Span(11, 20)]
    assert overlapping(spans, Span(4, 7)) == (0, 1)
    assert overlapping(spans, Span(6, 10)) == (1,)
    assert overlapping(spans, Span(5, 6)) == ()
