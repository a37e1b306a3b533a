"""The records that did not come through: they were not produced, are unread, or were lost at an operator on the way.

After the last look of a stream nobody knows whether records came. So those that usually come in that time count as
unread, and are blamed on what keeps the stream from looking: the absence of a driver, or the work that it has not
finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Self, assert_never

import polars as pl

from tidemark.account.counts import Counts, TimeSpan, read_of_hop
from tidemark.account.explanation import Became, Leaf
from tidemark.account.now import looks_no_more_after_ms
from tidemark.account.outcomes import Loss, OutcomesOf, as_one, large, partition_name
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.capacity import CAPACITY
from tidemark.account.owners.driver import DRIVER
from tidemark.account.owners.max_records import MAX_RECORDS
from tidemark.account.owners.pause import PAUSE
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.owners.topic import TOPIC
from tidemark.account.usual_numbers import numbers_before, usual_number
from tidemark.account.warehouse import AccountTables
from tidemark.control.folder import StreamState
from tidemark.facts.fact_tables import nothing_in
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.liveness import drivers_of
from tidemark.facts.planned_facts import has_no_news
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.tables.catalog import HEARTBEATS
from tidemark.model.topology import SubTopology

ALIVE = frozenset({StreamState.STARTING, StreamState.RUNNING})
"""The states in a heartbeat of a driver that has not ended."""
NOT_PRODUCED, UNREAD = Became.NOT_PRODUCED, Became.UNREAD


class Lost:
    """The records that did not come through until *at_ms*, epoch ms; *spans* has the time that counts for each
    stream.
    """

    def __init__(self, tables: AccountTables, spans: Mapping[str, TimeSpan], at_ms: int) -> None:
        self._tables, self._topology, self._spans, self._at_ms = tables, tables.topology, spans, at_ms
        # Each source of a stream, and each of its partitions, asks the same.
        self._stopped = cache(self._find_stop)
        self._since_ms = min(span.since_ms for span in spans.values())
        self.counts = Counts(tables, since_ms=self._since_ms, at_ms=max(s.until_ms for s in spans.values()))

    @property
    def has_history(self) -> bool:
        """Whether earlier reads say how many records usually come in times as long as those that are judged."""
        return any(self._has_history(name, span) for name, span in self._spans.items())

    def _has_history(self, stream: str, span: TimeSpan) -> bool:
        read = self.counts.reads.filter(pl.col("sub_topology") == stream)
        return len(numbers_before(read["finished_ms"].to_numpy(), read["n"].to_numpy(), span)) > 0

    def before(self, operator: str) -> Iterator[Loss]:
        """Yields the records that should have come to *operator*, and did not."""
        for step in self._topology.path_into(operator):
            yield from self._unread(step)
            if step.name != operator:
                yield from self._lost_at(step)

    def on(self, path: Iterable[Operator]) -> Iterator[Loss]:
        """Yields the records that operators on *path* did not get, or did not send on."""
        for operator in path:
            yield from self._unread(operator)
            yield from self._lost_at(operator)

    def _lost_at(self, operator: Operator) -> Iterator[Loss]:
        span = self._spans[self._topology.sub_topology_of(operator.name).name]
        return OutcomesOf(self._topology, self.counts, operator, span).losses()

    def _unread(self, operator: Operator) -> Iterator[Loss]:
        if isinstance(operator, Reading):
            sub = self._topology.sub_topology_of(operator.name)
            match operator:
                case Source():
                    yield from self._unread_of_source(operator, sub)
                case HopSource():
                    yield from self._unread_of_hop(operator, sub)
                case _:
                    assert_never(operator)

    def _unread_of_source(self, source: Source, sub: SubTopology) -> Iterator[Loss]:
        """Yields the records of *source*, which *sub* reads, that were not produced or are unread."""
        rows, stopped = self.counts.reads.filter(pl.col("source") == source.name), self._stopped(sub.name)
        if not rows["n"].sum():
            # Until the last look nothing had come. Whether anything came later is not known.
            looked = 1.0 if stopped is None else self._spans[sub.name].share_until(stopped.seen_ms)
            yield Loss(Leaf(owner=TOPIC, detail=source.name, became=NOT_PRODUCED), looked)
            if stopped is not None:
                yield Loss(stopped.leaf, 1 - looked)
            return
        missing, unseen = list[Loss](), list[Loss]()
        for (number,), reads in rows.group_by("partition", maintain_order=True):
            partition, since = partition_name(source.name, number), None if stopped is None else stopped.seen_ms
            usual = _UsualReads(reads, self._spans[sub.name], since)
            missing += usual.not_produced(
                Leaf(
                    owner=PRODUCER,
                    detail=partition,
                    became=NOT_PRODUCED,
                    partition=partition,
                    since_ms=usual.since_ms,
                )
            )
            unseen += usual.not_looked_for(stopped.leaf) if stopped else []
            yield from self._left_behind(reads, partition, source, sub)
        yield from as_one(unseen)
        if len(large(missing)) < rows["partition"].n_unique():
            yield from missing
        else:
            yield from as_one(missing, owner=TOPIC, detail=source.name)

    def _left_behind(self, rows: pl.DataFrame, partition: str, source: Source, sub: SubTopology) -> Iterator[Loss]:
        """Yields the records that the newest batch left behind in a partition, if they are more than usual.

        Args:
            rows: reads of the partition, as in `Counts.reads`.
            partition: SOURCE/PARTITION.
            source: the source of the partition.
            sub: the sub-topology that reads it.
        """
        span, looks = self._spans[sub.name], rows.drop_nulls("unread")
        newest = looks.filter(span.holds()).tail(1)
        usual = float(looks.filter(pl.col("finished_ms") <= span.since_ms)["unread"].median() or 0)  # type: ignore[arg-type]
        left = int(newest["unread"].sum())
        if left <= usual:
            return
        is_cut = source.max_records is not None and newest["left_offset"][0] is not None
        stopped, stream = self._stopped(sub.name), self._name(sub.name)
        owner, detail = (MAX_RECORDS, source.name) if is_cut else (CAPACITY, stream)
        leaf = stopped.leaf if stopped else Leaf(owner=owner, detail=detail, became=UNREAD, stream=stream)
        yield Loss(replace(leaf, partition=partition, records=left, usual_records=round(usual)), left - usual)

    def _unread_of_hop(self, hop: HopSource, sub: SubTopology) -> Iterator[Loss]:
        """Yields the records written to *hop* since the newest batch of *sub*, if *sub* has stopped looking for
        records.
        """
        stopped = self._stopped(sub.name)
        if stopped is None:
            return
        newest = self.counts.newest_batch(sub.name)
        scan = self._tables.of_all_streams
        until = (read_of_hop(scan, sub.name, hop.name, newest[0]) if newest else None) or 0
        is_new = (pl.col("operator") == hop.repartition) & (pl.col("batch_id") >= until)
        n = int(self.counts.outcomes.filter(is_new)["fan_out"].sum())
        if n:
            yield Loss(replace(stopped.leaf, records=n), n)

    def _find_stop(self, stream: str) -> _Stopped | None:
        """Returns what keeps *stream*, a sub-topology, from looking for records; None if it looks."""
        driver, newest = self._drivers[stream], self.counts.newest_batch(stream)
        beat, sign = driver.beat, driver.evidence.newest
        name = self._name(stream)
        if beat is None or sign is None:
            # A query that a job only measures has no heartbeats.
            return _Stopped.without_driver(ABSENCE, name, self._since_ms) if newest is None else None
        row = self.counts.newest_beat(stream, at_ms=self._at_ms)
        number, finished_ms = newest or (-1, self._since_ms)
        told_ms = max(beat.at_ms, finished_ms)
        # What a batch read is seldom known before its facts are written.
        has_facts = row is None or row["batch_id"] is None or row["batch_id"] <= number
        is_known = has_facts or self._has_no_news(stream)
        is_silent = self._at_ms - told_ms > looks_no_more_after_ms(driver, sign)
        if beat.state not in ALIVE or driver.was_replaced or driver.stood_still or is_silent:
            owner = PAUSE if driver.stood_still else ABSENCE
            return _Stopped.without_driver(owner, name, told_ms if is_known else finished_ms)
        began_ms = beat.batch_started_at_ms
        if began_ms is None or finished_ms > beat.at_ms:
            return None
        told = self._tables.told_until(stream, nothing_in(HEARTBEATS).collect(), self._at_ms)
        beats = [*told.rows(named=True), *([] if row is None else [row])]
        segments = beats[0]["segments"] if beats else None
        owner, detail = (segments[-1]["owner"], segments[-1]["detail"]) if segments else (DRIVER, name)
        leaf = Leaf(owner=owner, detail=detail, became=UNREAD, stream=name, since_ms=began_ms)
        return _Stopped(began_ms if is_known else finished_ms, leaf)

    def _has_no_news(self, stream: str) -> bool:
        sub, tables = self._topology.sub_topology(stream), self._tables
        return has_no_news(tables.layout, self._topology.name, sub, at_ms=self._at_ms, stored=tables.stored)

    def _name(self, stream: str) -> str:
        return f"{self._topology.name}/{stream}"

    @cached_property
    def _drivers(self) -> Mapping[str, HeartbeatFacts]:
        return drivers_of(self._tables.layout, self._topology, at_ms=self._at_ms, stored=self._tables.stored)


@dataclass(frozen=True)
class _Stopped:
    """A stream has not looked for records since `seen_ms`, epoch ms; `leaf` names the owner to blame."""

    seen_ms: int
    leaf: Leaf

    @classmethod
    def without_driver(cls, owner: str, stream: str, seen_ms: int) -> Self:
        """Returns the stop of a *stream* that no driver has run since *seen_ms*; *owner* owns that time."""
        return cls(seen_ms, Leaf(owner=owner, detail=stream, became=UNREAD, stream=stream, since_ms=seen_ms))


class _UsualReads:
    """The records of a partition that usually come in the time *span*, and did not.

    Nobody has looked for records since *seen_ms*; None if somebody looked until the end. Records are missing since
    `since_ms`. If none came in the span, that is when the last one came, perhaps before the span. What came before that
    instant is usual, however long ago it was.
    """

    def __init__(self, reads: pl.DataFrame, span: TimeSpan, seen_ms: int | None) -> None:
        is_before = pl.col("finished_ms") <= span.since_ms
        looks = reads.drop_nulls("unread")
        more_unread = int(looks["unread"].tail(1).sum()) - int(looks.filter(is_before)["unread"].tail(1).sum())
        self._reads, self._span = reads, span
        self._came = int(reads.filter(span.holds())["n"].sum()) + max(0, more_unread)
        self._seen_ms = span.until_ms if seen_ms is None else min(seen_ms, span.until_ms)
        last_ms = reads.filter(is_before, pl.col("n") > 0)["finished_ms"].max()
        self.since_ms = span.since_ms if self._came or not isinstance(last_ms, int) else last_ms

    def not_produced(self, leaf: Leaf) -> Iterator[Loss]:
        """Yields *leaf* with the records that should have come while somebody looked."""
        yield from self._loss(leaf, lambda since_ms: self._usual(self._seen_ms - since_ms) - self._came)

    def not_looked_for(self, leaf: Leaf) -> Iterator[Loss]:
        """Yields *leaf* with the records that should have come since nobody looked."""

        def missing(since_ms: int) -> float:
            seen = max(self._came, self._usual(self._seen_ms - since_ms))
            return self._usual(self._span.until_ms - since_ms) - seen

        yield from self._loss(leaf, missing)

    def _loss(self, leaf: Leaf, missing: Callable[[int], float]) -> Iterator[Loss]:
        excess, records = missing(self._span.since_ms), round(missing(self.since_ms))
        if excess > 0 and records:
            yield Loss(replace(leaf, records=records, is_estimate=True, usual_records=0), excess)

    def _usual(self, length_ms: int) -> float:
        if length_ms <= 0:
            return 0
        return usual_number(self._reads, TimeSpan(self.since_ms, self.since_ms + length_ms)) or 0
