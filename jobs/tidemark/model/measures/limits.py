"""The forms of limits of SLAs: the keys of each, and the thresholds that follow from their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias, TypeVar

from tidemark.errors import InvalidArgument
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional, required
from tidemark.model.settings.maintenance_windows import minute_of_day, zone_named
from tidemark.model.settings.value_types import LENGTH_ABOVE_0, Form, ValueType, refuse
from tidemark.semantics.sla import (
    BurnRate,
    ChangeMaximums,
    ContractRule,
    Deadline,
    Objective,
    RecordMinimums,
    ShareMaximums,
    Sla,
)

T = TypeVar("T")
Thresholds: TypeAlias = Sla | RecordMinimums | BurnRate | ContractRule | Deadline | ChangeMaximums | ShareMaximums
"""Thresholds of lengths, records, burn rates, contracts, intervals, changes or shares."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """A form of limits.

    Attributes:
        keys: what the table of an SLA may have for them.
        thresholds: returns them by the values of a table, or raises InvalidSpec where values do not fit each other.
    """

    keys: tuple[Key[Any], ...]
    thresholds: Callable[[Values], Thresholds]


def _limit(name: str, of_type: ValueType[T], *, example: str, meaning: str) -> Key[T | None]:
    return optional(name, of_type, example=example, without="one of the two", meaning=meaning)


MIN_RECORDS = defaulted(
    "min_records",
    value_types.count(),
    example="100",
    default=1,
    meaning="`unknown` with fewer records in `over`",
)
WARN_AFTER = _limit("warn_after", value_types.length(), example='"1 min"', meaning="this length or more is a `warn`")
ERROR_AFTER = _limit(
    "error_after", value_types.length(), example='"2 min"', meaning="this length or more is an `error`"
)


def _lengths(values: Values) -> Sla:
    try:
        return Sla(warn_after_ms=values[WARN_AFTER], error_after_ms=values[ERROR_AFTER])
    except InvalidArgument:
        remedy = 'write one or both, warn_after below error_after: warn_after = "30 s", error_after = "2 min"'
        _refuse_pair(values, WARN_AFTER, ERROR_AFTER, remedy)


LENGTHS = Limits(keys=(WARN_AFTER, ERROR_AFTER), thresholds=_lengths)
"""Lengths of time from which on it warns, and is in error."""
LENGTHS_OF_RECORDS = Limits(
    keys=(WARN_AFTER, ERROR_AFTER, MIN_RECORDS),
    thresholds=lambda values: replace(_lengths(values), min_records=values[MIN_RECORDS]),
)
"""The same of a quantile of records, of which there must be enough."""
WARN_BELOW = _limit("warn_below", value_types.count(), example="100", meaning="fewer are a `warn`")
ERROR_BELOW = _limit("error_below", value_types.count(), example="1", meaning="fewer are an `error`")


def _at_least(values: Values) -> RecordMinimums:
    try:
        return RecordMinimums(warn_below=values[WARN_BELOW], error_below=values[ERROR_BELOW])
    except InvalidArgument:
        remedy = "write one or both, error_below not above warn_below: warn_below = 100, error_below = 1"
        _refuse_pair(values, WARN_BELOW, ERROR_BELOW, remedy)


AT_LEAST = Limits(keys=(WARN_BELOW, ERROR_BELOW), thresholds=_at_least)
"""Numbers of records."""
WARN_ABOVE = _limit("warn_above", value_types.count(0), example="0", meaning="more are a `warn`")
ERROR_ABOVE = _limit("error_above", value_types.count(0), example="5", meaning="more are an `error`")


def _at_most(values: Values) -> ChangeMaximums:
    try:
        return ChangeMaximums(warn_above=values[WARN_ABOVE], error_above=values[ERROR_ABOVE])
    except InvalidArgument:
        remedy = "write one or both, warn_above not above error_above: warn_above = 0, error_above = 5"
        _refuse_pair(values, WARN_ABOVE, ERROR_ABOVE, remedy)


AT_MOST = Limits(keys=(WARN_ABOVE, ERROR_ABOVE), thresholds=_at_most)
"""Numbers of changes."""


def _share(value: float, key: str, example: str) -> float:
    if not 0 <= value < 1:
        refuse(f"is {value:g}", f"write a share from 0 to below 1, such as {key} = {example}")
    return value


_SHARE = value_types.number().then(_share, {"type": "number", "minimum": 0, "exclusiveMaximum": 1})
SHARE_TO_WARN = _limit("warn_above", _SHARE, example="0.01", meaning="more are a `warn` (`0.01` is 1 %)")
SHARE_OF_ERROR = _limit("error_above", _SHARE, example="0.05", meaning="more are an `error`")


def _shares_at_most(values: Values) -> ShareMaximums:
    try:
        limits = ShareMaximums(warn_above=values[SHARE_TO_WARN], error_above=values[SHARE_OF_ERROR])
    except InvalidArgument:
        remedy = "write one or both as shares from 0 to below 1, warn_above not above error_above: error_above = 0.05"
        _refuse_pair(values, SHARE_TO_WARN, SHARE_OF_ERROR, remedy)
    return replace(limits, min_records=values[MIN_RECORDS])


SHARES_AT_MOST = Limits(keys=(SHARE_TO_WARN, SHARE_OF_ERROR, MIN_RECORDS), thresholds=_shares_at_most)
"""Shares of records."""
TARGETS: Form = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
"""The form of targets: a share that leaves a budget, and is not all of it."""


def _target(value: float, key: str, example: str) -> float:
    try:
        return Objective(threshold_ms=1, target=value).target
    except InvalidArgument:
        refuse(f"is {value:g}", f"write the share of records within the threshold: {key} = {example}")


def _rate(value: float, key: str, example: str) -> float:
    if not value > 0:
        refuse(f"is {value:g}", f"write a rate above 0, such as {key} = {example}")
    return value


_RATE = value_types.number().then(_rate, {"type": "number", "exclusiveMinimum": 0})
THRESHOLD = required(
    "threshold", value_types.length(), example='"30 s"', meaning="a record that takes longer uses up the error budget"
)
TARGET = required(
    "target",
    value_types.number().then(_target, TARGETS),
    example="0.99",
    meaning="the share of records that must not take longer",
)
WARN_AT = defaulted(
    "warn_at",
    _RATE,
    example="1",
    default=1,
    meaning="a `warn` from this rate on, in `over` and in its last twelfth",
)
# At a rate of 14.4 an hour uses up a fiftieth of a budget of 30 days.
ERROR_AT = defaulted("error_at", _RATE, example="14.4", default=14.4, meaning="an `error` from this rate on")


def _burn_rates(values: Values) -> BurnRate:
    objective = Objective(threshold_ms=values[THRESHOLD], target=values[TARGET])
    warn, error = values[WARN_AT], values[ERROR_AT]
    try:
        limits = BurnRate(objective=objective, warn_at=warn, error_at=error)
    except InvalidArgument:
        most = 1 / (1 - objective.target)
        highest = f"error_at at most {most:g}, the rate at which all records are over the threshold"
        problem = f"is {warn:g} and error_at is {error:g}"
        values.fail(WARN_AT, problem, f"write warn_at below error_at, and {highest}")
    return replace(limits, min_records=values[MIN_RECORDS])


BURN_RATES = Limits(keys=(THRESHOLD, TARGET, WARN_AT, ERROR_AT, MIN_RECORDS), thresholds=_burn_rates)
"""The threshold and the target of an objective, and the rates from which on it burns too fast."""


def _deadline(text: str, key: str, example: str) -> Deadline:
    clock, _, zone = text.partition(" ")
    if (minute := minute_of_day(clock)) is None:
        return Deadline(after_ms=value_types.length().read(text, key, example))
    if zone and zone_named(zone) is None:
        refuse(f"is {text!r}, which names no time zone", f'write {key} = "06:00 Europe/Berlin"')
    return Deadline(minute=minute, timezone=zone or "UTC")


_DEADLINES: Form = {"anyOf": [LENGTH_ABOVE_0, {"type": "string", "pattern": r"^\d\d:\d\d( .+)?$"}]}
DUE = required(
    "complete_by",
    replace(value_types.text(_DEADLINES).then(_deadline), word="length of time or time of day"),
    example='"10 min"',
    meaning='the deadline of each interval: a length after its end, or a time of day such as `"06:00 Europe/Berlin"`',
)
DEADLINE = Limits(keys=(DUE,), thresholds=lambda values: values[DUE])
"""When an interval must be complete."""
KEPT_OR_BROKEN = Limits(keys=(), thresholds=lambda _: ContractRule())
"""No limit: a contract is kept or broken."""


def _refuse_pair(values: Values, warn: Key[Any], error: Key[Any], remedy: str) -> NoReturn:
    """Refuses limits that are both missing, or in the wrong order."""
    written = [values.written.get(key.name) for key in (warn, error)]
    problem = f"and {error.name} are missing"
    if written != [None, None]:
        one, other = (repr("missing" if value is None else value) for value in written)
        problem = f"is {one} and {error.name} is {other}"
    values.fail(warn, problem, remedy)
