"""Proposes limits of SLAs by hour of the week.

They come from the results of its checks and, for operators without an SLA of latency, from the hourly rollups. A
proposal has its evidence: the false alarms that it would have raised in the last four weeks, and the breaks that it
would have caught. Each of these weeks is judged by the limits that follow from the other weeks, with the delays of the
SLA. Nothing is written: the proposal is text for the file of SLAs.

A break is an incident that an SLA of the topology opened in these weeks, unless its cause is usual or a quiet source
and no person acknowledged it. An alarm is false if it overlaps no break. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from tidemark.collecting import outside
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import for_people, rounded_up
from tidemark.model.settings.maintenance_windows import DAYS
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_keys import length_in_toml
from tidemark.model.sla_spec import QUANTILES, RESOLVE_AFTER_MS, Measure, SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.paths.path_facts import Tables
from tidemark.semantics.incidents import Change, Damping, SlaState, follow
from tidemark.semantics.sla import Sla, Verdict, judge
from tidemark.sla.measures.hours_of_week import (
    FEWEST_WEEKS,
    HOURS,
    HOURS_OF_DAY,
    MARGIN,
    HourlyLimits,
    hourly_limits,
    usual_maxima,
)
from tidemark.why.walk import is_harmless

WEEK_MS = 7 * DAY_MS
MOST_WEEKS = 13
"""Weeks of history that count: a quarter of a year."""
JUDGED_WEEKS = 4
LIMITS = ("warn_after", "error_after", "hours")
RESULTS = """
    SELECT epoch_ms(checked_at) AS at_ms, observed_ms AS ms, verdict, warn_after_ms, error_after_ms
    FROM sla_results
    WHERE topology = $1 AND epoch_ms(checked_at) >= $2 AND epoch_ms(checked_at) < $3 AND quiet IS NULL
          AND observed_ms IS NOT NULL AND sla = $4 AND subject = $5 AND measure = $6
    ORDER BY checked_at, run_id
"""
ROLLED_UP = """
    SELECT epoch_ms(interval_end) AS at_ms, p99_ms AS ms FROM latency_rollup
    WHERE topology = $1 AND epoch_ms(interval_end) >= $2 AND epoch_ms(interval_end) < $3 AND grain = 'hour'
          AND scope = 'operator' AND p99_ms IS NOT NULL AND operator = $4
    ORDER BY interval_end
"""
INCIDENTS = """
    SELECT i.incident, i.subject, epoch_ms(coalesce(i.broken_since, i.opened_at)) AS from_ms,
           epoch_ms(i.resolved_at) AS to_ms, i.acknowledged_by IS NOT NULL AS is_acknowledged,
           list(DISTINCT a.cause) FILTER (a.cause IS NOT NULL) AS causes
    FROM incident_history AS i
    LEFT JOIN (SELECT topology, cause, unnest(incidents) AS incident FROM sla_alerts WHERE audience IS NULL) AS a
        ON i.topology = a.topology AND i.incident = a.incident
    WHERE i.topology = $1 AND i.severity <> 'forecast' AND i.sla <> 'checks_are_made'
          AND epoch_ms(coalesce(i.broken_since, i.opened_at)) >= $2
          AND epoch_ms(coalesce(i.broken_since, i.opened_at)) < $3
    GROUP BY ALL ORDER BY from_ms, i.incident
