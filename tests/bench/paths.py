"""Measures critical paths of a million operator-window rows.

One run has all windows of flights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from bench.ratios import Figure, seconds
from deltalake import write_deltalake
from streaming.drivers import PROJECT

from critical_path import run
from tidemark.graph import in_order
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import load as load_slas
from tidemark.model.tables.catalog import OPERATOR_WINDOWS
from tidemark.model.topology import Topology, load
from tidemark.spark_session import session

ROWS = int(os.environ.get("ROWS", "1_000_000"))
BEGAN_MS = 1_772_323_200_000


def figures(_: int) -> Iterator[Figure]:
    """Seconds of one run each: the tables are not there before it."""
    topology = load(PROJECT / "jobs" / "topologies" / "flights.toml")
    specs = load_slas(PROJECT / "expectations" / "slas.toml", topology)
    with TemporaryDirectory() as folder, session("bench"):
        layout = Layout(Path(folder))
        windows = _lay_down(layout, topology)
        interval = Interval(BEGAN_MS, BEGAN_MS + (windows + 1) * topology.window_ms)
        took_s = seconds(lambda: run(layout, topology, specs, interval))
        yield Figure(f"critical paths of {ROWS:,} operator-window rows", [took_s], 20, at_most=True, unit="s")


def _lay_down(layout: Layout, topology: Topology) -> int:
    """Writes windows that operators finish within 600 ms; returns their number.

    Counted after the slowest of its upstreams.
    """
    order, rng = in_order(topology.upstreams), np.random.default_rng(7)
    count = ROWS // len(order)
    start_ms = BEGAN_MS + np.arange(count) * topology.window_ms
    ewt_ms: dict[str, np.ndarray] = {}
    for name in order:
        read = [ewt_ms[upstream] for upstream in topology.upstreams[name]]
        ewt_ms[name] = (np.maximum.reduce(read) if read else start_ms + topology.window_ms) + rng.integers(
            0, 600, count
        )
    for sub in topology.sub_topologies:
        frames = [
            pl.DataFrame(
                {
                    "window_start": start_ms, "window_end": start_ms + topology.window_ms,
                    "ewt_at": ewt_ms[operator.name],
                    "ewt_adjusted_at": ewt_ms[operator.name], "batch_started_at": ewt_ms[operator.name] - 300,
                    "started_at": ewt_ms[operator.name] - 200, "batch_id": np.arange(count),
                }
            ).with_columns(
                topology=pl.lit(topology.name), sub_topology=pl.lit(sub.name), operator=pl.lit(operator.name),
                kind=pl.lit(operator.kind), queued_ms=pl.lit(0), records=pl.lit(1), host=pl.lit("h"),
                skew_ms=pl.lit(None, pl.Int64), skew_error_ms=pl.lit(None, pl.Int64),
            )
            for operator in sub.operators
        ]  # fmt: skip
        path = layout.stream_table(topology.name, sub.name, OPERATOR_WINDOWS.name)
        write_deltalake(path, rows_of(OPERATOR_WINDOWS, pl.concat(frames)))
    return count
