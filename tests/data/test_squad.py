"""SQuAD: every form of the input, what is skipped and why, evidence, and real pieces where they are at hand."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.registry import get_source
from memalpha.errors import InputError, SchemaError

SQUAD = get_source("squad")
SHARED = Path(os.environ.get("MEMALPHA_SHARED_DATA", Path(__file__).parents[2].parent / "shared" / "data"))

LIMA = "Lima is the capital of Peru. It lies on the coast."
OSLO = "Oslo is the capital of Norway. It has 700,000 people.\r\nIts mayor is Ms \u00c5se Lie."


def qa(text, *answers, context="", impossible=None, qid=None):
    row = {"question": text, "id": qid or text, "answers": [{"text": a, "answer_start": context.find(a)} for a in answers]}
    return row if impossible is None else {**row, "is_impossible": impossible}


def nested(*paragraphs):
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": c, "qas": q} for c, q in paragraphs]}]}


def save(tmp_path, data, name="squad.json"):
    path = tmp_path / name
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def load(path, seed=0, count_tokens=lambda text: len(text.split()), **options):
    result = SQUAD.load(path, options, seed, count_tokens)
    return list(result.instances), result


def kept(instances):
    return [question for instance in instances for question in instance.questions]


# ------------------------------------------------------------------------------------------------ forms
def test_version_2_file(tmp_path):
    data = nested(
        (LIMA, [qa("What is Lima?", "the capital of Peru", "capital", "capital", context=LIMA, impossible=False)]),
        (OSLO, [qa("Who?", "\u00c5se Lie", context=OSLO, qid="x1"), qa("When?", impossible=True), qa("Why?")]),
    )
    instances, result = load(save(tmp_path, data), chunk_tokens=(20, 40))
    (instance,) = instances
    assert [chunk.text for chunk in instance.chunks] == [f"{LIMA}\n\n" + OSLO.replace("\r\n", "\n")]
    first, second = instance.questions
    assert (first.text, first.answers, first.metric, first.evidence) == (
        "What is Lima?", ("the capital of Peru", "capital"), "substring", (0,)
    )  # fmt: skip
    assert (second.id, second.answers, second.evidence) == ("x1", ("\u00c5se Lie",), (0,))
    assert result.skipped == {"unanswerable": 2} and not result.problems


def test_flat_list_gathers_a_paragraph_that_comes_again(tmp_path):
    rows = [
        {"context": LIMA, "question": "What?", "answer": "capital"},
        {"context": OSLO, "question": "Who?", "answer": "\u00c5se Lie"},
        {"context": LIMA, "question": "Where?", "answer": "on the coast"},
    ]
    instances, _ = load(save(tmp_path, rows), chunk_tokens=(1, 20), chunks=(2, 2))
    (instance,) = instances
    assert [chunk.text[:4] for chunk in instance.chunks] == ["Lima", "Oslo"]
    assert [(q.text, q.evidence, q.id) for q in instance.questions] == [
        ("What?", (0,), "q1"), ("Where?", (0,), "q3"), ("Who?", (1,), "q2"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json.gz", "parquet"])
def test_rows_as_on_the_hub(tmp_path, kind):
    rows = [
        {"id": "a", "context": LIMA, "question": "What?", "answers": {"text": ["capital"], "answer_start": [12]}},
        {"id": "b", "context": LIMA, "question": "When?", "answers": {"text": [], "answer_start": []}},
    ]
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        text = json.dumps(rows) if "jsonl" not in kind else "\n".join(json.dumps(row) for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    instances, result = load(path)
    assert [(q.id, q.answers, q.evidence) for q in kept(instances)] == [("a", ("capital",), (0,))]
    assert result.skipped == {"unanswerable": 1}


def test_the_hub_is_asked_for_a_name_that_is_no_file(tmp_path, monkeypatch):
    import datasets

    asked = []
    rows = [{"id": "a", "context": LIMA, "question": "What?", "answers": {"text": ["capital"], "answer_start": [12]}}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or iter(rows))
    monkeypatch.chdir(tmp_path)
    instances, _ = load("rajpurkar/squad_v2", split="validation")
    assert asked == [(("rajpurkar/squad_v2",), {"split": "validation", "streaming": True})]
    assert len(kept(instances)) == 1


# ------------------------------------------------------------------------------------------------ skipped with a reason
def test_every_reason_is_counted(tmp_path):
    rows = [
        {"context": LIMA, "question": "long?", "answer": "the capital of Peru. It"},
        {"context": LIMA, "question": "short?", "answer": "capital"},
        {"context": LIMA, "question": "empty?", "answer": "  "},
        {"context": LIMA, "question": "none?", "answer": None},
        {"context": LIMA, "question": "number?", "answer": 3},
        {"context": LIMA, "question": "no answer field?"},
        {"context": LIMA, "question": " ", "answer": "x"},
        {"context": None, "question": "no context?", "answer": "x"},
        {"context": "broken \ud800", "question": "surrogate?", "answer": "x"},
        "not a row",
        {"context": LIMA, "question": "unanswerable?", "answers": []},
        {"context": LIMA, "question": "more?", "answer": "coast"},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    instances, result = load(path, max_answer_tokens=4, max_questions=1)
    assert result.skipped == {
        "answer too long": 1, "empty answer": 2, "malformed": 6, "unanswerable": 1, "over max_questions": 1,
    }  # fmt: skip
    assert len(kept(instances)) + sum(result.skipped.values()) == len(rows)
    assert [problem.split(" item ")[1].split()[0] for problem in result.problems] == ["4", "5", "6", "7", "8", "9"]


def test_malformed_parts_of_a_nested_file_are_counted_by_their_questions(tmp_path):
    good = (LIMA, [qa("What?", "capital", context=LIMA)])
    data = nested(good, (None, [qa("a"), qa("b")]), (OSLO, "not a list"), (OSLO, [7, {"question": "x", "answers": "y"}]))
    data["data"] += [{"title": "no paragraphs"}, 5]
    instances, result = load(save(tmp_path, data))
    assert result.skipped == {"malformed": 2 + 1 + 2 + 1 + 1}
    assert len(kept(instances)) == 1
    assert "squad.json data item 0 paragraph 1 field 'context'" in result.problems[0]
    assert any("paragraph 3 question 0 is int" in problem for problem in result.problems)


def test_rows_that_cannot_be_read_count_the_questions_they_show(tmp_path):
    article = {"title": "t", "paragraphs": [{"context": "c", "qas": [{}, {}]}, {"qas": [{}]}, 5]}
    rows = [
        {"context": "c d", "question": "q?", "answer": "d"},
        article,
        {"paragraphs": article["paragraphs"][0]},
        {"qas": []},
        "no row",
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = get_source("squad").load(path)
    assert [len(i.questions) for i in result.instances] == [1]
    assert result.skipped == {"malformed": 3 + 2 + 1 + 1} and result.asked == 8


def test_an_answer_is_too_long_only_if_all_of_them_are(tmp_path):
    data = nested((LIMA, [qa("What?", "the capital of Peru", "capital", context=LIMA), qa("Full?", LIMA, context=LIMA)]))
    instances, result = load(save(tmp_path, data), max_answer_tokens=1)
    assert [q.answers for q in kept(instances)] == [("the capital of Peru", "capital")]
    assert result.skipped == {"answer too long": 1}


def test_a_question_marked_impossible_is_unanswerable_whatever_its_answers(tmp_path):
    data = nested((LIMA, [qa("What?", "capital", context=LIMA), qa("When?", "capital", context=LIMA, impossible=True)]))
    instances, result = load(save(tmp_path, data))
    assert ([q.text for q in kept(instances)], result.skipped) == (["What?"], {"unanswerable": 1})


@pytest.mark.parametrize("answers", [{}, {"answers": None}, {"answers": "x"}, {"answers": []}, {"answer": 5}])
def test_a_question_marked_impossible_needs_no_answers(tmp_path, answers):
    asked = {"question": "When?", "id": "x", "is_impossible": True, **answers}
    instances, result = load(save(tmp_path, nested((LIMA, [qa("What?", "capital", context=LIMA), asked]))))
    assert ([q.text for q in kept(instances)], result.skipped) == (["What?"], {"unanswerable": 1})


TWICE = "Rome is old. Oslo is cold. Rome is hot."


@pytest.mark.parametrize(
    ("start", "evidence"),
    [(27, 2), ([27], 2), ([27, 0], 2), (True, 0), ({"a": 1}, 0), ("27", 0), (2.5, 0), ([], 0), (None, 0), (-1, 0)],
)
@pytest.mark.parametrize("in_qas", [False, True])
def test_a_start_that_is_no_number_leaves_the_place_to_the_text(tmp_path, start, evidence, in_qas):
    asked = {"question": "What?", "id": "1", "answers": {"text": ["Rome"], "answer_start": start}}
    data = nested((TWICE, [asked])) if in_qas else [{"context": TWICE, **asked}]
    instances, result = load(save(tmp_path, data), chunk_tokens=(3, 3), chunks=(3, 3))
    assert [(q.answers, q.evidence) for q in kept(instances)] == [(("Rome",), (evidence,))] and not result.skipped


def test_one_start_beside_several_texts_says_nothing(tmp_path):
    answers = {"text": ["Rome", "hot"], "answer_start": 27}
    rows = [{"context": TWICE, "question": "What?", "id": "1", "answers": answers}]
    (question,) = kept(load(save(tmp_path, rows), chunk_tokens=(3, 3), chunks=(3, 3))[0])
    assert (question.answers, question.evidence) == (("Rome", "hot"), (0,))


def test_max_instances_counts_what_is_left(tmp_path):
    rows = [{"context": f"Fact {i} is so.", "question": f"q{i}?", "answer": f"{i}"} for i in range(10)]
    instances, result = load(save(tmp_path, rows), chunk_tokens=(4, 4), chunks=(2, 2), max_instances=3)
    assert [[q.text for q in instance.questions] for instance in instances] == [["q0?", "q1?"], ["q2?", "q3?"], ["q4?", "q5?"]]
    assert result.skipped == {"over max_instances": 4}


def test_questions_of_one_id_are_told_apart(tmp_path):
    data = nested((LIMA, [qa("What?", "capital", context=LIMA, qid="x"), qa("Where?", "coast", context=LIMA, qid="x")]))
    instances, result = load(save(tmp_path, data))
    assert [(q.text, q.id) for q in kept(instances)] == [("What?", "x"), ("Where?", "x#2")]
    assert result.notes["repeated question ids numbered"] == 1


# ------------------------------------------------------------------------------------------------ long paragraphs
def test_evidence_follows_the_place_of_the_answer_in_a_cut_paragraph(tmp_path):
    context = "Rome is old. Oslo is cold. Rome is hot."
    asked = [
        {"question": "late?", "id": "1", "answers": [{"text": "Rome", "answer_start": context.rindex("Rome")}]},
        {"question": "early?", "id": "2", "answers": [{"text": "Rome", "answer_start": 0}]},
        {"question": "wrong place?", "id": "3", "answers": [{"text": "cold", "answer_start": 1}]},
        {"question": "across?", "id": "4", "answers": [{"text": "cold. Rome", "answer_start": context.index("cold")}]},
        {"question": "nowhere?", "id": "5", "answers": [{"text": "Quito", "answer_start": 2}]},
    ]
    path = save(tmp_path, nested(("\r\n " + context, [])) | {"data": [{"paragraphs": [{"context": context, "qas": asked}]}]})
    instances, result = load(path, chunk_tokens=(3, 3), chunks=(3, 3))
    assert [chunk.text for chunk in instances[0].chunks] == ["Rome is old.", "Oslo is cold.", "Rome is hot."]
    assert {q.text: q.evidence for q in kept(instances)} == {
        "late?": (2,), "early?": (0,), "wrong place?": (1,), "across?": (1, 2), "nowhere?": (0, 1, 2),
    }  # fmt: skip
    assert result.notes["paragraphs cut to pieces"] == 1
    instances, result = load(path, chunk_tokens=(3, 3), chunks=(2, 2))
    assert result.skipped == {"evidence in two instances": 2}
    assert [[q.text for q in instance.questions] for instance in instances] == [["early?", "wrong place?"], ["late?"]]


def test_carriage_returns_and_leading_space_do_not_move_the_evidence(tmp_path):
    context = " \r\nRome is old.\r\nOslo is cold.\r\nRome is hot."
    asked = [{"question": "?", "id": "1", "answers": [{"text": "Rome", "answer_start": context.rindex("Rome")}]}]
    instances, _ = load(save(tmp_path, nested((context, asked))), chunk_tokens=(3, 3), chunks=(3, 3))
    assert [q.evidence for q in kept(instances)] == [(2,)]


# ------------------------------------------------------------------------------------------------ construction
_ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12), st.booleans()), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(_ROWS, st.integers(0, 9), st.booleans(), st.integers(0, 2))
def test_no_question_is_lost_and_evidence_holds_its_answer(tmp_path_factory, drawn, seed, shuffle, limit):
    rows = []
    for n, (which, length, good) in enumerate(drawn):
        context = " ".join(f"w{which}x{i}" for i in range(length))
        rows.append({"context": context, "question": f"q{n}?", "answer": context.split()[-1] if good else ""})
    path = save(tmp_path_factory.mktemp("rows"), rows)
    options = {"chunk_tokens": (4, 9), "chunks": (2, 3), "shuffle": shuffle, "max_questions": limit}
    instances, result = load(path, seed, **options)
    assert len(kept(instances)) + sum(result.skipped.values()) == len(rows)
    assert result.skipped["empty answer"] == sum(not row["answer"] for row in rows)
    for instance in instances:
        assert 1 <= len(instance.chunks) <= 3 and instance.questions
        assert not limit or len(instance.questions) <= limit
        assert all(len(chunk.text.split()) <= 9 for chunk in instance.chunks)
        for question in instance.questions:
            held = " ".join(instance.chunks[i].text for i in question.evidence).split()
            assert question.answers[0] in held
    again, _ = load(path, seed, **options)
    assert again == instances


def test_the_seed_decides_the_lengths(tmp_path):
    rows = [{"context": f"Fact {i} is so.", "question": f"q{i}?", "answer": f"{i}"} for i in range(40)]
    path = save(tmp_path, rows)
    one, two = (load(path, seed, chunk_tokens=(4, 40))[0] for seed in (1, 2))
    assert one != two
    assert [chunk.text for i in one for chunk in i.chunks] != [chunk.text for i in two for chunk in i.chunks]
    assert Counter(q.text for q in kept(one)) == Counter(q.text for q in kept(two)) == Counter(f"q{i}?" for i in range(40))


def test_shuffle_draws_the_order_by_the_seed(tmp_path):
    rows = [{"context": f"Fact {i} is so.", "question": f"q{i}?", "answer": f"{i}"} for i in range(40)]
    path = save(tmp_path, rows)
    given = [f"q{i}?" for i in range(40)]
    orders = [[q.text for q in kept(load(path, seed, shuffle=True)[0])] for seed in (1, 2, 2)]
    assert orders[0] != orders[1] == orders[2] and given not in orders
    assert all(sorted(order) == sorted(given) for order in orders)
    assert [q.text for q in kept(load(path, 1)[0])] == given


def test_lengths_are_in_the_given_counter(tmp_path):
    rows = [{"context": f"Fact {i} is so.", "question": f"q{i}?", "answer": f"{i}"} for i in range(6)]
    instances, _ = load(save(tmp_path, rows), chunk_tokens=(30, 30), count_tokens=len)
    assert [len(chunk.text) for i in instances for chunk in i.chunks] == [28, 28, 28]  # 2 * 13 characters and the separator's 2


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ('{"data": [', "is not JSON: Expecting value: line 1 column 11"),
        ("[]", "holds \\[\\]"),
        ('{"rows": []}', "an object with \\['rows'\\]"),
        ('{"data": {}}', "squad.json data holds no list"),
        ('[{"text": "x"}, {"text": "y"}]', "2 rows and no paragraph of SQuAD: squad.json item 0 field 'context' is NoneType"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_not_squad_is_a_located_error(tmp_path, content, message):
    path = tmp_path / "squad.json"
    path.write_text(content)
    with pytest.raises(SchemaError, match=message):
        load(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"no file .*missing\.json"):
        load(tmp_path / "missing.json")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)
    (tmp_path / "x.docx").write_text("a")
    with pytest.raises(InputError, match="unknown kind"):
        load(tmp_path / "x.docx")
    (tmp_path / "x.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(InputError, match="not UTF-8"):
        load(tmp_path / "x.json")
    whole = gzip.compress(json.dumps([{"context": LIMA * 50, "question": "q", "answer": "a"}]).encode())
    for damaged in (whole[:-20], b"no gzip", whole[:30] + b"\0\0\0" + whole[33:]):
        (tmp_path / "x.json.gz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.json\.gz"):
            load(tmp_path / "x.json.gz")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(SchemaError, match="not a Parquet file"):
        load(tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text('{"context": "c", "question": "q", "answer": "a"}\n{"context": ')
    with pytest.raises(SchemaError, match=r"x\.jsonl line 2 is not JSON"):
        load(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_tokens": (10, 5)}, "option 'chunk_tokens' is 10, 5"),
        ({"chunks": (0, 5)}, "option 'chunks' is 0, 5"),
        ({"max_questions": -1}, "option 'max_questions' is -1"),
        ({"chunk_token": (1, 2)}, "no option 'chunk_token'"),
        ({"chunk_tokens": "80"}, "option 'chunk_tokens' of source 'squad' is '80'"),
        ({"max_questions": True}, "option 'max_questions' of source 'squad' is True"),
    ],
)
def test_bad_options(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        load(save(tmp_path, nested((LIMA, []))), **options)


# ------------------------------------------------------------------------------------------------ real pieces
def real(name):
    path = SHARED / "squad" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; set MEMALPHA_SHARED_DATA to the folder of real data pieces")
    return path


def test_real_flat_train():
    rows = json.loads(real("train_flat.json").read_text(encoding="utf-8"))
    instances, result = load(real("train_flat.json"))
    assert Counter(q.text for q in kept(instances)) == Counter(row["question"].strip() for row in rows)
    assert not result.skipped
    text = "\n\n".join(chunk.text for instance in instances for chunk in instance.chunks)
    assert text.split() == " ".join(dict.fromkeys(row["context"].strip() for row in rows)).split()
    assert all(len(instance.chunks) == 10 for instance in instances[:-1])


def test_real_dev_version_2():
    data = json.loads(real("dev_half_v2.json").read_text(encoding="utf-8"))
    asked = [qa for article in data["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    instances, result = load(real("dev_half_v2.json"), chunk_tokens=(80, 160), chunks=(3, 5))
    assert result.skipped["unanswerable"] == sum(qa["is_impossible"] for qa in asked)
    assert len(kept(instances)) + sum(result.skipped.values()) == len(asked) and result.skipped["malformed"] == 0
    for instance in instances:
        for question in instance.questions:
            held = "\n\n".join(instance.chunks[i].text for i in question.evidence)
            assert question.answers[0] in held or len(question.evidence) > 1
    assert all(len(chunk.text.split()) <= 160 for instance in instances for chunk in instance.chunks)
