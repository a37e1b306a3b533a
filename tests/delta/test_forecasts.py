"""Expected breaks of SLAs, from tables to alerts that page no one."""

from __future__ import annotations

import pytest

from support.report_warehouse import TestWarehouse
from support.topologies import source, table
from tidemark.model.channel_spec import parse as channels
from tidemark.model.project.layout import Layout
from tidemark.model.sla_spec import Severity, parse
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, LATENCY_BUCKETS, OUTCOMES, WATERMARKS
from tidemark.model.topology import parse as topology_from
from tidemark.query.sql import Warehouse
from tidemark.semantics.buckets import bucket_of
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.alert import alert_of
from tidemark.sla.incidents.alert_text import alert_texts
from tidemark.sla.incidents.changes import changes
from tidemark.sla.incidents.grouping import alert_changes
from tidemark.sla.measures.forecasts import with_forecasts
from tidemark.sla.measures.status import Status

NOW, MINUTE = 1_767_268_800_000, 60_000  # 2026-01-01T12:00Z
TOPOLOGY = topology_from(
    {
        "name": "t",
        "operators": {
            "events": source("id string", sub_topology="s"),
            "newest": table(),
            "board": {"kind": "sink", "input": "newest", "table": "board"},
        },
    },
    file="t.toml",
)
SLA = {"subject": "board", "measure": "latency_p99", "warn_after": "30 s", "owner": "desk"}


@pytest.fixture
def warehouse(tmp_path):
    return TestWarehouse(Layout(tmp_path))


def specs(**keys):
    return parse({"t": {"in_time": {**SLA, **keys}}}, TOPOLOGY, file="slas.toml")


def beats(warehouse, **columns):
    """Heartbeats of four minutes of a driver that runs for an hour."""
    running = {"state": "running", "epoch": 1, "since": NOW - 3_600_000, **columns}
    warehouse.write(HEARTBEATS, [{**running, "at": NOW - age_s * 1_000} for age_s in range(0, 240, 15)])


def expected(warehouse, spec):
    tables = Warehouse(warehouse.layout.warehouse)
    (status,) = with_forecasts([Status(spec.at(NOW), Verdict.PASS, 1)], [spec], TOPOLOGY, tables, at_ms=NOW)
    return status.expected


def rising(warehouse):
    """Latencies of 1 s to 11 s, a second more each minute."""
    rows = [{"bucket": bucket_of((11 - age) * 1_000), "finished_at": NOW - age * MINUTE - 1} for age in range(11)]
    warehouse.write(LATENCY_BUCKETS, [{"operator": "board", "n": 5, **row} for row in rows])


def test_growing_latency_breaks_when_the_missing_time_is_over(warehouse):
    rising(warehouse)
    beats(warehouse)
    found = expected(warehouse, *specs())
    # The newest three are 9, 10 and 11 s, so 20 s are missing; buckets are exact to a hundredth.
    assert found.at_ms == pytest.approx(NOW + 20 * MINUTE, abs=MINUTE)
    assert found.because.startswith("latency_p99 of board breaks in about 20 min, at 2026-01-01T12:")
    assert found.because.endswith(" a minute for 10 min")  # from the first of eleven minutes to the last


@pytest.mark.parametrize(
    ("hours", "minutes"),
    [
        # 9, 10 and 11 s are the newest: 30 s are reached after 20 minutes, 24 s after 14, 45 s after 35.
        ([("12:00", "12:17", "1 h"), ("12:17", "13:00", "24 s")], 17),  # above the limit when that begins
        ([("12:00", "12:10", "24 s"), ("12:10", "13:00", "1 h")], None),
        ([("12:10", "12:30", "24 s")], 14),
        ([("12:15", "12:16", "45 s")], 20),
        ([("12:15", "12:45", "45 s")], None),
    ],
)
def test_a_break_is_of_the_limit_of_its_own_hour(warehouse, hours, minutes):
    rising(warehouse)
    beats(warehouse)
    tables = [{"zone": "UTC", "from": start, "to": end, "warn_after": limit} for start, end, limit in hours]
    found = expected(warehouse, *specs(hours=tables))
    assert (found and round((found.at_ms - NOW) / MINUTE)) == minutes


@pytest.mark.parametrize(
    "beat",
    [
        {"state": "drained"},
        {"reason": "waits for Kafka"},
        {"batch_started_at": NOW - 600_000},
        {"since": NOW - 5 * MINUTE},  # five measurements since are too few
        {"arrival_per_s": 90.0, "working_per_s": 100.0},  # it catches up
    ],
)
def test_a_driver_that_does_not_work_on_foresees_nothing(warehouse, beat):
    rising(warehouse)
    beats(warehouse, **beat)
    assert expected(warehouse, *specs()) is None


def test_nothing_is_foreseen_without_heartbeats(warehouse):
    rising(warehouse)
    assert expected(warehouse, *specs()) is None


@pytest.mark.parametrize(
    ("measure", "subject"), [("staleness", "board"), ("watermark_lag", "events"), ("watermark_lag", "s")]
)
def test_a_stream_that_falls_behind_names_its_rates(warehouse, measure, subject):
    beats(warehouse, arrival_per_s=110.0, working_per_s=100.0)
    ends = [NOW - age * MINUTE - 1 for age in range(10)]
    batches = list(enumerate(ends[::-1]))
    warehouse.write(BATCHES, [{"batch_id": n, "finished_at": at, "records_in": 9} for n, at in batches])
    warehouse.write(OUTCOMES, [{"batch_id": n, "operator": "board", "newest_ms": at - 30_000} for n, at in batches])
    marks = [
        {"batch_id": n, "source": name, "watermark": at - 30_000} for n, at in batches for name in ("events", None)
    ]
    warehouse.write(WATERMARKS, marks)
    found = expected(warehouse, *specs(subject=subject, measure=measure, warn_after="2 min"))
    # A tenth more comes than is read, which is 6 s a minute; 90 s are missing.
    assert found.at_ms == NOW + 15 * MINUTE
    assert found.because == (
        f"{measure} of {subject} breaks in about 15 min, at 2026-01-01T12:15:00.000Z, because 110 records/s come into "
        "s, which reads 100: it grows by 6 s a minute"
    )


