"""Gaps in one's own notes: what is asked, what is the newest value, and what is left out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.contrib.importing.own import OwnOptions, questions_of
from memalpha.data.load import get_source, iter_prepared, prepare
from memalpha.data.source import SkippedItem
from memalpha.errors import InputError
from memalpha.types import Chunk
from tests.helpers.data_damage import check_counted, check_damaged, damaging
from tests.helpers.data_samples import of_rows

NOTES = {
    "2024-03-01 house.md": "# House\n\nThe rent of our flat in Prague is 900 a month, with water.\n\n"
    "Marta will meet Ivan Petrov at the station. It rains.\n\n"
    "See https://example.org/a?b=14 for the form that Lena sent us.",
    "2024-04-01 house.md": "The rent of our flat in Prague is 950 a month, with water.\n\n"
    "We drove with Ivan Petrov and with Ivan Petrov only to the sea.",
    "2024-05-01 trip.txt": "The train to the sea leaves on 14 May 2024 from the old bridge.",
    "2024-06-01 trip.txt": "Lena paid 120 for the tickets of the whole family.",
    "draft.rst": "The number that nobody reads in this file is 77.",
}

CHAT = [
    {
        "role": "user",
        "content": "My sister Lena works for Acme in the harbour.",
        "time": "2024-03-01",
    },
    {"role": "assistant", "content": "Good for her.", "time": "2024-03-01"},
    {"role": "user", "content": "The rent of our new flat is 900 a month.", "time": "2024-04-01"},
    {"role": "user", "content": "The rent of our new flat is 950 a month.", "time": "2024-05-01"},
    {"role": "user", "content": "It rains.", "time": "2024-06-01"},
]
SAMPLE = of_rows("chat.jsonl", CHAT, 3)


ALIKE = "masked: another sentence says nearly the same"
LAST = "masked: in the last chunk"


@pytest.fixture
def notes(tmp_path):
    for name, text in NOTES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_each_value_is_a_gap_and_of_two_the_newest_counts(notes):
    loaded = list(get_source("own").load(notes, {"chunk_tokens": 60}))
    skipped = [each.reason for each in loaded if isinstance(each, SkippedItem)]
    # the rent's two sentences with Prague masked are nearly the same; Lena's is in the last chunk
    assert sorted(skipped) == [ALIKE, ALIKE, LAST]
    (instance,) = (each for each in loaded if not isinstance(each, SkippedItem))
    assert [chunk.time for chunk in instance.chunks] == [
        "2024-03-01",
        "2024-04-01",
        "2024-05-01",
        "2024-06-01",
    ]
    asked = {
        question.text.removeprefix("What stood in the gap? "): question
        for question in instance.questions
    }
    rent = asked.pop("The rent of our flat in Prague is ___ a month, with water.")
    assert (rent.answers, rent.stale, rent.kind) == (("950",), ("900",), "latest")
    assert rent.evidence == (1,)
    said = {text: (each.answers, each.kind, each.evidence) for text, each in asked.items()}
    assert said == {
        "Marta will meet ___ at the station.": (("Ivan Petrov",), "name", (0,)),
        "The train to the sea leaves on ___ from the old bridge.": (("14 May 2024",), "date", (2,)),
    }


def test_what_is_not_clear_is_skipped_with_its_reason():
    def asked(*texts):
        return list(questions_of([Chunk(text) for text in texts], OwnOptions()))

    one = "Our new cat weighs 4.5 kilograms since the spring."
    assert asked("x", one) == [SkippedItem(LAST)]
    both = f"{one} Our new cat weighs 4.9 kilograms since the spring."
    assert asked(both, "x") == [SkippedItem("masked: two values in one chunk")]
    near = "Our new cat weighs 6.5 kilograms since the last spring."  # 8 words of 9
    assert asked(one, near, "x") == [SkippedItem(ALIKE)] * 2
    far = "Our old cat weighs 6.5 kilograms since the last spring."  # 7 of 10
    assert [each.answers for each in asked(one, far, "x")] == [("4.5",), ("6.5",)]
    back = [one, one.replace("4.5", "4.9"), one, "x"]
    (question,) = asked(*back)
    assert (question.answers, question.stale, question.evidence) == (("4.5",), ("4.9",), (0, 2))


def test_every_fifth_instance_is_kept_for_tests_and_shares_nothing(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for day in range(1, 21):
        cat = f"Cat number {day}{day % 7} of the {day} cats weighs {day + 30}.5 kilograms by now."
        (folder / f"2024-01-{day:02d}.txt").write_text(cat)
    options = {"chunks": 2, "chunk_tokens": 40}
    for split in ("train", "test"):
        prepare("own", folder, tmp_path / split, options={**options, "split": split})
    train, test = (
        {instance.id for instance in iter_prepared(tmp_path / split)} for split in ("train", "test")
    )
    assert test == {"own-4", "own-9"}
    assert train == {f"own-{number}" for number in range(10)} - test


def test_an_export_of_chats_is_read_by_days(tmp_path):
    file = tmp_path / "chat.jsonl"
    said = [
        ("user", "My sister Lena works for Acme Foods in the old harbour.", "2024-03-01"),
        ("system", "Be nice.", "2024-03-01"),
        ("assistant", "Good for her.", "2024-03-01"),
        ("user", "It rains.", "2024-03-09"),
    ]
    keys = ("role", "content", "time")
    file.write_text("\n".join(json.dumps(dict(zip(keys, each, strict=True))) for each in said))
    *skipped, instance = get_source("own").load(file)
    assert [each.time for each in instance.chunks] == ["2024-03-01", "2024-03-09"]
    assert skipped == [SkippedItem("system message", questions=0)]
    asked = {question.text: question.answers for question in instance.questions}
    start = "What stood in the gap? User: My sister"
    assert asked == {
        f"{start} ___ works for Acme Foods in the old harbour.": ("Lena",),
        f"{start} Lena works for ___ in the old harbour.": ("Acme Foods",),
    }
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(InputError, match=r"no file|holds"):
            list(get_source("own").load(wrong))


def test_the_sample_itself_is_counted_whole(tmp_path):
    check_counted(tmp_path, "own", SAMPLE)


@damaging
@given(data=st.data())
def test_damage_is_a_located_error_or_is_counted(tmp_path, data):
    check_damaged(tmp_path, "own", SAMPLE, data)
