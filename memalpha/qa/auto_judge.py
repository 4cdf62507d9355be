"""The content judge of mixed training data: by annotations where an instance has them, from words alone where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memalpha.protocols import WriteRequest
from memalpha.qa.judges import FactContentJudge, GroundedContentJudge
from memalpha.types import Fact


class AutoContentJudge:
    """Asks ``FactContentJudge`` about the instances it has facts of, and ``GroundedContentJudge`` about all others.

    Args:
        facts: Facts of the annotated instances, by id.
    """

    def __init__(self, facts: Mapping[str, Sequence[Fact]]) -> None:
        self._annotated = frozenset(facts)
        self._by_facts, self._by_words = FactContentJudge(facts), GroundedContentJudge()

    def judge(self, requests: Sequence[WriteRequest]) -> list[list[bool]]:
        """Return one verdict for each write."""
        return [self._judge_of(request).judge([request])[0] for request in requests]

    def nothing_due(self, request: WriteRequest) -> bool | None:
        """Whether the memory needs no change for the chunk; None where there are no annotations."""
        return self._by_facts.nothing_due(request) if request.instance_id in self._annotated else None

    def _judge_of(self, request: WriteRequest) -> FactContentJudge | GroundedContentJudge:
        return self._by_facts if request.instance_id in self._annotated else self._by_words
