"""Derives the status of each SLA from measured facts.

A status has a verdict, and the culprit of a breach where facts name it.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, assert_never

from tidemark.facts.measures.fact_kinds import Fact, FactKind
from tidemark.facts.measures.groups import GroupsSeen
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.measures.contract import ALL_TABLES
from tidemark.model.measures.registry import Need
from tidemark.model.slas.sla_keys import ResultPlace, WhileCatchingUp
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import names_in, present
from tidemark.semantics.buckets import quantile, value_of
from tidemark.semantics.catching_up import HANGS_AFTER_MS
from tidemark.semantics.idleness import Activity
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.semantics.sla import (
    Budget,
    BurnRate,
    ChangeMaximums,
    ContractRule,
    Deadline,
    RecordMinimums,
    Severity,
    ShareMaximums,
    Sla,
    Verdict,
    budget,
    crossed_ms,
    is_ahead,
    judge,
    judge_burn,
    judge_changes,
    judge_complete_by,
    judge_contract,
    judge_count,
    judge_nothing,
    judge_quantile,
    judge_share,
    judge_staleness,
    never_loaded_since_ms,
)

Rows = Sequence[Mapping[str, Any]]
MOST_SHOWN, LONGEST_KEY = 3, 200
"""Most broken contracts in a sentence, and characters of a row's key."""
COUNTED_EARLY = "or up to a tenth less, since Spark counted them before their batch ended"
"""What is said of the slow records of an observed query."""


@dataclass(frozen=True)
class WindowBudget:
    """State of the error budget of an objective over its whole window.

    `remaining` is the unused share of the budget, or None if there are too few records.
    """

    records: int
    slow: int
    remaining: float | None


@dataclass(frozen=True)
class Status:
    """The state of an SLA at an instant.

    `idle` is true if its subject is excused because its sources have nothing to send.
    """

    spec: SlaSpec
    verdict: Verdict
    observed_ms: float | None = None
    culprit: str | None = None
    blocked_by: str | None = None
    idle: bool = False
    groups: GroupsSeen | None = None
    """The groups of an SLA with `by`."""
    is_catching_up: bool = False
    """True if its subject is excused because its streams catch up."""
    is_starting: bool = False
    """True if it is unknown because the reader of a hop starts."""
    records: int | None = None
    judged_since_ms: int | None = None
    """The instant from which on the measurement counts, epoch ms; None if all of it counts.

    Before this instant the SLA was in a maintenance window, outside its calendar or in an exempt day. For a number of
    records this may also be the instant at which the topology began.
    """
    part: int | None = None
    """For an SLA on a share: how many of `records` were quarantined, or were late."""
    budget: Budget | None = None
    """Error budget of a burn rate, over its long interval."""
    window_budget: WindowBudget | None = None
    """Error budget of an objective."""
    crossed_ms: int | None = None
    """When the measurement crossed the limit that it breaks, epoch ms.

    None if it breaks no limit, if it is no age and has no deadline, or if that is not known.
    """
    breaks: str = ""
    """Describes what breaks a contract."""
    value_text: str = ""
    """The measurement of a watched table, of which there may be bounds alone."""
    note: str = ""
    """What a reader of the measurement should know."""

    @property
    def share(self) -> float | None:
        """The measured share; None if no share is measured, or there are no records."""
        return self.part / self.records if self.part is not None and self.records else None

    @property
    def is_excused(self) -> bool:
        """True if a length beyond a limit does not break it: it passes all the same, or is not judged."""
        return self.idle or self.is_catching_up or self.verdict is Verdict.UNKNOWN

    @property
    def is_measured(self) -> bool:
        """True if there was anything to judge by."""
        return self.verdict not in {Verdict.NEVER_LOADED, Verdict.UNKNOWN}


