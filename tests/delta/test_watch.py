"""`tidemark watch` reads the logs of Delta tables as delta-rs and Spark write them.

Where delta-rs cannot make a case, the log has lines that Delta Lake 4.4 wrote in Spark 4.1.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from support.command_line import CommandOutput, tidemark
from support.documented_commands import shown_commands, variants
from tidemark.model.settings.intervals import utc
from tidemark.semantics.sla import Verdict
from tidemark.watch.commits import Change, Clock, Span, Unreadable
from tidemark.watch.reading import LEAST, find_tables, read_history
from tidemark.watch.row_latencies import RowReader
from tidemark.watch.rules import TableAge, table_age
from tidemark.watch.statistics import TimeColumnRequest

TEN = datetime(2014, 11, 30, 10, tzinfo=UTC)  # so that delta-rs's commits are later, whenever the tests run
TEN_MS, HOUR = 1_417_341_600_000, 3_600_000
NOON_MS = TEN_MS + 2 * HOUR
BERLIN = TimeColumnRequest(zone=ZoneInfo("Europe/Berlin"))


def look(
    path: Path, *names: str, asked: TimeColumnRequest | None = None, now_ms: int = NOON_MS, limit_ms: int = HOUR
) -> TableAge:
    history = read_history(path, asked or TimeColumnRequest(names), 0)
    assert not isinstance(history, Unreadable), history
    return table_age(history, now_ms=now_ms, since_ms=0, limit_ms=limit_ms)


def rows(*minutes: int, **columns: list[object]) -> pa.Table:
    """Rows of so many minutes after ten, with 456 µs beyond the millisecond."""
    at = [TEN.replace(minute=minute, microsecond=123_456) for minute in minutes]
    return pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), "id": [*range(len(at))], **columns})


def append(path: Path, content: pa.Table, **options: object) -> Path:
    write_deltalake(str(path), content, mode="append", **options)  # type: ignore[call-overload]
    return path


def stamps(path: Path) -> list[int]:
    """When each commit says that it was made."""
    files = sorted((path / "_delta_log").glob("*.json"))
    infos = [json.loads(line) for file in files for line in file.read_text().splitlines() if "commitInfo" in line]
    return [info["commitInfo"]["timestamp"] for info in infos]


def at_ms(minute: int) -> Span:
    """The newest event time of a file whose bound is 123 ms after that minute: the row is up to 1 ms newer."""
    return Span(TEN_MS + minute * 60_000 + 123, TEN_MS + minute * 60_000 + 124)


def test_an_append_brings_data_and_bounds_in_milliseconds_stand_for_microseconds(tmp_path: Path) -> None:
    path = append(append(tmp_path / "t", rows(0, 5)), rows(2, 7, 30))
    table = look(path)
    assert (table.column, table.newest) == ("at", at_ms(30))
    # Noon is 1 h 30 min after it, less 123 ms and the millisecond to which the bound is cut.
    assert table.age == Span(5_400_000 - 124, 5_400_000 - 123)
    assert (table.verdict, table.version, table.commit_at_ms) == (Verdict.ERROR, 1, stamps(path)[1])
    newest, first = table.commits
    assert (newest.rows, newest.bytes, first.rows) == (3, pl.Series(sizes(path, 1)).sum(), 2)
    assert newest.latency == Span(newest.at_ms - at_ms(30)[1], newest.at_ms - at_ms(2)[0])


def sizes(path: Path, version: int) -> list[int]:
    """The sizes of the files that a commit added, as the disk has them."""
    lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    added = [json.loads(line)["add"]["path"] for line in lines if '"add"' in line]
    return [(path / name).stat().st_size for name in added]


def test_only_commits_that_change_data_are_fresh(tmp_path: Path) -> None:
    path = append(append(tmp_path / "t", rows(0, 10)), rows(20))
    table = DeltaTable(str(path))
    appended = stamps(path)[1]

    def last() -> tuple[int | None, Span | None]:
        seen = look(path)
        return seen.commit_at_ms, seen.newest

    for change in (
        table.optimize.compact,
        lambda: table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True),
        lambda: table.alter.set_table_properties({"delta.checkpointInterval": "50"}),
    ):
        change()
        assert last() == (appended, at_ms(20))
    table.delete("at > '2014-11-30T10:15:00Z'")
    deleted = stamps(path)[-1]
    # Without the row of 10:20 readers see that of 10:10 as the newest.
    assert last() == (deleted, at_ms(10))
    newest = look(path).commits[0]
    assert (newest.operation, newest.change, newest.latency) == ("DELETE", Change.REPLACED, None)
    table.restore(1)
    assert last() == (deleted, at_ms(20))
    table.merge(rows(50), "s.id = t.id", source_alias="s", target_alias="t").when_matched_update_all().execute()
    assert last() == (stamps(path)[-1], at_ms(50))
    assert look(path).commits[0].change is Change.REPLACED


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_time_of_the_log_is_that_of_the_rows(tmp_path: Path, seed: int) -> None:
    """delta-rs reads the rows of each version."""
    choice = random.Random(seed)
    path = append(tmp_path / "t", rows(30))
    for _ in range(12):
        table, minute = DeltaTable(str(path)), choice.randrange(60)
        match choice.choice(["append", "append", "delete", "optimize", "restore", "checkpoint"]):
            case "append":
                append(path, rows(minute, choice.randrange(60)))
            case "delete":
                table.delete(f"at >= '2014-11-30T10:{minute:02}:00Z'")
            case "optimize":
                table.optimize.compact()
            case "restore" if table.version():
                table.restore(choice.randrange(table.version()))
            case "checkpoint":
                table.create_checkpoint()
        newest = newest_row(DeltaTable(str(path)))
        found = look(path).newest
        assert (found is None) == (newest is None)
        if found is not None and newest is not None:
            # A row has 456 µs beyond the lower bound.
            assert newest - timedelta(microseconds=456) == utc(found.low_ms or 0)


def newest_row(table: DeltaTable) -> datetime | None:
    newest: datetime | None = pl.DataFrame(table.to_pyarrow_table())["at"].max()  # type: ignore[assignment]
    return newest


def test_without_statistics_the_newest_time_is_unknown_until_the_last_commit_is_late(tmp_path: Path) -> None:
    path = append(tmp_path / "t", rows(0), configuration={"delta.dataSkippingNumIndexedCols": "0"})
    made = stamps(path)[0]
    table = look(path, now_ms=made + HOUR - 1)
    assert (table.newest, table.age, table.verdict) == (Span(None, None), Span(None, None), Verdict.UNKNOWN)
    assert (table.commits[0].latency, table.commits[0].verdict) == (Span(None, None), Verdict.UNKNOWN)
    table = look(path, now_ms=made + HOUR)
    assert (table.verdict, table.judged_by) == (Verdict.ERROR, "commit")
    assert table.notes[-1] == "its age may be below the limit, but no commit has changed data for 1 h"


def test_a_column_beyond_the_indexed_ones_is_told_with_the_remedy(tmp_path: Path) -> None:
    columns = {f"c{n}": pa.array([n]) for n in range(32)}
    path = append(tmp_path / "t", pa.table({**columns, "at": rows(0)["at"]}))
    table = look(path, now_ms=stamps(path)[0])
    assert table.verdict is Verdict.UNKNOWN
    assert table.notes == (
        "the log has no bounds of `at`: it is column 33, and writers keep statistics of the first 32",
        f"files that are written after ALTER TABLE delta.`{path}` SET TBLPROPERTIES "
        "('delta.dataSkippingStatsColumns' = 'at') have them",
    )
    # The remedy works for files that are written then.
    DeltaTable(str(path)).alter.set_table_properties({"delta.dataSkippingStatsColumns": "at"})
    append(path, pa.table({**columns, "at": rows(10)["at"]}))
    table = look(path, now_ms=TEN_MS + HOUR)
    assert table.newest == Span(at_ms(10)[0], None)
    assert table.verdict is Verdict.PASS  # 50 min at most, whatever the first file has


def test_text_is_read_as_times_if_it_is_named(tmp_path: Path) -> None:
    path = append(tmp_path / "t", pa.table({"at": ["2014-11-30T10:00:00Z", "2014-11-30T11:30:00Z", None]}))
    assert look(path).column is None
    table = look(path, "at")
    assert (table.newest, table.verdict) == (Span(NOON_MS - HOUR // 2, NOON_MS - HOUR // 2 + 1), Verdict.PASS)
    append(path, pa.table({"at": ["2014-11-30T10:00:00+05:00", "2014-11-30T11:40:00Z"]}))
    assert look(path, "at").newest == Span(NOON_MS - HOUR // 2, None)


def test_a_partition_column_has_no_statistics_and_needs_none(tmp_path: Path) -> None:
    days = pa.table({"day": [date(2014, 11, 28), date(2014, 11, 29), None], "id": [1, 2, 3]})
    path = append(tmp_path / "t", days, partition_by=["day"])
    table = look(path)
    # Any time of 29 November: 12 to 36 hours before noon.
    assert table.age == Span(12 * HOUR + 1, 36 * HOUR)
    assert [look(path, limit_ms=n * HOUR).verdict for n in (12, 24, 37)] == [
        *(Verdict.ERROR, Verdict.UNKNOWN, Verdict.PASS)
    ]
    DeltaTable(str(path)).create_checkpoint()
    leave_checkpoint(path)
    assert look(path).age == Span(12 * HOUR + 1, 36 * HOUR)


def test_times_without_a_zone_are_read_in_the_zone_that_was_named(tmp_path: Path) -> None:
    path = append(tmp_path / "t", pa.table({"at": pa.array([TEN.replace(tzinfo=None)], pa.timestamp("us"))}))
    assert look(path).newest == Span(TEN_MS, TEN_MS + 1)
    table = look(path, asked=BERLIN)
    assert table.newest == Span(TEN_MS - HOUR, TEN_MS - HOUR + 1)
    assert table.notes[0] == "`at` is of type timestamp_ntz: what has no time zone is read in that of --timezone"


def test_of_two_columns_none_is_judged_until_one_is_named(tmp_path: Path) -> None:
    path = append(tmp_path / "t", rows(0).append_column("sold", rows(30)["at"]))
    table = look(path)
    assert (table.column, table.age, table.verdict) == (None, None, Verdict.UNKNOWN)
    assert table.notes[0] == "none of its columns of times is judged until one is named with --column: at, sold"
    assert look(path, "missing", "sold").newest == at_ms(30)


def leave_checkpoint(path: Path) -> None:
    """Removes all commits, as clean-up of the log does once the checkpoint is old."""
    for file in (path / "_delta_log").glob("*.json"):
        file.unlink()


def test_after_log_cleanup_the_checkpoint_still_has_the_newest_time(tmp_path: Path) -> None:
    path = append(append(tmp_path / "t", rows(0)), rows(40))
    DeltaTable(str(path)).create_checkpoint()
    leave_checkpoint(path)
    table = look(path)
    assert (table.newest, table.verdict, table.commit_at_ms, table.commits) == (at_ms(40), Verdict.ERROR, None, ())
    assert table.notes == ("clean-up left only the checkpoint of version 1: it is not known when data changed",)
    assert (table.peak, table.peak_since_ms) == (table.age, NOON_MS)
    later = [info("WRITE"), add("b.parquet", "12:00:00", "12:50:00", name="at")]
    (path / "_delta_log" / f"{2:020d}.json").write_text("\n".join(map(json.dumps, later)))
    table = look(path)
    # 12:50 in Berlin is 11:50 in UTC.
    assert (table.age, [commit.version for commit in table.commits]) == (Span(599_999, 600_000), [2])


def commits(path: Path, *versions: list[Mapping[str, object]]) -> Path:
    log = path / "_delta_log"
    log.mkdir(parents=True)
    for version, actions in enumerate(versions):
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return path


def info(operation: str, at_ms: int = TEN_MS, **more: object) -> Mapping[str, object]:
    """A commitInfo of Spark."""
    of_engine = {"engineInfo": "Apache-Spark/4.1.3 Delta-Lake/4.4.0", "txnId": "101afd17-db26-4999-bf15-422caf086090"}
    content = {"timestamp": at_ms, "operation": operation, "isolationLevel": "Serializable", "isBlindAppend": True}
    return {"commitInfo": {**content, **of_engine, **more}}


def table_of(*features: str, physical: str | None = None) -> list[Mapping[str, object]]:
    """The first actions of a table with a column `ts`, which has another name in its files if *physical* is given."""
    mapped = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": physical} if physical else {}
    fields = [
        {"name": "id", "type": "integer", "nullable": True, "metadata": {}},
        {"name": "ts", "type": "timestamp", "nullable": True, "metadata": mapped},
    ]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [*features]}
    schema = json.dumps({"type": "struct", "fields": fields})
    of_table = {"id": "14b3", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    configuration = {"delta.columnMapping.mode": "name"} if physical else {}
    return [
        {"protocol": {**protocol, "writerFeatures": [*features, "invariants", "appendOnly"]}},
        {"metaData": {**of_table, "partitionColumns": [], "configuration": configuration, "createdTime": TEN_MS}},
    ]


def add(
    path: str, low: str, high: str, *, name: str = "ts", n: int = 5, dv: int = 0, tight: bool | None = None
) -> Mapping[str, object]:
    """An add of Spark: local times with their offset, in ms."""
    stats: dict[str, object] = {
        "numRecords": n,
        "minValues": {"id": 0, name: f"2014-11-30T{low}.000+01:00"},
        "maxValues": {"id": 4, name: f"2014-11-30T{high}.000+01:00"},
        "nullCount": {"id": 0, name: 0},
    }
    if tight is not None:
        stats["tightBounds"] = tight
    content: dict[str, object] = {"path": path, "partitionValues": {}, "size": 722, "modificationTime": TEN_MS}
    content |= {"dataChange": True, "stats": json.dumps(stats)}
    if dv:
        vector = {"storageType": "u", "pathOrInlineDv": "[Va>](LAs(FU&=p@GE!M", "offset": 1, "sizeInBytes": 34}
        content["deletionVector"] = {**vector, "cardinality": dv}
    return {"add": content}


def remove(path: str, *, data: bool = True) -> Mapping[str, object]:
    content = {"path": path, "deletionTimestamp": TEN_MS, "dataChange": data, "extendedFileMetadata": True}
    return {"remove": {**content, "partitionValues": {}, "size": 722, "stats": '{"numRecords":5}'}}


@pytest.mark.parametrize(
    ("checkpoints", "since_ms", "base_version", "first"),
    [
        ([], NOON_MS, -1, 32),  # of 132 versions the newest 100 begin with 32
        ([20, 40], NOON_MS, 20, 32),
        ([20, 31], NOON_MS, 31, 32),
        ([99], NOON_MS, 99, 32),  # older commits tell who wrote, and the checkpoint what they left
        ([8, 31], TEN_MS + 10, 8, 9),  # the commit of version 9 is the newest one before that instant
    ],
)
def test_of_a_long_log_the_newest_commits_are_read_and_one_checkpoint(
    tmp_path: Path, checkpoints: list[int], since_ms: int, base_version: int, first: int
) -> None:
    assert LEAST == 100
    later = [[info("WRITE", TEN_MS + n), add(f"{n}.parquet", "11:00:00", "11:00:00")] for n in range(1, 132)]
    newest = [info("WRITE"), *table_of(), add("0.parquet", "11:00:00", "11:59:00")]
    path = commits(tmp_path / "t", newest, *later)
    for version in checkpoints:
        DeltaTable(str(path), version=version).create_checkpoint()
    history = read_history(path, TimeColumnRequest(), since_ms)
    assert not isinstance(history, Unreadable)
    assert (history.base_version, [commit.version for commit in history.commits]) == (
        base_version,
        [*range(first, 132)],
    )
    assert look(path).age == Span(HOUR + 59_999, HOUR + 60_000)
    (path / "_delta_log" / f"{120:020d}.json").unlink()
    damaged = read_history(path, TimeColumnRequest(), NOON_MS)
    assert isinstance(damaged, Unreadable)
    assert damaged.found == "it is missing, and no checkpoint has what it did"
    assert damaged.file.endswith(f"{120:020d}.json")


def test_statistics_of_a_mapped_column_have_its_physical_name(tmp_path: Path) -> None:
    physical = "col-fcb15842-4dc1-438f-bb54-5594ee78c294"
    first = [info("CREATE TABLE"), *table_of("columnMapping", physical=physical)]
    written = [info("WRITE", NOON_MS), add("a.parquet", "12:00:00", "12:30:00", name=physical)]
    table = look(commits(tmp_path / "t", first, written))
    # 12:30 in Berlin is half an hour before noon in UTC.
    assert (table.column, table.age) == ("ts", Span(HOUR // 2 - 1, HOUR // 2))
    assert (table.commits[0].latency, table.verdict) == (Span(HOUR // 2 - 1, HOUR), Verdict.PASS)


def latencies_min(path: Path, asked: TimeColumnRequest) -> list[float] | None:
    """The smallest and the greatest latency of rows of the newest commit, in minutes; None if none is known."""
    history = read_history(path, asked, 0)
    assert not isinstance(history, Unreadable), history
    newest = RowReader().with_rows(history, since_ms=0, zone=asked.zone).commits[-1]
    if newest.by_row is None or newest.by_row.span is None:
        return None
    assert sum(n for _, n in newest.by_row.counts) == 2  # of three rows one has no time
    return [(end or 0) / 60_000 for end in newest.by_row.span]


AT_TEN, HALF_PAST_NINE = datetime(2014, 11, 30, 10), datetime(2014, 11, 30, 9, 30)  # noqa: DTZ001
NTZ = pa.timestamp("us")


@pytest.mark.parametrize(
    ("kind", "values", "asked", "found"),
    [
        ("timestamp", pa.array([AT_TEN, None, HALF_PAST_NINE], pa.timestamp("us", "UTC")), None, [60, 90]),
        ("timestamp_ntz", pa.array([AT_TEN, None, HALF_PAST_NINE], NTZ), None, [60, 90]),
        ("timestamp_ntz", pa.array([AT_TEN, None, HALF_PAST_NINE], NTZ), BERLIN, [120, 150]),
        ("string", pa.array(["2014-11-30T10:00:00Z", "soon", "2014-11-30 09:30:00"]), None, [60, 90]),
        # A whole day is no instant.
        ("string", pa.array(["2014-11-30", "2014-11-29", None]), None, None),
        ("date", pa.array([date(2014, 11, 30)] * 3), None, None),
    ],
)
def test_rows_have_latencies_by_the_times_in_their_files(
    tmp_path: Path, kind: str, values: pa.Array, asked: TimeColumnRequest | None, found: list[float] | None
) -> None:
    physical = "col-fcb15842-4dc1-438f-bb54-5594ee78c294"
    created = table_of("columnMapping", physical=physical)
    text = json.dumps(created).replace('\\"timestamp\\"', f'\\"{kind}\\"')
    added = add("p=1%202/a.parquet", "10:00:00", "10:30:00", name=physical, n=3)
    path = commits(tmp_path / "t", [info("WRITE", TEN_MS + HOUR), *json.loads(text), added])
    (path / "p=1 2").mkdir()
    # Spark writes timestamps of 96 bits unless a setting says otherwise.
    pq.write_table(
        pa.table({physical: values}), path / "p=1 2" / "a.parquet", use_deprecated_int96_timestamps=kind == "timestamp"
    )
    assert latencies_min(path, replace(asked or TimeColumnRequest(), names=("ts",))) == found


def test_bounds_are_loose_where_a_deletion_vector_hides_rows(tmp_path: Path) -> None:
    """Of rows from 11:00 to 12:30 (10:00 to 11:30 UTC) two were deleted: the newest of the others is between."""
    first = [info("CREATE TABLE"), *table_of("deletionVectors")]
    written = [info("WRITE", NOON_MS), add("a.parquet", "11:00:00", "12:30:00", tight=True)]
    hidden = add("a.parquet", "11:00:00", "12:30:00", dv=2, tight=False)
    path = commits(tmp_path / "t", first, written, [info("DELETE", NOON_MS), hidden, remove("a.parquet")])
    table = look(path)
    assert table.age == Span(HOUR // 2 - 1, 2 * HOUR)
    assert (table.verdict, table.commits[0].change, table.commits[0].rows) == (Verdict.UNKNOWN, Change.REPLACED, 0)
    assert look(path, limit_ms=2 * HOUR + 1).verdict is Verdict.PASS
    gone = add("a.parquet", "11:00:00", "12:30:00", dv=5, tight=False)
    emptied = commits(tmp_path / "e", first, written, [info("DELETE"), remove("a.parquet"), gone])
    assert (look(emptied).age, look(emptied).verdict) == (None, Verdict.NEVER_LOADED)


def write_checkpoint(file: Path, actions: list[Mapping[str, Any]]) -> None:
    """Writes actions as rows; Parquet has no empty structs, so what is empty is left out."""
    shown = [{kind: {k: v for k, v in of.items() if v not in ({}, [])} for kind, of in row.items()} for row in actions]
    for row in shown:
        row.get("metaData", {}).pop("format", None)
    pl.DataFrame(shown, infer_schema_length=None).write_parquet(file)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_v2_checkpoint_has_its_files_in_sidecars(tmp_path: Path, as_json: bool) -> None:  # noqa: FBT001
    path = commits(tmp_path / "t")
    log, sidecar = path / "_delta_log", "00000000000000000003.checkpoint.0000000001.0000000001.d3537519.parquet"
    (log / "_sidecars").mkdir()
    adds = [add("a", "10:00:00", "11:00:00"), add("b", "11:00:00", "12:30:00")]
    rows_of = [{"add": {**each["add"], "deletionVector": None}} for each in adds]  # type: ignore[dict-item]
    schema = pa.schema([("add", pa.struct([
        ("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string())), ("size", pa.int64()),
        ("deletionVector", pa.struct([("cardinality", pa.int64())])), ("stats", pa.string()),
    ]))])  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows_of, schema), log / "_sidecars" / sidecar)
    protocol, metadata = table_of("v2Checkpoint")
    named = {"sidecar": {"path": sidecar, "sizeInBytes": 12_461, "modificationTime": TEN_MS}}
    top = log / f"{3:020d}.checkpoint.6c401768-9c6f-43f0-a58f-d570d31bdbbe.{'json' if as_json else 'parquet'}"
    lines = [{"checkpointMetadata": {"version": 3}}, metadata, protocol, named]
    if as_json:
        top.write_text("\n".join(map(json.dumps, lines)))
    else:
        write_checkpoint(top, lines)
    table = look(path)
    assert (table.version, table.column, table.age) == (3, "ts", Span(HOUR // 2 - 1, HOUR // 2))
    (log / "_sidecars" / sidecar).unlink()
    damaged = read_history(path, TimeColumnRequest(), 0)
    assert isinstance(damaged, Unreadable)
    assert (damaged.file, damaged.found) == (
        str(log / "_sidecars" / sidecar),
        "it is missing, and the checkpoint needs it",
    )


def test_a_checkpoint_in_parts_counts_if_all_are_there(tmp_path: Path) -> None:
    path = commits(tmp_path / "t")
    parts = [path / "_delta_log" / f"{3:020d}.checkpoint.{part:010d}.{2:010d}.parquet" for part in (1, 2)]
    write_checkpoint(parts[0], table_of())
    write_checkpoint(parts[1], [add("a", "10:00:00", "12:30:00")])
    assert look(path).age == Span(HOUR // 2 - 1, HOUR // 2)
    parts[1].unlink()
    damaged = read_history(path, TimeColumnRequest(), 0)
    assert isinstance(damaged, Unreadable)
    assert (damaged.file, damaged.found) == (str(path / "_delta_log"), "it has neither a commit nor a checkpoint")


def test_a_table_whose_commits_a_catalog_accepts_is_refused(tmp_path: Path) -> None:
    path = commits(tmp_path / "t", [info("CREATE TABLE"), *table_of("catalogManaged")])
    log = str(path / "_delta_log")
    found = "it requires catalogManaged: a catalog may have commits that are not in the log yet"
    refused = Unreadable(path, log, found, "ask the catalog for its newest commits")
    assert read_history(path, TimeColumnRequest(), 0) == refused


def test_a_checkpoint_may_have_statistics_as_columns_alone(tmp_path: Path) -> None:
    """Spark writes so with `delta.checkpoint.writeStatsAsJson = false`: timestamps in UTC, without a zone."""
    path, (protocol, metadata) = commits(tmp_path / "t"), table_of()
    first, last = (TEN.replace(tzinfo=None, hour=hour, minute=minute) for hour, minute in ((10, 0), (11, 30)))
    bounds = {"minValues": {"ts": first}, "maxValues": {"ts": last}}
    stats = {"numRecords": 5, **bounds, "nullCount": {"ts": 0}}
    lines = [protocol, metadata, {"add": {"path": "a", "size": 1, "stats_parsed": stats}}]
    write_checkpoint(path / "_delta_log" / f"{7:020d}.checkpoint.parquet", lines)
    assert look(path, asked=BERLIN).age == Span(HOUR // 2 - 1, HOUR // 2)


def test_the_output_says_whose_clock_stamped_a_commit(tmp_path: Path) -> None:
    first = [info("CREATE TABLE", inCommitTimestamp=TEN_MS), *table_of("inCommitTimestamp")]
    in_commit = [info("WRITE", NOON_MS, inCommitTimestamp=TEN_MS + 7), add("a", "10:00:00", "11:00:00")]
    by_writer = [info("WRITE", TEN_MS + 9), add("b", "10:00:00", "11:00:00")]
    by_file = [add("c", "10:00:00", "11:00:00")]
    path = commits(tmp_path / "t", first, in_commit, by_writer, by_file)
    os.utime(path / "_delta_log" / f"{3:020d}.json", (TEN_MS / 1_000 + 4, TEN_MS / 1_000 + 4))
    stamped = [(commit.at_ms - TEN_MS, commit.clock) for commit in look(path).commits]
    assert stamped == [(4_000, Clock.FILE), (9, Clock.WRITER), (7, Clock.IN_COMMIT)]


def test_a_writer_whose_clock_is_ahead_is_told(tmp_path: Path) -> None:
    ahead = [info("WRITE", NOON_MS + 90_000), *table_of(), add("a", "13:00:00", "13:02:00")]
    table = look(commits(tmp_path / "t", ahead))
    assert (table.commit_age_ms, table.age) == (-90_000, Span(-120_001, -120_000))
    assert (table.verdict, table.notes) == (
        Verdict.AHEAD_OF_CLOCK,
        (
            "the newest event time is 2 min ahead of this machine's clock",
            "the last commit is 1 min 30 s ahead of this machine's clock",
        ),
    )


def test_the_log_says_who_wrote(tmp_path: Path) -> None:
    noted = {"dag_id": "load", "task_id": "orders", "run_id": "manual__1"}
    with_note = CommitProperties(custom_metadata={"userMetadata": json.dumps(noted)})
    path = append(tmp_path / "t", rows(0), commit_properties=with_note)
    as_query = CommitProperties(app_transactions=[Transaction("1eb1d174", 3)])
    append(path, rows(0), commit_properties=as_query)
    job = {"jobId": "17", "jobName": "hourly", "runId": "901"}
    log = path / "_delta_log"
    (log / f"{2:020d}.json").write_text(
        "\n".join(map(json.dumps, [info("WRITE", job=job, userMetadata="by hand"), add("c", "10:00:00", "11:00:00")]))
    )
    by_job, by_query, by_airflow = (commit.writer for commit in look(path).commits)
    assert (by_job.engine, by_job.job, by_job.run) == ("Apache-Spark/4.1.3 Delta-Lake/4.4.0", "hourly", "901")
    assert (by_query.query, by_query.batch, by_query.engine) == ("1eb1d174", 3, "delta-rs:py-1.6.6")
    assert (by_airflow.airflow, by_airflow.run) == ("load.orders", "manual__1")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with a fresh table, one without a column of times, and a damaged one."""
    now = datetime.now(UTC)
    append(tmp_path / "lake" / "silver" / "orders", pa.table({"at": [now], "id": [1]}))
    append(tmp_path / "lake" / "silver" / "by_day", pa.table({"d": ["x"], "id": [1]}), partition_by=["d"])
    torn = append(tmp_path / "lake" / "torn", rows(0)) / "_delta_log" / f"{0:020d}.json"
    torn.write_text(torn.read_text()[:200])
    return tmp_path / "lake"


