"""Finds the culprits of broken SLAs, and what blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache, wraps
from typing import ParamSpec, TypeVar

import polars as pl

from tidemark.facts.answers import Row, Tables
from tidemark.facts.fact_tables import RECENT_MS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.lengths import for_people
from tidemark.model.sla_spec import QUANTILES, WORK_QUANTILES, Measure, SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.blame import AgeCause
from tidemark.semantics.completeness import needed_ms
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Sla
from tidemark.sla.incidents.roots import OF_ROWS, root_of, root_of_part
from tidemark.sla.measures.status import Status, sub_topology_of
from tidemark.why.causes.drivers import DRAINED, DRIVER_DEAD, DRIVER_STUCK, FINISHED, UPSTREAM_DEAD
from tidemark.why.evidence.findings import NOTHING_WRONG, UNEXPLAINED, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene
from tidemark.why.walk import Walk, restarted_driver, scene, what_holds_time_back

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NO_EXPLANATION = frozenset({NOTHING_WRONG, UNEXPLAINED})
ENDS_OF_DRIVERS = frozenset({DRAINED, FINISHED, DRIVER_DEAD, DRIVER_STUCK, UPSTREAM_DEAD})
"""Causes whose instant is that of a driver's last heartbeat."""
LATENCIES = frozenset({*QUANTILES, *WORK_QUANTILES, Measure.BURN_RATE})
WAITED_FOR_DRIVER = frozenset({None, AgeCause.DRIVER_RESTARTED, AgeCause.BACKLOG})
"""Culprits that a restarted driver may explain.

Records waited for that driver.
"""
BLAME = """
    SELECT operator, input, avg(ms) AS ms, max(age_ms) AS age_ms, median(usual_ms) AS usual_ms, count(*) AS windows
    FROM window_parts
    WHERE topology = $1 AND subject = $4 AND list_contains(broken_slas, $5) AND excess_ms > 0
          AND finished_at >= make_timestamptz($2 * 1000) AND finished_at < make_timestamptz($3 * 1000)
    GROUP BY operator, kind, input ORDER BY sum(excess_ms) DESC, operator LIMIT 1
"""
"""Selects the part of the age of windows that grew most.

The windows are those of an operator, $4, that broke the SLA $5.
"""


def with_culprits(
    measured: Iterable[Status], topology: Topology, layout: Layout, tables: Tables, *, at_ms: int
) -> Iterator[Status]:
    """Adds to the status of each broken SLA its culprit and hold-up.

    The culprit of a latency is the part of the age of windows that grew most. These windows broke this promise; the
    part is an operator or a cause on the path to its subject, as in `window_parts`. Without such a window it is
    `driver_restarted` if records waited for a new driver. Otherwise, and for other measures, it is the operator or
    input that blocks according to `tidemark why`; for a watermark it is the source or operator that holds it back. A
    breach that cannot be explained has no culprit. Statuses of SLAs that hold are yielded unchanged.

    Args:
        measured: the statuses at *at_ms*.
        topology: that promises the SLAs.
        layout: of the warehouse.
        tables: of the warehouse.
        at_ms: the instant of the check, epoch ms.
    """
    explaining = _Explainer(topology, layout, tables, at_ms)
    for status in measured:
        if status.verdict not in BROKEN or status.spec.measure in OF_ROWS:
            yield status
        else:
            yield explaining.explained(status)


