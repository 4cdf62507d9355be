"""Dialogues in sessions: LongMemEval, LoCoMo, MSC, PerLTQA, and the chunks and dates they share."""

import json
import re
from collections import Counter

import pytest
from data_samples import locomo_sample, longmemeval_item, msc_row, perltqa_memories, perltqa_questions, write
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.dates import iso_date, time_of
from memalpha.data.registry import get_source
from memalpha.data.sessions import Session, Turn, dialogue_chunks
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Question


def words(text):
    return len(text.split())


def load(name, path, **options):
    result = get_source(name).load(path, options)
    instances = list(result.instances)
    assert result.asked == sum(len(i.questions) for i in instances) + sum(result.skipped.values())
    return instances, result


# ------------------------------------------------------------------------------------------------ dates
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("2023/05/20 (Sat) 02:21", "2023-05-20T02:21"),
        ("2023/05/20", "2023-05-20"),
        ("1:56 pm on 8 May, 2023", "2023-05-08T13:56"),
        ("12:48 am on 1 February, 2023", "2023-02-01T00:48"),
        ("May 12, 2022", "2022-05-12"),
        ("2022-05-13 10:00:00", "2022-05-13T10:00"),
        ("2023-05-25T20:21:30Z", "2023-05-25T20:21+00:00"),
        ("2023-05-25T20:21:30.5+02:00", "2023-05-25T20:21+02:00"),
        ("2023-05-25 25:00", None),
        ("in spring", None),
        ("2023/02/30", None),
        ("", None),
    ],
)
def test_dates(written, wanted):
    assert iso_date(written) == wanted
    assert time_of(written) == (wanted or written or None)


# ------------------------------------------------------------------------------------------------ sessions to chunks
def session(number, *said, time=None):
    return Session([Turn("A", text, f"{number}.{i}") for i, text in enumerate(said)], f"Session {number}", time, f"s{number}")


def test_a_session_is_a_chunk():
    made = dialogue_chunks([session(1, "a b", "c", time="2023-01-01"), session(2), session(3, "d")], 50, words)
    assert made.chunks == (Chunk("[Session 1, 2023-01-01]\nA: a b\nA: c", "2023-01-01"), Chunk("[Session 3]\nA: d"))
    assert made.places == {"1.0": (0,), "1.1": (0,), "s1": (0,), "3.0": (1,), "s3": (1,)}
    assert made.evidence(["3.0", "1.0", "x"]) == (0, 1)
    assert made.evidence(["x"]) is None


def test_sessions_are_joined_while_they_fit():
    sessions = [session(1, "a"), session(2, "b"), session(3, "c d e f g h")]
    made = dialogue_chunks(sessions, 8, words, join=True)  # a session of one word has 2 + 2 words, the third 2 + 7
    assert [chunk.text for chunk in made.chunks] == [
        "[Session 1]\nA: a\n\n[Session 2]\nA: b",
        "[Session 3]\nA: c d e f",
        "[Session 3, continued]\nA: g h",
    ]
    assert made.places["s3"] == made.places["3.0"] == (1, 2)


def test_a_name_that_leaves_no_room_is_said_once_and_cut():
    made = dialogue_chunks([Session([Turn("r " * 9, "hi there")], "S")], 6, words)
    assert [chunk.text for chunk in made.chunks] == ["[S]\nr r r r", "[S, continued]\nr r r r", "[S, continued]\nr : hi there"]


@given(st.lists(st.lists(st.integers(1, 12), max_size=5), max_size=5), st.integers(6, 20), st.booleans())
def test_no_turn_is_lost_and_no_chunk_too_long(lengths, limit, join):
    sessions = [
        session(n, *(" ".join(f"w{n}x{i}x{k}" for k in range(length)) for i, length in enumerate(turns)))
        for n, turns in enumerate(lengths)
    ]
    made = dialogue_chunks(sessions, limit, words, join=join)
    said = [word for chunk in made.chunks for word in chunk.text.split() if word.startswith("w")]
    assert said == [word for s in sessions for turn in s.turns for word in turn.text.split()]
    assert all(words(chunk.text) <= limit for chunk in made.chunks)
    for s in sessions:
        for turn in s.turns:
            held = {i for i, chunk in enumerate(made.chunks) if set(turn.text.split()) & set(chunk.text.split())}
            assert made.places[turn.key] == tuple(sorted(held))


