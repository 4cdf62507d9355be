"""Texts and dialogues to chunks: limits kept, nothing lost, against hand-worked cases and
properties; and how words are counted."""

import itertools
import random
import re
import tracemalloc
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.chunks import (
    PackedText,
    Session,
    Turn,
    count_words_and_signs,
    dialogue_chunks,
    pack_texts,
)
from memalpha.memory.memory import count_words
from memalpha.types import Chunk
from memalpha.units import cut_text, sentences, split_text, units


def test_texts_join_until_the_drawn_length():
    texts = ["a b c", "d e", "f g h i", "j"]  # 3, 2, 4, 1 words; every drawn length is 5
    packed = list(pack_texts(texts, (5, 5), count_words, random.Random(0)))
    assert packed == [PackedText("a b c\n\nd e", (0, 1)), PackedText("f g h i\n\nj", (2, 3))]


_TEXTS = st.lists(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=9).map(" ".join),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(_TEXTS, st.integers(1, 9), st.integers(9, 30), st.integers(0, 99))
def test_packing_keeps_order_and_range(texts, low, high, seed):
    packed = list(pack_texts(texts, (low, high), count_words, random.Random(seed)))
    assert [part for chunk in packed for part in chunk.parts] == list(range(len(texts)))
    for index, chunk in enumerate(packed):
        assert chunk.text == "\n\n".join(texts[part] for part in chunk.parts)
        assert count_words(chunk.text) <= high
        if index + 1 < len(packed) and count_words(chunk.text) < low:
            following = texts[packed[index + 1].parts[0]]
            assert count_words(chunk.text) + count_words(following) > high
    assert packed == list(pack_texts(texts, (low, high), count_words, random.Random(seed)))


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One two. Three four five! Six?", 5, ["One two. Three four five!", "Six?"]),
        ('He said "go." Then left.\nNew line', 3, ['He said "go."', "Then left.", "New line"]),
        ("a b c d e f g. h", 3, ["a b c", "d e f", "g. h"]),
        (" short ", 9, ["short"]),
        ("  \n ", 9, []),
    ],
)
def test_long_texts_are_cut_at_sentences_then_words(text, limit, pieces):
    spans = split_text(text, limit, count_words)
    assert [text[span.start : span.end] for span in spans] == pieces


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "他说：“走吧！”然后走了。我不知道……也许吧？！好。",
            "他说：“走吧！”|然后走了。|我不知道……|也许吧？！|好。",
        ),
        ("『はい。』と言った。猫がいる｡", "『はい。』|と言った。|猫がいる｡"),
        ("价格是３．５元．明天来", "价格是３．５元．|明天来"),
        ("它五岁!真的吗?是.我知道,v2.0很好", "它五岁!|真的吗?|是.|我知道,v2.0很好"),
        ("मैं घर गया। फिर सोया॥ठीक है?", "मैं घर गया।|फिर सोया॥|ठीक है?"),
        ("هل أنت هنا؟نعم. لا۔ٹھیک ہے۔", "هل أنت هنا؟|نعم.|لا۔|ٹھیک ہے۔"),
        ("Ես գնացի։ Նա եկավ։", "Ես գնացի։|Նա եկավ։"),
        ("እኔ ሄድኩ። አንተ መጣህ፧ አዎ", "እኔ ሄድኩ።|አንተ መጣህ፧|አዎ"),
        ("ខ្ញុំទៅ។គាត់មក។", "ខ្ញុំទៅ។|គាត់មក។"),
        ("ကျွန်တော်သွားသည်။သူလာသည်။", "ကျွန်တော်သွားသည်။|သူလာသည်။"),
    ],
)
def test_sentences_end_in_every_script(text, parts):
    assert [text[slice(*span)] for span in sentences(text)] == parts.split("|")
    assert units(text, max(map(len, parts.split("|"))), len, labels=()) != []


def test_a_text_without_spaces_is_cut_at_its_clauses_and_never_within_a_letter():
    text = "我今天去市场买水果，然后回家做饭，孩子们都很高兴"
    assert units(text, 12, len, labels=()) == [
        "我今天去市场买水果，",
        "然后回家做饭，",
        "孩子们都很高兴",
    ]
    thai = "กำลังที่นั่นแล้วก็ไปที่นี่"
    for limit in range(4, 12):
        pieces = units(thai, limit, len, labels=())
        assert "".join(pieces) == thai
        assert not any(unicodedata.category(piece[0]) == "Mn" for piece in pieces), pieces


