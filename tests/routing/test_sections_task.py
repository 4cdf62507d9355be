"""The task over real memories: rewards against the evaluator asked by hand, the oracle against all sets."""

import itertools

import numpy as np
import pytest

from memalpha.data.synthetic import PRESETS, generate
from memalpha.errors import InputError
from memalpha.memory.schema import MemorySchema
from memalpha.qa.metrics import score
from memalpha.retrieval.embedders import make_embedder
from memalpha.routing.compare import compare, standard_ways
from memalpha.routing.memories import SectionOptions, kept_questions, remember, section_options, section_task
from memalpha.types import Answer

OPTIONS = SectionOptions(instances=2, preset="medium", mode="lexical", embedder="hashing", k=2, cost=0.3)
SCHEMA = MemorySchema.load("nine_categories")


@pytest.fixture(scope="module")
def task():
    return section_task(OPTIONS)


def by_hand(task, number, names):
    """Accuracy and share, by ranking everything and keeping the first two of the sections."""
    case = task.cases[number]
    hits = [hit.entry for hit in case.retriever.search(case.question.text, 1000) if hit.entry.section in names][:2]
    passages = tuple(f"[{entry.timestamp}] {entry.content}" for entry in hits)
    entries = [entry for entry in case.memory if entry.section != "core"]
    share = sum(entry.section in names for entry in entries) / len(entries)
    return score(case.question, Answer("\n".join(passages), passages)), share


def test_accuracy_cost_and_optimum_by_hand(task):
    names = [section.name for section in SCHEMA.lists]
    sets = [set(some) for size in range(10) for some in itertools.combinations(names, size)]
    for number in range(0, len(task.cases), 7):
        rewards = []
        for chosen in sets:
            accuracy, share = by_hand(task, number, chosen)
            rewards.append(accuracy - 0.3 * share)
            mask = np.array([name in chosen for name in names])
            assert task.found(number, mask) == pytest.approx((accuracy, share))
        state = (np.array([number]), np.zeros((1, 9), dtype=bool))
        assert task.optimum(state)[0] == pytest.approx(max(rewards))


def test_a_set_is_one_step_and_its_reward_is_what_was_found(task):
    state = task.start(6, np.random.default_rng(0))
    actions = np.random.default_rng(1).integers(2, size=(6, 9))
    outcome = task.act(state, actions, None)
    assert outcome.ended.all()
    assert outcome.rewards == pytest.approx([task.reward(task.found(n, row > 0)) for n, row in zip(state[0], actions, strict=True)])
    assert (task.observe(state) == task.embeddings[state[0]]).all()
    assert (task.deciders, task.choices, task.size, len(task.views)) == (9, 2, 256, 9)


def test_a_sequence_ends_where_it_stops_repeats_or_has_named_all(task):
    sequence = section_task(SectionOptions(**{**{n: getattr(OPTIONS, n) for n in OPTIONS.__slots__}, "sequential": True}))
    state = (np.array([3, 4, 5]), np.zeros((3, 9), dtype=bool))
    step = sequence.act(state, np.array([[2], [9], [0]]), None)  # names a section, stops, names a section
    assert step.ended.tolist() == [False, True, False] and step.rewards[[0, 2]].tolist() == [0, 0]
    assert step.rewards[1] == sequence.reward(sequence.found(4, np.zeros(9, dtype=bool)))
    assert sequence.observe(step.state)[0, -9:].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert (sequence.observe(step.state)[0, :-9] == sequence.embeddings[3]).all()
    step = sequence.act(step.state, np.array([[2], [1], [1]]), None)  # again, -, another
    mask = np.zeros(9, dtype=bool)
    mask[2] = True
    assert step.ended.tolist()[0] and not step.ended[2]
    assert step.rewards[0] == sequence.reward(sequence.found(3, mask))
    whole = (np.array([3]), np.array([[True] * 8 + [False]]))
    step = sequence.act(whole, np.array([[8]]), None)
    assert step.ended[0] and step.rewards[0] == sequence.reward(sequence.found(3, np.ones(9, dtype=bool)))
    assert (sequence.deciders, sequence.choices, sequence.size) == (1, 10, 265)
    assert sequence.optimum(state) == pytest.approx(task.optimum(state))


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
    assert routes["sections"] == [section.name for section in SCHEMA.lists]
    assert (routes["embedder"], routes["sequential"]) == ("hashing", False)


class Only:
    """Sends every question to the sections it is made with."""

    def __init__(self, *names):
        self.names = list(names)

    def rank(self, query, memory):
        return self.names


def test_the_comparison_measures_what_each_way_opens(task):
    ways = standard_ways(OPTIONS.retrieval(), make_embedder("hashing"), {"food": Only("sensory_lifestyle")}, kept=(1,))
    everything, first, food, oracle = compare(task, ways)
    expected = [by_hand(task, i, {"sensory_lifestyle"}) for i in range(len(task.cases))]
    assert food.scores == tuple(accuracy for accuracy, _ in expected)
    assert food.share == pytest.approx(np.mean([share for _, share in expected]))
    sizes = [case.memory.section_size("sensory_lifestyle") for case in task.cases]
    assert food.searched == pytest.approx(np.mean(sizes)) and food.sections == 1
    assert everything.share == 1 and everything.searched == pytest.approx(np.mean([len(case.memory) for case in task.cases]))
    assert first.sections <= 1 and first.share < 1
    rewards = [task.reward(task.found(i, chosen)) for i in range(len(task.cases)) for chosen in [np.ones(9, dtype=bool)]]
    assert oracle.accuracy - 0.3 * oracle.share == pytest.approx(task.optimum(task.held_out(10_000, 0)).mean())
    assert oracle.accuracy >= max(everything.accuracy, first.accuracy, food.accuracy) and np.mean(rewards) < oracle.accuracy
    assert oracle.milliseconds is None and everything.milliseconds > 0
    groups = [
        [s for s, c in zip(food.scores, task.cases, strict=True) if c.memory is m]
        for m in {id(c.memory): c.memory for c in task.cases}.values()
    ]
    means = [np.mean(group) for group in groups]
    assert food.stderr == pytest.approx(np.std(means, ddof=1) / len(means) ** 0.5)


@pytest.mark.parametrize("wrong", [{"preset": "huge"}, {"wording": "poem"}, {"cost": -1}, {"only": ["planet"]}, {"colour": 1}])
def test_what_cannot_be_is_said(wrong):
    with pytest.raises(InputError, match="section task"):
        section_options(wrong)
