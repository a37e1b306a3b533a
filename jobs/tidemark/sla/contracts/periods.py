"""Joins the results of expectations to periods: a row for each expectation and period in which its verdict was the
same.

A check that finds the same verdict as the check before extends the period, and the row has what the newest check
observed. A check that is repeated under its run first removes what it had added, so that the repetition changes
nothing. Instants are epoch ms.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from tidemark.model.settings.retention import Retention
from tidemark.model.tables.catalog import EXPECTATION_RESULTS
from tidemark.selection import present

Row = Mapping[str, Any]
SCHEMA, CONTRACT = "schema", "contract"
"""The suites about the columns and the rows of tables."""
EXPECTATION = ("suite", "expectation", "column", "severity", "table", "sub_topology")
"""The columns that identify an expectation of a topology."""


@dataclass(frozen=True)
class JudgedBefore:
    """Up to where checks have judged a table.

    Attributes:
        at_ms: the instant of the newest check that judged it, epoch ms.
        version: the version of the table that this check read.
        batch_id: the last batch that it judged; None for a table whose rows are not judged by batch, or if there was no
            batch.
    """

    at_ms: int
    version: int
    batch_id: int | None


def judged_before(stored: Iterable[Row]) -> dict[tuple[str | None, str], JudgedBefore]:
    """Returns up to where each table was judged, by sub-topology and name.

    *stored* are the rows of `expectation_results`. A check judges the rows of a table only if all of its columns are as
    declared, so what counts is the last check that found them so.
    """
    newest: dict[tuple[Any, ...], Row | None] = {}
    for row in stored:
        if row["suite"] == SCHEMA:
            before = newest.setdefault(_expectation(row), None)
            is_sound = row["success"] and row["table_version"] is not None
            if is_sound and (before is None or before["last_checked_at"] < row["last_checked_at"]):
                newest[_expectation(row)] = row
    by_table: dict[tuple[str | None, str], list[Row | None]] = {}
    for expectation, sound in newest.items():
        by_table.setdefault(_table(expectation), []).append(sound)
    judged: dict[tuple[str | None, str], JudgedBefore] = {}
    for table, rows in by_table.items():
        if all(rows):
            row = min(present(rows), key=itemgetter("last_checked_at"))
            judged[table] = JudgedBefore(row["last_checked_at"], row["table_version"], row["batch_id"])
    return judged


def standing_results(
    found: Iterable[Row], stored: Iterable[Row], tables: Container[tuple[str | None, str]], *, since_ms: int
) -> list[dict[str, Any]]:
    """Returns the results about tables that hold at a check.

    A check judges each row once, and what it found stands for a while: a broken expectation stays broken, and one
    without new rows keeps its verdict. Whether columns are as declared is judged by each check.

    Args:
        found: the results of the check about columns and new rows.
        stored: the rows of `expectation_results` before it.
        tables: whose rows the check could judge, by sub-topology and name.
        since_ms: what checks for this instant (epoch ms) or earlier ones have found no longer stands.
    """
    results = {_expectation(row): dict(row) for row in found}
    in_order = sorted(stored, key=itemgetter("last_checked_at"))
    newest = {_expectation(row): dict(row) for row in in_order if row["suite"] in {SCHEMA, CONTRACT}}
    for expectation, row in newest.items():
        if row["judged_at"] <= since_ms or _table(expectation) not in tables:
            continue
        now = results.get(expectation)
        if row["suite"] == SCHEMA and now is not None and not now["rows"]:
            now |= {"judged_at": row["judged_at"], "rows": row["rows"]}
        if row["suite"] == CONTRACT and (now is None or (now["success"] and not row["success"])):
            results[expectation] = row
    return [*results.values()]


def periods_after(
    stored: Sequence[Row], found: Sequence[Row], *, topology: str, at_ms: int, run_id: str
) -> list[dict[str, Any]]:
    """Returns the rows of `expectation_results` after a check.

    Args:
        stored: the rows before the check.
        found: the results of the check, one for each expectation that it judged.
        topology: the topology that was checked.
        at_ms: the instant of the check.
        run_id: the run of the check.
    """
    periods: dict[tuple[Any, ...], dict[str, Any]] = {}
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(stored, key=lambda row: row["first_checked_at"]):
        before = dict(row) if row["run_id"] != run_id else _without_newest_check(row)
        if before is not None:
            newest[_expectation(row)] = periods[_period(before)] = before
    for result in found:
        before = newest.get(_expectation(result))
        # Another run may have judged a later instant meanwhile, and what it found stands.
        if before is not None and before["last_checked_at"] > at_ms:
            continue
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


def _table(expectation: tuple[Any, ...]) -> tuple[str | None, str]:
    """Returns the sub-topology and the name of the table that an *expectation* is about."""
    *_, table, sub_topology = expectation
    return sub_topology, table


def _period(row: Row) -> tuple[Any, ...]:
    return (*_expectation(row), row["first_checked_at"])


def _without_newest_check(row: Row) -> dict[str, Any] | None:
    """Returns the period as it was before its newest check, or None if it began with that check."""
    if row["checks"] == 1:
        return None
    before = {"last_checked_at": row["previous_checked_at"], "previous_checked_at": None, "checks": row["checks"] - 1}
    return {**row, **before, "run_id": None}
