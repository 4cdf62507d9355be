"""Sets of labelled sentences: instances by value, and what is skipped."""

import re

import pytest

from tests.helpers.data_samples import (
    SAMPLES,
    load,
    write,
)

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


def test_labelled_sentences_by_value(tmp_path):
    path = table(tmp_path / "x.tsv", PAIRS)
    instances, result = load("banking77", path, questions=10, chunks=3, chunk_tokens=30)
    used, orders = [], set()
    for instance in instances:
        shown = examples(instance)
        # An example has 6 words ("Sentence: s1 about a", "Label: 0"); 5 of them fit into 30.
        assert [len(chunk) for chunk in shown] == [5, 5, 5]
        pairs = [(text, LABEL_OF[text], number) for chunk in shown for text, number in chunk]
        numbers = {label: number for _, label, number in pairs}
        assert {(label, number) for _, label, number in pairs} == numbers.items()
        assert sorted(numbers.values()) == ["0", "1", "2", "3"]
        orders.add(str(sorted(numbers.items())))
        used += [text for text, *_ in pairs]
        assert len(instance.questions) == 10
        for question in instance.questions:
            used.append(asked_sentence(question))
            label = LABEL_OF[used[-1]]
            assert question.answers == (numbers[label],) and question.kind == "intent"
            own = [i for i, c in enumerate(shown) if label in {LABEL_OF[text] for text, _ in c}]
            assert question.evidence == tuple(own)
    assert len(used) == len(set(used)) and len(orders) > 1  # a sentence is used once
    # 8 * (15 + 10) = 200
    assert (len(instances), result.skipped) == (8, {"shown as an example": 120})


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


def topic(text):
    return re.search(r"topic (\d)|$", text)[1]


@pytest.mark.parametrize(
    "name", ["banking77", "clinc150", "csabstruct", "hwu64", "pubmed_rct", "trec_coarse"]
)
def test_sentences_of_every_published_form_have_the_label_of_their_topic(tmp_path, name):
    sample = SAMPLES[name](tmp_path)
    for instance in load(name, sample.path, **sample.options)[0]:
        shown = {topic(text): number for chunk in examples(instance) for text, number in chunk}
        asked = {topic(asked_sentence(q)): q.answers[0] for q in instance.questions}
        assert asked and asked.items() <= shown.items()


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