def statuses(
    specs: Iterable[SlaSpec],
    topology: Topology,
    facts: Iterable[Fact],
    accounts: Rows,
    contracts: Rows = (),
    *,
    at_ms: int,
    measured_ms: int | None = None,
    groups: Mapping[str, GroupsSeen] = MappingProxyType({}),
) -> list[Status]:
    """Returns the status of each of *specs*, in order.

    Args:
        specs: the SLAs to judge.
        topology: the topology that promises them.
        facts: the measurements, as `sla_facts.facts` returns them.
        accounts: rows of `sla_facts.accounts`.
        contracts: rows of `expectation_results` about contracts.
        at_ms: the instant of the check, epoch ms.
        measured_ms: the instant for which the facts were measured, epoch ms; None if that is *at_ms*.
        groups: by name of an SLA with `by`, the groups of rows for which it is judged separately.
    """
    by_subject = _SlaFacts(facts, groups, measured_ms=at_ms if measured_ms is None else measured_ms)
    measured = [_status(spec, topology, by_subject, accounts, contracts, at_ms=at_ms) for spec in specs]
    return [_excused(status, topology, by_subject, at_ms=at_ms) for status in measured]


class _SlaFacts:
    """Looks up facts by kind, subject and length of their interval."""

    def __init__(self, facts: Iterable[Fact], groups: Mapping[str, GroupsSeen], *, measured_ms: int) -> None:
        self.groups, self.measured_ms = groups, measured_ms
        self._facts: dict[tuple[str, int | None], dict[str, list[Fact]]] = {}
        for fact in facts:
            by_subject = self._facts.setdefault((fact.what, fact.over_ms), {})
            by_subject.setdefault(fact.subject, []).append(fact)

    def at_ms(self, what: str, subject: str) -> int | None:
        """Returns the newest instant of facts about *subject*, epoch ms, or None without a fact."""
        return max((fact.at_ms for fact in self._of(what, subject) if fact.at_ms is not None), default=None)

    @property
    def clock_error_ms(self) -> int:
        """The greatest error that a clock may have, in ms."""
        by_host = self._facts.get((FactKind.CLOCK, None), {})
        facts = chain.from_iterable(by_host.values())
        return max(LEAST_CLOCK_ERROR_MS, *(fact.n for fact in facts), 0)

    def ahead(self, now_ms: int) -> str | None:
        """Returns the first subject whose newest instant is ahead of *now_ms* by more than the clock's error, or None.

        Sources come first, then sub-topologies and tables, each by name.
        """
        error_ms = self.clock_error_ms
        for what in (FactKind.SOURCE, FactKind.SUB_TOPOLOGY, FactKind.NEWEST):
            for subject in sorted(self._facts.get((what, None), {})):
                if is_ahead(self.at_ms(what, subject), now_ms=now_ms, clock_error_ms=error_ms):
                    return subject
        return None

    def is_idle(self, source: str) -> bool:
        """Returns True if *source* has nothing to send, according to a fact."""
        return any(fact.idle for fact in self._of(FactKind.SOURCE, source))

    def is_starting(self, hop: HopSource, topology: Topology, *, at_ms: int) -> bool:
        """Returns True if the stream that reads *hop* cannot have read it yet.

        That is so while its driver starts, and if it never read and the first driver of *topology* started lately.
        """
        begun_ms = self.at_ms(FactKind.BEGUN, topology.name)
        is_new = self.at_ms(FactKind.SOURCE, hop.name) is None and begun_ms is not None
        is_new = is_new and at_ms - (begun_ms or 0) <= HANGS_AFTER_MS
        return is_new or bool(self._of(FactKind.STARTING, topology.sub_topology_of(hop.name).name))

    def is_catching_up(self, subs: Iterable[SubTopology]) -> bool:
        """Returns True if one of *subs* catches up."""
        return any(self._of(FactKind.CATCHING_UP, sub.name) for sub in subs)

    def quantile_ms(self, what: str, operator: str, over_ms: int, q: float) -> float | None:
        """Returns the quantile *q* of the latencies that facts count, in ms, or None if nothing was counted."""
        return quantile(((fact.bucket, fact.n) for fact in self._of(what, operator, over_ms)), q)

    def count(self, what: str, subject: str, over_ms: int) -> int:
        """Returns the number that facts give: of records, or of changes of fields."""
        return sum(fact.n for fact in self._of(what, subject, over_ms))

    def is_known(self, what: str, subject: str) -> bool:
        """Returns True if there is such a fact about *subject*."""
        return bool(self._of(what, subject))

    def slow_records(self, what: str, operator: str, over_ms: int, threshold_ms: int) -> tuple[int, int]:
        """Returns the numbers of records, and of those over the threshold.

        A record is over the threshold if the value of its bucket is. The records of an observed query of a job were
        counted for this threshold.
        """
        latencies = self._of(what, operator, over_ms)
        slow = sum(fact.n for fact in latencies if value_of(fact.bucket) > threshold_ms)
        of_limits = self._of(FactKind.OVER_LIMIT, operator, over_ms)
        observed = [fact for fact in of_limits if fact.limit_ms == threshold_ms]
        n = sum(fact.n for fact in (*latencies, *observed))
        return n, slow + sum(fact.slow for fact in observed)

    def has_limits(self, operator: str, over_ms: int) -> bool:
        """Returns True if Spark counted the slow records of *operator* by limits."""
        return bool(self._of(FactKind.OVER_LIMIT, operator, over_ms))

    def completions(self, operator: str) -> list[tuple[int, int]]:
        """Returns the end of complete intervals, and since when, epoch ms."""
        complete = self._of(FactKind.COMPLETE, operator)
        return [(fact.at_ms, fact.n) for fact in complete if fact.at_ms is not None]

    def _of(self, what: str, subject: str, over_ms: int | None = None) -> list[Fact]:
        return self._facts.get((what, over_ms), {}).get(subject, [])


