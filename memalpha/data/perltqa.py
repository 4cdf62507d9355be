"""PerLTQA (Du et al., arXiv 2402.16288): questions about the profile, relations, events and dialogues of fictional persons.

As in Mem-alpha (arXiv 2509.25911), a person is an instance, an event with its dialogues a dated chunk, and the metric the share of
memory anchors in the answer. Profile and relations come first. Evidence is the chunks of the ``Reference Memory``.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from memalpha.data.packing import chunked, cut
from memalpha.data.rows import EMPTY_ANSWER, Answers, Cleaned, Row, Rows, Scalar, checked, data_files, json_document, scalar
from memalpha.data.source import CommonOptions, LoadResult, Source, read_questions, read_rows
from memalpha.data.wording import time_of
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

_KEY = re.compile(r"[0-9]+(?:_[0-9]+)+(?:#[0-9]+)?")


@dataclass(frozen=True, slots=True)
class PerltqaOptions(CommonOptions):
    """How PerLTQA becomes instances."""

    chunk_tokens: PositiveInt = 2048  # most tokens of a chunk


def load_perltqa(source: str, options: PerltqaOptions, seed: int, count: TokenCounter, result: LoadResult) -> Iterator[Instance]:
    """Load PerLTQA person by person; InputError if one of the two files cannot be read."""
    asked, *others = data_files(source, "perltqa*.json")
    if others:
        names = ", ".join(path.name for path in (asked, *others))
        raise InputError(f"{source} has the questions of several releases: {names}", expected="one of these files as input")
    memory = asked.with_name(asked.name.replace("perltqa", "perltmem"))
    if memory == asked or not isinstance(memories := json_document(str(memory)), Mapping):
        raise SchemaError(f"{memory} holds no memories", expected="perltqa*.json with perltmem*.json beside it")

    given = json_document(str(asked))
    rows = (
        Row(f"{asked.name} item {index} {name!r}", (name, data))
        for index, item in enumerate(given if isinstance(given, list) else [given])
        for name, data in (item.items() if isinstance(item, Mapping) else [("", item)])
    )
    return read_rows(rows, result, lambda row: _instance(row, memories, options, count, result))


def _joined(separator: str) -> BeforeValidator:
    return BeforeValidator(lambda value: separator.join(map(scalar, value)) if isinstance(value, list) else scalar(value))


def _anchors(value: Any) -> list[str]:
    phrases = [key for item in (value if isinstance(value, list) else []) if isinstance(item, Mapping) for key in item]
    cleaned = (" ".join(html.unescape(scalar(phrase)).replace(";", ",").split()) for phrase in phrases)
    return list(dict.fromkeys(filter(None, cleaned)))


def _literal(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) else value  # some circles are Python text


class _Person(BaseModel):
    profile: Rows = []
    social_relationship: list[dict[str, Rows]] = []
    events: list[dict[str, Rows]] = []
    dialogues: list[dict[str, Rows]] = []

    def questions(self) -> list[tuple[str, Any]]:
        told = [("social_relationship", self.social_relationship), ("events", self.events), ("dialogues", self.dialogues)]
        keyed = ((section, asked) for section, items in told for item in items for value in item.values() for asked in value)
        return [*(("profile", asked) for asked in self.profile), *keyed]


class _Qa(BaseModel):
    question: Annotated[Cleaned, Field(alias="Question", min_length=1)]
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
    contents: dict[Cleaned, list[Scalar]] = {}
    events: Any = None

    def lines(self) -> Iterator[str]:
        for when, said in self.contents.items():
            yield f"[Dialogue, {time_of(when)}]"
            yield from said


class _Memories(BaseModel):
    profile: dict[Cleaned, Annotated[str, _joined(", ")]] = {}
    profile_description: Scalar = ""
    social_relationship: Annotated[dict[Cleaned, _Relation], BeforeValidator(_literal)] = {}
    events: dict[Cleaned, _Event] = {}
    dialogues: dict[Cleaned, _Talk] = {}

    def parts(self) -> Iterator[tuple[str, str | None, list[str]]]:
        lines = [f"{key}: {value}" for key, value in self.profile.items() if value]
        if lines or self.profile_description:
            told = filter(None, ["[Profile]", *lines, self.profile_description])
            yield "\n".join(told), None, [f"profile {key}" for key in self.profile]
        if circle := self.social_relationship:
            known = (f"{each.who} ({each.how}): {each.what}".replace(" ()", "") for each in circle.values())
            yield "\n".join(["[People around]", *known]), None, [f"circle {key}" for key in circle]
        # A dialogue belongs to the event it names, else to the event whose key is its prefix.
        named = ((key, talk.events) for key, talk in self.dialogues.items())
        event_of = {key: event if isinstance(event, str) and event else key.partition("#")[0] for key, event in named}
        for key, event in self.events.items():
            time, talks = time_of(event.time), [name for name, of in event_of.items() if of == key]
            header = f"[Event, {time}] {event.summary}" if time else f"[Event] {event.summary}"
            said = [line for name in talks for line in self.dialogues[name].lines()]
            yield "\n".join(filter(None, [header.strip(), event.content, *said])), time, [f"event {name}" for name in (key, *talks)]
        for name in (name for name, of in event_of.items() if of not in self.events):
            yield "\n".join(self.dialogues[name].lines()) or name, None, [f"event {name}"]


def _instance(row: Row, memories: Mapping[str, Any], options: PerltqaOptions, count: TokenCounter, result: LoadResult) -> Instance:
    name, data = row.data
    asked = checked(_Person, data, row.where).questions()
    if name not in memories:
        result.asked += len(asked)
        result.skipped["person without memories"] += len(asked)
        return Instance(name, "perltqa", (Chunk(name),), ())
    parts = checked(_Memories, memories[name], f"memories of {name!r}").parts()
    made = chunked((Chunk(piece, time), keys) for text, time, keys in parts for piece in cut(text, options.chunk_tokens, count))
    if not made.chunks:
        raise SchemaError(f"memories of {name!r} are empty", expected="a profile or events")

    def question(item: tuple[str, Any], where: str) -> Question | str:
        section, qa = item[0], checked(_Qa, item[1], where)
        if not qa.answer:
            return EMPTY_ANSWER
        side = "circle" if section == "social_relationship" else "event"
        keys = [f"profile {qa.reference}"] if section == "profile" else [f"{side} {key}" for key in _KEY.findall(qa.reference)]
        evidence = made.evidence(keys)
        result.notes["evidence that is not there"] += evidence is None
        golds = ("; ".join(qa.anchors),) if qa.anchors else qa.answer
        return Question(qa.question, golds, "parts", section, evidence=evidence)

    return Instance(name, "perltqa", made.chunks, read_questions(asked, row.where, result, question))


SOURCES = (Source("perltqa", "PerLTQA, perltqa*.json with perltmem*.json beside it", load_perltqa, PerltqaOptions),)
