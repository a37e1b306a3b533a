"""Times of deletions: their own, else their partition's newest."""

import polars as pl

from tidemark.kernels.records.tombstones import with_tombstone_times

Told = tuple[int, int | None, bool, str | None]
"""Partition, time, whether it deletes, why it cannot be used."""


def timed(
    *records: Told, newest_ms: dict[int, int] | None = None
) -> tuple[list[int | None], list[str | None], dict[int, int]]:
    schema = {"partition": pl.Int32(), "timestamp_ms": pl.Int64(), "deleted": pl.Boolean(), "reason": pl.String()}
    rows, now = with_tombstone_times(pl.DataFrame(records, schema=schema, orient="row"), newest_ms or {})
    return rows["timestamp_ms"].to_list(), rows["reason"].to_list(), now


def test_a_tombstone_is_as_new_as_the_newest_record_before_it():
    records = [
        (0, 50, False, None),
        (0, 40, False, None),
        (0, None, True, None),
        (0, 90, False, None),
        (1, 70, False, None),
    ]
    assert timed(*records) == ([50, 40, 50, 90, 70], [None] * 5, {0: 90, 1: 70})


def test_what_earlier_batches_read_counts_too():
    assert timed((0, None, True, None), (0, 30, False, None), newest_ms={0: 60, 1: 99}) == (
        [60, 30],
        [None, None],
        {0: 60, 1: 99},
    )


def test_what_cannot_be_used_has_no_time_for_a_tombstone():
    records = [(0, 99, False, "timestamp_in_future"), (0, None, True, None), (0, 5, False, None), (0, None, True, None)]
    assert timed(*records) == ([99, None, 5, 5], ["timestamp_in_future", "missing_timestamp", None, None], {0: 5})


def test_a_tombstone_that_says_its_time_keeps_it_and_counts():
    assert timed((0, 20, True, None), (0, None, True, None)) == ([20, 20], [None, None], {0: 20})
