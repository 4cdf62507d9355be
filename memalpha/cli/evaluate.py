"""``memalpha evaluate`` measures agents; ``report``, ``compare`` and ``inspect`` show a run."""

import json
import shlex
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from memalpha.cli.console import Reporter, console, out, quiet_libraries
from memalpha.cli.options import AsJson, ListOptions, list_options
from memalpha.errors import InputError
from memalpha.files import read_object
from memalpha.record.folder import MARKER, RunFolder
from memalpha.types import JsonObject

TrustTools = Annotated[
    bool, Option("--trust-tools", help="Import and run the functions that a schema names as tools.")
]
RunPath = Annotated[str, Argument(metavar="RUN", help="The folder of a training run.")]


def evaluate_verb(
    context: Context,
    trained: Annotated[
        str | None,
        Option(
            help="The agent to measure, with the settings saved in it: a folder of an adapter or a "
            "run, the name of a shipped adapter, or a Hub name."
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="The instances for --trained: a prepared folder, a file or a generated source."
        ),
    ] = None,
    trust_tools: TrustTools = False,
    options: ListOptions = False,
    as_json: AsJson = False,
) -> int:
    """Compare memory systems under one protocol, or measure a trained agent.

    Give --config FILE with sets, systems and readers, or the name of a file of this package such as
    quick, or --trained and --data. The evaluation writes results.jsonl, summary.json and table.md
    into output_dir, and an interrupted one continues. --options lists all options.
    """
    quiet_libraries()
    from memalpha.measure.options import EVALUATE_GROUPS, parse_evaluate_options
    from memalpha.measure.run import evaluate as run_evaluation
    from memalpha.measure.tables import overall
    from memalpha.models.adapters import base_of, is_whole
    from memalpha.models.agent import adapter_option, find_agent

    list_options(options, EVALUATE_GROUPS)
    if bool(trained) != bool(data):
        raise InputError(
            f"--trained is {trained!r} and --data is {data!r}",
            expected="both of them, or --config FILE",
        )
    given: JsonObject = {}
    if trained:
        folder, _ = find_agent(trained)
        whole = is_whole(folder)
        system = {
            "kind": "agent",
            "adapter": "" if whole else adapter_option(trained),
            "settings": "own",
            "trust_tools": trust_tools,
        }
        named = any(word.partition("=")[0] == "--model" for word in context.args)
        if named and whole:
            raise InputError(
                f"--model is given, but --trained {trained} is a whole model, which has no "
                "other base",
                expected="only one of the two",
            )
        if not named:
            given["model"] = str(folder if whole else base_of(folder))
        alone = {**given, "systems": [{**system, "name": "x"}], "sets": [data]}
        place = parse_evaluate_options(context.args, alone).options
        earlier = {} if place.overwrite else _earlier(Path(place.output_dir))
        sets = earlier.get("sets", [])
        if not any(row["data"] == data for row in sets):
            sets = [*sets, {"data": data}]
        given["systems"] = with_agent(earlier.get("systems", []), system, trained)
        given["sets"] = sets
    with Reporter(not as_json).alive() as reporter:
        outcome = run_evaluation(parse_evaluate_options(context.args, given), reporter)
    if as_json:
        out(json.dumps(read_object(outcome.folder / "summary.json")))
    else:
        for reader in outcome.summary.over_sets:
            console.print(overall(outcome.summary, reader))
        out(str(outcome.folder / "table.md"))
    return 1 if outcome.failed else 0


def _earlier(folder: Path) -> JsonObject:
    """The configuration of the evaluation in a folder, which goes on; empty if there is none."""
    if not (folder / MARKER).is_file():
        return {}
    run = RunFolder(folder)
    return run.config if run.is_evaluation else {}


def with_agent(systems: Sequence[JsonObject], agent: JsonObject, trained: str) -> list[JsonObject]:
    """Return the systems of an evaluation and one more agent, under a name of its own.

    The same agent again is the same system.
    """
    alike = ("adapter",) if agent["adapter"] else ("adapter", "settings")
    same = [row for row in systems if all(row["options"].get(n) == agent[n] for n in alike)]
    if same:
        return list(systems)
    path = Path(trained).resolve()
    short = path.parent.name if path.name == "adapter" else path.name
    taken = {row["name"] for row in systems}
    numbered = (f"{short} {number}" for number in count(2))
    name = next(each for each in chain([short], numbered) if each not in taken)
    return [*systems, {**agent, "name": name}]


