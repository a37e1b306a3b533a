"""Writes past days of `flights` before an hour that is played.

The hour is that of a real engine: a batch a minute in both streams. Each past day repeats an hour like it 24 times. Its
rows are in the files that a driver and maintenance leave: one a day for each table.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import critical_path
import rollup
from support.flights_day import FEW_FLIGHTS, TickingPlay, few_flights
from support.play import Play
from tidemark.facts.latency_facts import facts_of
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import HEARTBEATS, LATENCY_ROLLUP, TABLES
from tidemark.reports.outline import outline
from tidemark.storage.delta.log import Action, TableLog, add_action
from tidemark.storage.delta.report_tables import open_report
from tidemark.storage.delta.tables import SUPERSEDED, scan
from tidemark.storage.files import stats_of

TOML = (CHECKOUT / "jobs" / "topologies" / "flights.toml").read_text()
MIDNIGHT_MS = 1_772_323_200_000
"""2026-03-01 00:00 UTC, where the past days end and the hour begins."""
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
HOUR = Interval(MIDNIGHT_MS, MIDNIGHT_MS + HOUR_MS)
SUBS = ("status", "carriers")
SPLIT = ("changes", "state_changes", "suppressed", "partition_batches", "hop_by_carrier")
"""Tables of which maintenance keeps superseded rows in files of their own."""


@dataclass(frozen=True)
class Hour:
    """Rows of an hour of *minutes* batches, by stream and table.

    For reports the stream is empty.
    """

    minutes: int
    rows: dict[tuple[str, str], pl.DataFrame]


def write(home: Path, days: int, *, minutes: int = 60) -> Play:
    """Writes *days* of the past and then plays the hour into *home*.

    An hour has *minutes* batches of each stream.
    """
    play = _play(home)
    for sub in SUBS:
        play.start(sub)  # which creates the tables
    if days:
        with TemporaryDirectory() as folder:
            hour = _hour(Path(folder), minutes)
        _write_days(play, hour, days)
    first = days * 24 * minutes
    play = _play(home)
    play.resume(dict.fromkeys((*SUBS, "carriers/hop"), first), {("flight_events", 0): first * 2 * FEW_FLIGHTS})
    play_hour(play, minutes)
    return play


def _play(home: Path) -> Play:
    play = TickingPlay(TOML, home)
    play.broker.partitions = {"flight_events": 3, "weather": 1}
    return play


def play_hour(play: Play, minutes: int) -> None:
    """Plays *minutes* batches of both streams from MIDNIGHT_MS on."""
    for minute in range(minutes):
        at_ms = MIDNIGHT_MS + (minute + 1) * MINUTE_MS - 5_000
        play.batch(few_flights(play, at_ms, minute), at_ms=at_ms, sub="status")
        play.hop("carriers", at_ms=at_ms + 2_000)
    for sub in SUBS:
        _beat(play, sub, minutes)


def _beat(play: Play, sub: str, minutes: int) -> None:
    """Appends the heartbeats of the hour, four a minute."""
    same = {"topology": play.topology.name, "sub_topology": sub}
    beats = [
        {**same, "beat_at": MIDNIGHT_MS + number * MINUTE_MS // 4, "state": "running", "thread_id": "t", "epoch": 1}
        for number in range(minutes * 4)
    ]
    write_deltalake(play.table(HEARTBEATS.name, sub), rows_of(HEARTBEATS, beats), mode="append")


def _hour(home: Path, minutes: int) -> Hour:
    """Plays the hour and its reports; returns the rows of all tables."""
    play = _play(home)
    play_hour(play, minutes)
    layout = Layout(home)
    rollup.run(layout, "flights", topology_outline=outline(play.topology, ()))
    critical_path.run(layout, play.topology, (), HOUR)
    folders = [("", layout.reports("flights")), *((sub, layout.stream("flights", sub)) for sub in SUBS)]
    tables = [(sub, path.parent) for sub, folder in folders for path in sorted(folder.glob("*/_delta_log"))]
    rows = {(sub, path.name): scan(path).collect() for sub, path in tables}
    return Hour(minutes, {place: frame for place, frame in rows.items() if frame.height})


def _write_days(play: Play, hour: Hour, days: int) -> None:
    layout = Layout(play.home)
    for (sub, name), rows in hour.rows.items():
        if sub:
            path = layout.stream_table("flights", sub, name)
            log = TableLog(path, f"flights/{sub}/{name}")
            newest = days * 24 * hour.minutes - 1
            log.append(_files(path, rows, hour.minutes, days), newest, {"batch_id": str(newest)})
            DeltaTable(str(path)).create_checkpoint()  # as after each hundred commits, of which a day has thousands
    marks: dict[str, int] = {}
    for (sub, name), rows in hour.rows.items():
        if not sub:
            path = layout.report_table("flights", name)
            table = open_report(TABLES[name], path)
            TableLog(path, "").append(_files(path, rows, hour.minutes, days), None, {})
            table.update_incremental()
            if name == LATENCY_ROLLUP.name:
                for facts in facts_of(layout, "flights"):
                    marks |= facts.marks(table, ())
                _mark(table, rows.head(0), marks)
            DeltaTable(table.table_uri).create_checkpoint()


def _mark(table: DeltaTable, none: pl.DataFrame, marks: dict[str, int]) -> None:
    """Records that the rollup *table* has counted all facts."""
    transactions = [Transaction(app, version) for app, version in marks.items()]
    write_deltalake(
        table, none.to_arrow(), mode="append", commit_properties=CommitProperties(app_transactions=transactions)
    )


def _files(path: Path, rows: pl.DataFrame, minutes: int, days: int) -> list[Action]:
    """Writes files for each day of the table at *path*.

    There is one for each of its partitions. It returns the actions that add them.
    """
    table = DeltaTable(str(path))
    schema, parts = pa.schema(table.schema().to_arrow()), table.metadata().partition_columns
    for part in parts:
        schema = schema.remove(schema.get_field_index(part))
    prefix = SUPERSEDED if path.name in SPLIT else "part-"
    first = _first_day(rows, minutes, days)
    added: list[Action] = []
    for values, own in first.partition_by(parts, as_dict=True).items() if parts else [((), first)]:
        partition = {name: str(value) for name, value in zip(parts, values, strict=True)}
        folder = "".join(f"{part}={value}/" for part, value in partition.items())
        (path / folder).mkdir(parents=True, exist_ok=True)
        stored = own.select(schema.names).to_arrow().cast(schema)
        for number in range(days):
            name = f"{folder}{prefix}{uuid.uuid4().hex}.parquet"
            day = _days_later(stored, number, number * 24 * minutes)
            pq.write_table(day, path / name, compression="zstd")
            # polars copies the text of an Arrow table, which takes longer than to write it.
            stats = json.dumps(stats_of(_later(own, 24 * number, minutes).select(schema.names)))
            ended_ms = MIDNIGHT_MS - (days - 1 - number) * DAY_MS
            added.append(add_action(name, (path / name).stat().st_size, ended_ms, stats, partition=partition))
    return added


def _first_day(rows: pl.DataFrame, minutes: int, days: int) -> pl.DataFrame:
    """Returns the rows of the first of *days*, each hour like *rows*."""
    is_day = pl.col("grain") == "day" if "grain" in rows.columns else pl.lit(value=False)
    hours = [_later(rows.filter(~is_day), hour, minutes) for hour in range(24)]
    return _later(pl.concat([*hours, rows.filter(is_day)]), -24 * days, minutes, batches=0)


def _days_later(rows: pa.Table, days: int, batches: int) -> pa.Table:
    """Returns *rows* so many *days* and *batches* later."""
    later = pa.scalar(timedelta(days=days), pa.duration("us"))
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            columns.append(pc.add(column, later))
        else:
            columns.append(pc.add(column, batches) if field.name == "batch_id" else column)
    return pa.table(columns, schema=rows.schema)


def _later(rows: pl.DataFrame, hours: int, minutes: int, *, batches: int | None = None) -> pl.DataFrame:
    """Returns *rows* of an hour so many *hours* later."""
    more = hours * minutes if batches is None else batches
    return rows.with_columns(cs.datetime() + timedelta(hours=hours), cs.by_name("batch_id", require_all=False) + more)