class _Explainer:
    """Explains the broken SLAs of *topology* at *at_ms*.

    What several SLAs ask for is looked up once.
    """

    def __init__(self, topology: Topology, layout: Layout, tables: Tables, at_ms: int) -> None:
        self._topology, self._layout, self._tables, self._at_ms = topology, layout, tables, at_ms
        # Several SLAs may ask about one subject or operator.
        self._blamed = lru_cache(_none_on_error(self._part_that_grew))
        self._held_up = lru_cache(_none_on_error(self._hold_up))
        self._held_back = _none_on_error(self._what_holds_back)
        self._restarted = _none_on_error(self._restarted_driver)
        # A finding may name an operator that the topology has no more.
        self._root_of, self._root_of_part = _none_on_error(root_of), _none_on_error(root_of_part)

    @cached_property
    def _scene(self) -> Scene:
        return self._scene_over(RECENT_MS)

    def _scene_over(self, recent_ms: int) -> Scene:
        stored = self._tables.stored
        return scene(self._topology, self._layout, self._at_ms, recent_ms=recent_ms, stored=stored)

    @cached_property
    def _walk(self) -> Walk:
        return Walk(self._scene)

    def explained(self, status: Status) -> Status:
        """Returns the *status* of a broken SLA with culprit, hold-up and age.

        The age is that of the oldest window that broke the promise, in ms; None: not an end-to-end latency, or no such
        window.
        """
        spec, is_late = status.spec, status.spec.measure in LATENCIES
        # The work of an operator waits for no other.
        is_own = spec.measure in WORK_QUANTILES
        operator = _operator(spec, self._topology)
        # Of an SLA that may have been excused it is not known since when it counts.
        crossed_ms = None if spec.may_be_excused else status.crossed_ms
        findings = self._held_up(operator, is_late=is_late, is_own=is_own) or ()
        reasons = (finding for finding in findings if not _ended_after(finding, crossed_ms))
        finding = self._held_back(spec) or next(reasons, None)
        culprit, blocked_by, age_ms = (
            status.culprit or self._waited_for(status),
            finding.line if finding else None,
            None,
        )
        root = self._root_of(finding, self._topology) if finding and not is_own else None
        if is_late and (part := self._blamed(spec.table, spec.subject, spec.over_ms)) is not None:
            culprit = culprit or part["operator"]
            # How old a window was says nothing about the work of one operator.
            age_ms, waited_for = (None, None) if is_own else (part["age_ms"], _wait_for_input(part))
            blocked_by = blocked_by or waited_for
        restart = self._restarted(spec) if is_late and culprit in WAITED_FOR_DRIVER else None
        if restart is not None and culprit in {None, str(restart.cause)}:
            culprit, blocked_by = str(restart.cause), restart.line
            root = self._root_of(restart, self._topology)
        if culprit is None and finding is not None:
            culprit = finding.input or finding.operator
        if root is None and culprit is not None and is_late:
            root = self._root_of_part(culprit, blocked_by, spec.subject, self._topology)
        return replace(status, culprit=culprit, blocked_by=blocked_by, age_ms=age_ms, root=root)

    def _part_that_grew(self, sla: str, subject: str, over_ms: int) -> Row | None:
        over = [self._topology.name, self._at_ms - over_ms, self._at_ms]
        parts = self._tables.ask(BLAME, [*over, subject, sla]).objects
        return parts[0] if parts else None

    def _hold_up(self, operator: str | None, *, is_late: bool, is_own: bool) -> tuple[WhyFinding, ...]:
        findings = self._walk.explain(operator)
        if is_own:
            findings = [each for each in findings if each.operator == operator and each.input in {None, operator}]
        if is_late:
            # The record came: silence does not explain why it was late.
            findings = [finding for finding in findings if Trait.SILENCE not in finding.cause.traits]
        return tuple(finding for finding in findings if finding.cause not in NO_EXPLANATION)

    def _what_holds_back(self, spec: SlaSpec) -> WhyFinding | None:
        if spec.measure is Measure.COMPLETE_BY:
            reached_ms = self._needed_of_interval(spec.subject)
        elif spec.measure is Measure.WATERMARK_LAG and isinstance(spec.limits, Sla):
            # The watermark at which its lag would be one ms below the lowest limit.
            reached_ms = self._at_ms - round(spec.limits.least_ms) + 1
        else:
            return None
        if reached_ms is None:
            return None
        sub = sub_topology_of(spec, self._topology)
        return next(iter(what_holds_time_back(self._scene, sub, needed_ms=reached_ms)), None)

    def _needed_of_interval(self, operator: str) -> int | None:
        """Returns the watermark that completes the next interval of *operator*."""
        intervals, rows = self._topology.operators[operator].complete, self._scene.of(operator).completions(operator)
        if intervals is None or rows.is_empty():
            return None
        lateness_ms = self._topology.allowed_lateness_ms(operator)
        return needed_ms(intervals.end_of(max(rows["interval_end"])), allowed_lateness_ms=lateness_ms)

    def _waited_for(self, status: Status) -> str | None:
        """Returns what a complete interval that was late waited for longest."""
        if status.spec.measure is not Measure.COMPLETE_BY or status.observed_ms is None:
            return None
        took = pl.col("decided_at") - pl.col("interval_end") == status.observed_ms
        rows = self._scene.of(status.spec.subject).completions(status.spec.subject).filter(took)
        return next(iter(rows.filter(pl.col("reopened_at").is_null())["waited_for"]), None)

    def _restarted_driver(self, spec: SlaSpec) -> WhyFinding | None:
        operator = _operator(spec, self._topology)
        if operator is None:
            return None
        # A scene knows the restarts of half of its recent time.
        longer_ms = 2 * spec.over_ms
        of = self._scene if longer_ms <= RECENT_MS else self._scene_over(longer_ms)
        return restarted_driver(of, operator, within_ms=spec.over_ms)


def _ended_after(finding: WhyFinding, crossed_ms: int | None) -> bool:
    """Returns True if *finding* is the end of a driver after an SLA had crossed its limit, so that it is no reason."""
    if crossed_ms is None or finding.since_ms is None or finding.cause not in ENDS_OF_DRIVERS:
        return False
    return finding.since_ms > crossed_ms


def _none_on_error(explain: Callable[P, T | None]) -> Callable[P, T | None]:
    """Makes *explain* return None where it raises."""

    @wraps(explain)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return explain(*args, **kwargs)
        except Exception:
            # An SLA is broken whether or not that can be explained.
            log.exception("the cause of a broken SLA was not determined")
            return None

    return explained


def _wait_for_input(part: Row) -> str | None:
    """Formats the wait of *part* for a partition; None without."""
    if part["input"] is None:
        return None
    usual = "" if part["usual_ms"] is None else f", usually {for_people(part['usual_ms'])}"
    return (
        f"{part['operator']}: {part['input']}, {for_people(part['ms'])} in each of {part['windows']:,} windows{usual}"
    )


def _operator(spec: SlaSpec, topology: Topology) -> str | None:
    """Returns the operator that *spec* limits; None: each terminal one."""
    if spec.subject in topology.operators:
        return spec.subject
    for sub in topology.sub_topologies:
        if sub.name == spec.subject:
            return sub.operators[-1].name
    sinks = (o.name for o in topology.operators.values() if o.result_table == spec.subject)
    return next(sinks, None)
