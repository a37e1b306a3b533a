"""From measured facts to the status of each SLA: its verdict, and who is to blame for a breach.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.semantics.buckets import quantile, value_of
from tidemark.semantics.idleness import Activity
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.semantics.sla import (
    AtLeast,
    Budget,
    BurnRate,
    Kept,
    Objective,
    Sla,
    Verdict,
    budget,
    is_ahead,
    judge,
    judge_burn,
    judge_contract,
    judge_count,
    judge_nothing,
    judge_staleness,
)
from tidemark.spec.operators import HopSource, Kind, Sink, Source
from tidemark.spec.sla_spec import ALL_TABLES, QUANTILES, Measure, Severity, SlaSpec
from tidemark.spec.topology import SubTopology, Topology

Rows = Sequence[Mapping[str, Any]]
MOST_TOLD, MOST_LETTERS = 3, 200
"""How many breaks of contracts are told in a sentence, and how much of the key of a row."""


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
    RECORDS = "records"
    """Of an operator: n records that came in."""
    CLOCK = "clock"
    """Of a host: n, the ms by which its clock may be wrong."""
    BEGUN = "begun"
    """Of a topology: at_ms, the start of its first driver, which may be later than the check's instant."""
    ADDED = "added"
    """Of an operator and bucket: n windows on which it worked that long."""


@dataclass(frozen=True)
class Status:
    """One SLA at one instant; `idle` says that its subject is excused, since its sources have nothing to send."""

    spec: SlaSpec
    verdict: Verdict
    observed_ms: float | None = None
    culprit: str | None = None
    held_by: str | None = None
    idle: bool = False
    records: int | None = None
    budget: Budget | None = None
    """Of the whole time of a burn rate."""
    age_ms: int | None = None
    """Of the oldest window that broke a promise of latency: how old it was when the subject had finished it."""
    breaks: str = ""
    """Of a contract: what breaks it, in words."""

    @property
    def is_measured(self) -> bool:
        """Whether there was anything to judge by."""
        return self.verdict not in {Verdict.NEVER_LOADED, Verdict.UNKNOWN}


def statuses(
    specs: Iterable[SlaSpec], topology: Topology, facts: Rows, accounts: Rows, contracts: Rows = (), *, at_ms: int
) -> list[Status]:
    """The status of each of *specs* at *at_ms*, by the rows of `facts`, and those of dq_results on *contracts*."""
    found = _Found(facts)
    return [_status(spec, topology, found, accounts, contracts, at_ms=at_ms) for spec in specs]


class _Found:
    """Facts by what they say, of whom and over how long."""

    def __init__(self, facts: Rows) -> None:
        self._facts: dict[tuple[str, int | None], dict[str, list[Mapping[str, Any]]]] = {}
        for fact in facts:
            by_subject = self._facts.setdefault((fact["what"], fact["over_ms"]), {})
            by_subject.setdefault(fact["subject"], []).append(fact)

    def at_ms(self, what: What, subject: str) -> int | None:
        """The newest instant of such facts; None when there is none."""
        return max((fact["at_ms"] for fact in self._of(what, subject) if fact["at_ms"] is not None), default=None)

    @property
    def clock_error_ms(self) -> int:
        """By how much any clock that is known may be wrong."""
        by_host = self._facts.get((What.CLOCK.value, None), {})
        return max(LEAST_CLOCK_ERROR_MS, *(int(fact["n"]) for facts in by_host.values() for fact in facts), 0)

    def ahead(self, now_ms: int) -> str | None:
        """The first subject, in their order, whose newest instant lies ahead of the clock; None: none does."""
        error_ms = self.clock_error_ms
        return next(
            (
                subject
                for what in (What.SOURCE, What.SUB_TOPOLOGY, What.NEWEST)
                for subject in sorted(self._facts.get((what.value, None), {}))
                if is_ahead(self.at_ms(what, subject), now_ms=now_ms, clock_error_ms=error_ms)
            ),
            None,
        )

    def is_idle(self, source: str) -> bool:
        """Whether *source* is known to have nothing to send."""
        return any(fact["idle"] for fact in self._of(What.SOURCE, source))

    def quantile_ms(self, what: What, operator: str, over_ms: int, q: float) -> float | None:
        """A quantile of what is counted in buckets; None when nothing is."""
        return quantile(((fact["bucket"], fact["n"]) for fact in self._of(what, operator, over_ms)), q)

    def records(self, operator: str, over_ms: int) -> int:
        """How many records came in at *operator*."""
        return sum(fact["n"] for fact in self._of(What.RECORDS, operator, over_ms))

    def budget(self, operator: str, over_ms: int, objective: Objective) -> Budget:
        """What became of the error budget; a record counts as over the threshold when the value of its bucket is."""
        latencies = self._of(What.LATENCY, operator, over_ms)
        n_over = sum(fact["n"] for fact in latencies if value_of(fact["bucket"]) > objective.threshold_ms)
        return budget(objective, n=sum(fact["n"] for fact in latencies), n_over=n_over)

    def _of(self, what: What, subject: str, over_ms: int | None = None) -> list[Mapping[str, Any]]:
        return self._facts.get((what.value, over_ms), {}).get(subject, [])


def _status(spec: SlaSpec, topology: Topology, found: _Found, accounts: Rows, contracts: Rows, *, at_ms: int) -> Status:
    match spec.limits:
        case Kept():
            return _contract(spec, contracts)
        case AtLeast():
            return _records(spec, spec.limits, topology, found)
        case BurnRate():
            return _burn_rate(spec, spec.limits, found)
        case Sla():
            return _length(spec, spec.limits, topology, found, accounts, at_ms=at_ms)