def _excused(status: Status, topology: Topology, facts: _SlaFacts, *, at_ms: int) -> Status:
    """Returns *status*, excused if it may be late for now."""
    spec = status.spec
    if status.verdict not in {Verdict.WARN, Verdict.ERROR}:
        return status
    may_catch_up = spec.while_catching_up is WhileCatchingUp.EXCUSE
    if may_catch_up and facts.is_catching_up(_with_upstreams(_written_by(spec, topology), topology)):
        return replace(status, verdict=Verdict.PASS, is_catching_up=True, crossed_ms=None)
    may_be_idle = spec.ignore_when_idle and spec.measure.passes_when_idle
    if may_be_idle and _is_idle(spec, topology, facts, starting_at_ms=at_ms):
        # Whether anything is on its way through the hop is known after the first batch of its reader.
        return replace(status, verdict=Verdict.UNKNOWN, is_starting=True, crossed_ms=None)
    return status


def _status(
    spec: SlaSpec, topology: Topology, facts: _SlaFacts, accounts: Rows, contracts: Rows, *, at_ms: int
) -> Status:
    match spec.limits:
        case ContractRule():
            return _contract(spec, contracts)
        case RecordMinimums():
            return _records(spec, spec.limits, topology, facts, at_ms=at_ms)
        case BurnRate():
            return _burn_rate(spec, spec.limits, facts)
        case ChangeMaximums():
            return _changes(spec, spec.limits, facts)
        case ShareMaximums():
            return _share(spec, spec.limits, facts)
        case Deadline():
            return _complete_by(spec, spec.limits, topology, facts, at_ms=at_ms)
        case Sla():
            return _length(spec, spec.limits, topology, facts, accounts, at_ms=at_ms)


def _length(spec: SlaSpec, sla: Sla, topology: Topology, facts: _SlaFacts, accounts: Rows, *, at_ms: int) -> Status:
    """Judges a length of time: a quantile of latencies, the age of open accounts, or the age of a result."""
    if spec.measure.quantile is not None:
        return _quantile(spec, sla, spec.measure.quantile, facts)
    if Need.ACCOUNTS in spec.measure.needs:
        return _accounts(spec, sla, topology, facts, accounts, at_ms=at_ms)
    return _age(spec, sla, topology, facts, at_ms=at_ms)


