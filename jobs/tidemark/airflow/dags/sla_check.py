"""The DAGs that check SLAs and alert people of incidents.

There is one per topology. It checks for now or for a past instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from inspect import signature
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback, chain  # type: ignore[attr-defined]

from tidemark.airflow.dags.settings import WAREHOUSE, dag, instant, topologies_and_jobs
from tidemark.airflow.tasks.assets import TopologyJob
from tidemark.airflow.tasks.sla import CheckSlas, DeliverChanges, PublishChanges, channels, tell_of_missed_checks

DOC = """
Checks the SLAs of the topology `{name}` as of an instant. It sends each change of an incident once to every channel of
`expectations/channels.toml`: when the incident is opened, escalated, acknowledged or resolved.

* **at** (ISO 8601, UTC) is the instant; empty: when the run was triggered. A past instant opens no incident.

The results are rows of `sla_results` and `incidents` with this run's id, and of `expectation_results`, whose periods
the run begins or extends unless a later instant was checked before. A broken SLA never fails the run. An invalid SLA
fails `check_sla`, after all valid ones were checked and their changes delivered. A channel that fails fails its task,
and gets the changes in a later run.
"""
AT = "{{ params['at'] or dag_run.run_after.isoformat() }}"
HANGS_AFTER = timedelta(minutes=30)
TELLING_HANGS_AFTER = timedelta(minutes=15)
"""Longer than the 10 minutes that a channel waits for another run."""
ASKED = "macros.datetime.fromisoformat(params['at']) if params['at'] else dag_run.run_after"
# Airflow 3.2 looks for the callback of a missed deadline by a text instead of a UUID, which ends its scheduler. There
# deadlines have no names, either.
HAS_DEADLINES = "name" in signature(DeadlineAlert).parameters
SINCE = f"{{{{ (({ASKED}) - macros.timedelta(hours=1)).isoformat() }}}}"


def make() -> Iterator[DAG]:
    """Makes the DAG of each topology, also of those of jobs."""
    for file, topology in topologies_and_jobs().items():
        every = timedelta(milliseconds=topology.check_every_ms)
        deadline = _missed_checks(file, every) if HAS_DEADLINES else None
        params = {"at": instant("now")}
        with dag(topology, "sla_check", doc=DOC, schedule=every, params=params, deadline=deadline) as of_checks:
            of_job: dict[str, Any] = {"topology": topology, "warehouse": WAREHOUSE, "execution_timeout": HANGS_AFTER}
            paths = TopologyJob(job="critical_path", arguments=["--from", SINCE, "--to", AT], **of_job)
            check = CheckSlas(
                job="check_sla",
                arguments=["--at", AT, "--run-id", "{{ run_id }}"],
                trigger_rule="all_done",  # paths may be refused, and SLAs are checked nevertheless
                **of_job,
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
        yield of_checks


def _missed_checks(file: str, every: timedelta) -> DeadlineAlert:
    """Returns what alerts people when no check has ended for two intervals."""
    return DeadlineAlert(
        name="checks are made",
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=2 * every,
        callback=SyncCallback(tell_of_missed_checks, kwargs={"topology_file": file}),
    )
