"""LongMemEval, LoCoMo, MSC, PerLTQA: construction by value, what is skipped, the real pieces."""

import json
import re
from collections import Counter

import pytest
from data_samples import (
    load,
    locomo_sample,
    longmemeval_item,
    msc_row,
    perltqa_memories,
    perltqa_questions,
    write,
)

from memalpha.errors import SchemaError
from memalpha.types import Chunk, Question


# ------------------------------------------------------------------------------------------------
# dialogues
def test_longmemeval(tmp_path):
    items = [
        longmemeval_item("q1"),
        longmemeval_item("q2_abs", answer=7),
        longmemeval_item("q1", answer="", question_type=None),
    ]
    instances, result = load("longmemeval", write(tmp_path / "lme.json", items), chunk_tokens=12)
    first, second = instances
    assert [chunk.text for chunk in first.chunks] == [
        "[Session, 2023-05-20T10:20]\nuser: It rains.\nassistant: Indeed.",
        "[Session, 2023-05-25T20:21]\nuser: I bought a cello.\nassistant: Well done.",
    ]
    assert [chunk.time for chunk in first.chunks] == ["2023-05-20T10:20", "2023-05-25T20:21"]
    text = "Asked on 2023/06/01 (Thu) 00:58.\nWhat instrument did I buy?"
    assert first.questions == (
        Question(text, ("a cello",), "judge", "single-session-user", evidence=(1,), id="q1"),
    )
    assert (second.questions[0].kind, second.questions[0].answers) == ("abstention", ("7",))
    assert result.skipped == {"empty answer": 1} and result.asked == 3


def test_longmemeval_evidence_by_session_where_no_turn_is_marked(tmp_path):
    sessions = [
        [{"role": "user", "content": "I bought a cello."}],
        [{"role": "user", "content": "It rains."}],
    ]
    dates = ["2023/05/25 (Thu) 20:21", "2023/05/25 (Thu) 10:20"]
    path = write(
        tmp_path / "lme.json", [longmemeval_item(haystack_sessions=sessions, haystack_dates=dates)]
    )
    (joined,), _ = load("longmemeval", path)
    (apart,), _ = load("longmemeval", path, join=False)
    assert (joined.questions[0].evidence, apart.questions[0].evidence) == ((0,), (1,))
    assert [chunk.time for chunk in joined.chunks] == ["2023-05-25T10:20"]
    marked = write(tmp_path / "lme.json", [longmemeval_item(answer_session_ids=["late", "early"])])
    assert load("longmemeval", marked, join=False)[0][0].questions[0].evidence == (
        1,
    )  # a marked turn says more


def test_real_longmemeval(real):
    path = real("longmemeval/lme_s_e47becba.json")
    raw = json.loads(path.read_text())
    item = raw[0] if isinstance(raw, list) else raw
    (instance,), result = load("longmemeval", path)
    (question,) = instance.questions
    assert question.answers == ("Business Administration",) and not result.skipped
    said = " ".join(turn["content"] for s in item["haystack_sessions"] for turn in s).split()
    held = Counter(" ".join(chunk.text for chunk in instance.chunks).split())
    assert all(held[word] >= count for word, count in Counter(said).items())
    assert any("Business Administration" in instance.chunks[i].text for i in question.evidence)
    assert [c.time for c in instance.chunks] == sorted(c.time for c in instance.chunks)
    assert len(instance.chunks) == 54  # 53 sessions; 66 without a join
    for chunk in instance.chunks:
        assert set(re.findall(r"^\[Session, (\S{10})T", chunk.text, re.MULTILINE)) == {
            chunk.time[:10]
        }
    (update, abstains), _ = load("longmemeval", real("longmemeval/lme_oracle_2items.json"))
    assert [update.questions[0].kind, abstains.questions[0].kind] == [
        "knowledge-update",
        "abstention",
    ]


