"""Proposes a limit for each SLA of time and for each terminal operator, from the last seven days.

A measurement of an SLA is a check that measured its subject. Checks that cannot break the SLA do not count: those in
maintenance, outside the calendar or for the past, those of fewer records than `min_records`, and those that passed
although they reached a limit, for example while a source had nothing to send. A measurement of a terminal operator is a
whole hour of `latency_rollup` in which it finished records. The percentiles of such an hour, and those of the seven
days, are of its records; those of the seven days come from the merged buckets of the hours.

The worst hour is the clock hour (UTC) within the seven days that has the largest p99, the first of equal ones.
Percentiles are those of `semantics.quantiles`: of fewer than 100 checks the p99 is the longest measurement. Instants
are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.facts.answers import Row, Tables
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.latency import LATENCY_P99
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import counted, for_people, length_in_toml, rounded_up
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_files import toml_text
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.query.text_table import format_table
from tidemark.semantics.buckets import quantile
from tidemark.semantics.quantiles import median_sql, quantile_sql
from tidemark.semantics.sla import Sla

SPAN_MS = 7 * DAY_MS
FEWEST = 20
"""Number of measurements that a proposal needs."""
MARGIN = 1.5
"""The proposed limit is this multiple of the p99 of the seven days, rounded up."""
CHECKS = f"""
    WITH wanted AS (
        SELECT unnest($4::VARCHAR[]) AS sla, unnest($5::VARCHAR[]) AS subject, unnest($6::VARCHAR[]) AS measure
    ),
    judged AS (
        SELECT sla, epoch_ms(date_trunc('hour', checked_at)) AS hour_ms, observed_ms
        FROM sla_results SEMI JOIN wanted USING (sla, subject, measure)
        WHERE topology = $1 AND checked_at >= make_timestamptz($2 * 1000) AND checked_at < make_timestamptz($3 * 1000)
              AND excluded_because IS NULL AND observed_ms IS NOT NULL
              AND verdict <> 'unknown'
              AND (verdict IN ('warn', 'error') OR observed_ms < least(warn_after_ms, error_after_ms))
    )
    SELECT sla AS name, hour_ms, list(observed_ms) AS measured_ms, {median_sql("observed_ms")} AS median_ms,
           {quantile_sql("observed_ms", 0.99)} AS p99_ms, max(observed_ms) AS max_ms
    FROM judged GROUP BY GROUPING SETS ((sla), (sla, hour_ms)) ORDER BY name, hour_ms
"""
"""Selects the checks of each SLA by hour, and all of them in a row without `hour_ms`."""
_IN_HOURS = """
    topology = $1 AND interval_start >= make_timestamptz($2 * 1000) AND interval_end <= make_timestamptz($3 * 1000)
    AND grain = 'hour' AND scope = 'operator' AND list_contains($4::VARCHAR[], operator)
"""
HOURS = f"""
    SELECT operator AS name, epoch_ms(interval_start) AS hour_ms, p50_ms AS median_ms, p99_ms, min_ms, max_ms, buckets
    FROM latency_rollup WHERE {_IN_HOURS} ORDER BY name, hour_ms
"""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How measurements are spread: all of them, or those of the clock hour that begins at *hour_ms*."""

    median_ms: float
    p99_ms: float
    max_ms: float
    hour_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The measurements of an SLA or of an operator in the seven days.

    Attributes:
        unit: the word for one: check or hour.
        values_ms: what a limit is compared with: the value of each check, or the p99 of each hour.
        whole: their spread, or that of the operator's records; None without measurements.
        hours: the same of each clock hour, the oldest first.
    """

    unit: str
    values_ms: Sequence[float]
    whole: Spread | None
    hours: Sequence[Spread]

    @property
    def limit_ms(self) -> int | None:
        """The proposed limit, or None if there are too few measurements."""
        if self.whole is None or len(self.values_ms) < FEWEST:
            return None
        return rounded_up(MARGIN * self.whole.p99_ms)

    def __str__(self) -> str:
        n = counted(len(self.values_ms), self.unit)
        limit_ms = self.limit_ms
        if self.whole is None or limit_ms is None:
            return f"{n} with a measurement that counts in 7 days: a proposal needs at least {FEWEST}."
        worst = max(self.hours, key=lambda hour: hour.p99_ms)
        spreads = {"7 days": self.whole, f"worst hour, from {iso(worst.hour_ms or 0)}": worst}
        rows = [(time, *map(for_people, (each.median_ms, each.p99_ms, each.max_ms))) for time, each in spreads.items()]
        broken = sum(value_ms >= limit_ms for value_ms in self.values_ms)
        proposed = f"Proposed limit: {for_people(limit_ms)}, which {broken:,} of {n} would have broken."
        return f"{format_table(('time', 'median', 'p99', 'max'), rows)}\n{proposed}"


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What was measured for the SLA or the operator in *title*.

    *lines* say what to write into the file of SLAs, and where, or which SLA the operator has already.
    """

    title: str
    measured: Measurements
    lines: Sequence[str]

    def __str__(self) -> str:
        return "\n".join((self.title, str(self.measured), *self.lines))


