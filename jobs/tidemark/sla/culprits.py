"""Who is to blame for an SLA that is broken, and what holds it up (ring 2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from tidemark.report.path_facts import FINISHED_MS, Tables
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Sla
from tidemark.sla.status import Status, sub_topology_of
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Sink
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, SLA_RESULTS
from tidemark.spec.topology import Topology
from tidemark.why.findings import Cause, Finding
from tidemark.why.walk import what_holds_time_back, why

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
READS = frozenset(table.name for table in (CRITICAL_PATHS, CRITICAL_PATH_STEPS, CRITICAL_PATH_LEAVES, SLA_RESULTS))
"""Tables that are asked."""
BLAME = """
    SELECT operator FROM critical_path_blame
    WHERE topology = $1 AND grain = 'window'
          AND finished_at >= make_timestamptz($2 * 1000) AND finished_at < make_timestamptz($3 * 1000)
          AND operator IN (SELECT unnest($4::VARCHAR[]))
    GROUP BY operator ORDER BY sum(excess_ms) DESC, operator LIMIT 1
"""

USED_MOST = f"""
    WITH RECURSIVE windows AS (
        SELECT window_start, window_end, {FINISHED_MS} >= $2 AS is_judged
        FROM critical_paths
        WHERE topology = $1 AND {FINISHED_MS} BETWEEN $2 - 86400000 AND $3 - 1
    ),
    steps AS (
        SELECT window_start, window_end, is_judged, operator, slowest_upstream, latency_ms,
               coalesce(worked_ms, latency_ms) AS worked_ms
        FROM critical_path_steps JOIN windows USING (window_start, window_end) WHERE topology = $1
    ),
    walk AS (
        SELECT * FROM steps WHERE operator = $4
        UNION ALL
        SELECT steps.* FROM steps
        JOIN walk ON steps.operator = walk.slowest_upstream
            AND steps.window_start = walk.window_start AND steps.window_end = walk.window_end
    ),
    used AS (
        SELECT is_judged, operator, worked_ms AS ms FROM walk
        UNION ALL
        SELECT is_judged, 'waiting', sum(latency_ms - worked_ms) FROM walk GROUP BY is_judged, window_start, window_end
        UNION ALL
        SELECT walk.is_judged, 'before_source', max(before_source_ms) FROM walk
        JOIN critical_path_leaves AS leaf ON leaf.topology = $1 AND leaf.source = walk.operator
            AND leaf.window_start = walk.window_start AND leaf.window_end = walk.window_end
        GROUP BY is_judged, walk.window_start, walk.window_end
    ),
    usual AS (SELECT operator, median(ms) AS usual_ms FROM used WHERE NOT is_judged GROUP BY operator)
    SELECT operator FROM used LEFT JOIN usual USING (operator)
    WHERE is_judged GROUP BY operator HAVING sum(ms) > 0
    ORDER BY sum(greatest(ms - coalesce(usual_ms, 0), 0)) DESC, sum(ms) DESC, operator LIMIT 1
"""
"""On the walk to an operator: who used most of the time of windows, beyond the usual of the day before where known.

`before_source` is known of the sources of the slowest walks to leaves. Where a breach lasts, what is usual becomes as
bad, and who used most is named."""


def with_culprits(
    found: Iterable[Status], topology: Topology, layout: Layout, tables: Tables, *, at_ms: int
) -> Iterator[Status]:
    """The statuses *found* for *at_ms*, those of broken SLAs with a culprit where one is known, and what holds it up.

    Of a latency it is who used more than usual of the windows that were over their SLA, by `critical_path_blame`: an
    operator on the way to its subject, `waiting` or `before_source`; without such, the one of these that used most of
    all windows beyond what it had used in those of the day before, of equals the one that used most.
    Of anything else it is where `tidemark why` finds the hold-up, and of a watermark whatever holds it back. An SLA
    whose breach nobody can explain has none.
    """

    @lru_cache
    @_unexplained
    def blamed(subject: str, over_ms: int) -> str | None:
        who = [*_leading_to(subject, topology), "waiting", "before_source"]
        of = [topology.name, at_ms - over_ms, at_ms]
        rows = tables.ask(BLAME, [*of, who]).rows or tables.ask(USED_MOST, [*of, subject]).rows
        return rows[0][0] if rows else None

    @lru_cache
    @_unexplained
    def held_up(operator: str | None, *, is_late: bool) -> Finding | None:
        findings = why(topology, layout, at_ms=at_ms, operator=operator)
        causes = NO_EXPLANATION | SILENCE if is_late else NO_EXPLANATION
        return next((finding for finding in findings if finding.cause not in causes), None)

    @_unexplained
    def held_back(spec: SlaSpec) -> Finding | None:
        if spec.measure is not Measure.WATERMARK_LAG or not isinstance(spec.limits, Sla):
            return None
        needed_ms = at_ms - round(spec.limits.least_ms) + 1
        sub = sub_topology_of(spec, topology)
        return next(iter(what_holds_time_back(topology, layout, sub, at_ms=at_ms, needed_ms=needed_ms)), None)

    for status in found:
        if status.verdict not in BROKEN or status.spec.measure in WAITS_FOR_NOTHING:
            yield status
            continue
        is_late = status.spec.measure in LATENCIES
        finding = held_back(status.spec) or held_up(_operator(status.spec, topology), is_late=is_late)
        culprit = status.culprit
        if is_late and status.spec.measure is not Measure.OPERATOR_LATENCY_P50:
            culprit = blamed(status.spec.subject, status.spec.over_ms)
        if culprit is None and finding is not None:
            culprit = finding.input or finding.operator
        yield replace(status, culprit=culprit, held_by=finding.line if finding else None)


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


def _leading_to(operator: str, topology: Topology) -> set[str]:
    """*operator* and all from which its records come."""
    found = {operator}
    for upstream in topology.upstreams[operator]:
        found |= _leading_to(upstream, topology)
    return found


def _operator(spec: SlaSpec, topology: Topology) -> str | None:
    """The operator of whose results *spec* promises something; None: each terminal one."""
    if spec.subject in topology.operators:
        return spec.subject
    for sub in topology.sub_topologies:
        if sub.name == spec.subject:
            return sub.operators[-1].name
    sinks = (o.name for o in topology.operators.values() if isinstance(o, Sink) and o.table == spec.subject)
    return next(sinks, None)
