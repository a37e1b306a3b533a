"""Checks of several runs become incident rows, worked out by hand.

Times are minutes after noon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import InvalidArgument
from tidemark.model import topology
from tidemark.model.sla_events import IncidentChange, SlaResult, still_open
from tidemark.model.slas.sla_spec import SlaSpec, parse
from tidemark.semantics.incidents import Damping
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.changes import (
    acknowledgement,
    changes,
    excluded_because,
    looks_back_ms,
    missed_check,
)

FLIGHTS = topology.load(Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml")
NOON, MINUTE = 1_767_268_800_000, 60_000  # 2026-01-01T12:00Z
BOARD = {"subject": "flight_board", "measure": "staleness", "error_after": "2 min", "owner": "desk"}


def spec(name: str = "board", resolve_after_ms: int = 0) -> SlaSpec:
    (found,) = parse({"flights": {name: BOARD}}, FLIGHTS, file="slas.toml")
    return replace(found, damping=Damping(resolve_after_ms=resolve_after_ms))


def check(minute: int, verdict: str, sla: str = "board", **fields: Any) -> SlaResult:
    return SlaResult(
        topology="flights",
        sla=sla,
        checked_ms=NOON + minute * MINUTE,
        run_id=f"run {minute}",
        verdict=Verdict(verdict),
        message=f"is {verdict}",
        severity="critical",
        **fields,
    )


def told(found: list[IncidentChange]) -> list[tuple[str, str, int]]:
    return [(each.incident, each.change.value, (each.changed_ms - NOON) // MINUTE) for each in found]


def changed(results: list[SlaResult], known: list[IncidentChange], *specs: SlaSpec) -> list[IncidentChange]:
    return changes(specs or [spec()], results, known, at_ms=NOON + 60 * MINUTE, gap_ms=20 * MINUTE)


def test_an_incident_is_named_after_its_sla_and_first_check() -> None:
    rows = changed([check(1, "warn"), check(2, "error", culprit="weather"), check(3, "pass")], [])
    assert told(rows) == [
        ("board-20260101T120100", "opened", 1),
        ("board-20260101T120100", "escalated", 2),
        ("board-20260101T120100", "resolved", 3),
    ]
    assert [row.culprit for row in rows] == [None, "weather", None]
    assert {row.broken_since_ms for row in rows} == {row.opened_ms for row in rows} == {NOON + MINUTE}


@pytest.mark.parametrize(("crossed_min", "since_min"), [(10, 10), (5, 5), (None, 10)])
def test_an_incident_is_broken_since_the_crossing_if_that_is_known(crossed_min: int | None, since_min: int) -> None:
    crossed_ms = None if crossed_min is None else NOON + crossed_min * MINUTE
    (row,) = changed([check(10, "error", crossed_ms=crossed_ms)], [])
    assert (row.broken_since_ms, row.opened_ms) == (NOON + since_min * MINUTE, NOON + 10 * MINUTE)
    assert row.crossed_ms == crossed_ms


@pytest.mark.parametrize("before", [("pass", None), ("error", "maintenance")])
def test_an_age_that_was_excused_is_broken_since_it_is_no_more(before: tuple[str, str | None]) -> None:
    verdict, quiet = before
    excused = check(9, verdict, excluded_because=quiet, crossed_ms=NOON - 49 * MINUTE)
    (row,) = changed([excused, check(10, "error", crossed_ms=NOON - 49 * MINUTE)], [])
    assert row.broken_since_ms == NOON + 9 * MINUTE


def test_the_delay_of_opening_counts_from_the_crossing() -> None:
    delayed = replace(spec(), damping=Damping(open_after_ms=4 * MINUTE))
    crossed = {"crossed_ms": NOON + 7 * MINUTE}
    results = [check(10, "error", **crossed), check(11, "error", **crossed)]
    assert told(changed(results[:1], [], delayed)) == []
    assert told(changed(results, [], delayed)) == [("board-20260101T121100", "opened", 11)]


def test_changes_that_are_stored_do_not_follow_again() -> None:
    results = [check(1, "warn"), check(2, "error"), check(3, "pass"), check(4, "error")]
    known: list[IncidentChange] = []
    for until in (1, 1, 2, 2, 3, 4, 4):
        known += changed(results[:until], known)
    assert told(known) == told(changed(results, []))
    assert [change for _, change, _ in told(known)] == ["opened", "escalated", "resolved", "opened"]


def test_the_next_check_reports_for_one_that_died() -> None:
    assert told(changed([check(1, "error"), check(2, "error")], [])) == [("board-20260101T120100", "opened", 1)]


def test_checks_of_the_past_and_in_maintenance_change_nothing() -> None:
    results = [
        check(1, "error", excluded_because="maintenance"),
        check(2, "pass"),
        check(0, "error", excluded_because="past"),
    ]
    assert changed(results, []) == []
    known = changed([check(3, "error")], [])
    assert changed([check(3, "error"), check(4, "pass", excluded_because="maintenance")], known) == []


def test_outside_its_calendar_an_sla_opens_and_resolves_nothing() -> None:
    hours = {"zone": "Europe/Berlin", "from": "07:00", "to": "13:02"}
    (found,) = parse({"flights": {"board": {**BOARD, "calendar": hours}}}, FLIGHTS, file="slas.toml")
    # 12:00 of January in UTC is 13:00 in Berlin.
    minutes = {minute: excluded_because(found, NOON + minute * MINUTE, is_past=False) for minute in (1, 2, 3)}
    assert minutes == {1: None, 2: "calendar", 3: "calendar"}
    assert changed([check(2, "error", excluded_because="calendar")], []) == []
    known = changed([check(1, "error")], [])
    assert (
        changed([check(2, "pass", excluded_because="calendar"), check(3, "pass", excluded_because="calendar")], known)
        == []
    )


def test_how_long_it_has_held_counts_from_before_what_is_known() -> None:
    damped = spec(resolve_after_ms=2 * MINUTE)
    known = changed([check(1, "error")], [], damped)
    results = [check(n, "pass") for n in (2, 3)]
    assert changed(results, known, damped) == []
    assert told(changed([*results, check(4, "pass")], known, damped)) == [("board-20260101T120100", "resolved", 4)]


def test_slas_do_not_mix_and_a_removed_one_is_resolved() -> None:
    both = [check(1, "error"), check(1, "warn", "other")]
    known = changed(both, [], spec(), spec("other"))
    assert told(known) == [("board-20260101T120100", "opened", 1), ("other-20260101T120100", "opened", 1)]
    (gone,) = changed([*both, check(2, "error")], known, spec())
    assert (gone.incident, gone.change, gone.verdict) == ("other-20260101T120100", "resolved", "unknown")
    assert changed([*both, check(2, "error")], [*known, gone], spec()) == []


def test_an_incident_of_an_unusable_sla_stays_open() -> None:
    known = changed([check(1, "error")], [])
    unusable = changes([], [check(1, "error")], known, at_ms=NOON + 5 * MINUTE, gap_ms=20 * MINUTE, unusable={"board"})
    assert unusable == []
    assert told(changed([check(1, "error"), check(9, "pass")], known)) == [("board-20260101T120100", "resolved", 9)]


def test_missed_checks_end_with_a_check_despite_a_taken_name() -> None:
    (missed,) = missed_check(FLIGHTS, None, [], at_ms=NOON, is_due=True)
    told_of = changes([], [], [missed], at_ms=NOON + 20 * MINUTE, gap_ms=20 * MINUTE, unusable={missed.sla})
    assert [row.change for row in told_of] == ["resolved"]


def test_an_open_incident_is_acknowledged_once_and_goes_on() -> None:
    known = changed([check(1, "error")], [])
    (name,) = still_open(known)
    row = acknowledgement(known, name, by="Ann", note="on it", at_ms=NOON + 90_000)
    assert row is not None
    assert (row.change, row.decided_by, row.message, row.changed_ms) == (
        "acknowledged",
        "Ann",
        "on it",
        NOON + 90_000,
    )
    known.append(row)
    assert acknowledgement(known, name, by="Bob", note="", at_ms=NOON + 95_000) is None
    assert told(changed([check(1, "error"), check(2, "pass")], known)) == [(name, "resolved", 2)]


def test_what_is_not_open_is_not_acknowledged() -> None:
    known = changed([check(1, "error"), check(2, "pass")], [])
    with pytest.raises(
        InvalidArgument, match=r"'board-20260101T120100' is not open and cannot be acknowledged; open incidents: none"
    ):
        acknowledgement(known, "board-20260101T120100", by="Ann", note="", at_ms=NOON)


def test_checks_are_read_for_the_longest_damping_and_a_day() -> None:
    assert looks_back_ms([spec(), spec(resolve_after_ms=5)]) == 86_400_005


@pytest.mark.parametrize(
    ("checks", "resolved"),
    [
        ([(5, "pass"), (26, "pass")], [26]),  # passes from minute 5 on; more than two checks are missing
        ([(5, "pass"), (26, "error"), (30, "pass"), (39, "pass")], []),
        ([(5, "pass"), (26, "error"), (30, "pass"), (51, "pass")], [51]),
    ],
)
def test_missed_checks_do_not_restart_resolve_after(checks: list[tuple[int, str]], resolved: list[int]) -> None:
    damped = spec(resolve_after_ms=10 * MINUTE)
    known = changed([check(0, "error")], [], damped)
    rows = changed([check(minute, verdict) for minute, verdict in checks], known, damped)
    assert told(rows) == [("board-20260101T120000", "resolved", minute) for minute in resolved]


def test_slow_checks_open_an_incident_after_open_after() -> None:
    slow = replace(spec(), damping=Damping(open_after_ms=30 * MINUTE))
    rows = changed([check(minute, "error") for minute in (0, 25, 50)], [], slow)
    assert told(rows) == [("board-20260101T125000", "opened", 50)]
    # The first of these checks found it broken, and when it broke is not known.
    assert (rows[0].broken_since_ms, rows[0].crossed_ms) == (NOON, None)


def test_what_was_not_judged_has_not_lasted() -> None:
    damped = spec(resolve_after_ms=10 * MINUTE)
    known = changed([check(0, "error")], [], damped)
    window = [check(5, "pass"), check(10, "error", excluded_because="maintenance"), check(15, "pass")]
    assert changed(window, known, damped) == []  # for 10 min, but with a maintenance window among them
    assert told(changed([*window, check(25, "pass")], known, damped)) == [("board-20260101T120000", "resolved", 25)]


def missed(last: int | None, known: list[IncidentChange], minute: int, *, is_due: bool = False) -> list[IncidentChange]:
    last_ms = None if last is None else NOON + last * MINUTE
    return missed_check(FLIGHTS, last_ms, known, at_ms=NOON + minute * MINUTE, is_due=is_due)


def test_two_missing_checks_are_an_incident_until_the_next_one() -> None:
    assert missed(10, [], 30) == []
    (row,) = missed(10, [], 31)
    assert told([row]) == [("checks_are_made-20260101T123000", "opened", 31)]
    assert row.message == (
        "no check of the SLAs of flights has finished since the one for 2026-01-01T12:10:00.000Z, due every 10 min: "
        "checks do not run, fail, or take longer than 20 min; look at the DAG tidemark_flights_sla_check, "
        "and raise check_every if its runs succeed"
    )
    assert missed(10, [row], 32) == []
    (over,) = changes([spec()], [check(51, "pass")], [row], at_ms=NOON + 51 * MINUTE, gap_ms=20 * MINUTE)
    assert told([over]) == [("checks_are_made-20260101T123000", "resolved", 51)]
    assert missed(10, [row, over], 51) == []
    assert told(missed(10, [], 5_000)) == [("checks_are_made-20260101T123000", "opened", 5_000)]  # days later


def test_checks_that_were_never_made_are_missed_once_one_is_due() -> None:
    assert missed(None, [], 1_000) == []
    (row,) = missed(None, [], 0, is_due=True)
    assert told([row]) == [("checks_are_made-20260101T120000", "opened", 0)]
    assert row.message.startswith("no check of the SLAs of flights has finished, due every 10 min: checks do not run,")
    assert missed(None, [row], 30, is_due=True) == []


def simulated(instants: list[tuple[int, int]], deadlines: Sequence[int] = ()) -> list[tuple[str, int]]:
    """Returns the changes of `checks_are_made`, and the instants of their checks.

    A check is the instant that it is for, and the minute when it is made. Airflow's deadlines are minutes, too. Checks
    are due every 10 min.
    """
    incidents: list[IncidentChange] = []
    results: list[SlaResult] = []
    steps = [(made, minute) for minute, made in instants] + [(minute, -1) for minute in deadlines]
    for made, minute in sorted(steps):
        last = max((row.checked_ms for row in results), default=None)
        if minute < 0:
            incidents += missed_check(FLIGHTS, last, incidents, at_ms=NOON + made * MINUTE, is_due=True)
            continue
        at_ms = NOON + minute * MINUTE
        incidents += missed_check(FLIGHTS, last, incidents, at_ms=at_ms)
        results.append(check(minute, "pass"))
        of_check = {"at_ms": at_ms, "made_ms": NOON + made * MINUTE, "gap_ms": 20 * MINUTE}
        incidents += changes([spec()], results, incidents, **of_check)
    return [(row.change, (row.changed_ms - NOON) // MINUTE) for row in incidents]


def test_slow_checks_are_one_incident() -> None:
    """Checks come every 25 min, and one comes in time."""
    slow = [(minute, minute) for minute in (0, 25, 50, 60, 85, 110)]
    assert simulated(slow) == [("opened", 25)]
    in_time = [(minute, minute) for minute in (120, 130, 140)]
    # From minute 110 on checks come in time; it was opened long before.
    assert simulated([*slow, *in_time]) == [("opened", 25), ("resolved", 130)]


def test_checks_that_end_late_are_one_incident() -> None:
    """Each check takes 25 min, and misses its deadline."""
    late = [(minute, minute + 25) for minute in range(0, 200, 20)]
    deadlines = [minute + 20 for minute, _ in late]
    assert simulated(late, deadlines) == [("opened", 20)]
    in_time = [(minute, minute + 1) for minute in (230, 240, 250)]
    assert simulated([*late, *in_time], deadlines) == [("opened", 20), ("resolved", 250)]


def test_a_long_gap_is_one_incident_until_checks_come_again() -> None:
    after_a_day = [(minute, minute) for minute in (0, 10, 1_500, 1_510, 1_520, 1_530)]
    assert simulated(after_a_day) == [("opened", 1_500), ("resolved", 1_520)]
