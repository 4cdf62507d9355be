"""bAbI tasks (Weston et al., arXiv 1502.05698): small stories with questions in between.

Reads the original text (``1 Mary went home.``, ``2 Where is Mary?<tab>home<tab>1``; a number that does not grow begins a story),
one file or a folder of ``qa*.txt``, and rows on the Hub (``facebook/babi_qa``: ``{story{id[], type[], text[], supporting_ids[][],
answer[]}}``).

A question is an instance, since later sentences may change its answer: its chunks are the sentences before it, packed to at most
``chunk_tokens``. The kind is the task, by the file's name. The metric is the published exact match; an answer of several things
(``apple,milk``) is scored by the share of them (``keywords``).

What always holds: stories stream; the evidence of a question is the chunks with its supporting sentences. Reasons to skip: ``empty
answer``, ``asked before the end`` (with option ``questions=last``), ``malformed`` (a story one of whose lines is missing or has no
number is left out whole, since what it says is not known; a last line that breaks off counts as a question). Where the names of a
folder's files say several splits, those of option ``split`` are read, and the others are counted in ``notes``.

Departures: the order that a path's answer has (task 19, ``n,w``) is not scored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from memalpha.data.fields import EMPTY_ANSWER, items, mapping, scalar_text
from memalpha.data.files import decoded_lines, file_name
from memalpha.data.packing import TokenRange, pack_texts, split_text
from memalpha.data.reading import CommonOptions, check_at_least, finish, read_questions, read_rows
from memalpha.data.rows import Row, check_text, data_files, iter_rows, kind_of, on_hub
from memalpha.data.source import LoadResult
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Instance, Question

SOURCE = "babi"
"""``Instance.source`` of everything made here."""

_LINE = re.compile(r"([0-9]{1,9}) (.*)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,9}")
_SPLIT = re.compile(r"_(train|test|valid)(?=[_.]|$)")


@dataclass(frozen=True, slots=True)
class BabiOptions(CommonOptions):
    """How bAbI becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        questions: Whether each question of a story is asked, or the last alone.
        metric: Metric of every question ("" = ``exact_match``, ``keywords`` for several things).
    """

    chunk_tokens: int = 64
    questions: Literal["each", "last"] = "each"
    metric: str = ""

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens")
        if self.metric:
            check_metric(self.metric, judged=True)


class _Line(NamedTuple):
    """A sentence, or a question with its answer and the numbers of the sentences that support it."""

    number: int
    text: str
    answer: str | None = None
    support: tuple[int, ...] = ()


class _Story(NamedTuple):
    """A story of a text file: its task, its name, and its lines as they stand there."""

    task: str
    name: str
    lines: list[Row]


def load_babi(source: str, options: BabiOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load bAbI story by story; raises InputError if the input cannot be read."""
    result = LoadResult()

    def story(row: Row) -> list[Instance]:
        return list(_instances(row, options, count_tokens, result))

    made = (instance for found in read_rows(_stories(source, options.split, result), result, _held, story) for instance in found)
    result.instances = finish(made, options, seed, result)
    return result


def _stories(source: str, split: str, result: LoadResult) -> Iterator[Row]:
    """Yield each ``_Story`` of text files, or the rows of another file or of the Hub."""
    if on_hub(source):
        yield from iter_rows(source, split)
        return
    for path in _of_split(data_files(source, "qa*.txt"), split, result):
        if kind_of(path) not in (".txt", ""):
            yield from iter_rows(str(path))
        else:
            yield from _stories_of(path)


def _of_split(files: list[Path], split: str, result: LoadResult) -> list[Path]:
    """The files of one split, and those whose name says none; all of them where no two differ in theirs."""
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
        cut = line == said and not said.rstrip().endswith((".", "?")) and said.count("\t") < 2
        if story and (cut or (match and int(match[1]) <= last)):
            yield Row(story[0].where, _Story(task, f"{name}-{number}", story))
            story, number = [], number + 1
        if cut:
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
    asked = story.get("type") if isinstance(story, Mapping) else None
    return sum(kind in (1, "question") for kind in asked) if isinstance(asked, list) else 0


