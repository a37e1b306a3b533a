"""Spark finds the paths that one process finds, whatever the topology."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import critical_path as job
from support.report_warehouse import WINDOW_MS, reading
from tidemark.graph import in_order
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS

TABLES = (CRITICAL_PATHS, CRITICAL_PATH_STEPS)
WINDOWS = 40
HOUR_MS = 3_600_000
IN_A_PROCESS = """
import sys
from pathlib import Path

import critical_path as job
from support.report_warehouse import reading
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval

sys.exit(bool(job.run(Layout(Path(sys.argv[1])), reading({"a": ()}), (), Interval(0, 60_000), spark_above=0)))
"""
HOSTS = [
    {"host": None, "skew_ms": None, "skew_error_ms": None},
    {"host": "x", "skew_ms": None, "skew_error_ms": None},
    {"host": "x", "skew_ms": 0, "skew_error_ms": 2},
    {"host": "y", "skew_ms": 7, "skew_error_ms": 4},
]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
def test_on_a_random_topology_spark_and_one_process_agree(spark, warehouse, seed):
    rng = random.Random(seed)
    upstreams = random_topology(rng)
    topology = reading(upstreams)
    rows = [row for number in range(WINDOWS) for row in random_window(rng, upstreams, number)]
    warehouse.write(OPERATOR_WINDOWS, rows)
    specs = parse({"t": {name: promise(rng, name) for name in topology.operators}}, topology, file="slas.toml")

    written = []
    for spark_above in (0, len(rows)):
        job.run(warehouse.layout, topology, specs, Interval(100_000, 200_000), spark_above=spark_above)
        written.append([warehouse.report(table) for table in TABLES])

    assert written[0] == written[1]
    ends = {row["window_end"] for row in rows if 100_000 <= row["window_end"] < 200_000}
    # Earlier windows that were open in the interval have paths, too.
    of_interval = [row for row in written[0][0] if row["window_end"].timestamp() * 1000 >= 100_000]
    assert len(of_interval) == len(ends) > 10


def test_hours_are_found_alike_in_one_process_and_on_spark(spark, warehouse):
    topology = reading({"a": (), "b": ("a",), "z": ("b",)})
    hours = [hour * HOUR_MS + number * WINDOW_MS for hour in (0, 1, 4) for number in range(5)]
    seldom = {hours[0], hours[-1]}  # `z` has no record in the other windows
    ewts = {
        end_ms: {"a": end_ms + 100, "b": end_ms + 130 + place, "z": end_ms + 200 + 3 * place}
        for place, end_ms in enumerate(hours)
    }
    rows = [
        {"batch_id": end_ms // WINDOW_MS, "operator": name, "window_start": end_ms - WINDOW_MS, "window_end": end_ms,
         "ewt_adjusted_at": ewt, "batch_started_at": ewt, "queued_ms": 0}
        for end_ms, of_window in ewts.items() for name, ewt in of_window.items()
        if name != "z" or end_ms in seldom
    ]  # fmt: skip
    warehouse.write(OPERATOR_WINDOWS, rows)

    written = {}
    for spark_above in (len(rows), 0):
        job.run(warehouse.layout, topology, (), Interval(0, 5 * HOUR_MS), spark_above=spark_above)
        written[spark_above] = [warehouse.report(table) for table in TABLES]

    assert written[0] == written[len(rows)]
    found = {ms_of(row["window_end"]): row["latency_ms"] for row in written[0][0]}
    assert found == {
        end_ms: of["z"] - of["a"] if end_ms in seldom else None for end_ms, of in ewts.items()
    }  # a window without `z` is open, as it has no time of `z`


def test_a_job_starts_spark_before_it_names_a_column(warehouse):
    """Here a session runs; where a report begins, none does."""
    row = {"batch_id": 1, "operator": "a", "window_start": 0, "window_end": WINDOW_MS, "ewt_adjusted_at": WINDOW_MS + 9}
    warehouse.write(OPERATOR_WINDOWS, [{**row, "batch_started_at": WINDOW_MS + 9, "queued_ms": 0}])
    path = [str(Path(__file__).parents[2] / folder) for folder in ("jobs", "tests")]
    program = f"import sys; sys.path[:0] = {path}\n{IN_A_PROCESS}"
    done = subprocess.run(
        [sys.executable, "-c", program, warehouse.layout.warehouse], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert [ms_of(row["window_end"]) for row in warehouse.report(CRITICAL_PATHS)] == [WINDOW_MS]


def ms_of(at):
    return round(at.timestamp() * 1000)


def random_topology(rng):
    names = [f"o{n}" for n in rng.sample(range(10), rng.randint(2, 7))]
    dag = {name: tuple(rng.sample(names[:n], rng.randint(0, min(n, 3)))) for n, name in enumerate(names)}
    return {**dag, names[-1]: dag[names[-1]] or (names[0],)}


def random_window(rng, upstreams, number):
    """Writes a window whose EWTs mostly grow downstream, and often tie.

    Some are missing, or reported by two batches.
    """
    ewts = {}
    shifted_ms = 1_234 if number > WINDOWS // 2 else 0  # as after a change of the length of windows
    gap, start_ms = rng.choice((0, 0, 0.2)), number * WINDOW_MS + shifted_ms
    hosts = rng.choice((HOSTS[:1], HOSTS[1:2], HOSTS[2:], HOSTS))
    for name in in_order(upstreams):
        latest_ms = max((ewts[u] for u in upstreams[name]), default=start_ms + 10_000)
        ewts[name] = latest_ms + rng.choice((0, 0, 1, 5, 40, 100, -7))
    return [
        {"batch_id": number, "operator": name, "window_start": start_ms, "window_end": start_ms + WINDOW_MS,
         "ewt_adjusted_at": ewt + again, "batch_started_at": rng.choice((None, ewt - rng.randint(0, 60), ewt)),
         "queued_ms": rng.choice((0, 0, 3, 30, None)), **rng.choice(hosts)}
        for name, ewt in ewts.items()
        if rng.random() >= gap
        for again in rng.choice(((0,), (0,), (0, 5), (0, 0)))
    ]  # fmt: skip


def promise(rng, subject):
    measure = rng.choice(("latency_p99", "operator_latency_p50"))
    limit = rng.choice(("3 ms", "40 ms", "5 s", "6 s"))
    return {"subject": subject, "measure": measure, "error_after": limit, "owner": "o"}
