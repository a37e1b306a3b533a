"""Runs one stream's batches without Spark, with rows written by hand.

The KIP-557 feature was withdrawn from Kafka because a crash between two writes could hide an update (KAFKA-12508). Here
a driver ends at every step between two writes of a batch, and the next one must leave tables that say the same as
without.
"""

from __future__ import annotations

import json
import shutil
import tomllib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.crashes import Crash, crash_at
from support.play import CLOCKS, without_clocks
from support.quiet_broker import Silence
from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import Contradiction
from tidemark.model.kinds.operator import Level
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import COUNTED, DEAD_LETTERS
from tidemark.model.topology import Topology, parse
from tidemark.semantics.progress import WriterPosition
from tidemark.storage.delta.tables import scan
from tidemark.storage.fence import Fence
from tidemark.stream.engine import Engine
from tidemark.stream.journal.entries import MANY, Journal
from tidemark.stream.journal.notes import EntryNotes
from tidemark.stream.wiring import build_engine
from tidemark.testing.rows import PARSED

TOML = (Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml").read_text()
# Time stands still in silence, so that there is a batch in which nothing at all happens. The source is strict.
STRICT = TOML.replace("idle_advances = true", 'allowed_lateness = "0 ms"')
FLIGHTS = parse(tomllib.loads(STRICT), file="flights.toml")
NOON = 1_400_000_000_000
FLIGHT = {"flight": "UA1", "carrier": "UA", "origin": "EWR", "dest": "SFO", "tailnum": "N1"}
LATENCIES = {"min_ms", "max_ms", "sum_ms", "thread_id", "reads", "firsts", "results", "result_row", "first_read"}


def record(source: str, partition: int, offset: int, key: str, fields: dict[str, Any]) -> dict[str, Any]:
    where = {"source": source, "partition": partition, "offset": offset, "key": key.encode()}
    return {**where, "timestamp_ms": fields["event_time"], "deleted": False, source: fields}


def flight(
    offset: int, status: str, delay: float | None, at_ms: int, *, name: str = "UA1", part: int = 0
) -> dict[str, Any]:
    fields = {**FLIGHT, "flight": name, "status": status, "dep_delay_min": delay, "event_time": at_ms}
    return record("flight_events", part, offset, name, fields)


def weather(offset: int, temp_f: float, at_ms: int) -> dict[str, Any]:
    return record("weather", 0, offset, "EWR", {"origin": "EWR", "temp_f": temp_f, "event_time": at_ms})


def bad(offset: int) -> dict[str, Any]:
    return {"source": "flight_events", "partition": 0, "offset": offset, "value": b"\xff", "reason": "null_key"}


SILENT, BUSY = 2, 3
BATCHES = [
    [weather(0, 60.0, NOON - 10), flight(0, "scheduled", None, NOON), flight(1, "scheduled", None, NOON + 5), bad(2)],
    [flight(3, "departed", 50.0, NOON + 7_000), flight(0, "departed", 20.0, NOON + 7_500, name="UA2", part=1)],
    [],
    [
        flight(4, "departed", 50.0, NOON + 30_000),
        flight(5, "arrived", 60.0, NOON + 31_000),
        flight(6, "scheduled", None, NOON),
    ],
]


def at_ms(batch_id: int) -> int:
    """When Spark planned a batch: 10 s after the one before."""
    return NOON + batch_id * 10_000


def raw(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Returns the *rows* of a batch as Spark reads them."""
    kinds = {"string": pl.String(), "double": pl.Float64(), "bigint": pl.Int64()}
    payloads = {
        name: pl.Struct({field: kinds[word] for field, word in FLIGHTS.operators[name].fields.items()})
        for name in ("flight_events", "weather")
    }
    return pl.DataFrame(rows, schema={**PARSED, **payloads})


def engine(
    home: Path,
    *,
    epoch: int = 1,
    level: Level = FLIGHTS.level,
    reached: Callable[[str], None] = lambda step: None,
    flights: Topology = FLIGHTS,
    facts_every_ms: int = 0,
    clock: Clock = wall_clock_ms,
) -> Engine:
    flights = replace(flights, level=level, facts_every_ms=facts_every_ms)
    stream = Stream(flights, flights.sub_topology("status"), Layout(home))
    return build_engine(
        stream,
        Silence({"flight_events": 3, "weather": 1}),
        thread_id="t",
        epoch=epoch,
        slow_ms={},
        fence=Fence(reached=reached, clock=clock),
    )


def run(engine: Engine, batches: Sequence[int]) -> None:
    for batch_id in batches:
        engine.process(
            batch_id,
            lambda batch_id=batch_id: raw(BATCHES[batch_id]),
            ends_of(batch_id),
            planned_at_ms=at_ms(batch_id),
        )


def ends_of(batch_id: int) -> dict[str, dict[int, int]]:
    """Where each partition has been read to, by topic, after batch *batch_id*."""
    ends: dict[str, dict[int, int]] = {"flight_events": {}, "weather": {}}
    for row in (row for batch in BATCHES[: batch_id + 1] for row in batch):
        topic = ends[row["source"]]
        topic[row["partition"]] = max(topic.get(row["partition"], 0), row["offset"] + 1)
    return ends


def tables(home: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Returns every table's rows without clocks, sorted by text.

    Clocks differ from run to run.
    """
    found = {}
    for path in sorted((home / "streams" / "flights" / "status").iterdir()):
        frame = scan(path).collect()
        if path.name == "operator_batches":
            measured = frame.explode("tasks").drop_nulls("tasks")
            task = [pl.col("tasks").struct.field(f"idempotent_update_skip_{name}") for name in ("total", "rate")]
            skips = measured.select("batch_id", "operator", *task).drop_nulls()
            found["skips"] = sorted(skips.rows(), key=str)
            counted = frame.filter(pl.any_horizontal(pl.col(COUNTED) > 0))
            frame = counted.drop("n", "negative_n", "tasks", "level")
        frame = without_clocks(frame, CLOCKS | LATENCIES)
        if path.name == "latency_minutes":
            frame = frame.group_by("batch_id", "operator").agg(n=pl.col("n").sum())
        found[path.name] = sorted(frame.rows(), key=str)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, list[tuple[Any, ...]]]:
    home = tmp_path_factory.mktemp("undisturbed")
    run(engine(home), range(4))
    return tables(home)


def test_operators_work_without_the_rows_that_spark_read(tmp_path: Path) -> None:
    read: list[weakref.ref[pl.DataFrame]] = []
    has_rows: list[bool] = []

    def collect() -> pl.DataFrame:
        rows = raw(BATCHES[0])
        read.append(weakref.ref(rows))
        return rows

    def clock() -> int:
        has_rows.append(bool(read) and read[0]() is not None)
        return NOON

    engine(tmp_path, clock=clock).process(0, collect, ends_of(0), planned_at_ms=at_ms(0))
    # The clock is read after the read, and after each of two sources took its rows in.
    assert has_rows.count(True) == 3


def test_the_tables_contain_every_decision(undisturbed):
    changes = [(row[5], row[6], row[7]) for row in undisturbed["changes"] if row[5] == "flight_status"]
    assert [key for _, key, _ in changes] == ["UA1", "UA1", "UA2", "UA1"]
    assert '"status":"arrived","delay_min":null' not in str(changes)
    rows = [dict(zip(DEAD_LETTERS.names, row, strict=True)) for row in undisturbed["dead_letters"]]
    late, bad = sorted(rows, key=lambda row: row["kind"])
    assert (late["kind"], bad["kind"], bad["offset"]) == ("late", "quarantined", 2)
    # offset 6 is behind the watermark that batch 2 left, when all partitions had fallen silent: 12:00:07.5 − 3 s − 1 ms
    assert (late["offset"], late["key"], late["lateness_ms"]) == (6, b"UA1", 4_499)


@pytest.mark.parametrize(
    ("batch_id", "commits", "many", "stride"),
    [
        (SILENT, 4, MANY, 1),
        (BUSY, 11, 1, 3),
        *(pytest.param(BUSY, 11, many, 1, marks=pytest.mark.long) for many in (MANY, 1)),
    ],
)
def test_a_crash_between_any_two_writes_leaves_the_same_tables(
    tmp_path, undisturbed, monkeypatch, batch_id, commits, many, stride
):
    monkeypatch.setattr("tidemark.stream.write.commit.MANY", many)  # with 1 the journal only names the files
    steps: list[str] = []
    before = tmp_path / "before"
    run(engine(before), range(batch_id))
    shutil.copytree(before, tmp_path / "watched")
    run(engine(tmp_path / "watched", epoch=2, reached=steps.append), [batch_id])
    assert len(steps) == 2 + commits + (many == 1), steps
    for step in steps[::stride]:
        home = tmp_path / step
        shutil.copytree(before, home)
        with pytest.raises(Crash):
            run(engine(home, epoch=2, reached=crash_at(step)), [batch_id])
        run(engine(home, epoch=3), range(batch_id, len(BATCHES)))
        assert tables(home) == undisturbed, f"after {step}"


def test_a_replayed_decision_is_not_made_again(tmp_path):
    run(engine(tmp_path), [0])
    crashed = engine(tmp_path, epoch=2, reached=crash_at("committed changes"))
    with pytest.raises(Crash):
        run(crashed, [1])
    decided = pl.read_delta(str(tmp_path / "streams/flights/status/changes")).filter(pl.col("batch_id") == 1)
    # Read again, the batch has other rows: what was decided and partly seen stays decided.
    engine(tmp_path, epoch=3).process(1, lambda: raw([]), ends_of(0), planned_at_ms=at_ms(1))
    again = pl.read_delta(str(tmp_path / "streams/flights/status/changes")).filter(pl.col("batch_id") == 1)
    assert again.sort("seq").equals(decided.sort("seq"))


def test_a_checkpoint_that_went_back_is_refused(tmp_path):
    run(engine(tmp_path), [0, 1])
    with pytest.raises(Contradiction, match="continues with batch 0, but batch 1 is already decided"):
        run(engine(tmp_path, epoch=2), [0])


def test_a_batch_is_decided_by_one_of_two_drivers(tmp_path):
    first, second = engine(tmp_path), engine(tmp_path, epoch=2)
    run(first, [0])
    run(second, [0])
    run(second, [1])
    with pytest.raises(Contradiction, match="another driver already decided this batch"):
        run(first, [1])


def test_a_batch_that_changes_nothing_writes_nothing(tmp_path):
    quiet = engine(tmp_path)
    run(quiet, [0, 1, 2])
    before = tables(tmp_path)
    quiet.process(3, lambda: raw([]), ends_of(2), planned_at_ms=at_ms(3))
    assert tables(tmp_path) == before


def test_another_level_keeps_state_and_changes_measurements_only(tmp_path, undisturbed):
    for batch_id, level in enumerate([Level.INFO, Level.TRACE, Level.DEBUG, Level.INFO]):
        run(engine(tmp_path, epoch=batch_id + 1, level=level), [batch_id])
    found = tables(tmp_path)
    measured = {"latency_minutes", "skips", "batches"}
    assert {n: rows for n, rows in found.items() if n not in measured} == {
        n: rows for n, rows in undisturbed.items() if n not in measured
    }
    home = tmp_path / "streams" / "flights" / "status"
    latency = scan(home / "operator_batches").drop_nulls("n").select("batch_id", "operator").collect()
    ends = {"flight_events", "weather", "flight_board", "by_carrier"}
    stateful = {"flight_status", "weather_now"}
    # Only batch 0 has weather, and batch 2 has no record at all.
    assert {n: set(latency.filter(pl.col("batch_id") == n)["operator"]) for n in range(4)} == {
        0: ends,
        1: ends - {"weather"} | stateful - {"weather_now"},
        2: set(),
        3: ends - {"weather"},
    }
    # The totals of batch 1 have the update that batch 0 skipped without a record of it.
    assert found["skips"] == [row for row in undisturbed["skips"] if row[0] == 1]
    assert ("flight_status", 1) in [(operator, total) for _, operator, total, _ in found["skips"]]


def test_level_off_accounts_for_its_batches_and_measures_nothing(tmp_path, undisturbed):
    run(engine(tmp_path, level=Level.OFF), range(4))
    found = tables(tmp_path)
    measured = {"latency_minutes", "operator_windows", "skips"}
    assert not any(found[name] for name in measured)
    rows = scan(tmp_path / "streams" / "flights" / "status" / "operator_batches").select("n", "tasks").collect()
    assert {*rows.rows()} == {(None, None)}
    assert {n: rows for n, rows in found.items() if n not in {*measured, "batches"}} == {
        n: rows for n, rows in undisturbed.items() if n not in {*measured, "batches"}
    }


def written_by(*writers: str) -> Topology:
    """The flights, whose events are written by *writers*."""
    at = 'topic = "flight_events"'
    return parse(tomllib.loads(TOML.replace(at, f"{at}\nwritten_by = {json.dumps(writers)}")), file="flights.toml")


def sent_twice(home: Path, flights: Topology) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns counts of two drivers that got another's records twice.

    Also the offsets of what changed by them.
    """

    def sent(offset: int, delay: float, id_: str) -> dict[str, Any]:
        row = flight(offset, "departed", delay, NOON + offset)
        return {**row, "headers": [{"key": "tidemark-id", "value": id_.encode()}]}

    first = [sent(0, 1.0, "t/s/1/7/0"), sent(1, 2.0, "t/s/1/7/1"), sent(2, 1.0, "t/s/2/7/0")]
    second = [sent(3, 2.0, "t/s/2/7/1"), sent(4, 3.0, "t/s/2/7/2")]
    # The second driver knows from the journal what the first has read.
    for batch_id, rows in enumerate([first, second]):
        engine(home, epoch=batch_id + 1, flights=flights).process(
            batch_id, lambda rows=rows: raw(rows), planned_at_ms=at_ms(batch_id)
        )
    tables = home / "streams" / "flights" / "status"
    outcomes = (
        scan(tables / "operator_batches").filter(pl.col("operator") == "flight_events").collect().sort("batch_id")
    )
    counted = outcomes.select("records_in", "duplicate", "passed", "late", "quarantined").rows()
    changes = scan(tables / "changes").filter(pl.col("operator") == "flight_status").collect().sort("batch_id", "seq")
    return counted, changes["source_offset"].to_list()


def test_rows_that_a_sink_sent_twice_are_read_once_and_counted(tmp_path):
    twice = sent_twice(tmp_path, written_by("other/one", "t/s"))
    assert twice == ([(3, 1, 2, 0, 0), (2, 1, 1, 0, 0)], [0, 1, 4])


def test_ids_of_writers_that_are_not_named_drop_nothing(tmp_path):
    for number, writers in enumerate([(), ("other/one",)]):
        found = sent_twice(tmp_path / str(number), written_by(*writers) if writers else FLIGHTS)
        assert found == ([(3, 0, 3, 0, 0), (2, 0, 2, 0, 0)], [0, 1, 2, 3, 4])


def test_ids_of_forged_writers_are_not_stored(tmp_path):
    rows = [
        {**flight(n, "departed", float(n), NOON + n), "headers": [{"key": "tidemark-id", "value": b"f/%d/1/0/0" % n}]}
        for n in range(1_000)
    ]
    for number, flights in enumerate([FLIGHTS, written_by("t/s")]):
        home = tmp_path / str(number)
        driver = engine(home, flights=flights)
        driver.process(0, lambda: raw(rows), planned_at_ms=at_ms(0))
        events = driver.progress.inputs["flight_events"]
        assert [part.writers for part in events.partitions.values()] == [{}, {}, {}]


def test_writers_that_no_source_names_are_pruned_from_a_journal(tmp_path):
    flights = written_by("t/s")
    engine(tmp_path, flights=flights).process(0, lambda: raw(BATCHES[0]), planned_at_ms=at_ms(0))
    journal = Journal(Layout(tmp_path).control("flights", "status") / "journal", "data")
    entry = journal.newest()
    assert entry is not None
    forged = {f"forged/{n}": [1, 0, 0] for n in range(5_000)}
    notes = json.loads(entry.notes.content)
    notes["decided"]["progress"]["inputs"]["flight_events"]["partitions"]["0"]["writers"] = forged | {"t/s": [2, 7, 1]}
    (home,) = (Layout(tmp_path).control("flights", "status") / "journal").glob("*.data.zip")
    home.unlink()
    journal.write(replace(entry, notes=EntryNotes.of(json.dumps(notes).encode())))
    later = engine(tmp_path, epoch=2, flights=flights)
    later.process(1, lambda: raw(BATCHES[1]), planned_at_ms=at_ms(1))
    assert later.progress.inputs["flight_events"].partitions[0].writers == {"t/s": WriterPosition(2, 7, 1)}
