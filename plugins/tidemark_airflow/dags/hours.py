"""Decides when reports run: the first one soon after a start, and that of a day after those of its hours."""

from __future__ import annotations

from datetime import datetime, timedelta
from inspect import signature
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

HOUR = timedelta(hours=1)
SOON = timedelta(minutes=3)
"""The first report runs so long after a start of streams."""
RUNS_WAIT = "run_after" in signature(DagRunTriggerException).parameters
"""True if triggered runs can wait; they cannot in Airflow 3.2."""


class FirstReport(BaseOperator):
    """Triggers a run of *reports* SOON after a start of streams, about the hour of that time.

    The operator ends at once, because the run waits for its time; in Airflow 3.2 the operator waits, in the triggerer.
    The rows and the page of the whole hour replace those of this report. With the param `first_report` false nothing is
    triggered.
    """

    def __init__(self, *, reports: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reports = reports

    def execute(self, context: Context) -> None:
        """Triggers the run, or waits for its time."""
        if not context["params"]["first_report"]:
            msg = "no report is wanted soon after this start"
            raise AirflowSkipException(msg)
        if not RUNS_WAIT:
            from airflow.providers.standard.triggers.temporal import DateTimeTrigger  # parsers of DAGs do not need it

            self.defer(trigger=DateTimeTrigger(_due(context)), method_name="trigger")
        self.trigger(context)

    def trigger(self, context: Context, event: object = None) -> NoReturn:
        """Triggers the run; *event* is the end of the wait."""
        due = _due(context)
        hour = due.replace(minute=0, second=0, microsecond=0)
        at: dict[str, Any] = {"run_after": due} if RUNS_WAIT else {}
        # Airflow's TriggerDagRunOperator raises this, too. For the operator every parser of DAGs would import 14
        # modules.
        raise DagRunTriggerException(
            trigger_dag_id=self.reports,
            dag_run_id=f"first__{due.isoformat()}",
            **at,
            conf={"from": hour.isoformat(), "to": (hour + HOUR).isoformat()},
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=0,
            deferrable=False,
        )


def _due(context: Context) -> datetime:
    due: datetime = context["dag_run"].run_after + SOON
    return due


class HourlyReportSensor(BaseSensorOperator):
    """Waits for the runs of the DAG *hourly* in its interval.

    An hour without a run, of a backfill or a paused DAG, is not waited for. A run without a data interval waits for
    nothing.
    """

    def __init__(self, *, hourly: str, **kwargs: Any) -> None:
        # In this mode the sensor holds no slot of a worker while it waits.
        super().__init__(mode="reschedule", timeout=timedelta(hours=6), **kwargs)
        self.hourly = hourly

    def poke(self, context: Context) -> bool:
        """Returns True if no such run is queued or running."""
        start, end = context.get("data_interval_start"), context.get("data_interval_end")
        if start is None or end is None:
            return True
        length_h = round((end - start).total_seconds() / HOUR.total_seconds())
        hours: list[datetime] = [start + n * HOUR for n in range(length_h)]
        unfinished = context["ti"].get_dr_count(self.hourly, logical_dates=hours, states=["queued", "running"])
        return not unfinished
