"""What a reader is taught, by hand; and a reader trained, loaded and asked, in small."""

import json
import shutil

import pytest
import torch
from rollouts import make_agent
from safetensors.torch import load_file, save_file

from memalpha.cli import run
from memalpha.data.teacher import TeacherConfig
from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.measure.host import PolicyHost
from memalpha.models.policy import load_policy_model, trained_reader, unknown_bias
from memalpha.qa.readers import UNKNOWN, RecallReader, reader_messages
from memalpha.text import chat_ids
from memalpha.training.config import RunOptions
from memalpha.training.demonstrations import make_reader_examples
from memalpha.training.warm_start import parse_warmup_arguments
from memalpha.types import (
    Chunk,
    Fact,
    FactAction,
    Instance,
    Prompt,
    Question,
    ReadRequest,
    Sampling,
)
from memalpha.use.agent import MemoryAgent

STATE, CHANGE, RETRACT = FactAction.STATE, FactAction.CHANGE, FactAction.RETRACT


def readings(instance, share=0.0, **teacher):
    agent = make_agent(retrieve_k=2, reader_tokens=512)
    return [
        tuple(reading)
        for reading in make_reader_examples(
            [instance], agent, 0, share, TeacherConfig(p_update=1.0, **teacher)
        )
    ]


def test_notes_are_the_teachers_and_the_answer_is_what_they_hold():
    facts = (
        Fact(0, STATE, "marta", "city", "oslo"),
        Fact(0, STATE, "marta", "pet", "cat"),
        Fact(0, STATE, "marta", "pet", "dog"),
        Fact(0, STATE, "ivan", "job", "nurse"),
        Fact(1, CHANGE, "marta", "city", "rome", "oslo"),
        Fact(1, RETRACT, "ivan", "job", "nurse"),
    )
    questions = (
        Question("city of marta ?", ("rome",), "bound", "latest", "marta", ("oslo",)),
        Question("pet of marta ?", ("cat", "dog"), "bound_all", "count", "marta"),
        Question("job of ivan ?", ("none",), "absent", "removed", "ivan", ("nurse",)),
        Question("sum up", ("a", "b"), "keywords"),  # no answer that a reader could learn
    )
    instance = Instance(
        "i", "x", (Chunk("a", "2024-01-01"), Chunk("b", "2024-02-01")), questions, facts
    )
    city, pets, job = readings(instance)
    assert (city[0], city[1][0], city[2]) == (
        "city of marta ?",
        "[2024-02-01] marta city rome",
        "rome",
    )
    assert (
        set(pets[1]) == {"[2024-01-01] marta pet cat", "[2024-01-01] marta pet dog"}
        and pets[2] == "cat, dog"
    )
    assert job[2] == UNKNOWN and not any("nurse" in passage for passage in job[1])
    shown = [
        (reading[2], [p for p in reading[1] if "rome" in p or "marta pet" in p])
        for reading in readings(instance, 1.0)[:2]
    ]
    assert (
        [answer for answer, _ in shown] == [UNKNOWN, UNKNOWN]
        and not any("rome" in p for p in shown[0][1])
        and not shown[1][1]
    )
    misled = readings(
        instance, p_correct=0.0
    )  # the note that should have gone is shown: nothing to learn from
    assert [reading[0] for reading in misled] == ["city of marta ?", "pet of marta ?"]


def test_a_note_that_the_search_misses_is_shown_all_the_same():
    facts = tuple(
        Fact(0, STATE, name, "city", city)
        for name, city in (("marta", "oslo"), ("ivan", "rome"), ("lea", "lima"))
    )
    questions = (Question("city of ivan or lea ?", ("oslo",), "bound", "single", "marta"),)
    instance = Instance("i", "x", (Chunk("a", "2024-01-01"),), questions, facts)
    ((_, found, answer),) = readings(instance)
    assert "[2024-01-01] marta city oslo" in found and len(found) == 2 and answer == "oslo"
    assert readings(instance, 1.0) == [
        ("city of ivan or lea ?", tuple(p for p in found if "marta" not in p), UNKNOWN)
    ]


def test_of_plain_text_the_sentence_with_the_answer_is_among_those_found():
    text = "The bridge is old. The bridge is long. It was built in 1907 by Roebling. Trains cross the bridge."
    instance = Instance(
        "i",
        "squad",
        (Chunk("Nothing here."), Chunk(text)),
        (Question("who made the bridge?", ("Roebling",)),),
    )
    ((_, found, answer),) = readings(instance)
    assert "It was built in 1907 by Roebling." in found and len(found) == 2 and answer == "Roebling"
    ((_, found, answer),) = readings(instance, 1.0)
    assert len(found) == 1 and "Roebling" not in found[0] and answer == UNKNOWN


def test_chunks_that_are_left_out_are_refused_for_a_reader():
    with pytest.raises(InputError, match="rollout_chunks with teaches: reader"):
        parse_warmup_arguments(["--teaches", "reader", "--rollout_chunks", "1"])


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader") / "reader"
    more = [
        "--teaches",
        "reader",
        "--max_steps",
        "4",
        "--learning_rate",
        "1e-2",
        "--use_cpu",
        "true",
        "--retrieve_k",
        "4",
    ]
    options = [
        "--model",
        "nano",
        "--data",
        "toy",
        "--data_options",
        "{n: 64}",
        "--schema",
        "toy",
        "--codec",
        "compact",
    ]
    assert run(["warmup", *options, *more, "--output_dir", str(folder)]) == 0
    weights = load_file(
        folder / "adapter_model.safetensors"
    )  # so small a base learns little: make what it says differ
    draw = torch.Generator().manual_seed(3)
    stirred = {
        name: 0.3 * torch.randn(value.shape, generator=draw) if "lora_B" in name else value
        for name, value in weights.items()
    }
    save_file(stirred, folder / "adapter_model.safetensors")
    return folder


