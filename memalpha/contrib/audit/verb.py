"""``memalpha audit``: find what should not be in memories, and mend it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer, getchar

from memalpha.cli.console import console, out, printable, show_table
from memalpha.cli.journal import (
    KeyFile,
    Store,
    Wait,
    name_of,
    open_store,
    read_namespace,
    say,
)
from memalpha.cli.options import AsJson
from memalpha.config import load_function
from memalpha.credentials import shown_address
from memalpha.errors import InputError

if TYPE_CHECKING:
    from memalpha.contrib.audit.apply import Remedy
    from memalpha.contrib.audit.run import Audit, Detector, StateCounts
    from memalpha.contrib.audit.view import Finding, Proposal
    from memalpha.store.durable import DurableMemory
    from memalpha.types import JsonObject

WHOSE = "USER[/AGENT[/SESSION]]"
_KEYS = "y: do it   u: undo   e: edit   d: delete   f: forget for good   k: keep   q: quit"


def add_audit_verb(app: Typer) -> None:
    """Add ``audit`` to the command line."""
    app.command()(audit)


def audit(
    store: Store,
    namespace: Annotated[
        str | None,
        Option(
            "--namespace",
            "-n",
            metavar=WHOSE,
            help="Audit only this namespace; by default all are.",
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        Option(
            metavar="KIND,KIND", help="Look only for these kinds of findings; by default for all."
        ),
    ] = None,
    detector: Annotated[
        list[str],
        Option(
            metavar="MODULE:FUNCTION", help="Also run this detector of your own. May be repeated."
        ),
    ] = [],  # noqa: B006
    apply: Annotated[
        str | None,
        Option(
            metavar="all|KIND,KIND",
            help="Carry out what is proposed for these kinds without asking.",
        ),
    ] = None,
    page: Annotated[
        str | None, Option(metavar="FILE.html", help="Write the findings as an HTML page.")
    ] = None,
    points: Annotated[
        int,
        Option(
            min=0,
            max=200,
            help="With --json or --page, count the findings at this many moments of the past.",
        ),
    ] = 10,
    key_file: KeyFile = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
) -> int:
    """Find entries that should not be in a memory, and repair them.

    Some kinds of findings concern single texts: secrets, identifiers (cards, accounts, national
    ids, phones, e-mails), instructions (to a model) and dead-ends (states of a task). Others
    concern sources: recalled (learned again from recalled text), unsupported (no line that was read
    says it) and wrong-subject. The last ones concern pairs: repeats and contradictions.

    Each finding shows its line, the operation that wrote it, and a proposal: undo, edit, delete
    (which can be undone), forget (for good) or keep. In a terminal you press a key to carry it out.
    No model is asked, so findings can be wrong.

    Some secrets and identifiers are found only with the extra audit. Without it the command says
    so, and its exit code is 1 if --kinds or --apply name them.
    """
    from memalpha.contrib.audit.run import check_detector, choose

    detectors: dict[str, Detector] = dict(choose(_split_list(kinds)))
    # what one's own raise or yield wrongly becomes an InputError that names them
    detectors |= {
        place: check_detector(place, load_function(place, "--detector")) for place in detector
    }
    wanted = _split_list(apply) if apply != "all" else list(detectors)
    if set(wanted) - set(detectors):
        raise InputError(
            f"--apply names unknown kinds: {apply}",
            expected=f"all, or some of {', '.join(detectors)}",
        )
    if page is not None and Path(page).suffix.casefold() not in (".html", ".htm"):
        raise InputError(
            f"--page is {page}",
            expected="the name of a file that ends with .html",
        )
    history = points if page or as_json else 0
    asks = not (apply or page or as_json) and console.is_terminal and sys.stdin.isatty()
    with open_store(store, key_file, wait) as memories:
        whose = [read_namespace(namespace)] if namespace else sorted(memories.namespaces())
        reports = []
        for each in whose:
            with memories.durable(each) as durable:
                report = look(durable, detectors, history)
            if wanted:
                report.carry_out_all(wanted)
                report.look_again()
            elif asks and not review(report):
                break
            reports.append(report)
    if page:
        from memalpha.contrib.audit.page import write_audit_page

        title = shown_address(store) if "://" in store else Path(store).name
        write_audit_page(Path(page), title, [report.shown() for report in reports])
    if as_json:
        shown = [report.shown() for report in reports]
        say(True, {"store": shown_address(store), "namespaces": shown})
    elif not asks:
        _show(reports, page)
    named = {*_split_list(kinds), *wanted}
    return int(any(named.intersection(report.now.missing) for report in reports))


# ------------------------------------------------------------------------------------------------
# one namespace
@dataclass
class AuditReport:
    """An audit of a namespace, with the remedies that were carried out and the findings that are
    left.
    """

    durable: DurableMemory
    detectors: Mapping[str, Detector]
    now: Audit
    moments: list[StateCounts]
    outcomes: list[Remedy] = field(default_factory=list)
    left: Mapping[str, int] = field(default_factory=dict)  # counts by kind after it

    def carry_out(self, findings: Sequence[Finding], proposal: Proposal | None = None) -> None:
        """Do what findings propose, or ``proposal``."""
        from memalpha.contrib.audit.apply import carry_out

        self.outcomes += [carry_out(self.durable, finding, proposal) for finding in findings]

    def carry_out_all(self, kinds: Sequence[str]) -> None:
        """Do what is proposed for the findings of some kinds, of an entry the first."""
        first: dict[str, Finding] = {}
        for finding in self.now.findings:
            if finding.kind in kinds:
                first.setdefault(finding.entry.id, finding)
        self.carry_out(list(first.values()))

    def look_again(self) -> None:
        """Count what is left."""
        self.left = look(self.durable, self.detectors, 0).now.counts

    def shown(self) -> JsonObject:
        """The report as JSON."""
        shown: JsonObject = {
            "namespace": name_of(self.durable.namespace),
            "entries": self.now.entries,
            "faulty": self.now.faulty,
            "lines": self.now.read,
            "faulty_lines": self.now.lines,
            "counts": self.now.counts,
            "unchecked": dict(self.now.unchecked),
            "missing": list(self.now.missing),
            "findings": [
                {**asdict(finding), "proposed": finding.proposed} for finding in self.now.findings
            ],
            "over_time": [
                {
                    **asdict(moment),
                    "share": moment.faulty / moment.entries if moment.entries else None,
                }
                for moment in self.moments
            ],
        }
        if self.outcomes:
            shown["applied"] = [
                {"entry": each.finding.entry.id, "kind": each.finding.kind, "done": each.done}
                | {"said": each.said}
                for each in self.outcomes
            ]
            shown["left"] = self.left
        return shown


def look(durable: DurableMemory, detectors: Mapping[str, Detector], points: int) -> AuditReport:
    """Audit a namespace, and its past at ``points`` moments."""
    from memalpha.contrib.audit.run import DETECTORS, OF_ANY_TEXT, over_time
    from memalpha.contrib.audit.run import audit_namespace as run_audit
    from memalpha.contrib.audit.view import NamespaceView
    from memalpha.memory.schema import OF_PROGRAMS

    events = durable.history()
    user = durable.namespace.user
    why = OF_PROGRAMS.get(durable.schema.name)
    left_out = [kind for kind in detectors if why and kind in set(DETECTORS) - set(OF_ANY_TEXT)]
    detectors = {kind: detectors[kind] for kind in detectors if kind not in left_out}
    now = run_audit(NamespaceView.of(events, user), detectors)
    now = replace(now, unchecked={**now.unchecked, **dict.fromkeys(left_out, why or "")})
    moments = over_time(events, detectors, points, user) if points else []
    return AuditReport(durable, detectors, now, moments)


def _split_list(text: str | None) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text or "") if word]


# ------------------------------------------------------------------------------------------------
# in a terminal
def review(report: AuditReport, key: Callable[[], str] = getchar) -> bool:
    """Show each finding and do what the key says; False after ``q``."""
    findings = report.now.findings
    _show([report], None, listed=False)
    for number, finding in enumerate(findings, 1):
        out("\n".join(["", f"{number} of {len(findings)}", *_lines(finding)]))
        out(_KEYS)
        proposal = None
        while proposal is None:
            pressed = key().casefold()
            if pressed in ("q", "\x03", "\x04"):
                return False
            proposal = _proposal_of_key(pressed, finding)
        report.carry_out([finding], proposal)
        out(f"  {report.outcomes[-1].said}")
    if report.outcomes:
        report.look_again()
        out(f"\nleft in {name_of(report.durable.namespace)}: {_count_text(report.left)}")
    return True


def _proposal_of_key(pressed: str, finding: Finding) -> Proposal | None:
    """The proposal of a key; None if it is of none."""
    from memalpha.contrib.audit.view import Action, Proposal

    proposed = finding.proposal
    match pressed:
        case "y" | "\r" | "\n":
            return proposed
        case "k":
            return Proposal(Action.KEEP)
        case "u":
            return Proposal(Action.UNDO, finding.operation)
        case "d":
            return Proposal(Action.DELETE)
        case "f":
            return Proposal(Action.FORGET, also=proposed.also)
        case "e":
            text = _edit(proposed.text or finding.entry.content)
            return Proposal(Action.EDIT, text=text) if text else Proposal(Action.KEEP)
    return None


def _edit(text: str) -> str:
    """Let the user change a text."""
    import readline

    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        return input("new text: ").strip()
    except EOFError:
        return ""
    finally:
        readline.set_startup_hook(None)


def _lines(finding: Finding) -> list[str]:
    """A finding as lines."""
    lines = [
        f"{finding.kind}: {finding.entry.id} {finding.entry.content}",
        f"  why       {finding.why}",
    ]
    if finding.other is not None:
        lines.append(f"  entry     {finding.other.id} {finding.other.content}")
    if finding.line is not None:
        lines.append(f"  line      {finding.line.content}")
    lines += [
        f"  written   by operation {finding.operation}",
        f"  proposed  {finding.proposed}",
    ]
    return list(map(printable, lines))


def _count_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items()) or "no findings"


def _show(reports: Sequence[AuditReport], page: str | None, listed: bool = True) -> None:
    """Show counts, and what was found or done, for people and pipes."""
    for report in reports:
        now = report.now
        out(
            f"{name_of(report.durable.namespace)}: {now.entries} entries, {now.faulty} with "
            f"findings; {now.read} lines, {now.lines} with findings ({_count_text(now.counts)})"
        )
        for kind, why in now.unchecked.items():
            out(f"  not checked: {kind} ({why})")
    if page:
        out(page)
    outcomes = [outcome for report in reports for outcome in report.outcomes]
    if outcomes:
        done = Counter(outcome.done for outcome in outcomes)
        rows = [(each.finding.kind, each.finding.entry.id, each.said) for each in outcomes]
        show_table(("kind", "entry", "what was done"), rows)
        left = Counter[str]()
        for report in reports:
            left.update(report.left)
        out(f"{done[True]} done, {done[False]} not; left: {_count_text(left)}")
    elif listed and not page:
        columns = ("whose", "kind", "entry", "operation", "proposed", "text", "why", "line")
        table = [_row(report, finding) for report in reports for finding in report.now.findings]
        show_table(columns, table)


def _row(report: AuditReport, finding: Finding) -> tuple[object, ...]:
    return (
        name_of(report.durable.namespace),
        finding.kind,
        finding.entry.id,
        finding.operation,
        finding.proposed,
        finding.entry.content,
        finding.why,
        finding.line.content if finding.line else "",
    )