def test_locomo(tmp_path):
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample()]))
    assert instance.chunks == (
        Chunk(
            "[Session 1, 2023-05-08T13:56]\nAda: I adopted a goat.\n"
            "Ben: Look! [shows a photo of a boat]",
            "2023-05-08T13:56",
        ),
        Chunk("[Session 2, 2023-06-02T09:05]\nBen: I sold the boat.", "2023-06-02T09:05"),
    )
    assert instance.questions == (
        Question(
            "What did Ada adopt?", ("a goat",), "stemmed_f1", "single-hop", evidence=(0,), id="0"
        ),
        Question("When was that?", ("2023",), "stemmed_f1", "temporal", evidence=(0, 1), id="1"),
    )
    assert (instance.id, result.skipped) == ("conv-1", {"adversarial, no gold answer": 1})


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (
            {"answer": "Likely no; she prefers people", "category": 3},
            ("stemmed_f1", "open-domain", ("Likely no",)),
        ),
        ({"answer": " Yes;no;maybe", "category": 3}, ("stemmed_f1", "open-domain", ("Yes",))),
        ({"answer": "tea; coffee", "category": 4}, ("stemmed_f1", "single-hop", ("tea; coffee",))),
        (
            {"answer": "tea, milk; rum", "category": 1},
            ("stemmed_list_f1", "multi-hop", ("tea, milk; rum",)),
        ),
        (
            {"answer": "No", "adversarial_answer": "Yes", "category": 5},
            ("unmentioned", "adversarial", ("No", "unknown")),
        ),
        ({"answer": "; explained", "category": 3}, "empty answer"),
        ({"adversarial_answer": "Yes", "category": 5}, "adversarial, no gold answer"),
    ],
)
def test_locomo_answers_and_metrics_by_category(tmp_path, asked, wanted):
    rows = [{"question": "first?", "answer": "a", "category": 4}, {"question": "q?", **asked}]
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample(qa=rows)]))
    if isinstance(wanted, str):
        assert (len(instance.questions), result.skipped) == (1, {wanted: 1})
    else:
        assert [(q.metric, q.kind, q.answers) for q in instance.questions[1:]] == [wanted]
    (judged,), _ = load(
        "locomo",
        write(tmp_path / "locomo.json", [locomo_sample(qa=rows)]),
        metric="judge",
        adversarial=True,
    )
    assert {q.metric for q in judged.questions} == {"judge"}
    assert len(judged.questions) == (1 if wanted == "empty answer" else 2)


def test_locomo_evidence_with_zeros_or_as_a_text(tmp_path):
    named = [["D1:01"], "D2:1", ["D01:1, D2:001"], ["D1:12345678901"], None]
    asked = [
        {"question": f"q{n}?", "answer": "a", "evidence": given, "category": 4}
        for n, given in enumerate(named)
    ]
    (instance,), _ = load("locomo", write(tmp_path / "locomo.json", [locomo_sample(qa=asked)]))
    assert [q.evidence for q in instance.questions] == [(0,), (1,), (0, 1), None, None]


def test_real_locomo(real):
    data = json.loads(real("locomo/locomo_first2.json").read_text())
    instances, result = load("locomo", real("locomo/locomo_first2.json"))
    assert result.asked == sum(len(sample["qa"]) for sample in data) == 304
    assert result.skipped == {"adversarial, no gold answer": 71 - 2}  # two have the answer "No"
    for sample, instance in zip(data, instances, strict=True):
        turns = {
            t["dia_id"]: t["text"]
            for k, v in sample["conversation"].items()
            if isinstance(v, list)
            for t in v
        }
        golds = [q for q in sample["qa"] if "answer" in q]
        for given_, question in zip(golds, instance.questions, strict=True):
            before, _, explained = str(given_["answer"]).partition(";")
            wanted = (
                (before.strip(),)
                if given_["category"] == 3 or not explained
                else (str(given_["answer"]),)
            )
            assert question.answers == (wanted if given_["category"] != 5 else ("No", "unknown"))
            held = "\n".join(instance.chunks[i].text for i in question.evidence or ())
            assert all(turns[name] in held for name in given_["evidence"] if name in turns)


def test_msc_with_a_question_of_its_own(tmp_path):
    path = write(
        tmp_path / "test.txt", msc_row(self_instruct={"B": "What do I keep?", "A": "bees"})
    )
    (instance,), _ = load("msc", path)
    assert [chunk.text for chunk in instance.chunks] == [
        "[Session 1, 3 days before the last]\nSpeaker 1: I keep bees.\nSpeaker 2: How nice.",
        "[Last session]\nSpeaker 1: Hello again.\nSpeaker 2: Hi! I swam today.",
    ]
    assert instance.questions == (
        Question("What do I keep?", ("bees",), "judge", "recall", id="0"),
    )
    assert instance.id == "valid_7"


def test_msc_asks_for_the_personas_where_it_has_no_question(tmp_path):
    rows = [
        msc_row(),
        msc_row(personas=[["I ski."], []]),
        msc_row(dialog=[], previous_dialogs=[]),
        msc_row(personas="none"),
    ]
    instances, result = load("msc", write(tmp_path / "x.jsonl", rows))
    asked = "What has Speaker {} said about themselves?"
    assert [[(q.text, q.answers, q.metric, q.kind) for q in i.questions] for i in instances] == [
        [
            (asked.format(1), ("I keep bees. I am tall.",), "f1", "persona"),
            (asked.format(2), ("I swim.",), "f1", "persona"),
        ],
        [(asked.format(1), ("I ski.",), "f1", "persona")],
    ]
    assert result.skipped == {"empty answer": 1, "malformed": 2}


