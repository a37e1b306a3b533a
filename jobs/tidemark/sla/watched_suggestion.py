"""Proposes SLAs of watched tables from their commits in `table_ages`, as TOML that a person may paste.

What several days show is usual, and what one or two show may have been a fault:

* A length that the table reached on REPEATED days is usual. The proposed limit is MARGIN times it, rounded up.
* So is a number of rows that it fell to on REPEATED days. The proposed limit is that number divided by MARGIN.
* A day of the week, or of the month, on which no commit ever came is a day off, if the past has REPEATED of them. So
  are the days of a calendar of `slas.toml`, and if it has holidays or dates, REPEATED of these must be in the past.
  There are none unless the other days are half of all, and the table is written on MOST_DAYS of them: of a table that
  is written once a week the other six are no days off.

Ages count from the end of days off, as they do when an SLA is judged. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Tables
from tidemark.model.measures.commit_age import COMMIT_AGE
from tidemark.model.measures.limits import ERROR_AFTER, ERROR_BELOW
from tidemark.model.measures.registry import Measure
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.volume import VOLUME
from tidemark.model.project.layout import WATCH
from tidemark.model.settings.lengths import counted, for_people, length_in_toml, rounded_up
from tidemark.model.settings.maintenance_windows import DAYS
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_files import toml_text
from tidemark.model.slas.calendars import LAST_DAY, ExemptDays, longest_between_days
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.model.topology_keys import CALENDARS
from tidemark.model.watched import WatchedSet
from tidemark.selection import present
from tidemark.semantics.quantiles import MEDIAN, quantile_of
from tidemark.semantics.windows import clock_ms
from tidemark.sla.suggestion import FEWEST, MARGIN
from tidemark.storage.location import location

REPEATED = 3
"""Days that have to show the same, before it is proposed."""
LEAST_DAYS = 7 * REPEATED
"""Days of the past that a proposal needs, so that each day of the week is in it REPEATED times."""
LOOKED_BACK_MS = 400 * DAY_MS
MOST_DAYS = 0.9
SHOWN_DATES = 5
_DAY = timedelta(days=1)
_EPOCH = date(1970, 1, 1)
COMMITS = """
    SELECT "table", epoch_ms(committed_at) AS at_ms, gap_ms, peak_high_ms AS peak_ms, rows
    FROM table_ages WHERE topology = $1 AND committed_at >= make_timestamptz($2 * 1000)
    ORDER BY "table", committed_at, version