# ------------------------------------------------------------------------------------------------ LongMemEval
def test_longmemeval(tmp_path):
    items = [longmemeval_item("q1"), longmemeval_item("q2_abs", answer=7), longmemeval_item("q1", answer="", question_type=None)]
    instances, result = load("longmemeval", write(tmp_path / "lme.json", items), chunk_tokens=12)
    first, second = instances
    assert [chunk.text for chunk in first.chunks] == [
        "[Session, 2023-05-20T10:20]\nuser: It rains.\nassistant: Indeed.",
        "[Session, 2023-05-25T20:21]\nuser: I bought a cello.\nassistant: Well done.",
    ]
    assert [chunk.time for chunk in first.chunks] == ["2023-05-20T10:20", "2023-05-25T20:21"]
    text = "Asked on 2023/06/01 (Thu) 00:58.\nWhat instrument did I buy?"
    assert first.questions == (Question(text, ("a cello",), "judge", "single-session-user", evidence=(1,), id="q1"),)
    assert (second.questions[0].kind, second.questions[0].answers) == ("abstention", ("7",))
    assert result.skipped == {"empty answer": 1} and result.asked == 3


def test_longmemeval_evidence_by_session_where_no_turn_is_marked(tmp_path):
    sessions = [[{"role": "user", "content": "I bought a cello."}], [{"role": "user", "content": "It rains."}]]
    path = write(tmp_path / "lme.json", [longmemeval_item(haystack_sessions=sessions)])
    (joined,), _ = load("longmemeval", path)
    (apart,), _ = load("longmemeval", path, join=False)
    assert (joined.questions[0].evidence, apart.questions[0].evidence) == ((0,), (1,))
    marked = write(tmp_path / "lme.json", [longmemeval_item(answer_session_ids=["late", "early"])])
    assert load("longmemeval", marked, join=False)[0][0].questions[0].evidence == (1,)  # a marked turn says more


def test_longmemeval_sessions_without_a_date_that_can_be_read_keep_their_places(tmp_path):
    dates = ["2023-05-25T20:21:00", "in May", "2023/05/20 (Sat) 10:20", ""]
    sessions = [[{"role": "user", "content": f"said {n}"}] for n in range(4)]
    item = longmemeval_item(haystack_dates=dates, haystack_sessions=sessions, haystack_session_ids=None)
    (instance,), result = load("longmemeval", write(tmp_path / "lme.json", [item]), join=False)
    assert [(chunk.time, chunk.text[-6:]) for chunk in instance.chunks] == [
        ("2023-05-20T10:20", "said 2"), ("in May", "said 1"), ("2023-05-25T20:21", "said 0"), (None, "said 3"),
    ]  # fmt: skip
    assert result.notes["sessions without a date that can be read"] == 2


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"haystack_dates": ["2023/05/25"]}, r"item 1 has 2 sessions, 1 dates and 2 session ids"),
        ({"haystack_sessions": "none"}, r"item 1 field 'haystack_sessions' is str"),
        ({"haystack_sessions": [[{"role": "user", "content": 5}], []]}, r"item 1 session 0 turn 0 field 'content' is int"),
        ({"haystack_sessions": [[], []]}, r"holds no turn"),
        ({"question": None}, r"item 1 field 'question' is NoneType"),
        ({"answer": {"text": "a"}}, r"item 1 field 'answer' is dict"),
    ],
)
def test_longmemeval_malformed(tmp_path, changed, fault):
    path = write(tmp_path / "lme.json", [longmemeval_item("a"), longmemeval_item("b", **changed)])
    instances, result = load("longmemeval", path)
    assert [i.id for i in instances] == ["a"] and result.skipped == {"malformed": 1}
    assert re.search(fault, result.problems[0])


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
    (update, abstains), _ = load("longmemeval", real("longmemeval/lme_oracle_2items.json"))
    assert [update.questions[0].kind, abstains.questions[0].kind] == ["knowledge-update", "abstention"]


