"""What sources share: options, rows and questions that break, ids that repeat, limits; data by
name; every set on the Hub."""

from collections import Counter
from dataclasses import replace

import datasets
import pytest
from data_samples import longmemeval_item, mab_row, memalpha_row, msc_row, musique_row

from memalpha.data.load import get_source
from memalpha.data.rows import Row
from memalpha.data.source import CommonOptions, LoadResult, finish, read_questions, read_rows
from memalpha.data.synthetic import PRESETS, SyntheticOptions, generate
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Instance, Question


def test_synthetic_is_the_generator_with_the_presets_options():
    result = get_source("synthetic").load(
        options={"n": "4", "preset": "medium", "split": "test", "facts_per_chunk": "1,2"}, seed=9
    )
    config = replace(PRESETS["medium"], split="test", facts_per_chunk=(1, 2))
    assert list(result.instances) == generate(4, 9, config)
    assert SyntheticOptions(p_change=0.0).config() == replace(
        PRESETS["small"], p_change=0.0
    )  # a zero is not "as in the preset"


@pytest.mark.parametrize(
    ("name", "path", "options", "fault"),
    [
        ("synthetic", None, {"people": 10_000}, "people"),
        ("synthetic", None, {"m": 1}, "no option 'm'"),
        ("toy", "file.json", {}, "source 'toy' is generated and was given 'file.json'"),
        ("squad", None, {}, "source 'squad' reads a file and none was given"),
        ("squadd", None, {}, "unknown data source 'squadd'"),
    ],
)
def test_wrong_names_inputs_and_options(name, path, options, fault):
    with pytest.raises(InputError, match=fault):
        get_source(name).load(path, options)


def test_rows_and_questions_that_break_are_counted():
    def make(item, where):
        if item == "broken":
            raise SchemaError(f"{where} is broken")
        return (
            item if item == "empty" else Question(item, ("a",), id="own" if item == "named" else "")
        )

    def row(given):
        if given.data is None:
            raise SchemaError("no row")
        return read_questions(given.data, given.where, result, make)

    result = LoadResult()
    rows = [Row("line 1", ["q", "broken", "empty", "named"]), Row("line 2", None)]
    (made,) = read_rows(rows, result, row)
    assert [(question.text, question.id) for question in made] == [("q", "0"), ("named", "own")]
    assert (result.asked, result.skipped) == (5, {"malformed": 2, "empty": 1})
    assert result.problems == ["line 1 question 1 is broken", "line 2: no row"]


def instance(name, questions):
    return Instance(
        name,
        "s",
        (Chunk("c"),),
        tuple(Question(f"q{i}", ("a",), id=str(i)) for i in range(questions)),
    )


def test_finish():
    result = LoadResult()
    given = [
        instance("a", 1),
        instance("b", 0),
        instance("a", 5),
        instance("a", 2),
        instance("c", 3),
    ]
    made = list(finish(given, CommonOptions(max_questions=2, max_instances=3), 1, result))
    assert [(i.id, len(i.questions)) for i in made] == [("a", 1), ("a#2", 2), ("a#3", 2)]
    assert result.skipped == {"over max_questions": 3, "over max_instances": 3}
    assert result.notes == Counter(
        {"instances without questions dropped": 1, "repeated ids numbered": 2}
    )


PAIRS = [(f"sentence {n} speaks of topic {n % 3}", str(n % 3)) for n in range(30)]
LABELLED = {"questions": 5, "chunk_tokens": 20}
CASES = [
    ("musique", "dgslibisey/MuSiQue", [musique_row()], {}, 1),
    ("longmemeval", "xiaowu0162/longmemeval", [longmemeval_item()], {}, 1),
    ("msc", "MemGPT/MSC-Self-Instruct", [msc_row(self_instruct={"B": "q?", "A": "a"})], {}, 1),
    (
        "csabstruct",
        "allenai/csabstruct",
        [{"sentences": [s for s, _ in PAIRS], "labels": [n for _, n in PAIRS]}],
        LABELLED,
        5,
    ),
    (
        "booksum",
        "kmfoda/booksum",
        [{"chapter": "One. Two.", "summary_text": "Then Ahab came.", "bid": 1}],
        {},
        1,
    ),
    ("memoryagentbench", "ai-hyz/MemoryAgentBench", [mab_row()], {}, 2),
    ("memalpha", "YuWangX/Memalpha-Memoryagentbench", [memalpha_row()], {}, 2),
]


@pytest.mark.parametrize(
    ("name", "hub", "rows", "options", "least"), CASES, ids=[case[0] for case in CASES]
)
def test_rows_of_the_hub(tmp_path, monkeypatch, name, hub, rows, options, least):
    asked, stored = [], datasets.Dataset.from_list(rows)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or stored
    )
    monkeypatch.chdir(tmp_path)
    result = get_source(name).load(hub, {**options, "split": "test"})
    questions = [question for instance in result.instances for question in instance.questions]
    assert asked == [(tuple(hub.split(":")), {"split": "test", "streaming": True})]
    assert len(questions) >= least and result.asked == len(questions) + sum(result.skipped.values())
    assert result.skipped["malformed"] == 0
