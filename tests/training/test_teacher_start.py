"""Instances that begin with a memory, by hand: what the teacher left, and what is counted of the
rollout that goes on from it."""

import json
import shutil
from dataclasses import replace

import pytest
from data_samples import write_instances
from rollouts import make_agent, make_instance, run_script, step_reward
from runs_of_nano import assert_same_end, train
from test_scoring import Judge, scorer_of

from memalpha.data.load import load_data
from memalpha.data.rows import write_parquet
from memalpha.data.synthetic import SyntheticConfig
from memalpha.data.synthetic import make_instance as make_dialogue
from memalpha.data.teacher import teacher_operations
from memalpha.errors import InputError, SchemaError
from memalpha.rewards import RewardConfig
from memalpha.training.config import RunOptions
from memalpha.training.demonstrations import demonstrate
from memalpha.training.teacher_start import start_from_teacher
from memalpha.types import Fact, FactAction, Question

TEXTS = (
    "apple boat engine engine",
    "candle door engine engine",
    "feather engine engine engine",
    "door boat engine engine",
)
FACTS = (
    Fact(0, FactAction.STATE, "apple", "engine", "boat", note="apple boat"),
    Fact(1, FactAction.STATE, "candle", "engine", "door", note="candle door"),
)
EVIDENCE = {"apple": (0,), "candle": (1, 2), "feather": (2,)}
ASKED = tuple(
    Question(f"was {word} seen?", (word,), evidence=chunks) for word, chunks in EVIDENCE.items()
)
PLAIN = make_instance("plain", "apple", "boat", "candle", ask=("apple",))
NOTED = replace(make_instance("noted", *TEXTS), questions=ASKED, facts=FACTS)
SCRIPT = ["+ apple", "+ feather", "."], ["+ boat", "= 1 apple boat door", "- 2"], ["."]


@pytest.fixture
def rollouts():
    agent = make_agent()
    plain, noted = start_from_teacher([PLAIN, NOTED], agent, 2, seed=0)
    return run_script(agent, [plain, noted, noted], *SCRIPT)


def test_the_policy_reads_on_from_the_teachers_memory(rollouts):
    plain, first, second = rollouts
    assert [[step.chunk_index for step in rollout.steps] for rollout in rollouts] == [
        [0, 1, 2],
        [2, 3],
        [2, 3],
    ]
    shown = [
        [step.prompt.messages[1]["content"] for step in rollout.steps] for rollout in (plain, first)
    ]
    assert shown[0][0] == "<chunk>\napple\n</chunk>\n<memory>\nempty\n</memory>"
    assert (
        shown[1][0]
        == f"<chunk>\n{TEXTS[2]}\n</chunk>\n<memory>\n1 apple boat\n2 candle door\n</memory>"
    )
    assert (
        shown[1][1]
        == f"<chunk>\n{TEXTS[3]}\n</chunk>\n<memory>\n1 apple boat\n2 candle door\n3 feather\n</memory>"
    )
    last = [(entry.id, entry.content, entry.source_chunk) for entry in first.memory]
    assert last == [("1", "apple boat door", 3), ("2", "candle door", 1), ("3", "feather", 2)]
    assert [entry.content for entry in second.memory] == [
        "apple boat"
    ] and first.memory is not second.memory


def test_rewards_count_what_the_policy_did(rollouts):
    judge = Judge("noted3")
    rewards = scorer_of(judge=judge).score(rollouts[:2])
    # 4 tokens became 6: 2 more, for 8 tokens read. All three questions are answered, one from what
    # the teacher wrote alone.
    first, second = rewards[1]
    assert first == step_reward(1.0, 1.0, 0.75, 1.0) and list(second.values())[:3] == [
        1.0,
        1.0,
        0.75,
    ]
    assert rollouts[1].errors == {3: "the judge is down for noted3"}
    kept = [
        [entry.content for entry in request.kept]
        for request in judge.asked[0]
        if request.instance_id == "noted"
    ]
    assert kept == [
        ["apple boat", "candle door", "feather"],
        ["candle door", "feather", "apple boat door"],
    ]
    shrunk = scorer_of().score(rollouts[2:])[0]
    assert [step["compression"] for step in shrunk] == [
        1.0,
        1.0,
    ]  # not 1 + 2 / 8: forgetting what was there is not paid
    assert shrunk[0]["accuracy"] == pytest.approx(1 / 3)
    scorer = scorer_of(config=RewardConfig(immediate_weight=1.0), agent=make_agent())
    early = [step["immediate"] for step in scorer.score(rollouts[1:2])[0]]
    assert early == [1.0, 1.0]  # candle and feather right after chunk 2; none is due at chunk 3: r1