# ------------------------------------------------------------------------------------------------ LoCoMo
def test_locomo(tmp_path):
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample()]))
    assert instance.chunks == (
        Chunk("[Session 1, 2023-05-08T13:56]\nAda: I adopted a goat.\nBen: Look! [shows a photo of a boat]", "2023-05-08T13:56"),
        Chunk("[Session 2, 2023-06-02T09:05]\nBen: I sold the boat.", "2023-06-02T09:05"),
    )
    assert instance.questions == (
        Question("What did Ada adopt?", ("a goat",), "f1", "single-hop", evidence=(0,), id="0"),
        Question("When was that?", ("2023",), "f1", "temporal", evidence=(0, 1), id="1"),
    )
    assert (instance.id, result.skipped) == ("conv-1", {"adversarial, no gold answer": 1})


def test_locomo_adversarial(tmp_path):
    asked = [
        {"question": "What goat did Ben adopt?", "adversarial_answer": "a goat", "evidence": ["D1:1"], "category": 5},
        {"question": "Who adopted it?", "adversarial_answer": "Ada", "evidence": [], "category": 5},
        {"question": "What of Ben?", "evidence": [], "category": 5},
    ]
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample(qa=asked)]), adversarial=True)
    question = Question(
        "What goat did Ben adopt?", ("not mentioned",), "absent", "adversarial", "Ben", ("a goat",), evidence=(0,), id="0"
    )
    assert instance.questions == (question,)
    assert result.skipped == {"adversarial, no gold answer": 2}


@pytest.mark.parametrize(
    ("changed", "reason", "fault"),
    [
        ({"category": 9}, "malformed", "question 0 field 'category' is 9"),
        ({"category": "4"}, "malformed", "question 0 field 'category' is '4'"),
        ({"category": True}, "malformed", "question 0 field 'category' is True"),
        ({"answer": " "}, "empty answer", ""),
        ({"question": ""}, "malformed", "question 0 field 'question' is empty"),
        ({"evidence": [7]}, "malformed", "question 0 field 'evidence' is int"),
    ],
)
def test_locomo_malformed_questions(tmp_path, changed, reason, fault):
    good = locomo_sample()["qa"]
    path = write(tmp_path / "locomo.json", [locomo_sample(qa=[{**good[0], **changed}, good[1], "no question"])])
    (instance,), result = load("locomo", path)
    assert [q.text for q in instance.questions] == ["When was that?"]
    assert result.skipped == Counter([reason, "malformed"])
    assert fault in result.problems[0]


def test_locomo_evidence_with_zeros_or_as_a_text(tmp_path):
    named = [["D1:01"], "D2:1", ["D01:1, D2:001"], ["D1:12345678901"], None]
    asked = [{"question": f"q{n}?", "answer": "a", "evidence": given, "category": 4} for n, given in enumerate(named)]
    (instance,), result = load("locomo", write(tmp_path / "locomo.json", [locomo_sample(qa=asked)]))
    assert [q.evidence for q in instance.questions] == [(0,), (1,), (0, 1), None, None]
    assert result.notes["evidence that is not there"] == 2


def test_locomo_sessions_are_found_by_their_own_key(tmp_path):
    talk = locomo_sample()["conversation"]
    zero = {key.replace("_2", "_02"): value for key, value in talk.items()}
    path = write(
        tmp_path / "locomo.json",
        [locomo_sample(conversation=zero), locomo_sample(conversation={**talk, "session_" + "9" * 5000: []})],
    )
    (instance,), result = load("locomo", path)
    assert [chunk.time for chunk in instance.chunks] == ["2023-05-08T13:56", "2023-06-02T09:05"]
    assert (
        result.skipped == {"adversarial, no gold answer": 1, "malformed": 3} and "has a session session_999" in result.problems[0]
    )


