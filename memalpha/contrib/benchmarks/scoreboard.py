"""The scoreboard: memories on the public sets, by evidence found and by answers given.

A scoreboard is one evaluation (``measure.run``) over every set that is there, with a chunk for each
turn, and a table of it. *Evidence* is the share of a question's turns that are among the passages
of a token budget; nobody judges. *Answers* need a reader, on some sets a judge. The two are other
questions, and numbers of one say nothing about the other. What cannot be measured is a dash with
its reason. Numbers of others (``published.yaml``) are answers that a model judged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import Options
from memalpha.data.load import load_data, prepare
from memalpha.errors import InputError
from memalpha.files import write_object, write_whole
from memalpha.measure.options import (
    EVIDENCE,
    Evaluation,
    make_system,
    parse_evaluate_options,
    read_system,
)
from memalpha.measure.run import Outcome, evaluate
from memalpha.measure.site import write_page
from memalpha.measure.summary import SetSummary, Summary, pooled_mean, summarise_evaluation
from memalpha.measure.tables import Table, Texts, interval, pivot
from memalpha.measure.view import NO_VALUE, number
from memalpha.models.adapters import base_of
from memalpha.models.agent import adapter_option, find_agent
from memalpha.qa.metrics import JUDGED
from memalpha.record.folder import MARKER, RunFolder, holds_something
from memalpha.record.rows import InstanceRow, read_rows
from memalpha.record.shapes import Number
from memalpha.record.statistics import LEVEL, Estimate
from memalpha.retrieval.embedders import make_embedder
from memalpha.types import EventReport, JsonMapping, JsonObject, silent

PUBLISHED = "published.yaml"
_TURN = 8192  # most words of a chunk: a turn is not cut
_LEAST = 8  # tokens of a passage, so that the budget bounds what is read, not the number found
_NOTE = (
    "Evidence found: the share of the turns that hold a question's answer of which something is "
    "among the passages of {budget:,} tokens, best first; nobody judges. An entry that was written "
    "counts for the turn of its last write. Newer first: of updates, how often the turn that holds "
    "now is found, and above the one before. Answers right: as a reader answers from these "
    "passages, scored as the set does. Evidence found and answers right are different measures and "
    "must not be compared. Means over instances of the mean over their questions, [with the "
    "{level:.0%} interval] from draws of the instances; * an interval that the standard error does "
    "not confirm (too few instances). A message is a turn, or 512 words of a text. Calls are those "
    "of a model that writes; a server does not tell its own. – is not known."
)


class BoardSet(NamedTuple):
    """A public set: its loader, where its files are below the folder of sets, and how to get it."""

    source: str
    files: str
    get: str
    options: Mapping[str, Any] = {"turns": True, "chunk_tokens": _TURN}


SETS: Mapping[str, BoardSet] = {
    "LoCoMo": BoardSet(
        "locomo",
        "locomo/*.json",
        "github.com/snap-research/locomo, data/locomo10.json, into locomo/ (CC BY-NC 4.0)",
    ),
    "LongMemEval": BoardSet(
        "longmemeval",
        "longmemeval/*.json",
        "xiaowu0162/longmemeval-cleaned on the Hub, longmemeval_s_cleaned.json, into longmemeval/ "
        "(MIT)",
    ),
    "BEAM 100K": BoardSet(
        "beam",
        "beam",
        "github.com/mohammadtavakoli78/BEAM, chats/100K as beam/ (CC BY-SA 4.0)",
    ),
    "MemoryAgentBench": BoardSet(
        "memoryagentbench",
        "memoryagentbench/*.parquet",
        "ai-hyz/MemoryAgentBench on the Hub, its Parquet files, into memoryagentbench/ (MIT)",
        options={"chunk_tokens": 512},
    ),
    "LoCoMo-Plus": BoardSet(
        "locomo_plus",
        "locomo_plus/locomo_plus.json",
        "github.com/xjtuleeyf/Locomo-Plus, data/locomo_plus.json and data/locomo10.json, into "
        "locomo_plus/ (no licence stated)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardOptions(Options):
    """Options of a scoreboard.

    Attributes:
        data: The folder holds the sets, each in a folder of its own.
        output_dir: The board is written into this folder.
        trained: These trained agents are measured, each with its entries alone and with its
            archive.
        servers: These memory servers are measured; each name has the options of ``mem0_server``.
        readers: These readers answer the questions, given as kinds of ``ReaderSpec``.
        budget: A reader sees at most this many tokens of passages for a question.
        instances: At most this many instances of a set are measured; 0 = all.
        trust_tools: If true, the functions that a schema names as tools may be imported.
        embedder: This embedder is used by all systems that search by embeddings, except trained
            agents, which keep their own.
    """

    data: str
    output_dir: str
    trained: tuple[str, ...] = ()
    servers: JsonMapping = field(default_factory=dict)
    readers: tuple[str, ...] = ()
    budget: PositiveInt = 2000
    instances: NonNegativeInt = 0
    trust_tools: bool = False
    embedder: str = "minilm"


@dataclass(slots=True)
class Board:
    """The sets that are there, and why something is not measured."""

    folders: dict[str, str] = field(default_factory=dict)  # prepared, by the set's title
    missing: dict[str, str] = field(default_factory=dict)  # by the set's title
    unread: dict[str, str] = field(default_factory=dict)  # why a set has no answers
    unsourced: dict[str, str] = field(default_factory=dict)  # why it has no evidence
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)  # questions, by reason


def run_scoreboard(
    options: BoardOptions, words: Sequence[str] = (), report: EventReport = silent
) -> Outcome:
    """Measure, or go on measuring, and write the board; ``words``: options of an evaluation.

    InputError if no set is there; errors of ``evaluate``, after which the board has what there is.
    """
    folder = Path(options.output_dir)
    holds_something(folder)  # RunFolderError where no folder can be made
    theirs = [name for name in ("scoreboard.md", "scoreboard.json") if (folder / name).exists()]
    if theirs and not (folder / "evaluation" / MARKER).is_file():
        raise InputError(
            f"{options.output_dir!r} holds {', '.join(theirs)}, which no scoreboard wrote",
            expected="a new folder, or the folder of a scoreboard",
            fix="choose another --output_dir",
        )
    board = _prepare_sets(options, report)
    evaluation = _evaluation(options, words, board)
    make_embedder(options.embedder).embed(["loads it, for no system's account"])
    try:
        outcome = evaluate(evaluation, report, apart=True)
    finally:
        if (Path(evaluation.options.output_dir) / "config.yaml").is_file():
            write_board(Path(options.output_dir), board)
    return outcome


def _prepare_sets(options: BoardOptions, report: EventReport) -> Board:
    board = Board()
    for title, each in SETS.items():
        inputs = sorted(Path(options.data).glob(each.files))
        if not inputs:
            board.missing[title] = f"no {each.files} in the folder; get it: {each.get}"
        for path in inputs:
            name = f"{title} ({path.stem})" if len(inputs) > 1 else title
            report("load", {"what": name})
            place = Path(options.output_dir, "sets", name)
            made = prepare(each.source, path, place, options=each.options, overwrite=True)
            board.folders[name] = str(place)
            board.left_out[name] = dict(made.skipped)
    if not board.folders:
        raise InputError(
            f"there is no set in {options.data!r}",
            expected="at least one of: " + "; ".join(board.missing.values()),
        )
    return board


def _evaluation(options: BoardOptions, words: Sequence[str], board: Board) -> Evaluation:
    """Return the one evaluation of all sets; why a set is not asked is told to the board."""
    given: JsonObject = {
        "sets": [{"name": title, "data": folder} for title, folder in board.folders.items()],
        "systems": _systems(options),
        "embedder": options.embedder,
        "readers": [EVIDENCE, *options.readers],
        "reader_tokens": options.budget,
        "retrieve_k": max(1, options.budget // _LEAST),
        "output_dir": str(Path(options.output_dir, "evaluation")),
    }
    if options.trained and not any(word.partition("=")[0] == "--model" for word in words):
        given["model"] = str(base_of(find_agent(options.trained[0])[0]))
    evaluation = parse_evaluate_options(words, given)
    specs = []
    for spec in evaluation.sets:
        instances = load_data(spec.data)[: options.instances or None]
        questions = [question for instance in instances for question in instance.questions]
        judged = any(question.metric in JUDGED for question in questions)
        readers = []
        unnamed = sum(not question.evidence for question in questions)
        if unnamed < len(questions):
            readers.append(EVIDENCE)
            board.left_out[spec.name]["no evidence named, not asked for it"] = unnamed
        else:
            board.unsourced[spec.name] = "its questions name no evidence"
        if not options.readers:
            board.unread[spec.name] = "no reader is given (--reader)"
        elif judged and not evaluation.endpoints.has_judge:
            board.unread[spec.name] = "it needs a judge (--judge_url and --judge_model)"
        else:
            readers += options.readers
        if not readers:
            why = f"{board.unsourced[spec.name]}, and {board.unread[spec.name]}"
            board.missing[spec.name] = why
            continue
        specs.append(replace(spec, readers=tuple(readers), instances=len(instances)))
    if not specs:
        raise InputError(f"no set can be measured: {board.missing}")
    evaluation = evaluation._replace(sets=tuple(specs))
    evaluation.check()
    return evaluation


def _systems(options: BoardOptions) -> list[JsonObject]:
    lines = {"piece_tokens": 1, "embedder": options.embedder, "chunks_kept": 0}
    systems: list[JsonObject] = [{"kind": "archive"}, {"kind": "full_context"}]
    systems += [{"kind": kind, **lines} for kind in ("rag_bm25", "rag_dense", "rag_two_layer")]
    for trained in options.trained:
        agent = {
            "kind": "agent",
            "adapter": adapter_option(trained),
            "settings": "own",
            "cut_chunks": True,
            "trust_tools": options.trust_tools,
        }
        name = Path(trained).name
        systems.append({**agent, "name": f"{name}, entries alone", "archive": False})
        systems.append({**agent, "name": f"{name}, over the archive", "archive": True})
    for name, server in options.servers.items():  # last: a server that fails stops the evaluation
        systems.append({"kind": "mem0_server", "name": name, **server})
    return systems


# ------------------------------------------------------------------------------------------------
# the table
@dataclass(frozen=True, slots=True)
class BoardRow:
    """One system on one set; None or NaN is not known."""

    set: str
    system: str
    instances: int = 0
    # asked for evidence (or by the reader), by kind
    questions: Mapping[str, int] = field(default_factory=dict)
    evidence: Estimate | None = None
    kinds: Mapping[str, Estimate] = field(default_factory=dict)  # evidence by kind of question
    # of updates: what holds now is found, and above what does not
    newer_first: Estimate | None = None
    answers: Mapping[str, Estimate] = field(default_factory=dict)  # by reader
    context_tokens: Number = math.nan  # a question
    seconds_written: Number = math.nan  # a thousand messages
    calls: Number = math.nan  # of a model that writes, a thousand messages
    seconds_asked: Number = math.nan  # a question
    why: str = ""  # it is not measured


def write_board(folder: Path, board: Board) -> None:
    """Write ``scoreboard.json``, ``scoreboard.md`` and ``report/index.html`` into a folder."""
    run = RunFolder(folder / "evaluation")
    rows = board_rows(run.config, summarise_evaluation(run.path), read_rows(run.path))
    budget = run.config["reader_tokens"]
    file = resources.files("memalpha.contrib.benchmarks") / PUBLISHED
    published = yaml.safe_load(file.read_text())
    record = {
        "budget": budget,
        "rows": list(map(asdict, rows)),
        "missing": board.missing,
        "no_answers": board.unread,
        "no_evidence": board.unsourced,
        "left_out": board.left_out,
        "published": published,
        "environment": run.environment,
    }
    write_object(folder / "scoreboard.json", record)
    tables = {"Evidence and answers": main_table(rows, board)}
    for title in dict.fromkeys(row.set for row in rows if row.kinds):
        tables[f"Evidence by kind of question: {title}"] = _kinds_table(rows, title)
    tables["Answers of others, as a model judged them"] = _others_table(published)
    note = _NOTE.format(budget=budget, level=LEVEL)
    lines = ["# Scoreboard", note]
    for title, table in tables.items():
        lines += [f"## {title}", table.markdown(), *filter(None, [table.note])]
    write_whole(folder / "scoreboard.md", "\n\n".join(lines) + "\n")
    write_page("Scoreboard", _lead(rows, board), note, tables, folder / "report")


def _lead(rows: Sequence[BoardRow], board: Board) -> list[str]:
    """What the page shows, and what to do about what is missing."""
    sets = ", ".join(dict.fromkeys(row.set for row in rows)) or "no set"
    texts = [
        f"This page compares memories on public sets ({sets}): how often the turns that hold an "
        "answer are found, how often the answer is right, and what that costs. Compare systems "
        "within one set; where two intervals overlap widely, no difference can be told.",
    ]
    if not any(row.answers for row in rows):
        texts.append(
            "The columns of right answers are empty, since no reader has answered yet. The same "
            "command with `--reader` asks one; sets that need a judge want `--judge_url` and "
            "`--judge_model`, too."
        )
    unmeasured = list(dict.fromkeys([row.system for row in rows if row.why]))
    if unmeasured:
        names = ", ".join(unmeasured)
        texts.append(f"Not all results are there: {names}. The same command tries those again.")
    if board.missing:
        texts.append(
            "Sets whose files are not there are named below the first table, with the place to "
            "get them from. The same command measures them when they are there."
        )
    return texts


def board_rows(
    config: JsonMapping, summary: Summary, rows: Sequence[InstanceRow]
) -> list[BoardRow]:
    """Return a row for each system on each set, in the order of the configuration."""
    made = []
    for title in dict.fromkeys(item.set for item in summary.sets):
        items = {item.reader: item for item in summary.sets if item.set == title}
        for spec in map(read_system, config["systems"]):
            own = [row for row in rows if (row.set, row.system) == (title, spec.name)]
            counted = make_system(spec.kind, spec.options).writes_counted
            made.append(_row(title, spec.group, items, own, counted))
    return made


def _row(
    title: str,
    group: str,
    items: Mapping[str, SetSummary],
    rows: Sequence[InstanceRow],
    counted: bool,
) -> BoardRow:
    cells = {reader: item.cells[group] for reader, item in items.items() if group in item.cells}
    if not cells:
        reasons = [item.left_out.get(group, "not evaluated") for item in items.values()]
        return BoardRow(title, group, why=reasons[0])
    evidence = cells.get(EVIDENCE)
    cell = evidence or next(iter(cells.values()))
    costs = cell.means
    thousands = costs["chunks"] / 1000
    instances = cell.accuracy.n
    return BoardRow(
        title,
        group,
        instances,
        cell.questions,
        evidence=evidence.accuracy if evidence else None,
        kinds=evidence.kinds if evidence else {},
        newer_first=pooled_mean({0: rows}, _newer_first).get("newer first"),
        answers={reader: each.accuracy for reader, each in cells.items() if reader != EVIDENCE},
        context_tokens=costs["reader_tokens"],
        seconds_written=costs["seconds_write"] / thousands,
        calls=costs["write_calls"] / thousands if counted else math.nan,
        seconds_asked=costs["seconds_read"] * instances / sum(cell.questions.values()),
    )


def _newer_first(row: InstanceRow) -> dict[str, list[float]]:
    """Of the updates of a row, whether what holds now is found above what does not."""
    known = [each.newer_first for each in row.questions if each.newer_first is not None]
    return {"newer first": list(map(float, known))} if known else {}


def main_table(rows: Sequence[BoardRow], board: Board) -> Table:
    """Return the table of all sets; what is missing has a row with the reason."""
    readers = list(dict.fromkeys(reader for row in rows for reader in row.answers))
    lines = []
    for row in rows:
        line = {
            "set": row.set,
            "system": f"{row.system}: {row.why}" if row.why else row.system,
            "questions of instances": f"{sum(row.questions.values())} of {row.instances}",
            "evidence found, share": interval(row.evidence),
            "newer first, share": interval(row.newer_first),
        }
        for reader in readers:
            line[f"answers right ({reader}), share"] = interval(row.answers.get(reader))
        if not readers:
            line["answers right, share"] = NO_VALUE
        line["context tokens per question"] = number(row.context_tokens, 0)
        line["seconds per 1,000 messages"] = number(row.seconds_written, 2)
        line["calls per 1,000 messages"] = number(row.calls, 0)
        line["seconds per question"] = number(row.seconds_asked, 2)
        lines.append(line)
    lines += [{"set": title, "system": "not measured"} for title in board.missing]
    notes = [f"{title} is not measured: {why}." for title, why in board.missing.items()]
    notes += [f"{title} has no answers: {why}." for title, why in board.unread.items()]
    notes += [f"{title} has no evidence: {why}." for title, why in board.unsourced.items()]
    for title, reasons in board.left_out.items():
        left_out = [f"{n} {reason}" for reason, n in reasons.items() if n]
        notes += [f"Questions left out of {title}: {', '.join(left_out)}."] if left_out else []
    return Table.of(lines, " ".join(notes))


def _kinds_table(rows: Sequence[BoardRow], title: str) -> Table:
    own = [row for row in rows if row.set == title and row.kinds]
    texts = Texts()
    for row in own:
        for kind, n in own[0].questions.items():
            texts.append((row.system, f"{kind} ({n})", interval(row.kinds.get(kind))))
    return pivot("system", texts)


def _others_table(published: JsonMapping) -> Table:
    cells = []
    for row in published["rows"]:
        values = [row["set"], row["system"]]
        for name in ("reproduced", "published"):
            values += [number(row.get(name), 2), number(row.get(f"{name}_tokens"), 0)]
        cells.append([*values, row.get("source", NO_VALUE)])
    head = ["set", "system", "reproduced, %", "context tokens", "published, %", "context tokens"]
    note = f"Reproduced by {published['reproduced_by']}; {published['how']}"
    return Table([*head, "published at"], cells, note)