def watch(folder: Path, *words: str) -> CommandOutput:
    return tidemark(folder, "watch", *words, TIDEMARK_HOME=str(folder / ".tidemark"))


def test_tables_are_found_below_folders_and_a_damaged_one_is_one_line(lake: Path) -> None:
    assert [*find_tables(lake)] == [lake / "silver" / "by_day", lake / "silver" / "orders", lake / "torn"]
    done = watch(lake, str(lake), "--limit", "1 h")
    assert done.returncode == 1
    by_day, orders, told, damage = done.stdout.splitlines()[1:]
    assert [line.split()[:2] for line in (by_day, orders)] == [
        [str(lake / "silver" / "by_day"), "pass"],
        [str(lake / "silver" / "orders"), "pass"],
    ]
    assert told == (
        f"{lake}/silver/by_day: it has no column of times, so its last commit is judged; a column of text can be named "
        "with --column"
    )
    assert damage.startswith(f"not read: {lake}/torn/_delta_log/{0:020d}.json: it is damaged (JSONDecodeError: ")
    assert damage.endswith("; restore the file, or the table, from a backup")


def test_the_exit_status_says_if_all_tables_keep_the_limit(lake: Path) -> None:
    silver, orders = str(lake / "silver"), str(lake / "silver" / "orders")
    assert watch(lake, silver, "--limit", "1 h").returncode == 0
    assert watch(lake, silver).returncode == 0
    assert watch(lake, silver, "--limit", "1 ms").returncode == 1
    assert watch(lake, str(lake / "torn")).returncode == 1
    append(lake / "two", rows(0).append_column("sold", rows(0)["at"]))
    assert watch(lake, orders, str(lake / "two"), "--limit", "900 d").returncode == 1  # one is not judged
    assert watch(lake, str(lake / "two"), "--column", "sold", "--limit", "36500 d").returncode == 0
    missing = watch(lake, str(lake / "nothing"), orders)
    assert (missing.returncode, f"not read: {lake / 'nothing'}: No such file or directory" in missing.stdout) == (
        1,
        True,
    )
    assert orders in missing.stdout
    (lake / "emptied").mkdir()
    emptied = watch(lake, str(lake / "emptied"), orders)
    assert f"not read: {lake / 'emptied'}: there is no Delta table at or below it; correct the place" in emptied.stdout
    assert emptied.returncode == 1
    assert watch(lake, orders, silver, orders).stdout.count(f"{orders} ") == 1
    for wrong in (["--limit", "soon"], ["--timezone", "Mars/Olympus"], ["--over", "0 h"], ["--html", "no/page.html"]):
        with pytest.raises(SystemExit) as ended:
            watch(lake, silver, *wrong)
        assert ended.value.code == 2


