"""The task of a sharded operator that finished last is named, with how late it was and its hottest key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from tidemark.kernels.schemas import arrow_schema
from tidemark.report.path_facts import physical_name, task_text
from tidemark.report.slowest_tasks import slowest_tasks, with_slowest_tasks
from tidemark.spec.tables import CRITICAL_PATH_STEPS, OPERATOR_TASKS

NOON = datetime(2014, 5, 13, 12, tzinfo=UTC)
NOON_MS = 1_399_982_400_000


def tasks(*rows: dict[str, Any]) -> pl.DataFrame:
    schema = pl.DataFrame(arrow_schema(OPERATOR_TASKS).empty_table()).schema
    at = [{**row, "finished_at": NOON.replace(microsecond=row["finished_at"] * 1_000)} for row in rows]
    return pl.DataFrame([{"batch_id": 7, **row} for row in at], schema=schema)


FOUR = tasks(
    {"operator": "counts", "shard": 0, "finished_at": 100, "hot_key": "a", "hot_share": 0.2},
    {"operator": "counts", "shard": 1, "finished_at": 110, "hot_key": "b", "hot_share": 0.3},
    {"operator": "counts", "shard": 2, "finished_at": 130, "hot_key": "c", "hot_share": 0.4},
    {"operator": "counts", "shard": 3, "finished_at": 530, "hot_key": "d", "hot_share": 0.9},
    {"operator": "events", "partition": 0, "finished_at": 20},
    {"operator": "events", "partition": 1, "finished_at": 5},
    {"operator": "alone", "shard": 0, "finished_at": 20},
)


def test_the_task_that_finished_last_is_compared_with_the_median_of_the_others() -> None:
    found = {row["operator"]: row for row in slowest_tasks(FOUR).to_dicts()}
    assert found.keys() == {"counts", "events"}  # an operator with one task has no slowest one
    counts, events = found["counts"], found["events"]
    assert (counts["slowest_task"], counts["behind_tasks_ms"], counts["hot_key"]) == ("shard 3", 530 - 110, "d")
    assert (events["slowest_task"], events["behind_tasks_ms"], events["hot_key"]) == ("partition 0", 15, None)


def test_steps_have_the_slowest_task_of_the_batch_that_finished_their_window() -> None:
    schema = pl.DataFrame(arrow_schema(CRITICAL_PATH_STEPS).empty_table()).schema
    steps = pl.DataFrame([{"operator": name, "window_end": NOON} for name in ("counts", "board")], schema=schema)
    finished = pl.DataFrame({"window_end": [NOON_MS] * 2, "operator": ["counts", "board"], "batch_id": [7, 7]})
    found = with_slowest_tasks(steps, finished, FOUR)
    assert found["operator"].to_list() == ["counts", "board"]
    assert found["slowest_task"].to_list() == ["shard 3", None]
    assert found["hot_share"].to_list() == [0.9, None]
    assert found.schema == schema


def test_a_step_is_named_with_its_task() -> None:
    step = {"operator": "counts", "slowest_task": "shard 3", "behind_tasks_ms": 1_420, "hot_key": "d", "hot_share": 0.9}
    assert physical_name(step) == "counts[shard 3]"
    late = "counts[shard 3] finished 1,420 ms after the median of its other tasks"
    assert task_text(step) == f"{late}; 90% of its records are of d"
    assert task_text({**step, "hot_key": None}) == late
    assert task_text({**step, "slowest_task": None}) is None
    assert physical_name({**step, "slowest_task": None}) == "counts"
