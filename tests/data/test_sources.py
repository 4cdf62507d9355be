"""What sources share: options, rows and questions that break, ids that repeat, limits; data by name; every set on the Hub."""

import random
from collections import Counter
from dataclasses import replace

import datasets
import pytest
from data_samples import hotpot_row, locomo_sample, longmemeval_item, mab_row, memalpha_row, msc_row, musique_row, qmsum_row

from memalpha.data.load import load_data
from memalpha.data.registry import SyntheticOptions, get_source
from memalpha.data.rows import Row
from memalpha.data.schema import write_instances
from memalpha.data.source import CommonOptions, LoadResult, Source, finish, read_questions, read_rows
from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.toy import ToyOptions
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Instance, Question


def test_an_unknown_name_lists_them_all():
    with pytest.raises(
        InputError,
        match="unknown data source 'squadd'\n  expected: one of babi, banking77, booksum, clinc150, csabstruct, hotpotqa, ",
    ):
        get_source("squadd")


@pytest.mark.parametrize(("written", "name"), [("HotpotQA", "hotpotqa"), ("pubmed-rct", "pubmed_rct"), ("TREC_fine", "trec_fine")])
def test_case_and_hyphens_of_a_name_do_not_matter(written, name):
    assert get_source(written).name == name


@pytest.mark.parametrize("name", ["squad", "memalpha"])
def test_a_source_that_reads_wants_an_input(name):
    with pytest.raises(InputError, match=f"source '{name}' reads a file and none was given"):
        get_source(name).load()


@pytest.mark.parametrize("name", ["synthetic", "toy"])
def test_a_generated_source_wants_none(name):
    with pytest.raises(InputError, match=f"source '{name}' is generated and was given 'file.json'"):
        get_source(name).load("file.json")


def test_synthetic_is_the_generator_with_the_presets_options():
    result = get_source("synthetic").load(options={"n": "4", "preset": "medium", "split": "test", "facts_per_chunk": "1,2"}, seed=9)
    assert result.total == 4
    config = replace(PRESETS["medium"], split="test", facts_per_chunk=(1, 2))
    assert list(result.instances) == generate(4, 9, config)
    assert SyntheticOptions(p_change=0.0).config() == replace(PRESETS["small"], p_change=0.0)  # a zero is not "as in the preset"


@pytest.mark.parametrize(
    "options", [{"n": 0}, {"preset": "huge"}, {"people": 10_000}, {"p_change": 2}, {"split": "dev"}, {"n_chunks": "x"}, {"m": 1}]
)
def test_options_of_synthetic_are_checked(options):
    with pytest.raises(InputError, match=next(iter(options))):
        get_source("synthetic").load(options=options)


def test_a_new_source_is_a_loader_and_a_line():
    """What whoever adds one may rely on: parsed options, the seed, the counter; counts that arrive with the instances."""

    def loader(source, options, seed, count_tokens):
        result = LoadResult()

        def instances():
            result.skip("why", options.n)
            result.skip("never", 0)
            result.malformed("line 1: broken\n  expected: whole", 0)
            yield (source, seed, count_tokens("a b"))

        result.instances = instances()
        return result

    result = Source("s", "d", loader, ToyOptions).load("in", {"n": "5"}, 7)
    assert not result.skipped
    assert list(result.instances) == [("in", 7, 2)]
    assert result.skipped == {"why": 5, "malformed": 1} and result.problems == ["line 1: broken; expected: whole"]


def test_a_row_that_breaks_takes_back_what_it_counted():
    result = LoadResult()

    def make(row):
        result.skip("empty answer", 2)
        if row.data == "broken":
            raise SchemaError(f"{row.where} is broken")
        return row.data

    rows = [Row("line 1", "good"), Row("line 2", "broken"), Row("line 3", "broken")]
    held = {"good": 2, "broken": 3}
    assert list(read_rows(rows[:2], result, held.get, make)) == ["good"]
    assert (result.asked, result.skipped) == (2 + 3, {"empty answer": 2, "malformed": 3})
    assert result.problems == ["line 2 is broken"]
    assert list(read_rows(rows[2:], result, lambda data: 0, make)) == []
    assert (result.asked, result.skipped) == (6, {"empty answer": 2, "malformed": 4})  # at least one question


def test_a_question_that_breaks_is_skipped_alone():
    result = LoadResult()

    def make(item, where):
        if item is None:
            raise SchemaError(f"{where} is None")
        return item if item in ("unanswerable", "empty") else Question(item, ("a",), id="own" if item == "named" else "")

    made = list(read_questions(["q", None, "unanswerable", "named", "empty"], "line 7", result, make))
    assert [(question.text, question.id) for question in made] == [("q", "0"), ("named", "own")]
    assert result.skipped == {"malformed": 1, "unanswerable": 1, "empty": 1}
    assert result.problems == ["line 7 question 1 is None"]


def instance(name, questions):
    return Instance(name, "s", (Chunk("c"),), tuple(Question(f"q{i}", ("a",), id=str(i)) for i in range(questions)))


def test_finish():
    result = LoadResult()
    given = [instance("a", 1), instance("b", 0), instance("a", 5), instance("a", 2), instance("c", 3)]
    made = list(finish(given, CommonOptions(max_questions=2, max_instances=3), 1, result))
    assert [(i.id, len(i.questions)) for i in made] == [("a", 1), ("a#2", 2), ("a#3", 2)]
    assert result.skipped == {"over max_questions": 3, "over max_instances": 3}
    assert result.notes == Counter({"instances without questions dropped": 1, "repeated ids numbered": 2})


