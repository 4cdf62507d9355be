"""The leak check: planted repeats are found exactly and nearly, other data are not accused."""

import random
import unicodedata

import pytest
from data_samples import write

from memalpha.data.load import LeakCheck, LeakError, iter_prepared, prepare
from memalpha.data.source import PERSONA, SUMMARISE, asked_on
from memalpha.types import Chunk, Instance, Question

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrs"]


def passage(seed, length=60):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def changed(text, *places):
    words = text.split()
    for place in places:
        words[place] = "other"
    return " ".join(words)


def instance(name, chunks, questions=()):
    return Instance(name, "s", tuple(Chunk(text) for text in chunks), tuple(questions))


def leaks(train, new):
    check = LeakCheck()
    check.learn(train)
    for item in new:
        check.check(item)
    return [(leak.kind, leak.where, leak.near) for leak in check.leaks]


def jaccard(one, two, size):
    pieces = [{tuple(t[i : i + size]) for i in range(len(t) - size + 1)} for t in (one, two)]
    return len(pieces[0] & pieces[1]) / len(pieces[0] | pieces[1])


# ------------------------------------------------------------------------------------------------
# contexts
def test_a_passage_again_also_among_others_and_in_other_letter_case():
    train = [instance("t", [passage(1) + "\n\n" + passage(2)])]
    new = [instance("n", [passage(3), passage(4) + "\r\n\r\n" + passage(2).upper() + "!"])]
    assert leaks(train, new) == [("context", "instance 'n' chunk 1", False)]
    assert leaks(train, [instance("n", [passage(3)])]) == []


@pytest.mark.parametrize("seed", range(8))
def test_near_passages_follow_their_jaccard_similarity(seed):
    base = passage(seed, 100)
    for places in [
        (50,),
        (20, 50),
        (10, 40, 70),
        (10, 30, 50, 70),
        tuple(range(5, 100, 10)),
        tuple(range(0, 100, 5)),
    ]:
        other = changed(base, *places)
        true = jaccard(base.split(), other.split(), 3)
        found = leaks([instance("t", [base])], [instance("n", [other])])
        if abs(true - 0.7) > 0.1:  # two standard errors of the estimate
            assert (found == [("context", "instance 'n' chunk 0", True)]) is (true > 0.7), true


CHINESE = (
    "巴黎是法国的首都和最大城市，位于塞纳河畔，"
    "是欧洲重要的文化和商业中心之一，每年吸引数千万游客前来参观。"
)
FRENCH = (
    "Café Müller était situé à Orléans, "
    "où les élèves allaient à pied chaque été pour dîner à la française."
)


@pytest.mark.parametrize(
    ("known", "new", "found"),
    [
        (CHINESE, f"罗马是意大利的首都，有三百万人口，是一座很古老的城市。\n\n{CHINESE}", [False]),
        (CHINESE, CHINESE.replace("千", "百"), [True]),
        (CHINESE, "罗马是意大利的首都，有三百万人口，是一座很古老的城市，每年有很多游客。", []),
        (FRENCH, unicodedata.normalize("NFD", FRENCH), [False]),
        (
            FRENCH,
            unicodedata.normalize("NFKD", FRENCH).encode("ascii", "ignore").decode(),
            [],
        ),  # other words
    ],
)
def test_contexts_of_other_scripts_and_other_forms_of_unicode(known, new, found):
    assert leaks([instance("t", [known])], [instance("n", [new])]) == [
        ("context", "instance 'n' chunk 0", near) for near in found
    ]


@pytest.mark.parametrize("cut", [130, 251, 500])
@pytest.mark.parametrize("size", [130, 251, 500])
def test_a_text_without_blank_lines_is_found_however_it_is_cut(size, cut):
    text, own = passage(1, 1000).split(), passage(2, 3000).split()
    train = [instance("t", [" ".join(text[i : i + size]) for i in range(0, 1000, size)])]
    whole = own[:777] + text[200:600] + own[777:]
    new = [instance(f"n{i}", [" ".join(whole[i : i + cut])]) for i in range(0, len(whole), cut)]
    found = {where for kind, where, near in leaks(train, new) if (kind, near) == ("context", False)}
    overlap = {i: min(i + cut, 1177) - max(i, 777) for i in range(0, len(whole), cut)}
    assert {
        f"instance 'n{i}' chunk 0" for i, words in overlap.items() if words >= 2 * 99 - 1
    } <= found  # a border may halve it
    assert found <= {f"instance 'n{i}' chunk 0" for i, words in overlap.items() if words >= 50}


