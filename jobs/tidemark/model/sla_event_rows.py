"""Turns events of SLAs into rows of their tables, and back.

A field and its column have one name, except an instant: `checked_ms` (epoch ms) is the timestamp `checked_at`, and
`broken_since_ms` is `broken_since`. A row has instants as epoch ms, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from tidemark.model.sla_events import (
    Alert,
    AlertCause,
    AlertDecided,
    Delivery,
    IncidentChange,
    SlaResult,
    StaleGroup,
)
from tidemark.model.tables.catalog import ALERTS, DECISIONS, DELIVERIES, INCIDENTS, SLA_RESULTS, Table
from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.semantics.sla import Verdict

Event: TypeAlias = SlaResult | IncidentChange | Alert | Delivery | AlertDecided
E = TypeVar("E", SlaResult, IncidentChange, Alert, Delivery, AlertDecided)
TABLE_OF: Mapping[type[Event], Table] = MappingProxyType(
    {
        SlaResult: SLA_RESULTS,
        IncidentChange: INCIDENTS,
        Alert: ALERTS,
        Delivery: DELIVERIES,
        AlertDecided: DECISIONS,
    }
)
_READ: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "verdict": Verdict,
        "change": Change,
        "decision": Decision,
        "subject_kind": DecisionSubject,
        "stale_groups": lambda groups: tuple(StaleGroup(**group) for group in groups),
        "other_causes": lambda causes: tuple(AlertCause(**cause) for cause in causes),
        **dict.fromkeys(("incidents", "slas", "tables", "topics", "owners"), tuple),
    }
)
"""What a value of a column becomes, by field."""


def _column(field: str, table: Table) -> str:
    instant = field.removesuffix("_ms")
    return next(name for name in (field, f"{instant}_at", instant) if name in table.names)


_COLUMNS: Mapping[type[Event], Mapping[str, str]] = MappingProxyType(
    {kind: {each.name: _column(each.name, table) for each in fields(kind)} for kind, table in TABLE_OF.items()}
)
"""The column of each field, by kind of event."""


def row_of(event: Event) -> dict[str, Any]:
    """Returns *event* as a row of its table."""
    row: dict[str, Any] = {}
    for field, column in _COLUMNS[type(event)].items():
        value = getattr(event, field)
        match value:
            case StrEnum():
                row[column] = value.value
            case (AlertCause() | StaleGroup(), *_):
                row[column] = [asdict(each) for each in value]
            case tuple():
                row[column] = [*value]
            case _:
                row[column] = value
    if "cause" in row:
        row |= _cause_columns(row["cause"])
    return row


def rows_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Returns *events* as rows of their tables."""
    return [row_of(event) for event in events]


def event_of(kind: type[E], row: Mapping[str, Any]) -> E:
    """Returns the event of this *kind* that *row* is.

    Columns that were not read are as in an event without them.
    """
    found: dict[str, Any] = {}
    for field, column in _COLUMNS[kind].items():
        if row.get(column) is not None and field != "cause":
            found[field] = _READ[field](row[column]) if field in _READ else row[column]
    if row.get("cause") is not None:
        found["cause"] = cause_of_row(row)
    return kind(**found)


def events_of(kind: type[E], rows: Iterable[Mapping[str, Any]]) -> list[E]:
    """Returns the events of this *kind* that *rows* are."""
    return [event_of(kind, row) for row in rows]


def _cause_columns(cause: AlertCause | None) -> dict[str, Any]:
    if cause is None:
        return {}
    operator, partition = cause.place
    return {
        "cause": cause.owner,
        "cause_sub_topology": cause.stream,
        "cause_operator": operator,
        "cause_partition": partition,
        "cause_since": cause.since_ms,
        "cause_amount_ms": cause.amount_ms,
        "cause_records": cause.records,
        "cause_share": cause.share,
        "cause_results": cause.results,
        "cause_broken": cause.broken,
    }


def causes_of_row(row: Mapping[str, Any]) -> list[AlertCause]:
    """Returns all causes in a *row* of a check or an alert, that which explains most first."""
    if row["cause"] is None:
        return []
    since = row["cause_since"]
    in_ms = {**row, "cause_since": round(since.timestamp() * 1_000) if isinstance(since, datetime) else since}
    return [cause_of_row(in_ms), *(AlertCause(**each) for each in row["other_causes"] or ())]


def cause_of_row(row: Mapping[str, Any]) -> AlertCause:
    """Returns the first cause in a *row* that has one."""
    operator, partition = row.get("cause_operator"), row.get("cause_partition")
    return AlertCause(
        owner=row["cause"],
        detail=operator if partition is None else f"{operator}/{partition}",
        stream=row.get("cause_sub_topology"),
        amount_ms=row.get("cause_amount_ms"),
        records=row.get("cause_records"),
        share=row.get("cause_share"),
        results=row.get("cause_results"),
        broken=row.get("cause_broken"),
        since_ms=row.get("cause_since"),
    )
