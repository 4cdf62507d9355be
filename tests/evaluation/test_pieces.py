"""Pieces of an input: nothing lost or repeated, limits kept, labels with what they label."""

from hypothesis import given
from hypothesis import strategies as st

from memalpha.evaluation.pieces import Piece, pieces, units
from memalpha.memory.memory import count_words
from memalpha.types import Chunk

TEXTS = st.text(alphabet=st.sampled_from("ab .!?\n\r\té漢:"), max_size=80)


@given(TEXTS, st.integers(1, 6))
def test_units_are_the_words_in_order_and_keep_to_the_limit(text, limit):
    found = units(text, limit, count_words)
    assert [word for unit in found for word in unit.split()] == text.split()
    assert all(1 <= count_words(unit) <= limit for unit in found)
    assert all(unit == unit.strip() for unit in found)


@given(st.lists(TEXTS, max_size=4), st.integers(1, 12), st.integers(1, 6))
def test_pieces_are_the_units_joined_and_stay_in_their_chunk(texts, pack, limit):
    chunks = [Chunk(text, "2024-01-02" if i % 2 else None) for i, text in enumerate(texts)]
    found = pieces(chunks, pack, limit, count_words)
    for index, chunk in enumerate(chunks):
        own = [piece for piece in found if piece.chunk == index]
        left = units(chunk.text, limit, count_words)
        for piece in own:
            taken = [left.pop(0)]
            while "\n".join(taken) != piece.text:
                taken.append(left.pop(0))
            assert piece.time == chunk.time
            assert len(taken) == 1 or count_words(piece.render()) <= pack
            if left:  # a piece is as long as the next unit lets it be
                assert count_words(Piece(f"{piece.text}\n{left[0]}", piece.time, index).render()) > pack
        assert left == []


def test_a_line_is_a_unit_and_a_long_one_is_cut_at_sentences():
    text = "Ann: I am here.\n\nAnn: One two three. Four five six seven eight nine ten.\nBob: Hi."
    assert units(text, 4, count_words) == [
        "Ann: I am here.", "Ann: One two three.", "Four five six seven", "eight nine ten.", "Bob: Hi.",
    ]  # fmt: skip


def test_a_block_that_fits_stays_whole_and_so_does_a_label_with_its_sentence():
    assert units("Title\nShort.\n\nOther\nShort too.", 4, count_words) == ["Title\nShort.", "Other\nShort too."]
    labelled = "Sentence: what now\nLabel: 3\nSentence: who\nLabel: 4\nLabel: 5"
    assert units(labelled, 9, count_words) == ["Sentence: what now\nLabel: 3", "Sentence: who\nLabel: 4", "Label: 5"]


def test_a_piece_shows_its_time_as_an_entry_does():
    assert Piece("a b", "2024-01-02", 0).render() == "[2024-01-02] a b"
    assert Piece("a b", None, 0).render() == "a b"
