"""Plays tables that other programs write, with planted stops, and counts what alarms find.

How it works: a `Definition` is what a person knows of a table before it runs, and `promises` writes its SLAs by that
alone. `runs_of` draws what its writer does, and `planted` takes a part of that away or spoils it. So the plan says when
a stop begins and ends, and every other alarm is false. `Played` gives the commits as their log would, and `alarms`
judges them at instants by the functions that judge watched tables, with the incidents that follow.

All instants are epoch ms of the true time. Only stamps of commits are of the clock of their writer.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tidemark.model.measures.volume import VOLUME
from tidemark.model.settings.lengths import duration_ms, length_in_toml
from tidemark.model.slas.sla_spec import SlaSpec, usable_slas, watched_topology
from tidemark.semantics.incidents import Change, SlaState, follow, interrupted
from tidemark.sla.incidents.changes import excluded_because
from tidemark.sla.watched import watched_statuses
from tidemark.watch.commits import Change as DataChange
from tidemark.watch.commits import ChosenColumn, Clock, History, PastCommit, Span, TimeColumn, Writer

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Session:
    """A day on which an exchange trades."""

    day: date
    open_ms: int
    close_ms: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An exchange with its usual hours on the clock of its *zone*, and its sessions of the played time."""

    name: str
    zone: ZoneInfo
    opens: str
    closes: str
    sessions: Sequence[Session]

    @property
    def closures(self) -> list[date]:
        """The weekdays without a session, which the exchange announces in time."""
        days = [each.day for each in self.sessions]
        every = [days[0] + n * _DAY for n in range((days[-1] - days[0]).days)]
        return [day for day in every if day.weekday() < 5 and day not in {*days}]

    @property
    def early_closes(self) -> list[tuple[int, int]]:
        """From when to when the exchange is closed in its usual hours, which it announces in time."""
        found = []
        for each in self.sessions:
            hour, minute = map(int, self.closes.split(":"))
            usual_ms = at_clock(each.day, self.zone, hour, minute)
            if each.close_ms < usual_ms:
                found.append((each.close_ms, usual_ms))
        return found


def at_clock(day: date, zone: ZoneInfo, hour: int, minute: int = 0) -> int:
    """The instant at which the clock of *zone* shows a time of *day*."""
    at = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
    return int(at.timestamp()) * 1_000


class Rhythm(StrEnum):
    BARS = "every 5 min of a session"
    HOURLY = "every hour"
    EVENING = "at 20:00 of each trading day"
    NIGHT = "at 02:00 after each trading day"
    DAILY = "every day at 03:00 UTC"
    WEEKLY = "on Sundays at 06:00 UTC"
    MONTHLY = "on the second trading day of a month"
    POISSON = "at random"
    HEAVY = "at random, with long pauses"


