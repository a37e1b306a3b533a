"""A snapshot has delta-rs's files or is absent; queries read logs once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction

from tidemark.clock import wall_clock_ms
from tidemark.model.project.layout import Layout
from tidemark.query import sql, stored_tables
from tidemark.query.sql import Warehouse
from tidemark.query.stored_tables import newest_snapshot
from tidemark.storage.delta import snapshots
from tidemark.storage.delta.datasets import dataset_of, open_to_read, schema_of
from tidemark.storage.delta.snapshots import (
    AddedFiles,
    ReadLog,
    added_files,
    damage_of_log,
    snapshot_of,
)


def rows(*numbers: int, word: str = "a") -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": pa.array([word] * len(numbers), pa.string())})


def appended(path: Path) -> None:
    for n in range(3):
        write_deltalake(path, rows(n, n + 10), mode="append")


def with_a_checkpoint(path: Path) -> None:
    appended(path)
    DeltaTable(path).create_checkpoint()
    write_deltalake(path, rows(7), mode="append")


def with_the_log_cut(path: Path) -> None:
    with_a_checkpoint(path)
    for version in range(2):
        (path / "_delta_log" / f"{version:020d}.json").unlink()


def deleted_from(path: Path) -> None:
    appended(path)
    DeltaTable(path).delete("n = 10")
    DeltaTable(path).delete("n >= 0 and n < 2 and word = 'a'")


def compacted(path: Path) -> None:
    appended(path)
    DeltaTable(path).optimize.compact()


def partitioned(path: Path) -> None:
    for word in ("a", "b c", "ü/%"):
        write_deltalake(path, rows(1, 2, word=word), mode="append", partition_by=["word"])
    write_deltalake(path, pa.table({"n": [3], "word": pa.array([None], pa.string())}), mode="append")


def with_a_column_more(path: Path) -> None:
    appended(path)
    wider = rows(5).append_column("more", pa.array([1.5]))
    write_deltalake(path, wider, mode="append", schema_mode="merge")
    write_deltalake(path, rows(6), mode="append", schema_mode="merge")


def with_a_file_of_fewer_columns(path: Path) -> None:
    """As Spark writes a frame that lacks a column."""
    write_deltalake(path, rows(5).append_column("more", pa.array([1.5])))
    pq.write_table(rows(6), path / "fewer.parquet")
    add = AddAction("fewer.parquet", (path / "fewer.parquet").stat().st_size, {}, 0, True, "{}")  # noqa: FBT003
    table = DeltaTable(path)
    table.create_write_transaction([add], "append", table.schema())


def empty(path: Path) -> None:
    DeltaTable.create(path, schema=rows().schema)


MADE = [
    appended, with_a_checkpoint, with_the_log_cut, deleted_from, compacted, partitioned, with_a_column_more,
    with_a_file_of_fewer_columns, empty,
]  # fmt: skip


@pytest.mark.parametrize("make", MADE)
def test_a_snapshot_has_the_files_and_columns_of_delta_rs(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "it's ü here"
    make(path)
    found, table = snapshot_of(path), DeltaTable(path)
    assert found is not None
    assert found.data_files.keys() == {fragment.path for fragment in table.to_pyarrow_dataset().get_fragments()}
    assert [*found.columns] == [field.name for field in table.schema().fields]
    assert schema_of(found).to_arrow() == table.schema().to_arrow()
    assert (found.version(), found.properties) == (table.version(), table.metadata().configuration)


@pytest.mark.parametrize("make", MADE)
def test_queries_and_datasets_have_the_rows_that_delta_rs_reads(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = Layout(tmp_path / "it's ü here").stream_table("t", "s", "sink")
    make(path)
    expected = sorted(map(str, DeltaTable(path).to_pyarrow_table().to_pylist()))
    answer = Warehouse(tmp_path / "it's ü here").ask("from sink")
    assert sorted(map(str, answer.objects)) == expected
    for opened in (DeltaTable(path), open_to_read(path)):
        assert sorted(map(str, dataset_of(opened).to_table().to_pylist())) == expected


def test_a_table_with_unknown_reader_features_has_no_snapshot(tmp_path: Path) -> None:
    appended(tmp_path)
    log = tmp_path / "_delta_log" / f"{3:020d}.json"
    log.write_text(json.dumps({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}))
    assert snapshot_of(tmp_path) is None


WAYS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": ("it is empty", lambda content: b""),
    "cut": ("it is damaged (JSONDecodeError", lambda content: content[: len(content) // 2]),
    "cut at the end of a line": ("it is cut: it has no transaction", lambda content: content[: content.rindex(b"\n")]),
    "no text": ("it is damaged (UnicodeDecodeError", lambda content: b"\xff\xfe" + content),
    "another type": ("it is damaged (AttributeError", lambda content: b"[1]"),
    "nested": ("it is damaged (RecursionError", lambda content: b"[" * 100_000),
}
"""Ways to damage a commit, and what is found."""


def test_a_damaged_log_is_told_with_its_file(tmp_path: Path) -> None:
    for batch in range(3):
        properties = CommitProperties({"batch_id": str(batch)}, app_transactions=[Transaction("t/s/rows", batch)])
        write_deltalake(tmp_path, rows(batch), mode="append", commit_properties=properties)
    log = tmp_path / "_delta_log"
    commits = sorted(log.glob("*.json"))
    assert damage_of_log(tmp_path) is None

    def told(file: Path, content: bytes | None) -> str:
        before = file.read_bytes()
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        damage = damage_of_log(tmp_path)
        file.write_bytes(before)
        return str(damage).removeprefix(f"{log}/")

    for commit in commits:
        content = commit.read_bytes()
        for found, damaged in WAYS.values():
            assert told(commit, damaged(content)).startswith(f"{commit.name}: {found}")
    assert [told(commit, None) for commit in commits] == [
        *(f"{commit.name}: it is missing, and later commits are there" for commit in commits[:2]),
        "None",  # as if the table ended there
    ]
    # With what the log says of the columns, all else of the first commit is damaged or not.
    columns = commits[0].read_bytes().replace(b"schemaString", b"schemaSprite")
    assert told(commits[0], columns).startswith(
        f"{log}: what it says of the columns of the table is missing or damaged"
    )
    DeltaTable(tmp_path).create_checkpoint()
    write_deltalake(tmp_path, rows(7), mode="append")
    (checkpoint,) = log.glob("*.parquet")
    for damaged in (b"", checkpoint.read_bytes()[:-9], b"[1]"):
        assert told(checkpoint, damaged).startswith(f"{checkpoint.name}: it is damaged (")
    assert told(commits[1], b"") == "None"  # the checkpoint has what it said
    assert told(checkpoint, None) == "_last_checkpoint: it names the checkpoint of version 2, which is missing"
    for commit in log.glob("*.json"):
        commit.unlink()
    checkpoint.unlink()
    assert str(damage_of_log(tmp_path)) == f"{log}: it has no commit, and the table has data files"


def test_a_snapshot_names_no_file_outside_of_its_table(tmp_path: Path) -> None:
    appended(tmp_path)
    a_file_elsewhere(tmp_path)
    assert snapshot_of(tmp_path) is None
    a_file_elsewhere_for_a_while(tmp_path)
    assert snapshot_of(tmp_path) is not None


def test_a_snapshot_knows_the_newest_batch_of_an_application(tmp_path: Path) -> None:
    appended(tmp_path)
    log = tmp_path / "_delta_log" / f"{3:020d}.json"
    log.write_text(json.dumps({"txn": {"appId": "a", "version": 41}}) + "\n")
    found = snapshot_of(tmp_path)
    assert found is not None
    assert (found.transaction_version("a"), found.transaction_version("b")) == (41, None)


def test_rows_of_replaced_files_in_a_checkpoint_are_passed_over(tmp_path: Path) -> None:
    appended(tmp_path)
    removed = [
        {"remove": {"path": f"{n}", "deletionTimestamp": wall_clock_ms(), "dataChange": False}} for n in range(5_000)
    ]
    (tmp_path / "_delta_log" / log_name(3)).write_text("\n".join(map(json.dumps, removed)))
    DeltaTable(tmp_path).create_checkpoint()
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.parquet")
    assert pq.ParquetFile(checkpoint).metadata.num_rows == 5_000 + 3 + 2  # files, protocol and metadata
    assert len(snapshots._of_checkpoint(checkpoint)) <= 2 * snapshots.AT_ONCE
    found = snapshot_of(tmp_path)
    assert found is not None
    assert len(found.data_files) == 3


def test_queries_read_the_log_of_a_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query reads each log once and without DuckDB's extension.

    The extension reads it twice for the first and again for each.
    """
    layout = Layout(tmp_path)
    for topology in ("a", "b"):
        appended(layout.stream_table(topology, "s", "sink"))
    read: list[Path] = []

    def noted(log: Path) -> object:
        read.append(log.parent)
        return actions(log)

    actions = snapshots._commits
    monkeypatch.setattr(snapshots, "_commits", noted)
    monkeypatch.setattr(sql, "extension_file", lambda: pytest.fail("no table here needs it"))
    warehouse = Warehouse(tmp_path)
    for _ in range(3):
        assert warehouse.ask("select count(*), sum(n) from sink").rows == ((12, 72),)
    assert sorted(read) == [layout.stream_table(topology, "s", "sink") for topology in ("a", "b")]


