"""bAbI: each question of a story is an instance, with the sentences before it."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import PositiveInt

from memalpha.data.chunks import chunk_texts
from memalpha.data.rows import Row, data_files, text_lines
from memalpha.data.source import Draft, SkippedItem, Source, TextOptions, read_each
from memalpha.errors import InputError
from memalpha.types import Question, TokenCounter

_LINE = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_SPLIT = re.compile(r"_(train|test|valid)(?=[_.]|$)")


@dataclass(frozen=True, slots=True)
class BabiOptions(TextOptions):
    """How bAbI becomes instances; metric "" is exact_match, or keywords for answers with several
    parts.

    Attributes:
        chunk_tokens: A chunk has at most this many tokens.
    """

    chunk_tokens: PositiveInt = 64


class _Line(NamedTuple):
    number: str
    text: str
    answer: str | None  # None for a statement
    support: list[str]


def _load_babi(
    source: str, options: BabiOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | SkippedItem]:
    """Load bAbI story by story; InputError if the input cannot be read."""
    files = data_files(source, "qa*.txt")
    splits = {path: "".join(_SPLIT.findall(path.name)[:1]) for path in files}
    named = sorted(set(splits.values()) - {""})
    if len(named) > 1:
        if options.split not in named:
            raise InputError(
                f"{source} has no file for the split {options.split!r}",
                expected=f"one of {named}",
            )
        files = [path for path in files if splits[path] in ("", options.split)]
        yield SkippedItem("files of other splits not read", questions=0)
    stories = (story for path in files for story in _stories(path))
    for drafts in read_each(stories, _story, options, count):
        yield from [drafts] if isinstance(drafts, SkippedItem) else drafts


def _stories(path: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the stories of a file with their names; the numbers of a story's lines rise."""
    stories: list[list[Row]] = []
    last = 0
    for line in text_lines(str(path)):
        match = re.match("[0-9]{1,9} ", line.string())
        number = int(match[0]) if match else last + 1
        if number <= last or not stories:
            stories.append([])
        if line.string():
            stories[-1].append(line)
            last = number
    name = Path(path.name.removesuffix(".gz")).stem
    return ((f"{name}-{number}", story) for number, story in enumerate(stories))


def _story(story: tuple[str, list[Row]], options: BabiOptions, count: TokenCounter) -> list[Draft]:
    name, rows = story
    lines = [_line(row, number) for number, row in enumerate(rows, start=1)]
    if lines[0].answer is not None:
        raise rows[0].unfit("a sentence before the first question")
    drafts = []
    for index, asked in enumerate(lines):
        if asked.answer is None:
            continue
        told = [(line.number, line.text) for line in lines[:index] if line.answer is None]
        bounds = (options.chunk_tokens, options.chunk_tokens)  # equal: nothing is drawn
        packed = chunk_texts(told, bounds, count, random.Random(0), "\n")
        answers = tuple(dict.fromkeys(filter(None, map(str.strip, asked.answer.split(",")))))
        metric = options.metric or ("keywords" if len(answers) > 1 else "exact_match")
        golds = answers if metric == "keywords" or not answers else (asked.answer,)
        evidence = packed.evidence(asked.support)
        task = name.partition("_")[0].partition("-")[0]
        question = Question(asked.text, golds, metric, task, evidence=evidence, id=asked.number)
        drafts.append(Draft(f"{name}-{asked.number}", "babi", packed.chunks, [question]))
    return drafts


def _line(row: Row, number: int) -> _Line:
    match = _LINE.fullmatch(row.string())
    if match is None or int(match[1]) != number:
        raise row.unfit(f"line {number} of its story, '1 Mary went.' or '2 Who?<tab>Mary<tab>1'")
    text, answer, support = (*match[2].split("\t"), "", "")[:3]
    asks = "\t" in match[2] or match[2].endswith("?")
    return _Line(str(number), text.strip(), answer.strip() if asks else None, support.split())


SOURCES = [
    Source(
        "babi",
        "bAbI tasks: numbered stories, one file or a folder of qa*.txt",
        _load_babi,
        BabiOptions,
    ),
]
