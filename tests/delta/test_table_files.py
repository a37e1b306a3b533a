"""Files are replaced or removed on top of concurrent commits, or not.

There is no partial result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidemark.control.folder import LeaseLost
from tidemark.errors import TidemarkError
from tidemark.maintenance.orphan_files import remove_unused
from tidemark.storage.delta import compaction
from tidemark.storage.delta.compaction import (
    NewFile,
    TableBusy,
    data_files_of,
    remove_files,
    replace_files,
    rows_of_each,
    write_files,
)
from tidemark.storage.delta.tables import Committer, create, rows_of_others, scan
from tidemark.storage.fence import Fence

ALL = [("a", 0), ("b", 0), ("c", 1), ("d", 2)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three files, of batches 0, 1 and 2."""
    path = tmp_path / "changes"
    create(path, rows(0, "a").schema)
    committer = Committer("play/0", Fence(clock=lambda: 0))
    for batch_id, ids in enumerate(["ab", "c", "d"]):
        committer.commit(path, rows(batch_id, ids), batch_id)
    return path


def rows(batch_id: int, ids: str) -> pa.Table:
    return pa.table({"id": list(ids), "batch_id": [batch_id] * len(ids)})


def contents(path: Path) -> list[tuple[str, int]]:
    return sorted(scan(path).select("id", "batch_id").collect().rows())


def together(path: Path, meanwhile: Callable[[], object] = lambda: None) -> Iterator[NewFile]:
    """All rows in one file; *meanwhile* happens before it is committed."""
    files = data_files_of(path)
    yield from write_files(path, rows_of_each(path, files), prefix="", like=replace(files[-1], written_at_ms=7))
    meanwhile()


def test_files_are_read_from_the_log_with_their_newest_batch(table: Path) -> None:
    assert [(file.rows, file.newest_batch) for file in data_files_of(table)] == [(2, 0), (1, 1), (1, 2)]


def test_compacted_rows_keep_their_age_and_writer(table: Path) -> None:
    replace_files(table, data_files_of(table), together(table))
    (file,) = data_files_of(table)
    assert (file.rows, file.newest_batch, file.written_at_ms) == (4, 2, 7)
    assert contents(table) == ALL
    assert rows_of_others(table, DeltaTable(str(table))) == []


def append(path: Path) -> None:
    Committer("play/0", Fence(clock=lambda: 0)).commit(path, rows(3, "e"), 3)


def delete(path: Path) -> None:
    DeltaTable(str(path)).delete("id = 'a'")


def optimize(path: Path) -> None:
    DeltaTable(str(path)).optimize.compact()


def maintain(path: Path) -> None:
    replace_files(path, data_files_of(path), together(path))


def test_rows_appended_during_compaction_are_kept(table: Path) -> None:
    replace_files(table, data_files_of(table), together(table, lambda: append(table)))
    assert contents(table) == [*ALL, ("e", 3)]


@pytest.mark.parametrize("other", [delete, optimize, maintain])
def test_a_compaction_whose_files_are_gone_leaves_nothing(table: Path, other: Callable[[Path], None]) -> None:
    with pytest.raises(TableBusy):
        replace_files(table, data_files_of(table), together(table, lambda: other(table)))
    assert contents(table) == (ALL[1:] if other is delete else ALL)
    named = {Path(file).name for file in DeltaTable(str(table)).file_uris()}
    unused = [file for file in table.glob("*.parquet") if file.name not in named]
    assert len(unused) == {delete: 1, optimize: 3, maintain: 3}[other]  # those that the other one replaced


def test_an_older_optimize_is_refused_and_doubles_no_row(table: Path) -> None:
    stale = DeltaTable(str(table))
    replace_files(table, data_files_of(table), together(table))
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        stale.optimize.compact()
    assert contents(table) == ALL


def test_an_older_optimize_restores_no_deleted_rows(table: Path) -> None:
    stale = DeltaTable(str(table))
    remove_files(table, data_files_of(table)[:1])
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        stale.optimize.compact()
    assert contents(table) == ALL[2:]


def test_compaction_keeps_the_metadata_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    who = pa.field("id", pa.string(), metadata={"comment": "who"})
    schema = pa.schema([who, pa.field("batch_id", pa.int64())])
    create(path, schema, description="one a batch", checks={"tidemark_old": "batch_id >= 0"}, partitioned_by=["id"])
    for batch_id in range(2):
        write_deltalake(str(path), rows(batch_id, "a"), mode="append")
    described = [json.loads(line) for file in commits(path) for line in file.read_text().splitlines()]
    *_, was = (action["metaData"] for action in described if "metaData" in action)

    replace_files(path, data_files_of(path), together(path))

    (told,), (metadata,), (add,) = (in_newest_commit(path, kind) for kind in ("commitInfo", "metaData", "add"))
    assert metadata == {name: value for name, value in was.items() if value is not None}
    assert add["partitionValues"] == {"id": "a"}
    assert (told["operation"], told["maintenance"]) == ("OPTIMIZE", "true")
    assert contents(path) == [("a", 0), ("a", 1)]


def commits(path: Path) -> list[Path]:
    return sorted((path / "_delta_log").glob("*.json"))


def in_newest_commit(path: Path, kind: str) -> list[dict[str, Any]]:
    actions = map(json.loads, commits(path)[-1].read_text().splitlines())
    return [action[kind] for action in actions if kind in action]


