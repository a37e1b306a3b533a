"""Fields declared as `timestamp` keep microseconds in values, keys, states, tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from support.play import NOON, Play, ms
from support.topologies import (
    aggregate,
    current,
    join,
    map_of,
    operators,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan

SOURCE = topology_of({"max_drift": "10 s"}, events=source("id string, seen timestamp", bound="0 ms"))
ENDS = {"low": "min(seen)", "high": "max(seen)", "one": "first(seen)", "other": "last(seen)", "n": "count(seen)"}


TIMED = SOURCE + operators(
    timed=map_of(
        where="seen > timestamptz '2014-05-13 11:00:00'",
        select={"id": "id", "seen": "seen", "part": "date_trunc('second', seen)"},
    ),
    newest=table("timed", columns=["seen"]),
    board=current("newest", "board"),
    log=sink("newest", table="log"),
    per_instant=aggregate("timed", key=["seen", "part"], aggregates={"n": "count(*)"}),
    by_instant=table("timed", key=["seen"]),
    ends=aggregate("timed", key=["id"], aggregates=ENDS),
    joined=join("timed", "by_instant_too", on={"seen": "at_"}),
    by_instant_too=table("renamed", key=["at_"]),
    renamed=map_of(select={"at_": "seen", "by": "id"}),
    together=sink("joined", table="together"),
    grouped=repartition("newest", id=["id"], key=["seen"], columns=["id"]),
    ids=aggregate("grouped", sub_topology="ids", aggregates={"n": "count(*)"}),
)


AT = datetime.fromtimestamp(NOON / 1_000, UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
"""9999-12-31T23:59:59.999999Z, which many systems write for "no end"."""
WINDOWED = operators(
    per_window=aggregate("events", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}),
    counts=current("per_window", "counts", key=["id", "window_start"]),
)


def us(microseconds: int) -> datetime:
    """So many microseconds after noon."""
    return AT + timedelta(microseconds=microseconds)


def take(play: Play, *seen: tuple[float, str, object]) -> None:
    """Runs one batch of records: record time in s, id, seen instant."""
    play.batch([play.row("events", ms(at), id=id_, seen=at_) for at, id_, at_ in seen], at_ms=ms(seen[-1][0]))


def changes(play: Play, operator: str, *columns: str, sub: str | None = None) -> list[tuple[Any, ...]]:
    rows = [row for row in play.rows("changes", sub) if row["operator"] == operator]
    return [(row["key"], *(json.loads(row["value"] or "{}").get(c) for c in columns)) for row in rows]


def column(play: Play, table: str, *names: str) -> Sequence[tuple[Any, ...]]:
    """The columns *names* of a sink's *table*, as they are."""
    (first, *_) = play.topology.sub_topologies
    rows = scan(Layout(play.home).stream_table("play", first.name, table))
    return rows.sort("source_offset").select(*names).collect().rows()


def test_values_that_differ_by_a_microsecond_are_different(tmp_path: Path) -> None:
    play = Play(TIMED, tmp_path)
    take(play, (0, "a", us(1)), (1, "a", us(2)), (2, "a", us(2)))
    play.start(play.topology.sub_topologies[0].name)  # a new driver reads what was kept
    take(play, (3, "a", us(2)), (4, "a", us(3)), (5, "a", None))
    noon = "2014-05-13T12:00:00"
    assert changes(play, "newest", "seen") == [("a", f"{noon}.00000{n}+00:00") for n in (1, 2, 3)]
    assert [row["n"] for row in play.rows("suppressed") if row["operator"] == "newest"] == [1, 1]
    assert column(play, "log", "seen") == [(us(1),), (us(2),), (us(3),)]
    assert column(play, "together", "id", "seen", "by") == [("a", us(n), "a") for n in (1, 2, 2, 2, 3)]
    assert column(play, "board", "id", "seen") == [("a", us(3))]
    at = "2014-05-13 12:00:00.00000"
    assert changes(play, "by_instant", "id") == [(f"{at}{n}+00:00", "a") for n in (1, 2, 3)]
    second = f"{noon}+00:00"
    assert [json.loads(key) for key, *_ in changes(play, "per_instant")] == [
        {"seen": f"{noon}.00000{n}+00:00", "part": second} for n in (1, 2, 2, 2, 3)
    ]
    assert [n for _, n in changes(play, "per_instant", "n")] == [1, 1, 2, 3, 1]
    assert changes(play, "ends", "low", "high", "one", "other", "n")[-1] == (
        "a", f"{noon}.000001+00:00", f"{noon}.000003+00:00", f"{noon}.000001+00:00", f"{noon}.000003+00:00", 5,
    )  # fmt: skip


def test_microseconds_survive_a_hop_and_waiting_records(tmp_path: Path) -> None:
    play = Play(TIMED, tmp_path, partitions=2)
    main = play.topology.sub_topologies[0].name
    rows = [play.row("events", ms(0), partition=part, id="a", seen=us(1)) for part in (0, 1)]
    play.batch(rows, at_ms=ms(1))
    # What comes after the one at 100 s waits for partition 1.
    play.batch([play.row("events", ms(at), id=id_, seen=us(7)) for at, id_ in ((100, "a"), (101, "b"))], at_ms=ms(101))
    assert column(play, "board", "id", "seen") == [("a", us(7))]
    play.start(main)
    play.batch([play.row("events", ms(n), partition=1, id="a", seen=us(2)) for n in (1, 99)], at_ms=ms(101))
    play.batch(at_ms=ms(102))
    play.hop("ids", at_ms=ms(101))
    assert sorted(column(play, "board", "id", "seen")) == [("a", us(2)), ("b", us(7))]
    at = "2014-05-13 12:00:00.00000"
    counted = dict(changes(play, "ids", "n", sub="ids"))
    assert counted == {f"{at}1+00:00": 0, f"{at}2+00:00": 1, f"{at}7+00:00": 1}


def test_the_last_microsecond_of_9999_is_a_value_like_any_other(tmp_path: Path) -> None:
    play = Play(TIMED, tmp_path)
    # Beyond .999000 a bound that is rounded up to whole milliseconds would be in the year 10000.
    almost = [LAST - timedelta(microseconds=n) for n in (1_000, 999, 998, 0)]
    take(play, *((n, f"{n}", at) for n, at in enumerate(almost)))
    play.start(play.topology.sub_topologies[0].name)
    take(play, (4, "0", LAST))
    play.settle()
    assert column(play, "log", "id", "seen") == [*((f"{n}", at) for n, at in enumerate(almost)), ("0", LAST)]
    assert sorted(column(play, "board", "id", "seen")) == [("0", LAST), ("1", almost[1]), ("2", almost[2]), ("3", LAST)]
    table = DeltaTable(str(play.table("log")))
    assert sorted(table.to_pyarrow_table(filters=[("seen", "=", LAST)])["id"].to_pylist()) == ["0", "3"]


def test_the_last_instant_of_9999_may_be_the_time_of_a_record(tmp_path: Path) -> None:
    play = Play(SOURCE + WINDOWED, tmp_path)
    last_ms = 253_402_300_799_999
    rows = [play.row("events", at, id="a", seen=None) for at in (ms(0), last_ms)]
    play.batch(rows, at_ms=ms(1))
    play.start()
    play.batch([play.row("events", last_ms, id="a", seen=None)], at_ms=ms(2))
    # The window ends with the year 10000, which Python does not have.
    board = scan(play.table("counts")).with_columns(pl.col("window_start").dt.epoch("ms")).collect()
    assert sorted(board.select("window_start", "n").rows()) == [(ms(0), 1), (last_ms - 9_999, 2)]
