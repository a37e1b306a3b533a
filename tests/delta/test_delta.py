"""Commits happen once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tidemark.errors import Contradiction
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.datasets import dataset_of
from tidemark.storage.delta.log import HOP_LOG
from tidemark.storage.delta.tables import Committer, DeclaredTable, create, read_before
from tidemark.storage.fence import Fence
from tidemark.storage.warehouse import delta_tables, is_table

SCHEMA = pa.schema([("batch_id", pa.int64()), ("n", pa.int64())])


def rows(batch_id: int, n: int) -> pa.Table:
    return pa.table({"batch_id": [batch_id], "n": [n]}, schema=SCHEMA)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "changes"
    create(path, SCHEMA)
    return path


def numbers(path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["n"].to_pylist())


def test_a_batch_that_is_tried_again_is_committed_once(table):
    committer = Committer("flights/status", Fence(clock=lambda: 1_000))
    assert committer.commit(table, rows(0, 7), 0) == 1_000
    again = Committer("flights/status", Fence(clock=lambda: 9_000))
    first_at_ms = DeltaTable(str(table)).history(1)[0]["timestamp"]
    assert again.commit(table, rows(0, 7), 0) == first_at_ms
    assert numbers(table) == [7]


def test_another_stream_with_the_same_batch_number_commits_too(table):
    Committer("flights/status", Fence(clock=lambda: 0)).commit(table, rows(0, 1), 0)
    Committer("flights/other", Fence(clock=lambda: 0)).commit(table, rows(0, 2), 0)
    assert numbers(table) == [1, 2]


def test_of_two_concurrent_commits_of_a_batch_one_succeeds(table):
    slow, fast = (Committer("flights/status", Fence(clock=lambda: 0)) for _ in range(2))
    slow.open_anew(table)  # a driver that was paused after it had looked at the log
    fast.commit(table, rows(0, 1), 0)
    with pytest.raises(Contradiction, match="another driver committed batch 0"):
        slow.commit(table, rows(0, 1), 0)
    assert numbers(table) == [1]


def test_reading_before_a_batch_leaves_that_batch_out(table):
    committer = Committer("flights/status", Fence(clock=lambda: 0))
    for batch_id in range(3):
        committer.commit(table, rows(batch_id, batch_id * 10), batch_id)
    assert read_before(table, 2, ["n"]).rows() == [(0, 0), (1, 10)]


def test_creating_a_table_twice_keeps_what_is_there(table):
    Committer("flights/status", Fence(clock=lambda: 0)).commit(table, rows(0, 5), 0)
    create(table, SCHEMA)
    assert numbers(table) == [5]


def test_a_new_table_is_as_delta_rs_makes_it(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("batch_id", pa.int64(), metadata={"comment": "its batch"}), pa.field("n", pa.int64())])
    made = [DeclaredTable(tmp_path / name, schema, "numbers", HOP_LOG, properties={"p": "v"}) for name in "abc"]
    made[0].create()
    for table in made[1:]:
        assert not table.is_as_declared
        table.ensure()
        assert table.is_as_declared
    by_delta_rs, *others = (DeltaTable(table.path) for table in made)
    wanted = by_delta_rs.metadata()
    for table in others:
        found = table.metadata()
        assert (found.description, found.configuration, found.partition_columns, table.protocol()) == (
            wanted.description, wanted.configuration, wanted.partition_columns, by_delta_rs.protocol(),
        )  # fmt: skip
        assert table.schema().to_json() == by_delta_rs.schema().to_json()
        assert abs(found.created_time - wanted.created_time) < 60_000
        (commit,) = table.history()
        assert commit["operationParameters"]["location"] == f"{Path(table.table_uri.removeprefix('file://')).as_uri()}/"
    assert len({table.metadata().id for table in (by_delta_rs, *others)}) == 3


def test_a_new_table_is_never_seen_without_its_first_commit(tmp_path: Path) -> None:
    path, seen = tmp_path / "folder" / "numbers", []

    def look(*_: object) -> None:
        if is_table(path):
            sys.setprofile(None)
            seen.append(DeltaTable(path).version())

    sys.setprofile(look)  # after each call and each return
    try:
        DeclaredTable(path, SCHEMA, "numbers").ensure()
    finally:
        sys.setprofile(None)
    assert seen == [0]


def test_a_file_in_place_of_a_log_is_no_table(tmp_path: Path) -> None:
    place = Layout(tmp_path).stream_table("flights", "status", "board")
    place.mkdir(parents=True)
    (place / "_delta_log").touch()
    assert not is_table(place)
    assert delta_tables(tmp_path) == {}


def test_the_second_maker_of_a_table_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, mkdir = DeclaredTable(tmp_path / "numbers", SCHEMA, "numbers"), Path.mkdir

    def after_the_other(log: Path, **options: bool) -> None:
        monkeypatch.undo()
        table.ensure()
        Committer("flights/status", Fence(clock=lambda: 0)).commit(table.path, rows(0, 5), 0)
        mkdir(log, **options)

    monkeypatch.setattr(Path, "mkdir", after_the_other)
    table.ensure()
    assert numbers(table.path) == [5]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"schema": SCHEMA.append(pa.field("more", pa.string()))}, id="a column more"),
        pytest.param({"schema": SCHEMA.set(1, SCHEMA.field(1).with_metadata({"comment": "c"}))}, id="a comment"),
        pytest.param({"checks": {"tidemark_n": "n > 0"}}, id="a check"),
    ],
)
def test_a_table_that_is_not_as_declared_is_updated(tmp_path: Path, change: dict[str, Any]) -> None:
    table = DeclaredTable(tmp_path, SCHEMA, "numbers")
    table.ensure()
    changed = replace(table, **change)
    assert not changed.is_as_declared
    changed.ensure()
    assert changed.is_as_declared
    assert DeltaTable(tmp_path).version() == 1
    changed.ensure()
    assert DeltaTable(tmp_path).version() == 1


def test_rows_of_a_folder_are_read_without_python(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    write_deltalake(str(place), pa.table({"k": ["x y", "ä"], "v": [1, 2]}), partition_by=["k"])
    rows = dataset_of(DeltaTable(str(place)))
    assert isinstance(rows.filesystem, SubTreeFileSystem)
    assert isinstance(rows.filesystem.base_fs, LocalFileSystem)
    assert rows.to_table().sort_by("v").to_pylist() == [{"k": "x y", "v": 1}, {"k": "ä", "v": 2}]
