"""Spark, DuckDB, Polars and delta-rs read the same from every table.

Tables are compacted and their current rows changed meanwhile.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.all_readers import by_all_readers, differences, of_all_types, types_of, word
from support.play import Play
from support.topologies import NEWEST
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.tables.catalog import HOP, TABLES
from tidemark.storage.delta.tables import create

STREAM_TABLES = [table for table in [*TABLES.values(), HOP] if table.written_by == "stream"]
T = 1_400_000_000_000


VALUES: dict[str, list[Any]] = {
    "string": ["plain", 'a "quoted"; \\ 🦉\n', ""],
    "binary": [b"plain", b"\xff\x00", b""],
    "boolean": [True, False, None],
    "int": [7, -(2**31), 2**31 - 1],
    "bigint": [7, -(2**63), 2**63 - 1],
    "double": [0.1, -1e300, 0.0],
    "timestamp": [T, -1, 253_370_764_800_000],
}
"""Values per type: an ordinary one, and two that readers may misread."""


def value(ddl: str, place: int) -> Any:
    if not ddl.startswith("array<"):
        return VALUES[ddl][place]
    kind = arrow_schema_type(ddl)
    if not pa.types.is_struct(kind.value_type):
        return [VALUES[word(kind.value_type)], [], [None]][place]
    struct = {field.name: VALUES[word(field.type)][place] for field in kind.value_type}
    return [[struct], [], [struct, dict.fromkeys(struct)]][place]


def arrow_schema_type(ddl: str) -> pa.DataType:
    return next(
        field.type
        for table in STREAM_TABLES
        for column, field in zip(table.columns, arrow_schema(table), strict=True)
        if column.type == ddl
    )


@pytest.mark.parametrize("table", of_all_types(STREAM_TABLES))
def test_every_value_of_a_stream_s_table_is_read_alike(spark, tmp_path, table):
    path, at = tmp_path / table.name, next(c.name for c in table.columns if c.type == "bigint")
    rows = [{c.name: value(c.type, place) for c in table.columns} for place in range(3)]
    create(path, arrow_schema(table), description=table.row)
    write_deltalake(path, rows_of(table, [*rows, dict.fromkeys(table.names)]), mode="append")
    write_deltalake(path, rows_of(table, [{**rows[0], at: 13}]), mode="append")
    DeltaTable(path).delete(f"{at} = 13")
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    write_deltalake(path, rows_of(table, rows[:1]), mode="append")

    seen = by_all_readers(spark, path)

    assert types_of(seen) == {column.name: column.type for column in table.columns}
    assert differences(rows_of(table, [*rows, dict.fromkeys(table.names), rows[0]]), seen) == []


def test_current_rows_read_alike_after_each_operation(spark, tmp_path):
    play = Play(NEWEST, tmp_path)
    board = play.table("board")

    def ids() -> list[tuple[str, int]]:
        seen = by_all_readers(spark, board)
        assert types_of(seen)["timestamp"] == "timestamp"
        return sorted((row["id"], row["v"]) for row in seen.select(["id", "v"]).to_pylist())

    play.batch([play.row("events", T, id="a", v=1), play.row("events", T, id="b", v=1)], at_ms=T)
    assert ids() == [("a", 1), ("b", 1)]
    play.batch([play.row("events", T + 1, id="a", v=2), play.row("events", T + 1, id="c", v=1)], at_ms=T + 1)
    assert ids() == [("a", 2), ("b", 1), ("c", 1)]  # merged
    (newest,) = spark.sql(f"DESCRIBE HISTORY delta.`{board}` LIMIT 1").collect()
    assert json.loads(newest["userMetadata"]).keys() == {"watermark", "complete"}
    spark.sql(f"DELETE FROM delta.`{board}` WHERE id = 'b'")
    assert ids() == [("a", 2), ("c", 1)]
    spark.sql(f"OPTIMIZE delta.`{board}`")
    DeltaTable(board).create_checkpoint()
    assert ids() == [("a", 2), ("c", 1)]
    play.batch([play.row("events", T + 2, id="b", v=3)], at_ms=T + 2)
    assert ids() == [("a", 2), ("b", 3), ("c", 1)]