def test_a_numbered_id_is_one_that_nothing_has():
    result, given = LoadResult(), [instance(name, 1) for name in ("a#2", "a", "a", "a", "b", "b", "b#2", "b")]
    made = [i.id for i in finish(given, CommonOptions(), 1, result)]
    assert made == ["a#2", "a", "a#3", "a#4", "b", "b#2", "b#2#2", "b#3"]
    assert +result.notes == {"repeated ids numbered": 5}
    asked = tuple(Question(f"q{n}", ("a",), id=name) for n, name in enumerate(("x#2", "x", "x")))
    (made,) = finish([Instance("i", "s", (Chunk("c"),), asked)], CommonOptions(), 1, LoadResult())
    assert [question.id for question in made.questions] == ["x#2", "x", "x#3"]


def test_questions_are_drawn_evenly_and_in_their_order():
    questions, result = instance("a", 6).questions, LoadResult()
    drawn = Counter()
    for seed in range(600):
        kept = result.draw(questions, 3, random.Random(seed))
        assert list(kept) == sorted(kept, key=lambda question: question.id) and len(set(kept)) == 3
        drawn.update(question.id for question in kept)
    assert all(240 < count < 360 for count in drawn.values())  # 300 each, standard deviation 12
    assert result.skipped == {"over max_questions": 3 * 600}
    assert result.draw(questions, 0, random.Random(0)) == questions


def file_of(path, *names):
    instances = [Instance(name, "test", (Chunk(f"text of {name}"),), ()) for name in names]
    write_instances(path, instances)
    return instances


def test_several_sources_follow_one_another(tmp_path):
    a, b = file_of(tmp_path / "a.jsonl", "1", "2"), file_of(tmp_path / "b.jsonl", "3")
    assert load_data(f"{tmp_path}/a.jsonl, {tmp_path}/b.jsonl") == [*a, *b]
    assert load_data(f"{tmp_path}/b.jsonl,{tmp_path}/a.jsonl") == [*b, *a]
    mixed = load_data(f"toy,{tmp_path}/a.jsonl", {"n": 3}, 1)
    assert mixed == [*load_data("toy", {"n": 3}, 1), *a]


def test_ids_are_unique_over_all_sources(tmp_path):
    file_of(tmp_path / "a.jsonl", "1", "2")
    file_of(tmp_path / "b.jsonl", "2")
    with pytest.raises(InputError, match="are called '2'"):
        load_data(f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl")


PAIRS = [(f"sentence {n} speaks of topic {n % 3}", n % 3) for n in range(30)]


LABELLED = {"questions": 5, "chunk_tokens": 20}


def labelled(text, label):
    return [{text: said, label: number} for said, number in PAIRS]


HOTPOT = {
    **hotpot_row(),
    "context": {"title": ["Noise", "Painter 0"], "sentences": [["None."], ["He painted."]]},
    "supporting_facts": {"title": ["Painter 0"], "sent_id": [0]},
}


SQUAD = {"id": "1", "context": "It is so.", "question": "q?", "answers": {"text": ["so"], "answer_start": [6]}}


STORY = {"id": ["1", "2"], "type": [0, 1], "text": ["Jo came.", "Who came?"], "supporting_ids": [[], ["1"]], "answer": ["", "Jo"]}


CASES = [
    ("squad", "rajpurkar/squad", [SQUAD], {}, 1),
    ("hotpotqa", "hotpotqa/hotpot_qa:distractor", [HOTPOT], {}, 1),
    ("musique", "dgslibisey/MuSiQue", [musique_row()], {}, 1),
    ("longmemeval", "xiaowu0162/longmemeval", [longmemeval_item()], {}, 1),
    ("locomo", "someone/locomo", [locomo_sample()], {}, 2),
    ("msc", "MemGPT/MSC-Self-Instruct", [msc_row(self_instruct={"B": "q?", "A": "a"})], {}, 1),
    ("trec_coarse", "CogComp/trec", labelled("text", "coarse_label"), LABELLED, 5),
    ("trec_fine", "CogComp/trec", labelled("text", "fine_label"), LABELLED, 5),
    ("banking77", "PolyAI/banking77", labelled("text", "label"), LABELLED, 5),
    ("clinc150", "clinc/clinc_oos:plus", labelled("text", "intent"), LABELLED, 5),
    ("hwu64", "someone/hwu64", labelled("text", "label"), LABELLED, 5),
    ("pubmed_rct", "armanc/pubmed-rct20k", labelled("text", "label"), LABELLED, 5),
    ("csabstruct", "allenai/csabstruct", [{"sentences": [s for s, _ in PAIRS], "labels": [n for _, n in PAIRS]}], LABELLED, 5),
    ("booksum", "kmfoda/booksum", [{"chapter": "One. Two.", "summary_text": "Then Ahab came.", "bid": 1}], {}, 1),
    ("qmsum", "someone/qmsum", [qmsum_row()], {}, 3),
    ("babi", "facebook/babi_qa:en-10k-qa1", [{"story": STORY}], {}, 1),
    ("memoryagentbench", "ai-hyz/MemoryAgentBench", [mab_row()], {}, 2),
    ("memalpha", "YuWangX/Memalpha-Memoryagentbench", [memalpha_row()], {}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hub", "rows", "options", "least"), CASES, ids=[case[0] for case in CASES])
def test_rows_of_the_hub(tmp_path, monkeypatch, name, hub, rows, options, least):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or iter(rows))
    monkeypatch.chdir(tmp_path)
    result = get_source(name).load(hub, {**options, "split": "test"})
    questions = [question for instance in result.instances for question in instance.questions]
    assert asked == [(tuple(hub.split(":")), {"split": "test", "streaming": True})]
    assert len(questions) >= least and result.asked == len(questions) + sum(result.skipped.values())
    assert result.skipped["malformed"] == 0