def _quantile(spec: SlaSpec, sla: Sla, q: float, facts: _SlaFacts) -> Status:
    (count,) = spec.measure.counts
    what = FactKind.LATENCY_MERGED if spec.place is ResultPlace.TABLE else count.what
    over_ms, since_ms = _counted(spec, facts)
    length_ms = facts.quantile_ms(what, spec.subject, over_ms, q)
    if not spec.measure.is_latency:
        verdict = judge(length_ms, sla)
        culprit = spec.subject if verdict in BROKEN else None
        return Status(spec, verdict, length_ms, culprit, judged_since_ms=since_ms)
    n = facts.count(what, spec.subject, over_ms)
    return Status(spec, judge_quantile(length_ms, sla, n=n), length_ms, records=n, judged_since_ms=since_ms)


def _counted(spec: SlaSpec, facts: _SlaFacts) -> tuple[int, int | None]:
    """Returns the length over which *facts* count for *spec*, and since when, if exempt days ended in that time."""
    return spec.counted_ms(facts.measured_ms)[0], spec.counted_since_ms(facts.measured_ms)


def _accounts(spec: SlaSpec, sla: Sla, topology: Topology, facts: _SlaFacts, accounts: Rows, *, at_ms: int) -> Status:
    """Judges how long outcomes have not added up."""
    if not accounts:
        begun_ms = facts.at_ms(FactKind.BEGUN, topology.name)
        # Its limit is the time of a lost record. The first batch may take as long as any until it hangs.
        return _nothing(spec, at_ms, begun_ms, within_ms=max(sla.promised_ms, HANGS_AFTER_MS))
    if (ahead := facts.ahead(at_ms)) is not None:
        return Status(spec, Verdict.AHEAD_OF_CLOCK, culprit=ahead)
    # Closed accounts are 0 ms old, and have no culprit.
    open_since_ms, operator = min(_open_accounts(accounts), default=(at_ms, None))
    judged_since_ms = spec.judged_since_ms(at_ms, after_ms=open_since_ms)
    age_ms = at_ms - max(present((open_since_ms, judged_since_ms)))
    crossed = crossed_ms(age_ms, sla, now_ms=at_ms)
    verdict = judge(age_ms, sla)
    return Status(spec, verdict, age_ms, operator, judged_since_ms=judged_since_ms, crossed_ms=crossed)


def _age(spec: SlaSpec, sla: Sla, topology: Topology, facts: _SlaFacts, *, at_ms: int) -> Status:
    """Judges the age of the newest record, or of a watermark."""
    idle = spec.ignore_when_idle and _is_idle(spec, topology, facts)
    newest_ms = _newest_ms(spec, facts)
    judged_since_ms = spec.judged_since_ms(at_ms, after_ms=0 if newest_ms is None else newest_ms)
    judgement = judge_staleness(
        newest_ms,
        now_ms=at_ms,
        sla=sla,
        source=Activity.IDLE if idle else None,
        clock_error_ms=facts.clock_error_ms,
        begun_ms=facts.at_ms(FactKind.BEGUN, topology.name),
        judged_since_ms=judged_since_ms,
    )
    groups = facts.groups.get(spec.name)
    culprit = groups.oldest[0][0] if groups and groups.oldest and judgement.verdict in BROKEN else None
    return Status(
        spec,
        judgement.verdict,
        judgement.staleness_ms,
        culprit,
        idle=idle,
        groups=groups,
        judged_since_ms=judged_since_ms,
        crossed_ms=judgement.crossed_ms,
    )


