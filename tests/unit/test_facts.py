"""Measurements of a batch."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.windows import tumbling

from support.latency_facts import listed
from tidemark.kernels.aggregates.windows import window_start
from tidemark.kernels.columns.buckets import STATISTICS, in_lists
from tidemark.kernels.updates.facts import latency_buckets, latency_stats, records_per_window, times_of
from tidemark.semantics.buckets import value_of


def times(*rows: tuple[int, int]) -> pl.DataFrame:
    """Returns times of records with a time and a task."""
    return times_of(pl.DataFrame(rows, schema={"_timestamp_ms": pl.Int64, "_task": pl.Int32}, orient="row"))


def test_latency_is_measured_per_task_and_keeps_its_sign():
    stats = latency_stats(times((900, 0), (1_100, 0), (400, 1)), finished_at_ms=1_000)
    assert stats == {
        0: {"negative_n": 1, "n": 2, "min_ms": -100, "max_ms": 100, "sum_ms": 0},
        1: {"negative_n": 0, "n": 1, "min_ms": 600, "max_ms": 600, "sum_ms": 600},
    }


def test_times_keep_the_order_of_their_records():
    """In this order they take a third of the bytes in a journal entry."""
    rows = [(at_ms, task) for task in range(4) for at_ms in range(1_000, 3_000, 2)]
    found = times(*rows, *rows[:10]).select("_timestamp_ms", "_task", "n").rows()
    assert found == [(at_ms, task, 2 if place < 10 else 1) for place, (at_ms, task) in enumerate(rows)]


def test_millions_of_records_add_up():
    # Ten million of them at epoch time are beyond 64 bits when added.
    frame = pl.DataFrame({"_newest_ms": [1_700_000_000_000], "_task": [0], "n": [10_000_000]})
    stats = latency_stats(frame, finished_at_ms=1_700_000_000_003)
    assert stats == {0: {"negative_n": 0, "n": 10**7, "min_ms": 3, "max_ms": 3, "sum_ms": 30_000_000}}


def test_no_record_is_measured_as_nothing():
    assert latency_stats(times(), finished_at_ms=1_000) == {}
    assert latency_buckets(times(), finished_at_ms=1_000, window_ms=500).height == 0


def test_a_row_has_the_latencies_of_one_task_and_window():
    """Of the first task two records are of the window from 0 ms on, and one of that from 500 ms on."""
    counted = latency_buckets(times((0, 0), (0, 0), (999, 0), (1_500, 1)), finished_at_ms=1_000, window_ms=500)
    rows = in_lists(counted, ["_task", "window_start"])
    assert rows.select("_task", "window_start", *STATISTICS).rows() == [
        (0, 0, 2, 1_000, 1_000, 2_000, 0),
        (0, 500, 1, 1, 1, 1, 0),
        (1, 1_500, 1, -500, -500, -500, 1),
    ]
    assert rows["buckets"].to_list() == [listed([1_000, 1_000]), listed([1]), listed([-500])]


def test_a_record_is_in_its_window_however_old_it_is():
    """Its bucket stands for a record 0.6 s younger, which is of the next window."""
    rows = latency_buckets(times((4_999, 0)), finished_at_ms=100_000, window_ms=5_000)
    assert rows["window_start"].to_list() == [0]
    assert 100_000 - value_of(rows["bucket"].item()) == pytest.approx(5_555, abs=1)


def test_records_are_counted_in_half_open_windows():
    assert records_per_window(times((0, 0), (4_999, 0), (5_000, 0), (-1, 0)), window_ms=5_000) == {
        -5_000: 1, 0: 2, 5_000: 1,
    }  # fmt: skip


@given(st.lists(st.integers(-(10**12), 10**13), min_size=1, max_size=50), st.integers(1, 10**8))
def test_windows_of_columns_are_those_of_single_timestamps(timestamps, size_ms):
    frame = pl.DataFrame({"t": timestamps}).select(start=window_start(pl.col("t"), size_ms=size_ms))
    assert frame["start"].to_list() == [tumbling(t, size_ms=size_ms).start_ms for t in timestamps]
