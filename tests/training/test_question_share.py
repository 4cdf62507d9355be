"""Asking a share of the questions: which, how many, and the same for a whole group."""

from collections import Counter
from types import SimpleNamespace

from rollouts import make_instance

from memalpha.training.trainer import MemoryGRPOTrainer

INSTANCE = make_instance("a", "text", ask=[f"word{i}" for i in range(10)])


def asked(share, step=0, seed=1, instance=INSTANCE):
    trainer = SimpleNamespace(question_share=share, args=SimpleNamespace(seed=seed), state=SimpleNamespace(global_step=step))
    return MemoryGRPOTrainer._asked(trainer, instance).questions


def test_the_share_is_rounded_up_and_the_order_kept():
    assert asked(1.0) == INSTANCE.questions
    for share, count in ((0.5, 5), (0.45, 5), (0.01, 1), (0.99, 10)):
        questions = asked(share)
        assert len(questions) == count
        assert list(questions) == [question for question in INSTANCE.questions if question in questions]


def test_a_group_is_asked_the_same_and_steps_differ():
    assert asked(0.5, step=3) == asked(0.5, step=3)
    drawn = [asked(0.5, step) for step in range(200)]
    assert len(set(drawn)) > 50
    times = Counter(question.id for questions in drawn for question in questions)
    assert set(times) == {f"word{i}" for i in range(10)} and all(70 <= count <= 130 for count in times.values())


def test_an_instance_without_questions_stays_without():
    assert asked(0.5, instance=make_instance("b", "text")) == ()
