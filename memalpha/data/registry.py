"""Every data source by name. Adding one is a module with a loader and an options dataclass, and one line in ``SOURCES``."""

from __future__ import annotations

from collections.abc import Callable

from memalpha.data.babi import BabiOptions, load_babi
from memalpha.data.classification import ClassificationOptions, LabelledSet
from memalpha.data.dialogues import (
    LocomoOptions,
    LongMemEvalOptions,
    MscOptions,
    load_locomo,
    load_longmemeval,
    load_msc,
)  # fmt: skip
from memalpha.data.documents import (
    BooksumOptions,
    MemalphaOptions,
    MemoryAgentBenchOptions,
    SummaryOptions,
    load_booksum,
    load_memalpha,
    load_memoryagentbench,
    load_qmsum,
)  # fmt: skip
from memalpha.data.labelled import (
    read_abstracts,
    read_clinc,
    read_columns,
    read_parallel,
    read_trec_coarse,
    read_trec_fine,
)  # fmt: skip
from memalpha.data.multihop import MultihopOptions, load_hotpotqa, load_musique
from memalpha.data.perltqa import PerltqaOptions, load_perltqa
from memalpha.data.source import LoadResult, Source
from memalpha.data.squad import SquadOptions, load_squad
from memalpha.data.synthetic import SyntheticOptions, load_synthetic
from memalpha.data.toy import ToyOptions, load_toy
from memalpha.errors import InputError


def _before(mark: str) -> Callable[[str], str]:
    """What stands before a mark in a label: its coarse class, where labels are made so."""
    return lambda label: label.partition(mark)[0]


LABELLED: tuple[tuple[LabelledSet, str], ...] = (
    (LabelledSet("trec_coarse", read_trec_coarse, 390), "TREC question types, 6 coarse labels: lines of COARSE:fine sentence"),
    (LabelledSet("trec_fine", read_trec_fine, 390, kind=_before(":")), "TREC question types, 50 fine labels: the same lines"),
    (LabelledSet("banking77", read_columns, 611, kind=lambda _: "intent"), "BANKING77 intents: CSV text,category"),
    (
        LabelledSet("clinc150", read_clinc, 611, kind=lambda label: "oos" if label == "oos" else "intent"),
        "CLINC150 intents: JSON {split: [[text, intent]]}",
    ),
    (LabelledSet("hwu64", read_parallel, 611, kind=_before("_")), "HWU64 (NLU) intents: a folder of seq.in and label"),
    (LabelledSet("pubmed_rct", read_abstracts, 1676, word="Sample"), "PubMed-RCT roles of sentences: lines of LABEL<tab>sentence"),
    (LabelledSet("csabstruct", read_abstracts, 1676, word="Sample"), "CSAbstruct roles of sentences: JSON Lines"),
)
"""Every set of labelled sentences, with what it reads; their chunks have the published lengths, or those of the set most alike."""

_READERS = (
    Source("babi", "bAbI tasks: numbered stories, one file or a folder of qa*.txt", load_babi, BabiOptions),
    Source("booksum", "BookSum chapters with summaries: JSON Lines, CSV, Parquet", load_booksum, BooksumOptions),
    Source("hotpotqa", "HotpotQA, original JSON: evidence articles in chunks", load_hotpotqa, MultihopOptions),
    Source("locomo", "LoCoMo, original JSON: a conversation's sessions and its questions", load_locomo, LocomoOptions),
    Source("longmemeval", "LongMemEval S, M or oracle, original JSON", load_longmemeval, LongMemEvalOptions),
    Source("memalpha", "YuWangX/Memalpha's columns: Parquet, JSON, JSON Lines", load_memalpha, MemalphaOptions),
    Source("memoryagentbench", "MemoryAgentBench: Parquet, JSON, JSON Lines", load_memoryagentbench, MemoryAgentBenchOptions),
    Source("msc", "Multi-Session Chat, original JSON Lines", load_msc, MscOptions),
    Source("musique", "MuSiQue, original JSON Lines: supporting paragraphs in chunks", load_musique, MultihopOptions),
    Source("perltqa", "PerLTQA, perltqa*.json with perltmem*.json beside it", load_perltqa, PerltqaOptions),
    Source("qmsum", "QMSum meetings with queries, original JSON Lines", load_qmsum, SummaryOptions),
    Source("squad", "SQuAD 1.1 or 2.0, original or flattened JSON: paragraphs in chunks", load_squad, SquadOptions),
    *(Source(labelled.name, reads, labelled, ClassificationOptions) for labelled, reads in LABELLED),
)
_GENERATORS = (
    Source("synthetic", "generated dialogues with changes and retractions", load_synthetic, SyntheticOptions, needs_input=False),
    Source("toy", "the smallest generated task, for nano policies", load_toy, ToyOptions, needs_input=False),
)

SOURCES: dict[str, Source] = {source.name: source for source in (*_READERS, *_GENERATORS)}
"""Every source by name."""


def get_source(name: str) -> Source:
    """Return a source, whatever the case of its name and with "-" for "_"; InputError that lists them all if there is none."""
    known = name if name in SOURCES else name.lower().replace("-", "_")
    if known not in SOURCES:
        raise InputError(f"unknown data source {name!r}", expected=f"one of {', '.join(sorted(SOURCES))}")
    return SOURCES[known]


__all__ = ["LABELLED", "SOURCES", "LoadResult", "Source", "SyntheticOptions", "ToyOptions", "get_source"]
