"""The answer of a memory: what was said, as it was said, that it does not know, or what a reader is
sure of."""

import json
import math

import pytest

from memalpha import Journal, MemorySchema, Namespace, Operation, OperationKind, Origin
from memalpha.cli import run
from memalpha.qa.readers import ModelReader
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.embedders import make_embedder
from memalpha.types import Entry, Span
from memalpha.use.agent import MemoryAgent
from memalpha.use.passages import LEAST_NEARNESS, Passage, is_known, is_outdated, nearness

LONG = (
    "I have thought about the garden all week. The beans went in on Monday, in two rows by the wall."
    " The tomatoes stay in the greenhouse until the frost is over, as my neighbour Halvard told me."
    " On Friday the quince tree comes, and it needs a deep hole, two buckets of compost and a stake."
)
CHATS = [
    {
        "id": "garden",
        "messages": [
            ("user", "Hello there.", "2024-03-05T10:00:00Z"),
            ("assistant", "What do you plant?", "2024-03-05T10:01:00Z"),
            ("user", LONG, "2024-03-05T10:02:00Z"),
            ("assistant", "A fine plan. Dig early.", "2024-03-05T10:03:00Z"),
        ],
    },
    {
        "id": "travel",
        "messages": [
            ("user", "Which visa do I need for Peru?", "2024-03-05T10:02:30Z"),
            ("assistant", "None for ninety days in Peru.", "2024-03-05T10:02:40Z"),
            ("user", "I live in Oslo.", "2024-03-06T09:00:00Z"),
        ],
    },
    {"id": "later", "messages": [("user", "I live in Rome.", "2024-05-07T09:00:00Z")]},
]


def message(chat, place, role, text, time):
    return {"id": f"{chat}-{place}", "role": role, "content": text, "created_at": time}


