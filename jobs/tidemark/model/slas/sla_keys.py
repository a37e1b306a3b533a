"""The keys of the table of an SLA, of which those of its limits belong to its measure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from tidemark.errors import InvalidArgument
from tidemark.model.measures.burn_rate import BURN_RATE
from tidemark.model.measures.limits import BURN_RATES, TARGETS
from tidemark.model.measures.registry import MEASURES, OVER_MS, Measure
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import (
    TableForm,
    TableKind,
    Values,
    defaulted,
    inner_table,
    optional,
    required,
)
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.maintenance_windows import CALENDAR, WINDOWS
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.value_types import refuse
from tidemark.semantics.sla import BurnRate, Objective, Severity


class ResultPlace(StrEnum):
    """Where readers look for the results of a sink with current rows."""

    VIEW = "view"
    """The view of the table's name: exact at once."""
    TABLE = "table"
    """The files of the table: merged every `refresh`."""


class WhileCatchingUp(StrEnum):
    """Judgement of a late subject while its streams catch up."""

    COUNT = "count"
    """The SLA breaks as at any other time."""
    EXCUSE = "excuse"
    """The SLA passes, and its result gives the reason."""


@dataclass(frozen=True, kw_only=True)
class BurnWindow:
    """A time over which the burn rate of an objective is judged.

    The SLA is broken if the rate over `over_ms` and over a twelfth of it reach `rate`.
    """

    over_ms: int
    rate: float
    severity: Severity


BURN_WINDOWS = (
    BurnWindow(over_ms=3_600_000, rate=14.4, severity=Severity.CRITICAL),
    BurnWindow(over_ms=21_600_000, rate=6, severity=Severity.CRITICAL),
    BurnWindow(over_ms=3 * DAY_MS, rate=1, severity=Severity.WARNING),
)
"""The windows of each objective.

Source: Google's SRE Workbook, "Alerting on SLOs", table of recommended parameters.
"""
SUBJECT = required(
    "subject", value_types.text(), example='"flight_board"', meaning="the table, operator or stream that is measured"
)
MEASURE = defaulted(
    "measure",
    value_types.word(MEASURES),
    example='"staleness"',
    default=STALENESS.name,
    meaning="what is measured; each measure has limits of its own",
)
BY = optional(
    "by",
    value_types.texts(),
    example='["carrier"]',
    meaning='for `staleness`: columns of the key of a `table` or an `aggregate`, or `["partition"]` of a source',
)
PLACE = defaulted(
    "place",
    value_types.choice(ResultPlace),
    example='"table"',
    default="view",
    meaning=(
        'for a sink with a table: `view` is exact at once; `table` has the files, which with `mode = "current"` are '
        "merged every `refresh`"
    ),
)
OWNER = required("owner", value_types.text(), example='"orders team"', meaning="the team or person responsible")
SEVERITY = defaulted(
    "severity",
    value_types.choice(Severity),
    example='"warning"',
    default="critical",
    meaning="`critical`, `warning` or `info`; channels can filter by it",
)
RUNBOOK = optional(
    "runbook",
    value_types.text(),
    example='"https://wiki.example.org/late-boards"',
    meaning="the remedy: a link or a text",
)
OVER = optional(
    "over",
    value_types.length(),
    example='"10 min"',
    without=f'`"{length_in_toml(OVER_MS)}"`',
    meaning="the time before the check that is measured; a day with `by`",
)
IGNORE_WHEN_IDLE = defaulted(
    "ignore_when_idle",
    value_types.flag(),
    example="true",
    default=False,
    meaning="the SLA passes while its sources have nothing to send",
)
WHILE_CATCHING_UP = defaulted(
    "while_catching_up",
    value_types.choice(WhileCatchingUp),
    example='"excuse"',
    default="count",
    meaning="with `excuse` it passes while its stream, or one upstream, is `catching_up`",
)
OPEN_AFTER = defaulted(
    "open_after",
    value_types.length(zero=True),
    example='"5 min"',
    default="0 s",
    meaning="how long the SLA is broken before an incident opens",
)
RESOLVE_AFTER = defaulted(
    "resolve_after",
    value_types.length(zero=True),
    example='"1 min"',
    default="10 min",
    meaning="how long it holds before the incident is resolved",
)
MAINTENANCE_WINDOWS = optional(
    "maintenance_windows",
    WINDOWS,
    example='["Sun 02:00-04:00 Europe/Berlin", "daily 01:00-01:30"]',
    meaning="times without incidents, by default in UTC: see Maintenance and calendars",
)
HOURS = inner_table(
    "calendar",
    CALENDAR,
    example='{ zone = "Europe/Berlin", days = ["Mon", "Tue", "Wed", "Thu", "Fri"], from = "07:00", to = "19:00" }',
    meaning="the only hours in which it is judged: see Maintenance and calendars",
)
EXCEPT = optional(
    "except",
    value_types.texts(),
    example='["days_off"]',
    meaning="calendars `[calendars.NAME]` with the days on which nothing is promised: see Days off",
)


