"""Reads and writes incidents and alerts of a topology."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import polars.selectors as cs

from tidemark.facts.checks import Check, newest_check
from tidemark.facts.fact_tables import Stored
from tidemark.facts.report_rows import lies_in, report_rows, rows_in
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, is_text, utc
from tidemark.model.settings.lengths import for_people, percent
from tidemark.model.sla_event_rows import TABLE_OF, E, events_of, row_of, rows_of
from tidemark.model.sla_events import Alert, AlertDecided, Delivery, IncidentChange, SlaResult, still_open
from tidemark.model.slas.channel_spec import Channel
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import ALERTS, DELIVERIES, INCIDENTS, SLA_RESULTS
from tidemark.model.topology import Topology, load_each
from tidemark.reports.batch_job import AT_MOST_S, report_lock
from tidemark.selection import present
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Unit
from tidemark.sla.incidents.changes import (
    PAST,
    acknowledged,
    acknowledgement,
    changes,
    gap_ms,
    looks_back_ms,
    missed_check,
)
from tidemark.sla.incidents.due import RETRIED_MS, DueAlert, TopologyAlerts, due_changes
from tidemark.sla.incidents.grouping import alert_changes
from tidemark.sla.measures.crossings import CheckBefore
from tidemark.storage.delta.report_tables import open_report, replace_in, replace_rows
from tidemark.storage.delta.tables import again_after_others
from tidemark.storage.locks import locked, own_folder
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)
T = TypeVar("T")
_FOR_ALERTS = (
    *("topology", "sla", "checked_at", "run_id", "verdict", "excluded_because", "culprit", "blocked_by", "message"),
    *("observed_ms", "records", "share", "burn_rate", "budget_left"),
    *(name for name in SLA_RESULTS.names if name.startswith("cause") or name == "other_causes"),
)
"""Columns of `sla_results` that alerts follow from."""


def worst_text(row: Mapping[str, Any]) -> str | None:
    """Returns the worst value of a row of `incident_history` as text, or None if it has none.


    >>> [worst_text({"worst_observed": 0.5, "unit": unit}) for unit in ("ms", "rows", "burn rate", "share")]
    ['0 ms', '0.5 rows', '0.5 times the budget', '50.00 % of the records']
    """
    value, unit = row["worst_observed"], row["unit"]
    if value is None or unit is None:
        return None
    match unit:
        case Unit.MS:
            return for_people(value)
        case Unit.BURN_RATE:
            return f"{value:,g} times the budget"
        case Unit.SHARE:
            return f"{percent(value, 2)} of the records"
        case _:
            return f"{value:,g} {unit}"


def is_checked_after(layout: Layout, topology: str, at_ms: int, run_id: str) -> bool:
    """Returns True if another run checked *topology* after *at_ms*."""
    return _newest_check(layout, topology, pl.col("checked_at") > utc(at_ms), _by_others(run_id)) is not None


def checked_before(layout: Layout, topology: str, at_ms: int, run_id: str) -> int | None:
    """Returns the last instant before *at_ms* that another run checked, if any."""
    check = _newest_check(layout, topology, _before(at_ms), _by_others(run_id))
    return None if check is None else check.at_ms


def open_account_before(layout: Layout, topology: str, at_ms: int, run_id: str) -> int | None:
    """Returns since when the oldest open account of records is open, epoch ms, or None if all are closed.

    The last check before *at_ms* counts that another run than *run_id* made and that measured completeness.
    """
    is_measured = (pl.col("measure") == COMPLETENESS.name) & pl.col("observed_ms").is_not_null()
    where = (_before(at_ms), _by_others(run_id), is_measured)
    check = _newest_check(layout, topology, *where, columns=["observed_ms"])
    # A closed account has been open for 0 ms.
    longest_ms = max((row["observed_ms"] for row in check.rows), default=0) if check else 0
    return round(check.at_ms - longest_ms) if check and longest_ms > 0 else None


def found_before(layout: Layout, topology: str, at_ms: int, run_id: str) -> dict[str, CheckBefore]:
    """Returns what the last check before *at_ms* by another run found, by SLA."""
    columns = ("sla", "verdict", "crossed_at")
    check = _newest_check(layout, topology, _before(at_ms), _by_others(run_id), columns=columns)
    if check is None:
        return {}
    found: dict[str, CheckBefore] = {}
    for row in check.rows:
        crossed_ms = None if row["crossed_at"] is None else round(row["crossed_at"].timestamp() * 1_000)
        found[row["sla"]] = CheckBefore(check.at_ms, row["verdict"] in BROKEN, crossed_ms)
    return found


def _newest_check(layout: Layout, topology: str, *where: pl.Expr, columns: Sequence[str] = ()) -> Check | None:
    return newest_check(Stored(), layout, topology, *where, columns=columns)


def _before(at_ms: int) -> pl.Expr:
    return pl.col("checked_at") < utc(at_ms)


def _by_others(run_id: str) -> pl.Expr:
    return pl.col("run_id") != run_id


def follow_up(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    *,
    at_ms: int,
    run_id: str,
    made_ms: int | None = None,
    unusable: Collection[str] = (),
    project: Path | None = None,
) -> list[IncidentChange]:
    """Writes the changes of incidents that follow from checks.

    Args:
        layout: paths of the warehouse.
        topology: the topology whose incidents they are.
        specs: the promised SLAs that can be judged.
        at_ms: the instant of the newest check, epoch ms.
        run_id: the run of that check, to which the changes belong.
        made_ms: the clock when it was made, epoch ms; None if that is *at_ms*.
        unusable: names of SLAs that are promised and cannot be judged.
        project: the folder of the topologies that may read its topics.

    Returns:
        The changes that were written. A second call writes and returns none.
    """
    # Intervals exclude their end.
    recent = lies_in("checked_at", Interval(at_ms - looks_back_ms(specs), at_ms + 1))
    checks = _stored(SlaResult, layout, topology.name, recent)
    last_ms = _last_check_ms(layout, topology, at_ms)

    def follow(incidents: list[IncidentChange]) -> list[IncidentChange]:
        missed = missed_check(topology, last_ms, incidents, at_ms=at_ms)
        found = changes(
            specs,
            checks,
            [*incidents, *missed],
            at_ms=at_ms,
            gap_ms=gap_ms(topology),
            made_ms=made_ms,
            unusable=unusable,
        )
        return [replace(each, run_id=run_id) for each in (*missed, *found)]

    added = _add(layout, topology.name, follow)
    follow_alerts(layout, topology, at_ms=at_ms, project=project)
    return added


def follow_alerts(layout: Layout, topology: Topology, *, at_ms: int, project: Path | None = None) -> None:
    """Writes the changes of alerts that follow from incidents.

    Args:
        layout: of the warehouse.
        topology: whose alerts they are.
        at_ms: the instant of the newest check, epoch ms.
        project: the folder of the topologies that may read its topics.
    """

    @cache
    def elsewhere() -> list[Alert]:
        return [*chain.from_iterable(_of_others(layout, topology.name, partial(_stored, Alert, layout)))]

    def write() -> None:
        incidents = _stored(IncidentChange, layout, topology.name)
        if not incidents:
            return
        stored = open_report(ALERTS, layout.report_table(topology.name, ALERTS.name))
        alerts = events_of(Alert, in_ms(rows_in(stored)))
        since_ms = at_ms - RETRIED_MS
        unresolved = still_open(incidents)
        oldest_ms = min([since_ms, *(each.opened_ms or 0 for each in unresolved.values())])
        # Intervals exclude their end.
        checks = lies_in("checked_at", Interval(oldest_ms, at_ms + 1))
        results = _stored(SlaResult, layout, topology.name, checks, columns=_FOR_ALERTS)
        readers = _topologies(project) if project is not None and unresolved else []
        found = alert_changes(
            topology,
            incidents,
            results,
            alerts,
            at_ms=at_ms,
            since_ms=since_ms,
            project=readers,
            elsewhere=elsewhere,
        )
        if found:
            replace_in(stored, rows_of(found), ALERTS, where=_are_those(found, "alert"))

    again_after_others(write)


def _of_others(layout: Layout, topology: str, read: Callable[[str], T]) -> Iterator[T]:
    """Yields what *read* returns for each other topology of the warehouse that has alerts."""
    pattern = layout.report_table("*", ALERTS.name).relative_to(layout.warehouse)
    for name in sorted({path.parent.name for path in layout.warehouse.glob(str(pattern))} - {topology}):
        try:
            yield read(name)
        except Exception:
            # What a topology alerts must not depend on the right to read another one, or on the state of its tables.
            log.warning("the alerts of %s cannot be read", name, exc_info=True)


def _stored(
    kind: type[E], layout: Layout, topology: str, *where: pl.Expr, columns: Sequence[str] | None = None
) -> list[E]:
    """Returns the stored events of this *kind* for whose rows *where* is true."""
    return events_of(kind, in_ms(report_rows(layout, topology, TABLE_OF[kind], *where, columns=columns)))


def _topologies(folder: Path) -> list[Topology]:
    """Returns the topologies in *folder* that can be used."""
    return [each for each in load_each(folder).values() if isinstance(each, Topology)]


def open_missed_checks(layout: Layout, topology: Topology, *, at_ms: int) -> list[IncidentChange]:
    """Opens an incident if a check of *topology* was missed.

    A check is due at *at_ms*, epoch ms. Returns the changes that were written. There are none if a check was made, or
    the incident is open.
    """
    last_ms = _last_check_ms(layout, topology, at_ms)
    added = _add(
        layout, topology.name, lambda incidents: missed_check(topology, last_ms, incidents, at_ms=at_ms, is_due=True)
    )
    follow_alerts(layout, topology, at_ms=at_ms)
    return added


def _last_check_ms(layout: Layout, topology: Topology, at_ms: int) -> int | None:
    """Returns the instant of the newest check before *at_ms* that was not for the past, or None without one."""
    why = pl.col("excluded_because")
    check = _newest_check(layout, topology.name, _before(at_ms), why.is_null() | (why != PAST))
    return None if check is None else check.at_ms


def _add(
    layout: Layout, topology: str, new_changes: Callable[[list[IncidentChange]], list[IncidentChange]]
) -> list[IncidentChange]:
    """Writes and returns the *new_changes*, which are derived from those that are stored."""

    def write() -> list[IncidentChange]:
        stored = open_report(INCIDENTS, layout.report_table(topology, INCIDENTS.name))
        found = new_changes(events_of(IncidentChange, in_ms(rows_in(stored))))
        if found:
            replace_in(stored, rows_of(found), INCIDENTS, where=_are_those(found, "incident"))
        return found

    # They are derived again if others wrote meanwhile.
    return again_after_others(write)


def acknowledge(
    layout: Layout, topology: str, incident: str, *, by: str, note: str, at_ms: int
) -> IncidentChange | None:
    """Writes that *by* acknowledges *incident*.

    Args:
        layout: paths of the warehouse.
        topology: the topology whose incident it is.
        incident: name of the incident.
        by: the person who acknowledges it.
        note: what that person notes; may be empty.
        at_ms: when they do so, epoch ms.

    Returns:
        The acknowledgement that was made earlier, or None if this one was written.

    Raises:
        InvalidArgument: the incident is not open.
    """
    earlier: IncidentChange | None = None

    def new_changes(incidents: list[IncidentChange]) -> list[IncidentChange]:
        nonlocal earlier
        change = acknowledgement(incidents, incident, by=by, note=note, at_ms=at_ms)
        earlier = acknowledged(incidents, incident)
        return present((change,))

    _add(layout, topology, new_changes)
    return earlier


def open_slas(layout: Layout, topology: str) -> dict[str, str]:
    """Returns the SLA of each open incident of *topology*, by its name."""
    return {name: each.sla for name, each in still_open(_stored(IncidentChange, layout, topology)).items()}


def made_by(layout: Layout, topology: str, run_id: str) -> list[dict[str, Any]]:
    """Returns the changes of incidents that the check of *run_id* made.

    They can be written as JSON: instants are text in ISO 8601.
    """
    rows = report_rows(layout, topology, INCIDENTS, pl.col("run_id") == run_id).sort("changed_at", "incident")
    return rows.with_columns(cs.datetime().dt.to_string("iso:strict")).to_dicts()


def pending_changes(layout: Layout, topology: str, channel: Channel, *, now_ms: int) -> list[DueAlert]:
    """Returns the changes of alerts that *channel* has to deliver, oldest first.

    They match its filters and are not delivered by it yet. Changes of resolved alerts are left out if they are older
    than RETRIED_MS, unless the channel keeps state and opened the alert. Silenced alerts wait. Each table is read once;
    those of other topologies only if this one has an alert that may be theirs.
    """

    def alerts_of(name: str) -> TopologyAlerts:
        by_them = pl.col("channel").is_in([channel.name, *channel.escalated_by])
        return TopologyAlerts(
            alerts=_stored(Alert, layout, name),
            deliveries=_stored(Delivery, layout, name, by_them),
            decisions=stored_decisions(layout, name),
        )

    @cache
    def elsewhere() -> list[TopologyAlerts]:
        return [*_of_others(layout, topology, alerts_of)]

    return due_changes(channel, alerts_of(topology), now_ms=now_ms, elsewhere=elsewhere)


def stored_decisions(layout: Layout, topology: str) -> list[AlertDecided]:
    """Returns the decisions about alerts."""
    return _stored(AlertDecided, layout, topology, pl.col("outcome").is_null())


@contextmanager
def channel_lock(layout: Layout, topology: str, channel: Channel) -> Iterator[None]:
    """Holds the lock of *channel* of *topology*.

    Raises:
        LockHeld: another process has held it for AT_MOST_S.
    """
    # One process at a time delivers to a channel, so that no change is delivered twice.
    with report_lock(layout, topology):
        home = layout.report_control(topology)
        # In an object store the lease of `report_lock` covers all channels.
        if isinstance(home, ObjectPath):
            yield
            return
        own_folder(home)
        with locked(home / f"{channel.name}.lock", within_s=AT_MOST_S):
            yield


def record_delivery(layout: Layout, due: DueAlert, channel: Channel, *, at_ms: int, run_id: str) -> None:
    """Writes that *channel* has delivered the change that was *due*.

    Args:
        layout: paths of the warehouse.
        due: the change of an alert.
        channel: the channel that delivered it.
        at_ms: when it did, epoch ms.
        run_id: the run that did so.
    """
    made = Delivery(
        topology=due.alert.topology,
        alert=due.alert.alert,
        change=due.change,
        channel=channel.name,
        delivered_ms=at_ms,
        run_id=run_id,
        reminder=due.reminder,
    )
    is_same = "reminder IS NULL" if due.reminder is None else f"reminder = {due.reminder}"
    where = f"{_are_those([made], 'alert')} AND {is_text('channel', channel.name)} AND {is_same}"
    replace_rows([row_of(made)], DELIVERIES, layout.report_table(made.topology, DELIVERIES.name), where=where)


def _are_those(events: Sequence[IncidentChange | Alert | Delivery], name: str) -> str:
    """Returns a condition in SQL that is true for the rows of these changes, by the column *name* and their change."""
    each = (f"({is_text(name, getattr(event, name))} AND {is_text('change', event.change)})" for event in events)
    return f"({' OR '.join(each)})"


def in_ms(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Returns *rows* with instants as epoch ms."""
    return rows.with_columns(cs.datetime().dt.epoch("ms")).to_dicts()
