"""What memalpha/upstream.py relies on, with the installed TRL and transformers. A test that fails
names what changed; mend that file, and no other."""

import ast
import inspect
import warnings
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from trl import GRPOTrainer

from memalpha import upstream
from memalpha.models.registry import build_nano, toy_texts
from memalpha.training.checkpoints import WholeCheckpoints
from memalpha.training.loss import PackedGRPOTrainer
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.training.warm_start import WarmupTrainer
from tests.helpers.gradient_check import Case, make_trainer

ROOT = Path(__file__).parents[1]
MIXINS = (
    upstream.FinishedInputs,
    upstream.LossOfTRL,
    upstream.WithoutArguments,
    upstream.CheckpointSteps,
)
OURS = (*MIXINS, WholeCheckpoints, PackedGRPOTrainer, MemoryGRPOTrainer, WarmupTrainer)


@contextmanager
def relying_on(library, *names):
    """Say in one line what changed, and where to mend it, if the block fails."""
    try:
        yield
    except Exception as error:
        raise AssertionError(
            f"{library} {version(library)}: {' or '.join(names)} is not as memalpha/upstream.py "
            f"uses it; mend that file ({type(error).__name__}: {error})"
        ) from error


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


# Names -------------------------------------------------------------------------------------------


OVERRIDES = [(mixin, name) for mixin in MIXINS for name in vars(mixin) if is_private(name)]
METHODS = [each for each in OVERRIDES if inspect.isfunction(getattr(*each))]


@pytest.mark.parametrize(("mixin", "name"), METHODS, ids=[name for _, name in METHODS])
def test_each_method_that_is_overridden_exists_and_takes_the_same(mixin, name):
    library = "trl" if mixin is upstream.LossOfTRL else "transformers"
    with relying_on(library, f"Trainer.{name}"):
        theirs = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
        ours = inspect.signature(getattr(mixin, name)).parameters
        if library == "transformers":  # which calls them
            theirs = list(inspect.signature(getattr(Trainer, name)).parameters)
            assert list(ours) == theirs
        assert theirs[0] == "self"


def test_nothing_else_of_ours_overrides_what_is_theirs():
    theirs = {*dir(GRPOTrainer), *private_names(GRPOTrainer, Trainer)}
    meant = {name for _, name in METHODS}
    meant |= {"train", "evaluate", "training_step", "compute_loss"}  # public
    for kind in OURS:
        own = {name for name in vars(kind) if not name.startswith("__")}
        assert own & theirs <= meant, kind


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    made = make_trainer(
        Case(beta=0.1), tmp_path_factory.mktemp("run"), trl={"off_policy_mask_threshold": 0.5}
    )
    made.current_gradient_accumulation_steps = 1  # which transformers' loop sets
    made.model.train()
    return made


def test_each_attribute_that_our_trainers_read_is_there(trainer):
    files = [
        "memalpha/upstream.py",
        *(f"memalpha/training/{name}.py" for name in ("loss", "trainer", "checkpoints")),
    ]
    for file in files:
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                with relying_on("trl", f"GRPOTrainer.{node.attr}, which {file} reads,"):
                    assert hasattr(trainer, node.attr)


# Models ------------------------------------------------------------------------------------------


@pytest.fixture
def nano(tmp_path):
    return build_nano(tmp_path / "nano", toy_texts(), layers=1, hidden=32)


def test_a_model_says_which_attention_it_has(nano):
    model = AutoModelForCausalLM.from_pretrained(nano, attn_implementation="eager")
    with relying_on("transformers", "PretrainedConfig._attn_implementation"):
        assert upstream.attention_of(model.config) == "eager"
        model.set_attn_implementation("sdpa")
        assert upstream.attention_of(model.config) == "sdpa"


class OwnAttention(nn.Module):
    """An attention that does not ask which function to use."""


class WithOwnAttention(PreTrainedModel):
    """A model that has it."""


