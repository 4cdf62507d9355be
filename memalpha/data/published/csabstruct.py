"""CSAbstruct: the roles of the sentences of abstracts."""

from collections.abc import Iterator, Mapping

from memalpha.data.published.labelled import LabelledSet
from memalpha.data.rows import Row, iter_rows


def _abstracts(source: str, split: str) -> Iterator[Row]:
    for row in iter_rows(source, split):
        fields = row.data if isinstance(row.data, Mapping) else {}
        texts, labels = fields.get("sentences"), fields.get("labels")
        if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
            form = "lists 'sentences' and 'labels' of one length"
            yield Row(row.where, [texts, labels], form=form)
            continue
        for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
            yield Row(f"{row.where} sentence {number}", {"text": text, "label": label})


SOURCES = [
    LabelledSet("csabstruct", _abstracts, 1676, "Sample").source(
        "CSAbstruct roles of sentences: JSON Lines"
    ),
]
