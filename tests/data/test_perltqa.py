"""PerLTQA's damaged forms: sections of other names and shapes, memories that spell no object, texts that are no Unicode."""

import gzip
import json

import pytest
from data_samples import perltqa_memories, perltqa_questions, write

from memalpha.data.registry import get_source
from memalpha.errors import InputError

FOUR = {"profile": ("28",), "social_relationship": ("brother",), "events": ("sailed; Bo's Ely, town",)}


def load(folder, memories=None, questions=None):
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
    asked, result = load(tmp_path, questions=questions)
    assert asked == FOUR and result.skipped == {"empty answer": 1}


def test_what_stands_for_a_question_and_is_none_is_counted(tmp_path):
    questions = perltqa_questions()
    ann = questions[0]["Ann Lee"]
    ann["profile"].append({})
    ann["dialogues"].append(None)
    ann["events"] += [{}, {"4_0_1": None}, {"4_0_1": [], "4_0_0": [7, None]}]
    ann["hobbies"] = [{"4_0": [{"Question": "Why?", "Answer": "so"}, "no question"]}]
    ann["age"], ann["friends"] = 28, []
    asked, result = load(tmp_path, questions=questions)
    assert asked == FOUR and result.skipped == {"empty answer": 1, "malformed": 1 + 1 + 1 + 1 + 2 + 1}
    assert any("is of section 'hobbies'; expected: one of profile, social_relationship" in fault for fault in result.problems)


def test_a_section_that_is_text_is_one_malformed_question(tmp_path):
    questions = perltqa_questions()
    questions[0]["Ann Lee"]["events"] = "none"
    asked, result = load(tmp_path, questions=questions)
    assert "events" not in asked and result.skipped == {"empty answer": 1, "malformed": 1}


@pytest.mark.parametrize(
    ("section", "value", "fault"),
    [
        ("social_relationship", "{[1]: 2}", "section 'social_relationship' is text that spells no object"),
        ("dialogues", "{1: {}}", "section 'dialogues': a key is int"),
        ("profile", {"Age": "\ud800"}, "profile is not valid Unicode"),
        ("profile", {"\ud800": 5}, "section 'profile': a key is not valid Unicode"),
        ("dialogues", {"4_0_0#0": {"contents": {"\ud800": ["Ann: hi"]}}}, "dialogue is not valid Unicode"),
    ],
)
def test_memories_that_cannot_be_read_lose_that_person_alone(tmp_path, section, value, fault):
    memories = {**perltqa_memories(), "Bo": {**perltqa_memories()["Ann Lee"], section: value}, "\ud800": {}}
    questions = [*perltqa_questions(), {"Bo": perltqa_questions()[0]["Ann Lee"]}]
    asked, result = load(tmp_path, memories, questions)
    assert asked == FOUR and result.skipped == {"empty answer": 1, "malformed": 4}
    assert f"memories of 'Bo' {fault}" in result.problems[0]


def test_an_anchor_that_is_no_unicode_loses_that_question_alone(tmp_path):
    questions = perltqa_questions()
    questions[0]["Ann Lee"]["profile"][0]["Memory Anchors"] = [{"\ud800": [0, 1]}]
    asked, result = load(tmp_path, questions=questions)
    assert set(asked) == {"social_relationship", "events"} and result.skipped == {"empty answer": 1, "malformed": 1}


def test_a_folder_of_two_releases_is_refused(tmp_path):
    for language in ("en", "zh"):
        write(tmp_path / f"perltmem_{language}.json", perltqa_memories())
        write(tmp_path / f"perltqa_{language}.json", json.loads(json.dumps(perltqa_questions())))
    with pytest.raises(InputError, match=r"several releases: perltqa_en\.json, perltqa_zh\.json"):
        get_source("perltqa").load(tmp_path)


@pytest.mark.parametrize("ends", [("", ""), ("", ".gz"), (".gz", ""), (".gz", ".gz")])
def test_either_file_may_be_packed(tmp_path, ends):
    for name, data, end in zip(("perltqa_en", "perltmem_en"), (perltqa_questions(), perltqa_memories()), ends, strict=True):
        raw = json.dumps(data).encode()
        (tmp_path / f"{name}.json{end}").write_bytes(gzip.compress(raw) if end else raw)
    for source in (tmp_path, tmp_path / f"perltqa_en.json{ends[0]}"):
        result = get_source("perltqa").load(source)
        assert {q.kind: q.answers for i in result.instances for q in i.questions} == FOUR


def test_memories_that_are_not_there_are_named_as_the_questions_are(tmp_path):
    write(tmp_path / "perltqa_en.json", perltqa_questions())
    with pytest.raises(InputError, match=r"no file .*perltmem_en\.json\n"):
        get_source("perltqa").load(tmp_path)
