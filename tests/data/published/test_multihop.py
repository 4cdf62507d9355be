"""HotpotQA and MuSiQue: instances by value, and what is skipped."""

from memalpha.types import Question
from tests.helpers.data_samples import (
    hotpot_row,
    load,
    musique_row,
    write,
)


def article(kind, number):
    bodies = {
        "Painter": (
            f"Painter {number}\nPainter {number} was born in Town {number}. He painted cows."
        ),
        "Town": f"Town {number}\nIt is old. River {number} runs by it.",
        "Noise": f"Noise {number}\nNothing of use here. Nor here.",
    }
    return bodies[kind]


def test_hotpotqa(tmp_path):
    path = write(tmp_path / "hotpot.json", [hotpot_row(0), hotpot_row(1)])
    (instance,), _ = load("hotpotqa", path, chunk_tokens=(20, 20))
    # An article of a painter has 12 words, one of a town 10: one a chunk.
    assert [chunk.text for chunk in instance.chunks] == [
        article(kind, n) for n in (0, 1) for kind in ("Painter", "Town")
    ]
    assert instance.questions == (
        Question(
            "Which river runs by the birthplace of painter 0?",
            ("River 0",),
            kind="bridge",
            evidence=(0, 1),
            id="h0",
        ),
        Question(
            "Which river runs by the birthplace of painter 1?",
            ("River 1",),
            kind="bridge",
            evidence=(2, 3),
            id="h1",
        ),
    )


def test_an_instance_is_closed_at_its_tokens(tmp_path):
    path = write(tmp_path / "hotpot.json", [hotpot_row(n) for n in range(5)])
    instances, _ = load("hotpotqa", path, instance_tokens=45)  # 12 + 10 words a question
    assert [[q.id for q in i.questions] for i in instances] == [["h0", "h1"], ["h2", "h3"], ["h4"]]
    assert [i.id for i in instances] == ["hotpotqa-0", "hotpotqa-1", "hotpotqa-2"]


def test_musique(tmp_path):
    rows = [musique_row(0), musique_row(1, answerable=False), musique_row(2, answer="")]
    rows += [
        musique_row(3, answer="", answer_aliases=[]),
        musique_row(4, paragraphs=[{"title": "t"}]),
        musique_row(5, id="2hop__a"),
    ]
    (instance,), result = load(
        "musique", write(tmp_path / "musique.jsonl", rows), chunk_tokens=(9, 9)
    )
    assert [chunk.text for chunk in instance.chunks] == [
        f"Lake {n}\nLake {n} lies in Land {n}." for n in (0, 2, 5)
    ]
    assert [(q.answers, q.kind, q.evidence) for q in instance.questions] == [
        (("Land 0", "the Land 0"), "3hop1", (0,)),
        (("the Land 2",), "3hop1", (1,)),
        (("Land 5", "the Land 5"), "2hop", (2,)),
    ]
    assert result.skipped == {"unanswerable": 1, "empty answer": 1, "malformed": 1}
    assert "field 'paragraphs[0].paragraph_text' is missing" in result.problems[0]
