"""Reads the limits of an SLA from its keys, in each of their forms."""

from __future__ import annotations

from typing import NoReturn

from tidemark.errors import InvalidArgument
from tidemark.model.settings.maintenance_windows import minute_of_day, zone_named
from tidemark.model.settings.toml_keys import Keys
from tidemark.semantics.sla import (
    BurnRate,
    ChangeMaximums,
    Deadline,
    Objective,
    RecordMinimums,
    ShareMaximums,
    Sla,
)


def deadline(keys: Keys) -> Deadline:
    """Reads `complete_by`: a length after the end, or a time of day."""
    text = keys.text("complete_by", "10 min")
    clock, _, zone = text.partition(" ")
    if (minute := minute_of_day(clock)) is None:
        return Deadline(after_ms=keys.duration("complete_by", "10 min"))
    if zone and zone_named(zone) is None:
        keys.fail("complete_by", f"is {text!r}, which names no time zone", 'write complete_by = "06:00 Europe/Berlin"')
    return Deadline(minute=minute, timezone=zone or "UTC")


def at_least(keys: Keys) -> RecordMinimums:
    """Reads `warn_below` and `error_below`, numbers of records."""
    warn, error = keys.count("warn_below", "100", None), keys.count("error_below", "100", None)
    try:
        return RecordMinimums(warn_below=warn, error_below=error)
    except InvalidArgument:
        remedy = "write one or both, error_below not above warn_below: warn_below = 100, error_below = 1"
        _refuse_pair(keys, "warn_below", "error_below", remedy)


def at_most(keys: Keys) -> ChangeMaximums:
    """Reads `warn_above` and `error_above`, numbers of changes."""
    warn, error = (keys.count(key, "0", None, least=0) for key in ("warn_above", "error_above"))
    try:
        return ChangeMaximums(warn_above=warn, error_above=error)
    except InvalidArgument:
        remedy = "write one or both, warn_above not above error_above: warn_above = 0, error_above = 5"
        _refuse_pair(keys, "warn_above", "error_above", remedy)


def shares_at_most(keys: Keys) -> ShareMaximums:
    """Reads `warn_above` and `error_above`, shares of records."""
    warn, error = (keys.number(key, "0.01", None) for key in ("warn_above", "error_above"))
    try:
        return ShareMaximums(warn_above=warn, error_above=error, min_records=keys.count("min_records", "100", 1))
    except InvalidArgument:
        remedy = "write one or both as shares from 0 to below 1, warn_above not above error_above: error_above = 0.05"
        _refuse_pair(keys, "warn_above", "error_above", remedy)


def burn_rate(keys: Keys) -> BurnRate:
    """Reads the threshold and the target of an objective, and the rates from which on it burns too fast."""
    threshold_ms = keys.duration("threshold", "30 s")
    target = keys.number("target", "0.99", ...)
    # At a rate of 14.4 an hour uses up a fiftieth of a budget of 30 days.
    warn, error = keys.number("warn_at", "1", 1.0), keys.number("error_at", "14.4", 14.4)
    try:
        objective = Objective(threshold_ms=threshold_ms, target=target)
    except InvalidArgument:
        keys.fail("target", f"is {target:g}", "write the share of records within the threshold: target = 0.99")
    try:
        return BurnRate(
            objective=objective, warn_at=warn, error_at=error, min_records=keys.count("min_records", "100", 1)
        )
    except InvalidArgument:
        highest = f"error_at at most {1 / (1 - target):g}, the rate at which all records are over the threshold"
        keys.fail("warn_at", f"is {warn:g} and error_at is {error:g}", f"write warn_at below error_at, and {highest}")


def lengths(keys: Keys, *, counts_records: bool = False) -> Sla:
    """Reads `warn_after` and `error_after`, lengths of time; also `min_records` if the length *counts_records*."""
    warn_ms, error_ms = keys.duration("warn_after", "30 s", None), keys.duration("error_after", "30 s", None)
    min_records = keys.count("min_records", "100", 1) if counts_records else 1
    try:
        return Sla(warn_after_ms=warn_ms, error_after_ms=error_ms, min_records=min_records)
    except InvalidArgument:
        remedy = 'write one or both, warn_after below error_after: warn_after = "30 s", error_after = "2 min"'
        _refuse_pair(keys, "warn_after", "error_after", remedy)


def _refuse_pair(keys: Keys, warn: str, error: str, remedy: str) -> NoReturn:
    """Refuses limits that are both missing, or in the wrong order."""
    problem = f"and {error} are missing"
    if warn in keys.content or error in keys.content:
        problem = f"is {keys.content.get(warn, 'missing')!r} and {error} is {keys.content.get(error, 'missing')!r}"
    keys.fail(warn, problem, remedy, beside=("measure", "objective", warn, error))
