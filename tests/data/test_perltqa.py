"""PerLTQA: memories as chunks, questions under other names, memories that cannot be read."""

import gzip
import json

import pytest
from data_samples import load, perltqa_memories, perltqa_questions, write

from memalpha.data.registry import get_source
from memalpha.errors import InputError, SchemaError
from memalpha.types import Question


def test_perltqa(tmp_path):
    write(tmp_path / "perltmem_en.json", perltqa_memories())
    write(tmp_path / "perltqa_en.json", perltqa_questions())
    for source in (tmp_path, tmp_path / "perltqa_en.json"):
        (instance,), result = load("perltqa", source)
        assert [chunk.text for chunk in instance.chunks] == [
            "[Profile]\nProtagonist: Ann Lee\nAge: 28\nHobbies: chess\nAnn Lee plays chess.",
            "[People around]\nBo Lee (brother): Lives in Ely.",
            "[Event, 2022-05-12] A trip\nThey sailed to Ely.\n[Dialogue, 2022-05-13T10:00]\nAnn Lee: What a trip!",
            "[Event, in spring] Bread\nThey baked bread.",
        ]
        assert [chunk.time for chunk in instance.chunks] == [None, None, "2022-05-12", "in spring"]
        assert instance.questions == (
            Question("How old is Ann?", ("28",), "parts", "profile", evidence=(0,), id="0"),
            Question("Who is Bo?", ("brother",), "parts", "social_relationship", evidence=(1,), id="1"),
            Question("Where did they go?", ("sailed; Bo's Ely, town",), "parts", "events", evidence=(2,), id="2"),
        )
        assert result.skipped == {"empty answer": 1}


def test_perltqa_other_forms_of_the_memories(tmp_path):
    """The list of the first release, and a circle that stands as Python text."""
    person = perltqa_memories()["Ann Lee"]
    person["social_relationship"] = repr(person["social_relationship"])
    memory = write(tmp_path / "other.json", [person])
    asked = write(tmp_path / "asked.json", perltqa_questions())
    (instance,), _ = load("perltqa", asked, memory=str(memory))
    assert instance.chunks[1].text == "[People around]\nBo Lee (brother): Lives in Ely."
    with pytest.raises(InputError, match="option 'memory'"):
        load("perltqa", asked)


def test_perltqa_persons_without_memories_and_malformed_parts(tmp_path):
    write(tmp_path / "perltmem.json", {**perltqa_memories(), "Cy": {"profile": 5}, "Di": {}})
    (ann,) = perltqa_questions()
    one = {"profile": [{"Question": "q?", "Answer": "a", "Reference Memory": "Age"}]}
    asked = [
        ann,
        {"Bo": one},
        {"Cy": one},
        {"Di": one},
        {"Ann Lee": {"events": [{"4_0_0": [3, {"Question": "q?"}]}, "x"]}},
        "nobody",
    ]
    instances, result = load("perltqa", write(tmp_path / "perltqa.json", asked))
    assert [i.id for i in instances] == ["Ann Lee"]
    assert result.skipped == {"empty answer": 1 + 1, "person without memories": 1, "malformed": 1 + 1 + 2 + 1}
    with pytest.raises(SchemaError, match=r"perltmem\.json holds no memories"):
        write(tmp_path / "perltmem.json", {})
        load("perltqa", tmp_path)


def test_perltqa_cuts_long_memories_and_points_at_every_piece(tmp_path):
    memories = perltqa_memories()
    memories["Ann Lee"]["events"]["4_0_0"]["content"] = " ".join(f"They saw boat {n}." for n in range(10))
    write(tmp_path / "perltmem.json", memories)
    write(tmp_path / "perltqa.json", perltqa_questions())
    (instance,), _ = load("perltqa", tmp_path, chunk_tokens=20)
    held = [i for i, chunk in enumerate(instance.chunks) if "boat" in chunk.text or "[Dialogue" in chunk.text]
    assert instance.questions[2].evidence == tuple(held) and len(held) >= 3
    assert all(len(chunk.text.split()) <= 20 for chunk in instance.chunks)


FOUR = {"profile": ("28",), "social_relationship": ("brother",), "events": ("sailed; Bo's Ely, town",)}


def load_asked(folder, memories=None, questions=None):
    write(folder / "perltmem_en.json", perltqa_memories() if memories is None else memories)
    result = get_source("perltqa").load(write(folder / "perltqa_en.json", perltqa_questions() if questions is None else questions))
    instances = list(result.instances)
    assert result.asked == sum(len(i.questions) for i in instances) + sum(result.skipped.values())
    return {q.kind: q.answers for i in instances for q in i.questions}, result


def test_sections_are_found_under_other_names_and_in_other_shapes(tmp_path):
    questions = perltqa_questions()
    ann = questions[0]["Ann Lee"]
    ann["Social Relationship"] = ann.pop("social_relationship")
    ann["events"] = ann["events"][0]
    asked, result = load_asked(tmp_path, questions=questions)
    assert asked == FOUR and result.skipped == {"empty answer": 1}


def test_what_stands_for_a_question_and_is_none_is_counted(tmp_path):
    questions = perltqa_questions()
    ann = questions[0]["Ann Lee"]
    ann["profile"].append({})
    ann["dialogues"].append(None)
    ann["events"] += [{}, {"4_0_1": None}, {"4_0_1": [], "4_0_0": [7, None]}]
    ann["hobbies"] = [{"4_0": [{"Question": "Why?", "Answer": "so"}, "no question"]}]
    ann["age"], ann["friends"] = 28, []
    asked, result = load_asked(tmp_path, questions=questions)
    assert asked == FOUR and result.skipped == {"empty answer": 1, "malformed": 1 + 1 + 1 + 1 + 2 + 1}
    assert any("is of section 'hobbies'; expected: one of profile, social_relationship" in fault for fault in result.problems)


@pytest.mark.parametrize(
    ("section", "value", "fault"),
    [
        ("social_relationship", "{[1]: 2}", " field 'social_relationship'"),
        ("dialogues", "{1: {}}", " field 'dialogues"),
        ("profile", {"Age": "\ud800"}, " field 'profile.Age'"),
        ("profile", {"\ud800": 5}, " field 'profile"),
        ("dialogues", {"4_0_0#0": {"contents": {"\ud800": ["Ann: hi"]}}}, ": 'utf-8' codec can't encode"),
    ],
)
def test_memories_that_cannot_be_read_lose_that_person_alone(tmp_path, section, value, fault):
    memories = {**perltqa_memories(), "Bo": {**perltqa_memories()["Ann Lee"], section: value}, "\ud800": {}}
    questions = [*perltqa_questions(), {"Bo": perltqa_questions()[0]["Ann Lee"]}]
    asked, result = load_asked(tmp_path, memories, questions)
    assert asked == FOUR and result.skipped == {"empty answer": 1, "malformed": 4}
    assert f"memories of 'Bo'{fault}" in result.problems[0]


@pytest.mark.parametrize("ends", [("", ""), ("", ".gz"), (".gz", ""), (".gz", ".gz")])
def test_either_file_may_be_packed(tmp_path, ends):
    for name, data, end in zip(("perltqa_en", "perltmem_en"), (perltqa_questions(), perltqa_memories()), ends, strict=True):
        raw = json.dumps(data).encode()
        (tmp_path / f"{name}.json{end}").write_bytes(gzip.compress(raw) if end else raw)
    for source in (tmp_path, tmp_path / f"perltqa_en.json{ends[0]}"):
        result = get_source("perltqa").load(source)
        assert {q.kind: q.answers for i in result.instances for q in i.questions} == FOUR