def test_a_table_of_many_files_is_read_by_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB opens only files that may contain rows of the answer.

    Here the other files do not exist.
    """
    path = Layout(tmp_path).stream_table("a", "s", "sink")
    appended(path)
    monkeypatch.setattr(sql, "MOST_FILES", 2)
    oldest = pa.table(DeltaTable(path).get_add_actions(flatten=True)).sort_by("min.n").to_pylist()[0]
    (path / oldest["path"]).write_bytes(b"torn")
    assert Warehouse(tmp_path).ask("select n from sink where n > 11").rows == ((12,),)


def log_name(version: int) -> str:
    return f"{version:020d}.json"


def later_rows(path: Path) -> None:
    write_deltalake(path, rows(8), mode="append")


def deleted_rows(path: Path) -> None:
    DeltaTable(path).delete("n = 1")


def a_log_cut_after_a_checkpoint(path: Path) -> None:
    for n in range(3):
        write_deltalake(path, rows(n), mode="append")
    DeltaTable(path).create_checkpoint()
    for version in range(5):
        (path / "_delta_log" / log_name(version)).unlink()
    write_deltalake(path, rows(9), mode="append")


def a_table_made_anew(path: Path) -> None:
    """Its log is longer than the old one."""
    shutil.rmtree(path)
    for n in range(5):
        write_deltalake(path, rows(n + 100), mode="append")


def a_file_elsewhere(path: Path) -> None:
    add = {"path": "..%2Fother.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    (path / "_delta_log" / log_name(3)).write_text(json.dumps({"add": add}))


def a_file_elsewhere_for_a_while(path: Path) -> None:
    a_file_elsewhere(path)
    removed = {"path": "..%2Fother.parquet", "deletionTimestamp": 0, "dataChange": True}
    (path / "_delta_log" / log_name(4)).write_text(json.dumps({"remove": removed}))


def a_torn_commit(path: Path) -> None:
    (path / "_delta_log" / log_name(3)).write_bytes(b'{"add": {"pa')


def no_table(path: Path) -> None:
    shutil.rmtree(path)


def nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "commits_read"),
    [
        (nothing, 0),
        (later_rows, 1),
        (deleted_rows, 1),
        (a_log_cut_after_a_checkpoint, 1),  # and the checkpoint
        (a_table_made_anew, 5),
        (a_file_elsewhere, 1),
        (a_file_elsewhere_for_a_while, 2),
        (a_torn_commit, 1 + 4),  # and all again
        (no_table, 0),
    ],
)
def test_of_a_known_log_only_what_is_new_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], commits_read: int
) -> None:
    path = tmp_path / "of_table"
    appended(path)
    before = newest_snapshot(path)
    files = dict(before.data_files) if before else {}
    change(path)
    read, whole = list[str](), snapshots.actions_of_commit

    def counted(file: Path) -> list[dict[str, Any]]:
        read.append(file.name)
        return whole(file)

    monkeypatch.setattr(snapshots, "actions_of_commit", counted)
    known = newest_snapshot(path)
    assert len(read) == commits_read
    assert known == snapshot_of(path)
    # What another thread got before stays as it was.
    assert before is not None
    assert before.data_files == files


def test_a_process_keeps_only_so_many_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = stored_tables._Keep[ReadLog](2)
    monkeypatch.setattr(stored_tables, "_LOGS", kept)
    for name in ("a", "b", "a", "c"):
        if not (tmp_path / name).exists():
            write_deltalake(tmp_path / name, rows(1))
        newest_snapshot(tmp_path / name)
    # `b` was not asked for longest.
    assert [kept.get(tmp_path / name) is not None for name in "abc"] == [True, False, True]


def test_what_batches_added_is_known_as_far_as_the_log_goes(tmp_path: Path) -> None:
    for batch in (3, 5, 8):
        properties = CommitProperties(app_transactions=[Transaction("t/s/rows", batch)])
        write_deltalake(tmp_path, rows(batch), mode="append", commit_properties=properties)
    sizes = pa.table(DeltaTable(tmp_path).get_add_actions())["size_bytes"].to_pylist()
    assert len({*sizes}) == 1
    DeltaTable(tmp_path).optimize.compact()  # rows that were there before
    assert added_files(tmp_path, [4, 5, 8]) == AddedFiles(2, 2 * sizes[0])
    assert added_files(tmp_path, [3]) == AddedFiles(1, sizes[0])
    assert added_files(tmp_path, []) == AddedFiles(0, 0)
    (tmp_path / "_delta_log" / log_name(0)).unlink()
    assert added_files(tmp_path, [5, 8]) is None  # batch 5 may have had an older commit
    assert added_files(tmp_path, [8]) == AddedFiles(1, sizes[0])


def test_batches_are_searched_in_a_set_and_not_per_commit(tmp_path: Path) -> None:
    class Batches(list[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            return super().__iter__()

        def __contains__(self, batch: object) -> bool:
            self.looks += 1
            return super().__contains__(batch)

    appended(tmp_path)
    batches = Batches([1])
    assert added_files(tmp_path, batches) == AddedFiles(0, 0)
    assert batches.looks <= 2
