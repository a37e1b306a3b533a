"""Steps of a window's path in the physical DAG.

A step names its shard or input partition, its delay and its hot key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from tidemark.facts.path_facts import described_window, physical_name, physical_path
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.kernels.reports.operator_tasks import spark_tasks
from tidemark.model.tables.catalog import CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_BATCHES, Table
from tidemark.reports.paths.path_text import task_text
from tidemark.reports.paths.physical_path import with_errors_of_tasks, with_tasks
from tidemark.selection import omit, pick

NOON = datetime(2014, 5, 13, 12, tzinfo=UTC)
NOON_MS = 1_399_982_400_000


def frame(table: Table, *rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=pl.DataFrame(arrow_schema(table).empty_table()).schema)


def tasks(*rows: dict[str, Any]) -> pl.DataFrame:
    """Returns task rows of batch 7, finished at ms after noon.

    Their clocks are right unless they say otherwise.
    """
    of_batch = []
    for row in rows:
        task = {"host": "h", "skew_ms": 0, "skew_error_ms": 0, **omit(row, ["operator", "batch_id"])}
        task["finished_at"] = NOON_MS + row["finished_at"]
        of_batch.append({"batch_id": 7, **pick(row, ["operator", "batch_id"]), "tasks": [task]})
    return spark_tasks(pl.DataFrame(rows_of(OPERATOR_BATCHES, of_batch)))


def steps(path: str, *off_path: str) -> pl.DataFrame:
    """Returns rows of the window until noon, in *path* order.

    All are of one driver.
    """
    at = [*enumerate(path.split()), *((None, name) for name in off_path)]
    of_window = {"window_start": NOON, "window_end": NOON, "sub_topology": "all", "state": "measured"}
    return frame(CRITICAL_PATH_STEPS, *({**of_window, "operator": name, "step": step} for step, name in at))


def finished(skew_ms: int | None = None, **ewt_ms: int) -> pl.DataFrame:
    """Returns finish times of operators, ms after noon, in batch 7.

    *skew_ms* was added for the driver's clock.
    """
    of = [(NOON_MS, name, NOON_MS + at, skew_ms, 7) for name, at in ewt_ms.items()]
    columns = {
        "window_end": pl.Int64,
        "operator": pl.String,
        "ewt_ms": pl.Int64,
        "skew_ms": pl.Int64,
        "batch_id": pl.Int64,
    }
    return pl.DataFrame(of, schema=columns, orient="row")


def partitions(*rows: tuple[str, str, int]) -> pl.DataFrame:
    """Returns the last input partitions: operator, task, ms behind the others."""
    of = [(NOON_MS, name, task, behind, 0) for name, task, behind in rows]
    columns = {"window_end": pl.Int64, "operator": pl.String, "task": pl.String}
    columns |= dict.fromkeys(("behind_tasks_ms", "tasks_error_ms"), pl.Int64)
    return pl.DataFrame(of, schema=columns, orient="row")


NONE = partitions()


def by_operator(rows: pl.DataFrame, *columns: str) -> dict[str, tuple[Any, ...]]:
    return {row["operator"]: tuple(row[column] for column in columns) for row in rows.to_dicts()}


FOUR = tasks(
    {"operator": "counts", "shard": 0, "finished_at": 100, "hot_key": "a", "hot_share": 0.2},
    {"operator": "counts", "shard": 1, "finished_at": 110, "hot_key": "b", "hot_share": 0.3},
    {"operator": "counts", "shard": 2, "finished_at": 130, "hot_key": "c", "hot_share": 0.4},
    {"operator": "counts", "shard": 3, "finished_at": 530, "hot_key": "d", "hot_share": 0.9},
    {"operator": "events", "partition": 0, "finished_at": 20},
    {"operator": "events", "partition": 1, "finished_at": 5},
    {"operator": "alone", "shard": 0, "finished_at": 20},
)
"""Nothing says that partitions 0 and 1 passed the window."""


def test_the_last_task_is_compared_with_the_others_median() -> None:
    found = with_tasks(steps("events counts", "alone"), finished(events=20, counts=530, alone=20), FOUR, NONE)
    assert by_operator(found, "task", "behind_tasks_ms", "hot_key", "hot_share") == {
        "events": (None, None, None, None),
        "counts": ("shard 3", 530 - 110, "d", 0.9),
        "alone": (None, None, None, None),  # an operator with one task has no slowest one
    }
    assert found.schema == steps("").schema


def test_a_slow_shard_is_blamed_and_no_host_with_a_fast_clock() -> None:
    """Without adjustment shard 2 finished 4,600 ms after the slow one.

    It is on a host that is 5 s ahead.
    """
    told = [
        {"operator": "counts", "shard": shard, "host": host, "finished_at": at, "skew_ms": skew_ms, "skew_error_ms": 9}
        for shard, host, at, skew_ms in ((0, "ahead", 5_110, -5_000), (1, "right", 530, 0), (2, "ahead", 5_130, -5_000))
    ]
    found = with_tasks(steps("counts"), finished(counts=530), tasks(*told), NONE)
    right = by_operator(found, "task", "behind_tasks_ms", "tasks_error_ms")
    assert right == {"counts": ("shard 1", 530 - 120, 9)}
    unknown = tasks(*({**row, "skew_ms": None, "skew_error_ms": None} for row in told))
    found = with_tasks(steps("counts"), finished(counts=5_130), unknown, NONE)
    assert by_operator(found, "task", "tasks_error_ms") == {"counts": ("shard 2", None)}


LAST = partitions(("events", "partition 1", 10))
SEVERAL = tasks(
    {"operator": "events", "partition": 0, "finished_at": 90},
    {"operator": "events", "partition": 1, "finished_at": 100},
    {"operator": "renamed", "shard": 0, "finished_at": 400},
    {"operator": "renamed", "shard": 1, "finished_at": 150, "hot_key": "b", "hot_share": 0.5},
    {"operator": "counts", "shard": 0, "finished_at": 450},
    {"operator": "counts", "shard": 1, "finished_at": 700, "hot_key": "b", "hot_share": 0.5},
    {"operator": "beside", "shard": 0, "finished_at": 800},
    {"operator": "beside", "shard": 1, "finished_at": 750},
)
"""In shard 0 `renamed` is slow, in the later shard 1 `counts`.

