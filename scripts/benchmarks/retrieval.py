"""Search and update of the two-layer retriever at 100, 10,000 and 1,000,000 entries, against brute force and rank_bm25.

* dense: the retriever over ``--dimension`` random vectors, drawn around centres that lie around nine sections (the noise inside a
  centre has 32 dimensions), with layer 1 open and with layer 1 keeping two of the nine sections; against a numpy product with all
  vectors. The embedder is a table, so embedding costs nothing in either.
* lexical: the retriever over texts of 5 to 12 words by a power law; against rank_bm25, which is built anew after an update because
  it has no other way, and for exactness against BM25 computed in numpy over all texts.

Recall@10 is the share of hits whose exact score is at least the tenth best one's (equal scores are equally right), before and
after the updates; the smallest of the variants that search all entries is among the ratios. An update's time ends with a search
that has seen it. ``build_s``
is the time of the first search, which builds the index. Ratios are of medians of processor time. A million entries take 7 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np

from benchmarks import common

K = 10
SECTIONS_KEPT = 2
NOISE_DIMENSIONS = 32
WORDS = 50_000
EVERYTHING = ("layer 1 open", "ours")  # variants that search all entries, as brute force does


def add_arguments(parser: Any) -> None:
    parser.add_argument("--entries", type=int, nargs="+", help="sizes (default 100 10000 1000000)")
    parser.add_argument("--kinds", nargs="+", choices=("dense", "lexical"), default=["dense", "lexical"])
    parser.add_argument("--dimension", type=int, default=384, help="length of a vector (default 384)")
    parser.add_argument("--queries", type=int, default=200, help="queries that recall is measured on (default 200)")


def run(options: Any) -> dict[str, Any]:
    """Measure each kind at each size."""
    sizes = options.entries or ([100, 400] if options.quick else [100, 10_000, 1_000_000])
    queries = 10 if options.quick else options.queries
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for kind in options.kinds:
        for entries in sizes:
            common.progress(f"retrieval: {kind}, {entries} entries")
            rounds = options.rounds or (2 if options.quick else 10 if entries <= 100_000 else 5)
            bench: Any = Dense(entries, queries, options.dimension) if kind == "dense" else Lexical(entries, queries)
            found, faster = bench.measure(rounds)
            rows += [{"kind": kind, "entries": entries, **row} for row in found]
            ratios |= {f"{kind}_{name}_{entries}": value for name, value in faster.items()}
    ratios["recall"] = min(row["recall"] for row in rows if row["variant"] in EVERYTHING)
    measured = {"entries": sizes, "queries": queries, "dimension": options.dimension, "k": K}
    return {"name": "retrieval", "ratios": ratios, "details": {"sizes": measured, "table": rows}}


class _Bench:
    """A memory of ``entries`` entries, its retriever, ``queries`` (texts) in turn, and recall.

    A subclass has ``exact(text)``: exact scores of all entries, shape (entries,).
    """

    kind: str
    queries: list[str]
    embedder: Any = None

    def __init__(self, entries: int) -> None:
        from memalpha.memory.memory import Memory
        from memalpha.memory.schema import MemorySchema

        self.entries, self.turn, self.updates = entries, 0, 0
        self.memory = Memory(MemorySchema.load("nine_categories"))
        self.names = [section.name for section in self.memory.schema.lists]

    def fill(self, contents: Iterator[tuple[str, str]]) -> None:
        """Put (section, content) pairs into the memory."""
        from memalpha.types import Operation, OperationKind

        for section, content in contents:
            assert self.memory.apply(Operation(OperationKind.INSERT, section, content)).changed

    def build(self, **settings: Any) -> float:
        """Make the retriever and search all sections once; return the processor seconds that took."""
        from memalpha.retrieval import RetrievalConfig
        from memalpha.retrieval.two_layer import TwoLayerRetriever

        start = process_time()
        config = RetrievalConfig(retrieval=self.kind, **settings)  # type: ignore[arg-type]
        self.retriever = TwoLayerRetriever(self.memory, config, embedder=self.embedder)
        self.keep_sections(0)
        self.retriever.search(self.queries[0], K)
        return process_time() - start

    def keep_sections(self, kept: int) -> None:
        """Let layer 1 keep that many sections (0 = all) in the retriever as it is: another would hold everything a second time."""
        self.retriever._config = replace(self.retriever._config, sections_kept=kept)

    def next_query(self) -> str:
        self.turn += 1
        return self.queries[self.turn % len(self.queries)]

    def search(self) -> None:
        self.retriever.search(self.next_query(), K)

    def next_update(self) -> int:
        """Number of the entry to update (from 0)."""
        self.updates += 1
        return (self.updates - 1) * 7919 % self.entries

    def write(self, number: int, content: str) -> None:
        """Update an entry, then search."""
        from memalpha.types import Operation, OperationKind

        entry = self.memory.get(str(number + 1))
        assert entry is not None
        assert self.memory.apply(Operation(OperationKind.UPDATE, entry.section, content, entry.id)).changed
        self.search()

    def exact(self, query: str) -> Any:
        raise NotImplementedError

    def brute_force(self) -> None:
        """Search once by numpy."""
        scores = self.exact(self.next_query())
        best = np.argpartition(-scores, min(K, len(scores) - 1))[:K]
        best[np.argsort(-scores[best])]

    def recall(self) -> float:
        """Mean recall@10 over all queries."""
        found, right = 0, 0
        for query in self.queries:
            scores = self.exact(query)
            wanted = min(K, int((scores > 0).sum())) if self.kind == "lexical" else min(K, len(scores))
            if wanted:
                least = np.partition(scores, -wanted)[-wanted] - 2e-6
                hits = [int(hit.entry.id) - 1 for hit in self.retriever.search(query, K)]
                right += int((scores[hits] >= least).sum()) if hits else 0
                found += wanted
        return right / found


class Dense(_Bench):
    """Vectors of a dimension around centres around sections."""

    kind = "dense"

    def __init__(self, entries: int, queries: int, dimension: int) -> None:
        super().__init__(entries)
        self.dimension = dimension
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((max(20, entries // 1000), dimension), dtype=np.float32)
        home = rng.integers(0, len(self.names), len(centres))
        centres += 2 * rng.standard_normal((len(self.names), dimension), dtype=np.float32)[home]
        basis = rng.standard_normal((NOISE_DIMENSIONS, dimension), dtype=np.float32) / np.sqrt(NOISE_DIMENSIONS)
        total = entries + queries + 1000  # the last are what updates write
        belongs = rng.integers(0, len(centres), total)
        self.pool = np.empty((total, dimension), dtype=np.float32)
        for start in range(0, total, 10_000):
            part = belongs[start : start + 10_000]
            noise = rng.standard_normal((len(part), NOISE_DIMENSIONS), dtype=np.float32) @ basis
            rows = centres[part] + noise + 0.1 * rng.standard_normal((len(part), dimension), dtype=np.float32)
            self.pool[start : start + len(part)] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self.matrix = self.pool[:entries]  # updates write into it
        self.queries = [str(entries + i) for i in range(queries)]
        self.embedder = self
        self.fill((self.names[home[belongs[i]]], str(i)) for i in range(entries))

    def embed(self, texts: Any) -> Any:
        """The vector whose number a text is; of other texts (descriptions of sections) a zero vector."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            if text.isdecimal():
                row[:] = self.pool[int(text)]
        return rows

    def exact(self, query: str) -> Any:
        return self.matrix @ self.pool[int(query)]

    def update(self) -> None:
        number = self.next_update()
        new = self.entries + len(self.queries) + (self.updates - 1) % 1000
        self.matrix[number] = self.pool[new]
        self.write(number, str(new))

    def measure(self, rounds: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """The rows of the table and the ratios."""
        build = self.build(sections_kept=SECTIONS_KEPT)
        recall = self.recall()
        per = 20 if self.entries <= 100_000 else 3
        found = common.alternate({"ours": _times(per, self.search), "numpy": _times(per, self.brute_force)}, rounds)
        self.keep_sections(SECTIONS_KEPT)
        kept, recall_kept = common.alternate({"kept": _times(per, self.search)}, rounds)["kept"], self.recall()
        self.keep_sections(0)
        changed = common.alternate({"ours": self.update}, max(rounds, 20))["ours"]
        rows = [
            _row("layer 1 open", found["ours"], per, recall, changed, self.recall(), build),
            _row(f"{SECTIONS_KEPT} sections of 9", kept, per, recall_kept),
            _row("numpy", found["numpy"], per),
        ]
        return rows, {"numpy": common.ratio(found["numpy"], found["ours"], "cpu").value}


class Lexical(_Bench):
    """Texts of made-up words; a query is three words of some entry and three others."""

    kind = "lexical"

    def __init__(self, entries: int, queries: int) -> None:
        super().__init__(entries)
        self.rng = np.random.default_rng(0)
        self.words = np.full((entries, 12), -1, dtype=np.int32)
        for number in range(entries):
            self.draw(number)
        first = [self.text(int(number)).split()[:3] for number in self.rng.integers(0, entries, queries)]
        self.queries = [" ".join([*words, *(f"w{word}" for word in self.random_words(3))]) for words in first]
        self.fill((self.names[i % 9], self.text(i)) for i in range(entries))

    def random_words(self, count: int) -> Any:
        return (self.rng.pareto(0.7, count) * 3).astype(np.int64) % WORDS

    def draw(self, number: int) -> None:
        length = int(self.rng.integers(5, 12))
        self.words[number] = -1
        self.words[number, :length] = self.random_words(length)
        self.words[number, length] = WORDS + self.rng.integers(0, 2**31 - 1 - WORDS)  # no text twice

    def text(self, number: int) -> str:
        return " ".join(f"w{word}" for word in self.words[number].tolist() if word >= 0)

    def exact(self, query: str) -> Any:
        """Scores of the formula over all texts, by numpy."""
        lengths = (self.words >= 0).sum(axis=1)
        scores = np.zeros(self.entries)
        for word in query.split():
            counts = (self.words == int(word[1:])).sum(axis=1)
            holders = int((counts > 0).sum())
            idf = np.log1p((self.entries - holders + 0.5) / (holders + 0.5))
            scores += idf * counts / (counts + 1.5 * (0.25 + 0.75 * lengths / lengths.mean()))
        return scores

    def update(self) -> None:
        number = self.next_update()
        self.draw(number)
        self.write(number, self.text(number))

    def measure(self, rounds: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """The rows of the table and the ratios."""
        from rank_bm25 import BM25Okapi

        build = self.build()
        recall = self.recall()

        def index() -> None:
            self.other = BM25Okapi([self.text(number).split() for number in range(self.entries)])

        rebuild = common.Series(*zip(common.seconds(index), strict=True))
        per = 20 if self.entries <= 100_000 else 1
        variants: dict[str, Callable[[], object]] = {
            "ours": _times(per, self.search),
            "numpy": _times(per, self.brute_force),
            "rank_bm25": _times(per, lambda: np.argpartition(-self.other.get_scores(self.next_query().split()), K - 1)[:K]),
        }
        found = common.alternate(variants, rounds)
        changed = common.alternate({"ours": self.update}, max(rounds, 20))["ours"]
        rows = [
            _row("ours", found["ours"], per, recall, changed, self.recall(), build),
            _row("numpy", found["numpy"], per),
            _row("rank_bm25", found["rank_bm25"], per, None, rebuild, None, rebuild.median("cpu")),
        ]
        faster = {name: common.ratio(found[name], found["ours"], "cpu").value for name in ("numpy", "rank_bm25")}
        return rows, {**faster, "update_rank_bm25": rebuild.median("cpu") / changed.median("cpu")}


def _times(count: int, call: Callable[[], object]) -> Callable[[], object]:
    def several() -> None:
        for _ in range(count):
            call()

    return several


def _row(
    variant: str,
    search: common.Series,
    per: int,
    recall: float | None = None,
    update: common.Series | None = None,
    after: float | None = None,
    build: float | None = None,
) -> dict[str, Any]:
    update_ms = None if update is None else 1e3 * update.median("cpu")
    found = {"variant": variant, "recall": recall, "recall_after_updates": after, "search_ms": 1e3 * search.median("cpu") / per}
    return {**found, "update_ms": update_ms, "build_s": build}
