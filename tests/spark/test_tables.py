from __future__ import annotations

import os
import re
import subprocess
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.spark_settings import JAVA_OPTIONS, OF_ARCHIVES, driver_settings
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import CRITICAL_PATHS, OPERATOR_BATCHES, SLA_RESULTS
from tidemark.query.spark import read_table, register
from tidemark.storage.delta.report_tables import replace_rows

MIB = 2**20


def test_a_table_of_a_topology_is_that_of_all_its_sub_topologies(spark, warehouse):
    warehouse.write(OPERATOR_BATCHES, [{"batch_id": 1}], "a")
    warehouse.write(OPERATOR_BATCHES, [{"batch_id": 2}], "b")

    rows = read_table(spark, warehouse.layout, "t", OPERATOR_BATCHES).collect()

    assert sorted((row.sub_topology, row.batch_id) for row in rows) == [("a", 1), ("b", 2)]


def test_one_view_has_the_rows_of_two_sinks_and_opens_no_other_table(spark, warehouse):
    for second, stream in ((0, "old"), (10, "new")):
        path = warehouse.layout.stream_table("t", stream, "minutes")
        at = pa.array([datetime(2014, 5, 13, 12, 0, second, tzinfo=UTC)], pa.timestamp("us", "UTC"))
        write_deltalake(path, pa.table({"window_start": at, "a{b}": [stream]}))

    torn = warehouse.layout.stream_table("t", "new", "hours") / "_delta_log"
    torn.mkdir(parents=True)
    (torn / f"{0:020d}.json").write_text("torn")
    text = "SELECT unix_millis(window_start) AS ms, `a{b}` AS word FROM minutes ORDER BY ms"

    register(spark, warehouse.layout, text)  # `hours` is not named, and cannot be opened

    rows = spark.sql(text).collect()
    assert [(row.ms, row.word) for row in rows] == [(1_399_982_400_000, "old"), (1_399_982_410_000, "new")]


@pytest.mark.parametrize("table", [OPERATOR_BATCHES, SLA_RESULTS], ids=str)
def test_an_unwritten_table_is_empty_and_has_its_columns(spark, warehouse, table):
    frame = read_table(spark, warehouse.layout, "t", table)

    assert tuple(frame.columns) == table.names
    assert frame.collect() == []


def windows(*ends_ms):
    return [{"topology": "t", "window_end": end_ms, "path": f"until {end_ms}"} for end_ms in ends_ms]


def paths(warehouse):
    return sorted(row["path"] for row in warehouse.report(CRITICAL_PATHS))


def test_replaced_rows_are_those_of_the_interval_and_no_others(warehouse):
    path, between = warehouse.layout.report_table("t", CRITICAL_PATHS.name), Interval(2_000, 3_000).holds("window_end")
    everywhere = Interval(0, 9_000).holds("window_end")
    replace_rows(windows(1_999, 2_000, 2_999, 3_000), CRITICAL_PATHS, path, where=everywhere)

    for _ in range(2):
        replace_rows(windows(2_500), CRITICAL_PATHS, path, where=between)
    assert paths(warehouse) == ["until 1999", "until 2500", "until 3000"]

    replace_rows([], CRITICAL_PATHS, path, where=between)
    assert paths(warehouse) == ["until 1999", "until 3000"]


def test_a_row_outside_of_the_replaced_interval_is_refused(warehouse):
    path = warehouse.layout.report_table("t", CRITICAL_PATHS.name)
    between = Interval(2_000, 3_000).holds("window_end")
    replace_rows(windows(2_500), CRITICAL_PATHS, path, where=between)

    with pytest.raises(Exception, match="1 rows failed validation check"):
        replace_rows(windows(2_600, 3_000), CRITICAL_PATHS, path, where=between)

    assert paths(warehouse) == ["until 2500"]


def test_a_report_has_comments_and_no_rare_table_feature(warehouse):
    path = warehouse.layout.report_table("t", CRITICAL_PATHS.name)
    replace_rows(windows(1), CRITICAL_PATHS, path, where=Interval(0, 2).holds("window_end"))

    table = DeltaTable(path)
    comments = {field.name: field.metadata["comment"] for field in table.schema().fields}
    assert comments == {column.name: column.comment for column in CRITICAL_PATHS.columns}
    assert table.protocol().min_reader_version == 1


@pytest.mark.parametrize("heap_mib", [1_024, 4_096])
def test_new_objects_have_an_eighth_of_the_heap_that_a_user_allows(heap_mib):
    options = driver_settings(CHECKOUT)[JAVA_OPTIONS].split()
    java = ["java", *options, f"-Xmx{heap_mib}m", *OF_ARCHIVES.split(), "-XX:+PrintFlagsFinal", "--version"]
    # An environment variable of the tests comes after the command line.
    ran = subprocess.run(java, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    flags = {name: int(value) for name, value in re.findall(r"(\w+) += (\d+) ", ran.stdout)}
    assert flags["MaxHeapSize"] == heap_mib * MIB
    assert flags["MaxNewSize"] == heap_mib * MIB // 8
    assert (flags["InitialHeapSize"], flags["ArchiveRelocationMode"]) == (128 * MIB, 0)


@pytest.mark.parametrize("content", [b"", b"of another JVM"])
def test_a_jvm_says_nothing_of_an_archive_it_cannot_use(tmp_path, content):
    archive = tmp_path / "classes.jsa"
    archive.write_bytes(content)
    java = ["java", f"-XX:SharedArchiveFile={archive}", *OF_ARCHIVES.split(), "--version"]
    ran = subprocess.run(java, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    assert (ran.stdout.count("openjdk"), ran.stderr) == (1, "")
    assert "warning" not in ran.stdout
