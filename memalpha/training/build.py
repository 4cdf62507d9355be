"""Builds the parts of a run from its options: policy, data, agent, reader and judge."""

import math
import os
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import which
from typing import NamedTuple, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from peft import LoraConfig, get_peft_model
from transformers import (
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.context import check_context, longest_prompt
from memalpha.agent.rollout import BeginEpisodes, memory_episodes
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.files import read_object
from memalpha.generation.graphs import PLAIN_MODELS
from memalpha.generation.hf import HFGenerator
from memalpha.generation.products import CPUS, exact
from memalpha.generation.vllm_process import VLLMProcess
from memalpha.generation.vllm_server import VLLMServers
from memalpha.memory.schema import MemorySchema, presets
from memalpha.models import load_policy_model, resolve_model
from memalpha.models.policy import PolicyModel
from memalpha.models.readers import load_reader, resolve_reader
from memalpha.models.shipped import resolve_adapter
from memalpha.qa import judges, readers
from memalpha.qa.readers import QAEvaluator, open_reader, reader_of_kind
from memalpha.text.thinking import opens_thinking
from memalpha.training.config import PolicyOptions, RunOptions, TrainArguments
from memalpha.training.credit import make_credit
from memalpha.training.role import WRITER, make_role
from memalpha.training.scoring import RolloutScorer
from memalpha.types import ContentJudge, Fact, Generator, Instance, JsonObject, Reader
from memalpha.update.prepare import prepare_policy

WORTH_COMPILING = 10**9
"""Parameters from which compiling the update, a minute or more, is worth it."""


class RunComponents(NamedTuple):
    """All parts that a training run or an evaluation needs; ``eval_temperature`` 0 is greedy."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    agent: AgentStep
    generator: Generator
    scorer: RolloutScorer
    instances: list[Instance]
    held_out: list[Instance]
    eval_temperature: float = 0.0
    validation: Sequence[Instance] = ()
    begin: BeginEpisodes = memory_episodes


def build_components(arguments: TrainArguments, *, training: bool = True) -> RunComponents:
    """Load and check all parts before training (``instances`` is empty without training);
    InputError if they do not fit together.
    """
    run = arguments.run
    seed = arguments.trl_arguments.seed
    if training and not run.train_data:
        raise InputError(
            "train_data is empty",
            expected="a prepared folder, a file of instances, or the name of a generated one",
        )
    if training and run.warm_start_steps and run.adapter:
        raise InputError(
            f"warm_start_steps is {run.warm_start_steps}, but the adapter "
            f"{run.adapter!r} is given, which would not be used",
            expected="only one of the two",
            fix="continue from an adapter with memalpha warmup --adapter",
        )
    train = load_data(run.train_data, run.train_options, seed) if training else []
    held_out = load_data(run.eval_data, run.eval_options, seed) if run.eval_data else []
    validation, held_out = split_held_out(run, held_out)
    if run.validation_instances and arguments.trl_arguments.eval_strategy == "no":
        raise InputError(
            "validation_instances is given without an eval_strategy",
            expected="eval_strategy: steps",
        )
    if arguments.trl_arguments.eval_strategy != "no" and not held_out:
        raise InputError(
            "eval_strategy is 'steps', but there are no held-out instances",
            fix="add --eval_data",
        )
    set_seed(seed)  # new adapters are equal on every rank; FSDP2 does not copy them from rank 0
    model, tokenizer = load_policy(run, trained=training, top_layers=run.train_layers)
    agent = AgentStep(arguments.agent, tokenizer)
    check_context(agent, model.config)
    if run.role == WRITER:
        check_notation(str(resolve_adapter(run.adapter)) if run.adapter else run.model, agent)
    scorer = make_scorer(arguments, agent, [*train, *validation, *held_out], model)
    generator = make_generator(arguments, agent, model)
    role = make_role(run.role)
    train, held_out, validation = role.start((train, held_out, validation), agent, run, seed)
    return RunComponents(
        model,
        tokenizer,
        agent,
        generator,
        scorer,
        train,
        held_out,
        run.eval_temperature,
        validation,
        role.episodes,
    )


def check_notation(policy: str, agent: AgentStep) -> None:
    """Raise InputError if a policy (adapter or whole model) was trained with another codec or
    schema than this agent's, since its calls could not be read.
    """
    if not policy or not (Path(policy) / AGENT_FILE).is_file():  # no agent's folder
        return
    saved = AgentConfig.load(policy, trust_tools=True)
    # tools of another schema are code that nobody has named: it is not imported to be compared
    same = _tools_of(saved.schema) == _tools_of(agent.config.schema)
    same = same and MemorySchema.load(saved.schema) == agent.schema
    if saved.codec != agent.config.codec or not same:
        raise InputError(
            f"{policy!r} was trained with schema {Path(saved.schema).name!r} and "
            f"codec {saved.codec!r}, but the run has "
            f"{Path(agent.config.schema).name!r} and {agent.config.codec!r}",
            expected="the same schema and codec, since the policy would write calls that "
            "nobody reads",
            fix=f"give --schema {Path(saved.schema).name} --codec {saved.codec}, or "
            "teach the others with memalpha warmup --adapter",
        )


def _tools_of(schema: str) -> object:
    return [] if schema in presets() else read_object(Path(schema)).get("tools") or []


def make_scorer(
    arguments: TrainArguments,
    agent: AgentStep,
    instances: Sequence[Instance],
    model: PreTrainedModel,
) -> RolloutScorer:
    """Return the scorer of these instances' rollouts; InputError if an instance cannot be read,
    asked or judged.
    """
    run = arguments.run
    for instance in instances:
        for index, chunk in enumerate(instance.chunks):
            agent.check_chunk(chunk, where=f"chunk {index} of instance {instance.id}")
    reader = make_training_reader(run, agent, model, agent.encoder.tokenizer)
    if arguments.reward.graded_accuracy and opens_thinking(agent.encoder.tokenizer):
        raise InputError(
            "graded_accuracy cannot be used with a model that thinks before it answers",
            expected="a model whose chat template opens no thinking",
        )
    if (
        arguments.reward.graded_accuracy
        and isinstance(reader, readers.ModelReader)
        and not reader.grades
    ):
        raise InputError(
            "graded_accuracy cannot be used with the "
            f"{type(reader).__name__.lower()} {run.reader_adapter!r}",
            expected="a reader that answers without a search",
        )
    judge = judges.EndpointAnswerJudge(run.judge_client()) if run.has_judge else None
    grade = None
    if arguments.reward.graded_accuracy and isinstance(reader, readers.ModelReader):
        grade = reader.grade
    evaluator = QAEvaluator(reader, arguments.agent.retrieve_k, judge, grade)
    evaluator.check([question for instance in instances for question in instance.questions])
    return make_role(run.role).scorer(
        evaluator,
        make_judge(run, instances, agent.schema),
        arguments.reward,
        run.max_masked_share,
        agent,
        make_credit(run.credit),
    )


def split_held_out(
    run: RunOptions, instances: Sequence[Instance]
) -> tuple[list[Instance], list[Instance]]:
    """Return the instances kept for validation, at even distances, and those that are evaluated
    before and after training.
    """
    count = run.validation_instances
    total = len(instances)
    places = {place * total // count for place in range(min(count, total))}
    rest = [instance for place, instance in enumerate(instances) if place not in places]
    if instances and not rest:
        raise InputError(
            f"validation_instances is {count}",
            expected=f"fewer than the {total} held-out instances",
        )
    return [instances[place] for place in sorted(places)], rest[: run.eval_instances or None]


def make_generator(
    arguments: TrainArguments, agent: AgentStep, model: PreTrainedModel
) -> Generator:
    """Return what draws the rollouts.

    In 16 bits adapters stay apart, since a sum with the weights would round. In 16 bits and off
    policy the drawn log-probabilities are kept, to weigh the loss with.
    """
    run = arguments.run
    tokenizer = agent.encoder.tokenizer
    vocabulary = model.config.get_text_config().vocab_size
    if run.vllm_urls:
        return VLLMServers(
            run.vllm_urls,
            tokenizer,
            vocabulary,
            timeout=run.endpoint_timeout,
            wait=run.vllm_wait,
        )
    if run.generator == "vllm":
        options = engine_options(arguments, agent, model)
        return VLLMProcess(str(resolve_model(run.model)), tokenizer, vocabulary, **options)
    # exact: every weight has 32 bits
    merge = exact(model) and product_dtype(arguments) == "float32"
    return HFGenerator(
        model,
        tokenizer,
        max_batch=run.generation_rows,
        merge_adapters=merge,
        logprobs=not merge or run.staleness > 0,
    )


def product_dtype(arguments: TrainArguments) -> str:
    """Return the type of products in the update."""
    if arguments.trl_arguments.fp16:
        return "float16"
    return "bfloat16" if arguments.trl_arguments.bf16 else arguments.run.dtype


def engine_options(
    arguments: TrainArguments, agent: AgentStep, model: PreTrainedModel
) -> JsonObject:
    """Return the arguments of ``vllm.LLM`` for a policy with an adapter."""
    run = arguments.run
    ranks = [config.r for config in model.peft_config.values()]
    options: JsonObject = {
        "dtype": product_dtype(arguments),
        "max_lora_rank": max(8, 2 ** math.ceil(math.log2(max(ranks)))),  # vLLM takes powers of 2
        "max_model_len": longest_prompt(agent) + agent.config.max_completion_length,
        "max_num_seqs": run.generation_rows,
        "gpu_memory_utilization": run.vllm_memory,
    }
    if "revision" in run.model_init_kwargs:
        options["revision"] = run.model_init_kwargs["revision"]
    if PartialState().num_processes > 1:  # each has an engine of its own
        options["distributed_executor_backend"] = "external_launcher"
    return options


def load_policy(
    options: PolicyOptions, *, trained: bool = True, top_layers: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the base model and tokenizer, prepared: with the adapter to go on from, with a new
    adapter, or bare for full fine-tuning.
    """
    more = dict(options.model_init_kwargs)
    if options.load_in_4bit:
        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=(
                torch.float16 if options.dtype == "float16" else torch.bfloat16
            ),
        )
    model, tokenizer = load_policy_model(
        options.model, adapter=options.adapter or None, dtype=options.dtype, trainable=True, **more
    )
    if not options.adapter and not options.full_finetuning:
        check_layers(model, options)
        lora = LoraConfig(
            r=options.lora_r,
            lora_alpha=options.lora_alpha,
            target_modules=options.lora_targets,
            task_type="CAUSAL_LM",
            lora_dropout=options.lora_dropout,
        )
        model = get_peft_model(model, lora, revision=more.get("revision"))
    compiled = trained and compiles(options, model)
    prepare_policy(model, trained=trained, top_layers=top_layers, compiled=compiled)
    return model, tokenizer


