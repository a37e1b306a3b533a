"""What others do to the table of a source: they replace it, change its columns, and remove its files."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.topologies import operators, sink, source, topology_of
from tidemark.errors import Contradiction
from tidemark.model.topology import parse
from tidemark.storage.delta.requirements import protocol_and_metadata
from tidemark.stream.read.source_tables import SourceTables

TOML = topology_of(events=source("id string from ID", delta="in", topic=None)) + operators(
    out=sink("events", table="o")
)
SUB = parse(tomllib.loads(TOML), file="t.toml").sub_topologies[0]
GONE = Exception("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x.parquet")


def write(home: Path, n: int = 0) -> DeltaTable:
    write_deltalake(home / "in", pa.table({"ID": [f"i{n}"], "event_time": [n], "other": [n]}), mode="append")
    return DeltaTable(str(home / "in"))


def tables(home: Path, table_id: str | None = None, version: int = 0, *, first: bool = False) -> SourceTables:
    """Returns the tables of a stream that has read the table up to *version*, without it."""
    if table_id is not None:
        offset = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": -1}
        plan = ["v1", '{"batchTimestampMs":1}', "4", json.dumps(offset | {"isStartingVersion": first})]
        for folder, text in (("offsets", "\n".join(plan)), ("commits", "v1\n{}")):
            (home / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
            (home / "checkpoint" / folder / "0").write_text(text)
    return SourceTables(SUB, home, home / "checkpoint")


def test_a_replaced_table_is_named_with_both_ids(tmp_path: Path) -> None:
    was = str(write(tmp_path).metadata().id)
    running = tables(tmp_path)
    for n in (1, 2):
        write(tmp_path, n)
        assert not running.is_replaced
    shutil.rmtree(tmp_path / "in")
    assert not running.is_replaced  # it may be moved back; without a table Spark has a reason
    now = str([write(tmp_path, n) for n in range(4)][-1].metadata().id)
    said = re.escape(
        f"operators.events.delta: {tmp_path}/in: the stream has read the Delta table with the id {was}, and "
    )
    for table in (running, tables(tmp_path, was, 3)):
        assert table.is_replaced
        with pytest.raises(
            Contradiction, match=f"{said}.* has the id {now}: put the first one back, or give the source"
        ):
            table.look()
        assert now in str(table.explained(Exception("Spark's own reason")))
    tables(tmp_path, now, 3).look()


def test_a_changed_column_is_refused_if_it_is_declared_and_rows_before_the_change_are_unread(tmp_path: Path) -> None:
    table_id = str([write(tmp_path, n) for n in range(3)][-1].metadata().id)
    commit = tmp_path / "in" / "_delta_log" / f"{0:020d}.json"
    (metadata,) = [
        action["metaData"] for action in map(json.loads, commit.read_text().splitlines()) if "metaData" in action
    ]
    schema = json.loads(metadata["schemaString"])

    def change(version: int, **columns: str) -> None:
        """Adds a commit after which the columns have these names in files."""
        for field in schema["fields"]:
            field["metadata"] = {"delta.columnMapping.physicalName": columns.get(field["name"], field["name"])}
        action = {"metaData": metadata | {"schemaString": json.dumps(schema)}}
        commit.with_name(f"{version:020d}.json").write_text(json.dumps(action))

    change(3, other="col-1")  # as one that was dropped and added anew
    tables(tmp_path, table_id, 2).refuse_other_columns()
    change(4, other="col-1", ID="col-2")
    for version in (2, 3, 4):
        said = f"operators.events.fields: .*/in: ID has become another column in a version from {version} on, which the"
        with pytest.raises(Contradiction, match=said):
            tables(tmp_path, table_id, version).refuse_other_columns()
    tables(tmp_path, table_id, 5).refuse_other_columns()  # all rows before the change are read


@pytest.mark.parametrize(
    ("read_to", "first", "versions"),
    [
        (2, False, "versions 2 to 3"),
        (3, False, "version 3"),
        (4, False, None),  # a compaction adds no rows
        (3, True, "versions 0 to 3"),
        (4, True, None),  # the content of the compacted version is there
    ],
)
def test_versions_of_which_files_are_gone_are_named(
    tmp_path: Path, read_to: int, versions: str | None, *, first: bool
) -> None:
    table_id = str([write(tmp_path, n) for n in range(4)][-1].metadata().id)
    table = DeltaTable(str(tmp_path / "in"))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    said = tables(tmp_path, table_id, read_to, first=first).explained(GONE)
    if versions is None:
        assert said is GONE
    else:
        assert f"{tmp_path}/in: the stream has yet to read {versions}, whose files are gone, as" in str(said)


@pytest.mark.parametrize(
    ("read_to", "first", "versions"),
    [(0, False, "versions 0 to 1 and 3"), (2, False, "version 3"), (1, True, "version 3"), (4, False, None)],
)
def test_versions_without_a_commit_are_named(
    tmp_path: Path, read_to: int, versions: str | None, *, first: bool
) -> None:
    table_id = str([write(tmp_path, n) for n in range(6)][-1].metadata().id)
    DeltaTable(str(tmp_path / "in")).create_checkpoint()
    for number in (0, 1, 3):
        (tmp_path / "in" / "_delta_log" / f"{number:020d}.json").unlink()
    said = tables(tmp_path, table_id, read_to, first=first).explained(GONE)
    if versions is None:
        assert said is GONE
    else:
        assert f"{tmp_path}/in: the stream has yet to read {versions}, whose commits the log" in str(said)


def test_compacted_commits_are_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    table_id = str([write(tmp_path, n) for n in range(3)][-1].metadata().id)
    # Commits 1 and 2 in one file, which has neither the protocol nor the columns of the table.
    (tmp_path / "in" / "_delta_log" / f"{1:020d}.{2:020d}.compacted.json").write_text('{"add": {"path": "x.parquet"}}')
    assert protocol_and_metadata(tmp_path / "in")[1]["id"] == table_id
