"""Reports about a day come after those about its hours."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context

HOUR = timedelta(hours=1)


class HoursReported(BaseSensorOperator):
    """Waits as long as runs of the DAG *hourly* about hours of this run's data interval have not ended.

    An hour without a run, of a backfill or a paused DAG, is not waited for, and neither is anything by a run that has
    no data interval.
    """

    def __init__(self, *, hourly: str, **kwargs: Any) -> None:
        super().__init__(mode="reschedule", timeout=timedelta(hours=6), **kwargs)
        self.hourly = hourly

    def poke(self, context: Context) -> bool:
        """Whether none goes on."""
        start, end = context.get("data_interval_start"), context.get("data_interval_end")
        if start is None or end is None:
            return True
        length_h = round((end - start).total_seconds() / HOUR.total_seconds())
        hours: list[datetime] = [start + n * HOUR for n in range(length_h)]
        going_on = context["ti"].get_dr_count(self.hourly, logical_dates=hours, states=["queued", "running"])
        return not going_on
