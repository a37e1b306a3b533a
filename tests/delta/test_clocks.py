"""Rows and critical paths of drivers whose hosts' clocks differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from reference import critical_path as walks

import critical_path
from support.play import Play
from support.quiet_broker import Silence
from support.topologies import NEWEST_SENT, aggregate, join, operators, repartition, source, table, topology_of
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import CRITICAL_PATHS, WINDOW_PARTS
from tidemark.semantics.skew import Skew
from tidemark.storage.delta.report_tables import open_report
from tidemark.storage.fence import Fence
from tidemark.stream.wiring import build_engine
from tidemark.stream.write.measurement import Host

T = 1_770_033_600_000
TWO_DRIVERS = topology_of(
    {"window": "5 s"},
    events=source(sub_topology="near"),
    spread=repartition(key=["id"], columns=["v"]),
    sums=aggregate("spread", sub_topology="far", aggregates={"total": "sum(v)"}, select={"total": "total"}),
)
BEHIND_MS = 5_000
TRUTH = Skew(offset_ms=BEHIND_MS, error_ms=3)


class TwoHosts(Play):
    """The clock of the host `far` is 5 s behind.

    `skew` is what its driver believes.
    """

    skew: Skew | None = None

    def start(self, sub: str, *_: Any, **__: Any) -> None:
        stream = Stream(self.topology, self.topology.sub_topology(sub), Layout(self.home))
        behind_ms = BEHIND_MS if sub == "far" else 0
        host = Host(sub, lambda: self.skew if sub == "far" else Skew(offset_ms=1, error_ms=2))
        self._engines[sub] = build_engine(
            stream,
            self.broker,
            thread_id="t",
            epoch=1,
            slow_ms={},
            fence=Fence(clock=lambda: self.now_ms - behind_ms),
            host=host,
        )


def played(home: Path, skew: Skew | None) -> TwoHosts:
    """Plays two windows and closes the first.

    `near` closes it 7 s after T, and `far` a second later.
    """
    play = TwoHosts(TWO_DRIVERS, home)
    play.skew = skew
    play.batch([play.row("events", T, id="a", v=1)], at_ms=T + 1_000, sub="near")
    play.batch([play.row("events", T + 6_500, id="a", v=1)], at_ms=T + 7_000, sub="near")
    play.hop("far", at_ms=T + 8_000)
    return play


def path(play: Play, column: str) -> walks.Path:
    finished = [row for sub in ("near", "far") for row in play.rows("operator_windows", sub)]
    upstreams = play.topology.upstreams
    return walks.critical_path(upstreams, walks.measure(upstreams, {row["operator"]: row[column] for row in finished}))


def test_a_path_adjusted_by_host_skew_is_not_clamped(tmp_path: Path) -> None:
    play = played(tmp_path, TRUTH)
    right = "events (0 ms) → spread (0 ms) → spread_source (1,000 ms) → sums (0 ms) = 1,000 ms"
    assert str(path(play, "ewt_adjusted_at")) == right
    clamped = "events (0 ms) → spread (0 ms) → spread_source (0 ms, clamped_negative) → sums (0 ms) = 0 ms"
    assert str(path(play, "ewt_at")) == clamped


@pytest.mark.parametrize(
    ("skew", "skew_ms", "error_ms"),
    [
        (TRUTH, 5_000, 3),
        (Skew(offset_ms=-4, error_ms=3), -4, 3),
        (Skew(offset_ms=3, error_ms=3), 0, 3),  # no evidence that the clocks differ
        (None, None, None),
    ],
)
def test_a_row_names_its_clock_and_the_added_skew(
    tmp_path: Path, skew: Skew | None, skew_ms: int | None, error_ms: int | None
) -> None:
    rows = played(tmp_path, skew).rows("operator_windows", "far")
    told = {(row["host"], row["skew_ms"], row["skew_error_ms"]) for row in rows}
    assert told == {("far", skew_ms, error_ms)}
    assert {row["ewt_at"] for row in rows} == {T + 8_000 - BEHIND_MS}
    assert {row["ewt_adjusted_at"] for row in rows} == {T + 8_000 - BEHIND_MS + (skew_ms or 0)}


@pytest.mark.parametrize("unknown", ["near", "far"])
def test_parts_add_up_where_one_end_of_a_hop_knows_its_clock(tmp_path: Path, unknown: str) -> None:
    """Parts of a window's age equal its path, without adjusted clocks."""
    play = Play(TWO_DRIVERS, tmp_path)
    play.hosts = {sub: Host(sub, lambda sub=sub: None if sub == unknown else TRUTH) for sub in ("near", "far")}
    for second in (1.0, 6.5):
        at_ms = T + round(second * 1_000)
        play.batch([play.row("events", at_ms, id="a", v=1)], at_ms=at_ms + 500, sub="near")
        play.hop("far", at_ms=at_ms + 1_500)
    layout = Layout(play.home)
    critical_path.run(layout, play.topology, (), Interval(T, T + 3_600_000))
    parts, paths = (
        open_report(table, layout.report_table("play", table.name)).to_pyarrow_table().to_pylist()
        for table in (WINDOW_PARTS, CRITICAL_PATHS)
    )
    assert [(row["before_source_ms"], row["latency_ms"]) for row in paths] == [(2_000, 1_000)]
    assert {row["owner"]: row["ms"] for row in parts} == {
        "bound": 1_000,
        "next_record": 500,
        "producer": 500,
        "trigger": 1_000,
    }


