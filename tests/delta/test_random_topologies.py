"""Compares random topologies and inputs with a calculation in plain Python.

Inputs are late, ahead of the clock, idle, unkeyed and suppressed; `plain_topology.py` has the rules.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.oracle_parts import Place, text
from support.plain_topology import MAX_AHEAD_MS, Event, PlainTopology, Shape, money
from support.play import Play
from support.topologies import operators, repartition
from tidemark.kernels.columns.schemas import HEADERS
from tidemark.model.kinds.source import Source
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.stream.read.parsing import parsed

START = 1_400_000_000_000
AGES_S = (0, 0, 1, 2, 3, 8, 25, 4_000, -5, -10, -11, -86_400)
"""Delay from a record to its batch's decision; negative is ahead."""

shapes = st.builds(
    Shape,
    bound_ms=st.sampled_from((0, 2_000)),
    idle_after_ms=st.sampled_from((None, 5_000)),
    is_filtered=st.booleans(),
    rule=st.sampled_from(("strictly_newer", "same_instant", "value_only")),
    strategy=st.sampled_from(("on_change", "on_change", "on_update")),
    allowed_lateness_ms=st.sampled_from((0, 3_000)),
    is_behind_hop=st.booleans(),
)
events = st.tuples(
    st.integers(0, 1), st.sampled_from(AGES_S), st.sampled_from(("a", "b", None)), st.integers(0, 2), st.booleans()
)
batches = st.lists(
    st.tuples(st.sampled_from((1, 4, 12)), st.lists(events, min_size=1, max_size=4)), min_size=4, max_size=6
)


def toml(shape: Shape) -> str:
    idle = f'idle_after = "{shape.idle_after_ms} ms"' if shape.idle_after_ms else ""
    where = 'where = "v > 0"' if shape.is_filtered else ""
    hop = operators(by_id=repartition("mapped", key=["id"], columns=["v", "fare"]))
    window_input = (
        'sub_topology = "windows"\ninput = "by_id"' if shape.is_behind_hop else 'input = "mapped"\nkey = ["id"]'
    )
    return f'''
name = "drawn"
[operators.events]
kind = "source"
sub_topology = "main"
topic = "events"
fields = """id string from `user.id`, v int, seen timestamp, fare decimal(12,2) from data.fare,
    spot double from data.`x.y`, event_time decimal(16,3) from data.occurredAt"""
timestamp = "event_time"
timestamp_unit = "s"
bound = "{shape.bound_ms} ms"
max_ahead = "{MAX_AHEAD_MS} ms"
{idle}
[operators.mapped]
kind = "map"
input = "events"
select = {{ id = "id", v = "v", seen = "seen", fare = "fare", spot = "spot" }}
{where}
[operators.raw]
kind = "sink"
input = "mapped"
table = "raw"
[operators.newest]
kind = "table"
input = "mapped"
key = ["id"]
columns = ["seen"]
rule = "{shape.rule}"
strategy = "{shape.strategy}"
[operators.total]
kind = "aggregate"
input = "mapped"
key = ["id"]
aggregates = {{ n = "count(*)", fare = "sum(fare)", mean = "avg(fare)" }}
strategy = "on_update"
[operators.per_spot]
kind = "aggregate"
input = "mapped"
key = ["spot"]
aggregates = {{ n = "count(*)" }}
{hop if shape.is_behind_hop else ""}
[operators.per_window]
kind = "aggregate"
{window_input}
window = {{ tumbling = "10 s" }}
strategy = "on_window_close"
allowed_lateness = "{shape.allowed_lateness_ms} ms"
aggregates = {{ n = "count(*)", v = "sum(v)", fare = "sum(fare)" }}
[operators.results]
kind = "sink"
input = "per_window"
table = "results"
'''


FARES = ("null", "7.31", '"2.07"')
SPOTS = ("-0.0", "0.0", "1.5")


def content(at_ms: int, id_: str | None, v: int) -> bytes:
    """Returns a record; `v` decides on its fare, its spot, and how its time is written."""
    at = (f"{at_ms / 1000:.3f}", f'"{at_ms / 1000:.3f}"', f"{at_ms}e-3")[v]
    seen = datetime(2026, 1, 1, 12, 0, 0, v, tzinfo=UTC).isoformat()  # differs by microseconds where `v` differs
    data = f'{{"occurredAt":{at},"fare":{FARES[v]},"x.y":{SPOTS[v]}}}'
    return f'{{"user.id":{json.dumps(id_)},"v":{v},"seen":"{seen}","data":{data}}}'.encode()


