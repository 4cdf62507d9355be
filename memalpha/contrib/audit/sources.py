"""Detectors of entries that the lines which were read do not support: invented entries, entries
about somebody else, and recalled ones.

A namespace whose lines were not kept shows none of these (``without_lines`` counts the entries).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memalpha.contrib.audit.view import (
    Action,
    Fault,
    Finding,
    NamespaceView,
    Proposal,
    with_subject,
)
from memalpha.contrib.audit.words import (
    USER_NAME,
    common_stems,
    is_assistant,
    named_first,
    overlap,
    stems,
    subject_of,
)
from memalpha.speakers import split_speaker
from memalpha.text.stems import english_stem
from memalpha.types import Entry

SUPPORTED = 0.5  # share of an entry's telling words that the lines of its chunk have
CLEAR = 0.6  # that a line must have to say whose the fact is, and who said it
ELSEWHERE = 0.75  # that one line of another chunk must have
_RESTATED = 0.6  # that an earlier line or entry must have of what is recalled
_FIRST = re.compile(r"(?i)\b(?:i|i['’]\w+|me|mine|we|we['’]\w+|us)\b")
_OWN = re.compile(r"(?i)\b(?:my|our)\b")
_NAMES = re.compile(r"(?<=[\w,;:] )[^\W\d_a-z][\w-]+|\d[\d.,]*")
_THIRD = re.compile(r"(?i)\b(?:he|she|they|him|her|them|his|their|you|your|yours)\b")
_RELATIVES = {
    word: name
    for name, words in {
        "mother": "mother mum mom mam ma mummy",
        "father": "father dad papa pa daddy",
        "wife": "wife",
        "husband": "husband hubby",
        "partner": "partner boyfriend girlfriend fiance fiancee",
        "sister": "sister sis",
        "brother": "brother",
        "son": "son boy",
        "daughter": "daughter girl",
        "child": "child kid kids children youngest eldest oldest baby",
        "grandchild": "grandchild grandchildren grandson granddaughter grandkid",
        "grandmother": "grandmother grandma gran granny nan nana",
        "grandfather": "grandfather grandpa granddad grandad",
        "aunt": "aunt auntie",
        "uncle": "uncle",
        "cousin": "cousin",
        "niece": "niece",
        "nephew": "nephew",
        "twin": "twin twins",
        "friend": "friend mate pal buddy",
        "neighbour": "neighbour neighbor",
        "flatmate": "flatmate roommate housemate",
        "colleague": "colleague coworker co-worker workmate",
        "boss": "boss manager supervisor",
        "landlord": "landlord landlady",
        "in-law": "brother-in-law sister-in-law mother-in-law father-in-law",
    }.items()
    for word in words.split()
}
_RELATIVE_STEMS = frozenset(map(english_stem, _RELATIVES))
_LONGEST_FIRST = "|".join(sorted(_RELATIVES, key=len, reverse=True))
_NOUN = r"(?!a |an |the |in |now |been |got |\w+(?:ed|ing) )"  # what "my cousin's" is of
_RELATIVE = re.compile(
    rf"(?i)\b(?:my|our|ma) (?:[a-z]+ )?(?P<who>{_LONGEST_FIRST})\b"
    rf"(?!['’]s {_NOUN})(?! (?:says?|said|thinks?|thought|told|wants?|asks?|asked)\b)"
)
_CLAUSE = re.compile(r"[.!?;]+\s+|\n|, (?:but|and|so|while) ")


def without_lines(view: NamespaceView) -> list[Entry]:
    """Return the entries whose sources cannot be checked: their chunk's lines are not kept."""
    return [entry for entry in view.entries if not view.lines_of(entry)]