@pytest.mark.parametrize("archive", [False, True])
def test_demonstrations_go_on_where_those_of_the_whole_instance_are(archive):
    """The teacher that begins is the one that demonstrates: the same prompts and completions from
    there on, long memories too."""
    agent = make_agent(
        archive=archive, max_completion_length=4096, max_chunk_tokens=8192, codec="compact"
    )
    config = SyntheticConfig(people=5, facts_per_chunk=(3, 4), p_change=0.0)
    dialogues = [make_dialogue(n, 0, replace(config, n_chunks=n)) for n in (3, 4, 12)]
    whole = [list(demonstrate([one], agent, teacher_operations, 2, seed=0)) for one in dialogues]
    rest = start_from_teacher(dialogues, agent, 3, seed=0)
    assert [one.begin for one in rest] == [0, 1, 9] and rest[0] == dialogues[0]
    for one, shown in zip(rest, whole, strict=True):
        assert list(demonstrate([one], agent, teacher_operations, 2, seed=0)) == shown[one.begin :]
        lines = [line for line in one.initial_entries if line.section == "_archive"]
        assert len(one.initial_entries) - len(lines) >= 2 * one.begin and bool(lines) is (
            archive and one.begin > 0
        )


def test_cut_instances_end_after_any_chunk_with_what_is_answered_by_then():
    asked = (*ASKED, Question("was unknown seen?", ("unknown",)))
    agent, whole = make_agent(), replace(NOTED, questions=asked)
    names = {"apple": 0, "candle": 2, "feather": 2}  # by the last chunk of the evidence
    ends = set()
    for number in range(40):
        (made,) = start_from_teacher([replace(whole, id=str(number))], agent, 1, seed=0, cut=True)
        end = len(made.chunks)
        ends.add(end)
        assert made.begin == end - 1 and made.chunks == whole.chunks[:end]
        assert [fact.value for fact in made.facts] == ["boat", "door"][:end]
        assert [entry.content for entry in made.initial_entries] == ["apple boat", "candle door"][
            : made.begin
        ]
        wanted = [word for word, place in names.items() if place < end]
        assert [question.answers[0] for question in made.questions] == wanted + ["unknown"] * (
            end == 4
        )
        assert start_from_teacher([replace(whole, id=str(number))], agent, 1, seed=0, cut=True) == [
            made
        ]
    assert ends == {1, 2, 3, 4}
    assert {
        len(start_from_teacher([replace(whole, id=str(i))], agent, 3, seed=0, cut=True)[0].chunks)
        for i in range(20)
    } == {3, 4}
    assert start_from_teacher([PLAIN, NOTED], agent, 9, seed=0, cut=True) == [
        PLAIN,
        NOTED,
    ]  # shorter than a rollout
    for alone in ({"rollout_cut": True}, {"rollout_coverage": 0.5}):
        with pytest.raises(InputError, match="without rollout_chunks"):
            RunOptions(**alone)
    late = replace(NOTED, questions=ASKED[2:])
    assert {
        len(start_from_teacher([replace(late, id=str(i))], agent, 1, seed=0, cut=True)[0].chunks)
        for i in range(20)
    } == {3, 4}


def test_the_teacher_of_a_rollout_may_leave_facts_out():
    dialogues = [
        make_dialogue(n, 0, SyntheticConfig(n_chunks=12, people=5, p_change=0.0)) for n in range(40)
    ]

    def kept(coverage):
        opened = start_from_teacher(
            dialogues, make_agent(max_chunk_tokens=8192), 1, seed=0, coverage=coverage
        )
        return [len(one.initial_entries) for one in opened]

    shares = [some / everything for some, everything in zip(kept(0.5), kept(1.0), strict=True)]
    assert (
        min(shares) < 0.6
        and max(shares) > 0.9
        and sum(shares) / len(shares) == pytest.approx(0.75, abs=0.05)
    )


