"""Restarts and standstills are found in one pass over batches and beats."""

from __future__ import annotations

import time

import polars as pl

from tidemark.kernels.reports.restarts import Restart, restarts, with_unread

MINUTE_MS = 60_000


def history(minutes: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns batches, one a minute, and beats.

    The driver stood still for the last ten minutes.
    """
    began = [minute * MINUTE_MS for minute in range(minutes - 10)] + [minutes * MINUTE_MS]
    batches = pl.DataFrame(
        {
            "batch_id": range(len(began)),
            "decided_at": began,
            "started_at": began,
            "finished_at": [ms + 9 for ms in began],
        }
    ).with_columns(epoch=1, records_in=5)
    at = [
        at_ms
        for at_ms in range(0, (minutes + 1) * MINUTE_MS, MINUTE_MS // 4)
        if at_ms <= began[-2] + 9 or at_ms > began[-1]
    ]
    beats = pl.DataFrame({"beat_at": at, "step_began_at": at}).with_columns(
        epoch=1, state=pl.lit("running"), batch_started_at=pl.lit(None, pl.Int64)
    )
    return batches, beats


def cpu_s(minutes: int) -> float:
    batches, beats = history(minutes)
    took = []
    for _ in range(3):
        began_s = time.process_time()
        (found,) = restarts(batches, beats, trigger_ms=1_000)
        took.append(time.process_time() - began_s)
    assert (found.batch_id, found.to_ms, found.waited) == (batches.height - 1, minutes * MINUTE_MS, 5)
    assert (found.from_ms, found.stood_still) == ((minutes - 11) * MINUTE_MS + 9, True)
    return min(took)


def test_four_times_the_history_takes_four_times_the_time() -> None:
    assert cpu_s(4_000) < 8 * cpu_s(1_000)


def test_records_waited_up_to_the_first_end_that_the_broker_told_of_each_partition() -> None:
    """The batch read 7 records: 3 of 100 of `orders`, 1 of its partition 1, and 3 of a hop, which has no such end."""
    columns = ("batch_id", "source", "partition", "until_offset", "latest_offset")
    reads = [
        (5, "orders", 0, 13, 110),  # the driver before had read 10
        (5, "orders", 1, 21, None),  # 20; the broker was asked in the next batch
        (5, "hop", 0, 8, None),
        (6, "orders", 0, 20, 400),
        (6, "orders", 1, 23, 25),
    ]
    restart = Restart(batch_id=5, from_ms=0, to_ms=60_000, waited=7)
    found = with_unread(restart, pl.DataFrame(reads, schema=columns, orient="row"))
    # 100 and 5 of the topic, and 3 of the hop.
    assert found == restart._replace(waited=108)