def test_locomo_malformed_conversations_lose_all_their_questions(tmp_path):
    talk = {**locomo_sample()["conversation"], "session_2": "no list"}
    samples = [locomo_sample(conversation=talk), locomo_sample(qa=None), locomo_sample(), locomo_sample(), 7]
    instances, result = load("locomo", write(tmp_path / "locomo.json", samples))
    assert [i.id for i in instances] == ["conv-1", "conv-1#2"]
    assert result.skipped == {"malformed": 3 + 1 + 1, "adversarial, no gold answer": 2}
    assert "field 'conversation' field 'session_2' is str" in result.problems[0]


def test_real_locomo(real):
    data = json.loads(real("locomo/locomo_first2.json").read_text())
    instances, result = load("locomo", real("locomo/locomo_first2.json"))
    assert result.asked == sum(len(sample["qa"]) for sample in data) == 304
    assert result.skipped == {"adversarial, no gold answer": sum(q["category"] == 5 for s in data for q in s["qa"])}
    for sample, instance in zip(data, instances, strict=True):
        turns = {t["dia_id"]: t["text"] for k, v in sample["conversation"].items() if isinstance(v, list) for t in v}
        golds = [q for q in sample["qa"] if q["category"] != 5]
        for given_, question in zip(golds, instance.questions, strict=True):
            assert question.answers == (str(given_["answer"]).strip(),)
            held = "\n".join(instance.chunks[i].text for i in question.evidence or ())
            assert all(turns[name] in held for name in given_["evidence"] if name in turns)


# ------------------------------------------------------------------------------------------------ MSC
def test_msc_with_a_question_of_its_own(tmp_path):
    path = write(tmp_path / "test.txt", msc_row(self_instruct={"B": "What do I keep?", "A": "bees"}))
    (instance,), _ = load("msc", path)
    assert [chunk.text for chunk in instance.chunks] == [
        "[Session 1, 3 days before the last]\nSpeaker 1: I keep bees.\nSpeaker 2: How nice.",
        "[Last session]\nSpeaker 1: Hello again.\nSpeaker 2: Hi! I swam today.",
    ]
    assert instance.questions == (Question("What do I keep?", ("bees",), "judge", "recall", id="0"),)
    assert instance.id == "valid_7"


def test_msc_asks_for_the_personas_where_it_has_no_question(tmp_path):
    rows = [msc_row(), msc_row(personas=[["I ski."], []]), msc_row(dialog=[], previous_dialogs=[]), msc_row(personas="none")]
    instances, result = load("msc", write(tmp_path / "x.jsonl", rows))
    asked = "What has Speaker {} said about themselves?"
    assert [[(q.text, q.answers, q.metric, q.kind) for q in i.questions] for i in instances] == [
        [(asked.format(1), ("I keep bees. I am tall.",), "f1", "persona"), (asked.format(2), ("I swim.",), "f1", "persona")],
        [(asked.format(1), ("I ski.",), "f1", "persona")],
    ]
    assert result.skipped == {"empty answer": 1, "malformed": 2 + 1}


def test_msc_rows_of_the_hub_are_joined_by_dialogue(tmp_path):
    def row(dialogue, number, *said):
        return {
            "dialoug_id": dialogue,
            "session_id": number,
            "dialogue": list(said),
            "speaker": ["Speaker 1", "Speaker 2"][: len(said)],
            "persona1": ["I ski."],
            "persona2": ["I row."],
        }

    rows = [row(0, 0, "Hi.", "Hello."), row(0, 1, "Back!", "So soon?"), row(1, 0, "Ahoy.")]
    instances, _ = load("msc", write(tmp_path / "x.jsonl", rows))
    assert [[chunk.text for chunk in i.chunks] for i in instances] == [
        ["[Session 1]\nSpeaker 1: Hi.\nSpeaker 2: Hello.", "[Last session]\nSpeaker 1: Back!\nSpeaker 2: So soon?"],
        ["[Last session]\nSpeaker 1: Ahoy."],
    ]
    assert [i.id for i in instances] == ["0", "1"]
    assert [q.answers for q in instances[0].questions] == [("I ski.",), ("I row.",)]


