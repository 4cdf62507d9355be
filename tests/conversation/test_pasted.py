"""What people paste has a label of its own in the archive, and what they say has theirs."""

import time
from dataclasses import replace

import pytest

from memalpha.conversation.pasted import mark_pasted
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.archive import (
    archive_chunk,
    is_pasted,
    line_of,
    lines_of_text,
    words_said,
)
from memalpha.retrieval.ranking import RetrievalConfig
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.speakers import speaker_labels
from memalpha.types import Chunk, Entry, Span

LONG = (
    "The senate of the town met on Monday and heard what the mayor had to say on the bridge. " * 2
)


def marked(said, label="User:"):
    text, places = mark_pasted(f"{label} {said}", [Span(0, len(label))])
    return text, [text[slice(*place)] for place in places]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("I live in Oslo.", "User: I live in Oslo."),
        ("I live in Oslo.\nI like it.\n\nDo you?", "User: I live in Oslo.\nI like it.\n\nDo you?"),
        (
            "Why?\n```\nx = 1\n```\nI am lost.",
            "User: Why?\nUser (pasted): ```\nx = 1\n```\nUser: I am lost.",
        ),
        ("```\nx = 1", "User (pasted): ```\nx = 1"),
        (
            "```pip install``` works.\nI live in Oslo.",
            "User: ```pip install``` works.\nI live in Oslo.",
        ),
        ("I said.\u2028> quoted X\u2028I go.", "User: I said.\u2028> quoted X\u2028I go."),
        (
            "She wrote\n> I live in Rome\n> now\nNice.",
            "User: She wrote\nUser (pasted): > I live in Rome\n> now\nUser: Nice.",
        ),
        ("Tell\n> Marta: hello", "User: Tell\n> Marta: hello"),  # kept from being read as a label
        (
            "Cities\nLos Angeles, California\nParis, Texas\nOslo, Minnesota\n",
            "User (pasted): Cities\nLos Angeles, California\nParis, Texas\nOslo, Minnesota\n",
        ),
        (
            "My plans\nmy dentist on Monday\nsee Ann\nbuy milk",
            "User: My plans\nmy dentist on Monday\nsee Ann\nbuy milk",
        ),
        (
            f"Translate this:\n\n{LONG}\nCan you?",
            f"User: Translate this:\n\nUser (pasted): {LONG}\nUser: Can you?",
        ),
        ("It is simple:\nI moved to Oslo.", "User: It is simple:\nI moved to Oslo."),
    ],
)
def test_what_is_pasted_has_a_label_of_its_own(said, wanted):
    assert marked(said)[0] == wanted


def test_the_places_are_those_of_the_labels():
    text = f"Marta: Translate:\n{LONG}\nassistant: One:\n```\nx\n```\nMarta: Thanks."
    shown, places = mark_pasted(text, speaker_labels(text))
    assert [shown[slice(*place)] for place in places] == [
        "Marta:",
        "Marta (pasted):",
        "assistant:",
        "Marta:",
    ]
    assert shown.replace("Marta (pasted): ", "") == text


@pytest.mark.parametrize("text", ["", "No dialogue.\n```\nx\n```", "[2024-01-01]\nUser: hello"])
def test_a_text_in_which_nobody_pastes_stays(text):
    assert mark_pasted(text, speaker_labels(text))[0] == text
    assert lines_of_text(text, count_words) == lines_of_text(text, count_words, None)


def test_lines_of_what_is_pasted_are_told_apart():
    memory = Memory(MemorySchema.load("facts"))
    said = f"I live in Oslo. Summarise this:\n{LONG}\nand this\nlate"
    archive_chunk(memory, 1, Chunk(f"User: {said}"), ())
    lines = memory.entries(ARCHIVE.name)
    assert [is_pasted(line) for line in lines] == [False] + [True] * (len(lines) - 1)
    assert lines[0].content == "User: I live in Oslo. Summarise this:"
    assert all(line.content.startswith("User (pasted): ") for line in lines[1:])


@pytest.mark.parametrize("kind", ["lexical", "hybrid"])
def test_a_search_prefers_what_somebody_says_to_what_he_pastes(kind):
    memory = Memory(MemorySchema.load("facts"))
    pasted = "Where people live now\nOslo, Minnesota\nRome, Texas\nParis, Ohio"
    archive_chunk(memory, 1, Chunk("User: Since May I live in Lisbon, near the river."), ())
    archive_chunk(memory, 2, Chunk(f"User: Sort these:\n```\n{pasted}\n```"), ())
    retriever = retriever_factory(RetrievalConfig(retrieval=kind))(memory)
    hits = retriever.search("Where do I live?", 3)
    assert hits[0].entry.content.endswith("I live in Lisbon, near the river.")
    assert len(hits) > 1 and is_pasted(hits[1].entry)
    assert is_pasted(retriever.search("Which cities are in Minnesota?", 1)[0].entry)


def test_names_of_four_words_and_labels_that_are_there():
    assert marked("So\n> a\n> b", "Anna Maria de Silva:")[1][1] == "Anna Maria de Silva (pasted):"
    entry = Entry("line-1", ARCHIVE.name, "Anna Maria de Silva (pasted): > a")
    assert is_pasted(entry)
    assert marked("> a\n> b", "User (pasted):")[0] == "User (pasted): > a\n> b"


def test_a_fact_is_said_by_a_line_that_was_pasted():
    fact = Entry("1", "facts", "The user's flight to Oslo leaves on Friday")
    line = Entry(
        "line-1", ARCHIVE.name, "User (pasted): Flight SK123 to Oslo leaves Friday at noon"
    )
    plain = replace(line, content=line.content.replace(" (pasted)", ""))
    assert line_of(fact, [line]) == line and line_of(fact, [plain]) == plain
    assert words_said(line.content) == words_said(plain.content)


def test_marking_takes_time_in_proportion_to_the_text():
    def seconds(turns):
        text = "\n".join(f"User: turn {number}\nAssistant: yes" for number in range(turns))
        labels = speaker_labels(text)
        began = time.process_time()
        mark_pasted(text, labels)
        return time.process_time() - began

    assert min(seconds(8000) for _ in range(3)) < 1.0  # some .05 s; of the square of it 6 s


def test_a_text_that_is_a_label_and_a_header_alone_is_archived():
    text = "[10:30] Marta: [Session 2, 2024-03-05]\n   "
    assert speaker_labels(text) == [Span(0, 0), Span(0, 14)]
    assert "".join(lines_of_text(text, count_words)).startswith("[10:30] Marta:")
