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
from tidemark.operators import HopSource, Kind, Sink
from tidemark.sla import Verdict, judge, judge_staleness
from tidemark.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.topology import SubTopology, Topology

Rows = Sequence[Mapping[str, Any]]
BROKEN = frozenset({Verdict.WARN, Verdict.ERROR})


class What(StrEnum):
    """What a fact says of its subject."""

    NEWEST = "newest"
    """Of a table: its newest record time."""
    SOURCE = "source"
    """Of a source: its watermark, and `n` = 1 when it has nothing to send, else 0."""
    SUB_TOPOLOGY = "sub_topology"
    """Of a sub-topology: its watermark."""
    LATENCY = "latency"
    """Of an operator and bucket: `n` records with that end-to-end latency."""
    ADDED = "added"
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
    """Facts by what they say, of whom and over how long."""

    def __init__(self, facts: Rows) -> None:
        self._facts: dict[tuple[str, int | None], dict[str, list[Mapping[str, Any]]]] = {}
        for fact in facts:
            by_subject = self._facts.setdefault((fact["what"], fact["over_ms"]), {})
            by_subject.setdefault(fact["subject"], []).append(fact)

    def value(self, what: What, subject: str, over_ms: int | None = None) -> float | None:
        """The value of a fact; None when it was not measured."""
        return self.values(what, over_ms).get(subject)

    def values(self, what: What, over_ms: int | None) -> dict[str, float | None]:
        """The values of facts by subject."""
        return {subject: facts[0]["value"] for subject, facts in self._facts.get((what.value, over_ms), {}).items()}

    def counts(self, operator: str, over_ms: int) -> list[tuple[int, int]]:
        """Buckets and how many records of *operator* fell in each."""
        return [(fact["bucket"], fact["n"]) for fact in self._of(What.LATENCY, operator, over_ms)]

    def is_idle(self, source: str) -> bool:
        """Whether *source* is known to have nothing to send."""
        return any(fact["n"] == 1 for fact in self._of(What.SOURCE, source, None))

    def _of(self, what: What, subject: str, over_ms: int | None) -> list[Mapping[str, Any]]:
        return self._facts.get((what.value, over_ms), {}).get(subject, [])


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
            return _completeness(spec, accounts, at_ms=at_ms)
        case Measure.OPERATOR_LATENCY_P50:
            added_ms = found.value(What.ADDED, spec.subject, spec.over_ms)
            verdict = judge(added_ms, spec.limits)
            return Status(spec, verdict, added_ms, spec.subject if verdict in BROKEN else None)
        case _:
            latency_ms = quantile(found.counts(spec.subject, spec.over_ms), QUANTILES[spec.measure])
            verdict = judge(latency_ms, spec.limits)
            critical_ms = found.values(What.CRITICAL, spec.over_ms)
            return Status(spec, verdict, latency_ms, _slowest(critical_ms) if verdict in BROKEN else None)


def _completeness(spec: SlaSpec, accounts: Rows, *, at_ms: int) -> Status:
    if not accounts:
        return Status(spec, Verdict.NEVER_LOADED, None)
    since_ms = [row["open_since_ms"] for row in accounts if row["open_since_ms"] is not None]
    open_ms = at_ms - min(since_ms, default=at_ms)
    return Status(spec, judge(open_ms, spec.limits), open_ms)


def _slowest(critical_ms: Mapping[str, float | None]) -> str | None:
    """The operator that took most of the critical paths, the first by name of equals; None when there was no path."""
    return min(critical_ms, key=lambda name: (-(critical_ms[name] or 0), name), default=None)


def _is_idle(table: str, topology: Topology, found: _Found) -> bool:
    """Whether nothing is on its way to *table*: every sub-topology that writes it is at rest."""
    sinks = {o.name for o in topology.operators.values() if isinstance(o, Sink) and o.table == table}
    writers = (sub for sub in topology.sub_topologies if not sinks or any(o.name in sinks for o in sub.operators))
    return all(_is_at_rest(sub, topology, found) for sub in writers)


def _is_at_rest(sub: SubTopology, topology: Topology, found: _Found) -> bool:
    """Whether the sources that lead *sub* are idle; behind a hop: those before it, and the hop is read to its end.

    A source that only feeds the table side of joins does not lead: it never holds a watermark back either.
    """
    leading = [o for o in sub.operators if o.kind is Kind.SOURCE and o.name not in sub.table_inputs()]
    for source in leading:
        if isinstance(source, HopSource):
            read_ms = found.value(What.SOURCE, source.name)
            sent_ms = found.value(What.SUB_TOPOLOGY, source.upstream)
            is_read = read_ms is not None and sent_ms is not None and read_ms >= sent_ms
            if not is_read or not _is_at_rest(topology.sub_topology(source.upstream), topology, found):
                return False
        elif not found.is_idle(source.name):
            return False
    return True
