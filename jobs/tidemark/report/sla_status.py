"""From measured facts to the status of each SLA: its verdict, and who is to blame for a breach.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.semantics.buckets import quantile
from tidemark.semantics.idleness import Activity
from tidemark.semantics.sla import Verdict, judge, judge_staleness
from tidemark.spec.operators import HopSource, Kind, Sink
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.spec.topology import SubTopology, Topology

Rows = Sequence[Mapping[str, Any]]
BROKEN = frozenset({Verdict.WARN, Verdict.ERROR})


class What(StrEnum):
    """What a fact says of its subject."""

    NEWEST = "newest"
    """Of a table: at_ms, its newest record time."""
    SOURCE = "source"
    """Of a source: at_ms, its watermark, and whether it is idle."""
    SUB_TOPOLOGY = "sub_topology"
    """Of a sub-topology: at_ms, its watermark."""
    LATENCY = "latency"
    """Of an operator and bucket: n records with that end-to-end latency."""
    ADDED = "added"
    """Of an operator and bucket: n windows to which it added that."""
    CRITICAL = "critical"
    """Of an operator: n ms that it added where it was on the critical path."""


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

    def at_ms(self, what: What, subject: str) -> int | None:
        """The instant of a fact; None when there is none."""
        return next((fact["at_ms"] for fact in self._of(what, subject)), None)

    def is_idle(self, source: str) -> bool:
        """Whether *source* is known to have nothing to send."""
        return any(fact["idle"] for fact in self._of(What.SOURCE, source))

    def quantile_ms(self, what: What, operator: str, over_ms: int, q: float) -> float | None:
        """A quantile of what is counted in buckets; None when nothing is."""
        return quantile(((fact["bucket"], fact["n"]) for fact in self._of(what, operator, over_ms)), q)

    def slowest(self, over_ms: int) -> str | None:
        """The operator that took most of the critical paths, of equals the first by name; None without a path."""
        critical = self._facts.get((What.CRITICAL.value, over_ms), {})
        return min(critical, key=lambda name: (-critical[name][0]["n"], name), default=None)

    def _of(self, what: What, subject: str, over_ms: int | None = None) -> list[Mapping[str, Any]]:
        return self._facts.get((what.value, over_ms), {}).get(subject, [])


def _status(spec: SlaSpec, topology: Topology, found: _Found, accounts: Rows, *, at_ms: int) -> Status:
    match spec.measure:
        case Measure.STALENESS:
            idle = spec.ignore_when_idle and _is_idle(spec.subject, topology, found)
            newest_ms = found.at_ms(What.NEWEST, spec.subject)
            source = Activity.IDLE if idle else None
            judgement = judge_staleness(newest_ms, now_ms=at_ms, sla=spec.limits, source=source)
            return Status(spec, judgement.verdict, judgement.staleness_ms, idle=idle)
        case Measure.COMPLETENESS:
            return _completeness(spec, accounts, at_ms=at_ms)
        case Measure.OPERATOR_LATENCY_P50:
            added_ms = found.quantile_ms(What.ADDED, spec.subject, spec.over_ms, 0.5)
            verdict = judge(added_ms, spec.limits)
            return Status(spec, verdict, added_ms, spec.subject if verdict in BROKEN else None)
        case _:
            latency_ms = found.quantile_ms(What.LATENCY, spec.subject, spec.over_ms, QUANTILES[spec.measure])
            verdict = judge(latency_ms, spec.limits)
            return Status(spec, verdict, latency_ms, found.slowest(spec.over_ms) if verdict in BROKEN else None)


def _completeness(spec: SlaSpec, accounts: Rows, *, at_ms: int) -> Status:
    if not accounts:
        return Status(spec, Verdict.NEVER_LOADED, None)
    since_ms = [row["open_since_ms"] for row in accounts if row["open_since_ms"] is not None]
    open_ms = at_ms - min(since_ms, default=at_ms)
    return Status(spec, judge(open_ms, spec.limits), open_ms)


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
            read_ms = found.at_ms(What.SOURCE, source.name)
            sent_ms = found.at_ms(What.SUB_TOPOLOGY, source.upstream)
            is_read = read_ms is not None and sent_ms is not None and read_ms >= sent_ms
            if not is_read or not _is_at_rest(topology.sub_topology(source.upstream), topology, found):
                return False
        elif not found.is_idle(source.name):
            return False
    return True