def _complete_by(spec: SlaSpec, deadline: Deadline, topology: Topology, facts: _SlaFacts, *, at_ms: int) -> Status:
    """Judges the intervals of a table."""
    intervals = topology.operators[spec.subject].complete
    assert intervals is not None
    judged = judge_complete_by(
        facts.completions(spec.subject),
        deadline,
        intervals.end_of,
        now_ms=at_ms,
        over_ms=spec.over_ms,
        clock_error_ms=facts.clock_error_ms,
        excused_since=partial(spec.excused_since_ms, at_ms=at_ms),
    )
    if judged.verdict is Verdict.UNKNOWN:
        begun_ms = facts.at_ms(FactKind.BEGUN, topology.name)
        # The first interval of a new topology ends after its length, and then has its deadline.
        first_ms = None if begun_ms is None else intervals.end_of(intervals.end_of(intervals.start_of(begun_ms)))
        within_ms = 0 if first_ms is None or begun_ms is None else deadline.at_ms(first_ms) - begun_ms
        return _nothing(spec, at_ms, begun_ms, within_ms=within_ms)
    idle = judged.is_open and spec.ignore_when_idle and _is_idle(spec, topology, facts)
    if idle:
        return Status(spec, Verdict.PASS, judged.observed_ms, idle=True)
    due_ms = None if judged.end_ms is None else deadline.at_ms(judged.end_ms)
    return Status(
        spec,
        judged.verdict,
        judged.observed_ms,
        judged_since_ms=None if due_ms is None else spec.excused_since_ms(due_ms, at_ms),
        crossed_ms=judged.crossed_ms,
    )


def _nothing(spec: SlaSpec, at_ms: int, begun_ms: int | None, *, within_ms: int) -> Status:
    """Returns the status of an SLA for which nothing was ever measured."""
    return Status(
        spec,
        judge_nothing(now_ms=at_ms, begun_ms=begun_ms, within_ms=within_ms),
        crossed_ms=never_loaded_since_ms(now_ms=at_ms, begun_ms=begun_ms, within_ms=within_ms),
    )


def _contract(spec: SlaSpec, contracts: Rows) -> Status:
    """Judges the contract of a table, or of all tables.

    *contracts* are verdicts of great-expectations on its parts.
    """
    broken = []
    is_judged = False
    for row in contracts:
        if spec.subject in (ALL_TABLES, row["table"]):
            is_judged = is_judged or bool(row["rows"])
            if not row["success"] and row["severity"] == Severity.CRITICAL:
                broken.append(row)
    verdict = judge_contract(is_broken=bool(broken), is_judged=is_judged)
    if not broken:
        return Status(spec, verdict)
    # Rows come in the order of the check: schemas before counts.
    worst = broken[0]
    culprit = worst["culprit"] or worst["sub_topology"] or worst["table"]
    breaks = [
        f"{row['table']}: {row['column']} {row['observed']}, {_cut(row['example'])}" for row in broken[:MOST_SHOWN]
    ]
    if more := len(broken) - len(breaks):
        breaks.append(f"and {more} more")
    # What a check of a schema observed is no number of rows.
    rows_n = sum(int(row["observed"]) for row in broken if row["rows"])
    return Status(spec, verdict, culprit=culprit, records=rows_n, breaks="; ".join(breaks))


def _cut(text: str | None) -> str:
    return text if text and len(text) <= LONGEST_KEY else f"{(text or '')[:LONGEST_KEY]}…"


def _records(spec: SlaSpec, at_least: RecordMinimums, topology: Topology, facts: _SlaFacts, *, at_ms: int) -> Status:
    """Judges the number of records.

    No records are too few as well, unless the sources are idle and the SLA excuses that. Too few are UNKNOWN while the
    topology, or the time in which it is judged, began less than `over` ago.
    """
    (count,) = spec.measure.counts
    n = facts.count(count.what, spec.subject, spec.over_ms)
    verdict = judge_count(n, at_least)
    start_ms = at_ms - spec.over_ms
    since_ms = spec.judged_since_ms(at_ms, after_ms=start_ms)
    begun_ms = facts.at_ms(FactKind.BEGUN, topology.name)
    if verdict in BROKEN and (since_ms is not None or (begun_ms is not None and begun_ms > start_ms)):
        return Status(spec, Verdict.UNKNOWN, records=n, judged_since_ms=max(present((since_ms, begun_ms))))
    idle = verdict in BROKEN and spec.ignore_when_idle and _is_idle(spec, topology, facts)
    return Status(spec, Verdict.PASS if idle else verdict, idle=idle, records=n)