@pytest.mark.parametrize("shared", [49, 50, 98, 99, 120])
def test_runs_are_always_found_from_99_words_and_never_below_50(shared):
    text = passage(1, 400).split()
    found = [
        leaks(
            [instance("t", [" ".join(text)])],
            [instance("n", [f"{passage(2)} {' '.join(text[i : i + shared])} {passage(3)}"])],
        )
        for i in range(100, 150)
    ]
    assert (
        sum(map(bool, found)) == {49: 0, 50: 1, 98: 49, 99: 50, 120: 50}[shared]
    )  # places that hold a whole learned run


# ------------------------------------------------------------------------------------------------
# questions
def q(text, *answers, metric="substring"):
    return Question(text, answers, metric, id="x")


CASES = [
    ("the same", q("Who built the old tower?", "Ann"), q("who built the OLD tower", "Ann"), False),
    (
        "the same, another answer",
        q("Who built the old tower?", "Ann"),
        q("Who built the old tower?", "Ann Lee"),
        False,
    ),
    (
        "near",
        q("Who built the very old tower of Ulm?", "Ann"),
        q("Who built the old tower of Ulm?", "Ann"),
        True,
    ),
    (
        "near, another answer",
        q("Who built the very old tower of Ulm?", "Ann"),
        q("Who built the old tower of Ulm?", "Bo"),
        None,
    ),
    (
        "near, an empty answer",
        q("Was the very old tower of Ulm built?", "yes"),
        q("Was the old tower of Ulm built?", "yes"),
        None,
    ),
    (
        "near, a number",
        q("When was the very old tower of Ulm built?", "9"),
        q("When was the old tower of Ulm built?", "9"),
        None,
    ),
    (
        "near, a year",
        q("When was the very old tower of Ulm lit?", "1890"),
        q("When was the old tower of Ulm lit?", "1890"),
        True,
    ),
    ("short", q("What is ethology?", "a science"), q("What is Ethology", "A science."), False),
    ("short, another answer", q("Who was seen?", "Ann"), q("Who was seen?", "Bo"), None),
    ("short, an empty answer", q("Was Ann seen?", "yes"), q("Was Ann seen?", "yes"), None),
    (
        "different",
        q("Who built the old tower?", "Ann"),
        q("Which river runs by the mill?", "Ann"),
        None,
    ),
    (
        "another form of Unicode",
        q("Où était le café ?", "Ulm"),
        q("Où e\u0301tait le cafe\u0301 ?", "Ulm"),
        False,
    ),
    ("without spaces", q("法国的首都是哪里？", "巴黎"), q("法国的首都是哪里", "罗马"), False),
    (
        "without spaces, near",
        q("法国的首都是哪里？", "巴黎"),
        q("请问法国的首都是哪里？", "巴黎"),
        True,
    ),
    (
        "on the same day",
        q(asked_on("1 May", "Who built it in Ulm?"), "Ann"),
        q(asked_on("1 May", "Is it tall?"), "Ann"),
        None,
    ),
    (
        "a loader's own",
        q(PERSONA.format("Speaker 1"), "I fish."),
        q(PERSONA.format("Speaker 1"), "I cook."),
        None,
    ),
    ("a loader's own, for all texts", q(SUMMARISE, "ships"), q(SUMMARISE, "cows"), None),
    (
        "dated",
        q("Asked on 1 May.\nWho built it in Ulm?", "Ann"),
        q("Asked on 2 May.\nWho built it in Ulm?", "Ann"),
        False,
    ),
]


@pytest.mark.parametrize(("name", "known", "new", "near"), CASES, ids=[case[0] for case in CASES])
def test_questions(name, known, new, near):
    found = leaks([instance("t", ["c"], [known])], [instance("n", ["d"], [new])])
    assert found == ([] if near is None else [("question", "instance 'n' question 'x'", near)])


def test_a_form_is_no_leak():
    ask = "Summarise the text in a few words."
    train = [instance("t0", ["c"], [q(ask, "ships")]), instance("t1", ["c"], [q(ask, "cows")])]
    assert leaks(train, [instance("n", ["d"], [q(ask, "trees")])]) == []
    assert leaks(train[:1], [instance("n", ["d"], [q(ask, "trees")])]) == [
        ("question", "instance 'n' question 'x'", False)
    ]


def labelled(name, shown, asked, metric="boxed"):
    ask = "\nWhich label number does this have?"
    questions = [Question(f"Sentence: {text}{ask}", (str(n),), metric, id="x") for text, n in asked]
    return instance(
        name, ["\n".join(f"Sentence: {text}\nLabel: {n}" for text, n in shown)], questions
    )


