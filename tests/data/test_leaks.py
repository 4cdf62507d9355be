"""The leak check: planted repeats are found exactly and nearly, other data are not accused."""

import random
import unicodedata

import pytest

from memalpha.data.leaks import LeakCheck, LeakError
from memalpha.data.load import iter_prepared, prepare
from memalpha.data.published.shared import PERSONA, SUMMARISE, question_on
from memalpha.types import Chunk, Instance, Question
from tests.helpers.data_samples import write

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
        q(question_on("1 May", "Who built it in Ulm?"), "Ann"),
        q(question_on("1 May", "Is it tall?"), "Ann"),
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


QUESTION = ("question", "instance 'n' question 'x'", False)
EXAMPLE = ("question", "instance 'n' chunk 0", False)


@pytest.mark.parametrize(
    ("shown", "asked", "found"),
    [
        ("is the oven on", ("stop the washing machine", "wake me at six"), []),
        ("is the oven on", ("Wake me at five!", "what time is it"), [QUESTION, QUESTION]),
        ("turn on the light", ("stop the washing machine",), [EXAMPLE]),
        ("wake me at five", ("stop the washing machine",), []),  # examples may be shared
    ],
)
@pytest.mark.parametrize("metric", ["boxed", "label"])
def test_sentences_to_label_leak_as_questions_and_as_examples(shown, asked, found, metric):
    examples = [("wake me at five", 1), ("play some music", 2)]
    train = labelled("t", examples, [("what time is it", 0), ("turn on the light", 3)])
    assert leaks([train], [labelled("n", [(shown, 7)], [(q, 7) for q in asked], metric)]) == found


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


def test_prepare_refuses_planted_leaks_or_leaves_them_out(tmp_path):
    prepare("squad", write(tmp_path / "test.json", rows(0, 20)), tmp_path / "test")
    planted = rows(20, 60)
    planted[0]["context"] = rows(0, 20)[4]["context"]
    planted[35]["question"] = rows(0, 20)[9]["question"]
    given = ("squad", write(tmp_path / "p.json", planted), tmp_path / "out")
    options = {"chunk_tokens": (60, 60), "chunks": (2, 2)}  # two passages an instance
    more = {"options": options, "check_against": [tmp_path / "test"]}
    with pytest.raises(LeakError) as caught:
        prepare(*given, **more)
    assert sorted(leak.kind for leak in caught.value.leaks) == ["context", "question"]
    assert not (tmp_path / "out").exists()
    manifest = prepare(*given, **more, drop_leaks=True)
    counts = (manifest.instances, manifest.questions, manifest.skipped)
    assert counts == (19, 37, {"repeats a checked set": 2 + 1})
    left = {q.text for instance in iter_prepared(tmp_path / "out") for q in instance.questions}
    lost = {row["question"] for row in planted} - left
    assert lost == {planted[n]["question"] for n in (0, 1, 35)}
