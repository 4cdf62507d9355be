"""Who speaks: labels of speakers in a text, and how what somebody says is written behind one."""

import re
from itertools import groupby

from memalpha.text.quoting import strip_marks
from memalpha.types import Span

# a line, with the line that labels it
LABELLED_LINE = re.compile(r"Label: [^\n]*\S|\S[^\n]*(?:\n[^\S\n]*Label: [^\n]*\S)?")
_NAME = r"[^\W\d_][\w.'’&-]*(?: (?:[0-9]+|[^\W\d_][\w.'’&-]*)){0,4}"
# with a time or a role beside the name, which may be bold: "[10:30] Marta:", "**Marta (nurse):**"
_SPEAKER = re.compile(
    r"^(?:\[[^\[\]\n]{1,40}\] |\([^()\n]{1,40}\) "
    r"|[0-9][0-9/.:,TZ +-]{2,24}(?:[AaPp]\.?[Mm]\.?)?[ ,-]{1,3})?"
    rf"[*_]{{0,2}}(?P<name>{_NAME})"
    r"(?:,? ?[\[(][^\[\]()\n]{1,40}[\])]|,? [0-9]{1,2}[:.][0-9]{2})?"
    r"[*_]{0,2}(?:：| ?:(?:\*\*|__)?(?=\s))",
    re.MULTILINE,
)
# A header such as "[Session 2, 2024-03-05]", or a line that the next one labels.
_HEADER = re.compile(
    r"^(?:\[(?=[^\n0-9]*[0-9])[^\n]*\][^\S\n]*$|[^\n]+\n[^\S\n]*Label: )", re.MULTILINE
)
_ROLE = re.compile(
    r"(?i:user|assistant|system|human|ai|bot|agent|customer|speaker|person)"
    r"(?:[ _][0-9A-Za-z]{1,2})?"
)
_MESSAGE = ("user: ", "assistant: ")  # how a message of a chat is written down
# words that stand before a colon as names do
_HEADINGS = frozenset(
    """
    " about abstract action actions address advice age agenda answer answers args article at author
    background bcc before birthday born breakfast breaking by category caution cc chapter chat city
    class code color comment comments conclusion cons content contents context cost date dear debug
    definition description details diary dinner directions distance due duration edit education
    email error event example examples except fact facts fig figure file finally first for friday
    from fwd gender goal goals headline hint history hobbies how hypothesis idea ideas important in
    info ingredients input instructions interests introduction issue it item items job keywords
    label last lesson level line link list location lunch materials menu message method methods
    monday moral my name nationality next nickname no note notes objective occupation on option
    options order our output overview page part phone place plan please population premise
    preparation price problem procedure project prompt pros protagonist ps purpose query question
    questions raises re reason recipe references relationship relationships remark remedy remember
    reminder reply-to requirements result results return returns rule rules saturday schedule score
    second section sent sentence shopping size skills solution source sources status step steps
    story subject sum summary sunday supplies table tags task tasks tel temperature test text that
    the there these things this thought thursday time times tip tips title to today todo tomorrow
    tonight topic topics total traceback translation tuesday type update url usage utterance value
    values version warning warnings we weather website wednesday what when where which who why with
    word words yesterday you your
    """.split()
)


_LINE_ENDS = re.compile("(\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])")
_COLONS = dict.fromkeys(map(ord, "：﹕︓∶꞉ː˸"), ": ")  # those of other scripts need no space behind
_COLON = re.compile(r":(?!//)")
# what every label or header has one of, also what NFKC makes of others
_MARK = re.compile(f"[{''.join(map(chr, _COLONS))}:\u2a74\\[\uff3b\ufe47]")
_LETTER = re.compile(r"[^\W\d_]")
_LABEL_WORD = re.compile(r"[^\W_](?:[^\s*_\[\](){}\"“”<>|#`~]*[^\W_])?")
_LABEL_WORDS = 5
_LONGEST_NAME = 40  # characters
_ASIDE = re.compile(r"[\[(][^\[\]()]*[\])]")  # a time or a role beside a name
_AFTER = frozenset(" \t*_\"'”’»)]}>|`") | {""}
_LONGEST_LABEL = 120  # characters of a line that are looked at
_HEADER_LINE = re.compile(r"(?i)\s*(?:\[(?=[^0-9]*[0-9]).*\]\s*$|label\s*:)")
_NAME_WORDS = 4  # most of a name in a line that was written down
PASTED = " (pasted)"  # behind the name of who brought a text and does not say it himself


def speaker_of(line: str) -> str:
    """Return who says a line ``Speaker: text`` of an archive; empty if nobody is named.

    A name has four words at most; a line that begins with ``>`` is a quotation.
    """
    speaker, colon, _ = line.partition(": ")
    words = speaker.removesuffix(PASTED).split()
    is_name = len(words) <= _NAME_WORDS and not line.startswith(">")
    return speaker if colon and is_name else ""