class Fault(StrEnum):
    SILENT = "no commit"
    MAINTENANCE = "OPTIMIZE alone"
    NOTHING_NEWER = "MERGE without newer events"
    OLD_ROWS = "appends of old events"
    HALF = "half of the rows"
    RARE = "one run of eight"
    OLDER = "events fall behind"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What is known of a table before it runs: its rhythm, the usual rows of a run, and how late a run may be.

    A random one is written every *mean_ms* on average. Nobody knows by how much the clock of its writer is ahead.
    """

    name: str
    rhythm: Rhythm
    exchange: Exchange
    rows: int
    late_ms: int = 0
    mean_ms: int = 0
    has_events: bool = True
    merges: bool = False
    clock_ahead_ms: int = 0
    are_events_ahead: bool = False


def promises(table: Definition) -> dict[str, dict[str, Any]]:
    """The SLAs that a person writes by the definition, before the table runs.

    * Times: the longest time from one run to the next, and how late the later one may be. Of random commits 12 times
      their mean, which a Poisson process reaches once in 160,000 times, and 72 times that of those with long pauses.
    * Rows: 60 % of those of one run in that time, or of all in an hour of bars, in a day of hours and in 200 random
      commits. Of those with long pauses none, and of months none.
    * Days on which no run is due are left out, by the closures that the exchange announces.
    """
    over_ms, rows = {
        Rhythm.BARS: (HOUR, 12 * table.rows),
        Rhythm.HOURLY: (DAY, 24 * table.rows),
        Rhythm.POISSON: (200 * table.mean_ms, 200 * table.rows),
        Rhythm.HEAVY: (0, 0),
        Rhythm.MONTHLY: (0, 0),
    }.get(table.rhythm, (interval_ms(table) + table.late_ms, table.rows))
    subject = {"subject": f"lake.{table.name}", **_judged(table)}
    slas: dict[str, dict[str, Any]] = {}
    limit_ms = interval_ms(table) + table.late_ms
    if table.rhythm is not Rhythm.BARS:  # a bar has its events, and says nothing else
        slas["age"] = {"measure": "commit_age", "error_after": length_in_toml(limit_ms)}
    if table.has_events:
        slas["stale"] = {"measure": "staleness", "error_after": length_in_toml(limit_ms + _event_age_ms(table))}
    if over_ms:
        slas["rows"] = {"measure": "volume", "over": length_in_toml(over_ms), "error_below": rows * 6 // 10}
    return {f"{table.name}_{name}": {**subject, **sla} for name, sla in slas.items()}


def interval_ms(table: Definition) -> int:
    """The longest time from one run to the next, without days off."""
    return {
        Rhythm.BARS: 5 * MINUTE,
        Rhythm.HOURLY: HOUR,
        Rhythm.WEEKLY: 7 * DAY,
        Rhythm.MONTHLY: 35 * DAY,
        Rhythm.POISSON: 12 * table.mean_ms,
        Rhythm.HEAVY: 72 * table.mean_ms,
    }.get(table.rhythm, DAY)


def _event_age_ms(table: Definition) -> int:
    """How old the newest event is when a run is due."""
    return {
        Rhythm.EVENING: 4 * HOUR,
        Rhythm.NIGHT: 10 * HOUR,
        Rhythm.DAILY: 3 * HOUR,
        Rhythm.WEEKLY: 6 * HOUR,
        Rhythm.MONTHLY: DAY,
    }.get(table.rhythm, 0)


def _judged(table: Definition) -> dict[str, Any]:
    """The days and hours in which an SLA of a table is judged."""
    exchange = table.exchange
    match table.rhythm:
        case Rhythm.BARS:
            hours = {"zone": exchange.zone.key, "days": ["Mon", "Tue", "Wed", "Thu", "Fri"]}
            early = [f"{_iso(since)}/{_iso(until)}" for since, until in exchange.early_closes]
            return {
                "calendar": {**hours, "from": exchange.opens, "to": exchange.closes},
                "except": [f"{exchange.name.lower()}_closed"],
                **({"maintenance_windows": early} if early else {}),
            }
        case Rhythm.EVENING:
            return {"except": [f"{exchange.name.lower()}_closed"]}
        case Rhythm.NIGHT:
            return {"except": [f"{exchange.name.lower()}_not_loaded"]}
        case _:
            return {}


def _iso(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%dT%H:%M}Z"


def calendars(exchanges: Sequence[Exchange], folder: Path) -> dict[str, dict[str, Any]]:
    """The calendars of a person, whose files are written into *folder*."""
    found: dict[str, dict[str, Any]] = {}
    for each in exchanges:
        closed, after = f"{each.name.lower()}_closed", f"{each.name.lower()}_not_loaded"
        for name, days in ((closed, each.closures), (after, [day + _DAY for day in each.closures])):
            (folder / f"{name}.txt").write_text("".join(f"{day}\n" for day in days))
        zone = each.zone.key
        found[closed] = {"zone": zone, "weekdays": ["Sat", "Sun"], "files": [f"{closed}.txt"]}
        found[after] = {"zone": zone, "weekdays": ["Sun", "Mon"], "files": [f"{after}.txt"]}
    return found


def specs_of(slas: Mapping[str, Any], of_calendars: Mapping[str, Any], folder: Path) -> tuple[SlaSpec, ...]:
    """Reads SLAs as a file has them."""
    content = {"calendars": of_calendars, "watch": {"lake": {"tables": ["/lake"], "owner": "desk"}, **slas}}
    found = usable_slas(content, watched_topology(content, file="slas.toml"), file="slas.toml", folder=folder)
    found.refuse()
    return found.specs


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a writer: when it is due and when it commits, its rows, and the newest event that it brings.

    One that is not *brings_newer* rewrites older rows by a MERGE; one that is not *changes_data* moves rows alone.
    """

    due_ms: int
    at_ms: int
    rows: int
    event_ms: int
    is_merge: bool = False
    brings_newer: bool = True
    changes_data: bool = True


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A planted fault of the runs that are due from *start_ms* until *end_ms*; the first good one came *recovered_ms*.

    Until *settled_ms* what a measure looks back on may still show the fault.
    """

    table: str
    fault: Fault
    start_ms: int
    end_ms: int
    recovered_ms: int = 0
    settled_ms: int = 0


def runs_of(table: Definition, since_ms: int, until_ms: int, seed: int) -> list[Run]:
    """Draws what the writer of a table does without a planted fault.

    A run takes some minutes, one of a hundred is tried again up to three times, and about once in two years nothing is
    written for a while, of which one in three lasts longer than half an hour (Pareto).
    """
    draw = random.Random(f"{seed} {table.name}")
    troubles = [*_troubles(draw, since_ms, until_ms)]
    runs: list[Run] = []
    last_ms = 0
    for due_ms, event_ms in _due(table, since_ms, until_ms, draw):
        at_ms = due_ms + _takes_ms(table, draw)
        at_ms = max([at_ms, *(end for begin, end in troubles if begin <= at_ms < end)])
        last_ms = max(at_ms, last_ms + 1_000)
        spread = 0.02 if table.rhythm is Rhythm.BARS else 0.15
        rows = max(1, round(table.rows * draw.lognormvariate(0, spread)))
        runs.append(Run(due_ms=due_ms, at_ms=last_ms, rows=rows, event_ms=event_ms, is_merge=table.merges))
    return runs


def _due(table: Definition, since_ms: int, until_ms: int, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Yields when runs are due, with their newest events."""
    sessions, zone = table.exchange.sessions, table.exchange.zone
    match table.rhythm:
        case Rhythm.BARS:
            for each in sessions:
                yield from ((ms, ms) for ms in range(each.open_ms + 5 * MINUTE, each.close_ms + 1, 5 * MINUTE))
        case Rhythm.HOURLY:
            yield from ((at_ms, at_ms) for at_ms in range(since_ms, until_ms, HOUR))
        case Rhythm.EVENING:
            yield from ((at_clock(each.day, zone, 20), each.close_ms) for each in sessions)
        case Rhythm.NIGHT:
            yield from ((at_clock(each.day + _DAY, zone, 2), each.close_ms) for each in sessions)
        case Rhythm.DAILY:
            yield from ((midnight + 3 * HOUR, midnight) for midnight in range(since_ms, until_ms, DAY))
        case Rhythm.WEEKLY:
            first = next(ms for ms in range(since_ms, until_ms, DAY) if _weekday(ms) == 6)
            yield from ((midnight + 6 * HOUR, midnight) for midnight in range(first, until_ms, 7 * DAY))
        case Rhythm.MONTHLY:
            yield from ((at_ms, at_ms - DAY) for at_ms in _second_days(sessions))
        case Rhythm.POISSON | Rhythm.HEAVY:
            yield from ((at_ms, at_ms) for at_ms in _at_random(table, since_ms, until_ms, draw))


