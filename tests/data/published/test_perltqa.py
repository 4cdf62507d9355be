"""PerLTQA: instances by value, and what is skipped."""

from memalpha.types import Question
from tests.helpers.data_samples import (
    load,
    perltqa_memories,
    perltqa_questions,
    write,
)


def test_perltqa(tmp_path):
    write(tmp_path / "perltmem_en.json", perltqa_memories())
    (instance,), result = load("perltqa", write(tmp_path / "perltqa_en.json", perltqa_questions()))
    assert [chunk.text for chunk in instance.chunks] == [
        "[Profile]\nProtagonist: Ann Lee\nAge: 28\nHobbies: chess\nAnn Lee plays chess.",
        "[People around]\nBo Lee (brother): Lives in Ely.",
        "[Event, 2022-05-12] A trip\nThey sailed to Ely.",
        "[Dialogue, 2022-05-13T10:00]\nAnn Lee: What a trip!",
        "[Event, in spring] Bread\nThey baked bread.",
    ]
    assert [chunk.time for chunk in instance.chunks] == [
        None,
        None,
        "2022-05-12",
        "2022-05-13T10:00",
        None,
    ]
    assert instance.questions == (
        Question("How old is Ann?", ("28",), "parts", "profile", evidence=(0,), id="0"),
        Question("Who is Bo?", ("brother",), "parts", "social_relationship", evidence=(1,), id="1"),
        Question(
            "Where did they go?",
            ("sailed; Bo's Ely, town",),
            "parts",
            "events",
            evidence=(2,),
            id="2",
        ),
    )
    assert result.skipped == {"empty answer": 1}
