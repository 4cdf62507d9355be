"""bAbI tasks (Weston et al., arXiv 1502.05698): short stories with questions between the sentences.

Reads the original text (``1 Mary went home.``, ``2 Where is Mary?<tab>home<tab>1``; a number that does not grow starts a new
story), one file or a folder of ``qa*.txt``. Each question is an instance; its chunks are the sentences before it, its kind is the
task of the file name. A wrong line drops its story. Departure: the order of a path (task 19) is not scored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt

from memalpha.data.packing import chunk_texts
from memalpha.data.rows import EMPTY_ANSWER, Row, Scalar, Text, checked, data_files, text_lines
from memalpha.data.source import CommonOptions, LoadResult, Metric, Source, read_questions, read_rows
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Instance, Question

_LINE = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_SPLIT = re.compile(r"_(train|test|valid)(?=[_.]|$)")


@dataclass(frozen=True, slots=True)
class BabiOptions(CommonOptions):
    """How bAbI becomes instances."""

    chunk_tokens: PositiveInt = 64  # maximum tokens of a chunk
    metric: Metric = ""  # metric of every question ("" = exact_match; keywords for answers with several parts)


_Number = Annotated[int, Field(ge=0, lt=10**9)]


class _Line(BaseModel):
    number: _Number
    text: Text
    answer: Scalar | None = None
    support: list[_Number] = []


def load_babi(source: str, options: BabiOptions, seed: int, count: TokenCounter, result: LoadResult) -> Iterator[Instance]:
    """Load bAbI story by story; InputError if the input cannot be read."""
    files = data_files(source, "qa*.txt")
    splits = {path: match[1] if (match := _SPLIT.search(path.name)) else "" for path in files}
    if len({*splits.values()} - {""}) > 1:
        if options.split not in splits.values():
            raise InputError(f"{source} has no file of split {options.split!r}", expected=f"one of {sorted({*splits.values()})}")
        files = [path for path in files if splits[path] in ("", options.split)]
        result.notes["files of other splits not read"] += len(splits) - len(files)
    stories = (story for path in files for story in _stories(path))
    for instances in read_rows(stories, result, lambda row: _story(row, options, count, result)):
        yield from instances


def _stories(path: Path) -> Iterator[Row]:
    name = Path(path.name.removesuffix(".gz")).stem
    stories, last = list[list[Row]](), 0
    for line in (line for line in text_lines(str(path)) if line.data.strip()):
        number = int(match[1]) if (match := _LINE.fullmatch(line.data)) else last + 1
        if number <= last or not stories:
            stories.append([])
        stories[-1].append(line)
        last = number
    for number, story in enumerate(stories):
        yield Row(story[0].where, (name.partition("_")[0], f"{name}-{number}", story))


def _story(row: Row, options: BabiOptions, count: TokenCounter, result: LoadResult) -> list[Instance]:
    task, name, rows = row.data
    lines = [_line(each, number) for number, each in enumerate(rows, start=1)]
    if lines[0].answer is not None:
        raise SchemaError(f"{row.where} asks before anything is said", expected="a sentence first")
    instances = []
    for index, asked in ((index, line) for index, line in enumerate(lines) if line.answer is not None):
        said = ((line.number, line.text) for line in lines[:index] if line.answer is None)
        bounds = (options.chunk_tokens, options.chunk_tokens)
        made = chunk_texts(said, bounds, count, random.Random(0), "\n")  # the generator has no effect: both bounds are equal

        answer = asked.answer or ""
        parts = tuple(dict.fromkeys(part.strip() for part in answer.split(",") if part.strip()))
        metric = options.metric or ("keywords" if len(parts) > 1 else "exact_match")
        answers, evidence = parts if metric == "keywords" else (answer,), made.evidence(asked.support)
        question = Question(asked.text, answers, metric, task, evidence=evidence, id=str(asked.number))
        questions = read_questions([question if parts else EMPTY_ANSWER], row.where, result)
        instances.append(Instance(f"{name}-{asked.number}", "babi", made.chunks, questions))
    return instances


def _line(row: Row, number: int) -> _Line:
    match = _LINE.fullmatch(row.data)
    if match is None or int(match[1]) != number:
        raise SchemaError(
            f"{row.where} is not line {number} of its story", expected="'1 Mary went home.' or '2 Who?<tab>Mary<tab>1'"
        )
    text, answer, support = (*match[2].split("\t"), "", "")[:3]
    asks = {"answer": answer, "support": support.split()} if "\t" in row.data or row.data.rstrip().endswith("?") else {}
    return checked(_Line, {"number": match[1], "text": text, **asks}, row.where)


SOURCES = (Source("babi", "bAbI tasks: numbered stories, one file or a folder of qa*.txt", load_babi, BabiOptions),)
