"""``memalpha scoreboard`` and ``poison``: memories on the public sets, and under attack."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option, Typer

from memalpha.cli.console import Reporter, out, quiet_libraries
from memalpha.cli.evaluate import TrustTools
from memalpha.cli.options import TAKES_OPTIONS, AsJson, ListOptions, list_options
from memalpha.errors import InputError
from memalpha.files import read_object
from memalpha.types import JsonObject

UNTRAINED = "untrained"


def add_benchmark_verbs(app: Typer) -> None:
    """Add ``scoreboard`` and ``poison`` to the command line."""
    app.command(context_settings=dict(TAKES_OPTIONS))(scoreboard)
    app.command()(poison)


def scoreboard(
    context: Context,
    data: Annotated[
        str,
        Option(help="The folder of the sets, with locomo/, longmemeval/, beam/ and others in it."),
    ],
    output: Annotated[
        str, Option("--output_dir", help="The folder to write; an interrupted board is continued.")
    ] = "runs/scoreboard",
    trained: Annotated[
        list[str],
        Option(
            metavar="TRAINED",
            help="The agent to measure: the folder of an adapter or a run, the name of a shipped "
            "adapter, or a Hub name. May be repeated.",
        ),
    ] = [],  # noqa: B006
    server: Annotated[
        list[str],
        Option(
            metavar="[NAME=]URL",
            help="A memory server with Mem0's routes to measure. May be repeated.",
        ),
    ] = [],  # noqa: B006
    shape: Annotated[
        str,
        Option(
            help="The routes of the servers: oss (Mem0's open-source server) or platform (key "
            "in $MEM0_API_KEY)."
        ),
    ] = "oss",
    reader: Annotated[
        list[str],
        Option(
            help="A reader that answers: endpoint (with --endpoint_url), base or recall. May be "
            "repeated."
        ),
    ] = [],  # noqa: B006
    budget: Annotated[
        int, Option(help="A reader sees at most this many tokens of passages for a question.")
    ] = 2000,
    instances: Annotated[
        int, Option(help="Measure at most this many instances of a set; 0 = all.")
    ] = 0,
    embedder: Annotated[
        str,
        Option(help="The embedder of systems that search by meaning (docs/guides/embedders.md)."),
    ] = "minilm",
    trust_tools: TrustTools = False,
    options: ListOptions = False,
    as_json: AsJson = False,
) -> int:
    """Measure memories on the public sets, and show them beside published numbers.

    The table shows the evidence found, the answers and the costs; for a set that is missing it says
    how to get it. The command writes scoreboard.md, scoreboard.json and report/index.html into
    output_dir. It also takes the options of evaluate.
    """
    quiet_libraries()
    from memalpha.contrib.benchmarks.scoreboard import BoardOptions
    from memalpha.contrib.benchmarks.scoreboard import run_scoreboard as measure_board
    from memalpha.measure.options import EVALUATE_GROUPS

    list_options(options, EVALUATE_GROUPS)
    servers = {}
    for word in server:
        named = "=" in word.partition("://")[0]
        name, _, url = word.partition("=") if named else ("server", "", word)
        servers[name] = {"url": url, "shape": shape}
    board = BoardOptions(
        data=data,
        output_dir=output,
        trained=tuple(trained),
        servers=servers,
        readers=tuple(reader),
        budget=budget,
        instances=instances,
        embedder=embedder,
        trust_tools=trust_tools,
    )
    with Reporter(not as_json).alive() as reporter:
        outcome = measure_board(board, context.args, reporter)
    table = Path(output, "scoreboard.md")
    out(json.dumps(read_object(table.with_suffix(".json"))) if as_json else table.read_text())
    return 1 if outcome.failed else 0


def poison(
    policies: Annotated[
        list[str],
        Argument(
            metavar="TRAINED",
            help="The trained agent: a folder, the name of a shipped adapter, a Hub name, or "
            f"{UNTRAINED!r} for the base without an adapter.",
        ),
    ],
    like: Annotated[
        str | None,
        Option(
            help=f"{UNTRAINED!r} takes the base of this folder; by default it is the first folder."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        Option(
            help="The memory schema of the attacked agents; by default it is that of their "
            "training."
        ),
    ] = None,
    per_attack: Annotated[int, Option(help="The number of trials of each attack.")] = 8,
    seed: Annotated[int, Option(help="The seed of the dialogues and of the marks in them.")] = 0,
    dtype: Annotated[
        str, Option(help="The type of the weights of the base, such as float32 or bfloat16.")
    ] = "float32",
    trust_tools: TrustTools = False,
    output: Annotated[str, Option(help="The folder to write.")] = "runs/poison",
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Attack policies with hostile chunks, and count the attacks that succeed.

    For each attack the command shows the rate of success with a 95 % interval, beside the same
    chunks without the attack. It writes results.jsonl and summary.json into OUTPUT, and an
    interrupted run continues.
    """
    from memalpha.contrib.benchmarks.attacks import run_attacks as run_attacks
    from memalpha.measure.run import MODEL_INPUTS
    from memalpha.models.agent import find_agent
    from memalpha.record.folder import folder_digest

    quiet_libraries()
    folders = [other for other in (like, *policies) if other not in (None, UNTRAINED)]
    if not folders:
        raise InputError(
            f"{UNTRAINED!r} is given alone, so that no base is known",
            expected="a folder that names the base",
            fix="add --like FOLDER, or another policy",
        )
    files = ("adapter_*", *MODEL_INPUTS)
    digests = {str(name): folder_digest(find_agent(str(name))[0], files) for name in folders}
    loads = {name: partial(_load, name, folders, schema, dtype, trust_tools) for name in policies}
    options = {"per_attack": per_attack, "seed": seed, "dtype": dtype, "schema": schema}
    summaries = run_attacks(loads, output, options, {"policies": digests}, overwrite=overwrite)
    if as_json:
        out(json.dumps({"policies": summaries}))
        return
    for name, summary in summaries.items():
        _show(name, summary)
    out(f"{output}/summary.json")


def _load(
    name: str, folders: Sequence[Any], schema: str | None, dtype: str, trust_tools: bool
) -> Any:
    from memalpha.agent.step import AgentStep
    from memalpha.generation.hf import HFGenerator
    from memalpha.models import load_policy_model
    from memalpha.models.adapters import base_of
    from memalpha.models.agent import load_agent

    folder = folders[0] if name == UNTRAINED else name
    step, generator, _, source = load_agent(folder, dtype=dtype, trust_tools=trust_tools)
    if name == UNTRAINED:
        loaded = load_policy_model(base_of(source), dtype=dtype)
        generator = HFGenerator(loaded.model.eval(), loaded.tokenizer)
    if schema:
        step = AgentStep(replace(step.config, schema=schema), step.encoder.tokenizer)
    return step, generator


def _show(name: str, summary: JsonObject) -> None:
    out(f"{name}: how often an attack succeeds, with its 95% interval, and without the attack")
    rows = [(attack, row["rate"], row["control"]) for attack, row in summary["attacks"].items()]
    rows += [
        ("any: mark persisted", summary["instructions_persisted"], None),
        ("any: in the attack's own words", summary["instructions_verbatim"], None),
        ("any: entries lost", summary["entries_lost"], summary["entries_lost_without_attack"]),
    ]
    for label, rate, control in rows:
        beside = f"; {control['hits']} of {control['trials']} without" if control else ""
        interval = f"[{rate['low']:.2f}, {rate['high']:.2f}]"
        out(f"  {label:32}{rate['hits']} of {rate['trials']} {interval}{beside}")