# ------------------------------------------------------------------------------------------------
# perltqa
def test_perltqa(tmp_path):
    write(tmp_path / "perltmem_en.json", perltqa_memories())
    (instance,), result = load("perltqa", write(tmp_path / "perltqa_en.json", perltqa_questions()))
    assert [chunk.text for chunk in instance.chunks] == [
        "[Profile]\nProtagonist: Ann Lee\nAge: 28\nHobbies: chess\nAnn Lee plays chess.",
        "[People around]\nBo Lee (brother): Lives in Ely.",
        "[Event, 2022-05-12] A trip\nThey sailed to Ely.",
        "[Dialogue, 2022-05-13T10:00]\nAnn Lee: What a trip!",
        "[Event, in spring] Bread\nThey baked bread.",
    ]
    assert [chunk.time for chunk in instance.chunks] == [
        None,
        None,
        "2022-05-12",
        "2022-05-13T10:00",
        None,
    ]
    assert instance.questions == (
        Question("How old is Ann?", ("28",), "parts", "profile", evidence=(0,), id="0"),
        Question("Who is Bo?", ("brother",), "parts", "social_relationship", evidence=(1,), id="1"),
        Question(
            "Where did they go?",
            ("sailed; Bo's Ely, town",),
            "parts",
            "events",
            evidence=(2,),
            id="2",
        ),
    )
    assert result.skipped == {"empty answer": 1}


def test_perltqa_persons_without_memories_and_malformed_parts(tmp_path):
    write(tmp_path / "perltmem.json", {**perltqa_memories(), "Cy": {"profile": 5}, "Di": {}})
    (ann,) = perltqa_questions()
    one = {"profile": [{"Question": "q?", "Answer": "a", "Reference Memory": "Age"}]}
    wrong = {"Ann Lee": {"events": [{"4_0_0": [3, {"Question": "q?"}]}, "x"]}}
    asked = [ann, {"Bo": one}, {"Cy": one}, {"Di": one}, wrong, "nobody"]
    instances, result = load("perltqa", write(tmp_path / "perltqa.json", asked))
    assert [i.id for i in instances] == ["Ann Lee"]
    assert result.skipped == {"empty answer": 1, "person without memories": 1, "malformed": 4}
    with pytest.raises(SchemaError, match=r"perltmem\.json holds no memories"):
        write(tmp_path / "perltmem.json", [])
        load("perltqa", tmp_path / "perltqa.json")


def test_perltqa_cuts_long_memories_and_points_at_every_piece(tmp_path):
    memories = perltqa_memories()
    memories["Ann Lee"]["events"]["4_0_0"]["content"] = " ".join(
        f"They saw boat {n}." for n in range(10)
    )
    write(tmp_path / "perltmem.json", memories)
    (instance,), _ = load(
        "perltqa", write(tmp_path / "perltqa.json", perltqa_questions()), chunk_tokens=20
    )
    held = [i for i, chunk in enumerate(instance.chunks) if "boat" in chunk.text]
    assert instance.questions[2].evidence == tuple(held) and len(held) >= 3
    assert all(len(chunk.text.split()) <= 20 for chunk in instance.chunks)


def test_perltqa_gives_each_dialogue_its_own_time(tmp_path):
    memories = perltqa_memories()
    said = {
        "2022-05-12 20:00:00": ["Ann Lee: We sail."],
        "then": ["Ann Lee: What a trip!", "Bo Lee: Yes."],
    }
    memories["Ann Lee"]["dialogues"]["4_0_0#0"]["contents"] = said
    memories["Ann Lee"]["dialogues"]["9_9_9#0"] = {
        "contents": {"2021-01-02 08:00:00": ["Bo Lee: Hello."]}
    }
    write(tmp_path / "perltmem.json", memories)
    (instance,), _ = load("perltqa", write(tmp_path / "perltqa.json", perltqa_questions()))
    assert [(chunk.time, chunk.text) for chunk in instance.chunks[2:]] == [
        ("2022-05-12", "[Event, 2022-05-12] A trip\nThey sailed to Ely."),
        ("2022-05-12T20:00", "[Dialogue, 2022-05-12T20:00]\nAnn Lee: We sail."),
        (None, "[Dialogue, then]\nAnn Lee: What a trip!\nBo Lee: Yes."),
        (None, "[Event, in spring] Bread\nThey baked bread."),
        ("2021-01-02T08:00", "[Dialogue, 2021-01-02T08:00]\nBo Lee: Hello."),
    ]
