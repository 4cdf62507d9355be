"""Tasks: the synthetic one against plain loops; sections against the evaluator asked by hand, and a
trained router at work."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import ScriptedGenerator

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.data.synthetic import PRESETS, generate
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.models.nano import make_tokenizer
from memalpha.policies import Checkpoint, PolicyOptions, Shape, make_policy
from memalpha.qa.metrics import score
from memalpha.retrieval.dense import LearnedSectionRouter
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.routing.ppo import Agent, PPOOptions, pack
from memalpha.routing.tasks import (
    SectionOptions,
    SectionTask,
    SyntheticOptions,
    SyntheticTask,
    remember,
)
from memalpha.types import Answer, Operation, OperationKind
from memalpha.use.agent import MemoryAgent

# ----------------------------------------------------------------------------------------------------
# synthetic
RAGGED = SyntheticTask(
    SyntheticOptions(dimension=5, choices=3, deciders=2, facets=2, steps=4, p_end=0.4)
)


def test_rewards_are_the_mean_cosine_of_the_nearest_facet():
    state = RAGGED.start(4, np.random.default_rng(0))
    seen = RAGGED.observe(state).reshape(4, 2, 5)
    actions = np.array([[0, 1], [2, 2], [1, 0], [0, 0]])
    rewards = RAGGED.act(state, actions, None).rewards
    for i, row in enumerate(actions):
        cosines = [
            max(seen[i, k] @ facet for facet in RAGGED.specialties[k, row[k]]) for k in range(2)
        ]
        assert rewards[i] == pytest.approx(np.mean(cosines), abs=1e-6)
    assert np.linalg.norm(RAGGED.specialties, axis=-1) == pytest.approx(1) and np.linalg.norm(
        seen, axis=-1
    ) == pytest.approx(1)


def test_the_optimum_is_what_the_best_of_all_joint_actions_earns():
    state = RAGGED.start(30, np.random.default_rng(1))
    best, total, running = RAGGED.optimum(state), np.zeros(30), np.arange(30)
    for step in range(1, 5):
        pairs = [np.tile(pair, (len(running), 1)) for pair in itertools.product(range(3), repeat=2)]
        total[running] += np.max([RAGGED.act(state, pair, None).rewards for pair in pairs], axis=0)
        after, _, ended = RAGGED.act(state, pairs[0], None)
        assert (ended == (state[1] == step)).all()
        running, state = running[~ended], tuple(array[~ended] for array in after)
    assert total == pytest.approx(best) and not len(running)


# ----------------------------------------------------------------------------------------------------
# sections
OPTIONS = SectionOptions(
    instances=2, preset="medium", mode="lexical", embedder="hashing", k=2, cost=0.3
)
SCHEMA = MemorySchema.load("nine_categories")
NAMES = [section.name for section in SCHEMA.lists]
WORK, HEALTH, VALUES = "cognition_work", "physiology_health", "values"


@pytest.fixture(scope="module")
def task():
    return SectionTask(OPTIONS, HashingEmbedder())


def by_hand(task, number, names):
    """Accuracy and share, by ranking everything and keeping the first two of the sections."""
    case = task.cases[number]
    hits = [
        hit.entry
        for hit in case.retriever.search(case.question.text, 1000)
        if hit.entry.section in names
    ][:2]
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
            assert task.act(
                (np.array([number]),), mask[None].astype(int), None
            ).rewards == pytest.approx(rewards[-1:])
        assert task.optimum((np.array([number]),))[0] == pytest.approx(max(rewards))


@pytest.mark.parametrize("wording", ["words", "sentence", "verbatim"])
def test_memories_hold_what_holds_at_the_end_in_the_wording_asked_for(wording):
    (instance,) = generate(1, 3, PRESETS["long"])
    memory = remember(instance, SCHEMA, wording)
    lines = {line for chunk in instance.chunks for line in chunk.text.splitlines()}
    assert len(memory) > 20
    for entry in memory:
        assert (
            entry.content in lines
            if wording == "verbatim"
            else entry.content.startswith("The ") is (wording == "sentence")
        )
    passages = tuple(f"[{e.timestamp}] {e.content}" for e in memory)
    for question in instance.questions:
        assert score(question, Answer("", passages)) == 1, question


def test_routes_name_the_sections_that_ever_held_something_and_some_attributes_can_be_kept(task):
    held = {entry.section for case in task.cases for entry in case.memory}
    assert set(task.routes["trained_sections"]) == held and 0 < len(held) < 9
    assert task.routes["sections"] == NAMES and task.routes["embedder"] == "hashing"
    assert task.shape == Shape(256, 9, 2, ((0, 256),) * 9)
    some = SectionTask(replace(OPTIONS, only=("city", "job")), HashingEmbedder()).cases
    wanted = {
        case.question.text
        for case in task.cases
        if {"city", "job"} & set(case.question.text.strip("?").split())
    }
    assert {case.question.text for case in some} == wanted
    for wrong in ({"preset": "huge"}, {"wording": "poem"}, {"only": ["planet"]}):
        with pytest.raises(InputError):
            replace(OPTIONS, **wrong)


# ------------------------------------------------------------------------------------------------ a
# trained router at work
def checkpoint(favoured: dict[str, float], trained=NAMES) -> Checkpoint:
    policy = make_policy(
        Shape(256, 9, 2, ((0, 256),) * 9), PolicyOptions("team", hidden=(4,)), seed=0
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        for name, weight in favoured.items():
            policy.actors[NAMES.index(name)][-1].bias[1] = weight
    routes = {"sections": NAMES, "trained_sections": list(trained), "embedder": "hashing"}
    return Checkpoint(
        "mappo", 1, 1, 0, {}, {"members": pack([Agent(policy, PPOOptions())])}, routes
    )


def others(weight: float, **own: float) -> dict[str, float]:
    return {**dict.fromkeys(NAMES, weight), **own}


def router(tmp_path, *arguments) -> LearnedSectionRouter:
    checkpoint(*arguments).save(tmp_path / "checkpoint.pt")
    return LearnedSectionRouter.load(tmp_path)


NOT_TRAINED = [name for name in NAMES if name not in (WORK, VALUES)]


@pytest.mark.parametrize(
    ("favoured", "trained", "expected"),
    [
        (
            others(-1, **{HEALTH: 0.5, WORK: 2.0}),
            NAMES,
            [WORK, HEALTH],
        ),  # at least as likely as not, likeliest first
        (others(-2, **{VALUES: -1}), NAMES, [VALUES]),  # the likeliest if none is likely
        (
            others(-1, **{WORK: 2, HEALTH: -3}),
            [WORK, VALUES],
            [WORK, *NOT_TRAINED],
        ),  # empty in training: always, at the end
    ],
)
def test_sections_are_ranked(tmp_path, favoured, trained, expected):
    memory = Memory(SCHEMA)
    for section, text in (
        (WORK, "Marta works as a nurse"),
        (HEALTH, "Marta has a cold"),
        (VALUES, "Marta hates lies"),
    ):
        memory.apply(Operation(OperationKind.INSERT, section, text))
    assert router(tmp_path, favoured, trained).rank("Marta?", memory) == expected


def test_an_agents_folder_holds_its_router_and_the_agent_uses_it(tmp_path):
    checkpoint(others(-1, **{HEALTH: 1})).save(tmp_path / "r.pt")
    config = AgentConfig(
        schema="nine_categories",
        codec="compact",
        max_chunk_tokens=64,
        router=str(tmp_path / "r.pt"),
    )
    (folder := tmp_path / "adapter").mkdir()
    config.save(folder)
    (tmp_path / "r.pt").unlink()
    loaded = AgentConfig.load(folder)
    assert loaded == replace(config, router=str(folder / "memalpha_router.pt"))
    loaded.save(folder)  # into its own folder: nothing is lost
    lines = f"+{WORK} Marta works as a nurse\n+{HEALTH} Marta has a cold"
    agent = MemoryAgent(
        AgentStep(AgentConfig.load(folder), make_tokenizer(["Marta"], 4096)),
        ScriptedGenerator([lines]),
    )
    agent.add("Marta: I am a nurse and have a cold.")
    assert len(agent.memory()) == 2
    assert [hit.entry.content for hit in agent.search("Marta")] == ["Marta has a cold"]


def test_other_schemas_and_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="sensory_lifestyle"):
        router(tmp_path, {}).rank("Marta?", Memory(MemorySchema.load("mem_alpha")))
    with pytest.raises(InputError, match="256"):
        LearnedSectionRouter(
            checkpoint({}).policies(),
            {"sections": NAMES, "trained_sections": []},
            HashingEmbedder(64),
        )
    (tmp_path / "text.pt").write_text("router")
    Checkpoint("linucb", 1, 1, 0, {}, {}, {}).save(tmp_path / "other.pt")
    torch.save(Path("/"), tmp_path / "code.pt")  # not data alone: never unpickled
    for name in ("none.pt", "text.pt", "other.pt", "code.pt"):
        with pytest.raises(InputError, match=name):
            LearnedSectionRouter.load(tmp_path / name)