def split_speaker(line: str) -> tuple[str, str]:
    """Return the speaker of a line (``speaker_of``), and the words."""
    speaker = speaker_of(line)
    return speaker, line.removeprefix(f"{speaker}: ") if speaker else line


def speaker_labels(text: str) -> list[Span]:
    """Return the labels of a dialogue in order, and an empty span where a header ends a turn.

    Nothing if it is no dialogue. A label begins a line and ends with a colon and white space. Its
    name is a role such as ``user`` (where two roles speak, or a role speaks first, nothing else is
    a label), or capitalised and no word of headings; any other word counts only if somebody speaks
    again after another. A text where nobody does is a dialogue of at most three speakers: it begins
    with a label, or most of its lines do.
    """
    candidates = list(_SPEAKER.finditer(text))
    matches = [
        match for match in candidates if _HEADINGS.isdisjoint(match["name"].casefold().split())
    ]
    roles = [match for match in matches if _ROLE.fullmatch(match["name"])]
    headers = {match.start() for match in _HEADER.finditer(text)}
    lines = [
        match.start() for match in LABELLED_LINE.finditer(text) if match.start() not in headers
    ]
    message = bool(lines) and text.startswith(_MESSAGE, lines[0])
    if len({match["name"] for match in roles}) > 1 or matches[:1] == roles[:1]:
        matches = roles
    turns = [name for name, _ in groupby(match["name"] for match in matches)]
    returns = len(set(turns)) < len(turns)
    matches = [
        match
        for match in matches
        if _is_name(match["name"]) or (returns and not text.startswith("\n", match.end()))
    ]
    begins = bool(matches and lines) and matches[0].start() == lines[0]
    spoken = begins or 2 * len(matches) > len(lines)
    few = len({match["name"] for match in candidates}) <= 3
    if not returns and not message and not (few and spoken):
        return []
    labels = [Span(*match.span()) for match in matches]
    return sorted([*(Span(start, start) for start in headers), *labels])


def quoted_labels(text: str) -> str:
    """Return what somebody says, for a place behind their label: ``> `` stands before each line but
    the first that a program or a model could read as the label of another, or as a header that
    ends a turn. So nobody can say something in the name of another. ``unquoted_labels`` takes it
    back.
    """
    if not _MARK.search(text):
        return text
    first, *others = _LINE_ENDS.split(text)
    for place in range(1, len(others), 2):
        if _may_label(others[place]):
            others[place] = f"> {others[place]}"
    return "".join([first, *others])


def unquoted_labels(text: str) -> str:
    """Return what was said, of a text that ``quoted_labels`` gave."""
    first, *others = _LINE_ENDS.split(text)
    for place in range(1, len(others), 2):
        if _may_label(others[place]):
            others[place] = others[place].removeprefix("> ")
    return "".join([first, *others])


def label_name(name: str) -> str:
    """Return a name as a label shows it: without colons and quotation signs before it, and not
    longer than one that is read.
    """
    plain = "".join(" " if ord(each) in _COLONS or each == ":" else each for each in name)
    return " ".join(plain.lstrip("> ").split())[:_LONGEST_NAME].rstrip()


def _may_label(line: str) -> bool:
    """Whether a line could be read as one that labels what follows, quoted before or not.

    At most five words stand before a colon, in any script, with marks, times, spaces or invisible
    characters in between; none is a word of headings.
    """
    line = line.lstrip("> ")[:_LONGEST_LABEL]
    if not _MARK.search(line):  # most lines have none
        return False
    label = _SPEAKER.match(line)
    if label and _HEADINGS.isdisjoint(label["name"].casefold().split()):
        return True
    seen = strip_marks(line if line.isascii() else line.translate(_COLONS))
    letter = _LETTER.search(line)
    capital = letter is not None and letter[0].isupper()
    first = _LETTER.search(seen)
    start = first.start() if first else len(seen)
    for colon in _COLON.finditer(seen, start):
        head = seen[start : colon.start()]
        words = _LABEL_WORD.findall(_ASIDE.sub("", head)) or _LABEL_WORD.findall(head)
        after = seen[colon.end() : colon.end() + 1]
        ends = after in _AFTER or (after.isalpha() and (after > "\x7f" or capital))
        if ends and 0 < len(words) <= _LABEL_WORDS and _HEADINGS.isdisjoint(words):
            return True
    return _HEADER_LINE.match(seen) is not None


def _is_name(name: str) -> bool:
    last = name.rpartition(" ")[2]
    capitalised = name[0].isupper() and (last[0].isupper() or last.isdecimal())
    return capitalised or _ROLE.fullmatch(name) is not None
