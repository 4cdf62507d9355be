"""PubMed-RCT: the roles of the sentences of abstracts."""

from memalpha.data.published.labelled import LabelledSet, labelled_lines

_ROLES = labelled_lines(r"(?P<label>[^\t]*)\t(?P<text>.*)")

SOURCES = [
    LabelledSet("pubmed_rct", _ROLES, 1676, "Sample").source(
        "PubMed-RCT roles of sentences: lines of LABEL<tab>sentence"
    ),
]
