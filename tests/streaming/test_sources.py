"""A driver reads tables, files and two clusters, which then change.

It reads a Delta table, files of each format and topics of two clusters.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import CommitProperties, DeltaTable, write_deltalake
from streaming.drivers import OnlyDriver, SharedDriver

from support.consumer_groups import group_offsets
from tidemark.control.process import wait_until
from tidemark.local import broker as embedded

NOON_S = 1_400_000_000
LINES = "json lines [1] 50%25"
"""The folder of the lines: its name has what Spark or a URL would read in another way."""
AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": ["null", "int"]},
        {"name": "at", "type": "long"},
        {"name": "zone", "type": "string", "default": "none"},
    ],
}
SOURCES = {
    "orders": 'delta = "outside/orders"\nwritten_by = "shop/orders"',
    "lines": 'files = "outside/json lines [1] 50%25"\nformat = "json"',
    "sheets": 'files = "outside/csv"\nformat = "csv"',
    "columns": 'files = "FOLDER/warehouse/outside/parquet"\nformat = "parquet"',
    "events": 'topic = "avro_events"\nformat = "avro"\nschema = "event.avsc"\nmax_records = 100',
    "distant": 'topic = "distant_events"\nkafka = "far"',
}
FIELDS = 'fields = "id string, n int, at bigint"\ntimestamp = "at"\ntimestamp_unit = "s"\nother_fields = "rest"'


def operator(name: str, **keys: Any) -> str:
    """Returns an operator's table; values other than text as JSON."""
    return f"[operators.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def topology() -> str:
    """Returns a topology of all sources in one driver.

    Each source has a sink of its own, and is joined to the orders.
    """
    parts = ['name = "sources"\nwindow = "5 s"\ntrigger = "1 s"\nconsumer_groups = "acme"\n']
    parts.append('[kafka.far]\nbootstrap = "127.0.0.1:1"\n')
    parts.append(operator("events_sent", kind="sink", input="events", topic="copies", kafka="far"))
    joined = "orders"
    for name, place in SOURCES.items():
        fields = FIELDS.replace("at bigint", "at bigint, seen timestamp") if name == "orders" else FIELDS
        parts.append(f'[operators.{name}]\nkind = "source"\n{place}\n{fields}\nbound = "1 min"\n')
        parts.append(operator(f"{name}_kept", kind="sink", input=name, table=f"{name}_kept"))
        if name != "orders":
            select = f'select = {{ id = "id", {name}_n = "n" }}\n'
            parts.append(operator(f"{name}_n", kind="map", input=name) + select)
            parts.append(operator(f"{name}_now", kind="table", input=f"{name}_n", key=["id"]))
            on = 'on = { id = "id" }\n'
            parts.append(operator(f"{name}_joined", kind="join", input=joined, table=f"{name}_now") + on)
            joined = f"{name}_joined"
    on = 'on = { id = "place" }\n'
    parts.append(operator("placed", kind="join", input=joined, delta="outside/places") + on)
    return "".join([*parts, operator("all_kept", kind="sink", input="placed", table="all_kept")])


TOML = topology()
PLACES = pa.table({"place": ["i0", "i5"], "name": ["north", "south"]})
Row = dict[str, Any]


def line(n: int, **others: Any) -> str:
    return json.dumps({"id": f"i{n}", "n": n, "at": NOON_S + n, **others}) + "\n"


def table(*numbers: int) -> pa.Table:
    columns = {"id": [f"i{n}" for n in numbers], "n": list(numbers), "at": [NOON_S + n for n in numbers]}
    schema = pa.schema(
        [pa.field("id", pa.string(), nullable=False), ("n", pa.int32()), ("at", pa.int64()), ("zone", pa.string())]
    )
    return pa.table({**columns, "zone": [None] * len(numbers)}, schema=schema)


def seen(n: int) -> datetime:
    return datetime(1969, 7, 20, 20, 17, 40, 999_000 + n, tzinfo=UTC)


def orders(*numbers: int) -> pa.Table:
    """The same, each seen at an instant of its own, in microseconds."""
    return table(*numbers).append_column("seen", pa.array([seen(n) for n in numbers], pa.timestamp("us", "UTC")))


def send(address: str, *numbers: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for n in numbers:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), {"id": f"i{n}", "n": n, "at": NOON_S + n})
        producer.produce("avro_events", written.getvalue(), "k", 0)
    producer.produce("avro_events", b"\xff" * 9, "k", 0)
    assert producer.flush(30) == 0


