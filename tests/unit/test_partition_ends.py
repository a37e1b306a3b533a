"""The end of a window at each input partition of a source.

A partition has it with the first batch in which its own watermark passed the window's end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.kernels.reports.operator_tasks import measured_tasks, spark_tasks
from tidemark.model.tables.catalog import BATCHES, LATENCY_MINUTES, OPERATOR_BATCHES, PARTITION_BATCHES, Table
from tidemark.reports.paths.physical_path import BatchClocks, last_partitions, partition_ends, passing_batches
from tidemark.selection import omit, pick

NOON = datetime(2014, 5, 13, 12, tzinfo=UTC)
NOON_MS = 1_399_982_400_000
PASSING_MS = -1
"""The watermark, ms after noon, that just passes the window until noon."""


def frame(table: Table, *rows: dict[str, Any]) -> pl.DataFrame:
    """Returns rows of *table*, their instants given as ms after noon."""
    schema = pl.DataFrame(arrow_schema(table).empty_table()).schema
    instants = {name for name, kind in schema.items() if isinstance(kind, pl.Datetime)}
    at = [{k: instant(v) if k in instants and v is not None else v for k, v in row.items()} for row in rows]
    return pl.DataFrame(at, schema=schema)


def instant(ms: int) -> datetime:
    return NOON + timedelta(milliseconds=ms)


def marks(*rows: tuple[int, int, int | None]) -> pl.DataFrame:
    """Returns watermarks: batch, partition, and ms after noon.

    A batch is decided as many seconds after noon as its number.
    """
    of = {"sub_topology": "s", "source": "events", "activity": "active"}
    combined = {"sub_topology": "s", "source": "events", "batch_id": 0, "watermark": 99_000, "decided_at": 0}
    return frame(
        PARTITION_BATCHES,
        combined,
        *(
            {**of, "batch_id": batch, "partition": partition, "watermark": at, "decided_at": batch * 1_000}
            for batch, partition, at in rows
        ),
    )


def closed(batch_id: int, ewt: int, *, skew_ms: int | None = None) -> pl.DataFrame:
    """Returns the window until noon, which *batch_id* closed.

    The source finished it *ewt* ms after noon by the clock of all hosts; records may be 1 s out of order.
    """
    window = {"window_end": NOON_MS, "needed_ms": NOON_MS + 1_000, "ewt_ms": NOON_MS + ewt, "skew_ms": skew_ms}
    schema = {"sub_topology": pl.String, "operator": pl.String, **dict.fromkeys([*window, "batch_id"], pl.Int64)}
    return pl.DataFrame([{"sub_topology": "s", "operator": "events", **window, "batch_id": batch_id}], schema=schema)


def clocks(
    *, tasks: list[dict[str, Any]] | None = None, sources: list[dict[str, Any]] | None = None, ended: int | None = None
) -> BatchClocks:
    """Returns the rows that have clocks; batch 1 *ended* ms after noon."""
    of = {"sub_topology": "s", "operator": "events"}
    runs, read = [], []
    for row in tasks or []:
        at = {name: instant(value) if name.endswith("_at") else value for name, value in row.items()}
        task = {"host": "h", "skew_ms": 0, "skew_error_ms": 0, **omit(at, ["batch_id"])}
        runs.append({**of, **pick(row, ["batch_id"]), "tasks": [task]})
    for row in sources or []:
        task = {"n": 1, "min_ms": row.get("max_ms", 0), "max_ms": 0, **omit(row, ["batch_id", "finished_at"])}
        read.append({**of, **pick(row, ["batch_id", "finished_at"]), "tasks": [task]})
    batch = [] if ended is None else [{"sub_topology": "s", "batch_id": 1, "finished_at": ended}]
    return BatchClocks(
        spark_tasks(frame(OPERATOR_BATCHES, *runs)),
        measured_tasks(frame(OPERATOR_BATCHES, *read)),
        frame(BATCHES, *batch),
        frame(
            LATENCY_MINUTES,
            *({**of, "min_ms": row.get("max_ms", 0), "max_ms": 0, "buckets": [], **row} for row in sources or []),
        ),
    )


def ended_ms(found: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Returns batch, and ms after noon, by partition."""
    return {row["partition"]: (row["passed_in"], row["ewt_ms"] - NOON_MS) for row in found.to_dicts()}


def named(found: pl.DataFrame) -> list[tuple[str, int, int | None]]:
    return found.select("task", "behind_tasks_ms", "tasks_error_ms").rows()


SLOW = marks(
    *((0, partition, -9_000) for partition in range(4)),
    *((1, 0, 400), (1, 1, PASSING_MS), (1, 2, -2)),
    (2, 2, 1_000),
    *((3, 0, 2_000), (3, 3, 5_000)),
)
"""Partitions 0 and 1 pass in batch 1, 2 in batch 2.

Partition 3 is silent until the window is closed.
"""


def test_a_partition_ends_with_its_first_batch_past_the_window() -> None:
    found = passing_batches(closed(2, 6_100), SLOW)
    assert {row["partition"]: row["passed_in"] for row in found.to_dicts()} == {0: 1, 1: 1, 2: 2}


