"""bAbI tasks (Weston et al., arXiv 1502.05698): short stories with questions between the sentences.

Reads the original text (``1 Mary went home.``, ``2 Where is Mary?<tab>home<tab>1``; a number that does not grow starts a new
story), one file or a folder of ``qa*.txt``, and Hub rows (``facebook/babi_qa``). Each question is an instance; its chunks are the
sentences before it, its evidence the chunks with the supporting sentences, its kind the task from the file name. Metric: the
published exact match, or ``keywords`` for an answer with several parts (``apple,milk``). Skip reasons: ``empty answer``, ``asked
before the end`` (option ``questions=last``), ``malformed`` (a wrong line drops the whole story). If file names give several splits,
only option ``split`` is read. Departure: the order of a path (task 19) is not scored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, PositiveInt

from memalpha.data.fields import EMPTY_ANSWER, Scalar, Text, checked
from memalpha.data.packing import cut, pack_texts, places_of
from memalpha.data.rows import Row, data_files, decoded_lines, file_name, iter_rows, kind_of, on_hub
from memalpha.data.source import CommonOptions, LoadResult, Metric, Source, finish, read_questions, read_rows
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Instance, Question

_LINE = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_SPLIT = re.compile(r"_(train|test|valid)(?=[_.]|$)")


@dataclass(frozen=True, slots=True)
class BabiOptions(CommonOptions):
    """How bAbI becomes instances.

    Attributes:
        chunk_tokens: Maximum tokens of a chunk.
        questions: Ask each question of a story, or only the last.
        metric: Metric of every question ("" = ``exact_match``; ``keywords`` for answers with several parts).
    """

    chunk_tokens: PositiveInt = 64
    questions: Literal["each", "last"] = "each"
    metric: Metric = ""


_Number = Annotated[int, Field(ge=0, lt=10**9)]


class _Line(BaseModel):
    number: _Number
    text: Text
    answer: Scalar | None = None
    support: list[_Number] = []


class _Story(NamedTuple):
    task: str
    name: str
    lines: list[Row]


def load_babi(source: str, options: BabiOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load bAbI story by story; InputError if the input cannot be read."""
    result = LoadResult()

    def story(row: Row) -> list[Instance]:
        return list(_instances(row, options, count_tokens, result))

    made = (instance for found in read_rows(_stories(source, options.split, result), result, _held, story) for instance in found)
    result.instances = finish(made, options, seed, result)
    return result


def _stories(source: str, split: str, result: LoadResult) -> Iterator[Row]:
    if on_hub(source):
        yield from iter_rows(source, split)
        return
    for path in _of_split(data_files(source, "qa*.txt"), split, result):
        yield from _stories_of(path) if kind_of(path) in (".txt", "") else iter_rows(str(path))


def _of_split(files: list[Path], split: str, result: LoadResult) -> list[Path]:
    """The files of the split or of no split; all files if they name fewer than two splits."""
    named = {path: match[1] if (match := _SPLIT.search(path.name)) else "" for path in files}
    splits, wanted = sorted(set(named.values()) - {""}), split.replace("validation", "valid")
    if len(splits) < 2:
        return files
    if wanted not in splits:
        raise InputError(f"{files[0].parent} has no file of split {split!r}", expected=f"one of {', '.join(splits)}")
    kept = [path for path in files if named[path] in ("", wanted)]
    result.notes["files of other splits not read"] += len(files) - len(kept)
    return kept


def _stories_of(path: Path) -> Iterator[Row]:
    task = file_name(path).removesuffix(".gz").removesuffix(".txt").partition("_")[0] or path.stem
    shown, story, number, last = file_name(path), list[Row](), 0, 0
    name = Path(shown).stem
    for index, line in enumerate(decoded_lines(path), start=1):
        if not (said := line.rstrip("\r\n")).strip():
            continue
        where, match = f"{shown} line {index}", _LINE.fullmatch(said)
        breaks_off = line == said and not said.rstrip().endswith((".", "?")) and said.count("\t") < 2
        if story and (breaks_off or (match and int(match[1]) <= last)):
            yield Row(story[0].where, _Story(task, f"{name}-{number}", story))
            story, number = [], number + 1
        if breaks_off:
            yield Row(where, SchemaError(f"{where} breaks off", expected="a whole line", fix="download the file again"))
            return
        story.append(Row(where, said))
        last = int(match[1]) if match else last if len(story) > 1 else 0
    if story:
        yield Row(story[0].where, _Story(task, f"{name}-{number}", story))