def rows_of(play: Play, events: list[Event], keyed: list[bool]) -> list[dict[str, Any]]:
    """Returns *events* as the source parses them, in their places."""
    source = play.topology.operators["events"]
    assert isinstance(source, Source)
    values = pl.Series([event.value for event in events], dtype=pl.Binary)
    raw = pl.DataFrame({"value": values}).with_columns(
        source=pl.lit("events"),
        partition=pl.Series([event.partition for event in events], dtype=pl.Int32),
        offset=pl.int_range(pl.len()),
        key=pl.lit(None, pl.Binary),
        headers=pl.lit(None, HEADERS),
        clock_ms=pl.lit(None, pl.Int64),
    )
    rows: list[dict[str, Any]] = []
    for event, with_key, row in zip(events, keyed, parsed(source, raw).to_dicts(), strict=True):
        place = play.row("events", row["timestamp_ms"], partition=event.partition, key="k" if with_key else None)
        rows.append({**place, "events": row["events"]})
    return rows


def play_and_calculate(
    shape: Shape, drawn: list[tuple[int, list[tuple[int, int, str | None, int, bool]]]], home: Path
) -> tuple[Play, PlainTopology]:
    play, plain, now_ms = Play(toml(shape), home, partitions=2), PlainTopology(shape), START
    for pause_s, found in drawn:
        now_ms += pause_s * 1_000
        arrived = [Event(part, content(now_ms - age_s * 1_000, id_, v)) for part, age_s, id_, v, _ in found]
        play.batch(rows_of(play, arrived, [keyed for *_, keyed in found]), at_ms=now_ms)
        if shape.is_behind_hop:
            play.hop("windows", at_ms=now_ms)
        plain.batch(arrived, now_ms)
    return play, plain


Drawn = list[tuple[int, list[tuple[int, int, str | None, int, bool]]]]


@settings(max_examples=6)
@given(shape=shapes, drawn=batches)
def test_the_engine_agrees_with_plain_python(shape: Shape, drawn: Drawn) -> None:
    check_agreement(shape, drawn)


@pytest.mark.long
@settings(max_examples=100)
@given(shape=shapes, drawn=batches)
def test_the_engine_agrees_with_plain_python_in_100_plays(shape: Shape, drawn: Drawn) -> None:
    check_agreement(shape, drawn)


def check_agreement(shape: Shape, drawn: Drawn) -> None:
    with TemporaryDirectory() as folder:
        play, plain = play_and_calculate(shape, drawn, Path(folder))
        windows = "windows" if shape.is_behind_hop else "main"
        place = lambda row: Place("events", row["source_partition"], row["source_offset"])  # noqa: E731
        assert [place(row) for row in play.rows("raw")] == plain.raw
        changes = play.rows("changes")
        newest = [(row["key"], row["value"], row["timestamp"]) for row in changes if row["operator"] == "newest"]
        assert newest == plain.sent
        totals = {key: text({"n": n, **money(plain.fares[key])}) for key, n in plain.counts.items()}
        assert {row["key"]: row["value"] for row in changes if row["operator"] == "total"} == totals
        spots = {row["key"]: row["value"] for row in changes if row["operator"] == "per_spot"}
        assert spots == {str(abs(spot)): text({"n": n}) for spot, n in plain.spots.items()}
        results = [
            (row["id"], row["window_start"], row["n"], row["v"], row["fare"]) for row in play.rows("results", windows)
        ]
        assert sorted(results, key=str) == sorted(plain.closed, key=str)
        check_set_aside(play, plain, windows)
        check_accounting(play)


def check_set_aside(play: Play, plain: PlainTopology, windows: str) -> None:
    """Checks late and unusable records, with the reason."""
    late = {
        (row["operator"], Place("events", row["partition"], row["offset"]))
        for row in play.rows("late_records", windows)
    }
    assert late == plain.late
    quarantined = {(Place("events", row["partition"], row["offset"]), row["reason"]) for row in play.rows("quarantine")}
    assert quarantined == plain.quarantined


def check_accounting(play: Play) -> None:
    for sub in play.topology.sub_topologies:
        for row in play.rows("operator_batches", sub.name):
            assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row
