"""The DAGs that roll up latencies and find critical paths.

There are two per topology: one for every hour, and one for the day.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, chain

from tidemark.airflow.dags.hours import HourlyReportSensor
from tidemark.airflow.dags.settings import WAREHOUSE, dag, instant, topologies_and_jobs
from tidemark.airflow.tasks.assets import TopologyJob
from tidemark.model.project.layout import Layout

HOURLY = """
Reports on the topology `{name}` for one interval of the finish clock. A second run replaces the interval's rows.
Rollups also include new facts of older intervals.

The page of the interval, and the one of its day, are in `<warehouse>/reports/{name}/html`.

`from` and `to` (ISO 8601, UTC) replace the run's data interval. Without either the report covers the hour before.
"""
DAILY = """
Reports on the topology `{name}` for a day, once its hours are done. It includes facts that came too late for them.
A second run replaces the day's rows and its page. A backfill computes past days again.

`from` and `to` (ISO 8601, UTC) replace the run's data interval. Without either the report covers the day before.
"""


def interval() -> dict[str, Param]:
    """Returns the params of an interval."""
    return {name: instant("the data interval's") for name in ("from", "to")}


def ends(hours: int) -> list[str]:
    """Returns the arguments of an interval.

    A run without a logical date has no data interval, and covers *hours* until it was triggered.
    """
    since = f"dag_run.run_after - macros.timedelta(hours={hours})"
    start = f"data_interval_start if data_interval_start is defined else {since}"
    end = "data_interval_end if data_interval_end is defined else dag_run.run_after"
    return ["--from", _param("from", start), "--to", _param("to", end)]


def _param(name: str, otherwise: str) -> str:
    return f"{{{{ params['{name}'] or ({otherwise}).isoformat() }}}}"


def make() -> Iterator[DAG]:
    """Makes the two DAGs of each topology, also of those of jobs."""
    for topology in topologies_and_jobs().values():
        job = partial(TopologyJob, topology=topology, warehouse=WAREHOUSE)
        pages = ["--html", str(Layout(Path(WAREHOUSE)).report_pages(topology.name))]
        with dag(
            topology,
            "reports",
            doc=HOURLY,
            # By default the data intervals of a cron text have no length in Airflow 3.
            schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
            params=interval(),
        ) as hourly:
            chain(
                job(job="rollup", arguments=ends(1)),
                job(job="critical_path", arguments=[*ends(1), *pages]),
            )
        with dag(
            topology,
            "daily_reports",
            doc=DAILY,
            schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
            params=interval(),
        ) as daily:
            chain(
                HourlyReportSensor(task_id="hours", hourly=hourly.dag_id),
                job(job="rollup", arguments=ends(24)),
                job(job="critical_path", arguments=[*ends(24), *pages]),
            )
        yield from (hourly, daily)