"""


@dataclass(frozen=True, kw_only=True)
class RecordedCommit:
    """A commit that changed data.

    Attributes:
        at_ms: its stamp.
        gap_ms: since the commit before; None: it is the first that is known.
        peak_ms: the age of the newest event time just before it, at most; None: not known, or no event time.
        rows: what it wrote; None: not known.
    """

    at_ms: int
    gap_ms: int | None
    peak_ms: int | None
    rows: int | None


@dataclass(frozen=True, kw_only=True)
class ProposedLimit:
    """An `error_after` of a length, ms, or an `error_below` of rows in `over_ms`, with the *fact* that it rests on."""

    measure: Measure
    limit: int
    fact: str
    over_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableProposal:
    """What is proposed of a table: limits outside of *exempt* days, and *facts* that people should know."""

    facts: tuple[str, ...]
    exempt: tuple[ExemptDays, ...] = ()
    limits: tuple[ProposedLimit, ...] = ()


def propose(
    commits: Sequence[RecordedCommit], *, zone: ZoneInfo, calendars: Iterable[ExemptDays], now_ms: int
) -> TableProposal:
    """Returns what the *commits* of a table, the oldest first, support.

    Args:
        commits: those that changed data.
        zone: whose clock days begin and end by.
        calendars: those of the file of SLAs, any of which may fit.
        now_ms: the end of the past.
    """
    days = Days.of(commits, zone, now_ms)
    past = f"{counted(len(commits), 'commit')} that changed data on {len(days.written):,} of {len(days.past):,} days"
    if len(commits) < FEWEST or len(days.past) < LEAST_DAYS:
        least = f"a proposal needs at least {FEWEST} commits in {LEAST_DAYS} days"
        return TableProposal(facts=(f"{past}: {least}",))
    exempt = days.off(calendars)
    longest_days = longest_between_days(exempt)
    below_ms = None if longest_days is None else longest_days * DAY_MS
    lengths = [_length(commits, measure, exempt, days, below_ms) for measure in (STALENESS, COMMIT_AGE)]
    usual_ms = present(each.limit for each in lengths if isinstance(each, ProposedLimit))
    rows = _rows(commits, max((DAY_MS, *usual_ms)), exempt, days, below_ms)
    found = present((*lengths, rows))
    return TableProposal(
        facts=(past, *days.facts(exempt), *(each for each in found if isinstance(each, str))),
        exempt=exempt,
        limits=tuple(each for each in found if isinstance(each, ProposedLimit)),
    )


@dataclass(frozen=True, kw_only=True)
class Days:
    """The whole days of which commits are known (`past`), and those of them on which the table got one (`written`)."""

    zone: ZoneInfo
    past: Sequence[date]
    written: frozenset[date]

    @staticmethod
    def of(commits: Sequence[RecordedCommit], zone: ZoneInfo, now_ms: int) -> Days:
        """Returns the days from the one after the first of *commits* to the one before *now_ms*."""
        written = {_day_of(each.at_ms, zone) for each in commits}
        first, end = min(written, default=_EPOCH) + _DAY, _day_of(now_ms, zone)
        past = [first + n * _DAY for n in range((end - first).days)] if written else []
        return Days(zone=zone, past=past, written=frozenset(written.intersection(past)))

    def off(self, calendars: Iterable[ExemptDays]) -> tuple[ExemptDays, ...]:
        """Returns the days on which the table is not written: *calendars* that fit, and one for what they leave."""
        fitting = [each for each in calendars if self._fits(each)]
        left = [day for day in self.past if not any(each.has(day) for each in fitting)]
        weekdays = self._never(left, lambda day: (day.weekday(),))
        left = [day for day in left if day.weekday() not in weekdays]
        # The last day of a month has two numbers.
        of_month = self._never(left, lambda day: (day.day, *([LAST_DAY] if (day + _DAY).day == 1 else [])))
        exempt = [*fitting]
        if weekdays or of_month:
            exempt.append(
                ExemptDays(name="", zone=self.zone, weekdays=frozenset(weekdays), days_of_month=frozenset(of_month))
            )
        others = [day for day in self.past if not any(each.has(day) for each in exempt)]
        written = len(self.written.intersection(others))
        is_daily = 2 * len(others) >= len(self.past) and written >= MOST_DAYS * len(others)
        return tuple(exempt) if is_daily else ()

    def _fits(self, calendar: ExemptDays) -> bool:
        """Returns True if the table was written on none of its days, and enough of them are in the past."""
        days = [day for day in self.past if calendar.has(day)]
        if len(days) < REPEATED or self.written.intersection(days):
            return False
        repeating = replace(calendar, dates=frozenset(), countries=())
        rare = [day for day in days if not repeating.has(day)]
        return len(rare) >= REPEATED or repeating == calendar

    def _never(self, days: Iterable[date], numbers: Callable[[date], Iterable[int]]) -> set[int]:
        """Returns those *numbers* that REPEATED *days* have, and of which no day was written."""
        n, written = Counter[int](), set[int]()
        for day in days:
            n.update(numbers(day))
            if day in self.written:
                written.update(numbers(day))
        return {number for number in n if n[number] >= REPEATED and number not in written}

    def facts(self, exempt: Collection[ExemptDays]) -> Iterator[str]:
        """Yields on which days there was no commit."""
        for each in exempt:
            days = [day for day in self.past if each.has(day)]
            yield f"no commit on {text_of(each)}, {len(days):,} of these days"
        empty = [day for day in self.past if day not in self.written and not any(each.has(day) for each in exempt)]
        if exempt and empty:
            dates = ", ".join(map(str, empty[-SHOWN_DATES:]))
            yield f"no commit on {counted(len(empty), 'other day')}, at last {dates}: a calendar may have them"


def _day_of(at_ms: int, zone: ZoneInfo) -> date:
    return _EPOCH + timedelta(days=clock_ms(at_ms, zone) // DAY_MS)


def _since_ms(exempt: Iterable[ExemptDays], at_ms: int, *, after_ms: int) -> int | None:
    """Returns when days off last ended before *at_ms*; None: not after *after_ms*."""
    return max(present(days.changed_ms(at_ms, after_ms=after_ms) for days in exempt), default=None)


def _length(
    commits: Sequence[RecordedCommit],
    measure: Measure,
    exempt: Sequence[ExemptDays],
    days: Days,
    below_ms: int | None,
) -> ProposedLimit | str | None:
    """Returns a limit of an age, why there is none, or None if the table has no such age."""
    lengths_ms: list[int] = []
    of_days: dict[date, int] = defaultdict(int)
    for commit in commits:
        length_ms = commit.peak_ms if measure is STALENESS else commit.gap_ms
        if length_ms is None or any(each.holds(commit.at_ms) for each in exempt):
            continue
        since_ms = _since_ms(exempt, commit.at_ms, after_ms=commit.at_ms - length_ms)
        lengths_ms.append(length_ms if since_ms is None else commit.at_ms - since_ms)
        day = _day_of(commit.at_ms, days.zone)
        of_days[day] = max(of_days[day], lengths_ms[-1])
    if not lengths_ms and measure is STALENESS:
        return None
    if len(lengths_ms) < FEWEST or len(of_days) < REPEATED:
        return f"{measure}: {counted(len(lengths_ms), 'length')} outside of days off, too few for a limit"
    usual_ms = sorted(of_days.values())[-REPEATED]
    limit_ms = rounded_up(MARGIN * usual_ms)
    if below_ms is not None and limit_ms >= below_ms:
        return f"{measure}: {for_people(limit_ms)} never pass between days off, so that no limit would be reached"
    median, p99, longest = (quantile_of(lengths_ms, q) for q in (MEDIAN, 0.99, 1))
    fact = (
        f"just before a commit: median {for_people(median)}, p99 {for_people(p99)}, longest {for_people(longest)}, "
        f"on {REPEATED} days {for_people(usual_ms)} or more; "
        f"{sum(each >= limit_ms for each in lengths_ms):,} of {len(lengths_ms):,} would have broken the limit"
    )
    return ProposedLimit(measure=measure, limit=limit_ms, fact=fact)


def _rows(
    commits: Sequence[RecordedCommit], over_ms: int, exempt: Sequence[ExemptDays], days: Days, below_ms: int | None
) -> ProposedLimit | None:
    """Returns a limit of the rows in *over_ms*, by what they were just before each commit; None: there is none."""
    if None in {commit.rows for commit in commits} or (below_ms is not None and over_ms >= below_ms):
        return None
    sums: list[int] = []
    of_days: dict[date, int] = {}
    first = rows = 0
    for commit in commits:
        since_ms = commit.at_ms - over_ms
        while commits[first].at_ms < since_ms:
            rows -= commits[first].rows or 0
            first += 1
        is_judged = not any(each.holds(commit.at_ms) for each in exempt)
        if first > 0 and is_judged and _since_ms(exempt, commit.at_ms, after_ms=since_ms) is None:
            sums.append(rows)
            day = _day_of(commit.at_ms, days.zone)
            of_days[day] = min(of_days.get(day, rows), rows)
        rows += commit.rows or 0
    if len(sums) < FEWEST or len(of_days) < REPEATED:
        return None
    usual = sorted(of_days.values())[REPEATED - 1]
    limit = _two_digits(usual / MARGIN)
    if limit < 1:
        return None
    fact = (
        f"in {for_people(over_ms)}: median {quantile_of(sums, MEDIAN):,}, fewest {min(sums):,}, on {REPEATED} days "
        f"{usual:,} or fewer; {sum(each < limit for each in sums):,} of {len(sums):,} would have broken the limit"
    )
    return ProposedLimit(measure=VOLUME, limit=limit, fact=fact, over_ms=over_ms)


def _two_digits(number: float) -> int:
    """Returns *number* rounded down to its first two digits."""
    digits = str(int(number))
    return int(digits[:2].ljust(len(digits), "0"))


def text_of(days: ExemptDays) -> str:
    """Returns the days of a calendar for people: its name, or what repeats.

    >>> days = ExemptDays(name="", zone=ZoneInfo("UTC"), weekdays=frozenset({5, 6}), days_of_month=frozenset({1, -1}))
    >>> text_of(days)
    'Sat, Sun, day 1 of the month, the last day of the month'
    """
    if days.name:
        return f"days of [{CALENDARS}.{days.name}]"
    of_month = [f"day {day} of the month" for day in sorted(days.days_of_month) if day != LAST_DAY]
    last = ["the last day of the month"] if LAST_DAY in days.days_of_month else []
    return ", ".join((*(DAYS[day] for day in sorted(days.weekdays)), *of_month, *last))


@dataclass(frozen=True, kw_only=True)
class TableSuggestion:
    """What is proposed of a table, as *text* in TOML, in which facts are comments."""

    subject: str
    proposal: TableProposal
    text: str

    def __str__(self) -> str:
        return self.text


def suggest_watched(
    tables: Tables,
    topology: Topology,
    specs: Collection[SlaSpec],
    calendars: Mapping[str, ExemptDays],
    *,
    now_ms: int,
) -> list[TableSuggestion]:
    """Returns a suggestion for each table of the sets of *topology* that has commits in `table_ages`.

    Args:
        tables: of the warehouse.
        topology: WATCH.
        specs: the SLAs that are promised already, for which nothing is proposed.
        calendars: those of the file of SLAs, by name.
        now_ms: the end of the past.
    """
    of_tables: dict[str, list[RecordedCommit]] = defaultdict(list)
    for row in tables.ask(COMMITS, [WATCH, now_ms - LOOKED_BACK_MS]).objects:
        table = row.pop("table")
        of_tables[table].append(RecordedCommit(**row))
    text = _Text(topology, specs, calendars)
    found = []
    for table, commits in of_tables.items():
        for subject, watched_set in _subjects_of(table, topology.watched):
            zone = ZoneInfo(watched_set.timezone)
            proposal = propose(commits, zone=zone, calendars=calendars.values(), now_ms=now_ms)
            found.append(
                TableSuggestion(
                    subject=subject, proposal=proposal, text="\n".join(text.lines(subject, watched_set, proposal))
                )
            )
    return found


def _subjects_of(table: str, sets: Iterable[WatchedSet]) -> Iterator[tuple[str, WatchedSet]]:
    """Yields the subjects that the table at a path is, with their sets."""
    for each in sets:
        names = dict.fromkeys(present(_name_below(table, place) for place in each.places))
        yield from ((f"{each.name}.{name}", each) for name in names)


def _name_below(table: str, text: str) -> str | None:
    """Returns the name of the table at a path in a place, as subjects of SLAs have it; None: it is not there."""
    try:
        place = str(location(text))
    except InvalidArgument:
        return None
    if table == place:
        return place.rpartition("/")[2]
    return table.removeprefix(f"{place}/") if table.startswith(f"{place}/") else None


class _Text:
    """Writes proposals as TOML, with a table for each calendar once."""

    def __init__(self, topology: Topology, specs: Collection[SlaSpec], calendars: Collection[str]) -> None:
        self._owner = topology.owner
        self._promised = {(spec.subject, spec.measure): spec.name for spec in specs}
        self._names = {WATCH: {spec.table for spec in specs}, CALENDARS: {*calendars}}
        self._calendars: dict[ExemptDays, str] = {}

    def lines(self, subject: str, watched_set: WatchedSet, proposal: TableProposal) -> Iterator[str]:
        """Yields the lines about a table."""
        first, *others = proposal.facts
        yield f"# {subject}: {first}."
        yield from (f"# {fact}." for fact in others)
        new = [each for each in proposal.limits if (subject, each.measure) not in self._promised]
        for limit in proposal.limits:
            if limit not in new:
                yield f"# {limit.measure} has an SLA already: {self._promised[subject, limit.measure]}."
        names = []
        for days in proposal.exempt if new else ():
            if not days.name and days not in self._calendars:
                yield from self._calendar(days)
            names.append(days.name or self._calendars[days])
        for limit in new:
            yield ""
            yield f"# {limit.measure} {limit.fact}."
            yield f"[{WATCH}.{self._new_name(WATCH, f'{subject}_{limit.measure}')}]"
            yield f"subject = {toml_text(subject)}"
            yield f'measure = "{limit.measure}"'
            if limit.over_ms is None:
                yield f'{ERROR_AFTER.name} = "{length_in_toml(limit.limit)}"'
            else:
                yield f"{ERROR_BELOW.name} = {limit.limit:_}"
                yield f'over = "{length_in_toml(limit.over_ms)}"'
            if names:
                yield f"except = {json.dumps(names)}"
            if watched_set.owner is None:
                yield f"owner = {toml_text(self._owner)}"

    def _calendar(self, days: ExemptDays) -> Iterator[str]:
        words = [*(DAYS[day] for day in sorted(days.weekdays)), *map(str, sorted(days.days_of_month))]
        name = self._calendars[days] = self._new_name(CALENDARS, f"off_{'_'.join(words)}")
        yield ""
        yield f"[{CALENDARS}.{name}]"
        yield f'zone = "{days.zone.key}"'
        if days.weekdays:
            yield f"weekdays = {json.dumps([DAYS[day] for day in sorted(days.weekdays)])}"
        if days.days_of_month:
            yield f"days_of_month = {sorted(days.days_of_month)}"

    def _new_name(self, table: str, words: str) -> str:
        """Returns a name of a table in [*table*] that no other has."""
        base = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[-55:].lstrip("_0123456789")
        taken, name, n = self._names[table], base, 2
        while name in taken:
            name, n = f"{base}_{n}", n + 1
        taken.add(name)
        return name
