"""Checks the SLAs of each topology and alerts people of incidents.

There is an Airflow DAG per topology. It checks for now or for a past instant.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DeadlineAlert, DeadlineReference, SyncCallback, chain

from tidemark_assets import TopologyJob
from tidemark_dags import WAREHOUSE, dag, instant, topologies
from tidemark_sla import DeliverChanges, PublishChanges, channels, tell_of_missed_checks

DOC = """
Checks the SLAs of the topology `{name}` as of an instant. It sends each change of an incident once to every channel of
`expectations/channels.toml`: when the incident is opened, escalated, acknowledged or resolved.

* **at** (ISO 8601, UTC) is the instant; empty: when the run was triggered. A past instant opens no incident.

The results are rows of `sla_results`, `dq_results` and `incidents` with this run's id. A broken SLA never fails the
run. An invalid SLA fails `check_sla`, after all valid ones were checked and their changes delivered. A channel that
fails fails its task, and gets the changes in a later run.
"""
AT = "{{ params['at'] or dag_run.run_after.isoformat() }}"
HANGS_AFTER = timedelta(minutes=30)
TELLING_HANGS_AFTER = timedelta(minutes=15)
"""Longer than the 10 minutes that a channel waits for another run."""
ASKED = "macros.datetime.fromisoformat(params['at']) if params['at'] else dag_run.run_after"
SINCE = f"{{{{ (({ASKED}) - macros.timedelta(hours=1)).isoformat() }}}}"

for path, topology in topologies().items():
    every = timedelta(milliseconds=topology.check_every_ms)
    missed_checks = DeadlineAlert(
        name="checks are made",
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=2 * every,
        callback=SyncCallback(tell_of_missed_checks, kwargs={"topology_file": str(path)}),
    )
    with dag(topology, "sla_check", doc=DOC, schedule=every, params={"at": instant("now")}, deadline=[missed_checks]):
        job = partial(TopologyJob, topology=topology, warehouse=WAREHOUSE, execution_timeout=HANGS_AFTER)
        paths = job(job="critical_path", arguments=["--from", SINCE, "--to", AT])
        check = job(
            job="check_sla",
            arguments=["--at", AT, "--run-id", "{{ run_id }}"],
            trigger_rule="all_done",  # paths may be refused, and SLAs are checked nevertheless
        )
        of_topology = {"topology": topology.name, "warehouse": WAREHOUSE}
        of_topology["trigger_rule"] = "all_done"  # an invalid SLA fails the check, after it judged the others
        tell = [
            DeliverChanges(channel=channel, execution_timeout=TELLING_HANGS_AFTER, **of_topology)
            for channel in channels(topology.name)
        ]
        publish = PublishChanges(task_id="publish_changes", execution_timeout=TELLING_HANGS_AFTER, **of_topology)
        # Without this leaf a failed channel would not fail the run.
        done = EmptyOperator(task_id="done", trigger_rule="none_failed")
        chain(paths, check, [publish, *tell], done)
        chain([paths, check], done)
