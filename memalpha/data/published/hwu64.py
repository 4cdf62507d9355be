"""HWU64: intents of a home assistant's users."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from memalpha.data.published.labelled import LabelledSet
from memalpha.data.rows import Row, path_exists, text_lines
from memalpha.errors import SchemaError


def _parallel(source: str, split: str) -> Iterator[Row]:
    """Read HWU64: a folder of ``seq.in`` and ``label``, or a folder of such folders, one a
    split.
    """
    folder = Path(source, split) if path_exists(f"{source}/{split}") else Path(source)
    files = (text_lines(str(folder / name)) for name in ("seq.in", "label"))
    for text, label in zip_longest(*files):
        if text is None or label is None:
            where = f"{(text or label).where} of {folder}"
            raise SchemaError(
                f"{where} has no matching line in the other file",
                expected="files seq.in and label with the same number of lines",
            )
        if text.string() or label.string():
            yield Row(text.where, {"text": text.data, "label": label.data})


SOURCES = [
    LabelledSet("hwu64", _parallel, 611, kind="[^_]+").source(
        "HWU64: a folder of seq.in and label"
    ),
]
