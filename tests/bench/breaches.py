"""Measures how long after a promise breaks its alert is delivered, under a real Airflow with default settings.

`TOPOLOGIES=4 make bench PARTS=breaches` has so many topologies, instead of 10. Each has a table whose newest row grows
old until it breaks its limit, in four rounds: undisturbed, and while the checker, the triggerer and the scheduler are
killed with -9. The processes of Airflow are started again at once; a delay counts from then.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import Figure
from deltalake import write_deltalake

from support.airflow_checkout import own_checkout
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.embedded import airflow
from tidemark.embedded.airflow_api import AirflowApi
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import ALERTS, BATCHES, CHANGES, DELIVERIES
from tidemark.storage.delta.tables import scan

TOPOLOGIES = int(os.environ.get("TOPOLOGIES", "10"))
FIRST_S, APART_S, ROUND_S, KILL_S = 60, 60 // TOPOLOGIES, 170, 75
"""The first topology breaks its promise so long after a round begins, the others one after the other, and the kill."""
TOPOLOGY = """
name = "t{number}"
[operators.events]
kind = "source"
topic = "events{number}"
fields = "id string, at bigint"
timestamp = "at"
bound = "3 s"
"""
SLA = """
[t{number}.fresh]
subject = "changes"
error_after = "{after_s} s"
resolve_after = "0 s"
owner = "o"
"""


def figures(runs: int) -> Iterator[Figure]:
    """Measures the delays of all rounds, *runs* times over 5, at least once."""
    with TemporaryDirectory() as folder, _airflow(Path(folder)) as (api, start):
        layout, home = Layout(Path(folder) / "warehouse"), Path(folder) / "airflow"
        _fresh(layout, wall_clock_ms())
        for number in range(TOPOLOGIES):
            api.unpause(f"tidemark_t{number}_sla_check")
        time.sleep(45)  # each has had its first look
        kills: dict[str, Callable[[], int | None]] = {
            "undisturbed": lambda: None,
            "the checker is killed": partial(_kill_checker, home),
            "the triggerer is killed": partial(_kill, home, "triggerer", start),
            "the scheduler is killed": partial(_kill, home, "scheduler", start),
        }
        rounds = [(name, *_round(layout, kill)) for _ in range(max(1, runs // 5)) for name, kill in kills.items()]
        time.sleep(ROUND_S)
        delays: dict[str, list[float]] = {name: [] for name in kills}
        extra = lost = 0
        for name, began_ms, back_ms in rounds:
            for number in range(TOPOLOGIES):
                crossed_ms = began_ms + (FIRST_S + APART_S * number) * 1_000
                told_ms = _told(layout, number, crossed_ms)
                extra, lost = extra + max(0, len(told_ms) - 1), lost + (not told_ms)
                # What was to be told while Airflow was down waits for it.
                was_down = began_ms + (KILL_S - 30) * 1_000 < crossed_ms < back_ms
                delays[name] += [(told_ms[0] - (back_ms if was_down else crossed_ms)) / 1_000] if told_ms else []
    every = sorted(each for found in delays.values() for each in found)
    for name, found in delays.items():
        yield Figure(f"from a breach to its delivery, {name}", found, 30, at_most=True, unit="s")
    yield Figure("  all: 95 %", [every[int(len(every) * 0.95)]], 30, at_most=True, unit="s")
    yield Figure("  all: the longest", [every[-1]], 60, at_most=True, unit="s")
    yield Figure("  alerts that were delivered twice", [extra], 0, at_most=True, unit="")
    yield Figure("  breaches without an alert", [lost], 0, at_most=True, unit="")


def _round(layout: Layout, kill: Callable[[], int | None]) -> tuple[int, int]:
    """Lets all topologies break their promise; returns when the round began, and when Airflow was back, epoch ms."""
    began_ms = wall_clock_ms()
    _fresh(layout, began_ms)
    time.sleep(KILL_S)
    back_ms = kill() or 0
    time.sleep(max(0.0, ROUND_S - (wall_clock_ms() - began_ms) / 1_000))
    return began_ms, back_ms


def _told(layout: Layout, number: int, crossed_ms: int) -> list[int]:
    """Returns when the opening of the alert about this breach was delivered, epoch ms."""
    name = f"t{number}"
    with suppress(Exception):
        alerts = scan(layout.report_table(name, ALERTS.name)).collect().filter(change="opened")
        opened_ms = pl.col("opened_at").dt.epoch("ms")
        mine = alerts.filter(opened_ms.is_between(crossed_ms - 1_000, crossed_ms + ROUND_S * 1_000))["alert"]
        told = scan(layout.report_table(name, DELIVERIES.name)).collect().filter(change="opened")
        return sorted(told.filter(pl.col("alert").is_in(mine.implode()))["delivered_at"].dt.epoch("ms"))
    return []


def _fresh(layout: Layout, at_ms: int) -> None:
    """Writes a row of now into each table."""
    for number in range(TOPOLOGIES):
        of = {"topology": f"t{number}", "sub_topology": "events", "batch_id": at_ms}
        rows = {CHANGES: {"operator": "events", "seq": 0, "timestamp": at_ms}, BATCHES: {"finished_at": at_ms}}
        for table, row in rows.items():
            path = layout.stream_table(f"t{number}", "events", table.name)
            write_deltalake(path, rows_of(table, [{**of, **row}]), mode="append")


def _kill(home: Path, component: str, start: Callable[[], object]) -> int:
    """Kills a process of Airflow and all its children, and starts it again; returns when it was back, epoch ms."""
    os.killpg(json.loads((home / f"{component}.pid.json").read_text())["pid"], signal.SIGKILL)
    process.wait_until(lambda: process.find(home, component) is None, "the end", 30)
    start()
    return wall_clock_ms()


def _kill_checker(home: Path) -> None:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = str(home.parent).encode() in (place / "environ").read_bytes()
            if is_ours and b"tidemark.sla.checker" in (place / "cmdline").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)


@contextmanager
def _airflow(folder: Path) -> Iterator[tuple[AirflowApi, Callable[[], object]]]:
    root, home = folder / "root", folder / "airflow"
    own_checkout(root, "")
    for file in (root / "jobs" / "topologies").glob("*.toml"):
        file.unlink()
    slas = []
    for number in range(TOPOLOGIES):
        (root / "jobs" / "topologies" / f"t{number}.toml").write_text(TOPOLOGY.format(number=number))
        slas.append(SLA.format(number=number, after_s=FIRST_S + APART_S * number))
    (root / "expectations").mkdir()
    (root / "expectations" / "slas.toml").write_text("".join(slas))
    variables = {"tidemark_warehouse": str(folder / "warehouse"), "tidemark_bootstrap": ""}

    def start() -> AirflowApi:
        return airflow.wait_until_healthy(
            home, airflow.start(home, root=root, project=Project(root), variables=variables)
        )

    try:
        api = start()
        process.wait_until(lambda: api.has_dag(f"tidemark_t{TOPOLOGIES - 1}_sla_check"), "the DAGs", 120)
        yield api, start
    finally:
        airflow.stop(home)