def test_the_document_has_all_that_is_known(lake: Path) -> None:
    document = json.loads(watch(lake, str(lake), "--format", "json", "--limit", "1 h").stdout)
    by_day, orders = document["tables"]
    assert (document["limit_ms"], [each["path"] for each in document["unreadable"]]) == (HOUR, [str(lake / "torn")])
    assert (orders["column"], orders["verdict"], orders["judged_by"]) == ("at", "pass", "event_time")
    assert (by_day["column"], by_day["verdict"], by_day["judged_by"]) == (None, "pass", "commit")
    assert orders["age"]["high_ms"] - orders["age"]["low_ms"] == 1
    assert datetime.fromisoformat(orders["newest"]["low"]) <= datetime.now(UTC)
    (commit,) = orders["commits"]
    assert (commit["rows"], commit["clock"], commit["change"], commit["verdict"]) == (1, "writer", "appended", "pass")
    assert orders["writers"] == [{"writer": commit["writer"], "commits": 1}]
    assert orders["latencies"] == {"pass": 1}


@pytest.mark.parametrize(
    "words",
    [variant for shown in shown_commands() for variant in variants(shown.text) if variant[:1] == ["watch"] != variant],
)
def test_each_command_that_a_page_shows_runs(lake: Path, words: list[str]) -> None:
    here = {"/data/gold": str(lake / "silver"), "s3://lake/silver": str(lake / "silver" / "orders")}
    done = watch(lake, *(here.get(word, word) for word in words[1:]))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_is_one_file_that_shows_names_as_text(lake: Path) -> None:
    shutil.move(lake / "silver", lake / "<b>silver")
    assert watch(lake, str(lake), "--limit", "1 h", "--html", "page.html").returncode == 1
    page = (lake / "page.html").read_text()
    assert "&lt;b&gt;silver/orders" in page
    assert "<b>" not in page
    assert page.count('<tr class="table is-') == 2
    assert "it is damaged (JSONDecodeError" in page
    assert "<script" not in page
