"""Run folders with rollouts that really ran: a scripted policy, the real agent, memory, retrieval,
reader and rewards."""

from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.data.synthetic import generate
from memalpha.memory.memory import count_words
from memalpha.models.registry import make_tokenizer
from memalpha.qa.judges import FactContentJudge
from memalpha.qa.readers import QAEvaluator, RecallReader
from memalpha.record.folder import RunFolder, environment, trajectory_name
from memalpha.record.measure import measure, rollout_memory
from memalpha.record.rows import InstanceRow, paired_difference, rollout_to_json, summarise
from memalpha.rewards import RewardConfig
from memalpha.training.recording import ScoringExaminer
from memalpha.training.scoring import RolloutScorer
from memalpha.types import Chunk, Instance, Question, Sampling
from tests.helpers.scripted import ScriptedGenerator

EVIL = "<script>alert(1)</script>"
MARKUP = "[bold red]x[/bold red] [/] \x1b[2J"

ANN = Instance(
    "ann",
    "hand",
    (
        Chunk(f"Ann: I live in Rome. {EVIL}", "2023-01-02"),
        Chunk(f"Ann: I live in Oslo now. {MARKUP}", "2023-02-03"),
    ),
    (Question("Where does Ann live?", ("Oslo",), kind="latest", stale=("Rome",)),),
)
BOB = Instance(
    "bob",
    "hand",
    (Chunk("Bob: I keep bees."),),
    (Question(f"What does Bob keep? {EVIL}", ("bees",)),),
)
(CHAT,) = generate(1, seed=3)

# In the order in which prompts are asked: the first chunk of each instance, then the second chunk
# of those that have one, ...
BEFORE = ["+ Ann lives in Rome", "+ Bob keeps bees", ".", f"what {EVIL} is this", ".", "."]
AFTER = [
    f"+ Ann lives in Rome {EVIL}",
    "+ Bob likes tea",
    ".",
    f"= 1 Ann lives in Oslo {MARKUP}\n- 9",
    ".",
    "+ " + "word " * 100,
]
REWARD = RewardConfig(tool_weight=0.5, compression_weight=0.0, content_weight=0.0)
SCORER = RolloutScorer(QAEvaluator(RecallReader(100, count_words), k=3), FactContentJudge(), REWARD)


@pytest.fixture(scope="session")
def agent() -> AgentStep:
    words = (
        " ".join(chunk.text for instance in (ANN, BOB, CHAT) for chunk in instance.chunks)
        + " lives keeps likes tea word facts"
    )
    return AgentStep(
        AgentConfig(schema="facts", codec="compact", max_completion_length=90),
        make_tokenizer([words], 4096),
    )


def evaluate(agent: AgentStep, script: Sequence[str]) -> list[InstanceRow]:
    generator = ScriptedGenerator(script, agent.encoder.tokenizer)

    def draw(instances):
        rollouts = run_rollouts(instances, agent, generator, Sampling(90))
        return [rollout_memory(rollout, 3) for rollout in rollouts]

    ((_, rows),) = measure(
        draw,
        [ANN, BOB, CHAT],
        {"scorer": ScoringExaminer(SCORER)},
        names=("held out", "policy"),
        seed=0,
        count=count_words,
    )
    return rows


def write_training_step(run: RunFolder, agent: AgentStep, step: int) -> None:
    """A group of two rollouts on ANN: one that learns where she lives and one that keeps silent."""
    generator = ScriptedGenerator(
        ["+ Ann lives in Rome", ".", "= 1 Ann lives in Oslo", "."], agent.encoder.tokenizer
    )
    rollouts = run_rollouts([ANN, ANN], agent, generator, Sampling(90))
    lines = []
    for index, (rollout, rewards) in enumerate(zip(rollouts, SCORER.score(rollouts), strict=True)):
        advantages = [(1 - 2 * index) * advantage for advantage in (0.5, 0.25)]
        recorded = rollout_to_json(rollout, rewards, REWARD, advantages)
        lines.append({"step": step, "group": 0, "rollout": index, **recorded})
    run.write_lines(trajectory_name(step, 0), lines)


@pytest.fixture
def config() -> dict[str, Any]:
    return {
        "model": f"nano {EVIL}",
        "seed": 1,
        "tool_weight": 0.5,
        "train_options": {"n": 4},
        "adapter": "",
    }


@pytest.fixture
def bare_run(tmp_path: Path, config: dict[str, Any]) -> RunFolder:
    """A run that has written its options and nothing else."""
    return RunFolder.create(tmp_path / "bare", config)


def make_run(path: Path, config: dict[str, Any], agent: AgentStep) -> RunFolder:
    """A run with everything: metrics, trajectories, both evaluations and a summary."""
    run = RunFolder.create(path, config)
    run.write_json("environment.json", environment())
    for step in range(1, 11):
        run.append_line(
            "metrics.jsonl", {"step": step, "max_steps": 10, "rewards/accuracy/mean": step / 20}
        )
    for step in (1, 2):
        write_training_step(run, agent, step)
    found = {
        name: evaluate(agent, script) for name, script in (("before", BEFORE), ("after", AFTER))
    }
    for name, rows in found.items():
        run.write_lines(
            f"held_out/{name}.jsonl",
            [row.to_json() for row in rows],
        )
    first, second = found.values()
    summary = {
        "model": "nano",
        "seed": 1,
        "steps": 10,
        "seconds": 12.5,
        "before": summarise(first),
        "after": summarise(second),
    }
    run.write_json("summary.json", summary | {"delta": paired_difference(first, second)})
    return run


@pytest.fixture
def finished_run(tmp_path: Path, config: dict[str, Any], agent: AgentStep) -> RunFolder:
    return make_run(tmp_path / "finished", config, agent)


INLINE = {"a", "b", "code", "del", "i", "ins", "kbd", "small", "span"}
VOID = {"br", "img", "input", "link", "meta", "source"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where an element is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []
        self.words = " ".join(self.text.split())
        self.ids = [value for name, value in self.attributes if name == "id"]
        self.links = [value for name, value in self.attributes if name in ("href", "src", "srcset")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.text += "" if tag in INLINE else " "
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif self._open:
            self.text += data


@pytest.fixture(scope="session")
def read_page() -> Callable[[Path], Page]:
    """Reads a page of a site."""
    return lambda path: Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def browsed(tmp_path_factory: pytest.TempPathFactory, agent: AgentStep) -> Path:
    """The site of a run with hostile text, failed calls, updates, a cut completion, something
    masked."""
    from memalpha.measure.site import write_site

    run = make_run(
        tmp_path_factory.mktemp("browsed") / "run", {"model": f"nano {EVIL}", "seed": 1}, agent
    )
    rows = list(run.read_lines("held_out/after.jsonl"))
    rows[1]["rollout"]["questions"][0].update(
        score=None, answer=None, error=f"the reader is down {EVIL}"
    )
    rows[1]["rollout"]["steps"][0].update(total=None)
    run.write_lines("held_out/after.jsonl", rows)
    return write_site(run).parent
