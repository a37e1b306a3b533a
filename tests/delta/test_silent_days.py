"""Days without a record, and then a burst larger than a batch.

The clock is an argument: nothing waits. A tick in four hours, and in the last ones each hour, stands for those of the
silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import ANY

import pytest

import rollup
from support.play import NOON, Play
from support.quiet_broker import Ends, Row
from support.topologies import aggregate, operators, sink, source
from tidemark.control.folder import Heartbeat, StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import INCIDENTS, LATENCY_ROLLUP, SLA_RESULTS, Table
from tidemark.storage.delta.tables import scan
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.why.walk import why

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check

SECOND, HOUR = 1_000, 3_600_000
DAYS_LATER = NOON + 72 * HOUR
BEFORE, LIMIT, BURST = 6, 1_000, 5_000
"""Records before the silence, of a full batch, and of the burst."""
TOML = 'name = "play"\n' + operators(
    events=source(idle_after="1 min", idle_advances=True),
    kept=sink("events", table="kept"),
    counts=aggregate(key=["id"], window={"tumbling": "1 h"}, strategy="on_window_close", aggregates={"n": "count(*)"}),
    counts_board=sink("counts", table="counts_board"),
)
SLAS = {
    "fresh": {"subject": "kept", "measure": "staleness", "error_after": "12 h"},
    "fresh_if_busy": {"subject": "kept", "measure": "staleness", "error_after": "12 h", "ignore_when_idle": True},
    "time_if_busy": {"subject": "events", "measure": "watermark_lag", "error_after": "1 h", "ignore_when_idle": True},
    "in_time": {"subject": "kept", "measure": "latency_p99", "warn_after": "9 s", "error_after": "1 min"},
    "complete": {"subject": "outcomes", "measure": "completeness", "error_after": "1 min"},
}


class Days:
    """A stream before, in and after three days without a record."""

    def __init__(self, home: Path) -> None:
        self.play, self.layout = Play(TOML, home), Layout(home)
        self.play.broker = self.broker = Ends(1)
        self.seen: dict[int, Seen] = {}
        self.heartbeats = Heartbeats(home / "streams" / "play" / "events", topology="play", sub_topology="events")

    def begin(self) -> None:
        """Reads six records, ten seconds after the first."""
        rows = [self.play.row("events", NOON + n * SECOND, id="ab"[n % 2], v=n) for n in range(BEFORE)]
        self.beat(NOON)
        self.play.batch(rows, at_ms=NOON + 10 * SECOND)

    def be_silent(self) -> None:
        """Lets the broker remove all records after two days."""
        for hour in range(1, 72):
            if hour % 4 == 0 or hour > 68:
                self.play.batch(at_ms=NOON + hour * HOUR)
            self.beat(NOON + hour * HOUR)
            if hour == 48:
                self.broker.earliest = BEFORE

    def burst(self) -> None:
        """Reads five batches, each ten seconds after its first record."""
        for ago in range(120, 0, -10):
            self.beat(DAYS_LATER - ago * SECOND)
        self.broker.ends = {0: BEFORE + BURST}
        for first in range(0, BURST, LIMIT):
            numbers = range(first, first + LIMIT)
            rows = [self.play.row("events", DAYS_LATER + n, id="ab"[n % 2], v=n) for n in numbers]
            self.play.batch(rows, at_ms=DAYS_LATER + 10 * SECOND + first)
            self.beat(DAYS_LATER + 10 * SECOND + first)

    def beat(self, at_ms: int) -> None:
        beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=at_ms, pid=1, since_ms=at_ms)
        self.play.control.beat(beat)
        self.heartbeats.write_if_due(beat, thread_id="t", batch_started_at_ms=None)

    def look(self, at_ms: int) -> None:
        """Checks the SLAs at *at_ms*, and explains the state."""
        self.beat(at_ms - SECOND)
        slas = {"play": {name: {"owner": "o", **sla} for name, sla in SLAS.items()}}
        specs = parse(slas, self.play.topology, file="slas.toml")
        run_check(self.layout, self.play.topology, specs, at_ms=at_ms, run_id=str(at_ms))
        rows = [row for row in self.report(SLA_RESULTS) if row["run_id"] == str(at_ms)]
        self.seen[at_ms] = Seen(
            {row["sla"]: (row["verdict"], row["observed_ms"]) for row in rows},
            {row["sla"] for row in self.report(INCIDENTS)},
            why(self.play.topology, self.layout, at_ms=at_ms, operator="kept")[0].cause,
        )

    def report(self, table: Table) -> list[Row]:
        return scan(self.layout.report_table("play", table.name)).collect().to_dicts()


IN_SILENCE = NOON + 71 * HOUR + 10 * SECOND
AFTER_BURST = DAYS_LATER + 15 * SECOND


@dataclass(frozen=True)
class Seen:
    """The verdicts, incidents so far and cause at an instant."""

    verdicts: Mapping[str, tuple[str, float | None]]
    incidents: set[str]
    cause: str


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Days:
    days = Days(tmp_path_factory.mktemp("days"))
    days.begin()
    days.be_silent()
    days.look(IN_SILENCE)
    days.burst()
    days.look(AFTER_BURST)
    days.play.batch(at_ms=DAYS_LATER + 2 * HOUR)
    return days


def test_a_burst_after_days_of_silence_is_counted_exactly(days: Days) -> None:
    boards = [
        (row["id"], (row["window_start"] - NOON) // HOUR, row["n"]) for row in days.play.rows("counts_board", "events")
    ]
    assert sorted(boards) == [("a", 0, 3), ("a", 72, 2_500), ("b", 0, 3), ("b", 72, 2_500)]
    assert [row["v"] for row in days.play.rows("kept")] == [*range(BEFORE), *range(BURST)]
    assert days.play.rows("late_records") == []
    batches = days.play.rows("batches")
    assert sum(row["records_in"] for row in batches) == BEFORE + BURST
    # A batch without records each time the silence has doubled, and those at which time goes on.
    assert len([row for row in batches if not row["records_in"]]) <= 10
    assert [row["watermark"] for row in batches] == sorted(row["watermark"] for row in batches)


def test_the_latency_of_a_burst_is_that_of_its_records(days: Days) -> None:
    measured = [
        (row["n"], row["min_ms"], row["max_ms"])
        for row in days.play.rows("operator_batches")
        if row["operator"] == "kept" and row["n"]
    ]
    # The first record of a batch is 10 s old, and its last one, 999 ms younger, 9.001 s.
    assert measured == [(6, 5_000, 10_000), *5 * [(1_000, 9_001, 10_000)]]
    rollup.run(days.layout, "play")
    hours = {
        (round(row["interval_start"].timestamp() * 1_000) - NOON) // HOUR: row["n"]
        for row in days.report(LATENCY_ROLLUP)
        if (row["scope"], row["grain"], row["operator"]) == ("operator", "hour", "kept")
    }
    assert hours == {0: BEFORE, 72: BURST}, "an hour without records has no row"


def test_days_of_silence_alarm_only_slas_of_age(days: Days) -> None:
    silent = days.seen[IN_SILENCE]
    assert silent.verdicts == {
        "fresh": ("error", IN_SILENCE - (NOON + 5 * SECOND)),
        "fresh_if_busy": ("pass", ANY),
        "time_if_busy": ("pass", ANY),
        "in_time": ("unknown", None),
        "complete": ("pass", 0),
    }
    assert (silent.incidents, silent.cause) == ({"fresh"}, "source_quiet")
    busy = days.seen[AFTER_BURST]
    assert busy.verdicts == {
        "fresh": ("pass", AFTER_BURST - (DAYS_LATER + BURST - 1)),
        "fresh_if_busy": ("pass", AFTER_BURST - (DAYS_LATER + BURST - 1)),
        "time_if_busy": ("pass", ANY),
        # Of 5,000 latencies, five of each ms from 9,001 to 10,000, the one of rank ⌊0.99 · 4999⌋ = 4949.
        "in_time": ("warn", pytest.approx(9_990, rel=0.01)),
        "complete": ("pass", 0),
    }
    # No check was made between the two.
    assert (busy.incidents, busy.cause) == ({"fresh", "in_time", "checks_are_made"}, "nothing_wrong")
