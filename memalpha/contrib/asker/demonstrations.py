"""Demonstrations of an asker, made by a teacher that knows the evidence.

The teacher answers once the notes hold the answer. Otherwise it tries the names that stand in the
notes, alone and in place of a name of the question, and takes the search that finds most of the
missing evidence. So the notes always suggest the search. If nothing helps, the teacher gives up.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from memalpha.agent.step import AgentStep
from memalpha.contrib.asker.reader import AskerStep, Inquiry
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.metrics import contains, is_teachable, needs_all
from memalpha.qa.readers import SEARCH, UNKNOWN, request_to_read, wanted_answers
from memalpha.speakers import speaker_of
from memalpha.text.encoding import chat_ids
from memalpha.types import Instance, Question
from memalpha.update.logps import CompletionRow

_TRIED = 12  # most names that are tried for a turn
_CAPITAL = r"[A-Z][\w'’-]+"
_NAME = re.compile(  # of several words, or one that begins no sentence
    rf"\b{_CAPITAL}(?:\s+(?:(?:of|the|de|von|van)\s+)?{_CAPITAL})+"
    rf"|(?<![.!?:\]\"“]\s)(?<!^)\b{_CAPITAL}"
)


def demonstrate_asking(
    instances: Iterable[Instance],
    agent: AgentStep,
    teacher: TeacherConfig,
    end_token: int,
    seed: int,
) -> Iterator[CompletionRow]:
    """Yield a demonstration for each turn of questions whose answer a reader can write.

    Of the questions of an instance that need no search, as many are shown as of those that do.
    InputError if the agent has no archive, or may not search.
    """
    config = agent.config
    if not config.searches or not config.archive:
        raise InputError(
            f"teaches is asker, but searches is {config.searches} and archive is {config.archive}",
            expected="searches of 1 or more, and archive true, since the asker's evidence is in "
            "the "
            "archive",
        )
    asker = AskerStep(config.reader_tokens, agent.encoder.count, config.searches)
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        memory = agent.new_memory()
        teach(memory, instance, rng, teacher, keep_lines=config.archive)
        retriever = agent.new_retriever(memory)
        shown = []
        for question in instance.questions:
            if is_teachable(question):
                request, _ = request_to_read(question, memory, retriever, config.retrieve_k)
                wanted = NeededNotes.of(question, memory)
                shown.append(_turns(asker.begin(request), asker, wanted, agent, end_token))
        searching = [turns for turns in shown if len(turns) > 1]
        at_once = [turns for turns in shown if len(turns) == 1]
        some = rng.sample(at_once, min(len(at_once), max(1, len(searching))))
        yield from chain.from_iterable([*searching, *some])


def _turns(
    inquiry: Inquiry, asker: AskerStep, wanted: "NeededNotes", agent: AgentStep, end_token: int
) -> list[CompletionRow]:
    rows = []
    while inquiry.answer is None:
        reply = good_reply(inquiry, asker, wanted)
        prompt = chat_ids(agent.encoder.tokenizer, asker.chat(inquiry))
        completion = (*agent.encoder.untrusted(reply), end_token)
        rows.append(CompletionRow(prompt, completion, len(prompt)))
        asker.take(inquiry, reply)
    return rows


@dataclass(frozen=True)
class NeededNotes:
    """The answers that the notes of a question must hold.

    ``groups``: one passage of each. ``chunks``: the passages of each chunk of the evidence, where
    no subject tells which of them count. ``speakers``: who speaks in the memory.
    """

    question: Question
    groups: tuple[frozenset[str], ...]
    chunks: tuple[frozenset[str], ...]
    speakers: frozenset[str]

    @classmethod
    def of(cls, question: Question, memory: Memory) -> "NeededNotes":
        """Find the passages of a memory that a question needs."""
        lines = memory.entries(ARCHIVE.name)
        of_chunks = [
            frozenset(render_entry(line) for line in lines if line.source_chunk == chunk)
            for chunk in question.evidence or ()
        ]
        if question.metric == "absent":  # the line that takes it back
            words = [*question.stale, *filter(None, [question.subject])]
            groups = [
                frozenset(text for text in chunk if any(contains(text, word) for word in words))
                for chunk in of_chunks[-1:]
            ]
        elif {answer.casefold() for answer in question.answers} <= {"yes", "no"}:
            groups = of_chunks  # no passage says it; it follows from all of them
        elif needs_all(question):
            groups = [_holding(memory, question, gold) for gold in question.answers]
        else:
            holding = [_holding(memory, question, gold) for gold in question.answers]
            groups = [frozenset().union(*holding)]
        chunks = () if question.subject else tuple(of_chunks)
        speakers = frozenset(speaker_of(line.content) for line in lines) - {""}
        return cls(question, tuple(groups), chunks, speakers)

    def held(self, notes: Sequence[str]) -> tuple[int, int]:
        """Return how many groups, and how many chunks of the evidence, the notes hold."""
        shown = set(notes)
        groups = sum(not shown.isdisjoint(group) for group in self.groups)
        return groups, sum(not shown.isdisjoint(chunk) for chunk in self.chunks)

    def answer(self, notes: Sequence[str]) -> str | None:
        """Return what the notes say; None if they do not."""
        question = self.question
        if question.metric == "absent":
            old = any(contains(note, stale) for note in notes for stale in question.stale)
            known = not old or self.held(notes)[0] == len(self.groups)
            return UNKNOWN if known and self.groups else None
        if self.held(notes)[0] < len(self.groups):
            return None
        return wanted_answers(question)[0]


def _holding(memory: Memory, question: Question, word: str) -> frozenset[str]:
    """Return the notes about the subject of a question, and the lines of its evidence, that say a
    word.
    """
    evidence = question.evidence
    archived = memory.entries(ARCHIVE.name)
    lines = (line for line in archived if evidence is None or line.source_chunk in evidence)
    about = question.subject
    notes = (note for note in memory.entries() if about is None or contains(note.content, about))
    passages = map(render_entry, (*notes, *lines))  # with their dates, which some questions ask for
    return frozenset(passage for passage in passages if contains(passage, word))


def good_reply(inquiry: Inquiry, asker: AskerStep, wanted: NeededNotes) -> str:
    """Return the reply that a good asker would give in the next turn."""
    answer = wanted.answer(inquiry.notes)
    if answer is not None:
        return answer
    if not asker.may_search(inquiry):
        return UNKNOWN
    best = None
    most = wanted.held(inquiry.notes)
    for words in searches_to_try(inquiry, wanted.speakers):
        trial = replace(inquiry, shown=set(inquiry.shown), searches=list(inquiry.searches))
        asker.take(trial, f"{SEARCH} {words}".strip())
        held = wanted.held(trial.notes)
        if held > most:
            best = words
            most = held
    return UNKNOWN if best is None else f"{SEARCH} {best}".strip()


def searches_to_try(inquiry: Inquiry, speakers: frozenset[str]) -> list[str]:
    """Return searches that question and notes suggest: the question with another speaker in it,
    then names; the last, without words, takes what comes next for the question.
    """
    question = inquiry.request.question.text
    asked = _NAME.findall(question)
    others = [name for name in sorted(speakers) if name not in question]
    named = [name for name in others if any(contains(note, name) for note in inquiry.notes)]
    swapped = [question.replace(old, name) for name in named for old in asked]
    names = dict.fromkeys(name for note in inquiry.notes for name in _NAME.findall(note))
    new = [name for name in (*named, *names) if name not in question]
    tried = dict.fromkeys([*swapped, *new[:_TRIED], *asked, ""])
    return [words for words in tried if words not in inquiry.searches]
