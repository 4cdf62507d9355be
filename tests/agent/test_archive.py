"""The archive by hand: which lines leave it, what is found, and that the policy neither sees nor
writes it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.memory.schema import MemorySchema, tool_schemas
from memalpha.models.registry import make_tokenizer
from memalpha.qa.readers import find_passages
from memalpha.retrieval import archive, ranking
from memalpha.retrieval.archive import archive_chunk, line_of, losses, turn_of
from memalpha.retrieval.lexical import word_cosines
from memalpha.types import Chunk, Entry, Operation, OperationKind

TEXTS = [
    "Marta: I live in Oslo.\nMarta: I like tea.",
    "Marta: I moved from Oslo.\nMarta: Not Oslo but Rome!\nIvan: Oslo is cold.",
    "Marta: no more tea for me.\nMarta: Rome is hot.",
]
WRITTEN = [
    "+ Marta city Oslo\n+ Marta drink tea",
    "= Marta city Oslo\n> Marta city Rome",
    "- Marta drink tea",
]


def make(archive=True, retrieval="lexical", texts=(), **more):
    words = " ".join(
        [*TEXTS, *WRITTEN, *texts, "Where does live drink which city of 2024 01 02 03 [ ] -"]
    ).split()
    config = AgentConfig(
        schema="facts",
        codec="compact_text",
        archive=archive,
        retrieval=retrieval,
        embedder="hashing",
        **more,
    )
    return AgentStep(config, make_tokenizer(words, 4096))


def told(step, written=WRITTEN, texts=TEXTS, times=("2024-01-01", "2024-02-01", "2024-03-01")):
    """The memory after some texts, each with what the policy wrote of it."""
    memory = step.new_memory()
    for index, (text, said) in enumerate(zip(texts, written, strict=False)):
        step.apply(memory, index, Chunk(text, times[index]), said)
    return memory


def archived(memory):
    return [line.content for line in memory.entries("_archive")]


def test_what_an_update_or_delete_took_away_leaves_the_archive_and_other_lines_stay():
    memory = told(make())
    assert archived(memory) == [line for text in TEXTS[1:] for line in text.splitlines()]
    assert [(line.timestamp, line.source_chunk) for line in memory.entries("_archive")] == [
        ("2024-02-01", 1)
    ] * 3 + [("2024-03-01", 2)] * 2
    kept = told(make(), [WRITTEN[0], ".", "- Marta drink water"])  # nothing is corrected
    assert len(archived(kept)) == 7


@pytest.mark.parametrize("retrieval", ["lexical", "dense", "hybrid"])
def test_lines_and_entries_are_ranked_as_one_list_and_lines_a_little_lower(retrieval, monkeypatch):
    monkeypatch.setattr(archive, "ALIKE", 2.0)  # nothing is outdated
    monkeypatch.setattr(ranking, "AGAIN", 0.0)
    step = make(retrieval=retrieval)
    memory = told(step)
    retriever = step.new_retriever(memory)
    flat = step.new_memory()
    for entry in sorted(
        [*memory.entries(), *memory.entries("_archive")], key=lambda entry: entry.created
    ):
        flat.apply(
            Operation(OperationKind.INSERT, "facts", entry.content, timestamp=entry.timestamp)
        )
    for question in ("Where is Rome?", "Marta city", "Oslo"):
        found = {
            hit.entry.content: (hit.score, hit.entry.section)
            for hit in retriever.search(question, 9)
        }
        assert list(found.values()) == sorted(found.values(), key=lambda pair: -pair[0])
        known = {
            hit.entry.content: hit.score for hit in step.new_retriever(flat).search(question, 9)
        }
        below = {
            text: score - 0.07 * (found[text][1] == "_archive") for text, score in known.items()
        }
        assert {text: score for text, (score, _) in found.items()} == pytest.approx(below) != {}
    assert not any(
        "live in" in passage for passage in find_passages(memory, retriever, "Oslo", 9).passages
    )
    assert retriever.search("Oslo tea", 9) == step.new_retriever(memory).search("Oslo tea", 9) != []
    assert {hit.entry.section for hit in retriever.search("Rome", 5, ["facts"])} == {"facts"}
    assert {hit.entry.section for hit in retriever.search("Rome", 5)} == {"facts", "_archive"}


@pytest.mark.parametrize("after", ["Rome", None])
@pytest.mark.parametrize(
    ("fact", "lines", "said"),
    [  # the place of the line that says the fact; every other line stays
        (
            "Marta city Oslo",
            ["Marta: I live in Oslo.", "Marta: My brother Tom works at the harbour of Oslo."],
            0,
        ),
        (
            "Marta city Oslo",
            ["Marta: My brother Tom works at the harbour of Oslo.", "Marta: I live in Oslo."],
            1,
        ),
        ("Marta city Oslo", ["Ivan: I live in Oslo.", "Marta: Oslo is my city now."], 1),
        (
            "Marta city Oslo",
            ["Marta: I live in Oslo and my sister Ana lives in Bergen with two children."],
            None,
        ),
        ("Marta city Oslo", ["Ivan: The harbour of Oslo was closed for three days."], None),
        (
            "Marta city Oslo",
            ["Marta: I live in Oslo and work as a nurse."],
            None,
        ),  # its other fact would be lost
        (
            "Marta lives in Oslo",
            ["Ivan: Oslo is where I live, too.", "Ivan: I live in Oslo."],
            None,
        ),
        (
            "User takes warfarin",
            ["User: I take warfarin.", "User: My aunt nearly died of warfarin and grapefruit."],
            0,
        ),
        ("User takes warfarin", ["User: I take 5 mg of warfarin and 10 mg of ramipril."], None),
        ("User boss Petra", ["User: Petra's number is 555 0101.", "User: My boss is Petra."], 1),
        ("Oslo", ["I was born in Oslo.", "It rains."], 0),
    ],
)
def test_a_line_leaves_only_if_it_says_the_fact_that_an_operation_named(fact, lines, said, after):
    place = 3
    entries = [
        Entry(f"line-{number}", "_archive", text, None, place) for number, text in enumerate(lines)
    ]
    fact = Entry("1", "facts", fact, None, place)
    line = line_of(fact, entries, after and Entry("1", "facts", after))
    assert line == (None if said is None else entries[said])
    step = make(texts=lines)
    change = f"= {fact.content}\n> {after}" if after else f"- {fact.content}"
    memory = told(step, [f"+ {fact.content}", change], ["\n".join(lines), "x"])
    assert archived(memory) == [text for number, text in enumerate(lines) if number != said] + ["x"]


@pytest.mark.parametrize("retrieval", ["lexical", "dense", "hybrid"])
@pytest.mark.parametrize(
    "written",
    [".", "= Marta city Rome\n> Marta city Oslo", "- Marta city Rome", "+ Marta city Oslo"],
)
def test_an_older_text_that_is_read_later_takes_nothing_away(retrieval, written):
    step = make(retrieval=retrieval)
    texts = ["Marta: I live in Rome.", "Marta: I live in Oslo."]
    memory = told(step, ["+ Marta city Rome", written], texts, ("2024-05-01", "2023-03-05"))
    hits = [
        hit.entry.content
        for hit in step.new_retriever(memory).search("Where does Marta live? In which city?", 5)
    ]
    assert archived(memory) == texts
    assert "Rome" in hits[0] and any("Oslo" in hit for hit in hits[1:])


@pytest.mark.parametrize(
    ("texts", "written", "left"),
    [  # corrected by the completion that wrote it: no line leaves
        (
            ["Marta: I live in Oslo."],
            ["+ Marta city Oslo\n= Marta city Oslo\n> Marta lives in Oslo"],
            ["Marta: I live in Oslo."],
        ),
        # said again, refined, and read twice: with the last call every line of the fact leaves
        (
            ["Marta: I have a dog Rex.", "Marta: My dog Rex is here.", "x"],
            ["+ Marta dog Rex", "+ Marta dog Rex", "- Marta dog Rex"],
            ["x"],
        ),
        (
            ["Marta: I drive a Volvo.", "Marta: My Volvo is red.", "x"],
            [
                "+ Marta drive Volvo",
                "= Marta drive Volvo\n> Marta drive red Volvo",
                "= Marta drive red Volvo\n> Marta drive Tesla",
            ],
            ["x"],
        ),
        (
            ["Marta: I like tea.", "Marta: I like tea.", "x"],
            ["+ Marta like tea", "+ Marta like tea", "- Marta like tea"],
            ["x"],
        ),
    ],
)
def test_every_line_of_a_fact_leaves_also_those_of_earlier_chunks(texts, written, left):
    assert archived(told(make(texts=texts), written, texts)) == left


def test_an_agent_without_an_archive_neither_shows_nor_finds_the_lines_that_a_memory_holds():
    memory = told(make())
    step = make(archive=False, view_tokens=64)
    retriever = step.new_retriever(memory)
    for _ in range(40):
        step.apply(memory, 9, Chunk("Rome"), f"+ Marta city number {len(memory)}")
    assert "Marta city" in step.prompt(memory, retriever, Chunk("Rome")).messages[-1]["content"]
    assert {hit.entry.section for hit in retriever.search("Rome Oslo tea", 99)} == {"facts"}
    with pytest.raises(InputError, match="_archive"):
        retriever.search("Rome", 5, ["_archive"])


ORDERS = [  # (time, chunk) of the newer one, and of the older one
    (("2024-05-01", 1), ("2023-03-05", 0)),
    (("2024-05-01", 0), ("2023-03-05", 1)),  # read earlier
    (("2024-05-01T09:00", 0), ("2024-05-01T08:00", 1)),
    (("2024-05-01T09:00+02:00", 1), ("2024-05-01T08:00+02:00", 0)),
    (("2024-05-01T08:30Z", 0), ("2024-05-01T09:00+02:00", 1)),
    (("2024-05-01", 1), ("2024-05-01T09:00", 0)),  # the same day, as far as can be told: by chunk
    (("2024-05", 1), ("2024-05-31", 0)),
    (("2024-05-01", 1), (None, 0)),
    ((None, 1), ("2024-05-01", 0)),
    ((None, 1), (None, 0)),
]


@pytest.mark.parametrize(("newer", "older"), ORDERS)
@pytest.mark.parametrize(
    "sections", [("_archive", "_archive"), ("facts", "_archive"), ("_archive", "facts")]
)
@pytest.mark.parametrize("retrieval", ["lexical", "dense", "hybrid"])
def test_the_newer_of_what_says_nearly_the_same_ranks_higher_and_the_older_is_still_there(
    retrieval, sections, newer, older
):
    for texts in (
        ("Marta: Rome is home.", "Marta: Oslo is home."),
        ("Marta: Oslo is home.", "Marta: Rome is home."),
    ):
        step = make(retrieval=retrieval)
        memory = step.new_memory()
        rows = sorted(zip(texts, sections, (newer, older), strict=True), key=lambda row: row[2][1])
        for text, section, (time, chunk) in rows:
            memory.apply(Operation(OperationKind.INSERT, section, text), chunk=chunk, time=time)
        memory.apply(
            Operation(OperationKind.INSERT, "_archive", "Ivan: It rains."),
            chunk=9,
            time="2024-09-01",
        )
        hits = [
            hit.entry.content
            for hit in step.new_retriever(memory).search("Where is home of Marta?", 5)
        ]
        assert hits[:2] == list(texts)


@pytest.mark.parametrize("retrieval", ["lexical", "dense", "hybrid"])
@pytest.mark.parametrize(
    "times", [("2024-01-05", "2024-03-05", "2024-06-01"), (None, None, None), ("2024-01-05",) * 3]
)
def test_who_goes_back_to_an_old_value_in_the_same_words_is_believed(retrieval, times):
    words = ("Oslo", "Rome", "Oslo")
    for texts in (
        [f"Marta: I live in {city} now." for city in words],
        [f"On Fridays we meet at {city}'s." for city in words],
    ):
        step = make(retrieval=retrieval)
        memory = told(step, [f"+ {text[:-1]}" for text in texts], texts, times)
        hits = [
            hit.entry
            for hit in step.new_retriever(memory).search(
                "Where does Marta live, and where do we meet?", 5
            )
        ]
        assert (hits[0].content.rstrip("."), hits[0].source_chunk, hits[0].timestamp) == (
            texts[2][:-1],
            2,
            times[2],
        )
        assert archived(memory) == texts  # each reading is a line


@pytest.mark.parametrize("retrieval", ["lexical", "dense", "hybrid"])
def test_a_second_fact_of_the_same_kind_does_not_hide_the_first(retrieval):
    step, dogs = make(retrieval=retrieval), ("Rex", "Bo", "Kim")
    texts = [f"Marta: I have a dog called {dog}." for dog in dogs]
    memory = told(step, [f"+ Marta dog {dog}" for dog in dogs], texts)
    hits = step.new_retriever(memory).search("What are the dogs of Marta called?", 9)
    lines = [hit.entry.content for hit in hits if hit.entry.section == "_archive"]
    assert (lines, len(hits)) == (texts[::-1], 6)


RANKS = [0.9, 0.8, 0.7, 0.6]  # fewer than places that an outdated one goes down


def test_losses_against_every_pair_by_hand():
    entries = [
        Entry(str(i), section, text, time, chunk)
        for i, (text, time, chunk, section) in enumerate(
            [
                ("w b", "2024-01-01", 0, "facts"),
                ("w c", "2024-01-02", 1, "facts"),
                ("d e", None, 2, "_archive"),
                ("w b c", "2023-01-01", 3, "_archive"),
            ]
        )
    ]
    cosines = word_cosines([entry.content for entry in entries])
    expected = [
        [1, 0.5, 0, 2 / 6**0.5],
        [0.5, 1, 0, 2 / 6**0.5],
        [0, 0, 1, 0],
        [2 / 6**0.5, 2 / 6**0.5, 0, 1],
    ]
    assert cosines == pytest.approx(np.array(expected)) and word_cosines([]).shape == (0, 0)
    # the last is older than the first two, .816 like each; the first two are .5 alike, and entries
    assert losses(entries, RANKS, [0.5, 0.5, 0.5, 0.5], cosines) == [0, 0, 0, 0.3]
    assert losses(entries, RANKS, [0.5, 0.5, 0.5, 0.59], cosines) == [0, 0, 0, 0.3]
    assert losses(entries, RANKS, [0.5, 0.5, 0.5, 0.7], cosines) == [0, 0, 0, 0.15]
    assert losses(entries, RANKS, [0.5, 0.5, 0.5, 0.7], cosines + 0.06) == [0.15, 0, 0, 0.15]
    assert losses(entries, RANKS, [0.5, 0.65, 0.5, 0.7], cosines) == [0, 0, 0, 0.3]
    # by chunk alone, as here without dates: .816 is enough, .6 is not
    undated = [replace(entry, timestamp=None) for entry in entries]
    assert losses(undated, RANKS, [0.5, 0.5, 0.5, 0.5], cosines) == [0.3, 0.3, 0, 0]
    assert losses(undated, RANKS, [0.5, 0.5, 0.5, 0.5], cosines - 0.2) == [0, 0, 0, 0]
    assert losses(entries, RANKS, [0.5, 0.5, 0.5, 0.5], cosines - 0.2) == [0, 0, 0, 0.3]


def test_lines_of_an_assistant_lose_more_and_entries_do_not(monkeypatch):
    monkeypatch.setattr(ranking, "AGAIN", 0.0)
    step = make(retrieval="lexical")
    memory, others = step.new_memory(), step.new_memory()
    for section in ("_archive", "facts"):
        for number, speaker in enumerate(("Assistant", "Ivan", "assistant", "Assistants")):
            for held, name in ((memory, speaker), (others, "Anna")):
                held.apply(
                    Operation(OperationKind.INSERT, section, f"{name}: Oslo {number}"), chunk=0
                )
    lost = {}
    for held in (memory, others):
        for hit in step.new_retriever(held).search("Oslo", 9):
            lost.setdefault(hit.entry.created, []).append(hit.score)
    assert [round(score - plain, 9) for _, (score, plain) in sorted(lost.items())] == [
        -0.15,
        0,
        -0.15,
        0,
        0,
        0,
        0,
        0,
    ]


def test_k_is_of_entries_and_of_lines():
    step = make(retrieval="hybrid")
    memory = told(step)
    retriever = step.new_retriever(memory)
    for k in (1, 2, 9):
        hits = Counter(hit.entry.section for hit in retriever.search("Rome city of Marta", k))
        assert hits == {name: min(k, len(memory.entries(name))) for name in ("facts", "_archive")}


def test_the_policy_neither_sees_nor_writes_it_and_it_costs_no_memory():
    memory, plain = told(make()), told(make(archive=False))
    prompts = [make().prompt(held, None, Chunk("x")).messages for held in (memory, plain)]
    assert prompts[0] == prompts[1] and archived(plain) == []
    assert (memory.tokens, len(memory), [e.id for e in memory]) == (
        plain.tokens,
        len(plain),
        [e.id for e in plain],
    )
    step = make()
    line = memory.entries("_archive")[0].id
    for codec, text in (
        ("compact", f"- {line}"),
        ("compact", f"= {line} Marta is a thief"),
        ("compact", "+_archive Marta is a thief"),
    ):
        other = AgentStep(
            AgentConfig(schema="facts", codec=codec, archive=False), step.encoder.tokenizer
        )
        outcome = other.apply(memory, 9, Chunk("x"), text)
        assert not outcome.results[0].ok and not outcome.changes
    assert "archive" not in str(tool_schemas(MemorySchema.load("mem_alpha")))


def test_lines_are_units_a_long_line_is_cut_and_a_label_stays_with_its_sentence():
    labelled = "\n  Rome is hot.\nLabel: city\nOslo is cold.\nLabel: city"
    lines = archived(told(make(), [""], ["Marta: I like tea. " * 30 + labelled]))
    assert lines[-2:] == ["Rome is hot.\nLabel: city", "Oslo is cold.\nLabel: city"]
    assert {line.replace("Marta: I like tea.", "").strip() for line in lines[:-2]} == {""}
    assert lines[0].count("tea") == 8  # as many as fit 48 tokens


def line(number, text, time="2024-01-01", chunk=None):
    place = number if chunk is None else chunk
    return Entry(f"line-{number}", "_archive", text, time, place, number, number)


def test_what_is_out_of_date_goes_down_eight_places_at_most():
    entries = [line(number, "user: x") for number in range(12)]
    ranks = [1 - 0.01 * place for place in range(12)]
    cosines = np.ones((12, 12), dtype=np.float32)  # all alike: all but the last are outdated
    lost = losses(entries, ranks, [0.5] * 12, cosines)
    assert lost == pytest.approx([0.08] * 4 + [0.3] * 7 + [0])


def test_an_answer_is_no_newer_version_of_what_was_told():
    cosines = np.ones((2, 2), dtype=np.float32)
    for newer, loss in (("user: b", 0.3), ("assistant: b", 0), ("b", 0.3)):
        entries = [line(0, "user: a"), line(1, newer)]
        assert losses(entries, [0.5, 0.5], [0.5, 0.5], cosines) == [loss, 0]


def test_below_the_first_places_a_turn_has_one_line_until_every_turn_has():
    step = make()
    memory = step.new_memory()
    tea = [f"user: tea {number}." for number in range(8)]
    others = ["assistant: tea of nets and boats", "user: tea, sugar, lemon\nassistant: no"]
    for chunk, text in enumerate(["\n".join(tea), *others]):
        archive_chunk(memory, chunk, Chunk(text), ())
    found = [hit.entry for hit in step.new_retriever(memory).search("tea", 20)]
    # four lines of the turn that fits best, then the other turns, then its four last lines
    assert [turn_of(entry, memory) for entry in found] == [
        *["line-0"] * 4,
        *["line-9", "line-8"],
        *["line-0"] * 4,
    ]
