"""Datasets have the rows of tables, and leave out files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.storage.delta import datasets
from tidemark.storage.delta.tables import append, create


def test_conditions_leave_out_files_by_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MOST_FILES", 1)
    path = tmp_path / "table"
    create(path, pa.schema([("batch_id", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("n", pa.int64())]))
    last_us = 253_402_300_799_999_000  # 9999-12-31T23:59:59.999: a bound is at most a millisecond more
    for batch_id, at_us in ((0, 1_000_001), (1, None), (2, 3_000_009), (3, last_us)):
        at = pl.Series([at_us], dtype=pl.Datetime("us", "UTC"))
        append(path, pl.DataFrame({"batch_id": [batch_id], "timestamp": at, "n": [batch_id]}).to_arrow())
    rows = datasets.dataset_of(DeltaTable(str(path)))

    def batches(where: ds.Expression) -> tuple[int, list[int]]:
        return len([*rows.get_fragments(where)]), rows.to_table(filter=where)["batch_id"].to_pylist()

    assert batches(ds.field("batch_id") == 2) == (1, [2])
    assert batches(ds.field("timestamp") == datetime(1970, 1, 1, 0, 0, 1, 1, UTC)) == (3, [0]), "two have no bounds"
    assert batches(ds.field("timestamp").is_null()) == (2, [1])
    # A condition for each column and file costs more than to open the files.
    assert batches(ds.field("n") == 2) == (4, [2])


def test_partitions_are_columns_and_leave_out_files(tmp_path: Path) -> None:
    path = tmp_path / "table"
    create(path, pa.schema([("grain", pa.string()), ("n", pa.int64())]), partitioned_by=["grain"])
    for n, grain in enumerate(("hour", "day", None)):
        row = pa.table({"grain": pa.array([grain], pa.string()), "n": [n]})
        write_deltalake(path, row, mode="append")
    table = DeltaTable(str(path))
    rows = datasets.dataset_of(table)

    def found(where: ds.Expression) -> tuple[int, list[dict[str, object]]]:
        columns = ["grain", "n"]
        return len([*rows.get_fragments(where)]), rows.to_table(columns=columns, filter=where).to_pylist()

    assert found(ds.field("grain") == "day") == (1, [{"grain": "day", "n": 1}])
    assert found(ds.field("n") == 2) == (3, [{"grain": None, "n": 2}])
    expected = table.to_pyarrow_dataset().to_table(columns=["grain", "n"]).sort_by("n")
    assert rows.to_table(columns=["grain", "n"]).sort_by("n").to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("reader", "features", "file", "is_plain"),
    [
        (1, None, "", True),
        (3, ["timestampNtz"], "", True),
        (2, None, "", False),  # column mapping, which a reader of files alone takes for columns of nulls
        (3, ["columnMapping"], "", False),
        (3, ["timestampNtz", "deletionVectors"], "", False),
        (3, ["typeWidening"], "", False),
        (1, None, "file:/another/table/", False),  # a shallow clone
    ],
)
def test_rows_are_those_of_the_files_without_other_features(
    tmp_path: Path, reader: int, features: list[str] | None, file: str, *, is_plain: bool
) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    actions = {kind: value for line in commit.read_text().splitlines() for kind, value in json.loads(line).items()}
    actions["protocol"] = {"minReaderVersion": reader, "minWriterVersion": 7, "writerFeatures": features or []}
    actions["protocol"] |= {"readerFeatures": features} if features else {}
    actions["add"]["path"] = file + actions["add"]["path"]
    commit.write_text("\n".join(json.dumps({kind: value}) for kind, value in actions.items()))
    assert datasets.has_plain_rows(DeltaTable(str(tmp_path))) is is_plain
