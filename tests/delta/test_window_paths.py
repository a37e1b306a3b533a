"""Paths of windows that wait, stall, reopen or outlive a topology.

The drivers are real.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import critical_path as job
from support.play import Play, ms
from support.topologies import aggregate, join, operators, repartition, sink, source, table, topology_of
from tidemark.facts.report_rows import rows_in
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import CRITICAL_PATH_STEPS, CRITICAL_PATHS, Table
from tidemark.reports.documents.topology import topology_document
from tidemark.storage.delta.report_tables import open_report

FLOW = topology_of(
    {"window": "10 s"}, events=source(sub_topology="first"), by_id=repartition(key=["id"], columns=["v"])
)
OTHER = operators(other=source("id string, w int", topic="other", sub_topology="second"))
SUMS = operators(
    sums=aggregate("by_id", aggregates={"v": "sum(v)"}, sub_topology="second"), out=sink("sums", table="out")
)
JOINED = operators(
    now=table("by_id", columns=["v"]), joined=join("other", "now", on={"id": "id"}), out=sink("joined", table="out")
)


def found(play: Play, table: Table = CRITICAL_PATHS) -> list[dict[str, Any]]:
    """Returns a report's rows by window; instants in seconds of the play."""
    path = Layout(play.home).report_table("play", table.name)
    rows = rows_in(open_report(table, path)).sort("window_end").to_dicts()
    return [{**row, "window_start": (row["window_start"].timestamp() * 1000 - ms(0)) / 1000} for row in rows]


def paths(play: Play, until_s: float = 3_600, since_s: float = 0) -> dict[float, str | None]:
    """Recomputes the paths of an interval, by window start.

    The interval is that of the windows' ends.
    """
    job.run(Layout(play.home), play.topology, (), Interval(ms(since_s), ms(until_s)))
    return {row["window_start"]: row["path"] for row in found(play)}


def leaves(play: Play, start_s: float) -> dict[str, dict[str, Any]]:
    """Returns the leaves of the window that starts at *start_s*, by name."""
    (of_window,) = (row["leaves"] for row in found(play) if row["window_start"] == start_s)
    return {leaf["leaf"]: leaf for leaf in of_window}


def first(play: Play, *times: float, at_s: float, source: str = "events") -> None:
    sub = next(s.name for s in play.topology.sub_topologies if source in {o.name for o in s.operators})
    play.batch([play.row(source, ms(s), id="a") for s in times], at_ms=ms(at_s), sub=sub)


def test_a_join_does_not_wait_for_a_table_read_over_a_hop(tmp_path: Path) -> None:
    play = Play(FLOW + OTHER + JOINED, tmp_path)
    first(play, 1, at_s=2)
    play.hop("second", at_ms=ms(3))
    for at_s in (5, 12, 25):
        first(play, at_s, source="other", at_s=at_s + 0.5)
    assert paths(play) == {
        0.0: "other (0 ms) → joined (0 ms) → out (0 ms) = 0 ms",
        10.0: "other (0 ms) → joined (0 ms) → out (0 ms) = 0 ms",
    }
    steps = {row["operator"]: row for row in found(play, CRITICAL_PATH_STEPS) if row["window_start"] == 0}
    assert (steps["joined"]["slowest_upstream"], steps["by_id_source"]["state"]) == ("other", "input")
    assert leaves(play, 0).keys() == {"out"}


def test_a_window_in_which_one_flow_had_no_record_has_a_path(tmp_path: Path) -> None:
    play = Play(FLOW + SUMS + OTHER.replace("second", "third") + SEEN, tmp_path)
    first(play, 1, 12, at_s=13)
    first(play, 1, source="other", at_s=14)
    first(play, 31, at_s=32)
    play.hop("second", at_ms=ms(33))
    assert paths(play)[10.0] is None  # `other` may still have records of it
    first(play, 32, source="other", at_s=35)
    assert paths(play) == {
        0.0: "events (0 ms) → by_id (0 ms) → by_id_source (20,000 ms) → sums (0 ms) → out (0 ms) = 20,000 ms",
        10.0: "events (0 ms) → by_id (0 ms) → by_id_source (1,000 ms) → sums (0 ms) → out (0 ms) = 1,000 ms",
    }
    seen = leaves(play, 10)["seen"]
    assert (seen["before_source_ms"], seen["latency_ms"]) == (15_000, 0)


