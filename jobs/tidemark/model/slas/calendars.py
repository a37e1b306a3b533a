"""Calendars of days on which nothing is promised: weekends, public holidays, days of the month, dates of files.

A calendar is a table `[calendars.NAME]` of `slas.toml`, and an SLA names it in `except`. The package `holidays` knows
the public holidays of countries. Its import takes more than a second of CPU, so it is imported in two cases alone: for
the first question whether a day is exempt by a calendar with a country, and by `mistakes_of_countries` of such a
calendar.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.extras import missing, require
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import TableForm, Values, optional, required
from tidemark.model.settings.maintenance_windows import DAYS, OF_ZONE
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.value_types import HOW_TO_NAME, IDENTIFIER, TEXTS, ValueType, refuse, seen
from tidemark.model.topology_keys import CALENDARS
from tidemark.selection import present
from tidemark.semantics.windows import clock_ms, instant_of

LIBRARY = "holidays"
LAST_DAY = -1
"""The last day of each month, among days of the month."""
LOOKS_BACK_DAYS = 366
"""How far back the end of exempt time is looked for."""
_DAY = timedelta(days=1)
_EPOCH = date(1970, 1, 1)
_COUNTRY = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,3})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_FOUR_YEARS = tuple(date(2024, 1, 1) + n * _DAY for n in range(4 * 365 + 1))
"""The days in which the longest time between exempt days is looked for; one of these years is a leap year."""


@dataclass(frozen=True)
class Country:
    """A country by its ISO 3166-1 code, or a *part* of it, such as the state BY of DE."""

    code: str
    part: str | None = None

    def __str__(self) -> str:
        return f"{self.code}-{self.part}" if self.part else self.code


@dataclass(frozen=True, kw_only=True)
class ExemptDays:
    """The days of a calendar, on which nothing is promised.

    A day lasts from midnight to midnight on the clock of *zone*: 23 or 25 hours when that clock changes. A weekday is
    its place in DAYS, as in `date.weekday`.
    """

    name: str
    zone: ZoneInfo
    weekdays: frozenset[int] = frozenset()
    days_of_month: frozenset[int] = frozenset()
    dates: frozenset[date] = frozenset()
    countries: tuple[Country, ...] = ()

    def has(self, day: date) -> bool:
        """Returns True if *day* is exempt."""
        if day in self.dates or _repeats(day, self.weekdays, self.days_of_month):
            return True
        return any(day in public_holidays(country, day.year) for country in self.countries)

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms*, epoch ms, lies in an exempt day."""
        return self.has(self._day_of(at_ms))

    def changed_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns when exempt days last began or ended until *at_ms*.

        None: they did neither after *after_ms*, or in the LOOKS_BACK_DAYS before *at_ms*. Epoch ms.
        """
        day = self._day_of(at_ms)
        first, is_exempt = max(self._day_of(after_ms), day - LOOKS_BACK_DAYS * _DAY), self.has(day)
        while day > first:
            if self.has(day - _DAY) != is_exempt:
                return self._midnight_ms(day)
            day -= _DAY
        return None

    def _day_of(self, at_ms: int) -> date:
        return _EPOCH + timedelta(days=clock_ms(at_ms, self.zone) // DAY_MS)

    def _midnight_ms(self, day: date) -> int:
        return instant_of((day - _EPOCH).days * DAY_MS, self.zone)


def _repeats(day: date, weekdays: frozenset[int], days_of_month: frozenset[int]) -> bool:
    """Returns True if *day* is one of *weekdays*, or of *days_of_month*."""
    if day.weekday() in weekdays or day.day in days_of_month:
        return True
    return LAST_DAY in days_of_month and (day + _DAY).day == 1


def longest_between_days(exempt: Iterable[ExemptDays]) -> int | None:
    """Returns the most days in a row of which none is exempt by its weekday or its place in the month.

    None: no calendar has such days. Holidays and dates could only make that time shorter. 0: every day is exempt.
    """
    # Days of different zones do not begin together.
    of_zones: dict[ZoneInfo, tuple[frozenset[int], frozenset[int]]] = {}
    for days in exempt:
        if days.weekdays or days.days_of_month:
            weekdays, days_of_month = of_zones.get(days.zone, (frozenset(), frozenset()))
            of_zones[days.zone] = (days.weekdays | weekdays, days.days_of_month | days_of_month)
    return min((_longest_run(*repeated) for repeated in of_zones.values()), default=None)


@cache
def _longest_run(weekdays: frozenset[int], days_of_month: frozenset[int]) -> int:
    longest = run = 0
    for day in _FOUR_YEARS:
        run = 0 if _repeats(day, weekdays, days_of_month) else run + 1
        longest = max(longest, run)
    return longest


@cache
def public_holidays(country: Country, year: int) -> frozenset[date]:
    """Returns the public holidays of *country* in *year*.

    They have the days on which a holiday that falls on a weekend is observed, where a country does that. There are none
    in a year of which the library knows nothing.

    Raises:
        NotImplementedError: the library has no such country, or no such part of it.
    """
    import holidays  # takes a second

    # New Year's Day that falls on a Saturday may be observed in the year before.
    years = range(year - 1, year + 2)
    found = holidays.country_holidays(country.code, subdiv=country.part, years=years)
    return frozenset(day for day in found if day.year == year)


def _countries(texts: tuple[str, ...], key: str, example: str) -> tuple[Country, ...]:
    for text in texts:
        if not _COUNTRY.fullmatch(text):
            refuse(f"has {text!r}", f"write codes of countries, or of their parts, such as {key} = {example}")
    return tuple(Country(*text.split("-")) for text in texts)


def _days_of_month() -> ValueType[frozenset[int]]:
    def judge(value: list[object], key: str, example: str) -> frozenset[int]:
        days = [day for day in value if isinstance(day, int) and not isinstance(day, bool)]
        wrong = [day for day in days if day != LAST_DAY and not 1 <= day <= 31]
        if not value or len(days) < len(value) or wrong:
            found = f"has {wrong[0]}" if wrong else f"is {seen(value)}"
            refuse(found, f"write numbers from 1 to 31, or {LAST_DAY} for the last day, such as {key} = {example}")
        return frozenset(days)

    day = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 31}, {"const": LAST_DAY}]}
    return ValueType("list", (list,), {"type": "array", "items": day, "minItems": 1}, judge)


ZONE = required(
    "zone", OF_ZONE, example='"Europe/Berlin"', meaning="the time zone on whose clock the days begin and end"
)
WEEKDAYS = optional("weekdays", value_types.words(DAYS), example='["Sat", "Sun"]', meaning="days of the week")
HOLIDAYS = optional(
    "holidays",
    value_types.texts().then(_countries, {**TEXTS, "items": {"type": "string", "pattern": f"^{_COUNTRY.pattern}$"}}),
    example='["DE-BY"]',
    meaning="public holidays of countries (ISO 3166-1), or of their parts; needs the extra `holidays`",
)
DAYS_OF_MONTH = optional(
    "days_of_month",
    _days_of_month(),
    example=f"[1, {LAST_DAY}]",
    meaning=f"days of each month; {LAST_DAY} is the last one",
)
FILES = optional(
    "files",
    value_types.texts(),
    example='["closures.txt"]',
    meaning="files beside `slas.toml` with a date a line, such as `2026-12-24`; a comment begins with `#`",
)
OF_DAYS = (WEEKDAYS, HOLIDAYS, DAYS_OF_MONTH, FILES)
"""The keys that give a calendar its days."""


def _refuse_no_days(values: Values) -> None:
    if not any(values.has(key) for key in OF_DAYS):
        choices = " or ".join(f"{key.name} = {key.example}" for key in OF_DAYS)
        values.fail(WEEKDAYS, "is missing, and so is everything else that gives days", f"write {choices}")


def _refuse_every_day(values: Values) -> None:
    if longest_between_days([_repeating(values, name="")]) == 0:
        key = WEEKDAYS if values.has(WEEKDAYS) else DAYS_OF_MONTH
        values.fail(key, "exempts every day, so that nothing is ever judged", "leave a day out")


def _note_wrong_files(values: Values) -> None:
    """Notes what is no date in the files that the table names."""
    for name in values.get(FILES, ()):
        try:
            lines = _lines_of(values, name)
        except OSError as error:
            found = f"names {name}, which cannot be read: {error.strerror}"
            values.note(FILES.name, found, "write the file into the folder of this one, or leave it out")
            continue
        except UnicodeDecodeError:
            values.note(FILES.name, f"names {name}, which is no text in UTF-8", "write a date a line, in UTF-8")
            continue
        if not lines:
            values.note(FILES.name, f"names {name}, which has no date", "write a date a line, or leave it out")
        for number, line in lines.items():
            if _date_in(line) is None:
                found = f"names {name}, whose line {number} is {line!r}, which is no date"
                values.note(FILES.name, found, "write a date a line, such as 2026-12-24")


def _lines_of(values: Values, name: str) -> dict[int, str]:
    """Returns the lines of the file *name* that are no comment, by their number."""
    text = ((values.folder or Path()) / name).read_text(encoding="utf-8-sig")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {number: line for number, line in enumerate(lines, start=1) if line}


def _date_in(line: str) -> date | None:
    try:
        return date.fromisoformat(line) if _DATE.fullmatch(line) else None
    except ValueError:  # there is no such day
        return None


FORM = TableForm(keys=(ZONE, *OF_DAYS), rules=(_refuse_no_days, _refuse_every_day, _note_wrong_files))
"""The table of a calendar."""


def _repeating(values: Values, name: str) -> ExemptDays:
    """Returns the days that are exempt for their weekday, or their place in the month."""
    return ExemptDays(
        name=name,
        zone=values[ZONE],
        weekdays=frozenset(map(DAYS.index, values.get(WEEKDAYS, ()))),
        days_of_month=values.get(DAYS_OF_MONTH, frozenset()),
    )


def _exempt_days(values: Values, name: str) -> ExemptDays:
    lines = [line for file in values.get(FILES, ()) for line in _lines_of(values, file).values()]
    dates = frozenset(present(map(_date_in, lines)))
    return replace(_repeating(values, name), dates=dates, countries=values.get(HOLIDAYS, ()))


@dataclass(frozen=True, kw_only=True)
class Calendars:
    """The calendars of a file of SLAs by name: those that can be used, and the mistakes in the others."""

    usable: Mapping[str, ExemptDays] = field(default_factory=lambda: MappingProxyType({}))
    mistakes: Mapping[str, InvalidSpec] = field(default_factory=lambda: MappingProxyType({}))


def calendars_in(content: Mapping[str, Any], *, file: str, folder: Path | None = None) -> Calendars:
    """Returns the calendars in *content*, a parsed file of SLAs.

    Errors name the file as *file*. Files of dates lie in *folder*; None: in the working directory. A country that does
    not exist is no mistake here: `mistakes_of_countries` asks the library.
    """
    tables = content.get(CALENDARS, {})
    if not isinstance(tables, Mapping):
        mistake = InvalidSpec.at(file, CALENDARS, f"is {seen(tables)}", f"write a table [{CALENDARS}.NAME]")
        return Calendars(mistakes={CALENDARS: mistake})
    usable: dict[str, ExemptDays] = {}
    mistakes: dict[str, InvalidSpec] = {}
    for name, table in tables.items():
        at = f"{CALENDARS}.{name}"
        if not IDENTIFIER.fullmatch(name):
            mistakes[name] = InvalidSpec.at(file, at, "is not a valid name of a calendar", HOW_TO_NAME)
            continue
        values = FORM.read(file, at, table, folder=folder)
        if values.mistakes:
            mistakes[name] = InvalidSpec("\n".join(map(str, values.mistakes)))
        else:
            usable[name] = _exempt_days(values, name)
    return Calendars(usable=usable, mistakes=mistakes)


def names_of_files(content: Mapping[str, Any], *, folder: Path) -> list[Path]:
    """Returns the files in *folder* that calendars in *content* name, a file of SLAs that may have mistakes."""
    tables = content.get(CALENDARS, {})
    found: list[Path] = []
    for table in tables.values() if isinstance(tables, Mapping) else ():
        names = table.get(FILES.name) if isinstance(table, Mapping) else None
        found += (folder / name for name in names or () if isinstance(name, str))
    return found


def mistakes_of_library(exempt: Iterable[ExemptDays], *, file: str) -> dict[str, InvalidSpec]:
    """Returns, by name, the calendars that need the library where it is not installed. Nothing is imported."""
    with_countries = [days for days in exempt if days.countries]
    if not with_countries:
        return {}
    try:
        require(LIBRARY)
    except InvalidArgument:
        found, _, remedy = missing(LIBRARY).partition("; ")
        at = {days.name: f"{CALENDARS}.{days.name}.{HOLIDAYS.name}" for days in with_countries}
        return {name: InvalidSpec.at(file, key, f"needs a package: {found}", remedy) for name, key in at.items()}
    return {}


def mistakes_of_countries(exempt: Collection[ExemptDays], *, file: str) -> dict[str, InvalidSpec]:
    """Returns, by name, the calendars with a country that the library does not know, or for which it is missing.

    The library is imported if one of *exempt* has a country.
    """
    if absent := mistakes_of_library(exempt, file=file):
        return absent
    wrong: dict[str, InvalidSpec] = {}
    for days in exempt:
        found = [InvalidSpec.at(file, f"{CALENDARS}.{days.name}.{HOLIDAYS.name}", *why) for why in _unknown(days)]
        if found:
            wrong[days.name] = InvalidSpec("\n".join(map(str, found)))
    return wrong


def _unknown(days: ExemptDays) -> Iterator[tuple[str, str]]:
    """Yields the problem and the remedy of each country that the library does not know."""
    for country in days.countries:
        try:
            public_holidays(country, _FOUR_YEARS[0].year)
        except NotImplementedError:
            parts = _parts_of(country.code)
            if parts is None:
                remedy = f"write the code of a country, such as {HOLIDAYS.example}, or a file of its dates"
                yield f"has '{country}', a country that the package {LIBRARY} does not know", remedy
            else:
                known = f"use one of {', '.join(parts)}" if parts else "leave the part out"
                yield f"has '{country}', a part of {country.code} that the package {LIBRARY} does not know", known


def _parts_of(code: str) -> list[str] | None:
    """Returns the parts of the country *code* that the library knows; None: it does not know the country."""
    import holidays

    try:
        parts = holidays.country_holidays(code).subdivisions
    except NotImplementedError:
        return None
    return [f"{code}-{part}" for part in parts if _COUNTRY.fullmatch(f"{code}-{part}")]