# ------------------------------------------------------------------------------------------------ PerLTQA
def test_perltqa(tmp_path):
    write(tmp_path / "perltmem_en.json", perltqa_memories())
    write(tmp_path / "perltqa_en.json", perltqa_questions())
    for source in (tmp_path, tmp_path / "perltqa_en.json"):
        (instance,), result = load("perltqa", source)
        assert [chunk.text for chunk in instance.chunks] == [
            "[Profile]\nProtagonist: Ann Lee\nAge: 28\nHobbies: chess\nAnn Lee plays chess.",
            "[People around]\nBo Lee (brother): Lives in Ely.",
            "[Event, 2022-05-12] A trip\nThey sailed to Ely.\n[Dialogue, 2022-05-13T10:00]\nAnn Lee: What a trip!",
            "[Event, in spring] Bread\nThey baked bread.",
        ]
        assert [chunk.time for chunk in instance.chunks] == [None, None, "2022-05-12", "in spring"]
        assert instance.questions == (
            Question("How old is Ann?", ("28",), "parts", "profile", evidence=(0,), id="0"),
            Question("Who is Bo?", ("brother",), "parts", "social_relationship", evidence=(1,), id="1"),
            Question("Where did they go?", ("sailed; Bo's Ely, town",), "parts", "events", evidence=(2,), id="2"),
        )
        assert result.skipped == {"empty answer": 1}


def test_perltqa_other_forms_of_the_memories(tmp_path):
    """The list of the first release, and a circle that stands as Python text."""
    person = perltqa_memories()["Ann Lee"]
    person["social_relationship"] = repr(person["social_relationship"])
    memory = write(tmp_path / "other.json", [person])
    asked = write(tmp_path / "asked.json", perltqa_questions())
    (instance,), _ = load("perltqa", asked, memory=str(memory))
    assert instance.chunks[1].text == "[People around]\nBo Lee (brother): Lives in Ely."
    with pytest.raises(InputError, match="option 'memory'"):
        load("perltqa", asked)


def test_perltqa_persons_without_memories_and_malformed_parts(tmp_path):
    write(tmp_path / "perltmem.json", {**perltqa_memories(), "Cy": {"profile": 5}, "Di": {}})
    (ann,) = perltqa_questions()
    one = {"profile": [{"Question": "q?", "Answer": "a", "Reference Memory": "Age"}]}
    asked = [
        ann,
        {"Bo": one},
        {"Cy": one},
        {"Di": one},
        {"Ann Lee": {"events": [{"4_0_0": [3, {"Question": "q?"}]}, "x"]}},
        "nobody",
    ]
    instances, result = load("perltqa", write(tmp_path / "perltqa.json", asked))
    assert [i.id for i in instances] == ["Ann Lee"]
    assert result.skipped == {"empty answer": 1 + 1, "person without memories": 1, "malformed": 1 + 1 + 2 + 1}
    with pytest.raises(SchemaError, match=r"perltmem\.json holds nobody"):
        write(tmp_path / "perltmem.json", {})
        load("perltqa", tmp_path)


def test_perltqa_cuts_long_memories_and_points_at_every_piece(tmp_path):
    memories = perltqa_memories()
    memories["Ann Lee"]["events"]["4_0_0"]["content"] = " ".join(f"They saw boat {n}." for n in range(10))
    write(tmp_path / "perltmem.json", memories)
    write(tmp_path / "perltqa.json", perltqa_questions())
    (instance,), _ = load("perltqa", tmp_path, chunk_tokens=20)
    held = [i for i, chunk in enumerate(instance.chunks) if "boat" in chunk.text or "[Dialogue" in chunk.text]
    assert instance.questions[2].evidence == tuple(held) and len(held) >= 3
    assert all(words(chunk.text) <= 20 for chunk in instance.chunks)
