"""TREC question types: lines of a label, which is coarse and fine, and a sentence."""

from memalpha.data.published.labelled import LabelledSet, labelled_lines

_COARSE = labelled_lines(r"(?P<label>[A-Z]+):\S+\s+(?P<text>.*)")
_FINE = labelled_lines(r"(?P<label>[A-Z]+:\S+)\s+(?P<text>.*)")

SOURCES = [
    LabelledSet("trec_coarse", _COARSE, 390).source(
        "TREC question types, 6 labels: COARSE:fine sentence"
    ),
    LabelledSet("trec_fine", _FINE, 390, kind="[^:]+").source("TREC, 50 labels: the same lines"),
]
