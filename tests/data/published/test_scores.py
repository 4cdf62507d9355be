"""The sets' own scorers: what they gave on the same answers, run once from their repositories,
beside what ours give.

The scorers: ``task_eval/evaluation.py`` of snap-research/locomo (9228632) with nltk 3.10.4, SQuAD's
``evaluate-v1.1.py``,
``evaluate_agent_results.py`` of wangyu-ustc/Mem-alpha (9c0e1f6), ``utils/eval_other_utils.py`` of
HUST-AI-HYZ/MemoryAgentBench (455306d).
"""

import json
from collections import defaultdict

import pytest

from memalpha.data.published.stems import stem
from memalpha.data.published.titles import read_titles, titles_in
from memalpha.qa.metrics import score
from memalpha.types import Answer, Question
from tests.helpers.data_samples import load, mab_row, memalpha_row, write


def invented(number: int, gold: str, later: str, question: str) -> str:
    """An answer that is right, wordy, another question's, turned round, or the question, by its
    number."""
    return (
        gold,
        f"It was {gold.upper()}, and more.",
        later,
        " ".join(reversed(gold.split())),
        question,
    )[number % 5]


def mean(values) -> float:
    return sum(values) / len(values)


# ------------------------------------------------------------------------------------------------
# LoCoMo
def invented_locomo(number: int, asked: dict, after: dict) -> str:
    if asked["category"] == 5:
        return (
            "Not mentioned in the conversation",
            "no information available",
            asked["adversarial_answer"],
        )[number % 3]
    return invented(number, str(asked["answer"]), str(after.get("answer", "")), asked["question"])


def test_locomo_has_the_numbers_of_its_own_scorer(real):
    path = real("locomo/locomo_first2.json")
    instances, _ = load("locomo", path, adversarial=True)
    scores = defaultdict(list)
    for sample, instance in zip(json.loads(path.read_text()), instances, strict=True):
        rows = sample["qa"]
        for number, (asked, question) in enumerate(zip(rows, instance.questions, strict=True)):
            given = invented_locomo(number, asked, rows[(number + 1) % len(rows)])
            scores[asked["category"]].append(score(question, Answer(given)))
    found = {category: (len(values), mean(values)) for category, values in sorted(scores.items())}
    assert found == {
        1: (43, pytest.approx(0.5744293930263944, abs=1e-12)),
        2: (63, pytest.approx(0.6401476830048257, abs=1e-12)),
        3: (13, pytest.approx(0.2391608391608392, abs=1e-12)),
        4: (114, pytest.approx(0.5552679754213926, abs=1e-12)),
        5: (71, pytest.approx(0.6619718309859155, abs=1e-12)),
    }


def asked(metric: str, *golds: str) -> Question:
    return Question("?", golds, metric)


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (asked("stemmed_f1", "Likely no"), "likely no", 1),
        (
            asked("stemmed_f1", "running dogs"),
            "The dog runs and jumped",
            2 * 2 / (2 + 3),
        ),  # dog, run, jump; no "the", "and"
        (
            asked("stemmed_f1", "adopting children"),
            "adoption of a child",
            2 * 1 / (2 + 3),
        ),  # childr(en) is not child
        (asked("stemmed_f1", "the"), "the", 0),  # nothing is left: no word in common
        (asked("stemmed_f1", "x", "two cats"), "cat, two", 1),
        (asked("stemmed_list_f1", "pottery, camping, swimming"), "swim, pottery", 2 / 3),
        (asked("stemmed_list_f1", "two cats, dog"), "the dogs, a cat", (2 / 3 + 1) / 2),
        (asked("stemmed_list_f1", "tea, milk"), "tea milk", 2 / 3),  # one part, half right for each
        (asked("stemmed_list_f1", "a,b"), "", 0),
        (asked("unmentioned", "unknown"), "This was NOT MENTIONED.", 1),
        (asked("unmentioned", "unknown"), "There is no information available on it", 1),
        (asked("unmentioned", "unknown"), "Unknown.", 1),  # what our readers are told to write
        (asked("unmentioned", "unknown"), "an unknown painter", 0),
        (asked("unmentioned", "No", "unknown"), "No.", 1),
        (asked("unmentioned", "No", "unknown"), "I know: yes", 0),
    ],
)
def test_locomo_scores_by_hand(question, answer, expected):
    assert score(question, Answer(answer)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "pairs",
    [
        "caresses caress ponies poni cats cat dies die flies fli feed feed agreed agre",
        "plastered plaster bled bled motoring motor sing sing conflated conflat",
        "troubled troubl sized size hopping hop falling fall hissing hiss filing file",
        "spied spi happy happi sky sky enjoy enjoy fly fli skies sky relational relat",
        "rational ration national nation conditional condit valenci valenc digitizer digit",
        "radically radic formally formal vietnamization vietnam hopefulness hope",
        "operator oper feudalism feudal sensibility sensibl carefully care geology geolog",
        "archaeology archaeolog triplicate triplic goodness good revival reviv",
        "replacement replac element element adoption adopt communism commun probate probat",
        "controlling control rate rate roll roll news news howe howe exceed exceed dying die",
        "syzygy syzygi yes ye says say is is a a été été 2022 2022",
        "seyyed seyi tryying tri",
    ],
)
def test_stems_are_those_of_nltk(pairs):
    words = pairs.split()
    assert [stem(word) for word in words[::2]] == words[1::2]


