"""One Airflow DAG per topology: every hour it rolls latencies up, finds the critical paths and checks the SLAs."""

from __future__ import annotations

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, chain

from tidemark_dags import EVERY_DAG, WAREHOUSE, topologies
from tidemark_sla import PublishBreaches
from tidemark_spark import BatchJob

DOC = """
Reports on the topology `{name}` for one interval of the finish clock; running it again replaces the interval's rows.
Rollups take what is new as well, however old the interval is that it belongs to.

`from` and `to` (ISO 8601, UTC) take the place of the run's data interval. An SLA that does not hold is a row of
`sla_results` and an update of the asset `tidemark_{name}_sla`; it never fails the run.
"""
START = "{{ params['from'] or data_interval_start.isoformat() }}"
END = "{{ params['to'] or data_interval_end.isoformat() }}"


def instant() -> Param:
    """A new one each time: a Param is where its value is kept."""
    return Param(None, type=["null", "string"], format="date-time", description="ISO 8601; empty: the data interval's")


for topology in topologies().values():
    WHERE = ["--warehouse", WAREHOUSE, "--topology", topology.name]
    INTERVAL = [*WHERE, "--from", START, "--to", END]
    with DAG(
        f"tidemark_{topology.name}_reports",
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        tags=["tidemark", topology.name, "reports"],
        doc_md=DOC.format(name=topology.name),
        params={"from": instant(), "to": instant()},
        **EVERY_DAG,
    ):
        chain(
            [BatchJob(task_id=job, job=job, application_args=INTERVAL) for job in ("rollup", "critical_path")],
            BatchJob(
                task_id="check_sla",
                job="check_sla",
                application_args=[*WHERE, "--at", END, "--run-id", "{{ run_id }}"],
            ),
            PublishBreaches(task_id="publish_breaches", topology=topology.name, warehouse=WAREHOUSE),
        )
