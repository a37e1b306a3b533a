"""Measures CPU time of scheduled jobs over a day of flights.

Each runs as the process that Airflow starts. It also measures a first query.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.ratios import Figure
from deltalake import write_deltalake

from support.flights_day import play_day
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.project.spark_settings import WITHOUT_SPARK
from tidemark.model.settings.intervals import iso
from tidemark.model.tables.catalog import BATCHES

HOUR_MS = 3_600_000
TOPOLOGIES, COMMITS = 50, 60
COMMAND = "import sys; sys.argv[0] = 'tidemark'; from tidemark.cli.main import main; sys.exit(main())"
GREAT_EXPECTATIONS = ["-c", "import gc; gc.disable(); import great_expectations"]


def figures(runs: int) -> Iterator[Figure]:
    """Measures CPU seconds of *runs* of each job.

    An hour's reports, a check, a check's imports, and a query.
    """
    with TemporaryDirectory() as folder:
        ended_ms = play_day(Path(folder)).ended_at_ms
        where = ["--warehouse", folder, "--topology", "flights"]
        hour = ["--from", iso(ended_ms - HOUR_MS), "--to", iso(ended_ms)]
        rollup = [_cpu_s([_job("rollup"), *where, *hour]) for _ in range(runs)]
        page = [_cpu_s([_job("critical_path"), *where, *hour, "--html", f"{folder}/html"]) for _ in range(runs)]
        reports = [sum(each) for each in zip(rollup, page, strict=True)]
        checks = [_cpu_s([_job("check_sla"), *where, "--at", iso(ended_ms), "--run-id", str(n)]) for n in range(runs)]
        imports = [_cpu_s(GREAT_EXPECTATIONS) for _ in range(runs)]
    yield Figure("CPU time of a rollup of an hour", rollup, unit="s")
    yield Figure(
        "CPU time of the reports of an hour: rollup, critical paths, pages", reports, 5, at_most=True, unit="s"
    )
    beside = [check - imported for check, imported in zip(checks, imports, strict=True)]
    yield Figure("CPU time of a check of SLAs beside great-expectations' import", beside, 3, at_most=True, unit="s")
    yield Figure("CPU time of that import", imports, unit="s")
    with TemporaryDirectory() as folder:
        _write_topologies(Path(folder))
        query = ["-c", COMMAND, "--warehouse", folder, "sql", "select count(*), max(batch_id) from batches"]
        answers = [_cpu_s(query) for _ in range(runs)]
    name = f"CPU time of a first query over {TOPOLOGIES} topologies with {COMMITS} commits each"
    yield Figure(name, answers, 1, at_most=True, unit="s")


def _write_topologies(home: Path) -> None:
    """Writes the `batches` of TOPOLOGIES topologies to *home*.

    Each has COMMITS commits and as many files.
    """
    first = Layout(home).stream_table("t0", "s", BATCHES.name)
    for number in range(COMMITS):
        write_deltalake(first, rows_of(BATCHES, [{"batch_id": number}], topology="t0", sub_topology="s"), mode="append")
    for number in range(1, TOPOLOGIES):
        shutil.copytree(first, Layout(home).stream_table(f"t{number}", "s", BATCHES.name))


def _job(name: str) -> str:
    return str(CHECKOUT / "jobs" / f"{name}.py")


def _cpu_s(arguments: list[str]) -> float:
    """Runs a Python with *arguments* and returns its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, env={**os.environ, WITHOUT_SPARK: "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
