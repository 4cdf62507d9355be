"""What sources share: options, rows and questions that break, ids that repeat, limits; data by
name; every set on the Hub."""

from dataclasses import replace

import datasets
import pytest
from data_samples import load, longmemeval_item, mab_row, memalpha_row, msc_row, musique_row

from memalpha.data.load import get_source
from memalpha.data.rows import Row
from memalpha.data.source import CommonOptions, Draft, Skipped, Tally, finish, read_each
from memalpha.data.synthetic import PRESETS, generate
from memalpha.errors import InputError
from memalpha.types import Chunk, Question


def test_synthetic_is_the_generator_with_the_presets_options():
    given = {"n": "4", "preset": "medium", "split": "test", "facts_per_chunk": "1,2"}
    config = replace(PRESETS["medium"], split="test", facts_per_chunk=(1, 2))
    assert list(get_source("synthetic").load(None, given, 9)) == generate(4, 9, config)
    parsed = get_source("synthetic").parse({"preset": "dependent", "p_change": 0.0, "people": None})
    assert parsed == replace(PRESETS["dependent"], p_change=0.0)  # a zero is not "as in the preset"


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


def test_what_cannot_be_read_is_counted_and_keeps_the_rest():
    def make(row):
        if row.data == "broken":
            raise row.unfit("a text")
        return Skipped("empty", 2) if row.data == "empty" else row.data

    rows = Row("line 1", ["q", "broken", "empty", "named"]).items()
    problem = "line 1 field '[1]' is 'broken'; expected: a text"
    wanted = ["q", Skipped("malformed", 1, problem), Skipped("empty", 2), "named"]
    assert list(read_each(rows, make)) == wanted
    tally = Tally()
    assert list(tally.instances([wanted[1], Skipped("cut", 0), wanted[2]])) == []
    assert (tally.skipped, tally.notes) == ({"malformed": 1, "empty": 2}, {"cut": 1})
    assert tally.problems == [problem]


def draft(name, *asked):
    made = [Question(f"q{each}", ("a",)) if isinstance(each, int) else each for each in asked]
    return Draft(name, "s", (Chunk("c"),), made)


def test_finish_limits_numbers_and_accounts_for_all():
    drafts = [
        draft("a", 0),
        draft("b", Skipped("empty")),
        Skipped("malformed"),
        draft("a", Skipped("seen", 0), Skipped("empty"), *range(5)),
        draft("a", 1, 2),
        draft("c", 1, 2, 3),
    ]
    tally = Tally()
    options = CommonOptions(max_questions=2, max_instances=3)
    made = list(tally.instances(finish(drafts, options, 1)))
    assert [(i.id, len(i.questions)) for i in made] == [("a", 1), ("a#2", 2), ("a#3", 2)]
    # An id is the place among all that was asked, skipped or not: 0 was skipped.
    assert {q.id for q in made[1].questions} < {"1", "2", "3", "4", "5"}
    assert tally.skipped == {
        "empty": 2,
        "malformed": 1,
        "over max_questions": 3,
        "over max_instances": 3,
    }
    assert tally.notes == {
        "instances without questions dropped": 1,
        "seen": 1,
    }


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
    instances, result = load(name, hub, **options, split="test")
    questions = [question for instance in instances for question in instance.questions]
    assert asked == [(tuple(hub.split(":")), {"split": "test", "streaming": True})]
    assert len(questions) >= least
    assert result.skipped["malformed"] == 0
