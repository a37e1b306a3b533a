"""Plays a year of a hundred watched tables with thirty planted stops, and counts what alarms find.

The sessions are those of two exchanges in 2025, and `support.watched_year` has the tables, what people promise of them,
and the stops. Limits that people declare are judged over the year, and those that `tidemark suggest` proposes from the
first half of it over the second half, beside declared ones. The seed 0 was looked at to find mistakes of the
simulation; the figures are those of the others. `PYTHONPATH=tests .venv/bin/python -m bench.year SEED` tells of each
stop and of each false alarm.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

from bench.ratios import Figure

from support.watched_year import (
    DAY,
    HOUR,
    Definition,
    Exchange,
    Outcome,
    Played,
    Rhythm,
    Session,
    alarms,
    calendars,
    outcome,
    plan,
    planted,
    promises,
    runs_of,
    specs_of,
    tables_of,
)
from tidemark.model.settings.lengths import length_in_toml
from tidemark.model.slas.calendars import calendars_in
from tidemark.sla.watched_suggestion import RecordedCommit, TableProposal, propose
from tidemark.watch.ages import rows_of_ages

SEEDS = (1, 2, 3)
NUMBERS = {
    Rhythm.BARS: 14,
    Rhythm.HOURLY: 18,
    Rhythm.EVENING: 24,
    Rhythm.NIGHT: 14,
    Rhythm.DAILY: 10,
    Rhythm.WEEKLY: 6,
    Rhythm.MONTHLY: 4,
    Rhythm.POISSON: 6,
    Rhythm.HEAVY: 4,
}
STOPS = 30
MONTHS = 12
YEAR = 2025
BEGIN_MS, END_MS = (round(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1_000 for year in (YEAR, YEAR + 1))
RUNS_SINCE_MS = BEGIN_MS - 61 * DAY
"""Tables are written for two months before alarms count."""
HALF_MS = round(datetime(YEAR, 7, 1, tzinfo=UTC).timestamp()) * 1_000


def figures(_: int) -> Iterator[Figure]:
    """What was found, and false alarms per 100 tables and month, of each seed."""
    years = [year(seed) for seed in SEEDS]
    declared = [each.declared for each in years]
    yield Figure(f"planted stops that declared limits found, of {STOPS}", [_found(each) for each in declared], 28)
    false = [_false(each) / MONTHS for each in declared]
    yield Figure("  false alarms per 100 tables and month", false, 1, at_most=True, unit="alarms")
    half = [_found(each.declared_half) / each.stops_half for each in years]
    proposed = [_found(each.proposed) / each.stops_half for each in years]
    yield Figure("share of stops of the second half that declared limits found", half, unit="")
    yield Figure("  that proposed ones would have found", proposed, unit="")
    false = [_false(each.declared_half) * 2 / MONTHS for each in years]
    yield Figure("false alarms of declared ones in it, per 100 tables and month", false, unit="alarms")
    false = [_false(each.proposed) * 2 / MONTHS for each in years]
    yield Figure("  of proposed ones, if somebody had pasted them", false, unit="alarms")


@dataclass(frozen=True, kw_only=True)
class Year:
    """What limits found: declared ones in the year and in its second half, and proposed ones in this half."""

    declared: Sequence[Outcome]
    declared_half: Sequence[Outcome]
    proposed: Sequence[Outcome]
    without_proposal: Sequence[str]

    @property
    def stops_half(self) -> int:
        return sum(each.stop is not None for each in self.declared_half)


def year(seed: int) -> Year:
    """Plays a year of all tables."""
    draw = random.Random(f"{seed}")
    exchanges = [exchange("XNYS", "09:30", "16:00"), exchange("XETR", "09:00", "17:30")]
    tables = tables_of(exchanges, draw, NUMBERS)
    stopped = {*(table.name for table in draw.sample(tables, STOPS))}
    with TemporaryDirectory() as folder:
        of_calendars = calendars(exchanges, Path(folder))
        usable = calendars_in({"calendars": of_calendars}, file="slas.toml", folder=Path(folder)).usable
        slas = {name: sla for table in tables for name, sla in promises(table).items()}
        specs = specs_of(slas, of_calendars, Path(folder))
        declared, declared_half, proposed, without = [], [], [], []
        for table in tables:
            runs, stop = runs_of(table, RUNS_SINCE_MS, END_MS, seed), None
            if table.name in stopped:
                runs, stop = planted(table, runs, plan(table, runs, seed))
            played = Played(table, runs)
            found = alarms(played, specs, BEGIN_MS, END_MS)
            later = stop if stop and stop.start_ms >= HALF_MS else None
            # A stop of the first half is in the past of proposals, and is not counted where it ends later.
            since_ms = HALF_MS if later or stop is None else max(HALF_MS, stop.settled_ms)
            declared.append(outcome(table, stop, found, BEGIN_MS))
            declared_half.append(outcome(table, later, found, since_ms))
            proposal = _proposed(played, usable.values())
            of_table = _as_slas(table, proposal)
            if not of_table:
                without.append(table.name)
            new = {**of_calendars, **_as_calendars(proposal)}
            would = alarms(played, specs_of(of_table, new, Path(folder)), HALF_MS, END_MS) if of_table else []
            proposed.append(outcome(table, later, would, since_ms))
    return Year(declared=declared, declared_half=declared_half, proposed=proposed, without_proposal=without)


def exchange(name: str, opens: str, closes: str) -> Exchange:
    """The sessions of an exchange in the year, and some before and after."""
    import exchange_calendars  # takes a second, and is only for this

    calendar = exchange_calendars.get_calendar(name, start=f"{YEAR - 1}-10-28", end=f"{YEAR + 1}-01-15")
    sessions = [
        Session(day.date(), int(row.open.timestamp()) * 1_000, int(row.close.timestamp()) * 1_000)
        for day, row in calendar.schedule.iterrows()
    ]
    return Exchange(name=name, zone=ZoneInfo(str(calendar.tz)), opens=opens, closes=closes, sessions=sessions)


def _proposed(played: Played, usable: Any) -> TableProposal:
    """What the rows of `table_ages` of the first half support."""
    rows = rows_of_ages(played.history(HALF_MS, None), HALF_MS)
    commits = [
        RecordedCommit(at_ms=row["committed_at"], gap_ms=row["gap_ms"], peak_ms=row["peak_high_ms"], rows=row["rows"])
        for row in rows
    ]
    return propose(commits, zone=ZoneInfo("UTC"), calendars=usable, now_ms=HALF_MS)


def _as_slas(table: Definition, proposal: TableProposal) -> dict[str, dict[str, Any]]:
    names = [days.name or "own" for days in proposal.exempt]
    return {
        f"{table.name}_{limit.measure}": {
            "subject": f"lake.{table.name}",
            "measure": str(limit.measure),
            **({"except": names} if names else {}),
            **(
                {"error_after": length_in_toml(limit.limit)}
                if limit.over_ms is None
                else {"error_below": limit.limit, "over": length_in_toml(limit.over_ms)}
            ),
        }
        for limit in proposal.limits
    }


def _as_calendars(proposal: TableProposal) -> dict[str, dict[str, Any]]:
    days = next((each for each in proposal.exempt if not each.name), None)
    if days is None:
        return {}
    weekdays = [("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[day] for day in sorted(days.weekdays)]
    found: dict[str, Any] = {"zone": days.zone.key}
    found |= {"weekdays": weekdays} if weekdays else {}
    found |= {"days_of_month": sorted(days.days_of_month)} if days.days_of_month else {}
    return {"own": found}


def _found(outcomes: Sequence[Outcome]) -> int:
    return sum(each.found is not None for each in outcomes)


def _false(outcomes: Sequence[Outcome]) -> int:
    return sum(len(each.false) for each in outcomes)


def tell(found: Year) -> Iterator[str]:
    """Yields a line for each stop, and for each false alarm."""
    for of_year, outcomes in (("declared", found.declared), ("proposed", found.proposed)):
        for each in outcomes:
            if (stop := each.stop) is not None:
                after = "MISSED" if each.after_ms is None else f"{each.after_ms / HOUR:.1f} h by {each.found.slas}"
                lasts = f"{(stop.recovered_ms - stop.start_ms) / HOUR:.1f} h from {_at(stop.start_ms)}"
                yield f"{of_year} {stop.table} {stop.fault.name} {lasts}: {after}"
        for each in outcomes:
            for alarm in each.false:
                lasted = (alarm.until_ms - alarm.since_ms) / HOUR
                yield f"{of_year} FALSE {alarm.table} {_at(alarm.since_ms)} for {lasted:.1f} h by {alarm.slas}"
    yield f"without a proposal: {' '.join(found.without_proposal)}"


def _at(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%a %Y-%m-%d %H:%M}"


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        sys.stdout.write("\n".join((f"seed {seed}", *tell(year(seed)), "")))
