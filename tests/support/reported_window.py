"""A warehouse with one reported window of `flights`, written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    LATENCY_ROLLUP,
    Table,
)

NOON = 1_767_268_800_000  # 2026-01-01 12:00 UTC
HOUR_MS = 3_600_000
WINDOW = {"topology": "flights", "window_start": NOON, "window_end": NOON + 5_000}
ON_PATH = {
    "flight_events": 0,
    "flight_updates": 10,
    "flight_status": 20,
    "flight_weather": 10,
    "by_carrier": 20,
    "by_carrier_source": 40,
    "carrier_state": 300,
    "carrier_delays": 0,
}
"""The critical path with latencies, ms: 400 together."""
OFF_PATH = {"flight_board": 50}
READS = dict(zip([*ON_PATH][1:], ON_PATH, strict=False)) | {"flight_board": "flight_weather"}


def reported(warehouse: Path) -> Path:
    """Write it into *warehouse*."""
    path = " → ".join(f"{name} ({ms} ms)" for name, ms in ON_PATH.items())
    leaf = {"leaf": "carrier_delays", "source": "flight_events", "latency_ms": 400, "behind_ms": 0}
    _write(
        warehouse,
        CRITICAL_PATHS,
        {
            **WINDOW, "latency_ms": 400, "waited_ms": 40, "queued_ms": 0, "before_source_ms": 1_000,
            "leaf": "carrier_delays", "path": f"{path} = 400 ms", "state": "measured", "over_sla": False,
            "leaves": [{**leaf, "before_source_ms": 1_000}],
        },
    )  # fmt: skip
    _write(warehouse, CRITICAL_PATH_STEPS, *(_step(name, ms) for name, ms in (ON_PATH | OFF_PATH).items()))
    _write(warehouse, LATENCY_ROLLUP, _rolled_up(NOON - HOUR_MS, 7), _rolled_up(NOON, 9))
    return warehouse


def _step(name: str, latency_ms: int) -> dict[str, Any]:
    waited_ms = 40 if name == "by_carrier_source" else 0
    return {
        **WINDOW, "operator": name, "step": [*ON_PATH].index(name) if name in ON_PATH else None, "kind": "map",
        "sub_topology": "status", "slowest_upstream": READS.get(name), "latency_ms": latency_ms,
        "waited_ms": waited_ms, "queued_ms": 0, "worked_ms": latency_ms - waited_ms, "slack_ms": 0,
        "share": latency_ms / 400 if name in ON_PATH else None, "state": "measured" if name in READS else "input",
    }  # fmt: skip


def _rolled_up(start_ms: int, n: int) -> dict[str, Any]:
    return {
        "scope": "operator", "grain": "hour", "topology": "flights", "sub_topology": "carriers", "kind": "sink",
        "operator": "carrier_delays", "interval_start": start_ms, "interval_end": start_ms + HOUR_MS, "n": n,
        "p50_ms": 100.0,
    }  # fmt: skip


def _write(warehouse: Path, table: Table, *rows: dict[str, Any]) -> None:
    write_deltalake(Layout(warehouse).report_table("flights", table.name), rows_of(table, list(rows)))
