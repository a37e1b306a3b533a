"""Commands for remedies, in backticks, with the names of the topology that is asked about."""

from __future__ import annotations

import shlex

from tidemark.model.kinds.source import Source
from tidemark.model.settings.windows import Shape
from tidemark.model.topology import JobLaunch
from tidemark.safe_text import as_code
from tidemark.semantics.liveness import GOES_ON
from tidemark.why.evidence.snapshot import Scene

LIVE = "`tidemark check --live` shows what the topics have"
BY_COMMAND = "tidemark run by "
"""How `launched_by` begins if `tidemark run` launched the job."""


def start(scene: Scene, name: str) -> str:
    """Returns how to start or replace the driver of the operator *name*, with the command."""
    topology, sub = scene.topology.name, scene.sub(name).name
    if (launch := scene.topology.jobs.get(sub)) is not None:
        return f"run the job of {sub} again: {run_job(topology, launch)}"
    dag = f"tidemark_{topology}_streams"
    # While any driver of the topology lives, the run of its DAG continues, and one task of it is cleared. Otherwise a
    # new run starts all of its streams.
    if any(facts.driver.liveness in GOES_ON for facts in scene.facts.values()):
        clear = f"airflow tasks clear {dag} --task-regex '^{sub}$'"
        return f"restart the driver of {sub}: `tidemark restart {topology}/{sub}` (in another Airflow `{clear}`)"
    trigger = f"airflow dags unpause {dag} && airflow dags trigger {dag}"
    return f"start the driver of {sub}: `tidemark up {topology}` (in another Airflow `{trigger}`)"


def run_job(topology: str, launch: JobLaunch) -> str:
    """Returns how to run the job of *launch* again, whose queries are the streams of *topology*."""
    if launch.launched_by and not launch.launched_by.startswith(BY_COMMAND):
        return f"clear its task in Airflow, or trigger its DAG; it was launched by {launch.launched_by}"
    words = ["tidemark", "run", topology, "--application", launch.application or "FILE"]
    words += [f"--argument={argument}" for argument in launch.arguments]
    words += [f"--consumer-groups={launch.consumer_groups}"] if launch.consumer_groups else []
    words += [f"--observe={column}" for column in launch.observe]
    command = as_code(shlex.join(words))
    return command if launch.launched_by else f"{command} (in Airflow clear its task)"


def logs(scene: Scene, name: str, options: str = "") -> str:
    """Returns the command that shows the log of the driver that runs the operator *name*."""
    return f"`tidemark logs {scene.topology.name}/{scene.sub(name).name}{options}`"


def quarantine_query(scene: Scene, name: str) -> str:
    """Returns the command that lists the records that the operator *name* quarantined."""
    return f"`tidemark sql \"from quarantine where topology = '{scene.topology.name}' and source = '{name}'\"`"


def requeue(scene: Scene, source: Source, reason: str = "") -> str:
    """Returns how to send the quarantined records of *source* again; with a *reason*, only those of that reason."""
    if source.topic is None:  # records can be sent to topics only
        return f"have what writes to {source.read_from} write them again"
    options = f" --reason {reason}" if reason else ""
    return f"`tidemark requeue {scene.topology.name} --source {source.name}{options}` sends them again"


def requeue_late(scene: Scene, name: str) -> str:
    """Returns where the late records of the operator *name* are listed, and the command that sends them again."""
    operator, sources = scene.operator(name), list(scene.sources(name).values())
    late = f"tidemark requeue {scene.topology.name} --late"
    windows = operator.windows
    if windows is not None and windows.reopen_for_ms is not None and windows.shape is not Shape.SESSION:
        remedy = f"; `{late} --reopen --operator {name}` adds them to closed windows"
    elif len(sources) == 1 and sources[0].topic:  # the table does not say which of several
        remedy = f"; `{late} --source {sources[0].name}` sends them again"
    else:
        remedy = ""
    return f"the table late_records lists them, and requeued those that were sent or processed again{remedy}"