def test_a_model_says_whether_its_attention_can_be_changed(nano):
    model = AutoModelForCausalLM.from_pretrained(nano)
    with relying_on("transformers", "PreTrainedModel._can_set_attn_implementation"):
        assert upstream.takes_attention(model)
        assert not upstream.takes_attention(WithOwnAttention)


def test_models_take_the_cache_by_this_name_without_a_warning(nano):
    model = AutoModelForCausalLM.from_pretrained(nano)
    with relying_on("transformers", "the argument past_key_values or cache of a model's forward"):
        assert upstream.cache_argument() in inspect.signature(model.forward).parameters
        cache = DynamicCache()
        with warnings.catch_warnings(action="error"):
            model(torch.tensor([[1, 2, 3]]), **{upstream.cache_argument(): cache})
        assert cache.get_seq_length() == 3


def test_what_gguf_leaves_is_taken_out(nano):
    model = AutoModelForCausalLM.from_pretrained(nano)
    with relying_on("transformers", "config._model_name_or_path of a GGUF file"):
        name = GGUF_CONFIG_MAPPING["general"]["name"]
        model.hf_quantizer = object()
        setattr(model.config, name, "SmolLM")
        model.config.quantization_config = {"quant_method": "gguf"}
        upstream.forget_gguf(model)
        assert model.hf_quantizer is None and model.config.to_dict() == (
            AutoConfig.from_pretrained(nano, dtype="float32").to_dict()
        )


def test_the_reference_is_an_adapter_named_ref(trainer):
    with relying_on("trl", "trl.trainer.utils.use_adapter", "the adapter 'ref'"):
        assert set(trainer.model.peft_config) == {"default", "ref"}
        with upstream.as_reference(trainer.model):
            assert trainer.model.active_adapter == "ref"
        assert trainer.model.active_adapter == "default"


# TRL's loss --------------------------------------------------------------------------------------

MASK = [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
WEIGHTS = [[0.5, 2.0, 9.0], [1.5, 1.0, 0.25]]
BETA = 0.1


def loss_of(trainer, weighs=False, apart=None, **others):
    """TRL's loss of two rows, of advantage 2 and -1, among ten tokens; and its gradient."""
    logps = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.5, -2.5]], requires_grad=True)
    others = {name: logps.detach() + apart for name, apart in others.items()}
    if weighs is not None:
        others["weight"] = torch.tensor(WEIGHTS)
    loss = trainer.loss_of_trl(
        trainer.model,
        logps=logps,
        entropies=torch.tensor([[1.0, 2.0, 50.0], [3.0, 4.0, 5.0]]),
        mask=torch.tensor(MASK),
        advantages=torch.tensor([2.0, -1.0]),
        token_count=torch.tensor(10.0),
        weighs=bool(weighs),
        others={"reference": logps.detach(), **others},
    )
    loss.backward()
    return loss.item(), logps.grad


def test_the_loss_of_a_forward_that_has_run(trainer):
    """The model is not run: the loss and its gradient are those of the given log-probabilities."""
    with relying_on(
        "trl", "GRPOTrainer._compute_loss", "its call of _get_per_token_logps_and_entropies"
    ):
        trainer.training_metrics.clear()
        loss, gradient = loss_of(trainer)
        assert loss == pytest.approx(-(2 * 2 - 3) / 10)
        expected = -torch.tensor([[2.0], [-1.0]]) * torch.tensor(MASK) / 10
        torch.testing.assert_close(gradient, expected)
        assert trainer.training_metrics["entropy"] == [pytest.approx(15 / 5)]


def test_the_loss_takes_importance_weights_if_told_to(trainer):
    with relying_on("trl", "GRPOTrainer.use_vllm", "inputs['importance_sampling_ratio']"):
        loss, _ = loss_of(trainer, weighs=True)
        assert loss == pytest.approx(-(2 * 2.5 - 2.75) / 10)
        assert trainer.use_vllm is False
        assert loss_of(trainer, weighs=None)[0] == loss_of(trainer)[0]


