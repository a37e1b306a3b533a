"""Two Airflow DAGs per topology that roll latencies up and find critical paths: of every hour, and then of the day."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from airflow.sdk import CronDataIntervalTimetable, Param, chain

from tidemark.spec.layout import Layout
from tidemark_assets import TopologyJob
from tidemark_dags import WAREHOUSE, dag, instant, topologies
from tidemark_hours import HoursReported

HOURLY = """
Reports on the topology `{name}` for one interval of the finish clock; running it again replaces the interval's rows.
Rollups take what is new as well, however old the interval is that it belongs to.

The page about it, and the one about its day, are in `<warehouse>/reports/{name}/html`.

`from` and `to` (ISO 8601, UTC) take the place of the run's data interval.
"""
DAILY = """
Reports on the topology `{name}` for a day, once its hours are done: with what came too late for them.
Running it again replaces the day's rows and its page. A backfill computes past days again.

`from` and `to` (ISO 8601, UTC) take the place of the run's data interval.
"""
START = "{{ params['from'] or data_interval_start.isoformat() }}"
END = "{{ params['to'] or data_interval_end.isoformat() }}"


def interval() -> dict[str, Param]:
    """The params that name one."""
    return {name: instant("the data interval's") for name in ("from", "to")}


for topology in topologies().values():
    job = partial(TopologyJob, topology=topology, warehouse=WAREHOUSE)
    INTERVAL = ["--from", START, "--to", END]
    PAGES = ["--html", str(Layout(Path(WAREHOUSE)).report_pages(topology.name))]
    with dag(
        topology,
        "reports",
        doc=HOURLY,
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        params=interval(),
    ) as hourly:
        chain(
            job(job="rollup", arguments=INTERVAL),
            job(job="critical_path", arguments=[*INTERVAL, *PAGES]),
        )
    with dag(
        topology,
        "daily_reports",
        doc=DAILY,
        schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
        params=interval(),
    ):
        chain(
            HoursReported(task_id="hours", hourly=hourly.dag_id),
            job(job="rollup", arguments=INTERVAL),
            job(job="critical_path", arguments=[*INTERVAL, *PAGES]),
        )
