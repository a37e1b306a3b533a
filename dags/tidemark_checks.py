"""One Airflow DAG per topology: checks its SLAs when somebody asks, for now or for a past instant."""

from __future__ import annotations

from airflow.sdk import Param, chain

from tidemark_assets import TopologyJob
from tidemark_dags import WAREHOUSE, dag, instant, topologies
from tidemark_sla import PublishBreaches

DOC = """
Checks the SLAs of the topology `{name}` once, by what was known at an instant.

* **at** (ISO 8601, UTC) is the instant; empty: when the run was asked for.
* **alert** also tells people of what does not hold, as the hourly reports do.

What it finds are rows of `sla_results` and `dq_results` with this run's id; what does not hold is in the log of
`publish_breaches` too. It never fails the run. Reports of the time before must have run: paths are theirs.
"""
AT = "{{ params['at'] or dag_run.run_after.isoformat() }}"

for topology in topologies().values():
    alert = Param(False, type="boolean", description="whether people are told of what does not hold")  # noqa: FBT003
    with dag(topology, "sla_check", doc=DOC, schedule=None, params={"at": instant("now"), "alert": alert}):
        chain(
            TopologyJob(
                job="check_sla",
                topology=topology,
                warehouse=WAREHOUSE,
                arguments=["--at", AT, "--run-id", "{{ run_id }}"],
            ),
            PublishBreaches(task_id="publish_breaches", topology=topology.name, warehouse=WAREHOUSE),
        )
