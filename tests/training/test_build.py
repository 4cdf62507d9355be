"""The parts of a run: what does not fit is found before anything is trained."""

from dataclasses import replace

import pytest

from memalpha.errors import InputError
from memalpha.protocols import WriteRequest
from memalpha.training.build import make_judge
from memalpha.training.config import RunArguments
from memalpha.types import Chunk, Entry, Fact, FactAction, Instance, Operation, OperationKind, OperationResult, Question, ResultCode


def instance(city: str, name: str = "1") -> Instance:
    fact = Fact(0, FactAction.STATE, "Ann", "city", city)
    return Instance(name, "mine", (Chunk(f"Ann lives in {city}."),), (Question("Where?", (city,)),), (fact,))


def wrote(city: str, name: str) -> WriteRequest:
    result = OperationResult(True, ResultCode.APPLIED, "", Operation(OperationKind.INSERT, "facts", f"Ann city {city}"), "1")
    entry = Entry("1", "facts", f"Ann city {city}")
    return WriteRequest(name, 0, Chunk(f"Ann lives in {city}."), (result,), (None,), (entry,))


@pytest.mark.parametrize("judge", ["facts", "auto"])
def test_instances_of_one_id_are_not_judged_by_the_facts_of_one_another(judge):
    run = RunArguments(content_judge=judge)
    with pytest.raises(InputError, match="two instances with different facts are called '1'"):
        make_judge(run, [instance("Oslo"), instance("Rome")])
    with pytest.raises(InputError, match="are called '1'"):
        make_judge(run, [instance("Oslo"), replace(instance("Oslo"), facts=())])
    assert make_judge(run, [instance("Oslo"), instance("Oslo")]).judge([wrote("Oslo", "1")]) == [[True]]
    made = make_judge(run, [instance("Oslo"), instance("Rome", "2")])
    assert made.judge([wrote("Oslo", "1"), wrote("Oslo", "2")]) == [[True], [False]]


def test_ids_are_nothing_to_a_judge_that_needs_no_facts():
    run = RunArguments(content_judge="grounded")
    assert make_judge(run, [instance("Oslo"), instance("Rome")]).judge([wrote("Oslo", "1")]) == [[True]]