RATES = operators(
    rates=source(topic="rates", fields="rid string, rate int, at bigint", timestamp="at"),
    rate=table("rates", key=["rid"]),
    rated=join("newest", "rate", on={"id": "rid"}),
)


class SlowBroker(Silence):
    """Each question to it takes a second."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self._play = play

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        self._play.now_ms += 1_000
        return super().offsets(source, partitions)


def test_time_that_a_source_spends_reading_is_its_work(tmp_path: Path) -> None:
    """Each source asks the broker for a second, `rates` after `events`."""
    play = Play('level = "trace"' + NEWEST_SENT + RATES, tmp_path, partitions=2)
    play.broker = SlowBroker(play)
    play.batch([{**play.row("events", T, id="a", v=1), "offset": 5}], at_ms=T + 10_000)
    spent = {row["operator"]: (row["finished_at"] - T, row["queued_ms"]) for row in play.rows("operator_batches")}
    assert spent == {
        "events": (11_000, 0), "newest": (12_000, 1_000),
        "board": (12_000, 0), "out": (12_000, 0), "rated": (12_000, 0),
    }  # fmt: skip


def test_a_row_has_the_start_of_its_batch_and_operator(tmp_path: Path) -> None:
    rows = played(tmp_path, None).rows("operator_windows", "near")
    assert {(row["batch_started_at"], row["started_at"]) for row in rows} == {(T + 7_000, T + 7_000)}


class OneSleeps(Play):
    """The sink `out` sleeps 1 s after its result is there.

    The result of `board` waits to be committed meanwhile.
    """

    def start(self, sub: str, *_: Any, **__: Any) -> None:
        stream = Stream(self.topology, self.topology.sub_topology(sub), Layout(self.home))
        self._engines[sub] = build_engine(stream, self.broker, thread_id="t", epoch=1, slow_ms={"out": 1_000})


def test_a_sink_behind_a_slow_sibling_is_queued_and_idle(tmp_path: Path) -> None:
    play = OneSleeps(NEWEST_SENT, tmp_path)
    play.batch([play.row("events", T, id="a", v=1)], at_ms=T)
    play.batch([play.row("events", T + 6_500, id="a", v=1)], at_ms=T + 7_000)
    rows = {row["operator"]: row for row in play.rows("operator_batches") if row["batch_id"] == 0}
    assert rows["board"]["queued_ms"] >= 1_000
    assert rows["out"]["queued_ms"] < rows["board"]["queued_ms"]
