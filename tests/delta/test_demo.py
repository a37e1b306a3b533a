"""Conditions that the demo waits for, and findings that it prints."""

from __future__ import annotations

from pathlib import Path

from support.report_warehouse import TestWarehouse
from tidemark.cli.local.demo import SENT, Demo, DemoSettings
from tidemark.cli.local.story import Story
from tidemark.local.conductor import Conductor
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import (
    ALERTS,
    BATCHES,
    COMPLETENESS,
    DEAD_LETTERS,
    DELIVERIES,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    PUBLISHED_INTERVALS,
    SLA_RESULTS,
)
from tidemark.query.sql import Warehouse

FLIGHTS = DemoSettings(first="2013-06-27", until="2013-06-28", speed=1, keep=False)


def test_streams_are_at_rest_when_every_source_is_idle(tmp_path: Path) -> None:
    warehouse, demo = TestWarehouse(Layout(tmp_path / "warehouse")), Demo(Conductor.of(tmp_path, print), FLIGHTS)

    def at(batch: int, **activities: str) -> bool:
        rows = [{"batch_id": batch, "source": source, "activity": said} for source, said in activities.items()]
        warehouse.write(
            PARTITION_BATCHES, [*rows, {"batch_id": batch, "source": "events", "partition": 0, "activity": "active"}]
        )
        return demo._is_at_rest()

    assert not at(1, events="active", by_id_source="idle")
    assert not at(2, events="idle", by_id_source="active")
    assert at(3, by_id_source="idle")
    assert not at(4, events="active")


def test_an_interval_is_counted_when_a_run_that_its_newest_event_has_started_has_succeeded(tmp_path: Path) -> None:
    warehouse, demo = TestWarehouse(Layout(tmp_path / "warehouse")), Demo(Conductor.of(tmp_path, print), FLIGHTS)
    of_board = {"topology": "flights", "sub_topology": "status", "table": "flight_board"}
    key, start = utc(60_000).isoformat(), {"interval_start": 60_000, "interval_end": 75_000}
    assert demo.uncounted({}) == []
    # The second row reopens the interval before the first one was published.
    complete = [{"batch_id": 1}, {"batch_id": 2, "reopened_at": 80_000, "cause": "late_record"}]
    warehouse.write(
        COMPLETENESS,
        [{**of_board, "operator": "flight_board", **start, **row} for row in complete],
        "status",
        "flights",
    )
    assert demo.uncounted({}) == [key]
    row = {**of_board, "interval_start": 60_000, "reopenings": 1, "published_at": 90_000}
    warehouse.write(PUBLISHED_INTERVALS, [row, {**row, "table": "other", "published_at": 95_000}], topology="flights")
    assert demo.uncounted({}) == demo.uncounted({key: utc(89_999)}) == [key]
    assert demo.uncounted({key: utc(90_000)}) == []


def test_the_run_that_sent_the_alert_of_a_slow_operator_is_found(warehouse: TestWarehouse) -> None:
    alert = {"alert": "slow", "change": "opened", "cause": "operator", "cause_operator": "totals"}
    others = [
        {"alert": "other", "cause_operator": "board"},
        {"alert": "dead", "cause": "driver_dead"},
        {"alert": "late"},
    ]
    rows = [{**alert, "changed_at": 9, "incidents": ["quick-1"]}, {**alert, "change": "escalated", "changed_at": 8}]
    warehouse.write(ALERTS, [*rows, *({**alert, "changed_at": 1, **other} for other in others)])
    sent = {"alert": "slow", "change": "opened", "channel": "log", "run_id": "scheduled"}
    elsewhere = [{"channel": "desk", "run_id": "desk"}, {"alert": "late", "run_id": "deadline"}]
    elsewhere += [{"alert": "other"}, {"alert": "dead"}, {"change": "escalated"}]
    warehouse.write(DELIVERIES, [sent, *({**sent, **other} for other in elsewhere)])
    warehouse.write(SLA_RESULTS, [{"sla": "quick", "verdict": "error", "run_id": "scheduled"}])
    assert Warehouse(warehouse.layout.warehouse).ask(SENT, ["totals"]).rows == (("scheduled", "quick-1"),)