UNITED = operators(
    other_by_id=repartition("other", key=["id"], columns=["v"]),
    both={"kind": "union", "inputs": ["by_id", "other_by_id"], "sub_topology": "third"},
    out=sink("both", table="out"),
)


def united(tmp_path: Path) -> Play:
    """Two flows, each with a driver of its own, into one driver."""
    return Play(
        FLOW + OTHER.replace("w int", "v int").replace("bound", 'idle_after = "10 s"\nbound') + UNITED, tmp_path
    )


@pytest.mark.parametrize(("late", "early"), [("events", "other"), ("other", "events")])
def test_a_union_waits_for_the_last_flow(tmp_path: Path, late: str, early: str) -> None:
    play = united(tmp_path)
    for topic in ("events", "other"):
        first(play, 1, source=topic, at_s=2)
    first(play, 12, source=early, at_s=13)
    first(play, 12, source=late, at_s=33)
    play.hop("third", at_ms=ms(35))
    by = {"events": "by_id", "other": "other_by_id"}[late]
    assert paths(play) == {
        0.0: f"{late} (0 ms) → {by} (0 ms) → {by}_source (2,000 ms) → both (0 ms) → out (0 ms) = 2,000 ms"
    }
    (leaf,) = leaves(play, 0).values()
    assert (leaf["source"], leaf["before_source_ms"]) == (late, 23_000)


def test_a_union_does_not_wait_for_an_idle_flow(tmp_path: Path) -> None:
    play = united(tmp_path)
    for topic in ("events", "other"):
        first(play, 1, source=topic, at_s=2)
    play.hop("third", at_ms=ms(3))
    play.batch(at_ms=ms(13), sub="second")  # `other` is idle now
    first(play, 12, at_s=13)
    first(play, 14, at_s=15)
    play.hop("third", at_ms=ms(16))
    path = "events (0 ms) → by_id (0 ms) → by_id_source (3,000 ms) → both (0 ms) → out (0 ms) = 3,000 ms"
    assert paths(play) == {0.0: path}
    # What `other` finishes later held nothing up.
    first(play, 41, source="other", at_s=42)
    play.hop("third", at_ms=ms(43))
    assert paths(play)[0.0] == path


SEEN = operators(seen=sink("other", table="seen"))


def test_a_stalled_driver_is_on_the_path(tmp_path: Path) -> None:
    play = Play(FLOW + SUMS + COPY, tmp_path)
    first(play, 1, at_s=2)
    first(play, 12, at_s=13)
    play.hop("second", at_ms=ms(14))
    for at_s in range(22, 73, 10):
        first(play, at_s, at_s=at_s + 1)
    topology, play.topology = play.topology, replace(play.topology, trigger_ms=25_000)
    assert paths(play)[10.0] is None, "within two triggers a driver is not stuck"
    play.topology = topology
    told = paths(play)
    # by_id finished the window that ends at 20 s at 23 s, and its reader has not: the newest fact is of 73 s.
    assert told[10.0] == (
        "events (0 ms) → by_id (0 ms) → by_id_source (50,000 ms, stuck) → sums (no_window_yet) → out (no_window_yet)"
        " ≥ 50,000 ms"
    )
    last = {name: leaf["latency_ms"] for name, leaf in leaves(play, 10).items()}
    assert last == {"copy": 0, "out": 50_000}
    play.hop("second", at_ms=ms(90))
    assert "stuck" not in (paths(play)[10.0] or "stuck")


COPY = operators(copy=sink("events", table="copy"))


def test_a_reader_is_waited_for_that_was_only_just_left_behind(tmp_path: Path) -> None:
    """In one batch `events` finishes windows of 50 s of record time, for which no reader has had a moment yet."""
    play = Play(FLOW + SUMS + COPY, tmp_path)
    first(play, 1, 12, 23, 34, 45, 56, at_s=57)
    assert paths(play) == dict.fromkeys((0.0, 10.0, 20.0, 30.0, 40.0))