CITY = "marta", "city"
MOVES = (
    Fact(0, FactAction.STATE, *CITY, "rome"),
    Fact(0, FactAction.STATE, "marta", "pet", "dog"),
    Fact(1, FactAction.CHANGE, *CITY, "oslo", previous="rome"),
    Fact(1, FactAction.STATE, "ivan", "city", "rome"),
    Fact(2, FactAction.CHANGE, *CITY, "bern", previous="oslo"),
    Fact(2, FactAction.RETRACT, "marta", "pet", "dog"),
)
WHERE = Question(
    "where does marta live?", ("bern",), "bound", "latest", "marta", ("rome", "oslo"), (2,)
)
PET = Question("what pet has marta?", ("none",), "absent", "removed", "marta", ("dog",), (2,))
WHEN = Question("when did marta say bern?", ("2024-01-03",), "bound", "time", "marta", (), (2,))
EVERY = Question("name every pet of marta", ("cat",), "bound_all", "count", "marta", ("dog",), (2,))


def test_what_changes_after_the_cut_is_asked_as_it_was():
    moves = replace(
        make_instance("moves", *TEXTS[:3]), questions=(WHERE, PET, WHEN, EVERY), facts=MOVES
    )
    cuts = (
        start_from_teacher([replace(moves, id=str(number))], make_agent(), 1, seed=0, cut=True)[0]
        for number in range(40)
    )
    asked = {len(cut.chunks): cut.questions for cut in cuts}
    pet = replace(PET, answers=("dog",), stale=(), metric="bound", kind="single", evidence=(0,))
    first = replace(WHERE, answers=("rome",), stale=(), kind="single", evidence=(0,))
    second = replace(WHERE, answers=("oslo",), stale=("rome",), evidence=(1,))
    # before the last session, when bern was said, and every pet, cannot be asked
    assert asked == {1: (first, pet), 2: (second, pet), 3: moves.questions}


def test_a_memory_to_begin_with_needs_facts_and_is_in_no_file(tmp_path):
    with pytest.raises(InputError, match="no instance has annotated facts"):
        start_from_teacher([PLAIN], make_agent(), 2, seed=0)
    assert start_from_teacher([PLAIN, NOTED], make_agent(), 0, seed=0) == [PLAIN, NOTED]
    with pytest.raises(SchemaError, match="begin"):
        write_parquet(tmp_path / "x.parquet", start_from_teacher([NOTED], make_agent(), 3, seed=0))


def test_a_run_begins_its_training_instances_so_and_resumes_exactly(tmp_path):
    """Evaluation reads from the first chunk, training and its warm start from the second, with the
    teacher's entry in view."""
    made = []
    for instance in load_data("toy", {"n": 4, "split": "train"}):
        word = instance.questions[0].answers[0]
        made.append(
            replace(instance, facts=(Fact(0, FactAction.STATE, word, "seen", word, note=word),))
        )
    write_instances(tmp_path / "data.jsonl", made)
    options = [
        "--train_data",
        str(tmp_path / "data.jsonl"),
        "--train_options",
        "{}",
        "--rollout_chunks",
        "1",
    ]
    options += ["--warm_start_steps", "2", "--max_steps", "2"]
    assert train(tmp_path / "whole", *options) == 0
    words = {instance.id: instance.facts[0].value for instance in made}
    for line in (tmp_path / "whole/trajectories/step-000001-rank-0.jsonl").open():
        (step,) = json.loads(line)["steps"]
        assert (
            step["chunk"] == 1
            and f"<memory>\n1 {words[json.loads(line)['instance']]}\n</memory>" in step["prompt"]
        )
    for line in (tmp_path / "whole/held_out/before.jsonl").open():
        steps = json.loads(line)["rollout"]["steps"]
        assert [step["chunk"] for step in steps] == [0, 1] and "<memory>\nempty\n" in steps[0][
            "prompt"
        ]
    assert (
        json.loads((tmp_path / "whole/warm_start/memalpha_warmup.json").read_text())[
            "demonstrations"
        ]
        == 4
    )  # not 8
    shutil.copytree(
        tmp_path / "whole", tmp_path / "again", ignore=shutil.ignore_patterns("checkpoint-2")
    )
    assert train(tmp_path / "again", *options, "--resume") == 0
    assert_same_end(tmp_path / "again", tmp_path / "whole", steps=2)
    assert train(tmp_path / "again", *options, "--resume", "--rollout_chunks", "2") == 1
