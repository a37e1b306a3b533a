"""Events of SLAs become rows of their tables, and the same events again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tidemark.model.sla_event_rows import TABLE_OF, Event, event_of, row_of
from tidemark.model.sla_events import AlertCause, StaleGroup
from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.semantics.sla import Verdict

CAUSE = AlertCause(
    owner="partition",
    detail="orders/3",
    stream="reads",
    amount_ms=9_000,
    records=36,
    share=0.93,
    results=38,
    broken=41,
    since_ms=1_767_268_800_000,
)
VALUES: dict[str, Any] = {
    "verdict": Verdict.ERROR,
    "change": Change.ESCALATED,
    "decision": Decision.SNOOZE,
    "subject_kind": DecisionSubject.SLA,
    "cause": CAUSE,
    "other_causes": (AlertCause(owner="operator", detail="latest", results=11), CAUSE),
    "stale_groups": (StaleGroup("AA", 5), StaleGroup("BB", 7)),
    **dict.fromkeys(("incidents", "slas", "tables", "topics", "owners"), ("one", "two")),
}
OF_REPAIRS = {"effect", "outcome", "result", "asked_in"}
"""Columns of `decisions` that no decision about alerts has."""


@pytest.mark.parametrize("kind", TABLE_OF)
def test_an_event_is_the_same_after_its_row(kind: type[Event]) -> None:
    values = {field.name: VALUES.get(field.name, n) for n, field in enumerate(fields(kind), start=1)}
    event = kind(**values)
    row = row_of(event)
    # Every column has a value, and a value of each instant stands in a column for instants.
    assert {*row} == {*TABLE_OF[kind].names} - OF_REPAIRS
    assert event_of(kind, row) == event
    required = {field.name: values[field.name] for field in fields(kind) if field.name in REQUIRED}
    assert event_of(kind, row_of(kind(**required))) == kind(**required)


REQUIRED = {
    *("topology", "sla", "alert", "incident", "run_id", "checked_ms", "changed_ms", "verdict", "change", "severity"),
    *("channel", "delivered_ms", "decision", "subject_kind", "subject", "decided_ms"),
}


@pytest.mark.parametrize(
    ("detail", "columns"),
    [
        (None, (None, None)),
        ("orders", ("orders", None)),
        ("orders/3", ("orders", 3)),
        ("orders/3 idle_after", ("orders/3 idle_after", None)),
        ("latest shard 2", ("latest shard 2", None)),
    ],
)
def test_the_detail_of_a_cause_is_an_operator_and_a_partition(
    detail: str | None, columns: tuple[str | None, int | None]
) -> None:
    row = {"cause": "x", "cause_operator": columns[0], "cause_partition": columns[1]}
    kind = next(kind for kind, table in TABLE_OF.items() if table.name == "alerts")
    of_alert = {"topology": "t", "alert": "a", "sla": "s", "change": "opened", "changed_at": 1, "verdict": "error"}
    event = event_of(kind, {**of_alert, "severity": "critical", **row})
    assert event.cause == AlertCause(owner="x", detail=detail)
    assert {name: row_of(event)[name] for name in row} == row