def compiles(options: PolicyOptions, model: PreTrainedModel) -> bool:
    """Return whether the layers of the update are compiled."""
    if options.compile != "auto":
        return options.compile
    state = PartialState()
    sharded = state.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)
    fits = model.config.model_type in PLAIN_MODELS and not options.load_in_4bit and not sharded
    pays = sum(parameter.numel() for parameter in model.parameters()) >= WORTH_COMPILING
    compiler = os.environ.get("CC") or which("cc") or which("gcc") or which("clang")
    return fits and pays and bool(state.device.type == "cuda" and compiler)


def check_layers(model: PreTrainedModel, options: PolicyOptions) -> None:
    """Raise InputError for a name in lora_targets that fits no layer, which PEFT would leave out
    silently.
    """
    head = model.get_output_embeddings()
    layers = [
        f".{name}"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    ]
    for target in () if options.lora_targets == "all-linear" else options.lora_targets:
        if not any(layer.endswith(f".{target}") for layer in layers):
            raise InputError(
                f"lora_targets names {target!r}, which fits no layer below the head",
                expected=f"the end of a name such as {layers[0][1:]}",
            )


def make_training_reader(
    run: RunOptions, agent: AgentStep, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Reader:
    """Return the reader that the options name."""
    load = partial(
        load_reader,
        policy=PolicyModel(model, tokenizer),
        dtype=run.dtype,
        device=PartialState().device,
    )
    return open_reader(
        resolve_reader(reader_of_kind(run.reader, run.reader_adapter, run.reader_client)),
        agent.config.reader_tokens,
        agent.encoder.count,
        load,
    )


def make_judge(
    run: RunOptions, instances: Sequence[Instance], sections: Container[str] = ()
) -> ContentJudge:
    """Return the configured content judge; InputError if ``facts`` are missing, or differ between
    instances of one id.
    """
    if run.content_judge == "grounded":
        return judges.FactContentJudge()
    if run.content_judge == "endpoint":
        return judges.EndpointContentJudge(run.judge_client())
    facts: dict[str, tuple[Fact, ...]] = {}
    for instance in instances:
        if facts.setdefault(instance.id, instance.facts) != instance.facts:
            raise InputError(
                f"two instances with different facts are called {instance.id!r}",
                expected="ids that are unique over training and held-out data",
                fix="prepare one of them with another seed",
            )
    bare = [instance.id for instance in instances if not instance.facts]
    if bare and run.content_judge == "facts":
        raise InputError(
            f"content_judge is 'facts', but instance {bare[:1]} has no annotated facts",
            expected="generated data with annotations",
            fix="set content_judge: auto, or grounded",
        )
    annotated = {name: each for name, each in facts.items() if each}
    return judges.FactContentJudge(annotated, sections)


TENSOR_CORES = (7, 0)
"""Compute capability of a V100; older GPUs compute float16 slowly."""

PolicyKind = TypeVar("PolicyKind", bound=PolicyOptions)


def resolve_dtype(options: PolicyKind, device: torch.device) -> tuple[PolicyKind, str]:
    """Replace ``dtype: auto`` by a type of the frozen base weights, and give the reason for it.

    The type is ``bfloat16`` on a GPU that computes it and on a CPU with instructions for it,
    ``float16``, which needs a scaled loss, on other GPUs with tensor cores, and else ``float32``.
    Set ``dtype`` explicitly if processes run on different hardware.
    """
    if options.dtype != "auto":
        return options, "the option dtype"
    if options.full_finetuning:
        return replace(options, dtype="float32"), "weights of 16 bits lose small steps"
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        flags = CPUS.read_text(encoding="utf-8") if CPUS.is_file() else ""
        native = device.type == "cpu" and bool({"avx512_bf16", "amx_bf16"} & set(flags.split()))
    why = f"this {device.type} {'computes' if native else 'does not compute'} bfloat16"
    other = "float32"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= TENSOR_CORES:
        other = "float16"
    return replace(options, dtype="bfloat16" if native else other), why
