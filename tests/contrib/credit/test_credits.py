"""Credits of papers by values: which memory a rollout begins with again, what an entry is worth,
which tokens are calls; and planted faults that the gradient check sees."""

import json
import math
import random
from dataclasses import replace

import pytest

from memalpha.agent.codecs import make_codec
from memalpha.agent.rollout import memory_episodes
from memalpha.contrib.credit import evidence, memory_tokens
from memalpha.contrib.credit.memory_tokens import call_tokens
from memalpha.contrib.credit.same_state import SameStateCredit
from memalpha.errors import InputError, ServiceError
from memalpha.memory.schema import MemorySchema
from memalpha.models.registry import make_tokenizer
from memalpha.qa.readers import QAEvaluator, RecallReader
from memalpha.rewards import RewardConfig
from memalpha.training.config import parse_train_arguments
from memalpha.training.credit import make_credit
from memalpha.training.environment import MemoryEnvironment
from memalpha.training.scoring import RolloutScorer, first_error
from memalpha.types import Completion, Entry, Sampling, StopReason
from tests.helpers.gradient_check import Case, check
from tests.helpers.rollouts import make_agent, make_instance, run_script
from tests.helpers.runs_of_nano import SHORT, train, untimed_metrics
from tests.helpers.scripted import ScriptedGenerator

FOUND = 1e-2


# ------------------------------------------------------------------------------------------------
# planted faults; test_gradient.py finds these cases exact without them
def by_step(credit, row, group_size):
    return (row.group_index, row.chunk_index)


def count_all(found, rollouts, agent):
    """Leaves every token its loss."""


def pay_the_first_step(entry, rollout):
    return 0


@pytest.mark.parametrize(
    ("case", "place"),
    [
        (Case(credit="same_state", steps=1), (SameStateCredit, "group_key", by_step)),
        (
            Case(credit="evidence", scale="none"),
            (evidence, "step_that_wrote", pay_the_first_step),
        ),
        (Case(credit="memory_tokens", steps=1), (memory_tokens, "count_calls_alone", count_all)),
        (Case(credit="memory_tokens", fault="tokens", steps=1), None),
    ],
)
def test_the_gradient_check_sees_planted_faults(monkeypatch, case, place):
    if place:
        monkeypatch.setattr(*place)
    assert max(check(case).errors) > FOUND


# ------------------------------------------------------------------------------------------------
# same_state
TEXTS = ("apple was seen", "boat was seen", "candle was seen", "door was seen")


def from_same_state(seed, archive=False):
    """Rollouts of two instances in groups of four; every completion is another one."""
    agent = make_agent(archive=archive)
    rng = random.Random(seed)

    def written(prompt):
        kept = f"+ {rng.choice(TEXTS)} {rng.randrange(100)}"
        return f"{kept}\n{rng.choice(['- 1', '= 1 engine', '= 2 feather', kept])}"

    instances = [make_instance("a", *TEXTS), make_instance("b", *TEXTS[:2])]
    given = [instance for instance in instances for _ in range(4)]
    generator = ScriptedGenerator(written, agent.encoder.tokenizer)
    return make_credit("same_state").draw(
        memory_episodes, given, agent, generator, Sampling(96, seed=seed), 4
    )


@pytest.mark.parametrize("archive", [False, True])
def test_half_of_a_group_begins_where_one_of_the_other_half_was(archive):
    begins = set()
    for seed in range(8):
        rollouts = from_same_state(seed, archive)
        assert [rollout.instance.id for rollout in rollouts] == ["a"] * 4 + ["b"] * 4
        for start in (0, 4):
            first, second = rollouts[start : start + 2], rollouts[start + 2 : start + 4]
            texts = len(first[0].instance.chunks)
            assert [len(rollout.steps) for rollout in first] == [texts] * 2
            (begin,) = {rollout.instance.begin for rollout in second}
            begins.add((texts, begin))
            for rollout in second:
                assert [step.chunk_index for step in rollout.steps] == [*range(begin, texts)]
            # the prompt shows the memory: all of it fits
            (prompt,) = {rollout.steps[0].prompt.ids for rollout in second}
            assert prompt in [rollout.steps[begin].prompt.ids for rollout in first]
            then = [rollout.steps[begin - 1] for rollout in first]
            held = [entry for entry in second[0].instance.initial_entries if entry.id.isdecimal()]
            assert (len(held), second[0].tokens_before) in [
                (step.entries, step.memory_tokens) for step in then
            ]
            lines = [e for e in second[0].instance.initial_entries if not e.id.isdecimal()]
            assert (max((line.source_chunk for line in lines), default=-1) == begin - 1) is archive
    assert begins == {(4, 1), (4, 2), (4, 3), (2, 1)}
    again = from_same_state(3, archive)
    texts = [[step.completion.text for step in r.steps] for r in from_same_state(3, archive)]
    assert [[step.completion.text for step in rollout.steps] for rollout in again] == texts


# ------------------------------------------------------------------------------------------------
# evidence
class Reader(RecallReader):
    """Fails where nothing says apple."""

    def read(self, requests):
        for request in requests:
            if "apple" in request.question.text and "apple" not in str(request.passages):
                raise ServiceError("worn out")
        return super().read(requests)


