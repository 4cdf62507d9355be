"""The asker: what it is shown, what a reply does, and what comes of it in use."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from memalpha.contrib.asker.reader import Asker, AskerStep, parse_query
from memalpha.errors import PartialServiceError, ServiceError
from memalpha.measure.run import Asks
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.qa.readers import (
    SEARCHING,
    SYSTEM,
    open_reader,
    reader_messages,
    request_to_read,
    searches_of,
)
from memalpha.record.measure import SearchedMemory
from memalpha.retrieval.archive import archive_chunk
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Chunk, Instance, Question, ReadRequest

HOME = Question("Where does Hanna live?", ("Atlanta",))
LINK = "Hanna: Ramon and I share one home."
MOVED = "Ramon: My home is now in Atlanta."
FOUND = {
    "Ramon home": [MOVED, LINK, "Ramon: It rains."],
    HOME.text: [LINK, "Hanna: Hello.", "Hanna: I sing."],
    "": ["March."],
}


def find(words, when):
    return [f"{passage} ({when})" if when else passage for passage in FOUND[words]]


def request(search=find):
    return ReadRequest(HOME, tuple(FOUND[HOME.text]), search)


def asker(replies, budget=13, searches=2):
    """An asker that replies in this order; and the chats that it was shown."""
    chats = []

    def generate(asked):
        chats.extend(asked)
        return [replies[len(chats) - len(asked) + place] for place in range(len(asked))]

    return Asker(generate, budget, count_words, searches), chats


def test_it_answers_from_what_a_search_brings_in_turn_with_the_notes_of_before():
    made, chats = asker(["search: Ramon home", "Atlanta"])
    (answer,) = made.read([request()])
    assert (answer.text, answer.searches) == ("Atlanta", ("Ramon home",))
    # 13 words: 7 + 2 + 3 were read first; 7 + 7 do not fit, so the link is skipped
    assert chats[0] == reader_messages(HOME.text, FOUND[HOME.text], searches=[])
    assert answer.read == (MOVED, "Ramon: It rains.", "Hanna: Hello.")
    assert chats[1] == reader_messages(HOME.text, answer.read, searches=["Ramon home"])
    assert chats[1][0]["content"] == SEARCHING
    assert "\n\nSearched: Ramon home\nQuestion: Where" in chats[1][1]["content"]


def test_both_passages_are_read_where_the_budget_holds_them():
    made, _ = asker(["search: Ramon home", "Atlanta"], budget=20)
    (answer,) = made.read([request()])
    assert answer.read == (MOVED, LINK, "Ramon: It rains.", "Hanna: Hello.")


def test_after_the_last_search_it_is_asked_as_a_reader_and_any_reply_is_the_answer():
    made, chats = asker(["search: Ramon home", "search: Ramon home"], searches=1)
    (answer,) = made.read([request()])
    assert chats[1] == reader_messages(HOME.text, answer.read)
    assert chats[1][0]["content"] == SYSTEM
    assert answer.text == "search: Ramon home"


def test_without_a_search_it_is_a_reader():
    made, chats = asker(["unknown"])
    (answer,) = made.read([request(search=None)])
    assert answer.text == "unknown"
    assert chats == [reader_messages(HOME.text, FOUND[HOME.text])]


def test_a_search_without_words_turns_the_page_of_the_question_or_of_a_time():
    step = AskerStep(5, count_words, 4)
    inquiry = step.begin(request())
    assert inquiry.notes == ("Hanna: Hello.", "Hanna: I sing.")  # the link has seven words
    step.take(inquiry, "search: @ 2024-03")
    assert inquiry.notes == ("March. (2024-03)", "Hanna: Hello.")
    step.take(inquiry, "search:")  # the page of the question: the link does not fit
    assert inquiry.notes == ("March. (2024-03)", "Hanna: I sing.")
    assert inquiry.searches == ["@ 2024-03", ""]


def test_several_questions_take_their_turns_together_and_one_that_only_thinks_fails_alone():
    made, chats = asker(["search: Ramon home", "<think> so", "Hello", "Atlanta"])
    with pytest.raises(PartialServiceError) as failed:
        made.read([request(), request(), request()])
    first, second, third = failed.value.outcomes
    assert isinstance(second, ServiceError)
    assert (first.text, third.text) == ("Atlanta", "Hello")
    assert len(chats) == 4


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Ramon home", ("Ramon home", "")),
        (" the plan @ 2024-03 ", ("the plan", "2024-03")),
        ("@2024", ("", "2024")),
        ("write to a@b.org", ("write to a@b.org", "")),
        ("meet @ 2024-3", ("meet @ 2024-3", "")),
        ("", ("", "")),
    ],
)
def test_a_date_is_read_only_behind_the_words(text, query):
    assert parse_query(text) == query


def test_a_memory_is_searched_by_meaning_and_by_time():
    memory = Memory(MemorySchema.load("facts"))
    for day, text in enumerate(["Ann: I sing.", "Ben: I run.", "Ann: I swim."], 1):
        archive_chunk(memory, day, Chunk(text, f"2024-0{day}-05"), ())
    question = Question("What does Ann do?", ("sing",))
    request, found = request_to_read(question, memory, TwoLayerRetriever(memory), 3)
    assert request.passages == found.passages
    first, last = "[2024-01-05] Ann: I sing.", "[2024-03-05] Ann: I swim."
    assert sorted(request.search("Ann", "")) == [first, last]
    assert request.search("Ann", "2024-03") == (last,)
    assert request.search("", "2024-02") == ("[2024-02-05] Ben: I run.",)
    assert request.search("Ann", "2025") == ()


def test_the_folder_of_an_adapter_says_whether_it_searches(tmp_path):
    assert searches_of(tmp_path) == 0
    (tmp_path / "memalpha_agent.json").write_text(json.dumps({"searches": 2}), encoding="utf-8")
    made = open_reader(tmp_path, 9, count_words, lambda _: Mock())
    assert isinstance(made, Asker) and made.step.searches == 2
    plain = open_reader(tmp_path, 9, count_words, lambda _: Mock(), searches=0)
    assert not isinstance(plain, Asker)


def test_an_evaluation_records_what_was_read_last():
    memory = Memory(MemorySchema.load("facts"))
    for number, text in enumerate([LINK, MOVED, "Hanna: Hello."]):
        archive_chunk(memory, number, Chunk(text), ())
    held = SearchedMemory(memory_tokens=0, memory=memory, retriever=TwoLayerRetriever(memory), k=1)
    made, _ = asker(["search: Ramon home", "Atlanta"], budget=14)
    talk = Instance("talk", "test", (), (replace(HOME, text="Is Hanna there?"),))
    (examination,) = Asks(made, count_words)([talk], [held])
    (row,) = examination.questions
    assert (row.answer, row.score) == ("Atlanta", 1.0)
    assert set(row.passages) == {MOVED, "Hanna: Hello."}
    assert examination.reader_tokens == 9