def test_the_loss_compares_with_log_probabilities_of_before(trainer):
    with relying_on("trl", "inputs['old_per_token_logps']"):
        loss, _ = loss_of(trainer, old=-0.1)
        ratio = torch.tensor(0.1).exp().item()  # not clipped
        assert loss == pytest.approx(-(2 * 2 - 3) * ratio / 10)


def test_the_loss_has_a_kl_term_to_the_reference(trainer):
    with relying_on("trl", "inputs['ref_per_token_logps']"):
        loss, _ = loss_of(trainer, reference=0.3)
        kl = torch.tensor(0.3).exp().item() - 0.3 - 1
        assert loss == pytest.approx((-(2 * 2 - 3) + BETA * 5 * kl) / 10)


def test_the_loss_leaves_out_rows_that_were_sampled_by_another_policy(trainer):
    with relying_on("trl", "inputs['sampling_per_token_logps']"):
        loss, _ = loss_of(trainer, sampled=1.0)  # more than the threshold, .5
        assert loss == pytest.approx(-2 * 2 / 10)


def test_trl_logs_the_means_of_what_is_recorded(trainer):
    with relying_on("trl", "GRPOTrainer._metrics['train']"):
        trainer.training_metrics.clear()
        trainer.training_metrics["own"] += [1.0, 2.0]
        trainer.log({})
        assert trainer.state.log_history[-1]["own"] == 1.5
        assert not trainer.training_metrics


# Transformers' trainer ---------------------------------------------------------------------------


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, labels=None):
        return {"loss": ((self.weight * x - labels) ** 2).mean()}


