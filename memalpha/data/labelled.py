"""Reads labelled sentences from the files of the classification sets (instances: ``memalpha.data.classification``).

| set | original form (Hub rows: ``text`` and a label) |
| --- | --- |
| TREC (Li and Roth, 2002) | ``COARSE:fine sentence`` a line, Latin-1 |
| HWU64 (Liu et al., arXiv 1903.05566) | a folder of ``seq.in`` and ``label``, or the first release's CSV ``scenario;intent;...`` |
| BANKING77 (Casanueva et al., arXiv 2003.04807) | CSV ``text,category`` |
| CLINC150 (Larson et al., arXiv 1909.02027) | JSON ``{split: [[text, intent]]}``, ``oos_`` before some splits |
| PubMed-RCT (Dernoncourt and Lee, arXiv 1710.06071) | ``###id``, then ``LABEL<tab>sentence`` a line |
| CSAbstruct (Cohan et al., arXiv 1909.04054) | JSON Lines ``{sentences[], labels[]}`` |

Column names: ``_TEXTS`` and ``_LABELS``; the first label column present counts, even if empty. Each sentence comes once, in
order; a wrong row has a ``SchemaError`` in place of its label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.data.fields import clean, convert, count_items, is_missing, mapping, scalar
from memalpha.data.rows import (
    Row,
    data_file,
    data_path,
    existing_file,
    file_name,
    iter_rows,
    json_items,
    kind_of,
    on_hub,
    packed_or_not,
    text_lines,
)  # fmt: skip
from memalpha.errors import InputError, SchemaError

_TEXTS = ("text", "sentence", "utterance", "question", "query")
_LABELS = ("label", "category", "intent", "label_text", "label-fine", "fine_label", "target")
_TREC = re.compile(r"([A-Z]+):(\S+)\s+(.*)", re.DOTALL)


class Labelled(NamedTuple):
    """A sentence (one line, "" if blank), its place, label (SchemaError if the row is wrong) and split ("" = not given)."""

    where: str
    text: str
    label: str | SchemaError
    split: str = ""


Reader = Callable[[str, str], Iterator[Labelled]]
"""Arguments: path or Hub name, Hub split; InputError if the input cannot be read."""


def read_trec_coarse(source: str, split: str) -> Iterator[Labelled]:
    """Read TREC with its 6 coarse labels."""
    return _trec(source, split, ("coarse_label", "label-coarse", *_LABELS), lambda match: match[1])


def read_trec_fine(source: str, split: str) -> Iterator[Labelled]:
    """Read TREC with its 50 fine labels."""
    return _trec(source, split, ("fine_label", "label-fine", *_LABELS), lambda match: f"{match[1]}:{match[2]}")


def _trec(source: str, split: str, names: tuple[str, ...], label: Callable[[re.Match[str]], str]) -> Iterator[Labelled]:
    if not _is_text(source):
        yield from _columns(iter_rows(source, split), names)
        return
    for row in text_lines(existing_file(source)):
        if said := row.data.strip():
            match = _TREC.fullmatch(said)
            yield _labelled(row.where, match[3], label(match)) if match else _wrong(row.where, "of the form COARSE:fine sentence")


def read_columns(source: str, split: str) -> Iterator[Labelled]:
    """Read rows of a sentence and a label (BANKING77 and others)."""
    return _columns(iter_rows(source, split), _LABELS)


def read_parallel(source: str, split: str) -> Iterator[Labelled]:
    """Read HWU64: a folder of ``seq.in`` and ``label``, or rows."""
    folder = data_path(source)
    if not folder.is_dir():
        yield from _columns((_first_release(row) for row in iter_rows(source, split)), _LABELS)
        return
    folder = folder / split if (folder / split).is_dir() else folder
    files = [packed_or_not(folder / name) for name in ("seq.in", "label")]
    if lacking := [str(file) for file in files if not file.is_file()]:
        there = sorted({file.parent.name for file in folder.glob("*/seq.in*")})
        also = f" (there is {', '.join(there)})" if there else ""
        wanted = f"a folder with seq.in and label, or with a folder {split!r} of them{also}"
        raise InputError(f"no file {lacking[0]}", expected=wanted)
    blank = Row("", "")
    for said, label in zip_longest(*(text_lines(file) for file in files), fillvalue=blank):
        if not said.data.strip() and not label.data.strip():
            continue
        if not (said.where and label.where):
            where = f"{said.where or label.where} of {folder}"
            raise SchemaError(f"{where} has no line beside it in the other file", expected="seq.in and label with as many lines")
        yield _labelled(said.where, said.data, label.data)


def _first_release(row: Row) -> Row:
    """A row of HWU64's first release (``null`` = missing) as {text, label}, others unchanged; a label needs both parts."""
    data = row.data
    if not isinstance(data, Mapping) or not (
        {"scenario", "intent", "answer"} <= set(data) or {"answerid", "answer_annotation"} & set(data)
    ):
        return row
    try:
        parts = [convert(scalar, data.get(key), f"{row.where} field {key!r}") for key in ("scenario", "intent")]
    except SchemaError as error:
        return Row(row.where, error)
    said, whole = data.get("answer"), not {"", "null"}.intersection(parts)
    return Row(row.where, {"text": "" if is_missing(said) or said == "null" else said, "label": "_".join(parts) if whole else ""})