@pytest.fixture(params=[2000, 1], ids=["in the process", "by an index on disk"])
def store(request, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("memalpha.use.store.INDEXED", request.param)
    chats = [
        {
            "id": chat["id"],
            "messages": [
                message(chat["id"], place, *said) for place, said in enumerate(chat["messages"])
            ],
        }
        for chat in CHATS
    ]
    (tmp_path / "chats.json").write_text(json.dumps(chats))
    store = str(tmp_path / "m.db")
    options = ["--store", store, "--user", "me", "--kind", "messages"]
    assert run(["import", str(tmp_path / "chats.json"), *options]) == 0
    capsys.readouterr()
    return store


@pytest.fixture
def agent(store):
    with MemoryAgent.without_model(store=store, retrieval="lexical") as agent:
        yield agent


def test_a_turn_that_was_cut_is_whole_again_and_names_day_and_source(agent):
    with agent.searching("me") as (memory, _):
        cut = [line for line in memory.entries("_archive") if "Halvard" in line.content]
    assert cut and LONG not in cut[0].content  # the import has cut it
    (best, *_) = agent.ask("Who is Halvard?", namespace="me").passages
    assert best.text == f"User: {LONG}"
    assert best.text[slice(*best.fits)] == (
        "The tomatoes stay in the greenhouse until the frost is over, as my neighbour Halvard told"
        " me."
    )
    assert (best.time[:10], best.source) == ("2024-03-05", "messages/garden/garden-2")
    assert (best.entry, best.chunk) == (cut[0], cut[0].source_chunk)
    assert (best.before, best.after, best.newer) == ("", "", None)  # it is long


def test_a_question_is_shown_with_its_answer_once_and_nothing_of_another_chat(agent):
    passages = agent.ask("visa for Peru", namespace="me").passages
    peru = [each for each in passages if "Peru" in each.text]
    assert [(each.before, each.text, each.after) for each in peru] in (
        [("", "User: Which visa do I need for Peru?", "Assistant: None for ninety days in Peru.")],
        [("User: Which visa do I need for Peru?", "Assistant: None for ninety days in Peru.", "")],
    )  # the first message of the chat stands between two of another; the next is of another day
    (hello, *_) = agent.ask("Hello", namespace="me").passages
    assert (hello.before, hello.after) == ("", "Assistant: What do you plant?")


def test_an_older_statement_names_the_newer_one(agent):
    passages = {each.text: each for each in agent.ask("Where do I live?", namespace="me").passages}
    rome, oslo = passages["User: I live in Rome."], passages["User: I live in Oslo."]
    assert rome.newer is None and oslo.newer == rome.entry


@pytest.mark.parametrize("indexed", [2000, 1])
def test_a_block_is_a_passage_and_has_nothing_newer(tmp_path, monkeypatch, indexed):
    monkeypatch.setattr("memalpha.use.store.INDEXED", indexed)
    written = [
        Operation(OperationKind.REPLACE, "core", content="User lives in Oslo"),
        Operation(OperationKind.INSERT, "semantic", content="User lives in Rome"),
    ]
    with Journal.open(tmp_path / "m.db") as journal:
        durable = journal.memory(Namespace("marta"), MemorySchema.load("small_core"))
        with durable.writing(Origin("test")) as memory:
            assert all(memory.apply(operation).ok for operation in written)
    with MemoryAgent.without_model(store=tmp_path / "m.db") as agent:
        passages = agent.ask("Where does the user live?", namespace="marta").passages
    assert {passage.text for passage in passages} == {"User lives in Oslo", "User lives in Rome"}
    assert all(passage.newer is None for passage in passages)


def test_no_more_than_three_passages_and_events_are_those_of_the_history(agent):
    reply = agent.ask("I live in Peru with a plan, hello", namespace="me")
    assert len(reply.passages) == 3 < len(reply.entries)
    history = agent.history(namespace="me")
    found = agent.events_at([3, 1, 99], namespace="me")
    assert sorted(found) == [1, 3] and agent.events_at([1], namespace="nobody") == {}
    for number, event in found.items():
        whole = history[number - 1]
        assert (event.origin, event.time, event.after) == (whole.origin, whole.time, whole.after)


def test_a_long_paste_is_cut_around_what_was_found():
    lines = [
        f"Line {number} of the list names the town number {number * 7}." for number in range(99)
    ]
    with MemoryAgent.without_model(retrieval="lexical") as agent:
        agent.add([{"role": "user", "content": " ".join(lines)}], "2024-03-05")
        best, second, *_ = agent.ask("the town number 350").passages
    assert lines[50] in best.text and best.text[slice(*best.fits)] == lines[50]
    assert best.text.startswith("… User: Line") and best.text.endswith(" …")
    assert 400 < len(best.text) < 700
    both = set(best.text.split(". ")) & set(second.text.split(". "))
    assert both <= {"…"}  # no line stands in two


@pytest.mark.parametrize(
    "embedder, near, known",
    [
        ("minilm", LEAST_NEARNESS["minilm"], True),
        ("minilm", LEAST_NEARNESS["minilm"] - 1e-6, False),
        ("minilm", math.inf, True),  # of a search by words alone
        ("another", 0.0, True),
        ("another", -math.inf, False),  # nothing was found
    ],
)
def test_what_is_far_from_the_question_is_not_known(embedder, near, known):
    assert is_known(RetrievalConfig(embedder=embedder), near) is known


def test_nearness_is_the_cosine_of_the_line_or_of_its_sentence():
    embedder = make_embedder("hashing")
    lines = ["User: Rain all day. I live in Oslo.", "User: Tea is good."]
    with MemoryAgent.without_model(retrieval="hybrid", embedder="hashing") as agent:
        agent.add(lines[0])
        agent.add(lines[1])
        with agent.searching() as (_, retriever):
            hits = retriever.search("Oslo, I live in", 5)
            near = nearness(retriever, "Oslo, I live in", hits)
            assert nearness(retriever, "Oslo", []) == -math.inf
    assert hits[0].entry.content == lines[0]
    query = embedder.embed(["Oslo, I live in"])[0]
    whole, sentence = embedder.embed([lines[0], "I live in Oslo."]) @ query
    assert near == pytest.approx(max(whole, sentence)) and sentence > whole


def test_what_comes_nearest_is_shown_as_such(store, capsys, monkeypatch):
    monkeypatch.setattr("memalpha.use.agent.is_known", lambda *_: False)
    options = ["--store", store, "--user", "me", "--retrieval", "lexical"]
    assert run(["ask", "Where do I live?", *options]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "I do not know. What comes nearest:" and told[1].startswith("1. 2024-0")


@pytest.mark.parametrize(
    "answer, probability, by_reader, text",
    [
        ("Rome", 0.85, True, "Rome"),
        ("Rome", 0.84, False, "[2024-05-07T09:00:00+00:00] User: I live in Rome."),
        (
            "Lima",
            0.99,
            False,
            "[2024-05-07T09:00:00+00:00] User: I live in Rome.",
        ),  # nobody said it
        (
            "2024",
            0.99,
            False,
            "[2024-05-07T09:00:00+00:00] User: I live in Rome.",
        ),  # its date alone
        ("unknown", 0.99, True, "unknown"),
    ],
)
def test_a_reader_answers_where_it_is_sure(agent, answer, probability, by_reader, text):
    weighed = []

    def probabilities(chats, answers):
        weighed.extend(answers)
        return [probability] * len(chats)

    count = agent.step.encoder.count
    agent.reader = ModelReader(
        lambda chats: [answer] * len(chats), 500, count, probabilities=probabilities, sure=0.85
    )
    reply = agent.ask("Where do I live now, in Rome?", namespace="me")
    assert (reply.by_reader, reply.text.splitlines()[0]) == (by_reader, text)
    assert weighed == [answer] * (answer != "unknown")
    assert reply.probability == (None if answer == "unknown" else probability)
    assert (
        reply.known == (answer != "unknown") and reply.passages[0].text == "User: I live in Rome."
    )
    if answer != "unknown":
        assert reply.source.content == "User: I live in Rome."


def test_a_person_reads_it_in_one_look(store, capsys, monkeypatch):
    options = ["--store", store, "--user", "me", "--retrieval", "lexical"]
    assert run(["ask", "Which visa for Peru?", *options]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "   > Assistant: None for ninety days in Peru." in told or (
        "   > User: Which visa do I need for Peru?" in told
    )
    assert told[0].startswith("1. 2024-03-05  messages/travel/travel-")
    assert run(["ask", "Who is Halvard?", *options]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[2].startswith("   > The tomatoes stay in the greenhouse until")
    assert run(["ask", "Who is Halvard?", *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["known"], told["by_reader"], told["probability"]) == (True, False, None)
    first = told["passages"][0]
    assert set(first) == set("entry score text fits before after time source chunk newer".split())
    assert first["source"] == "messages/garden/garden-2" and "Halvard" in first["text"]


@pytest.mark.parametrize(
    "answer, newer, outdated",
    [
        ("Oslo", ["I live in Rome.", "I live in Rome."], True),
        ("Oslo", ["I live in Rome.", None], False),  # one that says it has no newer one
        ("Oslo", ["I left Oslo.", "I live in Rome."], False),  # a newer one says it, too
        ("Lima", ["I live in Rome.", "I live in Rome."], False),  # no passage says it
    ],
)
def test_an_answer_is_outdated_if_all_that_say_it_are(answer, newer, outdated):
    def passage(newer):
        entry = Entry("1", "facts", "I live in Oslo.")
        later = newer and Entry("2", "facts", newer)
        return Passage(entry, 1.0, entry.content, Span(0, 15), newer=later)

    assert is_outdated(answer, list(map(passage, newer))) is outdated


@pytest.mark.parametrize(
    ("question", "older", "newer", "marked"),
    [
        # what is asked for stands in both
        ("Wann ist mein Zahnarzttermin?", "Der Zahnarzttermin ist am 12. Mai.",
         "Der Zahnarzttermin wurde auf den 20. Mai verschoben.", True),
        ("How much aspirin do I take?", "I take 50 milligrams of aspirin.",
         "The doctor raised my aspirin to 75 milligrams.", True),
        # alike, and of something else
        ("Wann ist mein Zahnarzttermin?", "Der Zahnarzttermin ist am 12. Mai.",
         "Mein Lieblingsgericht ist Spinat.", False),
        ("\u6211\u5bf9\u4ec0\u4e48\u8fc7\u654f\uff1f", "\u6211\u5bf9\u82b1\u751f\u8fc7\u654f\u3002",
         "\u8c22\u8c22\uff0c\u5f88\u6709\u5e2e\u52a9\u3002", False),
        # a question states nothing
        ("Where do I live?", "I live in Oslo.", "Do I live in Oslo?", False),
    ],
)  # fmt: skip
def test_a_newer_statement_is_of_what_is_asked_for(question, older, newer, marked):
    with MemoryAgent.without_model() as agent:
        agent.add(f"Marta: {older}", time="2024-01-01", namespace="m")
        agent.add(f"Marta: {newer}", time="2024-05-01", namespace="m")
        passages = {each.text: each for each in agent.ask(question, namespace="m").passages}
        found = passages[f"Marta: {older}"].newer
        assert (found is not None and found.content == f"Marta: {newer}") is marked
