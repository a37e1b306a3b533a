"""Joins the results of expectations to periods: a row per expectation and period in which its verdict did not change.

A check that finds the verdict of the check before extends the period, and the row has what the newest of its checks
observed. A check that is made again under its run first takes back what it added before, so that a repeated check
changes nothing. Instants are epoch ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.model.settings.retention import Retention
from tidemark.model.tables.catalog import EXPECTATION_RESULTS

Row = Mapping[str, Any]
EXPECTATION = ("suite", "expectation", "column", "severity", "table", "sub_topology")
"""The columns that tell an expectation from the others of a topology."""


def periods_after(
    stored: Sequence[Row], found: Sequence[Row], *, topology: str, at_ms: int, run_id: str
) -> list[dict[str, Any]]:
    """Returns the rows of `expectation_results` after a check.

    Args:
        stored: the rows before it.
        found: its results, one of each expectation that it judged.
        topology: that was checked.
        at_ms: the instant of the check.
        run_id: of the check.
    """
    periods: dict[tuple[Any, ...], dict[str, Any]] = {}
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(stored, key=lambda row: row["first_checked_at"]):
        before = dict(row) if row["run_id"] != run_id else _without_newest_check(row)
        if before is not None:
            newest[_expectation(row)] = periods[_period(before)] = before
    for result in found:
        before = newest.get(_expectation(result))
        if before is None or before["success"] != result["success"]:
            before = {"first_checked_at": at_ms, "last_checked_at": None, "checks": 0}
        period = {
            **dict.fromkeys(EXPECTATION_RESULTS.names),
            **result,
            "topology": topology,
            "first_checked_at": before["first_checked_at"],
            "last_checked_at": at_ms,
            "previous_checked_at": before["last_checked_at"],
            "checks": before["checks"] + 1,
            "run_id": run_id,
        }
        periods[_period(period)] = period
    return [*periods.values()]


def kept_at(periods: Sequence[dict[str, Any]], retention: Retention, at_ms: int) -> list[dict[str, Any]]:
    """Returns the *periods* that *retention* keeps at *at_ms*.

    Maintenance removes old files, and there are none here, because each check writes the whole table again.
    """
    if retention.reports_ms is None:
        return [*periods]
    since_ms = at_ms - retention.reports_ms
    return [row for row in periods if row["last_checked_at"] >= since_ms]


def _expectation(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in EXPECTATION)


def _period(row: Row) -> tuple[Any, ...]:
    return (*_expectation(row), row["first_checked_at"])


def _without_newest_check(row: Row) -> dict[str, Any] | None:
    """Returns the period as it was before its newest check; None: it began with that check."""
    if row["checks"] == 1:
        return None
    before = {"last_checked_at": row["previous_checked_at"], "previous_checked_at": None, "checks": row["checks"] - 1}
    return {**row, **before, "run_id": None}
