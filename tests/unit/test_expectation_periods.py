"""Results of expectations are periods with one verdict, whatever was checked again."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidemark.model.settings.retention import Retention
from tidemark.sla.contracts.periods import (
    JudgedBefore,
    judged_before,
    kept_at,
    periods_after,
    standing_results,
)

MINUTE = 60_000


def found(**verdicts: bool) -> list[dict[str, Any]]:
    """Returns the results of a check, by the column that an expectation is about."""
    of_suite = {"suite": "outcomes", "expectation": "e", "severity": "critical"}
    return [{**of_suite, "column": column, "success": success} for column, success in verdicts.items()]


def checked(stored: list[dict[str, Any]], minute: int, run_id: str = "", **verdicts: bool) -> list[dict[str, Any]]:
    run_id = run_id or f"r{minute}"
    return periods_after(stored, found(**verdicts), topology="t", at_ms=minute * MINUTE, run_id=run_id)


def periods(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Returns column, verdict, first and last minute, and number of checks of each period."""
    return {
        (
            row["column"],
            row["success"],
            row["first_checked_at"] // MINUTE,
            row["last_checked_at"] // MINUTE,
            row["checks"],
        )
        for row in rows
    }


def test_a_check_extends_the_period_of_its_verdict() -> None:
    rows = checked([], 0, a=True, b=False)
    rows = checked(rows, 10, a=True, b=False)
    rows = checked(rows, 20, a=False, b=False)
    rows = checked(rows, 30, a=True)
    assert periods(rows) == {
        ("a", True, 0, 10, 2),
        ("a", False, 20, 20, 1),
        ("a", True, 30, 30, 1),
        ("b", False, 0, 20, 3),
    }
    assert {row["run_id"] for row in rows if row["column"] == "b"} == {"r20"}


def test_what_was_not_judged_for_a_while_goes_on() -> None:
    rows = checked(checked(checked([], 0, a=True), 10, b=True), 20, a=True)
    assert ("a", True, 0, 20, 2) in periods(rows)


def test_a_check_that_is_made_again_takes_its_first_try_back() -> None:
    before = checked(checked([], 0, a=True, b=True), 10, a=True, b=True)
    rows = checked(checked(before, 20, a=True, b=False), 20, a=False, b=True)
    assert periods(rows) == {("a", True, 0, 10, 2), ("a", False, 20, 20, 1), ("b", True, 0, 20, 3)}
    assert checked(rows, 20, a=False, b=True) == rows


def test_a_check_that_comes_after_one_of_a_later_instant_changes_nothing() -> None:
    rows = checked(checked([], 0, a=True, b=True), 20, a=False)
    assert periods(checked(rows, 10, a=True, b=False)) == {*periods(rows), ("b", False, 10, 10, 1)}


def test_the_retention_of_reports_ends_periods() -> None:
    rows = checked(checked(checked([], 0, a=True), 10, a=False), 20, a=True)
    assert kept_at(rows, Retention(), 20 * MINUTE) == rows
    assert periods(kept_at(rows, Retention(reports_ms=10 * MINUTE), 20 * MINUTE)) == {
        ("a", False, 10, 10, 1),
        ("a", True, 20, 20, 1),
    }


def of_schema(minute: int, version: int | None, **verdicts: bool) -> list[dict[str, Any]]:
    """Returns the results of a check about the columns of a table."""
    table = {"suite": "schema", "expectation": "e", "severity": "critical", "table": "t", "sub_topology": "s"}
    of_check = {"table_version": version, "batch_id": minute, "rows": 0, "judged_at": minute * MINUTE}
    return [{**table, **of_check, "column": column, "success": success} for column, success in verdicts.items()]


def test_a_table_was_judged_by_the_last_check_that_found_all_its_columns() -> None:
    rows: list[dict[str, Any]] = []
    for minute, version, readable, whole in (
        (0, 3, True, True),
        (10, 5, True, True),
        (20, 6, True, False),
        (30, None, False, True),
    ):
        before = judged_before(rows)
        found = of_schema(minute, version, unreadable=readable, missing_columns=whole)
        rows = periods_after(rows, found, topology="t", at_ms=minute * MINUTE, run_id=f"r{minute}")
    assert before == {("s", "t"): JudgedBefore(10 * MINUTE, 5, 10)}
    assert judged_before(rows) == before
    assert judged_before(of_schema(0, 3, unreadable=True, missing_columns=False)) == {}


def of_rows(minute: int, column: str = "a", **result: Any) -> dict[str, Any]:
    table = {"suite": "contract", "expectation": "e", "severity": "critical", "table": "t", "sub_topology": "s"}
    instants = {"judged_at": minute * MINUTE, "last_checked_at": minute * MINUTE}
    return {**table, "column": column, "success": True, "rows": 7, **instants, **result}


def test_what_a_check_found_stands_until_it_is_too_old() -> None:
    broken, passed = of_rows(0, success=False), of_rows(0, "b")
    new = of_rows(30)

    def standing(stored: list[dict[str, Any]], since_minute: int, *found: dict[str, Any]) -> list[dict[str, Any]]:
        return standing_results(found, stored, {("s", "t")}, since_ms=since_minute * MINUTE)

    assert standing([broken, passed], -1, new) == [broken, passed]
    assert standing([broken, passed], 0, new) == [new]
    assert standing([of_rows(0), of_rows(0, "b", success=False)], -1, of_rows(30, success=False)) == [
        of_rows(30, success=False),
        of_rows(0, "b", success=False),
    ]
    assert standing_results([], [broken], {("s", "other")}, since_ms=-1) == []


VERDICTS = st.dictionaries(st.sampled_from("ab"), st.booleans())


@given(st.lists(st.tuples(st.lists(VERDICTS, max_size=2), VERDICTS), max_size=8))
def test_only_the_last_try_of_each_check_counts(checks: list[tuple[list[dict[str, bool]], dict[str, bool]]]) -> None:
    rows: list[dict[str, Any]] = []
    for minute, (tries, last) in enumerate(checks):
        for verdicts in (*tries, last):
            rows = checked(rows, minute, **verdicts)
    expected = set()
    for column in "ab":
        judged = [(minute, last[column]) for minute, (_, last) in enumerate(checks) if column in last]
        for success, run in groupby(judged, key=lambda check: check[1]):
            minutes = [minute for minute, _ in run]
            expected.add((column, success, minutes[0], minutes[-1], len(minutes)))
    assert periods(rows) == expected