def report(
    run: RunPath,
    output: Annotated[
        str | None, Option(help="The folder of the site; by default it is RUN/report.")
    ] = None,
    pages: Annotated[
        int,
        Option(min=0, help="The site shows at most this many pages of training rollouts; 0 = all."),
    ] = 2000,
) -> None:
    """Write a site of a training run with its curves, tables and rollouts.

    The first page is RUN/report/index.html.
    """
    from memalpha.measure.site import write_site

    folder = RunFolder(run)
    folder.check_training()
    out(str(write_site(folder, Path(output) if output else None, pages)))


def compare(
    runs: Annotated[
        list[str],
        Argument(metavar="RUN", help="The folders of the runs and evaluations to compare."),
    ],
    output: Annotated[str, Option(help="The folder to write.")] = "runs/compare",
) -> None:
    """Write a page that shows runs and evaluations side by side.

    The page is OUTPUT/index.html. Runs that differ only in their seed share a column.
    """
    from memalpha.measure.site import write_comparison
    from memalpha.measure.tables import columns_of, comparison

    folders = {Path(path).resolve(): RunFolder(path) for path in runs}
    if len(folders) < len(runs):
        raise InputError(
            f"one of the runs {', '.join(runs)} is given twice",
            expected="each run once",
        )
    columns = columns_of(list(folders.values()))
    console.print(comparison(columns))
    out(str(write_comparison(columns, Path(output))))


def inspect(
    run: RunPath,
    step: Annotated[
        int | None,
        Option(
            help="The training step to show; by default it is the last one, or an evaluation if "
            "there is no step."
        ),
    ] = None,
    rollout: Annotated[
        int, Option(help="The number of the rollout in that step or evaluation, from 0.")
    ] = 0,
    held_out: Annotated[
        str | None,
        Option(
            help="The held-out evaluation to show instead of a step: before, after or rollouts."
        ),
    ] = None,
    everything: Annotated[
        bool, Option("--list", help="List the rollouts that the run has recorded.")
    ] = False,
) -> None:
    """Show a rollout in the terminal, chunk by chunk."""
    from memalpha.measure.site import rollouts_table
    from memalpha.measure.view import RolloutFile, show_rollout, sources_of

    folder = RunFolder(run)
    folder.check_training()
    shown = f"memalpha inspect {shlex.quote(run)}"
    if everything:
        table = rollouts_table(folder)
        if not table.rows:
            when = "a held-out evaluation or a step of training records them"
            out(f"{run} has no rollouts yet: {when}.")
            return
        first = table.rows[0][0].removesuffix("N")
        out(f"These rollouts are recorded in {run}. To see one, type: {shown} {first}0")
        console.print(table)
        return
    if step is not None and held_out is not None:
        raise InputError(
            f"--step is {step} and --held-out is {held_out!r}",
            expected="only one of the two",
        )
    sources: dict[str, list[RolloutFile]] = {}
    for source in sources_of(folder):
        name = str(source.step) if source.step else Path(source.name).stem
        sources.setdefault(name, []).append(source)
    if not sources:
        raise InputError(
            f"the run {run!r} has no rollouts",
            expected="a run that has trained at least one step, or was measured",
        )
    steps = [name for name in sources if name.isdecimal()]
    evaluations = [name for name in sources if not name.isdecimal()]
    # the last step; of a run without any the last evaluation
    chosen, known = (steps or evaluations)[-1], [*steps, *evaluations]
    if step is not None:
        chosen, known = str(step), steps
    elif held_out is not None:
        chosen, known = held_out, evaluations
    if chosen not in known:
        raise InputError(
            f"{'--step' if held_out is None else '--held-out'} is {chosen!r} in {run!r}",
            expected=", ".join(known) or f"none; --list shows {', '.join(sources)}",
        )
    rollouts = [each for source in sources[chosen] for each in source.rollouts(folder)]
    if not 0 <= rollout < len(rollouts):
        raise InputError(
            f"--rollout is {rollout}",
            expected=f"0 to {len(rollouts) - 1}",
        )
    where = f"--step {chosen}" if chosen in steps else f"--held-out {chosen}"
    place = f"step {chosen}" if chosen in steps else f"the held-out evaluation {chosen!r}"
    following = f"For the next, type: {shown} {where} --rollout {rollout + 1}"
    out(
        f"This is rollout {rollout} of {place} in {run}; its rollouts are 0 to "
        f"{len(rollouts) - 1}.\n{following if rollout + 1 < len(rollouts) else 'It is the last.'}\n"
        f"For a list of all, type: {shown} --list\n"
    )
    show_rollout(rollouts[rollout], console)
