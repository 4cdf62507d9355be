"""PerLTQA (Du et al., arXiv 2402.16288): questions about the profile, relations, events and dialogues of fictional persons.

Reads ``perltqa*.json``, ``[{person: {profile[], social_relationship[{key: []}], events[{key: []}], dialogues[{key: []}]}}]`` with
items ``{Question, Answer, "Reference Memory", "Memory Anchors"}``, and ``perltmem*.json``, ``{person: {profile,
profile_description, social_relationship, events, dialogues}}`` or a list of these. The input is the first file or the folder.

As in Mem-alpha (arXiv 2509.25911): one instance per person; an event with its dialogues is a dated chunk; the metric is the share
of memory anchors in the answer. Profile and relations come first. Kinds are the four sections. Evidence is the chunks of the
``Reference Memory``, None if not found (``notes``). Reasons to skip: ``empty answer`` (four fifths of the English questions),
``person without memories``, ``malformed`` (including unknown sections). Departures: all questions are asked, not 100 a person
(option ``max_questions``); a memory longer than a chunk is cut.
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from memalpha.data.fields import EMPTY_ANSWER, Answers, Cleaned, Scalar, Text, checked, scalar
from memalpha.data.packing import cut
from memalpha.data.rows import Row, data_file, data_files, file_name, json_items, packed_or_not
from memalpha.data.source import CommonOptions, LoadResult, Source, by_row, read_questions
from memalpha.data.wording import time_of
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

SECTIONS = ("profile", "social_relationship", "events", "dialogues")
"""Sections of the questions, and their kinds."""

_FIELDS = {"Question", "Answer", "Reference Memory", "Memory Anchors"}
_KEY = re.compile(r"[0-9]+(?:_[0-9]+)+(?:#[0-9]+)?")


@dataclass(frozen=True, slots=True)
class PerltqaOptions(CommonOptions):
    """How PerLTQA becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        memory: File of the memories ("" = input name with ``perltmem`` for ``perltqa``).
    """

    chunk_tokens: PositiveInt = 2048
    memory: str = ""


def load_perltqa(source: str, options: PerltqaOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load PerLTQA person by person; InputError if one of the two files cannot be read."""
    asked, *others = data_files(source, "perltqa*.json")
    if others:
        names = ", ".join(path.name for path in (asked, *others))
        raise InputError(f"{source} has the questions of several releases: {names}", expected="one of these files as input")
    beside = options.memory or str(packed_or_not(asked.with_name(asked.name.replace("perltqa", "perltmem"))))
    if Path(beside) == asked:
        raise InputError(f"the memories of {asked} are not told apart from its questions", expected="option 'memory'")
    memories = _memories(data_file(beside))

    def person(row: Row, options: PerltqaOptions, count: TokenCounter, result: LoadResult) -> Instance:
        return _instance(row, memories, options, count, result)

    load = by_row(person, _held, lambda source, options: _persons(asked))
    return load(source, options, seed, count_tokens)


def _persons(path: Path) -> Iterator[Row]:
    shown = file_name(path)
    for index, item in enumerate(json_items(path)):
        where = f"{shown} item {index}"
        if not isinstance(item, Mapping):
            yield Row(where, item)
        elif isinstance(item.get("profile"), Mapping):  # if a memory file is a list, an item is one person
            yield Row(where, {"name": item["profile"].get("Protagonist"), "data": item})
        else:
            yield from (Row(f"{where} {name!r}", {"name": name, "data": data}) for name, data in item.items())


def _memories(path: Path) -> dict[str, Any]:
    rows = (row.data for row in _persons(path) if isinstance(row.data, Mapping))
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(row["name"] if isinstance(row["name"], str) else "", row["data"])
    if not found.keys() - {""}:
        raise SchemaError(f"{file_name(path)} holds no memories of anybody", expected="{person: {profile, events, ...}}")
    return found


def _held(data: Any) -> int:
    return sum(1 for _ in _asked(data["data"])) if isinstance(data, Mapping) else 0


