"""Every reader reads a commit made through a table's own log.

Commits that it cannot check are left to delta-rs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidemark.clock import wall_clock_ms
from tidemark.storage.delta.log import HOP_LOG, KEPT_LOG, SHORT_LOG, TableLog, commit_file
from tidemark.storage.delta.tables import Committer, create, scan
from tidemark.storage.fence import Fence

APP = "flights/status/changes"
HOUR_MS = 3_600_000
ROWS = pa.schema([("batch_id", pa.int64()), ("n", pa.int64())])


def rows(batch_id: int, n: int) -> pa.Table:
    return pa.table({"batch_id": [batch_id], "n": [n]}, schema=ROWS)


def append(log: TableLog, batch_id: int, n: int) -> None:
    log.append([log.write(rows(batch_id, n))], batch_id, {"batch_id": str(batch_id)})


def numbers(path: Path) -> list[int]:
    return sorted(scan(path).collect()["n"].to_list())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "changes"
    create(path, ROWS)
    return path


def test_appended_rows_and_their_transaction_are_readable(table: Path) -> None:
    log = TableLog(table, APP)
    for batch_id in range(3):
        append(log, batch_id, 10 * batch_id)
    opened = DeltaTable(str(table))
    assert (opened.version(), opened.transaction_version(APP), log.newest_batch) == (3, 2, 2)
    assert numbers(table) == [0, 10, 20]
    assert opened.to_pyarrow_table(filters=[("n", ">", 15)])["n"].to_pylist() == [20], "bounds in the log are right"


def others_append(table: Path) -> None:
    write_deltalake(str(table), rows(9, 99), mode="append")


def others_compact(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


@pytest.mark.parametrize(("other", "left"), [(others_append, [0, 1, 2, 99]), (others_compact, [0, 1, 2])])
def test_commits_of_others_that_only_change_files_are_skipped(
    table: Path, other: Callable[[Path], None], left: list[int]
) -> None:
    log = TableLog(table, APP)
    append(log, 0, 0)
    append(log, 1, 1)
    other(table)
    append(log, 2, 2)
    assert numbers(table) == left
    assert log.version == DeltaTable(str(table)).version()


def test_a_table_is_reopened_after_a_change_of_properties(table: Path) -> None:
    log = TableLog(table, APP)
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "7"})
    with pytest.raises(CommitFailedError, match="changed more than files"):
        append(log, 0, 0)


def test_a_batch_committed_by_another_driver_is_not_repeated(table: Path) -> None:
    slow, fast = TableLog(table, APP), TableLog(table, APP)
    append(fast, 0, 1)
    with pytest.raises(CommitFailedError):
        append(slow, 0, 1)
    assert numbers(table) == [1]


def forget(table: Path, before: int) -> None:
    """Have a checkpoint, and none of the commits before version *before*."""
    DeltaTable(str(table)).create_checkpoint()
    for commit in (table / "_delta_log").glob("*.json"):
        if int(commit.stem) < before:
            commit.unlink()


def test_rows_survive_the_removal_of_following_commits(table: Path) -> None:
    committer = Committer("flights/status", Fence(clock=lambda: 0))
    committer.commit(table, rows(0, 0), 0)
    for _ in range(3):  # versions 2 to 4, while this driver stands still
        others_append(table)
    forget(table, before=4)
    committer.commit(table, rows(1, 1), 1)  # version 2 is free, and no reader reads it
    assert numbers(table) == [0, 1, 99, 99, 99]
    committer.commit(table, rows(1, 1), 1)
    assert numbers(table) == [0, 1, 99, 99, 99]


def test_a_log_with_only_a_checkpoint_accepts_rows(table: Path) -> None:
    committer = Committer("flights/status", Fence(clock=lambda: 0))
    committer.commit(table, rows(0, 0), 0)
    forget(table, before=2)
    committer.commit(table, rows(1, 1), 1)
    assert numbers(table) == [0, 1]


def test_constraints_that_others_added_are_enforced(table: Path) -> None:
    DeltaTable(str(table)).alter.add_constraint({"small": "n < 10"})
    assert not TableLog(table, APP).takes_appends
    committer = Committer("flights/status", Fence(clock=lambda: 0))
    committer.commit(table, rows(0, 9), 0)
    with pytest.raises(Exception, match="failed validation check"):
        committer.commit(table, rows(1, 10), 1)
    assert numbers(table) == [9]


def test_a_constraint_that_came_before_the_clean_up_is_seen(table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    log = TableLog(table, APP)
    DeltaTable(str(table)).alter.add_constraint({"small": "n < 10"})
    log.clean_up()
    with pytest.raises(CommitFailedError, match="changed more than files"):
        append(log, 0, 10)


def test_rows_of_a_partitioned_table_are_in_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "board"
    create(path, ROWS, partitioned_by=["n"])
    Committer("flights/status", Fence(clock=lambda: 0)).commit(path, rows(0, 7), 0)
    assert [Path(uri).parent.name for uri in DeltaTable(str(path)).file_uris()] == ["n=7"]
    assert numbers(path) == [7]


def test_values_not_in_json_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "values"
    columns = {"batch_id": [0, 0], "d": [Decimal("1.10"), None], "f": [math.nan, math.inf], "t": ["x" * 100, None]}
    types = [("batch_id", pa.int64()), ("d", pa.decimal128(9, 2)), ("f", pa.float64()), ("t", pa.string())]
    values = pa.table(columns, schema=pa.schema(types))
    create(path, values.schema)
    Committer("flights/status", Fence(clock=lambda: 0)).commit(path, values, 0)
    found = DeltaTable(str(path)).to_pyarrow_table(filters=[("t", "=", "x" * 100)]).to_pylist()
    assert [(row["d"], math.isnan(row["f"])) for row in found] == [(Decimal("1.10"), True)]
    assert len(scan(path).collect()) == 2


@pytest.mark.parametrize(("log", "named"), [(SHORT_LOG, [23]), (KEPT_LOG, [23]), (HOP_LOG, [23, 25])])
def test_a_checkpoint_names_a_replaced_file_for_a_day_or_that_of_a_hop_for_a_week(
    tmp_path: Path, log: str, named: list[int]
) -> None:
    create(tmp_path, ROWS, log=log)
    replaced = [
        {"remove": {"path": f"{hours}", "deletionTimestamp": wall_clock_ms() - hours * HOUR_MS, "dataChange": False}}
        for hours in (23, 25, 24 * 8)
    ]
    commit_file(tmp_path, 1).write_text("\n".join(map(json.dumps, replaced)))
    DeltaTable(str(tmp_path)).create_checkpoint()
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.parquet")
    actions = pq.read_table(checkpoint, columns=["remove"])["remove"].to_pylist()
    assert sorted(int(action["path"]) for action in actions if action) == named