def test_a_finding_that_cannot_be_read_is_told_once_and_the_others_are_still_told(warehouse: TestWarehouse) -> None:
    unreadable = ("batches", "SELECT time_bucket(INTERVAL '1 month 1 day', DATE '2020-01-01') FROM batches")
    story = Story(warehouse.layout.warehouse, [unreadable, ("batches", "SELECT 'second' FROM batches")])
    warehouse.write(BATCHES, [{"batch_id": 1}])
    first, second = story.new()
    assert first.startswith("nothing can be said of batches: DuckDB ")
    assert unreadable[1] in first
    assert (second, list(story.new())) == ("second", [])


def test_each_finding_is_printed_once_when_its_table_has_it(warehouse: TestWarehouse) -> None:
    story = Story(warehouse.layout.warehouse)
    assert list(story.new()) == []
    warehouse.write(
        OPERATOR_BATCHES,
        [
            {"batch_id": 1, "operator": "board", "kind": "sink", "n": 4, "sum_ms": 4_000, "finished_at": 2_000},
            {"batch_id": 2, "operator": "alerts", "kind": "sink", "n": 1, "sum_ms": 900, "finished_at": 3_000},
        ],
    )
    warehouse.write(OPERATOR_BATCHES, [{"batch_id": 1, "operator": "newest", "records_in": 120, "suppressed": 99}])
    assert list(story.new()) == [
        "first latency: 1,000 ms from the time of a record until board had its result, on average of its first batch"
    ]
    warehouse.write(OPERATOR_BATCHES, [{"batch_id": 2, "operator": "newest", "records_in": 5, "suppressed": 1}])
    bad = {
        "kind": "quarantined",
        "batch_id": 2,
        "topic": "events",
        "partition": 2,
        "offset": 17,
        "reason": "malformed_json",
    }
    warehouse.write(DEAD_LETTERS, [bad, {**bad, "batch_id": 3, "offset": 18, "reason": "invalid_utf8"}])
    warehouse.write(
        PARTITION_BATCHES,
        [
            # Of a table that is joined no watermark waits.
            {"batch_id": 1, "source": "prices", "partition": 0, "activity": "idle", "newest_timestamp": 9},
            {"batch_id": 2, "blocked_by": "events"},
            {"batch_id": 3, "source": "events", "partition": 1, "activity": "idle", "newest_timestamp": 9},
        ],
    )
    assert list(story.new()) == [
        "emit on change: newest has left 100 of 125 updates unsent, which changed nothing",
        "quarantine: a bad record, malformed_json, at offset 17 of events partition 2 is set aside",
        "watermark: events partition 1 is idle, so the watermark does not wait for it until its next record",
    ]
    day = {"interval_start": 1_372_305_600_000, "interval_end": 1_372_392_000_000, "waited_ms": 0}
    warehouse.write(COMPLETENESS, [{"batch_id": 4, "operator": "board", "table": "board", **day, "by_idleness": False}])
    assert list(story.new()) == [
        "complete: the watermark has passed the interval from 2013-06-27T04:00:00Z to 2013-06-28T04:00:00Z: "
        "complete_flights will run for it"
    ]
    again = {"batch_id": 5, "reopened_at": 9, "cause": "late_record", "by_idleness": False}
    warehouse.write(COMPLETENESS, [{"operator": "board", "table": "board", **day, **again}])
    assert list(story.new()) == [
        "reopened: a record came to the interval from 2013-06-27T04:00:00Z to 2013-06-28T04:00:00Z after the "
        "watermark had passed it, so the bound of its source is too short for it; results are not final while late "
        "records are accepted"
    ]
    warehouse.write(
        SLA_RESULTS,
        [
            {"sla": sla, "verdict": verdict, "checked_at": 45_296_000}
            for sla, verdict in (("a", "pass"), ("b", "error"), ("c", "unknown"))
        ],
    )
    assert list(story.new()) == [
        "SLAs: the first check by Airflow, for 12:34:56 UTC, has found 1 of 3 broken, and could not measure 1 yet"
    ]
    assert story.left == []
