"""The indexes of vectors and of words, against numpy and bm25s."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import InputError
from memalpha.retrieval.dense import VectorIndex
from memalpha.retrieval.lexical import STOP_WORDS, LexicalIndex, search_words, tokenize
from tests.helpers.brute_force import bm25, cosines, ranked


def filled(vectors):
    index = VectorIndex(len(next(iter(vectors.values()))))
    for key, vector in vectors.items():
        index.write(key, vector)
    return index


def ids(index, query, k, **more):
    return [key for key, _ in index.search(query, k, **more)]


def test_exact_search_is_numpy_brute_force():
    rng = np.random.default_rng(0)
    vectors = {f"v{i}": rng.standard_normal(24) * rng.uniform(0.1, 9) for i in range(700)}
    index = filled(vectors)
    for query in rng.standard_normal((20, 24)):
        scores = cosines(vectors, query)
        found = index.search(query, 15)
        assert [key for key, _ in found] == ranked(scores, list(vectors), 15, decimals=6)
        assert [score for _, score in found] == pytest.approx(
            [scores[key] for key, _ in found], abs=2e-6
        )


def test_ties_put_the_vector_added_last_first_even_across_the_cut():
    index = filled({f"v{i}": [1.0, 1.0] for i in range(60)} | {"far": [-1.0, 0.0]})
    assert ids(index, [1.0, 1.0], 3) == ["v59", "v58", "v57"]
    index.write("v5", [2.0, 2.0])  # keeps its place
    index.remove("v59")
    assert ids(index, [1.0, 1.0], 60) == [*(f"v{i}" for i in range(58, -1, -1)), "far"]


def test_an_updated_vector_is_found_where_it_points_now_and_a_zero_vector_scores_zero():
    index = filled({"a": [1.0, 0.0], "b": [0.0, 1.0], "zero": [0.0, 0.0]})
    index.write("a", [0.0, -2.0])
    assert index.search([0.0, -1.0], 3) == [("a", 1.0), ("zero", 0.0), ("b", -1.0)]
    assert [score for _, score in index.search([0.0, 0.0], 3)] == [0.0, 0.0, 0.0]
    assert index.search([0.0, 1.0], 0) == VectorIndex(2).search([0.0, 1.0], 5) == []


@pytest.mark.parametrize("bad", [[1.0], [np.nan, 1.0], [[1.0, 2.0]]])
def test_a_vector_that_does_not_fit_is_refused(bad):
    index = filled({"a": [1.0, 0.0]})
    for act in (
        lambda: index.write("b", bad),
        lambda: index.write("a", bad),
        lambda: index.search(bad, 1),
    ):
        with pytest.raises(InputError, match="2 finite numbers"):
            act()
    assert ids(index, [1.0, 0.0], 5) == ["a"]


STEP = st.tuples(
    st.sampled_from(["write", "write", "remove", "search"]),
    st.integers(0, 11),
    st.integers(0, 10**6),
)


@settings(max_examples=60)
@given(st.lists(STEP, max_size=40))
def test_any_sequence_of_writes_agrees_with_a_dict(steps):
    index, truth = VectorIndex(4), {}
    for action, number, seed in [*steps, ("search", 0, 0)]:
        key, vector = f"k{number}", np.random.default_rng(seed).standard_normal(4)
        if action == "write":
            index.write(key, vector)
            truth[key] = vector
        elif action == "remove" and key in truth:
            index.remove(key)
            del truth[key]
        elif action == "search":
            assert (len(index), key in index) == (len(truth), key in truth)
            assert ids(index, vector, 5) == ranked(
                cosines(truth, vector), list(truth), 5, decimals=6
            )


# ------------------------------------------------------------------------------------------------
# words
def index_of(texts, **options):
    index = LexicalIndex(**options)
    for key, text in texts.items():
        index.write(key, text)
    return index


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Which city did I move to?", "citi mov"),
        ("Moved; moving, moves: two cities", "mov mov mov 2 citi"),
        ("¿Qué árbol plantamos en Málaga?", "que arbol plantamo en malaga"),
        ("Die Städte gesehen", "die stadt gesehen"),
        ("Größe, Øre", "größe øre"),  # no letters of ASCII with accents
        ("Что он любит", "что он любит"),
        ("我的猫", "我的 的猫"),
        ("The Who", "the who"),
    ],
)
def test_a_text_is_found_by_stems(text, words):
    assert search_words(text) == tuple(words.split())


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("Which city did I move to?", "I moved to a town."),
        ("¿Cuántos árboles hay?", "Un arbol"),
        ("Wie viele Städte gibt es?", "Eine Stadt"),
    ],
)
def test_another_form_of_a_word_finds_its_line(question, line):
    index = index_of({"other": "Rain all day.", "line": line})
    assert [key for key, _ in index.search(question, 2)] == ["line"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("हिन्दी भाषा, नाना!", ("हिन्दी", "भाषा", "नाना")),
        ("İstanbul güzel", ("istanbul", "güzel")),
        ("İSTANBUL GÜZEL", ("istanbul", "güzel")),
        ("q\u0323y ∑\u0307 \u0301 z", ("q\u0323y", "z")),
        ("❤\ufe0f 1\ufe0f\u20e3 tm\ufe0f", ("1", "tm")),  # these only pick a glyph
    ],
)
def test_a_mark_that_does_not_compose_is_inside_its_word(text, tokens):
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我的猫叫咪咪，今年五岁。", "我的 的猫 猫叫 叫咪 咪咪 今年 年五 五岁"),
        ("猫", "猫"),
        ("iPhone15を買った", "iphone15 を買 買っ った"),
        ("ﾈｺ 100円", "ネコ 100 円"),
        ("人々はコーヒー", "人々 々は はコ コー ーヒ ヒー"),
        ("고양이는 밥을", "고양 양이 이는 밥을"),
        ("ที่นี่", "ที่นี่"),
        ("ชื่อมาลี", "ชื่อ อม มา าลี"),
        ("ខ្ញុំទៅ", "ខ្ញុំ ញុំទៅ"),
        ("2023年3月 The cat", "2023 年 3 月 cat"),
    ],
)
def test_scripts_without_spaces_are_found_by_pairs_of_characters(text, tokens):
    assert tokenize(text) == tuple(tokens.split())


@pytest.mark.parametrize(
    ("question", "line", "others"),
    [
        ("我的猫叫什么名字？", "我的猫叫咪咪。", ["今天天气很好。", "我们去湖边走了走。"]),
        (
            "猫の名前は何ですか",
            "うちの猫の名前はミケです。",
            ["今日は天気がいい。", "犬が好きだ。"],
        ),
        ("고양이 이름이 뭐야?", "우리 고양이는 나비야.", ["오늘 날씨가 좋다.", "밥을 먹었다."]),
        ("แมวชื่ออะไร", "แมวของฉันชื่อส้ม", ["วันนี้อากาศดี", "เราไปทะเล"]),
        ("ឆ្មាឈ្មោះអ្វី", "ឆ្មារបស់ខ្ញុំឈ្មោះមីមី", ["ថ្ងៃនេះមេឃស្អាត", "យើងទៅផ្សារ"]),
    ],
)
def test_a_question_in_such_a_script_finds_its_line(question, line, others):
    index = LexicalIndex()
    for key, text in enumerate([*others, line]):
        index.write(str(key), text)
    assert index.search(question, 1)[0][0] == str(len(others))


@settings(max_examples=200, deadline=None)
@given(st.text("abZ 019_'-.,é\u0301ßñ\u0431Я\u0928\u093f\u03b1", max_size=40))
def test_words_of_scripts_with_spaces_are_what_they_were(text):
    plain = unicodedata.normalize("NFKC", text).lower()
    marked = "".join("\u0300" if unicodedata.category(c)[0] == "M" else c for c in plain)
    words = [plain[slice(*word.span())] for word in re.finditer(r"\w[\w\u0300]*", marked)]
    assert list(tokenize(text)) == ([word for word in words if word not in STOP_WORDS] or words)


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
    scores = bm25(texts, query)
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
