"""PerLTQA: memories as chunks, questions under other names, memories that cannot be read."""

import pytest
from data_samples import load, perltqa_memories, perltqa_questions, write

from memalpha.errors import SchemaError
from memalpha.types import Question


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


def test_perltqa_persons_without_memories_and_malformed_parts(tmp_path):
    write(tmp_path / "perltmem.json", {**perltqa_memories(), "Cy": {"profile": 5}, "Di": {}})
    (ann,) = perltqa_questions()
    one = {"profile": [{"Question": "q?", "Answer": "a", "Reference Memory": "Age"}]}
    wrong = {"Ann Lee": {"events": [{"4_0_0": [3, {"Question": "q?"}]}, "x"]}}
    asked = [ann, {"Bo": one}, {"Cy": one}, {"Di": one}, wrong, "nobody"]
    instances, result = load("perltqa", write(tmp_path / "perltqa.json", asked))
    assert [i.id for i in instances] == ["Ann Lee"]
    assert result.skipped == {"empty answer": 1, "person without memories": 1, "malformed": 4}
    with pytest.raises(SchemaError, match=r"perltmem\.json holds no memories"):
        write(tmp_path / "perltmem.json", [])
        load("perltqa", tmp_path / "perltqa.json")


def test_perltqa_cuts_long_memories_and_points_at_every_piece(tmp_path):
    memories = perltqa_memories()
    memories["Ann Lee"]["events"]["4_0_0"]["content"] = " ".join(
        f"They saw boat {n}." for n in range(10)
    )
    write(tmp_path / "perltmem.json", memories)
    (instance,), _ = load(
        "perltqa", write(tmp_path / "perltqa.json", perltqa_questions()), chunk_tokens=20
    )
    held = [i for i, chunk in enumerate(instance.chunks) if "boat" in chunk.text]
    assert instance.questions[2].evidence == tuple(held) and len(held) >= 3
    assert all(len(chunk.text.split()) <= 20 for chunk in instance.chunks)


def test_perltqa_gives_each_dialogue_its_own_time(tmp_path):
    memories = perltqa_memories()
    said = {
        "2022-05-12 20:00:00": ["Ann Lee: We sail."],
        "then": ["Ann Lee: What a trip!", "Bo Lee: Yes."],
    }
    memories["Ann Lee"]["dialogues"]["4_0_0#0"]["contents"] = said
    memories["Ann Lee"]["dialogues"]["9_9_9#0"] = {
        "contents": {"2021-01-02 08:00:00": ["Bo Lee: Hello."]}
    }
    write(tmp_path / "perltmem.json", memories)
    (instance,), _ = load("perltqa", write(tmp_path / "perltqa.json", perltqa_questions()))
    assert [(chunk.time, chunk.text) for chunk in instance.chunks[2:]] == [
        ("2022-05-12", "[Event, 2022-05-12] A trip\nThey sailed to Ely."),
        ("2022-05-12T20:00", "[Dialogue, 2022-05-12T20:00]\nAnn Lee: We sail."),
        (None, "[Dialogue, then]\nAnn Lee: What a trip!\nBo Lee: Yes."),
        (None, "[Event, in spring] Bread\nThey baked bread."),
        ("2021-01-02T08:00", "[Dialogue, 2021-01-02T08:00]\nBo Lee: Hello."),
    ]
