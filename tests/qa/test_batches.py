"""Batches of a service that fails: against outcomes worked out one request at a time, for every pattern of failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.qa.evaluator import ask_all


class Service:
    """Doubles numbers. Fails as a whole if a number of the batch is bad, or for that number alone if it can."""

    def __init__(self, bad, partial):
        self.bad, self.partial, self.calls = bad, partial, []

    def double(self, numbers):
        self.calls.append(list(numbers))
        outcomes = [ServiceError(f"no {n}") if n in self.bad else 2 * n for n in numbers]
        failed = [outcome for outcome in outcomes if isinstance(outcome, ServiceError)]
        if failed:
            raise PartialServiceError(outcomes) if self.partial else failed[0]
        return outcomes


def shown(outcomes):
    return [str(outcome) if isinstance(outcome, ServiceError) else outcome for outcome in outcomes]


@given(st.lists(st.booleans(), max_size=12), st.booleans())
def test_each_request_has_its_own_outcome(fails, partial):
    service = Service({n for n, bad in enumerate(fails) if bad}, partial)
    expected, in_a_row = [], 0
    for n, bad in enumerate(fails):
        if in_a_row == 3 and not partial:
            last = next(m for m in reversed(range(n)) if fails[m] and str(expected[m]) == f"no {m}")
            expected.append(f"no {last}; the service seems to be down, so this was not asked")
            continue
        expected.append(f"no {n}" if bad else 2 * n)
        in_a_row = in_a_row + 1 if bad else 0
    assert shown(ask_all(service.double, list(range(len(fails))), "it")) == expected
    if partial or not any(fails):
        assert len(service.calls) == (1 if fails else 0)


def test_a_result_too_few_or_too_many_is_nobodys():
    for answers in ([], [1], [1, 2, 3]):
        with pytest.raises(ServiceError, match=f"it gave {len(answers)} results for 2 requests"):
            ask_all(lambda numbers, answers=answers: answers, [1, 2], "it")
    with pytest.raises(ServiceError, match="1 results for 2"):
        ask_all(lambda numbers: (_ for _ in ()).throw(PartialServiceError([ServiceError("x")])), [1, 2], "it")


def test_a_result_too_few_for_one_request_is_that_requests_failure():
    def shy(numbers):
        if len(numbers) > 1:
            raise ServiceError("too many")
        return [2 * n for n in numbers if n != 1]

    assert shown(ask_all(shy, [0, 1, 2], "it")) == [0, "it gave 0 results for 1 requests", 4]


def test_a_wrong_setup_is_no_failure_of_a_request():
    def wrong(numbers):
        raise InputError("no such model")

    with pytest.raises(InputError, match="no such model"):
        ask_all(wrong, [1], "it")


def test_what_failed_is_logged_once(caplog):
    ask_all(Service({1, 3}, partial=True).double, [0, 1, 2, 3], "TheReader")
    assert caplog.messages == ["TheReader: 2 of 4 requests failed; the first: no 1"]
