"""Detectors of pairs of entries: contradictions and repeats.

Entries meet in buckets (same subject and attribute; same words but numbers; one of their rarest
words), so that no entry is compared with all others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from memalpha.contrib.audit.view import Action, Fault, Finding, NamespaceView, Proposal
from memalpha.contrib.audit.words import is_generic, is_negated, stems
from memalpha.memory.memory import newer
from memalpha.text.stems import english_stem
from memalpha.types import Entry

ALIKE_STATEMENTS = 0.75  # Jaccard coefficient of the words of entries that repeat each other
WITHIN = 0.6  # and where one has all words of the other
_SLOTS = 4  # numbers and names of days and months; more are those of an identifier
_BUCKET = 60  # entries; a word in more brings nothing together
_MONTHS = "january february march april may june july august september october november december"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_TIMES = frozenset(map(english_stem, f"{_MONTHS} {_DAYS}".split()))
_PAST = re.compile(
    r"(?i)\b(?:used to|until|formerly|previously|once|ago|last (?:week|month|year)|was|were|lived|"
    r"worked|went|had|did|no longer|before|ex)\b"
)
_STANDS = re.compile(r"(?i)\b(?:is|are|has|have|starts?|costs?|comes?|takes place|opens?|ends?)\b")
_MANY_OF = frozenset(
    """
    hobby friend colleague sibling sister brother child son daughter kid pet cat dog language
    neighbour neighbor cousin aunt uncle husband wife housemate flatmate mother father interest
    skill allergy plan goal book trip note
    """.split()
)
# attributes that have one value at a time, and how they are said: the rest of the text is the value
_SAID = {
    "home": r"(?:lives|resides|is living|is based|lives now|now lives|has moved|moved) (?:in|to)"
    r"|city|home ?town|residence",
    "street": r"(?:lives|is living) (?:on|at)|address",
    "employer": r"(?:works|is working|now works) (?:at|for)|employer|company|workplace",
    "occupation": r"(?:works|is working) as (?:a|an|the)|job|occupation|profession",
    "age": r"(?:is|turned)(?= \d{1,3}(?: years? old)?\W*$)|is aged|age",
    "birthday": r"(?:was|is) born (?:on|in)|birthday|(?:'s|'s) birthday is(?: on)?",
    "name": r"'s name is|name",
    "status": r"is(?= (?:single|married|divorced|widowed|engaged)\b)|marital status",
}  # fmt: skip
_ATTRIBUTE = {
    name: re.compile(
        rf"(?P<who>[^\W\d_][\w-]*)(?: | ?(?=['’]))(?:now )?(?:{said})\b:? (?P<value>.+)"
    )
    for name, said in _SAID.items()
}
# how an entry begins that leaves its subject out, the user
_NO_SUBJECT = frozenset("Lives Resides Moved Works Is Has Was".split())
_OF = re.compile(
    r"(?P<who>[^\W\d_][\w-]*)['’]s (?P<what>(?:favou?rite )?[\w-]+(?: [\w-]+)?) "
    r"(?:is|are)(?: now)?(?P<how> called| named| on| at| in| with)? (?P<value>.+)"
)
_PLURAL = re.compile(r"(?<![su])s$")


_Buckets = dict[tuple[str, ...], list[Entry]]


class Statement(NamedTuple):
    """The one value that an entry gives for an attribute."""

    who: str
    what: str
    value: frozenset[str]


@lru_cache(maxsize=65536)
def statement_of(text: str) -> Statement | None:
    """Return whose attribute has which value by a text, None if it says no such thing."""
    if is_negated(text):
        return None
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if first in _NO_SUBJECT:
        text = f"User {first.lower()}{text[len(first) :]}"
    for name, pattern in _ATTRIBUTE.items():
        match = pattern.match(text)
        if match and not _PAST.search(text.replace("moved", "").replace("was born", "")):
            return Statement(match["who"].casefold(), name, stems(match["value"]))
    match = _OF.match(text)
    if match is None or _PAST.search(text):
        return None
    what = match["what"].casefold()
    kinds = {_PLURAL.sub("", word) for word in what.split()}
    if kinds & _MANY_OF or what != match["what"]:  # "sister Ann"
        return None
    value = stems(match["value"])
    how = (match["how"] or "").strip().replace("called", "").replace("named", "")
    if value & _TIMES:
        how = "date"
    elif match["value"][:1].isdigit():
        how = "number"
    elif not match["value"][:1].isupper() and not what.startswith(("favourite", "favorite")):
        return None  # "is lime green", "is closed": both may hold
    return Statement(match["who"].casefold(), f"{what} {how}".strip(), value)


def contradictions(view: NamespaceView) -> Iterator[Finding]:
    """Yield the older of two entries that cannot both hold: another value of the same, another
    number or date, or the one denies the other.
    """
    found = set[str]()
    for buckets, why in _opposing(view):
        for key, entries in buckets.items():
            newest = entries[0]
            for entry in entries[1:]:
                if _later(entry, newest):
                    newest = entry
            for entry in entries:
                if entry.id in found or entry is newest or not _differ(entry, newest):
                    continue
                found.add(entry.id)
                told = f"entry {newest.id} {why.format(what=key[-1])}, and is newer"
                line, _ = view.saying(newest, view.lines_of(newest))
                removal = view.removal(entry)
                yield view.finding(Fault.CONTRADICTIONS, entry, told, removal, line, newest)


def _opposing(view: NamespaceView) -> Iterator[tuple[_Buckets, str]]:
    """Entries of which no two that differ can both hold, and why."""
    yield _by_attribute(view), "gives another {what}"
    yield _by_slot(view), "differs in a number or date"
    yield _by_words(view), "says the opposite"


def _later(first: Entry, second: Entry) -> bool:
    """Whether the first of two entries is the newer statement; where neither dates nor chunks tell,
    the one that was written later.
    """
    if newer(first, second) or newer(second, first):
        return newer(first, second)
    return first.created > second.created


def _differ(entry: Entry, other: Entry) -> bool:
    """Whether neither says what the other says, and more."""
    one = statement_of(entry.content)
    two = statement_of(other.content)
    if one and two and one[:2] == two[:2]:
        return not (one.value <= two.value or two.value <= one.value)
    return True


def _by_attribute(view: NamespaceView) -> _Buckets:
    buckets = defaultdict[tuple[str, ...], list[Entry]](list)
    for entry in view.facts:
        fact = statement_of(entry.content)
        if fact:
            who = "user" if fact.who in view.names_of_user else fact.who
            buckets[who, fact.what].append(entry)
    return {key: entries for key, entries in buckets.items() if len(entries) > 1}


def _by_slot(view: NamespaceView) -> _Buckets:
    """Entries that are equal but for numbers or a date."""
    buckets = defaultdict[tuple[str, ...], list[Entry]](list)
    for entry in view.facts:
        slots, rest = _slots(entry.content)
        stands = _STANDS.search(entry.content) and not _PAST.search(entry.content)
        if 0 < len(slots) <= _SLOTS and len(rest) > 1 and stands:
            buckets[tuple(sorted(rest))].append(entry)
    return {
        key: entries
        for key, entries in buckets.items()
        if len({_slots(entry.content)[0] for entry in entries}) > 1
    }


def _slots(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The numbers and dates of a text, and its other words with negation."""
    words = stems(text)
    dated = frozenset(word for word in words if word in _TIMES)
    numbers = frozenset(word for word in words if word.isdecimal() and len(word) <= 4)
    rest = words - dated - numbers
    return dated | numbers, rest | ({"not"} if is_negated(text) else frozenset())