def test_late_records_that_are_allowed_make_no_window_late(tmp_path: Path) -> None:
    play = Play(FLOW.replace('bound = "1 s"', 'bound = "1 s"\nallowed_lateness = "10 min"') + SUMS, tmp_path)
    first(play, 1, at_s=2)
    first(play, 32, at_s=33)
    play.hop("second", at_ms=ms(34))
    first(play, 5, 15, at_s=153)
    play.hop("second", at_ms=ms(154))
    paths(play)
    ages = {row["window_start"]: (row["before_source_ms"], row["latency_ms"]) for row in found(play)}
    assert ages == {0.0: (23_000, 1_000)}


def test_windows_are_measured_by_the_topology_they_ran_under(tmp_path: Path) -> None:
    play = Play(FLOW + SUMS, tmp_path)
    ran(play, 2, 32)
    before = paths(play)
    assert set(before) == {0.0}
    grown = Play(FLOW + SUMS + COPY, tmp_path)
    grown._offsets, grown._batches = play._offsets, play._batches
    assert paths(grown) == before
    ran(grown, 42, 62)
    assert {start: path is not None for start, path in paths(grown).items()} == {0.0: True, 30.0: True, 40.0: True}
    assert {*leaves(grown, 40)} == {"copy", "out"}
    again = Play(FLOW + SUMS, tmp_path)
    again._offsets, again._batches = play._offsets, play._batches
    assert paths(again) == paths(grown)
    assert {*leaves(again, 40)} == {"copy", "out"}


def test_a_removed_driver_delays_no_window(tmp_path: Path) -> None:
    play = Play(FLOW + SUMS + OTHER.replace("second", "third") + SEEN, tmp_path)
    for at_s in (1, 12, 23):
        first(play, at_s, source="other", at_s=at_s + 1)
        ran(play, at_s)
    left = Play(FLOW + SUMS, tmp_path)
    left._offsets, left._batches = play._offsets, play._batches
    ran(left, 34)
    told = paths(left)
    assert {start: path is not None for start, path in told.items()} == {0.0: True, 10.0: True, 20.0: True}
    assert {*leaves(left, 20)} == {"out"}


def ran(play: Play, *times: float) -> None:
    for at_s in times:
        first(play, at_s, at_s=at_s + 1)
        play.hop("second", at_ms=ms(at_s + 2))


def test_a_window_finished_after_its_report_is_reported_then(tmp_path: Path) -> None:
    play = Play(FLOW + SUMS, tmp_path)
    first(play, 2, at_s=3)
    first(play, 12, at_s=13)
    assert paths(play, until_s=3_600) == {0.0: None}
    play.hop("second", at_ms=ms(40_000))
    assert paths(play, since_s=36_000, until_s=43_200) == {
        0.0: "events (0 ms) → by_id (0 ms) → by_id_source (39,987,000 ms) → sums (0 ms) → out (0 ms) = 39,987,000 ms"
    }


def test_a_past_topology_has_only_what_was_known_then(tmp_path: Path) -> None:
    play = Play(FLOW + SUMS, tmp_path)
    ran(play, 2, 32)
    grown = Play(FLOW + SUMS + COPY, tmp_path)
    grown._offsets, grown._batches = play._offsets, play._batches
    ran(grown, 42, 62)
    first(grown, 63, at_s=64)
    paths(grown)

    def told(topology: Play, at_s: float) -> dict[str, Any]:
        return topology_document(tmp_path, topology.topology, at_ms=ms(at_s))

    then, now = told(grown, 40), told(grown, 70)
    assert "copy" not in {row["operator"] for row in then["operators"]}
    assert "copy" in {row["operator"] for row in now["operators"]}
    assert (then["latency_ms"], then["finished_ago_ms"]) == (1_000, 6_000)  # by 34 s: its window ended at 10 s
    assert told(grown, 33.5)["critical_path"] == []
    unread = {row["operator"]: row["unread_records"] for row in now["operators"]}
    unread_then = {row["operator"]: row["unread_records"] for row in told(grown, 63.5)["operators"]}
    assert (unread["by_id_source"], unread_then["by_id_source"]) == (1, 1)