def _promised_target(value: float, key: str, example: str) -> float:
    """Refuses a target whose budget cannot burn at the rate of each window."""
    rate = max(window.rate for window in BURN_WINDOWS)
    try:
        return BurnRate(objective=Objective(threshold_ms=1, target=value), warn_at=rate, error_at=rate).objective.target
    except InvalidArgument:
        remedy = f"write a share from {_least_target(rate)} to below 1, such as {key} = {example}"
        refuse(f"is {value:g}, whose budget cannot burn at the rate {rate:g}", remedy)


def _least_target(rate: float) -> float:
    """Returns the lowest target whose budget can burn at *rate*, in 1/1000."""
    return math.ceil(1_000 * (1 - 1 / rate)) / 1_000


LATENCY = required("latency", value_types.length(), example='"30 s"', meaning="a record that takes longer is slow")
PROMISED_TARGET = required(
    "target",
    value_types.number().then(_promised_target, TARGETS),
    example="0.99",
    meaning="the share of records that must not be slow",
)
WINDOW = defaulted(
    "window",
    value_types.length(),
    example='"28 d"',
    default="28 d",
    meaning="the time before the check whose records have the error budget",
)
LEAST_RECORDS = defaulted(
    "min_records",
    value_types.count(),
    example="100",
    default=100,
    meaning="a burn rate of fewer records is `unknown`",
)


def _refuse_short_window(values: Values) -> None:
    """Refuses a window that is shorter than those of its burn rates."""
    shortest_ms = max(window.over_ms for window in BURN_WINDOWS)
    if values[WINDOW] < shortest_ms:
        problem = f"is {for_people(values[WINDOW])}, shorter than the longest burn-rate window"
        values.fail(WINDOW, problem, f'write "{length_in_toml(shortest_ms)}" or longer, such as {WINDOW.example}')


OBJECTIVE = inner_table(
    "objective",
    TableForm(keys=(LATENCY, PROMISED_TARGET, WINDOW, LEAST_RECORDS), rules=(_refuse_short_window,)),
    example='{ latency = "30 s", target = 0.99, window = "28 d", min_records = 100 }',
    meaning="in place of a measure: see Objectives",
)
MAINTENANCE = optional(
    "maintenance",
    WINDOWS,
    example='["Sun 02:00-04:00 Europe/Berlin"]',
    meaning="times without incidents of all SLAs: of the file, or of a topology",
)
RECORDED = optional(
    "recorded",
    value_types.true(),
    example="true",
    meaning="the topology has no file, and is that of recorded queries of jobs",
)


@dataclass(frozen=True, kw_only=True)
class MeasureKind(TableKind):
    """The tables of SLAs of a *measure*."""

    measure: Measure


_OWN = ("is set, but an objective has its own", "leave it out")
_OF_RECORDS = ("is set, but an objective is about each record of an operator", "leave it out")
OBJECTIVES = MeasureKind(
    name="objective",
    key=OBJECTIVE.name,
    word=None,
    keys=(OBJECTIVE,),
    refused={
        **{key.name: _OWN for key in (MEASURE, SEVERITY, OVER, *BURN_RATES.keys)},
        **{key.name: _OF_RECORDS for key in (BY, PLACE)},
    },
    measure=BURN_RATE,
)
"""The tables of objectives: each has an SLA of a burn rate for each window."""


@cache
def form() -> TableForm:
    """Returns the table of an SLA, with the keys of every measure.

    The first call looks at the list of measures, and so imports those of other packages.
    """
    long = (name for name, measure in MEASURES.items() if measure.usual_over_ms != OVER_MS)
    excusable = (name for name, measure in MEASURES.items() if measure.is_excusable)
    # A table without the key `measure` is of the usual one, unless it has a key of another one.
    measures = sorted(MEASURES.values(), key=lambda measure: measure.name == MEASURE.default)
    return TableForm(
        keys=(
            SUBJECT,
            MEASURE,
            BY,
            PLACE,
            OWNER,
            SEVERITY,
            RUNBOOK,
            replace(OVER, meaning=f"{OVER.meaning} and for {_words(long)}"),
            IGNORE_WHEN_IDLE,
            replace(WHILE_CATCHING_UP, meaning=f"for {_words(excusable)}: {WHILE_CATCHING_UP.meaning}"),
            OPEN_AFTER,
            RESOLVE_AFTER,
            MAINTENANCE_WINDOWS,
            HOURS,
            EXCEPT,
        ),
        kinds=(OBJECTIVES, *map(_kind, measures)),
    )


def _kind(measure: Measure) -> MeasureKind:
    refused = {}
    if measure.fixed_over_ms is not None:
        refused[OVER.name] = (
            f"is set, but {measure} is judged over {for_people(measure.fixed_over_ms)}",
            "leave it out",
        )
    return MeasureKind(
        name=measure.name,
        key=MEASURE.name,
        word=measure.name,
        keys=measure.limits.keys,
        is_usual=measure.name == MEASURE.default,
        implied_by=measure.implied_by.name if measure.implied_by else None,
        refused=refused,
        measure=measure,
    )


def _words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
