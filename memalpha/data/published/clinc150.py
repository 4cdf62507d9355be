"""CLINC150: intents, and sentences out of their scope."""

from collections.abc import Iterator

from memalpha.data.published.labelled import LabelledSet
from memalpha.data.rows import Row, existing_file, read_document


def _clinc(source: str, split: str) -> Iterator[Row]:
    for name, pairs in read_document(existing_file(source)).fields().items():
        for number, pair in enumerate(pairs.items()):
            data = pair.data
            if isinstance(data, list) and len(data) == 2:
                data = {"text": data[0], "label": data[1], "split": name}
            yield Row(f"{pairs.where} {name}[{number}]", data, form="[text, label]")


SOURCES = [LabelledSet("clinc150", _clinc, 611, kind="oos$").source("CLINC150: data_full.json")]