# ------------------------------------------------------------------------------------------------ one story
def _instances(row: Row, options: BabiOptions, count: TokenCounter, result: LoadResult) -> Iterator[Instance]:
    if isinstance(row.data, _Story):
        task, name, lines = row.data.task, row.data.name, [_line(line) for line in row.data.lines]
        _check_whole(lines, row.data.lines)
    else:
        story = mapping(mapping(row.data, row.where).get("story"), f"{row.where} field 'story'")
        task, name, lines = SOURCE, row.where, list(_hub_lines(story, row.where))
    _check_sentences(lines, row.where)
    asked = [index for index, line in enumerate(lines) if line.answer is not None]
    if options.questions == "last" and asked:
        result.skip("asked before the end", len(asked) - 1)
        asked = asked[-1:]
    for index in asked:
        chunks, places = _chunks([line for line in lines[:index] if line.answer is None], options.chunk_tokens, count)

        def question(line: Any, where: str, places: Mapping[int, set[int]] = places) -> Question | str:
            return _question(line, task, options.metric, places)

        questions = tuple(read_questions([lines[index]], row.where, result, question))
        yield Instance(f"{name}-{lines[index].number}", SOURCE, chunks, questions)


def _check_whole(lines: Sequence[_Line], rows: Sequence[Row]) -> None:
    for wanted, (line, row) in enumerate(zip(lines, rows, strict=True), start=1):
        if line.number != wanted:
            raise SchemaError(f"{row.where} has number {line.number}", expected=f"{wanted}: a line of its story is missing")


def _check_sentences(lines: Sequence[_Line], where: str) -> None:
    first = next((line.answer is None for line in lines), False)
    if not first:
        raise SchemaError(f"{where} asks before anything is said", expected="a sentence first")


def _question(line: _Line, task: str, metric: str, places: Mapping[int, set[int]]) -> Question | str:
    parts = tuple(dict.fromkeys(part.strip() for part in (line.answer or "").split(",") if part.strip()))
    if not parts:
        return EMPTY_ANSWER
    evidence = tuple(sorted({place for number in line.support for place in places.get(number, ())})) or None
    chosen = metric or ("keywords" if len(parts) > 1 else "exact_match")
    golds = parts if chosen == "keywords" else (str(line.answer).strip(),)
    return Question(line.text, golds, chosen, task, evidence=evidence, id=str(line.number))


def _chunks(lines: Iterable[_Line], limit: int, count: TokenCounter) -> tuple[tuple[Chunk, ...], dict[int, set[int]]]:
    """Pack sentences; and the chunks in which each numbered sentence stands."""
    pieces = [(line.number, line.text[s.start : s.end]) for line in lines for s in split_text(line.text, limit, count)]
    rng = random.Random(0)  # of no effect: there is one length to draw
    packed = list(pack_texts((text for _, text in pieces), TokenRange(limit, limit), count, rng, separator="\n"))
    places: dict[int, set[int]] = {}
    for index, chunk in enumerate(packed):
        for part in chunk.parts:
            places.setdefault(pieces[part][0], set()).add(index)
    return tuple(Chunk(chunk.text) for chunk in packed), places


# ------------------------------------------------------------------------------------------------ lines
def _asks(line: str) -> bool:
    """Whether a line is a question, also one whose answer is cut off."""
    return "\t" in line or line.rstrip().endswith("?")


def _line(row: Row) -> _Line:
    match = _LINE.fullmatch(row.data)
    if match is None:
        raise SchemaError(f"{row.where} has no number", expected="'1 Mary went home.' or '2 Where is Mary?<tab>home<tab>1'")
    parts = match[2].split("\t")
    said = check_text(parts[0], row.where)
    if not said:
        raise SchemaError(f"{row.where} is empty", expected="a sentence or a question")
    if not _asks(row.data):
        return _Line(int(match[1]), said)
    answer, support = (*parts[1:], "", "")[:2]
    return _Line(int(match[1]), said, check_text(answer, row.where), _numbers(support, row.where))


def _numbers(text: str, where: str) -> tuple[int, ...]:
    words = text.split()
    if not all(_NUMBER.fullmatch(word) for word in words):
        raise SchemaError(f"{where} has supporting sentences {text!r:.40}", expected="numbers")
    return tuple(int(word) for word in words)


def _hub_lines(story: Mapping[str, Any], where: str) -> Iterator[_Line]:
    columns = [items(story, key, where) for key in ("id", "type", "text", "answer", "supporting_ids")]
    if len({len(column) for column in columns}) != 1:
        raise SchemaError(f"{where} has columns of different lengths", expected="one item a sentence")
    for number, kind, text, answer, support in zip(*columns, strict=True):
        said, place = check_text(text, where), _numbers(scalar_text(number, where), where)
        if len(place) != 1 or not said:
            raise SchemaError(f"{where} has a sentence without number or text", expected="'1' and a sentence")
        if kind in (1, "question"):
            held = support if isinstance(support, list) else []
            yield _Line(place[0], said, check_text(answer, where), _numbers(" ".join(scalar_text(n, where) for n in held), where))
        else:
            yield _Line(place[0], said)
