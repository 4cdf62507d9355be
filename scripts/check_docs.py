"""Check the pages of the repository for what a machine can see of plain language.

    python scripts/check_docs.py              every page; exit code 1 if one has a problem
    python scripts/check_docs.py FILE ...     these pages

A page says what is so, and results say what was measured. So a page that is not a record has no
date and no word of history ("now", "no more", "as before"). In prose a share is in per cent, and a
decimal has a noun; ".905" stands in tables alone. A sentence has at most 35 words, and a column of
numbers a unit, in its head or in the sentence before the table. Paths and links lead somewhere.

Code blocks and inline code are not looked at, but for the paths in them.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MOST_WORDS = 35
# Records of what was done and measured: dates and history belong there.
RECORDS = (
    "CHANGELOG.md",
    "docs/performance.md",
    "docs/research-log.md",
    "docs/results.md",
    "docs/newest.md",
    "docs/slow-tests.md",
    "data/adapters/",
    "data/trial/",
    "data/written/",
)
# by programs, of names
GENERATED = ("docs/reference/base-models.md", "docs/newest.md", "docs/slow-tests.md")

HISTORY = re.compile(
    r"\b(?:nowadays|now|no more|until now|so far|formerly|previously|lately|recently)\b"
    r"|\b(?:as|than|of|from) before\b|\bbefore[.;:)]|\bafter[.;:)]|\b20\d\d-\d\d(?:-\d\d)?\b",
    re.IGNORECASE,
)
BARE = re.compile(r"(?<![\w.,])[-+±−]?\.\d+|(?<![\w.,/])0\.\d+(?![\d.]*\d?[.\w-])(?=(.{0,12}))")
NAMED = re.compile(
    r"\b(?:cosine|similarity|weight|probability|temperature|version|rate|score|threshold|ratio"
    r"|coverage|default|least|points|interval)\b(?:\W+\w+){0,4}\W*$",
    re.IGNORECASE,
)
UNITS = re.compile(
    r"%|\bper cent\b|\bshares?\b|\b(?:s|ms|seconds?|minutes?|hours?|days?|date)\b"
    r"|\b(?:[KMG]i?B|bytes?|[KMG]i?B/s|TFLOP/s)\b|\b(?:tokens?|steps?|words?|lines?|entries|rows?|chunks?)\b"
    r"|\b(?:questions?|instances?|messages?|calls?|conversations?|dialogues?|trials?|checks?|tests?)\b"
    r"|\b(?:numbers?|counts?|times|points?|ratio|nats?|values?|weights?|default|version|status|code)\b"
    r"|\bof \d+\b",
    re.IGNORECASE,
)
NUMBER = re.compile(r"^[*~<≤≥>+±−-]*\d*[.,]?\d[\d.,]*\b")
SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')*]*\s+(?=[\"'(*`\[]?[A-Z0-9`])")
PATH = re.compile(
    r"^(?:memalpha|docs|configs|scripts|tests|examples|notebooks|data/adapters)/[\w./-]+$"
)


class Problem(NamedTuple):
    """What is wrong at a line (from 1) of a page."""

    page: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.what}"


def text_of(token: Token) -> str:
    """The words of an inline token as a reader sees them; inline code is one word."""
    parts = []
    for child in token.children or []:
        if child.type == "code_inline":
            parts.append("CODE")
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
        elif child.type == "text":
            parts.append(child.content)
    return "".join(parts)


def sentence_problems(text: str, record: bool = False, table: bool = False) -> Iterator[str]:
    """What is wrong in a piece of prose, each said in a line."""
    for sentence in SENTENCE_END.split(text):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > MOST_WORDS:
            yield f"a sentence of {len(words)} words (at most {MOST_WORDS}): {sentence[:60]!r}..."
    if not record:
        for match in HISTORY.finditer(text):
            yield f"history in a page that is no record: {around(text, match)!r}"
    if not table:
        for match in BARE.finditer(text):
            after = match[1] or ""
            is_bare = match[0].lstrip("-+±−").startswith(".")
            said = NAMED.search(text[: match.start()]) and not is_bare
            if not said and not UNITS.match(after.strip()):
                yield f"a decimal without a noun or unit: {around(text, match)!r}"


def around(text: str, match: re.Match[str]) -> str:
    """The match with some letters on either side."""
    return text[max(0, match.start() - 25) : match.end() + 25]


def table_problems(head: list[str], body: list[list[str]], caption: str) -> Iterator[str]:
    """Columns of numbers whose unit is nowhere: not in the head, nor in the sentence before."""
    for number, name in enumerate(head):
        cells = [row[number] for row in body if number < len(row) and row[number].strip(" -–")]
        numeric = [cell for cell in cells if NUMBER.match(cell.strip())]
        if cells and 2 * len(numeric) > len(cells):
            said = " ".join([name, head[0], caption])
            if not UNITS.search(said) and not all(UNITS.search(cell) for cell in numeric):
                yield f"a column of numbers without a unit: {name or 'without a name'!r}"


def path_problems(token: Token, page: Path) -> Iterator[str]:
    """Links and paths that lead nowhere."""
    for child in token.children or []:
        if child.type in ("link_open", "image"):
            target = str(child.attrGet("href") or child.attrGet("src"))
            place = target.split("#")[0]
            if place and "://" not in target and not target.startswith("mailto:"):
                made = (page.parent / place).name in ("command-line.md", "options.md")
                if not made and not (page.parent / place).exists():
                    yield f"a link to nothing: {target}"
        elif is_missing(child):
            yield f"a path that is not there: {child.content}"


def is_missing(child: Token) -> bool:
    """Whether inline code is a path of the repository that is not there."""
    is_path = child.type == "code_inline" and PATH.match(child.content)
    return bool(is_path) and "NAME" not in child.content and not (ROOT / child.content).exists()


def check_page(path: Path, root: Path = ROOT) -> list[Problem]:
    """Return the problems of a page, in the order of its lines."""
    name = path.relative_to(root).as_posix()
    record = name.startswith(RECORDS)
    problems: list[Problem] = []
    head: list[str] = []
    body: list[list[str]] = []
    row: list[str] = []
    caption, in_table = "", False
    line = 0
    text = path.read_text(encoding="utf-8")
    front = re.match(r"---\n.*?\n---\n", text, re.DOTALL)  # data of a model card
    if front:
        text = "\n" * front[0].count("\n") + text[front.end() :]
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        line = token.map[0] + 1 if token.map else line
        whats: list[str] = []
        if token.type == "table_open":
            head, body, in_table = [], [], True
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            if head:
                body.append(row)
            else:
                head = row
        elif token.type == "table_close":
            whats, in_table = list(table_problems(head, body, caption)), False
        elif token.type == "inline":
            words = text_of(token)
            if in_table:
                row.append(words)
            else:
                caption = words
            if name not in GENERATED:
                whats = list(sentence_problems(words, record, in_table))
            whats += path_problems(token, path)
        problems += [Problem(name, line, what) for what in whats]
    return problems


def pages() -> list[Path]:
    """Every page that is written for readers."""
    folders = ("", "docs/**/", "configs/", "data/", "data/**/", "examples/", ".github/")
    found = {path for folder in folders for path in ROOT.glob(f"{folder}*.md")}
    return sorted(found)


def main(names: list[str]) -> int:
    """Print the problems of the pages and return the exit code."""
    chosen = [Path(name).resolve() for name in names] or pages()
    problems = [problem for path in chosen for problem in check_page(path)]
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems in {len(chosen)} pages")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