# ------------------------------------------------------------------------------------------------
# SQuAD, HotpotQA
def test_squad_has_the_numbers_of_its_own_scorer(real):
    path = real("squad/dev_half_v2.json")
    paragraphs = [
        paragraph
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
    ]
    rows = [row for paragraph in paragraphs for row in paragraph["qas"] if row["answers"]]
    first = [row["answers"][0]["text"] for row in rows]
    given = {
        row["id"]: invented(number, first[number], first[(number + 1) % len(rows)], row["question"])
        for number, row in enumerate(rows)
    }
    found = []
    for metric in ("exact_match", "f1"):
        instances, _ = load("squad", path, metric=metric, chunks=(1000, 1000))
        found.append(
            [
                score(question, Answer(given[question.id]))
                for i in instances
                for question in i.questions
            ]
        )
    assert [len(values) for values in found] == [2910, 2910]
    assert [mean(values) for values in found] == pytest.approx(
        [0.26941580756013744, 0.5240914096316636], abs=1e-12
    )


def test_hotpotqa_has_the_numbers_of_mem_alpha(real):
    path = real("hotpotqa/hotpotqa_train_100q.json")
    rows = json.loads(path.read_text())
    given = {
        row["_id"]: invented(n, row["answer"], rows[(n + 1) % len(rows)]["answer"], row["question"])
        for n, row in enumerate(rows)
    }
    instances, _ = load("hotpotqa", path)
    scores = [
        score(question, Answer(given[question.id]))
        for instance in instances
        for question in instance.questions
    ]
    assert (len(scores), mean(scores)) == (100, pytest.approx(0.52))


# ------------------------------------------------------------------------------------------------
# Mem-alpha's data
@pytest.mark.parametrize(
    ("source", "gold", "answer", "published", "ours"),
    [
        ("pubmed-rct", "7", r"so \boxed{ 7 }", 1, 1),
        ("pubmed-rct", "7", ' "7" ', 1, 1),
        ("ttl_train", "7", "7.", 0, 0),
        ("icl_x", "7", "label: 7", 0, 0),
        ("pubmed-rct", "7", r"\boxed{3} \boxed{7}", 0, 1),  # departs: the last one
        ("pubmed-rct", "7", "07", 0, 1),  # departs: numbers
        ("perltqa", "Red; Green;blue", "blue and red", 2 / 3, 2 / 3),
        ("perltqa", "Red; Green;blue", "Blue and Red", 0, 2 / 3),  # departs: letter case aside
        ("perltqa", "red", "The Red one", 1, 1),
        ("booksum", "red, green, blue, pink", "a blue, Pink one", 1 / 2, 1 / 2),
        ("squad", "Tower", "The towering one", 1, 1),
        ("hotpotqa", "the tower", "Tower", 0, 1),  # departs: normalised
    ],
)
def test_mem_alpha_scores_and_where_ours_depart(tmp_path, source, gold, answer, published, ours):
    row = memalpha_row(
        data_source=source, questions_and_answers=json.dumps([{"question": "q?", "answer": gold}])
    )
    (instance,), _ = load("memalpha", write(tmp_path / "m.jsonl", [row]))
    assert score(instance.questions[0], Answer(answer)) == pytest.approx(ours)
    assert 0 <= published <= ours