`beside` is off the path.
"""


def test_a_physical_path_of_one_shard_sums_to_the_logical_path() -> None:
    rows = steps("events renamed counts board", "beside")
    ewt_ms = {"events": 100, "renamed": 400, "counts": 700, "beside": 800, "board": 850}
    found = with_tasks(rows, finished(**ewt_ms), SEVERAL, LAST)
    assert by_operator(found, "task", "task_latency_ms", "behind_tasks_ms") == {
        "events": ("partition 1", 0, 10),
        "renamed": ("shard 1", 150 - 100, 150 - 400),
        "counts": ("shard 1", 700 - 150, 250),
        "board": (None, 850 - 700, None),
        "beside": ("shard 0", None, 50),
    }
    assert physical_path(found.filter(pl.col("step").is_not_null()).to_dicts()) == (
        "events[partition 1] (0 ms) → renamed[shard 1] (50 ms) → counts[shard 1] (550 ms) → board (150 ms) = 750 ms"
    )


def test_the_skew_of_the_driver_moves_all_its_tasks_alike() -> None:
    rows, ewt_ms = steps("events renamed counts"), {"events": 100 - 30, "renamed": 400 - 30, "counts": 700 - 30}
    found = with_tasks(rows, finished(skew_ms=-30, **ewt_ms), SEVERAL, LAST)
    latencies = {"events": (0,), "renamed": (50,), "counts": (550,)}
    assert by_operator(found, "task_latency_ms") == latencies


def test_a_physical_path_adds_up_without_clocks_of_tasks() -> None:
    """Unadjusted clocks choose a shard but give no latency."""
    unknown = SEVERAL.with_columns(pl.lit(None, pl.Int64).alias(name) for name in ("skew_ms", "skew_error_ms"))
    last = LAST.with_columns(tasks_error_ms=pl.lit(None, pl.Int64))
    ewt_ms = {"events": 100, "renamed": 390, "counts": 500}
    found = with_tasks(steps("events renamed counts"), finished(**ewt_ms), unknown, last)
    assert by_operator(found, "task", "task_latency_ms", "tasks_error_ms") == {
        "events": ("partition 1", 0, None),
        "renamed": ("shard 1", 290, None),
        "counts": ("shard 1", 110, None),
    }


def test_a_path_of_one_shard_names_the_slow_partition() -> None:
    rows, ewt_ms = steps("events counts", "beside"), {"events": 100, "counts": 700, "beside": 800}
    found = with_tasks(rows, finished(**ewt_ms), tasks(), partitions(("events", "partition 2", 4_000)))
    assert by_operator(found, "task", "task_latency_ms", "behind_tasks_ms", "tasks_error_ms") == {
        "events": ("partition 2", 0, 4_000, 0),
        "counts": (None, 600, None, None),
        "beside": (None, None, None, None),
    }
    assert physical_path(found.filter(pl.col("step").is_not_null()).to_dicts()) == (
        "events[partition 2] (0 ms) → counts (600 ms) = 600 ms"
    )


def test_a_partition_that_was_taken_in_early_moves_no_latency() -> None:
    """Shards waited for partition 0, which passed the window before."""
    rows, ewt_ms = steps("events renamed counts"), {"events": 100, "renamed": 400, "counts": 700}
    found = with_tasks(rows, finished(**ewt_ms), SEVERAL, partitions(("events", "partition 0", 4_000)))
    of_events = by_operator(found, "task", "task_latency_ms", "behind_tasks_ms")["events"]
    assert of_events == ("partition 0", 0, 4_000)
    assert by_operator(found, "task_latency_ms")["renamed"] == (150 - 100,)


def test_the_clocks_of_a_path_are_as_wrong_as_those_of_its_tasks() -> None:
    def error_ms(of_tasks: int | None, of_path: int | None = 4) -> int | None:
        row = {"operator": "counts", "step": 0, "task": "shard 1", "window_end": NOON, "tasks_error_ms": of_tasks}
        off_path = {**row, "operator": "beside", "step": None, "tasks_error_ms": 99}
        rows = frame(CRITICAL_PATH_STEPS, *({**each, "window_start": NOON} for each in (row, off_path)))
        paths = frame(CRITICAL_PATHS, {"window_start": NOON, "window_end": NOON, "skew_error_ms": of_path})
        return with_errors_of_tasks(paths, rows)["skew_error_ms"].item()  # type: ignore[no-any-return]

    assert (error_ms(9), error_ms(None), error_ms(9, of_path=None)) == (4 + 9, None, None)
    paths = frame(CRITICAL_PATHS, {"window_start": NOON, "window_end": NOON, "skew_error_ms": 4})
    assert with_errors_of_tasks(paths, frame(CRITICAL_PATH_STEPS))["skew_error_ms"].to_list() == [4]


def test_a_step_is_named_with_its_task() -> None:
    step = {"operator": "counts", "task": "shard 3", "behind_tasks_ms": 1_420, "hot_key": "d", "hot_share": 0.9}
    assert physical_name(step) == "counts[shard 3]"
    late = "counts[shard 3] finished 1.42 s after the median of its other tasks"
    assert task_text(step) == f"{late}; 90 % of its records are of d"
    assert task_text({**step, "hot_key": None}) == late
    assert task_text({**step, "task": None}) is None
    assert physical_name({**step, "task": None}) == "counts"


def test_a_window_whose_steps_cannot_be_seen_yet_has_no_path():
    leaf = {"leaf": "board", "source": "readings", "latency_ms": 3, "behind_ms": 0, "before_source_ms": 1}
    described = described_window({"leaf": "board", "leaves": [leaf]}, steps=())
    assert (described["path"], described["leaves"]) == ([], [])


@pytest.mark.parametrize(
    ("parts", "step", "worked_ms"),
    [
        ([("operator", "events", 30)], 1, 30),
        ([("operator", "events shard 0", 30), ("operator", "events shard 1", 20), ("operator", "top", 9)], 1, 50),
        ([("operator", "top", 9)], 1, 0),
        ([("operator", "top", 9)], None, None),
        ([("operator", "top", 9), ("unknown", "segment", 1)], 1, None),
        ([("operator", "events", 30), ("unknown", "segment", 1)], 1, 30),
        ([], 1, None),
    ],
)
def test_the_work_of_an_input_is_a_part_of_the_windows_age(parts, step, worked_ms):
    """On the path, where all parts are known, it is 0 without one."""
    row = {"operator": "events", "state": "input", "step": step, "latency_ms": 0, "task": None, "worked_ms": None}
    row |= {"slowest_upstream": None, "share": None}
    rows = [dict(zip(("owner", "detail", "ms"), part, strict=True)) for part in parts]
    described = described_window({"leaf": "events", "leaves": None}, [row], rows)
    assert [each["worked_ms"] for each in (*described["steps"], *described["off_path"])] == [worked_ms]
