"""Reads event times from the statistics that Delta's log has of a file.

Writers cut the bounds of timestamps to milliseconds, so the newest row may be up to 1 ms newer than its bound. A date
stands for its whole day. A text stands for an instant only if both bounds are ISO 8601 of one form: only then is the
greatest text the newest time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tidemark.selection import present
from tidemark.watch.commits import UNBOUNDED, ChosenColumn, FileTimes, Span, TimeColumn

ZONED = "timestamp"
INSTANTS, DAYS, TEXTS = (ZONED, "timestamp_ntz"), ("date",), ("string",)
INDEXED = "delta.dataSkippingNumIndexedCols"
NAMED = "delta.dataSkippingStatsColumns"
DEFAULT_INDEXED = 32
"""Columns of which Delta's writers keep statistics, unless a property says another number (-1: all)."""
UTC_ZONE = ZoneInfo("UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class TimeColumnRequest:
    """What a user asked for: names of columns of event times, and the zone of times without one."""

    names: tuple[str, ...] = ()
    zone: ZoneInfo = UTC_ZONE


def choose_column(metadata: Mapping[str, Any], asked: TimeColumnRequest) -> ChosenColumn:
    """Returns the column of event times of a table with this `metaData` of its log.

    It is the first of the names that the table has. Otherwise it is the only column of timestamps or, without any, the
    only one of dates. Columns inside others are not looked at.
    """
    columns = {column.name: column for column in _columns(metadata)}
    for name in asked.names:
        if name in columns:
            return ChosenColumn(columns[name], (name,))
    found = [name for name, column in columns.items() if column.kind in INSTANTS]
    found = found or [name for name, column in columns.items() if column.kind in DAYS]
    return ChosenColumn(columns[found[0]] if len(found) == 1 else None, tuple(found))


def _columns(metadata: Mapping[str, Any]) -> Iterator[TimeColumn]:
    """Yields the outermost columns that may hold event times."""
    # Arrow reads a map of a checkpoint as a list of pairs.
    properties = dict(metadata.get("configuration") or {})
    partitioned_by = {*metadata.get("partitionColumns", ())}
    number = 0
    for field in json.loads(metadata["schemaString"])["fields"]:
        name, kind = field["name"], field["type"]
        is_partition = name in partitioned_by
        number += 0 if is_partition else _leaves(kind)
        if kind in (*INSTANTS, *DAYS, *TEXTS):
            yield TimeColumn(
                name,
                (field.get("metadata") or {}).get("delta.columnMapping.physicalName", name),
                kind,
                is_partition=is_partition,
                unindexed="" if is_partition else _why_unindexed(name, number, properties),
            )


def _leaves(kind: Any) -> int:
    """Returns the number of columns of values in a column of this type: each field of a struct counts."""
    if isinstance(kind, Mapping) and kind.get("type") == "struct":
        return sum(_leaves(field["type"]) for field in kind["fields"])
    return 1


def _why_unindexed(name: str, number: int, properties: Mapping[str, str]) -> str:
    named = properties.get(NAMED)
    if named is not None:
        names = {each.strip(" `") for each in named.split(",")}
        return "" if name in names else f"the property {NAMED} does not name it"
    most = int(properties.get(INDEXED) or DEFAULT_INDEXED)
    return (
        "" if most < 0 or number <= most else f"it is column {number}, and writers keep statistics of the first {most}"
    )


def file_times(
    add: Mapping[str, Any], stats: Mapping[str, Any], column: TimeColumn | None, zone: ZoneInfo
) -> tuple[int | None, FileTimes | None]:
    """Returns the visible rows of a file (None: not known) and their times; None if no row has a time.

    Args:
        add: its action in the log.
        stats: its statistics.
        column: the column of event times; None: the times are not known.
        zone: of times without one.
    """
    deleted = (add.get("deletionVector") or {}).get("cardinality") or 0
    rows = stats.get("numRecords")
    visible = None if rows is None else rows - deleted
    if visible == 0:
        return 0, None
    if column is None:
        return visible, UNBOUNDED
    if column.is_partition:
        return visible, _of_partition(dict(add["partitionValues"]).get(column.physical), zone)
    oldest, newest = ((stats.get(bounds) or {}).get(column.physical) for bounds in ("minValues", "maxValues"))
    nulls = (stats.get("nullCount") or {}).get(column.physical)
    if oldest is None or newest is None:
        return visible, None if rows is not None and nulls == rows else UNBOUNDED
    # The greatest of texts is the newest of their instants only if all have one form.
    if column.kind in TEXTS and _form(oldest) != _form(newest):
        return visible, UNBOUNDED
    first, last = instant(oldest, zone), instant(newest, zone)
    if first is None or last is None:
        return visible, UNBOUNDED
    if stats.get("tightBounds", True) is False:
        # Rows that lay at the bounds may be deleted. If a row with a time is left, it lies between them.
        is_left = bool(visible) and nulls == 0
        last = Span(first.low_ms if is_left else None, last.high_ms)
    return visible, FileTimes(first.low_ms, last)


def _of_partition(value: str | None, zone: ZoneInfo) -> FileTimes | None:
    if value in (None, ""):
        return None
    span = instant(value, zone)
    return UNBOUNDED if span is None else FileTimes(span.low_ms, span)


def _form(text: Any) -> str:
    return _DIGIT.sub("0", str(text))


def instant(value: Any, zone: ZoneInfo) -> Span | None:
    """Returns between which instants the *value* of a bound lies; None: it is no time.

    >>> instant("1970-01-01T00:00:01.234Z", ZoneInfo("UTC")), instant("1970-01-01", ZoneInfo("Europe/Berlin"))
    (Span(low_ms=1234, high_ms=1235), Span(low_ms=-3600000, high_ms=82799999))
    """
    try:
        if isinstance(value, str) and _DAY.fullmatch(value):
            value = date.fromisoformat(value)
        elif isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            # Where the clock is set back, one time without a zone is two instants.
            both = [value] if value.tzinfo else [value.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
            known_ms = [(each - _EPOCH) // _MS for each in both]
            return Span(min(known_ms), max(known_ms) + 1)
        if isinstance(value, date):
            start, end = (datetime(day.year, day.month, day.day, tzinfo=zone) for day in (value, value + timedelta(1)))
            return Span((start - _EPOCH) // _MS, (end - _EPOCH) // _MS - 1)
    except (ValueError, OverflowError):  # a text that is no time, or a year that Python does not have
        return None
    return None


def newest_of(files: Sequence[FileTimes | None]) -> Span | None:
    """Returns between which instants the newest event time of *files* lies; None: they have none."""
    newest = [times.newest for times in present(files)]
    if not newest:
        return None
    highest = [span.high_ms for span in newest]
    low_ms = max(present(span.low_ms for span in newest), default=None)
    return Span(low_ms, None if None in highest else max(present(highest)))