def _changes(spec: SlaSpec, at_most: ChangeMaximums, facts: _SlaFacts) -> Status:
    """Judges changes, of fields for example. Those of a source are UNKNOWN before its first batch."""
    if Need.WATERMARKS in spec.measure.needs and not facts.is_known(FactKind.SOURCE, spec.subject):
        return Status(spec, Verdict.UNKNOWN)
    (count,) = spec.measure.counts
    over_ms, since_ms = _counted(spec, facts)
    n = facts.count(count.what, spec.subject, over_ms)
    verdict = judge_changes(n, at_most)
    culprit = spec.subject if verdict in BROKEN else None
    return Status(spec, verdict, culprit=culprit, records=n, judged_since_ms=since_ms)


def _share(spec: SlaSpec, at_most: ShareMaximums, facts: _SlaFacts) -> Status:
    """Judges the share of records with an outcome, late ones for example; UNKNOWN with too few records."""
    whole, of_outcome = spec.measure.counts
    over_ms, since_ms = _counted(spec, facts)
    n = facts.count(whole.what, spec.subject, over_ms)
    part = facts.count(of_outcome.what, spec.subject, over_ms)
    verdict = judge_share(part, n, at_most)
    culprit = spec.subject if verdict in BROKEN else None
    return Status(spec, verdict, culprit=culprit, records=n, part=part, judged_since_ms=since_ms)


def _burn_rate(spec: SlaSpec, limits: BurnRate, facts: _SlaFacts) -> Status:
    what = FactKind.OBJECTIVE if spec.compliance else spec.measure.counts[0].what

    def slow_records(over_ms: int) -> tuple[int, int]:
        return facts.slow_records(what, spec.subject, over_ms, limits.objective.threshold_ms)

    status = burning(spec, limits, slow_records, counted_ms=spec.counted_ms(facts.measured_ms))
    note = COUNTED_EARLY if facts.has_limits(spec.subject, spec.counted_ms(facts.measured_ms)[0]) else ""
    return replace(status, judged_since_ms=spec.counted_since_ms(facts.measured_ms), note=note)


def burning(
    spec: SlaSpec, limits: BurnRate, slow_records: Callable[[int], tuple[int, int]], *, counted_ms: Sequence[int]
) -> Status:
    """Judges how fast slow records use up an error budget.

    Args:
        spec: the SLA.
        limits: its limits.
        slow_records: returns the numbers of records in the last so many ms, and of those over the threshold.
        counted_ms: the lengths of the long and the short interval, in ms.
    """
    over_ms, short_ms = counted_ms
    n, slow = slow_records(over_ms)
    n_short, slow_short = slow_records(short_ms)
    long = budget(limits.objective, n=n, n_over=slow)
    rates = [long.burn_rate, budget(limits.objective, n=n_short, n_over=slow_short).burn_rate]
    # A late record in a quiet time would be a high rate.
    is_enough = n >= limits.min_records
    verdict = judge_burn(rates, warn_at=limits.warn_at, error_at=limits.error_at) if is_enough else Verdict.UNKNOWN
    whole = None
    if spec.compliance:
        records, slow = slow_records(spec.compliance.window_ms)
        is_known = records >= limits.min_records
        remaining = budget(limits.objective, n=records, n_over=slow).remaining if is_known else None
        whole = WindowBudget(records, slow, remaining)
    return Status(spec, verdict, budget=long, records=n, window_budget=whole)


def _open_accounts(accounts: Rows) -> Iterator[tuple[int, str]]:
    """Yields open accounts: since when, epoch ms, and the operator."""
    for row in accounts:
        if row["open_since_ms"] is not None:
            yield row["open_since_ms"], row["operator"]


