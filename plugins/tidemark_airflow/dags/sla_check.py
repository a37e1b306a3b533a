"""The DAG of each topology that tells people of incidents, and checks SLAs for an instant on request.

The checker asks for its runs: see `tidemark_airflow.operators.checks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, chain

from tidemark_airflow.dags.settings import WAREHOUSE, dag, instant, topologies_and_jobs
from tidemark_airflow.operators.checks import asked_asset
from tidemark_airflow.operators.sla import CheckSlas, DeliverChanges, JudgeSuites, PublishChanges, channels

DOC = """
Runs when the checker has found that a promise of the topology `{name}` breaks or holds again, or that a channel has
something to deliver. `check_sla` sends each change of an incident once to every channel of
`expectations/channels.toml`: when the incident is opened, escalated, acknowledged or resolved. What a channel did not
take is sent again by its task `tell_CHANNEL`. Afterwards the suites of great-expectations judge what the checker has
stored.

Trigger it to check the SLAs as of an instant:

* **at** (ISO 8601, UTC) is the instant; empty: when the run was triggered. A past instant opens no incident.

The results are rows of `sla_results` and `incidents` with the id of the check, and of `expectation_results`. A broken
SLA never fails the run. An invalid SLA fails `check_sla` after all valid ones were checked; `publish_changes` and
`tell_CHANNEL` deliver their changes then. A channel that fails fails its task, and gets the changes in a later run.
"""
AT = "{{ params['at'] or dag_run.run_after.isoformat() }}"
HANGS_AFTER = timedelta(minutes=30)
AT_ONCE = 3
BEFORE_SUITES = 10
"""Priority of what tells people, above that of reports and suites."""
TELLING_HANGS_AFTER = timedelta(minutes=15)
"""Time limit of tasks that tell, longer than the 10 minutes that a channel waits for another run."""


def make() -> Iterator[DAG]:
    """Makes the DAG of each topology, also of those of jobs."""
    for topology in topologies_and_jobs().values():
        params = {"at": instant("now")}
        asked = [asked_asset(topology.name)]
        # The next alert does not wait for the suites of the one before.
        more = {"params": params, "max_active_runs": AT_ONCE}
        with dag(topology, "sla_check", doc=DOC, schedule=asked, **more) as of_checks:
            of_job: dict[str, Any] = {"topology": topology, "warehouse": WAREHOUSE, "execution_timeout": HANGS_AFTER}
            check = CheckSlas(
                priority_weight=BEFORE_SUITES, arguments=["--at", AT, "--run-id", "{{ run_id }}"], **of_job
            )
            # An invalid SLA fails the check, after it judged the others.
            of_topology: dict[str, Any] = {"topology": topology.name, "warehouse": WAREHOUSE}
            of_topology |= {"execution_timeout": TELLING_HANGS_AFTER, "priority_weight": BEFORE_SUITES}
            tell = [
                DeliverChanges(channel=channel, trigger_rule="all_done", **of_topology)
                for channel in channels(topology.name)
            ]
            publish = PublishChanges(task_id="publish_changes", trigger_rule="all_failed", **of_topology)
            suites = JudgeSuites(trigger_rule="all_done", **of_job)
            # Without this leaf a failed channel would not fail the run.
            done = EmptyOperator(task_id="done", trigger_rule="none_failed")
            chain(check, [publish, *tell, suites], done)
            chain(check, done)
        yield of_checks
