"""Sets of labelled sentences: every form of file, examples and questions kept apart, one order of
labels an instance."""

import json
import re
from collections import Counter

import pytest
from data_samples import load, write
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import InputError
from memalpha.qa.metrics import score
from memalpha.types import Answer

ROWS = [(f"sentence {n} about {'ab'[n % 2]}", "ab"[n % 2]) for n in range(12)]


def table(path, pairs):
    path = path.with_suffix(".csv")
    path.write_text("text,category\n" + "".join(f"{text},{label}\n" for text, label in pairs))
    return path


EXAMPLE = re.compile(r"(?:Sentence|Sample): (.*)\nLabel: (\d+)")


def examples(instance):
    return [EXAMPLE.findall(chunk.text) for chunk in instance.chunks]


def asked_sentence(question):
    return re.match(r"(?:Sentence|Sample): (.*)\n", question.text)[1]


PAIRS = [(f"s{n} about {'abcd'[n % 4]}", "abcd"[n % 4]) for n in range(200)]
LABEL_OF = dict(PAIRS)


def test_by_value(tmp_path):
    path = table(tmp_path / "x.tsv", PAIRS)
    instances, result = load("banking77", path, questions=10, chunks=3, chunk_tokens=30)
    for number, instance in enumerate(instances):
        assert instance.id == f"banking77-{number}" and len(instance.chunks) == 3
        shown = examples(instance)
        numbers = {LABEL_OF[text]: int(label) for chunk in shown for text, label in chunk}
        assert sorted(numbers.values()) == [
            0,
            1,
            2,
            3,
        ]  # one number a label, the same in all chunks
        assert all(
            numbers[LABEL_OF[text]] == int(label) for chunk in shown for text, label in chunk
        )
        assert len(instance.questions) == 10
        for question in instance.questions:
            text = asked_sentence(question)
            assert question.answers == (str(numbers[LABEL_OF[text]]),) and question.kind == "intent"
            assert question.evidence == tuple(
                i for i, c in enumerate(shown) if any(LABEL_OF[t] == LABEL_OF[text] for t, _ in c)
            )
            assert score(question, Answer(f"so \\boxed{{{question.answers[0]}}}")) == 1.0
        # An example has 6 words ("Sentence: s1 about a", "Label: 0"); 5 of them fit into 30.
        assert [len(chunk) for chunk in shown] == [5, 5, 5]
        if number < 4:  # later some labels have run out
            assert sorted(Counter(LABEL_OF[t] for c in shown for t, _ in c).values()) == [
                3,
                4,
                4,
                4,
            ]
    assert (
        len(
            {
                tuple(sorted({(LABEL_OF[t], n) for c in examples(i) for t, n in c}))
                for i in instances
            }
        )
        > 1
    )
    used = [t for i in instances for c in examples(i) for t, _ in c] + [
        asked_sentence(q) for i in instances for q in i.questions
    ]
    assert len(used) == len(set(used))  # a sentence is used once
    assert (len(instances), result.skipped) == (
        8,
        {"shown as an example": 120},
    )  # 8 * (15 + 10) = 200
    _, result = load("banking77", path, questions=16, chunks=3, chunk_tokens=30)
    assert result.skipped == {"shown as an example": 15 * 6, "left over": 14}  # 6 * (15 + 16) = 186


def test_examples_of_another_file(tmp_path):
    test = table(
        tmp_path / "test.tsv",
        [(f"t{n}", "abcd"[n % 4]) for n in range(7)] + [("S1 ABOUT B", "b"), ("t9", "never shown")],
    )
    train = table(tmp_path / "train.tsv", PAIRS[:40])
    instances, result = load(
        "banking77", test, examples=str(train), questions=4, chunks=2, chunk_tokens=2000
    )
    assert [len(i.questions) for i in instances] in ([4, 4], [3, 4, 1], [4, 3, 1], [4, 4, 0])
    assert result.asked == 9 and result.skipped == {"label not shown": 1}
    for instance in instances:
        shown = {text for chunk in examples(instance) for text, _ in chunk}
        barred = any(asked_sentence(q) == "S1 ABOUT B" for q in instance.questions)
        assert shown == {text for text, _ in PAIRS[:40]} - ({"s1 about b"} if barred else set())


def test_what_is_skipped(tmp_path):
    rows = [{"text": t, "category": v} for t, v in PAIRS[:20]]
    wrong = [
        ("S3 about D", "d"),
        (" ", "a"),
        ("no label", ""),
        (5, "a"),
        (None, "a"),
        ("alone", "once"),
    ]
    rows += [*({"text": text, "category": label} for text, label in wrong), "no row"]
    _, result = load("banking77", write(tmp_path / "x.jsonl", rows), questions=5, chunk_tokens=30)
    assert {
        k: v
        for k, v in result.skipped.items()
        if k not in ("shown as an example", "label not shown")
    } == {
        "repeated sentence": 1,
        "empty sentence": 1,
        "empty answer": 1,
        "malformed": 3,
    }
    assert result.asked == 27 and "x.jsonl line 24" in result.problems[0]


