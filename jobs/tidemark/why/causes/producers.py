"""Finds producers whose records lie in the future: their clock, time zone or unit is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tidemark.facts.outcome_facts import LATELY
from tidemark.facts.read_facts import IS_READ
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import counted, for_people
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.why.causes.time_unit import timestamp_ms
from tidemark.why.evidence.commands import requeue
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene, began

PRODUCER_AHEAD = Cause(
    "producer_ahead",
    Trait.FAULT,
    "recent records of a partition were more than a second ahead of the clock",
)


@dataclass(frozen=True)
class _FutureRecords:
    """The records of a partition that were ahead of the clock: the furthest of them by `by_ms`.

    `by_ms` is None if no timestamp can be read here. `key` is the key of the furthest one, where it is known.
    """

    partition: int
    by_ms: int | None
    n: int
    since_ms: int | None
    key: str | None
    quarantined: bool


class Producers:
    """The producers' clocks as the sources of *scene* show them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def ahead(self, source: Source) -> Iterator[WhyFinding]:
        """Yields the partitions of *source* that had records ahead of the clock in the last LATELY batches."""
        if source.max_ahead_ms is None:
            return
        for ahead in (*self._accepted(source), *self._quarantined(source)):
            whose = "" if ahead.key is None else f", of key {ahead.key},"
            again = f"; then {requeue(self._scene, source, 'timestamp_in_future')}" if ahead.quarantined else ""
            are, move = ("it is", "it moves") if ahead.n == 1 else ("they are", "they move")
            became = f"{are} quarantined" if ahead.quarantined else f"{move} time no further than the clock"
            of = f"of {source.topic or source.name}{whose}"
            lie = counted(ahead.n, f"record {of} lies", f"records {of} lie")
            up_to = "further" if ahead.by_ms is None else f"up to {for_people(ahead.by_ms)}"
            than = " than `max_ahead`" if ahead.by_ms is None else ""
            yield self._scene.finding(
                PRODUCER_AHEAD,
                source.name,
                f"{lie} {up_to} ahead of the clock{than}: {became}",
                "correct the producer's clock, time zone or timestamp_unit; for record time that is no wall time, set "
                f'max_ahead = "unlimited" for {source.name}{again}{self._moved(source, ahead.partition)}',
                input=source.name,
                partition=ahead.partition,
                since_ms=ahead.since_ms,
            )

    def _moved(self, source: Source, partition: int) -> str:
        """Returns the command that sets the time of *partition* back; empty unless that time is ahead of the clock."""
        facts = self._scene.of(source.name)
        mark, decided_at_ms = facts.marks.get((source.name, partition)), facts.tables.batches["decided_at"].max()
        newest_ms = mark.max_timestamp_ms if mark else None
        if newest_ms is None or not isinstance(decided_at_ms, int) or newest_ms <= decided_at_ms + LEAST_CLOCK_ERROR_MS:
            return ""
        stream = f"{self._scene.topology.name} {self._scene.sub(source.name).name}"
        partition_at = f"--source {source.name} --partition {partition} --to {iso(decided_at_ms)}"
        command = f"tidemark reset-time {stream} {partition_at} --by NAME --reason TEXT"
        return f"; the time of the partition is ahead already: `{command}`"

    def _accepted(self, source: Source) -> Iterator[_FutureRecords]:
        facts = self._scene.of(source.name)
        batches = facts.outcomes.lately(source.name)["batch_id"]
        is_ahead = pl.col("min_ms") < -LEAST_CLOCK_ERROR_MS
        rows = facts.latencies(source.name, batches).filter(is_ahead)
        if rows.is_empty():
            return
        history = facts.latencies(source.name, facts.outcomes.recently(source.name)["batch_id"]).sort("batch_id")
        for (partition,), of_partition in rows.group_by("partition", maintain_order=True):
            assert isinstance(partition, int)
            least_ms, n = of_partition["min_ms"].min(), of_partition["negative_n"].sum()
            assert isinstance(least_ms, int)
            key = facts.key_ahead(partition, batches, by_more_than_ms=LEAST_CLOCK_ERROR_MS)
            since_ms = began(history.filter(pl.col("partition") == partition), is_ahead)
            yield _FutureRecords(partition, -least_ms, int(n), since_ms, key, quarantined=False)

    def _quarantined(self, source: Source) -> Iterator[_FutureRecords]:
        facts = self._scene.of(source.name)
        newest = facts.reads.newest(source.name, LATELY)["batch_id"].unique()
        clocks = facts.tables.batches_of(newest).select("batch_id", "decided_at")
        future = _in_future(facts.reads.quarantined(source.name, newest))
        rows = future.join(clocks, on="batch_id", how="left", maintain_order="left")
        for (partition,), of_partition in rows.group_by("partition", maintain_order=True):
            assert isinstance(partition, int)
            by_ms, key = _furthest(source, of_partition)
            reads = facts.reads.of_partition(source.name, partition).filter(IS_READ)
            bad = _in_future(facts.reads.quarantined(source.name, reads["batch_id"]))
            with_future = bad.filter(pl.col("partition") == partition)["batch_id"]
            since_ms = began(reads, pl.col("batch_id").is_in(with_future.implode()))
            yield _FutureRecords(partition, by_ms, of_partition.height, since_ms, key, quarantined=True)


def _in_future(quarantined: pl.DataFrame) -> pl.DataFrame:
    return quarantined.filter(pl.col("reason") == "timestamp_in_future")


def _furthest(source: Source, quarantined: pl.DataFrame) -> tuple[int | None, str | None]:
    """Returns how far the furthest record in *quarantined* was ahead of the clock of its batch, ms, and its key.

    Without a timestamp that can be read there is no length, and the key is that of the newest record.
    """
    by_ms, record = None, quarantined.row(-1, named=True)
    for row in quarantined.iter_rows(named=True):
        at_ms = timestamp_ms(source, row["value"])
        if at_ms is None or row["decided_at"] is None:
            continue
        ahead_ms = round(at_ms) - row["decided_at"]
        if by_ms is None or ahead_ms > by_ms:
            by_ms, record = ahead_ms, row
    key = record["key"]
    return by_ms, key.decode("utf-8", "replace") if isinstance(key, bytes) else key
