"""What a reader saw and what a budget kept from it, by hand; failures are no zeros."""

import math
import random

import pytest
from examples import MARTA
from stubs import setting

from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.evaluation.asking import ask
from memalpha.evaluation.config import EvaluateArguments
from memalpha.evaluation.readers import check_budget, make_reader, room_of
from memalpha.evaluation.specs import ReaderKind, ReaderSpec
from memalpha.evaluation.systems.base import Kept, Room
from memalpha.evaluation.systems.full_context import FullContext, FullContextOptions
from memalpha.memory.memory import count_words
from memalpha.qa.readers import RecallReader, reader_messages
from memalpha.text import chat_ids
from memalpha.types import Answer, Chunk, Instance, Question

CITY, JOB = MARTA.questions[:2]
TWO = Instance("two", "text", MARTA.chunks, (CITY, JOB))
NONE = Instance("none", "text", MARTA.chunks, ())


def keeping(*passages: tuple[str, ...]) -> Kept:
    return Kept(lambda questions, room: list(passages[: len(questions)]), memory_tokens=0, left_out=lambda room: room.tokens)


def test_tokens_read_and_cut_are_means_over_the_questions():
    kept = keeping(("Marta in Rome now", "one two", "x"), ("Hugo rests",))
    first, empty = ask([TWO, NONE], [kept, kept], RecallReader(5, count_words), Room(5), count_words)
    assert [question.passages for question in first.questions] == [("Marta in Rome now", "x"), ("Hugo rests",)]
    assert first.reader_tokens == (5 + 2) / 2
    assert first.cut == 5 + round((2 + 0) / 2)  # what the finder left out, and two words of the first question
    assert [question.score for question in first.questions] == [1.0, 1.0]
    assert [(q.id, q.kind, q.text) for q in first.questions] == [("q0", "latest", CITY.text), ("q1", "removed", JOB.text)]
    assert first.questions[0].answer == "Marta in Rome now\nx"
    assert (empty.questions, empty.reader_tokens, empty.cut, empty.failed) == ((), 0, 5, None)


def test_a_question_without_an_id_goes_by_its_place():
    bare = Instance("bare", "text", MARTA.chunks, (Question("A?", ("a",)), Question("B?", ("b",))))
    (found,) = ask([bare], [keeping(("a",), ("a",))], RecallReader(5, count_words), Room(5), count_words)
    assert [question.id for question in found.questions] == ["0", "1"]


class Flaky(RecallReader):
    def read(self, requests):
        outcomes = [ServiceError("down") if request.question is JOB else Answer("Rome") for request in requests]
        raise PartialServiceError(outcomes)


def test_a_reader_that_fails_gives_no_score_and_says_why():
    kept = keeping(("Marta in Rome",), ("Hugo rests",))
    (found,) = ask([TWO], [kept], Flaky(5, count_words), Room(5), count_words)
    assert found.failed == "down"
    assert found.questions[0].score == 1.0 and found.questions[0].error is None
    assert math.isnan(found.questions[1].score) and found.questions[1].answer is None and found.questions[1].error == "down"


def test_a_reader_has_the_common_budget_unless_the_system_reads_the_window():
    where = setting([MARTA])
    base, recall = ReaderSpec(ReaderKind.BASE), ReaderSpec(ReaderKind.RECALL)
    assert room_of(base, 64, False, where.host, [MARTA]) == Room(64)
    assert room_of(recall, 64, True, where.host, [MARTA]) == Room(64)
    room = room_of(base, 64, True, where.host, [MARTA])
    assert room.window and 0 < room.tokens < where.host.positions
    longest = max((question.text for question in MARTA.questions), key=len)
    spare = 100 * " Marta"  # a window's worth of passages, question and answer fit into the model
    passages = (" Marta" * room.tokens,)
    words = "".join(message["content"] for message in reader_messages(longest, passages))
    asked = len(where.host.tokenizer(words).input_ids) + base.max_new_tokens
    assert asked <= where.host.positions < asked + len(where.host.tokenizer(spare).input_ids)


def test_what_is_read_of_many_lines_fits_the_window():
    """Line breaks inside a chunk are written out for the reader, which takes more tokens than they took."""
    rng = random.Random(0)
    for lines in (1, 4, 30):
        chunks = tuple(Chunk("\n".join(rng.choice(("Marta rests.", "Hugo?", "-")) for _ in range(lines))) for _ in range(60))
        long = Instance("long", "text", chunks, (CITY, Question("Who?" + " ?" * 50, ("x",))))
        where, base = setting([MARTA]), ReaderSpec(ReaderKind.BASE, window_tokens=600)
        room = room_of(base, 64, True, where.host, [long])
        found = FullContext(where, FullContextOptions()).write([long], 0)[0].find(long.questions, room)
        prompts = [reader_messages(q.text, passages) for q, passages in zip(long.questions, found, strict=True)]
        asked = [len(chat_ids(where.host.tokenizer, prompt)) for prompt in prompts]
        assert 600 - 80 < max(asked) + base.max_new_tokens <= 600


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ReaderSpec(ReaderKind.ENDPOINT, "big"), r"reader 'big' does not say how many tokens[\s\S]*window_tokens: 32768"),
        (ReaderSpec(ReaderKind.BASE, "tiny", window_tokens=40), "reader 'tiny' has a window of 40 tokens"),
    ],
)
def test_a_window_that_is_not_known_or_too_small_is_refused(spec, said):
    where = setting([MARTA])
    with pytest.raises(InputError, match=said):
        room_of(spec, 64, True, where.host, [MARTA])


def test_the_common_budget_must_fit_the_window_as_well():
    where = setting([MARTA])
    for spec in (ReaderSpec(ReaderKind.BASE), ReaderSpec(ReaderKind.ENDPOINT, "big", window_tokens=500)):
        room = room_of(spec, 64, True, where.host, [MARTA])
        check_budget(spec, room.tokens, where.host, [MARTA], "small")
        with pytest.raises(InputError, match=rf"reader '{spec.name}' on set 'small'[\s\S]* expected: at most {room.tokens}\n"):
            check_budget(spec, room.tokens + 1, where.host, [MARTA], "small")
    for spec in (ReaderSpec(ReaderKind.RECALL), ReaderSpec(ReaderKind.ENDPOINT)):  # none, and not known
        check_budget(spec, 10**6, where.host, [MARTA], "small")


def test_readers_read_within_their_budget():
    where = setting([MARTA])
    arguments = EvaluateArguments(endpoint_url="http://127.0.0.1:9", endpoint_model="m")
    for kind in ReaderKind:
        reader = make_reader(ReaderSpec(kind), 7, arguments, where.host, where.count)
        assert reader.budget_tokens == 7
    (answer,) = make_reader(ReaderSpec(ReaderKind.BASE), 7, arguments, where.host, where.count).read(
        [type("R", (), {"question": CITY, "passages": ("Rome", "Oslo " * 9)})()]
    )
    assert "Notes:\nRome\n" in answer.text and "Oslo" not in answer.text