def _by_words(view: NamespaceView) -> _Buckets:
    """Entries with the same words of which one is a denial."""
    buckets = defaultdict[tuple[str, ...], list[Entry]](list)
    denials = {
        english_stem(word) for word in ("not", "no", "never", "longer", "anymore", "more", "doesn")
    }
    for entry in view.facts:
        words = stems(entry.content) - denials - {"t", "don", "isn", "do"}
        buckets[tuple(sorted(words))].append(entry)
    return {
        key: entries
        for key, entries in buckets.items()
        if len({is_negated(entry.content) for entry in entries}) > 1
    }


# ------------------------------------------------------------------------------------------------
# repeats
def repeats(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries whose fact another entry says too, if a little differently; the newer one
    stays, or the fuller one, unless something between the two says otherwise.
    """
    gone = set[str]()
    for pair in _candidates(view):
        if any(entry.id in gone for entry in pair) or not _same(view, *pair):
            continue
        new, old = pair if _later(*pair) else pair[::-1]
        fuller = len(view.words_of(old)) > len(view.words_of(new))
        kept, extra = (
            (old, new) if fuller and not contradicts_between(view, old, new) else (new, old)
        )
        gone.add(extra.id)
        line, _ = view.saying(extra, view.lines_of(extra))
        why = f"entry {kept.id} says it, too" + ("" if fuller else ", and is newer")
        yield view.finding(Fault.REPEATS, extra, why, Proposal(Action.DELETE), line, kept)


def contradicts_between(view: NamespaceView, old: Entry, new: Entry) -> bool:
    """Whether an entry between two of one fact contradicts them: it held, changed, and holds
    again.
    """
    return any(
        _later(entry, old) and _later(new, entry) and _differ(entry, old)
        for entries in _beside(view).get(old.id, ())
        for entry in entries
    )


def _beside(view: NamespaceView) -> dict[str, list[list[Entry]]]:
    """The buckets that each entry is in; worked out once for a view."""
    kept: dict[str, list[list[Entry]]] | None = vars(view).get("beside")
    if kept is None:
        kept = defaultdict(list)
        for buckets, _ in _opposing(view):
            for entries in buckets.values():
                for entry in entries:
                    kept[entry.id].append(entries)
        vars(view)["beside"] = kept
    return kept


def _candidates(view: NamespaceView) -> Iterator[tuple[Entry, Entry]]:
    """Pairs of entries, the first created first, that share a word which few have."""
    buckets = defaultdict[str, list[Entry]](list)
    for entry in view.facts:
        for word in view.words_of(entry):
            buckets[word].append(entry)
    told = set[tuple[str, str]]()
    for entries in buckets.values():
        for entry, other in combinations(entries, 2) if len(entries) <= _BUCKET else ():
            if (entry.id, other.id) not in told:
                told.add((entry.id, other.id))
                yield entry, other


def _same(view: NamespaceView, entry: Entry, other: Entry) -> bool:
    if is_negated(entry.content) != is_negated(other.content):
        return False
    if _who(view, entry) != _who(view, other):
        return False
    one = statement_of(entry.content)
    two = statement_of(other.content)
    if one and two:
        subset = one.value <= two.value or two.value <= one.value
        return one.what == two.what and subset
    words = (view.words_of(entry), view.words_of(other))
    if _slots(entry.content)[0] ^ _slots(other.content)[0]:
        return False
    common = words[0] & words[1]
    manners = (_manner(entry), _manner(other))
    if all(manners) and not manners[0] & manners[1]:
        return False
    if words[0] == words[1]:
        return len(common) > 1 or manners[0] == manners[1]
    jaccard = len(common) / len(words[0] | words[1])
    within = common in words and manners[words.index(common)] <= manners[words[0] == common]
    return jaccard >= ALIKE_STATEMENTS or (jaccard >= WITHIN and len(common) >= 2 and within)


def _manner(entry: Entry) -> frozenset[str]:
    """How a fact is put: likes, dislikes, lives in."""
    return frozenset(filter(is_generic, stems(entry.content))) - {"user"}


def _who(view: NamespaceView, entry: Entry) -> frozenset[str]:
    """The people that an entry names, the user by one name."""
    words = {word.strip(".,'’") for word in _possessives(entry.content).split()}
    named = {word.casefold() for word in words if word[:1].isupper()} & view.people
    return frozenset("user" if name in view.names_of_user else name for name in named)


def _possessives(text: str) -> str:
    return re.sub(r"['’]s\b", "", text)
