"""Sections: the task against the evaluator asked by hand, and a trained router in the retriever and in an agent's folder."""

import itertools
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.data.synthetic import PRESETS, generate
from memalpha.errors import InputError
from memalpha.generation.scripted import ScriptedGenerator
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.models.nano import make_tokenizer
from memalpha.policies import Checkpoint, PolicyOptions, Shape, make_policy
from memalpha.qa.metrics import score
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.dense import LearnedSectionRouter
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.routing.ppo import Agent, PPOOptions, pack
from memalpha.routing.sections import SectionOptions, SectionTask, kept_questions, remember, section_options, section_tasks
from memalpha.types import Answer, Operation, OperationKind
from memalpha.use.agent import MemoryAgent

OPTIONS = SectionOptions(instances=2, preset="medium", mode="lexical", embedder="hashing", k=2, cost=0.3)
SCHEMA = MemorySchema.load("nine_categories")
NAMES = [section.name for section in SCHEMA.lists]
WORK, HEALTH, VALUES = "cognition_work", "physiology_health", "values"


@pytest.fixture(scope="module")
def task():
    return SectionTask(OPTIONS, HashingEmbedder())


def by_hand(task, number, names):
    """Accuracy and share, by ranking everything and keeping the first two of the sections."""
    case = task.cases[number]
    hits = [hit.entry for hit in case.retriever.search(case.question.text, 1000) if hit.entry.section in names][:2]
    passages = tuple(f"[{entry.timestamp}] {entry.content}" for entry in hits)
    entries = [entry for entry in case.memory if entry.section != "core"]
    share = sum(entry.section in names for entry in entries) / len(entries)
    return score(case.question, Answer("\n".join(passages), passages)), share


def test_accuracy_cost_and_optimum_by_hand(task):
    sets = [set(some) for size in range(10) for some in itertools.combinations(NAMES, size)]
    for number in range(0, len(task.cases), 7):
        rewards = []
        for chosen in sets:
            accuracy, share = by_hand(task, number, chosen)
            rewards.append(accuracy - 0.3 * share)
            mask = np.array([name in chosen for name in NAMES])
            assert task.found(number, mask) == pytest.approx((accuracy, share))
        assert task.optimum((np.array([number]),))[0] == pytest.approx(max(rewards))


def test_a_set_is_one_step_and_its_reward_is_what_was_found(task):
    state = task.start(6, np.random.default_rng(0))
    actions = np.random.default_rng(1).integers(2, size=(6, 9))
    outcome = task.act(state, actions, None)
    assert outcome.ended.all()
    assert outcome.rewards == pytest.approx([task.reward(n, row > 0) for n, row in zip(state[0], actions, strict=True)])
    assert (task.observe(state) == task.embeddings[state[0]]).all()
    assert task.shape == Shape(256, 9, 2, ((0, 256),) * 9)


@pytest.mark.parametrize("wording", ["words", "sentence", "verbatim"])
def test_memories_hold_what_holds_at_the_end_in_the_wording_asked_for(wording):
    (instance,) = generate(1, 3, PRESETS["long"])
    memory = remember(instance, SCHEMA, wording)
    lines = {line for chunk in instance.chunks for line in chunk.text.splitlines()}
    assert len(memory) > 20
    for entry in memory:
        if wording == "verbatim":
            assert entry.content in lines
        else:
            assert entry.content.startswith("The ") is (wording == "sentence")
    for question in instance.questions:
        passages = tuple(f"[{e.timestamp}] {e.content}" for e in memory)
        assert score(question, Answer("", passages)) == 1, question


def test_some_attributes_can_be_kept(task):
    (instance,) = generate(1, 3, PRESETS["long"])
    kept = kept_questions(instance, ("city", "job"))
    assert kept and all("city" in q.text or "job" in q.text for q in kept)
    assert len(kept) < len(kept_questions(instance, ())) == len(instance.questions)


def test_routes_name_the_sections_that_ever_held_something(task):
    held = {entry.section for case in task.cases for entry in case.memory}
    routes = task.routes()
    assert set(routes["trained_sections"]) == held and 0 < len(held) < 9
    assert routes["sections"] == NAMES and routes["embedder"] == "hashing"


class Only:
    """Sends every question to one section."""

    def rank(self, query, memory):
        return ["sensory_lifestyle"]


def test_the_published_comparison_measures_what_each_way_opens(task):
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "router_memories.py"))
    everything, food, oracle = script["compare"](task, OPTIONS.retrieval(), HashingEmbedder(), {"food": Only().rank})
    accuracies, shares = zip(*(by_hand(task, i, {"sensory_lifestyle"}) for i in range(len(task.cases))), strict=True)
    assert food["scores"] == accuracies and food["accuracy"] == pytest.approx(np.mean(accuracies))
    assert food["share"] == pytest.approx(np.mean(shares)) and food["sections"] == 1
    assert food["searched"] == pytest.approx(np.mean([case.memory.section_size("sensory_lifestyle") for case in task.cases]))
    assert everything["share"] == 1 and oracle["milliseconds"] is None
    assert oracle["accuracy"] - 0.3 * oracle["share"] == pytest.approx(task.optimum(task.held_out(10_000, 0)).mean())
    memories = {id(case.memory): case.memory for case in task.cases}.values()
    means = [np.mean([a for a, c in zip(accuracies, task.cases, strict=True) if c.memory is memory]) for memory in memories]
    assert food["stderr"] == pytest.approx(np.std(means, ddof=1) / len(means) ** 0.5)


