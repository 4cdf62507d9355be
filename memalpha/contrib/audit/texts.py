"""Detectors that need only a text: secrets, identifiers, instructions and dead ends.

Patterns of secrets are those of detect-secrets, numbers are checked by python-stdnum and
phonenumbers: all in the extra ``audit``. Beside them stand what people write in sentences: "the
password is ...". MissingExtraError without the extra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from memalpha.contrib.audit.view import Action, Fault, Finding, NamespaceView, Proposal
from memalpha.credentials import PRIVATE_KEY, Sensitive, secrets_in, split_parts, whole_token
from memalpha.errors import MissingExtraError
from memalpha.speakers import split_speaker
from memalpha.types import Entry


def secrets(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries and lines with an API key, token, password, PIN or private key.

    Without detect-secrets those that ``credentials`` knows, then MissingExtraError.
    """
    try:
        _secret_patterns()
    except MissingExtraError:
        yield from _with_spans(view, Fault.SECRETS, secrets_in)
        raise
    yield from _with_spans(view, Fault.SECRETS, secret_spans)


def identifiers(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries and lines with a card, an account, a national id, a phone number, an e-mail.

    Without what checks numbers e-mails alone, then MissingExtraError.
    """
    try:
        _checks()
    except MissingExtraError:
        yield from _with_spans(view, Fault.IDENTIFIERS, _emails)
        raise
    yield from _with_spans(view, Fault.IDENTIFIERS, identifier_spans)


def _with_spans(
    view: NamespaceView, kind: Fault, spans_of: Callable[[str], list[Sensitive]]
) -> Iterator[Finding]:
    live = {line.id for line in view.live_lines}
    held: dict[str, str] = {}  # what each line holds
    lines_with: dict[str, list[Entry]] = {}
    for run in _runs(view.lines):
        text, places = _join_lines(run, "") if len(run) > 1 else _alone(run[0])
        for span in spans_of(text):
            for line in _within(places, span, live):
                held.setdefault(line.id, span.what)
                lines_with.setdefault(text[span.start : span.end], []).append(line)
    for line in _of_private_keys(view, live) if kind == Fault.SECRETS else ():
        held[line.id] = "private key"
    told = set[str]()
    for entry in view.entries:
        found = spans_of(entry.content)
        if not found:
            continue
        parts = [entry.content[span.start : span.end] for span in found]
        lines = {line.id: line for part in parts for line in lines_with.get(part, ())}
        told |= lines.keys()
        says = next(iter(lines.values()), None)
        proposal = Proposal(Action.FORGET, also=tuple(lines))
        yield view.finding(kind, entry, f"it holds: {found[0].what}", proposal, says)
    for line in view.live_lines:
        if line.id in held and line.id not in told:
            why = f"a line that was read holds: {held[line.id]}"
            yield view.finding(kind, line, why, Proposal(Action.FORGET), line)


_Parts = list[tuple[Entry, int, int]]
"""Lines, with their places in a joined text: from where, to where."""


def _runs(lines: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield lines, those together to which one word was cut that is longer than a line."""
    run: list[Entry] = []
    for line in lines:
        if run and not _goes_on(run[-1], line):
            yield run
            run = []
        run.append(line)
    if run:
        yield run


def _goes_on(before: Entry, line: Entry) -> bool:
    """Whether a line begins inside the word with which the line before it ends."""
    if line.source_chunk is None or line.source_chunk != before.source_chunk:
        return False
    speaker, text = split_speaker(line.content)
    first = text.partition(" ")[0]
    last = before.content.rpartition(" ")[2]
    return len(last) + len(first) > _LONG_WORD and speaker == split_speaker(before.content)[0]


def _alone(line: Entry) -> tuple[str, _Parts]:
    return line.content, [(line, 0, len(line.content))]


def _join_lines(lines: Sequence[Entry], between: str) -> tuple[str, _Parts]:
    """Return a text of lines, without the labels of all but the first, and their places in it."""
    text = ""
    parts: _Parts = []
    for line in lines:
        start = len(text)
        text += f"{between}{split_speaker(line.content)[1]}" if parts else line.content
        parts.append((line, start, len(text)))
    return text, parts


def _within(parts: _Parts, span: Sensitive, live: Container[str]) -> list[Entry]:
    return [
        line
        for line, start, end in parts
        if start < span.end and span.start < end and line.id in live
    ]


def _of_private_keys(view: NamespaceView, live: Container[str]) -> Iterator[Entry]:
    """The lines of a chunk from where a private key begins to where it ends."""
    for lines in view.by_chunk.values():
        text, parts = _join_lines(lines, " ")
        for key in PRIVATE_KEY.finditer(text):
            yield from _within(parts, Sensitive(*key.span(), "private key"), live)


# ------------------------------------------------------------------------------------------------
# secrets
_LONG_WORD = 40  # characters; of two pieces of a word that no line holds there are more
_WINDOW = 2048  # characters that a pattern of detect-secrets sees: some take the square of it
_SKIPPED = {"IPPublicDetector"}  # an address is no secret


@cache
def _secret_patterns() -> list[tuple[str, re.Pattern[str]]]:
    try:
        plugins = import_module("detect_secrets.plugins")
        base = import_module("detect_secrets.plugins.base")
    except ImportError as error:
        raise MissingExtraError("detect-secrets", "audit") from error
    patterns = []
    for module in iter_modules(plugins.__path__):
        for name, plugin in vars(import_module(f"{plugins.__name__}.{module.name}")).items():
            listed = getattr(plugin, "denylist", None)
            fits = isinstance(plugin, type) and issubclass(plugin, base.RegexBasedDetector)
            if fits and isinstance(listed, (list, tuple)) and name not in _SKIPPED:
                patterns += [(plugin.secret_type, pattern) for pattern in listed]
    return patterns


def secret_spans(text: str) -> list[Sensitive]:
    """Return the secrets of a text, in order, each whole and none inside another."""
    spans = [
        Sensitive(match.start(), whole_token(text, match.end()), name)
        for name, pattern in _secret_patterns()
        for start in range(0, max(1, len(text) - _WINDOW // 2), _WINDOW // 2)
        for match in pattern.finditer(text, start, start + _WINDOW)
    ]
    return split_parts([*secrets_in(text), *spans])


# ------------------------------------------------------------------------------------------------
# identifiers
_EMAIL = re.compile(r"(?<![\w.@])[\w.+-]{1,64}@(?:[\w-]+\.)+[A-Za-z]{2,24}\b")
_PASSWORD_OF_URL = re.compile(r"//[^\s/@]*:$")  # before it
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?!\w)")
_NATIONAL = re.compile(
    r"(?i)\b(?:ssn|social security|national insurance|national id|nhs|passport|tax (?:id|number)|"
    r"id (?:card|number)|identity (?:card|number)|personal (?:id|number|code)|personnummer|bsn|"
    r"pesel|cpf|aadhaar|dni|nie|codice fiscale|driv(?:er|ing)['’]?s? licen[cs]e)"
    r"[\w '’]{0,24}?(?:is|:|=|no\.?|number)? ?"
    r"(?P<value>(?=[A-Z0-9 -]{0,5}\d)[A-Z0-9](?:[ -]?[A-Z0-9]){6,19})\b"
)
_FORMS = {  # numbers whose form says what they are: modules of python-stdnum
    "social security number": (re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"), "us.ssn"),
    "codice fiscale": (
        re.compile(r"\b[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]\b"),
        "it.codicefiscale",
    ),
    "Spanish id": (re.compile(r"\b(?:\d{8}-?[A-Z]|[XYZ]-?\d{7}-?[A-Z])\b"), "es.nie|es.dni"),
    "Finnish id": (re.compile(r"\b\d{6}[-+A]\d{3}[0-9A-Z]\b"), "fi.hetu"),
    "Indian PAN": (re.compile(r"\b[A-Z]{5}\d{4}[A-Z]\b"), "in_.pan"),
}
_ID_DIGITS = 5  # least number of them in what follows "passport number"
_CALLS = re.compile(r"(?i)\b(?:phone|mobile|cell|tel|telephone|call|ring|text|whatsapp|fax)\b")
_REGIONS = ("US", "GB", "DE", "FR", "IN")  # of numbers without a country, where a word says phone


@cache
def _checks() -> Any:
    try:
        names = (
            "iban",
            "luhn",
            "us.ssn",
            "it.codicefiscale",
            "es.nie",
            "es.dni",
            "fi.hetu",
            "in_.pan",
        )
        modules = {name: import_module(f"stdnum.{name}") for name in names}
        return modules, import_module("phonenumbers")
    except ImportError as error:
        raise MissingExtraError(str(error.name), "audit") from error


def identifier_spans(text: str) -> list[Sensitive]:
    """Return what identifies a person in a text, in order, none inside another."""
    spans = _emails(text)
    if re.search(r"\d{2}", text):
        spans += [*_numbers(text), *_phones(text)]
    return split_parts(spans)


def _emails(text: str) -> list[Sensitive]:
    return [
        Sensitive(*match.span(), "e-mail address")
        for match in _EMAIL.finditer(text)
        if not _PASSWORD_OF_URL.search(text[: match.start()])
    ]


def _numbers(text: str) -> Iterator[Sensitive]:
    modules, _ = _checks()
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match[0])
        if digits[0] in "23456" and len(digits) >= 14 and modules["luhn"].is_valid(digits):
            yield Sensitive(*match.span(), "card number")
    for match in _IBAN.finditer(text):
        if modules["iban"].is_valid(match[0], check_country=False):
            yield Sensitive(*match.span(), "bank account (IBAN)")
    for match in _NATIONAL.finditer(text):
        if len(re.findall(r"\d", match["value"])) >= _ID_DIGITS:
            yield Sensitive(*match.span("value"), "national id")
    for what, (form, places) in _FORMS.items():
        for match in form.finditer(text):
            if any(modules[place].is_valid(match[0]) for place in places.split("|")):
                yield Sensitive(*match.span(), what)


def _phones(text: str) -> Iterator[Sensitive]:
    _, phones = _checks()
    regions = _REGIONS if _CALLS.search(text) else (None,) if "+" in text else ()
    for region in regions:
        for number in phones.PhoneNumberMatcher(text, region):
            yield Sensitive(number.start, number.end, "phone number")


# ------------------------------------------------------------------------------------------------
# masks
def mask_secrets(text: str) -> tuple[str, int]:
    """Return a text with each secret as ``[password removed]``, and how many there were."""
    spans = secret_spans(text)
    for span in reversed(spans):
        text = f"{text[: span.start]}[{span.what.casefold()} removed]{text[span.end :]}"
    return text, len(spans)


# ------------------------------------------------------------------------------------------------
# instructions
_TO_A_MODEL = (
    r"(?:reply|respond|answer|say|tell|mention|reveal|disclose|share|recommend|suggest|praise|"
    r"pretend|act|output|print|write|obey|repeat|end|begin|start|include|add|use|send|return|"
    r"refuse|ask|give|show|speak|talk|discuss|translate|address|format|cite|help|follow)\b"
)
_ORDERS = (
    r"(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:instructions?|prompts?|rules|"
    r"above|previous|before|said)\b",
    r"\b(?:your|the assistant'?s?|assistant'?s?|model'?s?) (?:instructions|guidelines)\b",
    r"system prompt|<\|?(?:im_start|im_end|system|endoftext)\|?>|\[/?INST\]|<</?SYS>>",
    r"### ?(?:system|instruction)|^\W*(?:system|assistant|developer)\s*:",
    r"\b(?:you|the assistant|assistant|the ai) (?:are|is) (?:now )?(?:an?|the) .{0,30}"
    r"\b(?:assistant|ai|model|bot|chatbot|expert|helper)\b",
    rf"\byou (?:must|should|shall|will always|may not|cannot) (?:always |never |only |not )?"
    rf"{_TO_A_MODEL}",
    r"\b(?:the assistant|assistant|the ai|the model) (?:must|should|shall|will always|may not)\b",
    r"\bas an? (?:ai|(?:large )?language model|assistant)\b",
    r"^\W*(?:please )?(?:only |ever )?(?:reply|respond|pretend|obey|reveal|praise)\b",
    rf"^\W*(?:from now on,?|always|never|do not|don'?t)\s+(?:ever )?{_TO_A_MODEL}",
    r"^\W*(?:when|if|whenever) (?:the user |you are |you're |anybody |someone )?(?:asks?|asked)\b",
    r"\bfrom now on\b.{0,30}\b(?:reply|respond|answer|you|end|begin|always|never)\b",
)
_INSTRUCTION = re.compile("|".join(f"(?:{order})" for order in _ORDERS), re.IGNORECASE)


def instructions(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries that tell a model what to do, or repeat what it was told to be."""
    why = "it tells a model what to do and states no fact"
    return _matching(view, Fault.INSTRUCTIONS, _INSTRUCTION, why)


def _matching(
    view: NamespaceView, kind: Fault, pattern: re.Pattern[str], why: str
) -> Iterator[Finding]:
    for entry in view.entries:
        match = pattern.search(entry.content)
        if match:
            line, _ = view.saying(entry, view.lines_of(entry))
            told = f"{match[0][:60]!r} {why}"
            yield view.finding(kind, entry, told, view.removal(entry), line)


# ------------------------------------------------------------------------------------------------
# dead ends
_THING = (
    r"\b(?:build|search|query|request|download|upload|deploy\w*|tests?|job|server|site|website|page|"
    r"script|install\w*|compil\w+|sync|backup|import|export|file|attachment|tool|api|link|model|"
    r"connection|agent|assistant|attempt|command|process|task|pipeline|migration|database|app|call|"
    r"update|render\w*|scan|program)\b"
)
_STATE = (
    r"\b(?:(?:is|are|was|were) (?:still |currently |now )?(?:running(?! (?:an?|the|for|in)\b)|"
    r"building|loading|pending|queued|waiting|processing|compiling|uploading|downloading|down|stuck|offline|unavailable)"
    r"|in progress|(?:is )?at \d+ ?(?:%|percent)|timed out|time-?out|crashed|failed"
    r"|(?:returned|gave|had|has|found|with|shows?) (?:no|nothing)"
    r"|(?:does|did|do|could|would|will)(?: not|n'?t) (?:load|open|work|respond|answer|finish|start|"
    r"find)|not (?:found|available|able)|no results?|errors?\b)"
)
_FAILED = (
    r"\b(?:could(?: not|n'?t)|cannot|can'?t|(?:was|were|is)(?: not|n'?t) able to|unable to|"
    r"failed to|did(?: not|n'?t)|does(?: not|n'?t)|has no|found no)\b"
)
_DEAD_ENDS = re.compile(
    rf"{_THING}.{{0,40}}?{_STATE}|\b(?:assistant|agent|model|tool|ai|i)\b.{{0,10}}{_FAILED}"
    r"|\bno (?:results?|information|data|matches|records?)\b.{0,20}"
    r"\b(?:found|available|about|on|for)\b"
    r"|\b(?:there (?:is|was|are)|found) (?:no|nothing)\b|\bnothing (?:was )?found\b"
    r"|\b(?:is|was|it is) (?:not known|unknown|unclear)\b|\bnot (?:specified|mentioned|provided)\b",
    re.IGNORECASE,
)


def dead_ends(view: NamespaceView) -> Iterator[Finding]:
    """Yield entries about what failed or was going on: not of a person, and soon not true."""
    why = "it was the state of a task and is not a lasting fact"
    return _matching(view, Fault.DEAD_ENDS, _DEAD_ENDS, why)