def find_unsupported(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries that no line says: most of what tells them is in no line of their chunk, nor
    in one of another.
    """
    for entry in view.entries:
        lines = [line for line in view.lines_of(entry) if line.id not in view.tagged]
        if not lines:
            continue
        words = view.words_of(entry)
        said = stems("\n".join(line.content for line in lines))
        shares = (overlap(words, said), overlap(_news(view, entry), said))
        if max(shares) >= SUPPORTED or _names_fit(entry, words, said):
            continue
        _, elsewhere = view.saying(entry, view.elsewhere(entry))
        if elsewhere < ELSEWHERE:
            line, _ = view.saying(entry, lines)
            missing = ", ".join(sorted(words - common_stems(words, said))[:4])
            why = f"no line that was read says it (not found: {missing})"
            yield view.finding(Fault.UNSUPPORTED, entry, why, view.removal(entry), line)


def _news(view: NamespaceView, entry: Entry) -> frozenset[str]:
    """The words of an entry without relatives and names that were read elsewhere: they say of whom
    it is.
    """
    words = view.words_of(entry)
    names = stems(" ".join(_NAMES.findall(entry.content)))
    known = {name for name in names if name in view.postings and not name.isdecimal()}
    return words - known - _RELATIVE_STEMS or words


def _names_fit(entry: Entry, words: frozenset[str], said: frozenset[str]) -> bool:
    """Whether an entry's names of things and numbers, beside people, are all in what was said."""
    names = stems(" ".join(_NAMES.findall(entry.content))) & words
    return bool(names) and names <= said


# ------------------------------------------------------------------------------------------------
# recalled
def find_recalled(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries learnt from recalled text: in a tagged block, or by the assistant, who
    repeated what was known before.
    """
    for entry in view.entries:
        lines = view.lines_of(entry)
        line, share = view.saying(entry, lines)
        if line is None or share < CLEAR or view.by_user(line):
            continue
        _, by_user = view.saying(entry, filter(view.by_user, lines))
        if by_user >= SUPPORTED:
            continue
        earlier = _earlier(view, entry)
        if line.id in view.tagged or earlier:
            who = "a block of recalled text" if line.id in view.tagged else "the assistant"
            before = f", as {earlier.content!r:.80} had said" if earlier else ""
            why = f"{who} repeated it{before}: nobody said it again"
            yield view.finding(Fault.RECALLED, entry, why, Proposal(Action.DELETE), line, earlier)


def _earlier(view: NamespaceView, entry: Entry) -> Entry | None:
    """The entry or line of a user before an entry's chunk that has most of its words."""
    words = view.words_of(entry)
    chunk = entry.source_chunk or 0
    for other in view.entries:
        before = other.created < entry.created and other.id != entry.id
        if before and overlap(words, stems(other.content)) >= _RESTATED:
            return other
    lines = [line for line in view.elsewhere(entry) if (line.source_chunk or 0) < chunk]
    line, share = view.saying(entry, filter(view.by_user, lines))
    return line if share >= _RESTATED else None


# ------------------------------------------------------------------------------------------------
# wrong subject
def wrong_subject(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries that say of one what the line says of another, with the right subject."""
    for entry in view.facts:
        subject = named_first(entry.content)
        line, share = view.saying(entry, view.lines_of(entry))
        if line is None or share < CLEAR or not view.by_user(line):
            continue
        if subject.casefold() not in view.people:
            continue
        speaker, text = split_speaker(line.content)
        clause = _clause(view, entry, text)
        own = _is(view, subject, speaker)
        right = (
            _owner_told(view, entry, clause) if own else _first_person(view, entry, line, clause)
        )
        if right:
            why = f"the line says it about {right}, not about {subject}"
            edit = Proposal(Action.EDIT, text=with_subject(entry, subject, right))
            yield view.finding(Fault.WRONG_SUBJECT, entry, why, edit, line)


def _is(view: NamespaceView, subject: str, speaker: str) -> bool:
    """Whether a subject is who speaks."""
    names = view.names_of_user
    speaks = speaker.casefold()
    return subject.casefold() == speaks or (subject.casefold() in names and speaks in names | {""})


def _clause(view: NamespaceView, entry: Entry, text: str) -> str:
    """The part of a line with most of an entry's words."""
    words = view.words_of(entry)
    best = ""
    most = 0
    for clause in _CLAUSE.split(text):
        shared = len(common_stems(words, stems(clause)))
        if shared > most:
            best = clause
            most = shared
    return best


def _owner_told(view: NamespaceView, entry: Entry, clause: str) -> str:
    """Whom a clause by the entry's subject is about instead, if it is somebody else."""
    told = {_RELATIVES.get(word, "") for word in re.findall(r"[\w-]+", entry.content.casefold())}
    if any(told) or _FIRST.search(clause):
        return ""
    relative = _RELATIVE.search(clause)
    if relative:
        first = relative.start() < _begin(clause, view.words_of(entry))
        return f"{named_first(entry.content)}'s {relative['who'].casefold()}" if first else ""
    name = subject_of(clause.strip())
    known = name.casefold() in view.people or name in view.capitalised
    known = known and not re.match(rf"{name}['’]s {_NOUN}", clause.strip())
    if name and known and not _OWN.search(clause) and not stems(name) <= stems(entry.content):
        return name
    return ""


def _first_person(view: NamespaceView, entry: Entry, line: Entry, clause: str) -> str:
    """Who speaks, if a clause in the first person is said of another, whom the chunk does not
    name.
    """
    speaker, _ = split_speaker(line.content)
    named = re.compile(rf"(?i)\b{re.escape(named_first(entry.content))}\b")
    spoken = (split_speaker(other.content)[1] for other in view.lines_of(entry))
    said = speaker.casefold() in entry.content.casefold() or any(map(named.search, spoken))
    if not speaker or is_assistant(speaker) or said or _THIRD.search(clause):
        return ""
    mine = _FIRST.search(clause)
    own = _OWN.search(clause) if _RELATIVE.search(clause) is None else None
    starts = [match.start() for match in (mine, own) if match]
    if not starts or min(starts) > _begin(clause, view.words_of(entry)):
        return ""
    return (
        USER_NAME if speaker.casefold() in view.names_of_user - {view.user.casefold()} else speaker
    )


def _begin(clause: str, words: frozenset[str]) -> int:
    """Where the first of some words stands in a clause; its length if none does."""
    places = (match.start() for match in re.finditer(r"\w+", clause) if stems(match[0]) & words)
    return next(places, len(clause))
