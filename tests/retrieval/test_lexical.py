import unicodedata
from unittest.mock import Mock

import bm25s
import numpy as np
import pytest
from brute_force import ranked
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.retrieval.lexical import LexicalIndex, tokenize


def index_of(texts, **options):
    index = LexicalIndex(**options)
    for key, text in texts.items():
        index.write(key, text)
    return index


def ids(index, query, k, **more):
    return [key for key, _ in index.search(query, k, **more)]


def test_tokens_are_lower_case_unicode_words_without_stop_words():
    assert tokenize("Where does Zoë live? She's in São-Paulo, at 3rd_street!") == (
        "zoë",
        "live",
        "s",
        "são",
        "paulo",
        "3rd_street",
    )
    assert tokenize("Zoe\u0308") == tokenize("Zoë")
    assert tokenize("Will moved; not in May, no") == ("will", "moved", "not", "may", "no")
    assert tokenize("The Who") == ("the", "who")  # nothing else is left
    assert tokenize(" .,! ") == ()


def test_a_mark_that_does_not_compose_is_inside_its_word():
    assert tokenize("हिन्दी भाषा, नाना!") == ("हिन्दी", "भाषा", "नाना")
    assert (
        tokenize("İstanbul güzel")
        == ("istanbul", "güzel")
        == tokenize("İSTANBUL GÜZEL")
        == tokenize("istanbul güzel")
    )
    assert tokenize("שָׁלוֹם") == (unicodedata.normalize("NFKC", "שָׁלוֹם"),)
    assert tokenize("q\u0323y ∑\u0307 \u0301 z") == ("q\u0323y", "z")
    assert tokenize("❤\ufe0f 1\ufe0f\u20e3 tm\ufe0f") == ("1", "tm")  # these only pick a glyph
    assert index_of({"a": "नाना"}).search("नीनी", 5) == []


WORD = st.sampled_from(["ann", "bob", "cid", "lives", "likes", "oslo", "rome", "tea", "the", "is"])
TEXT = st.lists(WORD, max_size=7).map(" ".join)


def test_ties_put_the_text_added_last_first_and_an_update_keeps_its_place():
    index = index_of({"a": "tea", "b": "tea", "c": "tea"})
    assert ids(index, "tea", 2) == ["c", "b"]
    index.write("a", "TEA!")
    assert ids(index, "tea", 3) == ["c", "b", "a"]


WRITE = st.tuples(
    st.sampled_from(["write", "write", "remove"]),
    st.integers(0, 7),
    TEXT,
    st.sampled_from(["x", "y"]),
)


def by_bm25s(texts, query):
    """{id: score} by bm25s over the texts as they are now, indexed afresh."""
    words = [tokenize(text) for text in texts.values()]
    number = {
        word: i for i, word in enumerate(dict.fromkeys(word for row in words for word in row))
    }
    known = [number[word] for word in tokenize(query) if word in number]
    if not known:
        return dict.fromkeys(texts, 0.0)
    index = bm25s.BM25(k1=1.5, b=0.75, method="lucene", dtype="float64")
    index.index(
        ([[number[word] for word in row] for row in words], number),
        create_empty_token=False,
        show_progress=False,
    )
    return dict(zip(texts, index.get_scores_from_ids(known).tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(st.lists(WRITE, max_size=30), TEXT, st.integers(1, 9))
def test_any_writes_give_what_a_fresh_index_of_another_library_gives(writes, query, k):
    index, texts, groups = LexicalIndex(), {}, {}
    for action, number, text, group in writes:
        key = f"e{number}"
        if action == "write":
            index.write(key, text, group)
            texts[key] = text  # an update keeps its place and its group
            groups.setdefault(key, group)
        elif action == "remove" and key in texts:
            index.remove(key)
            del texts[key], groups[key]
    assert len(index) == len(texts)
    scores = by_bm25s(texts, query)
    found = index.search(query, k)
    assert [key for key, _ in found] == ranked(scores, list(texts), k, decimals=9, positive=True)
    assert [score for _, score in found] == pytest.approx(
        [scores[key] for key, _ in found], abs=1e-8
    )
    of_y = {key: score for key, score in scores.items() if groups[key] == "y"}
    assert ids(index, query, k, groups=["y", "never seen"]) == ranked(
        of_y, list(texts), k, decimals=9, positive=True
    )
    order = ranked(scores, list(texts), decimals=9, positive=True)
    best = {groups[key]: scores[key] for key in reversed(order)}
    assert index.rank_groups(query) == pytest.approx(best, abs=1e-8)


def test_a_search_that_was_interrupted_blocks_no_write():
    class Stop(Exception):
        pass

    index = index_of({"a": "tea", "b": "tea"})
    with pytest.raises(Stop) as caught, pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "lexsort", Mock(side_effect=Stop))
        index.search("tea", 2)
    index.write("c", "tea")
    assert ids(index, "tea", 3) == ["c", "b", "a"]
    assert caught.tb is not None  # its frames are alive, with all they hold