def test_sentences_of_a_held_out_file_are_left_out(tmp_path):
    path = write(tmp_path / "x.json", {"train": list(map(list, PAIRS[:40]))})
    other = write(tmp_path / "y.json", {"test": [["S3 about D", "d"], ["new", "a"]]})
    instances, result = load("clinc150", path, held_out=str(other), questions=5, chunk_tokens=30)
    assert result.skipped["held out"] == 1 and result.asked == 40
    assert not any(
        "s3 about d" in question.text.lower() for i in instances for question in i.questions
    )
    assert not any("s3 about d" in chunk.text.lower() for i in instances for chunk in i.chunks)


def test_a_sentence_longer_than_a_chunk_is_no_example(tmp_path):
    long = "word " * 27  # "Sentence:", 27 words and "Label: 0" are 30
    path = table(tmp_path / "x.tsv", [*PAIRS[:40], (long, "a"), (long + "more", "a")])
    instances, result = load("banking77", path, questions=5, chunk_tokens=30)
    assert result.skipped["too long"] == 1 and "more" not in str(instances)
    assert all(len(chunk.text.split()) <= 30 for i in instances for chunk in i.chunks)
    _, result = load(
        "banking77",
        table(tmp_path / "y.tsv", PAIRS[40:50]),
        examples=str(path),
        questions=5,
        chunk_tokens=30,
    )
    assert "too long" not in result.skipped
    assert result.notes["too long in the file of option 'examples'"] == 1


def test_a_split_that_is_not_there_lists_those_that_are(tmp_path):
    path = write(tmp_path / "x.json", {"val": [["v", "a"]], "train": [list(p) for p in PAIRS[:20]]})
    with pytest.raises(
        InputError, match=r"x\.json has no split 'tset'\n  expected: one of train, val"
    ):
        load("clinc150", path, split="tset")
    with pytest.raises(
        InputError, match=r"x\.json has no split 'test'\n  expected: one of train, val"
    ):
        load("clinc150", path, held_out=str(path))


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 5), st.integers(1, 6), st.integers(1, 4), st.integers(5, 40))
def test_no_sentence_is_lost_or_shown_where_it_is_asked(
    tmp_path_factory, data, seed, questions, chunks, tokens
):
    pairs = data.draw(
        st.lists(
            st.tuples(st.sampled_from("uvwxyzUV"), st.integers(0, 30), st.sampled_from("pqr")),
            min_size=1,
        )
    )
    path = table(
        tmp_path_factory.mktemp("labels") / "x.tsv",
        [(f"{letter} {n}", label) for letter, n, label in pairs],
    )
    instances, result = load(
        "banking77", path, seed, questions=questions, chunks=chunks, chunk_tokens=tokens
    )
    assert result.asked == len(pairs)
    for instance in instances:
        shown = {text.lower() for chunk in examples(instance) for text, _ in chunk}
        assert not shown & {asked_sentence(q).lower() for q in instance.questions}
        assert len(instance.chunks) <= chunks and len(instance.questions) <= questions


def test_real_trec(real):
    lines = real("trec/test.txt").read_text(encoding="latin-1").splitlines()
    instances, result = load(
        "trec_fine", real("trec/test.txt"), examples=str(real("trec/train.txt"))
    )
    assert (len(lines), result.asked, sum(len(i.questions) for i in instances)) == (500, 500, 500)
    asked = Counter(" ".join(asked_sentence(q).split()) for i in instances for q in i.questions)
    assert asked == Counter(" ".join(line.split(maxsplit=1)[1].split()) for line in lines)
    _, result = load("trec_coarse", real("trec/train.txt"))
    assert result.asked == 5452 and "malformed" not in result.skipped


def test_real_hwu64_and_csabstruct(real):
    _, result = load("hwu64", real("nlu_hwu64"))
    assert result.asked == 8954
    rows = [json.loads(line) for line in real("csabstruct/dev.jsonl").read_text().splitlines()]
    _, result = load("csabstruct", real("csabstruct/dev.jsonl"))
    assert (
        result.asked == sum(len(row["sentences"]) for row in rows) == 2026
        and "malformed" not in result.skipped
    )


def test_out_of_scope_sentences_belong_to_the_split_they_are_named_after(tmp_path):
    oos = [(f"strange thing {n}", "oos") for n in range(6)]
    splits = {
        "train": ROWS,
        "oos_train": oos,
        "test": [("s about a", "a")],
        "oos_test": [("odd", "oos")],
        "oos_val": [("w", "oos")],
    }
    path = write(
        tmp_path / "data_full.json",
        {name: list(map(list, pairs)) for name, pairs in splits.items()},
    )
    instances, result = load("clinc150", path, split="test", examples=str(path), chunk_tokens=60)
    assert sorted(q.kind for i in instances for q in i.questions) == ["intent", "oos"]
    assert result.asked == 21 and result.skipped == {"other split": 12 + 6 + 1}
    _, result = load("clinc150", path, questions=6, chunk_tokens=60)
    assert result.asked == 21 and result.skipped["other split"] == 3
    _, result = load("clinc150", path, split="oos_train", questions=2, chunk_tokens=60)
    assert result.asked == 21 and result.skipped["other split"] == 15