def _at_random(table: Definition, since_ms: int, until_ms: int, draw: random.Random) -> Iterator[int]:
    """Yields instants with pauses of a Poisson process, or of Lomax with the shape 2.5, of the same mean."""
    at_ms = since_ms
    while at_ms < until_ms:
        yield at_ms
        pause = draw.expovariate(1) if table.rhythm is Rhythm.POISSON else 1.5 * (draw.paretovariate(2.5) - 1)
        at_ms += max(1_000, round(table.mean_ms * pause))


def _weekday(at_ms: int) -> int:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).weekday()


def _second_days(sessions: Sequence[Session]) -> Iterator[int]:
    """Yields noon of the second trading day of each month."""
    for before, first, second in zip(sessions, sessions[1:], sessions[2:], strict=False):
        if before.day.month != first.day.month:
            yield at_clock(second.day, ZoneInfo("UTC"), 12)


def _takes_ms(table: Definition, draw: random.Random) -> int:
    minutes = {Rhythm.BARS: 0.25, Rhythm.POISSON: 0.25, Rhythm.HEAVY: 0.25, Rhythm.HOURLY: 4}.get(table.rhythm, 20)
    tries = 0
    while tries < 3 and draw.random() < (0.01 if tries == 0 else 0.3):
        tries += 1
    again_ms = 0 if table.rhythm in (Rhythm.POISSON, Rhythm.HEAVY) else table.late_ms // 4
    return round(MINUTE * minutes * draw.lognormvariate(0, 0.5)) + tries * again_ms


