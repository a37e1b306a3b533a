"""Delta tables describe their columns, and existing tables get new descriptions."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from support.play import Play
from support.topologies import aggregate, sink, source, topology_of
from tidemark.errors import InvalidRow
from tidemark.facts.report_rows import report_rows
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.checks import CHECKS
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import HOP, OPERATOR_BATCHES, SLA_RESULTS, TABLES
from tidemark.storage.delta.report_tables import replace_rows
from tidemark.storage.delta.tables import create, scan
from tidemark.storage.warehouse import delta_tables

FLIGHTS = (Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml").read_text()
CLOCKS = ("record time", "clock", "instant of the", "decision time", "exclusive")
SAID_OF_BOARD = {
    "flight": "flight of flight_events",
    "delay_min": "flight_updates: coalesce(arr_delay_min, dep_delay_min)",
    "temp_f": "temp_f of weather",
    "timestamp": "record time; of an aggregate's result the largest record time that it reflects",
}
AVERAGES = topology_of(
    {"name": "rooms"},
    readings=source(topic="readings", fields="room string, celsius double, read_at bigint", timestamp="read_at"),
    everything=sink("readings", table="everything"),
    by_minute=aggregate(
        "readings",
        key=["room"],
        window={"tumbling": "1 min"},
        aggregates={"total": "sum(celsius)", "n": "count(*)"},
        select={"celsius": "total / n"},
    ),
    board=sink("by_minute", table="board"),
)


def comments(table: Path) -> dict[str, str]:
    return {field.name: field.metadata.get("comment", "") for field in DeltaTable(table).schema().fields}


def test_a_report_is_read_with_the_columns_that_are_declared(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    unwritten = report_rows(layout, "flights", SLA_RESULTS, columns=["sla", "crossed_at"])
    assert dict(unwritten.schema) == {"sla": pl.String(), "crossed_at": pl.Datetime("us", "UTC")}
    assert report_rows(layout, "flights", SLA_RESULTS).columns == [*SLA_RESULTS.names]
    older = pa.table({"sla": ["fresh", "quick"], "run_id": ["a", "b"], "gone": [1, 2]})
    write_deltalake(layout.report_table("flights", SLA_RESULTS.name), older)
    newest = report_rows(layout, "flights", SLA_RESULTS, pl.col("run_id") == "b", columns=["sla", "crossed_at"])
    assert newest.rows() == [("quick", None)]
    assert report_rows(layout, "flights", SLA_RESULTS).columns == [*SLA_RESULTS.names]


@pytest.mark.parametrize("table", [*TABLES.values(), HOP], ids=lambda table: table.name)
def test_every_column_has_a_comment_with_its_clock_or_unit(table):
    assert table.row
    for column in table.columns:
        assert column.comment, column.name
        if column.type == "timestamp":
            assert any(clock in column.comment for clock in CLOCKS), f"{column.name}: {column.comment}"
        if column.name.endswith("_ms"):
            assert re.search(r"\bms\b", column.comment), f"{column.name}: {column.comment}"


def test_tables_of_a_running_topology_describe_rows_and_columns(tmp_path):
    play = Play(FLIGHTS, tmp_path, partitions=3)
    for sub in ("carriers", "status"):  # the one behind the hop comes first, and makes it
        play.start(sub)

    tables = {name: paths for name, paths in delta_tables(tmp_path).items() if name != "heartbeats"}
    assert {"flight_board", "hop_by_carrier", "operator_batches"} <= tables.keys()
    for path in (path for paths in tables.values() for path in paths):
        assert all(comments(path).values()), path
        assert DeltaTable(path).metadata().description, path
    board = comments(Layout(tmp_path).stream_table("flights", "status", "flight_board"))
    assert board | SAID_OF_BOARD == board


def test_a_sink_column_is_described_by_its_expression(tmp_path):
    play = Play(AVERAGES, tmp_path)
    play.start()
    board = comments(play.table("board"))
    assert board["celsius"] == "by_minute: total / n"
    assert board["room"] == "room of readings"
    assert board["window_start"] == "start of the window, inclusive: record time"
    assert comments(play.table("everything"))["read_at"] == ("read_at of readings: record time, epoch ms")


def test_a_table_gets_missing_columns_filled_with_null(tmp_path):
    table, whole = tmp_path / "operator_batches", arrow_schema(OPERATOR_BATCHES)
    create(table, pa.schema([field for field in whole if field.name != "fan_out"]))
    write_deltalake(table, rows_of(OPERATOR_BATCHES, [{"batch_id": 1, "emitted": 2}]).drop(["fan_out"]), mode="append")

    create(table, whole)
    write_deltalake(table, rows_of(OPERATOR_BATCHES, [{"batch_id": 2, "fan_out": 5}]), mode="append")

    assert sorted(scan(table).select("batch_id", "emitted", "fan_out").collect().rows()) == [(1, 2, None), (2, None, 5)]
    assert comments(table)["fan_out"] == next(c.comment for c in OPERATOR_BATCHES.columns if c.name == "fan_out")


def test_a_table_with_other_column_comments_accepts_new_rows(tmp_path):
    table, whole = tmp_path / "operator_batches", arrow_schema(OPERATOR_BATCHES)
    create(table, pa.schema([field.with_metadata({"comment": "as it was"}) for field in whole]))

    create(table, whole)
    write_deltalake(table, rows_of(OPERATOR_BATCHES, [{"batch_id": 1}]), mode="append")

    assert comments(table) == {column.name: column.comment for column in OPERATOR_BATCHES.columns}


def test_a_stream_continues_with_a_table_that_lacks_a_column(tmp_path):
    play = Play(AVERAGES, tmp_path)
    create(
        play.table("operator_batches"), pa.schema([f for f in arrow_schema(OPERATOR_BATCHES) if f.name != "repeated"])
    )

    play.batch([play.row("readings", 1_400_000_000_000, room="a", celsius=20.0)], at_ms=1_400_000_000_500)

    assert {row["operator"]: row["repeated"] for row in play.rows("operator_batches")} == {
        "readings": 0, "everything": 0, "by_minute": 0, "board": 0,
    }  # fmt: skip


def test_a_row_that_breaks_a_constraint_is_refused_by_name(tmp_path):
    rows = [{"sla": "board_is_fresh", "verdict": "fine"}]
    with pytest.raises(InvalidRow) as refused:
        replace_rows(rows, SLA_RESULTS, tmp_path / "sla_results", where="true")
    assert all(part in str(refused.value) for part in ("sla_results", "tidemark_known_verdict", "board_is_fresh"))
    assert DeltaTable(tmp_path / "sla_results").to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("table", [TABLES[name] for name in CHECKS], ids=lambda table: table.name)
def test_a_report_accepts_rows_of_nulls(table, tmp_path):
    replace_rows([dict.fromkeys(table.names)], table, tmp_path / table.name, where="true or topology is null")
    assert DeltaTable(tmp_path / table.name).to_pyarrow_table().num_rows == 1


def test_own_constraints_that_are_not_declared_are_replaced(tmp_path):
    table, schema = tmp_path / "t", pa.schema([("n", pa.int64())])
    create(table, schema, checks={"tidemark_small": "n < 10"})
    DeltaTable(table).alter.add_constraint({"mine": "n <> 13"})

    create(table, schema, checks={"tidemark_not_large": "n < 100"})

    write_deltalake(table, pa.table({"n": [50]}), mode="append")
    for refused in (13, 100):
        with pytest.raises(DeltaError, match="failed validation check"):
            write_deltalake(table, pa.table({"n": [refused]}), mode="append")
