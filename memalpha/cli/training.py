"""``memalpha prepare``, ``warmup``, ``train`` and ``rollout``: from data to weights."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from memalpha.cli.console import Reporter, console, is_main_process, out, quiet_libraries
from memalpha.cli.options import AsJson, ListOptions, list_options
from memalpha.config import config_names, one_of
from memalpha.errors import InputError
from memalpha.files import read_object
from memalpha.threads import describe_threads

if TYPE_CHECKING:
    from memalpha.training.config import TrainArguments


def prepare_verb(
    name: Annotated[
        str,
        Argument(
            help="The source to read, such as squad, hotpotqa, locomo or synthetic "
            "(docs/reference/data-sets.md lists all)."
        ),
    ],
    output: Annotated[str, Option(help="The folder to write, such as runs/data/mine.")],
    source: Annotated[
        str | None,
        Option(
            "--input",
            help="The original file or folder, or OWNER/NAME[:CONFIGURATION] on the Hugging "
            "Face Hub. Generated sources need none.",
        ),
    ] = None,
    seed: Annotated[int, Option(help="The seed of everything that is drawn at random.")] = 0,
    option: Annotated[
        list[str],
        Option(
            metavar="NAME=VALUE", help="An option of the source, such as n=400. May be repeated."
        ),
    ] = [],  # noqa: B006
    model: Annotated[
        str | None,
        Option(help="Count tokens with the tokenizer of this model; by default words are counted."),
    ] = None,
    check_against: Annotated[
        list[str],
        Option(
            metavar="FOLDER",
            help="Refuse data that repeat a question or context of this prepared folder. May be "
            "repeated.",
        ),
    ] = [],  # noqa: B006
    drop_leaks: Annotated[
        bool,
        Option(
            "--drop-leaks",
            help="Leave out repeated questions and contexts, and count them, instead of refusing.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace a folder that was prepared earlier.")
    ] = False,
) -> None:
    """Make a folder of instances from a data set.

    The folder receives instances.parquet and manifest.json, for train, warmup and evaluate.
    """
    from memalpha.data.chunks import count_words_and_signs, tokenizer_counter
    from memalpha.data.load import prepare as prepare_folder
    from memalpha.models import resolve_model

    pairs = [text.partition("=") for text in option]
    for text, (_, sign, _) in zip(option, pairs, strict=True):
        if not sign:
            raise InputError(f"--option {text!r} has no equals sign", expected="NAME=VALUE")
    counter = tokenizer_counter(str(resolve_model(model))) if model else count_words_and_signs
    with console.status(f"preparing {name}") as status:

        def progress(done: int) -> None:
            status.update(f"preparing {name}: {done} instances")

        manifest = prepare_folder(
            name,
            source,
            output,
            seed=seed,
            options={key: value for key, _, value in pairs},
            count_tokens=counter,
            token_counter=model or "words",
            overwrite=overwrite,
            check_against=check_against,
            drop_leaks=drop_leaks,
            progress=progress,
        )
    skipped = ", ".join(f"{count} {reason}" for reason, count in manifest.skipped.items()) or "none"
    counts = f"{manifest.instances} instances, {manifest.chunks} chunks"
    out(f"{counts}, {manifest.questions} questions; skipped: {skipped}\n{output}/manifest.json")


def warmup(context: Context, options: ListOptions = False) -> None:
    """Teach a small model the tool-call format and the tools by supervised training.

    Give --config FILE, or the name of a file of this package such as warmup, and --name value for
    single options. The run needs a base model and instances, and writes a LoRA adapter into
    output_dir. --options lists all options.
    """
    from memalpha.training.warm_start import WARMUP_GROUPS, parse_warmup_arguments, warm_up

    _begin(context, options, WARMUP_GROUPS)
    arguments = parse_warmup_arguments(context.args)
    with Reporter(is_main_process()).alive() as reporter:
        reporter("threads", {"what": describe_threads()})
        folder = warm_up(arguments, reporter)
    out(f"adapter: {folder}")


def train_verb(context: Context, options: ListOptions = False) -> None:
    """Train a memory agent with GRPO.

    Give --config FILE, or the name of a file of this package such as nano, and --name value for
    single options. The run needs a base model, training instances and held-out instances, and
    writes the run folder output_dir. --options lists all options.
    """
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    _begin(context, options, TRAIN_GROUPS)
    train_and_show(parse_train_arguments(context.args))


def train_and_show(arguments: "TrainArguments") -> None:
    """Train, and show what the agent did before and after."""
    with Reporter(is_main_process()).alive() as reporter:
        reporter("threads", {"what": describe_threads()})
        reporter("load", {"what": f"{arguments.run.model} and {arguments.run.train_data}"})
        from memalpha.training.run import train as run_training

        summary = run_training(arguments, reporter)
    if is_main_process():
        from memalpha.measure.tables import before_and_after
        from memalpha.record.folder import RunFolder

        folder = str(arguments.trl_arguments.output_dir)
        if "delta" in summary:
            console.print(before_and_after(RunFolder(folder)))
        out(f"run folder: {folder}")


def rollout(context: Context, options: ListOptions = False, as_json: AsJson = False) -> None:
    """Let an agent read instances, and record every step.

    Give a training configuration as --config FILE or NAME, and --name value for single options. The
    rollouts are written into output_dir. --options lists all options.
    """
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    _begin(context, options, TRAIN_GROUPS)
    from memalpha.training.run import roll_out

    arguments = parse_train_arguments(context.args)
    with Reporter(not as_json).alive() as reporter:
        roll_out(arguments, reporter)
    path = Path(str(arguments.trl_arguments.output_dir)) / "summary.json"
    out(json.dumps(read_object(path)) if as_json else str(path))


def _begin(context: Context, options: bool, groups: Sequence[type]) -> None:
    quiet_libraries()
    list_options(options, groups)
    if not context.args:
        raise InputError(
            f"{context.command_path} got no options",
            expected=f"--config FILE or NAME ({one_of(config_names('train'))}), or --name value",
        )