def _asked(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield (section, question) pairs; from an unknown section, items that look like questions."""
    if not isinstance(data, Mapping):
        return
    named = {key: "_".join(str(key).lower().replace("_", " ").split()) for key in data}
    for section in SECTIONS:
        for key in (key for key, name in named.items() if name == section):
            yield from ((section, asked) for asked in _opened(data[key]))
    for key in (key for key, name in named.items() if name not in SECTIONS):
        yield from ((str(key), asked) for asked in _opened(data[key]) if _is_question(asked))


def _opened(section: Any) -> Iterator[Any]:
    if section is None or section in ("", [], {}):
        return
    for item in section if isinstance(section, list) else [section]:
        lists = isinstance(item, Mapping) and not _is_question(item) and any(isinstance(value, list) for value in item.values())
        for value in item.values() if lists else [[item]]:
            yield from value if isinstance(value, list) else [value]


def _is_question(item: Any) -> bool:
    return isinstance(item, Mapping) and not _FIELDS.isdisjoint(item)


def _section(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        try:
            return json.loads(value) if value.lstrip().startswith('{"') else ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"is text that spells no object: {error}") from error
    return value or {}


def _anchors(value: Any) -> list[str]:
    """The distinct anchors; semicolons inside one are replaced, because ";" joins them."""
    phrases = [key for item in (value if isinstance(value, list) else []) if isinstance(item, Mapping) for key in item]
    cleaned = (" ".join(html.unescape(scalar(phrase)).replace(";", ",").split()) for phrase in phrases)
    return list(dict.fromkeys(filter(None, cleaned)))


def _joined(separator: str) -> BeforeValidator:
    return BeforeValidator(lambda value: separator.join(map(scalar, value)) if isinstance(value, list) else scalar(value))


class _Name(BaseModel):
    name: Text


class _Qa(BaseModel):
    question: Annotated[Text, Field(alias="Question")]
    answer: Annotated[Answers, Field(alias="Answer")] = ()
    reference: Annotated[str, _joined(" "), Field(alias="Reference Memory")] = ""
    anchors: Annotated[list[str], BeforeValidator(_anchors), Field(alias="Memory Anchors")] = []


class _Relation(BaseModel):
    who: Annotated[Scalar, Field(alias="Supporting Characters")] = ""
    how: Annotated[Scalar, Field(alias="Relationship")] = ""
    what: Annotated[Scalar, Field(alias="Description")] = ""


class _Event(BaseModel):
    time: Annotated[Scalar, Field(alias="Creation Time")] = ""
    summary: Scalar = ""
    content: Scalar = ""


class _Talk(BaseModel):
    contents: Any = None
    events: Any = None

    def lines(self) -> Iterator[str]:
        for when, said in (self.contents if isinstance(self.contents, Mapping) else {}).items():
            yield f"[Dialogue, {time_of(scalar(when))}]"
            yield from map(scalar, said if isinstance(said, list) else [said])


class _Memories(BaseModel):
    profile: Annotated[dict[Cleaned, Annotated[str, _joined(", ")]], BeforeValidator(_section)] = {}
    profile_description: Scalar = ""
    social_relationship: Annotated[dict[Cleaned, _Relation], BeforeValidator(_section)] = {}
    events: Annotated[dict[Cleaned, _Event], BeforeValidator(_section)] = {}
    dialogues: Annotated[dict[Cleaned, _Talk], BeforeValidator(_section)] = {}


class _Part(NamedTuple):
    text: str
    keys: tuple[str, ...]
    time: str | None = None


def _parts(person: _Memories) -> Iterator[_Part]:
    lines = [f"{key}: {value}" for key, value in person.profile.items() if value]
    if lines or person.profile_description:
        told = filter(None, ["[Profile]", *lines, person.profile_description])
        yield _Part("\n".join(told), tuple(f"profile {key}" for key in person.profile))
    if circle := person.social_relationship:
        known = [
            f"{about.who} ({about.how}): {about.what}" if about.how else f"{about.who}: {about.what}" for about in circle.values()
        ]
        yield _Part("\n".join(["[People around]", *known]), tuple(f"circle {key}" for key in circle))
    # A dialogue belongs to the event it names, else to the event whose key is its prefix.
    event_of = {
        key: talk.events if isinstance(talk.events, str) and talk.events else key.partition("#")[0]
        for key, talk in person.dialogues.items()
    }
    for key, event in person.events.items():
        time, talks = time_of(event.time), [name for name, of in event_of.items() if of == key]
        header = f"[Event, {time}] {event.summary}" if time else f"[Event] {event.summary}"
        said = [line for name in talks for line in person.dialogues[name].lines()]
        text = "\n".join(filter(None, [header.strip(), event.content, *said]))
        yield _Part(text, tuple(f"event {name}" for name in (key, *talks)), time)
    for name in (name for name, of in event_of.items() if of not in person.events):
        yield _Part("\n".join(person.dialogues[name].lines()) or name, (f"event {name}",))


def _instance(row: Row, memories: Mapping[str, Any], options: PerltqaOptions, count: TokenCounter, result: LoadResult) -> Instance:
    if not isinstance(row.data, Mapping) or not isinstance(row.data["data"], Mapping):
        raise SchemaError(f"{row.where} is no person", expected="an object of a person's questions")
    name, asked = checked(_Name, row.data, row.where).name, list(_asked(row.data["data"]))
    if name not in memories:
        result.skip("person without memories", len(asked))
        return Instance(name, "perltqa", (Chunk(name),), ())
    where = f"memories of {name!r}"
    person = checked(_Memories, memories[name], where)
    chunks: list[Chunk] = []
    places: dict[str, list[int]] = {}
    try:
        parts = list(_parts(person))
    except ValueError as error:  # content of a dialogue
        raise SchemaError(f"{where}: {error}") from error
    for part in parts:
        pieces = cut(part.text, options.chunk_tokens, count)
        for key in part.keys:
            places.setdefault(key, []).extend(range(len(chunks), len(chunks) + len(pieces)))
        chunks += [Chunk(piece, part.time) for piece in pieces]
    if not chunks:
        raise SchemaError(f"{where} are empty", expected="a profile or events")

    def question(item: Any, where: str) -> Question | str:
        section, data = item
        if section not in SECTIONS:
            raise SchemaError(f"{where} is of section {section!r:.40}", expected=f"one of {', '.join(SECTIONS)}")
        qa = checked(_Qa, data, where)
        if not qa.answer:
            return EMPTY_ANSWER
        side = "circle" if section == "social_relationship" else "event"
        keys = [f"profile {qa.reference}"] if section == "profile" else [f"{side} {key}" for key in _KEY.findall(qa.reference)]
        evidence = tuple(sorted({place for key in keys for place in places.get(key, [])})) or None
        result.notes["evidence that is not there"] += evidence is None
        golds = ("; ".join(qa.anchors),) if qa.anchors else qa.answer
        return Question(qa.question, golds, "parts", section, evidence=evidence)

    return Instance(name, "perltqa", tuple(chunks), read_questions(asked, row.where, result, question))


SOURCES = (Source("perltqa", "PerLTQA, perltqa*.json with perltmem*.json beside it", load_perltqa, PerltqaOptions),)
