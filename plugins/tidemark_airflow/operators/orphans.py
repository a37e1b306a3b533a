"""Ends drivers that no task can supervise any more.

Purpose: only a running triggerer learns that a deferred task was cleared or marked; one that starts forgets the
triggers that no task waits for any more. Airflow also resumes no task of a DAG that was removed or renamed. In both
cases the drivers would run on without supervision.

How it works: when a triggerer starts, this plugin looks among Airflow's triggers for those that no task waits for, and
stops their drivers as `on_kill` would have. It does the same once in LOOKS_EVERY_S for tasks of removed DAGs. A driver
that a waiting task of another DAG has adopted since is left alone. Every part of Airflow imports this file, so what a
triggerer needs is imported when one starts.

A DAG is removed if Airflow has marked it as stale: its file was parsed without it for a minute, or is gone. While that
file, or any topology, has a mistake, or no topology is there at all, no DAG counts as removed.

Known limitation: where several triggerers run, another one may have forgotten them already.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.models.trigger import Trigger
    from sqlalchemy.orm import Session

    from tidemark_airflow.operators.stream import StreamTrigger

log = logging.getLogger(__name__)
OURS = "tidemark_airflow.operators.stream.StreamTrigger"
"""The class of the trigger that waits for a driver, as the database names it."""
LOOKS_EVERY_S = 60.0


class OrphanListener:
    """Listens for the start of a triggerer."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Ends orphans if the part of Airflow that starts is a triggerer."""
        # *component* is a job whose kind Airflow has not set yet.
        if "triggerer" not in sys.argv:
            return
        _end_all(orphans, "the task was cleared or marked")
        threading.Thread(target=_watch, name="tidemark-orphans", daemon=True).start()


def _watch() -> None:
    """Ends drivers of removed DAGs for as long as the triggerer runs."""
    # The thread waits first, because it holds no lock then, and the triggerer forks in that time.
    never = threading.Event()
    while not never.wait(LOOKS_EVERY_S):
        _end_all(removed, "the DAG was removed or renamed")


def _end_all(find: Callable[[], list[StreamTrigger]], why: str) -> None:
    """Stops the drivers of the triggers that *find* returns."""
    from airflow.models.connection import Connection

    from tidemark_airflow.operators.store import warehouse_at

    try:
        triggers = find()
    except Exception:
        log.exception("Airflow's database cannot be asked for drivers without a task")
        return
    for trigger in triggers:
        try:
            warehouse_at(trigger.home, Connection.get_connection_from_secrets)
            trigger.stop(why)
        except Exception:
            log.exception("an unsupervised driver could not be ended; the triggerer continues nevertheless")


def orphans() -> list[StreamTrigger]:
    """Returns the triggers of drivers for which no task waits any more."""
    from airflow.utils.session import create_session

    with create_session() as session:
        triggers, waited_for = _triggers(session), _waited_for(session)
        needed = {_home(trigger) for trigger in triggers if trigger.id in waited_for}
        return _without(triggers, needed)


def removed() -> list[StreamTrigger]:
    """Returns the triggers for which only tasks of removed DAGs wait."""
    from airflow.utils.session import create_session

    from tidemark.model.project.files import Project

    if are_incomplete(Project.here().topologies):
        return []
    with create_session() as session:
        waited_for, dags = _waited_for(session), _removed_dags(session)
        triggers = [trigger for trigger in _triggers(session) if trigger.id in waited_for]
        needed = {_home(trigger) for trigger in triggers if waited_for[trigger.id] - dags}
        return _without(triggers, needed)


def _without(triggers: list[Trigger], needed: set[str]) -> list[StreamTrigger]:
    """Returns the triggers of drivers with no home in *needed*."""
    from tidemark_airflow.operators.stream import StreamTrigger

    # A task may wait with another trigger for the same driver.
    return [StreamTrigger(**trigger.kwargs) for trigger in triggers if _home(trigger) not in needed]


def _triggers(session: Session) -> list[Trigger]:
    from airflow.models.trigger import Trigger  # the database is for the triggerer alone

    return session.query(Trigger).filter(Trigger.classpath == OURS).all()


def _waited_for(session: Session) -> dict[int, set[str]]:
    """Returns the DAGs whose tasks wait, by the id of the trigger."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState

    dags: dict[int, set[str]] = {}
    waiting = session.query(TaskInstance.trigger_id, TaskInstance.dag_id)
    for trigger_id, dag_id in waiting.filter(TaskInstance.state == TaskInstanceState.DEFERRED):
        if trigger_id is not None:
            dags.setdefault(trigger_id, set()).add(dag_id)
    return dags


def _removed_dags(session: Session) -> set[str]:
    """Returns the DAGs that are in no file any more.

    Airflow marks the DAGs of a file that cannot be imported as stale, too: these count as there.
    """
    from airflow.models.dag import DagModel
    from airflow.models.errors import ParseImportError

    failed = {(error.bundle_name, error.filename) for error in session.query(ParseImportError)}
    stale = session.query(DagModel).filter(DagModel.is_stale)
    return {dag.dag_id for dag in stale if (dag.bundle_name, dag.relative_fileloc) not in failed}


def are_incomplete(topologies: Path) -> bool:
    """Returns True if no topology is there, or one is invalid."""
    from tidemark.errors import InvalidSpec
    from tidemark.model.topology import load_each

    # A volume that is not mounted removes no DAG.
    results = load_each(topologies).values()
    return not results or any(isinstance(result, InvalidSpec) for result in results)


def _home(trigger: Trigger) -> str:
    return str(trigger.kwargs["home"])


class TidemarkOrphans(AirflowPlugin):
    """The plugin as Airflow reads it."""

    name = "tidemark_orphans"
    listeners = [OrphanListener()]  # noqa: RUF012 - Airflow reads it from the class
