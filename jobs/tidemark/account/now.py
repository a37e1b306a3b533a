"""What the streams of a topology do at an instant, as far as their tables and heartbeats tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.broker import BROKER
from tidemark.account.owners.pause import PAUSE
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.owners.unknown import UNKNOWN
from tidemark.account.recorded import Recorded
from tidemark.account.unfinished import OPEN, RUNNING, open_parts, until_now
from tidemark.account.warehouse import AccountTables
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.liveness import drivers_of
from tidemark.facts.planned_facts import has_no_news
from tidemark.kernels.columns.quantiles import median_of
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.idleness import Activity
from tidemark.semantics.liveness import HAS_DRIVER, LIMITS, Liveness, Sign

OF_PARTITION = ["input", "partition"]
MISSED = 2
"""A driver that has missed this many heartbeats no longer looks for records."""


def looks_no_more_after_ms(driver: HeartbeatFacts, sign: Sign) -> int:
    """Returns the age of the newest *sign* of life of *driver*, ms, beyond which it no longer looks for records."""
    return MISSED * LIMITS[sign.kind, driver.evidence.store].every_ms


def has_missed_beats(driver: HeartbeatFacts, at_ms: int) -> bool:
    """Returns True if *driver* has sent no heartbeat for so long before *at_ms*, epoch ms, that some must be
    missing.
    """
    sign, beat = driver.evidence.newest, driver.beat
    return sign is not None and beat is not None and at_ms - beat.at_ms > looks_no_more_after_ms(driver, sign)


@dataclass(frozen=True)
class StreamsNow:
    """The streams of a topology at `at_ms` (epoch ms), by the rows that they have `recorded` and by their `ledger`."""

    tables: AccountTables
    recorded: Recorded
    ledger: Ledger
    at_ms: int

    @property
    def topology(self) -> Topology:
        """The topology."""
        return self.tables.topology

    def name(self, sub: SubTopology) -> str:
        """Returns the full name of the stream that runs *sub*."""
        return f"{self.topology.name}/{sub.name}"

    @cached_property
    def facts(self) -> AccountFacts:
        """The facts of the ledger, with what each stream does now as its last segment."""
        return until_now(self.ledger.facts, pl.DataFrame([*self._running()], schema=RUNNING))

    def _running(self) -> Iterator[dict[str, Any]]:
        for sub in self.topology.sub_topologies:
            stream = self.name(sub)
            driver = self.driver(stream)
            if driver is not None:
                owner, detail = self.owner(sub)
                yield {
                    "stream": stream,
                    "driver": driver["driver"],
                    "owner": owner,
                    "detail": detail,
                    "now_ms": self.at_ms - driver["to_reference_ms"],
                }

    def owner(self, sub: SubTopology) -> tuple[str, str]:
        """Returns who owns the time of *sub* now, as owner and detail.

        If a driver runs, it is the owner of the segment that its newest heartbeat names; UNKNOWN if the newest batch is
        later than that segment, or if the driver is that of a job, which names no segment before a batch has finished.
        Otherwise the time belongs to the absence of a driver. A driver that holds its lease and sends no heartbeat
        stands still: then it is PAUSE. For an instant in the past, the next heartbeat tells
        whether the driver stood still.
        """
        stream, driver = self.name(sub), self._drivers[sub.name]
        if driver.liveness not in HAS_DRIVER or driver.liveness is Liveness.STARTING or driver.was_replaced:
            return ABSENCE, stream
        if driver.stood_still or has_missed_beats(driver, self.at_ms):
            return (PAUSE if driver.evidence.is_held else ABSENCE), stream
        newest = self.ledger.facts.segments.filter(pl.col("stream") == stream)["driver"].max()
        sign = driver.evidence.newest
        if not isinstance(newest, int) or (sign is not None and sign.epoch > newest):
            # A driver of a stream without a segment has not looked for records yet.
            return (UNKNOWN, "segment") if self.topology.jobs else (ABSENCE, stream)
        # What was done last is not what is done since.
        return self.recorded.running(sub.name) or (UNKNOWN, "segment")

    def nobody_looks(self, sub: SubTopology) -> bool:
        """Returns True if no driver of *sub* looks for records now."""
        return self.owner(sub)[0] in {ABSENCE, PAUSE}

    @cached_property
    def _drivers(self) -> dict[str, HeartbeatFacts]:
        return drivers_of(self.tables.layout, self.topology, at_ms=self.at_ms, stored=self.tables.stored)

    def driver(self, stream: str) -> dict[str, Any] | None:
        """Returns the newest driver of *stream*, as a row of `driver_clocks`; None if the stream never had one."""
        drivers = self.ledger.clocks.filter(pl.col("stream") == stream).sort("driver")
        return drivers.row(-1, named=True) if drivers.height else None

    def next_batch(self, stream: str) -> int:
        """Returns the number of the batch after the newest one that has finished."""
        newest = self.ledger.facts.batches.filter(pl.col("stream") == stream).select(pl.max("batch_id")).item()
        return 0 if newest is None else int(newest) + 1

    def running_look_ms(self, stream: str) -> int | None:
        """Returns when the look ended that found the records of the running batch, reference; None if no batch runs."""
        rows = self._segments(stream).filter(pl.col("batch_id") >= self.next_batch(stream))
        waited_ms = rows.filter(pl.col("owner") == TRIGGER).select(pl.max("ended_ms")).item()
        rows = rows if waited_ms is None else rows.filter(pl.col("began_ms") >= waited_ms)
        began_ms = rows.filter(pl.col("owner") != BROKER).select(pl.min("began_ms")).item()
        if began_ms is None:
            return None
        looks = rows.filter(pl.col("owner") == BROKER, pl.col("ended_ms") <= began_ms)
        return int(began_ms if looks.is_empty() else looks.select(pl.max("ended_ms")).item())

    def slowest(self, sub: SubTopology) -> dict[str, Any] | None:
        """Returns the partition that holds the watermark of *sub* back, with the columns of OPEN about a partition.

        Its `is_alike` is True if no partition is ahead of it by more than its records usually are apart. None if no
        such partition is known, or if nobody is known to have looked for its records.
        """
        stream, facts = self.name(sub), self.ledger.facts
        plans = facts.plans.filter(pl.col("stream") == stream).drop_nulls("newest_ms").sort("batch_id")
        reached = (
            plans.group_by(OF_PARTITION, maintain_order=True)
            .last()
            .join(self._idle(sub), on=OF_PARTITION, how="anti", nulls_equal=True)
            .join(facts.bounds.filter(pl.col("stream") == stream), on="input")
            .with_columns(reached_ms=pl.col("newest_ms") - pl.col("bound_ms"))
            .sort("reached_ms", *OF_PARTITION)
        )
        if reached.is_empty():
            return None
        slow = reached.row(0, named=True)
        is_slow = pl.col("input").eq(slow["input"]) & pl.col("partition").eq_missing(slow["partition"])
        apart = plans.filter(is_slow, pl.col("n") > 0).select(median_of(pl.col("newest_ms").diff())).item() or 0
        newest = facts.reads.filter(pl.col("stream") == stream, is_slow).sort("batch_id", "event_ms").tail(1)
        left = self.left_behind(stream).filter(is_slow).select("left_by", "seen_ms").rows()
        left_by, seen_ms = left[0] if left else (None, self.running_look_ms(stream) or self.last_look_ms(stream))
        if seen_ms is None:
            return None
        return {
            "input": slow["input"],
            "partition": slow["partition"],
            "bound_ms": slow["bound_ms"],
            "late_ms": newest.select((pl.col("arrived_ms") - pl.col("event_ms")).sum()).item(),
            "left_by": left_by,
            "waited_until_ms": seen_ms,
            "is_alike": reached.select(pl.max("reached_ms")).item() - slow["reached_ms"] <= apart,
        }

    def left_behind(self, stream: str) -> pl.DataFrame:
        """Returns the newest plan of each partition of *stream* in which it left records behind.

        `left_by` is the first batch whose plan saw the first of these records, and `seen_ms` its look, reference.
        """
        of_stream = pl.col("stream") == stream
        plans = self.ledger.facts.plans.filter(of_stream, pl.col("writer").is_null()).sort("batch_id")
        newest = plans.group_by(OF_PARTITION, maintain_order=True).last()
        behind = newest.filter(pl.col("latest_offset") > pl.col("until_offset"))
        left_from = behind.select(*OF_PARTITION, left_from="until_offset")
        saw = plans.join(left_from, on=OF_PARTITION, nulls_equal=True, maintain_order="left")
        saw = saw.filter(pl.col("latest_offset") > pl.col("left_from"))
        looks = self.ledger.batches.filter(of_stream).select(left_by="batch_id", seen_ms="looked_ms")
        first = saw.group_by(OF_PARTITION, maintain_order=True).agg(left_by=pl.first("batch_id"))
        return behind.join(first, on=OF_PARTITION, nulls_equal=True).join(looks, on="left_by", how="left")

    def parts_since(self, stream: str, since_ms: int, waited: Mapping[str, Any]) -> pl.DataFrame | None:
        """Returns the PARTS of the time since *since_ms* (reference) in which a result of *stream* has waited.

        *waited* has the columns of OPEN that say what the result has waited for. None if the stream never had a driver.
        """
        driver = self.driver(stream)
        if driver is None:
            return None
        row = {
            "stream": stream,
            "driver": driver["driver"],
            "start_ms": since_ms,
            "visible_ms": self.at_ms,
            "visible_boot_ms": self.at_ms - driver["to_reference_ms"],
            **waited,
        }
        unfinished = pl.DataFrame([{name: row.get(name) for name in OPEN}], schema=OPEN)
        return open_parts(Ledger.of(self.facts), unfinished)

    def _idle(self, sub: SubTopology) -> pl.DataFrame:
        """Returns the `input` and `partition` of those that count as idle, so that the watermark does not wait for
        them.
        """
        rows = self.recorded.partition_batches.filter(pl.col("sub_topology") == sub.name).sort("batch_id")
        newest = rows.drop_nulls(["partition", "activity"]).group_by("source", "partition", maintain_order=True).last()
        idle = newest.filter(pl.col("activity") == Activity.IDLE.value)
        return idle.select(input="source", partition=pl.col("partition").cast(pl.Int64))

    def has_no_news(self, sub: SubTopology) -> bool:
        """Returns True if the batches of *sub* that have not finished are known to read no record of its sources."""
        tables = self.tables
        return has_no_news(tables.layout, self.topology.name, sub, at_ms=self.at_ms, stored=tables.stored)

    def last_look_ms(self, stream: str, *, before_ms: int | None = None) -> int | None:
        """Returns when the last look of *stream* for records ended, reference; None if it never looked.

        With *before_ms* only earlier looks count.
        """
        is_before = pl.lit(value=True) if before_ms is None else pl.col("ended_ms") < before_ms
        looks = self._segments(stream).filter(pl.col("owner") == BROKER, is_before)
        return None if looks.is_empty() else int(looks.select(pl.max("ended_ms")).item())

    def _segments(self, stream: str) -> pl.DataFrame:
        """Returns the segments of *stream* by the reference clock."""
        segments = self.ledger.facts.segments.filter(pl.col("stream") == stream)
        clocks = self.ledger.clocks.select("stream", "driver", "to_reference_ms")
        return segments.join(clocks, on=["stream", "driver"]).with_columns(
            pl.col("began_ms", "ended_ms") + pl.col("to_reference_ms")
        )
