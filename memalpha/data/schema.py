"""Instances as files: one JSON object a line (JSONL), read lazily and checked field by field.

One line is ``{"id", "source", "chunks": [{"text", "time"?}], "questions": [{"text", "answers", "metric"?, "kind"?, "subject"?,
"stale"?, "evidence"?, "id"?}], "facts"?: [{"chunk", "action", "subject", "attribute", "value", "previous"?}]}``.

What always holds: reading what was written gives equal instances; an optional field at its default is left out; whatever does not
fit raises SchemaError that names the file, the line and the field; nothing is skipped but blank lines. A folder stands for the
``instances.jsonl`` inside it.

It does not cover whether a metric's name exists: that is the metrics' table to say when it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

FILE_NAME = "instances.jsonl"
"""What a folder of instances holds."""

_T = TypeVar("_T")
_REQUIRED = object()


# ------------------------------------------------------------------------------------------------ files
def iter_instances(path: str | Path) -> Iterator[Instance]:
    """Read instances one at a time.

    Args:
        path: A JSONL file, or a folder that holds ``instances.jsonl``.

    Returns:
        An iterator; a file that cannot be opened is reported at once, a bad line when it is reached.

    Raises:
        InputError: If the file is missing, empty or not text.
        SchemaError: If a line is no instance, or repeats an id; names file, line and field.
    """
    return _iter_file(_locate(Path(path)))


def read_instances(path: str | Path) -> list[Instance]:
    """Read all instances of a file; see ``iter_instances`` for what is accepted and raised."""
    return list(iter_instances(path))


def write_instances(path: str | Path, instances: Iterable[Instance]) -> Path:
    """Write instances as JSONL; the file appears whole or not at all, and whatever it replaces is gone.

    Args:
        path: The file, or an existing folder, in which ``instances.jsonl`` is written. Parent folders are made.
        instances: At least one.

    Returns:
        The path of the file.

    Raises:
        InputError: If there is no instance, or the path cannot be written.
        SchemaError: If an instance would not be read back (an empty chunk, a question without answers, an id used twice).
    """
    target = Path(path)
    target = target / FILE_NAME if target.is_dir() else target
    lines, seen = [], set[str]()
    for number, instance in enumerate(instances, start=1):
        row, where = instance_to_json(instance), f"instance {number} ({instance.id!r})"
        _check_new(instance_from_json(row, where).id, seen, where)
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    if not lines:
        raise InputError(f"no instances to write to {target}", expected="at least one instance")
    partial = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error}", expected="a path that can be written") from error
    return target


def _locate(path: Path) -> Path:
    file = path / FILE_NAME if path.is_dir() else path
    if file.is_file():
        return file
    what = f"{path} is a folder without {FILE_NAME}" if path.is_dir() else f"no file {path}"
    raise InputError(
        what, expected=f"a JSONL file of instances, or a folder that holds {FILE_NAME}", fix="make one with: memalpha prepare"
    )


def _iter_file(file: Path) -> Iterator[Instance]:
    seen = set[str]()
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            where = f"{file} line {number}"
            if raw.strip():
                instance = instance_from_json(_parse(raw, where), where)
                _check_new(instance.id, seen, where)
                yield instance
    if not seen:
        raise InputError(f"{file} is empty", expected="one instance a line", fix="make it again with: memalpha prepare")


def _parse(raw: bytes, where: str) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text: {error}", expected="a JSONL file of instances") from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where} is not JSON: {error}", expected="one JSON object a line") from error


def _check_new(instance_id: str, seen: set[str], where: str) -> None:
    if instance_id in seen:
        raise SchemaError(f"{where}: id {instance_id!r} was used before", expected="an id that is unique in its data set")
    seen.add(instance_id)


# ------------------------------------------------------------------------------------------------ one instance
def instance_to_json(instance: Instance) -> dict[str, Any]:
    """Return an instance as JSON-ready data; ``instance_from_json`` gives it back unchanged."""
    row: dict[str, Any] = {
        "id": instance.id,
        "source": instance.source,
        "chunks": [_without_defaults({"text": chunk.text, "time": chunk.time}, {"time": None}) for chunk in instance.chunks],
        "questions": [_question_to_json(question) for question in instance.questions],
    }
    if instance.facts:
        row["facts"] = [_fact_to_json(fact) for fact in instance.facts]
    return row


def digest_instances(instances: Sequence[Instance]) -> dict[str, Any]:
    """Return what identifies a set's instances: how many there are of what, and a sha256 over all of them, in order."""
    digest = hashlib.sha256()
    for instance in instances:
        digest.update(json.dumps(instance_to_json(instance), sort_keys=True).encode())
    return {
        "instances": len(instances),
        "chunks": sum(len(instance.chunks) for instance in instances),
        "questions": sum(len(instance.questions) for instance in instances),
        "sha256": digest.hexdigest(),
    }