def test_a_checkpoint_is_made_when_one_is_due(table: Path) -> None:
    committer = Committer("play/0", Fence(clock=lambda: 0))
    for batch_id in range(3, 98):
        committer.commit(table, rows(batch_id, "x"), batch_id)
    replace_files(table, data_files_of(table), together(table))
    (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    assert checkpoint.name == "00000000000000000099.checkpoint.parquet"
    assert len(contents(table)) == 99


def test_a_table_with_an_unknown_feature_keeps_its_files(table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    before = data_files_of(table)
    with pytest.raises(TableBusy, match=r"files not changed: .* Tidemark does not write to tables with changeDataFeed"):
        replace_files(table, before, together(table))
    assert data_files_of(table) == before
    assert len(list(table.glob("*.parquet"))) == len(before)


def test_an_append_only_table_keeps_its_rows(table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableBusy, match=r"rows not deleted: the table has delta\.appendOnly set"):
        remove_files(table, data_files_of(table)[:1])
    replace_files(table, data_files_of(table), together(table))
    assert contents(table) == ALL


@pytest.mark.parametrize("value", [3, True, date(2026, 1, 1), "a b"])
def test_a_partition_encoded_differently_keeps_its_files(tmp_path: Path, value: object) -> None:
    path = tmp_path / "t"
    for _ in range(2):
        write_deltalake(str(path), pa.table({"p": [value], "batch_id": [1]}), mode="append", partition_by=["p"])
    before = data_files_of(path)
    with pytest.raises(TableBusy, match="files not changed: "):
        replace_files(path, before, together(path))
    assert data_files_of(path) == before
    assert len(list(path.rglob("*.parquet"))) == 2


def test_a_replaced_writer_changes_nothing_and_leaves_nothing(table: Path) -> None:
    def check() -> None:
        raise LeaseLost

    before = data_files_of(table)
    with pytest.raises(LeaseLost):
        replace_files(table, before, together(table), check=check)
    assert data_files_of(table) == before
    assert len(list(table.glob("*.parquet"))) == len(before)


@pytest.mark.parametrize("other", [append, optimize])
def test_a_commit_just_before_ours_is_checked_too(
    table: Path, other: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [other]

    def clock() -> int:
        """Read once for each file that goes, right before the commit."""
        if others:
            others.pop()(table)
        return 0

    monkeypatch.setattr(compaction, "wall_clock_ms", clock)
    with pytest.raises(TableBusy) if other is optimize else nullcontext():
        replace_files(table, data_files_of(table), together(table))
    assert contents(table) == (ALL if other is optimize else [*ALL, ("e", 3)])
    assert len(data_files_of(table)) == (1 if other is optimize else 2)


def test_files_with_fewer_rows_replace_no_other_file(table: Path) -> None:
    before = data_files_of(table)
    fewer = write_files(table, [rows(0, "a")], prefix="", like=before[-1])
    with pytest.raises(TidemarkError, match="1 in the new files instead of 4"):
        replace_files(table, before, fewer)
    assert data_files_of(table) == before
    assert len(list(table.glob("*.parquet"))) == 3


def test_rows_of_a_replaced_file_are_not_counted_as_none(table: Path) -> None:
    stale = data_files_of(table)
    optimize(table)
    with pytest.raises(TableBusy):
        list(rows_of_each(table, stale))


def test_rows_are_removed_with_their_files_unless_changed(table: Path) -> None:
    oldest, *_ = stale = data_files_of(table)
    remove_files(table, [oldest])
    assert contents(table) == ALL[2:]
    with pytest.raises(TableBusy):
        remove_files(table, stale)
    assert contents(table) == ALL[2:]


def test_a_stream_merges_into_files_added_after_its_check(tmp_path: Path) -> None:
    board = tmp_path / "board"
    create(board, rows(0, "a").schema)
    asked: list[int] = []

    def stopped() -> None:
        """The driver pauses before its second commit until its files are removed."""
        asked.append(0)
        if len(asked) == 3:
            maintain(board)
            assert remove_unused(board, 0) == 2

    committer = Committer("play/0", Fence(stopped, clock=lambda: 0))
    for batch_id, id_ in enumerate("aba"):
        new = rows(batch_id, id_).append_column("deleted", pa.array([False]))
        committer.upsert(board, new, batch_id, key=["id"])
    assert contents(board) == [("a", 2), ("b", 1)]


def test_files_that_a_paused_driver_may_commit_are_kept(table: Path) -> None:
    for name in ("batch-00000000000000000003-a", "batch-00000000000000000002-b", "left"):
        (table / f"{name}.parquet").write_bytes(b"")
    since_ms = (table / "left.parquet").stat().st_mtime_ns // 1_000_000
    assert remove_unused(table, 0, since_ms=since_ms - 10_000, done=2) == 0
    assert remove_unused(table, 0, since_ms=since_ms + 10_000, done=2) == 2
    assert [file.name for file in table.glob("batch*")] == ["batch-00000000000000000003-a.parquet"]
    assert remove_unused(table, 0, done=None) == 0


def test_a_table_untouched_for_long_keeps_all_its_files(table: Path) -> None:
    write_deltalake(str(table), rows(9, "z"), mode="append")
    assert remove_unused(table, 0) == 0
    assert contents(table) == [*ALL, ("z", 9)]