def test_wrong_options_are_refused():
    for wrong in ({"preset": "huge"}, {"wording": "poem"}, {"cost": -1}, {"only": ["planet"]}, {"colour": 1}):
        with pytest.raises(InputError):
            section_options(wrong)
    with pytest.raises(InputError, match="minilm"):
        section_tasks(OPTIONS, replace(OPTIONS, embedder="minilm"))


# ------------------------------------------------------------------------------------------------ a trained router at work
def checkpoint(favoured: dict[str, float], trained=NAMES) -> Checkpoint:
    """A router whose networks are zero but for the last bias: it always takes the same decision."""
    policy = make_policy(Shape(256, 9, 2, ((0, 256),) * 9), PolicyOptions("team", hidden=(4,)), seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        for name, weight in favoured.items():
            policy.actors[NAMES.index(name)][-1].bias[1] = weight
    routes = {"sections": NAMES, "trained_sections": list(trained), "embedder": "hashing"}
    return Checkpoint("mappo", 1, 1, 0, {}, {"members": pack([Agent(policy, PPOOptions())])}, routes)


def others(weight: float, **own: float) -> dict[str, float]:
    return {**dict.fromkeys(NAMES, weight), **own}


@pytest.fixture
def memory():
    memory = Memory(SCHEMA)
    for section, text in ((WORK, "Marta works as a nurse"), (HEALTH, "Marta has a cold"), (VALUES, "Marta hates lies")):
        memory.apply(Operation(OperationKind.INSERT, section, text))
    return memory


def router(tmp_path, *arguments) -> LearnedSectionRouter:
    checkpoint(*arguments).save(tmp_path / "checkpoint.pt")
    return LearnedSectionRouter.load(tmp_path)


NOT_TRAINED = [name for name in NAMES if name not in (WORK, VALUES)]


@pytest.mark.parametrize(
    ("favoured", "trained", "expected"),
    [
        (others(-1, **{HEALTH: 0.5, WORK: 2.0}), NAMES, [WORK, HEALTH]),  # at least as likely as not, likeliest first
        (others(-2, **{VALUES: -1}), NAMES, [VALUES]),  # the likeliest if none is likely
        (others(-1, **{WORK: 2, HEALTH: -3}), [WORK, VALUES], [WORK, *NOT_TRAINED]),  # empty in training: always, at the end
    ],
)
def test_sections_are_ranked(tmp_path, memory, favoured, trained, expected):
    assert router(tmp_path, favoured, trained).rank("Marta?", memory) == expected


def test_the_retriever_uses_it_by_its_configuration(tmp_path, memory):
    checkpoint(others(-1, **{HEALTH: 1})).save(tmp_path / "r.pt")
    routed = retriever_factory(RetrievalConfig(router=str(tmp_path / "r.pt")))(memory)
    assert routed.route("Marta") == [HEALTH]
    assert [hit.entry.section for hit in routed.search("Marta", 5)] == [HEALTH]


def test_a_question_is_embedded_once_by_a_shared_embedder(tmp_path):
    checkpoint({}).save(tmp_path / "r.pt")
    shared = HashingEmbedder()
    assert LearnedSectionRouter.load(tmp_path / "r.pt", shared, "hashing")._embedder is shared
    assert LearnedSectionRouter.load(tmp_path / "r.pt", shared, "minilm")._embedder is not shared


def test_an_agents_folder_holds_its_router_and_the_agent_uses_it(tmp_path):
    checkpoint(others(-1, **{HEALTH: 1})).save(tmp_path / "r.pt")
    config = AgentConfig(schema="nine_categories", codec="compact", max_chunk_tokens=64, router=str(tmp_path / "r.pt"))
    folder = tmp_path / "adapter"
    folder.mkdir()
    config.save(folder)
    (tmp_path / "r.pt").unlink()
    loaded = AgentConfig.load(folder)
    assert loaded == replace(config, router=str(folder / "memalpha_router.pt"))
    loaded.save(folder)  # into its own folder: nothing is lost
    lines = f"+{WORK} Marta works as a nurse\n+{HEALTH} Marta has a cold"
    agent = MemoryAgent(AgentStep(AgentConfig.load(folder), make_tokenizer(["Marta"], 4096)), ScriptedGenerator([lines]))
    agent.add("Marta: I am a nurse and have a cold.")
    assert len(agent.memory()) == 2
    assert [hit.entry.content for hit in agent.search("Marta")] == ["Marta has a cold"]


def test_other_schemas_and_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="sensory_lifestyle"):
        router(tmp_path, {}).rank("Marta?", Memory(MemorySchema.load("mem_alpha")))
    with pytest.raises(InputError, match="256"):
        LearnedSectionRouter.load(tmp_path, HashingEmbedder(64), "hashing")
    (tmp_path / "text.pt").write_text("router")
    Checkpoint("linucb", 1, 1, 0, {}, {}, {}).save(tmp_path / "other.pt")
    torch.save(Path("/"), tmp_path / "code.pt")  # not data alone: never unpickled
    for name in ("none.pt", "text.pt", "other.pt", "code.pt"):
        with pytest.raises(InputError, match=name):
            LearnedSectionRouter.load(tmp_path / name)
