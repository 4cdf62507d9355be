"""PerLTQA (Du et al., arXiv 2402.16288): questions about the profile, the circle, the events and the dialogues of made-up persons.

Reads the original pair of JSON files: ``perltqa*.json``, a list of ``{person: {profile[], social_relationship[{key: []}],
events[{key: []}], dialogues[{key: []}]}}`` with ``{Question, Answer, "Reference Memory", "Memory Anchors"}`` in each list, and
``perltmem*.json``, the memories, ``{person: {profile, profile_description, social_relationship, events, dialogues}}`` or a list of
those. The input is the first file or the folder of both; the second is looked for beside it, packed or not, or given as option
``memory``.

Construction as published for Mem-alpha (arXiv 2509.25911): a person is an instance; an event with its dialogues is a chunk, dated;
questions are scored by the share of their parts that the answer contains, the parts being the memory anchors, joined by ";". What
comes first, in chunks of its own: the profile and the circle. The kinds are the four sections.

What always holds: the memories are read piece by piece and kept on disk; the evidence of a question is the chunks with the memories
that its ``Reference Memory`` names, or the field of the profile, None where it names none that is there (``notes``). Reasons to
skip: ``empty answer`` (four fifths of the English questions have none), ``person without memories``, ``malformed``.

Departures: all questions are asked, not 100 a person (option ``max_questions``); a memory longer than a chunk is cut. Parts of the
English circle that stand as Python text in the file are read as such. Sections of the questions are found under their names with
spaces or capitals as well, and may be one ``{key: []}`` in place of a list of these; questions of any other section are malformed.
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memalpha.data.dates import time_of
from memalpha.data.fields import EMPTY_ANSWER, answers, mapping, optional_text, scalar_text, text
from memalpha.data.files import file_name, packed_or_not
from memalpha.data.packing import split_text
from memalpha.data.reading import CommonOptions, check_at_least, load_rows, read_questions
from memalpha.data.rows import Row, check_text, data_file, data_files, open_json
from memalpha.data.source import LoadResult
from memalpha.data.spool import Spool
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

SOURCE = "perltqa"
"""``Instance.source`` of everything made here."""

SECTIONS = ("profile", "social_relationship", "events", "dialogues")
"""Sections of the questions, and their kinds."""

_FIELDS = {"Question", "Answer", "Reference Memory", "Memory Anchors"}
_NO_MEMORIES = "person without memories"
_KEY = re.compile(r"[0-9]+(?:_[0-9]+)+(?:#[0-9]+)?")


@dataclass(frozen=True, slots=True)
class PerltqaOptions(CommonOptions):
    """How PerLTQA becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        memory: File of the memories ("" = ``perltmem`` in place of ``perltqa`` in the name of the input).
    """

    chunk_tokens: int = 2048
    memory: str = ""

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens")


def load_perltqa(source: str, options: PerltqaOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load PerLTQA person by person; raises InputError if one of the two files cannot be read."""
    asked, *others = data_files(source, "perltqa*.json")
    if others:
        names = ", ".join(path.name for path in (asked, *others))
        raise InputError(f"{source} has the questions of several releases: {names}", expected="one of these files as input")
    beside = options.memory or str(packed_or_not(asked.with_name(asked.name.replace("perltqa", "perltmem"))))
    if Path(beside) == asked:
        raise InputError(f"the memories of {asked} are not told apart from its questions", expected="option 'memory'")
    memories = _memories(data_file(beside))

    def person(row: Row, result: LoadResult) -> Instance:
        return _instance(row, memories, options, count_tokens, result)

    return load_rows(_persons(asked), options, seed, _held, person)


# ------------------------------------------------------------------------------------------------ files
def _persons(path: Path) -> Iterator[Row]:
    """Yield each person's data as {"name", "data"}."""
    with open_json(path) as reader:
        index = -1
        if reader.peek() == "{":
            for name in reader.members():
                index += 1
                yield Row(f"{file_name(path)} {name!r}", {"name": name, "data": reader.value()})
        else:
            for item in reader.items():
                index += 1
                where = f"{file_name(path)} item {index}"
                if not isinstance(item, Mapping):
                    yield Row(where, item)
                    continue
                # A memory file's item is one person; a question file's maps names to persons.
                if isinstance(item.get("profile"), Mapping):
                    name = item["profile"].get("Protagonist")
                    yield Row(where, {"name": name, "data": item})
                else:
                    yield from (Row(f"{where} {name!r}", {"name": name, "data": data}) for name, data in item.items())
        reader.end()
    if index < 0:
        raise SchemaError(f"{file_name(path)} holds nobody", expected="a person's questions or memories")


