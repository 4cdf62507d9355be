"""The archive of what was read, line by line, and the one rule of which of two statements is newer.

The lines are searched beside the entries; the policy neither sees nor writes them. A statement is
newer by its date where both have one, else by the chunk that said it. What merely resembles a newer
statement ranks lower in a search and never disappears. A line leaves the archive only when an
operation updates or deletes the entry of its fact: of each chunk in which the entry was written,
the line that says the same is removed (``line_of``).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from memalpha.conversation.messages import ASSISTANT, USER
from memalpha.conversation.pasted import mark_pasted
from memalpha.memory.memory import LINE_ID, Memory, newer
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval.lexical import tokenize
from memalpha.speakers import PASTED, speaker_labels, speaker_of, split_speaker
from memalpha.text.times import later
from memalpha.types import Change, Chunk, Entry, Operation, OperationKind, Span, TokenCounter
from memalpha.units import QUESTION_ENDS, UNIT_TOKENS, sentences, units

ALIKE = 0.55  # cosine of statements that say nearly the same
# the same, where dates do not tell which is newer: what stands further down in one text may be no
# newer version
UNDATED = 0.65
# how much less a newer statement may score to fit a question about as well as an older one
NEAR = 0.1
OUTDATED = 0.15  # what a statement loses of its score if a newer one says nearly the same
# what it loses if that one fits as well and one of the two is a line: two entries were both meant
_REPLACED = 0.3
# how many places it goes down at most: where many lines are read, most resemble a newer one
PLACES = 8
FACT = 0.35  # least Dice coefficient of the words of a fact and of the line that says it
BY_OTHERS = 0.6  # of a line of somebody whom the fact does not name


def losses(
    entries: Sequence[Entry],
    ranks: Sequence[float],
    scores: Sequence[float],
    cosines: NDArray[np.float32],
) -> list[float]:
    """Return what each entry loses of its rank, best first, to a newer one that resembles it.

    ``scores`` say how well each fits the question; ``cosines``: (entries, entries). Nothing loses
    to what an assistant said or somebody pasted, but for what was said or pasted so before.
    """
    lost = [0.0] * len(entries)
    for row, other in newer_versions(entries, cosines, ALIKE):
        a_line = ARCHIVE.name in (entries[row].section, entries[other].section)
        fits = a_line and scores[other] >= scores[row] - NEAR
        lost[row] = max(lost[row], _REPLACED if fits else OUTDATED)
    for row, rank in enumerate(ranks[:-PLACES]):
        lost[row] = min(lost[row], rank - ranks[row + PLACES])
    return lost


def newer_versions(
    entries: Sequence[Entry], cosines: NDArray[np.float32], alike: float
) -> Iterator[tuple[int, int]]:
    """Yield the rows of each statement and of a newer one that resembles it; ``cosines``: (entries,
    entries), at least ``alike``.

    Nothing that a person said has a newer version that an assistant said or somebody pasted.
    """
    unsaid = [by_assistant(entry) or is_pasted(entry) for entry in entries]
    for row, other in np.argwhere(cosines >= alike):
        if unsaid[other] and not unsaid[row]:
            continue
        dated = later(entries[other].timestamp, entries[row].timestamp) is not None
        if newer(entries[other], entries[row]) and (dated or cosines[row, other] >= UNDATED):
            yield int(row), int(other)


def turn_of(line: Entry, memory: Memory) -> str | None:
    """Return the id of the first line of a turn: lines in a row of one speaker in one chunk.

    None for what is no line, or has no speaker.
    """
    speaker = speaker_of(line.content)
    if line.section != ARCHIVE.name or not speaker:
        return None
    first = line
    before = memory.line_before(first)
    while before is not None and before.source_chunk == line.source_chunk:
        if speaker_of(before.content) != speaker:
            break
        first = before
        before = memory.line_before(first)
    return first.id


def line_of(fact: Entry, lines: Sequence[Entry], after: Entry | None = None) -> Entry | None:
    """Return the line that says a fact, of several the last; None if it is not clear that any does.

    It has at least half of the words that ``after`` took away (all, without it), and few others: a
    line that says more than the fact, or says something else and only shares a name with it, is not
    meant. Somebody whom the fact does not name must say it almost in its words.
    """
    best = None
    most = 0.0
    every = set(tokenize(fact.content))
    left = set(tokenize(after.content)) if after else set()
    for line in lines:
        speaker, text = _words_and_text(line.content)
        of_fact = every - speaker
        of_line = set(tokenize(text)) - speaker
        gone = of_fact - left
        dice = 2 * len(of_fact & of_line) / max(1, len(of_fact) + len(of_line))
        least = FACT if speaker <= every else BY_OTHERS
        if dice >= max(least, most) and 2 * len(gone & of_line) >= len(gone) > 0:
            best = line
            most = dice
    return best


def says(text: str, entry: Entry) -> bool:
    """Whether a text says an entry that a model has written again: one of its lines has at least
    half of the entry's words, without the name of the speaker. A model also repeats entries that
    its memory shows.
    """
    every = set(tokenize(entry.content))
    for line in units(text, UNIT_TOKENS, lambda part: len(part.split())):
        speaker, said = _words_and_text(line)
        words = every - speaker
        if 2 * len(words & set(tokenize(said))) >= len(words):
            return True
    return False


def by_assistant(entry: Entry) -> bool:
    """Whether an entry is a line of an assistant."""
    return entry.section == ARCHIVE.name and entry.content.lower().startswith(f"{ASSISTANT}: ")


def is_pasted(entry: Entry) -> bool:
    """Whether an entry is a line of what somebody pasted, who does not say it himself."""
    return entry.section == ARCHIVE.name and speaker_of(entry.content).endswith(PASTED)


def only_asks(entry: Entry) -> bool:
    """Whether an entry is a line that asks and states nothing, of somebody who is no assistant."""
    if entry.section != ARCHIVE.name or by_assistant(entry):
        return False
    return is_question(split_speaker(entry.content)[1])


def is_question(text: str) -> bool:
    """Whether each sentence of a text asks, so that it states nothing."""
    text = text.strip()
    return text.endswith(QUESTION_ENDS) and all(
        text[slice(*sentence)].endswith(QUESTION_ENDS) for sentence in sentences(text)
    )


def line_after(line: Entry) -> str:
    """Return the id that the line has that was added right after another, if there is one."""
    return f"{LINE_ID}{line.created + 1}"


def words_said(line: str) -> set[str]:
    """Return the words of a line, the name of who speaks included, unless it is a role."""
    speaker, text = _words_and_text(line)
    return set(tokenize(text)) | (speaker - {USER, ASSISTANT})


def _words_and_text(line: str) -> tuple[set[str], str]:
    """The words of the name of who speaks, and what is said."""
    speaker, text = split_speaker(line)
    return set(tokenize(speaker.removesuffix(PASTED))), text


# ------------------------------------------------------------------------------------------------
# the archive


def archive_all(memory: Memory, chunks: Sequence[Chunk]) -> None:
    """Keep every line of the chunks, of which nobody has written anything."""
    for index, chunk in enumerate(chunks):
        archive_chunk(memory, index, chunk, ())


def lines_of_text(
    text: str, count: TokenCounter, labels: Sequence[Span] | None = None
) -> list[str]:
    """Return the lines that an archive keeps of a text (``units``); what people have pasted has a
    label of its own.
    """
    marked, places = mark_pasted(text, speaker_labels(text) if labels is None else labels)
    known = labels is not None or marked != text
    return units(marked, UNIT_TOKENS, count, places if known else None)


def archive_chunk(
    memory: Memory,
    index: int,
    chunk: Chunk,
    changes: Sequence[Change],
    labels: Sequence[Span] | None = None,
) -> list[int]:
    """Add the lines of a chunk, and remove those whose facts ``changes`` took back.

    ``index`` and ``changes`` are those of the chunk; ``labels`` of its speakers, if they are known.
    Return the numbers of the changes that added a line.
    """
    changes = [change for change in changes if not _renews(change)]
    corrects = any(change.before is not None for change in changes)
    lines = list(memory.entries(ARCHIVE.name)) if corrects else []
    for before, after in changes:
        if before is None:
            continue
        for version in _versions(memory, before):
            of_chunk = [line for line in lines if line.source_chunk == version.source_chunk]
            line = line_of(version, of_chunk, after)
            if line is not None:
                lines.remove(line)
                delete = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=line.id)
                memory.apply(delete, chunk=index, time=chunk.time)
    numbers = []
    for text in lines_of_text(chunk.text, memory.count_tokens, labels):
        insert = Operation(OperationKind.INSERT, ARCHIVE.name, text)
        number = memory.clock
        if memory.apply(insert, chunk=index, time=chunk.time).logged:
            numbers.append(number)
    return numbers


def _renews(change: Change) -> bool:
    """Whether an entry says what it said, of a later time."""
    before, after = change
    return bool(before and after and before.content == after.content)


def _versions(memory: Memory, entry: Entry) -> list[Entry]:
    """What an entry said, in each chunk that wrote it, and what it says now."""
    written = [change.after for change in memory.changes if change.after is not None]
    versions = [version for version in (*written, entry) if version.id == entry.id]
    return list({(version.source_chunk, version.content): version for version in versions}.values())