def _held(data: Any) -> int:
    if isinstance(data, _Story):
        return sum(_asks(line.data) for line in data.lines)
    story = data.get("story") if isinstance(data, Mapping) else None
    kinds = story.get("type") if isinstance(story, Mapping) else None
    return sum(kind in (1, "question") for kind in kinds) if isinstance(kinds, list) else 0


def _instances(row: Row, options: BabiOptions, count: TokenCounter, result: LoadResult) -> Iterator[Instance]:
    if isinstance(row.data, _Story):
        task, name, lines = row.data.task, row.data.name, [_line(line) for line in row.data.lines]
        for wanted, (line, place) in enumerate(zip(lines, row.data.lines, strict=True), start=1):
            if line.number != wanted:
                raise SchemaError(f"{place.where} has number {line.number}", expected=f"{wanted}: a line of its story is missing")
    else:
        task, name, lines = "babi", row.where, _hub_lines(row)
    if not lines or lines[0].answer is not None:
        raise SchemaError(f"{row.where} asks before anything is said", expected="a sentence first")
    asked = [index for index, line in enumerate(lines) if line.answer is not None]
    if options.questions == "last" and asked:
        result.skip("asked before the end", len(asked) - 1)
        asked = asked[-1:]
    for index in asked:
        chunks, places = _chunks([line for line in lines[:index] if line.answer is None], options.chunk_tokens, count)

        def question(line: Any, where: str, places: Mapping[int, set[int]] = places) -> Question | str:
            return _question(line, task, options.metric, places)

        questions = read_questions([lines[index]], row.where, result, question)
        yield Instance(f"{name}-{lines[index].number}", "babi", chunks, questions)


def _question(line: _Line, task: str, metric: str, places: Mapping[int, set[int]]) -> Question | str:
    answer = line.answer or ""
    parts = tuple(dict.fromkeys(part.strip() for part in answer.split(",") if part.strip()))
    if not parts:
        return EMPTY_ANSWER
    evidence = tuple(sorted({place for number in line.support for place in places.get(number, ())})) or None
    chosen = metric or ("keywords" if len(parts) > 1 else "exact_match")
    return Question(line.text, parts if chosen == "keywords" else (answer,), chosen, task, evidence=evidence, id=str(line.number))


def _chunks(lines: Iterable[_Line], limit: int, count: TokenCounter) -> tuple[tuple[Chunk, ...], Mapping[int, set[int]]]:
    pieces = [(line.number, piece) for line in lines for piece in cut(line.text, limit, count)]
    rng = random.Random(0)  # no effect: both bounds are equal
    packed = list(pack_texts((text for _, text in pieces), (limit, limit), count, rng, separator="\n"))
    return tuple(Chunk(chunk.text) for chunk in packed), places_of(packed, [number for number, _ in pieces])


def _asks(line: str) -> bool:
    return "\t" in line or line.rstrip().endswith("?")


def _line(row: Row) -> _Line:
    match = _LINE.fullmatch(row.data)
    if match is None:
        raise SchemaError(f"{row.where} has no number", expected="'1 Mary went home.' or '2 Where is Mary?<tab>home<tab>1'")
    text, answer, support = (*match[2].split("\t"), "", "")[:3]
    data: dict[str, Any] = {"number": match[1], "text": text}
    if _asks(row.data):
        data |= {"answer": answer, "support": support.split()}
    return checked(_Line, data, row.where)


class _HubStory(BaseModel):
    id: list[Any]
    type: list[Any]
    text: list[Any]
    answer: list[Any]
    supporting_ids: list[Any]


class _HubRow(BaseModel):
    story: _HubStory


def _hub_lines(row: Row) -> list[_Line]:
    story = checked(_HubRow, row.data, row.where).story
    columns = (story.id, story.type, story.text, story.answer, story.supporting_ids)
    if len({len(column) for column in columns}) != 1:
        raise SchemaError(f"{row.where} has columns of different lengths", expected="one item a sentence")
    lines = []
    for number, kind, text, answer, support in zip(*columns, strict=True):
        data: dict[str, Any] = {"number": number, "text": text}
        if kind in (1, "question"):
            data |= {"answer": "" if answer is None else answer, "support": support if isinstance(support, list) else []}
        lines.append(checked(_Line, data, row.where))
    return lines


SOURCES = (Source("babi", "bAbI tasks: numbered stories, one file or a folder of qa*.txt", load_babi, BabiOptions),)
