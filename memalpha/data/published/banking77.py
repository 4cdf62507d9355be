"""BANKING77: intents of a bank's customers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memalpha.data.published.labelled import LabelledSet
from memalpha.data.rows import Row, iter_rows


def _table(source: str, split: str) -> Iterator[Row]:
    for row in iter_rows(source, split):
        data = row.data
        if isinstance(data, Mapping):
            data = {**data, "label": data.get("category")}
        yield replace(row, data=data)


SOURCES = [
    LabelledSet("banking77", _table, 611, kind="(?!)").source(
        "BANKING77 intents: CSV text,category"
    ),
]
