"""BEAM: instances by value, in each of its forms, and what is wrong with a chat."""

import pytest

from memalpha.errors import InputError
from memalpha.types import Question
from tests.helpers.data_samples import (
    beam,
    beam_chat,
    beam_questions,
    load,
    write,
)

HENS = Question(
    "How many hens do I keep?",
    ("LLM response should state: five hens",),
    "rubric",
    "knowledge_update",
    evidence=(0, 4),
    id="1",
    outdated=(0,),
)


def test_beam_turn_by_turn(tmp_path):
    (instance,), result = load("beam", beam(tmp_path).path, turns=True)
    assert [(chunk.text, chunk.time) for chunk in instance.chunks] == [
        ("user: I keep two hens.", "2024-03-15"),
        ("assistant: Nice.\n**Feed:** corn\n**Water:** daily\n**Feed:** less", "2024-03-15"),
        ("user: I rent a plot.", "2024-03-15"),
        ("assistant: Good.", "2024-03-15"),
        ("user: Now I keep five hens.", "2024-04-02"),
    ]
    cat, hens, corn = instance.questions
    assert (cat.kind, cat.evidence, cat.outdated) == ("abstention", None, ())
    assert hens == HENS
    assert (corn.answers, corn.evidence) == (("names corn", "is short"), (1, 2))
    assert (instance.id, result.skipped, result.asked) == ("beam-1", {"empty answer": 1}, 4)


def test_beam_in_chunks_of_a_session_and_compared_with_the_ideal_answer(tmp_path):
    (instance,), _ = load("beam", beam(tmp_path).path / "1", metric="f1")
    assert [chunk.text.split("\n")[0] for chunk in instance.chunks] == [
        "[Session 1, 2024-03-15]",
        "[Session 2, 2024-04-02]",
    ]
    assert [(asked.answers, asked.evidence) for asked in instance.questions] == [
        (("The chat does not say.",), None),
        (("Five.",), (0, 1)),
        (("Names corn.",), (0,)),
    ]


def test_beam_as_the_hub_has_it(tmp_path):
    chat = [[turn for pair in batch["turns"] for turn in pair] for batch in beam_chat()]
    row = {"conversation_id": "1", "chat": chat, "probing_questions": repr(beam_questions())}
    as_rows = load("beam", write(tmp_path / "beam.jsonl", [row]), turns=True)[0]
    assert as_rows == load("beam", beam(tmp_path).path, turns=True)[0]


def test_beam_at_10m_has_the_batches_of_its_plans_in_order(tmp_path):
    path = beam(tmp_path).path
    expected = load("beam", path, turns=True)[0]
    first, second = beam_chat()
    in_items = [{"plan-1": [first]}, {"plan-2": [second]}]
    as_the_hub = [{"plan-1": [first], "plan-2": None}, {"plan-1": None, "plan-2": [second]}]
    in_one = [{"plan-10": [second], "plan-9": [first]}]  # by number, not by letters
    for chat in (in_items, as_the_hub, in_one):
        write(path / "1" / "chat.json", chat)
        assert load("beam", path, turns=True)[0] == expected
    write(path / "1" / "chat.json", [{"plan-1": {"turns": []}}])
    assert load("beam", path)[1].skipped == {"malformed": 1}


def test_beam_says_what_is_wrong_with_a_chat(tmp_path):
    with pytest.raises(InputError, match=r"has no chat\n  expected: N/chat\.json"):
        load("beam", tmp_path)
    path = beam(tmp_path).path
    chat = beam_chat()
    chat[0]["turns"][0][0]["time_anchor"] = "some day"
    del chat[1]["turns"]
    write(path / "1" / "chat.json", chat)
    _, result = load("beam", path)
    assert result.skipped == {"malformed": 1}
    assert result.problems[0].startswith("chat 1 field 'chat[1].turns' is missing")
    chat[1]["turns"] = []
    write(path / "1" / "chat.json", chat)
    (instance,), result = load("beam", path)
    assert instance.chunks[0].text.startswith("[Session 1, some day]")
    assert result.notes == {"sessions with a date that cannot be read": 1}