def await_next_modification_time(table_folder: Path) -> None:
    """Waits until a new file gets a later time than those there.

    Linux changes the time of files only every 4 or 10 ms, and a table is read in the order of these times.
    """
    newest_ns = max(file.stat().st_mtime_ns for file in table_folder.glob("*.parquet"))
    wait_until(lambda: time.time_ns() > newest_ns + 20_000_000, "a later modification time", 10)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Path:
    """Creates a warehouse with first records for all sources."""
    home = tmp_path_factory.mktemp("sources")
    outside = home / "warehouse" / "outside"
    for folder in (LINES, "csv", "parquet"):
        (outside / folder).mkdir(parents=True)
    for numbers in ((0, 1), (2,), (3, 4)):
        write_deltalake(outside / "orders", orders(*numbers), mode="append")
        await_next_modification_time(outside / "orders")
    write_deltalake(outside / "places", PLACES)
    (outside / LINES / "b #1.json").write_text(line(0) + line(1, zone="z") + "\n")
    (outside / "csv" / "a.csv").write_text(f"id,n,at\ni0,0,{NOON_S}\ni1,1,{NOON_S + 1}\n")
    pq.write_table(table(0, 1, 2), outside / "parquet" / "a.parquet")
    (home / "event.avsc").write_text(json.dumps(AVRO))
    embedded.create_topics(broker, {"avro_events": 1})
    send(broker, 0, 1)
    return home


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of another cluster, with two records in a topic."""
    folder = tmp_path_factory.mktemp("far")
    try:
        address = embedded.start(folder).address
        embedded.create_topics(address, {"distant_events": 1, "copies": 1})
        producer = Producer({"bootstrap.servers": address})
        for n in (0, 1):
            producer.produce("distant_events", line(n).encode(), "k", 0)
        assert producer.flush(30) == 0
        yield address
    finally:
        embedded.stop(folder)


@pytest.fixture(scope="module")
def driver(home: Path, broker: str, far: str, shared: SharedDriver) -> Iterator[OnlyDriver]:
    """Runs a driver with a wrong cluster address in the file.

    The one on the command line counts.
    """
    with OnlyDriver(
        home, TOML.replace("FOLDER", str(home)), broker, "--bootstrap", f"far={far}", shared=shared
    ) as driver:
        yield driver


def numbers(rows: list[Row]) -> list[tuple[int, int]]:
    """Offset and number of each row, in the order of the table."""
    return [(row["source_offset"], row["n"]) for row in rows]


def test_every_source_is_read_whole_and_in_the_order_of_writing(driver: OnlyDriver, home: Path) -> None:
    assert numbers(driver.wait_for("orders_kept", 5)) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert numbers(driver.wait_for("lines_kept", 2)) == [(0, 0), (1, 1)]
    assert [row["rest"] for row in driver.rows("lines_kept")] == [None, '{"zone":"z"}']
    assert numbers(driver.wait_for("sheets_kept", 2)) == [(0, 0), (1, 1)]
    assert numbers(driver.wait_for("columns_kept", 3)) == [(0, 0), (1, 1), (2, 2)]
    events = driver.wait_for("events_kept", 2)
    assert (numbers(events), events[0]["rest"]) == ([(0, 0), (1, 1)], '{"zone":"none"}')
    assert [row["timestamp"] for row in events] == [NOON_S * 1000, NOON_S * 1000 + 1000]


def test_a_timestamp_of_a_delta_table_keeps_its_microseconds(driver: OnlyDriver, home: Path) -> None:
    driver.wait_for("orders_kept", 5)
    kept = DeltaTable(driver.table("orders_kept"))
    rows = kept.to_pyarrow_table().to_pylist()
    assert {row["n"]: row["seen"] for row in rows if row["n"] < 5} == {n: seen(n) for n in range(5)}


def test_a_driver_reads_and_writes_topics_of_two_clusters(driver: OnlyDriver, far: str) -> None:
    assert numbers(driver.wait_for("distant_kept", 2)) == [(0, 0), (1, 1)]
    driver.wait_for("events_kept", 2)
    consumer = Consumer({"bootstrap.servers": far, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("copies", 0, 0)])
    copies = consumer.consume(2, timeout=30)
    consumer.close()
    assert [json.loads(copy.value() or b"")["n"] for copy in copies] == [0, 1]


def test_each_cluster_knows_how_far_its_own_topics_are_read(driver: OnlyDriver, broker: str, far: str) -> None:
    group = "acme-sources-events"
    # The near topic has two records and a damaged one.
    driver.wait(lambda: group_offsets(broker, group) == {"avro_events/0": 3}, "the near offsets")
    driver.wait(lambda: group_offsets(far, group) == {"distant_events/0": 2}, "the far offsets")


def test_what_is_added_goes_on_from_there(driver: OnlyDriver, home: Path) -> None:
    outside = home / "warehouse" / "outside"
    places = PLACES.append_column("zone", pa.array(["n", "s"]))
    write_deltalake(outside / "places", places, mode="overwrite", schema_mode="overwrite")
    (outside / LINES / "a.json").write_text(line(2) + '{"id":\n' + '{"id": "i4", "n": "four", "at": 1}\n' + line(5))
    write_deltalake(outside / "orders", orders(5, 6), mode="append")
    (outside / "csv" / "0.csv").write_text(f"id,n,at\ni2,two,{NOON_S}\ni3,3,{NOON_S + 3}\n")
    assert numbers(driver.wait_for("lines_kept", 4)) == [(0, 0), (1, 1), (2, 2), (5, 5)]
    assert numbers(driver.wait_for("orders_kept", 7))[5:] == [(5, 5), (6, 6)]
    placed = driver.wait_for("all_kept", 7)
    assert [(row["name"], row["zone"]) for row in (placed[0], *placed[5:])] == [
        ("north", None),
        ("south", "s"),
        (None, None),
    ]
    assert numbers(driver.wait_for("sheets_kept", 3))[2:] == [(3, 3)]
    columns = ("source", "offset", "reason", "value", "detail")
    bad = {tuple(row[name] for name in columns) for row in driver.wait_for("quarantine", 4)}
    three = "a.json, row 2: JSONDecodeError: Expecting value: line 1 column 7 (char 6)"
    four = "a.json, row 3: ValidationError: Expected `int | null`, got `str` - at `$.n`"
    assert bad == {
        ("lines", 3, "malformed_json", b'{"id":', three),
        ("lines", 4, "wrong_type", b'{"id": "i4", "n": "four", "at": 1}', four),
        (
            "sheets",
            2,
            "wrong_type",
            f'{{"id":"i2","n":"two","at":"{NOON_S}"}}'.encode(),
            '0.csv, row 1: column n: "two" is no int',
        ),
        ("events", 2, "malformed_avro", b"\xff" * 9, "IndexError: string index out of range"),
    }


def test_a_damaged_file_is_set_aside_whole_and_the_others_are_read(driver: OnlyDriver, home: Path) -> None:
    outside = home / "warehouse" / "outside"
    csv, parquet = outside / "csv", outside / "parquet"
    read, before = {name: driver.rows(f"{name}_kept") for name in ("sheets", "columns")}, len(driver.rows("quarantine"))
    (csv / "cut.csv.gz").write_bytes(gzip.compress(b"id,n,at\ni9,9,9\n" * 99)[:-9])
    (csv / "text.csv.gz").write_text("id,n,at\n")
    (csv / "less.csv").write_text("id,at\ni9,9\n")
    (csv / "empty.csv").touch()
    (csv / "orders.csv").mkdir()
    (csv / "orders.csv" / "part-0.csv").write_text("id,n,at\ni9,9,9\n")
    (csv / "day=1").mkdir()
    (csv / "day=1" / "part-0.csv").write_text("id,n,at\ni9,9,9\n")
    (csv / "whole.csv").write_text(f'at,zone,n,id\n{NOON_S},"a\nb",7,i7\n')
    os.utime(csv / "whole.csv", (NOON_S, NOON_S))  # a file may be older than all others
    pq.write_table(table(9), parquet / "cut.parquet")
    os.truncate(parquet / "cut.parquet", (parquet / "cut.parquet").stat().st_size - 1)
    pq.write_table(table(9).drop(["n"]), parquet / "less.parquet")
    pq.write_table(table(7), parquet / "whole.parquet")
    set_aside = driver.wait_for("quarantine", before + 7)[before:]
    details = sorted((row["source"], row["detail"].partition(": ")) for row in set_aside)
    assert {row["reason"] for row in set_aside} == {"unreadable_file"}
    assert [(name, file) for name, (file, *_) in details] == [
        ("columns", "cut.parquet"),
        ("columns", "less.parquet"),
        ("sheets", "cut.csv.gz"),
        ("sheets", "empty.csv"),
        ("sheets", "less.csv"),
        ("sheets", "orders.csv"),
        ("sheets", "text.csv.gz"),
    ]
    assert [why for name, (*_, why) in details if name == "sheets"] == [
        "is not whole gzip: Truncated compressed stream",
        "has no bytes",
        "has no column n; its columns are: id, at",
        f"is a folder; put its files into {csv} itself",
        "is not whole gzip: zlib inflate failed: incorrect header check",
    ]
    for name, rows in read.items():
        (last,) = driver.wait_for(f"{name}_kept", len(rows) + 1)[len(rows) :]
        assert (last["id"], last["n"]) == ("i7", 7)
    assert json.loads(driver.rows("sheets_kept")[-1]["rest"]) == {"zone": "a\nb"}


def test_lines_that_are_added_to_a_read_file_are_counted_and_named(driver: OnlyDriver, home: Path) -> None:
    with (home / "warehouse" / "outside" / LINES / "b #1.json").open("a") as file:
        file.write(line(8) + line(9))
    (home / "warehouse" / "outside" / LINES / "next.json").write_text(line(6))  # causes a batch at once
    added = 2 * len(line(8))

    def told() -> list[str]:
        return [row["detail"] for row in driver.rows("quarantine") if row["reason"] == "added_to_file"]

    driver.wait(lambda: bool(told()), "the added lines")
    assert told() == [f"b #1.json: 2 lines ({added} bytes) were added after it had been read, and are not read"]


def test_a_commit_without_a_row_tells_time(driver: OnlyDriver, home: Path) -> None:
    written = DeltaTable(home / "warehouse" / "outside" / "orders")
    reached_ms = (NOON_S + 40) * 1_000
    mark = CommitProperties(custom_metadata={"tidemark-mark": f"shop/orders:{reached_ms}:idle"})
    written.create_write_transaction([], "append", written.schema(), commit_properties=mark)

    def told() -> list[str]:
        rows = [row for row in driver.rows("partition_batches") if row["source"] == "orders"]
        return [row["activity"] for row in rows if row["watermark"] == reached_ms and row["partition"] is None]

    driver.wait(lambda: "idle" in told(), "the time of the mark")


def test_compacted_rows_are_not_reread_and_rewritten_ones_stop(driver: OnlyDriver, home: Path) -> None:
    written = DeltaTable(home / "warehouse" / "outside" / "orders")
    written.optimize.compact()
    write_deltalake(written, orders(7), mode="append")
    assert numbers(driver.wait_for("orders_kept", 8))[7:] == [(7, 7)]
    written.update(updates={"n": "100"}, predicate="n = 7")
    reason = driver.reason_to_fail()
    assert reason.startswith("Contradiction: a source must read an append-only Delta table, but rows of this one were")
    assert "outside/orders" in reason


def test_a_source_that_is_not_there_is_named_at_start(
    tmp_path: Path, broker: str, far: str, home: Path, shared: SharedDriver
) -> None:
    (tmp_path / "event.avsc").write_text(json.dumps(AVRO))
    write_deltalake(tmp_path / "warehouse" / "outside" / "places", PLACES)
    with OnlyDriver(
        tmp_path, TOML.replace("FOLDER", str(tmp_path)), broker, "--bootstrap", f"far={far}", shared=shared
    ) as driver:
        assert "operators.orders.delta: " in (reason := driver.reason_to_fail())
        assert reason.endswith("no Delta table; create it before the stream starts")


def test_a_source_table_that_is_replaced_ends_its_stream_until_the_source_has_another_name(
    tmp_path: Path, broker: str, shared: SharedDriver
) -> None:
    read, other = tmp_path / "warehouse" / "in", tmp_path / "other"
    for place, numbers in ((read, [1]), (other, [2, 3])):
        write_deltalake(place, table(*numbers))
    source = f'[operators.lines]\nkind = "source"\ndelta = "in"\n{FIELDS}\nbound = "1 s"\n'
    kept = operator("kept", kind="sink", input="lines", table="kept")
    ids = [DeltaTable(place).metadata().id for place in (read, other)]
    with OnlyDriver(tmp_path, f'name = "replaced"\n{source}{kept}', broker, shared=shared) as driver:
        driver.wait_for("kept", 1)
        read.rename(tmp_path / "was")
        other.rename(read)
        reason = driver.reason_to_fail()
        assert f"the stream has read the Delta table with the id {ids[0]}, and " in reason
        assert f"has the id {ids[1]}: put the first one back, or give the source another name and starting_" in reason
        assert len(driver.rows("kept")) == 1
    again = source.replace("operators.lines", "operators.again") + 'sub_topology = "lines"\n'
    # The table has no commit yet from this instant on.
    again += f'starting_offsets = "{datetime.now(UTC).isoformat()}"\n'
    told = f'name = "replaced"\n{again}{kept.replace("lines", "again")}'
    with OnlyDriver(tmp_path, told, broker, shared=shared) as driver:
        driver.wait(lambda: driver.control.heartbeat() is not None, "the driver")
        write_deltalake(read, table(4), mode="append")
        driver.wait_for("kept", 2)
        write_deltalake(read, table(5), mode="append")
        assert sorted(row["n"] for row in driver.wait_for("kept", 3)) == [1, 4, 5]