def _troubles(draw: random.Random, since_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
    at_ms: float = since_ms
    while (at_ms := at_ms + draw.expovariate(1 / (730 * DAY))) < until_ms:
        yield round(at_ms), round(at_ms + 15 * MINUTE * draw.paretovariate(1.5))


LOST_RUNS = {
    Rhythm.BARS: (4, 12, 40, 156),
    Rhythm.HOURLY: (3, 6, 24, 72),
    Rhythm.EVENING: (1, 2, 3, 5),
    Rhythm.NIGHT: (1, 2, 3, 5),
    Rhythm.DAILY: (1, 2, 3, 5),
    Rhythm.WEEKLY: (1, 2, 3),
    Rhythm.MONTHLY: (1,),
    Rhythm.POISSON: (20, 40, 80),
    Rhythm.HEAVY: (100, 200),
}
"""Of silence; of random runs so many means."""
SPOILED_RUNS = {Rhythm.BARS: (40, 156), Rhythm.HOURLY: (48, 96), Rhythm.POISSON: (400, 800)}
"""Of the other faults, of runs that come; of a day or longer as many as are lost, and one more."""


def faults_of(table: Definition) -> tuple[Fault, ...]:
    """The faults against which the definition of a table says something."""
    of_rhythm = {
        Rhythm.BARS: (Fault.HALF, Fault.RARE),
        Rhythm.HOURLY: (Fault.HALF, Fault.RARE),
        Rhythm.HEAVY: (),
        Rhythm.MONTHLY: (),
    }.get(table.rhythm, (Fault.HALF,))
    of_events = (Fault.NOTHING_NEWER, Fault.OLD_ROWS, Fault.OLDER)
    if not table.has_events or table.rhythm in (Rhythm.HEAVY, Rhythm.MONTHLY, Rhythm.WEEKLY):
        of_events = ()
    return (Fault.SILENT, Fault.SILENT, Fault.MAINTENANCE, *of_rhythm, *of_events)


def plan(table: Definition, runs: Sequence[Run], seed: int, fault: Fault | None = None) -> Stop:
    """Draws a stop of a table, not near the ends of its *runs*: any *fault* of those that its definition speaks of."""
    draw = random.Random(f"{seed} stop {table.name}")
    fault = fault or draw.choice(faults_of(table))
    lost = draw.choice(LOST_RUNS[table.rhythm])
    if fault not in (Fault.SILENT, Fault.MAINTENANCE):
        lost = draw.choice(SPOILED_RUNS.get(table.rhythm, (lost + 1,)))
    first = draw.randrange(len(runs) // 5, len(runs) * 11 // 12 - 1)
    start_ms = runs[first].due_ms
    end_ms = runs[min(first + lost, len(runs) - 1)].due_ms
    if table.mean_ms:
        end_ms = min(start_ms + lost * table.mean_ms, runs[-1].due_ms)
    return Stop(table=table.name, fault=fault, start_ms=start_ms, end_ms=end_ms)


def planted(table: Definition, runs: Sequence[Run], stop: Stop) -> tuple[list[Run], Stop]:
    """Returns what is left of *runs* with the *stop*, and the stop with the instant of its end."""
    changed: list[Run] = []
    before = [run for run in runs if run.due_ms < stop.start_ms]
    after = [run for run in runs if run.due_ms >= stop.end_ms]
    during = [run for run in runs if stop.start_ms <= run.due_ms < stop.end_ms]
    for n, run in enumerate(during):
        match stop.fault:
            case Fault.MAINTENANCE:
                changed.append(replace(run, changes_data=False))
            case Fault.NOTHING_NEWER:
                changed.append(replace(run, is_merge=True, brings_newer=False, event_ms=before[-1].event_ms))
            case Fault.OLD_ROWS:
                changed.append(replace(run, brings_newer=False, event_ms=before[-1].event_ms))
            case Fault.HALF:
                changed.append(replace(run, rows=max(1, run.rows // 2)))
            case Fault.RARE if n % 8 == 7:
                changed.append(run)
            case Fault.OLDER:
                event_ms = before[-1].event_ms + (run.event_ms - before[-1].event_ms) // 4
                changed.append(replace(run, event_ms=event_ms))
    recovered_ms = after[0].at_ms
    looks_back_ms = max((_over_ms(sla) for sla in promises(table).values()), default=0)
    end = replace(stop, recovered_ms=recovered_ms, settled_ms=recovered_ms + 2 * max(looks_back_ms, DAY))
    return [*before, *changed, *after], end


def _over_ms(sla: Mapping[str, Any]) -> int:
    return duration_ms(sla.get("over", "1 ms")) or 0


COLUMN = ChosenColumn(TimeColumn("at", "at", "timestamp"))
WRITER = Writer(engine="simulated")
LEAST, MOST = 100, 1_000
"""Commits of a table that are read."""


class Played:
    """The commits of a table, as its log has them, and what is read of them at an instant."""

    def __init__(self, table: Definition, runs: Sequence[Run]) -> None:
        self.table = table
        runs = sorted(runs, key=lambda run: run.at_ms)
        self.commits_ms = [run.at_ms for run in runs]
        self._commits: list[PastCommit] = []
        self._newest: list[Span | None] = [None]
        newest_ms: int | None = None
        events_ahead_ms = table.clock_ahead_ms if table.are_events_ahead else 0
        for version, run in enumerate(runs):
            stamp_ms, event_ms = run.at_ms + table.clock_ahead_ms, run.event_ms + events_ahead_ms
            change = DataChange.REPLACED if run.is_merge else DataChange.APPENDED
            latency = Span(stamp_ms - event_ms - 1, stamp_ms - event_ms)
            self._commits.append(
                PastCommit(
                    version,
                    stamp_ms,
                    Clock.WRITER,
                    change if run.changes_data else DataChange.NONE,
                    "OPTIMIZE" if not run.changes_data else "MERGE" if run.is_merge else "WRITE",
                    run.rows if run.changes_data else 0,
                    1_000,
                    latency if run.changes_data and not run.is_merge and table.has_events else None,
                    WRITER,
                    self._newest[-1],
                )
            )
            if run.changes_data and table.has_events:
                newest_ms = event_ms if newest_ms is None else max(newest_ms, event_ms)
                self._newest.append(Span(newest_ms, newest_ms + 1))
            else:
                self._newest.append(self._newest[-1])
        self._stamps_ms = [commit.at_ms for commit in self._commits]

    def history(self, at_ms: int, back_ms: int | None) -> History:
        """What is read of its log at an instant, with commits so far back; None: all of them."""
        end = bisect_right(self.commits_ms, at_ms)
        first = 0
        if back_ms is not None:
            asked = bisect_left(self._stamps_ms, at_ms - back_ms, hi=end) - 1
            first = max(0, min(end - LEAST, asked), end - MOST)
        return History(
            Path(f"/lake/{self.table.name}"),
            self.table.name,
            end - 1,
            COLUMN if self.table.has_events else ChosenColumn(None),
            tuple(self._commits[first:end]),
            first - 1,
            self._newest[end],
        )


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """When an alarm of a table began and ended, and the SLAs that it names."""

    table: str
    since_ms: int
    until_ms: int
    slas: tuple[str, ...]


USUAL_PAUSES = {Rhythm.BARS: 8 * MINUTE, Rhythm.HOURLY: 100 * MINUTE}
"""Of random commits three times their mean, and of all others none."""
LOOKED_AT = {Rhythm.BARS: 20, Rhythm.HOURLY: 3, Rhythm.POISSON: 5, Rhythm.HEAVY: 10}
"""Of so many commits one is looked at that came after a usual pause; of all others each."""


def instants(played: Played, since_ms: int, until_ms: int) -> list[int]:
    """The instants at which a table is judged.

    An age is greatest just before a commit, and just before days off. So these are the instants just before commits,
    which are all that came after more than a usual pause, and some of the others. Where a clock is ahead the instant of
    the commit is one, too. A grid is for what is counted over an interval.
    """
    table = played.table
    if table.rhythm is Rhythm.BARS:
        found = {ms - 1 for each in table.exchange.sessions for ms in range(each.open_ms, each.close_ms + 1, HOUR // 2)}
    else:
        # Midnight in New York and in Frankfurt, and once in between.
        found = {day_ms + hour * HOUR - 1 for day_ms in range(since_ms, until_ms, DAY) for hour in (4, 5, 13, 22, 23)}
    usual_ms, one_of, last_ms = USUAL_PAUSES.get(table.rhythm, 3 * table.mean_ms), LOOKED_AT.get(table.rhythm, 1), 0
    for n, at_ms in enumerate(played.commits_ms):
        if n % one_of == 0 or at_ms - last_ms > usual_ms:
            found |= {at_ms - 1, at_ms} if table.clock_ahead_ms else {at_ms - 1}
        last_ms = at_ms
    return sorted(at_ms for at_ms in found if since_ms <= at_ms < until_ms)


def alarms(played: Played, specs: Sequence[SlaSpec], since_ms: int, until_ms: int) -> list[Alarm]:
    """Judges a table, and returns its alarms: times in which an incident of one of its SLAs is open."""
    subject = f"lake.{played.table.name}"
    own = [spec for spec in specs if spec.subject == subject]
    counted_ms = dict.fromkeys((spec.name for spec in own), 0)
    standing = {spec.name: SlaState() for spec in own}
    incidents: list[tuple[int, int, str]] = []
    opened: dict[str, int] = {}
    before_ms = since_ms
    for at_ms in instants(played, since_ms, until_ms):
        judged = []
        for spec in own:
            # What is counted over an interval changes little in an eighth of it.
            if spec.measure is VOLUME and at_ms - counted_ms[spec.name] < spec.over_ms // 8:
                continue
            counted_ms[spec.name] = at_ms
            if excluded_because(spec, at_ms, is_past=False) is not None:
                standing[spec.name] = interrupted(standing[spec.name])
            else:
                judged.append(spec)
        if judged:
            history = played.history(at_ms, max(DAY, *(spec.over_ms for spec in judged), 0))
            for status in watched_statuses(judged, {subject: history}, at_ms=at_ms):
                name, spec = status.spec.name, status.spec
                standing[name], change = follow(
                    standing[name],
                    at_ms=at_ms,
                    verdict=status.verdict,
                    damping=spec.damping,
                    crossed_ms=status.crossed_ms,
                )
                if change is Change.OPENED:
                    # A look every few seconds finds it when it crosses its limit.
                    opened[name] = at_ms if status.crossed_ms is None else max(status.crossed_ms, before_ms)
                elif change is Change.RESOLVED:
                    incidents.append((opened.pop(name), at_ms, name))
        before_ms = at_ms
    incidents += [(at_ms, until_ms, name) for name, at_ms in opened.items()]
    return [*_joined(played.table.name, sorted(incidents))]


def _joined(table: str, incidents: Sequence[tuple[int, int, str]]) -> Iterator[Alarm]:
    """Yields an alarm for incidents of a table that are open together: one cause is one alert."""
    current: Alarm | None = None
    for since_ms, until_ms, name in incidents:
        if current is not None and since_ms <= current.until_ms:
            slas = tuple(dict.fromkeys((*current.slas, name)))
            current = replace(current, until_ms=max(until_ms, current.until_ms), slas=slas)
            continue
        if current is not None:
            yield current
        current = Alarm(table=table, since_ms=since_ms, until_ms=until_ms, slas=(name,))
    if current is not None:
        yield current


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What alarms found of a table: its *stop* (None: it had none), how long after its start, and false alarms."""

    definition: Definition
    stop: Stop | None
    found: Alarm | None
    false: tuple[Alarm, ...]

    @property
    def after_ms(self) -> int | None:
        """From the start of the stop to its alarm."""
        return None if self.found is None or self.stop is None else self.found.since_ms - self.stop.start_ms


def outcome(table: Definition, stop: Stop | None, of_table: Sequence[Alarm], since_ms: int) -> Outcome:
    """Compares alarms of a table since an instant with the plan.

    A stop is found if an alarm began in it. An alarm that began before or after it is false, except while what was
    planted is still in what measures look back on.
    """
    found = next((each for each in of_table if stop and stop.start_ms <= each.since_ms < stop.recovered_ms), None)
    false = [
        each
        for each in of_table
        if each.since_ms >= since_ms and not (stop and stop.start_ms <= each.since_ms < stop.settled_ms)
    ]
    return Outcome(definition=table, stop=stop, found=found, false=tuple(false))


def tables_of(exchanges: Sequence[Exchange], draw: random.Random, numbers: Mapping[Rhythm, int]) -> list[Definition]:
    """Draws so many definitions of each rhythm."""
    late_ms = {
        Rhythm.BARS: 10 * MINUTE,
        Rhythm.HOURLY: HOUR,
        Rhythm.WEEKLY: 12 * HOUR,
        Rhythm.MONTHLY: DAY,
        Rhythm.POISSON: 5 * MINUTE,
        Rhythm.HEAVY: 5 * MINUTE,
    }
    tables: list[Definition] = []
    for rhythm, number in numbers.items():
        for n in range(number):
            is_often = rhythm in (Rhythm.BARS, Rhythm.HOURLY, Rhythm.POISSON)
            of_trading = rhythm in (Rhythm.EVENING, Rhythm.NIGHT)
            tables.append(
                Definition(
                    name=f"{rhythm.name.lower()}_{n}",
                    rhythm=rhythm,
                    exchange=exchanges[0] if n % 3 or len(exchanges) == 1 else exchanges[1],
                    rows=draw.choice((40, 500, 12_000)),
                    late_ms=late_ms.get(rhythm, 3 * HOUR),
                    mean_ms=draw.choice((20, 40, 60, 90)) * MINUTE if rhythm in (Rhythm.POISSON, Rhythm.HEAVY) else 0,
                    has_events=rhythm is Rhythm.BARS or n % 4 != 3,
                    merges=of_trading and n % 2 == 1,
                    clock_ahead_ms=draw.randrange(20_000, 180_000) if is_often and n % 6 == 5 else 0,
                    are_events_ahead=n % 12 == 11,
                )
            )
    return tables
