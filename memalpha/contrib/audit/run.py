"""An audit: all detectors over a namespace, and its counts over time.

A detector of entries beside others or their lines sees what those before it found nothing wrong
with: an invented value contradicts nothing. A kind that cannot be checked (no lines kept, no extra
``audit_namespace``) is told in ``unchecked``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from memalpha.contrib.audit import pairs, sources, texts
from memalpha.contrib.audit.view import Fault, Finding, NamespaceView
from memalpha.errors import InputError, MissingExtraError
from memalpha.memory.schema import ARCHIVE
from memalpha.store.history import Event

Detector = Callable[[NamespaceView], Iterable[Finding]]

DETECTORS: Mapping[str, Detector] = {
    Fault.SECRETS: texts.secrets,
    Fault.IDENTIFIERS: texts.identifiers,
    Fault.INSTRUCTIONS: texts.instructions,
    Fault.DEAD_ENDS: texts.dead_ends,
    Fault.RECALLED: sources.find_recalled,
    Fault.UNSUPPORTED: sources.find_unsupported,
    Fault.WRONG_SUBJECT: sources.wrong_subject,
    Fault.REPEATS: pairs.repeats,
    Fault.CONTRADICTIONS: pairs.contradictions,
}
"""The detector of each kind, in the order in which they run."""
OF_ANY_TEXT = (Fault.SECRETS, Fault.IDENTIFIERS)
"""Kinds that are looked for in entries of schemas ``OF_PROGRAMS``, too."""
BY_WORDS = (*OF_ANY_TEXT, Fault.INSTRUCTIONS, Fault.DEAD_ENDS)
"""Kinds that the words of an entry alone show; each sees all entries."""
BY_LINES = (Fault.RECALLED, Fault.UNSUPPORTED, Fault.WRONG_SUBJECT)


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings in one state of a namespace, among ``entries`` and ``read`` lines of the
    archive. ``unchecked`` gives, by kind, what was not checked and why; ``missing`` holds the kinds
    that need an extra.
    """

    entries: int
    findings: tuple[Finding, ...]
    unchecked: Mapping[str, str]
    read: int = 0
    missing: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings by kind."""
        return dict(Counter(str(finding.kind) for finding in self.findings))

    @property
    def faulty(self) -> int:
        """The number of entries with a finding; lines are not counted."""
        return len({each.entry.id for each in self.findings if each.entry.section != ARCHIVE.name})

    @property
    def lines(self) -> int:
        """The number of lines of the archive with a finding."""
        return len({each.entry.id for each in self.findings if each.entry.section == ARCHIVE.name})


def choose(kinds: Sequence[str]) -> dict[str, Detector]:
    """Return the detectors of these kinds, all if none is named, in their order; InputError if one
    is unknown.
    """
    unknown = set(kinds) - set(DETECTORS)
    if unknown:
        raise InputError(
            f"the kinds {sorted(unknown)} are unknown", expected=f"some of {', '.join(DETECTORS)}"
        )
    return {kind: detector for kind, detector in DETECTORS.items() if not kinds or kind in kinds}


def audit_namespace(view: NamespaceView, detectors: Mapping[str, Detector]) -> Audit:
    """Run detectors, in order, over a view; those that are not of ``DETECTORS`` see all entries."""
    findings = list[Finding]()
    unchecked = dict[str, str]()
    missing = list[str]()
    left = view
    for kind, detector in detectors.items():
        own = kind not in DETECTORS
        found = list[Finding]()
        try:
            for each in detector(view if own or kind in BY_WORDS else left):
                found.append(each)  # what came before an error stays
        except MissingExtraError as error:
            unchecked[kind] = (
                f"{error.what}: {error.fix}; only findings that do not need it were looked for"
            )
            missing.append(kind)
        findings += found
        if not own and kind != Fault.REPEATS:  # what is said twice may be out of date
            left = left.without({each.entry.id for each in found})
    blind = len(sources.without_lines(view))
    for kind in BY_LINES:
        if blind and kind in detectors:
            unchecked[kind] = f"{blind} of {len(view.entries)} entries: no line of theirs is kept"
    if view.live_lines and not view.entries:
        of_entries = [kind for kind in detectors if kind in DETECTORS and kind not in OF_ANY_TEXT]
        unchecked |= dict.fromkeys(
            of_entries, "it is looked for in entries only, and there are none"
        )
    lines = len(view.live_lines)
    return Audit(len(view.entries), tuple(findings), unchecked, lines, tuple(missing))


def check_detector(place: str, detector: Detector) -> Detector:
    """Return a user's detector whose mistakes are InputErrors that name it."""

    def detect(view: NamespaceView) -> list[Finding]:
        try:
            found = list(detector(view))
        except Exception as error:  # a user's code may raise anything
            raise InputError(
                f"the detector {place} failed: {type(error).__name__}: {error}",
                expected="a function of a NamespaceView that yields Findings",
            ) from error
        wrong = [each for each in found if not isinstance(each, Finding)]
        if wrong:
            raise InputError(
                f"the detector {place} yields {wrong[:1]}", expected="view.finding(...)"
            )
        return found

    return detect


@dataclass(frozen=True, slots=True)
class StateCounts:
    """The counts after an operation."""

    operation: int
    time: datetime
    entries: int
    faulty: int
    counts: Mapping[str, int]


def over_time(
    events: Sequence[Event], detectors: Mapping[str, Detector], points: int, user: str = ""
) -> list[StateCounts]:
    """Return the counts at ``points`` numbers of operations, evenly apart, the last included."""
    total = len(events)
    numbers = (
        sorted({-(-total * point // points) for point in range(1, points + 1)}) if total else []
    )
    moments = []
    for number in numbers:
        state = audit_namespace(NamespaceView.of(events[:number], user), detectors)
        last = events[number - 1].time
        moments.append(StateCounts(number, last, state.entries, state.faulty, state.counts))
    return moments
