"""The parts of a run: what does not fit is found before anything is trained."""

import json
from dataclasses import replace

import pytest

from memalpha.data.rows import instance_to_json
from memalpha.errors import InputError
from memalpha.training.build import build_components, make_judge
from memalpha.training.config import RunOptions, parse_train_arguments
from memalpha.types import (
    Chunk,
    Entry,
    Fact,
    FactAction,
    Instance,
    Operation,
    OperationKind,
    OperationResult,
    Question,
    ResultCode,
    WriteRequest,
)


def instance(city: str, name: str = "1") -> Instance:
    fact = Fact(0, FactAction.STATE, "Ann", "city", city)
    return Instance(
        name, "mine", (Chunk(f"Ann lives in {city}."),), (Question("Where?", (city,)),), (fact,)
    )


def wrote(city: str, name: str) -> WriteRequest:
    result = OperationResult(
        True,
        ResultCode.APPLIED,
        "",
        Operation(OperationKind.INSERT, "facts", f"Ann city {city}"),
        "1",
    )
    entry = Entry("1", "facts", f"Ann city {city}")
    return WriteRequest(name, 0, Chunk(f"Ann lives in {city}."), (result,), (None,), (entry,))


@pytest.mark.parametrize("judge", ["facts", "auto"])
def test_instances_of_one_id_are_not_judged_by_the_facts_of_one_another(judge):
    run = RunOptions(content_judge=judge)
    with pytest.raises(InputError, match="two instances with different facts are called '1'"):
        make_judge(run, [instance("Oslo"), instance("Rome")])
    with pytest.raises(InputError, match="are called '1'"):
        make_judge(run, [instance("Oslo"), replace(instance("Oslo"), facts=())])
    assert make_judge(run, [instance("Oslo"), instance("Oslo")]).judge([wrote("Oslo", "1")]) == [
        [True]
    ]
    made = make_judge(run, [instance("Oslo"), instance("Rome", "2")])
    assert made.judge([wrote("Oslo", "1"), wrote("Oslo", "2")]) == [[True], [False]]
    run = RunOptions(content_judge="grounded")  # needs no facts
    assert make_judge(run, [instance("Oslo"), instance("Rome")]).judge([wrote("Oslo", "1")]) == [
        [True]
    ]


@pytest.mark.parametrize("where", ["--train_data", "--eval_data"])
def test_a_question_that_cannot_be_scored_is_found_before_anything_is_trained(tmp_path, where):
    known = instance("Oslo")
    unscorable = replace(known, questions=(replace(known.questions[0], metric="judge"),))
    for name, row in (("good", known), ("bad", unscorable)):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps(instance_to_json(row)) + "\n", encoding="utf-8"
        )
    data = {"--train_data": "good", "--eval_data": "good", where: "bad"}
    options = [
        word for name, file in data.items() for word in (name, str(tmp_path / f"{file}.jsonl"))
    ]
    agent = [
        "--schema",
        "toy",
        "--codec",
        "compact",
        "--max_chunk_tokens",
        "64",
        "--max_completion_length",
        "8",
    ]
    with pytest.raises(InputError, match="judge"):
        build_components(
            parse_train_arguments(["--use_cpu", "true", "--model", "nano", *agent, *options])
        )
