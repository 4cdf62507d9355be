"""Demonstrations: the teacher's calls as token ids, on prompts that training itself would make of
the same state."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from data_samples import write_instances
from gradient_check import make_base
from rollouts import make_agent, make_instance, run_script

from memalpha.data.synthetic import PRESETS
from memalpha.data.synthetic import make_instance as make_dialogue
from memalpha.data.teacher import teacher_operations
from memalpha.errors import InputError, RunFolderError
from memalpha.models import load_policy_model
from memalpha.qa.metrics import score
from memalpha.training.demonstrations import demonstrate
from memalpha.training.warm_start import (
    WarmupOptions,
    WarmupTrainer,
    WarmupTrainerOptions,
    make_demonstrations,
    parse_warmup_arguments,
    warm_up,
)
from memalpha.types import Answer, Operation, OperationKind
from memalpha.update.logps import Row

INSERT, UPDATE, DELETE = OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE
END = 2
STEPS = (
    [Operation(INSERT, "facts", "apple"), Operation(INSERT, "facts", "boat")],
    [],
    [Operation(UPDATE, "facts", "apple door", "1"), Operation(DELETE, "facts", entry_id="2")],
)
INSTANCE = make_instance("x", "apple boat", "engine", "door")


def scripted(instance, index, memory, rng):
    return STEPS[index]


TEXTS = {
    "compact": ["+ apple\n+ boat", ".", "= 1 apple door\n- 2"],
    "compact_text": ["+ apple\n+ boat", ".", "= apple\n> apple door\n- boat"],
}


@pytest.mark.parametrize(("codec", "texts"), TEXTS.items(), ids=TEXTS)
def test_completions_are_the_teachers_calls_and_prompts_those_of_a_rollout(codec, texts):
    agent = make_agent(codec=codec)
    shown = list(demonstrate([INSTANCE], agent, scripted, END, seed=0))
    decode = agent.encoder.tokenizer.decode
    assert [operations for _, operations in shown] == list(STEPS)
    assert [decode(d.completion_ids[:-1]) for d, _ in shown] == texts
    assert [d.completion_ids.count(END) for d, _ in shown] == [1, 1, 1]
    assert all(d.completion_ids[-1] == END for d, _ in shown)
    # A policy that writes what the teacher writes gets these very prompts.
    (rollout,) = run_script(agent, [INSTANCE], *[[text] for text in texts])
    assert [(d.prompt_ids, d.shared) for d, _ in shown] == [
        (step.prompt.ids, step.prompt.shared) for step in rollout.steps
    ]
    assert [entry.content for entry in rollout.memory] == ["apple door"]


def say(*operations):
    return lambda instance, index, memory, rng: list(operations)


def test_a_demonstration_that_is_too_long_or_whose_call_fails_is_an_error():
    fits = make_agent(max_completion_length=6)  # + apple, line break, + boat, end
    assert (
        len(list(demonstrate([make_instance("x", "apple boat")], fits, scripted, END, seed=0))) == 1
    )
    with pytest.raises(
        InputError,
        match=r"a demonstration of x has 6 tokens(.|\n)*at most max_completion_length = 5",
    ):
        list(demonstrate([INSTANCE], make_agent(max_completion_length=5), scripted, END, seed=0))
    wrong = say(Operation(DELETE, "facts", entry_id="9"))
    with pytest.raises(InputError, match="the teacher's call fails on x: no entry '9' in facts"):
        list(demonstrate([INSTANCE], make_agent(), wrong, END, seed=0))


@pytest.mark.parametrize("codec", ["compact_text", "hermes"])
def test_what_the_teacher_shows_answers_every_question(codec):
    """The generator's own dialogues: the memory that the demonstrated completions lead to holds
    every answer."""
    agent = make_agent(codec=codec, max_completion_length=4096, max_chunk_tokens=8192)
    dialogues = [make_dialogue(seed, 0, PRESETS["medium"]) for seed in range(2)]
    totals = Counter()
    for dialogue in dialogues:
        shown = list(demonstrate([dialogue], agent, teacher_operations, END, seed=0))
        assert len(shown) == len(dialogue.chunks)
        memory = agent.new_memory()
        for index, (demonstration, operations) in enumerate(shown):
            text = agent.encoder.tokenizer.decode(demonstration.completion_ids[:-1])
            outcome = agent.apply(memory, index, dialogue.chunks[index], text)
            assert len(outcome.changes) == len(outcome.results) == len(operations)
            totals.update(operation.kind for operation in operations)
        passages = tuple(f"[{entry.timestamp}] {entry.content}" for entry in memory.entries())
        scores = {
            q.text: score(q, Answer("\n".join(passages), passages)) for q in dialogue.questions
        }
        assert set(scores.values()) == {1.0}
    assert totals.keys() == {INSERT, UPDATE, DELETE}  # every tool is shown


def logps_of(model, shown):
    logps = []
    for prompt, completion, _ in shown:
        rows = model(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        pairs = enumerate(completion, len(prompt) - 1)
        logps.append(torch.stack([rows[place, token] for place, token in pairs]))
    return logps


def test_the_loss_of_a_warm_start_is_the_mean_over_completion_tokens(tmp_path):
    shown = [Row((5, 6, 7, 8), (9, END), 2), Row((5, 6, 10), (11, 12, 13, END), 2)]
    model = make_base("llama")
    losses = [-logp.item() for logps in logps_of(model, shown) for logp in logps]
    for pack_tokens in (0, 1):  # one forward and backward, and one for each demonstration
        args = WarmupTrainerOptions(str(tmp_path), use_cpu=True).arguments()
        trainer = WarmupTrainer(shown, pack_tokens, model=model.requires_grad_(), args=args)
        model.zero_grad()
        trainer.current_gradient_accumulation_steps = 1  # as ``train`` sets it
        assert trainer.training_step(model, {"rows": shown}).item() == pytest.approx(
            sum(losses) / 6, rel=1e-5
        )
        found = [parameter.grad for parameter in model.parameters()]
        expected = torch.autograd.grad(
            -torch.cat(logps_of(model, shown)).mean(), list(model.parameters())
        )
        torch.testing.assert_close(found, list(expected), rtol=1e-4, atol=1e-6)


def test_a_warm_start_shows_each_instance_by_its_own_teacher(tmp_path):
    plain = make_instance("plain", "apple boat candle. door engine feather.")
    write_instances(tmp_path / "plain.jsonl", [plain])
    agent = make_agent(max_completion_length=200, max_chunk_tokens=400)
    of = WarmupOptions(
        data=f"synthetic, {tmp_path}/plain.jsonl",
        data_options={"n": 20, "split": "train"},
        p_correct=0.0,
    )
    demonstrations, operations = make_demonstrations(of, agent, END, seed=0)
    assert len(demonstrations) == 20 * 3 + 1
    assert [operation.content for operation in operations][-2:] == [
        "apple boat candle",
        "door engine feather",
    ]
    assert {operation.kind for operation in operations} == {
        INSERT
    }  # a teacher that corrects nothing
    of = replace(of, p_correct=1.0, p_update=1.0)
    corrected = Counter(
        operation.kind for operation in make_demonstrations(of, agent, END, seed=0)[1]
    )
    assert (
        corrected[UPDATE] > corrected[DELETE] > 0
    )  # changes are updates, what was taken back is deleted


def warm(folder, *more):
    toy = "--model nano --data toy --schema toy --codec compact --max_steps 2 --use_cpu true"
    options = [*toy.split(), "--show_times", "false", "--lora_r", "4", "--data_options", "{n: 8}"]
    return warm_up(parse_warmup_arguments([*options, "--output_dir", str(folder), *more]))


def test_a_warm_start_goes_on_from_an_adapter(tmp_path):
    def train(target, *more):
        model = load_policy_model("nano", adapter=warm(tmp_path / target, *more)).model
        return {name: value for name, value in model.state_dict().items() if "lora" in name}

    first = train("first")
    more = train(
        "more", "--adapter", str(tmp_path / "first"), "--learning_rate", "1e-9", "--lora_r", "16"
    )
    assert all(
        torch.allclose(first[name], more[name], atol=1e-6) for name in first
    )  # hardly a step away, and its own rank
    anew = train("anew", "--learning_rate", "1e-9")
    assert not all(torch.allclose(first[name], anew[name], atol=1e-6) for name in first)
    with pytest.raises(InputError, match="full_finetuning"):
        train("both", "--adapter", str(tmp_path / "first"), "--full_finetuning", "true")


def test_demonstrations_beyond_the_models_positions_are_refused(tmp_path):
    text = " ".join(["Ö"] * 900)  # spelt byte by byte: three tokens a word
    write_instances(tmp_path / "long.jsonl", [make_instance("1", text)])
    data = ["--data", str(tmp_path / "long.jsonl"), "--data_options", "{}"]
    with pytest.raises(
        InputError, match=r"a demonstration has 2\d\d\d tokens, .* and the model takes 2048"
    ):
        warm(tmp_path / "out", *data, "--max_chunk_tokens", "4000")


def test_a_folder_made_again_holds_an_adapter_or_a_model_not_both(tmp_path):
    model = {"config.json", "model.safetensors"}
    adapter = {"adapter_config.json", "adapter_model.safetensors", "memalpha_adapter.json"}
    for full, there, gone in (
        ("true", model, adapter),
        ("false", adapter, model),
        ("true", model, adapter),
    ):
        warm(tmp_path / "out", "--max_steps", "1", "--overwrite", "true", "--full_finetuning", full)
        files = {path.name for path in (tmp_path / "out").iterdir()}
        assert there <= files and not gone & files
    with pytest.raises(RunFolderError, match="is the base model's folder"):
        warm(tmp_path / "out", "--overwrite", "true", "--model", str(tmp_path / "out"))
    assert model <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_a_folder_that_is_no_warm_start_is_left_alone(overwrite, tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        RunFolderError, match=r"holds no warm start(.|\n)*choose another --output_dir"
    ):
        warm(tmp_path, "--overwrite", overwrite)
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == "{}"