def _memories(path: Path) -> Spool:
    spool = Spool()
    for row in _persons(path):
        if isinstance(row.data, Mapping) and isinstance(row.data.get("name"), str):
            spool.add(spool.key(row.data["name"]), row.data["data"])
    if not len(spool):
        raise SchemaError(f"{file_name(path)} holds no memories of anybody", expected="{person: {profile, events, ...}}")
    return spool


def _held(data: Any) -> int:
    return sum(1 for _ in _asked(data["data"])) if isinstance(data, Mapping) else 0


def _asked(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield (section, question) pairs, whatever the questions are; of a section that is not known, what looks like a question."""
    if not isinstance(data, Mapping):
        return
    named = {key: "_".join(str(key).lower().replace("_", " ").split()) for key in data}
    for section in SECTIONS:
        for key in (key for key, name in named.items() if name == section):
            yield from ((section, asked) for asked in _opened(data[key]))
    for key in (key for key, name in named.items() if name not in SECTIONS):
        yield from ((str(key), asked) for asked in _opened(data[key]) if _is_question(asked))


def _opened(section: Any) -> Iterator[Any]:
    """Yield what stands for a question each in a section: a list, an object of lists, or a list of such objects."""
    if section is None or section in ("", [], {}):
        return
    for item in section if isinstance(section, list) else [section]:
        lists = isinstance(item, Mapping) and not _is_question(item) and any(isinstance(value, list) for value in item.values())
        for value in item.values() if lists else [[item]]:
            yield from value if isinstance(value, list) else [value]


def _is_question(item: Any) -> bool:
    return isinstance(item, Mapping) and not _FIELDS.isdisjoint(item)


# ------------------------------------------------------------------------------------------------ one person
def _instance(row: Row, memories: Spool, options: PerltqaOptions, count: TokenCounter, result: LoadResult) -> Instance:
    person = mapping(row.data, row.where)
    name, asked = text(person, "name", row.where), list(_asked(mapping(person["data"], row.where)))
    number = memories.find(name)
    if number is None:
        result.skip(_NO_MEMORIES, len(asked))
        return Instance(name, SOURCE, (Chunk(name),), ())
    chunks: list[Chunk] = []
    places: dict[str, list[int]] = {}
    for part in _parts(mapping(memories.get(number)[1][0], f"memories of {name!r}"), f"memories of {name!r}"):
        spans = split_text(part.text, options.chunk_tokens, count)
        for key in part.keys:
            places.setdefault(key, []).extend(range(len(chunks), len(chunks) + len(spans)))
        chunks += [Chunk(part.text[span.start : span.end], part.time) for span in spans]
    if not chunks:
        raise SchemaError(f"memories of {name!r} are empty", expected="a profile or events")

    def question(item: Any, where: str) -> Question | str:
        section, data = item[0], mapping(item[1], where)
        if section not in SECTIONS:
            raise SchemaError(f"{where} is of section {section!r:.40}", expected=f"one of {', '.join(SECTIONS)}")
        words = text(data, "Question", where)
        if not (golds := answers(data.get("Answer"), f"{where} field 'Answer'")):
            return EMPTY_ANSWER
        anchors = _anchors(data.get("Memory Anchors"), where)
        named = (
            optional_text(data, "Reference Memory", where)
            if not isinstance(data.get("Reference Memory"), list)
            else " ".join(scalar_text(key, where) for key in data["Reference Memory"])
        )
        keys = [f"profile {named}"] if section == "profile" else [f"{_side(section)} {key}" for key in _KEY.findall(named)]
        evidence = tuple(sorted({place for key in keys for place in places.get(key, [])})) or None
        result.notes["evidence that is not there"] += evidence is None
        return Question(words, ("; ".join(anchors),) if anchors else golds, "parts", section, evidence=evidence)

    return Instance(name, SOURCE, tuple(chunks), tuple(read_questions(asked, row.where, result, question)))


def _anchors(value: Any, where: str) -> list[str]:
    """The distinct phrases that point into the memory, their entities written out; a semicolon in one would split it."""
    phrases = [key for item in (value if isinstance(value, list) else []) if isinstance(item, Mapping) for key in item]
    texts = (check_text(phrase, f"{where} field 'Memory Anchors'") for phrase in phrases)
    cleaned = (" ".join(html.unescape(phrase).replace(";", ",").split()) for phrase in texts)
    return list(dict.fromkeys(filter(None, cleaned)))


def _side(section: str) -> str:
    return "circle" if section == "social_relationship" else "event"


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    keys: tuple[str, ...]
    time: str | None = None


def _parts(person: Mapping[str, Any], where: str) -> Iterator[_Part]:
    """Yield the profile, the circle, and each event with its dialogues."""
    profile = _section(person, "profile", where)
    lines = [f"{key}: {_plain(value, where)}" for key, value in profile.items() if value not in (None, "", [])]
    described = optional_text(person, "profile_description", where)
    if lines or described:
        yield _Part("\n".join(filter(None, ["[Profile]", *lines, described])), tuple(f"profile {key}" for key in profile))
    circle = _section(person, "social_relationship", where)
    if circle:
        told = [_relation(mapping(value, f"{where} {key}"), where) for key, value in circle.items()]
        yield _Part("\n".join(["[People around]", *told]), tuple(f"circle {key}" for key in circle))
    dialogues = _section(person, "dialogues", where)
    told_of = {key: _event_of(key, mapping(value, f"{where} {key}")) for key, value in dialogues.items()}
    events = _section(person, "events", where)
    for key, value in events.items():
        talks = [name for name, event in told_of.items() if event == key]
        yield _event(key, mapping(value, f"{where} event {key}"), {name: dialogues[name] for name in talks}, where)
    for name in (name for name, event in told_of.items() if event not in events):
        yield _Part("\n".join(_talk(mapping(dialogues[name], where), where)) or name, (f"event {name}",))


def _event(key: str, event: Mapping[str, Any], dialogues: Mapping[str, Any], where: str) -> _Part:
    time = time_of(optional_text(event, "Creation Time", f"{where} event {key}"))
    summary, content = (optional_text(event, name, f"{where} event {key}") for name in ("summary", "content"))
    header = f"[Event, {time}] {summary}" if time else f"[Event] {summary}"
    lines = [header.strip(), content, *(line for value in dialogues.values() for line in _talk(mapping(value, where), where))]
    return _Part("\n".join(filter(None, lines)), (f"event {key}", *(f"event {name}" for name in dialogues)), time)


def _talk(dialogue: Mapping[str, Any], where: str) -> Iterator[str]:
    contents = dialogue.get("contents")
    for when, said in (contents if isinstance(contents, Mapping) else {}).items():
        yield f"[Dialogue, {time_of(scalar_text(when, f'{where} dialogue'))}]"
        yield from (scalar_text(line, f"{where} dialogue") for line in (said if isinstance(said, list) else [said]))


def _event_of(key: str, dialogue: Mapping[str, Any]) -> str:
    """The event a dialogue belongs to: the one it names, else the one whose key begins its own."""
    named = dialogue.get("events")
    return named if isinstance(named, str) and named else key.partition("#")[0]


def _relation(about: Mapping[str, Any], where: str) -> str:
    who, how, what = (optional_text(about, name, where) for name in ("Supporting Characters", "Relationship", "Description"))
    return f"{who} ({how}): {what}" if how else f"{who}: {what}"


def _section(person: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return a section, empty where it is missing; a text is read as the Python or JSON object that it spells."""
    value = person.get(key)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value) if value.lstrip().startswith('{"') else ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise SchemaError(f"{where} section {key!r} is text that spells no object: {error}", expected="an object") from error
    section = mapping(value, f"{where} section {key!r}") if value else {}
    for name in section:
        check_text(name, f"{where} section {key!r}: a key")
    return section


def _plain(value: Any, where: str) -> str:
    given = value if isinstance(value, list) else [value]
    return ", ".join(scalar_text(item, f"{where} profile") for item in given)