def _length(spec: SlaSpec, sla: Sla, topology: Topology, found: _Found, accounts: Rows, *, at_ms: int) -> Status:
    match spec.measure:
        case Measure.STALENESS | Measure.WATERMARK_LAG:
            idle = spec.ignore_when_idle and _is_idle(spec, topology, found)
            source = Activity.IDLE if idle else None
            judgement = judge_staleness(
                _newest_ms(spec, found),
                now_ms=at_ms,
                sla=sla,
                source=source,
                clock_error_ms=found.clock_error_ms,
                begun_ms=found.at_ms(What.BEGUN, topology.name),
            )
            return Status(spec, judgement.verdict, judgement.staleness_ms, idle=idle)
        case Measure.COMPLETENESS:
            if not accounts:
                begun_ms = found.at_ms(What.BEGUN, topology.name)
                return Status(spec, judge_nothing(now_ms=at_ms, sla=sla, begun_ms=begun_ms))
            if (ahead := found.ahead(at_ms)) is not None:
                return Status(spec, Verdict.AHEAD_OF_CLOCK, culprit=ahead)
            open_since_ms, operator = min(_not_closed(accounts), default=(at_ms, None))
            return Status(spec, judge(at_ms - open_since_ms, sla), at_ms - open_since_ms, operator)
        case Measure.OPERATOR_LATENCY_P50:
            added_ms = found.quantile_ms(What.ADDED, spec.subject, spec.over_ms, 0.5)
            verdict = judge(added_ms, sla)
            return Status(spec, verdict, added_ms, spec.subject if verdict in BROKEN else None)
        case _:
            latency_ms = found.quantile_ms(What.LATENCY, spec.subject, spec.over_ms, QUANTILES[spec.measure])
            return Status(spec, judge(latency_ms, sla), latency_ms)


def _contract(spec: SlaSpec, contracts: Rows) -> Status:
    """Whether the contract of a table, or of all, is kept: by what great-expectations says of each part of it.

    Columns that an older version's table lacks break nothing.
    """
    rows = [row for row in contracts if spec.subject in (ALL_TABLES, row["table"])]
    broken = [row for row in rows if not row["success"] and row["severity"] == Severity.CRITICAL]
    verdict = judge_contract(is_broken=bool(broken), is_judged=any(row["rows"] for row in rows))
    if not broken:
        return Status(spec, verdict)
    worst = broken[0]
    culprit = worst["culprit"] or worst["sub_topology"] or worst["table"]
    told = [f"{row['table']}: {row['column']} {row['observed']}, {_cut(row['example'])}" for row in broken[:MOST_TOLD]]
    if more := len(broken) - len(told):
        told.append(f"and {more} more")
    rows_n = sum(int(row["observed"]) for row in broken if row["rows"])
    return Status(spec, verdict, culprit=culprit, records=rows_n, breaks="; ".join(told))


def _cut(text: str | None) -> str:
    return text if text and len(text) <= MOST_LETTERS else f"{(text or '')[:MOST_LETTERS]}…"


def _records(spec: SlaSpec, at_least: AtLeast, topology: Topology, found: _Found) -> Status:
    """None at all are too few as well, unless its sources are idle and the SLA excuses that."""
    n = found.records(spec.subject, spec.over_ms)
    verdict = judge_count(n, at_least)
    idle = verdict in BROKEN and spec.ignore_when_idle and _is_idle(spec, topology, found)
    return Status(spec, Verdict.PASS if idle else verdict, idle=idle, records=n)


def _burn_rate(spec: SlaSpec, limits: BurnRate, found: _Found) -> Status:
    long, short = (found.budget(spec.subject, over_ms, limits.objective) for over_ms in (spec.over_ms, spec.short_ms))
    rates = [long.burn_rate, short.burn_rate]
    verdict = judge_burn(rates, warn_at=limits.warn_at, error_at=limits.error_at)
    return Status(spec, verdict, budget=long)


def _not_closed(accounts: Rows) -> Iterator[tuple[int, str]]:
    """Since when the accounts of which operators do not close."""
    for row in accounts:
        if row["open_since_ms"] is not None:
            yield row["open_since_ms"], row["operator"]


def _newest_ms(spec: SlaSpec, found: _Found) -> int | None:
    """The newest record time visible in a table, or the watermark of a source or sub-topology."""
    if spec.measure is Measure.STALENESS:
        return found.at_ms(What.NEWEST, spec.subject)
    return next(
        (at_ms for what in (What.SOURCE, What.SUB_TOPOLOGY) if (at_ms := found.at_ms(what, spec.subject)) is not None),
        None,
    )


def _is_idle(spec: SlaSpec, topology: Topology, found: _Found) -> bool:
    """Whether nothing is on its way to the subject of *spec*: every sub-topology that it depends on is at rest."""
    if spec.measure is Measure.STALENESS:
        return _is_written_no_more(spec.subject, topology, found)
    if isinstance(topology.operators.get(spec.subject), Source):
        return found.is_idle(spec.subject)
    return _is_at_rest(sub_topology_of(spec, topology), topology, found)


def sub_topology_of(spec: SlaSpec, topology: Topology) -> SubTopology:
    """The one that *spec* names, or that runs the operator that it names."""
    return next(s for s in topology.sub_topologies if spec.subject in {s.name, *(o.name for o in s.operators)})


def _is_written_no_more(table: str, topology: Topology, found: _Found) -> bool:
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
