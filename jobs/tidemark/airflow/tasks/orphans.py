"""Ends orphaned drivers when a triggerer starts.

Their tasks were cleared or marked while no triggerer ran.

Purpose: only a running triggerer learns that a deferred task was cleared or marked; one that starts forgets the
triggers that no task waits for any more, and their drivers would run on without supervision.

How it works: before that, this plugin looks for them among Airflow's triggers, and stops their drivers as `on_kill`
would have. A driver that a waiting task has adopted since is left alone. Every part of Airflow imports this file, so
what a triggerer needs is imported when one starts.

Known limitation: where several triggerers run, another one may have forgotten them already.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from airflow.models.trigger import Trigger

    from tidemark.airflow.tasks.stream import StreamTrigger

log = logging.getLogger(__name__)
OURS = ("tidemark.airflow.tasks.stream.StreamTrigger", "tidemark_stream.StreamTrigger")
"""The trigger of a driver, with its name in version 0.1."""


class OrphanListener:
    """Listens for the start of a triggerer."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Ends orphans if the part of Airflow that starts is a triggerer."""
        # *component* is a job whose kind Airflow has not set yet.
        if "triggerer" not in sys.argv:
            return
        from airflow.models.connection import Connection

        from tidemark.airflow.tasks.store import warehouse_at

        for trigger in orphans():
            try:
                warehouse_at(trigger.home, Connection.get_connection_from_secrets)
                trigger.stop()
            except Exception:
                log.exception("an unsupervised driver could not be ended; the triggerer starts nevertheless")


def orphans() -> list[StreamTrigger]:
    """Returns the triggers of drivers for which no task waits any more."""
    from airflow.models.taskinstance import TaskInstance  # the database is for the triggerer alone
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    from tidemark.airflow.tasks.stream import StreamTrigger

    with create_session() as session:
        triggers = session.query(Trigger).filter(Trigger.classpath.in_(OURS)).all()
        waited_for = session.query(TaskInstance.trigger_id).filter(TaskInstance.state == TaskInstanceState.DEFERRED)
        ids = {id_ for (id_,) in waited_for}
        needed = {_home(trigger) for trigger in triggers if trigger.id in ids}
        # A task may wait with another trigger for the same driver.
        return [StreamTrigger(**trigger.kwargs) for trigger in triggers if _home(trigger) not in needed]


def _home(trigger: Trigger) -> str:
    return str(trigger.kwargs["home"])


class TidemarkOrphans(AirflowPlugin):
    """The plugin as Airflow reads it."""

    name = "tidemark_orphans"
    listeners = [OrphanListener()]  # noqa: RUF012 - Airflow reads it from the class
