"""From a broken SLA to somebody who knows of it: result row, asset event, alert. None of it fails a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, BaseNotifier, BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.object_path import ObjectPath
from tidemark.place import location
from tidemark.spec.layout import Layout

log = logging.getLogger(__name__)


def sla_asset(topology: str) -> Asset:
    """The asset that is updated when a check of *topology* finds an SLA that does not hold."""
    return Asset(name=f"tidemark_{topology}_sla")


def alerts_file(warehouse: str, topology: str) -> Path:
    """Where the alerts of *topology* are kept, one JSON object per line."""
    return location(warehouse) / "control" / topology / "alerts.jsonl"


def breaches(warehouse: str, topology: str, run_id: str) -> list[dict[str, Any]]:
    """The SLAs that did not pass in the check that *run_id* asked for, each a row of `sla_results` fit for JSON."""
    from deltalake import DeltaTable  # costs 0.3 s, and only this task needs it

    table = DeltaTable(str(Layout(location(warehouse)).report_table(topology, "sla_results")))
    rows = table.to_pyarrow_table(filters=[("run_id", "=", run_id), ("verdict", "!=", "pass")]).to_pylist()
    return [{**row, "checked_at": row["checked_at"].isoformat()} for row in rows]


def alert_line(breach: Mapping[str, Any]) -> str:
    """One line that says what is wrong with what, by how much, whose step it is and who is told."""
    observed, limit = breach["observed_ms"], breach["error_after_ms"]
    seen = "nothing measured" if observed is None else f"{observed:,.0f} ms"
    allowed = "" if limit is None else f", error after {limit:,.0f} ms"
    blamed = f", look at {breach['culprit']}" if breach["culprit"] else ""
    head = f"SLA {breach['sla']} of {breach['topology']}: {breach['verdict']}"
    return f"{head}: {breach['measure']} of {breach['subject']} is {seen}{allowed}{blamed} (owner: {breach['owner']})"


class PublishBreaches(BaseOperator):
    """Updates the asset of *topology* with the breaches that this run's check found; skips where every SLA holds.

    It skips as well, once they are in its log, where the run has a param `alert` that is false.
    """

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(self, *, topology: str, warehouse: str, **kwargs: Any) -> None:
        super().__init__(outlets=[sla_asset(topology)], **kwargs)
        self.topology = topology
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Publish, or skip."""
        found = breaches(self.warehouse, self.topology, str(context["run_id"]))
        if not found:
            msg = "every SLA holds"
            raise AirflowSkipException(msg)
        for breach in found:
            log.warning(alert_line(breach))
        if not context["params"].get("alert", True):
            msg = "nobody is told: the param alert is false"
            raise AirflowSkipException(msg)
        context["outlet_events"][sla_asset(self.topology)].extra["breaches"] = [*found]


class DeliverAlerts(BaseOperator):
    """Hands the asset events that triggered the run to each of *notifiers*."""

    def __init__(self, *, notifiers: Sequence[BaseNotifier], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notifiers = notifiers

    def execute(self, context: Context) -> None:
        """Deliver; a notifier that raises fails the task, which may be tried again."""
        for notifier in self.notifiers:
            notifier(context)


class SlaNotifier(BaseNotifier):
    """Writes a line per breach to the task's log, and a JSON object per breach to the warehouse's `alerts.jsonl`.

    There is no such file in an object store.
    """

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(self, *, topology: str, warehouse: str) -> None:
        super().__init__()
        self.topology = topology
        self.warehouse = warehouse

    def notify(self, context: Context) -> None:
        """Deliver every breach of the events that triggered the run."""
        breaches = [*_breaches(context)]
        for breach in breaches:
            log.warning(alert_line(breach))
        file = alerts_file(self.warehouse, self.topology)
        if isinstance(file, ObjectPath):  # to which nothing can be appended
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            for breach in breaches:
                lines.write(json.dumps({**breach, "alert": alert_line(breach)}, ensure_ascii=False) + "\n")


def _breaches(context: Context) -> Iterator[dict[str, Any]]:
    for events in context["triggering_asset_events"].values():
        for event in events:
            yield from (event.extra or {}).get("breaches", [])
