"""What-if for two drivers with a hop, from stored rows."""

import re

import polars as pl
import pytest

from tidemark.errors import InvalidArgument
from tidemark.reports.what_if.estimates import WorkChange, what_if

UPSTREAMS = {"src": (), "hop": ("src",), "board": ("src",), "hop_source": ("hop",), "state": ("hop_source",)}
FIRST = {"src": "first", "hop": "first", "board": "first", "hop_source": "second", "state": "second"}
BEGAN = {"first": 0, "second": 1_000}
# The first driver: src until 10, hop until 60, board (queued behind hop) until 100. The second begins at 1000.
EWT = {"src": 10, "hop": 60, "board": 100, "hop_source": 1_020, "state": 1_420}
QUEUED = {"board": 50}


def rows(ewt=EWT, *, window=0, **changes):
    """The rows of operator_windows of one window."""
    return pl.DataFrame(
        [
            {
                "sub_topology": FIRST[name], "operator": name, "window_start": window * 5_000,
                "window_end": (window + 1) * 5_000, "ewt_adjusted_at": at, "batch_started_at": BEGAN[FIRST[name]],
                "queued_ms": QUEUED.get(name, 0), "host": FIRST[name], "skew_ms": None, "skew_error_ms": None,
                **changes,
            }
            for name, at in ewt.items()
        ],
        schema_overrides={"skew_ms": pl.Int64, "skew_error_ms": pl.Int64, "batch_started_at": pl.Int64},
    ).with_columns(
        pl.from_epoch(pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at"), time_unit="ms")
    )  # fmt: skip


def batches(*of):
    """The rows of batches, of (sub_topology, started_at, finished_at)."""
    schema = {"sub_topology": pl.String, "started_at": pl.Int64, "finished_at": pl.Int64}
    frame = pl.DataFrame(of, schema=schema, orient="row")
    return frame.with_columns(pl.from_epoch(pl.col("started_at", "finished_at"), time_unit="ms"))


def changed(operator_windows, *changes, ran=()):
    return what_if(operator_windows, batches(*ran), UPSTREAMS, changes, distances_ms={"first": 100, "second": 100})


def then(*changes, ewt=EWT):
    (window,) = changed(rows(ewt), *changes)
    return str(window.then)


def test_half_the_work_takes_half_the_time_and_waiting_stays():
    (window,) = changed(rows(), WorkChange(operator="state", scale=0.5))
    assert (window.start_ms, window.end_ms) == (0, 5_000)
    assert str(window.was) == "src (0 ms) → hop (50 ms) → hop_source (960 ms) → state (400 ms) = 1,410 ms"
    assert str(window.then) == "src (0 ms) → hop (50 ms) → hop_source (960 ms) → state (200 ms) = 1,210 ms"


def test_of_a_step_that_waited_only_the_work_is_scaled():
    # hop_source waited 940 ms for its batch and worked 20.
    assert then(WorkChange(operator="hop_source", scale=0)).endswith("hop_source (940 ms) → state (400 ms) = 1,390 ms")


def test_work_is_shortened_by_no_more_than_there_is():
    assert then(WorkChange(operator="state", less_ms=150)).endswith("state (250 ms) = 1,260 ms")
    assert then(WorkChange(operator="state", less_ms=500)).endswith("state (0 ms) = 1,010 ms")
    assert then(WorkChange(operator="state", scale=0.5, less_ms=150)).endswith("state (50 ms) = 1,060 ms")


def test_more_work_makes_what_comes_after_it_later():
    assert then(WorkChange(operator="hop", scale=2)).startswith("src (0 ms) → hop (100 ms) → hop_source (960 ms)")


def test_who_queued_behind_an_operator_saves_what_it_saves():
    board_is_slowest = {**EWT, "board": 3_100}
    saved = then(WorkChange(operator="hop", less_ms=30), ewt=board_is_slowest)
    assert saved == "src (0 ms) → board (3,060 ms) = 3,060 ms"


def test_unfinished_windows_and_batches_without_a_start_are_left_out():
    unfinished = rows({"src": 10, "hop": 60}, window=1)
    without_start = rows(window=2).with_columns(batch_started_at=pl.lit(None, pl.Datetime("us")))
    found = changed(pl.concat([without_start, unfinished, rows()]))
    assert [window.start_ms for window in found] == [0]
    assert found[0].was == found[0].then


def test_a_hosts_skew_moves_the_beginning_of_its_batches():
    skewed = rows().with_columns(
        batch_started_at=pl.when(sub_topology="second")
        .then(pl.col("batch_started_at") + pl.duration(seconds=5))
        .otherwise("batch_started_at"),
        skew_ms=pl.when(sub_topology="second").then(-5_000).otherwise(0),
    )
    (window,) = changed(skewed, WorkChange(operator="hop_source", scale=0))
    assert window.then.latency_ms == 1_390


BUSY = (("second", 50, 500), ("second", 500, 1_000), ("second", 1_000, 1_450))


def test_a_busy_drivers_batch_begins_sooner_after_quicker_ones():
    (window,) = changed(rows(), WorkChange(operator="state", less_ms=380), ran=BUSY)
    assert str(window.was).endswith("hop_source (960 ms) → state (400 ms) = 1,410 ms")
    # The batch of 500 did not see it. It would begin at 120 and end at 240, so the next one begins at 501.
    assert str(window.then).endswith("hop_source (461 ms) → state (20 ms) = 531 ms")


def test_batches_without_a_window_save_the_lower_median_of_the_others():
    instants = pl.col("ewt_adjusted_at", "batch_started_at") + pl.duration(seconds=1)
    other = rows({**EWT, "state": 1_120}, window=1).with_columns(instants)
    ran = (*BUSY, ("second", 2_000, 2_150))
    (window, _) = changed(pl.concat([rows(), other]), WorkChange(operator="state", less_ms=380), ran=ran)
    # Of 400 ms of work 380 are saved, and of 100 ms all. The batches of 50 and 500 save 100 each, so the latter begins
    # at 400 and ends at 800; the mean of the two would be 240.
    assert str(window.then).endswith("hop_source (760 ms) → state (20 ms) = 830 ms")


def test_unchanged_batches_of_a_driver_stay_in_place():
    # It was visible after the batch of 500 began, and would have been 1 ms sooner: in time for that one.
    (window,) = changed(rows(), WorkChange(operator="hop", less_ms=1), ran=BUSY)
    assert str(window.then) == "src (0 ms) → hop (49 ms) → hop_source (461 ms) → state (400 ms) = 910 ms"
    (window,) = changed(rows(), WorkChange(operator="hop", scale=2), ran=BUSY)
    assert str(window.then) == "src (0 ms) → hop (100 ms) → hop_source (910 ms) → state (400 ms) = 1,410 ms"


def test_a_change_is_for_an_operator_that_is_there():
    with pytest.raises(InvalidArgument, match="no operator nobody; known: board, hop"):
        changed(rows(), WorkChange(operator="nobody"))


@pytest.mark.parametrize("scale", [-0.5, 1e308, float("inf"), float("nan")])
def test_a_scale_is_a_number_and_not_negative(scale):
    with pytest.raises(InvalidArgument, match=re.escape(f"scale must be from 0 to 1,000,000, got {scale}")):
        WorkChange(operator="state", scale=scale)
