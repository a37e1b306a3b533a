"""Who is to blame for an SLA that is broken, and what holds it up (ring 2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from tidemark.report.path_facts import Row, Tables
from tidemark.semantics.blame import AgeCause
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Sla
from tidemark.sla.status import Status, sub_topology_of
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Sink
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.spec.tables import CRITICAL_PATH_STEPS, CRITICAL_PATHS, SLA_RESULTS, WINDOW_PARTS
from tidemark.spec.topology import Topology
from tidemark.why.findings import Cause, Finding
from tidemark.why.walk import restarted_driver, what_holds_time_back, why

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NO_EXPLANATION = frozenset({Cause.NOTHING_WRONG, Cause.UNEXPLAINED})
LATENCIES = frozenset({*QUANTILES, Measure.BURN_RATE, Measure.OPERATOR_LATENCY_P50})
SILENCE = frozenset(
    {
        *(Cause.SOURCE_EMPTY, Cause.SOURCE_QUIET, Cause.TIME_STANDS_STILL, Cause.ALL_SUPPRESSED, Cause.ALL_FILTERED),
        *(Cause.DRIVER_DEAD, Cause.UPSTREAM_DEAD),
    }
)
"""Why nothing more came, which says nothing of what came late."""
WAITS_FOR_NOTHING = frozenset({Measure.COMPLETENESS, Measure.CONTRACT})
"""What is measured of rows that are there, which say themselves who wrote them."""
WAITED_FOR_DRIVER = frozenset({None, AgeCause.DRIVER_RESTARTED, AgeCause.BACKLOG})
"""Culprits of which the driver that records waited for may say more."""
READS = frozenset({CRITICAL_PATHS.name, CRITICAL_PATH_STEPS.name, WINDOW_PARTS.name, SLA_RESULTS.name})
"""Tables that are asked."""
BLAME = """
    SELECT operator, input, avg(ms) AS ms, max(age_ms) AS age_ms, median(usual_ms) AS usual_ms, count(*) AS windows
    FROM window_parts
    WHERE topology = $1 AND subject = $4 AND over_sla AND excess_ms > 0
          AND finished_at >= make_timestamptz($2 * 1000) AND finished_at < make_timestamptz($3 * 1000)
    GROUP BY operator, kind, input ORDER BY sum(excess_ms) DESC, operator LIMIT 1
"""
"""Which part of the age of windows that broke the promise of an operator grew most."""


def with_culprits(
    found: Iterable[Status], topology: Topology, layout: Layout, tables: Tables, *, at_ms: int
) -> Iterator[Status]:
    """The statuses *found* for *at_ms*, those of broken SLAs with a culprit where one is known, and what holds it up.

    Of a latency it is the part that grew most of windows that broke this promise, on the path to its subject: an
    operator or a cause, as `window_parts` has it. Without such a window it is `driver_restarted` if records waited for
    a new driver. Else, and of anything else, it is where `tidemark why` finds the hold-up, and of a watermark whatever
    holds it back. An SLA whose breach nobody can explain has none.
    """
    explaining = _Explaining(topology, layout, tables, at_ms)
    for status in found:
        if status.verdict not in BROKEN or status.spec.measure in WAITS_FOR_NOTHING:
            yield status
        else:
            yield explaining.explained(status)


class _Explaining:
    """Explains the broken SLAs of *topology* at *at_ms*, and looks up what several of them ask for once."""

    def __init__(self, topology: Topology, layout: Layout, tables: Tables, at_ms: int) -> None:
        self._topology, self._layout, self._tables, self._at_ms = topology, layout, tables, at_ms
        self._blamed = lru_cache(_unexplained(self._part_that_grew))
        self._held_up = lru_cache(_unexplained(self._hold_up))
        self._held_back = _unexplained(self._what_holds_back)
        self._restarted = _unexplained(self._restarted_driver)

    def explained(self, status: Status) -> Status:
        """*status*, of a broken SLA, with culprit, hold-up and age."""
        spec, is_late = status.spec, status.spec.measure in LATENCIES
        finding = self._held_back(spec) or self._held_up(_operator(spec, self._topology), is_late=is_late)
        culprit, held_by, age_ms = status.culprit, finding.line if finding else None, None
        if is_late and (part := self._blamed(spec.subject, spec.over_ms)) is not None:
            culprit, held_by, age_ms = culprit or part["operator"], held_by or _said(part), part["age_ms"]
        restart = self._restarted(spec) if is_late and culprit in WAITED_FOR_DRIVER else None
        if restart is not None and culprit in {None, restart.cause.value}:
            culprit, held_by = restart.cause.value, restart.line
        if culprit is None and finding is not None:
            culprit = finding.input or finding.operator
        return replace(status, culprit=culprit, held_by=held_by, age_ms=age_ms)

    def _part_that_grew(self, subject: str, over_ms: int) -> Row | None:
        found = self._tables.ask(BLAME, [self._topology.name, self._at_ms - over_ms, self._at_ms, subject]).objects
        return found[0] if found else None

    def _hold_up(self, operator: str | None, *, is_late: bool) -> Finding | None:
        findings = why(self._topology, self._layout, at_ms=self._at_ms, operator=operator)
        causes = NO_EXPLANATION | SILENCE if is_late else NO_EXPLANATION
        return next((finding for finding in findings if finding.cause not in causes), None)

    def _what_holds_back(self, spec: SlaSpec) -> Finding | None:
        if spec.measure is not Measure.WATERMARK_LAG or not isinstance(spec.limits, Sla):
            return None
        needed_ms = self._at_ms - round(spec.limits.least_ms) + 1
        sub = sub_topology_of(spec, self._topology)
        holding = what_holds_time_back(self._topology, self._layout, sub, at_ms=self._at_ms, needed_ms=needed_ms)
        return next(iter(holding), None)

    def _restarted_driver(self, spec: SlaSpec) -> Finding | None:
        operator = _operator(spec, self._topology)
        if operator is None:
            return None
        return restarted_driver(self._topology, self._layout, operator, at_ms=self._at_ms, within_ms=spec.over_ms)


def _unexplained(explain: Callable[P, T | None]) -> Callable[P, T | None]:
    """*explain*, but None where it fails: an SLA is broken whether or not that can be explained."""

    @wraps(explain)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return explain(*args, **kwargs)
        except Exception:
            log.exception("nobody can say why")
            return None

    return explained


def _said(part: Row) -> str | None:
    """Which partition a *part* of the age of windows waited for; None where it waited for none."""
    if part["input"] is None:
        return None
    usual = "" if part["usual_ms"] is None else f", usually {part['usual_ms']:,.0f} ms"
    return f"{part['operator']}: {part['input']}, {part['ms']:,.0f} ms in each of {part['windows']:,} windows{usual}"


def _operator(spec: SlaSpec, topology: Topology) -> str | None:
    """The operator of whose results *spec* promises something; None: each terminal one."""
    if spec.subject in topology.operators:
        return spec.subject
    for sub in topology.sub_topologies:
        if sub.name == spec.subject:
            return sub.operators[-1].name
    sinks = (o.name for o in topology.operators.values() if isinstance(o, Sink) and o.table == spec.subject)
    return next(sinks, None)
