import logging
import math

import pytest
from brute_force import bm25, ranked
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import InputError
from memalpha.retrieval.lexical import LexicalIndex, tokenize


def index_of(texts, **options):
    index = LexicalIndex(**options)
    for key, text in texts.items():
        index.add(key, text)
    return index


def test_tokens_are_lower_case_unicode_words_without_stop_words():
    assert tokenize("Where does Zoë live? She's in São-Paulo, at 3rd_street!") == ("zoë", "live", "s", "são", "paulo", "3rd_street")
    assert tokenize("Zoe\u0308") == tokenize("Zoë")
    assert tokenize("Will moved; not in May, no") == ("will", "moved", "not", "may", "no")
    assert tokenize("The Who") == ("the", "who")  # nothing else is left
    assert tokenize(" .,! ") == ()


def test_plurals_are_stripped_only_when_asked():
    text = "cats cities boxes glasses bus chess Paris series"
    assert tokenize(text) == tuple(text.lower().split())
    assert tokenize(text, stem_plurals=True) == ("cat", "city", "box", "glass", "bus", "chess", "paris", "sery")
    assert index_of({"a": "two cats"}, stem_plurals=True).search("a cat", 5).ids == ("a",)
    assert index_of({"a": "two cats"}).search("a cat", 5).ids == ()


def test_a_score_worked_by_hand():
    index = index_of({"1": "Ann likes tea", "2": "Bob likes tea tea", "3": "Cid plays chess"})
    found = index.search("tea", 3)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # two of three texts hold it; mean length 10 / 3
    second = idf * 2 / (2 + 1.5 * (0.25 + 0.75 * 4 / (10 / 3)))
    first = idf * 1 / (1 + 1.5 * (0.25 + 0.75 * 3 / (10 / 3)))
    assert found.ids == ("2", "1")
    assert found.scores == pytest.approx((second, first), abs=1e-8)


WORD = st.sampled_from(["ann", "bob", "cid", "lives", "likes", "oslo", "rome", "tea", "the", "is"])
TEXT = st.lists(WORD, max_size=7).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=12), TEXT, st.integers(1, 14), st.sets(st.integers(0, 11)))
def test_search_is_the_formula_over_every_text(contents, query, k, chosen):
    texts = {f"e{i}": text for i, text in enumerate(contents)}
    index = index_of(texts)
    scores = bm25(texts, query)
    found = index.search(query, k)
    assert list(found.ids) == ranked(scores, list(texts), k, decimals=9, positive=True)
    assert found.scores == pytest.approx([scores[key] for key in found.ids], abs=1e-8)
    allowed = {f"e{i}" for i in chosen}
    inside = {key: score for key, score in scores.items() if key in allowed}
    assert list(index.search(query, k, allowed).ids) == ranked(inside, list(texts), k, decimals=9, positive=True)


def test_ties_put_the_text_added_last_first_and_an_update_keeps_its_place():
    index = index_of({"a": "tea", "b": "tea", "c": "tea"})
    assert index.search("tea", 2).ids == ("c", "b")
    index.update("a", "TEA!")
    assert index.search("tea", 3).ids == ("c", "b", "a")


def test_writes_are_seen_by_the_next_search():
    index = index_of({"a": "lives in Oslo", "b": "likes tea"})
    assert index.search("oslo", 3).ids == ("a",)
    index.update("a", "lives in Rome")
    assert index.search("oslo", 3).ids == ()
    assert index.search("rome", 3).ids == ("a",)
    index.remove("a")
    assert index.search("rome", 3).ids == ()
    index.clear()
    assert index.search("tea", 3).ids == ()
    assert len(index) == 0


@pytest.mark.filterwarnings("error")
def test_nothing_to_find_is_no_error():
    assert LexicalIndex().search("tea", 3).ids == ()
    assert index_of({"a": "...", "b": "!"}).search("tea", 3).ids == ()
    assert index_of({"a": "tea"}).search("the", 3).ids == ()
    assert index_of({"a": "tea"}).search("", 3).ids == ()


def test_misuse_names_the_id():
    index = index_of({"a": "tea"})
    with pytest.raises(InputError, match="'a' is in the lexical index already"):
        index.add("a", "coffee")
    with pytest.raises(InputError, match="'b' is not in the lexical index"):
        index.remove("b")
    with pytest.raises(InputError, match="'b' is not in the lexical index"):
        index.update("b", "coffee")


def test_bm25s_is_quiet(capfd, caplog):
    with caplog.at_level(logging.INFO):  # of the root logger
        index_of({"a": "tea", "b": "oslo"}).search("tea", 2)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
