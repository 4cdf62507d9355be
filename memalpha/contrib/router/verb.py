"""``memalpha router``: train and measure a learned router, or select a tool."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option, Typer

from memalpha.cli.console import out
from memalpha.cli.options import TAKES_OPTIONS, AsJson, ListOptions, list_options
from memalpha.errors import InputError
from memalpha.types import JsonObject

router = Typer(help="Train and measure a learned router, or let it select a tool.")


def add_router_verbs(app: Typer) -> None:
    """Add ``router`` to the command line."""
    app.add_typer(router, name="router")


@router.command("train", context_settings=TAKES_OPTIONS)
def train_router(
    context: Context,
    config: Annotated[
        str | None,
        Option(help="The YAML file of the options, which --options lists."),
    ] = None,
    output: Annotated[
        str | None,
        Option(help="The run folder to write; by default it is runs/router/NAME_OF_CONFIG."),
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace an existing run folder.")
    ] = False,
    resume: Annotated[bool, Option("--resume", help="Continue from the last checkpoint.")] = False,
    options: ListOptions = False,
    as_json: AsJson = False,
) -> None:
    """Train a router from a YAML file: --config FILE [--name value ...].

    Makes: a run folder with metrics, checkpoint.pt and summary.json. All options: --options.
    """
    from memalpha.contrib.router.run import ROUTER_GROUPS, load_config
    from memalpha.contrib.router.run import train_policies as run_training

    list_options(options, ROUTER_GROUPS)
    if not config:
        raise InputError(
            "memalpha router train got no --config",
            expected="a YAML file of the options that memalpha router train --options lists",
        )
    folder = Path(output or Path("runs") / "router" / Path(config).stem)
    summary = run_training(
        load_config(config, context.args),
        folder,
        None if as_json else _report_router,
        overwrite=overwrite,
        resume=resume,
    )
    text = "{learner}, seed {seed}: reward {reward} on {episodes} held-out episodes"
    if "optimal" in summary:
        text += ", at best {optimal:.4f} ({fraction_of_optimal:.3f} of the optimum)"
    text = f"{text}\n{{steps}} steps, {{seconds}} s; run folder: {folder}"
    out(json.dumps(summary) if as_json else text.format(**summary))


def _report_router(row: JsonObject) -> None:
    result = ""
    if "held_out" in row:
        result = "{held_out} on held-out episodes"
    if "fraction_of_optimal" in row:
        result = "{fraction_of_optimal:.3f} of the optimum on held-out episodes"
    if result:
        out(f"step {{step}} of {{steps}}: reward {{reward:.3f}}, {result}".format(**row))


@router.command()
def select(
    tools: Annotated[
        str,
        Option(
            help="The YAML or JSON file of the tools: {tools: {name: description}, options: {...}}."
        ),
    ],
    selector: Annotated[
        str, Option(help="The file of the saved selector, which is made if it does not exist.")
    ],
    query: Annotated[str | None, Argument(help="The query for which a tool is selected.")] = None,
    context: Annotated[str, Option(help="The context of the query.")] = "",
    greedy: Annotated[
        bool,
        Option("--greedy", help="Take the most probable tool, and learn nothing from the choice."),
    ] = False,
    reward: Annotated[
        float | None,
        Option(help="Report this reward for a selected tool, instead of asking a query."),
    ] = None,
    selection: Annotated[
        int | None,
        Option(
            help="The number of the selection that gets the reward; by default it is the last "
            "one without."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Select a tool for a query, or report the outcome of a selection."""
    from memalpha.contrib.router.run import open_selector, read_tools

    path = Path(selector)
    chooser = open_selector(path, *read_tools(tools))
    if query is not None and reward is None:
        choice = chooser.select(query, context, explore=not greedy)
        data = choice._asdict()
        likeliest = sorted(choice.probabilities.items(), key=lambda pair: -pair[1])
        lines = [f"{choice.tool} (selection {choice.number})"]
        lines += [f"  {share:.3f}  {name}" for name, share in likeliest]
    elif reward is not None and query is None:
        waiting = chooser.stats()["waiting"] if selection is None else [selection]
        if not waiting:
            raise InputError(
                f"the selector {path} has no selection that waits for an outcome",
                expected="a selection that was made without --greedy",
            )
        report = chooser.observe(waiting[-1], reward)
        counts = f"{chooser.observations} outcomes, {chooser.updates} updates"
        lines = [f"selection {waiting[-1]}: {reward:g}; {counts}"]
        data = {
            "selection": waiting[-1],
            "reward": reward,
            "report": report,
            "updates": chooser.updates,
        }
    else:
        raise InputError(
            "memalpha router select got no query and no reward", expected="QUERY or --reward NUMBER"
        )
    chooser.save(path)
    out(json.dumps(data) if as_json else "\n".join(lines))
