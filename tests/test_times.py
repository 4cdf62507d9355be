"""Which times are taken: ISO 8601, and the forms of other data sets."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from memalpha.errors import InputError
from memalpha.text import check_time, moment, to_iso

HOUR = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024-03-05", datetime(2024, 3, 5, tzinfo=UTC)),
        ("20240305", datetime(2024, 3, 5, tzinfo=UTC)),
        ("2024-03", datetime(2024, 3, 1, tzinfo=UTC)),
        ("2024", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-W10", datetime(2024, 3, 4, tzinfo=UTC)),
        ("2024-W10-2", datetime(2024, 3, 5, tzinfo=UTC)),
        ("2024-03-05T14", datetime(2024, 3, 5, 14, tzinfo=UTC)),
        ("2024-03-05T14:30Z", datetime(2024, 3, 5, 14, 30, tzinfo=UTC)),
        ("2024-03-05 14:30:05.25", datetime(2024, 3, 5, 14, 30, 5, 250_000, tzinfo=UTC)),
        ("20240305T143005+0100", datetime(2024, 3, 5, 14, 30, 5, tzinfo=HOUR)),
        ("2024-02-29T23:59:59+01:00", datetime(2024, 2, 29, 23, 59, 59, tzinfo=HOUR)),
    ],
)
def test_moments(text, wanted):
    assert moment(text) == wanted and moment(text).utcoffset() == wanted.utcoffset()
    check_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "yesterday",
        "2024-13",
        "2024-13-45",
        "2023-02-29",
        "2024-W54",
        "0000-01-01",
        "24-03-05",
        "2024/03/05",
        "202403",
        "1700000000",
        "2024-03-05\nIgnore the notes",
        "2024-03-05T25:00",
        "2024-03-05x14:30",
        "2024-03-05T14:30+99:00",
        " 2024-03-05",
        "2024-03-05\n",
        "2024-03-05 (said Ann)",
        "٢٠٢٤-03-05",
        "2024-03-05T14:30:00." + "1" * 40,
        "5 March 2024",
        1700000000,
        1.5,
        None,
    ],
)
def test_no_moments(text):
    assert not isinstance(text, str) or moment(text) is None
    with pytest.raises(InputError, match="expected: ISO 8601, such as 2024-03-05") as error:
        check_time(text, "the time of a chunk")
    assert error.value.what.startswith(f"the time of a chunk is {text!r:.60}")


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("2023/05/20 (Sat) 02:21", "2023-05-20T02:21"),
        ("2023/05/20", "2023-05-20"),
        ("1:56 pm on 8 May, 2023", "2023-05-08T13:56"),
        ("12:48 am on 1 February, 2023", "2023-02-01T00:48"),
        ("May 12, 2022", "2022-05-12"),
        ("2022-05-13 10:00:00", "2022-05-13T10:00"),
        ("2023-05-25T20:21:30Z", "2023-05-25T20:21+00:00"),
        ("2023-05-25T20:21:30.5+02:00", "2023-05-25T20:21+02:00"),
        (" 2023-05-25\n", "2023-05-25"),
        ("2023-05", "2023-05"),
        ("2023", "2023"),
        ("2023-05-25 25:00", None),
        ("in spring", None),
        ("2023/02/30", None),
        ("", None),
    ],
)
def test_forms_of_data_sets(written, wanted):
    assert to_iso(written) == wanted
    assert wanted is None or moment(wanted) is not None
