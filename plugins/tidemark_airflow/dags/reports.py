"""The two DAGs of each topology, hourly and daily, for rollups, critical paths, suites and small tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from inspect import signature
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (  # type: ignore[attr-defined]
    DAG,
    CronDataIntervalTimetable,
    DeadlineAlert,
    DeadlineReference,
    Param,
    SyncCallback,
    chain,
)

from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark_airflow.dags.hours import HourlyReportSensor
from tidemark_airflow.dags.settings import WAREHOUSE, dag, instant, topologies_and_jobs
from tidemark_airflow.operators.assets import TopologyJob
from tidemark_airflow.operators.sla import JudgeSuites, tell_of_missed_checks

HOURLY = """
Reports on the topology `{name}` for one interval of the finish clock. A second run replaces the interval's rows.
Rollups also include new facts of older intervals.

The page of the interval, and the one of its day, are in `<warehouse>/reports/{name}/html`.

`judge_suites` judges by great-expectations what the checker of SLAs has stored, and the contracts of tables, also if
the reports fail. If the checker has stored no check for two `check_every`, it makes one for now.

`from` and `to` (ISO 8601, UTC) replace the run's data interval. Without either the report covers the hour before.
"""
DAILY = """
Reports on the topology `{name}` for a day, once its hours are done. It includes facts that came too late for them.
A second run replaces the day's rows and its page. A backfill computes past days again.

At the end `maintain` keeps the tables small, also if the reports fail: it deletes old rows, compacts small files and
removes unused ones. Its log ends with files, bytes and rows of each table, after and before; `maintenance` keeps them.

`from` and `to` (ISO 8601, UTC) replace the run's data interval. Without either the report covers the day before.
"""
SUITES = """
`judge_suites` judges by great-expectations what the checker has stored of the SLAs of watched tables, `{name}`. If the
checker has stored no check for two `check_every`, it makes one for now.
"""
UPKEEP = """
`maintain` keeps the tables of checks and incidents of watched tables, `{name}`, small. Watched tables are only read.
"""
# By default the data intervals of a cron text have no length in Airflow 3.
HOURS, DAYS = (CronDataIntervalTimetable(cron, timezone="UTC") for cron in ("0 * * * *", "0 0 * * *"))


# Airflow 3.2 looks for the callback of a missed deadline by a text instead of a UUID, which ends its scheduler. There
# deadlines have no names, either.
HAS_DEADLINES = "name" in signature(DeadlineAlert).parameters


def interval() -> dict[str, Param]:
    """Returns the params of an interval."""
    return {name: instant("the data interval's") for name in ("from", "to")}


def ends(hours: int) -> list[str]:
    """Returns the arguments for the data interval of a run, or without one for the *hours* until it was triggered."""
    since = f"dag_run.run_after - macros.timedelta(hours={hours})"
    start = f"data_interval_start if data_interval_start is defined else {since}"
    end = "data_interval_end if data_interval_end is defined else dag_run.run_after"
    return ["--from", _param("from", start), "--to", _param("to", end)]


def _param(name: str, otherwise: str) -> str:
    return f"{{{{ params['{name}'] or ({otherwise}).isoformat() }}}}"


def make() -> Iterator[DAG]:
    """Makes the two DAGs of each topology, also of those of jobs."""
    for file, topology in topologies_and_jobs().items():
        if topology.is_watch:
            yield from _of_watched(file, topology)
            continue
        job = partial(TopologyJob, topology=topology, warehouse=WAREHOUSE)
        pages = ["--html", str(Layout(Path(WAREHOUSE)).report_pages(topology.name))]
        with dag(
            topology,
            "reports",
            doc=HOURLY,
            schedule=HOURS,
            params=interval(),
            deadline=_missed_checks(file, topology) if HAS_DEADLINES else None,
        ) as hourly:
            chain(
                job(job="rollup", arguments=ends(1)),
                job(job="critical_path", arguments=[*ends(1), *pages]),
                JudgeSuites(topology=topology, warehouse=WAREHOUSE, asks=True, trigger_rule="all_done"),
            )
        with dag(
            topology,
            "daily",
            doc=DAILY,
            schedule=DAYS,
            params=interval(),
        ) as daily:
            report = job(job="critical_path", arguments=[*ends(24), *pages])
            keep_small = job(job="maintain", trigger_rule="all_done")
            # Without this leaf a failed report would not fail the run.
            done = EmptyOperator(task_id="done", trigger_rule="none_failed")
            chain(
                HourlyReportSensor(task_id="hours", hourly=hourly.dag_id),
                job(job="rollup", arguments=ends(24)),
                report,
                keep_small,
                done,
            )
            chain(report, done)
        yield from (hourly, daily)


def _of_watched(file: str, topology: Topology) -> Iterator[DAG]:
    """Makes the same of watched tables: without streams there is nothing to report on."""
    deadline = _missed_checks(file, topology) if HAS_DEADLINES else None
    with dag(topology, "reports", doc=SUITES, schedule=HOURS, deadline=deadline) as hourly:
        JudgeSuites(topology=topology, warehouse=WAREHOUSE, asks=True)
    with dag(topology, "daily", doc=UPKEEP, schedule=DAYS) as daily:
        TopologyJob(topology=topology, warehouse=WAREHOUSE, job="maintain")
    yield from (hourly, daily)


def _missed_checks(file: str, topology: Topology) -> DeadlineAlert:
    """Returns what alerts people if no check was made, when the suites of an hour have not ended in time."""
    return DeadlineAlert(
        name="checks are made",
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=2 * timedelta(milliseconds=topology.check_every_ms),
        callback=SyncCallback(tell_of_missed_checks, kwargs={"topology_file": file}),
    )
