"""Reads numbers of records: what came, what became of it, and what did not go on.

A batch counts from the instant at which it finished, `finished_at`. So instants here are by the drivers' clocks, epoch
ms. Rows that are still in a journal count, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from tidemark.account.warehouse import AccountTables
from tidemark.facts.topology_tables import Scan
from tidemark.model.settings.intervals import Grain, utc
from tidemark.model.settings.retention import DAY_MS, WEEK_MS
from tidemark.model.tables.catalog import (
    BATCHES,
    BECAME,
    CAME_IN,
    DEAD_LETTERS,
    HEARTBEATS,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    TOPOLOGY_CHANGES,
    Table,
)

HOUR_MS = Grain.HOUR.length_ms
BATCH = ["sub_topology", "batch_id"]
OF_BATCHES_MS = DAY_MS
"""Every batch finishes within this time of its decision, ms, so files with earlier decisions need not be opened."""


@dataclass(frozen=True)
class TimeSpan:
    """A time that starts after `since_ms` (excluded) and ends with `until_ms` (included), epoch ms."""

    since_ms: int
    until_ms: int

    @property
    def length_ms(self) -> int:
        """The length of the time."""
        return self.until_ms - self.since_ms

    def share_until(self, at_ms: int) -> float:
        """Returns the share of the time that lies before *at_ms*, 0 to 1.

        >>> TimeSpan(100, 200).share_until(175), TimeSpan(100, 200).share_until(50), TimeSpan(100, 100).share_until(175)
        (0.75, 0.0, 0.0)
        """
        return min(1.0, max(0, at_ms - self.since_ms) / self.length_ms) if self.length_ms else 0.0

    def holds(self, column: str = "finished_ms") -> pl.Expr:
        """Returns the condition that the instant in *column* lies in the time."""
        return pl.col(column).is_between(self.since_ms, self.until_ms, closed="right")


class Counts:
    """How many records the streams of *tables* counted until *at_ms*, to judge the time since *since_ms* (epoch ms).

    Outcomes and dead letters go back to a day before *since_ms*, and reads to a week before it.
    """

    def __init__(self, tables: AccountTables, *, since_ms: int, at_ms: int) -> None:
        self._topology, self._scan = tables.topology, tables.of_all_streams
        self._since_ms, self._at_ms = since_ms, at_ms

    @cached_property
    def _batches(self) -> pl.DataFrame:
        """The batches that had finished by `at_ms`, and when each did."""
        first_ms = min(self._at_ms, self._since_ms) - WEEK_MS
        where = [pl.col("finished_at") >= utc(first_ms), pl.col("finished_at") <= utc(self._at_ms)]
        return finished(self._scan, *where)

    def _rows(self, table: Table, first_ms: int, *where: pl.Expr, columns: Collection[str]) -> pl.DataFrame:
        """Returns rows of batches that finished from *first_ms* on, with `finished_ms`."""
        # A query of a team's own job may record no decision time.
        decided = pl.col("decided_at").is_null() | (pl.col("decided_at") >= utc(first_ms - OF_BATCHES_MS))
        rows = self._scan(table, where=[decided]).select(*BATCH, "decided_at", *columns).collect()
        # Arrow compares no text of a table that delta-rs has rewritten.
        known = rows.filter(*where).join(self._batches, on=BATCH).filter(pl.col("finished_ms") >= first_ms)
        return known.with_columns(decided_ms=pl.col("decided_at").dt.epoch("ms")).drop("decided_at")

    @cached_property
    def outcomes(self) -> pl.DataFrame:
        """The updates of each batch and operator by outcome, oldest first."""
        columns = ("operator", *CAME_IN, *BECAME, "fan_out")
        return self._rows(OPERATOR_BATCHES, self._since_ms - DAY_MS, columns=columns).sort("finished_ms")

    @cached_property
    def reads(self) -> pl.DataFrame:
        """What batches read of each partition of a topic, oldest first.

        A batch read `n` offsets, and left `unread` ones behind (null if the broker was not asked). Of the n records,
        `usable` ones have a record time. A source that reads no topic has one row for each batch, without a partition.
        """
        columns = ("source", "partition", "from_offset", "until_offset", "latest_offset", "left_offset", "reads")
        is_read = pl.col("partition").is_not_null() & pl.col("until_offset").is_not_null()
        of_reads = pl.col("reads").list
        rows = self._rows(PARTITION_BATCHES, self._since_ms - WEEK_MS, is_read, columns=columns).with_columns(
            n=pl.col("until_offset") - pl.col("from_offset"),
            unread=pl.col("latest_offset") - pl.col("until_offset"),
            usable=of_reads.eval(pl.element().struct["n"]).list.sum().fill_null(0),
            wait_ms=of_reads.eval(pl.element().struct["wait_ms"]).list.sum(),
        )
        is_of_topic = pl.col("source").is_in(self._topics)
        others = self.outcomes.filter(pl.col("operator").is_in(self._others)).select(
            *BATCH,
            "finished_ms",
            source="operator",
            n="records_in",
            usable="records_in",
        )
        return pl.concat([rows.filter(is_of_topic).drop("reads"), others], how="diagonal").sort("finished_ms")

    @cached_property
    def dead_letters(self) -> pl.DataFrame:
        """The records that operators did not send on, without their values."""
        columns = ("kind", "operator", "partition", "offset", "key", "timestamp", "reason", "detail")
        return self._rows(DEAD_LETTERS, self._since_ms - DAY_MS, columns=columns)

    @cached_property
    def begun(self) -> pl.DataFrame:
        """The partitions of sources that a change of the topology file began to read, with their end offset then.

        That end is `begun_offset`. The first batch of the driver with the changed file is `begun_batch`; it may have
        been planned by the driver before, without the source.
        """
        of_source = ["sub_topology", "source"]
        changes = self._scan(TOPOLOGY_CHANGES, where=[pl.col("begins")]).select(
            "sub_topology", source="operator", begun_batch="batch_id"
        )
        # The first batch of what began before the reads that are known is not among them.
        oldest = self.reads.group_by("sub_topology").agg(oldest=pl.min("batch_id"))
        known = changes.unique().collect().join(oldest, on="sub_topology")
        began = known.filter(pl.col("begun_batch") >= pl.col("oldest")).drop("oldest")
        later = self.reads.join(began, on=of_source).filter(pl.col("batch_id") >= pl.col("begun_batch"))
        first = later.filter(pl.col("batch_id") == pl.col("batch_id").min().over(*of_source, "begun_batch"))
        return first.select(
            *of_source,
            "partition",
            "begun_batch",
            begun_offset=pl.coalesce("left_offset", "latest_offset", "until_offset"),
        )

    def newest_batch(self, sub_topology: str) -> tuple[int, int] | None:
        """Returns the number and `finished_ms` of the newest batch of a stream; None if none has finished."""
        rows = self._batches.filter(pl.col("sub_topology") == sub_topology).sort("batch_id")
        return rows.select("batch_id", "finished_ms").row(-1) if rows.height else None

    def has_ever_read(self, operator: str) -> bool:
        """Returns whether *operator* has read a record in any batch."""
        rows = self._scan(OPERATOR_BATCHES).select("operator", "records_in").collect()
        return rows.filter(pl.col("operator") == operator, pl.col("records_in") > 0).height > 0

    def held_back_by(self, source: str) -> str | None:
        """Returns the partition that holds the watermark of *source* back, as SOURCE/PARTITION; None if none does."""
        is_combined = (pl.col("source") == source) & pl.col("partition").is_null() & pl.col("reads").is_null()
        rows = self._rows(
            PARTITION_BATCHES,
            self._since_ms - DAY_MS,
            is_combined,
            columns=("source", "partition", "reads", "blocked_by"),
        )
        newest = rows.sort("finished_ms")["blocked_by"].drop_nulls().tail(1)
        return f"{source}/{newest[0]}" if len(newest) else None

    def newest_beat(self, sub_topology: str, *, at_ms: int) -> Mapping[str, Any] | None:
        """Returns `batch_id` and `segments` of the newest heartbeat of a stream in the day before *at_ms*."""
        is_recent = [pl.col("beat_at") >= utc(at_ms - DAY_MS), pl.col("beat_at") <= utc(at_ms)]
        rows = self._scan(HEARTBEATS, where=is_recent)
        beats = rows.select("sub_topology", "beat_at", "batch_id", "segments").collect()
        newest = beats.filter(pl.col("sub_topology") == sub_topology).sort("beat_at").tail(1)
        return newest.row(0, named=True) if newest.height else None

    @cached_property
    def _topics(self) -> list[str]:
        return [*self._names(is_topic=True)]

    @cached_property
    def _others(self) -> list[str]:
        return [*self._names(is_topic=False)]

    def _names(self, *, is_topic: bool) -> Iterator[str]:
        for source in self._topology.outside_sources:
            if (source.topic is not None) is is_topic:
                yield source.name


def newest_result(scan: Scan, operators: Collection[str], *, at_ms: int) -> tuple[str, int] | None:
    """Returns the newest batch in which one of *operators* sent a result on, as stream and number; None without one.

    Batches count that had finished by *at_ms*, epoch ms.
    """
    for first_ms in (at_ms - 2 * DAY_MS, 0):
        is_recent = pl.col("decided_at").is_null() | (pl.col("decided_at") >= utc(first_ms))
        rows = scan(OPERATOR_BATCHES, where=[is_recent]).select(*BATCH, "operator", "emitted", "passed", "repeated")
        has_results = pl.any_horizontal(pl.col("emitted", "passed", "repeated") > 0)
        given = rows.filter(has_results).collect().filter(pl.col("operator").is_in([*operators]))
        known = given.join(finished(scan), on=BATCH).filter(pl.col("finished_ms") <= at_ms)
        newest = known.sort("finished_ms").tail(1)
        if newest.height:
            return newest["sub_topology"][0], newest["batch_id"][0]
    return None


def first_finished_ms(scan: Scan) -> int | None:
    """Returns when the first batch of all streams finished, epoch ms; None if none has."""
    return finished(scan)["finished_ms"].min()  # type: ignore[return-value]


def finished_ms_of(scan: Scan, sub_topology: str, batch_id: int) -> int | None:
    """Returns when a batch of a stream finished, epoch ms; None if no row tells so."""
    rows = finished(scan, pl.col("batch_id") == batch_id).filter(pl.col("sub_topology") == sub_topology)
    return rows["finished_ms"][0] if rows.height else None


def finished(scan: Scan, *where: pl.Expr) -> pl.DataFrame:
    """Returns the batches for which *where* is true, with `finished_ms`, epoch ms."""
    rows = scan(BATCHES, where=where).select(*BATCH, finished_ms=pl.col("finished_at").dt.epoch("ms"))
    return rows.collect()


RECENT_BATCHES = 1_000
"""A stream has nearly always read its hop with one of this many batches: rows of older ones are read only if not."""


def read_of_hop(scan: Scan, sub_topology: str, hop: str, batch_id: int) -> int | None:
    """Returns up to which batch of the writer of *hop* (excluded) the batch *batch_id* of *sub_topology* had read.

    The offsets of a hop are batches of its writer. None if no row tells how far the hop was read.
    """
    for first in (batch_id - RECENT_BATCHES, 0):
        rows = scan(PARTITION_BATCHES, where=[pl.col("batch_id").is_between(first, batch_id)])
        read = rows.select("sub_topology", "source", "until_offset").collect()
        of_hop = (pl.col("sub_topology") == sub_topology) & (pl.col("source") == hop)
        until = read.filter(of_hop)["until_offset"].max()
        if isinstance(until, int):
            return until
    return None