def instance_from_json(data: Any, where: str) -> Instance:
    """Read what ``instance_to_json`` wrote, or a row made by hand.

    Args:
        data: Parsed JSON.
        where: Its place, such as ``train.jsonl line 3``; begins every message.

    Raises:
        SchemaError: If a field is missing, unknown, of another type or empty where it must not be.
    """
    row = _Row(data, where, ("id", "source", "chunks", "questions", "facts"))
    chunks = row.rows("chunks", _chunk_from_json)
    if not chunks:
        raise SchemaError(f"{where}: field 'chunks' is empty", expected="at least one chunk")
    questions = row.rows("questions", lambda item, at: _question_from_json(item, at, len(chunks)))
    facts = row.rows("facts", lambda item, at: _fact_from_json(item, at, len(chunks)), optional=True)
    return Instance(row.text("id"), row.text("source"), chunks, questions, facts)


def _question_to_json(question: Question) -> dict[str, Any]:
    row = {
        "text": question.text,
        "answers": list(question.answers),
        "metric": question.metric,
        "kind": question.kind,
        "subject": question.subject,
        "stale": list(question.stale),
        "evidence": None if question.evidence is None else list(question.evidence),
        "id": question.id,
    }
    return _without_defaults(
        row, {"metric": "substring", "kind": "single", "subject": None, "stale": [], "evidence": None, "id": ""}
    )


def _fact_to_json(fact: Fact) -> dict[str, Any]:
    row = {
        "chunk": fact.chunk,
        "action": fact.action.value,
        "subject": fact.subject,
        "attribute": fact.attribute,
        "value": fact.value,
        "previous": fact.previous,
    }
    return _without_defaults(row, {"previous": None})


def _without_defaults(row: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in defaults or value != defaults[key]}


def _chunk_from_json(data: Any, where: str) -> Chunk:
    row = _Row(data, where, ("text", "time"))
    return Chunk(row.text("text"), row.optional_text("time"))


def _question_from_json(data: Any, where: str, n_chunks: int) -> Question:
    row = _Row(data, where, ("text", "answers", "metric", "kind", "subject", "stale", "evidence", "id"))
    answers = row.rows("answers", _text)
    if not answers:
        raise SchemaError(f"{where}: field 'answers' is empty", expected="at least one accepted answer ('none' for nothing)")
    evidence = row.rows("evidence", lambda item, at: _index(item, at, n_chunks), optional=True)
    return Question(
        text=row.text("text"),
        answers=answers,
        metric=row.text("metric", "substring"),
        kind=row.text("kind", "single"),
        subject=row.optional_text("subject"),
        stale=row.rows("stale", _text, optional=True),
        evidence=None if row.values.get("evidence") is None else evidence,
        id=row.text("id", ""),
    )


def _fact_from_json(data: Any, where: str, n_chunks: int) -> Fact:
    row = _Row(data, where, ("chunk", "action", "subject", "attribute", "value", "previous"))
    actions = [action.value for action in FactAction]
    if (action := row.text("action")) not in actions:
        raise SchemaError(f"{where}: field 'action' is {action!r}", expected=f"one of {actions}")
    return Fact(
        chunk=_index(row.get("chunk"), f"{where}: field 'chunk'", n_chunks),
        action=FactAction(action),
        subject=row.text("subject"),
        attribute=row.text("attribute"),
        value=row.text("value"),
        previous=row.optional_text("previous"),
    )


# ------------------------------------------------------------------------------------------------ fields
class _Row:
    """One JSON object whose fields are read with located errors; None counts as left out."""

    def __init__(self, data: Any, where: str, known: tuple[str, ...]) -> None:
        if not isinstance(data, Mapping):
            raise SchemaError(f"{where} is {_shown(data)}", expected=f"an object with {', '.join(known)}")
        if unknown := sorted(str(key) for key in set(data) - set(known)):
            raise SchemaError(f"{where}: unknown fields {unknown}", expected=f"some of {list(known)}")
        self.values: Mapping[str, Any] = data
        self.where = where

    def get(self, field: str) -> Any:
        if (value := self.values.get(field)) is None:
            raise SchemaError(f"{self.where}: field {field!r} is missing", expected=f"an object with {field!r}")
        return value

    def text(self, field: str, default: Any = _REQUIRED) -> str:
        """A string; a default of "" also lets the field be empty."""
        if default is not _REQUIRED and self.values.get(field, default) in (default, None):
            return str(default)
        return _text(self.get(field), f"{self.where}: field {field!r}")

    def optional_text(self, field: str) -> str | None:
        return None if self.values.get(field) is None else self.text(field)

    def rows(self, field: str, read: Callable[[Any, str], _T], *, optional: bool = False) -> tuple[_T, ...]:
        if optional and self.values.get(field) is None:
            return ()
        if not isinstance(value := self.get(field), list):
            raise SchemaError(f"{self.where}: field {field!r} is {_shown(value)}", expected="a list")
        return tuple(read(item, f"{self.where}: {field}[{i}]") for i, item in enumerate(value))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SchemaError(f"{where} is {_shown(value)}", expected="text that is not empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(f"{where} is not valid Unicode: {error.reason}", expected="text without lone surrogates") from error
    return value


def _index(value: Any, where: str, n_chunks: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < n_chunks:
        raise SchemaError(f"{where} is {_shown(value)}", expected=f"a chunk's index, from 0 to {n_chunks - 1}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
