"""Frequent maintenance beside real drivers loses, doubles and rereads nothing."""

from __future__ import annotations

import os
import signal
import tomllib
from functools import partial
from pathlib import Path

import pytest
from streaming.drivers import Driver, rows_of
from streaming.laws import check_accounting, check_read_once, check_suppressed
from streaming.sending import send_numbers

from tidemark.clock import wall_clock_ms
from tidemark.local import broker as embedded
from tidemark.maintenance.upkeep import maintain_stream
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.storage.delta.compaction import data_files_of
from tidemark.storage.warehouse import is_table
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings

TOPIC = "for_maintenance"
TOML = f"""
name = "tidied"
trigger = "500 ms"

[retention]
changes = "1 ms"
state = "1 ms"
hops = "1 ms"
unused = "1 ms"

[operators.events]
kind = "source"
sub_topology = "numbers"
topic = "{TOPIC}"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 s"

[operators.kept]
kind = "sink"
input = "events"
table = "kept"

[operators.classed]
kind = "map"
input = "events"
select = {{ class = "n % 7", parity = "n % 7 % 2", n = "n" }}

[operators.newest]
kind = "table"
input = "classed"
key = ["class"]

[operators.board]
kind = "sink"
input = "newest"
table = "board"
mode = "current"
refresh = "1 h"  # so that the drain merges it
key = ["class"]

[operators.by_parity]
kind = "repartition"
input = "newest"
id = ["class"]
key = ["parity"]
columns = ["n"]

[operators.totals]
kind = "aggregate"
sub_topology = "parities"
input = "by_parity"
aggregates = {{ total = "sum(n)" }}

[operators.sums]
kind = "sink"
input = "totals"
table = "sums"
mode = "current"
refresh = "1 s"
key = ["parity"]
"""
SUBS = ("numbers", "parities")
N = 150


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tidied.toml").write_text(TOML)
    return tmp_path


@pytest.mark.long  # minutes; tests/delta/test_compaction.py and objectstore/test_engine.py maintain beside one engine
def test_constantly_maintained_drivers_do_the_same_as_others(home: Path, broker: str) -> None:
    topology = parse(tomllib.loads(TOML), file="tidied.toml")
    layout = Layout(home / "warehouse")
    streams = [Stream(topology, topology.sub_topology(name), layout) for name in SUBS]

    def maintained(newest: int) -> bool:
        """Maintains all tables, then compares sums with the newest numbers.

        They are *newest* and the six numbers before it.
        """
        for stream in streams:
            maintain_stream(stream, now_ms=wall_clock_ms() + 1_000, closed_after_ms=0)
        there = is_table(layout.stream_table("tidied", "parities", "sums"))
        rows = rows_of(layout.warehouse, "tidied", "parities", "sums") if there else []
        return sum(row["total"] for row in rows) == 7 * newest - 21

    embedded.create_topics(broker, {TOPIC: 1})
    drivers = {name: Driver(name, home, broker, topology="tidied") for name in SUBS}
    try:
        for first in range(0, N, 30):
            send_numbers(broker, TOPIC, *range(first, first + 30))
            if first == 90:  # all goes that it does not name any more while a driver stands still
                drivers["numbers"].stop()
                maintained(first)
                os.killpg(drivers["numbers"].pid, signal.SIGCONT)
            drivers["parities"].wait(partial(maintained, first + 29), f"the sums of the numbers up to {first + 29}")
            if first == 60:
                for name in SUBS:  # the next ones start from files that maintenance has made
                    assert drivers[name].drain() == 0
                    drivers[name] = Driver(name, home, broker, topology="tidied")
        assert [driver.drain() for driver in drivers.values()] == [0, 0]
    finally:
        for driver in drivers.values():
            driver.end()

    for stream in streams:
        assert findings(evidence(stream)) == []
        rows = {
            t: rows_of(layout.warehouse, "tidied", stream.sub.name, t)
            for t in ("partition_batches", "operator_batches", "suppressed")
        }
        check_accounting(rows["operator_batches"])
        check_suppressed(rows["operator_batches"], rows["suppressed"])
        check_read_once(rows["partition_batches"])
    assert sorted(row["n"] for row in rows_of(layout.warehouse, "tidied", "numbers", "kept")) == list(range(N))
    assert sorted(row["n"] for row in rows_of(layout.warehouse, "tidied", "numbers", "board")) == list(range(143, 150))
    hop = data_files_of(layout.hop("tidied", "numbers", "by_parity"))
    # of 150: the newest of each class, and those that were not read when maintenance came last
    assert sum(file.rows for file in hop) < 100
    sums = rows_of(layout.warehouse, "tidied", "parities", "sums")
    assert {row["parity"]: row["total"] for row in sums} == {0: 147 + 149 + 144 + 146, 1: 148 + 143 + 145}
