"""A router at work: in the retriever through its configuration, in an agent's folder, in ``MemoryAgent``."""

from dataclasses import replace

import pytest
import torch

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.generation.scripted import ScriptedGenerator
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.models.nano import make_tokenizer
from memalpha.retrieval.config import RetrievalConfig
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.retrieval.two_layer import TwoLayerRetriever, retriever_factory
from memalpha.routing.checkpoints import Checkpoint, pack_policy
from memalpha.routing.policies import PolicyOptions, Shape, make_policy
from memalpha.routing.ppo import PPOOptions, make_optimizer
from memalpha.routing.sections import LearnedSectionRouter
from memalpha.types import Operation, OperationKind
from memalpha.use.agent import MemoryAgent

SCHEMA = MemorySchema.load("nine_categories")
NAMES = [section.name for section in SCHEMA.lists]
WORK, HEALTH, VALUES = "cognition_work", "physiology_health", "values"


def checkpoint(favoured: dict[str, float], trained=NAMES, sequential=False) -> Checkpoint:
    """A router whose networks are zero but for the last bias: it always takes the same decision."""
    size = 256 + 9 * sequential
    shape = Shape(size, 1, 10, ((0, size),)) if sequential else Shape(size, 9, 2, ((0, size),) * 9)
    policy = make_policy(shape, PolicyOptions("separate" if sequential else "team", hidden=(4,)), seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        for name, weight in favoured.items():
            if sequential:
                policy.actor[-1].bias[[*NAMES, "stop"].index(name)] = weight
            else:
                policy.actors[NAMES.index(name)][-1].bias[1] = weight
    routes = {"sections": NAMES, "trained_sections": list(trained), "embedder": "hashing", "sequential": sequential}
    state = {"members": [pack_policy(policy, make_optimizer(policy, PPOOptions()))]}
    return Checkpoint("mappo", 1, 1, 0, {}, state, routes)


def others(weight: float, **own: float) -> dict[str, float]:
    return {**dict.fromkeys(NAMES, weight), **own}


@pytest.fixture
def memory():
    memory = Memory(SCHEMA)
    for section, text in ((WORK, "Marta works as a nurse"), (HEALTH, "Marta has a cold"), (VALUES, "Marta hates lies")):
        memory.apply(Operation(OperationKind.INSERT, section, text))
    return memory


def router(tmp_path, *arguments, **options) -> LearnedSectionRouter:
    checkpoint(*arguments, **options).save(tmp_path / "checkpoint.pt")
    return LearnedSectionRouter.load(tmp_path)


def test_sections_at_least_as_likely_as_not_are_searched_likeliest_first(tmp_path, memory):
    found = router(tmp_path, others(-1, **{HEALTH: 0.5, WORK: 2.0}))
    assert found.rank("Marta?", memory) == [WORK, HEALTH]
    assert found.probabilities("Marta?")[NAMES.index(WORK), 1] == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-6)


def test_the_likeliest_is_searched_if_none_is_likely(tmp_path, memory):
    assert router(tmp_path, others(-2, **{VALUES: -1})).rank("Marta?", memory) == [VALUES]


def test_sections_that_were_empty_in_training_are_always_searched_after_the_others(tmp_path, memory):
    found = router(tmp_path, others(-1, **{WORK: 2, HEALTH: -3}), trained=[WORK, VALUES])
    assert found.rank("Marta?", memory) == [WORK, *(name for name in NAMES if name not in (WORK, VALUES))]


def test_a_sequence_is_named_until_it_stops_or_repeats(tmp_path, memory):
    assert router(tmp_path, {HEALTH: 2, "stop": 1}, sequential=True).rank("Marta?", memory) == [HEALTH]
    assert router(tmp_path, {"stop": 5, WORK: 1}, sequential=True).rank("Marta?", memory) == [WORK]  # never none at all


def test_the_retriever_uses_it_by_its_configuration(tmp_path, memory):
    checkpoint(others(-1, **{HEALTH: 1})).save(tmp_path / "r.pt")
    routed = retriever_factory(RetrievalConfig(router=str(tmp_path / "r.pt")))(memory)
    assert routed.route("Marta") == [HEALTH]
    assert [hit.entry.section for hit in routed.search("Marta", 5)] == [HEALTH]
    plain = retriever_factory(RetrievalConfig())(memory)
    assert plain.route("Marta") == NAMES
    assert [hit.entry for hit in routed.search("Marta", 5)] == [hit.entry for hit in plain.search("Marta", 5, [HEALTH])]


def test_layer_one_says_where_it_looks_without_a_router(memory):
    retriever = TwoLayerRetriever(
        memory, RetrievalConfig(mode="dense", embedder="hashing", sections_kept=1), embedder=HashingEmbedder()
    )
    (first,) = retriever.route("Marta works as a nurse")
    assert first == WORK
    assert {hit.entry.section for hit in retriever.search("Marta works as a nurse", 5)} == {WORK}


def test_a_question_is_embedded_once_by_a_shared_embedder(tmp_path):
    checkpoint({}).save(tmp_path / "r.pt")
    shared = HashingEmbedder()
    assert LearnedSectionRouter.load(tmp_path / "r.pt", shared, "hashing")._embedder is shared
    assert LearnedSectionRouter.load(tmp_path / "r.pt", shared, "minilm")._embedder is not shared


def test_an_agents_folder_holds_its_router_and_the_agent_uses_it(tmp_path):
    checkpoint(others(-1, **{HEALTH: 1})).save(tmp_path / "r.pt")
    retrieval = RetrievalConfig(router=str(tmp_path / "r.pt"))
    config = AgentConfig(schema="nine_categories", codec="compact", max_chunk_tokens=64, retrieval=retrieval)
    folder = tmp_path / "adapter"
    folder.mkdir()
    config.save(folder)
    (tmp_path / "r.pt").unlink()
    loaded = AgentConfig.load(folder)
    assert loaded == replace(config, retrieval=replace(retrieval, router=str(folder / "memalpha_router.pt")))
    loaded.save(folder)  # into its own folder: nothing is lost
    lines = f"+{WORK} Marta works as a nurse\n+{HEALTH} Marta has a cold"
    agent = MemoryAgent(AgentStep(AgentConfig.load(folder), make_tokenizer(["Marta"], 4096)), ScriptedGenerator([lines]))
    agent.add("Marta: I am a nurse and have a cold.")
    assert len(agent.memory()) == 2
    assert [hit.entry.content for hit in agent.search("Marta")] == ["Marta has a cold"]


def test_another_schema_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"trained on the sections sensory_lifestyle[\s\S]*semantic, episodic"):
        router(tmp_path, {}).rank("Marta?", Memory(MemorySchema.load("mem_alpha")))


def test_files_that_are_no_section_routers_are_refused(tmp_path):
    with pytest.raises(InputError, match="no router at"):
        LearnedSectionRouter.load(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("router")
    with pytest.raises(InputError, match="cannot be read"):
        LearnedSectionRouter.load(tmp_path / "text.pt")
    Checkpoint("linucb", 1, 1, 0, {}, {}, {}).save(tmp_path / "other.pt")
    with pytest.raises(InputError, match="no policy that ranks sections \\(learner 'linucb'\\)"):
        LearnedSectionRouter.load(tmp_path / "other.pt")
    checkpoint({}).save(tmp_path / "small.pt")
    with pytest.raises(InputError, match="embeddings of 256"):
        LearnedSectionRouter.load(tmp_path / "small.pt", HashingEmbedder(64), "hashing")