class Noting(upstream.CheckpointSteps, upstream.FinishedInputs, Trainer):
    """Notes the steps that transformers takes, and writes its checkpoints elsewhere."""

    def __init__(self, folder, elsewhere):
        self.noted, self.batches, self.elsewhere = [], [], str(elsewhere)
        arguments = TrainingArguments(
            str(folder), max_steps=2, save_steps=1, use_cpu=True, learning_rate=0.1, report_to=[]
        )
        rows = [{"x": torch.tensor([1.0]), "labels": torch.tensor([3.0])}] * 16
        super().__init__(Line(), arguments, train_dataset=rows)

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.batches.append(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def get_batch_samples(self, *args, **kwargs):
        self.loaded, count = super().get_batch_samples(*args, **kwargs)
        return self.loaded, count

    def write_checkpoint(self, model, trial):
        self.noted.append("write")
        super().write_checkpoint(model, trial)

    def checkpoints_folder(self, trial):
        assert super().checkpoints_folder(trial) == self.args.output_dir
        return self.elsewhere

    def load_weights(self, checkpoint, model=None):
        self.noted.append(f"weights of {Path(checkpoint).name}")
        super().load_weights(checkpoint, model)

    def load_optimizer_and_scheduler(self, checkpoint):
        self.noted += ["optimizer"] if checkpoint else []
        super().load_optimizer_and_scheduler(checkpoint)

    def load_random_state(self, checkpoint):
        self.noted += ["random numbers"] if checkpoint else []
        super().load_random_state(checkpoint)


def weight_of(trainer):
    return trainer.model.weight.item()


@pytest.fixture
def trained(tmp_path):
    trainer = Noting(tmp_path / "run", tmp_path / "elsewhere")
    trainer.train()
    return trainer


def test_transformers_writes_checkpoints_by_these_steps(trained, tmp_path):
    with relying_on("transformers", "Trainer._save_checkpoint", "Trainer._get_output_dir"):
        assert trained.noted == ["write", "write"]
        names = {path.name for path in (tmp_path / "elsewhere").iterdir()}
        assert names == {"checkpoint-1", "checkpoint-2"}
        assert not [*(tmp_path / "run").glob("checkpoint-*")]


def test_transformers_loads_checkpoints_by_these_steps(trained, tmp_path):
    names = ["_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state"]
    with relying_on("transformers", *(f"Trainer.{name}" for name in names)):
        resumed = Noting(tmp_path / "again", tmp_path / "other")
        resumed.train(resume_from_checkpoint=str(tmp_path / "elsewhere" / "checkpoint-1"))
        loads = ["weights of checkpoint-1", "optimizer", "random numbers"]
        assert [name for name in resumed.noted if name != "write"] == loads
        assert weight_of(resumed) == weight_of(trained) != 1.0


def test_transformers_loads_the_weights_of_the_best_checkpoint(trained, tmp_path):
    last = weight_of(trained)
    with relying_on("transformers", "Trainer._load_best_model"):
        trained.state.best_model_checkpoint = str(tmp_path / "elsewhere" / "checkpoint-1")
        trained.load_best_weights()
        assert 1.0 < weight_of(trained) < last


def test_transformers_gives_finished_batches_as_they_are(trained):
    with relying_on("transformers", "Trainer._prepare_inputs"):
        assert trained.batches[-1] is trained.loaded[-1]


def test_no_pickle_of_the_arguments_is_saved(trained, tmp_path):
    name = "training_args.bin"
    with relying_on("transformers", "Trainer._save", name):
        trained.save_model(str(tmp_path / "ours"))
        assert not [*tmp_path.rglob(name)]
        plain = Trainer(trained.model, trained.args)
        plain.save_model(str(tmp_path / "theirs"))
        assert {path.name for path in (tmp_path / "theirs").iterdir()} - {
            path.name for path in (tmp_path / "ours").iterdir()
        } == {name}


# One file ----------------------------------------------------------------------------------------


def private_names(*classes):
    """Private names in the sources of classes and of what these derive from in TRL and
    transformers."""
    modules = {
        inspect.getmodule(base)
        for kind in classes
        for base in kind.__mro__
        if base.__module__.startswith(("trl.", "transformers."))
    }
    names = set()
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names |= {name for name in names_in(node) if is_private(name)}
    return names


def names_in(node):
    """The names that a node of a syntax tree uses or defines, those in strings among them."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias):
        return {node.name}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()


def defined_in(tree):
    """Private names that a file defines: of functions, classes and attributes of ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def has_trainers(tree):
    """Whether a file names a trainer: what is private there may be the library's."""
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.alias)}
    return any(word.endswith("Trainer") for word in words)


def private_uses(files):
    """Uses of private names of TRL and transformers: 'file:line: name'."""
    theirs = private_names(GRPOTrainer, PreTrainedModel, PreTrainedTokenizerBase, AutoConfig)
    theirs |= private_names(type(AutoConfig.for_model("llama")))
    theirs |= {"_model_name_or_path"}
    trees = {file: ast.parse(file.read_text()) for file in files}
    ours = set().union(*(defined_in(tree) for tree in trees.values() if not has_trainers(tree)))
    uses = []
    for file, tree in trees.items():
        foreign = theirs if has_trainers(tree) else theirs - ours
        for node in ast.walk(tree):
            for name in sorted(names_in(node) & foreign):
                uses.append(f"{file.name}:{node.lineno}: {name}")
    return uses


def test_no_other_file_uses_private_names_of_trl_and_transformers(tmp_path):
    folders = [ROOT / name for name in ("memalpha", "scripts", "examples")]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files.remove(ROOT / "memalpha/upstream.py")
    assert private_uses(files) == []
    planted = tmp_path / "planted.py"
    planted.write_text(
        "class MyTrainer(GRPOTrainer):\n    def _compute_loss(self):\n"
        "        return self._step, getattr(self.model.config, '_attn_implementation')\n"
    )
    found = private_uses([*files, planted])
    assert [line.split()[1] for line in found] == ["_compute_loss", "_step", "_attn_implementation"]
