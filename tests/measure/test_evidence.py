"""Evidence recall by hand, and over a real search against a count of its own."""

import random

import pytest

from memalpha.errors import InputError
from memalpha.measure.evidence import LooksForEvidence, evidence_row
from memalpha.measure.options import make_system
from memalpha.memory.memory import count_words
from memalpha.record.rows import QuestionRow
from memalpha.types import Chunk, Instance, Question
from tests.helpers.evaluation_stubs import setting


def row(chunks, *, budget=100, words=1, evidence=(1, 4), **more):
    question = Question("q?", ("a",), kind="k", evidence=evidence, id="7", **more)
    passages = [("w " * words, chunk) for chunk in chunks]
    return evidence_row(question.id, question, passages, budget, count_words)


@pytest.mark.parametrize(
    ("chunks", "budget", "recall", "tokens"),
    [
        ([4, 1, 0], 100, 1.0, 6),
        ([0, 4, 4, 1], 6, 0.5, 6),  # the fourth does not fit
        ([None, 2], 100, 0.0, 4),
        ([], 100, 0.0, 0),
    ],
)
def test_the_share_of_the_chunks_whose_passages_fit(chunks, budget, recall, tokens):
    scored = QuestionRow("7", "k", "q?", recall, None)
    assert row(chunks, budget=budget, words=2) == (scored, tokens)


@pytest.mark.parametrize(
    ("chunks", "newer_first"),
    [([0, 4, 1], True), ([1, 4], False), ([4], True), ([1], False), ([0], False)],
)
def test_whether_what_holds_now_is_above_what_no_longer_does(chunks, newer_first):
    assert row(chunks, outdated=(1,))[0].newer_first is newer_first


def test_a_question_without_evidence_is_refused():
    with pytest.raises(InputError, match="question '7' names no evidence"):
        row([1], evidence=None)


def test_rows_of_an_archive_are_what_a_loop_over_its_passages_counts():
    rng = random.Random(5)
    nouns = "hen plot corn rain boat tram cake lamp".split()
    told = [
        f"user: I saw a {rng.choice(nouns)} and a {rng.choice(nouns)} at {n}." for n in range(40)
    ]
    questions = tuple(
        Question(f"Which {noun}?", (noun,), kind=noun, evidence=evidence, id=noun)
        for noun in nouns
        for evidence in [tuple(n for n, text in enumerate(told) if noun in text) or None]
    )
    instance = Instance("i", "s", tuple(map(Chunk, told)), (*questions, Question("none?", ("n",))))
    where = setting([instance], (), reader_tokens=40, retrieve_k=30)
    memory = make_system("archive", {"retrieval": "lexical"}).ingest(where, instance, 0)
    (found,) = LooksForEvidence(40, where.count)([instance], [memory])
    asked = [question for question in questions if question.evidence]
    assert [row.id for row in found.questions] == [question.id for question in asked]
    tokens = []
    for question, row in zip(asked, found.questions, strict=True):
        left, seen = 40, set()
        for passage in memory.passages(question, 40):
            if where.count(passage) <= left:
                left -= where.count(passage)
                seen |= {n for n in question.evidence if told[n] == passage}
        assert row.score == pytest.approx(len(seen) / len(question.evidence))
        tokens.append(40 - left)
    assert found.reader_tokens == pytest.approx(sum(tokens) / len(tokens))