@settings(max_examples=300, deadline=None)
@given(st.text("abC. !?,;:…\"')]\n0\u00e9\u0431", max_size=60))
def test_sentences_of_scripts_with_spaces_end_as_ever(text):
    ends = [match.end() for match in re.finditer(r"[.!?][\"')\]]*\s+|\n+", text)]
    cuts = itertools.pairwise([0, *ends, len(text)])
    expected = [text[start:end].strip() for start, end in cuts]
    assert [text[slice(*span)] for span in sentences(text)] == [each for each in expected if each]


@pytest.mark.parametrize(
    "text", ["word " * 60_000, "x" * 300_000, "我" * 300_000, "a line of it\n" * 23_000]
)
def test_cutting_takes_memory_in_proportion_to_the_text_and_no_hundredfold(text):
    tracemalloc.start()
    pieces = units(text, 5000, len, labels=())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, pieces)) >= 0.9 * len(text) and most < 20 * len(text)


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


def spoken(label, turn, sentences=9):
    """A turn of sentences of five words, two of them on lines of their own, one after a blank line;
    each names its turn."""
    said = [f"Sentence {n} is of turn{turn}." for n in range(sentences)]
    return f"{label} {' '.join(said[:-2])}\n{said[-2]}\n\n{said[-1]}"


DIALOGUES = {
    "one turn": ["Marta:"],
    "two": ["Ivan:", "Marta:"],
    "again": ["Ivan:", "Marta:", "Ivan:"],
    "lower case": ["ivan:", "marta:", "ivan:"],
    "roles": ["user:", "assistant:"],
    "numbered": ["Speaker 1:", "Speaker 2:", "bot_0:", "Speaker 1:"],
    "long names": ["Mary Ann O'Neil:", "Ludwig van der Berg:", "Jean-Luc:"],
    "other letters": ["Мария:", "Иван:", "Ώρα:"],
    "no capitals": ["马塔：", "李：", "马塔："],
    "times before": ["[10:30] Marta:", "[10:31] Ivan:"],
    "a chat's export": ["05/03/2024, 10:30 - Marta:", "05/03/2024, 10:31 - Ivan:"],
    "ISO 8601": ["2024-03-05T10:30:00Z Marta:", "2024-03-05T10:31:00Z Ivan:"],
    "times after": ["Marta (10:30):", "Ivan (10:31):", "Marta, 10:32:"],
    "bold": ["**Marta:**", "**Ivan**:", "**Marta:**"],
}
NO_DIALOGUES = {
    "prose": "We talked about one thing: the weather of Oslo. " * 9,
    "a note": "Note: the weather of Oslo is cold in winter. " * 9,
    "a heading": "We cooked soup.\nIngredients: two onions. " + "Then we ate it all. " * 9,
    "a letter": "From: ann@example.org\nSubject: Oslo\n\n" + "We went there by train. " * 9,
    "addresses": "http://example.org is a page. " * 9 + "\nhttps: is a scheme. " * 9,
    "clock times": "10:30 we met and talked. 11:00 we left the house. " * 9,
    "a program": "class Marta:\n    x: int = 1\n\nif x:\n    y = 2\nelse:\n    y = 3\n" * 9,
    "settings": "name: x\nversion: 2\ndescription: a long line of words "
    "that goes on for more than a piece takes in\nsize: 3",
    "a profile": "Age: 28\nHobbies: chess and sailing\nHome: Ely\n"
    "Father: Bo\nMother: Cy\nAnn plays chess. " + "She sails. " * 20,
    "examples": "Sentence: what is the city of the man\nLabel: 3\nSentence: who was it\nLabel: 4\n"
    * 9,
    "stage directions": "[Applause]\nThe lights go out. " * 9,
}


@pytest.mark.parametrize("divide", [cut_text, units])
@pytest.mark.parametrize("name", DIALOGUES)
def test_every_piece_names_who_speaks(name, divide):
    labels = DIALOGUES[name]
    for header, limit in itertools.product(["", "[Session 2, 2024-03-05]\n"], [9, 14, 48]):
        text = header + "\n".join(spoken(label, turn) for turn, label in enumerate(labels))
        pieces, said = divide(text, limit, count_words), []
        for piece in pieces:
            speaker = None
            for token in re.findall("|".join([*map(re.escape, labels), r"\d is of turn\d"]), piece):
                if token in labels:
                    speaker = token
                else:
                    said.append(token)
                    assert speaker == labels[int(token[-1])], piece
        assert said == [f"{n} is of turn{turn}" for turn in range(len(labels)) for n in range(9)]
        assert all(count_words(piece) <= limit for piece in pieces)
        assert pieces[0].startswith(header.strip())


