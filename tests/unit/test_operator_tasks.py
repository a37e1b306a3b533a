"""Lists of structs in rows of tables, and the tasks in rows of `operator_batches`."""

from __future__ import annotations

import polars as pl
import pytest

from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.operator_tasks import measured_tasks, spark_tasks
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import OPERATOR_BATCHES

ROWS: list[dict[str, object]] = [
    {"batch_id": 7, "operator": "events", "finished_at": 9_000, "tasks": [{"partition": 1, "n": 2, "task_id": "s_1"}]},
    {
        "batch_id": 7,
        "operator": "latest",
        "finished_at": 9_500,
        "tasks": [{"task_id": "s_1", "n": None}, {"shard": 0, "host": "h", "finished_at": 8_001}],
    },
    {"batch_id": 8, "operator": "latest", "tasks": None},
    {"batch_id": 9, "operator": "latest", "tasks": []},
]


def test_a_list_of_structs_gets_the_fields_of_its_table_and_instants_of_epoch_ms() -> None:
    written = rows_of(OPERATOR_BATCHES, ROWS)["tasks"].to_pylist()
    assert written[0][0]["task_id"] == "s_1"
    assert written[0][0]["hot_key"] is None
    assert written[1][1]["finished_at"] == utc(8_001)
    assert written[2:] == [None, []]


def test_a_field_that_a_list_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError, match=r"operator_batches.tasks has no fields \['weight'\]"):
        rows_of(OPERATOR_BATCHES, [{"tasks": [{"weight": 1}]}])


def test_an_input_partition_is_measured_and_a_shard_has_its_host() -> None:
    rows = pl.DataFrame(rows_of(OPERATOR_BATCHES, ROWS))
    measured = measured_tasks(rows).select("batch_id", "operator", "task_id", "partition", "n", "finished_at")
    assert measured.rows() == [(7, "events", "s_1", 1, 2, utc(9_000))]
    ran = spark_tasks(rows.lazy()).select("batch_id", "operator", "shard", "partition", "host", "finished_at")
    assert ran.collect().rows() == [(7, "latest", 0, None, "h", utc(8_001))]