# ------------------------------------------------------------------------------------------------
# MemoryAgentBench
@pytest.mark.parametrize(
    ("source", "golds", "answer", "published", "ours"),
    [
        ("ruler_qa1_197K", ["tower"], "It is the Tower.", 1, 1),
        ("eventqa_65536", ["Tower", "Spire"], "a spire", 0, 0),  # all parts are wanted
        ("eventqa_full", ["Tower", "Spire"], "The spire of the TOWER.", 1, 1),
        ("eventqa_131072", ["He left Rome"], "I think he left Rome.", 1, 1),
        ("ruler_niah_mv_64K", ["7", "9", "11", "13"], "7 and 9", 1 / 2, 1 / 2),
        ("ruler_qa1_197K", ["Tower", "Spire"], "a spire", 1, 1),  # any of them
        ("factconsolidation_mh_6k", ["Rome"], "Romeo", 1, 1),
        ("factconsolidation_mh_6k", ["Ulm"], "Bonn", 0, 0),
        ("icl_trec_fine_6400shot_balance", ["43"], "43", 1, 1),
        ("icl_trec_fine_6400shot_balance", ["43"], '"43"', 1, 1),
        ("icl_trec_fine_6400shot_balance", ["43"], "Answer: 43", 1, 1),
        ("icl_trec_fine_6400shot_balance", ["43"], "label: 43", 0, 0),
        ("detective_qa", ["A. The cook"], "A. the cook", 1, 1),
        ("detective_qa", ["A. The cook"], "It is A. the cook", 0, 0),
        (
            "detective_qa",
            ["A. The cook"],
            "So.\nAnswer: A. The cook",
            1,
            0,
        ),  # departs: the whole answer
    ],
)
def test_memoryagentbench_scores_and_where_ours_depart(
    tmp_path, source, golds, answer, published, ours
):
    row = mab_row(questions=["q?"], answers=[golds], metadata={"source": source})
    (instance,), _ = load("memoryagentbench", write(tmp_path / "m.jsonl", [row]))
    assert score(instance.questions[0], Answer(answer)) == ours <= published


NAMES = (
    "Apollo_13_(film)",
    "The_Godfather",
    "12_Monkeys",
    "Spider-Man_(2002_film)",
    "Star_Wars:_The_Last_Jedi",
    "Halloween_(1978_film)",
    "Halloween_(2007_film)",
    "It_(2017_film)",
    "Up_(2009_film)",
    "Titanic_(1997_film)",
    "Get_Out",
    "Face/Off",
    "Amélie",
    "Coco_(2017_film)",
    "Interstellar_(film)",
)


@pytest.fixture
def table(tmp_path):
    numbers = {
        f"<http://dbpedia.org/resource/{name}>": 10 * index + 3 for index, name in enumerate(NAMES)
    }
    return str(write(tmp_path / "entity2id.json", numbers))


def recommendations(tmp_path, *golds: list, **options):
    source = {"source": "recsys_redial_full"}
    row = mab_row(
        questions=[f"q{n}?" for n in range(len(golds))], answers=list(golds), metadata=source
    )
    return load("memoryagentbench", write(tmp_path / "m.jsonl", [mab_row(), row]), **options)


@pytest.mark.parametrize(
    ("golds", "answer", "expected"),
    [
        ((0, 10), "1. Apollo 13 (1995)\n2. Get Out\n3. Up", 1),
        ((5, 6), "1.Halloween\n2.It", 1),  # two films of one title
        (
            (2,),
            "1. 12 Monkeys\n2. The Godfather",
            1,
        ),  # the number is taken for one of the list, and "Monkeys" is nearest
        (
            (3, 4, 13),
            "Sure!\n\n1. Spider-Man\n\n2. Starwars the last jedi\n\n3. Coco\n4. Up",
            1,
        ),  # a blank line takes a place
        ((3, 4, 8), "Sure!\n\n1. Spider-Man\n\n2. Starwars the last jedi\n\n3. Coco\n4. Up", 2 / 3),
        ((11, 12), "Amelie, Face/Off, The Godfather", 1),
        ((9,), "I do not know. Perhaps Interstelar, titanik, up", 1),
        (
            (9, 1),
            "1. Up\n2. It\n3. Coco\n4. Get Out\n5. Titanic\n6. The Godfather",
            1 / 2,
        ),  # of the first five
    ],
)
def test_recommendations_are_scored_with_the_table_of_titles(
    tmp_path, table, golds, answer, expected
):
    instances, result = recommendations(
        tmp_path, [str(10 * gold + 3) for gold in golds], entities=table
    )
    (question,) = instances[1].questions
    assert question.answers == tuple(read_titles(table)[str(10 * gold + 3)] for gold in golds)
    assert score(question, Answer(answer)) == pytest.approx(expected)
    assert not result.skipped


def test_recommendations_without_the_table_are_not_scored(tmp_path, table):
    instances, result = recommendations(tmp_path, ["3"], [13], metric="keywords")
    assert [i.source for i in instances] == ["ruler_qa1_197K"]
    assert (result.asked, result.skipped) == (4, {"recommendations without entities": 2})
    _, result = recommendations(tmp_path, ["3"], [13, 4], [""], entities=table)
    assert result.skipped == {"answer that is not in entities": 1, "empty answer": 1}


def test_what_is_recommended():
    assert titles_in("Here: 1) A, 2) B") == ["Here: 1) A", "B"]
    assert titles_in("1. A (1999)\n2 - B  C\n10、D") == ["A", "B C", "D"]