def suggest(tables: Tables, topology: Topology, specs: Sequence[SlaSpec], *, now_ms: int) -> list[Suggestion]:
    """Returns a suggestion for each SLA of time, then one for each terminal operator.

    Completeness has none: it is 0 while nothing is lost, so that its history says nothing about a limit.

    Args:
        tables: of the warehouse.
        topology: the topology.
        specs: its SLAs.
        now_ms: the end of the seven days, epoch ms.
    """
    of_time = [spec for spec in specs if isinstance(spec.limits, Sla) and spec.measure is not COMPLETENESS]
    promised = {spec.subject: spec.name for spec in specs if spec.measure.is_latency}
    span = [topology.name, now_ms - SPAN_MS, now_ms]
    suggestions = []
    for spec, measured in zip(of_time, _checks(tables, of_time, span), strict=True):
        lines = _lines_of_sla(spec, topology, measured.limit_ms) if measured.limit_ms else ()
        title = f"{spec.name}: {spec.measure} of {spec.subject}"
        suggestions.append(Suggestion(title=title, measured=measured, lines=lines))
    for operator, measured in zip(topology.terminals, _hours(tables, topology, span), strict=True):
        lines = ()
        if operator in promised:
            lines = (f"Its latency has an SLA already: {promised[operator]}.",)
        elif measured.limit_ms:
            lines = _lines_of_operator(operator, topology, measured.limit_ms)
        title = f"{operator}: latency of its records"
        suggestions.append(Suggestion(title=title, measured=measured, lines=lines))
    return suggestions


def _checks(tables: Tables, specs: Sequence[SlaSpec], span: Sequence[object]) -> list[Measurements]:
    """Returns the measurements of each of *specs*."""
    columns = [[spec.name for spec in specs], [spec.subject for spec in specs], [spec.measure.name for spec in specs]]
    rows = tables.ask(CHECKS, [*span, *columns]).objects
    found = []
    for spec in specs:
        whole = next((row for row in rows if row["name"] == spec.name and row["hour_ms"] is None), None)
        hours = [_spread(row) for row in rows if row["name"] == spec.name and row is not whole]
        if whole is None:
            found.append(Measurements(unit="check", values_ms=(), whole=None, hours=()))
        else:
            found.append(Measurements(unit="check", values_ms=whole["measured_ms"], whole=_spread(whole), hours=hours))
    return found


def _hours(tables: Tables, topology: Topology, span: Sequence[object]) -> list[Measurements]:
    """Returns the measurements of each terminal operator of *topology*."""
    parameters = [*span, [*topology.terminals]]
    rows = tables.ask(HOURS, parameters).objects
    found = []
    for operator in topology.terminals:
        own = [row for row in rows if row["name"] == operator]
        hours, counts = [_spread(row) for row in own], [(b["bucket"], b["n"]) for row in own for b in row["buckets"]]
        extremes = {
            "min_ms": min((row["min_ms"] for row in own), default=None),
            "max_ms": max((row["max_ms"] for row in own), default=None),
        }
        median_ms, p99_ms = quantile(counts, 0.5, **extremes), quantile(counts, 0.99, **extremes)
        whole = None
        if hours and median_ms is not None and p99_ms is not None:
            whole = Spread(median_ms=median_ms, p99_ms=p99_ms, max_ms=max(hour.max_ms for hour in hours))
        values_ms = [hour.p99_ms for hour in hours]
        found.append(Measurements(unit="hour", values_ms=values_ms, whole=whole, hours=hours))
    return found


def _spread(row: Row) -> Spread:
    return Spread(median_ms=row["median_ms"], p99_ms=row["p99_ms"], max_ms=row["max_ms"], hour_ms=row["hour_ms"])


def _lines_of_sla(spec: SlaSpec, topology: Topology, limit_ms: int) -> tuple[str, ...]:
    """Returns the lines that replace the limits of *spec*, an SLA of time."""
    assert isinstance(spec.limits, Sla)
    limits_ms = {"warn_after": spec.limits.warn_after_ms, "error_after": spec.limits.error_after_ms}
    keys = [key for key, ms in limits_ms.items() if ms is not None]
    lines = [f'{keys[-1]} = "{length_in_toml(limit_ms)}"']
    if spec.by and limit_ms >= spec.over_ms:
        # A group must count for longer than its limit.
        keys.append("over")
        lines.append(f'over = "{length_in_toml(rounded_up(limit_ms + 1))}"')
    return (f"In [{topology.name}.{spec.name}], in place of {' and '.join(keys)}:", *lines)


def _lines_of_operator(operator: str, topology: Topology, limit_ms: int) -> tuple[str, ...]:
    """Returns the lines of a new SLA of the latency of *operator*."""
    return (
        "As a new table:",
        f"[{topology.name}.{operator[:50]}_in_time]",
        f'subject = "{operator}"',
        f'measure = "{LATENCY_P99}"',
        'over = "1 h"',
        f'error_after = "{length_in_toml(limit_ms)}"',
        f"owner = {toml_text(topology.owner)}",
    )
