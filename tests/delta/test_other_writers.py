"""Concurrent writers of a stream's tables cause retries or refusals.

They write between any two of its commits, and during one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType, Schema, StructType

from support.crashes import Crash, crash_at
from support.play import Play
from support.topologies import NEWEST, aggregate, operators, repartition, sink
from tidemark.control.folder import LeaseLost
from tidemark.errors import Contradiction
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.storage.delta.requirements import Access, Requirements, TableRefused
from tidemark.storage.delta.tables import Appender, Committer, append, create, scan
from tidemark.storage.fence import Fence
from tidemark.storage.files import Files, write_file
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings

T = 1_400_000_000_000
SUB = "events"
Other = Callable[[Path], object]
HOP = operators(
    sent=repartition("newest", key=["v"], id=["id"], columns=["v"]),
    per_v=aggregate("sent", aggregates={"n": "count(*)"}),
)


def optimize(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


def delete(table: Path) -> None:
    DeltaTable(str(table)).delete("id = 'a' and batch_id = 0")


def add_column(table: Path) -> None:
    DeltaTable(str(table)).alter.add_columns([Field("note", PrimitiveType("string"))])


def set_property(table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "50"})


def insert(table: Path) -> None:
    write_deltalake(str(table), rows(7, "z"), mode="append")


def update(table: Path) -> None:
    DeltaTable(str(table)).update(updates={"batch_id": "7"}, predicate="id = 'b' and batch_id = 0")


def restore(table: Path) -> None:
    DeltaTable(str(table)).restore(1)


def rows(batch_id: int, ids: str) -> pa.Table:
    return pa.table({"id": list(ids), "batch_id": [batch_id] * len(ids)})


def committed(table: Path, other: Other, *, at_batch: int, is_current: bool = False) -> list[tuple[str, int]]:
    """Returns *table* after batches 0 to 2, with *other* before writes.

    *other* comes between reading and writing one of them.
    """
    asked: list[int] = []

    def check_lease() -> None:
        asked.append(0)
        if len(asked) == at_batch + 1:
            other(table)

    create(table, rows(0, "a").schema)
    committer = Committer("play/0", Fence(check_lease, clock=lambda: 0), alone=["changes"], is_only_writer=True)
    for batch_id in range(3):
        if is_current:
            new = rows(batch_id, "ab").append_column("deleted", pa.array([False, False]))
            committer.upsert(table, new, batch_id, key=["id"])
        else:
            committer.commit(table, rows(batch_id, "ab"), batch_id)
    return sorted(scan(table).select("id", "batch_id").collect().rows())


ALL = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("other", "left"),
    [
        (optimize, ALL),
        (delete, ALL[1:]),
        (add_column, ALL),
        (set_property, ALL),
        (insert, [*ALL, ("z", 7)]),
        (update, [*ALL[:3], ("b", 1), ("b", 2), ("b", 7)]),
    ],
)
def test_rows_are_appended_once_after_commits_of_others(
    tmp_path: Path, other: Other, left: list[tuple[str, int]]
) -> None:
    table = tmp_path / "kept"
    assert committed(table, other, at_batch=2) == left
    files = {Path(file).name for file in DeltaTable(str(table)).file_uris()}
    unused = [path for path in table.glob("*.parquet") if path.name not in files]
    # what others made unused stays until VACUUM
    assert len(unused) == {optimize: 2, delete: 1, update: 1}.get(other, 0)


@pytest.mark.parametrize("other", [optimize, delete, add_column, set_property, insert, update])
def test_current_rows_are_merged_into_tables_others_changed(tmp_path: Path, other: Other) -> None:
    found = committed(tmp_path / "board", other, at_batch=1, is_current=True)
    assert found == [("a", 2), ("b", 2), *([("z", 7)] if other is insert else [])]


def test_a_driver_ends_when_its_table_was_restored(tmp_path: Path) -> None:
    with pytest.raises(Contradiction, match="the table was restored while its stream was running"):
        committed(tmp_path / "kept", restore, at_batch=2)
    assert scan(tmp_path / "kept").collect()["batch_id"].unique().to_list() == [0]


@pytest.mark.parametrize("other", [insert, update])
def test_a_driver_ends_when_foreign_rows_enter_its_state_tables(tmp_path: Path, other: Other) -> None:
    with pytest.raises(Contradiction, match="another writer added rows with version"):
        committed(tmp_path / "changes", other, at_batch=1)


def test_a_writer_that_loses_every_commit_stops_retrying(tmp_path: Path) -> None:
    table = tmp_path / "kept"
    create(table, rows(0, "a").schema)
    committer = Committer("play/0", Fence(lambda: set_property(table), clock=lambda: 0))
    with pytest.raises(Exception, match="others changed more than files"):
        committer.commit(table, rows(0, "a"), 0)


def test_a_replaced_driver_keeps_files_of_its_successor(tmp_path: Path) -> None:
    table, newer = tmp_path / "kept", []

    def check_lease() -> None:
        if newer:
            raise LeaseLost
        newer.append(write_file(table, rows(0, "a"), batch_id=0))
        set_property(table)  # for which the commit of the older driver fails

    create(table, rows(0, "a").schema)
    with pytest.raises(LeaseLost):
        Committer("play/0", Fence(check_lease, clock=lambda: 0), is_only_writer=True).commit(table, rows(0, "a"), 0)
    Committer("play/0", Fence(clock=lambda: 0)).commit(table, Files(tuple(newer)), 0)
    assert scan(table).collect().rows() == [("a", 0)]


def test_a_failed_commit_leaves_files_of_its_batch_that_another_transaction_names(tmp_path: Path) -> None:
    table, written = tmp_path / "kept", []

    def check_lease() -> None:
        if not written:
            written.append(write_file(table, rows(0, "b"), batch_id=0))
            set_property(table)  # for which the commit fails once

    create(table, rows(0, "a").schema)
    Committer("play/0", Fence(check_lease, clock=lambda: 0), is_only_writer=True).commit(table, rows(0, "a"), 0)
    Committer("play/0/refused", Fence(clock=lambda: 0)).commit(table, Files(tuple(written)), 0)
    assert sorted(scan(table).collect().rows()) == [("a", 0), ("b", 0)]


def test_a_repeated_batch_does_not_need_its_committed_files(tmp_path: Path) -> None:
    table = tmp_path / "kept"
    create(table, rows(0, "a").schema)
    committer = Committer("play/0", Fence(clock=lambda: 0))
    for batch_id in range(2):
        file = write_file(table, rows(batch_id, "a"), batch_id=batch_id)
        committer.commit(table, Files((file,)), batch_id)
    optimize(table)
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not Path(file.path).exists()
    committer.commit(table, Files((file,)), 1)
    assert sorted(scan(table).collect().rows()) == [("a", 0), ("a", 1)]


def test_a_file_is_committed_where_its_table_is_now(tmp_path: Path) -> None:
    create(tmp_path / "old", rows(0, "a").schema)
    file = write_file(tmp_path / "old", rows(0, "a"), batch_id=0)
    moved = (tmp_path / "old").rename(tmp_path / "new")
    Committer("play/0", Fence(clock=lambda: 0)).commit(moved, Files((file,)), 0)
    assert scan(moved).collect().rows() == [("a", 0)]


class Analysed:
    """A stream with three batches, and an analyst with its table.

    Each batch has one change.
    """

    def __init__(self, home: Path) -> None:
        self.play = Play(NEWEST + HOP, home)
        self.stream = Stream(self.play.topology, self.play.topology.sub_topology(SUB), Layout(home))
        self.hop = self.stream.home / "hop_sent"
        for number in range(3):
            self.batch(number)

    def batch(self, v: int) -> None:
        self.play.batch([self.play.row("events", T + v, id="a", v=v)], at_ms=T + v)

    def insert(self, table: Path) -> None:
        """Inserts the rows of the first batch again, as an analyst may."""
        again = DeltaTable(str(table)).to_pyarrow_table(filters=[("batch_id", "=", 0)])
        write_deltalake(str(table), again, mode="append")

    def faults(self) -> list[Fault]:
        """Returns all faults but a missing checkpoint; a play has none."""
        return [f.fault for f in findings(evidence(self.stream)) if f.fault is not Fault.CHECKPOINT_GONE]

    def ways(self) -> tuple[str, ...]:
        return next(f.ways for f in findings(evidence(self.stream)) if f.fault is Fault.TABLE_OF_OTHERS)


@pytest.fixture
def analysed(tmp_path: Path) -> Analysed:
    return Analysed(tmp_path)


def test_a_foreign_row_in_a_table_that_a_driver_reads_is_refused(analysed: Analysed) -> None:
    assert analysed.faults() == []
    write_deltalake(
        str(analysed.hop),
        DeltaTable(str(analysed.hop)).to_pyarrow_table().select(["topology", "batch_id"]),
        mode="append",
        schema_mode="merge",
    )
    assert analysed.faults() == [Fault.TABLE_OF_OTHERS]


def test_foreign_rows_of_a_recreated_table_are_refused(analysed: Analysed) -> None:
    analysed.insert(analysed.hop)
    commit = analysed.hop / "_delta_log" / f"{4:020d}.json"
    text = commit.read_text()
    assert text.count('"operation":"WRITE"') == 1
    commit.write_text(text.replace('"operation":"WRITE"', '"operation":"CREATE OR REPLACE TABLE AS SELECT"'))
    assert analysed.faults() == [Fault.TABLE_OF_OTHERS]


def test_a_stream_starts_after_foreign_rows_are_deleted(analysed: Analysed) -> None:
    analysed.insert(analysed.hop)
    restore, delete, _ = analysed.ways()
    assert restore.endswith(f'deltalake.DeltaTable("{analysed.hop}").restore(3)\'')
    assert delete.startswith("delete those rows only: ")
    DeltaTable(str(analysed.hop)).restore(3)
    assert analysed.faults() == []


def test_older_foreign_rows_are_found_and_can_be_deleted(analysed: Analysed) -> None:
    table = DeltaTable(str(analysed.hop)).to_pyarrow_table(filters=[("batch_id", "=", 0)])
    keys = pa.array(["mine"] * table.num_rows, table.schema.field("key").type)
    mine = table.set_column(table.schema.get_field_index("key"), "key", keys)
    write_deltalake(str(analysed.hop), mine, mode="append")
    with pytest.raises(
        Contradiction, match=r"another writer added rows with version 4, .*tidemark doctor lists the remedies"
    ):
        analysed.batch(3)
    assert analysed.faults() == [Fault.TABLE_OF_OTHERS]
    assert len(analysed.ways()) == 2
    DeltaTable(str(analysed.hop)).delete("key = 'mine'")
    assert analysed.faults() == []
    resumed = analysed.play.copy(analysed.play.home)
    resumed.batch([resumed.row("events", T + 3, id="a", v=3)], at_ms=T + 3)
    assert [(row["key"], row["value"]) for row in resumed.rows("changes")] == [("a", f'{{"v":{v}}}') for v in range(4)]


def test_foreign_rows_in_a_write_only_table_are_accepted(analysed: Analysed) -> None:
    changes = analysed.stream.home / "changes"
    analysed.insert(changes)
    DeltaTable(str(changes)).delete("batch_id = 0")
    analysed.batch(3)
    assert analysed.faults() == []
    assert [row["value"] for row in analysed.play.rows("changes")] == [f'{{"v":{v}}}' for v in (1, 2, 3)]


@pytest.mark.parametrize("other", [optimize, set_property])
def test_commits_of_others_without_new_rows_are_accepted(analysed: Analysed, other: Other) -> None:
    other(analysed.hop)
    assert analysed.faults() == []
    analysed.batch(3)
    assert analysed.faults() == []
    assert len(analysed.play.rows("changes")) == 4


def test_an_analyst_may_write_to_a_sink(analysed: Analysed) -> None:
    analysed.insert(analysed.stream.home / "board")
    analysed.batch(3)
    assert analysed.faults() == []


def test_no_driver_starts_after_vacuum_of_files_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stream.write.commit.MANY", 1)
    analysed = Analysed(tmp_path)
    assert analysed.faults() == []
    analysed.play.start(SUB, crash_at("decided"))
    with pytest.raises(Crash):
        analysed.batch(3)
    assert analysed.faults() == []
    DeltaTable(str(analysed.hop)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert analysed.faults() == [Fault.JOURNAL_UNREADABLE]


# Features of Delta 4.4, and what its `DROP FEATURE` says of each: True where it removes the feature.
FEATURES = {
    "columnMapping": True, "typeWidening": True, "inCommitTimestamp": True, "rowTracking": True, "clustering": False,
    "allowColumnDefaults": False, "deletionVectors": True, "v2Checkpoint": True, "changeDataFeed": False,
    "generatedColumns": False, "identityColumns": False, "variantType": False, "checkpointProtection": True,
    "coordinatedCommits-preview": True, "catalogManaged": True, "ofTheNextVersion": False,
}  # fmt: skip
OF_READERS = {"columnMapping", "typeWidening", "deletionVectors", "v2Checkpoint", "variantType", "catalogManaged"}


def require(table: Path, *features: str, reader: int = 1, writer: int = 7) -> None:
    """Makes *table* require *features*, as Spark does."""
    protocol: dict[str, object] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if writer == 7:
        protocol["writerFeatures"] = ["appendOnly", "invariants", *features]
    if of_readers := OF_READERS & {*features} | {"ofTheNextVersion"} & {*features}:
        protocol |= {"minReaderVersion": 3, "readerFeatures": sorted(of_readers)}
    number = max(int(file.stem) for file in (table / "_delta_log").glob("*.json")) + 1
    commit = [{"commitInfo": {"operation": "UPGRADE PROTOCOL"}}, {"protocol": protocol}]
    (table / "_delta_log" / f"{number:020d}.json").write_text("\n".join(map(json.dumps, commit)))


def test_no_driver_writes_to_a_table_with_a_feature_it_does_not_know(analysed: Analysed) -> None:
    board = analysed.stream.home / "board"
    reached = analysed.play.engine(SUB).reached
    for feature, is_removable in FEATURES.items():
        require(board, feature)
        seen = f"{board}: Tidemark does not write to tables with {feature}"
        with pytest.raises(TableRefused, match=f"^{re.escape(seen)}; "):
            analysed.batch(3)
        # The batch was not decided, so that the next driver reads its records.
        assert analysed.play.engine(SUB).reached == reached, feature
        (finding,) = [each for each in findings(evidence(analysed.stream)) if each.fault is not Fault.CHECKPOINT_GONE]
        assert (finding.fault, finding.seen) == (Fault.TABLE_REFUSED, seen)
        drops = [way for way in finding.ways if re.search(rf"ALTER TABLE \S+ DROP FEATURE {feature}\b", way)]
        assert (len(drops), "board_2" in finding.ways[-1]) == (is_removable, True), feature
        with pytest.raises(TableRefused, match=re.escape(seen)):
            analysed.play.start(SUB)
    require(board)
    assert [(row["id"], row["v"], row["batch_id"]) for row in analysed.play.rows("board")] == [("a", 2, 2)]
    analysed.batch(3)
    assert [(row["id"], row["v"], row["batch_id"]) for row in analysed.play.rows("board")] == [("a", 3, 3)]


def test_every_table_of_a_stream_is_asked_before_a_batch_is_decided(analysed: Analysed) -> None:
    for name in ("changes", "hop_sent", "changes_of_board", "batches", "dead_letters"):
        require(analysed.stream.home / name, "rowTracking", "domainMetadata")
        drop = rf"DROP FEATURE rowTracking; ALTER TABLE delta.`\S+/{name}` DROP FEATURE domainMetadata"
        with pytest.raises(TableRefused, match=rf"/{name}: .* domainMetadata, rowTracking; .*{drop}"):
            analysed.batch(3)
        assert analysed.play.engine(SUB).reached[0] == 2
        assert analysed.faults() == [Fault.TABLE_REFUSED]
        require(analysed.stream.home / name)


@pytest.mark.parametrize(
    ("writer", "features"),
    [(2, ""), (3, ""), (4, "changeDataFeed, generatedColumns"),
     (6, "changeDataFeed, columnMapping, generatedColumns, identityColumns"), (8, "writer version 8")],
)  # fmt: skip
def test_a_writer_version_requires_features_without_names(tmp_path: Path, writer: int, features: str) -> None:
    create(tmp_path, rows(0, "a").schema)
    require(tmp_path, writer=writer)
    found = [refusal.seen for refusal in Requirements.of(tmp_path, DeltaTable(str(tmp_path))).refusals()]
    assert found == ([f"{tmp_path}: Tidemark does not write to tables with {features}"] if features else [])


def test_a_table_of_a_catalog_is_refused_by_name_where_delta_rs_does_not_open_it(tmp_path: Path) -> None:
    create(tmp_path, rows(0, "a").schema)
    require(tmp_path, "catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck")
    with pytest.raises(DeltaError):
        DeltaTable(str(tmp_path))
    for write in (lambda: Appender(tmp_path).append(rows(0, "a")), lambda: append(tmp_path, rows(0, "a"))):
        with pytest.raises(TableRefused, match=r"with catalogManaged, .* TABLE CATALOG\.SCHEMA\.TABLE DROP FEATURE"):
            write()


def test_append_only_is_for_sinks_that_append(tmp_path: Path) -> None:
    play = Play(NEWEST + operators(log=sink("events", table="log")), tmp_path)
    play.batch([play.row("events", T, id="a", v=1)], at_ms=T)
    once = {"delta.appendOnly": "true"}
    DeltaTable(str(play.table("log"))).alter.set_table_properties(once)
    play.batch([play.row("events", T + 1, id="a", v=2)], at_ms=T + 1)
    assert [row["v"] for row in play.rows("log")] == [1, 2]
    DeltaTable(str(play.table("board"))).alter.set_table_properties(once)
    forbids = (
        r"/board: delta\.appendOnly forbids to replace rows, .* SET TBLPROPERTIES \('delta\.appendOnly' = 'false'\)"
    )
    with pytest.raises(TableRefused, match=forbids):
        play.batch([play.row("events", T + 2, id="a", v=3)], at_ms=T + 2)
    (finding,) = [f for f in findings(evidence(play.stream(play.sub))) if f.fault is not Fault.CHECKPOINT_GONE]
    assert finding.fault is Fault.TABLE_REFUSED
    with pytest.raises(TableRefused, match=re.escape(finding.seen)):
        play.batch([play.row("events", T + 2, id="a", v=3)], at_ms=T + 2)
    DeltaTable(str(play.table("board"))).alter.set_table_properties({"delta.appendOnly": "false"})
    play.batch([play.row("events", T + 3, id="a", v=4)], at_ms=T + 3)
    assert [row["v"] for row in play.rows("board")] == [4]


def test_a_field_inside_a_column_is_not_taken_for_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    text = PrimitiveType("string")
    inner = Field("a", StructType([Field("b", text, nullable=False)]))
    table = DeltaTable.create(str(tmp_path / "t"), Schema([Field("a.b", text), inner]))
    (refusal,) = Requirements.of(tmp_path / "t", table).refusals(Access.ROWS)
    assert "the column a.b (`a`.`b` IS NOT NULL) cannot be evaluated" in refusal.seen