"""


@dataclass(frozen=True)
class Measurement:
    """A measurement of *ms* at a check.

    With *is_excused* the check passed although the limit was reached.
    """

    at_ms: int
    ms: float
    is_excused: bool = False


@dataclass(frozen=True)
class Break:
    """An incident of *subject*; *to_ms* is exclusive."""

    incident: str
    subject: str
    from_ms: int
    to_ms: int


@dataclass(frozen=True)
class Outcome:
    """Alarms without a break, and breaks with and without an alarm."""

    false_alarms: int
    caught: tuple[str, ...]
    missed: tuple[str, ...]

    def __str__(self) -> str:
        breaks = len(self.caught) + len(self.missed)
        return f"{_count(self.false_alarms, 'false alarm')}, {len(self.caught)} of {_count(breaks, 'break')} caught"


@dataclass(frozen=True)
class Suggestion:
    """Proposed limits of an SLA; without *limits* its history is too short.

    Attributes:
        name: of the SLA.
        table: its keys other than those of limits.
        weeks: number of weeks with measurements.
        measurements: number of them by hour of the week.
        usual: the usual maxima by hour of the week.
        limits: the proposed limits.
        outcome: of the last JUDGED_WEEKS with these limits.
        outcome_now: the same with the limits of today; None: the SLA is new.
    """

    name: str
    table: Mapping[str, Any]
    weeks: int
    measurements: Counter[int]
    usual: Mapping[int, float]
    limits: HourlyLimits | None = None
    outcome: Outcome | None = None
    outcome_now: Outcome | None = None


def suggest(
    tables: Tables,
    topology: Topology,
    specs: Sequence[SlaSpec],
    content: Mapping[str, Any],
    *,
    zone: ZoneInfo,
    now_ms: int,
) -> list[Suggestion]:
    """Returns a suggestion for each SLA with limits of time.

    Terminal operators without an SLA of latency get a new one.

    Args:
        tables: of the warehouse.
        topology: the topology.
        specs: its SLAs.
        content: the tables of these SLAs in the file.
        zone: of the hours of the week.
        now_ms: end of the history, epoch ms.
    """
    span = [topology.name, now_ms - MOST_WEEKS * WEEK_MS, now_ms]
    breaks = _breaks(tables, topology, now_ms)
    suggestions = []
    for spec in specs:
        if not isinstance(spec.limits, Sla) or spec.measure is Measure.COMPLETENESS:
            continue
        measured = _measurements(tables, RESULTS, [*span, spec.name, spec.subject, spec.measure.value])
        table = {key: value for key, value in content[spec.name].items() if key not in LIMITS}
        history, subjects = _History(measured, zone, now_ms, spec.damping), _subjects(spec.subject, topology)
        suggestion = _suggestion(history, spec.name, table, breaks, subjects)
        if spec.by and suggestion.limits and suggestion.limits.limit_ms >= spec.over_ms:
            # A group must count for longer than its limit.
            over = length_in_toml(rounded_up(suggestion.limits.limit_ms + 1))
            suggestion = replace(suggestion, table={**table, "over": over})
        suggestions.append(replace(suggestion, outcome_now=history.outcome_of(spec, breaks, subjects)))
    with_latency = {spec.subject for spec in specs if spec.measure in QUANTILES}
    for operator in topology.terminals:
        name = f"{operator[:50]}_by_hour"
        if operator in with_latency or name in content:
            continue
        table = {"subject": operator, "measure": Measure.LATENCY_P99.value, "over": "1 h", "owner": topology.owner}
        measured = _measurements(tables, ROLLED_UP, [*span, operator])
        history = _History(measured, zone, now_ms, Damping(resolve_after_ms=RESOLVE_AFTER_MS))
        suggestions.append(_suggestion(history, name, table, breaks, _subjects(operator, topology)))
    return suggestions


class _History:
    """The measurements of a subject, by hour of the week in *zone*."""

    def __init__(self, measured: Sequence[Measurement], zone: ZoneInfo, now_ms: int, damping: Damping) -> None:
        self._now_ms, self._damping = now_ms, damping
        self._placed: list[tuple[int, int, Measurement]] = []
        for each in measured:
            local = datetime.fromtimestamp(each.at_ms / 1_000, zone)
            week, hour = (now_ms - 1 - each.at_ms) // WEEK_MS, HOURS_OF_DAY * local.weekday() + local.hour
            self._placed.append((week, hour, each))
        self._highest: dict[tuple[int, int], float] = {}
        for week, hour, each in self._placed:
            if not each.is_excused:
                self._highest[week, hour] = max(each.ms, self._highest.get((week, hour), each.ms))
        self.weeks = sorted({week for week, _ in self._highest})
        self.measurements = Counter(hour for _, hour, each in self._placed if not each.is_excused)

    def usual(self, without: int | None = None) -> dict[int, float]:
        """Returns the usual maxima, by all weeks but one."""
        return usual_maxima(self._highest, [week for week in self.weeks if week != without])

    def outcome(self, breaks: Sequence[Break], subjects: Collection[str]) -> Outcome:
        """Returns the outcome if each week has the limits of the others."""
        by_week: dict[int, Sequence[int]] = {}
        for week in range(JUDGED_WEEKS):
            usual = self.usual(without=week)
            by_week[week] = hourly_limits(usual).by_hour if usual else ()
        verdicts = []
        for week, hour, each in self._judged():
            limits = by_week[week]
            verdicts.append((each, judge(each.ms, Sla(error_after_ms=limits[hour])) if limits else Verdict.UNKNOWN))
        return self._compared(verdicts, breaks, subjects)

    def outcome_of(self, spec: SlaSpec, breaks: Sequence[Break], subjects: Collection[str]) -> Outcome:
        """Returns the outcome of the limits of *spec*."""
        verdicts = []
        for _, _, each in self._judged():
            limits = spec.at(each.at_ms).limits
            verdicts.append((each, judge(each.ms, limits) if isinstance(limits, Sla) else Verdict.UNKNOWN))
        return self._compared(verdicts, breaks, subjects)

    def _judged(self) -> Iterator[tuple[int, int, Measurement]]:
        yield from (placed for placed in self._placed if placed[0] < JUDGED_WEEKS)

    def _compared(
        self, verdicts: Sequence[tuple[Measurement, Verdict]], breaks: Sequence[Break], subjects: Collection[str]
    ) -> Outcome:
        alarms = list(self._alarms(verdicts))
        false = [alarm for alarm in alarms if not any(_overlaps(alarm, each) for each in breaks)]
        own = [each for each in breaks if each.subject in subjects]
        caught = [each.incident for each in own if any(_overlaps(alarm, each) for alarm in alarms)]
        return Outcome(len(false), tuple(caught), tuple(outside((each.incident for each in own), caught)))

    def _alarms(self, verdicts: Sequence[tuple[Measurement, Verdict]]) -> Iterator[tuple[int, int]]:
        """Yields from when until when an incident is open."""
        standing = SlaState()
        for each, verdict in verdicts:
            before = standing
            judged = Verdict.PASS if each.is_excused else verdict
            standing, change = follow(standing, at_ms=each.at_ms, verdict=judged, damping=self._damping)
            if change is Change.RESOLVED:
                yield before.broken_since_ms or each.at_ms, each.at_ms
        if standing.opened_at_ms is not None:
            yield standing.broken_since_ms or standing.opened_at_ms, self._now_ms


def _overlaps(alarm: tuple[int, int], each: Break) -> bool:
    return alarm[0] < each.to_ms and each.from_ms < alarm[1]


def _suggestion(
    history: _History, name: str, table: Mapping[str, Any], breaks: Sequence[Break], subjects: Collection[str]
) -> Suggestion:
    usual = history.usual() if len(history.weeks) >= FEWEST_WEEKS else {}
    suggestion = Suggestion(
        name=name, table=table, weeks=len(history.weeks), measurements=history.measurements, usual=usual
    )
    if not usual:
        return suggestion
    return replace(suggestion, limits=hourly_limits(usual), outcome=history.outcome(breaks, subjects))


def _measurements(tables: Tables, sql: str, parameters: Sequence[Any]) -> list[Measurement]:
    return [Measurement(row["at_ms"], row["ms"], _is_excused(row)) for row in tables.ask(sql, parameters).objects]


def _is_excused(row: Mapping[str, Any]) -> bool:
    """Returns True if a check passed although it reached a limit."""
    reached = [ms for ms in (row.get("warn_after_ms"), row.get("error_after_ms")) if ms is not None and row["ms"] >= ms]
    return bool(reached) and row["verdict"] == Verdict.PASS


def _breaks(tables: Tables, topology: Topology, now_ms: int) -> list[Break]:
    breaks = []
    for row in tables.ask(INCIDENTS, [topology.name, now_ms - JUDGED_WEEKS * WEEK_MS, now_ms]).objects:
        causes = row["causes"] or []
        if row["is_acknowledged"] or not causes or not all(map(is_harmless, causes)):
            to_ms = now_ms if row["to_ms"] is None else row["to_ms"]
            breaks.append(Break(row["incident"], row["subject"], row["from_ms"], to_ms))
    return breaks


def _subjects(subject: str, topology: Topology) -> set[str]:
    """Returns *subject*, and the sink or the table that belongs to it."""
    sinks = [o for o in topology.operators.values() if o.result_table and subject in {o.name, o.result_table}]
    return {subject, *(str(name) for o in sinks for name in (o.name, o.result_table))}


def as_toml(suggestions: Sequence[Suggestion], topology: Topology, *, zone: ZoneInfo, now_ms: int) -> str:
    """Returns tables for the file of SLAs, with the evidence as comments."""
    parts = [
        f"# Proposed for the topology {topology.name} at {iso(now_ms)}, from checks and rollups of a quarter.\n"
        f"# No check uses these limits until you copy them into slas.toml. A limit is {MARGIN} times the usual\n"
        f"# maximum of its hours of the week ({zone.key}), rounded up; n is the number of measurements."
    ]
    return "\n\n".join([*parts, *(_text(each, topology.name, zone) for each in suggestions)])


def _text(each: Suggestion, topology: str, zone: ZoneInfo) -> str:
    history = f"# {each.name}: {_count(each.measurements.total(), 'measurement')} in {_count(each.weeks, 'week')}"
    if each.limits is None:
        return f"{history}: too few, {FEWEST_WEEKS} weeks are needed, and an hour in {FEWEST_WEEKS - 1} of them"
    lines = [f"{history}. The last {JUDGED_WEEKS} weeks would have had", f"#   with these limits: {each.outcome}"]
    if each.outcome and each.outcome.missed:
        lines.append(f"#     without an alarm: {', '.join(each.outcome.missed)}")
    if each.outcome_now:
        lines.append(f"#   with the present limits: {each.outcome_now}")
    lines.append(f"[{topology}.{each.name}]")
    lines += (f"{key} = {in_toml(value)}" for key, value in each.table.items())
    in_blocks = {hour for block in each.limits.blocks for hour in block.hours}
    others = [hour for hour in range(HOURS) if hour not in in_blocks]
    lines.append(f'error_after = "{length_in_toml(each.limits.limit_ms)}"  # {_evidence(each, others)}')
    if each.limits.blocks:
        lines.append("hours = [")
        for block in each.limits.blocks:
            hours = {"zone": zone.key, "days": [DAYS[day] for day in block.days]}
            hours |= {"from": f"{block.start:02}:00", "to": f"{block.end:02}:00"}
            hours |= {"error_after": length_in_toml(block.limit_ms)}
            lines += [f"  # {_evidence(each, block.hours)}", f"  {in_toml(hours)},"]
        lines.append("]")
    return "\n".join(lines)


def _evidence(each: Suggestion, hours: Sequence[int]) -> str:
    usual = [each.usual[hour] for hour in hours if hour in each.usual]
    most = f": usually at most {for_people(max(usual))}" if usual else ""
    return f"n = {sum(each.measurements[hour] for hour in hours):,}{most}"


def in_toml(value: Any) -> str:
    """Formats a value in TOML; tables are inline."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {in_toml(of_key)}' for key, of_key in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_toml, value))}]"
    # Strings, numbers and booleans are the same in TOML and JSON.
    return json.dumps(value, ensure_ascii=False)


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"
