"""What is usual of a part of a window's age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from tidemark.reports.paths.window_ages import PARTS, with_usual

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def windows(n: int, lengths_ms: list[int]) -> pl.DataFrame:
    """Parts of *n* windows: the bound of each, and in the first of them a wait of one of *lengths_ms*."""
    rows = []
    for number in range(n):
        start = NOON + timedelta(seconds=number)
        of = {"window_start": start, "window_end": start + timedelta(seconds=1)}
        rows.append({**of, "owner": "bound", "detail": "orders", "ms": 3_000})
        if number < len(lengths_ms):
            rows.append({**of, "owner": "trigger", "detail": "", "stream": "shop/top", "ms": lengths_ms[number]})
    return pl.DataFrame(rows, PARTS)


@pytest.mark.parametrize(
    ("n", "waits_ms", "usual_ms"),
    [
        # Of 20 lengths the median is the tenth: nine windows did not wait at all.
        (20, [*range(100, 1_200, 100)], {"bound": 3_000, "trigger": 100}),
        (20, [*range(100, 1_100, 100)], {"bound": 3_000, "trigger": 0}),
        (20, [], {"bound": 3_000, "trigger": 0}),
        (19, [*range(100, 1_200, 100)], {"bound": None, "trigger": None}),
    ],
)
def test_what_is_usual_is_the_median_of_all_windows(
    n: int, waits_ms: list[int], usual_ms: dict[str, int | None]
) -> None:
    """A window without a part counts with 0 ms, and fewer than 20 windows say nothing."""
    found = with_usual(windows(1, [50]), windows(n, waits_ms))
    assert dict(found.select("owner", "usual_ms").rows()) == usual_ms
