"""Sets of watched tables: Delta tables that other programs write. Each is a table `[watch.NAME]` in `slas.toml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.model.project.layout import WATCH
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import TableForm, defaulted, optional, required
from tidemark.model.settings.maintenance_windows import zone_named
from tidemark.model.settings.value_types import HOW_TO_NAME, IDENTIFIER, refuse


def _absolute(places: tuple[str, ...], key: str, example: str) -> tuple[str, ...]:
    for place in places:
        if not place.startswith("/") and "://" not in place:
            problem = f"has {place!r}, and checks run in other folders"
            refuse(problem, f"write a path that begins with /, or a URL: {key} = {example}")
    return places


def _zone(name: str, key: str, example: str) -> str:
    if zone_named(name) is None:
        refuse(f"is {name!r}, which is no time zone", f"write {key} = {example}")
    return name


TABLES = required(
    "tables",
    value_types.texts().then(_absolute),
    example='["s3://lake/silver", "/data/gold"]',
    meaning="Delta tables, or folders with tables at any depth: paths or URLs",
)
COLUMN = optional(
    "column",
    value_types.one_or_more(),
    example='"ordered_at"',
    without="its only one of timestamps, or else of dates",
    meaning="the column of event times; of several names the first that a table has",
)
TIMEZONE = defaulted(
    "timezone",
    value_types.text().then(_zone),
    example='"Europe/Berlin"',
    default="UTC",
    meaning="the zone of event times that have none",
)
SET_OWNER = optional(
    "owner",
    value_types.text(),
    example='"orders team"',
    without="each SLA has its own",
    meaning="the owner of SLAs of its tables that name none",
)
EXACT = defaulted(
    "exact",
    value_types.flag(),
    example="true",
    default=False,
    meaning="reads the column of event times of each added file, so that latencies of rows are known",
)
FORM = TableForm(keys=(TABLES, COLUMN, TIMEZONE, SET_OWNER, EXACT))
"""The table of a set."""


@dataclass(frozen=True, kw_only=True)
class WatchedSet:
    """Delta tables that other programs write.

    Attributes:
        name: the name of the set.
        places: paths and URLs of tables, or of folders with tables below them.
        columns: names of columns of event times, of which the first counts that a table has. Empty if each table has
            only one such column.
        timezone: the zone of event times that have none.
        owner: the owner of the SLAs of its tables that name none; None if these have nobody.
        is_exact: whether the event times of rows are read, and not only their bounds in the log.
    """

    name: str
    places: tuple[str, ...]
    columns: tuple[str, ...] = ()
    timezone: str = "UTC"
    owner: str | None = None
    is_exact: bool = False


def is_set(table: object) -> bool:
    """Returns True if the value of `[watch.NAME]` is a set of tables, and not an SLA, which has a subject."""
    if not isinstance(table, dict) or "subject" in table:
        return False
    return bool(difflib.get_close_matches(TABLES.name, table, n=1))


def sets_in(file: str, tables: Mapping[str, Any]) -> dict[str, WatchedSet | InvalidSpec]:
    """Returns the sets among the *tables* of `watch`, or what is wrong with them, by name."""
    return {name: _set(file, name, table) for name, table in tables.items() if is_set(table)}


def _set(file: str, name: str, table: object) -> WatchedSet | InvalidSpec:
    at = f"{WATCH}.{name}"
    if not IDENTIFIER.fullmatch(name):
        return InvalidSpec.at(file, at, "is not a valid name of a set", HOW_TO_NAME)
    values = FORM.read(file, at, table)
    if values.mistakes:
        return InvalidSpec("\n".join(map(str, values.mistakes)))
    columns = values[COLUMN]
    return WatchedSet(
        name=name,
        places=values[TABLES],
        columns=columns or (),
        timezone=values[TIMEZONE],
        owner=values[SET_OWNER],
        is_exact=values[EXACT],
    )


def set_of(subject: str) -> str:
    """Returns the set of a watched table.

    >>> set_of("silver.eu/orders.v2"), table_of("silver.eu/orders.v2"), table_of("silver")
    ('silver', 'eu/orders.v2', '')
    """
    return subject.partition(".")[0]


def table_of(subject: str) -> str:
    """Returns the path of a watched table below its place, or the name of the place if that is the table."""
    return subject.partition(".")[2]
