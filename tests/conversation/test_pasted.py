"""What people paste has a label of its own in the archive, and what they say has theirs."""

import pytest

from memalpha.conversation.pasted import mark_pasted
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.archive import archive_chunk, is_pasted, lines_of_text
from memalpha.retrieval.ranking import RetrievalConfig
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.speakers import speaker_labels
from memalpha.types import Chunk, Span

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
