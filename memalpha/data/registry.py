"""Every data source by name. Adding one is a module with a loader and an options dataclass, and one line in ``SOURCES``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from memalpha.data.babi import BabiOptions, load_babi
from memalpha.data.classification import ClassificationOptions, LabelledSet
from memalpha.data.labelled import (
    read_abstracts,
    read_clinc,
    read_columns,
    read_parallel,
    read_trec_coarse,
    read_trec_fine,
)  # fmt: skip
from memalpha.data.locomo import LocomoOptions, load_locomo
from memalpha.data.longmemeval import LongMemEvalOptions, load_longmemeval
from memalpha.data.memalpha_format import MemalphaOptions, load_memalpha
from memalpha.data.memoryagentbench import MemoryAgentBenchOptions, load_memoryagentbench
from memalpha.data.msc import MscOptions, load_msc
from memalpha.data.multihop import MultihopOptions, load_hotpotqa, load_musique
from memalpha.data.perltqa import PerltqaOptions, load_perltqa
from memalpha.data.pools import Split, Templates
from memalpha.data.source import LoadResult, Source
from memalpha.data.squad import SquadOptions, load_squad
from memalpha.data.summaries import BooksumOptions, SummaryOptions, load_booksum, load_qmsum
from memalpha.data.synthetic import PRESETS, SyntheticConfig, make_instance
from memalpha.data.toy import toy_generate
from memalpha.errors import InputError
from memalpha.protocols import TokenCounter


@dataclass(frozen=True, slots=True)
class SyntheticOptions:
    """Which synthetic dialogues to make; what is None is as in the preset. See ``memalpha.data.synthetic.SyntheticConfig``.

    Attributes:
        n: How many instances.
        preset: Preset to start from, a key of ``memalpha.data.synthetic.PRESETS``.
        split: Whose names and values.
        templates: Which sentences.
        n_chunks: Sessions in an instance.
        people: Persons who speak.
        facts_per_chunk: Fewest and most facts of a session.
        chitchat_per_chunk: Fewest and most other lines of a session.
        p_change: Probability that a fact changes an earlier one.
        p_retract: Probability that a fact takes an earlier one back.
        p_multi: Probability that a new fact is of an attribute with several values.
        p_distractor: Probability that chit-chat mentions a value.
        cascade: Share of the possible dependences between two persons' facts that are spoken of and asked about.
        absence: Share of what was never told that is asked about.
        max_questions: Most questions of an instance (0 = all).
    """

    n: int = 100
    preset: str = "small"
    split: Split = "train"
    templates: Templates = "train"
    n_chunks: int | None = None
    people: int | None = None
    facts_per_chunk: tuple[int, int] | None = None
    chitchat_per_chunk: tuple[int, int] | None = None
    p_change: float | None = None
    p_retract: float | None = None
    p_multi: float | None = None
    p_distractor: float | None = None
    cascade: float | None = None
    absence: float | None = None
    max_questions: int | None = None

    def config(self) -> SyntheticConfig:
        """Return the dialogues' config; InputError if the preset is unknown, ``n`` is below 1 or a value cannot be."""
        if self.n < 1:
            raise InputError(f"option 'n' is {self.n}", expected="at least 1")
        if self.preset not in PRESETS:
            raise InputError(f"option 'preset' is {self.preset!r}", expected=f"one of {', '.join(PRESETS)}")
        names = ("n_chunks", "people", "facts_per_chunk", "chitchat_per_chunk", "p_change", "p_retract", "p_multi", "p_distractor")
        given = {name: getattr(self, name) for name in (*names, "max_questions") if getattr(self, name) is not None}
        preset = PRESETS[self.preset]
        rates = {name: getattr(self, name) for name in ("cascade", "absence") if getattr(self, name) is not None}
        given["rates"] = replace(preset.rates, **rates)
        return replace(preset, split=self.split, templates=self.templates, **given)


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """Which toy instances to make.

    Attributes:
        n: How many.
        split: Which half of the endless sequence.
    """

    n: int = 100
    split: Split = "train"


def load_synthetic(source: str, options: SyntheticOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Make synthetic dialogues one by one; nothing is skipped, and ``source`` and ``count_tokens`` have no effect."""
    config = options.config()
    return LoadResult((make_instance(index, seed, config) for index in range(options.n)), total=options.n)


def load_toy(source: str, options: ToyOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Make toy instances; nothing is skipped, and ``source`` and ``count_tokens`` have no effect."""
    return LoadResult(iter(toy_generate(options.n, seed, options.split)), total=options.n)


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

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("babi", "bAbI tasks: numbered stories, one file or a folder of qa*.txt", load_babi, BabiOptions),
        Source("booksum", "BookSum chapters with summaries: JSON Lines, CSV, Parquet", load_booksum, BooksumOptions),
        Source("hotpotqa", "HotpotQA, original JSON: evidence articles in chunks", load_hotpotqa, MultihopOptions),
        Source("locomo", "LoCoMo, original JSON: a conversation's sessions and its questions", load_locomo, LocomoOptions),
        Source("longmemeval", "LongMemEval S, M or oracle, original JSON", load_longmemeval, LongMemEvalOptions),
        Source(
            "memalpha",
            "the published system's columns (YuWangX/Memalpha): Parquet, JSON, JSON Lines",
            load_memalpha,
            MemalphaOptions,
        ),
        Source(
            "memoryagentbench",
            "MemoryAgentBench, all four splits: Parquet, JSON, JSON Lines",
            load_memoryagentbench,
            MemoryAgentBenchOptions,
        ),
        Source("msc", "Multi-Session Chat, original JSON Lines", load_msc, MscOptions),
        Source("musique", "MuSiQue, original JSON Lines: supporting paragraphs in chunks", load_musique, MultihopOptions),
        Source("perltqa", "PerLTQA, perltqa*.json with perltmem*.json beside it", load_perltqa, PerltqaOptions),
        Source("qmsum", "QMSum meetings with queries, original JSON Lines", load_qmsum, SummaryOptions),
        Source("squad", "SQuAD 1.1 or 2.0, original or flattened JSON: paragraphs in chunks", load_squad, SquadOptions),
        Source(
            "synthetic", "generated dialogues with changes and retractions", load_synthetic, SyntheticOptions, needs_input=False
        ),
        Source("toy", "the smallest generated task, for nano policies", load_toy, ToyOptions, needs_input=False),
        *(Source(labelled.name, reads, labelled, ClassificationOptions) for labelled, reads in LABELLED),
    )
}
"""Every source by name."""


def get_source(name: str) -> Source:
    """Return a source, whatever the case of its name and with "-" for "_"; InputError that lists them all if there is none."""
    known = name if name in SOURCES else name.lower().replace("-", "_")
    if known not in SOURCES:
        raise InputError(f"unknown data source {name!r}", expected=f"one of {', '.join(sorted(SOURCES))}")
    return SOURCES[known]


__all__ = [
    "LABELLED",
    "SOURCES",
    "LoadResult",
    "Source",
    "SyntheticOptions",
    "ToyOptions",
    "get_source",
    "load_synthetic",
    "load_toy",
]
