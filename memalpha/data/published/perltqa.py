"""PerLTQA: a person is an instance; an event or a dialogue has its own chunk or chunks."""

import html
import itertools
import re
from collections.abc import Iterator, Mapping

from memalpha.data.chunks import index_chunks
from memalpha.data.rows import Row, existing_file, read_document
from memalpha.data.source import Draft, SkippedItem, Source, TextOptions, read_each
from memalpha.errors import SchemaError
from memalpha.qa.metrics import AnswerMetric, contained_share, golden_answers
from memalpha.text.times import to_iso
from memalpha.types import Answer, Chunk, Question, TokenCounter
from memalpha.units import cut_text

_KEY = re.compile(r"[0-9]+(?:_[0-9]+)+(?:#[0-9]+)?")


def _load_perltqa(
    source: str, options: TextOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | SkippedItem]:
    """Load PerLTQA person by person; InputError if one of the two files cannot be read."""
    asked = existing_file(source)
    memory = asked.with_name(asked.name.replace("perltqa", "perltmem"))
    memories = read_document(existing_file(str(memory)))
    if memory == asked or not isinstance(memories.data, Mapping):
        raise SchemaError(
            f"{memory} holds no memories",
            expected="perltqa*.json with perltmem*.json beside it",
        )
    given = read_document(asked)
    for item in given.items() if isinstance(given.data, list) else [given]:
        names = list(item.data) if isinstance(item.data, Mapping) else []
        people = [(name, item[name]) for name in names] or [("", item)]
        yield from read_each(people, _perltqa, memories, options, count)


def _perltqa(
    named: tuple[str, Row], memories: Row, options: TextOptions, count: TokenCounter
) -> Draft:
    name, person = named
    asked = [("profile", qa) for qa in person["profile"].items(needed=False)]
    for section in ("social_relationship", "events", "dialogues"):
        keyed = [item.fields().values() for item in person[section].items(needed=False)]
        for values in itertools.chain.from_iterable(keyed):
            asked += [(section, qa) for qa in values.items(needed=False)]
    if memories[name].data is None:
        return Draft(name, "perltqa", (), [SkippedItem("person without memories", len(asked))])
    remembered = _memories(Row(f"memories of {name!r}", memories[name].data))
    memory = index_chunks(
        (Chunk(piece, time), keys)
        for text, time, keys in remembered
        for piece in cut_text(text, options.chunk_tokens, count)
    )
    if not memory.chunks:
        raise SchemaError(f"the memories of {name!r} are empty", expected="a profile or events")

    def question(item: tuple[str, Row]) -> Question:
        section, qa = item
        text = qa["Question"].text()
        answers = qa["Answer"].answers()
        reference = _join_parts(qa["Reference Memory"], " ")
        anchors = _anchors(qa["Memory Anchors"])
        side = "circle" if section == "social_relationship" else "event"
        keys = [f"{side} {key}" for key in _KEY.findall(reference)]
        evidence = memory.evidence([f"profile {reference}"] if section == "profile" else keys)
        golds = ("; ".join(anchors),) if anchors and answers else answers
        return Question(text, golds, options.metric or "parts", section, evidence=evidence)

    return Draft(name, "perltqa", memory.chunks).ask(asked, question)


def _join_parts(row: Row, separator: str) -> str:
    values = row.items() if isinstance(row.data, list) else [row]
    return separator.join(map(Row.scalar, values))


def _anchors(row: Row) -> list[str]:
    anchors = row.items() if isinstance(row.data, list) else []
    fields = [anchor.fields() for anchor in anchors if isinstance(anchor.data, Mapping)]
    phrases = (html.unescape(name).replace(";", ",") for name in itertools.chain(*fields))
    return list(dict.fromkeys(filter(None, (" ".join(phrase.split()) for phrase in phrases))))


def _memories(row: Row) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield the text, time and keys of the profile, the circle, and each event with its
    dialogues, which are apart: each has its time.
    """
    profile = {key: _join_parts(value, ", ") for key, value in row["profile"].fields().items()}
    lines = [f"{key}: {value}" for key, value in profile.items() if value]
    described = row["profile_description"].scalar()
    if lines or described:
        text = "\n".join(filter(None, ["[Profile]", *lines, described]))
        yield text, None, [f"profile {key}" for key in profile]
    circle = _circle(row["social_relationship"])
    if circle:
        yield (
            "\n".join(["[People around]", *circle.values()]),
            None,
            [f"circle {key}" for key in circle],
        )
    dialogues = row["dialogues"].fields()
    # A dialogue belongs to the event it names, else to the event whose key is its prefix.
    event_of = {
        key: talk["events"].data or key.partition("#")[0] for key, talk in dialogues.items()
    }
    events = row["events"].fields()
    for key, event in events.items():
        written = event["Creation Time"].scalar()
        title = f"[Event, {to_iso(written) or written}]" if written else "[Event]"
        lines = [f"{title} {event['summary'].scalar()}".strip(), event["content"].scalar()]
        yield "\n".join(filter(None, lines)), to_iso(written), [f"event {key}"]
        yield from _talks({name: dialogues[name] for name in dialogues if event_of[name] == key})
    yield from _talks({name: dialogues[name] for name in dialogues if event_of[name] not in events})


def _circle(row: Row) -> dict[str, str]:
    """Return a line for each person around; some circles are Python text."""
    lines = {}
    for key, each in row.evaluated("people").fields().items():
        who = each["Supporting Characters"].scalar()
        how = each["Relationship"].scalar()
        lines[key] = f"{who} ({how}): {each['Description'].scalar()}".replace(" ()", "")
    return lines


def _talks(dialogues: Mapping[str, Row]) -> Iterator[tuple[str, str | None, list[str]]]:
    for name, talk in dialogues.items():
        for when, lines in talk["contents"].fields().items():
            header = f"[Dialogue, {to_iso(when) or when}]"
            text = "\n".join([header, *map(Row.scalar, lines.items())])
            yield text, to_iso(when), [f"event {name}"]


def parts(question: Question, answer: Answer) -> float:
    """Share of an accepted answer's ``;``-separated parts in the answer; best over the answers.
    Source: PerLTQA, as published.
    """
    return max(contained_share(gold.split(";"), answer.text) for gold in golden_answers(question))


PARTS_METRIC = AnswerMetric(parts, teachable=True)


SOURCES = [
    Source(
        "perltqa",
        "PerLTQA, perltqa*.json with perltmem*.json beside it",
        _load_perltqa,
        TextOptions,
    ),
]
