"""Measures a scrape of the metrics of `flights`.

The warehouse has 32 minutes. Before each scrape of the first figure both streams have written a batch: facts of all
tables and a heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import Figure, by_turns, ratios
from deltalake import DeltaTable, write_deltalake
from prometheus_client.openmetrics.exposition import generate_latest

from support.busy_warehouse import FLIGHTS, GOES_ON_MS, busy
from tidemark.clock import wall_clock_ms
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.layout import Layout
from tidemark.model.topology import load
from tidemark.query.sql import Warehouse
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.promises import Promises

TABLES = ("batches", "operator_batches", "latency_minutes", "partition_batches", "heartbeats")


def figures(runs: int) -> Iterator[Figure]:
    """Measures CPU s of this process, so that others do not count."""
    topology, now_ms = load(FLIGHTS), wall_clock_ms()
    with TemporaryDirectory() as folder:
        layout = Layout(busy(Path(folder), now_ms - GOES_ON_MS))  # no fact is later than the clock
        exporter = Exporter(layout, lambda: [topology])

        def scrape() -> None:
            generate_latest(exporter)

        def model() -> None:
            page_model(Warehouse(layout.warehouse, topology="flights"), layout, topology, Promises(), at_ms=now_ms)

        def after_batch(work: Callable[[], None]) -> float:
            for path in (layout.stream("flights", name) for name in ("status", "carriers")):
                for table in TABLES:
                    _append(path / table)
            _await_writers()
            return _cpu_s(work)

        sides = {
            "page": lambda: after_batch(model),
            "scrape": lambda: after_batch(scrape),
            "unchanged": lambda: _cpu_s(scrape),
        }
        by_turns(sides, 1)
        took = by_turns(sides, runs)
        series = sum(sample.series for sample in exporter.samples())
    yield Figure("a scrape after a batch, of the same reading by a page", ratios(took, "page", "scrape"), 2)
    yield Figure("  the scrape after a batch", [s * 1_000 for s in took["scrape"]], 50, at_most=True, unit="ms CPU")
    yield Figure("  a scrape of an unchanged warehouse", [s * 1_000 for s in took["unchanged"]], unit="ms CPU")
    yield Figure("  series", [series], 2_000, at_most=True, unit="")


def _append(path: Path) -> None:
    """Appends the newest row of the table at *path* once more."""
    rows = pl.DataFrame(DeltaTable(path).to_pyarrow_table()).tail(1)
    write_deltalake(path, rows, mode="append")


def _await_writers() -> None:
    """Returns when threads of the writes above use no CPU any more."""
    used_s = -1.0
    while time.process_time() - used_s > 0.002:
        used_s = time.process_time()
        time.sleep(0.1)


def _cpu_s(work: Callable[[], None]) -> float:
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s