def result(minute, verdict="pass", because=None, **columns):
    breaks_ms = None if because is None else NOW + (minute + 12) * MINUTE
    names = ("subject", "measure", "said", "culprit", "held_by", "budget_left", "owner", "runbook", "quiet")
    return dict.fromkeys(names) | {
        "topology": "t", "sla": "in_time", "run_id": f"r{minute}", "checked_at": NOW + minute * MINUTE,
        "verdict": verdict, "severity": "critical", "observed_ms": 1.0, "breaks_at": breaks_ms,
        "breaks_because": because, **columns,
    }  # fmt: skip


def test_an_expected_break_is_one_incident_until_it_is_over():
    results = [result(0), result(1, because="it grows"), result(2, because="it still grows")]
    promised = specs()
    rows = changes(promised, results, [], at_ms=NOW + 2 * MINUTE, gap_ms=20 * MINUTE)
    assert [(row["incident"], row["change"], row["severity"], row["verdict"], row["said"]) for row in rows] == [
        ("in_time-forecast-20260101T120100", "opened", "forecast", "pass", "it grows")
    ]
    assert changes(promised, results, rows, at_ms=NOW + 2 * MINUTE, gap_ms=20 * MINUTE) == []

    held = [*results, result(21), result(22)]
    # Nothing was foreseen for 20 minutes after minute 2.
    (end,) = changes(promised, held, rows, at_ms=NOW + 22 * MINUTE, gap_ms=30 * MINUTE)
    assert (end["change"], end["at"], end["severity"]) == ("resolved", NOW + 22 * MINUTE, "forecast")

    broken = [*results, result(3, "warn")]
    opened, ended = changes(promised, broken, rows, at_ms=NOW + 3 * MINUTE, gap_ms=30 * MINUTE)
    assert (opened["incident"], opened["severity"]) == ("in_time-20260101T120300", "critical")
    assert (ended["incident"], ended["change"], ended["verdict"]) == (rows[0]["incident"], "resolved", "warn")


def test_no_break_is_announced_for_a_time_without_a_promise():
    """The break is expected twelve minutes after the check: at 12:13."""
    found = [result(1, because="it grows")]
    for keys in (
        {"maintenance_windows": ["daily 12:10-12:20"]},
        {"calendar": {"zone": "UTC", "from": "07:00", "to": "12:13"}},
    ):
        assert changes(specs(**keys), found, [], at_ms=NOW + MINUTE, gap_ms=20 * MINUTE) == []
    by_hour = specs(hours=[{"zone": "UTC", "from": "12:13", "to": "12:14", "warn_after": "24 s"}])
    (opened,) = changes(by_hour, found, [], at_ms=NOW + MINUTE, gap_ms=20 * MINUTE)
    assert opened["threshold"] == 24_000  # the limit of the break, and not that of the check
    later = specs(maintenance_windows=["daily 12:14-12:20"])
    assert [row["change"] for row in changes(later, found, [], at_ms=NOW + MINUTE, gap_ms=20 * MINUTE)] == ["opened"]


@pytest.mark.parametrize(
    ("quiet", "said"),
    [("maintenance", "maintenance has begun"), ("calendar", "the hours of the calendar have ended")],
)
def test_a_forecast_ends_when_nothing_is_promised_any_more(quiet, said):
    results = [
        result(1, because="it grows"),
        result(5, "error", quiet=quiet),
        result(6, because="it grows", quiet=quiet),
    ]
    rows = changes(specs(), results, [], at_ms=NOW + 6 * MINUTE, gap_ms=20 * MINUTE)
    assert [(row["change"], row["at"], row["verdict"], row["said"]) for row in rows] == [
        ("opened", NOW + MINUTE, "pass", "it grows"),
        ("resolved", NOW + 5 * MINUTE, "unknown", said),
    ]
    ended = alert_of({**rows[1], "alert": rows[1]["incident"]}, link="x")
    text = alert_texts(ended, notified_ms=NOW + 5 * MINUTE)["text"]
    assert text.splitlines()[:2] == ["[forecast] t: in_time is no longer forecast", said]
    assert changes(specs(), results, rows, at_ms=NOW + 6 * MINUTE, gap_ms=20 * MINUTE) == []


def test_a_forecast_is_an_alert_for_those_who_ask_for_it():
    incidents = changes(specs(), [result(1, because="it grows")], [], at_ms=NOW + MINUTE, gap_ms=MINUTE)
    (alert,) = alert_changes(TOPOLOGY, incidents, [], [], at_ms=NOW + MINUTE, since_ms=NOW)
    assert (alert["alert"], alert["severity"], alert["cause"]) == (incidents[0]["incident"], "forecast", None)
    text = alert_texts(alert_of({**alert, "incident": alert["alert"]}, link="x"), notified_ms=NOW + MINUTE)
    assert text["text"].splitlines()[:2] == ["[forecast] t: in_time is expected to break", "it grows"]
    pager, chat = channels(
        {"pager": {"kind": "pagerduty"}, "chat": {"kind": "slack", "severities": ["warning", Severity.FORECAST]}},
        file="channels.toml",
    )
    assert (pager.tells(alert), chat.tells(alert)) == (False, True)