def test_sentences_to_label_leak_as_questions_and_as_examples():
    train = labelled(
        "t",
        [("wake me at five", 1), ("play some music", 2)],
        [("what time is it", 0), ("turn on the light", 3)],
    )
    fresh = labelled(
        "n", [("is the oven on", 1)], [("stop the washing machine", 0), ("wake me at six", 1)]
    )
    assert leaks([train], [fresh]) == []
    again = labelled(
        "n", [("is the oven on", 1)], [("Wake me at five!", 7), ("what time is it", 7)]
    )
    scored_otherwise = labelled(
        "n", [("is the oven on", 1)], [("Wake me at five!", 7), ("what time is it", 7)], "label"
    )
    assert (
        leaks([train], [again])
        == leaks([train], [scored_otherwise])
        == [("question", "instance 'n' question 'x'", False)] * 2
    )
    shown = labelled("n", [("turn on the light", 7)], [("stop the washing machine", 0)])
    assert leaks([train], [shown]) == [("question", "instance 'n' chunk 0", False)]
    check = LeakCheck()  # examples of another file are not the set's own
    check.learn([train], own_examples=False)
    assert [leak.text for leak in check.check(again)] == ["what time is it"]
    assert check.check(shown, own_examples=False) == []
    short = labelled("t", [("stop", 1), ("go on", 2)], [("help", 0), ("what time is it", 3)])
    assert (
        leaks([short], [labelled("n", [("begin", 1)], [("Help!", 2), ("go on", 0), ("9", 1)])])
        == [("question", "instance 'n' question 'x'", False)] * 2
    )
    assert leaks([short], [labelled("n", [("help", 1)], [("why", 2)])]) == [
        ("question", "instance 'n' chunk 0", False)
    ]
    assert (
        leaks([short], [instance("n", ["Ann: help"], [q("Who asked for it?", "Ann")])]) == []
    )  # said in passing
    common = labelled("n", [("wake me at five", 7)], [("stop the washing machine", 0)])
    assert leaks([train], [common]) == []  # examples may be shared: they are not asked


# ------------------------------------------------------------------------------------------------
# whole sets


def rows(start, stop):
    return [
        {
            "context": f"{passage(n)}.",
            "question": f"What stands in text {n} {passage(n, 3)}?",
            "answer": passage(n, 2),
        }
        for n in range(start, stop)
    ]


def test_prepare_refuses_a_planted_leak_and_lists_it(tmp_path):
    prepare("squad", write(tmp_path / "test.json", rows(0, 20)), tmp_path / "test")
    clean = write(tmp_path / "clean.json", rows(20, 60))
    manifest = prepare("squad", clean, tmp_path / "clean", check_against=[tmp_path / "test"])
    assert manifest.checked_against == ["test"] and manifest.questions == 40
    planted = rows(20, 60)
    planted[30]["context"] = changed(rows(0, 20)[4]["context"], 30)
    planted[35]["question"] = rows(0, 20)[9]["question"]
    with pytest.raises(LeakError, match="repeats 2 questions or contexts") as caught:
        prepare(
            "squad",
            write(tmp_path / "p.json", planted),
            tmp_path / "out",
            check_against=[tmp_path / "test"],
        )
    assert sorted((leak.kind, leak.near) for leak in caught.value.leaks) == [
        ("context", True),
        ("question", False),
    ]
    assert "near-duplicate context, instance 'squad-" in str(
        caught.value
    ) and "same question, instance" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_leaks_can_be_left_out_and_are_counted(tmp_path):
    prepare("squad", write(tmp_path / "test.json", rows(0, 20)), tmp_path / "test")
    planted = rows(20, 60)
    planted[0]["context"] = rows(0, 20)[4]["context"]
    planted[35]["question"] = rows(0, 20)[9]["question"]
    path, options = (
        write(tmp_path / "p.json", planted),
        {"chunk_tokens": (60, 60), "chunks": (2, 2)},
    )  # two passages an instance
    manifest = prepare(
        "squad",
        path,
        tmp_path / "out",
        options=options,
        check_against=[tmp_path / "test"],
        drop_leaks=True,
    )
    assert (manifest.instances, manifest.questions, manifest.skipped) == (
        19,
        37,
        {"repeats a checked set": 2 + 1},
    )
    left = {
        question.text
        for instance in iter_prepared(tmp_path / "out")
        for question in instance.questions
    }
    assert {row["question"] for row in planted} - left == {
        planted[n]["question"] for n in (0, 1, 35)
    }
