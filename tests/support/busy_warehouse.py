"""A warehouse of `flights` with faults, written by hand, and one without.

The stream `carriers` failed three minutes ago, and `status` catches up; partition 2 of `flight_events` fell silent ten
minutes ago. Facts go on for twelve minutes, so that the scene stays while a test looks at it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.tables.catalog import (
    ALERTS,
    BATCHES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    EXPECTATION_RESULTS,
    HEARTBEATS,
    INCIDENTS,
    LATENCY_MINUTES,
    LATENCY_ROLLUP,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    PARTITION_BATCHES,
    SLA_RESULTS,
    Table,
)
from tidemark.model.topology import Topology, load
from tidemark.query.sql import Warehouse
from tidemark.reports.pages.interval_page import write_pages
from tidemark.semantics.buckets import bucket_of

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
EVERY_MS = 4_000
"""From batch to batch."""
GOES_ON_MS, WENT_ON_MS = 12 * MINUTE_MS, 20 * MINUTE_MS
FAILED_MS, SILENT_MS = 3 * MINUTE_MS, 10 * MINUTE_MS
WINDOW_MS = 5_000
FLIGHTS = CHECKOUT / "jobs" / "topologies" / "flights.toml"
ON_PATH = (
    "flight_events", "flight_updates", "flight_status", "flight_weather", "by_carrier", "by_carrier_source",
    "carrier_state", "carrier_delays",
)  # fmt: skip
"""The critical path of the newest window."""
RECOVERS, BROKE_BACK = "board_is_fresh", 3
"""An SLA that broke that many checks ago and holds again, while its incident is still open."""
RECOVERS_SAID = "staleness of flight_board is 2 min 30 s; warning from 1 min on, error from 2 min on"
INCIDENT = "delays_in_time-20260101T120000"
"""The incident of the open alert that is listed first."""
DISORDER = [{"bucket": bucket_of(behind_ms), "n": n} for behind_ms, n in ((50, 90_000), (900, 9_000), (4_000, 900))]
"""By how much the records of flight_events were behind."""
BEAT = {"state": "running", "epoch": 1, "batch_id": 1, "host": "worker-1"}
Rows = dict[tuple[str, Table], list[dict[str, Any]]]
"""Rows by stream and table; of reports the stream is empty."""


def busy(warehouse: Path, now_ms: int, topology: Topology | None = None) -> Path:
    """Writes the scene at *now_ms* into *warehouse*, and yesterday's report.

    Its *topology* is `flights` under any name.
    """
    topology, layout = topology or load(FLIGHTS), Layout(warehouse)
    rows: Rows = defaultdict(list)
    _streams(rows, topology, now_ms)
    _rollups(rows, now_ms)
    _paths(rows, now_ms)
    _checks(rows, now_ms)
    _write(rows, topology, layout)
    yesterday = Interval(now_ms - DAY_MS, now_ms - DAY_MS + 1).widened(Grain.DAY)
    write_pages(Warehouse(warehouse, topology=topology.name), topology, yesterday, layout.report_pages(topology.name))
    return warehouse


def healthy(warehouse: Path, now_ms: int, topology: Topology) -> Path:
    """Writes the same streams without their faults, and with one SLA that holds, into *warehouse*."""
    rows: Rows = defaultdict(list)
    for batch_id, at_ms in enumerate(range(now_ms - WENT_ON_MS, now_ms + GOES_ON_MS, EVERY_MS)):
        for sub in topology.sub_topologies:
            _batch(rows, topology, sub.name, batch_id, at_ms, set_aside=0)
            rows[sub.name, HEARTBEATS].append({**BEAT, "beat_at": at_ms, "batch_id": batch_id})
    fresh = {"sla": RECOVERS, "subject": "flight_board", "measure": "staleness", "verdict": "pass", "message": "fresh"}
    for at_ms in range(now_ms - WENT_ON_MS, now_ms + GOES_ON_MS, MINUTE_MS):
        rows["", SLA_RESULTS].append({**fresh, "checked_at": at_ms, "run_id": f"check-{at_ms}"})
    _write(rows, topology, Layout(warehouse))
    return warehouse


def _write(rows: Rows, topology: Topology, layout: Layout) -> None:
    name = topology.name
    for (stream, table), of_table in rows.items():
        path = layout.stream_table(name, stream, table.name) if stream else layout.report_table(name, table.name)
        same = {"topology": name} | ({"sub_topology": stream} if stream else {})
        write_deltalake(path, rows_of(table, [same | row for row in of_table]))


def _streams(rows: Rows, topology: Topology, now_ms: int) -> None:
    first_ms = now_ms - WENT_ON_MS
    for batch_id, at_ms in enumerate(range(first_ms, now_ms + GOES_ON_MS, EVERY_MS)):
        for sub in topology.sub_topologies:
            if sub.name == "carriers" and at_ms > now_ms - FAILED_MS:
                continue
            _batch(rows, topology, sub.name, batch_id, at_ms, silent_from_ms=now_ms - SILENT_MS, unread=6_200)
    behind = {"records_behind": 12_400, "arrival_per_s": 180.0, "working_per_s": 310.0, "eta_at": now_ms + 95_000}
    for at_ms in range(first_ms, now_ms + GOES_ON_MS, 15_000):
        rows["status", HEARTBEATS].append({**BEAT, **behind, "beat_at": at_ms})
    rows["carriers", HEARTBEATS].append({**BEAT, "beat_at": first_ms})
    failed = {"state": "failed", "reason": "carrier_state: [Errno 28] No space left on device"}
    rows["carriers", HEARTBEATS].append({**BEAT, **failed, "beat_at": now_ms - FAILED_MS})


def _batch(
    rows: Rows,
    topology: Topology,
    sub: str,
    batch_id: int,
    at_ms: int,
    *,
    silent_from_ms: float = math.inf,
    unread: int = 0,
    set_aside: int = 3,
) -> None:
    """Adds a batch of *sub*, finished at *at_ms*.

    Partition 2 of flight_events is silent after *silent_from_ms*, and each batch leaves so many records *unread*. Each
    operator has *set_aside* so many: one that is unusable, and the others late.
    """
    watermark_ms = at_ms - 8_000
    reads = {"status": ("flight_events", "weather"), "carriers": ("by_carrier_source",)}[sub]
    records_in = 0
    for source in reads:
        for partition in range(3 if source == "flight_events" else 1):
            silent = source == "flight_events" and partition == 2 and at_ms > silent_from_ms
            n = 0 if silent else 900
            offsets = {"from_offset": batch_id * 900, "until_offset": batch_id * 900 + n}
            left = unread if source == "flight_events" and not silent else 0
            offsets["latest_offset"] = batch_id * 900 + n + left
            records_in += 900
            mark_ms = round(silent_from_ms) - 8_000 if silent else watermark_ms
            mark = {"batch_id": batch_id, "source": source, "decided_at": at_ms - 900, "watermark": mark_ms}
            mark |= {"newest_timestamp": mark_ms + 3_000, "activity": "idle" if silent else "active"}
            rows[sub, PARTITION_BATCHES].append({**mark, **offsets, "partition": partition})
        rows[sub, PARTITION_BATCHES].append({**mark, "watermark": watermark_ms, "partition": None})
    instants = {"decided_at": at_ms - 900, "started_at": at_ms - 900, "finished_at": at_ms, "duration_ms": 900}
    rows[sub, BATCHES].append(
        {
            "batch_id": batch_id, "epoch": 1, "level": "info", **instants, "records_in": records_in,
            "watermark": watermark_ms,
        }
    )  # fmt: skip
    for number, operator in enumerate(topology.sub_topology(sub).operators):
        named = {"batch_id": batch_id, "operator": operator.name, "kind": operator.kind}
        passed = {"records_in": 900, "emitted": 640, "suppressed": 240, "newest_ms": at_ms}
        passed |= {"late": set_aside * 2 // 3, "quarantined": set_aside // 3}
        zeros = ("held_before", "duplicate", "filtered", "passed", "superseded", "dropped", "held_after")
        row = {**named, **passed, **dict.fromkeys(zeros, 0), "decided_at": at_ms - 900}
        if batch_id == 0 and operator.name == "flight_events":
            row["disorder"] = DISORDER
        rows[sub, OPERATOR_BATCHES].append(row)
        ewt_ms = at_ms - 500 + 40 * number + (600 if sub == "carriers" else 0)
        for end_ms in range(_window(watermark_ms - EVERY_MS), _window(watermark_ms), WINDOW_MS):
            rows[sub, OPERATOR_WINDOWS].append(
                {
                    **named, "window_start": end_ms, "window_end": end_ms + WINDOW_MS, "ewt_at": ewt_ms,
                    "ewt_adjusted_at": ewt_ms, "queued_ms": 0, "records": 300, "host": "worker-1",
                    "batch_started_at": at_ms - 900, "started_at": at_ms - 900,
                }
            )  # fmt: skip
        if operator.name in topology.terminals:
            measured = {**named, "thread_id": "t", "task_id": f"{sub}_0", "finished_at": at_ms}
            rows[sub, LATENCY_MINUTES].append({**measured, "n": 1_000, "buckets": _latencies(at_ms)})


def _window(at_ms: int) -> int:
    return at_ms // WINDOW_MS * WINDOW_MS


def _latencies(at_ms: int) -> list[dict[str, int]]:
    """Returns buckets of latencies, with a spike each day."""
    hours = at_ms / HOUR_MS
    median_ms = 700 + 300 * math.sin(hours / 24 * 2 * math.pi) + 90 * math.sin(hours * 7)
    spike = 60 if 9.0 < hours % 24 < 9.4 else 1
    numbers = {1.0: 800, 1.8: 150, 4.0 * spike: 50}
    return [{"bucket": bucket_of(round(median_ms * factor)), "n": n} for factor, n in numbers.items()]


def _rollups(rows: Rows, now_ms: int) -> None:
    spans = ((Grain.MINUTE, 2 * DAY_MS), (Grain.HOUR, 30 * DAY_MS))
    for grain, back_ms in spans:
        hour_ms = now_ms // HOUR_MS * HOUR_MS
        for start_ms in range(hour_ms - back_ms, hour_ms, grain.length_ms):
            for operator, sub in (("flight_board", "status"), ("carrier_delays", "carriers")):
                same: dict[str, Any] = {
                    "scope": "operator", "grain": grain.value, "sub_topology": sub, "kind": "sink",
                    "operator": operator, "interval_start": start_ms, "interval_end": start_ms + grain.length_ms,
                }  # fmt: skip
                measured = {"n": 1_000, "p50_ms": 700.0, "sla_ms": 5_000, "buckets": _latencies(start_ms)}
                rows["", LATENCY_ROLLUP].append({**same, **measured})


def _paths(rows: Rows, now_ms: int) -> None:
    """Adds a path for each minute of yesterday."""
    midnight_ms = (now_ms // DAY_MS - 1) * DAY_MS
    walk = {"flight_events": 0, "flight_updates": 60, "flight_status": 120, "flight_weather": 90, "flight_board": 40}
    for start_ms in range(midnight_ms, midnight_ms + DAY_MS, MINUTE_MS):
        window: Mapping[str, Any] = {"window_start": start_ms, "window_end": start_ms + WINDOW_MS}
        # Each hour has one window that takes very long.
        times = 90 if start_ms % HOUR_MS == 20 * MINUTE_MS else 1
        latency_ms = sum(walk.values()) * times
        rows["", CRITICAL_PATHS].append(
            {
                **window, "latency_ms": latency_ms, "waited_ms": latency_ms // 5, "queued_ms": 0,
                "before_source_ms": 3_400, "leaf": "flight_board", "path": " → ".join(walk), "state": "measured",
                "over_sla": times > 1,
                "verdicts": [
                    {"sla": "in_time", "operator": "flight_board", "quantile": 0.99, "limit_ms": 5_000,
                     "value_ms": float(latency_ms), "broken": times > 1}
                ],
            }
        )  # fmt: skip
        for step, (operator, ms) in enumerate(walk.items()):
            rows["", CRITICAL_PATH_STEPS].append(
                {
                    **window, "operator": operator, "step": step, "sub_topology": "status", "kind": "map",
                    "latency_ms": ms * times, "waited_ms": 0, "queued_ms": 0, "worked_ms": ms * times, "slack_ms": 0,
                    "share": ms / 310, "state": "measured" if step else "input",
                }
            )  # fmt: skip


def _checks(rows: Rows, now_ms: int) -> None:
    checked_ms = now_ms - 90_000
    dead: dict[str, Any] = {
        "cause": "absence",
        "cause_sub_topology": "flights/carriers",
        "cause_operator": "flights/carriers",
    }
    dead["cause_share"] = 0.92
    silent = {"cause": "next_record", "cause_operator": "flight_events", "cause_partition": 2}
    behind = {"cause": "topic_volume", "cause_sub_topology": "flights/status", "cause_operator": "flight_events"}
    newest: list[dict[str, Any]] = [
        {
            "sla": "delays_in_time", "subject": "carrier_delays", "measure": "latency_p99", "verdict": "error",
            "observed_ms": 412_000.0, "error_after_ms": 300_000.0, "culprit": "carrier_state",
            "owner": "carrier relations", "runbook": "https://wiki.example/carriers",
            "message": "latency p99 of carrier_delays is 6 min 52 s; warning from 1 min on, error from 5 min on",
            "blocked_by": "driver_dead: carrier_state: carriers failed; `tidemark restart flights/carriers`", **dead,
        },
        {
            "sla": "delays_are_fresh", "subject": "carrier_delays", "measure": "staleness", "verdict": "error",
            "observed_ms": 192_000.0, "error_after_ms": 120_000.0, "culprit": "carrier_state",
            "owner": "data platform", "message": "staleness of carrier_delays is 3 min 12 s; error from 2 min on",
            "blocked_by": "driver_dead: carrier_state: carriers failed", **dead,
        },
        {
            "sla": "every_airport_sends", "subject": "flight_status", "measure": "staleness", "verdict": "warn",
            "observed_ms": 600_000.0, "warn_after_ms": 300_000.0, "culprit": "flight_events", "owner": "flight desk",
            "message": "staleness by origin of flight_status is 10 min; warning from 5 min on; 5 of 100,000 are stale: "
            "EWR, JFK, LGA, BOS, PHL", **silent,
            "stale_groups": [
                {"name": name, "newest_ms": now_ms - 690_000 + 9_000 * n}
                for n, name in enumerate(("EWR", "JFK", "LGA", "BOS", "PHL"))
            ],
        },
        {
            "sla": "board_is_fresh", "subject": "flight_board", "measure": "staleness", "verdict": "pass",
            "observed_ms": 48_000.0, "error_after_ms": 120_000.0, "owner": "flight desk",
            "message": "staleness of flight_board is 48 s; warning from 1 min on, error from 2 min on",
            "resolve_after_ms": 30 * MINUTE_MS,
        },
        {
            "sla": "changes_are_fresh", "subject": "changes", "measure": "staleness", "verdict": "pass",
            "observed_ms": 21_000.0, "warn_after_ms": 60_000.0, "owner": "flight desk",
            "message": "staleness of changes is 21 s; warning from 1 min on",
        },
        {
            "sla": "board_budget_1h", "subject": "flight_board", "measure": "burn_rate", "verdict": "pass",
            "objective": "board_budget", "target": 0.99, "threshold_ms": 30_000, "window_ms": 28 * DAY_MS,
            "over_ms": HOUR_MS, "burn_rate": 0.4, "window_records": 4_000_000, "window_slow": 15_000,
            "budget_left": 0.625, "owner": "flight desk",
            "message": "0.40 % of the records took longer than 30 s in 1 h",
        },
    ]  # fmt: skip
    for back in range(240):
        # Checks of a month, fewer the longer ago.
        at_ms = checked_ms - (back * 10 * MINUTE_MS if back < 144 else DAY_MS + (back - 144) * 6 * HOUR_MS)
        for row in newest:
            wave = 1 + 0.4 * math.sin(back / 9)
            earlier = {"verdict": "pass", "culprit": None, "cause": None}
            observed = {"observed_ms": row["observed_ms"] * 0.3 * wave} if row.get("observed_ms") else {}
            left = {"budget_left": 0.625 + back / 900} if "objective" in row else {}
            changes = {} if back == 0 else {**earlier, **observed, **left}
            if row["sla"] == RECOVERS and back == BROKE_BACK:
                changes |= {"verdict": "error", "observed_ms": 150_000.0, "message": RECOVERS_SAID}
            rows["", SLA_RESULTS].append({**row, **changes, "checked_at": at_ms, "run_id": f"check-{back}"})
    judged = {"first_checked_at": checked_ms, "last_checked_at": checked_ms, "checks": 1, "run_id": "check-0"}
    judged |= {"success": True, "severity": "critical"}
    for table, sub in (
        ("batches", "status"),
        ("operator_batches", "status"),
        ("flight_board", "status"),
        ("operator_batches", "carriers"),
    ):
        kept = {"suite": "contract", "expectation": "expect_column_values_to_be_between", "table": table}
        kept |= {"sub_topology": sub, "table_version": 300, "batch_id": 299, "rows": 48_000}
        for column in ("duplicate_keys", "negative_counts"):
            rows["", EXPECTATION_RESULTS].append({**judged, **kept, "column": column, "observed": "0"})
    own = {**judged, "suite": "sla_status"}
    pair = {"expectation": "expect_column_pair_values_a_to_be_greater_than_b", "success": False}
    pair |= {"column": "error_after_ms, observed_ms", "observed": "[[300000.0, 412000.0], [120000.0, 192000.0]]"}
    count = {"expectation": "expect_table_row_count_to_equal", "observed": "5"}
    rows["", EXPECTATION_RESULTS] += [{**own, **count}, {**own, **pair}]
    slas = {row["sla"]: dict(row) for row in newest}
    shared = ("subject", "measure", "verdict", "message", "culprit", "blocked_by", "owner", "runbook")
    of_alerts = (
        (
            "driver_dead-carriers",
            dead,
            {"delays_in_time": INCIDENT, "delays_are_fresh": "delays_are_fresh-1"},
            "critical",
        ),
        ("partition_silent-2", silent, {"every_airport_sends": "every_airport_sends-1"}, "warning"),
        ("backlog-flight_events", behind, {RECOVERS: "board_is_fresh-1"}, "critical"),
    )
    slas[RECOVERS] |= {"verdict": "error", "message": RECOVERS_SAID}
    for alert, cause, incidents, severity in of_alerts:
        back = BROKE_BACK if cause is behind else 0
        at_ms = checked_ms - back * 10 * MINUTE_MS
        opened = {"change": "opened", "changed_at": at_ms, "opened_at": at_ms}
        opened |= dict.fromkeys(("broken_since", "crossed_at"), at_ms - MINUTE_MS)
        opened |= {"run_id": f"check-{back}", "severity": severity, "unit": "ms"}
        for sla, incident in incidents.items():
            row = {name: slas[sla].get(name) for name in shared}
            rows["", INCIDENTS].append({**opened, **row, "incident": incident, "sla": sla})
        worst = next(iter(incidents))
        first = {"sla": worst} | {name: slas[worst].get(name) for name in shared}
        lists = {"incidents": [*incidents.values()], "slas": [*incidents], "owners": ["data platform"]}
        tables = ["carrier_delays"] if cause is dead else ["flight_board", "carrier_delays"]
        rows["", ALERTS].append({**opened, **first, **cause, **lists, "tables": tables, "alert": alert})
