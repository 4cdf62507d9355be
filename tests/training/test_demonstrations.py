"""What teachers show: demonstrations, memories to begin with, and examples for readers."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MistralConfig, MistralForCausalLM

from memalpha.cli import run
from memalpha.data.load import load_data
from memalpha.data.rows import write_parquet
from memalpha.data.synthetic import PRESETS, SyntheticConfig
from memalpha.data.synthetic import make_synthetic_instance as make_dialogue
from memalpha.data.teacher import TeacherConfig, teacher_operations
from memalpha.errors import InputError, RunFolderError, SchemaError, TrainingAborted
from memalpha.generation.hf import HFGenerator
from memalpha.measure.host import PolicyHost
from memalpha.models.policy import load_policy_model
from memalpha.models.readers import trained_reader, unknown_bias
from memalpha.qa.metrics import score
from memalpha.qa.readers import UNKNOWN, reader_messages
from memalpha.text.encoding import chat_ids
from memalpha.training.config import RunOptions
from memalpha.training.demonstrations import demonstrate, make_reader_examples
from memalpha.training.teacher_start import start_from_teacher
from memalpha.training.warm_start import (
    WarmupOptions,
    WarmupTrainer,
    WarmupTrainerOptions,
    make_demonstrations,
    parse_warmup_arguments,
    warm_up,
)
from memalpha.types import (
    Answer,
    Chunk,
    Fact,
    FactAction,
    Instance,
    Operation,
    OperationKind,
    Prompt,
    Question,
    ReadRequest,
    Sampling,
)
from memalpha.update.logps import CompletionRow
from memalpha.use.agent import MemoryAgent
from tests.helpers.data_samples import write_instances
from tests.helpers.gradient_check import make_base
from tests.helpers.rollouts import make_agent, make_instance, run_script, step_reward
from tests.helpers.runs_of_nano import assert_same_end, train
from tests.training.test_scoring import Judge, scorer_of

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
    with pytest.raises(
        InputError, match="the teacher's call fails on instance x: no entry '9' in facts"
    ):
        list(
            demonstrate(
                [INSTANCE],
                make_agent(),
                lambda *_: [Operation(DELETE, "facts", entry_id="9")],
                END,
                seed=0,
            )
        )


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
    shown = [
        CompletionRow((5, 6, 7, 8), (9, END), 2),
        CompletionRow((5, 6, 10), (11, 12, 13, END), 2),
    ]
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


def test_a_demonstration_longer_than_a_sliding_window_is_refused(tmp_path):
    nano = load_policy_model("nano")
    names = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    sizes = {name: getattr(nano.model.config, name) for name in names.split()}
    config = MistralConfig(**sizes, num_key_value_heads=1, sliding_window=40)
    MistralForCausalLM(config).save_pretrained(tmp_path / "sliding")
    nano.tokenizer.save_pretrained(tmp_path / "sliding")
    with pytest.raises(InputError, match=r"a demonstration has \d+ tokens.* takes 40 \(its window"):
        warm(tmp_path / "out", "--model", str(tmp_path / "sliding"))


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
    with pytest.raises(RunFolderError, match="the folder of the base model"):
        warm(tmp_path / "out", "--overwrite", "true", "--model", str(tmp_path / "out"))
    assert model <= {path.name for path in (tmp_path / "out").iterdir()}


def test_what_a_warm_start_goes_on_from_is_not_overwritten(tmp_path):
    folder = warm(tmp_path / "warm")
    before = (folder / "adapter_model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"adapter .* lies in the run that would be overwritten"):
        warm(folder, "--adapter", str(folder), "--overwrite", "true")
    assert (folder / "adapter_model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("steps", "said"), [("3", "the loss of step 2 .* nan"), ("1", "weights are not finite after")]
)
def test_a_warm_start_that_diverges_leaves_no_adapter(tmp_path, monkeypatch, steps, said):
    compute = WarmupTrainer.compute_loss

    def steep(*args, **more):  # after its first step the weights are not finite
        return Steep.apply(compute(*args, **more))

    monkeypatch.setattr(WarmupTrainer, "compute_loss", steep)
    with pytest.raises(TrainingAborted, match=f"{said}(.|\n)*lower learning_rate"):
        warm(tmp_path / "warm", "--max_steps", steps)
    assert not (tmp_path / "warm" / "adapter_model.safetensors").exists()


class Steep(torch.autograd.Function):
    """A loss whose gradient is not finite."""

    @staticmethod
    def forward(context, loss):
        return loss.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * float("inf")


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_a_folder_that_is_no_warm_start_is_left_alone(overwrite, tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        RunFolderError, match=r"holds no warm start(.|\n)*choose another --output_dir"
    ):
        warm(tmp_path, "--overwrite", overwrite)
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == "{}"


CHUNKS = (
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
NOTED = replace(make_instance("noted", *CHUNKS), questions=ASKED, facts=FACTS)
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
        == f"<chunk>\n{CHUNKS[2]}\n</chunk>\n<memory>\n1 apple boat\n2 candle door\n</memory>"
    )
    assert (
        shown[1][1]
        == f"<chunk>\n{CHUNKS[3]}\n</chunk>\n<memory>\n1 apple boat\n2 candle door\n3 feather\n</memory>"
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
    assert start_from_teacher([PLAIN, NOTED], agent, 9, seed=0, cut=True) == [
        PLAIN,
        NOTED,
    ]  # shorter than a rollout
    for alone in ({"rollout_cut": True}, {"rollout_coverage": 0.5}):
        with pytest.raises(InputError, match="without rollout_chunks"):
            RunOptions(**alone)


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
        make_instance("moves", *CHUNKS[:3]), questions=(WHERE, PET, WHEN, EVERY), facts=MOVES
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
    options.extend(["--warm_start_steps", "2", "--max_steps", "2"])
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
    shutil.copytree(
        tmp_path / "whole", tmp_path / "again", ignore=shutil.ignore_patterns("checkpoint-2")
    )
    assert train(tmp_path / "again", *options, "--resume") == 0
    assert_same_end(tmp_path / "again", tmp_path / "whole", steps=2)


PASSAGES = ("apple", "boat"), ("door",), ()
CHATS = [reader_messages("was apple seen?", passages) for passages in PASSAGES]
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


def test_a_trained_reader_answers_in_training_and_use_as_its_adapter_does(reader, tmp_path):
    policy = load_policy_model("nano", adapter=reader)
    alone = HFGenerator(policy.model, policy.tokenizer, merge_adapters=False)
    expected = [
        alone.generate([Prompt((), chat_ids(policy.tokenizer, chat))], Sampling(32))[0].text
        for chat in CHATS
    ]
    assert trained_reader(reader)(CHATS) == expected and len(set(expected)) > 1

    small = [
        "--config",
        "configs/train/nano.yaml",
        "--warm_start_steps",
        "0",
        "--max_steps",
        "1",
        "--eval_data",
        "",
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
    requests = [ReadRequest(Question("was apple seen?", ("",)), passages) for passages in PASSAGES]
    for folder, given in (("run", reader), ("run", None), ("moved/agent", None)):
        with MemoryAgent.load(tmp_path / folder, reader=given) as agent:
            assert [said.text for said in agent.reader.read(requests)] == [
                text.strip() for text in expected
            ]
    shutil.rmtree(tmp_path / "moved" / "agent" / "reader")
    with pytest.raises(InputError, match=r"the reader that .*agent names is not at 'reader'"):
        MemoryAgent.load(tmp_path / "moved" / "agent")


def test_a_reader_s_bias_moves_what_it_says_first_to_unknown_or_away_from_it(reader, tmp_path):
    folder = shutil.copytree(reader, tmp_path / "reader")
    record = json.loads((folder / "memalpha_adapter.json").read_text())
    policy = load_policy_model("nano", adapter=folder)
    unknown = policy.tokenizer.encode("unknown", add_special_tokens=False)[0]
    with torch.no_grad():
        logits = [
            policy.model(torch.tensor([chat_ids(policy.tokenizer, chat)])).logits[0, -1]
            for chat in CHATS
        ]
    gaps = [float(row.max() - row[unknown]) for row in logits]  # 0 where it begins with unknown
    middle = sorted(gaps)[1]
    for bias, begins in ((middle + 0.01, [gap <= middle for gap in gaps]), (-99.0, [False] * 3)):
        (folder / "memalpha_adapter.json").write_text(json.dumps(record | {"unknown_bias": bias}))
        assert unknown_bias(folder, policy.tokenizer) == {unknown: bias}
        in_training, host = trained_reader(folder)(CHATS), PolicyHost("nano")
        assert in_training == host.reader(str(folder), 32)(CHATS)
        first = [
            policy.tokenizer.encode(text, add_special_tokens=False)[:1] == [unknown]
            for text in in_training
        ]
        assert first == begins


def test_options_that_no_reader_can_have_are_refused():
    for wrong in ({"reader": "trained"}, {"reader": "recall", "reader_adapter": "somewhere"}):
        with pytest.raises(InputError, match="reader_adapter"):
            RunOptions(**wrong).check()
    with pytest.raises(InputError, match="rollout_chunks cannot be used with teaches: reader"):
        parse_warmup_arguments(["--teaches", "reader", "--rollout_chunks", "1"])
