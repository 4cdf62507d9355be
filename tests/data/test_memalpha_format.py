"""The published system's columns: rows as on the Hub, metrics by data_source, what is skipped, and the way back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.memalpha_format import COLUMNS, METRIC_OF, METRIC_OF_PREFIX, metric_of, to_memalpha_rows
from memalpha.data.registry import get_source
from memalpha.errors import InputError, SchemaError, ServiceError
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Instance, Question

MEMALPHA = get_source("memalpha")


def row(data_source="squad", chunks=("one", "two"), asked=(("q?", "a"),), **changed):
    """A row as on the Hub: lists as JSON text."""
    qas = [{"question": question, "answer": answer} for question, answer in asked]
    values = {
        "instance_id": "i1",
        "prompt": "I will provide you with sequential information chunks.",
        "chunks": json.dumps(list(chunks)),
        "questions_and_answers": json.dumps(qas),
        "data_source": data_source,
        "metadata": "{}",
        "num_chunks": len(chunks),
        "num_questions": len(qas),
    }
    return {**values, **changed}


def load(path, **options):
    result = MEMALPHA.load(path, options)
    return list(result.instances), result


def save(tmp_path, rows, kind="jsonl"):
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        path.write_text("".join(json.dumps(item) + "\n" for item in rows) if kind == "jsonl" else json.dumps(rows))
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize("as_text", [True, False])
def test_rows_from_each_kind_of_file(tmp_path, kind, as_text):
    rows = [
        row(chunks=["c1", "c2 \u00e9\r\nline"], asked=[("q1?", "a1"), ("q2?", "a2")]),
        row("perltqa", ["d"], [("w?", "x; y")], instance_id="i2"),
    ]
    if not as_text:
        rows = [
            {**r, "chunks": json.loads(r["chunks"]), "questions_and_answers": json.loads(r["questions_and_answers"])} for r in rows
        ]
    instances, result = load(save(tmp_path, rows, kind))
    first = Instance(
        "i1",
        "squad",
        (Chunk("c1"), Chunk("c2 \u00e9\nline")),
        (Question("q1?", ("a1",), id="0"), Question("q2?", ("a2",), id="1")),
    )
    second = Instance("i2", "perltqa", (Chunk("d"),), (Question("w?", ("x; y",), metric="parts", id="0"),))
    assert instances == [first, second]
    assert not result.skipped


@pytest.mark.parametrize(
    ("data_source", "metric"),
    [
        ("squad", "substring"),
        ("hotpotqa", "substring"),
        ("perltqa", "parts"),
        ("lme_train", "judge"),
        ("longmemeval_s*", "judge"),
        ("pubmed-rct", "boxed"),
        ("icl_trec_coarse_6600shot_balance", "boxed"),
        ("icl_nlu_8296shot_balance", "boxed"),
        ("icl_banking77_5900shot_balance", "boxed"),
        ("booksum", "keywords"),
        ("infbench_sum_eng_shots2", "keywords"),
        ("ruler_qa1_197K", "substring"),
        ("infbench_qa_eng_shots2", None),
        ("", None),
    ],
)
def test_metric_by_data_source(data_source, metric):
    assert metric_of(data_source) == metric


def test_every_metric_of_the_tables_exists():
    for metric in [*METRIC_OF.values(), *METRIC_OF_PREFIX.values()]:
        check_metric(metric, judged=True)


def test_forms_of_an_answer(tmp_path):
    cases = [
        ("squad", "text", ("text",)),
        ("squad", ["a", "b", "a"], ("a", "b")),
        ("squad", {"text": ["a"], "answer_start": [3]}, ("a",)),
        ("squad", 1876, ("1876",)),
        ("pubmed-rct", 3, ("3",)),
        ("icl_nlu_8296shot_balance", ["12"], ("12",)),
        ("booksum", "ship, whale, sea", ("ship", "whale", "sea")),
        ("booksum", ["ship, whale", "sea"], ("ship, whale", "sea")),
        ("squad", "one, two", ("one, two",)),
    ]
    rows = [row(source, asked=[("q?", given)], instance_id=str(i)) for i, (source, given, _) in enumerate(cases)]
    instances, result = load(save(tmp_path, rows))
    assert [instance.questions[0].answers for instance in instances] == [wanted for _, _, wanted in cases]
    assert not result.skipped


def test_every_question_is_kept_or_counted(tmp_path):
    rows = [
        row(asked=[("q?", "a"), ("empty?", " "), ("none?", None), ("list?", [[1]]), (None, "a"), ("", "a"), ("flag?", True)]),
        row("icl_nlu", asked=[("label?", "2"), ("no label?", "two")], instance_id="i2"),
        row("eventqa_full", asked=[("a?", "a"), ("b?", "b")], instance_id="i3"),
        row(instance_id="i4", num_chunks=9, asked=[("a?", "a"), ("b?", "b"), ("c?", "c")]),
        row(instance_id="i5", chunks="{not json", num_questions=None),
        row(instance_id="i6", questions_and_answers="[{", num_questions=4),
        row(instance_id="i7", questions_and_answers=json.dumps(["not an object"])),
        row(instance_id="i8", chunks=json.dumps(["one", " "])),
        row(instance_id="i9", data_source=None),
        {"something": "else"},
        17,
    ]
    instances, result = load(save(tmp_path, rows))
    assert [[q.text for q in instance.questions] for instance in instances] == [["q?"], ["label?"]]
    malformed = 4 + 1 + 3 + 1 + 4 + 1 + 1 + 1 + 1 + 1
    assert result.skipped == {"empty answer": 2, "unknown data_source": 2, "malformed": malformed}
    assert any("rows.jsonl line 4 column 'chunks' has 2 items; expected: 9" in problem for problem in result.problems)
    assert any("'eventqa_full' has no metric; give option 'metric'" in problem for problem in result.problems)


def test_options_choose_rows_and_the_metric(tmp_path):
    rows = [
        row(instance_id="a", asked=[("p?", "o"), ("q?", "a")]),
        row("eventqa_full", instance_id="b", asked=[("x?", "y"), ("z?", "w")]),
    ]
    instances, result = load(save(tmp_path, rows), data_source="eventqa_full", metric="f1")
    assert [(instance.id, [q.metric for q in instance.questions]) for instance in instances] == [("b", ["f1", "f1"])]
    assert result.skipped == {"other data_source": 2}
    with pytest.raises(InputError, match="unknown metric 'rouge'"):
        load(save(tmp_path, rows), metric="rouge")


def test_ids_missing_or_repeated(tmp_path):
    rows = [row(instance_id=0), row(instance_id=0), row(instance_id=None), row(instance_id=0)]
    instances, result = load(save(tmp_path, rows))
    assert [instance.id for instance in instances] == ["0", "0#2", "row-2", "0#3"]
    assert result.notes["repeated instance_id numbered"] == 2


def test_a_numbered_id_is_one_that_no_other_row_has(tmp_path):
    instances, result = load(save(tmp_path, [row(instance_id=name) for name in ("a#2", "a", "a")]))
    assert [instance.id for instance in instances] == ["a#2", "a", "a#3"]
    assert result.notes["repeated instance_id numbered"] == 1


def test_rows_without_a_question_left_are_dropped(tmp_path):
    instances, result = load(save(tmp_path, [row(asked=()), row(asked=(("q?", ""),)), row()]))
    assert [len(instance.questions) for instance in instances] == [1] and result.asked == 2
    assert result.skipped == {"empty answer": 1} and result.notes["instances without questions dropped"] == 2


def test_an_answer_of_too_many_digits_is_malformed(tmp_path):
    huge = '[{"question": "q?", "answer": ' + "9" * 5000 + "}]"
    instances, result = load(save(tmp_path, [row(), row(questions_and_answers=huge)]))
    assert len(instances) == 1 and result.skipped == {"malformed": 1}


def test_other_columns_are_an_error_that_names_them(tmp_path):
    with pytest.raises(SchemaError, match=r"no row of .* has the published columns: rows\.jsonl line 1 column 'data_source'"):
        load(save(tmp_path, [{"context": "c", "question": "q"}]))
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(SchemaError, match="has no rows"):
        load(path)
    with pytest.raises(InputError, match="no file"):
        MEMALPHA.load(tmp_path / "missing.parquet")  # at once, before an instance is asked for


def test_damage_half_way_is_an_error_at_its_line(tmp_path):
    path = save(tmp_path, [row(), row(instance_id="i2")])
    path.write_bytes(path.read_bytes()[:-30])
    result = MEMALPHA.load(path)
    assert next(result.instances).id == "i1"
    with pytest.raises(SchemaError, match=r"rows\.jsonl line 2 is not JSON"):
        next(result.instances)


# ------------------------------------------------------------------------------------------------ the Hub
def test_the_hub_is_streamed_by_name_and_split(tmp_path, monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or iter([row()]))
    monkeypatch.chdir(tmp_path)
    instances, _ = load("YuWangX/Memalpha", split="test")
    assert asked == [(("YuWangX/Memalpha",), {"split": "test", "streaming": True})]
    assert [instance.id for instance in instances] == ["i1"]


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (ConnectionError("no route"), ServiceError, "cannot be read: no route"),
        (ValueError('Bad split: dev. Available splits: ["train"]'), InputError, "split 'train': Bad split"),
    ],
)
def test_a_hub_that_fails(tmp_path, monkeypatch, raised, error, message):
    import datasets

    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        load("YuWangX/Memalpha")


def test_a_name_unknown_to_the_hub(tmp_path, monkeypatch):
    import datasets

    def fail(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("no")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no file YuWangX/Memalpha, and no such data set on the Hub"):
        load("YuWangX/Memalpha")
    (tmp_path / "YuWangX").mkdir()
    with pytest.raises(InputError, match="no file YuWangX/Memalpha\n"):  # a missing file of a folder that is there
        load("YuWangX/Memalpha")


# ------------------------------------------------------------------------------------------------ the other way
def test_to_rows_by_hand():
    question = Question("q?", ("a", "b"), kind="latest", evidence=(1,), stale=("old",))
    instance = Instance("x", "synthetic", (Chunk("one", "2024-01-02"), Chunk("two")), (question, Question("r?", ("c",))))
    (made,) = to_memalpha_rows([instance])
    assert tuple(made) == COLUMNS
    assert json.loads(made["chunks"]) == ["[2024-01-02]\none", "two"]
    assert json.loads(made["questions_and_answers"]) == [
        {"question": "q?", "answer": ["a", "b"]},
        {"question": "r?", "answer": "c"},
    ]
    assert (made["num_chunks"], made["num_questions"], made["data_source"]) == (2, 2, "synthetic")
    assert json.loads(made["metadata"])["questions"][0] == {"metric": "substring", "kind": "latest", "evidence": [1]}


def test_a_keyword_with_a_comma_comes_back_whole(tmp_path):
    instance = Instance("x", "booksum", (Chunk("c"),), (Question("q?", ("ship, whale",), metric="keywords", id="0"),))
    assert load(save(tmp_path, list(to_memalpha_rows([instance]))))[0] == [instance]


_WORD = st.text("ab\u00e9,; ", min_size=1, max_size=8).map(str.strip).filter(bool)
_SOURCE = st.sampled_from(["squad", "perltqa", "booksum", "lme_train"])


@settings(max_examples=60, deadline=None)
@given(
    _SOURCE,
    st.lists(_WORD, min_size=1, max_size=4),
    st.lists(st.lists(_WORD, min_size=1, max_size=3, unique=True), min_size=1, max_size=4),
)
def test_there_and_back(tmp_path_factory, source, chunks, answers):
    questions = tuple(Question(f"q{i}?", tuple(given), metric=METRIC_OF[source], id=str(i)) for i, given in enumerate(answers))
    instance = Instance("x", source, tuple(Chunk(text) for text in chunks), questions)
    path = tmp_path_factory.mktemp("rows") / "rows.json"
    path.write_text(json.dumps(list(to_memalpha_rows([instance]))))
    (back,) = MEMALPHA.load(path).instances
    assert back == instance
