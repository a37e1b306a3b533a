"""Explains promises about numbers of records: which shares of them did not come through, and whose these are.

It explains a number of records, a share of late or quarantined ones, and the staleness of a table for which nothing is
on its way. Of the records that usually come in such a time, some were not produced and some are unread, and what was
read became something else than a result (`account.outcomes`). A share is named from a tenth of all that is beyond what
is usual.

Each operator counts what it read: behind a repartition that sends a record on twice, one record is two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import polars as pl

from tidemark.account.counts import Counts, Span, finished_ms_of, first_finished_ms, newest_result
from tidemark.account.explanation import Became, Explanation, Leaf, Verdict
from tidemark.account.moves import can_move
from tidemark.account.outcomes import Loss, OutcomesOf, place_of
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.capacity import CAPACITY
from tidemark.account.owners.max_records import MAX_RECORDS
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.owners.topic import TOPIC
from tidemark.account.usual_numbers import is_usual, numbers_before, usual_number
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.liveness import drivers_of
from tidemark.facts.topology_tables import tables_of
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.sla_spec import SHARES, Measure, SlaSpec
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.liveness import Liveness
from tidemark.semantics.sla import RecordMinimums, ShareMaximums, judge_count, judge_share
from tidemark.semantics.sla import Verdict as Judged

NAMED_FROM = 0.1
"""Leaves have at least this share of the whole excess."""
USUAL_TIMES = 1.5
"""A promise is broken as usual up to so many times the usual share."""
BROKEN = frozenset({Judged.WARN, Judged.ERROR})
GONE = frozenset(
    {
        Liveness.FAILED, Liveness.DEAD, Liveness.NEVER_STARTED, Liveness.STARTING, Liveness.ROTATED,
        Liveness.DRAINED, Liveness.FINISHED,
    }
)  # fmt: skip
"""What becomes of a stream without a driver that looks for records."""


def shares_of_records(topology: Topology, layout: Layout, spec: SlaSpec, *, at_ms: int) -> Explanation:
    """Returns why the promise *spec*, a number or a share of records or a staleness, is broken at *at_ms* (epoch ms).

    Of a staleness nothing may be on its way to the table: its newest row is that of the newest batch that gave it one,
    and what was read since then gave none.
    """
    if spec.measure in SHARES:
        return _of_share(topology, layout, spec, at_ms)
    if spec.measure is Measure.RECORDS:
        return _of_number(topology, layout, spec, at_ms)
    return _of_staleness(topology, layout, spec, at_ms)


def described(leaf: Leaf) -> str:
    """Returns which records *leaf* is about.

    >>> phone = {"records": 36, "became": Became.LATE, "partition": "orders/0", "key": "phone", "largest_ms": 208_200}
    >>> described(Leaf(owner="key", detail="phone", **phone))
    '36 records of `orders` partition 0, key `phone`, up to 208 s old'
    >>> refused = {"became": Became.QUARANTINED, "partition": "orders/1", "reason": "wrong_type amount"}
    >>> described(Leaf(owner="producer", detail="orders/1", records=1, **refused))
    '1 record of `orders` partition 1, quarantined: wrong_type amount'
    >>> described(Leaf(owner="topic", detail="orders", became=Became.NOT_PRODUCED))
    'the records of `orders`, not produced'
    """
    number = "the records" if leaf.records is None else f"{leaf.records:,} record{'s' * (leaf.records != 1)}"
    source, _, partition = (leaf.partition or leaf.detail).partition("/")
    parts = [f"{number} of `{source}`" + (f" partition {partition}" if leaf.partition and partition else "")]
    parts += [f"key `{leaf.key}`"] if leaf.key is not None else []
    parts += [f"up to {leaf.largest_ms // 1_000:,} s old"] if leaf.largest_ms is not None else []
    parts += [leaf.became] if leaf.became and leaf.largest_ms is None else []
    return ", ".join(parts) + (f": {leaf.reason}" if leaf.reason else "")


def _of_share(topology: Topology, layout: Layout, spec: SlaSpec, at_ms: int) -> Explanation:
    assert isinstance(spec.limits, ShareMaximums)
    span, outcome = _judged(spec, at_ms), SHARES[spec.measure]
    counts = Counts(topology, layout, since_ms=span.since_ms, at_ms=span.until_ms)
    outcomes = OutcomesOf(topology, counts, topology.operators[spec.subject], span)
    n, broken, usual = outcomes.now["records_in"], outcomes.now[outcome], outcomes.usual_share(outcome)
    found = Explanation(
        verdict=Verdict.KEPT, broken=broken, results=n, usual_share=usual, has_history=usual is not None
    )
    if judge_share(broken, n, spec.limits) not in BROKEN:
        return found
    if usual is not None and is_usual(broken / n, usual, n, times=USUAL_TIMES):
        return replace(found, verdict=Verdict.AS_USUAL)
    return _explained(found, outcomes.late() if spec.measure is Measure.LATE_SHARE else outcomes.quarantined(), spec)


def _of_number(topology: Topology, layout: Layout, spec: SlaSpec, at_ms: int) -> Explanation:
    limits, span = spec.limits, _judged(spec, at_ms)
    assert isinstance(limits, RecordMinimums)
    lost = _Lost(topology, layout, dict.fromkeys(_streams(topology), span), at_ms)
    rows = lost.counts.outcomes.filter(pl.col("operator") == spec.subject)
    n = int(rows.filter(span.holds())["records_in"].sum())
    before = numbers_before(rows["finished_ms"].to_numpy(), rows["records_in"].to_numpy(), span)
    usual = sum(judge_count(int(each), limits) in BROKEN for each in before) / len(before) if len(before) else None
    missing = max(0, round(float(np.median(before))) - n) if len(before) else 0
    found = Explanation(
        verdict=Verdict.KEPT, broken=missing, results=n, usual_share=usual, has_history=usual is not None
    )
    if judge_count(n, limits) not in BROKEN:
        return found
    # The number that is judged is one result, and broke the promise: its share is 1.
    if usual is not None and usual * USUAL_TIMES >= 1:
        return replace(found, verdict=Verdict.AS_USUAL)
    return _explained(found, lost.before(spec.subject), spec)


def _of_staleness(topology: Topology, layout: Layout, spec: SlaSpec, at_ms: int) -> Explanation:
    writers = _writers(topology, spec.subject)
    lost = _Lost(topology, layout, _since_newest_row(topology, layout, writers, at_ms), at_ms)
    found = Explanation(verdict=Verdict.NOT_KNOWN, has_history=lost.has_history)
    return _explained(found, lost.on(each for name in writers for each in topology.path_into(name)), spec)


def _judged(spec: SlaSpec, at_ms: int) -> Span:
    """Returns the time over which *spec* is measured; a batch that finishes at the instant of the check is later."""
    return Span(at_ms - spec.over_ms - 1, at_ms - 1)


def _streams(topology: Topology) -> list[str]:
    return [sub.name for sub in topology.sub_topologies]


def _writers(topology: Topology, table: str) -> list[str]:
    """Returns the operators whose results *table* has; of `changes` not those that only joins look up."""
    if table != CHANGES.name:
        return [o.name for o in topology.operators.values() if o.result_table == table]
    looked_up = {name for sub in topology.sub_topologies for name in sub.table_inputs()}
    return [o.name for o in topology.operators.values() if o.emission and o.name not in looked_up]


def _since_newest_row(topology: Topology, layout: Layout, writers: Iterable[str], at_ms: int) -> dict[str, Span]:
    """Returns, by stream, the time since the newest batch whose records a table of *writers* has.

    Of a table without a row it is all the time.
    """
    scan = tables_of(layout, topology.name)
    newest = newest_result(scan, [*writers], at_ms=at_ms)
    if newest is None:
        first_ms = first_finished_ms(scan)
        return dict.fromkeys(_streams(topology), Span(at_ms if first_ms is None else first_ms - 1, at_ms))
    batches, since = dict([newest]), {newest[0]: finished_ms_of(scan, *newest) or at_ms}
    counts = Counts(topology, layout, since_ms=since[newest[0]], at_ms=at_ms)
    for sub in reversed(topology.sub_topologies):
        for hop in sub.hops_read if sub.name in batches else ():
            until = counts.read_of_hop(sub.name, hop.name, batches[sub.name])
            if until is not None:
                batches[hop.upstream] = until - 1
                since[hop.upstream] = finished_ms_of(scan, hop.upstream, until - 1) or since[sub.name]
    first_ms = min(since.values())
    return {name: Span(since.get(name, first_ms), at_ms) for name in _streams(topology)}


class _Lost:
    """What did not come through in the time *spans* of each stream."""

    def __init__(self, topology: Topology, layout: Layout, spans: Mapping[str, Span], at_ms: int) -> None:
        self._topology, self._layout, self._spans, self._at_ms = topology, layout, spans, at_ms
        self._since_ms = min(span.since_ms for span in spans.values())
        self.counts = Counts(topology, layout, since_ms=self._since_ms, at_ms=max(s.until_ms for s in spans.values()))

    @property
    def has_history(self) -> bool:
        """Whether anything was read before."""
        return self.counts.reads.filter(pl.col("finished_ms") <= self._since_ms, pl.col("n") > 0).height > 0

    def before(self, operator: str) -> Iterator[Loss]:
        """Yields what *operator* did not get."""
        for each in _once(self._topology.path_into(operator)):
            yield from self._unread(each)
            if each.name != operator:
                yield from self._lost_at(each)

    def on(self, path: Iterable[Operator]) -> Iterator[Loss]:
        """Yields what operators on *path* did not get, or did not send on."""
        for each in _once(path):
            yield from self._unread(each)
            yield from self._lost_at(each)

    def _lost_at(self, operator: Operator) -> Iterator[Loss]:
        span = self._spans[self._topology.sub_topology_of(operator.name).name]
        return OutcomesOf(self._topology, self.counts, operator, span).losses()

    def _unread(self, operator: Operator) -> Iterator[Loss]:
        sub = self._topology.sub_topology_of(operator.name)
        match operator:
            case Source():
                yield from self._unread_of_source(operator, sub)
            case HopSource():
                yield from self._unread_of_hop(operator, sub)

    def _unread_of_source(self, source: Source, sub: SubTopology) -> Iterator[Loss]:
        """Yields records of *source* that were not produced, or are unread."""
        rows, stopped = self.counts.reads.filter(pl.col("source") == source.name), self._stopped(sub)
        if not rows["n"].sum():
            owner, detail = stopped or (TOPIC, source.name)
            became = Became.UNREAD if stopped else Became.NOT_PRODUCED
            yield Loss(Leaf(owner=owner, detail=detail, became=became), 1)
            return
        missing: list[Loss] = []
        for (partition,), of_partition in rows.group_by("partition", maintain_order=True):
            place = place_of(source.name, partition)  # type: ignore[arg-type]
            missing += self._missing(of_partition, place, self._spans[sub.name])
            yield from self._left(of_partition, place, source, sub)
        if stopped:
            # Nobody has looked whether they were produced.
            yield from _as_one(missing, owner=stopped[0], detail=stopped[1], became=Became.UNREAD)
        elif len(_named(missing)) < rows["partition"].n_unique():
            yield from missing
        else:
            yield from _as_one(missing, owner=TOPIC, detail=source.name)

    def _missing(self, rows: pl.DataFrame, place: str, span: Span) -> Iterator[Loss]:
        """Yields what a partition usually has in such a time, beyond what it had.

        What it had none of is counted since its last record, which may be longer ago than the time that is judged.
        """
        usual = usual_number(rows, span)
        left_ms = pl.col("finished_ms") <= span.since_ms
        looks = rows.drop_nulls("unread")
        more_unread = looks["unread"].tail(1).sum() - looks.filter(left_ms)["unread"].tail(1).sum()
        came = int(rows.filter(span.holds())["n"].sum() + max(0, more_unread))
        if usual is None or usual <= came:
            return
        since_ms, records = span.since_ms, usual - came
        last_ms = rows.filter(left_ms, pl.col("n") > 0)["finished_ms"].max()
        if not came and isinstance(last_ms, int):
            since_ms, records = last_ms, usual_number(rows, Span(last_ms, span.until_ms)) or records
        leaf = Leaf(
            owner=PRODUCER, detail=place, became=Became.NOT_PRODUCED, partition=place, since_ms=since_ms,
            records=round(records), usual_records=0,
        )  # fmt: skip
        yield Loss(leaf, usual - came)

    def _left(self, rows: pl.DataFrame, place: str, source: Source, sub: SubTopology) -> Iterator[Loss]:
        """Yields what the newest look left of a partition, beyond what looks usually leave."""
        span, looks = self._spans[sub.name], rows.drop_nulls("unread")
        newest = looks.filter(span.holds()).tail(1)
        usual = float(looks.filter(pl.col("finished_ms") <= span.since_ms)["unread"].median() or 0)  # type: ignore[arg-type]
        left = int(newest["unread"].sum())
        if left <= usual:
            return
        is_cut = source.max_records is not None and newest["left_offset"][0] is not None
        owner, detail = (MAX_RECORDS, source.name) if is_cut else self._stopped(sub) or (CAPACITY, self._stream(sub))
        leaf = Leaf(
            owner=owner, detail=detail, became=Became.UNREAD, partition=place, stream=self._stream(sub), records=left,
            usual_records=round(usual),
        )  # fmt: skip
        yield Loss(leaf, left - usual)

    def _unread_of_hop(self, hop: HopSource, sub: SubTopology) -> Iterator[Loss]:
        """Yields what was written to *hop* since the newest batch of *sub*, if that looks no more."""
        stopped = self._stopped(sub)
        if stopped is None:
            return
        until = self.counts.read_of_hop(sub.name, hop.name) or 0
        is_new = (pl.col("operator") == hop.repartition) & (pl.col("batch_id") >= until)
        n = int(self.counts.outcomes.filter(is_new)["fan_out"].sum())
        if n:
            leaf = Leaf(owner=stopped[0], detail=stopped[1], became=Became.UNREAD, stream=self._stream(sub), records=n)
            yield Loss(leaf, n)

    def _stopped(self, sub: SubTopology) -> tuple[str, str] | None:
        """Returns owner and detail of what keeps *sub* from looking for records; None: it looks."""
        driver, span = self._drivers[sub.name], self._spans[sub.name]
        if driver.liveness in GONE:
            return ABSENCE, self._stream(sub)
        if driver.beat is None or driver.beat.batch_started_at_ms is None:
            return None
        has_finished = self.counts.outcomes.filter(pl.col("sub_topology") == sub.name, span.holds()).height > 0
        return None if has_finished else self.counts.running_segment(sub.name)

    def _stream(self, sub: SubTopology) -> str:
        return f"{self._topology.name}/{sub.name}"

    @cached_property
    def _drivers(self) -> Mapping[str, HeartbeatFacts]:
        return drivers_of(self._layout, self._topology, at_ms=self._at_ms)


def _once(path: Iterable[Operator]) -> Iterable[Operator]:
    """Returns the operators of *path* without those that come again."""
    return {each.name: each for each in path}.values()


def _named(losses: Iterable[Loss]) -> list[Loss]:
    """Returns those of *losses* that have NAMED_FROM of the whole excess."""
    losses = [*losses]
    whole = sum(loss.excess for loss in losses)
    return [loss for loss in losses if loss.excess >= NAMED_FROM * whole]


def _as_one(losses: Iterable[Loss], **told: str) -> Iterator[Loss]:
    """Yields the sum of *losses*, if there are any, as one of several partitions."""
    losses = [*losses]
    if losses:
        leaves = [loss.leaf for loss in losses]
        together = replace(
            leaves[0],
            records=sum(leaf.records or 0 for leaf in leaves),
            usual_records=sum(leaf.usual_records or 0 for leaf in leaves),
            since_ms=min((leaf.since_ms for leaf in leaves if leaf.since_ms is not None), default=None),
            partition=None,
            key=None,
            reason=None,
            **told,  # type: ignore[arg-type]
        )
        yield Loss(together, sum(loss.excess for loss in losses))


def _explained(found: Explanation, losses: Iterable[Loss], spec: SlaSpec) -> Explanation:
    """Returns *found* with the leaves of *losses* that are large enough, the largest first.

    What is too small by itself is added up by topic and by what became of it.
    """
    known = [loss for loss in losses if loss.excess > 0 and can_move(loss.leaf.owner, spec.measure)]
    whole, named = sum(loss.excess for loss in known), _named(known)
    small: dict[tuple[str, Became | None], list[Loss]] = defaultdict(list)
    for loss in known:
        if loss not in named and loss.leaf.partition is not None:
            small[loss.leaf.partition.split("/")[0], loss.leaf.became].append(loss)
    for (source, _), of_source in small.items():
        named += [sum_ for sum_ in _as_one(of_source, owner=TOPIC, detail=source) if sum_.excess >= NAMED_FROM * whole]
    named.sort(key=lambda loss: (-loss.excess, loss.leaf.owner, loss.leaf.detail))
    leaves = tuple(replace(each.leaf, share=each.excess / whole, touched=round(each.excess)) for each in named)
    return replace(
        found,
        verdict=Verdict.EXPLAINED if leaves else Verdict.NOT_KNOWN,
        leaves=leaves,
        explained=sum(leaf.share for leaf in leaves),
    )
