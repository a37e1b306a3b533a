"""Who is to blame for an SLA that is broken, and what holds it up (ring 2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from tidemark.report.path_facts import Tables
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Sla
from tidemark.sla.status import Status, sub_topology_of
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Sink
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.spec.tables import CRITICAL_PATH_STEPS, CRITICAL_PATHS, SLA_RESULTS
from tidemark.spec.topology import Topology
from tidemark.why.findings import Cause, Finding
from tidemark.why.walk import what_holds_time_back, why

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NO_EXPLANATION = frozenset({Cause.NOTHING_WRONG, Cause.UNEXPLAINED})
LATENCIES = frozenset({*QUANTILES, Measure.BURN_RATE, Measure.OPERATOR_LATENCY_P50})
SILENCE = frozenset({Cause.SOURCE_EMPTY, Cause.SOURCE_QUIET, Cause.ALL_SUPPRESSED, Cause.ALL_FILTERED})
"""Why nothing more came, which says nothing of what came late."""
WAITS_FOR_NOTHING = frozenset({Measure.COMPLETENESS, Measure.CONTRACT})
"""What is measured of rows that are there, which say themselves who wrote them."""
READS = frozenset({CRITICAL_PATHS.name, CRITICAL_PATH_STEPS.name, SLA_RESULTS.name})
"""Tables that are asked."""
BLAME = """
    SELECT operator FROM critical_path_blame
    WHERE topology = $1 AND grain = 'window'
          AND finished_at >= make_timestamptz($2 * 1000) AND finished_at < make_timestamptz($3 * 1000)
          AND operator IN (SELECT unnest($4::VARCHAR[]))
    GROUP BY operator ORDER BY sum(excess_ms) DESC, operator LIMIT 1
"""


def with_culprits(
    found: Iterable[Status], topology: Topology, layout: Layout, tables: Tables, *, at_ms: int
) -> Iterator[Status]:
    """The statuses *found* for *at_ms*, those of broken SLAs with a culprit where one is known, and what holds it up.

    Of a latency it is who used more than usual of the windows that were over their SLA, by `critical_path_blame`: an
    operator on the way to its subject, `waiting` or `before_source`; without such, who took most of the critical paths.
    Of anything else it is where `tidemark why` finds the hold-up, and of a watermark whatever holds it back. An SLA
    whose breach nobody can explain has none.
    """

    @lru_cache
    @_unexplained
    def blamed(subject: str, over_ms: int) -> str | None:
        who = [*_leading_to(subject, topology), "waiting", "before_source"]
        rows = tables.ask(BLAME, [topology.name, at_ms - over_ms, at_ms, who]).rows
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
            culprit = blamed(status.spec.subject, status.spec.over_ms) or culprit
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