def test_a_trained_reader_answers_in_training_and_evaluation_as_its_adapter_does(
    reader, tmp_path, capsys
):
    chats = [
        reader_messages("was apple seen?", passages)
        for passages in (("apple", "boat"), ("door",), ())
    ]
    policy = load_policy_model("nano", adapter=reader)
    alone = HFGenerator(policy.model, policy.tokenizer, merge_adapters=False)
    expected = [
        alone.generate([Prompt((), chat_ids(policy.tokenizer, chat))], Sampling(32))[0].text
        for chat in chats
    ]
    assert trained_reader(reader)(chats) == expected and len(set(expected)) > 1

    small = [
        "--config",
        "configs/train/nano.yaml",
        "--warm_start_steps",
        "0",
        "--max_steps",
        "1",
        "--eval_data",
        "",
    ]
    small += [
        "--reader",
        "trained",
        "--reader_adapter",
        str(reader),
        "--per_device_train_batch_size",
        "8",
    ]
    assert run(["train", *small, "--output_dir", str(tmp_path / "run")]) == 0
    row = json.loads(
        (tmp_path / "run" / "trajectories" / "step-000001-rank-0.jsonl").read_text().splitlines()[0]
    )
    assert len(row["questions"]) == 8 and all(
        question["answer"] is not None for question in row["questions"]
    )
    assert run(["export", str(tmp_path / "run"), "--output", str(tmp_path / "exported")]) == 0
    shutil.copytree(tmp_path / "exported", tmp_path / "moved" / "agent")
    requests = [
        ReadRequest(Question("was apple seen?", ("",)), passages)
        for passages in (("apple", "boat"), ("door",), ())
    ]
    for folder, given in (("run", reader), ("run", None), ("moved/agent", None)):
        with MemoryAgent.load(tmp_path / folder, reader=given) as agent:
            assert [said.text for said in agent.reader.read(requests)] == [
                text.strip() for text in expected
            ]
    with MemoryAgent.load(tmp_path / "run", reader="") as agent:
        assert isinstance(agent.reader, RecallReader)
    shutil.rmtree(tmp_path / "moved" / "agent" / "reader")
    with pytest.raises(InputError, match=r"reader of .*agent is not at 'reader'"):
        MemoryAgent.load(tmp_path / "moved" / "agent")

    config = {
        "model": "nano",
        "sets": [{"data": "toy", "options": {"n": 4}}],
        "systems": ["verbatim"],
        "reader_tokens": 64,
        "readers": [{"kind": "trained", "adapter": str(reader)}],
        "output_dir": str(tmp_path / "evaluated"),
    }
    (tmp_path / "evaluate.yaml").write_text(json.dumps(config))
    assert run(["evaluate", "--config", str(tmp_path / "evaluate.yaml")]) == 0, (
        capsys.readouterr().err
    )


def test_a_reader_s_bias_moves_what_it_says_first_to_unknown_or_away_from_it(reader, tmp_path):
    chats = [
        reader_messages("was apple seen?", passages)
        for passages in (("apple", "boat"), ("door",), ())
    ]
    folder = shutil.copytree(reader, tmp_path / "reader")
    record = json.loads((folder / "memalpha_adapter.json").read_text())
    policy = load_policy_model("nano", adapter=folder)
    unknown = policy.tokenizer.encode("unknown", add_special_tokens=False)[0]
    alone = HFGenerator(policy.model, policy.tokenizer, merge_adapters=False)
    plain = [
        alone.generate([Prompt((), chat_ids(policy.tokenizer, chat))], Sampling(32))[0]
        for chat in chats
    ]
    with torch.no_grad():
        logits = [
            policy.model(torch.tensor([chat_ids(policy.tokenizer, chat)])).logits[0, -1]
            for chat in chats
        ]
    gaps = [float(row.max() - row[unknown]) for row in logits]  # 0 where it begins with unknown
    middle = sorted(gaps)[1]
    for bias, begins in ((middle + 0.01, [gap <= middle for gap in gaps]), (-99.0, [False] * 3)):
        (folder / "memalpha_adapter.json").write_text(json.dumps(record | {"unknown_bias": bias}))
        assert unknown_bias(folder, policy.tokenizer) == {unknown: bias}
        in_training, host = trained_reader(folder)(chats), PolicyHost("nano")
        assert in_training == host.answer(chats, 32, str(folder))
        first = [
            policy.tokenizer.encode(text, add_special_tokens=False)[:1] == [unknown]
            for text in in_training
        ]
        assert first == begins
        same = [i for i, gap in enumerate(gaps) if gap and not begins[i]]  # nothing else moves
        assert [in_training[i] for i in same] == [plain[i].text for i in same]


def test_a_reader_needs_its_adapter_and_no_other_takes_one():
    for wrong in ({"reader": "trained"}, {"reader": "recall", "reader_adapter": "somewhere"}):
        with pytest.raises(InputError, match="reader_adapter"):
            RunOptions(**wrong).check()
