"""The asker: a reader that may search again before it answers.

It is asked as a reader is. A reply that begins with ``search:`` is a search; what is found joins
the notes, and it is asked again, ``searches`` times at most; then it has to answer. So it searches
in turns as SUMER's agent (arXiv 2511.21726), but does not read its own history: as MemSearcher's
(2511.02805) it has a bounded number of notes, here those that fit the reader's budget, each turn.

The notes of the next turn are, one of each in turn while they fit: what the search has found,
passages never shown before first, and the notes of this turn, best first. So about half of them
stay.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from typing_extensions import override

from memalpha.errors import ServiceError, raise_on_partial
from memalpha.qa.readers import SEARCH, ModelReader, answer_of, reader_messages, within_budget
from memalpha.types import Answer, Message, ReadRequest, TokenCounter

_QUERY = re.compile(r"(?P<words>.*?)(?:\s*@\s*(?P<when>\d{4}(?:-\d\d(?:-\d\d)?)?))?", re.DOTALL)


@dataclass(slots=True)
class Inquiry:
    """A question on its way to an answer.

    ``notes`` are read in the turn at hand, ``shown`` were in any. ``answer``: ServiceError if the
    model only thought; None: not yet.
    """

    request: ReadRequest
    notes: tuple[str, ...]
    shown: set[str]
    searches: list[str] = field(default_factory=list)
    answer: Answer | ServiceError | None = None


class AskerStep:
    """Makes the prompts of an asker's turns and applies its replies, as ``AgentStep`` does for the
    policy that writes.

    ``budget_tokens`` bounds the notes of a turn. A request without ``search`` is answered from its
    passages.
    """

    def __init__(self, budget_tokens: int, count_tokens: TokenCounter, searches: int) -> None:
        self.budget_tokens = budget_tokens
        self.count_tokens = count_tokens
        self.searches = searches

    def begin(self, request: ReadRequest) -> Inquiry:
        """Return a question before its first turn."""
        notes = self._fitting(request.passages)
        return Inquiry(request, notes, set(notes))

    def chat(self, inquiry: Inquiry) -> list[Message]:
        """Return the messages of the next turn."""
        searches = inquiry.searches if self.may_search(inquiry) else None
        return reader_messages(inquiry.request.question.text, inquiry.notes, searches=searches)

    def may_search(self, inquiry: Inquiry) -> bool:
        """Whether the next turn may search; if not, it has to answer."""
        return inquiry.request.search is not None and len(inquiry.searches) < self.searches

    def take(self, inquiry: Inquiry, reply: str) -> None:
        """Search as a reply wants, or end the inquiry with it."""
        outcome = answer_of(reply)
        if isinstance(outcome, ServiceError):
            inquiry.answer = outcome
            return
        search = inquiry.request.search if self.may_search(inquiry) else None
        if search is None or not outcome.text.startswith(SEARCH):
            searches = tuple(inquiry.searches)
            inquiry.answer = replace(outcome, read=inquiry.notes, searches=searches)
            return
        wanted = outcome.text.removeprefix(SEARCH).strip()
        words, when = parse_query(wanted)
        found = search(words if words or when else inquiry.request.question.text, when)
        inquiry.searches.append(wanted)
        new = [passage for passage in found if passage not in inquiry.notes]
        new.sort(key=inquiry.shown.__contains__)  # stable: those never shown first
        in_turn = chain.from_iterable(zip_longest(new, inquiry.notes))
        inquiry.notes = self._fitting([passage for passage in in_turn if passage is not None])
        inquiry.shown.update(inquiry.notes)

    def _fitting(self, passages: Sequence[str]) -> tuple[str, ...]:
        return within_budget(passages, self.budget_tokens, self.count_tokens)


class Asker(ModelReader):
    """Answers with ``generate`` after at most ``searches`` searches."""

    def __init__(
        self,
        generate: Callable[[list[list[Message]]], list[str]],
        budget_tokens: int,
        count_tokens: TokenCounter,
        searches: int,
        *,
        own_model: bool = False,
    ) -> None:
        super().__init__(generate, budget_tokens, count_tokens, own_model=own_model)
        self.step = AskerStep(budget_tokens, count_tokens, searches)

    @override
    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        inquiries = [self.step.begin(request) for request in requests]
        for _ in range(self.step.searches + 1):
            waiting = [inquiry for inquiry in inquiries if inquiry.answer is None]
            if not waiting:
                break
            replies = self._generate([self.step.chat(inquiry) for inquiry in waiting])
            for inquiry, reply in zip(waiting, replies, strict=True):
                self.step.take(inquiry, reply)
        return raise_on_partial(
            [inquiry.answer for inquiry in inquiries if inquiry.answer is not None]
        )


def parse_query(text: str) -> tuple[str, str]:
    """Return the words of a search, and the date (or its beginning) behind an @; "" for none."""
    match = _QUERY.fullmatch(text.strip())
    assert match is not None  # the words may be anything
    return match["words"].strip(), match["when"] or ""
