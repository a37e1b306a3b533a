"""Reads and writes incidents and alerts of a topology."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from tidemark.collecting import in_order_of
from tidemark.facts.checks import Check, newest_check
from tidemark.facts.fact_tables import Stored
from tidemark.facts.report_rows import lies_in, report_rows, rows_in
from tidemark.model.channel_spec import Channel
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, is_text, utc
from tidemark.model.settings.lengths import for_people
from tidemark.model.sla_spec import Measure, SlaSpec
from tidemark.model.tables.catalog import ALERTS, DECISIONS, DELIVERIES, INCIDENTS, SLA_RESULTS
from tidemark.model.topology import Topology, load_each
from tidemark.reports.batch_job import AT_MOST_S, report_lock
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Unit
from tidemark.sla.incidents.changes import (
    PAST,
    Row,
    acknowledged,
    acknowledgement,
    changes,
    gap_ms,
    looks_back_ms,
    missed_check,
    open_incidents,
)
from tidemark.sla.incidents.due import RETRIED_MS, due_changes
from tidemark.sla.incidents.grouping import alert_changes
from tidemark.sla.measures.crossings import CheckBefore
from tidemark.sla.measures.status import CAUSE, CAUSE_SINCE
from tidemark.storage.delta.report_tables import open_report, replace_in, replace_rows
from tidemark.storage.delta.tables import again_after_others
from tidemark.storage.locks import locked, own_folder
from tidemark.storage.object_path import ObjectPath

_FOR_ALERTS = ("sla", "checked_at", "verdict", "excluded_because", "culprit", "blocked_by", *CAUSE, CAUSE_SINCE)


def worst_text(row: Row) -> str | None:
    """Returns the worst value of a row of `incident_history`; None: none.

    >>> [worst_text({"worst_observed": 0.5, "unit": unit}) for unit in ("ms", "rows", "burn rate", "share")]
    ['0 ms', '0.5 rows', '0.5 times the budget', '50.00% of the records']
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
            return f"{value:.2%} of the records"
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
    """Returns since when an account is open, by the check before *at_ms*.

    That check is the last one by another run than *run_id* which measured completeness. It is epoch ms; None: it found
    no open account.
    """
    is_measured = (pl.col("measure") == Measure.COMPLETENESS.value) & pl.col("observed_ms").is_not_null()
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
) -> list[dict[str, Any]]:
    """Writes the changes of incidents that follow from checks.

    Args:
        layout: of the warehouse.
        topology: whose incidents they are.
        specs: the promised SLAs that can be judged.
        at_ms: the instant of the newest check, epoch ms.
        run_id: of that check; the changes belong to it.
        made_ms: the clock when it was made, epoch ms; None: *at_ms*.
        unusable: names of SLAs that are promised and cannot be judged.
        project: the folder of the topologies that may read its topics.

    Returns:
        The rows that were written. A second call writes and returns none.
    """
    # Intervals exclude their end.
    recent = lies_in("checked_at", Interval(at_ms - looks_back_ms(specs), at_ms + 1))
    checks, last_ms = (
        in_ms(report_rows(layout, topology.name, SLA_RESULTS, recent)),
        _last_check_ms(layout, topology, at_ms),
    )

    def follow(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        missed = missed_check(topology, last_ms, incidents, at_ms=at_ms)
        rows = changes(
            specs,
            checks,
            [*incidents, *missed],
            at_ms=at_ms,
            gap_ms=gap_ms(topology),
            made_ms=made_ms,
            unusable=unusable,
        )
        return [{**row, "run_id": run_id} for row in (*missed, *rows)]

    rows = _add(layout, topology.name, follow)
    follow_alerts(layout, topology, at_ms=at_ms, project=project)
    return rows


def follow_alerts(layout: Layout, topology: Topology, *, at_ms: int, project: Path | None = None) -> None:
    """Writes the changes of alerts that follow from incidents.

    Args:
        layout: of the warehouse.
        topology: whose alerts they are.
        at_ms: the instant of the newest check, epoch ms.
        project: the folder of the topologies that may read its topics.
    """

    def write() -> None:
        incidents = in_ms(report_rows(layout, topology.name, INCIDENTS))
        if not incidents:
            return
        stored = open_report(ALERTS, layout.report_table(topology.name, ALERTS.name))
        alerts = in_ms(rows_in(stored))
        since_ms = at_ms - RETRIED_MS
        still_open = open_incidents(incidents)
        oldest_ms = min([since_ms, *(row["opened_at"] for row in still_open.values())])
        # Intervals exclude their end.
        checks = lies_in("checked_at", Interval(oldest_ms, at_ms + 1))
        results = in_ms(report_rows(layout, topology.name, SLA_RESULTS, checks, columns=_FOR_ALERTS))
        readers = _topologies(project) if project is not None and still_open else []
        rows = alert_changes(topology, incidents, results, alerts, at_ms=at_ms, since_ms=since_ms, project=readers)
        if rows:
            replace_in(stored, rows, ALERTS, where=_are_those(rows, "alert"))

    again_after_others(write)


def _topologies(folder: Path) -> list[Topology]:
    """Returns the topologies in *folder* that can be used."""
    return [each for each in load_each(folder).values() if isinstance(each, Topology)]


def miss(layout: Layout, topology: Topology, *, at_ms: int) -> list[dict[str, Any]]:
    """Opens an incident if a check of *topology* was missed.

    A check is due at *at_ms*, epoch ms. Returns the rows that were written. There are none if a check was made, or the
    incident is open.
    """
    last_ms = _last_check_ms(layout, topology, at_ms)
    rows = _add(
        layout, topology.name, lambda incidents: missed_check(topology, last_ms, incidents, at_ms=at_ms, is_due=True)
    )
    follow_alerts(layout, topology, at_ms=at_ms)
    return rows


def _last_check_ms(layout: Layout, topology: Topology, at_ms: int) -> int | None:
    """Returns the newest check before *at_ms* that was not for the past; None: there is none."""
    why = pl.col("excluded_because")
    check = _newest_check(layout, topology.name, _before(at_ms), why.is_null() | (why != PAST))
    return None if check is None else check.at_ms


def _add(
    layout: Layout, topology: str, new_rows: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Writes and returns the rows of *new_rows*.

    *new_rows* derives them from the rows that are stored.
    """

    def write() -> list[dict[str, Any]]:
        stored = open_report(INCIDENTS, layout.report_table(topology, INCIDENTS.name))
        rows = new_rows(in_ms(rows_in(stored)))
        if rows:
            replace_in(stored, rows, INCIDENTS, where=_are_those(rows))
        return rows

    # Rows are derived again if others wrote meanwhile.
    return again_after_others(write)


def acknowledge(layout: Layout, topology: str, incident: str, *, by: str, note: str, at_ms: int) -> Row | None:
    """Writes that *by* acknowledges *incident*.

    Args:
        layout: of the warehouse.
        topology: whose incident it is.
        incident: its name.
        by: the person who acknowledges it.
        note: of that person; may be empty.
        at_ms: when that is, epoch ms.

    Returns:
        The row of an earlier acknowledgement; None: this one was written.

    Raises:
        InvalidArgument: it is not open.
    """
    earlier: Row | None = None

    def new_rows(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal earlier
        row = acknowledgement(incidents, incident, by=by, note=note, at_ms=at_ms)
        earlier = acknowledged(incidents, incident)
        return [] if row is None else [row]

    _add(layout, topology, new_rows)
    return earlier


def open_slas(layout: Layout, topology: str) -> dict[str, str]:
    """Returns the SLA of each open incident of *topology*, by its name."""
    rows = report_rows(layout, topology, INCIDENTS, columns=("incident", "sla", "change", "changed_at"))
    return {name: row["sla"] for name, row in open_incidents(in_ms(rows)).items()}


def made_by(layout: Layout, topology: str, run_id: str) -> list[dict[str, Any]]:
    """Returns the changes of incidents that the check of *run_id* made.

    They can be written as JSON: instants are text in ISO 8601.
    """
    rows = report_rows(layout, topology, INCIDENTS, pl.col("run_id") == run_id).sort("changed_at", "incident")
    return rows.with_columns(cs.datetime().dt.to_string("iso:strict")).to_dicts()


def pending_changes(layout: Layout, topology: str, channel: Channel, *, now_ms: int) -> list[dict[str, Any]]:
    """Returns the changes of alerts that *channel* has to deliver, oldest first.

    They match its filters and are not delivered by it yet; instants are epoch ms. Changes of resolved alerts are left
    out if they are older than RETRIED_MS, unless the channel keeps state and opened the alert. Silenced alerts wait. A
    reminder has its number as `reminder`. A row that is only sent again has `is_repeat`. Each table is read once.
    """
    alerts = in_ms(report_rows(layout, topology, ALERTS))
    by_them = pl.col("channel").is_in([channel.name, *channel.escalated_by])
    deliveries = in_ms(report_rows(layout, topology, DELIVERIES, by_them))
    return due_changes(channel, alerts, deliveries, stored_decisions(layout, topology), now_ms=now_ms)


def stored_decisions(layout: Layout, topology: str) -> list[dict[str, Any]]:
    """Returns the rows of `decisions` about alerts, with instants as epoch ms."""
    return in_ms(report_rows(layout, topology, DECISIONS, pl.col("outcome").is_null()))


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


def record_delivery(layout: Layout, change: Mapping[str, Any], channel: Channel, *, at_ms: int, run_id: str) -> None:
    """Writes that *channel* has delivered *change*.

    Args:
        layout: of the warehouse.
        change: a row of `alerts`.
        channel: that delivered it.
        at_ms: when that was, epoch ms.
        run_id: of the run that did so.
    """
    row = in_order_of(("alert", "topology", "change"), change) | {"reminder": change.get("reminder")}
    is_same = "reminder IS NULL" if row["reminder"] is None else f"reminder = {row['reminder']}"
    where = f"{_are_those([change], 'alert')} AND {is_text('channel', channel.name)} AND {is_same}"
    replace_rows(
        [{**row, "channel": channel.name, "delivered_at": at_ms, "run_id": run_id}],
        DELIVERIES,
        layout.report_table(change["topology"], DELIVERIES.name),
        where=where,
    )


def _are_those(rows: Sequence[Mapping[str, Any]], name: str = "incident") -> str:
    each = (f"({is_text(name, row[name])} AND {is_text('change', row['change'])})" for row in rows)
    return f"({' OR '.join(each)})"


def in_ms(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Returns *rows* with instants as epoch ms."""
    return rows.with_columns(cs.datetime().dt.epoch("ms")).to_dicts()