def _newest_ms(spec: SlaSpec, facts: _SlaFacts) -> int | None:
    """Returns the record time that a length is measured from, epoch ms.

    It is the newest one visible in a table, or the watermark of a source or sub-topology.
    """
    if spec.by:
        return facts.groups[spec.name].oldest_ms
    if Need.NEWEST in spec.measure.needs:
        return facts.at_ms(FactKind.NEWEST_MERGED if spec.place is ResultPlace.TABLE else FactKind.NEWEST, spec.subject)
    source_ms = facts.at_ms(FactKind.SOURCE, spec.subject)
    return facts.at_ms(FactKind.SUB_TOPOLOGY, spec.subject) if source_ms is None else source_ms


def _is_idle(spec: SlaSpec, topology: Topology, facts: _SlaFacts, *, starting_at_ms: int | None = None) -> bool:
    """Returns True if no record is on its way to the subject.

    Then every sub-topology that the subject of *spec* depends on is at rest. Hops whose readers start at
    *starting_at_ms*, epoch ms, are left out; None: none is.
    """
    if Need.NEWEST in spec.measure.needs and not spec.by:
        return all(_is_at_rest(sub, topology, facts, starting_at_ms) for sub in _written_by(spec, topology))
    operator = topology.operators.get(spec.subject)
    if operator is not None and operator.reads_outside:
        return facts.is_idle(spec.subject)
    return _is_at_rest(sub_topology_of(spec, topology), topology, facts, starting_at_ms)


def sub_topology_of(spec: SlaSpec, topology: Topology) -> SubTopology:
    """Returns the sub-topology that *spec* names, or that runs its operator."""
    return next(s for s in topology.sub_topologies if spec.subject in {s.name, *names_in(s.operators)})


def _written_by(spec: SlaSpec, topology: Topology) -> list[SubTopology]:
    """Returns the sub-topologies that give the results of *spec*'s subject.

    All of them write a table that no sink has.
    """
    if Need.NEWEST not in spec.measure.needs or spec.by:
        return [sub_topology_of(spec, topology)]
    sinks = {o.name for o in topology.operators.values() if o.result_table == spec.subject}
    return [sub for sub in topology.sub_topologies if not sinks or not sinks.isdisjoint(names_in(sub.operators))]


def _with_upstreams(subs: Iterable[SubTopology], topology: Topology) -> Iterator[SubTopology]:
    """Yields *subs* and the sub-topologies before their hops."""
    for sub in subs:
        yield sub
        yield from _with_upstreams((topology.sub_topology(hop.upstream) for hop in sub.hops_read), topology)


def _is_at_rest(sub: SubTopology, topology: Topology, facts: _SlaFacts, starting_at_ms: int | None) -> bool:
    """Returns True if the sources that lead *sub* are idle.

    Downstream of a hop they are the sources before it, and the hop must be read to its end.
    """
    # A source that only feeds the table side of joins does not lead: it never holds a watermark back either.
    leading = [o for o in sub.sources if o.name not in sub.table_inputs()]
    return all(_gives_nothing(source, topology, facts, starting_at_ms) for source in leading)


def _gives_nothing(source: Reading, topology: Topology, facts: _SlaFacts, starting_at_ms: int | None) -> bool:
    """Returns True if no record is on its way through *source*.

    A hop is read to its end, and what writes it is at rest. If its reader starts at *starting_at_ms*, only the latter
    counts.
    """
    match source:
        case Source():
            return facts.is_idle(source.name)
        case HopSource():
            read_ms = facts.at_ms(FactKind.SOURCE, source.name)
            sent_ms = facts.at_ms(FactKind.SUB_TOPOLOGY, source.upstream)
            # A reader's watermark of a hop follows that of the writer, and equals it at the end of the hop.
            is_read = read_ms is not None and sent_ms is not None and read_ms >= sent_ms
            is_read = is_read or (
                starting_at_ms is not None and facts.is_starting(source, topology, at_ms=starting_at_ms)
            )
            return is_read and _is_at_rest(topology.sub_topology(source.upstream), topology, facts, starting_at_ms)
        case _:
            assert_never(source)