def test_an_answer_pays_the_step_that_last_wrote_the_one_entry_it_hangs_on():
    """Both entries say boat; the second was written by the second step, and again by the third."""
    agent = make_agent()
    instance = make_instance("a", "x", "y", "z", ask=("apple", "boat", "candle", "door"))
    (made,) = run_script(
        agent, [instance], ["+ apple boat"], ["+ feather"], ["= 2 candle boat seen"]
    )
    evaluator = QAEvaluator(RecallReader(64, agent.encoder.count), k=3)
    scorer = RolloutScorer(
        evaluator,
        None,
        RewardConfig(1.0, 0.2, 0.0, 0.0),
        agent=agent,
        credit=make_credit("evidence"),
    )
    (paid,) = scorer.score([made])
    assert made.credits["evidence"] == [step["evidence"] for step in paid] == [0.25, 0.0, 0.25]
    totals = [step.total(scorer.reward_config) for step in paid]
    assert totals == pytest.approx([0.5 * 0.75 + 0.5 * e + 0.2 for e in (0.25, 0.0, 0.25)])
    # the second says "seen", so it is read for each question; the first for apple and boat
    assert sum(made.credits["asked_again"]) == 5
    assert scorer.metrics([made], [paid])["evidence/asked_again"] == (5, 4)

    scorer.evaluator = QAEvaluator(Reader(64, agent.encoder.count), k=3)
    ((first, second, third),) = scorer.score([made])
    assert math.isnan(first["evidence"]) and math.isnan(third["evidence"])
    assert second["evidence"] == 0.0 and first_error([made]) == "evidence: worn out"
    assert scorer.masked([[first]]) == 1 and not scorer.masked([[second]])
    begun = replace(made, instance=replace(instance, begin=1))
    entry = Entry("7", "facts", "apple", source_chunk=0)
    assert evidence.step_that_wrote(entry, begun) is None
    assert evidence.step_that_wrote(replace(entry, source_chunk=2), begun) == 1


def test_evidence_is_recorded_with_the_weights_it_is_paid_with(tmp_path):
    options = ["--warm_start_steps", "40", "--max_steps", "2", "--credit", "evidence", *SHORT]
    assert train(tmp_path / "run", *options) == 0
    assert all(row["evidence/asked_again"] >= 0 for row in untimed_metrics(tmp_path / "run"))
    (file, *_) = sorted((tmp_path / "run" / "trajectories").iterdir())
    for line in map(json.loads, file.read_text().splitlines()):
        for step in line["steps"]:
            parts = step["reward"]
            paid = 0.5 * parts["accuracy"] + 0.5 * parts["evidence"] + 0.2 * parts["tool"]
            assert step["total"] == pytest.approx(paid)


# ------------------------------------------------------------------------------------------------
# memory_tokens
CALL = '<tool_call>\n{"name": "memory_delete", "arguments": {"entry_id": "1"}}\n</tool_call>'
COUNTED = {  # what is not between brackets counts
    ("compact", "+ apple"): "+ apple",
    ("compact", "+ apple\n.\n+ boat"): "+ apple[\n.]\n+ boat",
    ("compact", "+ apple\nwhat? \n"): "+ apple\nwhat? [\n]",
    ("compact", "."): ".",
    ("compact", "<think>\nboat?\n</think>\n+ apple"): "[<think>\nboat?\n</think>]\n+ apple",
    ("compact", "<think>\nboat?\n</think>\n."): "[<think>\nboat?\n</think>]\n.",
    ("compact", "<think>\nboat?"): "<think>\nboat?",
    ("compact_text", "= apple\n> café"): "= apple\n> café",
    ("hermes", "Seen.\n" + CALL + "\nDone."): "[Seen.]\n" + CALL + "[\nDone.]",
    ("hermes", "Nothing is new."): "Nothing is new.",
    ("hermes", CALL + "\n" + CALL): CALL + "\n" + CALL,
}


@pytest.mark.parametrize(("codec", "text"), COUNTED)
def test_the_tokens_of_calls_count_and_those_that_decide_about_them(codec, text):
    tokenizer = make_tokenizer(["a"], 300)  # nearly a token a byte
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    completion = Completion(tuple(ids), text, StopReason.END)
    counted = call_tokens(completion, make_codec(codec, MemorySchema.load("facts")), tokenizer)
    shown = ""
    for place, (token, counts) in enumerate(zip(ids[:-1], counted, strict=False)):
        opens = not counts and (place == 0 or counted[place - 1])
        closes = not counts and (place == len(ids) - 2 or counted[place + 1])
        part = tokenizer.convert_ids_to_tokens(token).replace("Ċ", "\n").replace("Ġ", " ")
        shown += "[" * opens + part.replace("Ã©", "é") + "]" * closes
    assert shown.replace("Ã", "").replace("©", "é") == COUNTED[codec, text]
    assert counted[-1]
    cut = call_tokens(
        replace(completion, ids=tuple(ids[:-1]), stop=StopReason.LENGTH),
        make_codec(codec, MemorySchema.load("facts")),
        tokenizer,
    )
    assert cut == counted[:-1]


# ------------------------------------------------------------------------------------------------
# the option
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_generations": 2}, "num_generations 2"),
        ({"rollout_chunks": 1}, "rollout_chunks 1"),
    ],
)
def test_options_that_do_not_go_with_same_state_are_refused(options, message):
    given = {"use_cpu": "true", "credit": "same_state", **options}
    with pytest.raises(InputError, match=message):
        parse_train_arguments([f"--{name}={value}" for name, value in given.items()])


def test_another_trainer_can_use_those_that_only_score():
    with pytest.raises(InputError, match="cannot have credit same_state") as caught:
        MemoryEnvironment(use_cpu=True, credit="same_state")
    assert caught.value.expected.startswith("trajectory, step or evidence, since the other trainer")