def test_the_partition_four_seconds_behind_the_others_is_named() -> None:
    sources = [{"batch_id": 1, "task_id": f"s_{n}", "finished_at": 2_100} for n in (0, 1, 2)]
    found = partition_ends(passing_batches(closed(2, 6_100), SLOW), clocks(sources=sources))
    assert ended_ms(found) == {0: (1, 2_100), 1: (1, 2_100), 2: (2, 6_100)}
    assert named(last_partitions(found)) == [("partition 2", 4_000, 0)]


def test_partition_ends_are_by_the_driver_s_own_clock() -> None:
    """The driver is 30 ms behind the clock of all hosts."""
    sources = [{"batch_id": 1, "task_id": f"s_{n}", "finished_at": 2_070} for n in (0, 1)]
    found = partition_ends(passing_batches(closed(2, 6_100, skew_ms=30), SLOW), clocks(sources=sources))
    assert ended_ms(found) == {0: (1, 2_070), 1: (1, 2_070), 2: (2, 6_070)}


def test_a_task_s_own_clock_says_when_its_partition_ended() -> None:
    """Partition 0 is on a host 5 s ahead.

    It has no records in batch 2, which takes it in last.
    """
    tasks = [
        {"batch_id": 1, "partition": 0, "finished_at": 7_020, "skew_ms": -5_000, "skew_error_ms": 9},
        {"batch_id": 1, "partition": 1, "finished_at": 2_040},
        {"batch_id": 2, "partition": 0, "finished_at": 11_090, "skew_ms": -5_000, "skew_error_ms": 9},
        {"batch_id": 2, "partition": 2, "finished_at": 6_030},
        {"batch_id": 2, "shard": 0, "finished_at": 6_080},
    ]
    found = partition_ends(passing_batches(closed(2, 6_090), SLOW), clocks(tasks=tasks))
    assert ended_ms(found) == {0: (1, 2_020), 1: (1, 2_040), 2: (2, 6_030)}
    assert named(last_partitions(found)) == [("partition 2", 6_030 - 2_030, 9)]


def test_a_mark_without_records_ends_with_its_batch() -> None:
    assert ended_ms(partition_ends(passing_batches(closed(2, 6_100), SLOW), clocks(ended=2_150)))[0] == (1, 2_150)
    # Of a batch that no report reads any more only the decision is known.
    assert ended_ms(partition_ends(passing_batches(closed(2, 6_100), SLOW), clocks()))[0] == (1, 1_000)


def test_no_partition_is_named_that_the_window_did_not_wait_for() -> None:
    """Another source, or an idle partition, blocked it until batch 3."""
    assert (
        named(
            last_partitions(
                partition_ends(passing_batches(closed(3, 9_000), SLOW.filter(pl.col("batch_id") < 3)), clocks())
            )
        )
        == []
    )


def test_partitions_that_pass_in_one_batch_are_not_slow() -> None:
    together = marks((0, 0, -9_000), (0, 1, -9_000), (1, 0, 5), (1, 1, 7))
    assert named(last_partitions(partition_ends(passing_batches(closed(1, 2_000), together), clocks()))) == []


def test_most_partitions_are_not_slow_because_one_was_early() -> None:
    early = marks((0, 0, 0), (1, 1, 0), (1, 2, 0), (1, 3, 0))
    assert named(last_partitions(partition_ends(passing_batches(closed(1, 2_000), early), clocks()))) == []


def test_a_partition_alone_is_not_compared() -> None:
    """Partition 1 never passes, so it is idle or has no records."""
    alone = marks((0, 0, -9_000), (0, 1, None), (1, 0, 5))
    assert named(last_partitions(partition_ends(passing_batches(closed(1, 2_000), alone), clocks()))) == []


def test_of_equals_the_partition_with_the_last_records_is_named() -> None:
    """It is the highest if all were ready, as in `window_parts`."""
    two = marks((0, 0, 0), (0, 1, 0), (0, 2, 0), (4, 3, 0), (4, 4, 0))
    # Records of partitions 3 and 4 are from 12:00:01.5 and 12:00:01.2.
    late = [
        {"batch_id": 4, "task_id": f"s_{n}", "finished_at": 4_200, "max_ms": ms} for n, ms in ((3, 2_700), (4, 3_000))
    ]
    found = partition_ends(passing_batches(closed(4, 4_200), two), clocks(sources=late))
    # The median of the others is that of 0, 0, 0 and 4,200.
    assert named(last_partitions(found)) == [("partition 3", 4_200, 0)]
    early = [{**row, "max_ms": 4_000} for row in late]
    assert (
        named(last_partitions(partition_ends(passing_batches(closed(4, 4_200), two), clocks(sources=early))))[0][0]
        == "partition 4"
    )


def test_time_that_was_set_back_reopens_no_partition() -> None:
    back = marks((0, 0, 20), (1, 0, -60_000), (2, 0, 10), (2, 1, 0))
    assert {row["partition"]: row["passed_in"] for row in passing_batches(closed(2, 2_000), back).to_dicts()} == {
        0: 0,
        1: 2,
    }
