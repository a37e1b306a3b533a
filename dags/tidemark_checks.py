"""One Airflow DAG per topology: checks its SLAs, for now or for a past instant, and tells people of incidents."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DeadlineAlert, DeadlineReference, SyncCallback, chain

from tidemark_assets import TopologyJob
from tidemark_dags import WAREHOUSE, dag, instant, topologies
from tidemark_sla import PublishChanges, Tell, channels, tell_of_missed_checks

DOC = """
Checks the SLAs of the topology `{name}`, by what is known at an instant, and tells every channel of
`expectations/channels.toml` once of each incident that is opened, gets worse, is acknowledged or ends.

* **at** (ISO 8601, UTC) is the instant; empty: when the run was asked for. No incident follows from a past one.

What it finds are rows of `sla_results`, `dq_results` and `incidents` with this run's id. An SLA that does not hold
never fails the run. One that cannot be used fails `check_sla`, after all others were checked, and of these people are
told. A channel that takes nothing fails its task, and is told by a later run.
"""
AT = "{{ params['at'] or dag_run.run_after.isoformat() }}"
HANGS_AFTER = timedelta(minutes=30)
TELLING_HANGS_AFTER = timedelta(minutes=15)
"""Longer than a channel waits for another run that tells it, which is 10 minutes."""
ASKED = "macros.datetime.fromisoformat(params['at']) if params['at'] else dag_run.run_after"
SINCE = f"{{{{ (({ASKED}) - macros.timedelta(hours=1)).isoformat() }}}}"

for path, topology in topologies().items():
    every = timedelta(milliseconds=topology.check_every_ms)
    nobody_checks = DeadlineAlert(
        name="checks are made",
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=2 * every,
        callback=SyncCallback(tell_of_missed_checks, kwargs={"topology_file": str(path)}),
    )
    with dag(topology, "sla_check", doc=DOC, schedule=every, params={"at": instant("now")}, deadline=[nobody_checks]):
        job = partial(TopologyJob, topology=topology, warehouse=WAREHOUSE, execution_timeout=HANGS_AFTER)
        paths = job(job="critical_path", arguments=["--from", SINCE, "--to", AT])
        check = job(
            job="check_sla",
            arguments=["--at", AT, "--run-id", "{{ run_id }}"],
            trigger_rule="all_done",  # paths may be refused, and SLAs are checked nevertheless
        )
        told = {"topology": topology.name, "warehouse": WAREHOUSE}
        told["trigger_rule"] = "all_done"  # a check that cannot use an SLA fails, and has judged the others
        tell = [
            Tell(channel=channel, execution_timeout=TELLING_HANGS_AFTER, **told) for channel in channels(topology.name)
        ]
        publish = PublishChanges(task_id="publish_changes", execution_timeout=TELLING_HANGS_AFTER, **told)
        done = EmptyOperator(task_id="done", trigger_rule="none_failed")  # without it nobody saw that these failed
        chain(paths, check, [publish, *tell], done)
        chain([paths, check], done)