@pytest.mark.parametrize("divide", [cut_text, units])
@pytest.mark.parametrize("name", NO_DIALOGUES)
def test_no_speaker_is_made_up(name, divide):
    text = NO_DIALOGUES[name]
    for limit in (9, 14, 48):
        pieces = divide(text, limit, count_words)
        assert " ".join(pieces).split() == text.split() and all(piece in text for piece in pieces)


def test_headings_in_a_message_of_a_chat_are_no_speakers():
    said = [f"**{name}:** it is quick" for name in ("Redis", "Flask", "Nginx", "Kafka", "Redis")]
    text = "\n".join(["[Session 1, 2024-03-05]", f"assistant: {said[0]}", *said[1:]])
    assert units(text, 6, count_words) == [
        "[Session 1, 2024-03-05]",
        *(f"assistant: {line}" for line in said),
    ]


def session(number, *said, time=""):
    return Session(
        [Turn("A", text, f"{number}.{i}") for i, text in enumerate(said)],
        f"Session {number}",
        time,
        f"s{number}",
    )


def test_a_session_is_a_chunk():
    made = dialogue_chunks(
        [session(1, "a b", "c", time="2023-01-01"), session(2), session(3, "d")], 50, count_words
    )
    assert made.chunks == (
        Chunk("[Session 1, 2023-01-01]\nA: a b\nA: c", "2023-01-01"),
        Chunk("[Session 3]\nA: d"),
    )
    assert made.places == {"1.0": (0,), "1.1": (0,), "s1": (0,), "3.0": (1,), "s3": (1,)}
    assert made.evidence(["3.0", "1.0", "x"]) == (0, 1)
    assert made.evidence(["x"]) is None


def test_sessions_of_other_days_are_not_joined():
    times = [
        "2024-03-05T08:00",
        "2024-03-05T21:00",
        "2024-03-06",
        "",
        "",
        "2024/03/06",
        "in spring",
    ]
    sessions = [session(n, "a", time=time) for n, time in enumerate(times)]
    made = dialogue_chunks(sessions, 50, count_words, join=True)
    wanted = ["2024-03-05T08:00", "2024-03-06", None, "2024-03-06", None]
    assert [chunk.time for chunk in made.chunks] == wanted
    assert [made.places[f"s{n}"] for n in range(7)] == [(0,), (0,), (1,), (2,), (2,), (3,), (4,)]


def test_sessions_are_joined_while_they_fit():
    sessions = [session(1, "a"), session(2, "b"), session(3, "c d e f g h")]
    made = dialogue_chunks(
        sessions, 8, count_words, join=True
    )  # a session of one word has 2 + 2 count_words, the third 2 + 7
    assert [chunk.text for chunk in made.chunks] == [
        "[Session 1]\nA: a\n\n[Session 2]\nA: b",
        "[Session 3]\nA: c d e f",
        "[Session 3, continued]\nA: g h",
    ]
    assert made.places["s3"] == made.places["3.0"] == (1, 2)


@given(
    st.lists(st.lists(st.integers(1, 12), max_size=5), max_size=5).filter(any),
    st.integers(6, 20),
    st.booleans(),
)
def test_no_turn_is_lost_and_no_chunk_too_long(lengths, limit, join):
    sessions = [
        session(
            n, *(" ".join(f"w{n}x{i}x{k}" for k in range(length)) for i, length in enumerate(turns))
        )
        for n, turns in enumerate(lengths)
    ]
    made = dialogue_chunks(sessions, limit, count_words, join=join)
    said = [word for chunk in made.chunks for word in chunk.text.split() if word.startswith("w")]
    assert said == [word for s in sessions for turn in s.turns for word in turn.text.split()]
    assert all(count_words(chunk.text) <= limit for chunk in made.chunks)
    for s in sessions:
        for turn in s.turns:
            held = {
                i
                for i, chunk in enumerate(made.chunks)
                if set(turn.text.split()) & set(chunk.text.split())
            }
            assert made.places[turn.key] == tuple(sorted(held))


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
