"""Search and update of the two-layer retriever at 100, 10,000 and 1,000,000 entries, against brute
force and rank_bm25.

Dense: random vectors around centres around nine sections, with layer 1 open and keeping two of the
    nine; against a numpy product with all vectors. Lexical: texts by a power law; against
    rank_bm25, which is built anew after an update, and numpy over all texts. Recall@10: hits whose
    exact score is at least the tenth best one's. An update's time ends with a search that has seen
    it; the first search builds the index (``build_s``). Ratios are of medians of processor time. A
    million entries take 7 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
from rank_bm25 import BM25Okapi

from benchmarks import common
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Operation, OperationKind

K, DIMENSION, NOISE_DIMENSIONS, WORDS = 10, 384, 32, 50_000
COLUMNS = ("variant", "recall", "search_ms", "update_ms", "recall_after_updates", "build_s")


def run(options: Any) -> dict[str, Any]:
    sizes = options.entries or ([100, 400] if options.quick else [100, 10_000, 1_000_000])
    queries = 10 if options.quick else options.queries
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for kind in options.kinds:
        for entries in sizes:
            rounds = options.rounds or (2 if options.quick else 10 if entries <= 100_000 else 5)
            bench: Bench = Dense(entries, queries) if kind == "dense" else Lexical(entries, queries)
            found, faster = bench.measure(rounds)
            rows += [
                {"kind": kind, "entries": entries, **dict.fromkeys(COLUMNS), "variant": name, **row}
                for name, row in found.items()
            ]
            ratios |= {f"{kind}_{name}_{entries}": value for name, value in faster.items()}
    ratios["recall"] = min(row["recall"] for row in rows if row["variant"] == "ours")
    return {
        "ratios": ratios,
        "details": {"sizes": {"entries": sizes, "queries": queries}, "table": rows},
    }


class Bench:
    """A memory and its retriever; ``exact`` scores all entries, ``change`` gives an entry (from 0)
    a new content and returns it."""

    kind: RetrievalMode
    queries: list[str]
    exact: Callable[[str], Any]
    change: Callable[[int], str]
    embedder: Any = None
    others: Mapping[str, Callable[[], object]] = {}
    rebuild = 0.0

    def __init__(self, entries: int) -> None:
        self.entries, self.turn, self.updates = entries, 0, 0
        self.per = 20 if entries <= 100_000 else 3  # searches a reading
        self.memory = Memory(MemorySchema.load("nine_categories"))
        self.names = [section.name for section in self.memory.schema.lists]
        self.rng = np.random.default_rng(0)

    def write(self, kind: OperationKind, section: str, content: str, *entry: str) -> None:
        assert self.memory.apply(Operation(kind, section, content, *entry)).changed

    def next_query(self) -> str:
        self.turn += 1
        return self.queries[self.turn % len(self.queries)]

    def search(self) -> None:
        self.retriever.search(self.next_query(), K)

    def update(self) -> None:
        """Update an entry, then search."""
        number = self.updates * 7919 % self.entries
        entry = self.memory.get(str(number + 1))
        assert entry is not None
        self.write(OperationKind.UPDATE, entry.section, self.change(number), entry.id)
        self.updates += 1
        self.search()

    def brute_force(self) -> None:
        scores = self.exact(self.next_query())
        best = np.argpartition(-scores, min(K, len(scores) - 1))[:K]
        best[np.argsort(-scores[best])]

    def recall(self) -> float:
        """Mean recall@10 over all queries."""
        found, right = 0, 0
        for query in self.queries:
            scores = self.exact(query)
            wanted = min(K, int((scores > 0).sum()) if self.kind == "lexical" else len(scores))
            if wanted:
                hits = [int(hit.entry.id) - 1 for hit in self.retriever.search(query, K)]
                right += int((scores[hits] >= np.partition(scores, -wanted)[-wanted] - 2e-6).sum())
                found += wanted
        return right / found

    def measure(self, rounds: int) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
        """Build, search and update: a row a variant, and ratios."""
        start = process_time()
        self.retriever = TwoLayerRetriever(
            self.memory, RetrievalConfig(retrieval=self.kind), embedder=self.embedder
        )
        self.retriever.search(self.queries[0], K)
        build, recall = process_time() - start, self.recall()
        searched = self.search_seconds(
            rounds, ours=self.search, numpy=self.brute_force, **self.others
        )
        faster = {
            name: seconds / searched["ours"] for name, seconds in searched.items() if name != "ours"
        }
        rows: dict[str, dict[str, Any]] = {
            name: {"search_ms": 1e3 * seconds} for name, seconds in searched.items()
        }
        if (
            self.kind == "dense"
        ):  # layer 1 of the retriever as it is: another would hold everything a second time
            config, self.retriever.config = (
                self.retriever.config,
                replace(self.retriever.config, sections_kept=2),
            )
            rows["2 sections of 9"] = {
                "search_ms": 1e3 * self.search_seconds(rounds, kept=self.search)["kept"],
                "recall": self.recall(),
            }
            self.retriever.config = config
        update = common.alternate({"ours": self.update}, max(rounds, 20))["ours"].median("cpu")
        rows["ours"] |= {
            "recall": recall,
            "recall_after_updates": self.recall(),
            "update_ms": 1e3 * update,
            "build_s": build,
        }
        if self.others:
            rows["rank_bm25"] |= {"update_ms": 1e3 * self.rebuild, "build_s": self.rebuild}
            faster["update_rank_bm25"] = self.rebuild / update
        return rows, faster

    def search_seconds(self, rounds: int, **calls: Callable[[], object]) -> dict[str, float]:
        several = {
            name: lambda call=call: [call() for _ in range(self.per)]
            for name, call in calls.items()
        }
        return {
            name: series.median("cpu") / self.per
            for name, series in common.alternate(several, rounds).items()
        }


class Dense(Bench):
    """Vectors around centres around sections; the text of an entry or a query is the number of its
    vector."""

    kind, dimension = "dense", DIMENSION

    def __init__(self, entries: int, queries: int) -> None:
        super().__init__(entries)
        rng = self.rng
        centres = rng.standard_normal((max(20, entries // 1000), DIMENSION), dtype=np.float32)
        home = rng.integers(0, len(self.names), len(centres))
        centres += 2 * rng.standard_normal((len(self.names), DIMENSION), dtype=np.float32)[home]
        basis = rng.standard_normal((NOISE_DIMENSIONS, DIMENSION), dtype=np.float32) / np.sqrt(
            NOISE_DIMENSIONS
        )
        total = entries + queries + 1000  # the last are what updates write
        belongs = rng.integers(0, len(centres), total)
        self.pool = np.empty((total, DIMENSION), dtype=np.float32)
        for start in range(0, total, 10_000):
            part = belongs[start : start + 10_000]
            noise = rng.standard_normal((len(part), NOISE_DIMENSIONS), dtype=np.float32) @ basis
            rows = (
                centres[part]
                + noise
                + 0.1 * rng.standard_normal((len(part), DIMENSION), dtype=np.float32)
            )
            self.pool[start : start + len(part)] = rows / np.linalg.norm(
                rows, axis=1, keepdims=True
            )
        self.matrix = self.pool[:entries]  # updates write into it
        self.queries = [str(entries + i) for i in range(queries)]
        self.embedder = self
        for number in range(entries):
            self.write(OperationKind.INSERT, self.names[home[belongs[number]]], str(number))

    def embed(self, texts: Any) -> Any:
        """The vector whose number a text is; of other texts (descriptions of sections) a zero
        vector."""
        rows = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            if text.isdecimal():
                row[:] = self.pool[int(text)]
        return rows

    def exact(self, query: str) -> Any:
        return self.matrix @ self.pool[int(query)]

    def change(self, number: int) -> str:
        new = self.entries + len(self.queries) + self.updates % 1000
        self.matrix[number] = self.pool[new]
        return str(new)


class Lexical(Bench):
    """Texts of made-up words; a query is three words of some entry and three others."""

    kind = "lexical"

    def __init__(self, entries: int, queries: int) -> None:
        super().__init__(entries)
        self.words = np.full((entries, 12), -1, dtype=np.int32)
        texts = [self.change(number) for number in range(entries)]
        first = [texts[number].split()[:3] for number in self.rng.integers(0, entries, queries)]
        self.queries = [
            " ".join([*words, *(f"w{word}" for word in self.random_words(3))]) for words in first
        ]
        for number, text in enumerate(texts):
            self.write(OperationKind.INSERT, self.names[number % 9], text)
        start = process_time()
        other = BM25Okapi([text.split() for text in texts])
        self.rebuild = process_time() - start
        self.others = {
            "rank_bm25": lambda: np.argpartition(
                -other.get_scores(self.next_query().split()), K - 1
            )[:K]
        }

    def random_words(self, count: int) -> Any:
        return (self.rng.pareto(0.7, count) * 3).astype(np.int64) % WORDS

    def change(self, number: int) -> str:
        length = int(self.rng.integers(5, 12))
        self.words[number] = -1
        self.words[number, :length] = self.random_words(length)
        self.words[number, length] = WORDS + self.rng.integers(
            0, 2**31 - 1 - WORDS
        )  # no text twice
        return " ".join(f"w{word}" for word in self.words[number, : length + 1].tolist())

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
