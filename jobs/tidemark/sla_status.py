"""From measured facts to the status of each SLA: its verdict, and who is to blame for a breach.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.buckets import quantile
from tidemark.idleness import Activity
from tidemark.operators import Kind, Sink
from tidemark.sla import Verdict, judge, judge_staleness
from tidemark.sla_spec import Measure, SlaSpec
from tidemark.topology import Topology

Rows = Sequence[Mapping[str, Any]]
BROKEN = frozenset({Verdict.WARN, Verdict.ERROR})


class What(StrEnum):
    """What a fact says of its subject."""

    NEWEST = "newest"
    """Of a table: its newest record time."""
    IDLE = "idle"
    """Of a source: 1 when it has nothing to send, else 0."""
    LATENCY = "latency"
    """Of an operator and bucket: `n` records with that end-to-end latency."""
    OPERATOR_LATENCY = "operator_latency"
    """Of an operator: the median of what it added to a window."""
    CRITICAL = "critical"
    """Of an operator: the sum of what it added where it was on the critical path."""


@dataclass(frozen=True)
class Status:
    """One SLA at one instant; `idle` says that its subject is excused, since its sources have nothing to send."""

    spec: SlaSpec
    verdict: Verdict
    observed_ms: float | None
    culprit: str | None = None
    idle: bool = False


def statuses(specs: Iterable[SlaSpec], topology: Topology, facts: Rows, accounts: Rows, *, at_ms: int) -> list[Status]:
    """The status of each of *specs* at *at_ms*, by the rows of `sla_facts`."""
    found = _Found(facts)
    return [_status(spec, topology, found, accounts, at_ms=at_ms) for spec in specs]


class _Found:
    """Facts by what they say and of whom."""

    def __init__(self, facts: Rows) -> None:
        counts: dict[str, list[tuple[int, int]]] = {}
        for fact in facts:
            if fact["what"] == What.LATENCY:
                counts.setdefault(fact["subject"], []).append((fact["bucket"], fact["n"]))
        self.counts = counts
        self._values = {(fact["what"], fact["subject"]): fact["value"] for fact in facts}
        self.critical = {fact["subject"]: fact["value"] for fact in facts if fact["what"] == What.CRITICAL}

    def value(self, what: What, subject: str) -> float | None:
        """The value of a fact; None when it was not measured."""
        return self._values.get((what.value, subject))


def _status(spec: SlaSpec, topology: Topology, found: _Found, accounts: Rows, *, at_ms: int) -> Status:
    match spec.measure:
        case Measure.STALENESS:
            newest_ms = found.value(What.NEWEST, spec.subject)
            idle = spec.ignore_when_idle and _is_idle(spec.subject, topology, found)
            judgement = judge_staleness(
                None if newest_ms is None else int(newest_ms),
                now_ms=at_ms,
                sla=spec.limits,
                source=Activity.IDLE if idle else None,
            )
            return Status(spec, judgement.verdict, judgement.staleness_ms, idle=idle)
        case Measure.COMPLETENESS:
            if not accounts:
                return Status(spec, Verdict.NEVER_LOADED, None)
            open_ms = at_ms - min((row["open_since_ms"] or at_ms for row in accounts if row["open_batches"]), default=at_ms)
            return Status(spec, judge(open_ms, spec.limits), open_ms)
        case Measure.OPERATOR_LATENCY_P50:
            added_ms = found.value(What.OPERATOR_LATENCY, spec.subject)
            verdict = judge(added_ms, spec.limits)
            return Status(spec, verdict, added_ms, spec.subject if verdict in BROKEN else None)
        case _:
            latency_ms = quantile(found.counts.get(spec.subject, ()), spec.measure.quantile)
            verdict = judge(latency_ms, spec.limits)
            return Status(spec, verdict, latency_ms, _slowest(found.critical) if verdict in BROKEN else None)


def _slowest(critical_ms: Mapping[str, float]) -> str | None:
    """The operator that took most of the critical paths, the first by name of equals; None when there was no path."""
    return min(critical_ms, key=lambda name: (-critical_ms[name], name), default=None)


def _is_idle(table: str, topology: Topology, found: _Found) -> bool:
    """Whether every source has nothing to send that leads a sub-topology which writes *table*.

    The table side of a join does not lead: it never holds a watermark back.
    """
    sinks = {o.name for o in topology.operators.values() if isinstance(o, Sink) and o.table == table}
    writers = [sub for sub in topology.sub_topologies if not sinks or any(o.name in sinks for o in sub.operators)]
    leading = [o.name for sub in writers for o in sub.operators if o.kind is Kind.SOURCE and o.name not in sub.table_inputs()]
    return all(found.value(What.IDLE, name) == 1 for name in leading)