def read_clinc(source: str, split: str) -> Iterator[Labelled]:
    """Read CLINC150: an object of lists by split, or rows."""
    if on_hub(source) or kind_of(Path(source)) != ".json":
        yield from _columns(iter_rows(source, split), _LABELS)
        return
    path = data_file(source)
    for index, item in enumerate(json_items(path)):
        where = f"{file_name(path)} item {index}"
        lists = isinstance(item, Mapping) and any(isinstance(value, list) for value in item.values())
        if not lists or any(isinstance(item.get(name), str) for name in _TEXTS):
            yield from _columns([Row(where, item)], _LABELS)
            continue
        for name, pairs in item.items():
            if not isinstance(pairs, list):
                yield _wrong(f"{file_name(path)} {name!r}", "a list of [text, intent]", name)
                continue
            for number, pair in enumerate(pairs):
                place, fits = f"{file_name(path)} {name}[{number}]", isinstance(pair, list) and len(pair) == 2
                yield _labelled(place, pair[0], pair[1], name) if fits else _wrong(place, "a pair [text, intent]", name)


def read_abstracts(source: str, split: str) -> Iterator[Labelled]:
    """Read PubMed-RCT text or CSAbstruct rows."""
    if _is_text(source):
        for row in text_lines(existing_file(source)):
            if row.data.strip() and not row.data.startswith("###"):
                label, found, said = row.data.partition("\t")
                yield _labelled(row.where, said, label) if found else _wrong(row.where, "of the form LABEL<tab>sentence")
        return
    for row in iter_rows(source, split):
        if not isinstance(row.data, Mapping) or "sentences" not in row.data:
            yield from _columns([row], _LABELS)
            continue
        texts: Any = row.data["sentences"]
        labels: Any = row.data.get("labels")
        fits = isinstance(texts, list) and isinstance(labels, list) and len(texts) == len(labels)
        for index in range(len(texts) if fits else max(1, count_items(row.data, "sentences"))):
            where = f"{row.where} sentence {index}"
            yield _labelled(where, texts[index], labels[index]) if fits else _wrong(where, "in an abstract with as many labels")


def _columns(rows: Iterable[Row], names: tuple[str, ...]) -> Iterator[Labelled]:
    for row in rows:
        try:
            data = mapping(row.data, row.where)
            said = next((data[name] for name in _TEXTS if not is_missing(data.get(name))), None)
            label = next((name for name in names if name in data), None)
            if said is None or label is None:
                lacking = _TEXTS if said is None else names
                raise SchemaError(f"{row.where} has none of {', '.join(map(repr, lacking))}", expected="one of these fields")
        except SchemaError as error:
            yield Labelled(row.where, "", error)
            continue
        yield _labelled(row.where, said, data[label])


def _labelled(where: str, said: Any, label: Any, split: str = "") -> Labelled:
    try:
        return Labelled(where, " ".join(convert(clean, said, where).split()), convert(scalar, label, f"{where} label"), split)
    except SchemaError as error:
        return Labelled(where, "", error, split)


def _wrong(where: str, expected: str, split: str = "") -> Labelled:
    return Labelled(where, "", SchemaError(f"{where} is not {expected}", expected="a sentence with its label"), split)


def _is_text(source: str) -> bool:
    path = Path(source)
    if on_hub(source) or kind_of(path) not in (".txt", ".label", ""):
        return False
    if not path.is_file() or path.suffix == ".gz":
        return True
    with path.open("rb") as file:
        return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"[")
