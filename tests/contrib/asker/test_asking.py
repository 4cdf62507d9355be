"""The asker in training: its rollouts and rewards by values, whose memory it is asked about, what
its teacher shows, and a run on a small model."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_episodes
from memalpha.contrib.asker import training
from memalpha.contrib.asker.demonstrations import demonstrate_asking
from memalpha.contrib.asker.training import (
    AskerRole,
    AskerScorer,
    compare_rollouts,
    found_share,
    guess_error,
    one_by_one,
    read_with_writer,
    search_count,
)
from memalpha.data.teacher import TeacherConfig
from memalpha.errors import InputError
from memalpha.measure.site import write_site
from memalpha.measure.view import show_rollout
from memalpha.qa.readers import QAEvaluator, RecallReader, searches_of
from memalpha.record.folder import RunFolder
from memalpha.record.rows import read_rows
from memalpha.rewards import RewardConfig
from memalpha.training.config import parse_train_arguments
from memalpha.training.rows import Scale, TrainingRow
from memalpha.types import Chunk, Instance, Question, Sampling
from tests.helpers.gradient_check import Case, check
from tests.helpers.rollouts import make_agent
from tests.helpers.runs_of_nano import train
from tests.helpers.scripted import ScriptedGenerator

HOME = Question("Where does Hanna live?", ("Rome",), evidence=(0, 1), stale=("Oslo",))
SONG = Question("What does Hanna sing?", ("arias",), evidence=(2,))
TALK = Instance(
    "talk",
    "test",
    (
        Chunk("Hanna: Ramon and I share one home, now in Oslo."),
        Chunk("Ramon: My home is Rome."),
        Chunk("Hanna: I sing arias in a choir."),
    ),
    (HOME, SONG),
)
ASKER = {"archive": True, "retrieve_k": 3, "searches": 2}


def asked(agent, replies, questions=(HOME,)):
    instances = one_by_one(
        read_with_writer([replace(TALK, questions=questions)], agent, "", "", "cpu"), 3
    )
    generator = ScriptedGenerator(replies, agent.encoder.tokenizer)
    episodes = AskerRole().episodes(instances, agent)
    return run_episodes(episodes, generator, Sampling(32)), generator


def test_an_instance_is_one_question_and_its_chunks_are_turns():
    agent = make_agent(**ASKER)
    first, second = one_by_one(read_with_writer([TALK], agent, "", "", "cpu"), 3)
    assert (first.id, second.id) == ("talk?0", "talk?1")
    assert first.chunks == (Chunk(HOME.text),) * 3
    assert first.initial_entries is second.initial_entries
    lines = [entry.content for entry in first.initial_entries]
    assert lines == [chunk.text for chunk in TALK.chunks]


def test_rollouts_hold_their_turns_and_are_scored_by_answer_notes_and_searches():
    agent = make_agent(**ASKER, reader_tokens=40)
    replies = ["search: Ramon", "arias", "Rome"]
    (home, song), generator = asked(agent, replies, (HOME, SONG))
    assert [step.completion.text for step in home.steps] == ["search: Ramon", "Rome"]
    assert [step.prompt for step in home.steps] == [generator.prompts[0], generator.prompts[2]]
    results = [step.outcome.results[0] for step in home.steps]
    assert [(each.code, each.message) for each in results] == [
        ("searched", "Ramon"),
        ("answered", "Rome"),
    ]
    assert home.memory is song.memory and home.retriever is song.retriever
    evaluator = QAEvaluator(RecallReader(1, len), 1)
    scorer = AskerScorer(evaluator, None, RewardConfig(content_weight=0, tool_weight=0))
    rewards = scorer.score([home, song])
    assert [[step["accuracy"] for step in steps] for steps in rewards] == [[1, 1], [1]]
    assert [search_count(home), search_count(song)] == [1, 0]
    assert found_share(home) == 1.0
    home.answer = replace(home.answer, read=("Hanna: now in Oslo.",))
    assert found_share(home) == 0.0


def test_a_wrong_answer_is_a_guess_and_unknown_is_none():
    agent = make_agent(**ASKER, reader_tokens=40)
    replies = ["Rome", "arias and songs", "Oslo", "Unknown."]
    rollouts, _ = asked(agent, replies, (HOME, SONG) * 2)
    assert [guess_error(rollout) for rollout in rollouts] == [0.0, 0.0, 1.0, 0.0]


def test_a_rollout_counts_once_however_many_turns_it_has():
    def row(rollout, turn, total):
        return TrainingRow(0, rollout, turn, (), (), 0, total)

    rows = [row(0, 0, 1.0), row(1, 0, 0.0), row(1, 1, 0.0), row(1, 2, 0.0)]
    compare_rollouts(rows, Scale.NONE)
    assert [row.advantage for row in rows] == [0.5, -0.5, -0.5, -0.5]


def test_the_gradient_check_sees_rollouts_of_many_turns_that_count_more(monkeypatch):
    monkeypatch.setattr(training, "compare_rollouts", lambda rows, scale: None)
    assert max(check(Case(credit="trajectory", role="asker", steps=1)).errors) > 1e-2


def test_without_writer_and_archive_there_is_nothing_to_ask():
    with pytest.raises(InputError, match="nothing is stored"):
        read_with_writer([TALK], make_agent(), "", "", "cpu")


def test_the_teacher_searches_for_the_name_that_the_notes_suggest():
    agent = make_agent(**{**ASKER, "retrieve_k": 1}, reader_tokens=200)
    talk = replace(TALK, questions=(replace(HOME, text="Whose home is that of Hanna?"), SONG))
    rows = list(demonstrate_asking([talk], agent, TeacherConfig(coverage=0.0), 2, seed=0))
    shown = [agent.encoder.tokenizer.decode(row.completion_ids[:-1]) for row in rows]
    assert shown == ["search: Whose home is that of Ramon?", "Rome", "arias"]
    assert all(row.completion_ids[-1] == 2 for row in rows)


def test_the_teacher_answers_with_the_date_of_a_line():
    agent = make_agent(**ASKER, reader_tokens=200)
    chunk = Chunk("Hanna: I sing arias in a choir.", "2024-03-05")
    when = Question("When did Hanna say that she sings?", ("2024-03-05",), evidence=(0,))
    talk = replace(TALK, chunks=(chunk,), questions=(when,))
    (row,) = demonstrate_asking([talk], agent, TeacherConfig(coverage=0.0), 2, seed=0)
    assert agent.encoder.tokenizer.decode(row.completion_ids[:-1]) == "2024-03-05"


@pytest.mark.parametrize(
    "more",
    [
        ["--credit", "step"],
        ["--credit", "trajectory", "--reader", "base"],
        ["--credit", "trajectory", "--rollout_chunks", "1"],
        ["--credit", "trajectory", "--warm_start_steps", "4"],
    ],
)
def test_options_that_do_not_go_with_an_asker_are_refused(more):
    with pytest.raises(InputError, match="role asker"):
        parse_train_arguments(["--role", "asker", *more])


def test_an_asker_is_trained_recorded_and_saved_as_a_reader_that_searches(tmp_path):
    options = "--role asker --credit trajectory --warm_start_steps 0 --archive true --searches 1"
    weights = "--tool_weight 0 --content_weight 0 --compression_weight 0 --immediate_weight 0"
    own = json.dumps({"memalpha.contrib.asker.training:found_share": 0.5})
    folder = tmp_path / "run"
    more = [*options.split(), *weights.split(), "--rewards", own, "--max_steps", "1"]
    assert train(folder, *more, "--eval_instances", "1") == 0
    assert searches_of(folder / "adapter") == 1
    assert AgentConfig.load(folder / "adapter").archive
    run = RunFolder(folder)
    (path,) = run.trajectory_files()
    (first, *_) = run.read_lines(f"trajectories/{path.name}")
    assert first["role"] == "asker"
    assert {len(step["reward"]) for step in first["steps"]} == {6}
    assert len(read_rows(folder / "held_out" / "after.jsonl")) > 1  # a row for each question
    console = Console(record=True, width=100)
    show_rollout(first, console)
    shown = console.export_text()
    assert (
        "turn 1 of" in shown and "? answer" in shown and first["questions"][0]["question"] in shown
    )
    site = write_site(run).parent
    pages = [path.read_text(encoding="utf-8") for path in site.glob("*/*.html")]
    assert pages and all("<h3>What it read</h3>" in page for page in pages)
